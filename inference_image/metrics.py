"""Counts and times of the whole container, in memory that its workers share.

    >>> metrics = Metrics(workers=2)
    >>> metrics.recorder(0).request(status=200, seconds=0.012, body_bytes=20_480)
    >>> metrics.text()
    '# HELP dr_requests_total ...

`GET /metrics` may reach any worker, and each answers for all of them. Every worker writes only
its own slot, so no lock is needed; a worker that replaces a dead one goes on with the counts of
its slot, so that counters never fall. The text is Prometheus' exposition format 0.0.4
(https://prometheus.io/docs/instrumenting/exposition_formats/, checked 2026-11-28).

Standard library only; made by the process that forks the workers.
"""

import mmap
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from inference_image.contract import PROBLEM_TITLES

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
STATUSES: Final = (200, *PROBLEM_TITLES)
OUTCOMES: Final = ("graded", "ungradable", "refused", "error")
STAGES: Final = ("queue", "decode", "prepare", "engine", "explain")
# Prometheus' usual steps up to the platform's minute.
BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

_REQUESTS: Final = 0
_IMAGES: Final = _REQUESTS + len(STATUSES)
_STAGE_SUMS: Final = _IMAGES + len(OUTCOMES)
_STAGE_COUNTS: Final = _STAGE_SUMS + len(STAGES)
_BUCKETS: Final = _STAGE_COUNTS + len(STAGES)
_OVER: Final = _BUCKETS + len(BUCKETS_S)
_ANSWER_SUM: Final = _OVER + 1
_BYTES: Final = _ANSWER_SUM + 1
_ABANDONED: Final = _BYTES + 1
_STARTS: Final = _ABANDONED + 1
# From here on the state of a worker, which begins anew with each process.
_READY: Final = _STARTS + 1
_PENDING: Final = _READY + 1
_BYTES_HELD: Final = _PENDING + 1
_CONNECTIONS: Final = _BYTES_HELD + 1
_PID: Final = _CONNECTIONS + 1
_WIDTH: Final = _PID + 1
_STATUS_AT: Final = {status: _REQUESTS + index for index, status in enumerate(STATUSES)}
_OUTCOME_AT: Final = {name: _IMAGES + index for index, name in enumerate(OUTCOMES)}
_STAGE_AT: Final = {name: index for index, name in enumerate(STAGES)}
_DOUBLE_BYTES: Final = 8

# CloudWatch's embedded metric format: namespace, and the members of a line that are metrics.
NAMESPACE: Final = "DREndpoints"
_UNITS: Final = {
    "total_ms": "Milliseconds",
    "queue_ms": "Milliseconds",
    "decode_ms": "Milliseconds",
    "prepare_ms": "Milliseconds",
    "engine_ms": "Milliseconds",
    "bytes": "Bytes",
}
_TURNED_AWAY: Final = frozenset({429, 503})
# Outcomes of single images: the network gave no numbers, or there was no time left.
_FAULTS: Final = ("error", "refused 5")


class Metrics:
    """The numbers of all workers; `recorder(slot)` is what one worker writes."""

    def __init__(self, workers: int = 1) -> None:
        self.workers = workers
        # Anonymous and shared: it outlives any worker and needs no file.
        memory = mmap.mmap(-1, _WIDTH * _DOUBLE_BYTES * workers)
        self._values = memoryview(memory).cast("d")

    def recorder(self, slot: int = 0) -> "Recorder":
        """Where the worker of a slot writes; called in that worker's own process."""
        return Recorder(self._values[slot * _WIDTH : (slot + 1) * _WIDTH])

    def text(self, *, model: Mapping[str, str] | None = None) -> str:
        """All numbers in Prometheus' text format.

        Args:
            model: labels of the loaded package (`id`, `sha256`); None while there is none.
        """
        return "".join(line + "\n" for line in self._lines(model))

    def pending(self) -> int:
        """Requests that arrive, wait or are computed, in all workers together."""
        return int(self._sum(_PENDING))

    def ahead(self, slot: int) -> int:
        """How many connections this worker holds more than the one of the others, as far as they
        are ready, that holds fewest; below 0 where it holds fewer, 0 where there is no other."""
        others = [
            self._values[at + _CONNECTIONS]
            for at in range(0, self.workers * _WIDTH, _WIDTH)
            if at != slot * _WIDTH and self._values[at + _READY]
        ]
        return int(self._values[slot * _WIDTH + _CONNECTIONS] - min(others)) if others else 0

    def _sum(self, at: int) -> float:
        return sum(self._values[at::_WIDTH])

    def _lines(self, model: Mapping[str, str] | None) -> Iterator[str]:
        yield from _head("dr_requests_total", "counter", "Answers of POST /invocations by status.")
        for status, at in _STATUS_AT.items():
            yield f'dr_requests_total{{status="{status}"}} {_number(self._sum(at))}'
        yield from _head("dr_images_total", "counter", "Images by what became of them.")
        for outcome, at in _OUTCOME_AT.items():
            yield f'dr_images_total{{outcome="{outcome}"}} {_number(self._sum(at))}'
        yield from self._one(
            "dr_requests_abandoned_total", "counter", "Requests whose sender went away.", _ABANDONED
        )
        yield from self._one(
            "dr_request_bytes_total", "counter", "Bytes of the bodies that were read.", _BYTES
        )
        yield from self._answer_seconds()
        name = "dr_stage_seconds"
        yield from _head(name, "summary", "Time of each stage of a prediction; queue: waiting.")
        for stage, index in _STAGE_AT.items():
            total, count = self._sum(_STAGE_SUMS + index), self._sum(_STAGE_COUNTS + index)
            yield f'{name}_sum{{stage="{stage}"}} {_number(total)}'
            yield f'{name}_count{{stage="{stage}"}} {_number(count)}'
        yield from self._workers()
        if model is not None:
            labels = ",".join(f'{key}="{_escaped(value)}"' for key, value in model.items())
            yield from _head("dr_model_info", "gauge", "The package that answers; always 1.")
            yield f"dr_model_info{{{labels}}} 1"

    def _answer_seconds(self) -> Iterator[str]:
        name = "dr_request_duration_seconds"
        yield from _head(name, "histogram", "Time of the requests that were answered 200.")
        below = 0.0
        for index, bound in enumerate(BUCKETS_S):
            below += self._sum(_BUCKETS + index)
            yield f'{name}_bucket{{le="{bound}"}} {_number(below)}'
        below += self._sum(_OVER)
        yield f'{name}_bucket{{le="+Inf"}} {_number(below)}'
        yield f"{name}_sum {_number(self._sum(_ANSWER_SUM))}"
        yield f"{name}_count {_number(below)}"

    def _workers(self) -> Iterator[str]:
        yield from _head("dr_workers", "gauge", "Worker processes that there should be.")
        yield f"dr_workers {self.workers}"
        yield from self._one("dr_workers_ready", "gauge", "Workers that can predict.", _READY)
        yield from self._one(
            "dr_worker_starts_total",
            "counter",
            "Workers started; more than dr_workers: some have died.",
            _STARTS,
        )
        yield from self._one(
            "dr_pending_requests", "gauge", "Requests arriving, waiting or computed.", _PENDING
        )
        yield from self._one(
            "dr_connections", "gauge", "Connections that callers keep open.", _CONNECTIONS
        )
        yield from self._one(
            "dr_held_bytes", "gauge", "Bytes of bodies arriving or waiting.", _BYTES_HELD
        )
        name = "dr_worker_resident_bytes"
        yield from _head(name, "gauge", "Resident memory of each worker.")
        for slot in range(self.workers):
            resident = resident_bytes(int(self._values[slot * _WIDTH + _PID]))
            if resident is not None:
                yield f'{name}{{worker="{slot}"}} {resident}'

    def _one(self, name: str, kind: str, meaning: str, at: int) -> Iterator[str]:
        yield from _head(name, kind, meaning)
        yield f"{name} {_number(self._sum(at))}"


class Recorder:
    """What one worker counts. Each call costs about a microsecond and never fails."""

    def __init__(self, values: "memoryview[float]") -> None:
        self._values = values
        for at in (_READY, _PENDING, _BYTES_HELD, _CONNECTIONS):
            values[at] = 0.0
        values[_STARTS] += 1
        values[_PID] = os.getpid()

    def ready(self) -> None:
        """The worker can predict."""
        self._values[_READY] = 1.0

    def queue(self, *, pending: int, bytes_held: int) -> None:
        """How many requests are in the worker, and the bytes of their bodies."""
        self._values[_PENDING] = pending
        self._values[_BYTES_HELD] = bytes_held

    def connections(self, count: int) -> None:
        """How many connections the worker holds."""
        self._values[_CONNECTIONS] = count

    def request(
        self, *, status: int, seconds: float, body_bytes: int = 0, abandoned: bool = False
    ) -> None:
        """One answer of `POST /invocations`."""
        values = self._values
        values[_STATUS_AT.get(status, _STATUS_AT[500])] += 1
        values[_BYTES] += body_bytes
        values[_ABANDONED] += abandoned
        if status == 200:
            values[_ANSWER_SUM] += seconds
            values[_bucket(seconds)] += 1

    def image(self, outcome: str) -> None:
        """What became of one image: a member of `OUTCOMES`."""
        self._values[_OUTCOME_AT[outcome]] += 1

    def stage(self, name: str, seconds: float) -> None:
        """Time that one stage of `STAGES` took."""
        index = _STAGE_AT[name]
        self._values[_STAGE_SUMS + index] += seconds
        self._values[_STAGE_COUNTS + index] += 1


def embedded(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Members that make a log line of a request a CloudWatch metric as well.

    CloudWatch Logs reads metrics out of lines in the embedded metric format
    (https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/
    CloudWatch_Embedded_Metric_Format_Specification.html, checked 2026-11-28). The model's id is
    the only dimension: each combination of dimensions is billed as metrics of its own.

    Args:
        fields: of the line; `model`, `status` and `outcome` must be there.
    """
    status = fields["status"]
    outcomes = fields.get("outcomes", (fields["outcome"],))
    if status >= 500:
        faults = int(status not in _TURNED_AWAY)
    else:
        # Of several images, and under Batch Transform, the status does not show such an image.
        faults = sum(outcome.startswith(_FAULTS) for outcome in outcomes)
    counts = {
        "answered": int(status == 200),
        "turned_away": int(status in _TURNED_AWAY),
        "faults": faults,
        "ungradable": outcomes.count("ungradable"),
    }
    units = {name: unit for name, unit in _UNITS.items() if name in fields}
    return {**counts, "_aws": _directions(units | dict.fromkeys(counts, "Count"))}


def embedded_refusals(count: int) -> dict[str, Any]:
    """As `embedded`, for a line about several requests that found the queue full."""
    return {"turned_away": count, "_aws": _directions({"turned_away": "Count"})}


def _directions(units: Mapping[str, str]) -> dict[str, Any]:
    directive = {
        "Namespace": NAMESPACE,
        "Dimensions": [["model"]],
        "Metrics": [{"Name": name, "Unit": unit} for name, unit in units.items()],
    }
    return {"Timestamp": int(time.time() * 1000), "CloudWatchMetrics": [directive]}


def _bucket(seconds: float) -> int:
    for index, bound in enumerate(BUCKETS_S):
        if seconds <= bound:
            return _BUCKETS + index
    return _OVER


def _head(name: str, kind: str, meaning: str) -> tuple[str, str]:
    return f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def resident_bytes(pid: int) -> int | None:
    """Memory that a process holds, in bytes; None where it has ended or the kernel says nothing."""
    if not pid:
        return None
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        # It has just died, or the kernel does not say.
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
