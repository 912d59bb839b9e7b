"""What every endpoint takes beside its model, image and size, and objects that go in there."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypedDict

from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3

from constructs_lib import limits
from constructs_lib.alarms import AlarmOptions
from constructs_lib.encryption_keys import key_itself, key_of
from constructs_lib.kinds import (
    BUCKET,
    FLAG,
    KEY,
    LOG_RETENTION,
    PATH,
    ROLE,
    TEXT,
    TEXTS,
    Kind,
    required,
)
from constructs_lib.probe import ProbeOptions
from constructs_lib.rules import bounded_fault
from constructs_lib.scaling import ClinicHours, Scaling
from constructs_lib.statements import allow
from constructs_lib.traffic import TrafficShift


@dataclass(frozen=True, kw_only=True)
class DataCapture:
    """Keep requests and answers in a bucket: **patients' photographs**; real-time only.

    Attributes:
        bucket: where to; the endpoint's role may write below `prefix` and nowhere else.
        prefix: of the objects' keys.
        percent: of the requests, 1 to 100.
        encryption_key: KMS key of the objects; the bucket's own encryption when None.
    """

    bucket: s3.IBucket
    prefix: str = "captured"
    percent: int = 100
    encryption_key: kms.IKey | None = None

    @property
    def uri(self) -> str:
        """`s3://bucket/prefix`."""
        return self.bucket.s3_url_for_object(self.prefix.strip("/"))

    def faults(self) -> list[str]:
        """What cannot be."""
        low, high = limits.CAPTURE_PERCENT
        faults = bounded_fault("data_capture.percent", self.percent, low, high, "CAPTURE_PERCENT")
        if not isinstance(self.prefix, str) or not self.prefix.strip("/"):
            faults.append(
                "data_capture.prefix must be text, so that the role may write there and nowhere "
                f"else; got {self.prefix!r}"
            )
        return faults

    def grant_write(self, role: iam.IRole) -> None:
        """Let `role` write objects below the prefix, and encrypt them where there is a key."""
        allow(
            role,
            "WriteCapturedData",
            ["s3:PutObject"],
            [self.bucket.arn_for_objects(f"{self.prefix.strip('/')}/*")],
        )
        key = key_itself(self.encryption_key) or key_of(self.bucket)
        if key is not None:
            allow(
                role,
                "EncryptCapturedData",
                ["kms:GenerateDataKey"],
                [key.key_arn],
            )


class EndpointOptions(TypedDict, total=False):
    """Keyword arguments that all endpoints take; all may be left out.

    - `environment`: further settings of the service, as in docs/settings.md. Default: none.
    - `endpoint_name`: at most 63 letters, digits and inner hyphens; on Lambda the function's
      name. Default: from the construct's path.
    - `log_retention`: how long log lines are kept. Default: one month.
    - `log_encryption_key`: KMS key of the log group. One made in this app lets CloudWatch Logs use
      it from now on; the policy of any other must. Default: encryption by the service.
    - `alarms`: of server errors and latency (`AlarmOptions`). Default: none, or with a
      `traffic_shift` those of `AlarmOptions()`.
    - `rollback_alarms`: further alarms that take an update back. Default: none.
    - `probe`: a known photograph, sent by the clock (`ProbeOptions`). Default: none.
    - `traffic_shift`: how an update moves requests, watched by the alarms (`TrafficShift`).
      Default: the platform's, at once and unwatched.
    - `scaling`: capacity by load and clinic hours (`Scaling`). Default: fixed.
    - `role`: your own execution role, which the service must be able to assume; endpoints may share
      it. What the endpoint needs is added to it, unless it is imported as one that may not change;
      to one that another stack makes, in a policy of this stack. Unlike the role
      that is made here it is the same for the model before and after an update, so that the one
      before may not be read again while an update runs. Default: a role for each package.
    - `encryption_key`: KMS key of the instances' volumes; on Lambda of the environment. An alias
      stands for its key, here and everywhere, unless the app knows only its name. Default:
      the service's own.
    - `vpc`, `vpc_subnets`, `security_groups`: where the container has its network; not on
      serverless. The VPC needs a way to S3. Default: no VPC; private subnets; a security group
      of its own that lets everything out and nothing in.
    - `network_isolation`: no network at all for the container; real-time only. Default: False.
    - `data_capture`: keep requests and answers (`DataCapture`); real-time only. Default: none,
      because they are patients' photographs.
    - `tags`: on all that the construct defines. Default: none.
    """

    environment: Mapping[str, str] | None
    endpoint_name: str | None
    log_retention: logs.RetentionDays
    log_encryption_key: kms.IKey | None
    alarms: AlarmOptions | None
    rollback_alarms: Sequence[cloudwatch.IAlarm]
    probe: ProbeOptions | None
    traffic_shift: TrafficShift | None
    scaling: Scaling | None
    role: iam.IRole | None
    encryption_key: kms.IKey | None
    vpc: ec2.IVpc | None
    vpc_subnets: ec2.SubnetSelection | None
    security_groups: Sequence[ec2.ISecurityGroup] | None
    network_isolation: bool
    data_capture: DataCapture | None
    tags: Mapping[str, str] | None


OPTION_KINDS: Final[Mapping[str, Kind]] = {
    "environment": TEXTS,
    "endpoint_name": TEXT,
    "log_retention": LOG_RETENTION,
    "log_encryption_key": KEY,
    "alarms": Kind(words="AlarmOptions(…)", types=(AlarmOptions,)),
    "rollback_alarms": Kind(
        words="a list of CloudWatch alarms (for an ARN: cloudwatch.Alarm.from_alarm_arn)",
        attribute="alarm_arn",
        many=True,
        optional=False,
    ),
    "probe": Kind(words="ProbeOptions(…)", types=(ProbeOptions,)),
    "traffic_shift": Kind(
        words="a TrafficShift, TrafficShift.canary() for example", types=(TrafficShift,)
    ),
    "scaling": Kind(words="Scaling(…)", types=(Scaling,)),
    "role": dataclasses.replace(ROLE, optional=True),
    "encryption_key": KEY,
    "vpc": Kind(words="a VPC (for an id: ec2.Vpc.from_lookup)", attribute="select_subnets"),
    "vpc_subnets": Kind(words="ec2.SubnetSelection(…)", types=(ec2.SubnetSelection,)),
    "security_groups": Kind(
        words="a list of security groups (for an id: ec2.SecurityGroup.from_security_group_id)",
        attribute="security_group_id",
        many=True,
    ),
    "network_isolation": FLAG,
    "data_capture": Kind(words="DataCapture(…)", types=(DataCapture,)),
    "tags": TEXTS,
}


PART_KINDS: Final[Mapping[str, Kind]] = {
    "alarms.actions": Kind(
        words="a list of alarm actions, aws_cloudwatch_actions.SnsAction(topic) for example",
        attribute="bind",
        many=True,
        optional=False,
    ),
    "data_capture.bucket": required(BUCKET),
    "data_capture.encryption_key": KEY,
    "probe.photograph": PATH,
    "scaling.clinic_hours": Kind(
        words="a list of ClinicHours", types=(ClinicHours,), many=True, optional=False
    ),
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """`EndpointOptions` with the defaults filled in."""

    environment: Mapping[str, str] | None = None
    endpoint_name: str | None = None
    log_retention: logs.RetentionDays = logs.RetentionDays.ONE_MONTH
    log_encryption_key: kms.IKey | None = None
    alarms: AlarmOptions | None = None
    rollback_alarms: Sequence[cloudwatch.IAlarm] = ()
    probe: ProbeOptions | None = None
    traffic_shift: TrafficShift | None = None
    scaling: Scaling | None = None
    role: iam.IRole | None = None
    encryption_key: kms.IKey | None = None
    vpc: ec2.IVpc | None = None
    vpc_subnets: ec2.SubnetSelection | None = None
    security_groups: Sequence[ec2.ISecurityGroup] | None = None
    network_isolation: bool = False
    data_capture: DataCapture | None = None
    tags: Mapping[str, str] | None = field(default=None)

    def given(self, *names: str) -> list[str]:
        """Those of `names` that were given a value."""
        return [name for name in names if getattr(self, name)]

    def faults(self) -> list[str]:
        """What cannot be on any kind of endpoint."""
        faults = []
        if self.vpc is None:
            faults += [
                f"{name} needs vpc: there is nothing to choose from without"
                for name in self.given("vpc_subnets", "security_groups")
            ]
        if self.data_capture is not None:
            faults += self.data_capture.faults()
        if self.security_groups is not None:
            low, high = limits.SECURITY_GROUPS
            faults += bounded_fault(
                "security_groups (how many)",
                len(self.security_groups),
                low,
                high,
                "SECURITY_GROUPS",
            )
        if self.rollback_alarms and self.traffic_shift is None:
            faults.append("rollback_alarms needs traffic_shift, whose update they take back")
        if self.alarms is not None:
            faults += self.alarms.faults()
        if self.probe is not None:
            faults += self.probe.faults()
        return faults
