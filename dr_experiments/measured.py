"""Configurations as they were measured: what a cost and a recommendation start from.

    >>> measured(read_jsonl(Path("out/bench/requests.jsonl")))

Only answered, counted, warm requests have latencies here, and of those the ones of the calmest
scenario that there is (`precedence`); failures and cold starts are counted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from dr_experiments.deployment_cost import MODE_LAMBDA, Setup
from dr_experiments.loadgen import LOADGEN_PREFIX
from dr_experiments.records import RequestRecord, platform_of
from dr_experiments.statistics import Interval, Summary, percentile, summarise
from inference_image.contract import SERVING_MODE_REALTIME, SERVING_MODE_SERVERLESS
from stacks.matrix import MATRIX, STACK_PREFIX, Deployment

_ANSWERED: Final = "ok"
WARM: Final = "warm"
COLD: Final = "cold"
_LOAD_PREFIXES: Final = ("load-", LOADGEN_PREFIX)
_CALM, _AFTER_A_PAUSE, _LOAD = range(3)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One configuration. Times are seconds; `row` is its row of the matrix, where it has one.

    `platform` is one of `targets.PLATFORMS`, or None where the records do not say it. `init_s` is
    the mean init phase that Lambda reported of its starts, None where it reported none.
    `model_sha256` and `runtime` are the package's digest and the container flavour, None where the
    records do not have them.
    """

    name: str
    row: Deployment | None
    setup: Setup | None
    model_id: str | None
    requests: int
    failed: int
    cold: int
    round_trip: Summary
    container: Summary
    p99: Interval
    bytes_in: float
    bytes_out: float
    platform: str | None = None
    init_s: float | None = None
    model_sha256: str | None = None
    runtime: str | None = None


def measured(records: Iterable[RequestRecord]) -> tuple[Measured, ...]:
    """One entry a configuration, in the order of the records; none for one without an answer.

    Fresh containers of one run join what another measured warm: `init_s` and the counts are of
    both.

    Raises:
        ValueError: one name for two models, sizes or platforms, or for two series of warm requests:
            its numbers would mean nothing.
    """
    by_name: dict[str, list[RequestRecord]] = {}
    for record in records:
        if record.counted:
            by_name.setdefault(record.configuration, []).append(record)
    found = (_measured(name, rows) for name, rows in by_name.items())
    return tuple(one for one in found if one is not None)


def joined(runs: Sequence[Sequence[RequestRecord]]) -> tuple[Measured, ...]:
    """Configurations of several runs, each measured warm in one of them.

    Which run is in which file makes no difference.

    Raises:
        ValueError: a request that two runs hold; or as `measured`.
    """
    seen: set[tuple[str, str, str, int]] = set()
    for run in runs:
        for record in run:
            if record.key in seen:
                raise ValueError(
                    f"{record.configuration}: measured in two of the runs, which both hold "
                    f"{record.key_words}; name one of them"
                )
        seen |= {record.key for record in run}
    return measured(record for run in runs for record in run)


def only_fresh(records: Iterable[RequestRecord]) -> dict[str, int]:
    """Configurations that fresh containers alone answered, with the number of these answers."""
    answered: dict[str, list[RequestRecord]] = {}
    for record in records:
        if record.counted and record.outcome == _ANSWERED:
            answered.setdefault(record.configuration, []).append(record)
    return {name: len(rows) for name, rows in answered.items() if all(r.cold for r in rows)}


def row_of(name: str) -> Deployment | None:
    """Row of the matrix whose stack has this name, in any stage; None without one."""
    matching = [
        row
        for row in MATRIX
        if name == row.stack_id
        or (
            name.startswith(f"{STACK_PREFIX}-")
            and name.endswith(row.stack_id.removeprefix(STACK_PREFIX))
        )
    ]
    return matching[0] if len(matching) == 1 else None


def _measured(name: str, records: Sequence[RequestRecord]) -> Measured | None:
    warm = [record for record in records if _warm(record)]
    if not warm:
        return None
    first = min(precedence(record.scenario) for record in warm)
    warm = [record for record in warm if precedence(record.scenario) == first]
    models = {record.model_sha256 for record in warm}
    if len(models) > 1:
        raise ValueError(f"{name} answered with {len(models)} models; measure one at a time")
    sizes = sorted(
        {
            f"{r.memory_mib} MiB" if r.memory_mib else r.instance_type or "no named size"
            for r in warm
        }
    )
    if len(sizes) > 1:
        raise ValueError(
            f"{name} answered on {' and '.join(sizes)}; a cost is one size's: measure one at a time"
        )
    runs = sorted({record.run_id for record in warm})
    if len(runs) > 1:
        both = " and ".join(runs[:2])
        raise ValueError(
            f"{name}: measured in two of the runs ({warm[0].scenario} in {both}); keep one of them"
        )
    started = [record for record in records if record.init_duration_ms is not None]
    # An init phase of another model or size would be billed as this one's.
    if {(r.model_sha256, r.memory_mib) for r in started if r.model_sha256} - {
        (r.model_sha256, r.memory_mib) for r in warm
    }:
        raise ValueError(
            f"{name} started with another model or memory size than it answered with; measure one "
            "at a time"
        )
    round_trips = [float(record.fullLatency or 0) for record in warm]
    waits = [_wait_s(record) for record in warm]
    inits = [(record.init_duration_ms or 0) / 1000 for record in started]
    row = row_of(name)
    return Measured(
        name=name,
        row=row,
        setup=_setup(warm[0], row),
        model_id=warm[0].model_id,
        requests=len(records),
        failed=sum(record.outcome != _ANSWERED for record in records),
        cold=sum(bool(record.cold) for record in records),
        round_trip=summarise(round_trips),
        container=summarise([float(record.requestLatency or 0) for record in warm]),
        p99=percentile(waits, 99),
        bytes_in=sum(record.bytes_in for record in warm) / len(warm),
        bytes_out=sum(record.bytes_out or 0 for record in warm) / len(warm),
        platform=platform_of(records),
        init_s=fmean(inits) if inits else None,
        model_sha256=warm[0].model_sha256,
        runtime=warm[0].runtime,
    )


def _warm(record: RequestRecord) -> bool:
    """Whether a latency of this record counts."""
    return (
        record.counted
        and record.outcome == _ANSWERED
        and not record.cold
        and record.fullLatency is not None
        and record.requestLatency is not None
    )


def precedence(scenario: str) -> tuple[int, bool, str]:
    """How well a scenario's warm answers tell what one costs: those of the lowest one count.

    A run of fresh containers may hold a few warm answers, each after a pause of minutes. A load's
    times hold queues, which nobody is billed for.
    """
    calm = _AFTER_A_PAUSE if scenario == COLD else _CALM
    return _LOAD if is_load(scenario) else calm, scenario != WARM, scenario


def is_load(scenario: str) -> bool:
    """Whether a scenario has many requests open at once."""
    return scenario.startswith(_LOAD_PREFIXES)


def _wait_s(record: RequestRecord) -> float:
    """What a person would have waited.

    Under load an answer is late from the moment at which it was due. In a calm scenario the moment
    is only the client's own pace, and a request that waits for the one before keeps nobody waiting.
    """
    due = record.response_time_s if is_load(record.scenario) else None
    return float(due or record.fullLatency or 0)


def _setup(record: RequestRecord, row: Deployment | None) -> Setup | None:
    """None for what has no price, such as a process behind a URL."""
    if row is not None:
        return Setup(
            mode=row.mode.value,
            memory_mib=row.memory_mib,
            instance_type=row.instance_type,
            architecture=row.architecture.value if row.mode.value not in _SAGEMAKER else None,
        )
    if record.mode not in (*_SAGEMAKER, MODE_LAMBDA):
        return None
    if record.memory_mib is None and record.instance_type is None:
        return None
    if record.mode == MODE_LAMBDA and record.architecture is None:
        return None
    return Setup(
        mode=record.mode,
        memory_mib=record.memory_mib,
        instance_type=record.instance_type,
        architecture=record.architecture if record.mode == MODE_LAMBDA else None,
    )


_SAGEMAKER: Final = (SERVING_MODE_SERVERLESS, SERVING_MODE_REALTIME)
