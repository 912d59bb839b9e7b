"""Alarms of a training pipeline: executions that failed, and such that took too long."""

from collections.abc import Sequence
from typing import Final

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from constructs import Construct

from constructs_lib.alarms import add_actions

_NAMESPACE: Final = "AWS/States"
_PERIOD: Final = cdk.Duration.minutes(5)


def execution_metric(
    state_machine_arn: str, metric_name: str, *, period: cdk.Duration | None = None
) -> cloudwatch.Metric:
    """A count of executions (sum); the period defaults to 5 minutes.

    Names: https://docs.aws.amazon.com/step-functions/latest/dg/procedure-cw-metrics.html
    """
    return cloudwatch.Metric(
        namespace=_NAMESPACE,
        metric_name=metric_name,
        dimensions_map={"StateMachineArn": state_machine_arn},
        statistic="Sum",
        period=period or _PERIOD,
    )


class PipelineAlarms(Construct):
    """Alarms on a pipeline's executions; made by the pipeline.

    Args:
        pipeline_name: begins each alarm's name.
        state_machine_arn: whose executions are counted.
        actions: of each alarm when it rings.

    Defaults: no actions.

    Defines: two alarms, `failed` (a refused gate among it) and `timed_out`. One execution is
        enough. Missing data is no alarm: nobody trains now.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        pipeline_name: str,
        state_machine_arn: str,
        actions: Sequence[cloudwatch.IAlarmAction] = (),
    ) -> None:
        super().__init__(scope, construct_id)
        made = []
        for name, metric_name, description in (
            ("failed", "ExecutionsFailed", "A training failed, or its model was refused."),
            ("timed-out", "ExecutionsTimedOut", "A training took longer than all its jobs may."),
        ):
            alarm = cloudwatch.Alarm(
                self,
                name,
                alarm_name=f"{pipeline_name}-{name}",
                alarm_description=description,
                metric=execution_metric(state_machine_arn, metric_name),
                threshold=1,
                comparison_operator=(
                    cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD
                ),
                evaluation_periods=1,
                treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
            )
            add_actions(alarm, actions)
            made.append(alarm)
        self.failed, self.timed_out = made

    @property
    def all(self) -> tuple[cloudwatch.Alarm, ...]:
        """Every alarm there is."""
        return (self.failed, self.timed_out)
