"""Each role against a policy evaluator: what serving needs is allowed, its neighbour is not.

moto's evaluator decides, over the templates with their references resolved; every request is
made twice, on the endpoint's own resource and on one that is another's.
"""

from functools import cache

import pytest
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3

from constructs_lib import (
    DataCapture,
    LambdaDREndpoint,
    ModelArtifact,
    ProbeOptions,
    RealtimeDREndpoint,
    ServerlessDREndpoint,
    TrafficShift,
)
from tests.constructs_fixtures import (
    ACCOUNT,
    REGION,
    SHA256,
    Template,
    an_image,
    new_stack,
    resources,
    template_of,
)
from tests.role_simulator import Request, RoleSimulator

HERE = f"{REGION}:{ACCOUNT}"
KEY = f"arn:aws:s3:::our-models/models/demo/{SHA256}.tar.gz"
OTHER_KEY = f"arn:aws:s3:::our-models/models/demo/{'cd' * 32}.tar.gz"
OTHER_BUCKET = f"arn:aws:s3:::their-models/models/demo/{SHA256}.tar.gz"
REPOSITORY = f"arn:aws:ecr:{HERE}:repository/dr/serving"
OTHER_REPOSITORY = f"arn:aws:ecr:{HERE}:repository/dr/training"
MODEL_KMS = f"arn:aws:kms:{HERE}:key/models"
VOLUME_KMS = f"arn:aws:kms:{HERE}:key/volumes"
OTHER_KMS = f"arn:aws:kms:{HERE}:key/others"
FUNCTION = f"arn:aws:lambda:{HERE}:function"
LOGS = f"arn:aws:logs:{HERE}:log-group"


READ_MODEL = (
    Request(action="s3:GetObject", ours=KEY, others=(OTHER_KEY, OTHER_BUCKET)),
    Request(action="kms:Decrypt", ours=MODEL_KMS, others=(OTHER_KMS,)),
)
PULL = tuple(
    Request(action=action, ours=REPOSITORY, others=(OTHER_REPOSITORY,))
    for action in (
        "ecr:BatchGetImage",
        "ecr:GetDownloadUrlForLayer",
        "ecr:BatchCheckLayerAvailability",
    )
)


def sagemaker_needs(name: str) -> tuple[Request, ...]:
    return (
        *READ_MODEL,
        *PULL,
        *(
            Request(
                action=action,
                ours=f"{LOGS}:/aws/sagemaker/Endpoints/{name}:log-stream:AllTraffic/i-1",
                others=(f"{LOGS}:/aws/sagemaker/Endpoints/another:log-stream:AllTraffic/i-1",),
            )
            for action in ("logs:CreateLogStream", "logs:PutLogEvents")
        ),
        Request(
            action="cloudwatch:DescribeAlarms",
            ours=f"arn:aws:cloudwatch:{HERE}:alarm:{name}-latency",
            others=(f"arn:aws:cloudwatch:{HERE}:alarm:another-latency",),
        ),
    )


VOLUME = (
    Request(action="kms:GenerateDataKeyWithoutPlaintext", ours=VOLUME_KMS, others=(OTHER_KMS,)),
    Request(action="kms:Decrypt", ours=VOLUME_KMS, others=(OTHER_KMS,)),
)
NEEDS: dict[str, tuple[Request, ...]] = {
    "Serverless/Role": sagemaker_needs("dr-serverless"),
    "RealTime/Role": (
        *sagemaker_needs("dr-realtime"),
        *VOLUME,
        Request(
            action="s3:PutObject",
            ours="arn:aws:s3:::kept/captured/dr-realtime/AllTraffic/2026/1.jsonl",
            others=("arn:aws:s3:::kept/elsewhere/1.jsonl", "arn:aws:s3:::our-models/captured/1"),
        ),
        Request(
            action="ec2:CreateNetworkInterface",
            ours=f"arn:aws:ec2:{HERE}:subnet/subnet-a",
            others=(f"arn:aws:ec2:{HERE}:subnet/subnet-z",),
        ),
        Request(
            action="ec2:CreateNetworkInterface",
            ours=f"arn:aws:ec2:{HERE}:security-group/sg-ours",
            others=(f"arn:aws:ec2:{HERE}:security-group/sg-theirs",),
        ),
    ),
    "OnLambda/Role": (
        *READ_MODEL,
        Request(
            action="logs:PutLogEvents",
            ours=f"{LOGS}:/aws/lambda/dr-lambda:log-stream:2026/1",
            others=(f"{LOGS}:/aws/lambda/another:log-stream:2026/1",),
        ),
        Request(action="kms:Decrypt", ours=VOLUME_KMS, others=(OTHER_KMS,)),
    ),
    "Serverless/Probe": (
        Request(
            action="sagemaker:InvokeEndpoint",
            ours=f"arn:aws:sagemaker:{HERE}:endpoint/dr-serverless",
            others=(f"arn:aws:sagemaker:{HERE}:endpoint/dr-realtime",),
        ),
        Request(
            action="sagemaker:DescribeEndpoint",
            ours=f"arn:aws:sagemaker:{HERE}:endpoint/dr-serverless",
            others=(f"arn:aws:sagemaker:{HERE}:endpoint/dr-realtime",),
        ),
    ),
    "OnLambda/Probe": (
        Request(
            action="lambda:InvokeFunction",
            ours=f"{FUNCTION}:dr-lambda:live",
            others=(f"{FUNCTION}:another:live", f"{FUNCTION}:dr-lambda:2"),
        ),
    ),
}
# What no role may do, whatever it is for.
NEVER = (
    ("s3:ListBucket", "arn:aws:s3:::our-models"),
    ("s3:DeleteObject", KEY),
    ("s3:PutObject", KEY),
    ("ecr:PutImage", REPOSITORY),
    ("ecr:DeleteRepository", REPOSITORY),
    ("iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/any"),
    ("sts:AssumeRole", f"arn:aws:iam::{ACCOUNT}:role/any"),
    ("kms:ScheduleKeyDeletion", MODEL_KMS),
    ("sagemaker:UpdateEndpoint", f"arn:aws:sagemaker:{HERE}:endpoint/dr-serverless"),
    ("sagemaker:DeleteEndpoint", f"arn:aws:sagemaker:{HERE}:endpoint/dr-serverless"),
    ("lambda:UpdateFunctionCode", f"{FUNCTION}:dr-lambda"),
    ("logs:DeleteLogGroup", f"{LOGS}:/aws/lambda/dr-lambda"),
    ("logs:GetLogEvents", f"{LOGS}:/aws/sagemaker/Endpoints/dr-realtime:log-stream:x"),
    ("cloudwatch:DeleteAlarms", f"arn:aws:cloudwatch:{HERE}:alarm:dr-realtime-latency"),
    ("secretsmanager:GetSecretValue", f"arn:aws:secretsmanager:{HERE}:secret:any"),
    ("dynamodb:GetItem", f"arn:aws:dynamodb:{HERE}:table/any"),
)


@cache
def template() -> Template:
    """Three endpoints that have everything that gives a role something to do."""
    stack = new_stack()
    bucket = s3.Bucket.from_bucket_attributes(
        stack,
        "Bucket",
        bucket_name="our-models",
        encryption_key=kms.Key.from_key_arn(stack, "ModelKey", MODEL_KMS),
    )
    model = ModelArtifact.in_bucket(bucket, model_id="demo", sha256=SHA256)
    volumes = kms.Key.from_key_arn(stack, "VolumeKey", VOLUME_KMS)
    image = an_image()
    ServerlessDREndpoint(
        stack,
        "Serverless",
        model=model,
        image=image,
        memory_mib=2048,
        endpoint_name="dr-serverless",
        traffic_shift=TrafficShift.canary(),
        probe=ProbeOptions(),
    )
    RealtimeDREndpoint(
        stack,
        "RealTime",
        model=model,
        image=image,
        instance_type="ml.m5.xlarge",
        endpoint_name="dr-realtime",
        encryption_key=volumes,
        data_capture=DataCapture(bucket=s3.Bucket.from_bucket_name(stack, "Kept", "kept")),
        vpc=ec2.Vpc.from_vpc_attributes(
            stack,
            "Vpc",
            vpc_id="vpc-1",
            availability_zones=["eu-west-1a"],
            private_subnet_ids=["subnet-a"],
        ),
        security_groups=[ec2.SecurityGroup.from_security_group_id(stack, "Group", "sg-ours")],
    )
    LambdaDREndpoint(
        stack,
        "OnLambda",
        model=model,
        image=image,
        memory_mib=1769,
        endpoint_name="dr-lambda",
        encryption_key=volumes,
        probe=ProbeOptions(),
    )
    return template_of(stack)


@cache
def roles() -> RoleSimulator:
    return RoleSimulator(template(), log_groups=LOGS)


def allowed(role: str, action: str, resource: str) -> bool:
    return roles().allowed(pattern(role), action, resource)


def pattern(role: str) -> str:
    """What the logical id of `role`, `Serverless/Role` or `Serverless/Probe`, begins with."""
    prefix = role.replace("/", "")
    return prefix + ("Role" if prefix.endswith("Probe") else "")


NEEDED = [
    pytest.param(role, request, id=f"{role}-{request.action}")
    for role, requests in NEEDS.items()
    for request in requests
]


@pytest.mark.parametrize(("role", "needed"), NEEDED)
def test_a_role_may_do_what_its_endpoint_needs_and_only_there(role: str, needed: Request) -> None:
    assert allowed(role, needed.action, needed.ours)
    for other in needed.others:
        assert not allowed(role, needed.action, other), other


@pytest.mark.parametrize("role", NEEDS)
def test_no_role_may_change_or_list_or_pass_anything(role: str) -> None:
    granted = [(action, on) for action, on in NEVER if allowed(role, action, on)]
    assert granted == []


@pytest.mark.parametrize(
    ("role", "action", "on"),
    [
        # A serverless endpoint has no network, no volumes and keeps nothing.
        ("Serverless/Role", "ec2:CreateNetworkInterface", f"arn:aws:ec2:{HERE}:subnet/subnet-a"),
        ("Serverless/Role", "s3:PutObject", "arn:aws:s3:::kept/captured/1"),
        ("Serverless/Role", "kms:Decrypt", VOLUME_KMS),
        # Lambda itself pulls; the function does not.
        ("OnLambda/Role", "ecr:BatchGetImage", REPOSITORY),
        # A probe reads no model.
        ("Serverless/Probe", "s3:GetObject", KEY),
        ("OnLambda/Probe", "s3:GetObject", KEY),
        ("OnLambda/Probe", "sagemaker:InvokeEndpoint", f"arn:aws:sagemaker:{HERE}:endpoint/any"),
    ],
)
def test_what_an_endpoint_does_not_use_it_may_not(role: str, action: str, on: str) -> None:
    assert not allowed(role, action, on)


def test_the_only_resource_wildcards_are_of_actions_that_know_no_resource() -> None:
    found = set()
    for policy in resources(template(), "AWS::IAM::Policy").values():
        for statement in roles().resolved(policy["Properties"]["PolicyDocument"])["Statement"]:
            if statement["Resource"] == "*":
                actions = statement["Action"]
                found |= {actions} if isinstance(actions, str) else set(actions)
    assert found == {
        "cloudwatch:PutMetricData",
        "ecr:GetAuthorizationToken",
        "ec2:DescribeDhcpOptions",
        "ec2:DescribeNetworkInterfaces",
        "ec2:DescribeSecurityGroups",
        "ec2:DescribeSubnets",
        "ec2:DescribeVpcs",
    }
