"""A SageMaker endpoint that costs nothing while nobody asks it."""

from collections.abc import Sequence
from typing import Final, Unpack

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_sagemaker as sagemaker
from constructs import Construct

from constructs_lib import regions
from constructs_lib.dr_endpoint import read_options
from constructs_lib.endpoint_options import EndpointOptions
from constructs_lib.inference_image_repo import InferenceImage
from constructs_lib.kinds import absent_faults
from constructs_lib.model_artifact_bucket import ModelArtifact
from constructs_lib.rules import serverless_faults
from constructs_lib.sagemaker_endpoint import VARIANT_NAME, SageMakerEndpoint
from constructs_lib.scaling import serverless_scaling_faults
from constructs_lib.tokens import known_number, known_text
from constructs_lib.traffic import sagemaker_shift_faults
from inference_image.contract import ENV_WORKERS, SERVING_MODE_SERVERLESS

NOT_SEEN_IN_REGION: Final = "dr-endpoints:serverlessNotSeenInRegion"
# https://docs.aws.amazon.com/sagemaker/latest/dg/serverless-endpoints.html: feature exclusions.
_EXCLUDED = ("vpc", "network_isolation", "data_capture")


class ServerlessDREndpoint(SageMakerEndpoint):
    """Grades fundus photographs on SageMaker serverless inference.

        ServerlessDREndpoint(self, "Endpoint", model=model, image=image, memory_mib=2048)

    Args:
        model: the package to serve; the endpoint's role may read it and no other.
        image: an amd64 image in this account's registry.
        memory_mib: memory of one container, in steps of 1,024 up to 6,144; CPU grows with it.
        max_concurrency: containers at once, 1 to 200; each serves one request at a time, and
            requests above that are throttled. New accounts are allowed 10 in a region.
        provisioned_concurrency: containers kept warm, at most `max_concurrency`; they cost
            money while idle. With `scaling` it is where the endpoint begins.
        options: what all endpoints take, see `EndpointOptions`. `scaling` is of the containers
            kept warm, at least 1 at any hour; `traffic_shift` knows no rolling and no number of
            instances; VPC, network isolation and data capture are refused.

    Defaults: 5 containers, none kept warm; an endpoint name from the construct's path; logs
        for one month; see `EndpointOptions`.

    Defines: execution role and policy, log group, Model, EndpointConfig, Endpoint; and what the
        options ask for: alarms, scalable target and policy, probe.

    Raises:
        ValidationError: listing everything that SageMaker would refuse.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        model: ModelArtifact,
        image: InferenceImage,
        memory_mib: int,
        max_concurrency: int = 5,
        provisioned_concurrency: int | None = None,
        **options: Unpack[EndpointOptions],
    ) -> None:
        chosen = read_options(
            type(self),
            scope,
            construct_id,
            model=model,
            image=image,
            options=options,
        )
        faults = absent_faults(memory_mib=memory_mib, max_concurrency=max_concurrency)
        faults += serverless_faults(
            memory_mib=known_number(memory_mib),
            max_concurrency=known_number(max_concurrency),
            provisioned_concurrency=known_number(provisioned_concurrency),
            architecture=image.architecture,
            unsupported=chosen.given(*_EXCLUDED),
        )
        if chosen.scaling is not None:
            faults += serverless_scaling_faults(
                chosen.scaling,
                max_concurrency=known_number(max_concurrency),
                provisioned_concurrency=known_number(provisioned_concurrency),
                provisioned_is_given=provisioned_concurrency is not None,
            )
        if chosen.traffic_shift is not None:
            faults += sagemaker_shift_faults(chosen.traffic_shift, serverless=True)
        faults += _registry_faults(image, cdk.Stack.of(scope))

        def variant(model_name: str) -> sagemaker.CfnEndpointConfig.ProductionVariantProperty:
            return sagemaker.CfnEndpointConfig.ProductionVariantProperty(
                model_name=model_name,
                variant_name=VARIANT_NAME,
                initial_variant_weight=1,
                serverless_config=sagemaker.CfnEndpointConfig.ServerlessConfigProperty(
                    memory_size_in_mb=memory_mib,
                    max_concurrency=max_concurrency,
                    provisioned_concurrency=provisioned_concurrency,
                ),
            )

        super().__init__(
            scope,
            construct_id,
            model=model,
            image=image,
            serving_mode=SERVING_MODE_SERVERLESS,
            # A container gets one request at a time, so that a second worker would only hold
            # a second copy of the model.
            own_environment={ENV_WORKERS: "1"},
            options=chosen,
            faults=faults,
            variant=variant,
        )
        if chosen.scaling is not None:
            self._scale(
                chosen.scaling,
                namespace="sagemaker",
                resource_id=self.variant_resource_id,
                dimension="sagemaker:variant:DesiredProvisionedConcurrency",
                metric="SageMakerVariantProvisionedConcurrencyUtilization",
                target=chosen.scaling.utilization,
                after=self.cfn_endpoint,
            )

        region = known_text(cdk.Stack.of(self).region)
        if region is not None and not regions.serverless_in(region):
            cdk.Annotations.of(self).add_warning_v2(
                NOT_SEEN_IN_REGION,
                f"whether {region} has serverless inference is not known to this library's table "
                f"of {regions.CHECKED}; look for it in the SageMaker console before deploying",
            )

    def metric_model_setup_time(
        self, *, statistic: str = "p95", period: cdk.Duration | None = None
    ) -> cloudwatch.Metric:
        """Time to start a container and load the model (cold starts), in microseconds."""
        return self.metric("ModelSetupTime", statistic=statistic, period=period)

    def metric_provisioned_concurrency_utilization(
        self, *, statistic: str = "Maximum", period: cdk.Duration | None = None
    ) -> cloudwatch.Metric:
        """Part of the warm containers that are busy, 0 to 1."""
        return self.metric(
            "ServerlessProvisionedConcurrencyUtilization", statistic=statistic, period=period
        )

    def _capacity_metrics(self) -> Sequence[cloudwatch.IMetric]:
        return [
            self.metric("ServerlessConcurrentExecutionsUtilization", statistic="Maximum"),
            self.metric_provisioned_concurrency_utilization(),
        ]


def _registry_faults(image: InferenceImage, stack: cdk.Stack) -> list[str]:
    account, here = image.account, known_text(stack.account)
    if account is None or here is None or account == here:
        return []
    return [
        (
            f"image must be in the stack's account, {here}, because serverless inference pulls "
            f"from no other; got {account} (aws/amazon-sagemaker-feedback#181)"
        )
    ]
