"""Users in a closed loop and arrivals on a schedule, against servers with known delays."""

import signal
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from dr_experiments.client import Client, Measurement
from dr_experiments.load import (
    SHAPES,
    Constant,
    Incremental,
    Random,
    Spike,
    closed_loop,
    open_loop,
    poisson_arrivals,
)
from dr_experiments.scenarios import InterruptedScenario
from dr_experiments.statistics import Summary, summarise
from dr_experiments.targets import UrlTarget
from tests.unit.dr_experiments.fakes import PAYLOAD
from tests.unit.dr_experiments.http_fakes import served

STALL_S = 1.0


def test_a_stall_is_hidden_by_the_closed_loop_and_seen_by_the_open_one() -> None:
    """Field problem B01: a server that answers one request at a time freezes once."""

    def stalled_once() -> "tuple[float, threading.Lock]":
        return time.perf_counter() + 0.5, threading.Lock()

    def summary(loop: str) -> Summary:
        freeze_at, gate = stalled_once()
        state = {"frozen": False}

        def delay(_number: int) -> float:
            if not state["frozen"] and time.perf_counter() > freeze_at:
                state["frozen"] = True
                return STALL_S
            return 0.002

        with served(delay, gate=gate) as (url, _):

            def make() -> Client:
                return Client(UrlTarget(url))

            if loop == "closed":
                result = closed_loop(make, PAYLOAD, Constant(users=1, duration_s=2.5))
                times = [m.full_latency_s for m in result.measurements]
            else:
                arrivals = poisson_arrivals(100, duration_s=2.5, seed=7)
                result = open_loop(make, PAYLOAD, arrivals)
                times = [m.response_time_s for m in result.measurements]
            assert not result.failures
            assert state["frozen"]
            return summarise([t for t in times if t is not None])

    # One of the user's requests is slow, which is below one in a hundred unless the machine is
    # busy, and then below one in twenty; of the arrivals, all those that came during the stall are.
    assert summary("closed").p95 < 0.2 * STALL_S
    assert summary("open").p99 > 0.7 * STALL_S


def test_a_request_that_finds_all_senders_busy_is_measured_from_its_arrival() -> None:
    with served(lambda number: 0.1) as (url, _):
        result = open_loop(lambda: Client(UrlTarget(url)), PAYLOAD, [0.0] * 4, max_in_flight=1)
    times = sorted(m.response_time_s for m in result.measurements)
    assert times[0] >= 0.1
    assert times[3] >= 0.4
    assert max(m.full_latency_s for m in result.measurements) < 0.3


def test_an_open_loop_does_not_wait_for_answers() -> None:
    with served(lambda number: 0.5) as (url, _):
        begin = time.perf_counter()
        result = open_loop(lambda: Client(UrlTarget(url)), PAYLOAD, [i / 100 for i in range(20)])
        took = time.perf_counter() - begin
    assert len(result.answered) == 20
    assert took < 3  # 10 s, if they had waited for each other
    late = [m.start_offset_s - m.intended_offset_s for m in result.measurements]
    assert min(late) >= 0


def test_failures_of_a_load_are_counted_and_not_averaged() -> None:
    with served(lambda number: 0.01, status=lambda n: 429 if n % 2 else 200) as (url, _):
        shape = Constant(users=4, duration_s=0.4)
        result = closed_loop(lambda: Client(UrlTarget(url)), PAYLOAD, shape)
    assert {m.outcome for m in result.failures} == {"throttled"}
    assert all(m.throttles == 1 and m.response_time_s is None for m in result.failures)
    assert all(m.throttles == 0 for m in result.answered)
    assert {m.user for m in result.measurements} == {0, 1, 2, 3}
    starts = [m.start_offset_s for m in result.measurements]
    assert starts == sorted(starts)
    assert starts[-1] < 0.4


def make_client_of(url: str) -> Callable[[], Client]:
    return lambda: Client(UrlTarget(url))


def test_ctrl_c_while_the_users_come_ends_those_who_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal between two threads' starts once left the first one sending for the whole time."""
    plain = threading.Thread.start
    users: list[threading.Thread] = []

    def start(thread: threading.Thread) -> None:
        if threading.current_thread() is threading.main_thread():
            if users:
                raise KeyboardInterrupt
            users.append(thread)
        plain(thread)

    with served(lambda number: 0.05) as (url, _):
        monkeypatch.setattr(threading.Thread, "start", start)
        with pytest.raises(InterruptedScenario):
            closed_loop(make_client_of(url), PAYLOAD, Constant(users=2, duration_s=30.0))
        users[0].join(5)
        assert not users[0].is_alive()


@pytest.mark.parametrize("before", [True, False], ids=["before it runs", "while it runs"])
def test_ctrl_c_while_a_sender_is_started_ends_all_of_them(
    before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the midst of a start it once left one sender more than were told to end: a hang."""
    plain, main = threading.Thread.start, threading.main_thread()
    senders: list[threading.Thread] = []

    def start(thread: threading.Thread) -> None:
        if threading.current_thread() is main or "_work" not in thread.name:
            plain(thread)
            return
        senders.append(thread)
        if len(senders) == 2 and before:
            signal.pthread_kill(main.ident or 0, signal.SIGINT)
        plain(thread)
        if len(senders) == 2 and not before:
            signal.pthread_kill(main.ident or 0, signal.SIGINT)

    with served(lambda number: 0.05) as (url, seen):
        monkeypatch.setattr(threading.Thread, "start", start)
        with pytest.raises(InterruptedScenario) as caught:
            open_loop(make_client_of(url), PAYLOAD, [0.0, 0.001, 29.0])
        assert len(senders) == 2
        assert not any(thread.is_alive() for thread in senders)
        # What was sent has been answered and is in the result.
        assert len(caught.value.result.measurements) == len(seen) <= 2


def test_senders_that_cannot_be_started_are_an_error_and_no_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if "_work" in thread.name:
            raise RuntimeError("can't start new thread")
        plain(thread)

    with served(lambda number: 0.0) as (url, seen):
        monkeypatch.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            open_loop(make_client_of(url), PAYLOAD, [0.0])
        assert not seen


def test_users_think_between_requests() -> None:
    with served(lambda number: 0.0) as (url, _):
        shape = Constant(users=1, duration_s=0.5)
        result = closed_loop(lambda: Client(UrlTarget(url)), PAYLOAD, shape, think_s=0.1)
    assert 3 <= len(result.measurements) <= 5


def test_users_come_and_go_with_the_shape() -> None:
    with served(lambda number: 0.01) as (url, _):
        shape = Spike(users=10, duration_s=1.0)
        result = closed_loop(lambda: Client(UrlTarget(url)), PAYLOAD, shape)
    before = {m.user for m in result.measurements if m.start_offset_s < 0.4}
    during = {m.user for m in result.measurements if 0.45 < m.start_offset_s < 0.6}
    assert before == {0}
    assert during == set(range(10))


def test_the_shapes_have_the_users_they_promise() -> None:
    assert Constant().users_at(299) == 40
    stairs = [Incremental().users_at(t) for t in range(0, 300, 30)]
    assert stairs == [4, 8, 12, 16, 20, 24, 28, 32, 36, 40]
    draws = [Random(seed=3).users_at(t) for t in range(300)]
    assert draws == [Random(seed=3).users_at(t) for t in range(300)]
    assert draws != [Random(seed=4).users_at(t) for t in range(300)]
    assert min(draws) >= 1
    assert max(draws) <= 40
    assert len(set(draws)) > 10
    assert [Spike().users_at(t) for t in (0, 119, 120, 179, 180)] == [4, 4, 40, 40, 4]
    for make in SHAPES.values():
        shape = make(40, 300.0, 7)
        assert (shape.most, shape.duration_s) == (40, 300.0)


def test_poisson_arrivals_have_exponential_gaps() -> None:
    moments = poisson_arrivals(50, duration_s=400, seed=7)
    assert moments == poisson_arrivals(50, duration_s=400, seed=7)
    gaps = np.diff([0, *moments])
    # Four standard errors of 20,000 gaps; the deviation of an exponential is its mean.
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.03)
    assert gaps.std() == pytest.approx(1 / 50, rel=0.05)
    assert moments[-1] < 400


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Constant(users=0), "users"),
        (lambda: Spike(duration_s=0), "duration_s"),
        (lambda: Incremental(users=4, steps=5), "steps"),
        (lambda: Random(every_s=0), "every_s"),
        (lambda: poisson_arrivals(0, duration_s=1, seed=1), "rate"),
        (lambda: open_loop(lambda: None, PAYLOAD, []), "arrival"),  # type: ignore[arg-type]
    ],
)
def test_impossible_loads_are_refused(make, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def full(_measurement: Measurement, _counted: bool) -> None:
    raise OSError("no space left on device")


@pytest.mark.parametrize(
    "load",
    [
        lambda make: open_loop(make, PAYLOAD, [0.0, 0.1, 0.2], on_measured=full),
        lambda make: closed_loop(make, PAYLOAD, Constant(users=3, duration_s=60), on_measured=full),
    ],
)
def test_what_fails_in_a_users_thread_ends_the_load_and_is_raised(
    load: Callable[[Callable[[], Client]], object],
) -> None:
    """A user who is silently missing would be a load that nobody asked for."""
    with served(lambda number: 0.0) as (url, _), pytest.raises(OSError, match="no space left"):
        load(lambda: Client(UrlTarget(url)))
