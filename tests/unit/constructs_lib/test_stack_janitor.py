"""The janitor: what it deletes, what it leaves, and what it may do at all."""

import datetime as dt
import json
from collections.abc import Iterator
from typing import Any

import aws_cdk as cdk
import boto3
import pytest
from moto import mock_aws

from constructs_lib import StackJanitor, ValidationError, time_to_live_tags
from constructs_lib.janitor import index
from tests.constructs_fixtures import new_app, new_stack, only, resources, statements, template_of

TOPIC = {"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}}


@pytest.fixture
def cloudformation(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        yield boto3.client("cloudformation", region_name="us-east-1")


def make(client: Any, name: str, hours: str | None) -> None:
    tags = [] if hours is None else [{"Key": index.TAG, "Value": hours}]
    client.create_stack(StackName=name, TemplateBody=json.dumps(TOPIC), Tags=tags)


def names(client: Any) -> set[str]:
    return {stack["StackName"] for stack in client.describe_stacks()["Stacks"]}


def in_hours(hours: float) -> dt.datetime:
    return dt.datetime.now(dt.UTC) + dt.timedelta(hours=hours)


def test_only_what_asked_for_it_is_deleted_and_only_when_its_time_is_up(
    cloudformation: Any,
) -> None:
    for name, hours in (
        ("dr-short", "8"),
        ("dr-long", "48"),
        ("dr-for-ever", None),
        ("dr-odd", "soon"),
        ("theirs-short", "8"),
    ):
        make(cloudformation, name, hours)
    before = index.delete_expired(cloudformation, prefix="dr-", now=in_hours(7))
    assert before["deleted"] == []
    assert set(before["alive"]) == {"dr-short", "dr-long"}
    after = index.delete_expired(cloudformation, prefix="dr-", now=in_hours(9))
    assert after["deleted"] == ["dr-short"]
    assert after["alive"] == {"dr-long": pytest.approx(39, abs=0.1)}
    assert after["unreadable"] == ["dr-odd"]
    assert names(cloudformation) == {"dr-long", "dr-for-ever", "dr-odd", "theirs-short"}


def test_a_new_deployment_gives_new_time(cloudformation: Any) -> None:
    make(cloudformation, "dr-short", "8")
    (stack,) = cloudformation.describe_stacks()["Stacks"]
    updated = {**stack, "LastUpdatedTime": in_hours(6)}

    class Page:
        def paginate(self) -> list[dict[str, Any]]:
            return [{"Stacks": [updated]}]

    class Client:
        def get_paginator(self, _name: str) -> Page:
            return Page()

    report = index.delete_expired(Client(), prefix="dr-", now=in_hours(9))
    assert report["alive"] == {"dr-short": pytest.approx(5, abs=0.1)}


def test_stacks_that_are_changing_are_left_alone_and_a_refusal_does_not_stop_the_rest() -> None:
    class Refusing:
        deleted: list[str] = []  # noqa: RUF012

        def get_paginator(self, _name: str) -> Any:
            return self

        def paginate(self) -> list[dict[str, Any]]:
            tags = [{"Key": index.TAG, "Value": "1"}]
            made = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
            return [
                {
                    "Stacks": [
                        {
                            "StackName": name,
                            "StackId": name,
                            "StackStatus": status,
                            "Tags": tags,
                            "CreationTime": made,
                        }
                        for name, status in (
                            ("dr-shared", "CREATE_COMPLETE"),
                            ("dr-endpoint", "UPDATE_ROLLBACK_COMPLETE"),
                            ("dr-busy", "UPDATE_IN_PROGRESS"),
                            ("dr-going", "DELETE_IN_PROGRESS"),
                            ("dr-stuck", "DELETE_FAILED"),
                        )
                    ]
                }
            ]

        def delete_stack(self, *, StackName: str) -> None:  # noqa: N803
            if StackName == "dr-shared":
                raise RuntimeError("Export is in use by dr-endpoint")
            self.deleted.append(StackName)

    report = index.delete_expired(
        Refusing(), prefix="dr-", now=dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    )
    assert report["deleted"] == ["dr-endpoint", "dr-stuck"]
    assert report["refused"] == {"dr-shared": "Export is in use by dr-endpoint"}


def test_the_handler_reads_its_prefix_and_fails_where_something_was_refused(
    cloudformation: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make(cloudformation, "dr-short", "0.0000001")
    monkeypatch.setenv(index.ENV_PREFIX, "dr-")
    assert index.handler({}, None)["deleted"] == ["dr-short"]
    assert json.loads(capsys.readouterr().out)["refused"] == {}
    monkeypatch.setattr(
        index, "delete_expired", lambda *_, **__: {"refused": {"dr-shared": "in use"}}
    )
    with pytest.raises(RuntimeError, match="could not delete"):
        index.handler({}, None)


@pytest.mark.parametrize("prefix", ["", "d", "dr-*"])
def test_a_janitor_of_every_stack_is_refused(prefix: str) -> None:
    with pytest.raises(ValidationError) as caught:
        StackJanitor(new_stack(), "Janitor", stack_name_prefix=prefix, every_hours=0)
    assert len(caught.value.faults) == 2


@pytest.mark.parametrize("hours", [0, 8761, True, 1.5])
def test_a_time_to_live_is_hours_of_a_year(hours: Any) -> None:
    with pytest.raises(ValidationError, match="from 1 to 8760"):
        time_to_live_tags(hours)


def test_the_janitor_may_delete_what_is_tagged_and_nothing_else() -> None:
    stack = new_stack()
    StackJanitor(stack, "Janitor", stack_name_prefix="dr-ana-")
    template = template_of(stack)
    by_sid = {it.get("Sid"): it for it in statements(template)}
    delete = by_sid["DeleteExpiredStacks"]
    assert delete["Action"] == "cloudformation:DeleteStack"
    assert "stack/dr-ana-*/*" in json.dumps(delete["Resource"])
    assert delete["Condition"] == {"Null": {f"aws:ResourceTag/{index.TAG}": "false"}}
    assert by_sid["FindStacks"]["Action"] == "cloudformation:DescribeStacks"
    assert len(by_sid) == 3
    rule = only(template, "AWS::Events::Rule")[1]["Properties"]
    assert rule["ScheduleExpression"] == "rate(1 hour)"
    _, logs = only(template, "AWS::Logs::LogGroup")
    assert (logs["DeletionPolicy"], logs["Properties"]["RetentionInDays"]) == ("Delete", 30)
    assert resources(template, "AWS::IAM::ManagedPolicy") == {}


def test_the_tag_is_the_stacks_own_and_the_template_does_not_change_with_it() -> None:
    apps = []
    for tags in ({}, time_to_live_tags(8)):
        stack = cdk.Stack(new_app(), "Stack", tags=dict(tags))
        cdk.CfnResource(stack, "Topic", type="AWS::SNS::Topic")
        apps.append((template_of(stack), stack.tags.tag_values()))
    assert apps[0][0] == apps[1][0]
    assert apps[1][1] == {index.TAG: "8"}
