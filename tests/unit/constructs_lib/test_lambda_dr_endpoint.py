"""The service as a function: what is deployed, what an update makes anew, who may do what."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk import aws_iam as iam

from constructs_lib import (
    LambdaDREndpoint,
    ModelArtifactBucket,
    TrafficShift,
    ValidationError,
)
from tests.constructs_fixtures import (
    Template,
    an_artifact,
    an_image,
    make_package,
    new_stack,
    only,
    resources,
    statements,
    template_of,
)
from tests.unit.constructs_lib.test_operations import on_lambda

FUNCTION = "AWS::Lambda::Function"
VERSION = "AWS::Lambda::Version"
ALIAS = "AWS::Lambda::Alias"
ROLE = "AWS::IAM::Role"


def made(**props: Any) -> Template:
    stack = new_stack()
    on_lambda(stack, **props)
    return template_of(stack)


@pytest.mark.parametrize(("architecture", "named"), [("amd64", "x86_64"), ("arm64", "arm64")])
def test_the_image_runs_the_handler_on_its_architecture(architecture: str, named: str) -> None:
    image = an_image(architecture=architecture)
    said = only(made(image=image), FUNCTION)[1]["Properties"]
    assert said["PackageType"] == "Image"
    assert said["Code"] == {"ImageUri": image.uri}
    assert said["Architectures"] == [named]
    # As docs/lambda.md says.
    assert said["ImageConfig"] == {
        "EntryPoint": ["python3", "-m", "awslambdaric"],
        "Command": ["inference_image.lambda_handler.handler"],
    }
    assert "Handler" not in said
    assert "Runtime" not in said
    assert (said["MemorySize"], said["Timeout"]) == (1769, 60)
    assert said["EphemeralStorage"] == {"Size": 512}
    assert "ReservedConcurrentExecutions" not in said


def test_what_the_page_on_lambda_says_is_what_is_deployed(repository: Path) -> None:
    page = (repository / "docs" / "lambda.md").read_text()
    config = only(made(), FUNCTION)[1]["Properties"]["ImageConfig"]
    said = page.split("As `ImageConfig` of a function: `", 1)[1].split("`", 1)[0]
    assert json.loads(" ".join(said.split())) == config


def test_the_model_comes_from_s3_or_lies_in_the_image() -> None:
    template = made()
    environment = only(template, FUNCTION)[1]["Properties"]["Environment"]["Variables"]
    assert json.dumps(environment["DR_MODEL_URL"]).endswith('.tar.gz"]]}')
    assert environment["DR_SERVING_MODE"] == "serverless"
    assert [it["Action"] for it in statements(template) if it.get("Sid") == "ReadModelPackage"] == [
        "s3:GetObject"
    ]
    inside = made(model=None)
    environment = only(inside, FUNCTION)[1]["Properties"]["Environment"]["Variables"]
    assert environment == {"DR_SERVING_MODE": "serverless"}
    assert "s3:" not in json.dumps(statements(inside))


def test_the_function_waits_for_its_package(tmp_path: Path) -> None:
    stack = new_stack()
    bucket = ModelArtifactBucket(stack, "Packages")
    on_lambda(stack, model=bucket.add_model(make_package(tmp_path, "demo")))
    template = template_of(stack)
    copy, _ = only(template, "Custom::CDKBucketDeployment")
    (function,) = (
        it
        for it in resources(template, FUNCTION).values()
        if it["Properties"].get("PackageType") == "Image"
    )
    assert copy in function["DependsOn"]


def test_a_package_that_the_disk_does_not_hold_is_refused(tmp_path: Path) -> None:
    package = make_package(tmp_path, "demo", content=b"")
    document = json.loads((package / "model.json").read_text())
    document["files"]["model.tflite"]["size_bytes"] = 300 * 1024**2
    (package / "model.json").write_text(json.dumps(document))
    stack = new_stack()
    bucket = ModelArtifactBucket(stack, "Packages")
    model = bucket.add_model(package, publish="external")
    with pytest.raises(ValidationError, match="ephemeral_storage_mib must be at least 600 for"):
        on_lambda(stack, model=model)


def test_the_url_asks_for_signatures_and_is_the_aliass() -> None:
    template = made(provisioned_concurrency=2, max_concurrency=5)
    alias_name, alias = only(template, ALIAS)
    _, url = only(template, "AWS::Lambda::Url")
    assert url["Properties"]["AuthType"] == "AWS_IAM"
    assert url["Properties"]["Qualifier"] == "live"
    assert alias_name in url["DependsOn"]
    assert alias["Properties"]["ProvisionedConcurrencyConfig"] == {
        "ProvisionedConcurrentExecutions": 2
    }
    said = only(template, FUNCTION)[1]["Properties"]
    assert said["ReservedConcurrentExecutions"] == 5
    assert resources(template, "AWS::Lambda::Permission") == {}


def test_a_function_is_named_after_its_path_by_default() -> None:
    stack = new_stack()
    endpoint = LambdaDREndpoint(
        stack, "Clinic", model=an_artifact(stack), image=an_image(), memory_mib=1024
    )
    assert endpoint.endpoint_name.startswith("Stack-Clinic")
    template = template_of(stack)
    _, group = only(template, "AWS::Logs::LogGroup")
    assert group["Properties"]["LogGroupName"] == f"/aws/lambda/{endpoint.endpoint_name}"
    assert group["Properties"]["RetentionInDays"] == 30
    assert group["DeletionPolicy"] == "Delete"
    assert endpoint.url.startswith("${Token[")


# --- Updates ------------------------------------------------------------------------------------

CHANGES: dict[str, tuple[Callable[[cdk.Stack], dict[str, Any]], bool]] = {
    "package": (lambda stack: {"model": an_artifact(stack, sha256="cd" * 32)}, True),
    "image": (lambda _: {"image": an_image(digest="34" * 32)}, False),
    "environment": (lambda _: {"environment": {"DR_LOG_LEVEL": "debug"}}, False),
    "memory": (lambda _: {"memory_mib": 3008}, False),
    "time-out": (lambda _: {"timeout_s": 30}, False),
    "disk": (lambda _: {"ephemeral_storage_mib": 1024}, False),
}


@pytest.mark.parametrize(("change", "of_the_role"), CHANGES.values(), ids=CHANGES)
def test_every_change_is_a_new_version_behind_the_same_url(
    change: Callable[[cdk.Stack], dict[str, Any]], of_the_role: bool
) -> None:
    stack = new_stack()
    on_lambda(stack, **change(stack))
    before, after = made(), template_of(stack)
    assert only(before, VERSION)[0] != only(after, VERSION)[0]
    for kind in (FUNCTION, ALIAS, "AWS::Lambda::Url"):
        assert only(before, kind)[0] == only(after, kind)[0]
    assert only(after, ALIAS)[1]["Properties"]["FunctionVersion"] == {
        "Fn::GetAtt": [only(after, VERSION)[0], "Version"]
    }
    # The version before may read its own model while the new one takes over.
    assert (only(before, ROLE)[0] != only(after, ROLE)[0]) is of_the_role


def test_a_tag_alone_is_no_new_version() -> None:
    assert set(made()["Resources"]) == set(made(tags={"ward": "eye"})["Resources"])


def test_the_version_before_stays_where_a_shift_may_go_back_to_it() -> None:
    kept = made(traffic_shift=TrafficShift.canary())
    assert only(kept, VERSION)[1]["DeletionPolicy"] == "Retain"
    assert only(made(), VERSION)[1].get("DeletionPolicy", "Delete") == "Delete"


# --- Permissions --------------------------------------------------------------------------------


def test_the_role_may_read_its_package_and_write_its_log() -> None:
    template = made()
    _, role = only(template, ROLE)
    assert "ManagedPolicyArns" not in role["Properties"]
    (trust,) = role["Properties"]["AssumeRolePolicyDocument"]["Statement"]
    assert trust["Principal"] == {"Service": "lambda.amazonaws.com"}
    group, _ = only(template, "AWS::Logs::LogGroup")
    granted = {it["Sid"]: it for it in statements(template)}
    assert set(granted) == {"WriteLogs", "ReadModelPackage"}
    assert granted["WriteLogs"]["Resource"] == {"Fn::GetAtt": [group, "Arn"]}
    assert granted["WriteLogs"]["Action"] == ["logs:CreateLogStream", "logs:PutLogEvents"]
    assert "*" not in json.dumps(granted["ReadModelPackage"]["Resource"])


def test_invoking_is_granted_on_the_alias_signed() -> None:
    stack = new_stack()
    endpoint = on_lambda(stack)
    clinic = iam.Role(stack, "Clinic", assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"))
    assert endpoint.grant_invoke(clinic).success
    template = template_of(stack)
    alias, _ = only(template, ALIAS)
    granted = {
        it["Action"]: it for it in statements(template) if str(it["Action"]).startswith("lambda:")
    }
    # A URL asks for both.
    assert set(granted) == {"lambda:InvokeFunctionUrl", "lambda:InvokeFunction"}
    for statement in granted.values():
        assert statement["Resource"] == {"Ref": alias}
    assert granted["lambda:InvokeFunctionUrl"]["Condition"] == {
        "StringEquals": {"lambda:FunctionUrlAuthType": "AWS_IAM"}
    }


def test_metrics_are_the_aliass() -> None:
    endpoint = on_lambda(new_stack())
    for metric in (
        endpoint.metric_invocations(),
        endpoint.metric_server_errors(),
        endpoint.metric_function_errors(),
        endpoint.metric_throttles(),
        endpoint.metric_latency(),
    ):
        assert metric.namespace == "AWS/Lambda"
        assert metric.dimensions == {"FunctionName": "dr-Test", "Resource": "dr-Test:live"}
    assert endpoint.metric_latency().statistic == "p95"
