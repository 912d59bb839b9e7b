"""Sends one request again and again over kept connections, and times the answers.

    >>> load = closed_loop(port, request, clients=40, warm_up_s=1, seconds=5)
    >>> load.per_s, load.median_ms, load.own_cpu_share

The generator shares the CPUs with the server that it measures, so it is plain: the request's
bytes are made once, one thread waits on all sockets, and an answer's header is searched for
what must be known. It measures its own CPU time, so that one can see that it is not the limit.
"""

import select
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

_READ_BYTES = 65_536
_HEADER_END = b"\r\n\r\n"
# A rate needs two answers, however long they take.
_LEAST_ANSWERS = 2
_PATIENCE_S = 60.0
# With so many clients, what has come is dealt with this often at most. A generator that woke for
# each answer would take the processor from the server some hundred times a second, as none on
# another machine does; a client then waits so much longer, of the time of many answers.
_MANY_CLIENTS = 8
_TICK_S = 0.002


class LoadError(RuntimeError):
    """The server closed a connection, answered with another status than 200, or not at all."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """One measurement. Times of answers in seconds from its start, latencies in milliseconds.

    `at_start` is what the caller's own clock showed when the warm-up was over.
    """

    answered_s: tuple[float, ...]
    latencies_ms: tuple[float, ...]
    seconds: float
    own_cpu_s: float
    at_start: float

    @property
    def per_s(self) -> float:
        """Answers a second, between the first and the last answer."""
        if len(self.answered_s) < 2:
            return 0.0
        return (len(self.answered_s) - 1) / (self.answered_s[-1] - self.answered_s[0])

    @property
    def median_ms(self) -> float:
        """Median latency."""
        return statistics.median(self.latencies_ms)

    @property
    def own_cpu_share(self) -> float:
        """CPU time of the generator as a share of one CPU."""
        return self.own_cpu_s / self.seconds


@dataclass
class _Client:
    connection: socket.socket
    begun_s: float = 0.0
    sent: int = 0
    buffer: bytearray = field(default_factory=bytearray)
    left: int = -1
    closes: bool = False


def post(path: str, body: bytes, content_type: str) -> bytes:
    """A complete HTTP/1.1 request."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nAccept: application/json\r\n\r\n"
    )
    return head.encode("ascii") + body


def form(path: str, name: str, body: bytes, content_type: str) -> bytes:
    """A request that carries `body` as the file `name` of a form."""
    boundary = "7f0a5c1e9d3b48d2"
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; '
        f'filename="photograph"\r\nContent-Type: {content_type}\r\n\r\n'
    )
    content = head.encode("ascii") + body + f"\r\n--{boundary}--\r\n".encode("ascii")
    return post(path, content, f"multipart/form-data; boundary={boundary}")


def ask(port: int, request: bytes, *, timeout_s: float = 60.0) -> bytes:
    """The body of one answer, over a connection of its own.

    Raises:
        OSError: nobody listens, or not in time.
        LoadError: another status than 200.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
        connection.sendall(request)
        client = _Client(connection)
        while True:
            data = connection.recv(_READ_BYTES)
            if not data:
                raise LoadError("the server closed the connection")
            client.buffer += data
            if _complete(client):
                return bytes(client.buffer)


def closed_loop(
    port: int,
    request: bytes,
    *,
    clients: int,
    warm_up_s: float,
    seconds: float,
    fewest: int = 1,
    most_s: float = 60.0,
    at_start: Callable[[], float] = lambda: 0.0,
) -> Load:
    """Each client sends its next request when it has its answer.

    Args:
        port: of a server on this machine.
        request: complete bytes of the request.
        clients: connections, opened before the start.
        warm_up_s: seconds before the measurement; their answers are not counted.
        seconds: of the measurement; longer until there are `fewest` answers, at most `most_s`,
            but never fewer than two.
        fewest: answers that a measurement should have.
        most_s: the longest measurement.
        at_start: asked once, when the warm-up is over.

    Raises:
        LoadError: a connection is closed or a status is not 200: such a load says nothing.
    """
    poll = select.epoll()
    by_number: dict[int, _Client] = {}
    try:
        for _ in range(clients):
            connection = _connected(port)
            by_number[connection.fileno()] = _Client(connection)
            poll.register(connection, select.EPOLLIN)
        return _run(
            poll, port, by_number, memoryview(request), warm_up_s, seconds, fewest, most_s, at_start
        )
    finally:
        poll.close()
        for client in by_number.values():
            client.connection.close()


def _run(
    poll: select.epoll,
    port: int,
    by_number: dict[int, _Client],
    request: memoryview,
    warm_up_s: float,
    seconds: float,
    fewest: int,
    most_s: float,
    at_start: Callable[[], float],
) -> Load:
    answered: list[float] = []
    latencies: list[float] = []
    counting, shown = False, 0.0
    start = last = now = time.perf_counter()
    cpu = time.process_time()
    for client in by_number.values():
        _begin(poll, client, request)
    tick_s = _TICK_S if len(by_number) >= _MANY_CLIENTS else 0.0
    while True:
        if tick_s:
            time.sleep(max(0.0, now + tick_s - time.perf_counter()))
        events = poll.poll(10.0)
        now = time.perf_counter()
        if now - last > _PATIENCE_S:
            raise LoadError(f"no answer for {_PATIENCE_S:g} s")
        if not counting and now - start >= warm_up_s:
            shown = at_start()
            counting, start, cpu = True, time.perf_counter(), time.process_time()
        for number, event in events:
            client = by_number[number]
            if event & select.EPOLLOUT:
                _send(poll, client, request)
            if not event & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                continue
            if not _receive(client):
                continue
            last = now = time.perf_counter()
            if counting:
                answered.append(now - start)
                latencies.append((now - client.begun_s) * 1000)
            if client.closes:
                # As a server may ask after any answer (RFC 9112, 9.6).
                del by_number[number]
                client.connection.close()
                client.connection = _connected(port)
                by_number[client.connection.fileno()] = client
                poll.register(client.connection, select.EPOLLIN)
            _begin(poll, client, request)
        spent = now - start
        enough = spent >= seconds and len(answered) >= fewest
        if counting and (enough or (spent >= most_s and len(answered) >= _LEAST_ANSWERS)):
            return Load(
                answered_s=tuple(answered),
                latencies_ms=tuple(latencies),
                seconds=spent,
                own_cpu_s=time.process_time() - cpu,
                at_start=shown,
            )


def _connected(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setblocking(False)
    return connection


def _begin(poll: select.epoll, client: _Client, request: memoryview) -> None:
    client.buffer.clear()
    client.left = -1
    client.closes = False
    client.sent = 0
    client.begun_s = time.perf_counter()
    _send(poll, client, request)


def _send(poll: select.epoll, client: _Client, request: memoryview) -> None:
    before = client.sent
    try:
        client.sent += client.connection.send(request[client.sent :])
    except BlockingIOError:
        pass
    except OSError as error:
        raise LoadError(f"the server closed the connection ({error.strerror})") from None
    waiting = client.sent < len(request)
    if waiting or before:
        events = select.EPOLLIN | select.EPOLLOUT if waiting else select.EPOLLIN
        poll.modify(client.connection, events)


def _receive(client: _Client) -> bool:
    """Whether the answer is complete."""
    try:
        data = client.connection.recv(_READ_BYTES)
    except BlockingIOError:
        return False
    except OSError as error:
        raise LoadError(f"the server closed the connection ({error.strerror})") from None
    if not data:
        raise LoadError("the server closed the connection")
    client.buffer += data
    return _complete(client)


def _complete(client: _Client) -> bool:
    """Cut the header off once it is there; whether the whole body is."""
    if client.left < 0:
        end = client.buffer.find(_HEADER_END)
        if end < 0:
            return False
        head = bytes(client.buffer[:end]).lower()
        if not head.startswith(b"http/1.1 200"):
            said = bytes(client.buffer[:400]).decode("latin-1")
            raise LoadError(f"the server answered: {said}")
        _, found, rest = head.partition(b"content-length:")
        if not found:
            raise LoadError("the server's answer has no Content-Length")
        client.left = int(rest.split(b"\r\n", 1)[0])
        client.closes = b"\r\nconnection: close" in head
        del client.buffer[: end + len(_HEADER_END)]
    return len(client.buffer) >= client.left
