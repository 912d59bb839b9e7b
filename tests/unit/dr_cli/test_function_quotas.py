"""Environments that a function reserves are the account's to give."""

from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from dr_cli.findings import Finding, Level
from dr_cli.function_quotas import SUBJECT, reserved_findings
from tests.constructs_fixtures import REGION


def judged(
    *, limit: int, unreserved: int, now: int | None, wanted: int, denied: bool = False
) -> Finding:
    """What is said of one function that has `now` reserved, or is not there yet."""
    client = boto3.client(
        "lambda", region_name=REGION, aws_access_key_id="test", aws_secret_access_key="test"
    )
    stub = Stubber(client)
    settings = {"ConcurrentExecutions": limit, "UnreservedConcurrentExecutions": unreserved}
    if denied:
        stub.add_client_error("get_account_settings", "AccessDeniedException")
    else:
        stub.add_response("get_account_settings", {"AccountLimit": settings})
        asked: dict[str, Any] = {"FunctionName": "dr-function"}
        if now is None:
            stub.add_client_error(
                "get_function_concurrency", "ResourceNotFoundException", expected_params=asked
            )
        else:
            answer = {"ReservedConcurrentExecutions": now} if now else {}
            stub.add_response("get_function_concurrency", answer, asked)
    with stub:
        (finding,) = reserved_findings({"dr-function": wanted}, region=REGION, client=client)
        stub.assert_no_pending_responses()
    assert finding.subject == SUBJECT
    return finding


@pytest.mark.parametrize(
    ("limit", "unreserved", "now", "wanted", "level"),
    [
        (1000, 1000, None, 900, Level.GOOD),
        (1000, 1000, None, 901, Level.FAULT),
        (1000, 900, 100, 900, Level.GOOD),
        (1000, 900, 0, 801, Level.FAULT),
        (10, 10, None, 1, Level.FAULT),
    ],
)
def test_a_function_may_reserve_what_the_account_can_spare(
    limit: int, unreserved: int, now: int | None, wanted: int, level: Level
) -> None:
    finding = judged(limit=limit, unreserved=unreserved, now=now, wanted=wanted)
    assert finding.level is level
    assert f"{wanted} environments wanted" in finding.text
    if level is Level.FAULT:
        assert f"{REGION}.console.aws.amazon.com/servicequotas" in finding.fix


def test_what_may_not_be_asked_is_not_known() -> None:
    finding = judged(limit=0, unreserved=0, now=None, wanted=1, denied=True)
    assert finding.level is Level.UNKNOWN


def test_nothing_is_asked_where_nothing_is_reserved() -> None:
    assert list(reserved_findings({}, region=REGION, client=None)) == []
