"""Values of another kind than a property takes: a sentence that names it, and no traceback."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk import aws_kms as kms
from aws_cdk.assertions import Template

from constructs_lib import (
    AlarmOptions,
    ClinicHours,
    CostBudget,
    DataCapture,
    DREndpointDashboard,
    EndpointOptions,
    GoldenImageProbe,
    InferenceImage,
    InferenceImageRepo,
    LambdaDREndpoint,
    ModelArtifact,
    ModelArtifactBucket,
    ProbeOptions,
    RealtimeDREndpoint,
    Scaling,
    ServerlessDREndpoint,
    StackJanitor,
    TrafficShift,
    ValidationError,
    acknowledge_findings,
    time_to_live_tags,
)
from constructs_lib.endpoint_options import OPTION_KINDS, PART_KINDS, Options
from tests.constructs_fixtures import an_artifact, an_image, new_app, new_stack

# No property takes it.
NOTHING_OF_OURS = {1, 2}
ENDPOINTS: dict[type[Any], dict[str, Any]] = {
    ServerlessDREndpoint: {"memory_mib": 2048},
    RealtimeDREndpoint: {"instance_type": "ml.m5.xlarge"},
    LambdaDREndpoint: {"memory_mib": 1024},
}


def refusal(make: Callable[[], object]) -> ValidationError:
    with pytest.raises(ValidationError) as refused:
        make()
    return refused.value


def test_every_option_has_a_kind() -> None:
    names = set(EndpointOptions.__annotations__)
    assert names == {field.name for field in fields(Options)} == set(OPTION_KINDS)


@pytest.mark.parametrize("kind", ENDPOINTS, ids=lambda kind: kind.__name__)
def test_every_wrong_option_is_named_in_one_message(kind: type[Any]) -> None:
    stack = new_stack()
    wrong = dict.fromkeys(OPTION_KINDS, NOTHING_OF_OURS)
    error = refusal(
        lambda: kind(stack, "Wrong", model="s3://a", image="uri", vcp=1, **wrong, **ENDPOINTS[kind])
    )
    assert error.subject == f"{kind.__name__} Stack/Wrong"
    named = [fault.partition(" ")[0] for fault in error.faults]
    assert sorted(named) == sorted(["model", "image", "vcp", *OPTION_KINDS])
    assert "vcp is no property of it (near it: vpc)" in error.faults
    assert "model must be a ModelArtifact" in str(error)
    assert "got 's3://a'" in str(error)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("alarms.actions", {"alarms": AlarmOptions(actions=["arn"])}),  # type: ignore[list-item]
        ("probe.photograph", {"probe": ProbeOptions(photograph=3)}),  # type: ignore[arg-type]
        (
            "scaling.clinic_hours",
            {"scaling": Scaling(min_capacity=1, max_capacity=2, clinic_hours="08:00")},  # type: ignore[arg-type]
        ),
    ],
)
def test_parts_of_options_are_looked_at(name: str, options: dict[str, Any]) -> None:
    stack = new_stack()
    model, image = an_artifact(stack), an_image()
    error = refusal(
        lambda: ServerlessDREndpoint(
            stack, "E", model=model, image=image, memory_mib=2048, **options
        )
    )
    (fault,) = error.faults
    assert fault.startswith(f"{name} must be ")
    assert name in PART_KINDS


def test_options_of_the_right_kind_are_no_fault() -> None:
    stack = new_stack()
    key = kms.Key.from_key_arn(stack, "Key", "arn:aws:kms:eu-west-1:123456789012:key/abc")
    ServerlessDREndpoint(
        stack,
        "Endpoint",
        model=an_artifact(stack),
        image=an_image(),
        memory_mib=2048,
        log_encryption_key=key,
        environment=None,
        alarms=None,
        tags={},
    )
    Template.from_stack(stack).resource_count_is("AWS::SageMaker::Endpoint", 1)


def test_without_a_model_only_a_function_can_be() -> None:
    stack = new_stack()
    make: Any = ServerlessDREndpoint
    error = refusal(lambda: make(stack, "A", model=None, image=an_image(), memory_mib=2048))
    assert "model must be a ModelArtifact" in str(error)
    LambdaDREndpoint(stack, "B", model=None, image=an_image(), memory_mib=2048)


WRONG: dict[str, tuple[Callable[[Any], object], str]] = {
    "bucket-removal": (
        lambda stack: ModelArtifactBucket(stack, "B", removal_policy="destroy"),  # type: ignore[arg-type]
        "DESTROY or RETAIN: there are no snapshots of it; got 'destroy'",
    ),
    "bucket-days": (
        lambda stack: ModelArtifactBucket(stack, "B", noncurrent_days="9"),  # type: ignore[arg-type]
        "noncurrent_days must be a whole number of at least 1; got '9'",
    ),
    "bucket-key": (
        lambda stack: ModelArtifactBucket(stack, "B", encryption_key="alias/k"),  # type: ignore[arg-type]
        "encryption_key must be a KMS key (for an ARN: kms.Key.from_key_arn); got 'alias/k'",
    ),
    "package": (
        lambda stack: ModelArtifactBucket(stack, "B").add_model(None),  # type: ignore[arg-type]
        "package_dir must be the path of a folder; got None",
    ),
    "artifact": (
        lambda _: ModelArtifact.in_bucket("mine", model_id=4, sha256="a"),  # type: ignore[arg-type]
        "bucket must be a bucket (for a name: s3.Bucket.from_bucket_name); got 'mine'",
    ),
    "outputs-as-text": (
        lambda stack: InferenceImageRepo(stack, "I", docker_outputs="type=docker"),
        "docker_outputs must be a list of texts, one for each --output; got 'type=docker'",
    ),
    "build-args": (
        lambda stack: InferenceImageRepo(stack, "I", build_args={"A": 1}),  # type: ignore[dict-item]
        "build_args['A'] must be text; got 1",
    ),
    "repository": (
        lambda _: InferenceImage.from_repository("r", digest="", architecture="amd64"),  # type: ignore[arg-type]
        "repository must be an ECR repository (for a name: ecr.Repository.from_repository_name)",
    ),
    "uri": (
        lambda _: InferenceImage.from_uri(None, architecture="amd64"),  # type: ignore[arg-type]
        "uri must be <account>.dkr.ecr.<region>.amazonaws.com",
    ),
    "dollars": (
        lambda stack: CostBudget(stack, "C", monthly_usd=float("nan"), emails=["a@b.example"]),
        "monthly_usd must be a number above 0; got nan",
    ),
    "one-address": (
        lambda stack: CostBudget(stack, "C", monthly_usd=5, emails="a@b.example"),  # type: ignore[arg-type]
        "emails must be a list of addresses; got 'a@b.example'",
    ),
    "prefix": (
        lambda stack: StackJanitor(stack, "J", stack_name_prefix=None),  # type: ignore[arg-type]
        "stack_name_prefix must be at least 2 characters of a name",
    ),
    "hours": (
        lambda stack: StackJanitor(stack, "J", stack_name_prefix="dr-", every_hours=1.5),  # type: ignore[arg-type]
        "every_hours must be a whole number from 1 to 24; got 1.5",
    ),
    "life": (
        lambda _: time_to_live_tags(True),
        "hours must be a whole number from 1 to 8760; got True",
    ),
    "dashboard": (
        lambda stack: DREndpointDashboard(stack, "D", endpoints=["mine"]),  # type: ignore[list-item]
        "endpoints must be a list of endpoints of this library; got ['mine']",
    ),
    "capture": (
        lambda stack: RealtimeDREndpoint(
            stack,
            "E",
            model=an_artifact(stack),
            image=an_image(),
            instance_type="ml.m5.xlarge",
            data_capture=DataCapture(bucket="mine"),  # type: ignore[arg-type]
        ),
        "data_capture.bucket must be a bucket (for a name: s3.Bucket.from_bucket_name)",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_other_constructs_name_what_is_wrong(name: str) -> None:
    make, words = WRONG[name]
    stack = new_stack()
    assert words in str(refusal(lambda: make(stack)))


def test_folders_may_be_text_or_paths(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    stack = new_stack()
    by_path = InferenceImageRepo(stack, "Path", directory=tmp_path).image(architecture="amd64")
    by_text = InferenceImageRepo(stack, "Text", directory=str(tmp_path)).image(architecture="amd64")
    assert stack.resolve(by_path.uri) == stack.resolve(by_text.uri)


def test_a_probability_is_no_grade() -> None:
    for grade in (True, 2.0, "2", 5, -1):
        (fault,) = ProbeOptions(expected_grade=grade).faults()  # type: ignore[arg-type]
        assert fault.startswith("probe.expected_grade must be a grade from 0 to 4")
    assert ProbeOptions(expected_grade=4).faults() == []


def test_what_can_be_gone_through_only_once_is_no_list() -> None:
    stack = new_stack()
    given: dict[str, Any] = {
        "rollback_alarms": iter([]),
        "security_groups": map(str, []),
        "alarms": AlarmOptions(actions=(it for it in ())),  # type: ignore[arg-type]
    }
    error = refusal(
        lambda: ServerlessDREndpoint(
            stack, "E", model=an_artifact(stack), image=an_image(), memory_mib=2048, **given
        )
    )
    named = [fault.partition(" must be a list of ")[0] for fault in error.faults]
    assert named == ["rollback_alarms", "security_groups", "alarms.actions"]


PLACED: dict[str, Callable[[Any, Any], object]] = {
    "ServerlessDREndpoint": lambda scope, name: ServerlessDREndpoint(
        scope,
        name,
        model=None,
        image=an_image(),
        memory_mib=2048,  # type: ignore[arg-type]
    ),
    "LambdaDREndpoint": lambda scope, name: LambdaDREndpoint(
        scope, name, model=None, image=an_image(), memory_mib=2048
    ),
    "ModelArtifactBucket": ModelArtifactBucket,
    "InferenceImageRepo": InferenceImageRepo,
    "StackJanitor": lambda scope, name: StackJanitor(scope, name, stack_name_prefix="dr-"),
    "CostBudget": lambda scope, name: CostBudget(scope, name, monthly_usd=1, emails=["a@b.org"]),
    "DREndpointDashboard": lambda scope, name: DREndpointDashboard(scope, name, endpoints=[]),
    "GoldenImageProbe": lambda scope, name: GoldenImageProbe(
        scope, name, environment={}, statements=()
    ),
}


@pytest.mark.parametrize("name", PLACED)
def test_a_place_that_is_none_is_said(name: str) -> None:
    for scope, words in (
        (
            new_app(),
            "scope must be a construct in a stack (self in a class of your own); got App ''",
        ),
        (None, "got None"),
        ("Stack", "got 'Stack'"),
    ):
        error = refusal(lambda scope=scope: PLACED[name](scope, "Id"))  # type: ignore[misc]
        assert error.subject == name
        assert words in str(error)
    for construct_id in (3, ""):
        error = refusal(lambda it=construct_id: PLACED[name](new_stack(), it))  # type: ignore[misc]
        assert error.faults == (f"id must be text, unique in its scope; got {construct_id!r}",)


def test_who_is_granted_something_is_looked_at() -> None:
    stack = new_stack()
    theirs: Any = "arn:aws:iam::123456789012:role/clinic"
    model, image = an_artifact(stack), an_image()
    endpoints = [
        kind(stack, kind.__name__, model=model, image=image, **size)
        for kind, size in ENDPOINTS.items()
    ]
    grants: list[Callable[[Any], object]] = [it.grant_invoke for it in endpoints]
    for grant in (*grants, model.grant_read, image.grant_pull):
        error = refusal(lambda grant=grant: grant(theirs))  # type: ignore[misc]
        assert "iam.Role.from_role_arn" in str(error)
        assert f"got {theirs!r}" in str(error)


def test_no_snapshot_is_taken_of_a_bucket_or_a_repository() -> None:
    snapshot = cdk.RemovalPolicy.SNAPSHOT
    for make in (
        lambda: ModelArtifactBucket(new_stack(), "B", removal_policy=snapshot),
        lambda: InferenceImageRepo(new_stack(), "R", own_repository=True, removal_policy=snapshot),
    ):
        (fault,) = refusal(make).faults
        assert fault.startswith("removal_policy must be a cdk.RemovalPolicy, DESTROY or RETAIN")
    ModelArtifactBucket(
        new_stack(), "B", removal_policy=cdk.RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE
    )


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (ServerlessDREndpoint, ["memory_mib", "max_concurrency"]),
        (RealtimeDREndpoint, ["instance_type", "initial_instance_count"]),
        (LambdaDREndpoint, ["memory_mib", "timeout_s", "ephemeral_storage_mib"]),
    ],
)
def test_none_is_no_default_where_nobody_said_so(kind: type[Any], names: list[str]) -> None:
    stack = new_stack()
    model, image = an_artifact(stack), an_image()
    error = refusal(
        lambda: kind(stack, "E", model=model, image=image, **dict.fromkeys(names, None))
    )
    assert error.faults == tuple(f"{name} must be given; got None" for name in names)


UNHASHABLE: dict[str, dict[str, Any]] = {
    "scaling.clinic_hours[0].time_zone": {
        "scaling": Scaling(
            min_capacity=1,
            max_capacity=2,
            clinic_hours=[ClinicHours(time_zone=["Europe/Lisbon"])],  # type: ignore[arg-type]
        )
    },
    "traffic_shift.kind": {"traffic_shift": TrafficShift(kind=["canary"])},  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", UNHASHABLE)
def test_a_list_for_a_word_is_a_fault(name: str) -> None:
    stack = new_stack()
    model, image = an_artifact(stack), an_image()
    error = refusal(
        lambda: RealtimeDREndpoint(
            stack, "E", model=model, image=image, instance_type="ml.m5.xlarge", **UNHASHABLE[name]
        )
    )
    (fault,) = error.faults
    assert fault.startswith(f"{name} must be ")


MORE_WRONG: dict[str, tuple[Callable[[Any], object], list[str]]] = {
    "budget": (
        lambda stack: CostBudget(
            stack,
            "B",
            monthly_usd=1,
            topic="arn",  # type: ignore[arg-type]
            tag=None,  # type: ignore[arg-type]
            tag_value=3,  # type: ignore[arg-type]
        ),
        ["topic", "tag", "tag_value"],
    ),
    "janitor": (
        lambda stack: StackJanitor(stack, "J", stack_name_prefix="dr-", log_retention=30),  # type: ignore[arg-type]
        ["log_retention"],
    ),
    "probe": (
        lambda stack: GoldenImageProbe(
            stack,
            "P",
            environment=None,  # type: ignore[arg-type]
            statements="all",  # type: ignore[arg-type]
            options=5,  # type: ignore[arg-type]
            log_retention=30,  # type: ignore[arg-type]
        ),
        ["environment", "statements", "options", "log_retention"],
    ),
    "image": (
        lambda _: InferenceImage(uri=None, repository_arn=3, architecture="amd64"),  # type: ignore[arg-type]
        ["uri", "repository_arn"],
    ),
    "model": (
        lambda _: ModelArtifact(bucket="b", key=None, id=None, sha256=None),  # type: ignore[arg-type]
        ["bucket", "key", "id", "sha256"],
    ),
    "base": (lambda stack: InferenceImageRepo(stack, "I", base_image=""), ["base_image"]),
    "scope": (lambda _: acknowledge_findings("app"), ["scope"]),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", MORE_WRONG)
def test_every_wrong_argument_is_named(name: str) -> None:
    make, names = MORE_WRONG[name]
    error = refusal(lambda: make(new_stack()))
    assert [fault.partition(" must ")[0] for fault in error.faults] == names
