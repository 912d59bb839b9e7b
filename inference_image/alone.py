"""Gives a photograph all CPUs while the container has no other.

    >>> alone = Alone(predictor, settings=settings, metrics=metrics, log=log)
    >>> alone.begin()

One worker for each CPU answers most requests a second, but a single caller then waits for one CPU
while the others idle. So a worker that has been the only one with a request several times in a
row opens its model once more with more engine threads, if there is memory for all workers to do
so, and takes that one for requests that come alone. The answers are the same.
"""

import os
from typing import Final, Protocol

from inference_image.log import JsonLog
from inference_image.metrics import Metrics, resident_bytes
from inference_image.predictor import SecondEngine
from inference_image.settings import Settings
from inference_image.sizing import fitting_workers

# Under mixed load single requests are no reason to hold a second engine.
_IN_A_ROW: Final = 8


class Widening(Protocol):
    """What is asked of a `Predictor`."""

    alone: bool
    second: SecondEngine | None

    def widen(self, threads: int) -> None:
        """Open the second engine."""
        ...


class Alone:
    """Of one worker: whether requests come alone, and the second engine once they do.

    `begin` and `widen` are called in the thread that predicts.
    """

    def __init__(
        self, predictor: Widening, *, settings: Settings, metrics: Metrics, log: JsonLog
    ) -> None:
        self._predictor = predictor
        self._settings = settings
        self._metrics = metrics
        self._log = log
        self._in_a_row = 0
        # Until it is open, or cannot be.
        self._open_to_do = (
            predictor.second is not None and settings.threads_alone > settings.threads
        )

    def begin(self) -> None:
        """Note that a request is about to be computed."""
        alone = self._metrics.pending() == 1
        self._predictor.alone = alone
        self._in_a_row = self._in_a_row + 1 if alone else 0

    @property
    def is_due(self) -> bool:
        """Whether the second engine should be opened now."""
        return self._open_to_do and self._in_a_row >= _IN_A_ROW

    def widen(self) -> None:
        """Open the second engine, if it is due and fits; whatever happens, only one time."""
        second = self._predictor.second
        if not self.is_due or second is None:
            return
        self._open_to_do = False
        if not self._fits(second):
            self._log.info("second_engine", opened=False, reason="memory")
            return
        try:
            self._predictor.widen(self._settings.threads_alone)
        except Exception as error:  # noqa: BLE001
            # The worker goes on with the engine that it has.
            self._log.warning("second_engine", opened=False, reason=type(error).__name__)
            return
        self._log.info("second_engine", opened=True, threads=self._settings.threads_alone)

    def _fits(self, second: SecondEngine) -> bool:
        resident = resident_bytes(os.getpid())
        if resident is None:
            return False
        fitting = fitting_workers(
            self._settings.memory_bytes,
            worker_bytes=resident + second.resident_bytes,
            pixels=self._settings.max_image_pixels,
            wanted=self._settings.workers,
        )
        return fitting == self._settings.workers
