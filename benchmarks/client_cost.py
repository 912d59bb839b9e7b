"""What the client itself takes of a request that it measures.

    python -m benchmarks.client_cost

A server on this machine answers at once; one client asks it again and again over one connection,
and writes each request down as `dr bench` does. Prints the client's own processor time for each
request, and the round trip that it reports: what it adds at most to a latency.
"""

import statistics
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dr_experiments.client import Client
from dr_experiments.journal import Journal
from dr_experiments.records import RunContext
from dr_experiments.targets import UrlTarget
from tests.unit.dr_experiments.fakes import PAYLOAD
from tests.unit.dr_experiments.http_fakes import served

RUNS: Final = 5
REQUESTS: Final = 400


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Medians of the runs, in milliseconds for a request; `written_ms` is a part of `cpu_ms`."""

    cpu_ms: float
    written_ms: float
    round_trip_ms: float


def measure(*, runs: int = RUNS, requests: int = REQUESTS) -> Cost:
    """Ask so often.

    Raises:
        RuntimeError: a request failed.
    """
    found = [_once(requests) for _ in range(runs)]
    return Cost(
        **{
            name: statistics.median(getattr(one, name) for one in found)
            for name in ("cpu_ms", "written_ms", "round_trip_ms")
        }
    )


def _once(requests: int) -> Cost:
    context = RunContext(run_id="client-cost", git_commit=None)
    round_trips_s = []
    written_s = 0.0
    with (
        tempfile.TemporaryDirectory() as folder,
        served(lambda number: 0.0) as (url, _),
        closing(Client(UrlTarget(url))) as client,
        Journal(
            Path(folder) / "requests.jsonl",
            scenario="realtime",
            target=client.describe(),
            interval_s=0.0,
            context=context,
        ) as note,
    ):
        # Opens the connection.
        note(client.measure(PAYLOAD), False)
        begun_s = time.thread_time()
        for _ in range(requests):
            measurement = client.measure(PAYLOAD)
            before_s = time.thread_time()
            note(measurement)
            written_s += time.thread_time() - before_s
            if measurement.full_latency_s is None:
                raise RuntimeError(f"a request failed: {measurement.error}")
            round_trips_s.append(measurement.full_latency_s)
        cpu_s = time.thread_time() - begun_s
    return Cost(
        cpu_ms=cpu_s * 1000 / requests,
        written_ms=written_s * 1000 / requests,
        round_trip_ms=statistics.median(round_trips_s) * 1000,
    )


def main() -> None:
    """Print one line."""
    cost = measure()
    print(
        f"{RUNS} runs of {REQUESTS} requests, medians: {cost.cpu_ms:.2f} ms of processor time a "
        f"request, {cost.written_ms:.2f} ms of it to write the request down; round trip "
        f"{cost.round_trip_ms:.2f} ms"
    )


if __name__ == "__main__":
    main()
