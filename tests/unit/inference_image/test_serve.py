"""The parts of `serve` that need no process of their own."""

import io
import socket
import threading
import time
from contextlib import closing

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
        supervisor(listener)._turn_away_the_rest()
        for caller in callers:
            with closing(caller):
                assert caller.recv(1000).startswith(b"HTTP/1.1 503 ")


@pytest.mark.parametrize("sent", [b"", b"GET /ping HTTP/1.1\r\nHost"])
def test_a_header_that_does_not_end_closes_the_connection(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    import asyncio

    import uvicorn

    async def app(scope: object, receive: object, send: object) -> None:
        raise AssertionError("no request was made")

    async def attempt() -> float:
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
            reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
            writer.write(sent)
            begun = time.perf_counter()
            await asyncio.wait_for(reader.read(), 10)
            writer.close()
            return time.perf_counter() - begun

    monkeypatch.setattr(serve, "_HEADER_WITHIN_S", 0.2)
    assert 0.1 < asyncio.run(attempt()) < 5
