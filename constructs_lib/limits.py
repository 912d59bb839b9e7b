"""What SageMaker and Lambda accept: sizes, counts and instance types, each with its source.

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

# --- Endpoints on Lambda ------------------------------------------------------------------------
LAMBDA_MEMORY_MIB: Final = (128, 10_240)
LAMBDA_TIMEOUT_S: Final = (1, 900)
LAMBDA_PAYLOAD_BYTES: Final = 6 * 1024 * 1024
LAMBDA_ENVIRONMENT_BYTES: Final = 4096
LAMBDA_ENVIRONMENT_NAME_PATTERN: Final = r"[a-zA-Z]([a-zA-Z0-9_])+"
LAMBDA_RESERVED_ENVIRONMENT: Final = (
    "_HANDLER",
    "_X_AMZN_TRACE_ID",
    "AWS_ACCESS_KEY",
    "AWS_ACCESS_KEY_ID",
    "AWS_DEFAULT_REGION",
    "AWS_EXECUTION_ENV",
    "AWS_LAMBDA_FUNCTION_MEMORY_SIZE",
    "AWS_LAMBDA_FUNCTION_NAME",
    "AWS_LAMBDA_FUNCTION_VERSION",
    "AWS_LAMBDA_INITIALIZATION_TYPE",
    "AWS_LAMBDA_LOG_GROUP_NAME",
    "AWS_LAMBDA_LOG_STREAM_NAME",
    "AWS_LAMBDA_RUNTIME_API",
    "AWS_REGION",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "LAMBDA_RUNTIME_DIR",
    "LAMBDA_TASK_ROOT",
)
LAMBDA_UTILIZATION: Final = (0.1, 0.9)

# --- Updates, scaling and what else an endpoint can have ------------------------------------------
DEPLOYMENT_WAIT_S: Final = (0, 3600)
DEPLOYMENT_TIMEOUT_S: Final = (600, 28_800)
CANARY_PERCENT: Final = (1, 50)
LINEAR_PERCENT: Final = (10, 50)
ROLLING_PERCENT: Final = (5, 50)
SERVERLESS_SHIFTS: Final = ("all-at-once", "canary", "linear")
ROLLBACK_ALARMS: Final = (1, 10)
CODEDEPLOY_PERCENT: Final = (1, 99)
STARTUP_TIMEOUT_S: Final = (60, 3600)
CAPTURE_PERCENT: Final = (1, 100)
SECURITY_GROUPS: Final = (1, 5)
SUBNETS: Final = (1, 16)
TAGS: Final = 50
TAG_KEY_CHARACTERS: Final = 128
TAG_VALUE_CHARACTERS: Final = 256
REALTIME_MIN_CAPACITY: Final = 1
SERVERLESS_MIN_PROVISIONED: Final = 1
LAMBDA_MIN_PROVISIONED: Final = 0

# --- Training and processing jobs -----------------------------------------------------------------
JOB_ARCHITECTURES: Final = (AMD64,)
JOB_NAME_CHARACTERS: Final = 63
TRAINING_RUNTIME_S: Final = (1, 28 * 86_400)
TRAINING_VOLUME_GB: Final = (1, 16_384)
TRAINING_MIN_INSTANCES: Final = 1
PROCESSING_RUNTIME_S: Final = (1, 777_600)
PROCESSING_VOLUME_GB: Final = (1, 16_384)
HYPERPARAMETER_TEXT_CHARACTERS: Final = 256
MODEL_PACKAGE_GROUP_CHARACTERS: Final = 63
MODEL_PACKAGE_GROUP_PATTERN: Final = r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}"


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


_TO_18 = "xlarge 2xlarge 4xlarge 9xlarge 18xlarge"
_TO_96 = "2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge 32xlarge 48xlarge 96xlarge"
_FLEX = "large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge"
_R5_SIZES = f"{_TO_16} 24xlarge"
# CPU families of training and processing jobs, none of which is Graviton.
_JOB_FAMILIES: Final[Mapping[str, str]] = {
    "t3": "medium large xlarge 2xlarge",
    "m4": "xlarge 2xlarge 4xlarge 10xlarge 16xlarge",
    "m5": _TO_24,
    "m6i": _TO_32,
    "m7i": _TO_48,
    "m8i": f"large xlarge {_TO_96}",
    "m7i-flex": _FLEX,
    "m8i-flex": _FLEX,
    "c4": "xlarge 2xlarge 4xlarge 8xlarge",
    "c5": _TO_18,
    "c6i": _TO_32.removeprefix("large "),
    "c7i": _TO_48,
    "c8i": f"xlarge {_TO_96}",
    "c7i-flex": _FLEX.removeprefix("large "),
    "c8i-flex": _FLEX.removeprefix("large "),
    "r5": _R5_SIZES,
    "r5d": _R5_SIZES,
    "r6i": _TO_32,
    "r7i": _TO_48,
    "r8i": f"large xlarge {_TO_96}",
    "r8i-flex": _FLEX,
}
PROCESSING_INSTANCE_TYPES: Final = frozenset(
    f"ml.{family}.{size}" for family, sizes in _JOB_FAMILIES.items() for size in sizes.split()
)
TRAINING_INSTANCE_TYPES: Final = PROCESSING_INSTANCE_TYPES | {
    f"ml.c5n.{size}" for size in _TO_18.split()
}

# The service model whose list of instance types this table is.
BOTOCORE_VERSION: Final = "1.44.8"
# Names of hosting instances with a GPU or an accelerator, which the images here cannot use.
ACCELERATED_PATTERN: Final = r"ml\.(?:g|p|inf|trn|dl)\d"
# Families whose local disks no KMS key of ours encrypts.
LOCAL_DISK_FAMILIES: Final = tuple(name for name in _FAMILIES if name.endswith("d"))
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
_LAMBDA_API = Source(
    url="https://docs.aws.amazon.com/lambda/latest/api/API_CreateFunction.html",
    checked=_CHECKED,
    read="shape bounds in botocore 1.44.8's service model; its tops for memory (32,768) and time "
    "(5,400) are of managed instances, those here are of functions, as known",
)
_LAMBDA_ENVIRONMENT = Source(
    url="https://docs.aws.amazon.com/lambda/latest/dg/configuration-envvars.html",
    checked=_CHECKED,
    read="names as known, the pattern in botocore 1.44.8's service model",
)
_LAMBDA_SCALING = Source(
    url="https://docs.aws.amazon.com/lambda/latest/dg/provisioned-concurrency.html",
    checked=_CHECKED,
    read="as known; the page itself was not read",
)
_TRAFFIC_ROUTING = Source(
    url="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_TrafficRoutingConfig.html",
    checked=_CHECKED,
    read="text and shape bounds in botocore 1.44.8's service model",
)
_DEPLOYMENT_CONFIG = Source(
    url="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_DeploymentConfig.html",
    checked=_CHECKED,
    read="text and shape bounds in botocore 1.44.8's service model",
)
_GUARDRAILS = Source(
    url="https://docs.aws.amazon.com/sagemaker/latest/dg/deployment-guardrails-exclusions.html",
    checked=_CHECKED,
    read="the page's text",
)
_CODEDEPLOY = Source(
    url="https://docs.aws.amazon.com/codedeploy/latest/APIReference/API_TrafficRoutingConfig.html",
    checked=_CHECKED,
    read="as known; the page itself was not read",
)
_DATA_CAPTURE = Source(
    url="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_DataCaptureConfig.html",
    checked=_CHECKED,
    read="shape bounds in botocore 1.44.8's service model; 0, which captures nothing, is left out",
)
_VPC_CONFIG = Source(
    url="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_VpcConfig.html",
    checked=_CHECKED,
    read="shape bounds in botocore 1.44.8's service model",
)
_TAG = Source(
    url="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_Tag.html",
    checked=_CHECKED,
    read="shape bounds in botocore 1.44.8's service model",
)
_INSTANCE_SCALING = Source(
    url="https://docs.aws.amazon.com/sagemaker/latest/dg/endpoint-auto-scaling-add-policy.html",
    checked=_CHECKED,
    read="the page's text; RegisterScalableTarget in botocore 1.44.8 lists 0 for variants as well, "
    "as known for endpoints of inference components",
)
_SERVERLESS_SCALING = Source(
    url="https://docs.aws.amazon.com/sagemaker/latest/dg/serverless-endpoints-autoscale.html",
    checked=_CHECKED,
    read="the page's text, and ProvisionedConcurrency begins at 1 in botocore 1.44.8's service "
    "model; RegisterScalableTarget there lists 0",
)

_TRAINING_JOB = Source(
    url="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateTrainingJob.html",
    checked=_CHECKED,
    read="text and shape bounds in botocore 1.44.8's service model, which bounds a value of a "
    "hyper-parameter by 256 characters in its text and by 2,500 in its shape: the smaller is here",
)
_MODEL_PACKAGE_GROUP = Source(
    url="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateModelPackageGroup.html",
    checked=_CHECKED,
    read="shape bounds in botocore 1.44.8's service model; the page itself was not read",
)
_TRAINING_RESOURCES = Source(
    url="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ResourceConfig.html",
    checked=_CHECKED,
    read="names and lower bounds in botocore 1.44.8's service model; the top of a volume is that "
    "of a gp2 volume, as known",
)
_STOPPING_CONDITION = Source(
    url="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_StoppingCondition.html",
    checked=_CHECKED,
    read="text in botocore 1.44.8's service model",
)
_PROCESSING_CLUSTER = Source(
    url="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ProcessingClusterConfig.html",
    checked=_CHECKED,
    read="names and shape bounds in botocore 1.44.8's service model",
)
_PROCESSING_STOPPING = Source(
    url="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ProcessingStoppingCondition.html",
    checked=_CHECKED,
    read="shape bounds in botocore 1.44.8's service model",
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
        "LAMBDA_MEMORY_MIB": _LAMBDA_API,
        "LAMBDA_TIMEOUT_S": _LAMBDA_API,
        "LAMBDA_PAYLOAD_BYTES": _LAMBDA_QUOTAS,
        "LAMBDA_ENVIRONMENT_BYTES": _LAMBDA_QUOTAS,
        "LAMBDA_ENVIRONMENT_NAME_PATTERN": _LAMBDA_ENVIRONMENT,
        "LAMBDA_RESERVED_ENVIRONMENT": _LAMBDA_ENVIRONMENT,
        "LAMBDA_UTILIZATION": _LAMBDA_SCALING,
        "LAMBDA_MIN_PROVISIONED": _LAMBDA_SCALING,
        "DEPLOYMENT_WAIT_S": _TRAFFIC_ROUTING,
        "DEPLOYMENT_TIMEOUT_S": _DEPLOYMENT_CONFIG,
        "CANARY_PERCENT": _TRAFFIC_ROUTING,
        "LINEAR_PERCENT": _TRAFFIC_ROUTING,
        "ROLLING_PERCENT": _DEPLOYMENT_CONFIG,
        "SERVERLESS_SHIFTS": _GUARDRAILS,
        "ROLLBACK_ALARMS": _DEPLOYMENT_CONFIG,
        "CODEDEPLOY_PERCENT": _CODEDEPLOY,
        "STARTUP_TIMEOUT_S": _PRODUCTION_VARIANT,
        "CAPTURE_PERCENT": _DATA_CAPTURE,
        "SECURITY_GROUPS": _VPC_CONFIG,
        "SUBNETS": _VPC_CONFIG,
        "TAGS": _TAG,
        "TAG_KEY_CHARACTERS": _TAG,
        "TAG_VALUE_CHARACTERS": _TAG,
        "REALTIME_MIN_CAPACITY": _INSTANCE_SCALING,
        "SERVERLESS_MIN_PROVISIONED": _SERVERLESS_SCALING,
        "JOB_ARCHITECTURES": _TRAINING_RESOURCES,
        "JOB_NAME_CHARACTERS": _TRAINING_JOB,
        "TRAINING_RUNTIME_S": _STOPPING_CONDITION,
        "TRAINING_VOLUME_GB": _TRAINING_RESOURCES,
        "TRAINING_MIN_INSTANCES": _TRAINING_RESOURCES,
        "TRAINING_INSTANCE_TYPES": _TRAINING_RESOURCES,
        "PROCESSING_INSTANCE_TYPES": _PROCESSING_CLUSTER,
        "PROCESSING_RUNTIME_S": _PROCESSING_STOPPING,
        "PROCESSING_VOLUME_GB": _PROCESSING_CLUSTER,
        "HYPERPARAMETER_TEXT_CHARACTERS": _TRAINING_JOB,
        "MODEL_PACKAGE_GROUP_CHARACTERS": _MODEL_PACKAGE_GROUP,
        "MODEL_PACKAGE_GROUP_PATTERN": _MODEL_PACKAGE_GROUP,
        "BOTOCORE_VERSION": _PRODUCTION_VARIANT,
        "ACCELERATED_PATTERN": _PRODUCTION_VARIANT,
        "LOCAL_DISK_FAMILIES": _PRODUCTION_VARIANT,
        "INSTANCE_TYPES": _PRODUCTION_VARIANT,
    }
)
