"""The load generator against real sockets, and servers that do everything wrong."""

import contextlib
import itertools
import os
import resource
import signal
import socket
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import compiled, generator
from benchmarks.compiled import NotCompiledError
from benchmarks.faults import __main__ as faults
from benchmarks.generator import LoadError, Outcome, Sent, Stop, closed_loop, offer
from benchmarks.http_requests import post, request_bytes
from benchmarks.serving import __main__ as serving
from benchmarks.serving import in_turn
from tests.unit.benchmarks.scripted_server import OK, Caller, ScriptedServer, answering

REQUEST = request_bytes(b"x")
LAST_REQUEST = request_bytes(b"x", close=True)
# What a request of several megabytes shows: it does not fit into the buffers of two sockets.
LARGE = request_bytes(bytes(20_000_000))


class Freeze:
    """The first requests, or all, are answered so long after the very first one at the earliest."""

    def __init__(self, seconds: float, *, first: int = 1_000_000) -> None:
        self._seconds, self._first = seconds, first
        self._until_s = 0.0
        self._lock = threading.Lock()

    def __call__(self, number: int) -> None:
        with self._lock:
            self._until_s = self._until_s or time.perf_counter() + self._seconds
        if number < self._first:
            time.sleep(max(0.0, self._until_s - time.perf_counter()))


def spread(header: bytes) -> list[bytes]:
    return [header[at : at + 1] for at in range(len(header))]


@pytest.fixture
def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        return int(nobody.getsockname()[1])


@contextlib.contextmanager
def on_signal(handler: Callable[[], None], *, after_s: float) -> Iterator[None]:
    """Calls `handler` in the main thread, as a signal's handler, after some time."""
    before = signal.signal(signal.SIGUSR1, lambda _number, _frame: handler())
    timer = threading.Timer(after_s, os.kill, [os.getpid(), signal.SIGUSR1])
    timer.start()
    try:
        yield
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)


# --- clients that wait for their answers --------------------------------------------------


@pytest.mark.parametrize("size", [10, 3_000_000])
@pytest.mark.parametrize("clients", [1, 7, 20])
def test_every_client_asks_again_when_it_has_its_answer(size: int, clients: int) -> None:
    request = post("/invocations", bytes(size), "image/jpeg")
    seen: list[int] = []
    with answering(request, pieces=3, before=seen.append) as server:
        load = closed_loop(server.port, request, clients=clients, warm_up_s=0.1, seconds=0.3)
    assert load.per_s > 0
    assert 0 < len(load.latencies_ms) <= len(seen)
    assert len(load.latencies_ms) == len(load.answered_s)
    assert list(load.answered_s) == sorted(load.answered_s)
    assert load.median_ms > 0
    assert load.own_cpu_s > 0
    assert len(server.ports) <= clients


def test_a_latency_is_from_the_request_to_the_end_of_its_answer() -> None:
    with answering(REQUEST, before=lambda _: time.sleep(0.05)) as server:
        load = closed_loop(server.port, REQUEST, clients=10, warm_up_s=0.0, seconds=0.4)
    assert min(load.latencies_ms) >= 50
    # Ten at a time, of 50 ms each.
    assert load.per_s < 10 / 0.05 * 1.2


def test_a_slow_server_gets_more_time_but_not_for_ever() -> None:
    request = post("/invocations", b"x", "image/jpeg")
    with answering(request) as server:
        load = closed_loop(
            server.port, request, clients=1, warm_up_s=0.0, seconds=0.05, fewest=10**9, most_s=0.4
        )
    assert 0.4 <= load.seconds < 5


def test_a_rate_has_two_answers_however_long_they_take() -> None:
    with answering(REQUEST, before=lambda _: time.sleep(0.15)) as server:
        load = closed_loop(
            server.port, REQUEST, clients=1, warm_up_s=0.0, seconds=0.01, most_s=0.02, fewest=50
        )
    assert len(load.answered_s) == 2
    assert load.per_s > 0


def test_the_callers_clock_is_read_once_and_takes_no_time_of_the_measurement() -> None:
    asked: list[float] = []

    def at_start() -> float:
        time.sleep(1.0)
        asked.append(time.perf_counter())
        return 7.5

    with answering(REQUEST) as server:
        began = time.perf_counter()
        load = closed_loop(
            server.port, REQUEST, clients=2, warm_up_s=0.25, seconds=0.2, at_start=at_start
        )
    assert load.at_start == 7.5
    assert len(asked) == 1
    assert asked[0] - began >= 0.25 + 1.0
    assert 0.2 <= load.seconds < 1.0
    assert min(load.answered_s) >= 0


def test_a_clock_that_fails_ends_the_load() -> None:
    def at_start() -> float:
        raise LookupError("no clock")

    with answering(REQUEST) as server, pytest.raises(LookupError, match="no clock"):
        closed_loop(server.port, REQUEST, clients=2, warm_up_s=0, seconds=5, at_start=at_start)


def test_another_status_is_no_measurement() -> None:
    refusal = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 4\r\n\r\nfull"
    with (
        answering(REQUEST, refusal) as server,
        pytest.raises(LoadError, match=r"(?s)^the server answered: HTTP/1.1 429 .*full$"),
    ):
        closed_loop(server.port, REQUEST, clients=2, warm_up_s=0.0, seconds=5)


def test_only_the_beginning_of_a_wrong_answer_is_told() -> None:
    page = b"HTTP/1.1 500 No\r\nContent-Length: 9000\r\n\r\n" + 9000 * b"\xe9"
    with answering(REQUEST, page) as server, pytest.raises(LoadError) as raised:
        closed_loop(server.port, REQUEST, clients=1, warm_up_s=0.0, seconds=5)
    said = str(raised.value).removeprefix("the server answered: ")
    assert said == page[:400].decode("latin-1")


@pytest.mark.parametrize("clients", [3, 12])
def test_who_is_asked_to_connect_anew_does(clients: int) -> None:
    seen: list[int] = []
    closing_answer = OK.replace(b"\r\n\r\n", b"\r\nCONNECTION:  Close\r\n\r\n")
    with answering(REQUEST, closing_answer, closes=True, before=seen.append) as server:
        load = closed_loop(
            server.port, REQUEST, clients=clients, warm_up_s=0.0, seconds=0.3, fewest=20
        )
    assert 20 <= len(load.latencies_ms) <= len(seen)
    assert len(server.ports) >= len(load.latencies_ms)


def test_a_connection_that_is_closed_without_a_word_is_no_measurement() -> None:
    with (
        answering(REQUEST, closes=True) as server,
        pytest.raises(LoadError, match="closed the connection"),
    ):
        closed_loop(server.port, REQUEST, clients=1, warm_up_s=0.0, seconds=5)


def test_a_server_that_says_nothing_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "_SILENCE_S", 0.3)
    over = threading.Event()
    with answering(REQUEST, before=lambda number: over.wait(20 * (number > 30))) as server:
        with pytest.raises(LoadError, match=r"^no answer for 0\.3 s$"):
            closed_loop(server.port, REQUEST, clients=2, warm_up_s=0.0, seconds=5)
        over.set()


def test_nobody_listens(unused_port: int) -> None:
    with pytest.raises(ConnectionRefusedError):
        closed_loop(unused_port, REQUEST, clients=2, warm_up_s=0.0, seconds=5)


# --- requests on a schedule ---------------------------------------------------------------


def test_requests_are_due_at_an_even_rate_on_the_clock_of_the_caller() -> None:
    before = time.perf_counter()
    with answering(REQUEST) as server:
        outcome = offer(server.port, REQUEST, rate_per_s=200, seconds=0.5)
    after = time.perf_counter()
    assert outcome.answered(200) == len(outcome.requests) == 100
    dues = [sent.due_s for sent in outcome.requests]
    gaps = [later - earlier for earlier, later in itertools.pairwise(dues)]
    assert min(gaps) == pytest.approx(1 / 200, abs=1e-6) == pytest.approx(max(gaps), abs=1e-6)
    for sent in outcome.requests:
        assert before <= sent.due_s <= sent.sent_s <= sent.done_s <= after
        assert sent.local_port in server.ports
    assert 0 < outcome.own_cpu_s < 0.5
    assert outcome.seconds == pytest.approx(0.5)
    assert time.get_clock_info("perf_counter").implementation.endswith("(CLOCK_MONOTONIC)")


def test_a_server_that_freezes_loses_no_request_and_is_seen_in_all_that_were_due() -> None:
    """Who waits for an answer before the next request sees one slow request and no more."""
    with answering(REQUEST, before=Freeze(0.6)) as server:
        outcome = offer(server.port, REQUEST, rate_per_s=500, seconds=0.5)
    assert outcome.answered(200) == len(outcome.requests) == 250
    latencies = outcome.latencies_s(200)
    assert latencies[0] >= 0.1
    assert statistics.median(latencies) >= 0.35
    assert outcome.refused_connections == 0


def test_the_connection_that_was_free_last_is_taken_first() -> None:
    with answering(REQUEST, before=Freeze(0.35, first=3)) as server:
        outcome = offer(server.port, REQUEST, rate_per_s=10, seconds=1.2)
    assert outcome.answered(200) == 12
    ports = [sent.local_port for sent in outcome.requests]
    assert len(set(ports[:3])) == 3
    # Far apart: each takes the same one, which has just become free.
    assert len(set(ports[5:])) == 1


@pytest.mark.parametrize(
    ("request_sent", "answer", "keep_alive"),
    [
        (REQUEST, OK.replace(b"\r\n\r\n", b"\r\ncOnnEction: cLose\r\n\r\n"), True),
        (LAST_REQUEST, OK, False),
        (REQUEST, OK + b"and more than its length says", True),
    ],
    ids=["the server closes", "the caller closes", "nobody knows what comes next"],
)
@pytest.mark.parametrize("callers", [None, 2, 9])
def test_a_connection_that_takes_no_other_request_is_not_used_again(
    request_sent: bytes, answer: bytes, keep_alive: bool, callers: int | None
) -> None:
    with answering(request_sent, answer) as server:
        outcome = offer(
            server.port,
            request_sent,
            rate_per_s=None if callers else 100,
            callers=callers,
            seconds=0.3,
            keep_alive=keep_alive,
        )
    assert outcome.answered(200) == len(outcome.requests) >= 10
    ports = [sent.local_port for sent in outcome.requests]
    assert sorted(ports) == sorted(set(server.ports))


def test_a_kept_connection_that_the_server_closes_is_given_up() -> None:
    def talk(caller: Caller) -> None:
        caller.hear(len(REQUEST))
        caller.say(OK)
        time.sleep(0.01)

    with ScriptedServer(talk) as server:
        outcome = offer(server.port, REQUEST, rate_per_s=20, seconds=0.4)
    assert outcome.answered(200) == len(outcome.requests) == 8
    assert len(server.ports) == 8


@pytest.mark.parametrize("callers", [1, 3, 20])
def test_callers_wait_for_their_answers(callers: int) -> None:
    most = Counter[str]()

    def before(_: int) -> None:
        most["now"] += 1
        most["most"] = max(most["most"], most["now"])
        time.sleep(0.02)
        most["now"] -= 1

    with answering(REQUEST, before=before) as server:
        outcome = offer(server.port, REQUEST, callers=callers, seconds=0.4)
    assert outcome.answered(200) == len(outcome.requests) > 3 * callers
    assert most["most"] <= callers == len(server.ports)
    assert outcome.seconds == pytest.approx(0.4)


def test_what_is_due_while_all_connections_are_busy_waits_in_order() -> None:
    with answering(REQUEST, before=Freeze(0.3)) as server:
        outcome = offer(server.port, REQUEST, rate_per_s=100, seconds=0.6, most_connections=5)
    assert len(server.ports) == 5
    assert outcome.answered(200) == len(outcome.requests) == 60
    sent_s = [sent.sent_s for sent in outcome.requests]
    assert sent_s == sorted(sent_s)
    late = [sent for sent in outcome.requests if sent.sent_s - sent.due_s > 0.1]
    # Those that were due between 50 and 200 ms, and more on a slow machine.
    assert len(late) >= 14
    assert all(sent.latency_s >= sent.done_s - sent.sent_s for sent in late)


def test_what_still_waits_for_a_connection_at_the_end_is_not_sent() -> None:
    with answering(REQUEST, before=Freeze(0.5)) as server:
        outcome = offer(server.port, REQUEST, rate_per_s=100, seconds=0.2, most_connections=3)
    assert outcome.answered(200) == len(outcome.requests) == 3


@pytest.mark.parametrize("callers", [None, 1, 20])
def test_sending_ends_early_and_answers_are_still_waited_for(callers: int | None) -> None:
    stop = Stop()
    threading.Timer(0.3, stop.set).start()
    began = time.perf_counter()
    with answering(REQUEST, before=lambda _: time.sleep(0.1)) as server:
        outcome = offer(
            server.port,
            REQUEST,
            rate_per_s=None if callers else 100,
            callers=callers,
            seconds=60,
            stop=stop,
        )
    assert time.perf_counter() - began < 10
    assert 0.1 <= outcome.seconds < 5
    assert outcome.answered(200) == len(outcome.requests) >= 1
    assert max(sent.sent_s for sent in outcome.requests) <= began + 5


def test_who_gets_no_answer_after_the_stop_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "_PATIENCE_S", 0.3)
    stop, over = Stop(), threading.Event()
    threading.Timer(0.2, stop.set).start()
    began = time.perf_counter()
    with answering(REQUEST, before=lambda _: over.wait(20)) as server:
        outcome = offer(server.port, REQUEST, callers=3, seconds=60, stop=stop)
        over.set()
    assert time.perf_counter() - began < 10
    assert outcome.statuses() == {"none": 3}


def test_a_load_that_is_stopped_before_it_begins_sends_nothing() -> None:
    stop = Stop()
    stop.set()
    with answering(REQUEST) as server:
        outcome = offer(server.port, REQUEST, rate_per_s=100, seconds=60, stop=stop)
    assert outcome.requests == []


def test_who_gets_no_answer_is_given_up_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "_PATIENCE_S", 0.3)
    over = threading.Event()
    with answering(REQUEST, before=lambda number: over.wait(20 * (number >= 5))) as server:
        outcome = offer(server.port, REQUEST, rate_per_s=50, seconds=0.2)
        over.set()
    assert outcome.statuses() == {"none": 5, "200": 5}
    assert {sent.done_s for sent in outcome.requests if not sent.status} == {0.0}
    assert outcome.seconds == pytest.approx(0.2)


def test_a_rate_counts_what_came_while_requests_were_sent() -> None:
    times = [(0.0, 0.5, 200), (1.0, 1.5, 200), (1.5, 1.9, 429), (2.0, 3.0, 200), (3.9, 4.1, 200)]
    requests = [Sent(100 + due, 1, 100 + due, 100 + done, status) for due, done, status in times]
    outcome = Outcome(requests, seconds=4.0)
    assert outcome.per_s(200) == 3 / 4
    assert outcome.per_s(200, from_s=1.0) == 2 / 3
    assert outcome.per_s(429) == 1 / 4
    assert Outcome(seconds=4.0).per_s(200) == 0.0


def test_refused_connections_are_no_requests(unused_port: int) -> None:
    outcome = offer(unused_port, REQUEST, rate_per_s=50, seconds=0.2)
    assert outcome.requests == []
    assert outcome.refused_connections == 10
    outcome = offer(unused_port, REQUEST, callers=3, seconds=0.1)
    assert (outcome.requests, outcome.refused_connections) == ([], 3)


def test_a_server_that_comes_later_answers_from_then_on(unused_port: int) -> None:
    def talk(caller: Caller) -> None:
        while True:
            caller.hear(len(REQUEST))
            caller.say(OK)

    made: list[ScriptedServer] = []

    def listen() -> None:
        made.append(ScriptedServer(talk, port=unused_port).__enter__())

    threading.Timer(0.2, listen).start()
    outcome = offer(unused_port, REQUEST, rate_per_s=100, seconds=0.5)
    made[0].__exit__()
    assert outcome.answered(200) == len(outcome.requests) >= 10
    assert outcome.refused_connections >= 10
    assert outcome.refused_connections + len(outcome.requests) == 50


@pytest.mark.parametrize("options", [{}, {"rate_per_s": 1.0, "callers": 1}])
def test_a_load_is_a_rate_or_callers(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="either rate_per_s or callers"):
        offer(1, REQUEST, seconds=1, **options)  # type: ignore[arg-type]


# --- answers of every shape ---------------------------------------------------------------


@pytest.mark.parametrize("callers", [None, 1, 20])
def test_an_answer_may_come_in_pieces_of_a_byte(callers: int | None) -> None:
    answer = b"HTTP/1.1 201 Made\r\nX-Content-Length: no\r\ncontent-LENGTH:\t 3 \r\n\r\nabc"

    def talk(caller: Caller) -> None:
        while True:
            caller.hear(len(REQUEST))
            for piece in spread(answer):
                caller.say(piece)
                time.sleep(0.0005)

    rate = None if callers else 20
    with ScriptedServer(talk) as server:
        outcome = offer(server.port, REQUEST, rate_per_s=rate, callers=callers, seconds=0.4)
    assert outcome.statuses() == {"201": len(outcome.requests)}
    assert len(outcome.requests) >= 2


@pytest.mark.parametrize("pieces", [1, 7])
def test_an_answer_may_be_longer_than_what_is_read_at_once(pieces: int) -> None:
    body = bytes(3_000_000)
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with answering(REQUEST, answer, pieces=pieces) as server:
        outcome = offer(server.port, REQUEST, rate_per_s=20, seconds=0.3)
        load = closed_loop(server.port, REQUEST, clients=2, warm_up_s=0.0, seconds=0.2)
    assert outcome.answered(200) == len(outcome.requests) == 6
    assert len(load.latencies_ms) >= 2


def test_a_header_may_be_long_but_not_endless() -> None:
    filler = b"X-Filler: " + 60 * b"y" + b"\r\n"
    long = b"HTTP/1.1 200 OK\r\n" + 150 * filler + b"Content-Length: 0\r\n\r\n"
    with answering(REQUEST, long, pieces=3) as server:
        assert offer(server.port, REQUEST, callers=2, seconds=0.1).answered(200) >= 2
        assert closed_loop(server.port, REQUEST, clients=2, warm_up_s=0, seconds=0.1).per_s > 0
    with answering(REQUEST, b"HTTP/1.1 200 OK\r\n" + 100_000 * filler) as server:
        outcome = offer(server.port, REQUEST, rate_per_s=20, seconds=0.2)
        assert outcome.statuses() == {"none": 4}
        with pytest.raises(LoadError, match="a header without an end"):
            closed_loop(server.port, REQUEST, clients=2, warm_up_s=0, seconds=5)


UNREADABLE = {
    "garbage": b"\x00\xff\x01 no server of this kind\r\n\r\n" + bytes(range(256)),
    "an empty header": b"\r\n\r\n",
    "no status": b"HTTP/1.1\r\n\r\n",
    "a status of letters": OK.replace(b"200", b"2o0"),
    "another protocol": OK.replace(b"HTTP/1.1", b"RTSP/1.0"),
    "no length": b"HTTP/1.1 200 OK\r\n\r\nhello",
    "a length in the body": b"HTTP/1.1 200 OK\r\n\r\nContent-Length: 0\r\n\r\n",
    "a length in the status": b"HTTP/1.1 200 Content-Length: 5\r\n\r\nhello",
    "an empty length": OK.replace(b" 5", b""),
    "a negative length": OK.replace(b" 5", b" -5"),
    "a length of words": OK.replace(b" 5", b" five"),
    "a length and more": OK.replace(b" 5", b" 5, 5"),
    "a length beyond all numbers": OK.replace(b" 5", b" " + 30 * b"9"),
    "a length with a zero byte": OK.replace(b" 5", b" 5\x00"),
}


@pytest.mark.parametrize("answer", UNREADABLE.values(), ids=UNREADABLE.keys())
@pytest.mark.parametrize("pieces", [1, 9])
def test_an_answer_that_cannot_be_read_is_none(answer: bytes, pieces: int) -> None:
    with answering(REQUEST, answer, pieces=pieces) as server:
        outcome = offer(server.port, REQUEST, rate_per_s=20, seconds=0.2)
        assert outcome.statuses() == {"none": 4}
        assert all(sent.done_s > sent.due_s for sent in outcome.requests)
        assert len({sent.local_port for sent in outcome.requests}) == 4
        with pytest.raises(LoadError, match=r"no Content-Length|the server answered: "):
            closed_loop(server.port, REQUEST, clients=2, warm_up_s=0.0, seconds=5)


@pytest.mark.parametrize(
    "answer",
    [b"", OK[:20], OK[:-2], OK.replace(b" 5", b" 5000000000")],
    ids=["nothing", "half a header", "half a body", "much less than its length"],
)
def test_an_answer_that_breaks_off_is_none(answer: bytes) -> None:
    with answering(REQUEST, answer or b"", closes=True) as server:
        outcome = offer(server.port, REQUEST, rate_per_s=20, seconds=0.2)
        assert outcome.statuses() == {"none": 4}
        assert all(sent.done_s > sent.due_s for sent in outcome.requests)
        with pytest.raises(LoadError, match="closed the connection"):
            closed_loop(server.port, REQUEST, clients=2, warm_up_s=0.0, seconds=5)


def test_a_connection_may_be_reset_instead_of_closed() -> None:
    def talk(caller: Caller) -> None:
        caller.hear(10)
        linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
        caller.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    with ScriptedServer(talk) as server:
        outcome = offer(server.port, REQUEST, rate_per_s=20, seconds=0.2)
        assert outcome.statuses() == {"none": 4}
        with pytest.raises(LoadError, match=r"closed the connection \(Connection reset by peer\)"):
            closed_loop(server.port, REQUEST, clients=1, warm_up_s=0.0, seconds=5)


def test_a_large_request_waits_until_the_server_reads_on() -> None:
    def talk(caller: Caller) -> None:
        while True:
            time.sleep(0.05)
            assert caller.hear(len(LARGE)) == LARGE
            caller.say(OK)

    with ScriptedServer(talk) as server:
        outcome = offer(server.port, LARGE, rate_per_s=10, seconds=0.3)
        load = closed_loop(server.port, LARGE, clients=2, warm_up_s=0.0, seconds=0.1, fewest=4)
    assert outcome.answered(200) == len(outcome.requests) == 3
    assert len(load.latencies_ms) >= 4
    assert min(load.latencies_ms) >= 50


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("word", [b"413 Too Large", b"200 OK"])
def test_who_is_answered_before_the_whole_request_was_sent_connects_anew(
    word: bytes, closes: bool
) -> None:
    over = threading.Event()

    def talk(caller: Caller) -> None:
        caller.hear(1000)
        caller.say(OK.replace(b"200 OK", word))
        over.wait(0 if closes else 10)

    with ScriptedServer(talk) as server:
        outcome = offer(server.port, LARGE, rate_per_s=20, seconds=0.2)
        assert len({sent.local_port for sent in outcome.requests}) == 4
        if not closes:
            # Who closes in the middle of a request resets it, and the answer may be lost.
            assert outcome.statuses() == {word[:3].decode(): 4}
            if word == b"200 OK":
                load = closed_loop(server.port, LARGE, clients=2, warm_up_s=0, seconds=0.1)
                assert len(server.ports) >= 4 + len(load.latencies_ms)
        over.set()


# --- the process that it runs in ----------------------------------------------------------


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@contextlib.contextmanager
def few_descriptors(more: int) -> Iterator[None]:
    used = descriptors()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_too_many_connections_are_one_clear_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener, few_descriptors(20):
        before = descriptors()
        port = listener.getsockname()[1]
        for load in (
            lambda: offer(port, REQUEST, rate_per_s=1000, seconds=5),
            lambda: offer(port, REQUEST, callers=40, seconds=5),
            lambda: closed_loop(port, REQUEST, clients=40, warm_up_s=0, seconds=5),
        ):
            with pytest.raises(LoadError, match=r"may not open so many connections \(ulimit -n\)"):
                load()
        # What it had open is closed.
        assert descriptors() == before


@pytest.mark.parametrize("callers", [None, 2, 20])
def test_a_signal_that_raises_ends_a_load(callers: int | None) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    began = time.perf_counter()
    rate = None if callers else 100
    with answering(REQUEST) as server:
        with on_signal(interrupt, after_s=0.2), pytest.raises(KeyboardInterrupt):
            offer(server.port, REQUEST, rate_per_s=rate, callers=callers, seconds=60)
        with on_signal(interrupt, after_s=0.2), pytest.raises(KeyboardInterrupt):
            closed_loop(
                server.port, REQUEST, clients=callers or 9, warm_up_s=0, seconds=60, most_s=60
            )
    assert time.perf_counter() - began < 20


def test_a_signal_that_does_nothing_changes_nothing() -> None:
    with answering(REQUEST) as server:
        with on_signal(lambda: None, after_s=0.2):
            outcome = offer(server.port, REQUEST, rate_per_s=100, seconds=0.5)
        with on_signal(lambda: None, after_s=0.2):
            load = closed_loop(server.port, REQUEST, clients=2, warm_up_s=0.1, seconds=0.4)
    assert outcome.answered(200) == len(outcome.requests) == 50
    assert load.seconds >= 0.4


def test_every_compiler_takes_the_source_without_a_warning() -> None:
    assert compiled.compilers()
    library = compiled.load(generator._SOURCE, "-Wall", "-Wextra", "-Wconversion", "-Werror")
    assert library.dr_offer


@pytest.mark.parametrize(
    ("main", "arguments"),
    [
        (faults, ["--only", "overload", "mutants"]),
        (serving, ["--quick"]),
        (in_turn, []),
    ],
    ids=["faults", "serving", "in_turn"],
)
def test_a_benchmark_without_a_compiler_ends_before_it_begins(
    main: ModuleType,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def prepare() -> None:
        raise NotCompiledError("benchmarks need a C compiler")

    monkeypatch.setattr(main, "prepare", prepare)
    with pytest.raises(SystemExit) as raised:
        main.main(arguments)
    assert raised.value.code == 1
    assert capsys.readouterr().err == "benchmarks need a C compiler\n"
