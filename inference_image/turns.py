"""When the event loop works while predictions wait: now and then, and then for all that has come.

    >>> turns = Turns()
    >>> turns.queued()                     # in the event loop, for each prediction that it submits
    >>> turns.begun()                      # in the prediction's thread
    >>> turns.enter_engine()
    >>> turns.finished(loop, answer)       # `answer` is called in the event loop

Python code runs in one thread at a time, and whoever calls the kernel hands the interpreter over.
An event loop that reads, answers and refuses one request at a time takes the interpreter and the
processor's caches from the prediction's thread again and again, and finds its own gone each time:
beside a network the same steps cost three times what they cost alone.

So while many predictions wait, the loop stands still for some tens of milliseconds. It goes on when
the prediction next enters the engine, which does not need the interpreter; or at once when few wait
any more, so that the prediction's thread never runs out of work for it. What has arrived and what
has been answered by then is done in one go. With few requests in hand nothing waits for anything.
"""

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

# So many must wait for a pause to be worth its own steps, and with so few left it ends.
_MANY: Final = 6
_FEW: Final = 3
# So long nothing is done, then at the engine's next beginning; and the longest that it may be,
# however long the engine or a decoder takes.
_PAUSE_S: Final = 0.04
_LONGEST_PAUSE_S: Final = 0.08
# What a turn wakes runs in the turn after it, and what has arrived then begins in the one after.
_TURNS_OF_WORK: Final = 3


class Turns:
    """Of one worker. Each method says which of its two threads calls it."""

    def __init__(self) -> None:
        # Counted by one thread each: a sum that two change would lose some.
        self._queued = 0
        self._begun = 0
        self._answers: deque[Callable[[], None]] = deque()
        self._go_on = threading.Event()
        self._paused_since: float | None = None
        self._planned = False
        self._refused = False
        self.predicting = False

    def queued(self, change: int = 1) -> None:
        """Event loop: a prediction was submitted; or -1: it was taken back before it began."""
        self._queued += change

    def begun(self) -> None:
        """Prediction: one that was submitted begins."""
        self._begun += 1

    @property
    def waiting(self) -> int:
        """Predictions that have been submitted and have not begun."""
        return self._queued - self._begun

    @property
    def is_busy(self) -> bool:
        """Either: whether so many wait that the event loop pauses."""
        return self.waiting >= _MANY

    def enter_engine(self) -> None:
        """Prediction: it is about to leave the interpreter to others."""
        since = self._paused_since
        if since is not None and time.perf_counter() - since >= _PAUSE_S:
            self._go_on.set()

    def finished(self, loop: asyncio.AbstractEventLoop, answer: Callable[[], None]) -> None:
        """Prediction, or event loop: have the event loop call `answer`, now or after its pause."""
        self._answers.append(answer)
        if self._paused_since is None:
            # It may have ended.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._hand_over)
        elif self.waiting < _FEW:
            self._go_on.set()

    def refused(self) -> None:
        """Event loop: a request was refused; many come together, so a pause is due."""
        if self.predicting:
            self._refused = True
            self._plan()

    def _hand_over(self) -> None:
        try:
            while self._answers:
                self._answers.popleft()()
        finally:
            # One that fails keeps no other from its answer.
            if self._answers:
                asyncio.get_running_loop().call_soon(self._hand_over)
        if self.is_busy:
            self._plan()

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            self._pause_after(_TURNS_OF_WORK)

    def _pause_after(self, turns: int) -> None:
        soon = asyncio.get_running_loop().call_soon
        if turns > 1:
            soon(self._pause_after, turns - 1)
        else:
            soon(self._pause)

    def _pause(self) -> None:
        self._planned = False
        self._go_on.clear()
        self._paused_since = time.perf_counter()
        # A queue that is full may be a short one: then what is being predicted ends the pause, but
        # not where its answer is there and its thread saw no pause yet.
        is_short = self._refused and self.predicting and not self._answers
        if is_short or self.waiting >= _FEW:
            self._go_on.wait(_LONGEST_PAUSE_S)
        self._paused_since = None
        self._refused = False
        self._hand_over()
