"""What every SageMaker endpoint here has in common: role, log group, model, config, endpoint.

The public constructs add one production variant each and the faults of their kind.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sagemaker as sagemaker
from constructs import Construct

from constructs_lib import limits
from constructs_lib.inference_image_repo import InferenceImage
from constructs_lib.model_artifact_bucket import ModelArtifact
from constructs_lib.rules import endpoint_faults, refuse
from constructs_lib.tokens import known_text
from inference_image.contract import ENV_SERVING_MODE

VARIANT_NAME: Final = "AllTraffic"
_METRIC_NAMESPACE: Final = "AWS/SageMaker"
# Where SageMaker writes request and instance metrics, on behalf of the execution role.
_PUBLISHED_NAMESPACES: Final = ("AWS/SageMaker", "/aws/sagemaker/Endpoints")
_HASH_CHARACTERS: Final = 8
_CONTAINER_DEFINITION: Final = (
    "https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ContainerDefinition.html"
)


class SageMakerEndpoint(Construct):
    """Base of the endpoint constructs; not deployable by itself.

    The endpoint's name is fixed, so that clients, alarms and logs outlive an update. Model and
    endpoint configuration have no names, and their logical ids end in a hash of what they say:
    any change of package, image, environment or size makes both anew, the endpoint moves to
    the new configuration in place, and the old ones are deleted when it has. With fixed names
    a replacement would collide with what it replaces; with stable logical ids a deployment
    tool that only compares ids would keep the old one.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        model: ModelArtifact,
        image: InferenceImage,
        serving_mode: str,
        own_environment: Mapping[str, str],
        environment: Mapping[str, str] | None,
        endpoint_name: str | None,
        log_retention: logs.RetentionDays,
        faults: list[str],
        variant: Callable[[str], sagemaker.CfnEndpointConfig.ProductionVariantProperty],
    ) -> None:
        super().__init__(scope, construct_id)
        stack = cdk.Stack.of(self)
        own = {ENV_SERVING_MODE: serving_mode, **own_environment}
        given = dict(environment or {})
        faults = [
            *faults,
            *endpoint_faults(
                endpoint_name=known_text(endpoint_name), environment=given, set_by_construct=own
            ),
            *_image_faults(image, stack),
            *_model_faults(model, stack),
        ]
        refuse(f"{type(self).__name__} {self.node.path}", faults)

        self.model = model
        self.image = image
        self.endpoint_name: str = endpoint_name or cdk.Names.unique_resource_name(
            self, max_length=limits.ENDPOINT_NAME_CHARACTERS, separator="-"
        )
        # Made here, SageMaker's log group has a retention and goes with the stack; SageMaker
        # itself would make one that keeps every line for ever.
        self.log_group = logs.LogGroup(
            self,
            "Logs",
            log_group_name=f"/aws/sagemaker/Endpoints/{self.endpoint_name}",
            retention=log_retention,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        self.role = self._make_role(stack)
        self.cfn_model = self._make_model({**given, **own})
        self.cfn_endpoint_config = self._make_config(variant(self.cfn_model.attr_model_name))
        self.cfn_endpoint = sagemaker.CfnEndpoint(
            self,
            "Endpoint",
            endpoint_name=self.endpoint_name,
            endpoint_config_name=self.cfn_endpoint_config.attr_endpoint_config_name,
        )
        self.cfn_endpoint.node.add_dependency(self.log_group)

    @property
    def endpoint_arn(self) -> str:
        """ARN of the endpoint; SageMaker writes endpoint names in lower case there."""
        return self.cfn_endpoint.ref

    def grant_invoke(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let `grantee` call InvokeEndpoint on this endpoint."""
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
        )

    def metric_invocations(self, *, period: cdk.Duration | None = None) -> cloudwatch.Metric:
        """Requests, counted (sum)."""
        return self.metric("Invocations", statistic="Sum", period=period)

    def metric_model_latency(
        self, *, statistic: str = "p95", period: cdk.Duration | None = None
    ) -> cloudwatch.Metric:
        """Time in the container, in microseconds."""
        return self.metric("ModelLatency", statistic=statistic, period=period)

    def metric_invocation_5xx_errors(
        self, *, period: cdk.Duration | None = None
    ) -> cloudwatch.Metric:
        """Requests that failed on the platform's or the container's side, counted (sum)."""
        return self.metric("Invocation5XXErrors", statistic="Sum", period=period)

    def _make_role(self, stack: cdk.Stack) -> iam.Role:
        # A role for each package: with one role for all, the new package's policy would take
        # the old one from an endpoint that still serves it, and a container that starts while
        # the update runs would find its model forbidden. The old role goes with the old model.
        # Hence the name follows everything that the role may read.
        key = self.model.bucket.encryption_key
        readable = [
            self._model_address,
            None if key is None else key.key_arn,
            self.image.repository_arn,
        ]
        role = iam.Role(
            self,
            f"Role-{self._hash(readable)}",
            assumed_by=iam.ServicePrincipal("sagemaker.amazonaws.com"),
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
        role.add_to_policy(
            iam.PolicyStatement(
                sid="WriteLogs",
                actions=["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"],
                # Streams are named by SageMaker, after variant and instance.
                resources=[log_group_arn, f"{log_group_arn}:log-stream:*"],
            )
        )
        role.add_to_policy(
            iam.PolicyStatement(
                sid="PublishMetrics",
                actions=["cloudwatch:PutMetricData"],
                # The action knows no resources; the namespace is what can be narrowed.
                resources=["*"],
                conditions={"StringEquals": {"cloudwatch:namespace": list(_PUBLISHED_NAMESPACES)}},
            )
        )
        role.add_to_policy(
            iam.PolicyStatement(
                sid="ReadRollbackAlarms",
                actions=["cloudwatch:DescribeAlarms"],
                resources=[
                    stack.format_arn(
                        service="cloudwatch",
                        resource="alarm",
                        resource_name=f"{self.endpoint_name}-*",
                        arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME,
                    )
                ],
            )
        )
        return role

    @property
    def log_group_name(self) -> str:
        """`/aws/sagemaker/Endpoints/<endpoint name>`: where the container's lines go."""
        return f"/aws/sagemaker/Endpoints/{self.endpoint_name}"

    def _make_model(self, environment: Mapping[str, str]) -> sagemaker.CfnModel:
        model = sagemaker.CfnModel(
            self,
            "Model",
            execution_role_arn=self.role.role_arn,
            primary_container=sagemaker.CfnModel.ContainerDefinitionProperty(
                image=self.image.uri,
                model_data_url=self.model.url,
                environment=dict(sorted(environment.items())),
            ),
        )
        self._name_by_content(model, [self.image.uri, self._model_address, dict(environment)])
        # The role alone is not enough: without its policy, CreateModel is refused with "Could
        # not access model data" (aws/aws-cdk#10064). `add_dependency` on the role covers both.
        model.node.add_dependency(self.role)
        for dependency in (*self.model.dependencies, *self.image.dependencies):
            model.node.add_dependency(dependency)
        return model

    def _make_config(
        self, variant: sagemaker.CfnEndpointConfig.ProductionVariantProperty
    ) -> sagemaker.CfnEndpointConfig:
        config = sagemaker.CfnEndpointConfig(self, "Config", production_variants=[variant])
        self._name_by_content(config, config.production_variants)
        return config

    @property
    def _model_address(self) -> list[str]:
        # A reference into another stack resolves to a bare logical id, which two stacks of one
        # shape have in common: which stack it is belongs to the address.
        return [self.model.bucket.stack.node.path, self.model.url]

    def _name_by_content(self, resource: cdk.CfnResource, content: Any) -> None:
        plain = cdk.Stack.of(self).get_logical_id(resource)
        resource.override_logical_id(f"{plain}{self._hash(content)}")

    def _hash(self, content: Any) -> str:
        text = json.dumps(cdk.Stack.of(self).resolve(content), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARACTERS]


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


def _image_faults(image: InferenceImage, stack: cdk.Stack) -> list[str]:
    region, here = image.region, known_text(stack.region)
    if region is None or here is None or region == here:
        return []
    return [
        (
            f"image must be in the stack's region, {here}, where SageMaker pulls it; got {region} "
            "(https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-inference-code.html)"
        )
    ]
