"""A time to live for stacks: an experiment that nobody ended ends by itself."""

from pathlib import Path
from typing import Final

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from constructs_lib.encryption_keys import key_itself
from constructs_lib.janitor.index import ENV_PREFIX, TAG
from constructs_lib.kinds import KEY, LOG_RETENTION, kind_faults
from constructs_lib.log_keys import let_logs_use
from constructs_lib.rules import refuse, shown, whole_number_fault
from constructs_lib.surroundings import refuse_place
from constructs_lib.tokens import is_token

TIME_TO_LIVE_TAG: Final = TAG
MAX_TIME_TO_LIVE_HOURS: Final = 8760
_HANDLER: Final = Path(__file__).parent / "janitor"
_TIMEOUT_MINUTES: Final = 5


def time_to_live_tags(hours: int) -> dict[str, str]:
    """Tags for `cdk.Stack(tags=…)` that ask the janitor to delete the stack after `hours`.

    The time runs from the stack's last deployment. It is a tag of the stack and not of its
    resources, and changing it replaces nothing.

    Raises:
        ValidationError: not a whole number of hours from 1 to 8,760 (a year).
    """
    if is_token(hours):
        refuse("time to live", [f"hours must be known at synthesis; got {shown(hours)}"])
    refuse("time to live", whole_number_fault("hours", hours, 1, MAX_TIME_TO_LIVE_HOURS))
    return {TIME_TO_LIVE_TAG: str(hours)}


class StackJanitor(Construct):
    """Deletes stacks of this account and region whose time to live is over.

        StackJanitor(cdk.Stack(app, "Janitor"), "Janitor", stack_name_prefix="dr-")
        cdk.Stack(app, "dr-experiment", tags=time_to_live_tags(8))

    It belongs in a stack of its own, which has no time to live. CloudFormation deletes with the
    role that deployed the stack, so that the janitor itself may only describe stacks, and delete
    those that carry the tag and have the prefix. Termination protection holds against it.

    Args:
        stack_name_prefix: names that it may touch begin with it; at least 2 characters.
        every_hours: how often it looks, 1 to 24.
        log_retention: how long its log lines are kept.
        log_encryption_key: KMS key of its log group; one that is not made in this app must let
            CloudWatch Logs use it.

    Defaults: every hour; logs for one month, encrypted by CloudWatch Logs.

    Defines: a function with its role and log group, and the rule that starts it.

    Raises:
        ValidationError: listing every argument that cannot be.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        stack_name_prefix: str,
        every_hours: int = 1,
        log_retention: logs.RetentionDays = logs.RetentionDays.ONE_MONTH,
        log_encryption_key: kms.IKey | None = None,
    ) -> None:
        refuse_place(type(self), scope, construct_id)
        super().__init__(scope, construct_id)
        faults = kind_faults(
            {"log_retention": log_retention, "log_encryption_key": log_encryption_key},
            {"log_retention": LOG_RETENTION, "log_encryption_key": KEY},
        )
        if (
            not isinstance(stack_name_prefix, str)
            or len(stack_name_prefix) < 2
            or "*" in stack_name_prefix
        ):
            faults.append(
                "stack_name_prefix must be at least 2 characters of a name, because an empty one "
                f"is every stack of the account; got {shown(stack_name_prefix)}"
            )
        faults += whole_number_fault("every_hours", every_hours, 1, 24)
        refuse(f"StackJanitor {self.node.path}", faults)
        log_encryption_key = key_itself(log_encryption_key)
        stack = cdk.Stack.of(self)
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
            description="Deletes stacks whose time to live is over",
        )
        self.log_group.grant_write(self.role)
        self.role.add_to_policy(
            iam.PolicyStatement(
                sid="FindStacks",
                actions=["cloudformation:DescribeStacks"],
                # Without a name it describes all stacks, which is a permission on all.
                resources=["*"],
            )
        )
        self.role.add_to_policy(
            iam.PolicyStatement(
                sid="DeleteExpiredStacks",
                actions=["cloudformation:DeleteStack"],
                resources=[
                    stack.format_arn(
                        service="cloudformation",
                        resource="stack",
                        resource_name=f"{stack_name_prefix}*/*",
                    )
                ],
                conditions={"Null": {f"aws:ResourceTag/{TIME_TO_LIVE_TAG}": "false"}},
            )
        )
        self.function = lambda_.Function(
            self,
            "Function",
            description="Deletes stacks whose time to live is over",
            runtime=lambda_.Runtime.PYTHON_3_14,
            architecture=lambda_.Architecture.ARM_64,
            handler="index.handler",
            code=lambda_.Code.from_asset(str(_HANDLER), exclude=["**/__pycache__", "**/*.pyc"]),
            timeout=cdk.Duration.minutes(_TIMEOUT_MINUTES),
            environment={ENV_PREFIX: stack_name_prefix},
            role=self.role,
            log_group=self.log_group,
        )
        events.Rule(
            self,
            "Schedule",
            description="Looks for stacks whose time to live is over",
            schedule=events.Schedule.rate(cdk.Duration.hours(every_hours)),
            # What fails now is tried again with the next look.
            targets=[targets.LambdaFunction(self.function, retry_attempts=0)],
        )
