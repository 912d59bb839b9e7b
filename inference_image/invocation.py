"""One `POST /invocations` on its way: header, place in the queue, time limit, sender.

    >>> call = Invocation(read_header(scope["headers"]), timeout_s=55.0)
    >>> call.when_over(end)      # once: answered, out of time, or its sender has left

Everything here runs in the event loop.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from starlette.requests import Request

from inference_image.contract import CUSTOM_ATTRIBUTES_HEADER
from inference_image.metrics import Recorder
from inference_image.overload import request_id
from inference_image.requests import Options

# An ASGI extension: functions to call when the sender closes the connection.
CLOSING: Final = "dr_endpoints.closing"
REQUEST_ID_NAME: Final = b"x-request-id"

_ATTRIBUTES: Final = CUSTOM_ATTRIBUTES_HEADER.lower().encode("ascii")
_TYPE, _LENGTH, _ACCEPT = b"content-type", b"content-length", b"accept"
_ENCODING: Final = b"content-encoding"
_LISTS: Final = (_ATTRIBUTES, _ENCODING, _ACCEPT)


class Header(NamedTuple):
    """What a request's header says; `request_id` is the caller's where it is usable."""

    request_id: str
    content_type: str | None
    content_length: str
    accept: str | None
    attributes: str
    encodings: str


def read_header(pairs: Iterable[tuple[bytes, bytes]]) -> Header:
    """Read a header once; its names are in lower case, as ASGI has them."""
    pairs = list(pairs)
    found = dict(pairs)
    if len(found) < len(pairs):
        # Headers that are lists mean all of them (RFC 9110, 5.3); of the others the first counts.
        found = {}
        for name, value in pairs:
            if name in found and name in _LISTS:
                found[name] += b"," + value
            else:
                found.setdefault(name, value)
    content_type, accept = found.get(_TYPE), found.get(_ACCEPT)
    return Header(
        request_id=request_id(found.get(REQUEST_ID_NAME, b"").decode("latin-1")),
        content_type=None if content_type is None else content_type.decode("latin-1"),
        content_length=found.get(_LENGTH, b"").decode("latin-1"),
        accept=None if accept is None else accept.decode("latin-1"),
        attributes=found.get(_ATTRIBUTES, b"").decode("latin-1"),
        encodings=found.get(_ENCODING, b"").decode("latin-1"),
    )


class Invocation:
    """What is known about one request until it is answered; `fields` is its line in the log."""

    def __init__(self, header: Header, *, timeout_s: float) -> None:
        self.header = header
        self.began_s = time.perf_counter()
        self.due_s = self.began_s + timeout_s
        self.fields: dict[str, Any] = {"request_id": header.request_id}
        self.options = Options()
        self.sender_has_left = False
        self._on_over: Callable[[], None] | None = None

    def when_over(self, then: Callable[[], None]) -> None:
        """Have `then` called, once, when the first thing ends this."""
        self._on_over = then

    def over(self) -> None:
        """Answered, or out of time."""
        then, self._on_over = self._on_over, None
        if then is not None:
            then()

    def leave(self) -> None:
        """The sender has closed the connection."""
        self.sender_has_left = True
        self.over()


class Queue:
    """The requests of one worker that arrive, wait or are computed, and the bytes they hold."""

    def __init__(
        self, *, most_bytes: int, recorder: Recorder, on_leaving: Callable[[], None]
    ) -> None:
        self.most_bytes = most_bytes
        self.on_leaving = on_leaving
        self.pending = 0
        self.bytes_held = 0
        self._recorder = recorder

    def show(self) -> None:
        """Let the metrics have the numbers."""
        self._recorder.queue(pending=self.pending, bytes_held=self.bytes_held)


class Place:
    """One request's place in the queue and the bytes that it may hold there."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._taken = True
        self._bytes_held = 0
        queue.pending += 1
        queue.show()

    def hold(self, size: int) -> bool:
        """Whether there is room for a body of at least `size` bytes; if so, it is taken."""
        more = size - self._bytes_held
        if more <= 0:
            return True
        queue = self._queue
        if queue.bytes_held + more > queue.most_bytes:
            return False
        self._bytes_held += more
        queue.bytes_held += more
        queue.show()
        return True

    def leave(self) -> None:
        """Give the place back, once."""
        if self._taken:
            self._taken = False
            self._queue.pending -= 1
            self._queue.bytes_held -= self._bytes_held
            self._queue.show()
            self._queue.on_leaving()


class Deadlines:
    """Ends invocations that take too long, with one timer for all of them.

    A timer of its own for each, set and cancelled, is a good part of what a request costs.
    """

    def __init__(self) -> None:
        self._open: dict[Invocation, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next_s = 0.0
        self.all_ended = False

    def add(self, call: Invocation) -> None:
        """End it when it is due, unless it is forgotten before."""
        if self.all_ended:
            self._end([call])
            return
        self._open[call] = None
        if self._timer is not None:
            if self._next_s <= call.due_s:
                return
            self._timer.cancel()
        self._wait_until(call.due_s)

    def forget(self, call: Invocation) -> None:
        """It is over."""
        self._open.pop(call, None)

    def end_all(self) -> None:
        """End what is open, and from now on whatever is added."""
        self.all_ended = True
        self._end(list(self._open))

    def _end(self, calls: Iterable[Invocation]) -> None:
        for call in calls:
            self.forget(call)
            # Each by itself: one that fails keeps no other from its answer.
            asyncio.get_running_loop().call_soon(call.over)

    def _wait_until(self, due_s: float) -> None:
        self._next_s = due_s
        left_s = max(0.0, due_s - time.perf_counter())
        self._timer = asyncio.get_running_loop().call_later(left_s, self._end_overdue)

    def _end_overdue(self) -> None:
        self._timer = None
        now = time.perf_counter()
        overdue = [call for call in self._open if call.due_s <= now]
        self._end(sorted(overdue, key=lambda call: call.due_s))
        if self._open:
            self._wait_until(min(call.due_s for call in self._open))


class Sender:
    """Notices that the sender of a request closes the connection.

    A server that offers `CLOSING` tells it, which costs nothing; any other is asked, in a task.
    """

    def __init__(self, request: Request, *, on_leaving: Callable[[], None]) -> None:
        self._on_leaving = on_leaving
        self._asking: asyncio.Task[None] | None = None
        self._told: set[Callable[[], None]] | None = request.scope.get("extensions", {}).get(
            CLOSING
        )
        if self._told is not None:
            self._told.add(on_leaving)
        else:
            self._asking = asyncio.ensure_future(_disconnected(request))
            self._asking.add_done_callback(self._asked)

    def forget(self) -> None:
        """The request has its answer."""
        if self._told is not None:
            self._told.discard(self._on_leaving)
        if self._asking is not None:
            self._asking.cancel()

    def _asked(self, asking: "asyncio.Task[None]") -> None:
        if not asking.cancelled():
            self._on_leaving()


async def _disconnected(request: Request) -> None:
    """Returns when the sender has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
