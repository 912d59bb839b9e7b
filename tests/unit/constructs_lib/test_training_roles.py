"""The three roles of a pipeline against a policy evaluator: its own things, and no others."""

import json
from functools import cache

import pytest
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3

from constructs_lib import ModelArtifactBucket
from tests.constructs_fixtures import ACCOUNT, REGION, SHA256, new_stack, resources, template_of
from tests.role_simulator import Request, RoleSimulator
from tests.state_machines import definition_of
from tests.training_fixtures import a_pipeline

HERE = f"{REGION}:{ACCOUNT}"
RUN = "arn:aws:s3:::ours/runs/first"
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


def of_every_job(step: str, logs: str) -> tuple[Request, ...]:
    return (
        allow("ecr:BatchGetImage", REPOSITORY, OTHER_REPOSITORY),
        allow("ecr:GetDownloadUrlForLayer", REPOSITORY, OTHER_REPOSITORY),
        allow(
            "logs:PutLogEvents",
            f"{LOGS}:/aws/sagemaker/{logs}:log-stream:dr-clinic-{step}-0123/algo-1",
            f"{LOGS}:/aws/sagemaker/{logs}:log-stream:another-{step}-0123/algo-1",
            f"{LOGS}:/aws/sagemaker/Endpoints/dr-clinic:log-stream:dr-clinic-{step}-0123/a",
        ),
        allow("kms:GenerateDataKeyWithoutPlaintext", key("volumes"), key("others")),
        allow("kms:CreateGrant", key("volumes"), key("runs"), key("others")),
        allow("kms:GenerateDataKey", key("runs"), key("others"), key("photographs")),
        allow(
            "ec2:CreateNetworkInterface",
            f"arn:aws:ec2:{HERE}:subnet/subnet-a",
            f"arn:aws:ec2:{HERE}:subnet/subnet-z",
        ),
    )


NEEDS: dict[str, tuple[Request, ...]] = {
    "TrainingProcessingRole": (
        *of_every_job("prepare", "ProcessingJobs"),
        *of_every_job("gate", "ProcessingJobs"),
        *of_every_job("pack", "ProcessingJobs"),
        allow("s3:GetObject", PHOTOGRAPH, *OTHER_PHOTOGRAPHS),
        allow("kms:Decrypt", key("photographs"), key("others")),
        allow("s3:GetObject", f"{RUN}/code/dr-training-code.zip", "arn:aws:s3:::ours/other/code/1"),
        allow("s3:GetObject", f"{RUN}/records/test-0.npz", f"{RUN}/checkpoints/state.npz"),
        allow("s3:GetObject", f"{RUN}/model/job/output/model.tar.gz", f"{RUN}/packed/pack.json"),
        allow("s3:GetObject", f"{RUN}/gate/gate.json", "arn:aws:s3:::theirs/runs/first/gate/1"),
        allow("s3:PutObject", f"{RUN}/records/manifest.json", f"{RUN}/code/dr-training-code.zip"),
        allow("s3:PutObject", f"{RUN}/gate/gate.json", f"{RUN}/model/job/output/model.tar.gz"),
        allow("s3:PutObject", f"{RUN}/packed/pack.json", f"{RUN}/checkpoints/best.npz"),
        allow("s3:PutObject", PACKAGE, OTHER_PACKAGE, "arn:aws:s3:::our-models/1"),
        allow("kms:GenerateDataKey", key("packages"), key("others")),
    ),
    "TrainingTrainingRole": (
        *of_every_job("train", "TrainingJobs"),
        allow("s3:GetObject", f"{RUN}/records/train-0.npz", f"{RUN}/gate/gate.json"),
        allow("s3:GetObject", f"{RUN}/checkpoints/state.npz", f"{RUN}/packed/pack.json"),
        allow("s3:PutObject", f"{RUN}/checkpoints/state.npz", f"{RUN}/records/train-0.npz"),
        allow("s3:PutObject", f"{RUN}/model/job/output/model.tar.gz", f"{RUN}/gate/gate.json"),
        allow("s3:DeleteObject", f"{RUN}/checkpoints/old.npz", f"{RUN}/model/job/output/1"),
    ),
    r"TrainingRole[0-9A-F]": (
        *(
            allow(
                f"sagemaker:{verb}{kind}Job",
                f"{SAGEMAKER}:{kind.lower()}-job/dr-clinic-{step}-0123456789ab",
                f"{SAGEMAKER}:{kind.lower()}-job/another-{step}-0123456789ab",
                f"{SAGEMAKER}:{kind.lower()}-job/dr-clinic-other-0123456789ab",
            )
            for kind, steps in (
                ("Processing", ("prepare", "gate", "pack")),
                ("Training", ("train",)),
            )
            for step in steps
            for verb in ("Create", "Describe", "Stop")
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
        allow("s3:PutObject", f"{RUN}/code/dr-training-code.zip", f"{RUN}/gate/gate.json"),
        allow("s3:GetObject", f"{RUN}/gate/gate.json", f"{RUN}/records/test-0.npz"),
        allow("s3:GetObject", f"{RUN}/packed/pack.json", f"{RUN}/model/job/output/model.tar.gz"),
        allow("s3:GetObject", PACKAGE, OTHER_PACKAGE),
        allow("kms:GenerateDataKey", key("runs"), key("others"), key("packages")),
        allow("kms:Decrypt", key("packages"), key("photographs"), key("volumes")),
        allow("ecr:BatchGetImage", REPOSITORY, OTHER_REPOSITORY),
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
    names = {"TrainingProcessingRole": "processing", "TrainingTrainingRole": "training"}
    arns = {
        logical: f"arn:aws:iam::{ACCOUNT}:role/{name}"
        for logical in resources(template, "AWS::IAM::Role")
        for beginning, name in names.items()
        if logical.startswith(beginning)
    }
    return RoleSimulator(template, log_groups=LOGS, arns=arns)


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
    """The evaluator does not look at conditions: they are looked at here."""
    expected = {
        "PassJobRoles": {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}},
        "ListPhotographs": {"StringLike": {"s3:prefix": "clinic/*"}},
        "ListRuns": {"StringLike": {"s3:prefix": "runs/*"}},
        "GrantVolumeKey": {"Bool": {"kms:GrantIsForAWSResource": "true"}},
    }
    found = {
        statement["Sid"]: statement.get("Condition")
        for role in NEEDS
        for statement in roles().statements(role)
    }
    assert {sid: found[sid] for sid in expected} == expected


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
