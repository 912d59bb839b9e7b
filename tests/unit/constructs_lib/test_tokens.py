"""Values that only the deployment knows: passed on where they can be, named where they cannot."""

from collections.abc import Callable
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_s3 as s3

from constructs_lib import (
    AlarmOptions,
    ClinicHours,
    CostBudget,
    DataCapture,
    InferenceImage,
    InferenceImageRepo,
    LambdaDREndpoint,
    ModelArtifactBucket,
    ProbeOptions,
    RealtimeDREndpoint,
    Scaling,
    ServerlessDREndpoint,
    StackJanitor,
    TrafficShift,
    ValidationError,
    time_to_live_tags,
)
from constructs_lib.tokens import is_token, known_number, known_text
from tests.constructs_fixtures import (
    an_artifact,
    an_image,
    new_stack,
    only,
    resources,
    statements,
    template_of,
)


class Parameters:
    """CloudFormation parameters of a stack, made as they are asked for."""

    def __init__(self) -> None:
        self.stack = new_stack()

    def number(self, name: str) -> Any:
        return cdk.CfnParameter(self.stack, name, type="Number").value_as_number

    def text(self, name: str) -> str:
        return cdk.CfnParameter(self.stack, name).value_as_string

    def words(self, name: str) -> list[str]:
        return cdk.CfnParameter(self.stack, name, type="CommaDelimitedList").value_as_list

    def referred(self) -> set[str]:
        """Parameters that some resource of the template refers to."""
        template = template_of(self.stack)
        text = str(template["Resources"])
        return {name for name in template["Parameters"] if f"{{'Ref': '{name}'}}" in text}


def test_tokens_are_recognised_as_the_cdk_does() -> None:
    given = Parameters()
    known = (0, 1, -1, 2048, 0.5, -1.8e289, "", "text", "${AWS::Region}", True)
    for value in known:
        assert is_token(value) is cdk.Token.is_unresolved(value) is False, value
    # The CDK's own process ends at these; here they are numbers that the rules refuse.
    assert not is_token(float("inf"))
    assert not is_token(float("nan"))
    for value in (
        given.number("Number"),
        given.text("Text"),
        f"before-{given.text('Within')}-after",
        given.words("Words"),
        cdk.Aws.REGION,
    ):
        assert is_token(value) is cdk.Token.is_unresolved(value) is True, value
    assert (known_number(5), known_number(None), known_text("a")) == (5, None, "a")
    assert (known_number(given.number("N")), known_text(given.text("T"))) == (None, None)


def _serverless(given: Parameters) -> None:
    ServerlessDREndpoint(
        given.stack,
        "Endpoint",
        model=an_artifact(given.stack),
        image=an_image(),
        memory_mib=given.number("Memory"),
        max_concurrency=given.number("Concurrency"),
        provisioned_concurrency=given.number("Provisioned"),
        endpoint_name=given.text("Name"),
        environment={"DR_LOG_LEVEL": given.text("Level")},
        tags={"Cost": given.text("Tag")},
        alarms=AlarmOptions(server_errors=given.number("Errors")),
        traffic_shift=TrafficShift.canary(
            percent=given.number("Percent"),
            wait_s=given.number("Wait"),
            keep_old_s=given.number("Keep"),
            timeout_s=given.number("Timeout"),
        ),
        scaling=Scaling(
            min_capacity=given.number("Fewest"),
            max_capacity=given.number("Most"),
            utilization=given.number("Use"),
            scale_in_cooldown_s=given.number("In"),
            scale_out_cooldown_s=given.number("Out"),
            clinic_hours=[
                ClinicHours(
                    time_zone=given.text("Zone"),
                    days=given.text("Days"),
                    min_capacity=given.number("Open"),
                    max_capacity=given.number("OpenMost"),
                )
            ],
        ),
    )


def _realtime(given: Parameters) -> None:
    RealtimeDREndpoint(
        given.stack,
        "Endpoint",
        model=an_artifact(given.stack),
        image=an_image(),
        instance_type=given.text("Type"),
        initial_instance_count=given.number("Count"),
        model_download_timeout_s=given.number("Download"),
        startup_timeout_s=given.number("Startup"),
        traffic_shift=TrafficShift.linear(instances=given.number("Instances")),
        scaling=Scaling(
            min_capacity=given.number("Fewest"),
            max_capacity=given.number("Most"),
            invocations_per_instance=given.number("Requests"),
        ),
        data_capture=DataCapture(
            bucket=s3.Bucket(given.stack, "Captured"),
            prefix=given.text("Prefix"),
            percent=given.number("Share"),
        ),
    )


def _lambda(given: Parameters) -> None:
    LambdaDREndpoint(
        given.stack,
        "Endpoint",
        model=an_artifact(given.stack),
        image=an_image(),
        memory_mib=given.number("Memory"),
        timeout_s=given.number("Timeout"),
        ephemeral_storage_mib=given.number("Disk"),
        max_concurrency=given.number("Concurrency"),
        provisioned_concurrency=given.number("Provisioned"),
        environment={"DR_LOG_LEVEL": given.text("Level")},
        scaling=Scaling(
            min_capacity=given.number("Fewest"),
            max_capacity=given.number("Most"),
            utilization=given.number("Use"),
        ),
    )


def _others(given: Parameters) -> None:
    ModelArtifactBucket(
        given.stack,
        "Bucket",
        noncurrent_days=given.number("Noncurrent"),
        access_log_days=given.number("Logged"),
    )
    CostBudget(
        given.stack,
        "Budget",
        monthly_usd=given.number("Dollars"),
        emails=[given.text("Address")],
        tag_value=given.text("Stage"),
    )
    StackJanitor(given.stack, "Janitor", stack_name_prefix=given.text("Start"))


@pytest.mark.parametrize("build", [_serverless, _realtime, _lambda, _others])
def test_a_parameter_of_the_stack_arrives_in_the_template(
    build: Callable[[Parameters], None],
) -> None:
    given = Parameters()
    build(given)
    template = template_of(given.stack)
    own = {name for name in template["Parameters"] if name != "BootstrapVersion"}
    assert own - given.referred() == set()
    assert "e+289" not in str(template)
    assert "Token[" not in str(template)


def _endpoint(given: Parameters, **options: Any) -> None:
    ServerlessDREndpoint(
        given.stack,
        "Endpoint",
        model=an_artifact(given.stack),
        image=an_image(),
        memory_mib=2048,
        provisioned_concurrency=1,
        **options,
    )


def _hours(given: Parameters, **hours: Any) -> None:
    clinic = ClinicHours(time_zone="UTC", **hours)
    _endpoint(given, scaling=Scaling(min_capacity=1, max_capacity=2, clinic_hours=[clinic]))


def _on_lambda(given: Parameters, shift: TrafficShift) -> None:
    LambdaDREndpoint(
        given.stack,
        "Endpoint",
        model=an_artifact(given.stack),
        image=an_image(),
        memory_mib=1024,
        traffic_shift=shift,
    )


MUST_BE_KNOWN: dict[str, Callable[[Parameters], Any]] = {
    "alarms.latency_ms": lambda p: _endpoint(p, alarms=AlarmOptions(latency_ms=p.number("L"))),
    "probe.every_minutes": lambda p: _endpoint(p, probe=ProbeOptions(every_minutes=p.number("E"))),
    "probe.expected_grade": lambda p: _endpoint(
        p, probe=ProbeOptions(expected_grade=p.number("G"))
    ),
    "scaling.clinic_hours[0].opens": lambda p: _hours(p, opens=p.text("O")),
    "scaling.clinic_hours[0].closes": lambda p: _hours(p, closes=p.text("C")),
    "traffic_shift.percent": lambda p: _on_lambda(p, TrafficShift.canary(percent=p.number("P"))),
    "traffic_shift.wait_s": lambda p: _on_lambda(p, TrafficShift.canary(wait_s=p.number("W"))),
    "architecture": lambda p: an_image(architecture=p.text("A")),
    "uri": lambda p: InferenceImage.from_uri(p.text("U"), architecture="amd64"),
    "emails": lambda p: CostBudget(p.stack, "Budget", monthly_usd=5, emails=p.words("E")),
    "max_image_count": lambda p: InferenceImageRepo(
        p.stack, "Repo", own_repository=True, max_image_count=p.number("N")
    ),
    "hours": lambda p: time_to_live_tags(p.number("H")),
}


@pytest.mark.parametrize("name", MUST_BE_KNOWN)
def test_what_must_be_known_is_said_to_be(name: str) -> None:
    with pytest.raises(ValidationError) as refused:
        MUST_BE_KNOWN[name](Parameters())
    (fault,) = refused.value.faults
    assert fault.startswith(f"{name} must be ")
    assert "got a value that only the deployment knows" in fault


def test_every_hours_of_a_janitor_may_be_a_parameter() -> None:
    given = Parameters()
    StackJanitor(given.stack, "Janitor", stack_name_prefix="dr-", every_hours=given.number("Hours"))
    _, rule = only(template_of(given.stack), "AWS::Events::Rule")
    assert "'Ref': 'Hours'" in str(rule["Properties"]["ScheduleExpression"])


def test_subnets_from_another_stack_are_all_that_the_role_may_use() -> None:
    given = Parameters()
    vpc = ec2.Vpc.from_vpc_attributes(
        given.stack,
        "Vpc",
        vpc_id=cdk.Fn.import_value("vpc"),
        availability_zones=cdk.Fn.split(",", cdk.Fn.import_value("zones")),
        private_subnet_ids=cdk.Fn.split(",", cdk.Fn.import_value("subnets")),
    )
    RealtimeDREndpoint(
        given.stack,
        "Endpoint",
        model=an_artifact(given.stack),
        image=an_image(),
        instance_type="ml.m5.xlarge",
        vpc=vpc,
    )
    template = template_of(given.stack)
    (model,) = resources(template, "AWS::SageMaker::Model").values()
    split = {"Fn::Split": [",", {"Fn::ImportValue": "subnets"}]}
    assert model["Properties"]["VpcConfig"]["Subnets"] == split
    (network,) = (it for it in statements(template) if it.get("Sid") == "MakeNetworkInterfaces")
    assert any(":subnet/*" in str(it) for it in network["Resource"])
