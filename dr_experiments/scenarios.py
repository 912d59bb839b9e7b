"""Sequences of requests: who sends what, when.

Three are the study's: `warm` (one request that is not counted, then n at a fixed interval),
`realtime` (the same without the uncounted one) and `cold` (far enough apart that each meets a
fresh container). They are closed loops (a slow answer delays the next request), so they measure
latency and not capacity; `load` has those that measure capacity.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dr_experiments.client import Client, Measurement
from dr_experiments.targets import Payload, TargetDescription

WARM_REQUESTS: Final = 25
WARM_INTERVAL_S: Final = 5.0
COLD_REQUESTS: Final = 10
COLD_GAP_S: Final = 900.0
# Some platforms keep a container longer than the gap: how often a gap may bring none.
COLD_ATTEMPTS: Final = 3

# Told of each measurement as it is in the result, and whether it counts, before the next begins.
OnMeasured = Callable[[Measurement, bool], None]


@dataclass(frozen=True, kw_only=True)
class ScenarioResult:
    """What one scenario measured at one target.

    `warm_up` is never part of a statistic, and None where the scenario has none. `interval_s` is
    0 where requests follow no fixed interval.
    """

    scenario: str
    target: TargetDescription
    interval_s: float
    warm_up: Measurement | None
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


class InterruptedScenario(KeyboardInterrupt):
    """Ctrl-C in the middle of a scenario; `result` has what was measured until then."""

    def __init__(self, result: ScenarioResult) -> None:
        super().__init__()
        self.result = result


class UnknownContainerError(ValueError):
    """A cold start cannot be told from another answer; the text says why."""


def warm(
    client: Client,
    payload: Payload,
    *,
    requests: int = WARM_REQUESTS,
    interval_s: float = WARM_INTERVAL_S,
    on_request: Callable[[int, Measurement], None] | None = None,
    on_measured: OnMeasured = lambda *_: None,
) -> ScenarioResult:
    """One uncounted request, then `requests` that start every `interval_s` seconds.

    Args:
        client: speaks to the target; the uncounted request also opens its connection.
        requests: counted requests, >= 1.
        interval_s: seconds between starts, >= 0; an answer that takes longer delays the next.
        on_request: called after each counted request with its number from 1.
        on_measured: called with each measurement, the uncounted one as well.
    """
    _check(requests, interval_s)
    warm_up = client.measure(payload)
    on_measured(warm_up, False)
    return _paced(
        "warm", client, payload, requests, interval_s, on_request, on_measured, warm_up=warm_up
    )


def warm_in_turn(
    clients: Sequence[Client],
    payload: Payload,
    *,
    requests: int = WARM_REQUESTS,
    interval_s: float = WARM_INTERVAL_S,
    on_request: Callable[[int, int, Measurement], None] | None = None,
    on_measured: Sequence[OnMeasured] = (),
) -> tuple[ScenarioResult, ...]:
    """The warm scenario at several targets at once: request i of each, then request i + 1 of each.

    What disturbs a machine or a network for a while then meets all of them, so that they can be
    compared request by request. Each round another target is the first one.

    Args:
        clients: one for each target.
        requests: counted requests to each, >= 1.
        interval_s: seconds between the starts of two rounds, >= 0.
        on_request: called after each counted request with the number of the client from 0, and of
            its request from 1.
        on_measured: as in `warm`, one for each client.
    """
    _check(requests, interval_s)
    told = on_measured or [lambda *_: None] * len(clients)
    warm_ups = [client.measure(payload) for client in clients]
    for note, warm_up in zip(told, warm_ups, strict=True):
        note(warm_up, False)
    found: list[list[Measurement]] = [[] for _ in clients]
    clock = clients[0]
    begin = clock.now()
    places = range(len(clients))
    for number in range(requests):
        clock.wait_until(begin + number * interval_s)
        first = number % len(clients)
        for place in (*places[first:], *places[:first]):
            offset = clock.now() - begin
            measurement = replace(clients[place].measure(payload), start_offset_s=offset)
            found[place].append(measurement)
            told[place](measurement, True)
            if on_request:
                on_request(place, number + 1, measurement)
    return tuple(
        ScenarioResult(
            scenario="warm",
            target=client.describe(),
            interval_s=interval_s,
            warm_up=warm_up,
            measurements=tuple(measurements),
        )
        for client, warm_up, measurements in zip(clients, warm_ups, found, strict=True)
    )


def realtime(
    client: Client,
    payload: Payload,
    *,
    requests: int = WARM_REQUESTS,
    interval_s: float = WARM_INTERVAL_S,
    on_request: Callable[[int, Measurement], None] | None = None,
    on_measured: OnMeasured = lambda *_: None,
) -> ScenarioResult:
    """`requests` that start every `interval_s` seconds, each of them counted.

    An instance is always on, so that there is nothing to warm up but the connection, whose
    opening the records keep apart. Arguments as in `warm`.
    """
    _check(requests, interval_s)
    return _paced("realtime", client, payload, requests, interval_s, on_request, on_measured)


def cold(
    client: Client,
    payload: Payload,
    *,
    requests: int = COLD_REQUESTS,
    gap_s: float = COLD_GAP_S,
    attempts: int = COLD_ATTEMPTS,
    renew: Callable[[], None] | None = None,
    on_request: Callable[[int, Measurement], None] | None = None,
    on_measured: OnMeasured = lambda *_: None,
) -> ScenarioResult:
    """Requests that each meet a container which has answered nothing before.

    A request counts as cold when the container says so itself: its start id was not seen before
    in this run and it has answered nothing. The others stay in the result, as warm ones, and
    another gap is waited for.

    Args:
        requests: fresh containers to see, >= 1.
        gap_s: seconds without a request before each, >= 0. SageMaker does not say how long it
            keeps an idle container; the study waited 15 minutes.
        attempts: gaps for each fresh container, >= 1, before the scenario ends with fewer.
        renew: makes the next container a fresh one, where the caller can (a local process);
            called before each request instead of nothing.
        on_request: called after each request with the number of fresh containers so far.
        on_measured: called with each measurement.

    Returns:
        The result; its `cold` are the verified ones, and may be fewer than `requests`.

    Raises:
        UnknownContainerError: answers do not say which container gave them.
    """
    _check(requests, gap_s)
    if attempts < 1:
        raise ValueError(f"attempts must be at least 1; got {attempts}")
    measurements: list[Measurement] = []
    seen: set[str] = set()
    found = 0
    begin = client.now()

    def result() -> ScenarioResult:
        return ScenarioResult(
            scenario="cold",
            target=client.describe(),
            interval_s=gap_s,
            warm_up=None,
            measurements=tuple(measurements),
        )

    for _ in range(requests):
        for _ in range(attempts):
            try:
                if renew:
                    renew()
                client.wait_until(client.now() + gap_s)
                offset = client.now() - begin
                measurement = replace(client.measure(payload), start_offset_s=offset)
                if measurement.ok:
                    measurement = _told_apart(measurement, seen)
                measurements.append(measurement)
                on_measured(measurement, True)
                fresh = bool(measurement.cold)
                found += fresh
                if on_request:
                    on_request(found, measurement)
            except KeyboardInterrupt:
                raise InterruptedScenario(result()) from None
            if fresh:
                break
        else:
            # It would not become colder by asking again: each request keeps it warm.
            break
    return result()


def _told_apart(measurement: Measurement, seen: set[str]) -> Measurement:
    """The measurement, with whether its container answered before; `seen` gets its start id."""
    start_id = measurement.start_id
    if not start_id:
        raise UnknownContainerError(
            "its answers have no start_id (container), so that nobody can tell a fresh container "
            "from one that has answered before"
        )
    met = start_id in seen
    seen.add(start_id)
    return replace(measurement, start_seen=met)


def _paced(
    scenario: str,
    client: Client,
    payload: Payload,
    requests: int,
    interval_s: float,
    on_request: Callable[[int, Measurement], None] | None,
    on_measured: OnMeasured,
    *,
    warm_up: Measurement | None = None,
) -> ScenarioResult:
    measurements: list[Measurement] = []
    begin = client.now()

    def result() -> ScenarioResult:
        return ScenarioResult(
            scenario=scenario,
            target=client.describe(),
            interval_s=interval_s,
            warm_up=warm_up,
            measurements=tuple(measurements),
        )

    for number in range(requests):
        try:
            client.wait_until(begin + number * interval_s)
            offset = client.now() - begin
            measurement = replace(
                client.measure(payload),
                start_offset_s=offset,
                intended_offset_s=number * interval_s,
            )
            measurements.append(measurement)
            on_measured(measurement, True)
            if on_request:
                on_request(number + 1, measurement)
        except KeyboardInterrupt:
            raise InterruptedScenario(result()) from None
    return result()


def _check(requests: int, interval_s: float) -> None:
    if requests < 1:
        raise ValueError(f"requests must be at least 1; got {requests}")
    if interval_s < 0:
        raise ValueError(f"the seconds between requests must not be negative; got {interval_s}")
