"""An alias stands for its key, because a policy that names an alias allows nothing."""

from collections.abc import Callable
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3

from constructs_lib import (
    DataCapture,
    InferenceImageRepo,
    LambdaDREndpoint,
    ModelArtifact,
    ModelArtifactBucket,
    RealtimeDREndpoint,
    StackJanitor,
    ValidationError,
)
from tests.constructs_fixtures import (
    SHA256,
    an_artifact,
    an_image,
    new_stack,
    resources,
    statements,
    template_of,
)


def realtime(stack: cdk.Stack, **options: Any) -> RealtimeDREndpoint:
    chosen = {"model": an_artifact(stack), **options} if "model" not in options else options
    return RealtimeDREndpoint(
        stack, "Endpoint", image=an_image(), instance_type="ml.m5.xlarge", **chosen
    )


def in_a_bucket_with(key: kms.IKey, stack: cdk.Stack) -> ModelArtifact:
    bucket = ModelArtifactBucket(stack, "Bucket", encryption_key=key).bucket
    return ModelArtifact.in_bucket(bucket, model_id="demo", sha256=SHA256)


def test_an_alias_is_its_key_in_every_policy_and_property() -> None:
    stack = new_stack()
    key = kms.Key(stack, "Key")
    alias = key.add_alias("alias/clinic")
    capture = DataCapture(bucket=s3.Bucket(stack, "Captured"), encryption_key=alias)
    realtime(
        stack,
        model=in_a_bucket_with(alias, stack),
        encryption_key=alias,
        log_encryption_key=alias,
        data_capture=capture,
    )
    LambdaDREndpoint(
        stack,
        "Function",
        model=None,
        image=an_image(),
        memory_mib=1024,
        encryption_key=alias,
        log_encryption_key=alias,
    )
    template = template_of(stack)
    logical_id = stack.get_logical_id(key.node.default_child)  # type: ignore[arg-type]
    arn = {"Fn::GetAtt": [logical_id, "Arn"]}
    named = [
        it["Resource"]
        for it in statements(template)
        if any(str(action).startswith("kms:") for action in (it["Action"], *it["Action"]))
        or "kms:" in str(it["Action"])
    ]
    assert len(named) >= 5
    assert all(it == arn for it in named)
    groups = resources(template, "AWS::Logs::LogGroup").values()
    assert [it["Properties"]["KmsKeyId"] for it in groups] == [arn, arn]


def by_name(stack: cdk.Stack) -> kms.IKey:
    return kms.Alias.from_alias_name(stack, "Alias", "alias/clinic")


REFUSED: dict[str, Callable[[cdk.Stack], object]] = {
    "encryption_key": lambda it: realtime(it, encryption_key=by_name(it)),
    "log_encryption_key": lambda it: realtime(it, log_encryption_key=by_name(it)),
    "data_capture.encryption_key": lambda it: realtime(
        it, data_capture=DataCapture(bucket=s3.Bucket(it, "B"), encryption_key=by_name(it))
    ),
    "bucket encryption_key": lambda it: in_a_bucket_with(by_name(it), it),
    "repository encryption_key": lambda it: InferenceImageRepo(
        it, "Images", own_repository=True, encryption_key=by_name(it)
    ),
    "janitor log_encryption_key": lambda it: StackJanitor(
        it, "Janitor", stack_name_prefix="dr-", log_encryption_key=by_name(it)
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_alias_known_by_its_name_only_is_refused(name: str) -> None:
    with pytest.raises(ValidationError) as refused:
        REFUSED[name](new_stack())
    (fault,) = refused.value.faults
    assert fault.startswith(
        f"{name.rpartition(' ')[2]} must be a key, and not the name of an alias"
    )
    assert "kms.Key.from_lookup" in fault
    assert "got 'alias/clinic'" in fault


def test_a_users_own_bucket_may_have_either() -> None:
    stack = new_stack()
    alias = kms.Key(stack, "Key").add_alias("alias/clinic")
    good = s3.Bucket.from_bucket_attributes(stack, "Good", bucket_name="good", encryption_key=alias)
    realtime(stack, model=ModelArtifact.in_bucket(good, model_id="demo", sha256=SHA256))
    assert "alias/clinic" not in str(statements(template_of(stack)))
    stack = new_stack()
    bad = s3.Bucket.from_bucket_attributes(
        stack, "Bad", bucket_name="bad", encryption_key=by_name(stack)
    )
    with pytest.raises(ValidationError, match="the key of the bucket must be a key, and not the"):
        realtime(stack, model=ModelArtifact.in_bucket(bad, model_id="demo", sha256=SHA256))
