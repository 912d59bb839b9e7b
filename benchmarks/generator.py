"""Sends one request again and again, and notes what becomes of it: the only load generator here.

>>> load = closed_loop(port, request, clients=40, warm_up_s=1, seconds=5)
>>> load.per_s, load.median_ms, load.own_cpu_share
>>> outcome = offer(port, request, rate_per_s=500, seconds=10)
>>> outcome.answered(200)

Two questions, and a load for each. How fast is a server? Clients that wait for their answers
(`closed_loop`) say that, and a load in which anything fails says nothing. What does a server do
under a load? Requests on a schedule (`offer`): callers who wait for their answers would slow down
together with the server, and hide what it does under overload (coordinated omission).

The generator shares the processor with what it measures. So it is `generator.c`, one thread that
does hardly more than its system calls, compiled at its first use and called with the interpreter
let go; and it measures its own CPU time, so that one can see what it takes.
"""

import ctypes
import errno
import functools
import os
import statistics
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from benchmarks.compiled import load

# Without any answer for so long, a server's speed is not to be had; past the end of a schedule,
# answers are waited for so long.
_SILENCE_S: Final = 60.0
_PATIENCE_S: Final = 30.0
# What is due, or has come to so many clients, is dealt with this often at most. A generator that
# woke for each would take the processor from the server some hundred or thousand times a second, as
# none on another machine does; a client then waits so much longer, of the time of many answers.
_TICK_S: Final = 0.002
_MANY_CLIENTS: Final = 8

_SOURCE: Final = Path(__file__).with_suffix(".c")
_RECORD: Final = struct.Struct("dddii")
# What the functions of generator.c return, but for a failure.
_GOES_ON, _DONE = 0, 1
_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)


class LoadError(RuntimeError):
    """A load that says nothing: the server closed a connection, answered with another status than
    200 or not at all; or this process may not open so many connections."""


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


@dataclass(slots=True)
class Sent:
    """One request: seconds on the clock of `time.perf_counter`, and the status of its answer.

    `status` is 0 where the connection ended without an answer, or with none that can be read;
    `done_s` is 0 where neither had come when the generator gave up. `local_port` is the caller's.
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
    """What became of every request, in the order in which they were due, and what sending cost."""

    requests: list[Sent] = field(default_factory=list)
    refused_connections: int = 0
    own_cpu_s: float = 0.0
    seconds: float = 0.0

    def answered(self, status: int) -> int:
        """How many were answered with a status."""
        return sum(request.status == status for request in self.requests)

    def per_s(self, status: int, *, from_s: float = 0.0) -> float:
        """Answers with a status a second, of those that came while requests were sent.

        What was sent before the end and answered after it would count for a time that is not
        counted.

        Args:
            status: of the answers.
            from_s: answers before so many seconds of the sending are left out.
        """
        began_s = min((request.due_s for request in self.requests), default=0.0)
        counted = sum(
            request.status == status and from_s <= request.done_s - began_s <= self.seconds
            for request in self.requests
        )
        return counted / (self.seconds - from_s)

    def statuses(self) -> dict[str, int]:
        """Status (or "none") -> how often, in order."""
        counts = Counter(request.status for request in self.requests)
        return {str(status or "none"): counts[status] for status in sorted(counts)}

    def latencies_s(self, status: int) -> list[float]:
        """Latencies of the requests with a status, ascending."""
        return sorted(r.latency_s for r in self.requests if r.status == status)


class Stop:
    """Ends the sending of `offer` early, from another thread."""

    def __init__(self) -> None:
        # The generator looks at it while it runs, without the interpreter.
        self.flag = ctypes.c_int(0)

    def set(self) -> None:
        """Nothing is sent any more; answers are still waited for."""
        self.flag.value = 1


def prepare() -> None:
    """Compile the generator now, and not when the first load begins.

    Raises:
        NotCompiledError: there is no compiler.
    """
    _library()


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
        OSError: nobody listens.
        NotCompiledError: there is no compiler.
    """
    with _Generator(
        port,
        request,
        most=clients,
        strict=True,
        keep_alive=True,
        tick_s=_TICK_S if clients >= _MANY_CLIENTS else 0.0,
        patience_s=_SILENCE_S,
    ) as generator:
        generator.run("dr_connect")
        generator.run("dr_warm_up", warm_up_s)
        shown = at_start()
        generator.run("dr_measure", seconds, fewest, most_s)
        totals = generator.totals
        records = generator.records()
    return Load(
        answered_s=tuple(done_s - totals.start_s for _, _, done_s, _, _ in records),
        latencies_ms=tuple((done_s - due_s) * 1000 for due_s, _, done_s, _, _ in records),
        seconds=totals.seconds,
        own_cpu_s=totals.own_cpu_s,
        at_start=shown,
    )


def offer(
    port: int,
    request: bytes,
    *,
    rate_per_s: float | None = None,
    callers: int | None = None,
    seconds: float,
    keep_alive: bool = True,
    stop: Stop | None = None,
    most_connections: int = 3000,
) -> Outcome:
    """Send `request` again and again, whether or not earlier ones have been answered.

    Args:
        port: of a server on this machine.
        request: the bytes of a whole request.
        rate_per_s: requests are due at this even rate (an open loop); or None, and
        callers: so many send one after the other (a closed loop).
        seconds: how long requests are sent; their answers are waited for.
        keep_alive: whether a connection takes a next request.
        stop: ends the sending early.
        most_connections: a request that is due while so many are open waits; what still waits at
            the end is not sent.

    Raises:
        LoadError: this process may not open so many connections.
        OSError: connections fail, but for those that the server refuses, which are counted.
        ValueError: neither a rate nor callers, or both.
        NotCompiledError: there is no compiler.
    """
    if (rate_per_s is None) == (callers is None):
        raise ValueError("give either rate_per_s or callers")
    with _Generator(
        port,
        request,
        most=most_connections if callers is None else callers,
        strict=False,
        keep_alive=keep_alive,
        tick_s=_TICK_S if callers is None or callers >= _MANY_CLIENTS else 0.0,
        patience_s=_PATIENCE_S,
    ) as generator:
        flag = ctypes.byref((stop or Stop()).flag)
        generator.run("dr_offer", rate_per_s or 0.0, callers or 0, seconds, flag)
        totals = generator.totals
        requests = [
            Sent(due_s, local_port, sent_s, done_s, status)
            for due_s, sent_s, done_s, local_port, status in sorted(generator.records())
        ]
    return Outcome(requests, totals.refused, totals.own_cpu_s, totals.seconds)


class _Totals(ctypes.Structure):
    """`struct totals` of generator.c."""

    _fields_ = (
        ("start_s", ctypes.c_double),
        ("seconds", ctypes.c_double),
        ("own_cpu_s", ctypes.c_double),
        ("records", ctypes.c_uint64),
        ("refused", ctypes.c_uint64),
    )


# Results and arguments of the functions of generator.c, without the generator that they are given.
_FUNCTIONS: Final[dict[str, tuple[Any, list[Any]]]] = {
    "dr_connect": (ctypes.c_int, []),
    "dr_warm_up": (ctypes.c_int, [ctypes.c_double]),
    "dr_measure": (ctypes.c_int, [ctypes.c_double, ctypes.c_uint64, ctypes.c_double]),
    "dr_offer": (
        ctypes.c_int,
        [ctypes.c_double, ctypes.c_size_t, ctypes.c_double, ctypes.POINTER(ctypes.c_int)],
    ),
    "dr_totals": (ctypes.POINTER(_Totals), []),
    "dr_records": (ctypes.c_void_p, []),
    "dr_failure": (
        ctypes.c_int,
        [ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t)],
    ),
    "dr_close": (None, []),
}


@functools.cache
def _library() -> ctypes.CDLL:
    library = load(_SOURCE)
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, [ctypes.c_void_p, *arguments]
    library.dr_open.restype = ctypes.c_void_p
    library.dr_open.argtypes = [
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_uint16,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_double,
        ctypes.c_double,
    ]
    return library


class _Generator:
    """One `struct generator`, from its making to its end."""

    def __init__(
        self,
        port: int,
        request: bytes,
        *,
        most: int,
        strict: bool,
        keep_alive: bool,
        tick_s: float,
        patience_s: float,
    ) -> None:
        self._library = _library()
        # Its bytes are sent from where they are.
        self._request = request
        self._address = self._library.dr_open(
            request, len(request), port, most, strict, keep_alive, tick_s, patience_s
        )
        if self._address is None:
            raise MemoryError(f"no room for {most} connections")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._library.dr_close(self._address)

    def run(self, name: str, *arguments: Any) -> None:
        """Call a function until it is done; between two calls, Python sees to its signals."""
        function = getattr(self._library, name)
        while (state := function(self._address, *arguments)) == _GOES_ON:
            pass
        if state != _DONE:
            raise self._error()

    @property
    def totals(self) -> _Totals:
        found = self._library.dr_totals(self._address).contents
        return _Totals.from_buffer_copy(found)

    def records(self) -> list[tuple[float, float, float, int, int]]:
        """Of each request: when it was due, sent and done, the caller's port, and the status."""
        count = self.totals.records
        data = ctypes.string_at(self._library.dr_records(self._address), count * _RECORD.size)
        return list(_RECORD.iter_unpack(data))

    def _error(self) -> Exception:
        said, size = ctypes.c_void_p(), ctypes.c_size_t()
        number = self._library.dr_failure(self._address, ctypes.byref(said), ctypes.byref(size))
        if number in _NO_DESCRIPTORS:
            return LoadError("this process may not open so many connections (ulimit -n)")
        if number:
            return OSError(number, os.strerror(number))
        return LoadError(ctypes.string_at(said, size.value).decode("latin-1"))
