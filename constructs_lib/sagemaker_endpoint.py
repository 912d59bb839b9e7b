"""What every SageMaker endpoint here has in common: role, log group, model, config, endpoint.

The public constructs add one production variant each and the faults of their kind.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sagemaker as sagemaker
from constructs import Construct

from constructs_lib import limits
from constructs_lib.claimed_names import SAGEMAKER_ENDPOINT
from constructs_lib.dr_endpoint import DREndpoint
from constructs_lib.encryption_keys import key_arn_of, key_itself
from constructs_lib.endpoint_options import Options
from constructs_lib.inference_image_repo import InferenceImage
from constructs_lib.model_artifact_bucket import ModelArtifact
from constructs_lib.network import grant_sagemaker_network, select_subnets
from constructs_lib.rules import fault
from constructs_lib.statements import allow
from constructs_lib.tokens import known_text
from constructs_lib.traffic import ALL_AT_ONCE, CANARY, ROLLING, TrafficShift
from constructs_lib.volume_keys import grant_volume_key
from inference_image.contract import ENV_SERVING_MODE, SERVING_MODE_REALTIME

VARIANT_NAME: Final = "AllTraffic"
IN_PUBLIC_SUBNETS: Final = "dr-endpoints:endpointInPublicSubnets"
_METRIC_NAMESPACE: Final = "AWS/SageMaker"
# Where SageMaker writes request and instance metrics, on behalf of the execution role.
_PUBLISHED_NAMESPACES: Final = ("AWS/SageMaker", "/aws/sagemaker/Endpoints")
_MICROSECOND_MS: Final = 0.001
_CONTAINER_DEFINITION: Final = (
    "https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ContainerDefinition.html"
)
_SHIFT_TYPES: Final = {ALL_AT_ONCE: "ALL_AT_ONCE", CANARY: "CANARY"}


class SageMakerEndpoint(DREndpoint):
    """Base of the SageMaker constructs; not deployable by itself.

    The endpoint's name is fixed, so that clients, alarms and logs outlive an update. Model and
    endpoint configuration have no names, and their logical ids end in a hash of what they say:
    any change of package, image, environment or size makes both anew, the endpoint moves to
    the new configuration in place, and the old ones are deleted when it has. With fixed names
    a replacement would collide with what it replaces; with stable logical ids a deployment
    tool that only compares ids would keep the old one.
    """

    model: ModelArtifact

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        model: ModelArtifact,
        image: InferenceImage,
        serving_mode: str,
        own_environment: Mapping[str, str],
        options: Options,
        faults: list[str],
        variant: Callable[[str], sagemaker.CfnEndpointConfig.ProductionVariantProperty],
    ) -> None:
        super().__init__(scope, construct_id)
        stack = cdk.Stack.of(self)
        if options.traffic_shift is not None:
            faults = [*faults, *_alarm_count_faults(options)]
        environment = self._begin(
            options=options,
            image=image,
            model=model,
            own_environment={ENV_SERVING_MODE: serving_mode, **own_environment},
            invocation_timeout_s=limits.INVOCATION_TIMEOUT_S,
            faults=[*faults, *image_faults(image, stack), *_model_faults(model, stack)],
            log_group_prefix="/aws/sagemaker/Endpoints/",
            kind=SAGEMAKER_ENDPOINT,
        )
        self._options = options
        self._subnet_ids, self._groups = self._network()
        self.role = self._make_role(stack)
        self.cfn_model = self._make_model(environment)
        self.cfn_endpoint_config = self._make_config(variant(self.cfn_model.attr_model_name))
        self._watch(
            options,
            probe_environment={"DR_PROBE_SAGEMAKER": self.endpoint_name},
            probe_statements=(
                iam.PolicyStatement(
                    sid="AskEndpoint",
                    # The second tells the probe whether two versions may answer now.
                    actions=["sagemaker:InvokeEndpoint", "sagemaker:DescribeEndpoint"],
                    resources=[self._arn_by_name(stack)],
                ),
            ),
            latency_unit_ms=_MICROSECOND_MS,
        )
        # Instances are what an update would take back to where it began.
        keeps_count = options.scaling is not None and serving_mode == SERVING_MODE_REALTIME
        self.cfn_endpoint = sagemaker.CfnEndpoint(
            self,
            "Endpoint",
            endpoint_name=self.endpoint_name,
            endpoint_config_name=self.cfn_endpoint_config.attr_endpoint_config_name,
            deployment_config=self._deployment_config(),
            retain_all_variant_properties=True if keeps_count else None,
            # Weights are the config's; data capture is no property that could be retained.
            exclude_retained_variant_properties=(
                [
                    sagemaker.CfnEndpoint.VariantPropertyProperty(
                        variant_property_type="DesiredWeight"
                    )
                ]
                if keeps_count
                else None
            ),
        )
        self.cfn_endpoint.node.add_dependency(self.log_group)
        self._probe_after(self.cfn_endpoint)

    @property
    def endpoint_arn(self) -> str:
        """ARN of the endpoint; SageMaker writes endpoint names in lower case there."""
        return self.cfn_endpoint.ref

    @property
    def variant_resource_id(self) -> str:
        """What Application Auto Scaling calls the endpoint's variant."""
        return f"endpoint/{self.endpoint_name}/variant/{VARIANT_NAME}"

    def grant_invoke(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let `grantee` call InvokeEndpoint on this endpoint.

        Raises:
            ValidationError: `grantee` is nothing that could be granted anything.
        """
        self._refuse_grantee(grantee)
        return iam.Grant.add_to_principal(
            grantee=grantee,
            actions=["sagemaker:InvokeEndpoint"],
            resource_arns=[self.endpoint_arn],
        )

    def metric(
        self,
        metric_name: str,
        *,
        statistic: str = "Average",
        period: cdk.Duration | None = None,
    ) -> cloudwatch.Metric:
        """A CloudWatch metric of this endpoint's variant; the period defaults to 5 minutes.

        Names: https://docs.aws.amazon.com/sagemaker/latest/dg/monitoring-cloudwatch.html
        """
        return cloudwatch.Metric(
            namespace=_METRIC_NAMESPACE,
            metric_name=metric_name,
            dimensions_map={"EndpointName": self.endpoint_name, "VariantName": VARIANT_NAME},
            statistic=statistic,
            period=period,
        ).attach_to(self)

    def metric_invocations(self, *, period: cdk.Duration | None = None) -> cloudwatch.Metric:
        """Requests, counted (sum)."""
        return self.metric("Invocations", statistic="Sum", period=period)

    def metric_model_latency(
        self, *, statistic: str = "p95", period: cdk.Duration | None = None
    ) -> cloudwatch.Metric:
        """Time in the container, in microseconds."""
        return self.metric("ModelLatency", statistic=statistic, period=period)

    def metric_latency(
        self, *, statistic: str = "p95", period: cdk.Duration | None = None
    ) -> cloudwatch.Metric:
        """As `metric_model_latency`: time in the container, in microseconds."""
        return self.metric_model_latency(statistic=statistic, period=period)

    def metric_overhead_latency(
        self, *, statistic: str = "p95", period: cdk.Duration | None = None
    ) -> cloudwatch.Metric:
        """Time that SageMaker adds, cold starts included, in microseconds."""
        return self.metric("OverheadLatency", statistic=statistic, period=period)

    def metric_invocation_5xx_errors(
        self, *, period: cdk.Duration | None = None
    ) -> cloudwatch.Metric:
        """Requests that failed on the platform's or the container's side, counted (sum)."""
        return self.metric("Invocation5XXErrors", statistic="Sum", period=period)

    def metric_server_errors(self, *, period: cdk.Duration | None = None) -> cloudwatch.Metric:
        """As `metric_invocation_5xx_errors`."""
        return self.metric_invocation_5xx_errors(period=period)

    def metric_invocation_4xx_errors(
        self, *, period: cdk.Duration | None = None
    ) -> cloudwatch.Metric:
        """Requests that were no photograph, too large or too many, counted (sum)."""
        return self.metric("Invocation4XXErrors", statistic="Sum", period=period)

    def _capacity_metrics(self) -> Sequence[cloudwatch.IMetric]:
        raise NotImplementedError

    def dashboard_widgets(self) -> list[cloudwatch.IWidget]:
        """A row for `DREndpointDashboard`: requests, errors, latency, capacity."""
        return [
            cloudwatch.GraphWidget(
                title=f"{self.endpoint_name}: requests", left=[self.metric_invocations()], width=6
            ),
            cloudwatch.GraphWidget(
                title="errors",
                left=[self.metric_invocation_5xx_errors(), self.metric_invocation_4xx_errors()],
                width=6,
            ),
            cloudwatch.GraphWidget(
                title="latency, microseconds",
                left=[
                    self.metric_model_latency(statistic="p50"),
                    self.metric_model_latency(statistic="p95"),
                    self.metric_overhead_latency(statistic="p95"),
                ],
                width=6,
            ),
            cloudwatch.GraphWidget(title="capacity", left=[*self._capacity_metrics()], width=6),
        ]

    def _arn_by_name(self, stack: cdk.Stack) -> str:
        # By name and not by reference: the endpoint waits for alarms, these for the probe, and
        # the probe's role may not wait for the endpoint again.
        name = self.endpoint_name
        return stack.format_arn(
            service="sagemaker",
            resource="endpoint",
            resource_name=name if cdk.Token.is_unresolved(name) else name.lower(),
        )

    def _network(self) -> tuple[list[str], list[ec2.ISecurityGroup]]:
        vpc = self._options.vpc
        if vpc is None:
            return [], []
        selected = select_subnets(vpc, self._options.vpc_subnets)
        if selected.has_public:
            cdk.Annotations.of(self).add_warning_v2(
                IN_PUBLIC_SUBNETS,
                "the endpoint is in public subnets, where its instances get no public address: "
                "they reach S3 and the registry only by VPC endpoints",
            )
        return list(selected.subnet_ids), self._security_groups(self._options)

    def _deployment_config(self) -> sagemaker.CfnEndpoint.DeploymentConfigProperty | None:
        shift = self._options.traffic_shift
        if shift is None:
            return None
        cfn = sagemaker.CfnEndpoint
        watched = [*self.alarms_if_any, *self._options.rollback_alarms]
        rollback = cfn.AutoRollbackConfigProperty(
            alarms=[cfn.AlarmProperty(alarm_name=alarm.alarm_name) for alarm in watched]
        )
        if shift.kind == ROLLING:
            return cfn.DeploymentConfigProperty(
                auto_rollback_configuration=rollback,
                rolling_update_policy=cfn.RollingUpdatePolicyProperty(
                    maximum_batch_size=_capacity(shift),
                    wait_interval_in_seconds=shift.wait_s,
                    maximum_execution_timeout_in_seconds=shift.timeout_s,
                ),
            )
        size = None if shift.kind == ALL_AT_ONCE else _capacity(shift)
        canary = shift.kind == CANARY
        return cfn.DeploymentConfigProperty(
            auto_rollback_configuration=rollback,
            blue_green_update_policy=cfn.BlueGreenUpdatePolicyProperty(
                traffic_routing_configuration=cfn.TrafficRoutingConfigProperty(
                    type=_SHIFT_TYPES.get(shift.kind, "LINEAR"),
                    wait_interval_in_seconds=shift.wait_s,
                    canary_size=size if canary else None,
                    linear_step_size=None if canary else size,
                ),
                termination_wait_in_seconds=shift.keep_old_s,
                maximum_execution_timeout_in_seconds=shift.timeout_s,
            ),
        )

    def _make_role(self, stack: cdk.Stack) -> iam.IRole:
        # A role for each package: with one role for all, the new package's policy would take
        # the old one from an endpoint that still serves it, and a container that starts while
        # the update runs would find its model forbidden. The old role goes with the old model.
        # Hence the name follows everything that the role may read.
        readable = [
            self._model_address,
            key_arn_of(self.model.bucket),
            self.image.repository_arn,
        ]
        options = self._options
        if options.encryption_key is not None:
            readable.append(options.encryption_key.key_arn)
        role = self._execution_role(
            options,
            readable,
            service="sagemaker.amazonaws.com",
            description=f"Execution role of the SageMaker endpoint {self.endpoint_name}",
        )
        self.model.grant_read(role)
        self.image.grant_pull(role)
        log_group_arn = stack.format_arn(
            service="logs",
            resource="log-group",
            resource_name=self.log_group_name,
            arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME,
        )
        allow(
            role,
            "WriteLogs",
            ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"],
            # Streams are named by SageMaker, after variant and instance.
            [log_group_arn, f"{log_group_arn}:log-stream:*"],
        )
        allow(
            role,
            "PublishMetrics",
            ["cloudwatch:PutMetricData"],
            # The action knows no resources; the namespace is what can be narrowed.
            ["*"],
            conditions={"StringEquals": {"cloudwatch:namespace": list(_PUBLISHED_NAMESPACES)}},
        )
        allow(
            role,
            "ReadRollbackAlarms",
            ["cloudwatch:DescribeAlarms"],
            [
                stack.format_arn(
                    service="cloudwatch",
                    resource="alarm",
                    resource_name=f"{self.endpoint_name}-*",
                    arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME,
                ),
                *(alarm.alarm_arn for alarm in options.rollback_alarms),
            ],
        )
        if options.encryption_key is not None:
            grant_volume_key(role, options.encryption_key.key_arn)
        if options.data_capture is not None:
            options.data_capture.grant_write(role)
        if options.vpc is not None:
            grant_sagemaker_network(role, stack, self._subnet_ids, self._groups)
        return role

    @property
    def log_group_name(self) -> str:
        """`/aws/sagemaker/Endpoints/<endpoint name>`: where the container's lines go."""
        return f"/aws/sagemaker/Endpoints/{self.endpoint_name}"

    def _make_model(self, environment: Mapping[str, str]) -> sagemaker.CfnModel:
        isolated = True if self._options.network_isolation else None
        network = (
            sagemaker.CfnModel.VpcConfigProperty(
                subnets=self._subnet_ids,
                security_group_ids=[group.security_group_id for group in self._groups],
            )
            if self._subnet_ids
            else None
        )
        model = sagemaker.CfnModel(
            self,
            "Model",
            execution_role_arn=self.role.role_arn,
            enable_network_isolation=isolated,
            vpc_config=network,
            primary_container=sagemaker.CfnModel.ContainerDefinitionProperty(
                image=self.image.uri,
                model_data_url=self.model.url,
                environment=dict(sorted(environment.items())),
            ),
        )
        content: list[Any] = [self.image.uri, self._model_address, dict(environment)]
        content += [it for it in (isolated, network) if it is not None]
        self._name_by_content(model, content)
        # The role alone is not enough: without its policy, CreateModel is refused with "Could
        # not access model data" (aws/aws-cdk#10064). `add_dependency` on the role covers both.
        model.node.add_dependency(self.role)
        for dependency in (*self.model.dependencies, *self.image.dependencies):
            model.node.add_dependency(dependency)
        return model

    def _make_config(
        self, variant: sagemaker.CfnEndpointConfig.ProductionVariantProperty
    ) -> sagemaker.CfnEndpointConfig:
        key, capture = self._options.encryption_key, self._options.data_capture
        capture_key = None if capture is None else key_itself(capture.encryption_key)
        cfn = sagemaker.CfnEndpointConfig
        captured = (
            None
            if capture is None
            else cfn.DataCaptureConfigProperty(
                enable_capture=True,
                destination_s3_uri=capture.uri,
                initial_sampling_percentage=capture.percent,
                capture_options=[
                    cfn.CaptureOptionProperty(capture_mode=mode) for mode in ("Input", "Output")
                ],
                # Without this, answers are kept as base64 as well; photographs are in any case.
                capture_content_type_header=cfn.CaptureContentTypeHeaderProperty(
                    # A problem is `application/problem+json`, which SageMaker's pattern for
                    # these names refuses; it is kept in base64 as what is not listed.
                    json_content_types=["application/json"]
                ),
                kms_key_id=(None if capture_key is None else capture_key.key_arn),
            )
        )
        config = cfn(
            self,
            "Config",
            production_variants=[variant],
            kms_key_id=None if key is None else key.key_arn,
            data_capture_config=captured,
        )
        more = [it for it in (config.kms_key_id, captured) if it is not None]
        variants = config.production_variants
        self._name_by_content(config, [variants, *more] if more else variants)
        return config

    def _name_by_content(self, resource: cdk.CfnResource, content: Any) -> None:
        plain = cdk.Stack.of(self).get_logical_id(resource)
        resource.override_logical_id(f"{plain}{self._name_hash(content)}")


def _model_faults(model: ModelArtifact, stack: cdk.Stack) -> list[str]:
    faults = []
    if not cdk.Token.is_unresolved(model.key) and not model.key.endswith(".tar.gz"):
        faults.append(
            f"model must have a key that ends in .tar.gz, as SageMaker asks; got {model.key!r} "
            f"({_CONTAINER_DEFINITION})"
        )
    region, here = known_text(model.bucket.env.region), known_text(stack.region)
    if region is not None and here is not None and region != here:
        faults.append(
            f"model must be in a bucket of the stack's region, {here}, where SageMaker reads it; "
            f"got {region} ({_CONTAINER_DEFINITION})"
        )
    return faults


def image_faults(image: InferenceImage, stack: cdk.Stack) -> list[str]:
    """The fault of an image that is not where the stack is."""
    region, here = image.region, known_text(stack.region)
    if region is None or here is None or region == here:
        return []
    return [
        (
            f"image must be in the stack's region, {here}, where SageMaker pulls it; got {region} "
            "(https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-inference-code.html)"
        )
    ]


def _alarm_count_faults(options: Options) -> list[str]:
    count = 2 + (options.probe is not None) + len(options.rollback_alarms)
    low, high = limits.ROLLBACK_ALARMS
    if low <= count <= high:
        return []
    allowed = f"at most {high} with the endpoint's own"
    return [fault("rollback_alarms", allowed, count, "ROLLBACK_ALARMS")]


def _capacity(shift: TrafficShift) -> sagemaker.CfnEndpoint.CapacitySizeProperty:
    if shift.instances is not None:
        return sagemaker.CfnEndpoint.CapacitySizeProperty(
            type="INSTANCE_COUNT", value=shift.instances
        )
    return sagemaker.CfnEndpoint.CapacitySizeProperty(
        type="CAPACITY_PERCENT", value=shift.percent or 0
    )
