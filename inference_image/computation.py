"""What the worker thread does with a body: read its photographs, and answer each.

>>> unread = Unread(most_images=16, is_busy=lambda: turns.is_busy)
>>> unread.append(work)                    # in the event loop, in the order of the requests
>>> unread.read(work)                      # in the worker thread, when it is this one's turn
>>> answers = answers_to(work, settings)
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from inference_image.answers import Answers
from inference_image.contract import MEDIA_JPEG, MEDIA_PNG
from inference_image.decoding import PhotographError
from inference_image.predictor import Answer, EngineError, Predictor, ReadPhotograph
from inference_image.requests import (
    Options,
    Photograph,
    RefusedRequestError,
    boundary_of,
    extract,
    media_type,
)
from inference_image.settings import Settings

# Of several images, the last is begun while this share of the time limit is left for writing
# the answer.
_ANSWER_SHARE: Final = 0.03
# No further photograph is begun after so long, so that the first one's answer waits for little;
# and none that may take long itself: a type and a size that take milliseconds at worst.
_AHEAD_S: Final = 0.005
_QUICK_BYTES: Final = 128 * 1024
_QUICK_PIXELS: Final = 500_000
_START_OF_SCAN: Final = b"\xff\xda"


class Work:
    """A body on its way to the worker thread, which takes it out.

    A job that was cancelled stays in the executor's queue, and must not hold the body there.

    Args:
        predictor: which is to answer.
        body: all of it.
        content_type: the request's, with its parameters; None where it has none.
        options: what is asked for.
        due_s: when the answer is due, on the clock of `time.perf_counter`.
    """

    def __init__(
        self,
        predictor: Predictor,
        *,
        body: bytes,
        content_type: str | None,
        options: Options,
        due_s: float,
    ) -> None:
        self.predictor = predictor
        self.content_type = content_type
        self.options = options
        self.due_s = due_s
        self._body = body
        self._since = time.perf_counter()
        self._read: ReadPhotograph | list[Photograph | RefusedRequestError] | None = None
        self._failure: Exception | None = None
        self.is_read = False
        self.read_s = 0.0
        self.queued_ms: float | None = None
        self.abandoned = False

    def abandon(self) -> None:
        """Nobody waits for the answer any more."""
        self.abandoned = True

    @property
    def is_quick(self) -> bool:
        """Whether what its header says is read within milliseconds, before its turn.

        A small PNG, or JPEG of one scan: each further scan goes over the whole picture again.
        """
        body, declared_type = self._body, media_type(self.content_type)
        if len(body) > _QUICK_BYTES:
            return False
        if declared_type == MEDIA_JPEG:
            if body.count(_START_OF_SCAN) != 1:
                return False
        elif declared_type != MEDIA_PNG:
            return False
        try:
            pixels = self.predictor.pixels(body, declared_type=declared_type)
        except Exception:  # noqa: BLE001 - it is refused in its turn
            return False
        return 0 < pixels <= _QUICK_PIXELS

    @property
    def has_failed(self) -> bool:
        """Whether it was read and will be refused."""
        return self._failure is not None

    def note_wait(self) -> None:
        """It has waited until now, but for the time of its reading."""
        self.queued_ms = round((time.perf_counter() - self._since - self.read_s) * 1000, 2)

    def drop(self) -> None:
        """Let the body go, and what was read of it."""
        self._body = b""
        self._read = None
        self._failure = None

    def read(self, *, most_images: int) -> None:
        """Find the photographs in the body; a single one is decoded and prepared as well.

        Several are read one by one, each with what is left of the request's time and pixels. What
        is raised is raised by `take`.
        """
        begun = time.perf_counter()
        self.is_read = True
        body, self._body = self._body, b""
        try:
            photographs = extract(
                body,
                media_type(self.content_type),
                boundary=boundary_of(self.content_type),
                most=most_images,
            )
            self._read = self._first(photographs[0]) if len(photographs) == 1 else photographs
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is this request's
            failure = (
                error
                if isinstance(error, Exception)
                else RuntimeError(f"{type(error).__name__} while reading")
            )
            # It may wait, and would hold whatever the functions that it came through had.
            failure.__cause__ = failure.__context__ = None
            self._failure = failure.with_traceback(None)
        self.read_s = time.perf_counter() - begun
        if self.abandoned:
            # Meanwhile, and what has just been kept with it.
            self.drop()

    def _first(self, photograph: Photograph | RefusedRequestError) -> ReadPhotograph:
        if not isinstance(photograph, RefusedRequestError):
            # Before it is decoded for nothing.
            self.check_options()
        return _read(self.predictor, photograph)

    def check_options(self) -> None:
        """Raise `RequestError` for what the model lacks of what is asked for."""
        self.predictor.check_request(
            operating_point=self.options.operating_point, explain=self.options.explain
        )

    def take(self) -> ReadPhotograph | list[Photograph | RefusedRequestError]:
        """What was read, once; notes how long the request has waited.

        Raises:
            RefusedRequestError: the body is nothing that holds photographs, or too many.
            PhotographError: the only one is refused.
            RequestError: the model lacks what is asked for.
            RuntimeError: it was not read, or dropped: nobody waits for it.
        """
        self.note_wait()
        read, failure = self._read, self._failure
        self.drop()
        if failure is not None:
            raise failure
        if read is None:
            raise RuntimeError("nothing was read, or it was dropped")
        return read


class Unread:
    """The works that wait for the worker thread, in order; while many do, some are read ahead.

    The network's run takes the processor's caches from what reads a photograph, and reading takes
    them from the network. Several read in a row, and then one run after the other, find theirs.
    """

    def __init__(self, *, most_images: int, is_busy: Callable[[], bool]) -> None:
        """`is_busy` says whether many wait; the worker thread asks."""
        self._works: deque[Work] = deque()
        self._most_images = most_images
        self._is_busy = is_busy

    def append(self, work: Work) -> None:
        """Event loop: a work was handed to the worker thread, behind all others."""
        self._works.append(work)

    def read(self, work: Work) -> None:
        """Worker thread: read `work`, whose turn it is, and some of those after it.

        Those are the next ones as long as they are quick: nobody waits for one that is not, but
        who comes after it.
        """
        work.note_wait()
        if work.is_read:
            return
        # Those before it were taken back.
        while self._works.popleft() is not work:
            pass
        begun = time.perf_counter()
        work.read(most_images=self._most_images)
        while self._works and self._is_busy() and time.perf_counter() - begun < _AHEAD_S:
            ahead = self._works[0]
            if not ahead.abandoned and not ahead.is_quick:
                return
            self._works.popleft()
            if not ahead.abandoned:
                ahead.read(most_images=self._most_images)


def answers_to(work: Work, settings: Settings) -> Answers:
    """One entry for each photograph of a work that was read, in the order sent.

    Raises:
        PhotographError, RefusedRequestError, EngineError: of one photograph alone; among several
            they take its place.
        RequestError: the model lacks what is asked for.
    """
    read = work.take()
    if isinstance(read, list):
        return _several(read, work, settings)
    return [_answer(read, work)]


def _several(
    photographs: list[Photograph | RefusedRequestError],
    work: Work,
    settings: Settings,
) -> Answers:
    """One entry for each image, in the order sent; what is refused does not stop the rest."""
    work.check_options()
    predictor = work.predictor
    last_start_s = work.due_s - _ANSWER_SHARE * settings.timeout_s
    left_px = settings.max_request_pixels
    slowest_s = 0.0
    answers: Answers = []
    for photograph in photographs:
        # What the engine has begun cannot be taken back; the images after it can.
        if work.abandoned:
            break
        started = time.perf_counter()
        try:
            if started + slowest_s > last_start_s:
                raise RefusedRequestError(
                    504,
                    "There was no time left for this image within "
                    f"{settings.timeout_s:g} s; send fewer in one request.",
                )
            pixels = _pixels(predictor, photograph)
            if pixels > left_px:
                raise RefusedRequestError(
                    413,
                    f"The image has {pixels} pixels; {left_px} are left of the "
                    f"{settings.max_request_pixels} that one request may have.",
                )
            left_px -= pixels
            answers.append(_answer(_read(predictor, photograph), work))
        except (PhotographError, RefusedRequestError) as refused:
            answers.append(RefusedRequestError(refused.status, refused.detail))
        except EngineError as error:
            answers.append(RefusedRequestError(500, f"{error}."))
        slowest_s = max(slowest_s, time.perf_counter() - started)
    return answers


def _answer(read: ReadPhotograph, work: Work) -> Answer:
    options = work.options
    return work.predictor.answer(
        read,
        operating_point=options.operating_point,
        explain=options.explain,
        explain_px=options.explain_px,
        explain_media=options.explain_media,
    )


def _read(predictor: Predictor, photograph: Photograph | RefusedRequestError) -> ReadPhotograph:
    if isinstance(photograph, RefusedRequestError):
        raise photograph
    return predictor.read(photograph.data, declared_type=photograph.declared_type)


def _pixels(predictor: Predictor, photograph: Photograph | RefusedRequestError) -> int:
    if isinstance(photograph, RefusedRequestError):
        raise photograph
    return predictor.pixels(photograph.data, declared_type=photograph.declared_type)
