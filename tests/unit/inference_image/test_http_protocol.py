"""A caller's connection: what is bounded about it, and what good clients may rely on."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from inference_image import http_protocol
from inference_image.invocation import CLOSING
from tests.service_harness import listening


async def _answer_to(
    app: Any, chunks: Iterable[bytes], *, pause_s: float = 0.0, ahead: int = 0
) -> bytes:
    """All that it says to what is sent, until it closes."""
    async with listening(app, ahead=ahead) as address:
        reader, writer = await asyncio.open_connection(*address)
        try:
            # Who sends more than is read is reset, and may or may not see the answer.
            with suppress(ConnectionError):
                for chunk in chunks:
                    writer.write(chunk)
                    await writer.drain()
                    await asyncio.sleep(pause_s)
            with suppress(ConnectionError):
                return await asyncio.wait_for(reader.read(), 60)
            return b"reset"
        finally:
            writer.close()


class _App:
    """An application whose queue is never full, or whose queue always is."""

    def __init__(self, *, full: bool = False) -> None:
        refused = b"HTTP/1.1 429 Full\r\ncontent-length: 0\r\n\r\n", 0, True
        self.admission = SimpleNamespace(turn_away=lambda *_: refused if full else None)

    async def __call__(self, scope: object, receive: Any, send: Any) -> None:
        raise AssertionError("no request was made")


class _RefusesUnread(_App):
    """Answers before the body has come, as the service does where it is too large."""

    async def __call__(self, scope: object, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 413, "headers": []})
        await send({"type": "http.response.body", "body": b""})


class _Reads(_App):
    async def __call__(self, scope: object, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


@pytest.mark.parametrize("sent", [b"", b"GET /ping HTTP/1.1\r\nHost", b"\r\n"])
def test_a_header_that_does_not_end_closes_the_connection(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(http_protocol, "_HEADER_WITHIN_S", 0.2)
    begun = time.perf_counter()
    asyncio.run(_answer_to(_App(), [sent]))
    # It ends because the connection does; without that it would wait a minute and fail.
    assert time.perf_counter() - begun > 0.1


@pytest.mark.parametrize(
    "endless",
    [b"x" * 9000, b"X-Name: value\r\n" * 700, b"X-" + b"n" * 30_000 + b": v\r\n"],
)
def test_a_header_without_end_is_refused_before_it_fills_the_memory(endless: bytes) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"GET /ping HTTP/1.1\r\nX-First: "
        for _ in range(1000):
            sent.append(len(endless))
            yield endless

    sent: list[int] = []
    answer = asyncio.run(_answer_to(_App(), chunks(), pause_s=0.002))
    assert answer == b"reset" or answer.startswith(b"HTTP/1.1 400 ")
    assert sum(sent) < 1_000_000


def test_trailers_without_end_are_refused() -> None:
    head = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    trailers = [b"X-Name: value\r\n" * 700] * 200
    answer = asyncio.run(_answer_to(_Reads(), [head, *trailers], pause_s=0.002))
    assert answer == b"reset" or answer.startswith(b"HTTP/1.1 400 ")


def test_only_what_begins_a_request_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "_HEADER_WITHIN_S", 0.2)
    request = b"POST /invocations HTTP/1.1\r\ncontent-length: 0\r\n\r\n"
    full = _App(full=True)
    assert asyncio.run(_answer_to(full, [request])).startswith(b"HTTP/1.1 429 ")
    full.admission.turn_away = lambda data, _: (
        None if data.startswith(b"GET") else (b"HTTP/1.1 429 ", 0, True)
    )
    hidden = [b"GET /ping HTTP/1.1\r\nX-Hidden: ", request[:-4]]
    assert asyncio.run(_answer_to(full, hidden, pause_s=0.05)) == b""


def test_the_rest_of_a_refused_body_is_no_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "_HEADER_WITHIN_S", 0.4)
    size = 4 * 1024 * 1024
    head = f"POST / HTTP/1.1\r\nContent-Length: {size}\r\n\r\n".encode()
    chunks = [head, *[bytes(65_536)] * (size // 65_536)]
    answer = asyncio.run(_answer_to(_RefusesUnread(), chunks, pause_s=0.001))
    # Nothing but the refusal: a 400 for the body's rest would reset the connection.
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("size", [0, 2_000_000])
def test_an_application_is_told_when_the_sender_of_a_whole_body_leaves(size: int) -> None:
    class Waits(_App):
        left = False

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            # Nothing reads on while the prediction is waited for.
            while (await receive()).get("more_body"):
                pass
            gone = asyncio.Event()
            scope["extensions"][CLOSING].add(gone.set)
            whole.set()
            await asyncio.wait_for(gone.wait(), 5)
            self.left = True

    async def chunks() -> None:
        head = f"POST / HTTP/1.1\r\nContent-Length: {size}\r\n\r\n".encode()
        async with listening(app) as address:
            _, writer = await asyncio.open_connection(*address)
            writer.write(head + bytes(size))
            await writer.drain()
            await asyncio.wait_for(whole.wait(), 5)
            writer.close()
            until = time.monotonic() + 5
            while not app.left and time.monotonic() < until:
                await asyncio.sleep(0.01)

    app, whole = Waits(), asyncio.Event()
    asyncio.run(chunks())
    assert app.left


class _Answers(_App):
    """Reads a body and says how long it was, once it may."""

    def __init__(self, may: Any = None) -> None:
        super().__init__()
        self.bodies: list[bytes] = []
        self._may = may

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message["body"], message["more_body"]
        self.bodies.append(body)
        if self._may is not None:
            await self._may.wait()
        text = str(len(body)).encode()
        length = [(b"content-length", str(len(text)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await send({"type": "http.response.body", "body": text})


LAST = b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"


def test_requests_sent_a_little_ahead_are_answered_in_their_order() -> None:
    requests = [f"POST / HTTP/1.1\r\nContent-Length: {n}\r\n\r\n".encode() for n in range(1, 32)]
    sent = b"".join(head + bytes(n) for n, head in enumerate(requests, 1)) + LAST
    answer = asyncio.run(_answer_to(_Answers(), [sent]))
    bodies = [part.split(b"\r\n\r\n")[1] for part in answer.split(b"HTTP/1.1 200 OK\r\n")[1:]]
    assert bodies == [str(n).encode() for n in range(1, 32)] + [b"0"]


def test_requests_sent_far_ahead_of_their_turn_end_the_connection() -> None:
    """Each would take some kilobytes, and 14,000 fit into one read."""

    async def send_ahead() -> bytes:
        return await _answer_to(_Answers(asyncio.Event()), [b"GET / HTTP/1.1\r\n\r\n" * 10_000])

    answer = asyncio.run(send_ahead())
    assert answer == b"reset" or answer.startswith(b"HTTP/1.1 400 ")


def test_who_sends_a_few_too_many_ahead_is_told_so() -> None:
    async def send_ahead(count: int) -> bytes:
        return await _answer_to(_Answers(asyncio.Event()), [b"GET / HTTP/1.1\r\n\r\n" * count])

    # One is being answered, and 32 wait.
    answer = asyncio.run(send_ahead(34))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"More than 32 requests wait on this connection." in answer


@pytest.mark.parametrize(
    "broken",
    [
        b"GARBAGE\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nno number\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabcd\r\n",
    ],
)
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("before", [1, 3])
def test_requests_before_what_is_no_http_are_answered(
    broken: bytes, whole: bool, before: int
) -> None:
    """Without it the first answer would be 400, about another request."""

    async def ask() -> bytes:
        may = asyncio.Event()
        asyncio.get_running_loop().call_later(0.05, may.set)
        good = b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nPHOTO" * before
        sent = [good + broken + LAST] if whole else [good, broken, LAST]
        return await _answer_to(_Answers(may), sent, pause_s=0.01)

    answers = asyncio.run(ask()).split(b"HTTP/1.1 ")[1:]
    # With a length the body is read, and what follows it is no HTTP.
    answered = before + (b"Content-Length: 3" in broken)
    assert [answer[:3] for answer in answers] == [b"200"] * answered + [b"400"]
    assert all(b"connection: close" not in answer for answer in answers[:-1])
    assert b"connection: close" in answers[-1]


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 140_000 + b"\r\n\r\n", b"its trailers are too long"),
        (b"\x16\x03\x01\x02", b"Invalid HTTP request received"),
    ],
)
def test_what_is_said_of_a_request_that_is_none_is_why(sent: bytes, why: bytes) -> None:
    config = uvicorn.Config(_App(), lifespan="off", log_config=None)
    config.load()
    transport = Transport()
    connection = http_protocol.bounded_protocol(9)(config, ServerState(), {}, Clock())  # type: ignore[arg-type]
    connection.connection_made(transport)  # type: ignore[arg-type]
    connection.data_received(sent)
    answer, end = transport.calls
    assert isinstance(answer, bytes)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert why in answer
    assert end == "closed"


@pytest.mark.parametrize("upgrade", [b"Upgrade: h2c", b"UPGRADE:websocket"])
@pytest.mark.parametrize("pieces", [1, 2])
def test_a_wish_for_another_protocol_is_passed_over(upgrade: bytes, pieces: int) -> None:
    """As Java's client sends it; the parser alone would take the body for another protocol."""
    head = (
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\nConnection: Upgrade, HTTP2-Settings\r\n"
        + upgrade
        + b"\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n"
    )
    sent = head + b"PHOTO" + LAST
    app = _Answers()
    chunks = [sent] if pieces == 1 else [head, b"PHOTO" + LAST]
    answer = asyncio.run(_answer_to(app, chunks, pause_s=0.01))
    assert app.bodies == [b"PHOTO", b""]
    assert answer.count(b"HTTP/1.1 200 ") == 2


def test_a_wish_for_another_protocol_in_pieces_is_refused_and_no_body_lost() -> None:
    app = _Answers()
    pieces = [
        b"POST / HTTP/1.1\r\nConnection: Upgrade\r\nContent-Length: 5\r\nUpgr",
        b"ade: h2c\r\n\r\nPHOTO",
    ]
    answer = asyncio.run(_answer_to(app, pieces, pause_s=0.05))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"asks for another protocol" in answer
    assert app.bodies == []


def test_bytes_of_a_body_stay_as_they_are() -> None:
    photograph = b"\r\nUpgrade: h2c\r\n\r\nupgrade:"
    head = f"POST / HTTP/1.1\r\nContent-Length: {len(photograph)}\r\n\r\n".encode()
    for chunks in ([head + photograph + LAST], [head, photograph[:9], photograph[9:], LAST]):
        app = _Answers()
        asyncio.run(_answer_to(app, chunks, pause_s=0.01))
        assert app.bodies[0] == photograph


def test_the_connection_without_a_request_for_longest_gives_way_to_a_new_one() -> None:
    async def in_hand(app: _Answers, count: int) -> None:
        while len(app.bodies) < count:
            await asyncio.sleep(0.001)

    async def crowd() -> list[bytes]:
        may = asyncio.Event()
        app = _Answers(may)
        async with listening(app, most=3) as address:
            callers = [await asyncio.open_connection(*address) for _ in range(2)]
            # The first has a request in hand, so it is the second that has to go.
            callers[0][1].write(LAST)
            await in_hand(app, 1)
            callers += [await asyncio.open_connection(*address) for _ in range(2)]
            said = [await callers[1][0].read()]
            # All have a request: whoever comes now is told to come back.
            for _, writer in callers[2:]:
                writer.write(LAST)
            await in_hand(app, 3)
            callers.append(await asyncio.open_connection(*address))
            said.append(await callers[4][0].read())
            may.set()
            said += [await callers[which][0].read() for which in (0, 2, 3)]
            for _, writer in callers:
                writer.close()
            return said

    gone, late, *answered = asyncio.run(asyncio.wait_for(crowd(), 60))
    assert gone == b""
    assert late.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"3 connections are busy" in late
    assert b"\r\nretry-after: 1\r\nx-request-id: " in late
    assert [answer[:15] for answer in answered] == [b"HTTP/1.1 200 OK"] * 3


def test_an_answer_that_nobody_reads_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """While some of it is read, the connection stays."""
    config = uvicorn.Config(_App(), lifespan="off", log_config=None)
    config.load()
    clock = Clock()
    calls: list[str] = []
    left = [300_000]
    transport = SimpleNamespace(
        abort=lambda: calls.append("ended"),
        get_write_buffer_size=lambda: left[0],
        get_extra_info=lambda _name: None,
    )
    protocol = http_protocol.bounded_protocol(9)
    connection = protocol(config, ServerState(), {}, clock)  # type: ignore[arg-type]
    connection.connection_made(transport)  # type: ignore[arg-type]
    connection._stop_waiting()
    connection.pause_writing()
    # Who reads nothing is not answered unread either.
    assert not connection._turns_away(b"POST")
    for at_s in (31, 62, 93):
        left[0] -= 1000
        clock.run_until(at_s)
    connection.resume_writing()
    assert clock.timers == []
    connection.pause_writing()
    assert calls == []
    clock.run_until(125)
    assert calls == ["ended"]


def test_a_body_in_small_pieces_takes_little_more_memory_than_its_bytes() -> None:
    body = http_protocol._Pieces()
    sent = [b"ab"] * 5000 + [bytes(10_000)] + [b"c"] * 5000 + [b"d" * 4096, b"", b"e"]
    for piece in sent:
        body += piece
    assert len(body._pieces) == 5
    assert len(body) == len(bytes(body))
    assert bytes(body) == b"".join(sent)


def test_a_photograph_is_asked_for_in_one_go() -> None:
    """asyncio has no other way to say it than this attribute of its transports."""
    assert hasattr(asyncio.selector_events._SelectorTransport, "max_size")
    asked: list[int] = []

    class Noting(_Answers):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            asked.extend(c.transport.max_size for c in scope["extensions"]["test"])
            await super().__call__(scope, receive, send)

    class Protocol(http_protocol.Protocol):
        def on_headers_complete(self) -> None:
            super().on_headers_complete()
            self.scope["extensions"]["test"] = [self]  # type: ignore[index]

    async def ask() -> bytes:
        return await _answer_to(Noting(), [LAST])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http_protocol, "Protocol", Protocol)
        assert asyncio.run(ask()).startswith(b"HTTP/1.1 200")
    assert asked == [1024 * 1024]


def test_a_process_may_open_as_many_files_as_it_needs() -> None:
    code = (
        "import resource as r, sys; r.setrlimit(r.RLIMIT_NOFILE, tuple(map(int, sys.argv[1:])));"
        "from inference_image.http_protocol import allowed_connections;"
        "print(allowed_connections(), r.getrlimit(r.RLIMIT_NOFILE)[0])"
    )
    for soft, hard, connections, files in (
        (256, 256, 128, 256),
        (256, 1000, 744, 1000),
        (256, 8192, 4096, 4352),
        (70, 70, 35, 70),
    ):
        command = [sys.executable, "-c", code, str(soft), str(hard)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        assert done.stdout.split() == [str(connections), str(files)]


def test_header_and_body_of_an_answer_are_one_write() -> None:
    plain, clock = Transport(), Clock()
    transport = http_protocol._OneWrite(plain, clock)
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    transport.write(head)
    assert plain.calls == []
    assert not transport.is_closing()
    transport.write(b"body")
    assert plain.calls.pop() == head + b"body"
    assert clock.timers == []
    # More of the body, what tells the sender to go on, and an answer without a body.
    for alone in (b"more", b"HTTP/1.1 100 Continue\r\n\r\n"):
        transport.write(alone)
        assert plain.calls.pop() == alone
    transport.write(head)
    transport.close()
    assert plain.calls == [head, "closed"]
    # A header whose body is long in coming goes ahead.
    plain.calls.clear()
    transport.write(head)
    clock.run_until(0.004)
    assert plain.calls == []
    clock.run_until(1.0)
    assert plain.calls.pop() == head
    transport.write(b"body")
    assert plain.calls.pop() == b"body"


class Transport:
    """Keeps what is done with it."""

    def __init__(self) -> None:
        self.calls: list[bytes | str] = []

    def write(self, data: bytes) -> None:
        self.calls.append(data)

    def close(self) -> None:
        self.calls.append("closed")

    def is_closing(self) -> bool:
        return "closed" in self.calls

    def get_extra_info(self, _name: str) -> None:
        return None

    def resume_reading(self) -> None:
        """Never stopped."""


class Clock:
    """An event loop's time and timers, moved by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, seconds: float, call: Callable[[], None]) -> Any:
        timer = (self.now_s + seconds, call)
        self.timers.append(timer)
        return SimpleNamespace(cancel=lambda: self._cancel(timer))

    def _cancel(self, timer: tuple[float, Callable[[], None]]) -> None:
        # One that has fired may be cancelled too.
        with suppress(ValueError):
            self.timers.remove(timer)

    def run_until(self, now_s: float) -> None:
        self.now_s = now_s
        for timer in [timer for timer in self.timers if timer[0] <= now_s]:
            self.timers.remove(timer)
            timer[1]()


def test_a_refused_connection_closes_when_it_was_idle_since_its_last_refusal() -> None:
    refusal = b"HTTP/1.1 429 Full\r\ncontent-length: 0\r\n\r\n"
    app = _App(full=True)
    app.admission.turn_away = lambda _data, _headers: (refusal, 0, False)
    config = uvicorn.Config(app, lifespan="off", log_config=None, timeout_keep_alive=75)
    config.load()
    clock = Clock()
    calls: list[bytes | str] = []
    transport = SimpleNamespace(
        write=calls.append,
        close=lambda: calls.append("closed"),
        is_closing=lambda: False,
        get_extra_info=lambda _name: None,
    )
    connection = http_protocol.bounded_protocol(100)(config, ServerState(), {}, clock)  # type: ignore[arg-type]
    connection.connection_made(transport)  # type: ignore[arg-type]
    for at_s in range(0, 200, 10):
        clock.run_until(at_s)
        connection.data_received(b"POST")
    # One timer serves them all; the last refusal was at 190 s.
    assert calls == [refusal] * 20
    assert len(clock.timers) == 1
    clock.run_until(264)
    assert calls[20:] == []
    clock.run_until(266)
    assert calls[20:] == ["closed"]


@pytest.mark.parametrize(
    ("ahead", "held", "moves"), [(1, 2, False), (2, 6, True), (2, 7, False), (40, 60, True)]
)
def test_who_holds_far_more_than_another_worker_has_one_caller_move_at_a_time(
    ahead: int, held: int, moves: bool
) -> None:
    clock = SimpleNamespace(now_s=7.0)
    protocol = http_protocol.bounded_protocol(100, ahead=lambda: ahead)
    connections = [object.__new__(protocol) for _ in range(2)]
    for one in connections:
        one.loop = SimpleNamespace(time=lambda: clock.now_s)  # type: ignore[assignment]
        one.connections = set(range(held))  # type: ignore[arg-type]
    assert [one.is_to_move() for one in connections] == [moves, False]
    clock.now_s += 0.006
    assert [one.is_to_move() for one in connections] == [moves, False]


def test_a_refusal_may_ask_the_caller_to_connect_anew() -> None:
    app = _App()
    refusal = b"HTTP/1.1 429 Full\r\ncontent-length: 2\r\n\r\n\r\n"
    app.admission.turn_away = lambda _data, _headers: (refusal, 0, False)
    request = b"POST /invocations HTTP/1.1\r\ncontent-length: 0\r\n\r\n"
    expected = b"HTTP/1.1 429 Full\r\ncontent-length: 2\r\nconnection: close\r\n\r\n\r\n"
    assert asyncio.run(_answer_to(app, [request], ahead=50)) == expected


@pytest.mark.parametrize(
    "header",
    [
        b"Host: a\r\nHost: b\r\n",
        b"Host: a\r\nTransfer-Encoding: gzip, chunked\r\n",
        b"Host: a\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
    ],
)
def test_what_servers_read_differently_is_refused_and_the_sender_told_what(header: bytes) -> None:
    request = b"POST /invocations HTTP/1.1\r\n" + header + b"\r\n0\r\n\r\n"
    answer = asyncio.run(_answer_to(_Reads(), [request]))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"application/problem+json" in answer
    assert (b"more than one Host" in answer) == (b"Host: b" in header)
    assert (b"a Transfer-Encoding other than chunked" in answer) == (b"gzip" in header)


@pytest.mark.parametrize("header", [b"", b"Host: a\r\nTransfer-Encoding: Chunked\r\n"])
def test_plain_requests_are_read_with_and_without_a_host(header: bytes) -> None:
    request = b"POST / HTTP/1.1\r\nConnection: close\r\n" + header + b"\r\n0\r\n\r\n"
    answer = asyncio.run(_answer_to(_RefusesUnread(), [request]))
    assert answer.startswith(b"HTTP/1.1 413 ")
