"""One JSON object per line on standard output, which SageMaker sends to CloudWatch.

    >>> log = JsonLog(level="info")
    >>> log.info("ready", started_to_ready_ms=412.0)
    {"time": "2026-11-28T10:00:00.000Z", "level": "info", "event": "ready", ...}

Fields are numbers, digests, types and outcomes. Image bytes, file names and anything that a
picture's metadata says about a person never reach this module.
"""

import contextlib
import json
import os
import select
import sys
import threading
import time
from collections import deque
from typing import Any, Final, TextIO

_ORDER: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_MOST_WAITING: Final = 1000
_PATIENCE_S: Final = 0.1
# Lines gather this long, so that a busy process wakes its writer 50 times a second, not once a
# line: each time the two threads would wait for each other.
_GATHER_S: Final = 0.02
_ENCODER: Final = json.JSONEncoder(default=str)


class JsonLog:
    """Writes events at or above `level`; `context` is added to each of them.

    Writing never raises, and never waits for whoever reads: what cannot be written is dropped
    and counted, and the next line that gets through says how many (`dropped`). A process that
    answers requests moves the writing `in_background`.
    """

    def __init__(
        self, *, level: str, stream: TextIO | None = None, context: dict[str, Any] | None = None
    ) -> None:
        self._threshold = _ORDER[level]
        self._stream = stream
        self._context = context or {}
        self._dropped = 0
        self._waiting: deque[str] = deque()
        self._writer: threading.Thread | None = None
        self._wake = threading.Event()
        self._ending = threading.Event()
        # What nobody has read soon after the end is let go.
        self._given_up = False

    def debug(self, event: str, **fields: Any) -> None:
        """What only a developer wants to know."""
        self._write("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """What happened, once per request or phase."""
        self._write("info", event, fields)

    def always(self, event: str, **fields: Any) -> None:
        """What must be written at any level, because somebody counts the lines."""
        self._write("info", event, fields, threshold=0)

    def warning(self, event: str, **fields: Any) -> None:
        """What somebody should look at some day."""
        self._write("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """What somebody must look at."""
        self._write("error", event, fields)

    def in_background(self) -> None:
        """From now on a thread writes; not in a process that forks afterwards."""
        self._writer = threading.Thread(target=self._write_waiting, name="log", daemon=True)
        self._writer.start()

    def close(self, *, within_s: float = 1.0) -> None:
        """Write what waits, as far as the reader takes it in time."""
        if self._writer is not None:
            self._ending.set()
            self._wake.set()
            self._writer.join(within_s)
            self._given_up = True

    def _write(
        self, level: str, event: str, fields: dict[str, Any], *, threshold: int | None = None
    ) -> None:
        if _ORDER[level] < (self._threshold if threshold is None else threshold):
            return
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
        line = {"time": f"{stamp}.{int(now % 1 * 1000):03d}Z", "level": level, "event": event}
        dropped = {"dropped": self._dropped} if self._dropped else {}
        text = _ENCODER.encode(line | self._context | fields | dropped) + "\n"
        if self._writer is None:
            written = self._put(text, patience_s=_PATIENCE_S)
        else:
            written = len(self._waiting) < _MOST_WAITING
            if written:
                self._waiting.append(text)
                if not self._wake.is_set():
                    self._wake.set()
        self._dropped = 0 if written else self._dropped + 1

    def _write_waiting(self) -> None:
        ending = False
        while not ending:
            if not self._ending.is_set():
                self._wake.wait()
            ending = self._ending.wait(_GATHER_S)
            # First cleared, then emptied: a line that comes in between wakes the writer again.
            self._wake.clear()
            while self._waiting and not self._given_up:
                lines = self._next_lines()
                if not self._put("".join(lines), patience_s=None):
                    self._dropped += len(lines)

    def _next_lines(self) -> list[str]:
        """One line, and as many more as the kernel writes to a pipe in one piece."""
        lines = [self._waiting.popleft()]
        size = len(lines[0])
        # Lines are ASCII: what is not is escaped.
        while self._waiting and size + len(self._waiting[0]) <= select.PIPE_BUF:
            lines.append(self._waiting.popleft())
            size += len(lines[-1])
        return lines

    def _put(self, text: str, *, patience_s: float | None) -> bool:
        """Write lines at once, so that those of several workers are not torn apart."""
        try:
            if self._stream is not None:
                self._stream.write(text)
                self._stream.flush()
                return True
            # Past Python's own buffer: a line that is stuck there would be waited for at exit.
            target = sys.stdout.fileno()
            left = text.encode()
            while left:
                _, writable, _ = select.select([], [target], [], patience_s)
                if not writable:
                    return False
                # Of a long line a pipe that does not block takes what it has room for, and nothing
                # where another process has just filled it.
                with contextlib.suppress(BlockingIOError):
                    left = left[os.write(target, left) :]
            return True
        except (OSError, ValueError):
            # Closed, full or gone: the service goes on without its log.
            return False
