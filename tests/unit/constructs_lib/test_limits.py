"""The limits against the service models that botocore and moto carry, and their sources."""

import datetime as dt
import gzip
import json
import re
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import botocore
import botocore.session
import pytest

from constructs_lib import limits, regions


@pytest.fixture(scope="module")
def shapes() -> dict[str, Any]:
    loader = botocore.session.get_session().get_component("data_loader")
    model = loader.load_service_model("sagemaker", "service-2")
    found: dict[str, Any] = model["shapes"]
    return found


def constants() -> set[str]:
    return {name for name in vars(limits) if name.isupper() and not name.startswith("_")}


def test_every_limit_has_a_source() -> None:
    vocabulary = {"AMD64", "ARM64", "ARCHITECTURES", "SOURCES"}
    assert set(limits.SOURCES) == constants() - vocabulary


@pytest.mark.parametrize("name", sorted(limits.SOURCES))
def test_a_source_is_a_dated_page(name: str) -> None:
    source = limits.SOURCES[name]
    assert source.url.startswith("https://docs.aws.amazon.com/")
    assert dt.date.fromisoformat(source.checked) >= dt.date(2026, 11, 28)
    assert source.read


def test_serverless_bounds_are_the_service_models(shapes: dict[str, Any]) -> None:
    sizes = limits.SERVERLESS_MEMORY_SIZES_MIB
    memory = shapes["ServerlessMemorySizeInMB"]
    assert (sizes[0], sizes[-1]) == (memory["min"], memory["max"])
    text = shapes["ProductionVariantServerlessConfig"]["members"]["MemorySizeInMB"]["documentation"]
    assert tuple(int(number) for number in re.findall(r"(\d{4}) MB", text)) == sizes
    assert shapes["ServerlessMaxConcurrency"]["max"] == limits.SERVERLESS_MAX_CONCURRENCY
    assert shapes["ServerlessProvisionedConcurrency"]["max"] == limits.SERVERLESS_MAX_CONCURRENCY


def test_names_and_environment_are_the_service_models(shapes: dict[str, Any]) -> None:
    assert shapes["EndpointName"]["max"] == limits.ENDPOINT_NAME_CHARACTERS
    assert shapes["EndpointName"]["pattern"] == limits.ENDPOINT_NAME_PATTERN
    assert shapes["EnvironmentMap"]["max"] == limits.ENVIRONMENT_ENTRIES
    assert shapes["EnvironmentValue"]["max"] == limits.ENVIRONMENT_TEXT_CHARACTERS
    assert shapes["EnvironmentKey"]["pattern"] == limits.ENVIRONMENT_NAME_PATTERN
    assert shapes["ContainerImage"]["max"] == limits.IMAGE_URI_CHARACTERS


def test_the_real_time_payload_is_the_runtime_models() -> None:
    loader = botocore.session.get_session().get_component("data_loader")
    model = loader.load_service_model("sagemaker-runtime", "service-2")
    assert model["shapes"]["BodyBlob"]["max"] == limits.REALTIME_PAYLOAD_BYTES


def test_instance_types_are_all_cpu_types_that_hosting_knows(shapes: dict[str, Any]) -> None:
    accelerated = re.compile(limits.ACCELERATED_PATTERN)
    names = shapes["ProductionVariantInstanceType"]["enum"]
    assert set(limits.INSTANCE_TYPES) == {name for name in names if not accelerated.match(name)}


def test_instance_sizes_are_ec2s() -> None:
    packed = files("moto").joinpath("ec2/resources/instance_types.json.gz").read_bytes()
    ec2 = json.loads(gzip.decompress(packed))
    machine_names = {limits.AMD64: "x86_64", limits.ARM64: "arm64"}
    for name, here in limits.INSTANCE_TYPES.items():
        there = ec2[name.removeprefix("ml.")]
        assert here.name == name
        assert here.vcpus == there["VCpuInfo"]["DefaultVCpus"], name
        assert here.memory_mib == there["MemoryInfo"]["SizeInMiB"], name
        architectures = there["ProcessorInfo"]["SupportedArchitectures"]
        assert machine_names[here.architecture] in architectures, name


def test_the_table_cannot_be_changed_by_a_reader() -> None:
    with pytest.raises(TypeError):
        limits.INSTANCE_TYPES["ml.m5.xlarge"] = limits.INSTANCE_TYPES["ml.m5.large"]  # type: ignore[index]


def test_the_table_is_of_the_recorded_service_model() -> None:
    """A newer botocore may know more types: look, add them, and record its version."""
    assert botocore.__version__ == limits.BOTOCORE_VERSION
    quoted = [it.read for it in limits.SOURCES.values() if "botocore" in it.read]
    assert all(limits.BOTOCORE_VERSION in text for text in quoted)


def test_local_disks_are_ec2s() -> None:
    packed = files("moto").joinpath("ec2/resources/instance_types.json.gz").read_bytes()
    ec2 = json.loads(gzip.decompress(packed))
    with_disks = {
        name.split(".")[1]
        for name in limits.INSTANCE_TYPES
        if ec2[name.removeprefix("ml.")].get("InstanceStorageSupported")
    }
    assert with_disks == set(limits.LOCAL_DISK_FAMILIES)


@pytest.mark.parametrize(
    ("limit", "shape"),
    [
        ("DEPLOYMENT_WAIT_S", "WaitIntervalInSeconds"),
        ("DEPLOYMENT_WAIT_S", "TerminationWaitInSeconds"),
        ("DEPLOYMENT_TIMEOUT_S", "MaximumExecutionTimeoutInSeconds"),
        ("ROLLBACK_ALARMS", "AlarmList"),
        ("STARTUP_TIMEOUT_S", "ProductionVariantModelDataDownloadTimeoutInSeconds"),
        ("STARTUP_TIMEOUT_S", "ProductionVariantContainerStartupHealthCheckTimeoutInSeconds"),
        ("SECURITY_GROUPS", "VpcSecurityGroupIds"),
    ],
)
def test_bounds_of_operation_are_the_service_models(
    limit: str, shape: str, shapes: dict[str, Any]
) -> None:
    assert getattr(limits, limit) == (shapes[shape]["min"], shapes[shape]["max"])


def test_tags_capture_and_provisioning_are_the_service_models(shapes: dict[str, Any]) -> None:
    assert shapes["TagList"]["max"] == limits.TAGS
    assert shapes["TagKey"]["max"] == limits.TAG_KEY_CHARACTERS
    assert shapes["TagValue"]["max"] == limits.TAG_VALUE_CHARACTERS
    assert shapes["SamplingPercentage"]["max"] == limits.CAPTURE_PERCENT[1]
    provisioned = shapes["ServerlessProvisionedConcurrency"]
    assert provisioned["min"] == limits.SERVERLESS_MIN_PROVISIONED


def test_steps_of_an_update_are_what_the_service_model_says_in_words(
    shapes: dict[str, Any],
) -> None:
    routing = shapes["TrafficRoutingConfig"]["members"]
    canary, linear = limits.CANARY_PERCENT, limits.LINEAR_PERCENT
    assert f"less than or equal to {canary[1]}%" in routing["CanarySize"]["documentation"]
    assert f"{linear[0]}-{linear[1]}%" in routing["LinearStepSize"]["documentation"]
    low, high = limits.ROLLING_PERCENT
    batch = shapes["RollingUpdatePolicy"]["members"]["MaximumBatchSize"]["documentation"]
    assert f"between {low}% to {high}%" in batch


@pytest.mark.parametrize(
    ("limit", "shape"),
    [
        ("TRAINING_INSTANCE_TYPES", "TrainingInstanceType"),
        ("PROCESSING_INSTANCE_TYPES", "ProcessingInstanceType"),
    ],
)
def test_types_of_jobs_are_all_cpu_types_that_they_know_and_none_is_graviton(
    limit: str, shape: str, shapes: dict[str, Any]
) -> None:
    accelerated = re.compile(limits.ACCELERATED_PATTERN)
    known = getattr(limits, limit)
    assert known == {name for name in shapes[shape]["enum"] if not accelerated.match(name)}
    # A Graviton family has a g behind the number of its generation.
    assert not [name for name in known if re.match(r"ml\.[a-z]+\dg", name)]
    assert limits.JOB_ARCHITECTURES == (limits.AMD64,)


def test_bounds_of_jobs_are_the_service_models(shapes: dict[str, Any]) -> None:
    assert shapes["TrainingJobName"]["max"] == limits.JOB_NAME_CHARACTERS
    assert shapes["ProcessingJobName"]["max"] == limits.JOB_NAME_CHARACTERS
    group = shapes[
        shapes["CreateModelPackageGroupInput"]["members"]["ModelPackageGroupName"]["shape"]
    ]
    assert group["max"] == limits.MODEL_PACKAGE_GROUP_CHARACTERS
    assert group["pattern"] == limits.MODEL_PACKAGE_GROUP_PATTERN
    for limit, shape in (
        (limits.PROCESSING_RUNTIME_S, "ProcessingMaxRuntimeInSeconds"),
        (limits.PROCESSING_VOLUME_GB, "ProcessingVolumeSizeInGB"),
    ):
        assert limit == (shapes[shape]["min"], shapes[shape]["max"]), shape
    # Options of a processing job are words, options of a training texts: one bound holds for both.
    assert shapes["ContainerArgument"]["max"] == limits.HYPERPARAMETER_TEXT_CHARACTERS
    low, high = limits.TRAINING_RUNTIME_S
    assert low == shapes["MaxRuntimeInSeconds"]["min"]
    text = shapes["StoppingCondition"]["members"]["MaxRuntimeInSeconds"]["documentation"]
    assert f"The maximum value is {high // 86_400} days" in text
    text = shapes["CreateTrainingJobRequest"]["members"]["HyperParameters"]["documentation"]
    assert f"limited to {limits.HYPERPARAMETER_TEXT_CHARACTERS} characters" in text


def test_regions_are_those_of_cfn_lints_price_lists() -> None:
    assert version("cfn-lint") == regions.CFN_LINT_VERSION
    where = "data/schemas/extensions/aws_sagemaker_hosting/instancetype_enum.json"
    there = json.loads(files("cfnlint").joinpath(where).read_text())
    listed = {name: set(row["enum"]) for name, row in there.items() if name != "description"}
    assert set(regions.REGIONS) == set(listed)
    for region, names in listed.items():
        here = {name for name in limits.INSTANCE_TYPES if regions.offered_in(region, name)}
        assert here == names & set(limits.INSTANCE_TYPES), region
    assert regions.offered_in("eu-mars-1", "ml.m5.xlarge") is None
    assert dt.date.fromisoformat(regions.CHECKED)
