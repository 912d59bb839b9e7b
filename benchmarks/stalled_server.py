"""A server that freezes once, seen by a user who waits and by arrivals that do not.

    python -m benchmarks.stalled_server

It answers one request at a time in 2 ms, and once, half a second after the start, in one second.
Prints p50, p95 and p99 of what each kind of load measured: the closed loop hides the freeze
("coordinated omission"), the open loop and MLPerf LoadGen show what people would have waited.
"""

import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from dr_experiments.client import Client
from dr_experiments.load import Constant, closed_loop, open_loop, poisson_arrivals
from dr_experiments.loadgen import SERVER, LoadgenPlan, LoadgenVerdict, run_loadgen
from dr_experiments.scenarios import ScenarioResult
from dr_experiments.statistics import summarise
from dr_experiments.targets import UrlTarget
from tests.unit.dr_experiments.fakes import PAYLOAD
from tests.unit.dr_experiments.http_fakes import served

STALL_S: Final = 1.0
ANSWER_S: Final = 0.002
DURATION_S: Final = 2.5
RATE_PER_S: Final = 100.0
BOUND_S: Final = 0.1
_FREEZE_AFTER_S: Final = 0.5
Make = Callable[[], Client]


def seconds_waited(run: Callable[[Make], ScenarioResult]) -> list[float]:
    """Response times of all requests of `run` at a server that freezes once, in seconds.

    Raises:
        RuntimeError: the server did not freeze, or a request failed: then the times say nothing.
    """
    frozen = threading.Event()
    freeze_at = time.perf_counter() + _FREEZE_AFTER_S

    def delay_s(_number: int) -> float:
        # One request at a time (the gate), so that only one can find the moment past.
        if time.perf_counter() < freeze_at or frozen.is_set():
            return ANSWER_S
        frozen.set()
        return STALL_S

    with served(delay_s, gate=threading.Lock()) as (url, _):
        result = run(lambda: Client(UrlTarget(url)))
    if not frozen.is_set() or result.failures:
        raise RuntimeError("the server did not freeze, or did not answer every request")
    return [m.response_time_s for m in result.measurements if m.response_time_s is not None]


def closed(make: Make) -> ScenarioResult:
    """One user who waits for each answer."""
    return closed_loop(make, PAYLOAD, Constant(users=1, duration_s=DURATION_S))


def opened(make: Make) -> ScenarioResult:
    """Arrivals that wait for nothing."""
    return open_loop(make, PAYLOAD, poisson_arrivals(RATE_PER_S, duration_s=DURATION_S, seed=7))


def by_loadgen(make: Make, verdicts: list[LoadgenVerdict]) -> ScenarioResult:
    """The same rate by MLPerf LoadGen's Server scenario; its verdict is put into `verdicts`."""
    plan = LoadgenPlan(
        scenario=SERVER, rate_per_s=RATE_PER_S, duration_s=DURATION_S, latency_bound_s=BOUND_S
    )
    with tempfile.TemporaryDirectory() as logs:
        result, verdict = run_loadgen(make, PAYLOAD, plan, logs=Path(logs))
    verdicts.append(verdict)
    return result


def main() -> None:
    verdicts: list[LoadgenVerdict] = []
    runs: Mapping[str, Callable[[Make], ScenarioResult]] = {
        "one user, closed loop": closed,
        f"arrivals at {RATE_PER_S:g} a second, open loop": opened,
        f"MLPerf LoadGen, Server at {RATE_PER_S:g} a second": lambda make: by_loadgen(
            make, verdicts
        ),
    }
    print("| | n | p50, ms | p95, ms | p99, ms |\n| --- | --- | --- | --- | --- |")
    for name, run in runs.items():
        found = summarise([1000 * value for value in seconds_waited(run)])
        print(f"| {name} | {found.n} | {found.p50:,.1f} | {found.p95:,.1f} | {found.p99:,.1f} |")
    for verdict in verdicts:
        print(
            f"\nLoadGen's own: n = {verdict.queries}, p99 {verdict.p99_ms:,.1f} ms from its "
            f"schedule, {verdict.over_bound} later than {BOUND_S:g} s, "
            f"{'valid' if verdict.valid else 'not valid'}"
        )


if __name__ == "__main__":
    main()
