"""A monthly budget over what carries a cost tag, with a warning before it is used up."""

from typing import Final

from aws_cdk import aws_budgets as budgets
from aws_cdk import aws_sns as sns
from constructs import Construct

from constructs_lib.kinds import TEXT, Kind, kind_faults, required
from constructs_lib.rules import is_number, refuse, shown
from constructs_lib.surroundings import refuse_place
from constructs_lib.tokens import is_token

COST_TAG: Final = "dr-endpoints:stage"
WARN_PERCENT: Final = 80
# Budgets takes at most ten addresses and one topic for each notification:
# https://docs.aws.amazon.com/aws-cost-management/latest/APIReference/API_budgets_NotificationWithSubscribers.html
MAX_ADDRESSES: Final = 10
_KINDS: Final = {
    "emails": Kind(words="a list of addresses", types=(str,), many=True),
    "topic": Kind(
        words="an SNS topic (for an ARN: sns.Topic.from_topic_arn)", attribute="topic_arn"
    ),
    "tag": required(TEXT),
    "tag_value": required(TEXT),
}


class CostBudget(Construct):
    """Warns when the month's cost of what carries a tag reaches 80 % and is forecast to pass 100 %.

        CostBudget(self, "Budget", monthly_usd=50, emails=["ml-team@example.org"])

    It warns and stops nothing: for that, give the stacks a time to live. A cost tag must be
    activated once in the account's billing settings before any cost is counted under it; costs
    appear with about a day's delay.

    Args:
        monthly_usd: the month's budget in US dollars, more than 0.
        emails: who is told, at most 10 addresses.
        topic: an SNS topic that is told as well.
        tag: key of the cost tag.
        tag_value: only costs under this value of the tag.

    Defaults: costs under the value `default` of the tag `dr-endpoints:stage`, which the stacks
    of this project carry.

    Defines: a budget with two notifications.

    Raises:
        ValidationError: listing every argument that cannot be.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        monthly_usd: float,
        emails: list[str] | None = None,
        topic: sns.ITopic | None = None,
        tag: str = COST_TAG,
        tag_value: str = "default",
    ) -> None:
        refuse_place(type(self), scope, construct_id)
        super().__init__(scope, construct_id)
        given = {"emails": emails, "topic": topic, "tag": tag, "tag_value": tag_value}
        refuse(f"CostBudget {self.node.path}", kind_faults(given, _KINDS))
        emails = emails or []
        faults = []
        if not is_token(monthly_usd) and not (is_number(monthly_usd) and monthly_usd > 0):
            faults.append(f"monthly_usd must be a number above 0; got {shown(monthly_usd)}")
        if not emails and topic is None:
            faults.append("give emails or a topic: a budget that tells nobody is none")
        if len(emails) > MAX_ADDRESSES:
            faults.append(f"emails must be at most {MAX_ADDRESSES} addresses; got {len(emails)}")
        faults += [
            f"emails must hold addresses; got {it!r}"
            for it in emails
            if "@" not in it and not is_token(it)
        ]
        if is_token(emails):
            # Each address becomes a subscriber of its own.
            faults.append(
                f"emails must be a list whose length is known at synthesis; got {shown(emails)}"
            )
        refuse(f"CostBudget {self.node.path}", faults)
        subscribers = [
            budgets.CfnBudget.SubscriberProperty(address=address, subscription_type="EMAIL")
            for address in emails
        ]
        if topic is not None:
            subscribers.append(
                budgets.CfnBudget.SubscriberProperty(
                    address=topic.topic_arn, subscription_type="SNS"
                )
            )

        def notification(
            kind: str, percent: float
        ) -> budgets.CfnBudget.NotificationWithSubscribersProperty:
            return budgets.CfnBudget.NotificationWithSubscribersProperty(
                notification=budgets.CfnBudget.NotificationProperty(
                    notification_type=kind,
                    comparison_operator="GREATER_THAN",
                    threshold=percent,
                    threshold_type="PERCENTAGE",
                ),
                subscribers=subscribers,
            )

        self.cfn_budget = budgets.CfnBudget(
            self,
            "Budget",
            budget=budgets.CfnBudget.BudgetDataProperty(
                budget_type="COST",
                time_unit="MONTHLY",
                budget_limit=budgets.CfnBudget.SpendProperty(amount=monthly_usd, unit="USD"),
                cost_filters={"TagKeyValue": [f"user:{tag}${tag_value}"]},
            ),
            notifications_with_subscribers=[
                notification("ACTUAL", WARN_PERCENT),
                notification("FORECASTED", 100),
            ],
        )
