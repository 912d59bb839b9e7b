"""What a run notes about itself: instants, epochs, and why it ended.

Instants are of the machine's monotonic clock, which the supervising process shares, so that
both can be put on one axis.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FILE = "worker.json"


class Record:
    """Notes of a run, written to `worker.json` whole each time.

    >>> record = Record(out)
    >>> with record.epoch() as noted:
    ...     noted["loss"] = 0.4
    """

    def __init__(self, out: Path) -> None:
        self._path = out / FILE
        self._notes: dict[str, Any] = {"marks": {}, "epochs": []}

    def mark(self, name: str) -> None:
        """Note that something is reached now."""
        self._notes["marks"][name] = time.monotonic()

    def set(self, **facts: Any) -> None:
        """Note facts."""
        self._notes.update(facts)

    @contextmanager
    def epoch(self) -> Iterator[dict[str, Any]]:
        """Time what happens inside: wall clock and the processor time of all threads."""
        noted: dict[str, Any] = {}
        start, cpu = time.monotonic(), time.process_time()
        yield noted
        noted.update(start=start, end=time.monotonic(), cpu_s=time.process_time() - cpu)
        self._notes["epochs"].append(noted)

    def fail(self, kind: str, reason: str) -> None:
        """Note why the run ends; `kind` is `memory`, `unavailable`, `data` or `error`."""
        self._notes["failure"] = {"kind": kind, "reason": reason[:1000]}
        self.save()

    def save(self) -> None:
        """Write the notes so far."""
        partial = self._path.with_suffix(".part")
        partial.write_text(json.dumps(self._notes) + "\n")
        os.replace(partial, self._path)  # noqa: PTH105 - one call, atomic
