"""The socket that all workers wait on, and which of them takes whoever connects.

    >>> listener = listen(settings)
    >>> listener.at_once = lambda: acceptable(app, metrics, slot)
    >>> listener.ahead = lambda: metrics.ahead(slot)

asyncio knows nothing about other processes that accept from the same socket. What it does when a
caller waits is to call `accept` until that fails, so that is where it is told.
"""

import math
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from inference_image.metrics import Metrics
from inference_image.settings import Settings

if TYPE_CHECKING:
    from inference_image.http_app import Application

BACKLOG: Final = 2048
# One worker alone accepts so many connections in one turn of its event loop, and so many while it
# is busy; each worker so many while its queue is full.
_ACCEPTED_AT_ONCE: Final = 16
_BUSY_AT_ONCE: Final = 64
# A busy one of several workers, which has 3 turns in 40 ms: up to 300 a second, and 150 where it
# holds more connections than another.
_SHARED_AT_ONCE: Final = 4
_LEAST_AT_ONCE: Final = 2
# A worker leaves a caller to another that holds fewer connections: for some milliseconds for each
# that it holds more, and at most for as long as the other's event loop may stand still. Then it
# takes whoever comes for a while. It sleeps a moment at a time.
_MOMENT_S: Final = 0.0005
_LEFT_FOR_EACH_S: Final = 0.004
_LEFT_MOST_S: Final = 0.05
_LEFT_ANEW_S: Final = 0.01
_ALONE_S: Final = 0.2


class Listener(socket.socket):
    """Keeps its queue of waiting callers at full length.

    asyncio calls `listen()` with the number of connections that a worker may accept at once.
    The queue belongs to the socket that all workers share, so each worker that starts would
    shorten it to that number, and callers who connect meanwhile would be dropped.
    """

    # How many connections may be accepted in one turn of the event loop; all, where it is None.
    at_once: Callable[[], int] | None = None
    # How many connections this worker holds more than another; see `Metrics.ahead`.
    ahead: Callable[[], int] | None = None
    _accepted = 0
    _failed = False
    _left_s = _leaving_since_s = _alone_until_s = -math.inf

    def listen(self, _backlog: int = BACKLOG, /) -> None:
        super().listen(BACKLOG)

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection; `BlockingIOError` where none waits, or enough were accepted."""
        try:
            enough = self.at_once is not None and self._accepted >= self.at_once()
            if self._failed or enough or self._leaves_it():
                raise BlockingIOError
            accepted = super().accept()
        except OSError as error:
            self._accepted = 0
            # Out of files asyncio pauses for a second, but goes on with its turn as often as its
            # backlog is long, logs each time, and ends each pause.
            self._failed = not isinstance(error, BlockingIOError)
            raise
        self._accepted += 1
        return accepted

    def _leaves_it(self) -> bool:
        """Let a worker that holds fewer connections take the next one, for a while.

        All workers wake for whoever connects, and the one that just ran is the quickest: of 40
        callers it took up to 37. Those who share a worker wait for each other.
        """
        ahead = 0 if self._accepted or self.ahead is None else self.ahead()
        now = time.monotonic()
        if ahead <= 0 or now < self._alone_until_s:
            return False
        if now - self._left_s > _LEFT_ANEW_S:
            self._leaving_since_s = now
        left_for_s = now - self._leaving_since_s
        if left_for_s >= min(_LEFT_MOST_S, ahead * _LEFT_FOR_EACH_S):
            # Nobody took it. After so long the other one does more than stand still: it has died.
            self._left_s = -math.inf
            if left_for_s >= _LEFT_MOST_S:
                self._alone_until_s = now + _ALONE_S
            return False
        # Asleep, and not in a next turn of the loop, which would keep the processor from the other.
        time.sleep(_MOMENT_S)
        self._left_s = time.monotonic()
        return True


def listen(settings: Settings) -> Listener:
    """Bind to the address that the settings name; raises `OSError` where it is taken."""
    family = socket.AF_INET6 if ":" in settings.bind_host else socket.AF_INET
    # The protocol is named because asyncio turns off Nagle's algorithm only where it is; with
    # it on, an answer's body waits 40 ms for the acknowledgement of its header.
    listener = Listener(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.bind_host, settings.port))
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def acceptable(app: "Application", metrics: Metrics, slot: int) -> int:
    """How many connections a worker may accept in this turn of its event loop."""
    if app.is_full():
        # It takes them to refuse them, and many at once cost less.
        return _BUSY_AT_ONCE
    if metrics.workers == 1:
        # A few, so that those without a request give way before its files are used up.
        return _BUSY_AT_ONCE if app.is_busy() else _ACCEPTED_AT_ONCE
    if app.is_busy():
        # It has few turns, and no other worker was idle to take them: as many as it can answer,
        # and more where it holds fewer than another.
        return min(_BUSY_AT_ONCE, max(_LEAST_AT_ONCE, _SHARED_AT_ONCE - metrics.ahead(slot)))
    # The first of several workers to wake would take all who wait, and leave none to the others.
    return 1
