"""A row of the deployment matrix as a stack."""

from typing import Final

import aws_cdk as cdk
from constructs import Construct

from constructs_lib.dr_endpoint import DREndpoint
from constructs_lib.inference_image_repo import InferenceImage
from constructs_lib.lambda_dr_endpoint import LambdaDREndpoint
from constructs_lib.model_artifact_bucket import ModelArtifact
from constructs_lib.realtime_dr_endpoint import RealtimeDREndpoint
from constructs_lib.serverless_dr_endpoint import ServerlessDREndpoint
from inference_image.model_spec import load_model_spec
from stacks.matrix import Deployment, Mode
from stacks.settings import Settings
from stacks.shared_stack import SharedStack

PACKAGE_NOT_ON_DISK: Final = "dr-endpoints:modelPackageNotOnDisk"


class EndpointStack(cdk.Stack):
    """One endpoint, named like its stack: `dr-serverless-mobilenet-2048`.

    Outputs: `EndpointName`, `ModelDataUrl`, `ImageUri`, `MemoryMiB` or `InstanceType`, and on
    Lambda `FunctionUrl`.
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
            tags=settings.tags(),
        )
        # The image and the published package are in no reference that CloudFormation sees.
        self.add_stack_dependency(shared, "the model and the image are published with it")
        self.deployment = deployment
        model, image = shared.model_of(deployment), shared.image_of(deployment)
        self.endpoint = self._make_endpoint(model, image, endpoint_name=stack_id)
        for name, value in (
            ("EndpointName", self.endpoint.endpoint_name),
            ("ModelDataUrl", model.url),
            ("ImageUri", image.uri),
            *self._more_outputs(),
        ):
            cdk.CfnOutput(self, name, value=value)
        self._warn_of_missing_package(shared)

    def _make_endpoint(
        self, model: ModelArtifact, image: InferenceImage, *, endpoint_name: str
    ) -> DREndpoint:
        row = self.deployment
        if row.mode == Mode.REALTIME:
            return RealtimeDREndpoint(
                self,
                "Endpoint",
                model=model,
                image=image,
                instance_type=str(row.instance_type),
                endpoint_name=endpoint_name,
            )
        assert row.memory_mib is not None  # noqa: S101  (a row without cannot be constructed)
        if row.mode == Mode.SERVERLESS:
            return ServerlessDREndpoint(
                self,
                "Endpoint",
                model=model,
                image=image,
                memory_mib=row.memory_mib,
                max_concurrency=row.max_concurrency,
                endpoint_name=endpoint_name,
            )
        return LambdaDREndpoint(
            self,
            "Endpoint",
            model=model,
            image=image,
            memory_mib=row.memory_mib,
            endpoint_name=endpoint_name,
        )

    def _more_outputs(self) -> list[tuple[str, str]]:
        row = self.deployment
        outputs = (
            [("InstanceType", str(row.instance_type))]
            if row.mode == Mode.REALTIME
            else [("MemoryMiB", str(row.memory_mib))]
        )
        if isinstance(self.endpoint, LambdaDREndpoint):
            outputs.append(("FunctionUrl", self.endpoint.url))
        return outputs

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
