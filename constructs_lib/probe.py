"""A known photograph, sent to an endpoint by the clock, so that alarms have data at night."""

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct, IDependable

from constructs_lib import probe_function
from constructs_lib.encryption_keys import key_itself
from constructs_lib.kinds import KEY, LOG_RETENTION, TEXTS, Kind, kind_faults, required
from constructs_lib.log_keys import let_logs_use
from constructs_lib.rules import is_integer, refuse, shown
from constructs_lib.surroundings import refuse_place

_FOLDER: Final = Path(probe_function.__file__).parent
_HANDLER: Final = "handler.py"
_PHOTOGRAPH: Final = "golden.jpg"
# An invocation may take 60 s, and the connection some more.
_TIMEOUT: Final = cdk.Duration.seconds(75)
_MEMORY_MIB: Final = 256
_MOST_MINUTES: Final = 1440
_MOST_PHOTOGRAPH_BYTES: Final = 3 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class ProbeOptions:
    """How often which photograph is sent, and which answer is right.

    Attributes:
        every_minutes: 1 to 1,440. The alarm rings when two of three probes failed, so that it
            takes twice as long; above 5 a serverless container is cold again.
        expected_grade: what the model says of the photograph; not compared when None.
        photograph: a JPEG of up to 3 MiB, **of no patient**: it becomes part of the stack.

    Defaults: every minute; a photograph of grade 3 that this project drew; any grade.
    """

    every_minutes: int = 1
    expected_grade: int | None = None
    photograph: Path | str | None = None

    def faults(self) -> list[str]:
        """What cannot be."""
        faults = []
        # No tokens: the alarm's period is computed from the one, and the other is compared as text.
        if not is_integer(self.every_minutes, 1, _MOST_MINUTES):
            faults.append(
                f"probe.every_minutes must be a whole number from 1 to {_MOST_MINUTES}; got "
                f"{shown(self.every_minutes)}"
            )
        if self.expected_grade is not None and not is_integer(self.expected_grade, 0, 4):
            faults.append(
                "probe.expected_grade must be a grade from 0 to 4; got "
                f"{shown(self.expected_grade)}"
            )
        if self.photograph is not None:
            faults += _photograph_faults(Path(self.photograph))
        return faults


_PROBE_KINDS: Final = {
    "environment": required(TEXTS),
    "statements": Kind(
        words="a list of iam.PolicyStatement",
        types=(iam.PolicyStatement,),
        many=True,
        optional=False,
    ),
    "options": Kind(words="ProbeOptions(…)", types=(ProbeOptions,)),
    "log_retention": LOG_RETENTION,
    "log_encryption_key": KEY,
}


class GoldenImageProbe(Construct):
    """Sends a known photograph on a schedule and fails where the answer is not right.

    Every endpoint takes `probe=ProbeOptions()`, which makes one.

    Args:
        environment: what the function is told of the endpoint; see `probe_function.handler`.
        statements: what its role may do beside writing its log.
        after: what must be deployed before the first probe.
        options: how often, which photograph, which grade.
        log_retention: how long the function's lines are kept.
        log_encryption_key: KMS key of its log group.

    Defaults: `ProbeOptions()`; logs for one month, encrypted by the service.

    Defines: a Lambda function with role and log group, and an EventBridge rule.

    Raises:
        ValidationError: listing what cannot be.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        environment: Mapping[str, str],
        statements: tuple[iam.PolicyStatement, ...],
        after: IDependable | None = None,
        options: ProbeOptions | None = None,
        log_retention: logs.RetentionDays = logs.RetentionDays.ONE_MONTH,
        log_encryption_key: kms.IKey | None = None,
    ) -> None:
        refuse_place(type(self), scope, construct_id)
        super().__init__(scope, construct_id)
        subject = f"GoldenImageProbe {self.node.path}"
        given = {
            "environment": environment,
            "statements": statements,
            "options": options,
            "log_retention": log_retention,
            "log_encryption_key": log_encryption_key,
        }
        refuse(subject, kind_faults(given, _PROBE_KINDS))
        options = options or ProbeOptions()
        refuse(subject, options.faults())
        log_encryption_key = key_itself(log_encryption_key)
        self.log_group = logs.LogGroup(
            self,
            "Logs",
            retention=log_retention,
            encryption_key=log_encryption_key,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        let_logs_use(log_encryption_key)
        self.role = iam.Role(
            self,
            "Role",
            assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"),
            description="Role of a golden-image probe",
        )
        self.role.add_to_policy(
            iam.PolicyStatement(
                sid="WriteLogs",
                actions=["logs:CreateLogStream", "logs:PutLogEvents"],
                resources=[self.log_group.log_group_arn],
            )
        )
        for statement in statements:
            self.role.add_to_policy(statement)
        grade = options.expected_grade
        with tempfile.TemporaryDirectory(prefix="dr-endpoints-") as staging:
            shutil.copyfile(_FOLDER / _HANDLER, Path(staging, _HANDLER))
            photograph = options.photograph or _FOLDER / _PHOTOGRAPH
            shutil.copyfile(photograph, Path(staging, _PHOTOGRAPH))
            self.function = lambda_.Function(
                self,
                "Function",
                runtime=lambda_.Runtime.PYTHON_3_14,
                handler="handler.handler",
                code=lambda_.Code.from_asset(staging),
                description="Sends a known fundus photograph to an endpoint and checks the answer",
                timeout=_TIMEOUT,
                memory_size=_MEMORY_MIB,
                retry_attempts=0,
                role=self.role,
                log_group=self.log_group,
                environment={
                    **environment,
                    **({} if grade is None else {"DR_PROBE_GRADE": str(grade)}),
                },
            )
        self._every = cdk.Duration.minutes(options.every_minutes)
        self.rule = events.Rule(
            self,
            "Schedule",
            description="When the golden-image probe runs",
            schedule=events.Schedule.rate(self._every),
            targets=[targets.LambdaFunction(self.function, retry_attempts=0)],
        )
        if after is not None:
            # The function cannot wait as well: the endpoint itself waits for the alarm on it.
            self.rule.node.add_dependency(after)

    def metric_failures(self, *, period: cdk.Duration | None = None) -> cloudwatch.Metric:
        """Probes that failed, counted (sum); the period defaults to that of the schedule."""
        # In shorter periods two failures would never lie close enough together for the alarm.
        return self.function.metric_errors(period=period or self._every, statistic="Sum")


def _photograph_faults(path: Path) -> list[str]:
    if not path.is_file():
        return [f"probe.photograph must be a file; there is none at {path}"]
    with path.open("rb") as stream:
        head = stream.read(3)
    size = path.stat().st_size
    if head != b"\xff\xd8\xff" or size > _MOST_PHOTOGRAPH_BYTES:
        return [
            f"probe.photograph must be a JPEG of at most {_MOST_PHOTOGRAPH_BYTES:,} bytes; "
            f"{path.name} has {size:,} bytes" + ("" if head == b"\xff\xd8\xff" else " and is none")
        ]
    return []
