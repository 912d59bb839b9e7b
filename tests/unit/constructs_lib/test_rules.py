"""Every refusal, and beside it the nearest value that is accepted."""

from typing import Any

import pytest

from constructs_lib.rules import (
    ValidationError,
    endpoint_faults,
    realtime_faults,
    refuse,
    serverless_faults,
)
from inference_image.settings import VARIABLES


@pytest.mark.parametrize(
    ("props", "words"),
    [
        ({"memory_mib": 1500}, ["memory_mib", "1500", "1024, 2048, 3072, 4096, 5120, 6144"]),
        ({"memory_mib": 512}, ["memory_mib", "512"]),
        ({"memory_mib": 7168}, ["memory_mib", "7168"]),
        ({"memory_mib": True}, ["memory_mib", "True"]),
        ({"memory_mib": 2048.0}, ["memory_mib", "got 2048.0"]),
        ({"max_concurrency": 0}, ["max_concurrency", "from 1 to 200", "got 0"]),
        ({"max_concurrency": 201}, ["max_concurrency", "got 201"]),
        ({"max_concurrency": 2.5}, ["max_concurrency", "got 2.5"]),
        ({"provisioned_concurrency": 0}, ["provisioned_concurrency", "got 0"]),
        (
            {"provisioned_concurrency": 6, "max_concurrency": 5},
            ["provisioned_concurrency", "at most max_concurrency (5)", "got 6"],
        ),
        ({"architecture": "arm64"}, ["architecture", "amd64", "got 'arm64'"]),
        ({"architecture": "x86_64"}, ["architecture", "amd64", "got 'x86_64'"]),
    ],
)
def test_serverless_refuses(props: dict[str, Any], words: list[str]) -> None:
    (fault,) = serverless_faults(**props)
    assert all(word in fault for word in words)
    assert "https://docs.aws.amazon.com/" in fault


@pytest.mark.parametrize(
    "props",
    [
        {},
        *({"memory_mib": size} for size in (1024, 2048, 3072, 4096, 5120, 6144)),
        {"max_concurrency": 1},
        {"max_concurrency": 200},
        {"provisioned_concurrency": 5, "max_concurrency": 5},
        {"architecture": "amd64"},
        {"memory_mib": None, "max_concurrency": None},
    ],
)
def test_serverless_accepts(props: dict[str, Any]) -> None:
    assert serverless_faults(**props) == []


def test_a_fault_that_prevents_a_comparison_is_still_one_sentence() -> None:
    faults = serverless_faults(provisioned_concurrency="9", max_concurrency=5)  # type: ignore[arg-type]
    assert len(faults) == 1
    assert "provisioned_concurrency" in faults[0]


@pytest.mark.parametrize(
    ("props", "words"),
    [
        ({"instance_type": "ml.m5.xlrge"}, ["instance_type", "near it: ml.m5.xlarge"]),
        ({"instance_type": "m5.xlarge"}, ["instance_type", "ml.m5.xlarge"]),
        ({"instance_type": "ml.g5.xlarge"}, ["instance_type", "CPU instance type"]),
        (
            {"instance_type": "ml.c7g.xlarge", "architecture": "amd64"},
            ["architecture", "arm64", "ml.c7g.xlarge", "exec format error"],
        ),
        (
            {"instance_type": "ml.m5.xlarge", "architecture": "arm64"},
            ["architecture", "amd64", "ml.m5.xlarge"],
        ),
        ({"architecture": "aarch64"}, ["architecture", "amd64, arm64", "aarch64"]),
        ({"initial_instance_count": 0}, ["initial_instance_count", "at least 1", "got 0"]),
        ({"initial_instance_count": 1.5}, ["initial_instance_count", "1.5"]),
    ],
)
def test_real_time_refuses(props: dict[str, Any], words: list[str]) -> None:
    (fault,) = realtime_faults(**props)
    assert all(word in fault for word in words)


@pytest.mark.parametrize(
    "props",
    [
        {},
        {"instance_type": "ml.m5.xlarge", "architecture": "amd64", "initial_instance_count": 1},
        {"instance_type": "ml.c8g.medium", "architecture": "arm64", "initial_instance_count": 40},
        {"instance_type": None, "architecture": "arm64"},
    ],
)
def test_real_time_accepts(props: dict[str, Any]) -> None:
    assert realtime_faults(**props) == []


@pytest.mark.parametrize(
    ("props", "words"),
    [
        ({"endpoint_name": "dr_endpoint"}, ["endpoint_name", "hyphens", "dr_endpoint"]),
        ({"endpoint_name": "-dr"}, ["endpoint_name"]),
        ({"endpoint_name": "d" * 64}, ["endpoint_name", "63"]),
        ({"environment": {"DR-THREADS": "1"}}, ["environment", "DR-THREADS"]),
        ({"environment": {"CLINIC": "1" * 1025}}, ["CLINIC", "1024", "1025 characters"]),
        ({"environment": {"DR_THREADS": 2}}, ["DR_THREADS", "text", "got 2"]),
        ({"environment": {f"A{n}": "" for n in range(101)}}, ["environment", "100", "got 101"]),
        (
            {
                "environment": {f"A{n}": "" for n in range(99)},
                "set_by_construct": ("DR_SERVING_MODE", "MODEL_SERVER_WORKERS"),
            },
            ["at most 100 entries", "DR_SERVING_MODE, MODEL_SERVER_WORKERS", "got 101"],
        ),
        (
            {"environment": {"DR_THREADS": "2"}, "set_by_construct": ("DR_THREADS",)},
            ["environment may not set DR_THREADS: the construct does"],
        ),
        (
            {"environment": {"DR_THREAD": "2"}},
            ["settings that the service knows", "got 'DR_THREAD'", "near it: DR_THREADS"],
        ),
        ({"environment": {"dr_log_level": "debug"}}, ["got 'dr_log_level'", "DR_LOG_LEVEL"]),
        (
            {"environment": {"MODEL_SERVER_WORKER": "2"}},
            ["got 'MODEL_SERVER_WORKER'", "near it: MODEL_SERVER_WORKERS"],
        ),
        (
            {"environment": {"DR_XYZZYQ": "1"}},
            ["known: DR_BASE_PATH, DR_BIND_HOST, ", "MODEL_SERVER_TIMEOUT"],
        ),
    ],
)
def test_any_endpoint_refuses(props: dict[str, Any], words: list[str]) -> None:
    (fault,) = endpoint_faults(**props)
    assert all(word in fault for word in words)


@pytest.mark.parametrize(
    "props",
    [
        {},
        {"endpoint_name": "d" * 63},
        {"endpoint_name": "dr--a-1"},
        {"environment": {"CLINIC": "1" * 1024}},
        {"environment": {f"A{n}": "" for n in range(100)}},
        {
            "environment": {f"A{n}": "" for n in range(98)},
            "set_by_construct": ("DR_SERVING_MODE", "MODEL_SERVER_WORKERS"),
        },
        # Settings that others read: SageMaker's own, and those of no particular prefix.
        {"environment": {"SAGEMAKER_PROGRAM": "x", "DRIVE": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}},
    ],
)
def test_any_endpoint_accepts(props: dict[str, Any]) -> None:
    assert endpoint_faults(**props) == []


def test_every_setting_of_the_service_may_be_given() -> None:
    environment = {
        # A default in words stands for no value.
        variable.name: "" if variable.unset_is_none else variable.default
        for variable in VARIABLES
    }
    assert len(environment) == len(VARIABLES) > 10
    assert endpoint_faults(environment=environment) == []


def test_all_faults_are_in_one_message() -> None:
    faults = serverless_faults(memory_mib=1500, max_concurrency=500, architecture="arm64")
    with pytest.raises(ValidationError) as caught:
        refuse("ServerlessDREndpoint Stack/Endpoint", faults)
    assert caught.value.faults == tuple(faults)
    assert caught.value.subject == "ServerlessDREndpoint Stack/Endpoint"
    assert str(caught.value).count("\n- ") == 3
    assert isinstance(caught.value, ValueError)


def test_no_fault_is_no_refusal() -> None:
    assert refuse("anything", []) is None  # type: ignore[func-returns-value]
