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
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from dr_experiments.answers import AnswerError, check_answer
from dr_experiments.targets import (
    OUTCOME_OK,
    OUTCOME_THROTTLED,
    OUTCOME_UNREACHABLE,
    OUTCOME_WRONG_ANSWER,
    Payload,
    Target,
    TargetDescription,
    TargetError,
)
from dr_experiments.transport import CONNECTION_PHASES
from inference_image.contract import Prediction

# The container and the client have a clock each; two clocks run apart by far less than this.
CLOCKS_APART: Final = 1.001
RETRY_PAUSE_S: Final = 0.5
# What a later attempt can cure: no connection, or too many requests at once.
RETRIED_OUTCOMES: Final = (OUTCOME_THROTTLED, OUTCOME_UNREACHABLE)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One request as the client saw it.

    `full_latency_s` is the client's round trip in seconds, and exists for answered requests
    only; `failed_after_s` is the time until a failure. `platform_ms` is what the platform
    said about itself, `phases_ms` the steps of the connection (`transport.PHASES`).

    `retries` counts further attempts and `throttles` the attempts that were refused for load;
    the latency is the last attempt's, `waited_s` the time over all of them with their pauses.
    `start_offset_s` counts from the first request of a scenario, and `intended_offset_s` is when
    a schedule wanted it; `user` numbers the simulated user from 0. `start_seen` is true where an
    earlier request of a cold scenario met the same container, whatever that says of itself.
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
    phases_ms: Mapping[str, float] = field(default_factory=dict)
    max_memory_mib: float | None = None
    retries: int = 0
    throttles: int = 0
    waited_s: float | None = None
    start_offset_s: float = 0.0
    intended_offset_s: float | None = None
    user: int | None = None
    start_seen: bool = False

    @property
    def ok(self) -> bool:
        """True for a checked answer."""
        return self.outcome == OUTCOME_OK

    @property
    def answer_latency_s(self) -> float | None:
        """Round trip without opening the connection and without the upload, in seconds.

        None where the request was not answered, or its connection does not tell its steps.
        """
        if self.full_latency_s is None or not self.phases_ms:
            return None
        before = sum(self.phases_ms.get(name, 0.0) for name in (*CONNECTION_PHASES, "upload_ms"))
        return self.full_latency_s - before / 1000

    @property
    def response_time_s(self) -> float | None:
        """Seconds from the moment the schedule wanted the request to its answer; None without one.

        A server that stalls holds back requests that were due meanwhile; measured from its own
        start, each of them would look fast.
        """
        if self.full_latency_s is None:
            return None
        if self.intended_offset_s is None:
            return self.full_latency_s
        return self.start_offset_s - self.intended_offset_s + self.full_latency_s

    @property
    def start_id(self) -> str | None:
        """Which container answered; None without an answer."""
        return self.answer["container"].get("start_id") if self.answer else None

    @property
    def cold(self) -> bool | None:
        """True where a fresh container answered: by its own count, or the platform's set-up."""
        if self.answer is None:
            return None
        if self.start_seen:
            return False
        first = self.answer["container"].get("requests_before") == 0
        return first or self.platform_ms.get("model_setup_ms", 0) > 0


class Client:
    """Sends payloads to one target, one after the other, and checks each answer.

    Args:
        retries: further attempts after `RETRIED_OUTCOMES`, 0 unless asked for: a retry is load,
            and a failure that was retried is no longer seen.
        retry_pause_s: before the first further attempt; it doubles each time.
    """

    def __init__(
        self,
        target: Target,
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
        retries: int = 0,
        retry_pause_s: float = RETRY_PAUSE_S,
    ) -> None:
        if retries < 0:
            raise ValueError(f"retries must not be negative; got {retries}")
        self._target = target
        self._retries = retries
        self._retry_pause_s = retry_pause_s
        self._clock = clock
        self._sleep = sleep

    def describe(self) -> TargetDescription:
        """What is measured."""
        return self._target.describe()

    def close(self) -> None:
        """Close the target's connection, where it keeps one."""
        close = getattr(self._target, "close", None)
        if close is not None:
            close()

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
        begin = self._clock()
        throttles = 0
        for attempt in range(self._retries + 1):
            if attempt:
                self._sleep(self._retry_pause_s * 2 ** (attempt - 1))
            measurement = self._attempt(payload)
            throttles += measurement.outcome == OUTCOME_THROTTLED
            if measurement.outcome not in RETRIED_OUTCOMES:
                break
        return replace(
            measurement,
            retries=attempt,
            throttles=throttles,
            waited_s=self._clock() - begin,
        )

    def _attempt(self, payload: Payload) -> Measurement:
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
        seen = Measurement(
            started_at=started_at,
            outcome=OUTCOME_OK,
            full_latency_s=elapsed,
            status=200,
            bytes_in=len(payload.body),
            bytes_out=len(reply.body),
            platform_ms=reply.platform_ms,
            phases_ms=reply.phases_ms,
            max_memory_mib=reply.max_memory_mib,
        )
        try:
            answer = check_answer(reply.body)
            if answer["requestLatency"] > elapsed * CLOCKS_APART:
                raise AnswerError("the container says that it took longer than the round trip")
            return replace(seen, answer=answer)
        except AnswerError as error:
            return replace(
                seen,
                outcome=OUTCOME_WRONG_ANSWER,
                full_latency_s=None,
                failed_after_s=elapsed,
                error=str(error),
                status=None,
            )
