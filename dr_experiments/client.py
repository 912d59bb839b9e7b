"""The one place that holds a clock.

    >>> client = Client(target)
    >>> measurement = client.measure(payload)
    >>> measurement.outcome, measurement.full_latency_s
    ('ok', 0.031)

Latencies are differences of `time.perf_counter`, which never jumps; the wall clock only dates
a measurement. A request that failed keeps its duration apart (`failed_after_s`), so that no
average can contain one by accident.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from dr_experiments.answers import AnswerError, check_answer
from dr_experiments.targets import (
    OUTCOME_OK,
    OUTCOME_WRONG_ANSWER,
    Payload,
    Target,
    TargetDescription,
    TargetError,
)
from inference_image.contract import Prediction


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One request as the client saw it.

    `full_latency_s` is the client's round trip in seconds, and exists for answered requests
    only; `failed_after_s` is the time until a failure. `platform_ms` is what the platform
    said about itself. `start_offset_s` counts from the first request of a scenario.
    """

    started_at: datetime
    outcome: str
    full_latency_s: float | None
    failed_after_s: float | None = None
    answer: Prediction | None = field(default=None, repr=False)
    error: str | None = None
    status: int | None = None
    bytes_in: int = 0
    bytes_out: int | None = None
    platform_ms: Mapping[str, float] = field(default_factory=dict)
    start_offset_s: float = 0.0

    @property
    def ok(self) -> bool:
        """True for a checked answer."""
        return self.outcome == OUTCOME_OK

    @property
    def cold(self) -> bool | None:
        """True where a fresh container answered: by its own count, or the platform's set-up."""
        if self.answer is None:
            return None
        first = self.answer["container"].get("requests_before") == 0
        return first or self.platform_ms.get("model_setup_ms", 0) > 0


class Client:
    """Sends payloads to one target, one after the other, and checks each answer."""

    def __init__(
        self,
        target: Target,
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._target = target
        self._clock = clock
        self._sleep = sleep

    def describe(self) -> TargetDescription:
        """What is measured."""
        return self._target.describe()

    def now(self) -> float:
        """Seconds on the client's clock, which has no meaning outside differences."""
        return self._clock()

    def wait_until(self, moment: float) -> None:
        """Return at `moment` of the client's clock, or at once when it has passed."""
        delay = moment - self._clock()
        if delay > 0:
            self._sleep(delay)

    def measure(self, payload: Payload) -> Measurement:
        """One request. Never raises for what the target does; see `Measurement.outcome`."""
        started_at = datetime.now(UTC)
        start = self._clock()
        try:
            reply = self._target.send(payload)
        except TargetError as error:
            return Measurement(
                started_at=started_at,
                outcome=error.outcome,
                full_latency_s=None,
                failed_after_s=self._clock() - start,
                error=str(error),
                status=error.status,
                bytes_in=len(payload.body),
            )
        elapsed = self._clock() - start
        try:
            answer = check_answer(reply.body)
        except AnswerError as error:
            return Measurement(
                started_at=started_at,
                outcome=OUTCOME_WRONG_ANSWER,
                full_latency_s=None,
                failed_after_s=elapsed,
                error=str(error),
                bytes_in=len(payload.body),
                bytes_out=len(reply.body),
                platform_ms=reply.platform_ms,
            )
        return Measurement(
            started_at=started_at,
            outcome=OUTCOME_OK,
            full_latency_s=elapsed,
            answer=answer,
            status=200,
            bytes_in=len(payload.body),
            bytes_out=len(reply.body),
            platform_ms=reply.platform_ms,
        )
