"""A server on this machine that answers like the service after a time that a test chooses."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.unit.dr_experiments.fakes import answer


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
    body = json.dumps(answer()).encode()
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
