"""One HTTP connection that is kept open and says how long each of its steps took.

    >>> transport = HttpTransport("http://127.0.0.1:8080")
    >>> response = transport.request("POST", "/invocations", body=jpeg, headers={})
    >>> response.phases_ms
    {'upload_ms': 0.1, 'wait_ms': 24.8, 'download_ms': 0.1}

Nobody outside a connection can see these steps, so it notes them itself; the round trip stays
the client's. `dns_ms`, `connect_ms` and `tls_ms` are there for a request that had to open the
connection. `upload_ms` ends when the last byte was handed to this machine's network stack, which
keeps some of it in buffers: on a slow line a part of the upload is inside `wait_ms`.
"""

import contextlib
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPSConnection, RemoteDisconnected
from typing import Any, Final
from urllib.parse import urlsplit

PHASES: Final = ("dns_ms", "connect_ms", "tls_ms", "upload_ms", "wait_ms", "download_ms")
# Steps before the request itself: a client that keeps its connection pays them once.
CONNECTION_PHASES: Final = ("dns_ms", "connect_ms", "tls_ms")


@dataclass(frozen=True, kw_only=True)
class HttpResponse:
    """Status, headers (lower-case names) and body; `phases_ms` in the order they happened."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    phases_ms: Mapping[str, float]
    reopened: bool = False


class HttpTransport:
    """Requests to one origin, one after the other. Not for use by several threads.

    Args:
        url: scheme, host and port; a path is ignored.
        timeout_s: of each step on the socket.
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
    ) -> HttpResponse:
        """One exchange. A kept connection that the server had closed is opened again, once.

        Raises:
            OSError, http.client.HTTPException: as `http.client` does.
        """
        kept = self._connection is not None
        try:
            return self._exchange(method, path, body, headers, reopened=False)
        except (RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            # Nothing of an answer was read. Servers close idle connections, and say so too late.
            if not kept:
                raise
        return self._exchange(method, path, body, headers, reopened=True)

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], *, reopened: bool
    ) -> HttpResponse:
        phases: dict[str, float] = {}
        try:
            if self._connection is None:
                self._connection = self._open(phases)
            connection = self._connection
            moments = [time.perf_counter()]
            connection.request(method, path, body=body, headers=dict(headers))
            moments.append(time.perf_counter())
            response = connection.getresponse()
            moments.append(time.perf_counter())
            data = response.read()
            moments.append(time.perf_counter())
        except BaseException:
            self.close()
            raise
        if response.will_close:
            self.close()
        for number, name in enumerate(("upload_ms", "wait_ms", "download_ms")):
            phases[name] = (moments[number + 1] - moments[number]) * 1000
        return HttpResponse(
            status=response.status,
            headers={name.lower(): value for name, value in response.getheaders()},
            body=data,
            phases_ms=phases,
            reopened=reopened,
        )

    def _open(self, phases: dict[str, float]) -> HTTPConnection:
        begin = time.perf_counter()
        addresses = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
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
        connection.sock.settimeout(self._timeout_s)
        return connection

    def _tls(self) -> Any:
        if self._context is None:
            import ssl

            self._context = ssl.create_default_context()
        return self._context


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
