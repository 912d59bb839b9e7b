"""Every limit from both sides: the last value that is accepted, the first that is refused."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from constructs_lib import limits
from constructs_lib.rules import (
    endpoint_faults,
    lambda_faults,
    realtime_faults,
    serverless_faults,
    tag_faults,
)
from constructs_lib.scaling import (
    ClinicHours,
    Scaling,
    lambda_scaling_faults,
    realtime_scaling_faults,
    serverless_scaling_faults,
)
from constructs_lib.traffic import TrafficShift, lambda_shift_faults, sagemaker_shift_faults

Faults = Callable[[Any], list[str]]


@dataclass(frozen=True, kw_only=True)
class Bound:
    """`faults` of a value; `accepted` lie at the edge, `refused` just beyond it."""

    limit: str
    name: str
    faults: Faults
    accepted: tuple[Any, ...]
    refused: tuple[Any, ...]


def _scaling(**props: Any) -> Scaling:
    return Scaling(**{"min_capacity": 1, "max_capacity": 3, "utilization": 0.7, **props})


def _instances(**props: Any) -> Scaling:
    return Scaling(
        **{"min_capacity": 1, "max_capacity": 3, "invocations_per_instance": 60.0, **props}
    )


def _names(count: int) -> dict[str, str]:
    return {f"A{number}": "" for number in range(count)}


BOUNDS = (
    Bound(
        limit="SERVERLESS_MEMORY_SIZES_MIB",
        name="memory_mib",
        faults=lambda v: serverless_faults(memory_mib=v),
        accepted=(1024, 2048, 3072, 4096, 5120, 6144),
        refused=(0, 1023, 1025, 1500, 6145, 7168, True, 2048.5),
    ),
    Bound(
        limit="SERVERLESS_MAX_CONCURRENCY",
        name="max_concurrency",
        faults=lambda v: serverless_faults(max_concurrency=v),
        accepted=(1, 200),
        refused=(0, 201, -1, 1.5, True),
    ),
    Bound(
        limit="SERVERLESS_MAX_CONCURRENCY",
        name="provisioned_concurrency",
        faults=lambda v: serverless_faults(max_concurrency=200, provisioned_concurrency=v),
        accepted=(1, 200),
        refused=(0, 201),
    ),
    Bound(
        limit="SERVERLESS_MAX_CONCURRENCY",
        name="provisioned_concurrency",
        faults=lambda v: serverless_faults(max_concurrency=5, provisioned_concurrency=v),
        accepted=(5,),
        refused=(6,),
    ),
    Bound(
        limit="SERVERLESS_ARCHITECTURES",
        name="architecture",
        faults=lambda v: serverless_faults(architecture=v),
        accepted=("amd64",),
        refused=("arm64",),
    ),
    Bound(
        limit="STARTUP_TIMEOUT_S",
        name="model_download_timeout_s",
        faults=lambda v: realtime_faults(model_download_timeout_s=v),
        accepted=(60, 3600),
        refused=(59, 3601),
    ),
    Bound(
        limit="STARTUP_TIMEOUT_S",
        name="startup_timeout_s",
        faults=lambda v: realtime_faults(startup_timeout_s=v),
        accepted=(60, 3600),
        refused=(59, 3601),
    ),
    Bound(
        limit="INSTANCE_TYPES",
        name="instance_type",
        faults=lambda v: realtime_faults(instance_type=v),
        accepted=("ml.m5.xlarge", "ml.c8g.48xlarge"),
        refused=("m5.xlarge", "ml.m5.metal", "ml.m9.xlarge"),
    ),
    Bound(
        limit="ACCELERATED_PATTERN",
        name="instance_type",
        faults=lambda v: realtime_faults(instance_type=v),
        accepted=("ml.c7g.xlarge",),
        refused=("ml.g5.xlarge", "ml.p3.2xlarge", "ml.inf2.xlarge"),
    ),
    Bound(
        limit="ENDPOINT_NAME_CHARACTERS",
        name="endpoint_name",
        faults=lambda v: endpoint_faults(endpoint_name=v),
        accepted=("d" * 63,),
        refused=("d" * 64,),
    ),
    Bound(
        limit="ENDPOINT_NAME_PATTERN",
        name="endpoint_name",
        faults=lambda v: endpoint_faults(endpoint_name=v),
        accepted=("a", "dr--1"),
        refused=("", "-dr", "dr-", "dr_1", "é"),
    ),
    Bound(
        limit="ENVIRONMENT_ENTRIES",
        name="environment",
        faults=lambda v: endpoint_faults(environment=_names(v)),
        accepted=(0, 100),
        refused=(101,),
    ),
    Bound(
        limit="ENVIRONMENT_TEXT_CHARACTERS",
        name="environment",
        faults=lambda v: endpoint_faults(environment={"CLINIC": "x" * v}),
        accepted=(0, 1024),
        refused=(1025,),
    ),
    Bound(
        limit="ENVIRONMENT_NAME_PATTERN",
        name="environment",
        faults=lambda v: endpoint_faults(environment={v: "1"}),
        accepted=("_A", "a1"),
        refused=("1A", "A-B", ""),
    ),
    Bound(
        limit="INVOCATION_TIMEOUT_S",
        name="environment['MODEL_SERVER_TIMEOUT']",
        faults=lambda v: endpoint_faults(environment={"MODEL_SERVER_TIMEOUT": v}),
        accepted=("1", "59.9", ""),
        refused=("60", "3600"),
    ),
    Bound(
        limit="LAMBDA_MEMORY_MIB",
        name="memory_mib",
        faults=lambda v: lambda_faults(memory_mib=v),
        accepted=(128, 1769, 10_240),
        refused=(127, 10_241),
    ),
    Bound(
        limit="LAMBDA_TIMEOUT_S",
        name="timeout_s",
        faults=lambda v: lambda_faults(timeout_s=v),
        accepted=(1, 900),
        refused=(0, 901),
    ),
    Bound(
        limit="LAMBDA_EPHEMERAL_STORAGE_MIB",
        name="ephemeral_storage_mib",
        faults=lambda v: lambda_faults(ephemeral_storage_mib=v),
        accepted=(512, 10_240),
        refused=(511, 10_241),
    ),
    Bound(
        limit="LAMBDA_EPHEMERAL_STORAGE_MIB",
        name="ephemeral_storage_mib",
        # Packed and unpacked, 300 MiB are 600.
        faults=lambda v: lambda_faults(ephemeral_storage_mib=v, package_bytes=300 * 1024**2),
        accepted=(600,),
        refused=(599, 512),
    ),
    Bound(
        limit="LAMBDA_MIN_PROVISIONED",
        name="provisioned_concurrency",
        faults=lambda v: lambda_faults(max_concurrency=5, provisioned_concurrency=v),
        accepted=(1, 5),
        refused=(0, 6),
    ),
    Bound(
        limit="LAMBDA_ENVIRONMENT_BYTES",
        name="environment",
        faults=lambda v: lambda_faults(environment={"AB": "x" * (v - 2)}),
        accepted=(4096,),
        refused=(4097,),
    ),
    Bound(
        limit="LAMBDA_ENVIRONMENT_NAME_PATTERN",
        name="environment",
        faults=lambda v: lambda_faults(environment={v: "1"}),
        accepted=("AB",),
        refused=("A", "_A"),
    ),
    Bound(
        limit="LAMBDA_RESERVED_ENVIRONMENT",
        name="environment",
        faults=lambda v: lambda_faults(environment={v: "1"}),
        accepted=("AWS_LAMBDA_EXEC_WRAPPER",),
        refused=limits.LAMBDA_RESERVED_ENVIRONMENT,
    ),
    Bound(
        limit="LAMBDA_UTILIZATION",
        name="scaling.utilization",
        faults=lambda v: lambda_scaling_faults(_scaling(utilization=v)),
        accepted=(0.1, 0.9),
        refused=(0.09, 0.91, 0, 70),
    ),
    Bound(
        limit="SERVERLESS_MIN_PROVISIONED",
        name="scaling.utilization",
        faults=lambda v: serverless_scaling_faults(_scaling(utilization=v)),
        accepted=(0.01, 1),
        refused=(0, 1.01, 70),
    ),
    Bound(
        limit="LAMBDA_MIN_PROVISIONED",
        name="scaling.min_capacity",
        faults=lambda v: lambda_scaling_faults(_scaling(min_capacity=v)),
        accepted=(0, 3),
        refused=(-1, 4),
    ),
    Bound(
        limit="SERVERLESS_MIN_PROVISIONED",
        name="scaling.min_capacity",
        faults=lambda v: serverless_scaling_faults(_scaling(min_capacity=v)),
        accepted=(1, 3),
        refused=(0, 4),
    ),
    Bound(
        limit="SERVERLESS_MIN_PROVISIONED",
        name="scaling.max_capacity",
        faults=lambda v: serverless_scaling_faults(_scaling(max_capacity=v), max_concurrency=5),
        accepted=(1, 5),
        refused=(6,),
    ),
    Bound(
        limit="REALTIME_MIN_CAPACITY",
        name="scaling.min_capacity",
        faults=lambda v: realtime_scaling_faults(_instances(min_capacity=v)),
        accepted=(1, 3),
        refused=(0, 4),
    ),
    Bound(
        limit="REALTIME_MIN_CAPACITY",
        name="scaling.clinic_hours[0].min_capacity",
        faults=lambda v: realtime_scaling_faults(
            _instances(clinic_hours=[ClinicHours(time_zone="UTC", min_capacity=v)])
        ),
        accepted=(1, 3),
        refused=(0, 4),
    ),
    Bound(
        limit="REALTIME_MIN_CAPACITY",
        name="initial_instance_count",
        faults=lambda v: realtime_scaling_faults(_instances(), initial_instance_count=v),
        accepted=(1, 3),
        refused=(4,),
    ),
    Bound(
        limit="CANARY_PERCENT",
        name="traffic_shift.percent",
        faults=lambda v: sagemaker_shift_faults(TrafficShift.canary(percent=v), serverless=True),
        accepted=(1, 50),
        refused=(0, 51),
    ),
    Bound(
        limit="SERVERLESS_SHIFTS",
        name="traffic_shift",
        faults=lambda v: sagemaker_shift_faults(getattr(TrafficShift, v)(), serverless=True),
        accepted=("all_at_once", "canary", "linear"),
        refused=("rolling",),
    ),
    Bound(
        limit="LINEAR_PERCENT",
        name="traffic_shift.percent",
        faults=lambda v: sagemaker_shift_faults(TrafficShift.linear(percent=v), serverless=True),
        accepted=(10, 50),
        refused=(9, 51),
    ),
    Bound(
        limit="ROLLING_PERCENT",
        name="traffic_shift.percent",
        faults=lambda v: sagemaker_shift_faults(TrafficShift.rolling(percent=v), serverless=False),
        accepted=(5, 50),
        refused=(4, 51),
    ),
    Bound(
        limit="CANARY_PERCENT",
        name="traffic_shift.instances",
        faults=lambda v: sagemaker_shift_faults(
            TrafficShift.canary(instances=v), serverless=False, fewest_instances=5
        ),
        accepted=(1, 2),
        refused=(0, 3),
    ),
    Bound(
        limit="LINEAR_PERCENT",
        name="traffic_shift.instances",
        faults=lambda v: sagemaker_shift_faults(
            TrafficShift.linear(instances=v), serverless=False, fewest_instances=20
        ),
        accepted=(2, 10),
        refused=(1, 11),
    ),
    Bound(
        limit="CANARY_PERCENT",
        name="traffic_shift",
        faults=lambda v: sagemaker_shift_faults(
            TrafficShift.canary(), serverless=False, fewest_instances=v
        ),
        accepted=(2, None),
        refused=(1,),
    ),
    Bound(
        limit="DEPLOYMENT_WAIT_S",
        name="traffic_shift.wait_s",
        faults=lambda v: sagemaker_shift_faults(
            TrafficShift.all_at_once(wait_s=v), serverless=True
        ),
        accepted=(0, 3600),
        refused=(-1, 3601),
    ),
    Bound(
        limit="DEPLOYMENT_WAIT_S",
        name="traffic_shift.keep_old_s",
        faults=lambda v: sagemaker_shift_faults(
            TrafficShift.all_at_once(keep_old_s=v), serverless=True
        ),
        accepted=(0, 3600),
        refused=(-1, 3601),
    ),
    Bound(
        limit="DEPLOYMENT_TIMEOUT_S",
        name="traffic_shift.timeout_s",
        faults=lambda v: sagemaker_shift_faults(
            TrafficShift.canary(wait_s=60, timeout_s=v), serverless=True
        ),
        accepted=(600, 28_800, None),
        refused=(599, 28_801),
    ),
    Bound(
        limit="DEPLOYMENT_TIMEOUT_S",
        name="traffic_shift.timeout_s",
        # Three waits between four steps of 25 percent.
        faults=lambda v: sagemaker_shift_faults(
            TrafficShift.linear(wait_s=300, keep_old_s=100, timeout_s=v), serverless=True
        ),
        accepted=(1001,),
        refused=(1000,),
    ),
    Bound(
        limit="CODEDEPLOY_PERCENT",
        name="traffic_shift.percent",
        faults=lambda v: lambda_shift_faults(TrafficShift.canary(percent=v)),
        accepted=(1, 99),
        refused=(0, 100),
    ),
    Bound(
        limit="CODEDEPLOY_PERCENT",
        name="traffic_shift.wait_s",
        faults=lambda v: lambda_shift_faults(TrafficShift.linear(wait_s=v)),
        accepted=(60, 600),
        refused=(0, 90),
    ),
    Bound(
        limit="TAGS",
        name="tags",
        faults=lambda v: tag_faults(_names(v)),
        accepted=(0, 50),
        refused=(51,),
    ),
    Bound(
        limit="TAGS",
        name="tags",
        faults=lambda v: tag_faults(_names(v), added=1),
        accepted=(0, 49),
        refused=(50,),
    ),
    Bound(
        limit="TAG_KEY_CHARACTERS",
        name="tags",
        faults=lambda v: tag_faults({v: "1"}),
        accepted=("k" * 128, "Kostenstelle: Augenklinik"),
        refused=("", "k" * 129, "aws:cost", "AWS:cost", "a;b"),
    ),
    Bound(
        limit="TAG_VALUE_CHARACTERS",
        name="tags['ward']",
        faults=lambda v: tag_faults({"ward": v}),
        accepted=("", "v" * 256),
        refused=("v" * 257, "a;b"),
    ),
)
# These bound what is sent, or what a table or another module's test holds.
ELSEWHERE = {
    "SUBNETS",  # test_network.py
    "BOTOCORE_VERSION",
    "CAPTURE_PERCENT",
    "IMAGE_URI_CHARACTERS",
    "LAMBDA_DEFAULT_EPHEMERAL_STORAGE_MIB",
    "LAMBDA_PAYLOAD_BYTES",
    "LOCAL_DISK_FAMILIES",
    "PING_TIMEOUT_S",
    "REALTIME_PAYLOAD_BYTES",
    "ROLLBACK_ALARMS",
    "SECURITY_GROUPS",
    "SERVERLESS_IMAGE_BYTES",
    "SERVERLESS_PAYLOAD_BYTES",
    "SERVERLESS_READY_TIMEOUT_S",
    # Of trainings: test_training_rules.py
    "HYPERPARAMETER_TEXT_CHARACTERS",
    "JOB_ARCHITECTURES",
    "JOB_NAME_CHARACTERS",
    "MODEL_PACKAGE_GROUP_CHARACTERS",
    "MODEL_PACKAGE_GROUP_PATTERN",
    "PROCESSING_INSTANCE_TYPES",
    "PROCESSING_RUNTIME_S",
    "PROCESSING_VOLUME_GB",
    "TRAINING_INSTANCE_TYPES",
    "TRAINING_MIN_INSTANCES",
    "TRAINING_RUNTIME_S",
    "TRAINING_VOLUME_GB",
}
ACCEPTED = [
    pytest.param(bound, value, id=f"{bound.name}={str(value)[:20]}")
    for bound in BOUNDS
    for value in bound.accepted
]
REFUSED = [
    pytest.param(bound, value, id=f"{bound.name}={str(value)[:20]}")
    for bound in BOUNDS
    for value in bound.refused
]


@pytest.mark.parametrize(("bound", "value"), ACCEPTED)
def test_the_last_value_within_is_accepted(bound: Bound, value: Any) -> None:
    assert bound.faults(value) == []


@pytest.mark.parametrize(("bound", "value"), REFUSED)
def test_the_first_value_beyond_is_refused_with_all_that_one_needs(
    bound: Bound, value: Any
) -> None:
    (fault,) = bound.faults(value)
    subject, _, rest = fault.partition(" must be ")
    # Property, what is allowed, value, source.
    assert subject.startswith(bound.name)
    allowed, _, got = rest.rpartition("; got ")
    assert allowed
    assert "(https://docs.aws.amazon.com/" in got


def test_every_limit_has_both_sides_here_or_a_test_elsewhere() -> None:
    assert {bound.limit for bound in BOUNDS} | ELSEWHERE == set(limits.SOURCES)
    assert not {bound.limit for bound in BOUNDS} & ELSEWHERE


@pytest.mark.parametrize(
    ("shift", "words"),
    [
        (TrafficShift(kind="blue"), "kind must be one of all-at-once, canary, linear, rolling"),
        (TrafficShift(kind="canary"), "given percent or instances, and not both"),
        (TrafficShift.canary(percent=10, instances=1), "given percent or instances, and not both"),
        (TrafficShift.rolling(), "one of all-at-once, canary, linear on serverless inference"),
        (TrafficShift.canary(instances=1), "left out on serverless inference"),
    ],
)
def test_serverless_refuses_shifts_that_it_cannot_make(shift: TrafficShift, words: str) -> None:
    assert any(words in fault for fault in sagemaker_shift_faults(shift, serverless=True))


@pytest.mark.parametrize(
    ("shift", "words"),
    [
        (TrafficShift.rolling(), "which has no instances"),
        (TrafficShift.canary(instances=1), "which has no instances"),
        (TrafficShift.canary(keep_old_s=60), "keeps no second fleet"),
        (TrafficShift.canary(timeout_s=600), "keeps no second fleet"),
    ],
)
def test_lambda_refuses_shifts_that_it_cannot_make(shift: TrafficShift, words: str) -> None:
    (fault,) = lambda_shift_faults(shift)
    assert words in fault


@pytest.mark.parametrize("kind", ["canary", "linear", "rolling"])
def test_one_instance_cannot_be_halved(kind: str) -> None:
    shift = getattr(TrafficShift, kind)()
    (fault,) = sagemaker_shift_faults(shift, serverless=False, fewest_instances=1)
    assert "all-at-once with one instance" in fault
    assert "at most half of the fleet" in fault
    assert sagemaker_shift_faults(shift, serverless=False, fewest_instances=2) == []


@pytest.mark.parametrize(
    ("shift", "total_s"),
    [
        (TrafficShift.all_at_once(wait_s=60, keep_old_s=5), 65),
        (TrafficShift.canary(wait_s=60), 60),
        (TrafficShift.linear(percent=25, wait_s=60), 180),
        (TrafficShift.linear(percent=30, wait_s=60), 180),
        (TrafficShift.rolling(percent=50, wait_s=60), 120),
    ],
)
def test_the_waits_of_a_shift_add_up(shift: TrafficShift, total_s: int) -> None:
    assert shift.total_wait_s == total_s


HOURS = {
    "opens": ("8:00", "24:00", "08:60", "noon"),
    "closes": ("07:59", "08:00", "1800"),
    "days": ("mon-fri", "1-5", "MON-", "", "MON FRI"),
    "time_zone": ("Europe/Lisboa", "CEST+1", ""),
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in HOURS.items() for value in values]
)
def test_hours_that_no_clock_shows_are_refused(name: str, value: str) -> None:
    hours = ClinicHours(**{"time_zone": "Europe/Lisbon", name: value})
    (fault,) = realtime_scaling_faults(_instances(clinic_hours=[hours]))
    assert f"scaling.clinic_hours[0].{name} must be" in fault


@pytest.mark.parametrize("days", ["MON-FRI", "SAT", "MON,WED,FRI", "MON-WED,SAT-SUN"])
def test_days_as_a_clinic_has_them_are_accepted(days: str) -> None:
    hours = ClinicHours(time_zone="America/Sao_Paulo", days=days, opens="07:30", closes="19:05")
    assert realtime_scaling_faults(_instances(clinic_hours=[hours])) == []
    assert hours.opening_cron == f"cron(30 7 ? * {days} *)"
    assert hours.closing_cron == f"cron(5 19 ? * {days} *)"


def test_each_kind_scales_by_its_own_load() -> None:
    by_requests, by_use = _instances(), _scaling()
    assert any("utilization must be left out" in it for it in realtime_scaling_faults(by_use))
    for faults in (serverless_scaling_faults, lambda_scaling_faults):
        assert any("per_instance must be left out" in it for it in faults(by_requests))
    hours = [ClinicHours(time_zone="UTC", min_capacity=2)]
    for faults in (
        realtime_scaling_faults,
        serverless_scaling_faults,
        lambda_scaling_faults,
    ):
        # Nothing would ever change the capacity; hours alone do.
        (fault,) = faults(Scaling(min_capacity=1, max_capacity=3))
        assert "given where there are no clinic_hours" in fault
        assert faults(Scaling(min_capacity=1, max_capacity=3, clinic_hours=hours)) == []


@pytest.mark.parametrize("faults", [serverless_scaling_faults, lambda_scaling_faults])
def test_scaling_warm_containers_begins_with_some(faults: Callable[..., list[str]]) -> None:
    (fault,) = faults(_scaling(), provisioned_is_given=False)
    assert "provisioned_concurrency must be given where scaling is" in fault
    (fault,) = faults(_scaling(), provisioned_concurrency=4)
    assert "from min_capacity to max_capacity of scaling (1 to 3); got 4" in fault


def test_a_setting_that_would_end_the_container_is_refused() -> None:
    (fault,) = endpoint_faults(environment={"DR_LOG_LEVEL": "verbose"})
    assert "DR_LOG_LEVEL must be one of debug, info, warning, error; it is 'verbose'" in fault
    (fault,) = endpoint_faults(environment={"DR_THREADS": "many"})
    assert "DR_THREADS must be a whole number; it is 'many' (docs/settings.md)" in fault
    # What only the deployment knows is not judged.
    assert endpoint_faults(environment={"DR_THREADS": "${Token[TOKEN.7]}"}) == []
    # On Lambda the function's time-out may be longer than SageMaker's patience.
    slow = {"MODEL_SERVER_TIMEOUT": "300"}
    assert endpoint_faults(environment=slow, invocation_timeout_s=None) == []
