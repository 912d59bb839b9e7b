"""Writes each request of a run down as soon as it was answered, so that nothing ends with the run.

    >>> with Journal(folder / "requests.jsonl", scenario="warm", target=target, ...) as note:
    ...     result = warm(client, payload, on_measured=note)

A run may take hours, and whatever ends it (a power cut, `kill -9`) must not take what was measured
until then. The lines are those that the finished run has, but for what is only known later.
"""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from dr_experiments.client import Measurement
from dr_experiments.records import RunContext, records_of
from dr_experiments.scenarios import ScenarioResult
from dr_experiments.targets import TargetDescription


class Journal:
    """A file of records that grows by a line for each measurement; any thread may write.

    Args:
        path: of the file, which is begun, or gone on with, at the first measurement.
        scenario: its name in the records; `target` and `interval_s` as in `ScenarioResult`.
        context: of the run.
        before_first: called before the file is opened.
    """

    def __init__(
        self,
        path: Path,
        *,
        scenario: str,
        target: TargetDescription,
        interval_s: float,
        context: RunContext,
        before_first: Callable[[], None] = lambda: None,
    ) -> None:
        self._path = path
        self._empty = ScenarioResult(
            scenario=scenario, target=target, interval_s=interval_s, warm_up=None, measurements=()
        )
        self._context = context
        self._before_first = before_first
        self._lock = threading.Lock()
        self._stream: IO[str] | None = None
        self._closed = False
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._closed = True
            if self._stream is not None:
                self._stream.close()

    def __call__(self, measurement: Measurement, counted: bool = True) -> None:
        """Write one measurement down; an uncounted one has index 0. After the end: nothing."""
        alone = replace(self._empty, measurements=(measurement,))
        (record,) = records_of(alone, context=self._context)
        with self._lock:
            if self._closed:
                # After Ctrl-C users may still get answers that nobody waits for.
                return
            if self._stream is None:
                self._before_first()
                # Line by line: each is with the system before the next request is sent.
                self._stream = self._path.open("a", encoding="utf-8", buffering=1)
            self._count += counted
            numbered = replace(record, index=self._count if counted else 0, counted=counted)
            self._stream.write(json.dumps(vars(numbered), allow_nan=False) + "\n")
