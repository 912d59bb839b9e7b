"""A server on this machine that answers like the service after a time that a test chooses."""

import contextlib
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.unit.dr_experiments.fakes import quick_answer


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Forty users connect in the same instant.
    request_queue_size = 256


@contextlib.contextmanager
def served(
    delay_s: Callable[[int], float],
    *,
    status: Callable[[int], int] = lambda number: 200,
    gate: contextlib.AbstractContextManager[Any] | None = None,
) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """URL of the server and the headers of each request so far.

    `delay_s` and `status` are asked with the request's number from 0. With a `gate`, requests
    are answered one at a time, as by a single worker.
    """
    body = json.dumps(quick_answer()).encode()
    seen: list[dict[str, str]] = []
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                number = len(seen)
                seen.append({name.lower(): value for name, value in self.headers.items()})
            with gate or contextlib.nullcontext():
                time.sleep(delay_s(number))
            self.send_response(status(number))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """A test's output stays readable."""

    server = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


Answering = Callable[[socket.socket, int], None]


@contextlib.contextmanager
def raw_server(answer_to: Answering, heads: list[bytes] | None = None) -> Iterator[str]:
    """URL of a server that may break every rule of HTTP.

    `answer_to` is called for each request with its connection and the request's number there, from
    0; the connection is closed when it raises `EOFError`. `heads` gets the header of each.
    """
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    threads: list[threading.Thread] = []

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, EOFError):
            stream = connection.makefile("rb")
            for number in itertools.count():
                head = b""
                while not head.endswith(b"\r\n\r\n"):
                    line = stream.readline()
                    if not line:
                        return
                    head += line
                if heads is not None:
                    heads.append(head)
                length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
                stream.read(int(length or 0))
                answer_to(connection, number)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                thread = threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True)
                threads.append(thread)
                thread.start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        # Closing alone does not wake the thread that waits in `accept`.
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join(5)


def http(body: bytes, status: str = "200 OK") -> bytes:
    """A whole answer."""
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
