"""What is deployed: reads an endpoint from the control plane, down to the artifact's address.

>>> Deployments(control_plane_url="http://localhost:4566").find("dr-serverless-mobilenet-2048")
Deployment(endpoint_name='dr-serverless-mobilenet-2048', …, memory_mib=2048, …)
"""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import botocore.exceptions

from constructs_lib.limits import (
    AMD64,
    INSTANCE_TYPES,
    REALTIME_PAYLOAD_BYTES,
    SERVERLESS_PAYLOAD_BYTES,
)
from dr_local.clients import client
from dr_local.platform_errors import (
    InternalFailure,
    ServiceUnavailable,
    ValidationError,
)

# AWS documents that Lambda gives one vCPU at 1,769 MB and proportional shares elsewhere
# (https://docs.aws.amazon.com/lambda/latest/dg/configuration-memory.html, checked 2026-11-28 as
# known). That SageMaker serverless does the same is an assumption: its pages give no number.
MIB_PER_VCPU = 1769
CPU_ASSUMPTION = (
    f"CPU share of a serverless container = memory / {MIB_PER_VCPU} MB, as AWS documents for "
    "Lambda; SageMaker publishes no figure"
)
_MISSING_RETRIES = 3
_MISSING_PAUSE_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """One endpoint as deployed. Exactly one of `memory_mib` and `instance_type` is set.

    Two equal deployments may share containers; any difference means new ones.
    """

    endpoint_name: str
    config_name: str
    variant_name: str
    model_name: str
    image: str
    model_data_url: str | None
    environment: tuple[tuple[str, str], ...]
    memory_mib: int | None
    max_concurrency: int
    instance_type: str | None
    instance_count: int
    log_stream_arn: str = field(compare=False)

    @property
    def is_serverless(self) -> bool:
        return self.memory_mib is not None

    @property
    def payload_limit_bytes(self) -> int:
        """Largest request and answer of this kind of endpoint."""
        return SERVERLESS_PAYLOAD_BYTES if self.is_serverless else REALTIME_PAYLOAD_BYTES

    @property
    def memory_limit_bytes(self) -> int:
        """Memory of the container: the serverless size, or that of the instance."""
        mib = self.memory_mib
        if mib is None:
            mib = INSTANCE_TYPES[str(self.instance_type)].memory_mib
        return mib * 1024**2

    @property
    def vcpus(self) -> float:
        """Processors that the container may use at once, see `CPU_ASSUMPTION`."""
        if self.memory_mib is not None:
            return self.memory_mib / MIB_PER_VCPU
        return float(INSTANCE_TYPES[str(self.instance_type)].vcpus)

    @property
    def architecture(self) -> str:
        """Processor architecture on AWS; here every container runs on this machine's."""
        if self.instance_type is None:
            return AMD64
        return INSTANCE_TYPES[self.instance_type].architecture

    def distinguishable(self, *, machine_cores: int) -> bool:
        """False when this machine has fewer cores than the deployment: it measures the machine."""
        return self.vcpus <= machine_cores


class Deployments:
    """Finds endpoints; asks the control plane again only when something has changed.

    `change_log` is the file that `moto_patches` lets grow; without one, every call asks.
    """

    def __init__(self, *, control_plane_url: str, change_log: Path | None = None) -> None:
        self._url = control_plane_url
        self._sagemaker = client("sagemaker", url=control_plane_url)
        self._change_log = change_log
        self._seen = -1
        self._found: dict[str, Deployment] = {}

    def changed(self) -> bool:
        """True when an endpoint was created, updated or deleted since the last `find`."""
        return self._change_log is None or self._generation() != self._seen

    def cached(self, endpoint_name: str) -> Deployment | None:
        """The deployment, where nothing has changed since it was read."""
        return None if self.changed() else self._found.get(endpoint_name)

    def find(self, endpoint_name: str) -> Deployment:
        """Read an endpoint from the control plane (some milliseconds).

        Raises:
            ValidationError: no such endpoint was deployed.
            InternalFailure: it refers to something that is not there, or to something that this
                runtime does not run.
            ServiceUnavailable: the control plane does not answer.
        """
        generation = self._generation()
        if generation != self._seen:
            self._found.clear()
        try:
            deployment = self._read(endpoint_name)
        except botocore.exceptions.BotoCoreError as error:
            raise ServiceUnavailable(
                f"The control plane at {self._url} does not answer ({type(error).__name__}); "
                "start it with: dr local up"
            ) from None
        self._seen = generation
        self._found[endpoint_name] = deployment
        return deployment

    def _generation(self) -> int:
        if self._change_log is None:
            return -2
        try:
            return self._change_log.stat().st_size
        except FileNotFoundError:
            return 0

    def _read(self, endpoint_name: str) -> Deployment:
        try:
            endpoint = self._sagemaker.describe_endpoint(EndpointName=endpoint_name)
        except botocore.exceptions.ClientError:
            # SageMaker's own wording.
            raise ValidationError(
                f"Endpoint {endpoint_name} of account {account_id()} not found."
            ) from None
        config = self._describe(
            "endpoint_config", EndpointConfigName=endpoint["EndpointConfigName"]
        )
        variants = config["ProductionVariants"]
        if len(variants) != 1:
            raise InternalFailure(
                f"Endpoint {endpoint_name} has {len(variants)} production variants; the local "
                "runtime runs endpoints with one."
            )
        variant = variants[0]
        model = self._describe("model", ModelName=variant["ModelName"])
        container = model["PrimaryContainer"]
        serverless = variant.get("ServerlessConfig")
        instance_type = variant.get("InstanceType")
        if serverless is None and instance_type not in INSTANCE_TYPES:
            raise InternalFailure(
                f"Endpoint {endpoint_name} uses {instance_type}, whose size is not in "
                "constructs_lib/limits.py."
            )
        return Deployment(
            endpoint_name=endpoint_name,
            config_name=endpoint["EndpointConfigName"],
            variant_name=variant["VariantName"],
            model_name=variant["ModelName"],
            image=str(container.get("Image", "")),
            model_data_url=container.get("ModelDataUrl"),
            environment=tuple(sorted(container.get("Environment", {}).items())),
            memory_mib=int(serverless["MemorySizeInMB"]) if serverless else None,
            max_concurrency=int(serverless["MaxConcurrency"]) if serverless else 1,
            instance_type=None if serverless else instance_type,
            instance_count=int(variant.get("InitialInstanceCount") or 1),
            log_stream_arn=endpoint["EndpointArn"]
            .replace(":sagemaker:", ":logs:")
            .replace(f":endpoint/{endpoint_name}", f":log-group:{log_group(endpoint_name)}"),
        )

    def _describe(self, kind: str, **name: str) -> dict[str, Any]:
        # A deployment in progress may be between two of its resources.
        for attempt in range(_MISSING_RETRIES):
            try:
                return dict(getattr(self._sagemaker, f"describe_{kind}")(**name))
            except botocore.exceptions.ClientError as error:
                if attempt + 1 == _MISSING_RETRIES:
                    raise InternalFailure(error.response["Error"]["Message"]) from None
                time.sleep(_MISSING_PAUSE_S)
        raise AssertionError("unreachable")


def account_id() -> str:
    """The account that moto gives to everybody."""
    return "123456789012"


def log_group(endpoint_name: str) -> str:
    """The log group that SageMaker writes for an endpoint."""
    return f"/aws/sagemaker/Endpoints/{endpoint_name}"
