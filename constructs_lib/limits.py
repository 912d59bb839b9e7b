"""What SageMaker accepts: sizes, counts and instance types, each with its source.

    >>> INSTANCE_TYPES["ml.c7g.xlarge"].architecture
    'arm64'

Data only, and no `aws_cdk`: the constructs refuse a deployment by these numbers before
CloudFormation sees it, the deployment matrix checks its own rows, and the local AWS enforces
them at run time. `SOURCES` says for every name where it was read and when.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

AMD64: Final = "amd64"
ARM64: Final = "arm64"
ARCHITECTURES: Final = (AMD64, ARM64)

# --- Serverless inference --------------------------------------------------------------
SERVERLESS_MEMORY_SIZES_MIB: Final = (1024, 2048, 3072, 4096, 5120, 6144)
SERVERLESS_MAX_CONCURRENCY: Final = 200
SERVERLESS_ARCHITECTURES: Final = (AMD64,)
SERVERLESS_PAYLOAD_BYTES: Final = 4 * 1024 * 1024
SERVERLESS_READY_TIMEOUT_S: Final = 180
SERVERLESS_IMAGE_BYTES: Final = 10 * 1000**3

# --- Real-time inference ---------------------------------------------------------------
REALTIME_PAYLOAD_BYTES: Final = 6 * 1024 * 1024

# --- Both --------------------------------------------------------------------------------
INVOCATION_TIMEOUT_S: Final = 60
PING_TIMEOUT_S: Final = 2
ENDPOINT_NAME_CHARACTERS: Final = 63
ENDPOINT_NAME_PATTERN: Final = r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}"
ENVIRONMENT_ENTRIES: Final = 100
ENVIRONMENT_TEXT_CHARACTERS: Final = 1024
ENVIRONMENT_NAME_PATTERN: Final = r"[a-zA-Z_][a-zA-Z0-9_]*"
IMAGE_URI_CHARACTERS: Final = 255

# --- What moves a model package into the bucket at deployment ---------------------------------
# The function behind a BucketDeployment unpacks the asset on its disk before it copies it.
LAMBDA_EPHEMERAL_STORAGE_MIB: Final = 10_240
LAMBDA_DEFAULT_EPHEMERAL_STORAGE_MIB: Final = 512


@dataclass(frozen=True, kw_only=True)
class InstanceType:
    """A SageMaker hosting instance: vCPUs, memory in MiB, processor architecture."""

    name: str
    vcpus: int
    memory_mib: int
    architecture: str


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a limit was read (`url`), on which day, and what was actually looked at."""

    url: str
    checked: str
    read: str


@dataclass(frozen=True, kw_only=True)
class _Family:
    """Sizes of one instance family; memory is proportional to vCPUs but for `exceptions`."""

    architecture: str
    mib_per_vcpu: int
    sizes: str
    exceptions: Mapping[str, tuple[int, int]] = field(default_factory=dict)


_TO_16 = "large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge"
_TO_24 = "large xlarge 2xlarge 4xlarge 12xlarge 24xlarge"
_TO_32 = f"{_TO_16} 24xlarge 32xlarge"
_TO_48 = f"{_TO_16} 24xlarge 48xlarge"
_C5_SIZES = "large xlarge 2xlarge 4xlarge 9xlarge 18xlarge"

# CPU families only: the images of this project use no accelerator.
_FAMILIES: Final[Mapping[str, _Family]] = {
    "t2": _Family(
        architecture=AMD64,
        mib_per_vcpu=4096,
        sizes="medium large xlarge 2xlarge",
        exceptions={"medium": (2, 4096)},
    ),
    "m4": _Family(
        architecture=AMD64, mib_per_vcpu=4096, sizes="xlarge 2xlarge 4xlarge 10xlarge 16xlarge"
    ),
    "m5": _Family(architecture=AMD64, mib_per_vcpu=4096, sizes=_TO_24),
    "m5d": _Family(architecture=AMD64, mib_per_vcpu=4096, sizes=_TO_24),
    "m6i": _Family(architecture=AMD64, mib_per_vcpu=4096, sizes=_TO_32),
    "m7i": _Family(architecture=AMD64, mib_per_vcpu=4096, sizes=_TO_48),
    "c4": _Family(
        architecture=AMD64,
        mib_per_vcpu=1920,
        sizes="large xlarge 2xlarge 4xlarge 8xlarge",
        exceptions={"8xlarge": (36, 61_440)},
    ),
    "c5": _Family(architecture=AMD64, mib_per_vcpu=2048, sizes=_C5_SIZES),
    "c5d": _Family(architecture=AMD64, mib_per_vcpu=2048, sizes=_C5_SIZES),
    "c6i": _Family(architecture=AMD64, mib_per_vcpu=2048, sizes=_TO_32),
    "c6in": _Family(architecture=AMD64, mib_per_vcpu=2048, sizes=_TO_32),
    "c7i": _Family(architecture=AMD64, mib_per_vcpu=2048, sizes=_TO_48),
    "r5": _Family(architecture=AMD64, mib_per_vcpu=8192, sizes=_TO_24),
    "r5d": _Family(architecture=AMD64, mib_per_vcpu=8192, sizes=_TO_24),
    "r6i": _Family(architecture=AMD64, mib_per_vcpu=8192, sizes=_TO_32),
    "r7i": _Family(architecture=AMD64, mib_per_vcpu=8192, sizes=_TO_48),
    "m6g": _Family(architecture=ARM64, mib_per_vcpu=4096, sizes=_TO_16),
    "m6gd": _Family(architecture=ARM64, mib_per_vcpu=4096, sizes=_TO_16),
    "m8g": _Family(architecture=ARM64, mib_per_vcpu=4096, sizes=f"medium {_TO_48}"),
    "c6g": _Family(architecture=ARM64, mib_per_vcpu=2048, sizes=_TO_16),
    "c6gd": _Family(architecture=ARM64, mib_per_vcpu=2048, sizes=_TO_16),
    "c6gn": _Family(architecture=ARM64, mib_per_vcpu=2048, sizes=_TO_16),
    "c7g": _Family(architecture=ARM64, mib_per_vcpu=2048, sizes=_TO_16),
    "c8g": _Family(architecture=ARM64, mib_per_vcpu=2048, sizes=f"medium {_TO_48}"),
    "r6g": _Family(architecture=ARM64, mib_per_vcpu=8192, sizes=_TO_16),
    "r6gd": _Family(architecture=ARM64, mib_per_vcpu=8192, sizes=_TO_16),
    "r7gd": _Family(architecture=ARM64, mib_per_vcpu=8192, sizes=f"medium {_TO_16}"),
    "r8g": _Family(architecture=ARM64, mib_per_vcpu=8192, sizes=f"medium {_TO_48}"),
}
_NAMED_SIZES_VCPUS: Final = {"medium": 1, "large": 2, "xlarge": 4}


def _vcpus(size: str) -> int:
    return _NAMED_SIZES_VCPUS.get(size) or 4 * int(size.removesuffix("xlarge"))


def _instance_types() -> dict[str, InstanceType]:
    types = {}
    for family_name, family in _FAMILIES.items():
        for size in family.sizes.split():
            vcpus = _vcpus(size)
            vcpus, memory_mib = family.exceptions.get(size, (vcpus, vcpus * family.mib_per_vcpu))
            name = f"ml.{family_name}.{size}"
            types[name] = InstanceType(
                name=name, vcpus=vcpus, memory_mib=memory_mib, architecture=family.architecture
            )
    return types


INSTANCE_TYPES: Final[Mapping[str, InstanceType]] = MappingProxyType(_instance_types())

_CHECKED = "2026-11-28"
_SERVERLESS_CONFIG = Source(
    url="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ProductionVariantServerlessConfig.html",
    checked=_CHECKED,
    read="the page's text, and the same bounds in botocore 1.44.8's service model",
)
_SERVERLESS_INVOKE = Source(
    url="https://docs.aws.amazon.com/sagemaker/latest/dg/serverless-endpoints-invoke.html",
    checked=_CHECKED,
    read="the page's text ('4 MB' is taken as 4 MiB, as the runtime's 6 MB is 6,291,456 bytes)",
)
_SERVERLESS_FEATURES = Source(
    url="https://docs.aws.amazon.com/sagemaker/latest/dg/serverless-endpoints.html",
    checked=_CHECKED,
    read="secondary reports only; the refusal of a 13 GB image is aws-solutions/qnabot-on-aws#691",
)
_CREATE_MODEL = Source(
    url="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ContainerDefinition.html",
    checked=_CHECKED,
    read="shape bounds in botocore 1.44.8's service model; the page itself was not read",
)
_CREATE_ENDPOINT = Source(
    url="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateEndpoint.html",
    checked=_CHECKED,
    read="shape bounds in botocore 1.44.8's service model; the page itself was not read",
)
_INVOKE_ENDPOINT = Source(
    url="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_runtime_InvokeEndpoint.html",
    checked=_CHECKED,
    read="operation text and BodyBlob bound (6,291,456) in botocore 1.44.8's service model",
)
_INFERENCE_CODE = Source(
    url="https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-inference-code.html",
    checked=_CHECKED,
    read="secondary reports only",
)
_PRODUCTION_VARIANT = Source(
    url="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ProductionVariant.html",
    checked=_CHECKED,
    read=(
        "names: ProductionVariantInstanceType in botocore 1.44.8's service model; vCPUs, memory "
        "and architecture: the EC2 type of the same name in moto 5.2.5's copy of "
        "DescribeInstanceTypes. That a type exists does not say that a region offers it"
    ),
)
_LAMBDA_QUOTAS = Source(
    url="https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html",
    checked=_CHECKED,
    read="as known; the page itself was not read",
)

SOURCES: Final[Mapping[str, Source]] = MappingProxyType(
    {
        "SERVERLESS_MEMORY_SIZES_MIB": _SERVERLESS_CONFIG,
        "SERVERLESS_MAX_CONCURRENCY": _SERVERLESS_CONFIG,
        "SERVERLESS_ARCHITECTURES": _SERVERLESS_FEATURES,
        "SERVERLESS_PAYLOAD_BYTES": _SERVERLESS_INVOKE,
        "SERVERLESS_READY_TIMEOUT_S": _SERVERLESS_INVOKE,
        "SERVERLESS_IMAGE_BYTES": _SERVERLESS_FEATURES,
        "REALTIME_PAYLOAD_BYTES": _INVOKE_ENDPOINT,
        "INVOCATION_TIMEOUT_S": _INVOKE_ENDPOINT,
        "PING_TIMEOUT_S": _INFERENCE_CODE,
        "ENDPOINT_NAME_CHARACTERS": _CREATE_ENDPOINT,
        "ENDPOINT_NAME_PATTERN": _CREATE_ENDPOINT,
        "ENVIRONMENT_ENTRIES": _CREATE_MODEL,
        "ENVIRONMENT_TEXT_CHARACTERS": _CREATE_MODEL,
        "ENVIRONMENT_NAME_PATTERN": _CREATE_MODEL,
        "IMAGE_URI_CHARACTERS": _CREATE_MODEL,
        "LAMBDA_EPHEMERAL_STORAGE_MIB": _LAMBDA_QUOTAS,
        "LAMBDA_DEFAULT_EPHEMERAL_STORAGE_MIB": _LAMBDA_QUOTAS,
        "INSTANCE_TYPES": _PRODUCTION_VARIANT,
    }
)
