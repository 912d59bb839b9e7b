"""A SageMaker endpoint on instances of its own, x86-64 or Graviton."""

from collections.abc import Sequence
from typing import Final, Unpack

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_sagemaker as sagemaker
from constructs import Construct

from constructs_lib import limits, regions
from constructs_lib.dr_endpoint import read_options
from constructs_lib.endpoint_options import EndpointOptions, Options
from constructs_lib.inference_image_repo import InferenceImage
from constructs_lib.kinds import absent_faults
from constructs_lib.model_artifact_bucket import ModelArtifact
from constructs_lib.network import subnet_faults
from constructs_lib.rules import realtime_faults
from constructs_lib.sagemaker_endpoint import VARIANT_NAME, SageMakerEndpoint
from constructs_lib.scaling import realtime_scaling_faults
from constructs_lib.tokens import known_number, known_text
from constructs_lib.traffic import sagemaker_shift_faults
from inference_image.contract import SERVING_MODE_REALTIME

TWO_DEPLOYMENTS: Final = "dr-endpoints:instanceTypeChangeNeedsTwoDeployments"
NOT_IN_REGION: Final = "dr-endpoints:instanceTypeNotSeenInRegion"
UNKNOWN_REGION: Final = "dr-endpoints:regionUnknown"
LOCAL_DISK: Final = "dr-endpoints:localDiskNotEncryptedByKey"


class RealtimeDREndpoint(SageMakerEndpoint):
    """Grades fundus photographs on instances that run all the time.

        RealtimeDREndpoint(
            self,
            "Endpoint",
            model=model,
            image=image,
            instance_type="ml.c7g.xlarge",
        )

    Args:
        model: the package to serve; the endpoint's role may read it and no other.
        image: an image for the architecture of the instance type.
        instance_type: a CPU instance type of SageMaker hosting, `ml.m5.xlarge` for example.
            New accounts are allowed none of many types: ask for a quota first.
        initial_instance_count: instances, at least 1; two or more are spread over
            availability zones. With `scaling` it is where the endpoint begins.
        model_download_timeout_s: seconds that an instance may take to fetch and unpack the
            package, 60 to 3,600.
        startup_timeout_s: seconds after which the container must answer `/ping`, 60 to 3,600.
        options: what all endpoints take, see `EndpointOptions`. `scaling` is of the instances,
            at least 1 at any hour; canary, linear and rolling shifts need two instances.

    Defaults: one instance; SageMaker's time-outs; as many workers as the service finds room for
        on an instance; an endpoint name from the construct's path; logs for one month; see
        `EndpointOptions`.

    Defines: execution role and policy, log group, Model, EndpointConfig, Endpoint; and what the
        options ask for: alarms, scalable target and policy, probe, security group.

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
        model_download_timeout_s: int | None = None,
        startup_timeout_s: int | None = None,
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
        known_count = known_number(initial_instance_count)
        faults = absent_faults(
            instance_type=instance_type, initial_instance_count=initial_instance_count
        )
        faults += realtime_faults(
            instance_type=known_text(instance_type),
            initial_instance_count=known_count,
            architecture=image.architecture,
            model_download_timeout_s=known_number(model_download_timeout_s),
            startup_timeout_s=known_number(startup_timeout_s),
        )
        if chosen.vpc is not None:
            faults += subnet_faults(chosen.vpc, chosen.vpc_subnets, public_allowed=True)
        if chosen.scaling is not None:
            faults += realtime_scaling_faults(chosen.scaling, initial_instance_count=known_count)
        if chosen.traffic_shift is not None:
            faults += sagemaker_shift_faults(
                chosen.traffic_shift,
                serverless=False,
                fewest_instances=(known_count if chosen.scaling is None else chosen.scaling.fewest),
            )

        def variant(model_name: str) -> sagemaker.CfnEndpointConfig.ProductionVariantProperty:
            return sagemaker.CfnEndpointConfig.ProductionVariantProperty(
                model_name=model_name,
                variant_name=VARIANT_NAME,
                initial_variant_weight=1,
                instance_type=instance_type,
                initial_instance_count=initial_instance_count,
                model_data_download_timeout_in_seconds=model_download_timeout_s,
                container_startup_health_check_timeout_in_seconds=startup_timeout_s,
            )

        super().__init__(
            scope,
            construct_id,
            model=model,
            image=image,
            serving_mode=SERVING_MODE_REALTIME,
            own_environment={},
            options=chosen,
            faults=faults,
            variant=variant,
        )
        if chosen.scaling is not None:
            self._scale(
                chosen.scaling,
                namespace="sagemaker",
                resource_id=self.variant_resource_id,
                dimension="sagemaker:variant:DesiredInstanceCount",
                metric="SageMakerVariantInvocationsPerInstance",
                target=chosen.scaling.invocations_per_instance,
                after=self.cfn_endpoint,
            )
        self._warn(known_text(instance_type), chosen)

    def metric_invocations_per_instance(
        self, *, period: cdk.Duration | None = None
    ) -> cloudwatch.Metric:
        """Requests that an instance gets, counted (sum): what `scaling` goes by."""
        return self.metric("InvocationsPerInstance", statistic="Sum", period=period)

    def metric_cpu_utilization(
        self, *, statistic: str = "Average", period: cdk.Duration | None = None
    ) -> cloudwatch.Metric:
        """Percent of one CPU, summed over the CPUs of an instance."""
        return cloudwatch.Metric(
            namespace="/aws/sagemaker/Endpoints",
            metric_name="CPUUtilization",
            dimensions_map={"EndpointName": self.endpoint_name, "VariantName": VARIANT_NAME},
            statistic=statistic,
            period=period,
        ).attach_to(self)

    def _capacity_metrics(self) -> Sequence[cloudwatch.IMetric]:
        return [self.metric_invocations_per_instance(), self.metric_cpu_utilization()]

    def _warn(self, instance_type: str | None, chosen: Options) -> None:
        annotations = cdk.Annotations.of(self)
        if chosen.scaling is not None:
            annotations.add_warning_v2(
                TWO_DEPLOYMENTS,
                "a later change of instance_type takes two deployments, because SageMaker "
                "refuses it while the endpoint is registered with Application Auto Scaling: "
                "first leave out scaling, then change the type and give scaling back",
            )
        if instance_type is None:
            return
        family = instance_type.removeprefix("ml.").partition(".")[0]
        if chosen.encryption_key is not None and family in limits.LOCAL_DISK_FAMILIES:
            annotations.add_warning_v2(
                LOCAL_DISK,
                f"encryption_key does not encrypt the local disks of {instance_type}; its "
                f"hardware does, with a key of its own ({limits.SOURCES['INSTANCE_TYPES'].url})",
            )
        region = known_text(cdk.Stack.of(self).region)
        offered = None if region is None else regions.offered_in(region, instance_type)
        if region is not None and offered is None:
            annotations.add_warning_v2(
                UNKNOWN_REGION,
                f"region {region} is not in this library's table of {regions.CHECKED}: whether "
                f"it offers {instance_type} is not known",
            )
        elif offered is False:
            annotations.add_warning_v2(
                NOT_IN_REGION,
                f"{instance_type} was not in the price list of {region} on {regions.CHECKED}; "
                "look whether it is there by now before deploying",
            )
