"""Alarms of an endpoint: what a person is called for, and what takes an update back.

Never a 4xx: that a caller sent something that is no photograph is no fault of the endpoint.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from constructs import Construct

from constructs_lib.rules import ValidationError, is_number, shown
from constructs_lib.tokens import is_token

_PERIOD: Final = cdk.Duration.minutes(1)
# Two bad minutes of three: one is a container that died and was replaced.
_PERIODS: Final = 3
_BAD_PERIODS: Final = 2


@dataclass(frozen=True, kw_only=True)
class AlarmOptions:
    """When the alarms ring, two minutes of three, and who is told.

    Attributes:
        server_errors: answers 5xx in a minute that are too many.
        latency_ms: 95th percentile of the time in the container, in milliseconds, that is too
            long. Cold starts are not in it.
        actions: of each alarm when it rings and when it is over, an `SnsAction` for example; a
            `LambdaAction` with `use_unique_permission_id=True`.
    """

    server_errors: int = 1
    latency_ms: float = 5000
    actions: Sequence[cloudwatch.IAlarmAction] = ()

    def faults(self) -> list[str]:
        """What cannot be."""
        faults = []
        if not is_token(self.server_errors) and not (
            is_number(self.server_errors) and self.server_errors > 0
        ):
            faults.append(
                f"alarms.server_errors must be a number above 0; got {shown(self.server_errors)}"
            )
        # A token, too: the threshold is computed from it, in the metric's own unit.
        if not (is_number(self.latency_ms) and self.latency_ms > 0):
            faults.append(
                f"alarms.latency_ms must be a number above 0; got {shown(self.latency_ms)}"
            )
        return faults


class EndpointAlarms(Construct):
    """Alarms on an endpoint's metrics; made by the endpoint.

    Args:
        endpoint_name: begins each alarm's name, as the execution role's policy asks.
        server_errors: metric of answers 5xx, counted.
        latency: metric of the time in the container.
        latency_unit_ms: milliseconds of one unit of `latency`.
        probe_failures: metric of failed probes; no alarm of it when None.
        options: thresholds and actions.

    Defaults: `AlarmOptions()`, and no probe.

    Defines: two alarms, or three with a probe. Missing data is no alarm: nobody asked.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        endpoint_name: str,
        server_errors: cloudwatch.IMetric,
        latency: cloudwatch.IMetric,
        latency_unit_ms: float,
        probe_failures: cloudwatch.IMetric | None = None,
        options: AlarmOptions | None = None,
    ) -> None:
        super().__init__(scope, construct_id)
        options = options or AlarmOptions()
        self._endpoint_name = endpoint_name
        self._actions = tuple(options.actions)
        self.server_errors = self._alarm(
            "server-errors",
            server_errors,
            options.server_errors,
            "Answers 5xx: the container or the platform failed.",
        )
        self.latency = self._alarm(
            "latency",
            latency,
            options.latency_ms / latency_unit_ms,
            f"95th percentile of the time in the container above {options.latency_ms:g} ms.",
        )
        self._probe = (
            None
            if probe_failures is None
            else self._alarm(
                "probe",
                probe_failures,
                1,
                "The known photograph was not answered as it should be.",
            )
        )

    @property
    def probe(self) -> cloudwatch.Alarm:
        """Of the golden-image probe.

        Raises:
            ValidationError: the endpoint has no probe.
        """
        if self._probe is None:
            raise ValidationError(
                self.node.path,
                ["alarms.probe needs a probe: give the endpoint probe=ProbeOptions()"],
            )
        return self._probe

    @property
    def all(self) -> tuple[cloudwatch.Alarm, ...]:
        """Every alarm there is."""
        made = (self.server_errors, self.latency, self._probe)
        return tuple(alarm for alarm in made if alarm is not None)

    def _alarm(
        self, name: str, metric: cloudwatch.IMetric, threshold: float, description: str
    ) -> cloudwatch.Alarm:
        alarm = cloudwatch.Alarm(
            self,
            name,
            alarm_name=f"{self._endpoint_name}-{name}",
            alarm_description=description,
            metric=metric,
            threshold=threshold,
            comparison_operator=(cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD),
            evaluation_periods=_PERIODS,
            datapoints_to_alarm=_BAD_PERIODS,
            treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
        )
        add_actions(alarm, self._actions, when_over=True)
        return alarm


def add_actions(
    alarm: cloudwatch.Alarm, actions: Sequence[cloudwatch.IAlarmAction], *, when_over: bool = False
) -> None:
    """Let `alarm` do `actions` when it rings, and `when_over` when it is over as well.

    Raises:
        ValidationError: a `LambdaAction` that is to serve several alarms and is made for one.
    """
    if not actions:
        return
    try:
        alarm.add_alarm_action(*actions)
        if when_over:
            alarm.add_ok_action(*actions)
    except RuntimeError as error:
        # The CDK names the permission of each alarm alike, or after the alarm's own id, which
        # alarms of two endpoints have in common (aws-cdk-lib 2.275, LambdaAction.bind).
        if "AlarmPermission" not in str(error):
            raise
        raise ValidationError(
            alarm.node.path,
            [
                (
                    "actions must hold a LambdaAction that several alarms can share: "
                    "LambdaAction(function, use_unique_permission_id=True)"
                )
            ],
        ) from None


def alarm_period() -> cdk.Duration:
    """The period of each metric that an alarm here watches."""
    return _PERIOD
