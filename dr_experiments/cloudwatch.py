"""What AWS itself measured: metrics of an endpoint by the minute, and its containers' log.

    >>> minutes = fetch_minutes(records, client=boto3.client("cloudwatch"))
    >>> minutes[0].mean_us, minutes[0].samples, minutes[0].ours

SageMaker publishes `ModelLatency`, `OverheadLatency` and `ModelSetupTime` in microseconds, as sums
over a minute: they can be joined to a run by time window and never to a request ("Monitor
Amazon SageMaker AI with Amazon CloudWatch", read 2026-11-28). They come some minutes late, so that
a run that has just ended waits until as many samples are there as requests were answered.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from dr_experiments.cold_start import ReadyLine, read_ready_lines
from dr_experiments.records import RequestRecord
from dr_experiments.targets import OUTCOME_OK

NAMESPACE: Final = "AWS/SageMaker"
MODEL_LATENCY: Final = "ModelLatency"
OVERHEAD_LATENCY: Final = "OverheadLatency"
MODEL_SETUP_TIME: Final = "ModelSetupTime"
METRICS: Final = (MODEL_LATENCY, OVERHEAD_LATENCY, MODEL_SETUP_TIME)
# The project's endpoints have one variant of this name (constructs_lib).
VARIANT: Final = "AllTraffic"
_PERIOD_S: Final = 60
_STATISTICS: Final = ("SampleCount", "Average", "Minimum", "Maximum")
WAIT_S: Final = 600.0
_POLL_S: Final = 20.0


@dataclass(frozen=True, kw_only=True)
class MetricMinute:
    """One metric of one endpoint in one minute that begins at `begin`; microseconds.

    `ours` counts the answered requests of the run that *began* in this minute. Where it differs
    from `samples`, somebody else asked the endpoint, too, or a request crossed the minute's end:
    then the mean is not of this run's requests alone (`ours_alone`).
    """

    endpoint: str
    metric: str
    begin: datetime
    samples: int
    mean_us: float
    least_us: float
    most_us: float
    ours: int

    @property
    def ours_alone(self) -> bool:
        """True where the minute has as many samples as this run has requests in it."""
        return self.samples == self.ours

    def document(self) -> dict[str, Any]:
        """As a line of a file."""
        return {**asdict(self), "begin": self.begin.isoformat(), "ours_alone": self.ours_alone}


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """All minutes of a run; `complete` is false where samples were still missing at the end."""

    minutes: tuple[MetricMinute, ...]
    wanted: int
    found: int

    @property
    def complete(self) -> bool:
        """Whether `ModelLatency` has a sample for each answered request."""
        return self.found >= self.wanted


def fetch_minutes(
    records: Iterable[RequestRecord],
    *,
    client: Any,
    variant: str = VARIANT,
    wait_s: float = WAIT_S,
    sleep: Callable[[float], None] = time.sleep,
) -> Fetched:
    """Metrics of the endpoints and the time of `records`, waiting for what comes late.

    Args:
        records: of SageMaker endpoints; their `endpoint` and `started_at` are used.
        client: a boto3 `cloudwatch` client of their region.
        wait_s: longest time to wait; what is there then is returned.

    Raises:
        ValueError: no record is of an endpoint.
        botocore.exceptions.ClientError: CloudWatch refused.
    """
    answered: dict[str, list[datetime]] = {}
    for record in records:
        if record.endpoint is not None and record.outcome == OUTCOME_OK:
            moment = datetime.fromisoformat(record.started_at).astimezone(UTC)
            answered.setdefault(record.endpoint, []).append(moment)
    if not answered:
        raise ValueError("no answered request of a SageMaker endpoint is among the records")
    wanted = sum(len(moments) for moments in answered.values())
    waited_s = 0.0
    while True:
        minutes = [
            minute
            for endpoint, moments in answered.items()
            for minute in _minutes_of(endpoint, moments, client=client, variant=variant)
        ]
        found = sum(m.samples for m in minutes if m.metric == MODEL_LATENCY)
        if found >= wanted or waited_s >= wait_s:
            return Fetched(minutes=tuple(minutes), wanted=wanted, found=found)
        sleep(_POLL_S)
        waited_s += _POLL_S


def _minutes_of(
    endpoint: str, moments: Sequence[datetime], *, client: Any, variant: str
) -> list[MetricMinute]:
    ours = Counter(_minute(moment) for moment in moments)
    # A cold request may end minutes after it began, and is counted where it ends.
    begin, end = _minute(min(moments)), _minute(max(moments)) + timedelta(minutes=5)
    dimensions = [
        {"Name": "EndpointName", "Value": endpoint},
        {"Name": "VariantName", "Value": variant},
    ]
    queries = [
        {
            "Id": f"{statistic.lower()}_{metric.lower()}",
            "MetricStat": {
                "Metric": {
                    "Namespace": NAMESPACE,
                    "MetricName": metric,
                    "Dimensions": dimensions,
                },
                "Period": _PERIOD_S,
                "Stat": statistic,
            },
        }
        for metric in METRICS
        for statistic in _STATISTICS
    ]
    values: dict[tuple[str, datetime], dict[str, float]] = {}
    pages = client.get_paginator("get_metric_data").paginate(
        MetricDataQueries=queries, StartTime=begin, EndTime=end, ScanBy="TimestampAscending"
    )
    names = {f"{s.lower()}_{m.lower()}": (m, s) for m in METRICS for s in _STATISTICS}
    for page in pages:
        for result in page["MetricDataResults"]:
            metric, statistic = names[result["Id"]]
            for moment, value in zip(result["Timestamps"], result["Values"], strict=True):
                key = (metric, moment.astimezone(UTC))
                values.setdefault(key, {})[statistic] = float(value)
    return [
        MetricMinute(
            endpoint=endpoint,
            metric=metric,
            begin=moment,
            samples=round(statistics["SampleCount"]),
            mean_us=statistics["Average"],
            least_us=statistics["Minimum"],
            most_us=statistics["Maximum"],
            ours=ours.get(moment, 0),
        )
        for (metric, moment), statistics in sorted(values.items())
        if len(statistics) == len(_STATISTICS) and statistics["SampleCount"] > 0
    ]


def fetch_ready_lines(
    endpoint: str,
    start_ids: Collection[str],
    *,
    since: datetime,
    client: Any,
    log_group: str | None = None,
    wait_s: float = 120.0,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, ReadyLine]:
    """What the containers of an endpoint logged when they became ready, by start id.

    Args:
        start_ids: containers that answered; it is waited for their lines, which come late.
        since: nothing that was logged before is looked at.
        client: a boto3 `logs` client.
        log_group: SageMaker's for `endpoint` unless given.

    Returns:
        What was found; ids without a line are missing.
    """
    import botocore.exceptions

    group = log_group or f"/aws/sagemaker/Endpoints/{endpoint}"
    waited_s = 0.0
    while True:
        try:
            pages = client.get_paginator("filter_log_events").paginate(
                logGroupName=group,
                startTime=int(since.timestamp() * 1000),
                filterPattern='"ready"',
            )
            found = read_ready_lines(e["message"] for page in pages for e in page["events"])
        except botocore.exceptions.ClientError as error:
            # The group appears with its first line.
            if error.response["Error"]["Code"] != "ResourceNotFoundException":
                raise
            found = {}
        if set(start_ids) <= set(found) or waited_s >= wait_s:
            return found
        sleep(_POLL_S)
        waited_s += _POLL_S


def _minute(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0)
