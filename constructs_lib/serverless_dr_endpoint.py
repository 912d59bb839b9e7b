"""A SageMaker endpoint that costs nothing while nobody asks it."""

from collections.abc import Mapping

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sagemaker as sagemaker
from constructs import Construct

from constructs_lib.inference_image_repo import InferenceImage
from constructs_lib.model_artifact_bucket import ModelArtifact
from constructs_lib.rules import serverless_faults
from constructs_lib.sagemaker_endpoint import VARIANT_NAME, SageMakerEndpoint
from constructs_lib.tokens import known_number, known_text
from inference_image.contract import ENV_WORKERS, SERVING_MODE_SERVERLESS


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
            money while idle.
        environment: further settings of the service, as in docs/settings.md.
        endpoint_name: at most 63 letters, digits and inner hyphens.
        log_retention: how long the endpoint's log lines are kept.

    Defaults: 5 containers, none kept warm; an endpoint name from the construct's path; logs
    for one month.

    Defines: execution role and policy, log group, Model, EndpointConfig, Endpoint.

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
        environment: Mapping[str, str] | None = None,
        endpoint_name: str | None = None,
        log_retention: logs.RetentionDays = logs.RetentionDays.ONE_MONTH,
    ) -> None:
        faults = serverless_faults(
            memory_mib=known_number(memory_mib),
            max_concurrency=known_number(max_concurrency),
            provisioned_concurrency=known_number(provisioned_concurrency),
            architecture=image.architecture,
        )
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
            environment=environment,
            endpoint_name=endpoint_name,
            log_retention=log_retention,
            faults=faults,
            variant=variant,
        )

    def metric_model_setup_time(
        self, *, statistic: str = "p95", period: cdk.Duration | None = None
    ) -> cloudwatch.Metric:
        """Time to start a container and load the model (cold starts), in microseconds."""
        return self.metric("ModelSetupTime", statistic=statistic, period=period)


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
