"""A key for log groups is one that CloudWatch Logs may use, wherever the library takes one."""

from collections.abc import Callable
from pathlib import Path

import aws_cdk as cdk
import pytest
from aws_cdk import aws_kms as kms

from constructs_lib import (
    InferenceImageRepo,
    ModelArtifactBucket,
    ProbeOptions,
    ServerlessDREndpoint,
    StackJanitor,
)
from tests.constructs_fixtures import (
    an_artifact,
    an_image,
    make_context,
    make_package,
    new_stack,
    only,
    resources,
    template_of,
)


def _endpoint(stack: cdk.Stack, key: kms.IKey, _: Path) -> None:
    ServerlessDREndpoint(
        stack,
        "Endpoint",
        model=an_artifact(stack),
        image=an_image(),
        memory_mib=2048,
        probe=ProbeOptions(),
        log_encryption_key=key,
    )


def _bucket(stack: cdk.Stack, key: kms.IKey, folder: Path) -> None:
    for name in ("First", "Second"):
        bucket = ModelArtifactBucket(
            stack,
            name,
            removal_policy=cdk.RemovalPolicy.DESTROY,
            auto_delete_objects=True,
            # The function that empties both takes the key of whichever has one.
            log_encryption_key=None if name == "First" else key,
        )
    bucket.add_model(make_package(folder, "demo"))


def _images(stack: cdk.Stack, key: kms.IKey, folder: Path) -> None:
    context = make_context(folder / "service")
    InferenceImageRepo(
        stack, "Images", directory=context, own_repository=True, log_encryption_key=key
    ).image(architecture="amd64")


def _janitor(stack: cdk.Stack, key: kms.IKey, _: Path) -> None:
    StackJanitor(stack, "Janitor", stack_name_prefix="dr-", log_encryption_key=key)


MAKERS = [_endpoint, _bucket, _images, _janitor]


@pytest.mark.parametrize("make", MAKERS)
def test_every_log_group_has_the_key_and_the_key_lets_it(
    make: Callable[[cdk.Stack, kms.IKey, Path], None], tmp_path: Path
) -> None:
    stack = new_stack()
    make(stack, kms.Key(stack, "Key"), tmp_path)
    template = template_of(stack)
    name, key = only(template, "AWS::KMS::Key")
    groups = resources(template, "AWS::Logs::LogGroup")
    assert groups
    for group in groups.values():
        assert group["Properties"]["KmsKeyId"] == {"Fn::GetAtt": [name, "Arn"]}
    statements = key["Properties"]["KeyPolicy"]["Statement"]
    (logs,) = (it for it in statements if it.get("Sid") == "LetCloudWatchLogsEncrypt")
    assert "logs." in str(logs["Principal"]["Service"])
    assert ":log-group:*" in str(logs["Condition"]["ArnLike"])


@pytest.mark.parametrize("make", MAKERS)
def test_an_imported_key_keeps_its_policy(
    make: Callable[[cdk.Stack, kms.IKey, Path], None], tmp_path: Path
) -> None:
    stack = new_stack()
    arn = "arn:aws:kms:eu-west-1:123456789012:key/theirs"
    make(stack, kms.Key.from_key_arn(stack, "Key", arn), tmp_path)
    template = template_of(stack)
    assert resources(template, "AWS::KMS::Key") == {}
    for group in resources(template, "AWS::Logs::LogGroup").values():
        assert group["Properties"]["KmsKeyId"] == arn
