"""Keys, buckets, repositories that are elsewhere, or that this app may not change."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3

from constructs_lib import (
    AlarmOptions,
    DataCapture,
    DREndpointDashboard,
    InferenceImageRepo,
    ModelArtifact,
    ModelArtifactBucket,
    RealtimeDREndpoint,
    TrafficShift,
    ValidationError,
)
from constructs_lib.model_artifact_bucket import LOG_BUCKET_POLICY
from tests.constructs_fixtures import (
    ACCOUNT,
    HOME,
    REGION,
    SHA256,
    an_artifact,
    an_image,
    make_context,
    new_app,
    new_stack,
    only,
    template_of,
    warnings_in,
)

ELSEWHERE = "us-east-1"


def realtime(stack: cdk.Stack, **options: Any) -> RealtimeDREndpoint:
    return RealtimeDREndpoint(
        stack,
        "Endpoint",
        model=an_artifact(stack),
        image=an_image(),
        instance_type="ml.m5.xlarge",
        **options,
    )


def key_in(stack: cdk.Stack, region: str) -> kms.IKey:
    return kms.Key.from_key_arn(stack, f"Key-{region}", f"arn:aws:kms:{region}:{ACCOUNT}:key/k")


def bucket_in(stack: cdk.Stack, region: str) -> s3.IBucket:
    name = f"captured-{region}"
    return s3.Bucket.from_bucket_attributes(stack, name, bucket_name=name, region=region)


GIVEN: dict[str, Callable[[cdk.Stack, str], dict[str, Any]]] = {
    "encryption_key": lambda s, region: {"encryption_key": key_in(s, region)},
    "log_encryption_key": lambda s, region: {"log_encryption_key": key_in(s, region)},
    "data_capture.bucket": lambda s, region: {
        "data_capture": DataCapture(bucket=bucket_in(s, region))
    },
    "data_capture.encryption_key": lambda s, region: {
        "data_capture": DataCapture(bucket=bucket_in(s, REGION), encryption_key=key_in(s, region))
    },
}


@pytest.mark.parametrize("name", GIVEN)
def test_what_the_service_looks_for_in_its_region_must_be_there(name: str) -> None:
    realtime(here := new_stack(), **GIVEN[name](here, REGION))
    stack = new_stack()
    given = GIVEN[name](stack, ELSEWHERE)
    with pytest.raises(ValidationError) as refused:
        realtime(stack, **given)
    (fault,) = refused.value.faults
    assert fault.startswith(f"{name} must be in the stack's region, {REGION}")
    assert fault.endswith(f"got {ELSEWHERE}")
    # Where the stack goes to is not known, nothing is judged.
    anywhere = new_stack(env=None)
    realtime(anywhere, **GIVEN[name](anywhere, ELSEWHERE))


def test_alarms_of_another_region_take_nothing_back() -> None:
    stack = new_stack()
    arn = f"arn:aws:cloudwatch:{ELSEWHERE}:{ACCOUNT}:alarm:theirs"
    alarm = cloudwatch.Alarm.from_alarm_arn(stack, "Alarm", arn)
    with pytest.raises(ValidationError, match="rollback_alarms must be in the stack's region"):
        realtime(stack, rollback_alarms=[alarm], traffic_shift=TrafficShift.all_at_once())


def test_images_are_copied_within_one_place(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    app = new_app()
    elsewhere = cdk.Environment(account="210987654321", region=ELSEWHERE)
    theirs = ecr.Repository(
        cdk.Stack(app, "Theirs", env=elsewhere), "Repository", repository_name="theirs"
    )
    stack = cdk.Stack(app, "Ours", env=HOME)
    with pytest.raises(ValidationError) as refused:
        InferenceImageRepo(stack, "Images", directory=context, repository=theirs)
    assert [it.partition(",")[0] for it in refused.value.faults] == [
        "repository must be in the stack's region",
        "repository must be in the stack's account",
    ]


def test_a_function_may_pull_from_an_own_repository(tmp_path: Path) -> None:
    stack = new_stack()
    context = make_context(tmp_path)
    InferenceImageRepo(stack, "Images", directory=context, own_repository=True)
    _, repository = only(template_of(stack), "AWS::ECR::Repository")
    (statement,) = repository["Properties"]["RepositoryPolicyText"]["Statement"]
    assert statement["Principal"] == {"Service": "lambda.amazonaws.com"}
    assert statement["Action"] == ["ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]
    # Of this account and region alone.
    source = str(statement["Condition"]["StringLike"]["aws:SourceArn"])
    assert f":lambda:{REGION}:{ACCOUNT}:function:*" in source


def test_access_logs_go_where_s3_can_deliver_them() -> None:
    stack = new_stack()
    encrypted = s3.Bucket(stack, "Encrypted", encryption=s3.BucketEncryption.KMS)
    with pytest.raises(ValidationError, match="to no bucket with a KMS key"):
        ModelArtifactBucket(stack, "Models", access_logs_bucket=encrypted)
    stack = new_stack()
    with pytest.raises(ValidationError, match="access_logs_bucket must be in the stack's region"):
        ModelArtifactBucket(stack, "Models", access_logs_bucket=bucket_in(stack, ELSEWHERE))


@pytest.mark.parametrize(("imported", "said"), [(True, 1), (False, 0)])
def test_a_log_bucket_that_keeps_its_policy_is_said_to(imported: bool, said: int) -> None:
    stack = new_stack()
    logs = bucket_in(stack, REGION) if imported else s3.Bucket(stack, "Logs")
    models = ModelArtifactBucket(stack, "Models", access_logs_bucket=logs)
    warnings = [it for it in models.node.metadata if LOG_BUCKET_POLICY in str(it.data)]
    assert len(warnings) == said


def test_a_dashboard_says_where_its_metrics_are() -> None:
    app = new_app()
    clinic = cdk.Stack(app, "Clinic", env=HOME)
    endpoint = realtime(clinic, endpoint_name="grader", alarms=AlarmOptions())
    DREndpointDashboard(clinic, "Dashboard", endpoints=[endpoint])
    there = cdk.Environment(account=ACCOUNT, region=ELSEWHERE)
    central = cdk.Stack(app, "Central", env=there)
    board = cloudwatch.Dashboard(central, "All")
    board.add_widgets(*endpoint.dashboard_widgets())
    bodies = {
        stack.stack_name: str(only(template_of(stack), "AWS::CloudWatch::Dashboard")[1])
        for stack in (clinic, central)
    }
    metric = f'"EndpointName","grader","VariantName","AllTraffic",{{"region":"{REGION}"'
    # Nothing is said where it goes without saying.
    assert metric not in bodies["Clinic"]
    assert bodies["Central"].count(metric) >= 6


def test_a_dashboard_has_a_name_that_cloudwatch_takes() -> None:
    stack = new_stack()
    endpoint = realtime(stack)
    with pytest.raises(ValidationError, match=r"dashboard_name must be .*; got 'my board'"):
        DREndpointDashboard(stack, "Board", endpoints=[endpoint], dashboard_name="my board")


def test_what_is_another_accounts_is_a_warning() -> None:
    theirs = "210987654321"
    stack = new_stack()
    realtime(stack)
    assert not [it for it in warnings_in(stack) if "another account" in it]
    stack = new_stack()
    key = kms.Key.from_key_arn(stack, "Key", f"arn:aws:kms:{REGION}:{theirs}:key/k")
    bucket = s3.Bucket.from_bucket_attributes(
        stack, "Theirs", bucket_name="theirs", account=theirs, region=REGION, encryption_key=key
    )
    RealtimeDREndpoint(
        stack,
        "Endpoint",
        model=ModelArtifact.in_bucket(bucket, model_id="demo", sha256=SHA256),
        image=an_image(account=theirs),
        instance_type="ml.m5.xlarge",
        encryption_key=key,
    )
    (warning,) = (it for it in warnings_in(stack) if "another account" in it)
    assert warning.startswith(
        f"image ({theirs}), model ({theirs}), the key of the model's bucket ({theirs}), "
        f"encryption_key ({theirs}) in another account than the stack's, {ACCOUNT}"
    )
