"""Splits the wait for a fresh container into phases.

What the container did it logs itself, in one line when it is ready; the line is joined to a
request by the container's start id, not by time. What the platform did before (finding a place,
fetching the image and the model) nobody measures: it is the remainder, and named estimated.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dr_experiments.client import Measurement
from dr_experiments.transport import CONNECTION_PHASES

PLATFORM: Final = "platform"
PROCESS_START: Final = "process_start"
IMPORTS: Final = "imports"
MODEL_LOAD: Final = "model_load"
FIRST_PREDICTION: Final = "first_prediction"
CONNECTION: Final = "connection"
ANSWER: Final = "answer"
# In the order in which they happen; `answer` is the request itself, once the container is ready.
COLD_PHASES: Final = (
    CONNECTION,
    PLATFORM,
    PROCESS_START,
    IMPORTS,
    MODEL_LOAD,
    FIRST_PREDICTION,
    ANSWER,
)


# The kernel dates the start of a process in ticks of 10 ms, rounded down.
_CLOCKS_APART_S: Final = 0.02


@dataclass(frozen=True, kw_only=True)
class ReadyLine:
    """What a container logged when it became ready; milliseconds."""

    imports_ms: float
    model_load_ms: float
    warm_up_ms: float
    started_to_ready_ms: float


@dataclass(frozen=True, kw_only=True)
class ColdStart:
    """Phases of one cold answer in seconds; those in `estimated` are remainders.

    The phases add up to the client's round trip.
    """

    phases_s: Mapping[str, float]
    estimated: tuple[str, ...]


def read_ready_lines(lines: Iterable[str]) -> dict[str, ReadyLine]:
    """Ready lines in a container's log by start id; other lines are passed over."""
    found = {}
    for line in lines:
        try:
            entry = json.loads(line)
            if entry["event"] != "ready":
                continue
            found[str(entry["start_id"])] = ReadyLine(
                imports_ms=float(entry["imports_ms"]),
                model_load_ms=float(entry["model_load_ms"]),
                warm_up_ms=float(entry["warm_up_ms"]),
                started_to_ready_ms=float(entry["started_to_ready_ms"]),
            )
        except (ValueError, KeyError, TypeError):
            continue
    return found


def split_cold_start(
    measurement: Measurement, *, ready: ReadyLine | None = None
) -> ColdStart | None:
    """Phases of a request that a fresh container answered; None for any other.

    Without the ready line the container's part stays whole, as `process_start`. A container that
    was ready before the request came (an instance, a local process) has its start outside the
    round trip: then there is nothing to split, and None is returned.
    """
    if not measurement.cold or measurement.answer is None or measurement.full_latency_s is None:
        return None
    started_s = float(measurement.answer["container"].get("started_to_ready_ms", 0)) / 1000
    request_s = float(measurement.answer["requestLatency"])
    connection_s = sum(measurement.phases_ms.get(name, 0.0) for name in CONNECTION_PHASES) / 1000
    platform_s = measurement.full_latency_s - started_s - request_s - connection_s
    if platform_s < -_CLOCKS_APART_S:
        return None
    if platform_s < 0:
        # The two clocks disagree about less than a tick; the phases still add up.
        started_s += platform_s
        platform_s = 0.0
    phases = {CONNECTION: connection_s, PLATFORM: platform_s}
    estimated = [PLATFORM]
    if ready is None:
        phases[PROCESS_START] = started_s
    else:
        known_ms = ready.imports_ms + ready.model_load_ms + ready.warm_up_ms
        phases[PROCESS_START] = max(0.0, started_s - known_ms / 1000)
        phases[IMPORTS] = ready.imports_ms / 1000
        phases[MODEL_LOAD] = ready.model_load_ms / 1000
        phases[FIRST_PREDICTION] = ready.warm_up_ms / 1000
        estimated.append(PROCESS_START)
    phases[ANSWER] = request_s
    return ColdStart(phases_s=phases, estimated=tuple(estimated))
