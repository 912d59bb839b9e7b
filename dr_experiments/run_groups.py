"""Records of any scenario, grouped as a report shows them: one configuration in one scenario.

    >>> groups = group_records(read_jsonl(Path("out/load/requests.jsonl")))
    >>> groups[0].warm_s, groups[0].failures

Answered warm requests, fresh containers and failures never meet in one number here.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from statistics import fmean
from typing import Final

from dr_experiments.cold_start import COLD_PHASES
from dr_experiments.loadgen import LOADGEN_PREFIX, OFFLINE
from dr_experiments.measured import Measured, is_load, measured
from dr_experiments.records import RequestRecord, platform_of

_ANSWERED: Final = "ok"


@dataclass(frozen=True, kw_only=True)
class Group:
    """Counted requests of one configuration in one scenario of one run, in order of their start.

    `same_name` is true where another group has the same configuration, `same_scenario` where one
    has the same scenario, too, `mixed` where one was measured on another platform; labels then
    say more.
    """

    configuration: str
    scenario: str
    run_id: str
    records: tuple[RequestRecord, ...]
    same_name: bool = False
    same_scenario: bool = False
    mixed: bool = False

    @cached_property
    def platform(self) -> str | None:
        """One of `targets.PLATFORMS`, or None where the records do not say it."""
        return platform_of(self.records)

    @property
    def warm(self) -> tuple[RequestRecord, ...]:
        """Answered by a container that had answered before."""
        return tuple(r for r in self.records if r.outcome == _ANSWERED and not r.cold)

    @property
    def cold(self) -> tuple[RequestRecord, ...]:
        """Answered by a fresh container."""
        return tuple(r for r in self.records if r.outcome == _ANSWERED and r.cold)

    @property
    def failed(self) -> tuple[RequestRecord, ...]:
        """Without a usable answer."""
        return tuple(r for r in self.records if r.outcome != _ANSWERED)

    @property
    def warm_s(self) -> list[float]:
        """Client's round trips of warm answers, seconds."""
        return [r.fullLatency for r in self.warm if r.fullLatency is not None]

    @property
    def waits_s(self) -> list[float]:
        """What a person would have waited: from the moment a request was due, seconds."""
        return [wait for r in self.warm if (wait := _wait(r)) is not None]

    @property
    def container_s(self) -> list[float]:
        """Time in the container of warm answers, seconds."""
        return [r.requestLatency for r in self.warm if r.requestLatency is not None]

    @property
    def cold_s(self) -> list[float]:
        """Client's round trips of fresh containers, seconds."""
        return [r.fullLatency for r in self.cold if r.fullLatency is not None]

    @property
    def is_load(self) -> bool:
        """Whether many requests were open at once."""
        return is_load(self.scenario)

    @property
    def has_due_times(self) -> bool:
        """Whether requests had moments of their own, whatever became of those before."""
        return self.is_load and any(r.intended_offset_s is not None for r in self.records)

    @property
    def is_offline(self) -> bool:
        """LoadGen's Offline: a throughput, no latency that anybody waits."""
        return self.scenario == LOADGEN_PREFIX + OFFLINE

    @property
    def failures(self) -> list[tuple[str, int]]:
        """Reasons with how often each occurred, the most frequent first."""
        counts = Counter(f"{r.outcome}: {r.error}" if r.error else r.outcome for r in self.failed)
        return sorted(counts.items(), key=lambda item: (-item[1], item[0]))

    @cached_property
    def measured(self) -> Measured | None:
        """As cost and recommendation take it; None without a warm answer."""
        found = measured(self.records)
        return found[0] if found else None

    def phases_s(self) -> tuple[int, dict[str, list[float]], tuple[str, ...]]:
        """Phases of the cold starts that were split: n, seconds by phase, names of estimates.

        Where some have the container's own phases and others do not, only the former are taken:
        a mean over both would mix two meanings of "process start".
        """
        split = [r for r in self.cold if r.phases]
        most = max((len(r.phases or {}) for r in split), default=0)
        split = [r for r in split if len(r.phases or {}) == most]
        names = [name for name in COLD_PHASES if any(name in (r.phases or {}) for r in split)]
        estimated = {name for r in split for name in r.phases_estimated or ()}
        return (
            len(split),
            {name: [(r.phases or {})[name] for r in split] for name in names},
            tuple(name for name in names if name in estimated),
        )


def group_records(records: Iterable[RequestRecord]) -> tuple[Group, ...]:
    """Groups in the order in which they were measured.

    Raises:
        ValueError: one configuration of one run answered with two models or on two platforms, or
            nothing was counted.
    """
    found: dict[tuple[str, str, str], list[RequestRecord]] = {}
    for record in records:
        if record.counted:
            key = (record.configuration, record.scenario, record.run_id)
            found.setdefault(key, []).append(record)
    if not found:
        raise ValueError("the records hold no counted request; there is nothing to report")
    for (name, _, run), rows in found.items():
        models = {row.model_sha256 for row in rows if row.model_sha256}
        if len(models) > 1:
            raise ValueError(
                f"{name} answered with {len(models)} models in run {run}; measure one at a time"
            )
    platforms = {key: platform_of(rows) for key, rows in found.items()}
    names = Counter(name for name, _, _ in found)
    pairs = Counter((name, scenario) for name, scenario, _ in found)
    groups = [
        Group(
            configuration=name,
            scenario=scenario,
            run_id=run,
            records=tuple(sorted(rows, key=lambda r: (r.start_offset_s, r.index))),
            same_name=names[name] > 1,
            same_scenario=pairs[(name, scenario)] > 1,
            mixed=len(set(platforms.values())) > 1,
        )
        for (name, scenario, run), rows in found.items()
    ]
    return tuple(groups)


def interleaved(first: Group, second: Group) -> bool:
    """Whether request i of both was sent next to each other, before any request i + 1.

    Then the two share their conditions request by request, and a comparison can be paired.
    """
    if first.run_id != second.run_id or len(first.records) != len(second.records):
        return False
    if len(first.warm) != len(first.records) or len(second.warm) != len(second.records):
        return False
    starts = [
        sorted((datetime.fromisoformat(a.started_at), datetime.fromisoformat(b.started_at)))
        for a, b in zip(_by_start(first.records), _by_start(second.records), strict=True)
    ]
    return len(starts) > 1 and all(this[1] <= following[0] for this, following in pairwise(starts))


def per_second(group: Group) -> list[tuple[float, int, int]]:
    """Start of each second of the run with how many began in it, and how many of these failed."""
    ends = Counter(int(r.start_offset_s) for r in group.records)
    failed = Counter(int(r.start_offset_s) for r in group.failed)
    return [(float(s), ends[s], failed[s]) for s in range(max(ends) + 1)]


def phase_means(phases: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Mean of each phase, seconds."""
    return {name: fmean(values) for name, values in phases.items() if values}


def _by_start(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    return sorted(records, key=lambda r: r.started_at)


def _wait(record: RequestRecord) -> float | None:
    return record.response_time_s if record.response_time_s is not None else record.fullLatency
