"""What every endpoint is, on SageMaker and on Lambda: a name, a model, alarms, a probe."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

import aws_cdk as cdk
from aws_cdk import aws_applicationautoscaling as autoscaling
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct, IDependable

from constructs_lib import limits
from constructs_lib.alarms import AlarmOptions, EndpointAlarms, alarm_period
from constructs_lib.claimed_names import ALARMS, claim_name, name_faults
from constructs_lib.encryption_keys import key_itself, key_of
from constructs_lib.endpoint_options import (
    OPTION_KINDS,
    PART_KINDS,
    DataCapture,
    EndpointOptions,
    Options,
)
from constructs_lib.inference_image_repo import InferenceImage
from constructs_lib.kinds import GRANTEE, Kind, kind_faults, required
from constructs_lib.log_keys import let_logs_use
from constructs_lib.model_artifact_bucket import ModelArtifact
from constructs_lib.probe import GoldenImageProbe, ProbeOptions
from constructs_lib.rules import (
    ValidationError,
    endpoint_faults,
    is_integer,
    refuse,
    tag_faults,
)
from constructs_lib.scaling import Scaling
from constructs_lib.surroundings import refuse_place, role_faults, role_here
from constructs_lib.tokens import known_text

ALARMS_TOO_SLOW: Final = "dr-endpoints:alarmsSlowerThanShift"
IN_ANOTHER_ACCOUNT: Final = "dr-endpoints:inAnotherAccount"

_HASH_CHARACTERS: Final = 8
# Two bad minutes, or two failed probes that are a minute apart.
_BAD_PERIODS_S: Final = 120


_MODEL: Final = Kind(
    words="a ModelArtifact, which ModelArtifactBucket.add_model and ModelArtifact.in_bucket make",
    types=(ModelArtifact,),
)
_IMAGE: Final = Kind(
    words="an InferenceImage, which InferenceImageRepo.image and InferenceImage.from_uri make",
    types=(InferenceImage,),
    optional=False,
)


def read_options(
    subject: type,
    scope: Construct,
    construct_id: str,
    *,
    model: object,
    image: object,
    options: EndpointOptions,
    needs_model: bool = True,
) -> Options:
    """`options` with their defaults, once everything given is of the right kind.

    Raises:
        ValidationError: listing every value of another kind, and every unknown name.
    """
    refuse_place(subject, scope, construct_id)
    path = "/".join(it for it in (scope.node.path, construct_id) if it)
    model_kind = required(_MODEL) if needs_model else _MODEL
    refuse(
        f"{subject.__name__} {path}",
        [
            *kind_faults({"model": model}, {"model": model_kind}),
            *kind_faults({"image": image}, {"image": _IMAGE}),
            *kind_faults(options, OPTION_KINDS),
            *kind_faults(_parts(options), PART_KINDS),
        ],
    )
    chosen = Options(**options)
    return dataclasses.replace(
        chosen,
        encryption_key=key_itself(chosen.encryption_key),
        log_encryption_key=key_itself(chosen.log_encryption_key),
    )


def _parts(options: EndpointOptions) -> dict[str, object]:
    """What the objects among `options` hold that is neither number nor text."""
    parts: dict[str, object] = {}
    for name in PART_KINDS:
        option, _, part = name.partition(".")
        holder = options.get(option)
        if isinstance(holder, AlarmOptions | DataCapture | ProbeOptions | Scaling):
            parts[name] = getattr(holder, part)
    return parts


class DREndpoint(Construct):
    """Base of the endpoint constructs; not deployable by itself.

    Attributes:
        endpoint_name: fixed, so that clients, alarms and logs outlive an update.
        model: the package that is served; None where it is in the image.
        image: the image that runs.
        log_group: of the container's lines; it goes with the stack.
        probe: the golden-image probe, or None.
    """

    endpoint_name: str
    model: ModelArtifact | None
    image: InferenceImage
    log_group: logs.LogGroup
    probe: GoldenImageProbe | None
    _alarms: EndpointAlarms | None = None

    # --- For subclasses ---------------------------------------------------------------------------

    def _begin(
        self,
        *,
        options: Options,
        image: InferenceImage,
        model: ModelArtifact | None,
        own_environment: Mapping[str, str],
        invocation_timeout_s: float | None,
        faults: list[str],
        log_group_prefix: str,
        kind: str,
    ) -> dict[str, str]:
        """Refuse what cannot be, make name and log group; returns the container's environment.

        `kind` is what has the name, as `claimed_names` calls it.
        """
        given = dict(options.environment or {})
        stack = cdk.Stack.of(self)
        watched = options.alarms is not None or options.traffic_shift is not None
        kinds = (kind, ALARMS) if watched else (kind,)
        named = known_text(options.endpoint_name)
        refuse(
            f"{type(self).__name__} {self.node.path}",
            [
                *faults,
                *options.faults(),
                *_region_faults(options, stack),
                *role_faults(options.role, stack),
                *tag_faults(options.tags or {}),
                *endpoint_faults(
                    endpoint_name=named,
                    environment=given,
                    set_by_construct=own_environment,
                    invocation_timeout_s=invocation_timeout_s,
                ),
                *([] if named is None else name_faults(self, kinds=kinds, name=named)),
            ],
        )
        self.model = model
        self.image = image
        self.endpoint_name = options.endpoint_name or cdk.Names.unique_resource_name(
            self, max_length=limits.ENDPOINT_NAME_CHARACTERS, separator="-"
        )
        claim_name(self, kinds=kinds, name=self.endpoint_name)
        self._warn_of_other_accounts(options, stack)
        let_logs_use(options.log_encryption_key)
        # Made here, the log group has a retention and goes with the stack; the service itself
        # would make one that keeps every line for ever.
        self.log_group = logs.LogGroup(
            self,
            "Logs",
            log_group_name=f"{log_group_prefix}{self.endpoint_name}",
            retention=options.log_retention,
            encryption_key=options.log_encryption_key,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        for key, value in (options.tags or {}).items():
            cdk.Tags.of(self).add(key, value)
        return {**given, **own_environment}

    def _watch(
        self,
        options: Options,
        *,
        probe_environment: Mapping[str, str],
        probe_statements: tuple[iam.PolicyStatement, ...],
        latency_unit_ms: float,
    ) -> None:
        """Make the probe and the alarms that the options ask for."""
        self.probe = None
        if options.probe is not None:
            digest = None if self.model is None else known_text(self.model.sha256)
            self.probe = GoldenImageProbe(
                self,
                "Probe",
                environment={
                    **probe_environment,
                    **({} if digest is None else {"DR_PROBE_SHA256": digest}),
                },
                statements=probe_statements,
                options=options.probe,
                log_retention=options.log_retention,
                log_encryption_key=options.log_encryption_key,
            )
        self._warn_of_slow_alarms(options)
        if options.alarms is None and options.traffic_shift is None:
            return
        self._alarms = EndpointAlarms(
            self,
            "Alarms",
            endpoint_name=self.endpoint_name,
            server_errors=self.metric_server_errors(period=alarm_period()),
            latency=self.metric_latency(statistic="p95", period=alarm_period()),
            latency_unit_ms=latency_unit_ms,
            probe_failures=None if self.probe is None else self.probe.metric_failures(),
            options=options.alarms or AlarmOptions(),
        )

    def _warn_of_slow_alarms(self, options: Options) -> None:
        """A shift that goes on before an alarm can ring is watched by nobody."""
        every = 1 if options.probe is None else options.probe.every_minutes
        needed_s = _BAD_PERIODS_S * every
        shift = options.traffic_shift
        if shift is None or not is_integer(shift.wait_s, 0, needed_s - 1):
            return
        cdk.Annotations.of(self).add_warning_v2(
            ALARMS_TOO_SLOW,
            f"traffic_shift waits {shift.wait_s} s, and the slowest alarm rings "
            f"after {needed_s} s at the earliest: let wait_s be more than that",
        )

    def _warn_of_other_accounts(self, options: Options, stack: cdk.Stack) -> None:
        """Permissions of the role are half of it where the other side is another account's."""
        here = known_text(stack.account)
        bucket = None if self.model is None else self.model.bucket
        key = None if bucket is None else key_of(bucket)
        capture = options.data_capture
        places = {"image": self.image.account}
        for name, used in (
            ("model", bucket),
            ("the key of the model's bucket", key),
            ("encryption_key", options.encryption_key),
            ("log_encryption_key", options.log_encryption_key),
            ("data_capture.bucket", None if capture is None else capture.bucket),
        ):
            places[name] = None if used is None else known_text(used.env.account)
        others = [f"{name} ({it})" for name, it in places.items() if it not in (None, "", here)]
        if here is None or not others:
            return
        cdk.Annotations.of(self).add_warning_v2(
            IN_ANOTHER_ACCOUNT,
            f"{', '.join(others)} in another account than the stack's, {here}: the role gets its "
            "permissions here, and the policy there must allow the same, or the deployment fails",
        )

    def _execution_role(
        self, options: Options, readable: Any, *, service: str, description: str
    ) -> iam.IRole:
        """The user's own role, or one that is named after what it may read."""
        if options.role is not None:
            return role_here(self, options.role)
        return iam.Role(
            self,
            f"Role-{self._name_hash(readable)}",
            assumed_by=iam.ServicePrincipal(service),
            description=description,
        )

    def _refuse_grantee(self, grantee: object) -> None:
        faults = kind_faults({"grantee": grantee}, {"grantee": GRANTEE})
        refuse(f"{type(self).__name__} {self.node.path}", faults)

    def _name_hash(self, content: Any) -> str:
        """Hash of `content`, references resolved, for names that must follow what they say."""
        text = json.dumps(cdk.Stack.of(self).resolve(content), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARACTERS]

    @property
    def _model_address(self) -> list[str]:
        # A reference into another stack resolves to a bare logical id, which two stacks of one
        # shape have in common: which stack it is belongs to the address.
        if self.model is None:
            return []
        return [self.model.bucket.stack.node.path, self.model.url]

    def _probe_after(self, dependency: IDependable) -> None:
        if self.probe is not None:
            self.probe.rule.node.add_dependency(dependency)

    def _scale(
        self,
        scaling: Scaling,
        *,
        namespace: str,
        resource_id: str,
        dimension: str,
        metric: str,
        target: float | None,
        after: IDependable,
    ) -> None:
        """Bounds, load and hours, by Application Auto Scaling."""
        actions: list[Any] = []
        for number, hours in enumerate(scaling.clinic_hours):
            most = scaling.max_capacity if hours.max_capacity is None else hours.max_capacity
            for name, cron, low, high in (
                ("opens", hours.opening_cron, hours.min_capacity, most),
                ("closes", hours.closing_cron, scaling.min_capacity, scaling.max_capacity),
            ):
                actions.append(
                    autoscaling.CfnScalableTarget.ScheduledActionProperty(
                        scheduled_action_name=f"clinic-{number}-{name}",
                        schedule=cron,
                        timezone=hours.time_zone,
                        scalable_target_action=(
                            autoscaling.CfnScalableTarget.ScalableTargetActionProperty(
                                min_capacity=low, max_capacity=high
                            )
                        ),
                    )
                )
        # Without a role Application Auto Scaling takes its service-linked one; the CDK's
        # ScalableTarget would make an empty role of its own.
        scalable = autoscaling.CfnScalableTarget(
            self,
            "ScalableTarget",
            service_namespace=namespace,
            resource_id=resource_id,
            scalable_dimension=dimension,
            min_capacity=scaling.min_capacity,
            max_capacity=scaling.max_capacity,
            scheduled_actions=actions or None,
        )
        scalable.node.add_dependency(after)
        if target is None:
            return
        tracking = autoscaling.CfnScalingPolicy.TargetTrackingScalingPolicyConfigurationProperty(
            target_value=target,
            predefined_metric_specification=(
                autoscaling.CfnScalingPolicy.PredefinedMetricSpecificationProperty(
                    predefined_metric_type=metric
                )
            ),
            scale_in_cooldown=scaling.scale_in_cooldown_s,
            scale_out_cooldown=scaling.scale_out_cooldown_s,
        )
        autoscaling.CfnScalingPolicy(
            self,
            "ScalingPolicy",
            policy_name=f"{self.endpoint_name}-load",
            policy_type="TargetTrackingScaling",
            scaling_target_id=scalable.ref,
            target_tracking_scaling_policy_configuration=tracking,
        )

    def _security_groups(self, options: Options) -> list[ec2.ISecurityGroup]:
        assert options.vpc is not None  # noqa: S101  (narrowing: callers look first)
        if options.security_groups is not None:
            return list(options.security_groups)
        return [
            ec2.SecurityGroup(
                self,
                "SecurityGroup",
                vpc=options.vpc,
                description=f"DR endpoint {self.endpoint_name}: nothing in, everything out",
            )
        ]

    # --- For everybody ----------------------------------------------------------------------------

    @property
    def alarms(self) -> EndpointAlarms:
        """Alarms of server errors, latency and, with a probe, of its failures; never of a 4xx.

        Raises:
            ValidationError: the endpoint was made without `alarms` and without `traffic_shift`.
        """
        if self._alarms is None:
            raise ValidationError(
                self.node.path,
                ["alarms must be asked for: give the endpoint alarms=AlarmOptions()"],
            )
        return self._alarms

    @property
    def alarms_if_any(self) -> tuple[cloudwatch.Alarm, ...]:
        """Every alarm of the endpoint; none where it has none."""
        return () if self._alarms is None else self._alarms.all

    def grant_invoke(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let `grantee` ask this endpoint, and no other."""
        raise NotImplementedError

    def metric_invocations(self, *, period: cdk.Duration | None = None) -> cloudwatch.Metric:
        """Requests, counted (sum)."""
        raise NotImplementedError

    def metric_server_errors(self, *, period: cdk.Duration | None = None) -> cloudwatch.Metric:
        """Requests that failed on the platform's or the container's side, counted (sum)."""
        raise NotImplementedError

    def metric_latency(
        self, *, statistic: str = "p95", period: cdk.Duration | None = None
    ) -> cloudwatch.Metric:
        """Time in the container; microseconds on SageMaker, milliseconds on Lambda."""
        raise NotImplementedError

    def dashboard_widgets(self) -> list[cloudwatch.IWidget]:
        """A row for `DREndpointDashboard`: requests, errors, latency, capacity."""
        raise NotImplementedError


def _region_faults(options: Options, stack: cdk.Stack) -> list[str]:
    """What is given from another region, where the service does not look for it."""
    here = known_text(stack.region)
    given: list[tuple[str, Any]] = [
        ("encryption_key", options.encryption_key),
        ("log_encryption_key", options.log_encryption_key),
        ("vpc", options.vpc),
    ]
    if options.data_capture is not None:
        given += [
            ("data_capture.bucket", options.data_capture.bucket),
            ("data_capture.encryption_key", options.data_capture.encryption_key),
        ]
    places = [(name, known_text(it.env.region)) for name, it in given if it is not None and here]
    # The CDK takes an imported alarm for one of the stack's region, whatever its ARN says.
    arns = [known_text(alarm.alarm_arn) for alarm in options.rollback_alarms]
    places += [("rollback_alarms", arn.split(":")[3]) for arn in arns if arn is not None and here]
    return [
        f"{name} must be in the stack's region, {here}, where the service looks for it; got {there}"
        for name, there in places
        if there not in (None, "", here)
    ]
