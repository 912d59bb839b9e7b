"""One JSON object per line on standard output, which SageMaker sends to CloudWatch.

    >>> log = JsonLog(level="info")
    >>> log.info("ready", started_to_ready_ms=412.0)
    {"time": "2026-11-28T10:00:00.000Z", "level": "info", "event": "ready", ...}

Fields are numbers, digests, types and outcomes. Image bytes, file names and anything that a
picture's metadata says about a person never reach this module.
"""

import json
import sys
import time
from typing import Any, Final, TextIO

_ORDER: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class JsonLog:
    """Writes events at or above `level`; `context` is added to each of them."""

    def __init__(
        self, *, level: str, stream: TextIO | None = None, context: dict[str, Any] | None = None
    ) -> None:
        self._threshold = _ORDER[level]
        self._stream = stream
        self._context = context or {}

    def debug(self, event: str, **fields: Any) -> None:
        """What only a developer wants to know."""
        self._write("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """What happened, once per request or phase."""
        self._write("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """What somebody should look at some day."""
        self._write("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """What somebody must look at."""
        self._write("error", event, fields)

    def _write(self, level: str, event: str, fields: dict[str, Any]) -> None:
        if _ORDER[level] < self._threshold:
            return
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
        line = {"time": f"{stamp}.{int(now % 1 * 1000):03d}Z", "level": level, "event": event}
        stream = self._stream or sys.stdout
        # One write per line: lines of several workers must not be torn apart.
        stream.write(json.dumps(line | self._context | fields, default=str) + "\n")
        stream.flush()
