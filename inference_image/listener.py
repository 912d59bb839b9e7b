"""The socket that all workers wait on, and which of them takes whoever connects.

    >>> listener = listen(settings)
    >>> listener.at_once = lambda waiting: acceptable(app, metrics, slot, waiting)
    >>> listener.ahead = lambda: metrics.ahead(slot)

asyncio knows nothing about other processes that accept from the same socket. What it does when a
caller waits is to call `accept` until that fails, so that is where it is told.
"""

import contextlib
import math
import socket
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from inference_image.metrics import Metrics
from inference_image.settings import Settings

if TYPE_CHECKING:
    from inference_image.http_app import Application

BACKLOG: Final = 2048
# One worker alone accepts so many connections in one turn of its event loop, as does a busy one
# that does not know how many wait; and so many one alone that is busy, and each that is full.
_ACCEPTED_AT_ONCE: Final = 16
_BUSY_AT_ONCE: Final = 64
# A busy one of several workers, which has 3 turns in 40 ms, takes its share of those who wait, and
# at least so many: up to 300 a second, and 150 where it holds more connections than another.
_SHARED_AT_ONCE: Final = 4
_LEAST_AT_ONCE: Final = 2
# Where `struct tcp_info` of a listening socket has how many callers wait (`tcpi_unacked`; tcp(7),
# and tcp_get_info in the kernel's net/ipv4/tcp.c).
_WAITING_AT: Final = 24
# Where no more callers wait than a worker holds connections more than another, it leaves them to
# that one: for some milliseconds for each that it holds more, and at most for as long as the
# other's event loop may stand still. Then it takes whoever comes for a while. It sleeps a moment at
# a time.
_MOMENT_S: Final = 0.0005
_LEFT_FOR_EACH_S: Final = 0.004
_LEFT_MOST_S: Final = 0.05
_LEFT_ANEW_S: Final = 0.01
_ALONE_S: Final = 0.2
# Where the other one let a caller wait, nobody is sent to it for so long.
_DISTRUSTS_S: Final = 1.0


class Listener(socket.socket):
    """Keeps its queue of waiting callers at full length.

    asyncio calls `listen()` with the number of connections that a worker may accept at once.
    The queue belongs to the socket that all workers share, so each worker that starts would
    shorten it to that number, and callers who connect meanwhile would be dropped.
    """

    # How many connections may be accepted in one turn of the event loop, told how many callers
    # wait; all, where it is None.
    at_once: Callable[[int | None], int] | None = None
    # How many connections this worker holds more than another; see `Metrics.ahead`.
    ahead: Callable[[], int] | None = None
    _accepted = 0
    _most = math.inf
    _failed = False
    _left_s = _leaving_since_s = _alone_until_s = _in_vain_s = -math.inf

    def listen(self, _backlog: int = BACKLOG, /) -> None:
        super().listen(BACKLOG)

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection; `BlockingIOError` where none waits, or enough were accepted."""
        try:
            if self._failed or not self._takes_another():
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

    def waiting(self) -> int | None:
        """How many callers have connected and are not accepted; None where nobody says.

        Linux says nothing of a Unix socket, which workers behind nginx wait on.
        """
        with contextlib.suppress(OSError, struct.error):
            told = self.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _WAITING_AT + 4)
            return int(struct.unpack_from("=I", told, _WAITING_AT)[0])
        return None

    def others_take_callers(self) -> bool:
        """Whether no caller that was left to another worker had to wait in vain, of late."""
        return time.monotonic() >= self._in_vain_s + _DISTRUSTS_S

    def _takes_another(self) -> bool:
        if not self._accepted:
            # A turn begins. Whom it takes shows in no number before the next one.
            waiting = self.waiting()
            if self._leaves_them(waiting):
                return False
            self._most = math.inf if self.at_once is None else self.at_once(waiting)
        return self._accepted < self._most

    def _leaves_them(self, waiting: int | None) -> bool:
        """Let a worker that holds fewer connections take who waits, for a while.

        All workers wake for whoever connects, and the one that just ran is the quickest: of 40
        callers it took up to 37. Those who share a worker wait for each other.
        """
        ahead = 0 if self.ahead is None else self.ahead()
        now = time.monotonic()
        # One more than it is ahead: the one that it has just taken is not counted yet.
        enough_for_all = waiting is not None and waiting > ahead + 1
        if ahead <= 0 or enough_for_all or now < self._alone_until_s:
            return False
        if now - self._left_s > _LEFT_ANEW_S:
            self._leaving_since_s = now
        left_for_s = now - self._leaving_since_s
        if left_for_s >= min(_LEFT_MOST_S, ahead * _LEFT_FOR_EACH_S):
            # Nobody took it. After so long the other one does more than stand still: it has died.
            self._left_s, self._in_vain_s = -math.inf, now
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


def acceptable(app: "Application", metrics: Metrics, slot: int, waiting: int | None) -> int:
    """How many connections a worker may accept in this turn, of so many callers who wait."""
    if app.admission.is_full():
        # It takes them to refuse them, and many at once cost less.
        return _BUSY_AT_ONCE
    if metrics.workers == 1:
        # A few, so that those without a request give way before its files are used up.
        return _BUSY_AT_ONCE if app.is_busy() else _ACCEPTED_AT_ONCE
    if app.is_busy():
        # It has few turns. Its share leaves all with as many connections; and where many wait, the
        # queues must fill before anybody is refused, and `/ping` is among those who wait.
        ahead = metrics.ahead(slot)
        if waiting is None:
            share = _ACCEPTED_AT_ONCE - ahead
        else:
            share = max(_SHARED_AT_ONCE - ahead, (waiting - ahead) // metrics.workers)
        return min(_BUSY_AT_ONCE, max(_LEAST_AT_ONCE, share))
    # The first of several workers to wake would take all who wait, and leave none to the others.
    return 1
