"""The load generator against real sockets."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from socketserver import StreamRequestHandler, ThreadingTCPServer

import pytest

from benchmarks.serving.load import LoadError, ask, closed_loop, form, post

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


@contextmanager
def server(
    answer: bytes, *, request: bytes, pieces: int = 1, closes: bool = False
) -> Iterator[tuple[int, list[int]]]:
    """Answers each whole request, in pieces; its port and a count of requests."""
    seen: list[int] = []

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            # The generator ends in the middle of an answer.
            with suppress(OSError):
                self._answer()

        def _answer(self) -> None:
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while len(data := self.rfile.read(len(request))) == len(request):
                assert data == request
                seen.append(1)
                size = -(-len(answer) // pieces)
                for at in range(0, len(answer), size):
                    self.wfile.write(answer[at : at + size])
                if closes:
                    return

    class Server(ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield running.server_address[1], seen
        finally:
            running.shutdown()
            thread.join(10)


@pytest.mark.parametrize("size", [10, 3_000_000])
@pytest.mark.parametrize("clients", [1, 7, 20])
def test_every_client_asks_again_when_it_has_its_answer(size: int, clients: int) -> None:
    request = post("/invocations", bytes(size), "image/jpeg")
    with server(OK, request=request, pieces=3) as (port, seen):
        load = closed_loop(port, request, clients=clients, warm_up_s=0.1, seconds=0.3)
    assert load.per_s > 0
    assert 0 < len(load.latencies_ms) <= len(seen)
    assert len(load.latencies_ms) == len(load.answered_s)
    assert list(load.answered_s) == sorted(load.answered_s)
    assert load.median_ms > 0
    assert load.own_cpu_s > 0


def test_a_slow_server_gets_more_time_but_not_for_ever() -> None:
    request = post("/invocations", b"x", "image/jpeg")
    with server(OK, request=request) as (port, _):
        load = closed_loop(
            port, request, clients=1, warm_up_s=0.0, seconds=0.05, fewest=10**9, most_s=0.4
        )
    assert 0.4 <= load.seconds < 5


def test_another_status_is_no_measurement() -> None:
    request = post("/invocations", b"x", "image/jpeg")
    refusal = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 4\r\n\r\nfull"
    with server(refusal, request=request) as (port, _):
        with pytest.raises(LoadError, match="429"):
            closed_loop(port, request, clients=2, warm_up_s=0.0, seconds=5)
        with pytest.raises(LoadError, match="429"):
            ask(port, request)


def test_who_is_asked_to_connect_anew_does() -> None:
    request = post("/invocations", b"x", "image/jpeg")
    closing_answer = OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    with server(closing_answer, request=request, closes=True) as (port, seen):
        load = closed_loop(port, request, clients=3, warm_up_s=0.0, seconds=0.3, fewest=20)
    assert 20 <= len(load.latencies_ms) <= len(seen)


def test_a_connection_that_is_closed_without_a_word_is_no_measurement() -> None:
    request = post("/invocations", b"x", "image/jpeg")
    with (
        server(OK, request=request, closes=True) as (port, _),
        pytest.raises(LoadError, match="closed the connection"),
    ):
        closed_loop(port, request, clients=1, warm_up_s=0.0, seconds=5)


def test_one_answer_is_read_whole() -> None:
    request = post("/invocations", b"x", "image/jpeg")
    with server(OK, request=request, pieces=4) as (port, _):
        assert ask(port, request) == b"hello"


def test_a_form_holds_the_photograph_as_a_file() -> None:
    import email

    request = form("/invocations", "request", b"\xff\xd8photograph", "image/jpeg")
    head, _, body = request.partition(b"\r\n\r\n")
    kind = next(line for line in head.split(b"\r\n") if line.startswith(b"Content-Type"))
    message = email.message_from_bytes(kind + b"\r\n\r\n" + body)
    (part,) = message.get_payload()
    assert part.get_param("name", header="Content-Disposition") == "request"
    assert part.get_payload(decode=True) == b"\xff\xd8photograph"
    assert f"Content-Length: {len(body)}".encode() in head
