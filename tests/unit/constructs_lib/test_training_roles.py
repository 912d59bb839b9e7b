"""The three roles of a pipeline against a policy evaluator: its own things, and no others."""

import json
from functools import cache
from typing import Any

import pytest
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3

from constructs_lib import ModelArtifactBucket
from tests.constructs_fixtures import (
    ACCOUNT,
    REGION,
    SHA256,
    Template,
    new_stack,
    resources,
    template_of,
)
from tests.role_simulator import Request, RoleSimulator
from tests.state_machines import definition_of
from tests.training_fixtures import a_pipeline

HERE = f"{REGION}:{ACCOUNT}"
RUN = "arn:aws:s3:::ours/runs/dr-clinic/first"
# Of other pipelines in the same bucket: one whose name goes on, one with it in another place.
OTHER_RUNS = (
    "arn:aws:s3:::ours/runs/dr-clinic-train/first",
    "arn:aws:s3:::ours/runs/another/dr-clinic/first",
    "arn:aws:s3:::ours/runs/first",
)
MODELS = "arn:aws:s3:::our-models/models"
PACKAGE = f"{MODELS}/clinic/{SHA256}.tar.gz"
OTHER_PACKAGE = f"{MODELS}/other/{SHA256}.tar.gz"
LOGS = f"arn:aws:logs:{HERE}:log-group"
SAGEMAKER = f"arn:aws:sagemaker:{HERE}"
REPOSITORY = f"arn:aws:ecr:{HERE}:repository/dr/serving"
OTHER_REPOSITORY = f"arn:aws:ecr:{HERE}:repository/dr/other"
PHOTOGRAPH = "arn:aws:s3:::photographs/clinic/1.jpg"
OTHER_PHOTOGRAPHS = (
    "arn:aws:s3:::photographs/clinic-2/1.jpg",
    "arn:aws:s3:::photographs/1.jpg",
    "arn:aws:s3:::theirs/clinic/1.jpg",
)
RULES = f"arn:aws:events:{HERE}:rule"


def key(name: str) -> str:
    return f"arn:aws:kms:{HERE}:key/{name}"


def allow(action: str, ours: str, *others: str) -> Request:
    return Request(action=action, ours=ours, others=others)


def in_runs(action: str, name: str, *others: str) -> Request:
    """On what this pipeline's runs keep; not on others' runs, nor on `others` of the same run."""
    theirs = (f"{run}/{name}" for run in OTHER_RUNS)
    return allow(action, f"{RUN}/{name}", *theirs, *(f"{RUN}/{other}" for other in others))


def of_every_job(step: str, logs: str) -> tuple[Request, ...]:
    group = f"{LOGS}:/aws/sagemaker/{logs}"
    others = (
        f"{group}:log-stream:another-{step}-0123456789ab/algo-1",
        # Of a pipeline whose name goes on where this one's job's name does.
        f"{group}:log-stream:dr-clinic-{step}-{step}-0123456789ab/algo-1",
        f"{group}:log-stream:dr-clinic-other-0123456789ab/algo-1",
        f"{LOGS}:/aws/sagemaker/Endpoints/dr-clinic:log-stream:dr-clinic-{step}-0123456789ab/a",
    )
    return (
        *(
            allow(f"ecr:{verb}", REPOSITORY, OTHER_REPOSITORY)
            for verb in ("BatchCheckLayerAvailability", "BatchGetImage", "GetDownloadUrlForLayer")
        ),
        allow("ecr:GetAuthorizationToken", "*"),
        *(
            # As CloudWatch Logs names a group where one is made, and where its streams are listed.
            allow(
                action,
                f"{group}{end}",
                f"{group}Others{end}",
                f"{LOGS}:/aws/sagemaker/Endpoints/dr-clinic{end}",
            )
            for action in ("logs:CreateLogGroup", "logs:DescribeLogStreams")
            for end in ("", ":*", ":log-stream:")
        ),
        *(
            allow(action, f"{group}:log-stream:dr-clinic-{step}-0123456789ab/algo-1", *others)
            for action in ("logs:CreateLogStream", "logs:PutLogEvents")
        ),
        allow("cloudwatch:PutMetricData", "*"),
        allow("kms:GenerateDataKeyWithoutPlaintext", key("volumes"), key("others")),
        allow("kms:CreateGrant", key("volumes"), key("runs"), key("others")),
        allow("kms:GenerateDataKey", key("runs"), key("others"), key("photographs")),
        allow("kms:Decrypt", key("runs"), key("others")),
        allow("s3:ListBucket", "arn:aws:s3:::ours", "arn:aws:s3:::our-models"),
        allow(
            "ec2:CreateNetworkInterface",
            f"arn:aws:ec2:{HERE}:subnet/subnet-a",
            f"arn:aws:ec2:{HERE}:subnet/subnet-z",
        ),
        allow(
            "ec2:CreateNetworkInterfacePermission",
            f"arn:aws:ec2:{HERE}:network-interface/eni-1",
            f"arn:aws:ec2:{HERE}:instance/i-1",
        ),
        allow("ec2:DescribeSubnets", "*"),
    )


NEEDS: dict[str, tuple[Request, ...]] = {
    "TrainingProcessingRole": (
        *of_every_job("prepare", "ProcessingJobs"),
        *of_every_job("gate", "ProcessingJobs"),
        *of_every_job("pack", "ProcessingJobs"),
        allow("s3:GetObject", PHOTOGRAPH, *OTHER_PHOTOGRAPHS),
        allow("kms:Decrypt", key("photographs"), key("others")),
        allow("s3:ListBucket", "arn:aws:s3:::photographs", "arn:aws:s3:::theirs"),
        in_runs("s3:GetObject", "code/dr-training-code.zip"),
        in_runs("s3:GetObject", "records/test-0.npz", "checkpoints/state.npz"),
        in_runs("s3:GetObject", "model/job/output/model.tar.gz", "packed/pack.json"),
        in_runs("s3:GetObject", "gate/gate.json"),
        in_runs("s3:PutObject", "records/manifest.json", "code/dr-training-code.zip"),
        in_runs("s3:PutObject", "gate/gate.json", "model/job/output/model.tar.gz"),
        in_runs("s3:PutObject", "packed/pack.json", "checkpoints/best.npz"),
        allow("s3:PutObject", PACKAGE, OTHER_PACKAGE, "arn:aws:s3:::our-models/1"),
        allow("kms:GenerateDataKey", key("packages"), key("others")),
    ),
    "TrainingTrainingRole": (
        *of_every_job("train", "TrainingJobs"),
        in_runs("s3:GetObject", "code/dr-training-code.zip", "model/job/output/model.tar.gz"),
        in_runs("s3:GetObject", "records/train-0.npz", "gate/gate.json"),
        in_runs("s3:GetObject", "checkpoints/state.npz", "packed/pack.json"),
        in_runs("s3:PutObject", "checkpoints/state.npz", "records/train-0.npz"),
        in_runs("s3:PutObject", "model/job/output/model.tar.gz", "gate/gate.json"),
        in_runs("s3:DeleteObject", "checkpoints/old.npz", "model/job/output/1"),
    ),
    r"TrainingRole[0-9A-F]": (
        *(
            allow(
                action,
                f"{SAGEMAKER}:{kind.lower()}-job/dr-clinic-{step}-0123456789ab",
                f"{SAGEMAKER}:{kind.lower()}-job/another-{step}-0123456789ab",
                f"{SAGEMAKER}:{kind.lower()}-job/dr-clinic-other-0123456789ab",
                # Of a pipeline whose name goes on where this one's job's name does.
                f"{SAGEMAKER}:{kind.lower()}-job/dr-clinic-{step}-{step}-0123456789ab",
                f"{SAGEMAKER}:endpoint/dr-clinic-{step}-0123456789ab",
            )
            for kind, steps in (
                ("Processing", ("prepare", "gate", "pack")),
                ("Training", ("train",)),
            )
            for step in steps
            for action in (
                *(f"sagemaker:{verb}{kind}Job" for verb in ("Create", "Describe", "Stop")),
                *("sagemaker:AddTags", "sagemaker:ListTags"),
            )
        ),
        *(
            allow(
                "iam:PassRole",
                f"arn:aws:iam::{ACCOUNT}:role/{role}",
                f"arn:aws:iam::{ACCOUNT}:role/orchestration",
                f"arn:aws:iam::{ACCOUNT}:role/any",
            )
            for role in ("processing", "training")
        ),
        *(
            allow(
                action,
                f"{RULES}/StepFunctionsGetEventsForSageMaker{kind}JobsRule",
                f"{RULES}/StepFunctionsGetEventsForSageMakerTransformJobsRule",
                f"{RULES}/any",
            )
            for action in ("events:PutRule", "events:PutTargets", "events:DescribeRule")
            for kind in ("Training", "Processing")
        ),
        allow(
            "sagemaker:CreateModelPackage",
            f"{SAGEMAKER}:model-package-group/dr-clinic",
            f"{SAGEMAKER}:model-package-group/another",
        ),
        allow(
            "sagemaker:CreateModelPackage",
            f"{SAGEMAKER}:model-package/dr-clinic/1",
            f"{SAGEMAKER}:model-package/another/1",
        ),
        in_runs("s3:PutObject", "code/dr-training-code.zip", "gate/gate.json"),
        in_runs("s3:GetObject", "gate/gate.json", "records/test-0.npz"),
        in_runs("s3:GetObject", "packed/pack.json", "model/job/output/model.tar.gz"),
        allow("s3:GetObject", PACKAGE, OTHER_PACKAGE),
        allow("kms:GenerateDataKey", key("runs"), key("others"), key("packages")),
        allow("kms:Decrypt", key("runs"), key("others")),
        allow("kms:Decrypt", key("packages"), key("photographs"), key("volumes")),
        allow("ecr:BatchGetImage", REPOSITORY, OTHER_REPOSITORY),
        allow("ecr:DescribeImages", REPOSITORY, OTHER_REPOSITORY),
        allow("logs:CreateLogDelivery", "*"),
        allow("logs:PutResourcePolicy", "*"),
        allow("xray:PutTraceSegments", "*"),
    ),
}
# What no role may do.
NEVER = (
    ("s3:DeleteObject", PACKAGE),
    ("s3:DeleteObject", PHOTOGRAPH),
    ("s3:DeleteObject", f"{RUN}/records/test-0.npz"),
    ("s3:PutObject", PHOTOGRAPH),
    ("s3:ListBucket", "arn:aws:s3:::our-models"),
    ("s3:ListBucket", "arn:aws:s3:::theirs"),
    ("ecr:PutImage", REPOSITORY),
    ("sts:AssumeRole", f"arn:aws:iam::{ACCOUNT}:role/any"),
    ("kms:ScheduleKeyDeletion", key("runs")),
    ("sagemaker:CreateModel", f"{SAGEMAKER}:model/any"),
    ("sagemaker:CreateEndpoint", f"{SAGEMAKER}:endpoint/any"),
    ("sagemaker:UpdateModelPackage", f"{SAGEMAKER}:model-package/dr-clinic/1"),
    ("sagemaker:DeleteModelPackage", f"{SAGEMAKER}:model-package/dr-clinic/1"),
    ("states:StartExecution", f"arn:aws:states:{HERE}:stateMachine:dr-clinic"),
    ("logs:DeleteLogGroup", f"{LOGS}:/aws/vendedlogs/states/dr-clinic"),
    ("secretsmanager:GetSecretValue", f"arn:aws:secretsmanager:{HERE}:secret:any"),
)


@cache
def roles() -> RoleSimulator:
    """A pipeline that has everything that gives a role something to do."""
    stack = new_stack()

    def bucket(name: str, key_name: str) -> s3.IBucket:
        return s3.Bucket.from_bucket_attributes(
            stack,
            f"Bucket{key_name}",
            bucket_name=name,
            encryption_key=kms.Key.from_key_arn(stack, key_name, key(key_name.lower())),
        )

    a_pipeline(
        stack,
        photographs=bucket("photographs", "Photographs"),
        runs_bucket=bucket("ours", "Runs"),
        models=ModelArtifactBucket(stack, "Models", bucket=bucket("our-models", "Packages")),
        encryption_key=kms.Key.from_key_arn(stack, "Volumes", key("volumes")),
        vpc=ec2.Vpc.from_vpc_attributes(
            stack,
            "Vpc",
            vpc_id="vpc-1",
            availability_zones=["eu-west-1a"],
            private_subnet_ids=["subnet-a"],
        ),
        security_groups=[ec2.SecurityGroup.from_security_group_id(stack, "Group", "sg-ours")],
    )
    template = template_of(stack)
    return RoleSimulator(template, log_groups=LOGS, arns=arns_of_job_roles(template))


def arns_of_job_roles(template: Template) -> dict[str, str]:
    names = {"TrainingProcessingRole": "processing", "TrainingTrainingRole": "training"}
    return {
        logical: f"arn:aws:iam::{ACCOUNT}:role/{name}"
        for logical in resources(template, "AWS::IAM::Role")
        for beginning, name in names.items()
        if logical.startswith(beginning)
    }


NEEDED = [
    pytest.param(role, request, id=f"{role[:12]}-{request.action}-{number}")
    for role, requests in NEEDS.items()
    for number, request in enumerate(requests)
]


@pytest.mark.parametrize(("role", "needed"), NEEDED)
def test_a_role_may_do_what_its_part_needs_and_only_there(role: str, needed: Request) -> None:
    assert roles().allowed(role, needed.action, needed.ours)
    for other in needed.others:
        assert not roles().allowed(role, needed.action, other), other


@pytest.mark.parametrize("role", NEEDS)
def test_no_role_may_delete_deploy_or_approve(role: str) -> None:
    granted = [(action, on) for action, on in NEVER if roles().allowed(role, action, on)]
    assert granted == []


@pytest.mark.parametrize(
    ("role", "action", "on"),
    [
        # Only the processing jobs see photographs, and only they publish.
        ("TrainingTrainingRole", "s3:GetObject", PHOTOGRAPH),
        ("TrainingTrainingRole", "s3:PutObject", PACKAGE),
        ("TrainingTrainingRole", "kms:Decrypt", key("photographs")),
        ("TrainingRole[0-9A-F]", "s3:GetObject", PHOTOGRAPH),
        ("TrainingRole[0-9A-F]", "s3:PutObject", PACKAGE),
        ("TrainingRole[0-9A-F]", "kms:Decrypt", key("photographs")),
        # Jobs start no jobs.
        ("TrainingProcessingRole", "iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/training"),
        ("TrainingProcessingRole", "sagemaker:CreateTrainingJob", f"{SAGEMAKER}:training-job/x"),
        ("TrainingTrainingRole", "sagemaker:CreateTrainingJob", f"{SAGEMAKER}:training-job/x"),
    ],
)
def test_what_a_part_does_not_do_it_may_not(role: str, action: str, on: str) -> None:
    assert not roles().allowed(role, action, on)


def test_conditions_narrow_what_resources_cannot() -> None:
    """The evaluator does not look at conditions: they are looked at here, role by role."""

    def of_a_job(logs: str) -> dict[str, Any]:
        return {
            "ListRuns": {"StringLike": {"s3:prefix": "runs/dr-clinic/*"}},
            "GrantVolumeKey": {"Bool": {"kms:GrantIsForAWSResource": "true"}},
            "PublishMetrics": {
                "StringEquals": {"cloudwatch:namespace": [f"/aws/sagemaker/{logs}"]}
            },
        }

    expected = {
        "TrainingProcessingRole": {
            **of_a_job("ProcessingJobs"),
            "ListPhotographs": {"StringLike": {"s3:prefix": "clinic/*"}},
        },
        "TrainingTrainingRole": of_a_job("TrainingJobs"),
        "TrainingRole[0-9A-F]": {
            "PassJobRoles": {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}},
        },
    }
    assert set(expected) == set(NEEDS)
    for role, conditions in expected.items():
        statements = roles().statements(role)
        assert len({it["Sid"] for it in statements}) == len(statements)
        found = {it["Sid"]: it["Condition"] for it in statements if "Condition" in it}
        assert found == conditions, role


def test_the_only_resource_wildcards_are_of_actions_that_know_no_resource() -> None:
    found = {
        statement["Sid"]
        for role in NEEDS
        for statement in roles().statements(role)
        if statement["Resource"] == "*"
    }
    assert found == {
        *("LogInToRegistry", "PublishMetrics", "DescribeNetwork"),
        *("DeliverLogs", "TraceExecutions"),
    }


def test_the_code_is_the_one_object_of_the_assembly_that_is_read() -> None:
    stack = new_stack()
    a_pipeline(stack)
    template = template_of(stack)
    source = definition_of(template)["States"]["BringCode"]["Parameters"]["CopySource"]
    (read,) = (
        statement
        for policy in resources(template, "AWS::IAM::Policy").values()
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]
        if statement["Sid"] == "ReadCode"
    )
    text = json.dumps(read["Resource"])
    assert source in text
    assert "*" not in text
    role = "TrainingRole[0-9A-F]"
    simulator = RoleSimulator(template, log_groups=LOGS, arns=arns_of_job_roles(template))
    bucket, _, _ = source.partition("/")
    assert simulator.allowed(role, "s3:GetObject", f"arn:aws:s3:::{source}")
    assert not simulator.allowed(role, "s3:GetObject", f"arn:aws:s3:::{bucket}/another.zip")
