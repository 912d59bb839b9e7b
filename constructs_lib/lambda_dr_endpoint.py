"""The service as a Lambda function with a URL, on x86-64 or Graviton."""

import math
from typing import Final, Unpack

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_codedeploy as codedeploy
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from constructs_lib import limits, regions
from constructs_lib.claimed_names import LAMBDA_FUNCTION
from constructs_lib.dr_endpoint import DREndpoint, read_options
from constructs_lib.encryption_keys import key_arn_of
from constructs_lib.endpoint_options import EndpointOptions, Options
from constructs_lib.inference_image_repo import InferenceImage
from constructs_lib.kinds import absent_faults
from constructs_lib.model_artifact_bucket import ModelArtifact
from constructs_lib.network import grant_lambda_network, subnet_faults
from constructs_lib.rules import lambda_faults
from constructs_lib.sagemaker_endpoint import image_faults
from constructs_lib.scaling import lambda_scaling_faults
from constructs_lib.stage_names import FUNCTION_ALIAS
from constructs_lib.statements import allow
from constructs_lib.tokens import known_number, known_text
from constructs_lib.traffic import ALL_AT_ONCE, CANARY, TrafficShift, lambda_shift_faults
from inference_image.contract import ENV_MODEL_URL, ENV_SERVING_MODE, SERVING_MODE_SERVERLESS

ALIAS: Final = FUNCTION_ALIAS
# As docs/lambda.md says: the image's own entry point is SageMaker's.
ENTRY_POINT: Final = ("python3", "-m", "awslambdaric")
COMMAND: Final = ("inference_image.lambda_handler.handler",)

NO_URL_IN_REGION: Final = "dr-endpoints:functionUrlNotSeenInRegion"
_EXCLUDED: Final = ("network_isolation", "data_capture")
_MILLISECOND_MS: Final = 1.0
_ARCHITECTURES: Final = {
    limits.AMD64: lambda_.Architecture.X86_64,
    limits.ARM64: lambda_.Architecture.ARM_64,
}


class LambdaDREndpoint(DREndpoint):
    """Grades fundus photographs in a Lambda function, at a URL that asks for IAM signatures.

        LambdaDREndpoint(self, "Endpoint", model=model, image=image, memory_mib=1769)

    The same image, the same requests and answers as on SageMaker: `POST <url>/invocations`. A
    photograph may have about 4.47 MiB, because an event may have 6 MiB with base64.

    Args:
        model: the package to serve, fetched from S3 when an execution environment starts; the
            function may read it and no other. None where the package is in the image.
        image: an image of either architecture, in the stack's region. The repository must let
            Lambda pull, as the bootstrap's does.
        memory_mib: 128 to 10,240; CPU grows with it, one vCPU at 1,769. New accounts are
            allowed 3,008.
        max_concurrency: execution environments at once, which are then reserved for this
            function; None takes what the account has.
        provisioned_concurrency: execution environments kept warm, at most `max_concurrency`;
            they cost money while idle. With `scaling` it is where the function begins.
        timeout_s: seconds that an invocation may take, 1 to 900.
        ephemeral_storage_mib: room in `/tmp` for the package, packed and unpacked, 512 to 10,240.
        options: what all endpoints take, see `EndpointOptions`. `scaling` is of the environments
            kept warm; a `traffic_shift` is CodeDeploy's, in percent and whole minutes; network
            isolation and data capture are refused.

    Defaults: nothing reserved and nothing kept warm; 60 s; 512 MiB of disk; a function name from
        the construct's path; logs for one month; see `EndpointOptions`.

    Defines: execution role and policy, log group, function, version, alias `live`, function URL;
        and what the options ask for: alarms, scalable target and policy, probe, security group,
        CodeDeploy application and deployment group.

    Raises:
        ValidationError: listing everything that Lambda would refuse.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        model: ModelArtifact | None,
        image: InferenceImage,
        memory_mib: int,
        max_concurrency: int | None = None,
        provisioned_concurrency: int | None = None,
        timeout_s: int = 60,
        ephemeral_storage_mib: int = limits.LAMBDA_DEFAULT_EPHEMERAL_STORAGE_MIB,
        **options: Unpack[EndpointOptions],
    ) -> None:
        chosen = read_options(
            type(self),
            scope,
            construct_id,
            model=model,
            image=image,
            options=options,
            needs_model=False,
        )
        super().__init__(scope, construct_id)
        stack = cdk.Stack.of(self)
        own = {ENV_SERVING_MODE: SERVING_MODE_SERVERLESS}
        if model is not None:
            own[ENV_MODEL_URL] = model.url
        faults = absent_faults(
            memory_mib=memory_mib,
            timeout_s=timeout_s,
            ephemeral_storage_mib=ephemeral_storage_mib,
        )
        faults += lambda_faults(
            memory_mib=known_number(memory_mib),
            timeout_s=known_number(timeout_s),
            ephemeral_storage_mib=known_number(ephemeral_storage_mib),
            max_concurrency=known_number(max_concurrency),
            provisioned_concurrency=known_number(provisioned_concurrency),
            architecture=image.architecture,
            environment={**(chosen.environment or {}), **own},
            package_bytes=None if model is None else model.size_bytes,
            unsupported=chosen.given(*_EXCLUDED),
        )
        if chosen.scaling is not None:
            faults += lambda_scaling_faults(
                chosen.scaling,
                max_concurrency=known_number(max_concurrency),
                provisioned_concurrency=known_number(provisioned_concurrency),
                provisioned_is_given=provisioned_concurrency is not None,
            )
        if chosen.vpc is not None:
            faults += subnet_faults(chosen.vpc, chosen.vpc_subnets, public_allowed=False)
        if chosen.traffic_shift is not None:
            faults += lambda_shift_faults(chosen.traffic_shift)
        environment = self._begin(
            options=chosen,
            image=image,
            model=model,
            own_environment=own,
            # The handler knows the function's own time-out and answers before it.
            invocation_timeout_s=None,
            faults=[*faults, *image_faults(image, stack)],
            log_group_prefix="/aws/lambda/",
            kind=LAMBDA_FUNCTION,
        )
        self.role = self._make_role(chosen)
        self.function = self._make_function(
            chosen,
            environment=environment,
            memory_mib=memory_mib,
            max_concurrency=max_concurrency,
            timeout_s=timeout_s,
            ephemeral_storage_mib=ephemeral_storage_mib,
        )
        self.alias = lambda_.Alias(
            self,
            "Live",
            alias_name=ALIAS,
            version=self.function.current_version,
            provisioned_concurrent_executions=provisioned_concurrency,
            description="What the URL answers with",
        )
        self.function_url = self.alias.add_function_url(
            auth_type=lambda_.FunctionUrlAuthType.AWS_IAM
        )
        qualified = f"{self._function_arn(stack)}:{ALIAS}"
        self._watch(
            chosen,
            probe_environment={"DR_PROBE_LAMBDA": qualified},
            probe_statements=(
                iam.PolicyStatement(
                    sid="AskEndpoint",
                    # The second tells the probe whether two versions may answer now.
                    actions=["lambda:InvokeFunction", "lambda:GetAlias"],
                    resources=[qualified, self._function_arn(stack)],
                ),
            ),
            latency_unit_ms=_MILLISECOND_MS,
        )
        self._probe_after(self.alias)
        if chosen.traffic_shift is not None:
            self._shift_traffic(chosen, chosen.traffic_shift)
        if chosen.scaling is not None:
            self._scale(
                chosen.scaling,
                namespace="lambda",
                resource_id=f"function:{self.endpoint_name}:{ALIAS}",
                dimension="lambda:function:ProvisionedConcurrency",
                metric="LambdaProvisionedConcurrencyUtilization",
                target=chosen.scaling.utilization,
                after=self.alias,
            )

        self._warn_of_region(known_text(stack.region))

    def _warn_of_region(self, region: str | None) -> None:
        there = None if region is None else regions.function_urls_in(region)
        if region is None or there:
            return
        said = (
            f"region {region} is not in this library's table of {regions.CHECKED}: whether its "
            "functions have URLs is not known"
            if there is None
            else f"functions had no URLs in {region} on {regions.CHECKED}; look whether they have "
            "by now before deploying "
            "(https://docs.aws.amazon.com/lambda/latest/dg/lambda-urls.html)"
        )
        cdk.Annotations.of(self).add_warning_v2(NO_URL_IN_REGION, said)

    @property
    def url(self) -> str:
        """Where to: `https://<id>.lambda-url.<region>.on.aws/`, signed for the service `lambda`."""
        return self.function_url.url

    @property
    def endpoint_arn(self) -> str:
        """ARN of the alias, which is what is invoked."""
        return self.alias.function_arn

    def grant_invoke(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let `grantee` ask this function, at its URL or by Invoke; no other alias or version.

        Raises:
            ValidationError: `grantee` is nothing that could be granted anything.
        """
        self._refuse_grantee(grantee)
        url = iam.Grant.add_to_principal(
            grantee=grantee,
            actions=["lambda:InvokeFunctionUrl"],
            resource_arns=[self.endpoint_arn],
            conditions={"StringEquals": {"lambda:FunctionUrlAuthType": "AWS_IAM"}},
        )
        # Since October 2025 a URL asks for both permissions.
        return url.combine(
            iam.Grant.add_to_principal(
                grantee=grantee,
                actions=["lambda:InvokeFunction"],
                resource_arns=[self.endpoint_arn],
            )
        )

    def metric(
        self,
        metric_name: str,
        *,
        statistic: str = "Average",
        period: cdk.Duration | None = None,
    ) -> cloudwatch.Metric:
        """A CloudWatch metric of the function's alias; the period defaults to 5 minutes.

        Names: https://docs.aws.amazon.com/lambda/latest/dg/monitoring-metrics-types.html
        """
        return cloudwatch.Metric(
            namespace="AWS/Lambda",
            metric_name=metric_name,
            dimensions_map={
                "FunctionName": self.endpoint_name,
                "Resource": f"{self.endpoint_name}:{ALIAS}",
            },
            statistic=statistic,
            period=period,
        ).attach_to(self)

    def metric_invocations(self, *, period: cdk.Duration | None = None) -> cloudwatch.Metric:
        """Requests, counted (sum)."""
        return self.metric("Invocations", statistic="Sum", period=period)

    def metric_server_errors(self, *, period: cdk.Duration | None = None) -> cloudwatch.Metric:
        """Answers 5xx at the URL, counted (sum); a function that failed is one of them."""
        return cloudwatch.Metric(
            namespace="AWS/Lambda",
            metric_name="Url5xxCount",
            dimensions_map={
                "FunctionName": self.endpoint_name,
                "Resource": f"{self.endpoint_name}:{ALIAS}",
            },
            statistic="Sum",
            period=period,
        ).attach_to(self)

    def metric_function_errors(self, *, period: cdk.Duration | None = None) -> cloudwatch.Metric:
        """Invocations that ended in an error of the function, counted (sum)."""
        return self.metric("Errors", statistic="Sum", period=period)

    def metric_throttles(self, *, period: cdk.Duration | None = None) -> cloudwatch.Metric:
        """Requests that found no free execution environment, counted (sum)."""
        return self.metric("Throttles", statistic="Sum", period=period)

    def metric_latency(
        self, *, statistic: str = "p95", period: cdk.Duration | None = None
    ) -> cloudwatch.Metric:
        """Time in the function, in milliseconds; the start of an environment is not in it."""
        return self.metric("Duration", statistic=statistic, period=period)

    def dashboard_widgets(self) -> list[cloudwatch.IWidget]:
        """A row for `DREndpointDashboard`: requests, errors, latency, capacity."""
        return [
            cloudwatch.GraphWidget(
                title=f"{self.endpoint_name}: requests", left=[self.metric_invocations()], width=6
            ),
            cloudwatch.GraphWidget(
                title="errors",
                left=[
                    self.metric_server_errors(),
                    self.metric_function_errors(),
                    self.metric_throttles(),
                ],
                width=6,
            ),
            cloudwatch.GraphWidget(
                title="latency, milliseconds",
                left=[self.metric_latency(statistic="p50"), self.metric_latency(statistic="p95")],
                width=6,
            ),
            cloudwatch.GraphWidget(
                title="capacity",
                left=[
                    self.metric("ConcurrentExecutions", statistic="Maximum"),
                    self.metric("ProvisionedConcurrentExecutions", statistic="Maximum"),
                ],
                width=6,
            ),
        ]

    def _function_arn(self, stack: cdk.Stack) -> str:
        return stack.format_arn(
            service="lambda",
            resource="function",
            resource_name=self.endpoint_name,
            arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME,
        )

    def _make_role(self, chosen: Options) -> iam.IRole:
        # A role for each package, as on SageMaker: the version before keeps the old one, and may
        # read its model while the new one takes over.
        key_arn = None if self.model is None else key_arn_of(self.model.bucket)
        readable = [self._model_address, key_arn]
        role = self._execution_role(
            chosen,
            readable,
            service="lambda.amazonaws.com",
            description=f"Execution role of the function {self.endpoint_name}",
        )
        allow(
            role,
            "WriteLogs",
            ["logs:CreateLogStream", "logs:PutLogEvents"],
            [self.log_group.log_group_arn],
        )
        if self.model is not None:
            self.model.grant_read(role)
        if chosen.encryption_key is not None:
            allow(
                role,
                "DecryptEnvironment",
                ["kms:Decrypt"],
                [chosen.encryption_key.key_arn],
            )
        if chosen.vpc is not None:
            # The CDK grants this to roles that it makes, and not to one that it is given.
            grant_lambda_network(role, cdk.Stack.of(self))
        return role

    def _make_function(
        self,
        chosen: Options,
        *,
        environment: dict[str, str],
        memory_mib: int,
        max_concurrency: int | None,
        timeout_s: int,
        ephemeral_storage_mib: int,
    ) -> lambda_.Function:
        groups: list[ec2.ISecurityGroup] | None = (
            None if chosen.vpc is None else self._security_groups(chosen)
        )
        repository = ecr.Repository.from_repository_attributes(
            self,
            "Repository",
            repository_arn=self.image.repository_arn,
            repository_name="named-by-the-image",
        )
        function = lambda_.Function(
            self,
            "Function",
            function_name=self.endpoint_name,
            description="Grades fundus photographs; not a medical device",
            runtime=lambda_.Runtime.FROM_IMAGE,
            handler=lambda_.Handler.FROM_IMAGE,
            code=lambda_.EcrImageCode(repository, entrypoint=list(ENTRY_POINT), cmd=list(COMMAND)),
            architecture=_ARCHITECTURES[self.image.architecture],
            memory_size=memory_mib,
            timeout=cdk.Duration.seconds(timeout_s),
            ephemeral_storage_size=cdk.Size.mebibytes(ephemeral_storage_mib),
            reserved_concurrent_executions=max_concurrency,
            environment=dict(sorted(environment.items())),
            environment_encryption=chosen.encryption_key,
            role=self.role,
            log_group=self.log_group,
            vpc=chosen.vpc,
            vpc_subnets=chosen.vpc_subnets,
            security_groups=groups,
            current_version_options=lambda_.VersionOptions(
                # The version before is what a shift goes back to.
                removal_policy=cdk.RemovalPolicy.RETAIN
                if chosen.traffic_shift is not None
                else cdk.RemovalPolicy.DESTROY
            ),
        )
        cfn = function.node.default_child
        assert isinstance(cfn, lambda_.CfnFunction)  # noqa: S101  (narrowing)
        # The image is named whole, by its digest or its source's; the CDK knows parts only.
        cfn.code = lambda_.CfnFunction.CodeProperty(image_uri=self.image.uri)
        dependencies = [*self.image.dependencies]
        if self.model is not None:
            dependencies += self.model.dependencies
        for dependency in dependencies:
            function.node.add_dependency(dependency)
        return function

    def _shift_traffic(self, chosen: Options, shift: TrafficShift) -> None:
        self.deployment_group = codedeploy.LambdaDeploymentGroup(
            self,
            "Deployment",
            alias=self.alias,
            deployment_config=_deployment_config(self, shift),
            alarms=[*self.alarms_if_any, *chosen.rollback_alarms],
        )


def _deployment_config(scope: Construct, shift: TrafficShift) -> codedeploy.ILambdaDeploymentConfig:
    if shift.kind == ALL_AT_ONCE:
        return codedeploy.LambdaDeploymentConfig.ALL_AT_ONCE
    interval = cdk.Duration.minutes(math.ceil(shift.wait_s / 60))
    percent = shift.percent or 0
    return codedeploy.LambdaDeploymentConfig(
        scope,
        "Shift",
        traffic_routing=(
            codedeploy.TrafficRouting.time_based_canary(interval=interval, percentage=percent)
            if shift.kind == CANARY
            else codedeploy.TrafficRouting.time_based_linear(interval=interval, percentage=percent)
        ),
    )
