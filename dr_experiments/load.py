"""Many requests at once: simulated users (a closed loop), and arrivals on a schedule (an open one).

    >>> result = closed_loop(make_client, payload, Constant(users=40, duration_s=300))
    >>> result = open_loop(make_client, payload, poisson_arrivals(20, duration_s=60, seed=7))

A simulated user waits for an answer before asking again, as a clinic's screen does; when the
server stalls, so do the users, and the requests that would have come meanwhile are never sent.
That is "coordinated omission" (G. Tene, "How NOT to Measure Latency", 2013): p99 looks good while
people wait. An open loop sends when its schedule says so, whatever became of the request before,
and measures each from the moment at which it was due (`Measurement.response_time_s`).

Users and senders are threads of this process, each with a connection of its own: any target
works, and what one costs is measured in docs/experiments.md.
"""

import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np

from dr_experiments.client import Client, Measurement
from dr_experiments.scenarios import InterruptedScenario, OnMeasured, ScenarioResult
from dr_experiments.targets import Payload

DEFAULT_USERS: Final = 40
DEFAULT_DURATION_S: Final = 300.0
# More at once than any endpoint of the matrix takes; a request beyond waits, and is measured so.
MAX_IN_FLIGHT: Final = 256
_TICK_S: Final = 0.02

MakeClient = Callable[[], Client]
OnRequest = Callable[[int], None]


class Shape(Protocol):
    """How many users there are, `seconds` after the start; `duration_s` ends it.

    The idea is Locust's `LoadTestShape`.
    """

    @property
    def duration_s(self) -> float:
        """Seconds until the last user stops."""
        ...

    @property
    def most(self) -> int:
        """The largest number of users at any time."""
        ...

    def users_at(self, seconds: float) -> int:
        """Users at this moment."""
        ...


@dataclass(frozen=True, kw_only=True)
class Constant:
    """The same number of users all the time."""

    users: int = DEFAULT_USERS
    duration_s: float = DEFAULT_DURATION_S

    def __post_init__(self) -> None:
        _check_shape(self.users, self.duration_s)

    @property
    def most(self) -> int:
        """All of them."""
        return self.users

    def users_at(self, seconds: float) -> int:
        """All of them, always."""
        return self.users


@dataclass(frozen=True, kw_only=True)
class Incremental:
    """A staircase: `steps` equal steps up to `users`."""

    users: int = DEFAULT_USERS
    duration_s: float = DEFAULT_DURATION_S
    steps: int = 10

    def __post_init__(self) -> None:
        _check_shape(self.users, self.duration_s)
        if not 1 <= self.steps <= self.users:
            raise ValueError(f"steps must be between 1 and the users; got {self.steps}")

    @property
    def most(self) -> int:
        """Those of the last step."""
        return self.users

    def users_at(self, seconds: float) -> int:
        """Users of the step that this moment is in."""
        step = min(self.steps, int(seconds / self.duration_s * self.steps) + 1)
        return max(1, round(self.users * step / self.steps))


@dataclass(frozen=True, kw_only=True)
class Random:
    """A new number of users between 1 and `users` every `every_s` seconds, from a seed."""

    users: int = DEFAULT_USERS
    duration_s: float = DEFAULT_DURATION_S
    every_s: float = 10.0
    seed: int = 7

    def __post_init__(self) -> None:
        _check_shape(self.users, self.duration_s)
        if self.every_s <= 0:
            raise ValueError(f"every_s must be positive; got {self.every_s}")

    @property
    def most(self) -> int:
        """The upper end of the range."""
        return self.users

    def users_at(self, seconds: float) -> int:
        """The draw of this moment's interval; the same seed draws the same."""
        generator = np.random.default_rng((self.seed, int(seconds / self.every_s)))
        return int(generator.integers(1, self.users, endpoint=True))


@dataclass(frozen=True, kw_only=True)
class Spike:
    """A tenth of the users, and all of them in the middle fifth of the time."""

    users: int = DEFAULT_USERS
    duration_s: float = DEFAULT_DURATION_S

    def __post_init__(self) -> None:
        _check_shape(self.users, self.duration_s)

    @property
    def most(self) -> int:
        """Those of the spike."""
        return self.users

    def users_at(self, seconds: float) -> int:
        """All in the middle fifth, a tenth before and after."""
        inside = 0.4 * self.duration_s <= seconds < 0.6 * self.duration_s
        return self.users if inside else max(1, self.users // 10)


SHAPES: Final[dict[str, Callable[[int, float, int], Shape]]] = {
    "constant": lambda users, duration_s, seed: Constant(users=users, duration_s=duration_s),
    "incremental": lambda users, duration_s, seed: Incremental(
        users=users, duration_s=duration_s, steps=min(10, users)
    ),
    "random": lambda users, duration_s, seed: Random(
        users=users, duration_s=duration_s, every_s=min(10.0, duration_s / 10), seed=seed
    ),
    "spike": lambda users, duration_s, seed: Spike(users=users, duration_s=duration_s),
}


def closed_loop(
    make_client: MakeClient,
    payload: Payload,
    shape: Shape,
    *,
    think_s: float = 0.0,
    on_request: OnRequest | None = None,
    on_measured: OnMeasured = lambda *_: None,
) -> ScenarioResult:
    """Simulated users who send, wait for the answer, think, and send again.

    Args:
        make_client: called once for each user; what it returns is used by that user alone.
        think_s: seconds between an answer and the user's next request, >= 0.
        on_request: called with the number of finished requests, from any user's thread.
        on_measured: called with each measurement, likewise.

    Returns:
        All requests that were begun before the end, in order of their start; none is cut off.

    Raises:
        Exception: what `make_client` or a user's thread raised; the others end before it.
    """
    if think_s < 0:
        raise ValueError(f"think_s must not be negative; got {think_s}")
    clients = [make_client() for _ in range(shape.most)]
    log: queue.SimpleQueue[Measurement] = queue.SimpleQueue()
    count = itertools.count(1)
    stop = threading.Event()
    failures: list[Exception] = []
    begin = time.perf_counter()

    def live(user: int) -> None:
        while not stop.is_set():
            now = time.perf_counter() - begin
            if now >= shape.duration_s:
                return
            if user >= shape.users_at(now):
                stop.wait(_TICK_S)
                continue
            measurement = replace(clients[user].measure(payload), start_offset_s=now, user=user)
            log.put(measurement)
            on_measured(measurement, True)
            if on_request:
                on_request(next(count))
            if think_s:
                stop.wait(think_s)

    def come_and_go(user: int) -> None:
        # Each closes its own connection: after Ctrl-C some still wait for an answer on theirs.
        try:
            live(user)
        except Exception as error:  # noqa: BLE001
            # Raised below: a user who is silently missing would be a load that nobody asked for.
            failures.append(error)
            stop.set()
        finally:
            clients[user].close()

    scenario = "load-" + type(shape).__name__.lower()
    try:
        _run([threading.Thread(target=come_and_go, args=(u,)) for u in range(shape.most)], stop)
    except KeyboardInterrupt:
        # Requests that are under way stay out: their answers are not waited for.
        raise InterruptedScenario(_result(scenario, clients[0], log)) from None
    if failures:
        raise failures[0]
    return _result(scenario, clients[0], log)


def poisson_arrivals(rate_per_s: float, *, duration_s: float, seed: int) -> list[float]:
    """Moments in seconds from the start at which independent people come, `rate_per_s` on average.

    Gaps are exponential; the same seed gives the same moments.
    """
    if rate_per_s <= 0 or duration_s <= 0:
        raise ValueError("the rate and the duration of arrivals must be positive")
    generator = np.random.default_rng(seed)
    moments: list[float] = []
    now = float(generator.exponential(1 / rate_per_s))
    while now < duration_s:
        moments.append(now)
        now += float(generator.exponential(1 / rate_per_s))
    return moments


def open_loop(
    make_client: MakeClient,
    payload: Payload,
    arrivals: Sequence[float],
    *,
    max_in_flight: int = MAX_IN_FLIGHT,
    on_request: OnRequest | None = None,
    on_measured: OnMeasured = lambda *_: None,
) -> ScenarioResult:
    """Requests at the moments of `arrivals`, whatever became of those before.

    Args:
        make_client: called once for each sender, in its thread.
        arrivals: seconds from the start, ascending, at least one; see `poisson_arrivals`.
        max_in_flight: senders, >= 1. When all are busy a due request waits here, and its
            `response_time_s` says so, because it counts from the moment of its arrival.
        on_request: called with the number of finished requests, from any sender's thread.
        on_measured: called with each measurement, likewise.

    Raises:
        Exception: what a sender's thread raised; what was sent before has been answered.
    """
    if not arrivals:
        raise ValueError("an open loop needs at least one arrival: a longer time or a higher rate")
    senders = Senders(
        make_client,
        payload,
        most=max_in_flight,
        on_request=on_request,
        on_measured=lambda _, measurement: on_measured(measurement, True),
    )
    interrupted = False
    try:
        for moment in arrivals:
            delay = senders.begin + moment - time.perf_counter()
            if delay > 0:
                time.sleep(delay)
            senders.send(intended_offset_s=moment)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        senders.finish()
    result = _result("load-open", senders.any_client, senders.log)
    if interrupted:
        raise InterruptedScenario(result)
    return result


class Senders:
    """Threads that send what a schedule hands them; another is started whenever none is free.

    `send` returns at once, `finish` when everything sent was answered. A thread of its own starts
    the others: Ctrl-C reaches the main thread anywhere, also in the midst of starting one, and then
    nobody could say whether there is a thread more to wait for.
    """

    def __init__(
        self,
        make_client: MakeClient,
        payload: Payload,
        *,
        most: int = MAX_IN_FLIGHT,
        on_request: OnRequest | None = None,
        on_measured: Callable[[object, Measurement], None] | None = None,
    ) -> None:
        if most < 1:
            raise ValueError(f"max_in_flight must be at least 1; got {most}")
        self._make_client = make_client
        self._payload = payload
        self._most = most
        self._on_request = on_request
        self._on_measured = on_measured
        self._due: queue.SimpleQueue[tuple[float, object] | None] = queue.SimpleQueue()
        self._wanted: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._open = 0
        self._asked = 0
        self._failure: Exception | None = None
        self._count = itertools.count(1)
        self.log: queue.SimpleQueue[Measurement] = queue.SimpleQueue()
        self.any_client = make_client()
        self._starter = threading.Thread(target=self._start_threads, daemon=True)
        self._starter.start()
        self.begin = time.perf_counter()

    def send(self, *, intended_offset_s: float, token: object = None) -> None:
        """Have one request sent that was due `intended_offset_s` after `begin`.

        Raises:
            Exception: the machine starts no thread any more, or what a sender's thread raised.
        """
        self._raise_failure()
        with self._lock:
            self._open += 1
            wanted = self._open > self._asked and self._asked < self._most
            self._asked += wanted
        if wanted:
            self._wanted.put(True)
        self._due.put((intended_offset_s, token))

    def abandon(self) -> None:
        """Forget what is due and not yet sent, so that `finish` waits for open requests only."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._due.get_nowait()

    def finish(self) -> None:
        """Wait for all answers and end the threads.

        Raises:
            Exception: as `send`; what was sent before has been answered.
        """
        self._wanted.put(False)
        self._starter.join()
        # From here on there are no more threads than these.
        for _ in self._threads:
            self._due.put(None)
        for thread in self._threads:
            thread.join()
        self._raise_failure()

    def _start_threads(self) -> None:
        while self._wanted.get():
            thread = threading.Thread(target=self._work, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                self._failure = error
                continue
            self._threads.append(thread)

    def _raise_failure(self) -> None:
        if self._failure:
            raise self._failure

    def _work(self) -> None:
        try:
            client = self._make_client()
            try:
                self._serve(client)
            finally:
                client.close()
        except Exception as error:  # noqa: BLE001
            self._failure = error

    def _serve(self, client: Client) -> None:
        while (item := self._due.get()) is not None:
            intended, token = item
            offset = time.perf_counter() - self.begin
            measurement = replace(
                client.measure(self._payload), start_offset_s=offset, intended_offset_s=intended
            )
            self.log.put(measurement)
            with self._lock:
                self._open -= 1
            if self._on_measured:
                self._on_measured(token, measurement)
            if self._on_request:
                self._on_request(next(self._count))


def drained(log: "queue.SimpleQueue[Measurement]") -> Iterator[Measurement]:
    """What is in a queue that nobody writes to any more."""
    while not log.empty():
        yield log.get()


def _run(threads: Sequence[threading.Thread], stop: threading.Event) -> None:
    try:
        for thread in threads:
            thread.daemon = True
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        # After Ctrl-C nobody may begin another request.
        stop.set()


def _result(scenario: str, client: Client, log: "queue.SimpleQueue[Measurement]") -> ScenarioResult:
    return ScenarioResult(
        scenario=scenario,
        target=client.describe(),
        interval_s=0.0,
        warm_up=None,
        measurements=tuple(sorted(drained(log), key=lambda m: m.start_offset_s)),
    )


def _check_shape(users: int, duration_s: float) -> None:
    if users < 1:
        raise ValueError(f"users must be at least 1; got {users}")
    if duration_s <= 0:
        raise ValueError(f"duration_s must be positive; got {duration_s}")
