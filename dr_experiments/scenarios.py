"""Sequences of requests: who sends what, when.

`warm` is the study's: one request that is not counted, then n at a fixed interval. It is a
closed loop (a slow answer delays the next request), so it measures latency and not capacity.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from dr_experiments.client import Client, Measurement
from dr_experiments.targets import Payload, TargetDescription

WARM_REQUESTS: Final = 25
WARM_INTERVAL_S: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class ScenarioResult:
    """What one scenario measured at one target; `warm_up` is never part of a statistic."""

    scenario: str
    target: TargetDescription
    interval_s: float
    warm_up: Measurement
    measurements: tuple[Measurement, ...]

    @property
    def answered(self) -> tuple[Measurement, ...]:
        """Answered by a warm container: what latency statistics are made of."""
        return tuple(m for m in self.measurements if m.ok and not m.cold)

    @property
    def cold(self) -> tuple[Measurement, ...]:
        """Answered by a fresh container in the middle of a warm run; kept apart."""
        return tuple(m for m in self.measurements if m.ok and m.cold)

    @property
    def mean_gap_s(self) -> float | None:
        """Mean seconds between the starts of counted requests; None for a single one."""
        if len(self.measurements) < 2:
            return None
        first, last = self.measurements[0], self.measurements[-1]
        return (last.start_offset_s - first.start_offset_s) / (len(self.measurements) - 1)

    @property
    def failures(self) -> tuple[Measurement, ...]:
        """Without a usable answer; their durations are in no statistic."""
        return tuple(m for m in self.measurements if not m.ok)


def warm(
    client: Client,
    payload: Payload,
    *,
    requests: int = WARM_REQUESTS,
    interval_s: float = WARM_INTERVAL_S,
    on_request: Callable[[int, Measurement], None] | None = None,
) -> ScenarioResult:
    """One uncounted request, then `requests` that start every `interval_s` seconds.

    Args:
        client: speaks to the target; the uncounted request also opens its connection.
        requests: counted requests, >= 1.
        interval_s: seconds between starts, >= 0; an answer that takes longer delays the next.
        on_request: called after each counted request with its number from 1.
    """
    if requests < 1:
        raise ValueError(f"requests must be at least 1; got {requests}")
    if interval_s < 0:
        raise ValueError(f"interval_s must not be negative; got {interval_s}")
    warm_up = client.measure(payload)
    measurements: list[Measurement] = []
    begin = client.now()
    for number in range(requests):
        client.wait_until(begin + number * interval_s)
        offset = client.now() - begin
        measurement = replace(client.measure(payload), start_offset_s=offset)
        measurements.append(measurement)
        if on_request:
            on_request(number + 1, measurement)
    return ScenarioResult(
        scenario="warm",
        target=client.describe(),
        interval_s=interval_s,
        warm_up=warm_up,
        measurements=tuple(measurements),
    )
