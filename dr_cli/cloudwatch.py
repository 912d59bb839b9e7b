"""`dr bench cloudwatch`: what AWS measured in the minutes of a recorded run."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.table import Table

from dr_cli.console import make_console
from dr_cli.errors import CommandError
from dr_cli.experiment import RECORDS_FILE
from dr_cli.region import aws_region
from dr_experiments.cloudwatch import METRICS, Fetched, MetricMinute, fetch_minutes
from dr_experiments.records import read_jsonl

METRICS_FILE: Final = "cloudwatch.jsonl"


def bench_cloudwatch(folder: Path, *, region: str | None, wait_s: float) -> None:
    """See `dr bench cloudwatch --help`."""
    from dr_cli.local import running_local_aws

    path = folder / RECORDS_FILE
    if not path.is_file():
        raise CommandError(f"{folder} holds no {RECORDS_FILE}; measure with dr bench first")
    try:
        records = read_jsonl(path)
    except ValueError as error:
        raise CommandError(str(error)) from None
    local = running_local_aws()
    if local is not None:
        client = local.client("cloudwatch")
    else:
        import boto3

        recorded = next((r.region for r in records if r.region), None)
        client = boto3.client("cloudwatch", region_name=aws_region(region) or recorded)
    try:
        fetched = fetch_minutes(records, client=client, wait_s=wait_s)
    except ValueError as error:
        raise CommandError(str(error)) from None
    partial = folder / f".{METRICS_FILE}.partial"
    lines = [json.dumps(minute.document()) + "\n" for minute in fetched.minutes]
    partial.write_text("".join(lines), encoding="utf-8")
    partial.replace(folder / METRICS_FILE)
    console = make_console()
    console.print(_table(fetched.minutes))
    console.print(_words(fetched), soft_wrap=True)
    console.print(f"\nminutes {folder / METRICS_FILE}", soft_wrap=True)


def _table(minutes: Sequence[MetricMinute]) -> Table:
    table = Table(title="CloudWatch, milliseconds, over the minutes of the run")
    for heading in ("endpoint", "metric", "samples", "mean", "least", "most"):
        table.add_column(heading, justify="left" if heading in ("endpoint", "metric") else "right")
    for endpoint in sorted({minute.endpoint for minute in minutes}):
        for metric in METRICS:
            own = [m for m in minutes if (m.endpoint, m.metric) == (endpoint, metric)]
            samples = sum(m.samples for m in own)
            if not samples:
                continue
            # Minutes hold unequal numbers of requests.
            mean_us = sum(m.mean_us * m.samples for m in own) / samples
            least, most = min(m.least_us for m in own), max(m.most_us for m in own)
            numbers = [f"{value / 1000:.1f}" for value in (mean_us, least, most)]
            table.add_row(endpoint, metric, str(samples), *numbers)
    return table


def _words(fetched: Fetched) -> str:
    if not fetched.complete:
        return (
            f"{fetched.found} of {fetched.wanted} answered requests have a sample so far; run "
            "this again later, or with a longer --wait-s"
        )
    mixed = sum(not m.ours_alone for m in fetched.minutes if m.metric == METRICS[0])
    return (
        f"{fetched.found} samples for {fetched.wanted} answered requests. In {mixed} minutes "
        "the numbers differ: somebody else asked too, or a request crossed the minute's end."
    )
