"""The parts of `serve` that need no process of their own."""

import io
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, closing, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from inference_image import serve
from inference_image.log import JsonLog
from inference_image.settings import Settings


def settings(port: int = 0) -> Settings:
    environment = {"DR_BIND_HOST": "127.0.0.1", "SAGEMAKER_BIND_TO_PORT": str(port)}
    return Settings.from_environment(environment, cpus=1)


def test_accepted_connections_name_their_protocol_so_that_asyncio_disables_nagle() -> None:
    with closing(serve._listen(settings())) as listener:
        address = listener.getsockname()
        with closing(socket.create_connection(address)), closing(listener.accept()[0]) as accepted:
            assert accepted.proto == socket.IPPROTO_TCP


def test_of_several_workers_each_takes_one_caller_at_a_time_until_it_is_full() -> None:
    with closing(serve._listen(settings())) as listener:
        listener.setblocking(False)
        full = False
        listener.at_once = lambda: 3 if full else 1

        def taken_in_one_turn() -> int:
            taken = 0
            with suppress(BlockingIOError):
                for _ in range(10):
                    listener.accept()[0].close()
                    taken += 1
            return taken

        callers = [socket.create_connection(listener.getsockname()) for _ in range(8)]
        assert [taken_in_one_turn() for _ in range(2)] == [1, 1]
        full = True
        assert [taken_in_one_turn() for _ in range(3)] == [3, 3, 0]
        callers += [socket.create_connection(listener.getsockname()) for _ in range(4)]
        listener.at_once = None
        assert taken_in_one_turn() == 4
        for caller in callers:
            caller.close()


def test_workers_count_together_and_share_readiness() -> None:
    board = serve.Board(3)
    counters = [serve.SlotCounter(board, slot) for slot in range(3)]
    assert [counters[slot].next() for slot in (0, 2, 2, 1, 0)] == [0, 1, 2, 3, 4]
    assert not board.any_ready()
    board.set_ready(1, True)
    assert board.any_ready()
    board.set_ready(1, False)
    assert not board.any_ready()
    # Readiness does not reach into the counts.
    assert counters[0].next() == 5


def test_only_the_first_failure_is_told() -> None:
    board = serve.Board(2)
    assert [board.first_failure() for _ in range(3)] == [True, False, False]


def test_the_process_started_before_now_and_not_long_ago() -> None:
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert 0 <= now - serve.process_start_s() < 3600


def test_the_answer_while_loading_is_complete_http() -> None:
    head, _, body = serve._LOADING.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert f"content-length: {len(body)}".encode() in head


def supervisor(listener: socket.socket) -> serve._Supervisor:
    return serve._Supervisor(
        listener=listener,
        board=serve.Board(2),
        work=lambda _: 0,
        log=JsonLog(level="info", stream=io.StringIO()),
    )


def test_a_worker_that_fails_says_why(capfd: pytest.CaptureFixture[str]) -> None:
    def work(_: int) -> int:
        raise RuntimeError("no room")

    with closing(serve._listen(settings())) as listener:
        failing = supervisor(listener)
        failing._work = work
        failing._lifeline = os.pipe()
        failing._start(0)
        (pid,) = failing._running
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == serve.EXIT_WORKERS
        for end in failing._lifeline:
            os.close(end)
    assert capfd.readouterr().err == "serve: a worker has failed (RuntimeError: no room).\n"


def test_no_worker_starts_once_the_others_have_been_told_to_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serve.os, "fork", lambda: pytest.fail("a worker was started"))
    with closing(serve._listen(settings())) as listener:
        stopping = supervisor(listener)
        stopping._stopping = True
        before = signal.pthread_sigmask(signal.SIG_BLOCK, set())
        stopping._start(0)
        assert stopping._running == {}
        assert signal.pthread_sigmask(signal.SIG_BLOCK, set()) == before


def test_a_caller_who_sends_drop_by_drop_is_left_after_a_second() -> None:
    with closing(serve._listen(settings())) as listener:
        done = threading.Event()

        def trickle() -> None:
            with closing(socket.create_connection(listener.getsockname())) as caller:
                while not done.wait(0.1):
                    try:
                        caller.sendall(b"x")
                    except OSError:
                        return

        trickling = threading.Thread(target=trickle)
        trickling.start()
        begun = time.perf_counter()
        supervisor(listener)._turn_away()
        took_s = time.perf_counter() - begun
        done.set()
        trickling.join()
    assert took_s < 2 * serve._TURN_AWAY_S


def test_at_the_end_whoever_still_waits_is_told() -> None:
    with closing(serve._listen(settings())) as listener:
        listener.setblocking(False)
        callers = [socket.create_connection(listener.getsockname(), timeout=5) for _ in range(3)]
        for caller in callers:
            caller.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
            caller.shutdown(socket.SHUT_WR)
        supervisor(listener).turn_away_the_rest()
        for caller in callers:
            with closing(caller):
                assert caller.recv(1000).startswith(b"HTTP/1.1 503 ")


@asynccontextmanager
async def _listening(app: Any) -> AsyncIterator[tuple[str, int]]:
    """The service's HTTP protocol in front of an application, and its address."""
    import asyncio

    import uvicorn

    config = uvicorn.Config(app, http=serve._protocol_class(), lifespan="off", log_config=None)
    config.load()
    server = uvicorn.Server(config)
    listening = await asyncio.get_running_loop().create_server(
        lambda: config.http_protocol_class(  # type: ignore[call-arg]
            config=config, server_state=server.server_state, app_state={}
        ),
        "127.0.0.1",
        0,
    )
    async with listening:
        yield listening.sockets[0].getsockname()


async def _answer_to(app: Any, chunks: Iterable[bytes], *, pause_s: float = 0.0) -> bytes:
    """All that it says to what is sent, until it closes."""
    import asyncio

    async with _listening(app) as address:
        reader, writer = await asyncio.open_connection(*address)
        try:
            # Who sends more than is read is reset, and may or may not see the answer.
            with suppress(ConnectionError):
                for chunk in chunks:
                    writer.write(chunk)
                    await writer.drain()
                    await asyncio.sleep(pause_s)
            with suppress(ConnectionError):
                return await asyncio.wait_for(reader.read(), 10)
            return b"reset"
        finally:
            writer.close()


class _App:
    """An application whose queue is never full, or whose queue always is."""

    def __init__(self, *, full: bool = False) -> None:
        self._full = full

    def turn_away(self, _data: bytes, _headers: object) -> tuple[bytes, int, bool] | None:
        return (b"HTTP/1.1 429 Full\r\ncontent-length: 0\r\n\r\n", 0, True) if self._full else None

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
    import asyncio

    monkeypatch.setattr(serve, "_HEADER_WITHIN_S", 0.2)
    begun = time.perf_counter()
    asyncio.run(_answer_to(_App(), [sent]))
    # It ends because the connection does; without that it would wait ten seconds and fail.
    assert time.perf_counter() - begun > 0.1


@pytest.mark.parametrize(
    "endless",
    [b"x" * 9000, b"X-Name: value\r\n" * 700, b"X-" + b"n" * 30_000 + b": v\r\n"],
)
def test_a_header_without_end_is_refused_before_it_fills_the_memory(endless: bytes) -> None:
    import asyncio

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
    import asyncio

    head = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    trailers = [b"X-Name: value\r\n" * 700] * 200
    answer = asyncio.run(_answer_to(_Reads(), [head, *trailers], pause_s=0.002))
    assert answer == b"reset" or answer.startswith(b"HTTP/1.1 400 ")


def test_only_what_begins_a_request_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    monkeypatch.setattr(serve, "_HEADER_WITHIN_S", 0.2)
    request = b"POST /invocations HTTP/1.1\r\ncontent-length: 0\r\n\r\n"
    full = _App(full=True)
    assert asyncio.run(_answer_to(full, [request])).startswith(b"HTTP/1.1 429 ")
    full.turn_away = lambda data, _: (
        None if data.startswith(b"GET") else (b"HTTP/1.1 429 ", 0, True)
    )  # type: ignore[method-assign]
    hidden = [b"GET /ping HTTP/1.1\r\nX-Hidden: ", request[:-4]]
    assert asyncio.run(_answer_to(full, hidden, pause_s=0.05)) == b""


def test_the_rest_of_a_refused_body_is_no_header(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    monkeypatch.setattr(serve, "_HEADER_WITHIN_S", 0.4)
    size = 4 * 1024 * 1024
    head = f"POST / HTTP/1.1\r\nContent-Length: {size}\r\n\r\n".encode()
    chunks = [head, *[bytes(65_536)] * (size // 65_536)]
    answer = asyncio.run(_answer_to(_RefusesUnread(), chunks, pause_s=0.001))
    # Nothing but the refusal: a 400 for the body's rest would reset the connection.
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("size", [0, 2_000_000])
def test_an_application_is_told_when_the_sender_of_a_whole_body_leaves(size: int) -> None:
    import asyncio

    from inference_image.http_app import CLOSING

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
        async with _listening(app) as address:
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


def test_requests_sent_ahead_of_their_turn_stay_unread() -> None:
    import asyncio

    class Waits(_App):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            begun.set()
            await answer.wait()

    async def send_ahead() -> int:
        async with _listening(Waits()) as address:
            _, writer = await asyncio.open_connection(*address)
            writer.write(b"GET /ping HTTP/1.1\r\n\r\n")
            await asyncio.wait_for(begun.wait(), 5)
            sent = 0
            with suppress(TimeoutError):
                while sent < 100_000_000:
                    writer.write(b"GET /ping HTTP/1.1\r\n\r\n" * 1000)
                    sent += 22_000
                    await asyncio.wait_for(writer.drain(), 0.5)
            answer.set()
            writer.transport.abort()
            return sent

    begun, answer = asyncio.Event(), asyncio.Event()
    assert asyncio.run(send_ahead()) < 20_000_000


def test_header_and_body_of_an_answer_are_one_write() -> None:
    class Transport:
        def __init__(self) -> None:
            self.calls: list[bytes | str] = []

        def write(self, data: bytes) -> None:
            self.calls.append(data)

        def close(self) -> None:
            self.calls.append("closed")

        def is_closing(self) -> bool:
            return False

    plain, clock = Transport(), _Clock()
    transport = serve._OneWrite(plain, clock)
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


class _Clock:
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
    import uvicorn
    from uvicorn.server import ServerState

    refusal = b"HTTP/1.1 429 Full\r\ncontent-length: 0\r\n\r\n"
    app = _App(full=True)
    app.turn_away = lambda _data, _headers: (refusal, 0, False)  # type: ignore[method-assign]
    config = uvicorn.Config(app, lifespan="off", log_config=None, timeout_keep_alive=75)
    config.load()
    clock = _Clock()
    calls: list[bytes | str] = []
    transport = SimpleNamespace(
        write=calls.append,
        close=lambda: calls.append("closed"),
        is_closing=lambda: False,
        get_extra_info=lambda _name: None,
    )
    connection = serve._protocol_class()(config, ServerState(), {}, clock)  # type: ignore[arg-type]
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
