"""A row of the deployment matrix as a stack."""

from typing import Any, Final

import aws_cdk as cdk
from constructs import Construct

from constructs_lib.realtime_dr_endpoint import RealtimeDREndpoint
from constructs_lib.serverless_dr_endpoint import ServerlessDREndpoint
from inference_image.model_spec import load_model_spec
from stacks.matrix import Deployment
from stacks.settings import Settings
from stacks.shared_stack import SharedStack

PACKAGE_NOT_ON_DISK: Final = "dr-endpoints:modelPackageNotOnDisk"


class EndpointStack(cdk.Stack):
    """One endpoint, named like its stack: `dr-serverless-mobilenet-2048`.

    Outputs: `EndpointName`, `ModelDataUrl`, `ImageUri`, and `MemoryMiB` or `InstanceType`.
    """

    def __init__(
        self, scope: Construct, *, deployment: Deployment, shared: SharedStack, settings: Settings
    ) -> None:
        stack_id = deployment.stack_id_in(settings.stage)
        super().__init__(
            scope,
            stack_id,
            env=settings.environment,
            synthesizer=settings.synthesizer(),
            description=(
                f"DR endpoint: {deployment.mode}, {deployment.model}, {deployment.architecture}"
            ),
        )
        # The image and the published package are in no reference that CloudFormation sees.
        self.add_stack_dependency(shared, "the model and the image are published with it")
        self.deployment = deployment
        common: dict[str, Any] = {
            "model": shared.model_of(deployment),
            "image": shared.image_of(deployment),
            "endpoint_name": stack_id,
        }
        if deployment.memory_mib is not None:
            self.endpoint: ServerlessDREndpoint | RealtimeDREndpoint = ServerlessDREndpoint(
                self,
                "Endpoint",
                memory_mib=deployment.memory_mib,
                max_concurrency=deployment.max_concurrency,
                **common,
            )
            size = ("MemoryMiB", str(deployment.memory_mib))
        else:
            instance_type = str(deployment.instance_type)
            self.endpoint = RealtimeDREndpoint(
                self, "Endpoint", instance_type=instance_type, **common
            )
            size = ("InstanceType", instance_type)
        for name, value in (
            ("EndpointName", self.endpoint.endpoint_name),
            ("ModelDataUrl", self.endpoint.model.url),
            ("ImageUri", self.endpoint.image.uri),
            size,
        ):
            cdk.CfnOutput(self, name, value=value)
        self._warn_of_missing_package(shared)

    def _warn_of_missing_package(self, shared: SharedStack) -> None:
        absent = shared.missing_files_of(self.deployment)
        if not absent:
            return
        package_dir = shared.model_root / self.deployment.package
        provenance = load_model_spec(package_dir).raw.get("provenance")
        command = provenance.get("command") if isinstance(provenance, dict) else None
        build = f"`{command}`" if command else "the command in its model card"
        folder = f"{package_dir.parent.name}/{package_dir.name}"
        cdk.Annotations.of(self).add_warning_v2(
            PACKAGE_NOT_ON_DISK,
            f"{folder} lacks {', '.join(absent)}. Before deploying this stack, make the package "
            f"with {build}, deploy {shared.stack_name}, and push it with `dr model push {folder}`.",
        )
