"""The budget: who is told, at what, and about whose costs."""

from typing import Any

import pytest
from aws_cdk import aws_sns as sns

from constructs_lib import CostBudget, ValidationError
from tests.constructs_fixtures import new_stack, only, template_of


@pytest.mark.parametrize(
    ("props", "words"),
    [
        ({"monthly_usd": 0, "emails": ["a@b"]}, "monthly_usd must be a number above 0"),
        ({"monthly_usd": 5}, "tells nobody"),
        ({"monthly_usd": 5, "emails": ["nobody"]}, "must hold addresses; got 'nobody'"),
        ({"monthly_usd": 5, "emails": ["a@b"] * 11}, "at most 10 addresses; got 11"),
    ],
)
def test_a_budget_that_cannot_be_is_refused(props: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        CostBudget(new_stack(), "Budget", **props)


def test_a_budget_warns_before_it_is_used_up() -> None:
    stack = new_stack()
    topic = sns.Topic(stack, "Topic")
    CostBudget(stack, "Budget", monthly_usd=50, emails=["a@b"], topic=topic, tag_value="ana")
    properties = only(template_of(stack), "AWS::Budgets::Budget")[1]["Properties"]
    assert properties["Budget"]["BudgetLimit"] == {"Amount": 50, "Unit": "USD"}
    assert properties["Budget"]["CostFilters"] == {"TagKeyValue": ["user:dr-endpoints:stage$ana"]}
    told = [
        (it["Notification"]["NotificationType"], it["Notification"]["Threshold"])
        for it in properties["NotificationsWithSubscribers"]
    ]
    assert told == [("ACTUAL", 80), ("FORECASTED", 100)]
    kinds = {
        subscriber["SubscriptionType"]
        for it in properties["NotificationsWithSubscribers"]
        for subscriber in it["Subscribers"]
    }
    assert kinds == {"EMAIL", "SNS"}
