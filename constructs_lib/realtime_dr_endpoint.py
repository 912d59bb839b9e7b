"""A SageMaker endpoint on instances of its own, x86-64 or Graviton."""

from collections.abc import Mapping

from aws_cdk import aws_logs as logs
from aws_cdk import aws_sagemaker as sagemaker
from constructs import Construct

from constructs_lib.inference_image_repo import InferenceImage
from constructs_lib.model_artifact_bucket import ModelArtifact
from constructs_lib.rules import realtime_faults
from constructs_lib.sagemaker_endpoint import VARIANT_NAME, SageMakerEndpoint
from constructs_lib.tokens import known_number, known_text
from inference_image.contract import SERVING_MODE_REALTIME


class RealtimeDREndpoint(SageMakerEndpoint):
    """Grades fundus photographs on instances that run all the time.

        RealtimeDREndpoint(
            self, "Endpoint", model=model, image=image, instance_type="ml.c7g.xlarge"
        )

    Args:
        model: the package to serve; the endpoint's role may read it and no other.
        image: an image for the architecture of the instance type.
        instance_type: a CPU instance type of SageMaker hosting, `ml.m5.xlarge` for example.
            New accounts are allowed none of many types: ask for a quota first.
        initial_instance_count: instances, at least 1; two or more are spread over
            availability zones.
        environment: further settings of the service, as in docs/settings.md.
        endpoint_name: at most 63 letters, digits and inner hyphens.
        log_retention: how long the endpoint's log lines are kept.

    Defaults: one instance; as many workers as the service finds room for on it; an endpoint
    name from the construct's path; logs for one month.

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
        instance_type: str,
        initial_instance_count: int = 1,
        environment: Mapping[str, str] | None = None,
        endpoint_name: str | None = None,
        log_retention: logs.RetentionDays = logs.RetentionDays.ONE_MONTH,
    ) -> None:
        def variant(model_name: str) -> sagemaker.CfnEndpointConfig.ProductionVariantProperty:
            return sagemaker.CfnEndpointConfig.ProductionVariantProperty(
                model_name=model_name,
                variant_name=VARIANT_NAME,
                initial_variant_weight=1,
                instance_type=instance_type,
                initial_instance_count=initial_instance_count,
            )

        super().__init__(
            scope,
            construct_id,
            model=model,
            image=image,
            serving_mode=SERVING_MODE_REALTIME,
            own_environment={},
            environment=environment,
            endpoint_name=endpoint_name,
            log_retention=log_retention,
            faults=realtime_faults(
                instance_type=known_text(instance_type),
                initial_instance_count=known_number(initial_instance_count),
                architecture=image.architecture,
            ),
            variant=variant,
        )
