"""One HTTP connection that is kept open and says how long each of its steps took.

    >>> transport = HttpTransport("http://127.0.0.1:8080")
    >>> response = transport.request("POST", "/invocations", body=jpeg, headers={})
    >>> response.phases_ms
    {'upload_ms': 0.1, 'wait_ms': 24.8, 'download_ms': 0.1}

Nobody outside a connection can see these steps, so it notes them itself; the round trip stays
the client's. `dns_ms`, `connect_ms` and `tls_ms` are there for a request that had to open the
connection. `upload_ms` ends when the last byte was handed to this machine's network stack, which
keeps some of it in buffers: on a slow line a part of the upload is inside `wait_ms`.

Nothing is sent twice. Whether a server has closed a kept connection is looked at before a request
goes over it, so that a connection which ends afterwards is a failure, with its time.
"""

import contextlib
import io
import select
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Final
from urllib.parse import urlsplit

PHASES: Final = ("dns_ms", "connect_ms", "tls_ms", "upload_ms", "wait_ms", "download_ms")
# Steps before the request itself: a client that keeps its connection pays them once.
CONNECTION_PHASES: Final = ("dns_ms", "connect_ms", "tls_ms")
# Far above any answer: an overlay of the largest photograph has some megabytes.
MOST_ANSWER_BYTES: Final = 64 * 1024 * 1024
_CHUNK_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class HttpAnswer:
    """Status, headers (lower-case names) and body; `phases_ms` in the order they happened.

    The phases have those of opening a connection where one was opened.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    phases_ms: Mapping[str, float]


class HttpTransport:
    """Requests to one origin, one after the other. Not for use by several threads.

    Args:
        url: scheme, host and port; a path is ignored.
        timeout_s: from the first byte sent to the last one received.
        connect_timeout_s: of opening the connection.
    """

    def __init__(self, url: str, *, timeout_s: float, connect_timeout_s: float) -> None:
        parts = urlsplit(url)
        self._secure = parts.scheme == "https"
        self._host = str(parts.hostname)
        self._port = parts.port or (443 if self._secure else 80)
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._connection: HTTPConnection | None = None
        self._context: Any = None

    def request(
        self, method: str, path: str, *, body: bytes, headers: Mapping[str, str]
    ) -> HttpAnswer:
        """One exchange, over another connection where the server has closed the kept one.

        Raises:
            TimeoutError: the answer was not complete in time.
            OSError, http.client.HTTPException: no answer, or none that is HTTP.
        """
        if self._connection is not None and _has_ended(self._connection):
            self.close()
        phases: dict[str, float] = {}
        try:
            if self._connection is None:
                self._connection = self._open(phases)
            connection = self._connection
            moments = [time.perf_counter()]
            due_s = moments[0] + self._timeout_s
            connection.response_class = partial(_ResponseInTime, due_s=due_s)  # type: ignore[assignment]
            connection.sock.settimeout(self._timeout_s)
            connection.request(method, path, body=body, headers=dict(headers))
            moments.append(time.perf_counter())
            response = connection.getresponse()
            moments.append(time.perf_counter())
            data = _whole(response)
            moments.append(time.perf_counter())
        except BaseException:
            self.close()
            raise
        if response.will_close:
            self.close()
        for number, name in enumerate(("upload_ms", "wait_ms", "download_ms")):
            phases[name] = (moments[number + 1] - moments[number]) * 1000
        return HttpAnswer(
            status=response.status,
            headers={name.lower(): value for name, value in response.getheaders()},
            body=data,
            phases_ms=phases,
        )

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self, phases: dict[str, float]) -> HTTPConnection:
        begin = time.perf_counter()
        try:
            addresses = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except UnicodeError:
            raise OSError("that is not the name of a host") from None
        resolved = time.perf_counter()
        plain = _connect(addresses, timeout_s=self._connect_timeout_s)
        connected = time.perf_counter()
        phases["dns_ms"] = (resolved - begin) * 1000
        phases["connect_ms"] = (connected - resolved) * 1000
        connection: HTTPConnection
        try:
            if self._secure:
                connection = HTTPSConnection(self._host, self._port, context=self._tls())
                connection.sock = self._tls().wrap_socket(plain, server_hostname=self._host)
                phases["tls_ms"] = (time.perf_counter() - connected) * 1000
            else:
                connection = HTTPConnection(self._host, self._port)
                connection.sock = plain
        except BaseException:
            plain.close()
            raise
        return connection

    def _tls(self) -> Any:
        if self._context is None:
            import ssl

            self._context = ssl.create_default_context()
        return self._context


class _InTime(io.RawIOBase):
    """What arrives on a socket until a moment; a server that drips bytes gets no more than that."""

    def __init__(self, connected: socket.socket, due_s: float) -> None:
        self._socket = connected
        # It counts as a user of the socket, which is closed with the last of them.
        self._stream = connected.makefile("rb", buffering=0)
        self._due_s = due_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._due_s - time.perf_counter()
        if left_s <= 0:
            raise TimeoutError
        self._socket.settimeout(left_s)
        return int(self._stream.readinto(buffer) or 0)

    def close(self) -> None:
        self._stream.close()
        super().close()


class _ResponseInTime(HTTPResponse):
    def __init__(self, sock: socket.socket, *arguments: Any, due_s: float, **named: Any) -> None:
        super().__init__(sock, *arguments, **named)
        self.fp.close()
        self.fp = io.BufferedReader(_InTime(sock, due_s))


def _whole(response: HTTPResponse) -> bytes:
    """The body; `HTTPException` where it is cut off or larger than any answer is."""
    chunks: list[bytes] = []
    size = 0
    while chunk := response.read(_CHUNK_BYTES):
        chunks.append(chunk)
        size += len(chunk)
        if size > MOST_ANSWER_BYTES:
            raise HTTPException(f"the answer has more than {MOST_ANSWER_BYTES:,} bytes")
    if response.length:
        raise HTTPException(f"the answer ends {response.length:,} bytes too early")
    return b"".join(chunks)


def _has_ended(connection: HTTPConnection) -> bool:
    """Whether something has come on a connection on which nothing was asked: its end, as a rule."""
    watching = select.poll()
    watching.register(connection.sock, select.POLLIN)
    return bool(watching.poll(0))


def _connect(addresses: list[Any], *, timeout_s: float) -> socket.socket:
    """A connection to the first address that takes one."""
    last: OSError | None = None
    for family, kind, protocol, _, address in addresses:
        plain = socket.socket(family, kind, protocol)
        try:
            plain.settimeout(timeout_s)
            plain.connect(address)
        except OSError as error:
            plain.close()
            late = isinstance(error, TimeoutError)
            # A timeout of its own would read as a slow answer.
            last = OSError(f"no connection within {timeout_s:g} s") if late else error
            continue
        # A small last segment must not wait for the acknowledgement of the one before.
        with contextlib.suppress(OSError):
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return plain
    raise last or OSError("the name has no address")
