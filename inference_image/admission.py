"""Who is let in by one worker, and what those hear who are not: 429 and 413.

    >>> admission = Admission(queue=queue, turns=turns, recorder=recorder, settings=settings, ...)
    >>> admission.turn_away(data, headers)      # of a request that is not parsed yet
    >>> admission.room_for(place, size, content_type)   # of one that is

Everything here runs in the event loop.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from starlette.responses import Response

from inference_image.contract import MEDIA_JSON, MEDIA_MULTIPART
from inference_image.invocation import Place, Queue
from inference_image.metrics import Recorder
from inference_image.overload import queue_full_detail, read_head, refusal
from inference_image.problems import problem
from inference_image.requests import RefusedRequestError, media_type
from inference_image.settings import Settings
from inference_image.turns import Turns

# Requests that are turned away unread share a line in the log for so long.
_SUMMED_FOR_S: Final = 1.0


class Admission:
    """The limits of one worker's queue, and the requests that they turn away."""

    # Whether the model is ready; before, everybody is let in, to be told so.
    is_open = False

    def __init__(
        self,
        *,
        queue: Queue,
        turns: Turns,
        recorder: Recorder,
        settings: Settings,
        most_body_bytes: int,
        note: Callable[[int], None],
    ) -> None:
        """`note` is told how many were turned away, once a second while some are."""
        self._queue = queue
        self._turns = turns
        self._recorder = recorder
        self._limit = settings.queue_limit
        self._most_image_bytes = settings.max_image_bytes
        self._most_body_bytes = most_body_bytes
        self._note = note
        # Let in during this turn of the event loop; not yet pending.
        self._arriving = 0
        self._turned_away = 0
        self._typical_s = 0.05

    def took(self, seconds: float) -> None:
        """A request was computed, in so long; any thread may say so."""
        # Follows the load slowly; only the waiting time that a 429 names depends on it.
        self._typical_s += 0.1 * (seconds - self._typical_s)

    def queue_full(self) -> Response:
        """The 429 of a request that finds no room."""
        return problem(
            429, queue_full_detail(self._queue.pending - 1), retry_after_s=self._retry_after_s()
        )

    def _retry_after_s(self) -> float:
        return max(0.1, self._queue.pending * self._typical_s)

    def is_full(self) -> bool:
        """Whether a request that comes now would be turned away."""
        waiting = self._queue.pending + self._arriving
        return self.is_open and waiting > self._limit

    def is_overloaded(self) -> bool:
        """Whether requests are turned away, now or within the last second."""
        return self._turned_away > 0 or self.is_full()

    def arrives(self) -> None:
        """Count a request that will take its place in the event loop's next turn.

        Of many that come in one turn, no more than there is room for are to be parsed.
        """
        if not self._arriving:
            # Before the tasks of these requests, which are about to be made.
            asyncio.get_running_loop().call_soon(self._forget_arrivals)
        self._arriving += 1

    def _forget_arrivals(self) -> None:
        self._arriving = 0

    def turn_away(
        self, data: bytes, headers: Iterable[tuple[bytes, bytes]]
    ) -> tuple[bytes, int, bool] | None:
        """A 429 for a request that is not parsed yet, where the queue is full.

        Args:
            data: the first bytes of the request.
            headers: what the server adds to each answer.

        Returns:
            The answer, how many bytes of the request's body are still to come, and whether the
            connection ends then; None where the request is to be parsed and answered.
        """
        if not self.is_full():
            return None
        head = read_head(data, most_bytes=self._most_body_bytes)
        if head is None:
            return None
        answer = refusal(
            head,
            retry_after_s=self._retry_after_s(),
            waiting=self._queue.pending - 1,
            headers=headers,
        )
        self._recorder.request(status=429, seconds=0.0)
        if not self._turned_away:
            asyncio.get_running_loop().call_later(_SUMMED_FOR_S, self.note_turned_away)
        self._turned_away += 1
        self._turns.refused()
        return answer, head.body_left, head.closes

    def note_turned_away(self) -> None:
        """Tell how many were turned away since the last time."""
        count, self._turned_away = self._turned_away, 0
        if count:
            self._note(count)

    def room_for(self, place: Place, size: int, content_type: str | None) -> Response | None:
        """Hold so many bytes of a body; the refusal where there is no room for them.

        Args:
            place: of the request in the queue.
            size: in bytes, as far as it is known.
            content_type: of the request; what is said of a body that is too large goes by it.

        Raises:
            RefusedRequestError: 413, where no body may have so many.
        """
        if self._queue.pending > self._limit + 1:
            return self.queue_full()
        if size > self._most_body_bytes:
            raise self.too_large(content_type)
        return None if place.hold(size) else self.queue_full()

    def too_large(self, content_type: str | None) -> RefusedRequestError:
        """The 413 of a body that no queue has room for."""
        most, image = self._most_body_bytes, self._most_image_bytes
        if media_type(content_type) in (MEDIA_JSON, MEDIA_MULTIPART):
            return RefusedRequestError(
                413,
                f"The request is larger than {most} bytes, which is the limit for all of its "
                f"images together; an image may have {image}. Send fewer in one request.",
            )
        return RefusedRequestError(
            413, f"The body is larger than {most} bytes; an image may have {image}."
        )
