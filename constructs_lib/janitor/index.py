"""Deletes the stacks whose time to live is over.

Runs in AWS Lambda every hour, with the standard library and the boto3 of the Lambda runtime. A
stack asks for it with a tag that holds hours, and its time runs from its last deployment. A stack
that another one still needs is refused by CloudFormation and tried again an hour later, so that
endpoints go first and what they share goes last.
"""

import datetime as dt
import json
import os
from collections.abc import Iterator
from typing import Any

TAG = "dr-endpoints:time-to-live-hours"
ENV_PREFIX = "STACK_NAME_PREFIX"
# Deleting these again is no harm, and the only way on; anything in progress is left alone.
_SETTLED = ("_COMPLETE", "_FAILED")


def handler(_event: dict[str, Any], _context: Any) -> dict[str, Any]:
    """Entry point of the schedule; says what it deleted, and fails where a deletion was refused."""
    import boto3

    report = delete_expired(
        boto3.client("cloudformation"),
        prefix=os.environ[ENV_PREFIX],
        now=dt.datetime.now(dt.UTC),
    )
    print(json.dumps(report))
    if report["refused"]:
        # An error of the function is what its alarm counts.
        raise RuntimeError(f"could not delete: {json.dumps(report['refused'])}")
    return report


def delete_expired(cloudformation: Any, *, prefix: str, now: dt.datetime) -> dict[str, Any]:
    """Ask for the deletion of every stack of that prefix whose time is up.

    Returns:
        `deleted`: names of the stacks whose deletion was asked for; `refused`: reason by name;
        `alive`: hours left by name; `unreadable`: stacks whose tag is no number of hours.
    """
    report: dict[str, Any] = {"deleted": [], "refused": {}, "alive": {}, "unreadable": []}
    for stack in _stacks(cloudformation):
        name = stack["StackName"]
        hours = {tag["Key"]: tag["Value"] for tag in stack.get("Tags", [])}.get(TAG)
        if (
            hours is None
            or not name.startswith(prefix)
            or not stack["StackStatus"].endswith(_SETTLED)
        ):
            continue
        try:
            life = dt.timedelta(hours=float(hours))
        except (ValueError, OverflowError):
            report["unreadable"].append(name)
            continue
        since = stack.get("LastUpdatedTime") or stack["CreationTime"]
        left = since + life - now
        if left > dt.timedelta(0):
            report["alive"][name] = round(left / dt.timedelta(hours=1), 2)
            continue
        try:
            cloudformation.delete_stack(StackName=stack["StackId"])
        except Exception as error:  # noqa: BLE001 - one refusal must not keep the others alive
            report["refused"][name] = str(error)
        else:
            report["deleted"].append(name)
    return report


def _stacks(cloudformation: Any) -> Iterator[dict[str, Any]]:
    for page in cloudformation.get_paginator("describe_stacks").paginate():
        yield from page["Stacks"]
