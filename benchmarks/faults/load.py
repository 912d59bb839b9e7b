"""Sends requests on a schedule, whether or not earlier ones have been answered.

    >>> outcome = offer(port, request_bytes(jpeg), rate_per_s=500, seconds=10)
    >>> outcome.answered(200)

One thread, sockets and epoll: the machine is shared with the service, so each request must cost
little, and what is due or has come is dealt with 500 times a second, not one by one. A schedule and
not a number of callers: callers who wait for their answer would slow down together with the
service, and hide what it does under overload (coordinated omission).
"""

import contextlib
import errno
import heapq
import json
import select
import socket
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

_HEAD_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"content-length: "
# Past the end of the schedule, answers are waited for so long.
_PATIENCE_S: Final = 30.0
# An answer has less than a kilobyte.
_CHUNK: Final = 16_384
# What is due is sent this often at most: a sender that woke for each request would take the
# processor from the service some thousand times a second, as no sender on another machine does.
_TICK_S: Final = 0.002


def request_bytes(body: bytes, *, content_type: str = "image/jpeg", close: bool = False) -> bytes:
    """A whole `POST /invocations`."""
    kept = "close" if close else "keep-alive"
    return (
        f"POST /invocations HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\n"
        f"Connection: {kept}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode("ascii") + body


PING: Final = b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n"


@dataclass(slots=True)
class Sent:
    """One request: seconds on the clock of `time.perf_counter`, and the status of its answer.

    `status` is 0 where the connection ended without one; `local_port` is that of the caller.
    """

    due_s: float
    local_port: int = 0
    sent_s: float = 0.0
    done_s: float = 0.0
    status: int = 0

    @property
    def latency_s(self) -> float:
        """From the moment it was due, not from when it was sent."""
        return self.done_s - self.due_s


@dataclass
class Outcome:
    """What became of every request, and what sending them cost."""

    requests: list[Sent] = field(default_factory=list)
    refused_connections: int = 0
    own_cpu_s: float = 0.0
    seconds: float = 0.0

    def answered(self, status: int) -> int:
        """How many were answered with a status."""
        return sum(request.status == status for request in self.requests)

    def statuses(self) -> dict[str, int]:
        """Status (or "none") -> how often, in order."""
        counts = Counter(request.status for request in self.requests)
        return {str(status or "none"): counts[status] for status in sorted(counts)}

    def latencies_s(self, status: int) -> list[float]:
        """Latencies of the requests with a status, ascending."""
        return sorted(r.latency_s for r in self.requests if r.status == status)


class _Caller:
    """One connection and the request on it."""

    __slots__ = ("answer", "left", "local_port", "need", "now", "socket", "spent", "watched")

    def __init__(self, port: int) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(BlockingIOError):
            self.socket.connect(("127.0.0.1", port))
        self.local_port = self.socket.getsockname()[1]
        self.now: Sent | None = None
        self.left: memoryview | None = None
        self.answer = b""
        self.need = -1
        self.spent = False
        self.watched = select.EPOLLIN | select.EPOLLOUT


def offer(
    port: int,
    request: bytes,
    *,
    rate_per_s: float | None = None,
    callers: int | None = None,
    seconds: float,
    keep_alive: bool = True,
    stop: "list[bool] | None" = None,
    most_connections: int = 3000,
) -> Outcome:
    """Send `request` again and again.

    Args:
        port: of the service on this machine.
        request: the bytes of a whole request.
        rate_per_s: requests are due at this even rate (an open loop); or None, and
        callers: so many send one after the other (a closed loop).
        seconds: how long requests are sent; their answers are waited for.
        keep_alive: whether a connection takes a next request.
        stop: sending ends early when this list is no longer empty.
        most_connections: a request that is due while so many are open waits.
    """
    load = _Load(port, request, rate_per_s, callers, keep_alive, most_connections)
    return load.run(seconds, stop if stop is not None else [])


def probe_ping(port: int, seconds: float, interval_s: float) -> list[float]:
    """Seconds that each `GET /ping` took, on a connection of its own; -1 where it was not 200."""
    took = []
    end = time.perf_counter() + seconds
    while (now := time.perf_counter()) < end:
        status = b""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), timeout=5) as caller,
        ):
            caller.sendall(PING)
            status = caller.recv(4096)[9:12]
        spent_s = time.perf_counter() - now
        took.append(spent_s if status == b"200" else -1.0)
        time.sleep(max(0.0, interval_s - spent_s))
    return took


class _Load:
    def __init__(
        self,
        port: int,
        request: bytes,
        rate_per_s: float | None,
        callers: int | None,
        keep_alive: bool,
        most_connections: int,
    ) -> None:
        self._port = port
        self._request = memoryview(request)
        self._rate = rate_per_s
        self._callers = callers
        self._keep_alive = keep_alive
        self._most = most_connections
        self._poll = select.epoll()
        self._open: dict[int, _Caller] = {}
        self._idle: list[_Caller] = []
        self._outcome = Outcome()
        self._waiting: list[float] = []

    def run(self, seconds: float, stop: list[bool]) -> Outcome:
        cpu, began = time.thread_time(), time.perf_counter()
        end = began + seconds
        due = began
        if self._callers is not None:
            for _ in range(self._callers):
                self._start(began)
        while True:
            now = time.perf_counter()
            sending = now < end and not stop
            if self._rate is not None and sending:
                while due <= now:
                    heapq.heappush(self._waiting, due)
                    due += 1 / self._rate
                while self._waiting and (self._idle or len(self._open) < self._most):
                    self._start(heapq.heappop(self._waiting))
                time.sleep(max(0.0, now + _TICK_S - time.perf_counter()))
                timeout = 0.0
            else:
                timeout = 0.05
            busy = len(self._open) - len(self._idle)
            if not sending and (not busy or now > end + _PATIENCE_S):
                break
            for descriptor, events in self._poll.poll(timeout):
                caller = self._open.get(descriptor)
                if caller is not None:
                    self._progress(caller, events, again=sending)
        self._outcome.seconds = min(time.perf_counter(), end) - began
        for caller in list(self._open.values()):
            self._close(caller)
        self._poll.close()
        self._outcome.own_cpu_s = time.thread_time() - cpu
        return self._outcome

    def _start(self, due_s: float) -> None:
        sent = Sent(due_s)
        caller = self._idle.pop() if self._idle else None
        if caller is None:
            try:
                caller = _Caller(self._port)
            except OSError as error:
                if error.errno != errno.ECONNREFUSED:
                    raise
                self._outcome.refused_connections += 1
                return
            self._open[caller.socket.fileno()] = caller
            self._poll.register(caller.socket.fileno(), caller.watched)
        caller.left = self._request
        caller.now = sent
        sent.local_port = caller.local_port
        self._outcome.requests.append(sent)
        if caller.spent:
            self._send(caller)

    def _send(self, caller: _Caller) -> bool:
        assert caller.left is not None
        assert caller.now is not None
        try:
            count = caller.socket.send(caller.left)
        except BlockingIOError:
            self._watch(caller, select.EPOLLIN | select.EPOLLOUT)
            return True
        except OSError:
            return False
        if not caller.now.sent_s:
            caller.now.sent_s = time.perf_counter()
        caller.left = caller.left[count:] if count < len(caller.left) else None
        self._watch(
            caller, select.EPOLLIN if caller.left is None else select.EPOLLIN | select.EPOLLOUT
        )
        return True

    def _watch(self, caller: _Caller, events: int) -> None:
        if caller.watched != events:
            caller.watched = events
            self._poll.modify(caller.socket.fileno(), events)

    def _progress(self, caller: _Caller, events: int, *, again: bool) -> None:
        if events & select.EPOLLOUT:
            if not caller.spent:
                failed = caller.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if failed:
                    # Never connected: the service has not seen this one.
                    self._outcome.requests.remove(caller.now)  # type: ignore[arg-type]
                    self._outcome.refused_connections += 1
                    self._close(caller)
                    return
                caller.spent = True
            if caller.left is not None and not self._send(caller):
                events |= select.EPOLLIN
        if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            try:
                data = caller.socket.recv(_CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            self._read(caller, data, again=again)

    def _read(self, caller: _Caller, data: bytes, *, again: bool) -> None:
        if not data:
            if caller.now is not None:
                caller.now.done_s = time.perf_counter()
            elif caller in self._idle:
                self._idle.remove(caller)
            self._close(caller)
            self._next(again)
            return
        caller.answer += data
        if caller.need < 0:
            end = caller.answer.find(_HEAD_END)
            if end < 0:
                return
            head = caller.answer[:end].lower() + b"\r\n"
            start = head.find(_LENGTH) + len(_LENGTH)
            caller.need = end + len(_HEAD_END) + int(head[start : head.find(b"\r\n", start)])
            if caller.now is not None:
                caller.now.status = int(head[9:12])
        if len(caller.answer) < caller.need:
            return
        if caller.now is not None:
            caller.now.done_s = time.perf_counter()
        caller.now = None
        whole, closing = caller.left is None, b"connection: close" in caller.answer[:1000].lower()
        caller.answer, caller.need = b"", -1
        if self._keep_alive and whole and not closing:
            self._idle.append(caller)
        else:
            self._close(caller)
        self._next(again)

    def _next(self, again: bool) -> None:
        if self._callers is not None and again:
            self._start(time.perf_counter())

    def _close(self, caller: _Caller) -> None:
        descriptor = caller.socket.fileno()
        self._open.pop(descriptor, None)
        with contextlib.suppress(OSError, ValueError):
            self._poll.unregister(descriptor)
        caller.socket.close()


if __name__ == "__main__":
    # A prober in a process of its own, so that it does not wait for whoever makes the load.
    print(json.dumps(probe_ping(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))))
