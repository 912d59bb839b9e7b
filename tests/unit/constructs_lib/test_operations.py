"""What an endpoint can have beside a model: scaling, shifts, alarms, capture, network, keys."""

import json
from collections.abc import Callable
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sns as sns

from constructs_lib import (
    AlarmOptions,
    ClinicHours,
    DataCapture,
    DREndpoint,
    DREndpointDashboard,
    LambdaDREndpoint,
    ProbeOptions,
    RealtimeDREndpoint,
    Scaling,
    ServerlessDREndpoint,
    TrafficShift,
    ValidationError,
)
from tests.constructs_fixtures import (
    ACCOUNT,
    REGION,
    Template,
    an_artifact,
    an_image,
    new_app,
    new_stack,
    only,
    resources,
    statements,
    template_of,
    warnings_in,
)

CONFIG = "AWS::SageMaker::EndpointConfig"
ENDPOINT = "AWS::SageMaker::Endpoint"
MODEL = "AWS::SageMaker::Model"
ALARM = "AWS::CloudWatch::Alarm"
TARGET = "AWS::ApplicationAutoScaling::ScalableTarget"
SCALING_POLICY = "AWS::ApplicationAutoScaling::ScalingPolicy"
LISBON = ClinicHours(
    time_zone="Europe/Lisbon", opens="08:00", closes="18:30", min_capacity=2, max_capacity=4
)


def serverless(stack: cdk.Stack, **props: Any) -> ServerlessDREndpoint:
    props = {"memory_mib": 2048, "endpoint_name": "dr-Test", "image": an_image(), **props}
    return ServerlessDREndpoint(stack, "Endpoint", model=an_artifact(stack), **props)


def realtime(stack: cdk.Stack, **props: Any) -> RealtimeDREndpoint:
    props = {
        "instance_type": "ml.m5.xlarge",
        "endpoint_name": "dr-Test",
        "image": an_image(),
        **props,
    }
    return RealtimeDREndpoint(stack, "Endpoint", model=an_artifact(stack), **props)


def on_lambda(stack: cdk.Stack, **props: Any) -> LambdaDREndpoint:
    props = {
        "memory_mib": 1769,
        "endpoint_name": "dr-Test",
        "image": an_image(),
        "model": an_artifact(stack),
        **props,
    }
    return LambdaDREndpoint(stack, "Endpoint", **props)


Make = Callable[..., DREndpoint]
ALL = pytest.mark.parametrize("make", [serverless, realtime, on_lambda])
SAGEMAKER = pytest.mark.parametrize("make", [serverless, realtime])


def made(make: Make, **props: Any) -> Template:
    stack = new_stack()
    make(stack, **props)
    return template_of(stack)


def warnings_of(make: Make, *, env: cdk.Environment | None = None, **props: Any) -> list[str]:
    stack = new_stack() if env is None else new_stack(env=env)
    make(stack, **props)
    return warnings_in(stack)


# --- Refusals -----------------------------------------------------------------------------------


def a_vpc(stack: cdk.Stack) -> ec2.IVpc:
    return ec2.Vpc.from_vpc_attributes(
        stack,
        "Vpc",
        vpc_id="vpc-1",
        availability_zones=["eu-west-1a", "eu-west-1b"],
        private_subnet_ids=["subnet-a", "subnet-b"],
    )


REFUSED: dict[str, tuple[Make, Callable[[cdk.Stack], dict[str, Any]], str]] = {
    "canary with one instance": (
        realtime,
        lambda _: {"traffic_shift": TrafficShift.canary()},
        "all-at-once with one instance",
    ),
    "canary on a fleet that may shrink to one": (
        realtime,
        lambda _: {
            "initial_instance_count": 4,
            "traffic_shift": TrafficShift.canary(),
            "scaling": Scaling(min_capacity=1, max_capacity=4, invocations_per_instance=60),
        },
        "all-at-once with one instance",
    ),
    "GPU instance for the CPU image": (
        realtime,
        lambda _: {"instance_type": "ml.g5.xlarge"},
        "because the images use no GPU",
    ),
    "arm64 image on an x86-64 instance": (
        realtime,
        lambda _: {"image": an_image(architecture="arm64")},
        "architecture must be amd64, the processor of ml.m5.xlarge",
    ),
    "serverless in a VPC": (
        serverless,
        lambda stack: {"vpc": a_vpc(stack)},
        "vpc must be left out on serverless inference",
    ),
    "serverless without a network": (
        serverless,
        lambda _: {"network_isolation": True},
        "network_isolation must be left out on serverless inference",
    ),
    "serverless with data capture": (
        serverless,
        lambda stack: {"data_capture": DataCapture(bucket=s3.Bucket(stack, "Kept"))},
        "data_capture must be left out on serverless inference",
    ),
    "rolling on serverless": (
        serverless,
        lambda _: {"traffic_shift": TrafficShift.rolling()},
        "one of all-at-once, canary, linear on serverless inference",
    ),
    "arm64 on serverless": (
        serverless,
        lambda _: {"image": an_image(architecture="arm64")},
        "architecture must be amd64",
    ),
    "scaling what is not kept warm": (
        serverless,
        lambda _: {"scaling": Scaling(min_capacity=1, max_capacity=3, utilization=0.7)},
        "provisioned_concurrency must be given where scaling is",
    ),
    "serverless scaled to nothing at night": (
        serverless,
        lambda _: {
            "provisioned_concurrency": 2,
            "scaling": Scaling(min_capacity=0, max_capacity=3, clinic_hours=[LISBON]),
        },
        "scaling.min_capacity must be a whole number of at least 1; got 0",
    ),
    "more warm containers than containers": (
        serverless,
        lambda _: {
            "max_concurrency": 3,
            "provisioned_concurrency": 2,
            "scaling": Scaling(min_capacity=1, max_capacity=4, utilization=0.7),
        },
        r"scaling.max_capacity must be a whole number from 1 to 3 \(max_concurrency\); got 4",
    ),
    "Lambda without a network": (
        on_lambda,
        lambda _: {"network_isolation": True},
        "network_isolation must be left out on Lambda",
    ),
    "rolling on Lambda": (
        on_lambda,
        lambda _: {"traffic_shift": TrafficShift.rolling()},
        "on Lambda, which has no instances",
    ),
    "an image in another region, on Lambda": (
        on_lambda,
        lambda _: {"image": an_image_in("sa-east-1")},
        "image must be in the stack's region",
    ),
    "groups without a VPC": (
        realtime,
        lambda stack: {
            "security_groups": [ec2.SecurityGroup.from_security_group_id(stack, "G", "sg-1")]
        },
        "security_groups needs vpc",
    ),
    "alarms for no shift": (
        realtime,
        lambda stack: {"rollback_alarms": [an_alarm(stack)]},
        "rollback_alarms needs traffic_shift",
    ),
    "too many alarms": (
        serverless,
        lambda stack: {
            "traffic_shift": TrafficShift.all_at_once(),
            "rollback_alarms": [an_alarm(stack, number) for number in range(9)],
        },
        "rollback_alarms must be at most 10 with the endpoint's own; got 11",
    ),
    "nothing captured": (
        realtime,
        lambda stack: {"data_capture": DataCapture(bucket=s3.Bucket(stack, "Kept"), percent=0)},
        "data_capture.percent must be a whole number from 1 to 100; got 0",
    ),
    "captured anywhere": (
        realtime,
        lambda stack: {"data_capture": DataCapture(bucket=s3.Bucket(stack, "Kept"), prefix="/")},
        "data_capture.prefix must be text",
    ),
    "an alarm that always rings": (
        serverless,
        lambda _: {"alarms": AlarmOptions(latency_ms=0)},
        "alarms.latency_ms must be a number above 0",
    ),
    "a probe that is never": (
        serverless,
        lambda _: {"probe": ProbeOptions(every_minutes=0)},
        "probe.every_minutes must be a whole number from 1 to 1440; got 0",
    ),
    "a probe of a grade that does not exist": (
        serverless,
        lambda _: {"probe": ProbeOptions(expected_grade=5)},
        "probe.expected_grade must be a grade from 0 to 4",
    ),
    "a probe of no photograph": (
        serverless,
        lambda _: {"probe": ProbeOptions(photograph=__file__)},
        "probe.photograph must be a JPEG",
    ),
    "six groups": (
        realtime,
        lambda stack: {
            "vpc": a_vpc(stack),
            "security_groups": [
                ec2.SecurityGroup.from_security_group_id(stack, f"G{number}", f"sg-{number}")
                for number in range(6)
            ],
        },
        r"security_groups \(how many\) must be a whole number from 1 to 5; got 6",
    ),
    "a setting that ends the container": (
        on_lambda,
        lambda _: {"environment": {"DR_THREADS": "many"}},
        "DR_THREADS must be a whole number",
    ),
    "a tag of AWS": (on_lambda, lambda _: {"tags": {"aws:x": "1"}}, "named without aws: in front"),
}


def an_alarm(stack: cdk.Stack, number: int = 0) -> cloudwatch.IAlarm:
    arn = f"arn:aws:cloudwatch:{REGION}:{ACCOUNT}:alarm:clinic-{number}"
    return cloudwatch.Alarm.from_alarm_arn(stack, f"Alarm{number}", arn)


def an_image_in(region: str) -> Any:
    from constructs_lib import InferenceImage

    uri = f"{ACCOUNT}.dkr.ecr.{region}.amazonaws.com/dr/serving@sha256:{'12' * 32}"
    return InferenceImage.from_uri(uri, architecture="amd64")


@pytest.mark.parametrize(("make", "props", "words"), REFUSED.values(), ids=REFUSED)
def test_a_combination_that_cannot_be_is_refused(
    make: Make, props: Callable[[cdk.Stack], dict[str, Any]], words: str
) -> None:
    stack = new_stack()
    with pytest.raises(ValidationError, match=words) as caught:
        make(stack, **props(stack))
    assert len(caught.value.faults) == 1
    assert "DREndpoint Stack/Endpoint cannot be deployed" in str(caught.value)


def test_faults_of_all_kinds_come_in_one_message() -> None:
    stack = new_stack()
    with pytest.raises(ValidationError) as caught:
        serverless(
            stack,
            memory_mib=1500,
            image=an_image(architecture="arm64"),
            network_isolation=True,
            traffic_shift=TrafficShift.rolling(percent=60),
            scaling=Scaling(min_capacity=0, max_capacity=9, utilization=2),
            environment={"DR_LOG_LEVEL": "verbose"},
            tags={"aws:x": "1"},
            endpoint_name="no_underscores",
            probe=ProbeOptions(every_minutes=0),
        )
    text = str(caught.value)
    for name in (
        "memory_mib",
        "architecture",
        "network_isolation",
        "traffic_shift must",
        "traffic_shift.percent",
        "scaling.min_capacity",
        "scaling.max_capacity",
        "scaling.utilization",
        "provisioned_concurrency",
        "DR_LOG_LEVEL",
        "tags",
        "endpoint_name",
        "probe.every_minutes",
    ):
        assert f"\n- {name}" in text or f"\n- environment: {name}" in text, name
    assert len(caught.value.faults) == 13


def test_an_unknown_argument_is_refused_by_its_name() -> None:
    with pytest.raises(ValidationError, match="colour is no property of it"):
        serverless(new_stack(), colour="red")


def test_sizes_that_only_the_deployment_knows_are_not_judged_on_lambda() -> None:
    stack = new_stack(env=None)
    number: Any = cdk.Token.as_number(cdk.CfnParameter(stack, "Number", type="Number"))
    on_lambda(stack, memory_mib=number, max_concurrency=number, provisioned_concurrency=number)
    _, function = only(template_of(stack), "AWS::Lambda::Function")
    assert function["Properties"]["MemorySize"] == {"Ref": "Number"}


# --- Scaling ------------------------------------------------------------------------------------

SCALED = {
    "realtime": (
        realtime,
        {
            "scaling": Scaling(
                min_capacity=1,
                max_capacity=3,
                invocations_per_instance=600,
                clinic_hours=[LISBON],
            )
        },
        ("sagemaker", "endpoint/dr-Test/variant/AllTraffic"),
        ("sagemaker:variant:DesiredInstanceCount", "SageMakerVariantInvocationsPerInstance", 600),
    ),
    "serverless": (
        serverless,
        {
            "provisioned_concurrency": 2,
            "scaling": Scaling(
                min_capacity=1, max_capacity=3, utilization=0.7, clinic_hours=[LISBON]
            ),
        },
        ("sagemaker", "endpoint/dr-Test/variant/AllTraffic"),
        (
            "sagemaker:variant:DesiredProvisionedConcurrency",
            "SageMakerVariantProvisionedConcurrencyUtilization",
            0.7,
        ),
    ),
    "lambda": (
        on_lambda,
        {
            "provisioned_concurrency": 2,
            "scaling": Scaling(
                min_capacity=1, max_capacity=3, utilization=0.7, clinic_hours=[LISBON]
            ),
        },
        ("lambda", "function:dr-Test:live"),
        ("lambda:function:ProvisionedConcurrency", "LambdaProvisionedConcurrencyUtilization", 0.7),
    ),
}


@pytest.mark.parametrize(("make", "props", "resource", "load"), SCALED.values(), ids=SCALED)
def test_each_kind_scales_by_its_own_dimension_and_metric(
    make: Make,
    props: dict[str, Any],
    resource: tuple[str, str],
    load: tuple[str, str, float],
) -> None:
    template = made(make, **props)
    name, target = only(template, TARGET)
    said = target["Properties"]
    assert (said["ServiceNamespace"], said["ResourceId"]) == resource
    assert said["ScalableDimension"] == load[0]
    assert (said["MinCapacity"], said["MaxCapacity"]) == (1, 3)
    # Application Auto Scaling takes its service-linked role.
    assert "RoleARN" not in said
    opens, closes = said["ScheduledActions"]
    assert opens["Schedule"] == "cron(0 8 ? * MON-FRI *)"
    assert closes["Schedule"] == "cron(30 18 ? * MON-FRI *)"
    assert opens["Timezone"] == closes["Timezone"] == "Europe/Lisbon"
    assert opens["ScalableTargetAction"] == {"MinCapacity": 2, "MaxCapacity": 4}
    assert closes["ScalableTargetAction"] == {"MinCapacity": 1, "MaxCapacity": 3}
    _, policy = only(template, SCALING_POLICY)
    tracking = policy["Properties"]["TargetTrackingScalingPolicyConfiguration"]
    assert tracking["PredefinedMetricSpecification"] == {"PredefinedMetricType": load[1]}
    assert tracking["TargetValue"] == load[2]
    assert policy["Properties"]["ScalingTargetId"] == {"Ref": name}
    # The resource must exist before it can be registered.
    waits = set(target["DependsOn"])
    assert waits & set(resources(template, ENDPOINT) | resources(template, "AWS::Lambda::Alias"))


def test_hours_alone_need_no_load() -> None:
    template = made(
        realtime, scaling=Scaling(min_capacity=1, max_capacity=3, clinic_hours=[LISBON])
    )
    assert resources(template, SCALING_POLICY) == {}
    assert len(only(template, TARGET)[1]["Properties"]["ScheduledActions"]) == 2


def test_an_update_keeps_the_capacity_that_scaling_reached() -> None:
    scaling = Scaling(min_capacity=1, max_capacity=3, invocations_per_instance=600)
    said = only(made(realtime, scaling=scaling), ENDPOINT)[1]["Properties"]
    assert said["RetainAllVariantProperties"] is True
    assert said["ExcludeRetainedVariantProperties"] == [{"VariantPropertyType": "DesiredWeight"}]
    # Containers kept warm are no property that an update could retain.
    warm = made(
        serverless,
        provisioned_concurrency=1,
        scaling=Scaling(min_capacity=1, max_capacity=2, utilization=0.7),
    )
    assert "RetainAllVariantProperties" not in only(warm, ENDPOINT)[1]["Properties"]
    assert "RetainAllVariantProperties" not in only(made(realtime), ENDPOINT)[1]["Properties"]


def test_lambda_may_keep_nothing_warm_at_night() -> None:
    template = made(
        on_lambda,
        provisioned_concurrency=2,
        scaling=Scaling(min_capacity=0, max_capacity=3, clinic_hours=[LISBON]),
    )
    assert only(template, TARGET)[1]["Properties"]["MinCapacity"] == 0


# --- Warnings -----------------------------------------------------------------------------------


def test_an_autoscaled_endpoint_says_that_a_change_of_type_takes_two_deployments() -> None:
    scaling = Scaling(min_capacity=1, max_capacity=3, invocations_per_instance=600)
    (warning,) = warnings_of(realtime, scaling=scaling)
    assert "first leave out scaling, then change the type and give scaling back" in warning
    assert warnings_of(realtime) == []


def test_a_key_that_does_not_encrypt_local_disks_is_a_warning() -> None:
    def with_key(stack: cdk.Stack, **props: Any) -> DREndpoint:
        return realtime(stack, encryption_key=kms.Key(stack, "Key"), **props)

    (warning,) = warnings_of(with_key, instance_type="ml.m5d.xlarge")
    assert "does not encrypt the local disks of ml.m5d.xlarge" in warning
    assert warnings_of(with_key, instance_type="ml.m5.xlarge") == []


def test_a_region_that_lacks_the_type_or_that_nobody_knows_is_a_warning() -> None:
    def there(region: str, **props: Any) -> list[str]:
        env = cdk.Environment(account=ACCOUNT, region=region)
        return warnings_of(
            lambda stack, **more: realtime(stack, image=an_image_in(region), **more),
            env=env,
            **props,
        )

    assert there("eu-west-1") == []
    (warning,) = there("sa-east-1", instance_type="ml.m7i.xlarge") or ["offered"]
    assert "was not in the price list of sa-east-1 on 2026-11-28" in warning
    (warning,) = there("eu-mars-1")
    assert "region eu-mars-1 is not in this library's table of 2026-11-28" in warning


@ALL
@pytest.mark.parametrize(
    ("wait_s", "every_minutes", "slow"), [(120, 1, 0), (60, 1, 1), (300, 5, 1)]
)
def test_a_shift_that_is_faster_than_its_alarms_is_a_warning(
    make: Make, wait_s: int, every_minutes: int, slow: int
) -> None:
    found = warnings_of(
        make,
        traffic_shift=TrafficShift.all_at_once(wait_s=wait_s),
        probe=ProbeOptions(every_minutes=every_minutes),
    )
    assert len(found) == slow
    assert all(f"rings after {120 * every_minutes} s at the earliest" in it for it in found)


# --- Updates ------------------------------------------------------------------------------------


def routing(template: Template) -> dict[str, Any]:
    policy = only(template, ENDPOINT)[1]["Properties"]["DeploymentConfig"]["BlueGreenUpdatePolicy"]
    found: dict[str, Any] = policy["TrafficRoutingConfiguration"]
    return found


def test_a_serverless_canary_is_a_percentage_and_is_watched() -> None:
    template = made(serverless, traffic_shift=TrafficShift.canary(wait_s=300, keep_old_s=60))
    assert routing(template) == {
        "Type": "CANARY",
        "CanarySize": {"Type": "CAPACITY_PERCENT", "Value": 10},
        "WaitIntervalInSeconds": 300,
    }
    config = only(template, ENDPOINT)[1]["Properties"]["DeploymentConfig"]
    assert config["BlueGreenUpdatePolicy"]["TerminationWaitInSeconds"] == 60
    watched = config["AutoRollbackConfiguration"]["Alarms"]
    assert {it["AlarmName"]["Ref"] for it in watched} == set(resources(template, ALARM))
    assert len(watched) == 2


def test_instances_shift_by_number_step_by_step_or_all_at_once() -> None:
    two = {"initial_instance_count": 2}
    assert routing(made(realtime, traffic_shift=TrafficShift.linear(instances=1), **two)) == {
        "Type": "LINEAR",
        "LinearStepSize": {"Type": "INSTANCE_COUNT", "Value": 1},
        "WaitIntervalInSeconds": 300,
    }
    assert routing(made(realtime, traffic_shift=TrafficShift.all_at_once(wait_s=120))) == {
        "Type": "ALL_AT_ONCE",
        "WaitIntervalInSeconds": 120,
    }


def test_a_rolling_update_has_batches_and_no_second_fleet() -> None:
    template = made(
        realtime,
        initial_instance_count=4,
        traffic_shift=TrafficShift.rolling(percent=50, wait_s=60, timeout_s=3600),
    )
    config = only(template, ENDPOINT)[1]["Properties"]["DeploymentConfig"]
    assert "BlueGreenUpdatePolicy" not in config
    assert config["RollingUpdatePolicy"] == {
        "MaximumBatchSize": {"Type": "CAPACITY_PERCENT", "Value": 50},
        "MaximumExecutionTimeoutInSeconds": 3600,
        "WaitIntervalInSeconds": 60,
    }
    assert len(config["AutoRollbackConfiguration"]["Alarms"]) == 2


@SAGEMAKER
def test_alarms_of_ones_own_take_an_update_back_too(make: Make) -> None:
    stack = new_stack()
    make(
        stack,
        traffic_shift=TrafficShift.all_at_once(),
        rollback_alarms=[an_alarm(stack)],
        probe=ProbeOptions(),
    )
    template = template_of(stack)
    config = only(template, ENDPOINT)[1]["Properties"]["DeploymentConfig"]
    names = [it["AlarmName"] for it in config["AutoRollbackConfiguration"]["Alarms"]]
    assert len(names) == 4
    assert "clinic-0" in names
    (read,) = (it for it in statements(template) if it.get("Sid") == "ReadRollbackAlarms")
    assert f"arn:aws:cloudwatch:{REGION}:{ACCOUNT}:alarm:clinic-0" in read["Resource"]


@pytest.mark.parametrize(
    ("shift", "words"),
    [
        (TrafficShift.canary(percent=20, wait_s=300), ("TimeBasedCanary", 20, 5)),
        (TrafficShift.linear(percent=25, wait_s=60), ("TimeBasedLinear", 25, 1)),
    ],
)
def test_on_lambda_codedeploy_moves_the_alias(
    shift: TrafficShift, words: tuple[str, int, int]
) -> None:
    template = made(on_lambda, traffic_shift=shift, probe=ProbeOptions())
    _, alias = only(template, "AWS::Lambda::Alias")
    group_name, group = only(template, "AWS::CodeDeploy::DeploymentGroup")
    assert alias["UpdatePolicy"]["CodeDeployLambdaAliasUpdate"]["DeploymentGroupName"] == {
        "Ref": group_name
    }
    watched = group["Properties"]["AlarmConfiguration"]
    assert watched["Enabled"] is True
    assert len(watched["Alarms"]) == 3
    assert "DEPLOYMENT_STOP_ON_ALARM" in group["Properties"]["AutoRollbackConfiguration"]["Events"]
    _, config = only(template, "AWS::CodeDeploy::DeploymentConfig")
    assert list(words) == [
        config["Properties"]["TrafficRoutingConfig"]["Type"],
        *sorted(config["Properties"]["TrafficRoutingConfig"][words[0]].values(), reverse=True),
    ]


def test_on_lambda_all_at_once_is_codedeploys_own() -> None:
    _, group = only(
        made(on_lambda, traffic_shift=TrafficShift.all_at_once()),
        "AWS::CodeDeploy::DeploymentGroup",
    )
    assert group["Properties"]["DeploymentConfigName"] == "CodeDeployDefault.LambdaAllAtOnce"


# --- Alarms -------------------------------------------------------------------------------------


@ALL
def test_alarms_are_of_server_errors_latency_and_probe_and_never_of_a_4xx(make: Make) -> None:
    stack = new_stack()
    endpoint = make(stack, alarms=AlarmOptions(latency_ms=2000), probe=ProbeOptions())
    template = template_of(stack)
    alarms = {
        it["Properties"]["AlarmName"]: it["Properties"]
        for it in resources(template, ALARM).values()
    }
    # The role may describe alarms of these names, as a rollback needs.
    assert set(alarms) == {"dr-Test-server-errors", "dr-Test-latency", "dr-Test-probe"}
    assert "4XX" not in json.dumps(alarms).upper()
    for alarm in alarms.values():
        assert alarm["TreatMissingData"] == "notBreaching"
        assert (alarm["DatapointsToAlarm"], alarm["EvaluationPeriods"]) == (2, 3)
        assert alarm["Period"] == 60
        assert "AlarmActions" not in alarm
    unit = 1 if make is on_lambda else 1000
    assert alarms["dr-Test-latency"]["Threshold"] == 2000 * unit
    assert alarms["dr-Test-latency"]["ExtendedStatistic"] == "p95"
    assert alarms["dr-Test-server-errors"]["MetricName"] == (
        "Url5xxCount" if make is on_lambda else "Invocation5XXErrors"
    )
    assert alarms["dr-Test-probe"]["MetricName"] == "Errors"
    assert [alarm.alarm_name for alarm in endpoint.alarms.all] == [
        endpoint.alarms.server_errors.alarm_name,
        endpoint.alarms.latency.alarm_name,
        endpoint.alarms.probe.alarm_name,
    ]


def test_alarms_tell_whom_they_should() -> None:
    stack = new_stack()
    topic = sns.Topic(stack, "OnCall")
    serverless(stack, alarms=AlarmOptions(actions=[actions.SnsAction(topic)]))
    alarms = resources(template_of(stack), ALARM)
    assert len(alarms) == 2
    for alarm in alarms.values():
        assert len(alarm["Properties"]["AlarmActions"]) == 1
        assert alarm["Properties"]["OKActions"] == alarm["Properties"]["AlarmActions"]


# With the flag that new apps have, the CDK names a permission after the alarm's own id.
PERMISSION_FLAG = "@aws-cdk/aws-cloudwatch-actions:changeLambdaPermissionLogicalIdForLambdaAction"


@pytest.mark.parametrize("flag", [False, True])
def test_a_function_that_several_alarms_call_has_a_permission_for_each(flag: bool) -> None:
    def two_endpoints(**props: bool) -> cdk.Stack:
        stack = cdk.Stack(new_app(context={PERMISSION_FLAG: flag}), "Stack")
        called = lambda_.Function(
            stack,
            "OnCall",
            runtime=lambda_.Runtime.PYTHON_3_14,
            handler="index.handler",
            code=lambda_.Code.from_inline("handler = print"),
        )
        told = AlarmOptions(actions=[actions.LambdaAction(called, **props)])
        for name in ("First", "Second"):
            ServerlessDREndpoint(
                stack,
                name,
                model=an_artifact(stack),
                image=an_image(),
                memory_mib=2048,
                alarms=told,
            )
        return stack

    stack = two_endpoints(use_unique_permission_id=True)
    assert len(resources(template_of(stack), "AWS::Lambda::Permission")) == 4
    with pytest.raises(ValidationError) as refused:
        two_endpoints()
    assert "LambdaAction(function, use_unique_permission_id=True)" in str(refused.value)


@ALL
def test_no_alarm_that_nobody_asked_for(make: Make) -> None:
    stack = new_stack()
    endpoint = make(stack)
    assert resources(template_of(stack), ALARM) == {}
    assert endpoint.alarms_if_any == ()
    with pytest.raises(ValidationError, match="give the endpoint alarms=AlarmOptions"):
        _ = endpoint.alarms
    watched = make(new_stack(), alarms=AlarmOptions())
    with pytest.raises(ValidationError, match="give the endpoint probe=ProbeOptions"):
        _ = watched.alarms.probe


# --- Network, keys, capture -----------------------------------------------------------------------


def test_a_network_is_the_models_and_the_roles() -> None:
    stack = new_stack()
    realtime(stack, vpc=a_vpc(stack))
    template = template_of(stack)
    group, _ = only(template, "AWS::EC2::SecurityGroup")
    assert only(template, MODEL)[1]["Properties"]["VpcConfig"] == {
        "SecurityGroupIds": [{"Fn::GetAtt": [group, "GroupId"]}],
        "Subnets": ["subnet-a", "subnet-b"],
    }
    (make_interfaces,) = (
        it for it in statements(template) if it.get("Sid") == "MakeNetworkInterfaces"
    )
    text = json.dumps(make_interfaces["Resource"])
    for part in ("network-interface/*", "subnet/subnet-a", "subnet/subnet-b", group):
        assert part in text


def test_chosen_subnets_and_groups_are_taken() -> None:
    stack = new_stack()
    vpc = ec2.Vpc(stack, "Vpc", max_azs=2)
    group = ec2.SecurityGroup.from_security_group_id(stack, "Group", "sg-theirs")
    public = ec2.SubnetSelection(subnet_type=ec2.SubnetType.PUBLIC)
    realtime(stack, vpc=vpc, vpc_subnets=public, security_groups=[group])
    network = only(template_of(stack), MODEL)[1]["Properties"]["VpcConfig"]
    assert network["SecurityGroupIds"] == ["sg-theirs"]
    assert len(network["Subnets"]) == 2
    assert all("Public" in subnet["Ref"] for subnet in network["Subnets"])


def test_a_function_may_lie_in_a_vpc() -> None:
    stack = new_stack()
    on_lambda(stack, vpc=a_vpc(stack))
    _, function = only(template_of(stack), "AWS::Lambda::Function")
    assert function["Properties"]["VpcConfig"]["SubnetIds"] == ["subnet-a", "subnet-b"]
    assert len(function["Properties"]["VpcConfig"]["SecurityGroupIds"]) == 1


def test_isolation_is_the_models() -> None:
    model = only(made(realtime, network_isolation=True), MODEL)[1]["Properties"]
    assert model["EnableNetworkIsolation"] is True
    assert "EnableNetworkIsolation" not in only(made(realtime), MODEL)[1]["Properties"]


@SAGEMAKER
def test_a_key_encrypts_the_volumes_and_the_role_may_use_it(make: Make) -> None:
    stack = new_stack()
    key = kms.Key.from_key_arn(stack, "Key", f"arn:aws:kms:{REGION}:{ACCOUNT}:key/volumes")
    make(stack, encryption_key=key)
    template = template_of(stack)
    assert only(template, CONFIG)[1]["Properties"]["KmsKeyId"] == key.key_arn
    allowed = [it for it in statements(template) if it["Resource"] == key.key_arn]
    grants = [it for it in allowed if it["Action"] == "kms:CreateGrant"]
    assert grants[0]["Condition"] == {"Bool": {"kms:GrantIsForAWSResource": "true"}}
    others = [action for it in allowed if it not in grants for action in it["Action"]]
    assert "kms:Decrypt" in others
    assert "kms:*" not in others


def test_a_key_encrypts_a_functions_environment() -> None:
    stack = new_stack()
    key = kms.Key.from_key_arn(stack, "Key", f"arn:aws:kms:{REGION}:{ACCOUNT}:key/settings")
    on_lambda(stack, encryption_key=key)
    template = template_of(stack)
    assert only(template, "AWS::Lambda::Function")[1]["Properties"]["KmsKeyArn"] == key.key_arn
    assert [it["Action"] for it in statements(template) if it["Resource"] == key.key_arn] == [
        "kms:Decrypt"
    ]


@ALL
def test_log_lines_may_have_a_key(make: Make) -> None:
    stack = new_stack()
    key = kms.Key.from_key_arn(stack, "Key", f"arn:aws:kms:{REGION}:{ACCOUNT}:key/logs")
    make(stack, log_encryption_key=key, probe=ProbeOptions())
    groups = resources(template_of(stack), "AWS::Logs::LogGroup")
    assert len(groups) == 2
    assert {it["Properties"]["KmsKeyId"] for it in groups.values()} == {key.key_arn}


def test_what_is_captured_goes_below_a_prefix_and_nowhere_else() -> None:
    stack = new_stack()
    bucket = s3.Bucket.from_bucket_name(stack, "Kept", "kept-requests")
    key = kms.Key.from_key_arn(stack, "Key", f"arn:aws:kms:{REGION}:{ACCOUNT}:key/kept")
    realtime(
        stack, data_capture=DataCapture(bucket=bucket, prefix="a/b", percent=20, encryption_key=key)
    )
    template = template_of(stack)
    capture = only(template, CONFIG)[1]["Properties"]["DataCaptureConfig"]
    assert capture["DestinationS3Uri"] == "s3://kept-requests/a/b"
    assert capture["InitialSamplingPercentage"] == 20
    assert capture["KmsKeyId"] == key.key_arn
    assert [it["CaptureMode"] for it in capture["CaptureOptions"]] == ["Input", "Output"]
    (write,) = (it for it in statements(template) if it["Action"] == "s3:PutObject")
    assert json.dumps(write["Resource"]).endswith(':s3:::kept-requests/a/b/*"]]}')
    assert "DataCaptureConfig" not in only(made(realtime), CONFIG)[1]["Properties"]


def test_time_outs_are_the_variants() -> None:
    template = made(realtime, model_download_timeout_s=900, startup_timeout_s=300)
    (variant,) = only(template, CONFIG)[1]["Properties"]["ProductionVariants"]
    assert variant["ModelDataDownloadTimeoutInSeconds"] == 900
    assert variant["ContainerStartupHealthCheckTimeoutInSeconds"] == 300


CHANGES: dict[str, Callable[[cdk.Stack], dict[str, Any]]] = {
    "network": lambda stack: {"vpc": a_vpc(stack)},
    "isolation": lambda _: {"network_isolation": True},
    "capture": lambda stack: {
        "data_capture": DataCapture(bucket=s3.Bucket.from_bucket_name(stack, "B", "kept"))
    },
    "key": lambda stack: {
        "encryption_key": kms.Key.from_key_arn(stack, "K", f"arn:aws:kms:{REGION}:{ACCOUNT}:key/k")
    },
    "time-out": lambda _: {"startup_timeout_s": 300},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_such_change_reaches_the_running_endpoint(
    change: Callable[[cdk.Stack], dict[str, Any]],
) -> None:
    stack = new_stack()
    realtime(stack, **change(stack))
    assert only(template_of(stack), CONFIG)[0] != only(made(realtime), CONFIG)[0]


def test_alarms_shifts_scaling_and_tags_make_no_new_config() -> None:
    plain = made(realtime, initial_instance_count=2)
    changed = made(
        realtime,
        initial_instance_count=2,
        traffic_shift=TrafficShift.canary(),
        probe=ProbeOptions(),
        scaling=Scaling(min_capacity=2, max_capacity=3, invocations_per_instance=60),
        tags={"ward": "eye"},
    )
    assert set(plain["Resources"]) < set(changed["Resources"])


@ALL
def test_tags_are_on_all_that_can_be_tagged(make: Make) -> None:
    template = made(make, tags={"ward": "eye"}, alarms=AlarmOptions(), probe=ProbeOptions())
    for kind in ("AWS::Logs::LogGroup", "AWS::IAM::Role", "AWS::Lambda::Function", ENDPOINT):
        for resource in resources(template, kind).values():
            assert {"Key": "ward", "Value": "eye"} in resource["Properties"]["Tags"]


# --- Dashboard ----------------------------------------------------------------------------------


def test_a_dashboard_has_a_row_for_each_endpoint_and_all_alarms() -> None:
    stack = new_stack()
    image = an_image()
    model = an_artifact(stack)
    endpoints: list[DREndpoint] = [
        ServerlessDREndpoint(
            stack, "S", model=model, image=image, memory_mib=1024, alarms=AlarmOptions()
        ),
        RealtimeDREndpoint(stack, "R", model=model, image=image, instance_type="ml.m5.large"),
        LambdaDREndpoint(stack, "L", model=model, image=image, memory_mib=1024),
    ]
    DREndpointDashboard(stack, "Dashboard", endpoints=endpoints, dashboard_name="clinic")
    _, dashboard = only(template_of(stack), "AWS::CloudWatch::Dashboard")
    assert dashboard["Properties"]["DashboardName"] == "clinic"
    body = json.dumps(dashboard["Properties"]["DashboardBody"])
    for endpoint in endpoints:
        assert f"{endpoint.endpoint_name}: requests" in body
    for metric in ("ModelLatency", "OverheadLatency", "Invocation4XXErrors", "Url5xxCount"):
        assert metric in body
    assert body.count("capacity") == 3
    parts = "".join(
        part if isinstance(part, str) else "X"
        for part in dashboard["Properties"]["DashboardBody"]["Fn::Join"][1]
    )
    kinds = [widget["type"] for widget in json.loads(parts)["widgets"]]
    # One row of alarms, four graphs an endpoint.
    assert kinds == ["alarm", *["metric"] * 12]


def test_a_dashboard_over_nothing_or_the_same_twice_is_refused() -> None:
    stack = new_stack()
    endpoint = serverless(stack)
    with pytest.raises(ValidationError, match="endpoints must name at least one"):
        DREndpointDashboard(stack, "None", endpoints=[])
    with pytest.raises(ValidationError, match="Stack/Endpoint comes 2 times"):
        DREndpointDashboard(stack, "Twice", endpoints=[endpoint, endpoint])
