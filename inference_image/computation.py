"""What the worker thread does with a body: find its photographs, and answer each.

>>> work = Work(predictor, body=body, content_type="image/jpeg", options=Options(), due_s=due_s)
>>> photographs = photographs_of(work, most=16)
>>> answers = answers_to(photographs, work, settings)
"""

import time
from typing import Final

from inference_image.answers import Answers
from inference_image.decoding import PhotographError
from inference_image.predictor import Answer, EngineError, Predictor
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
        self.queued_ms: float | None = None
        self.abandoned = False

    def abandon(self) -> None:
        """Nobody waits for the answer any more."""
        self.abandoned = True

    def begin(self) -> bytes:
        """The body, once; notes how long it has waited."""
        self.queued_ms = round((time.perf_counter() - self._since) * 1000, 2)
        body = self._body
        self.drop()
        return body

    def drop(self) -> None:
        """Let the body go."""
        self._body = b""


def photographs_of(work: Work, *, most: int) -> list[Photograph | RefusedRequestError]:
    """Begin: the photographs in a body; raises as `requests.extract` does."""
    return extract(
        work.begin(),
        media_type(work.content_type),
        boundary=boundary_of(work.content_type),
        most=most,
    )


def answers_to(
    photographs: list[Photograph | RefusedRequestError],
    work: Work,
    settings: Settings,
) -> Answers:
    """One entry for each photograph, in the order sent.

    Raises:
        PhotographError, RefusedRequestError, EngineError: of one photograph alone; among several
            they take its place.
        RequestError: the model lacks what is asked for.
    """
    if len(photographs) == 1:
        return [_predict(work.predictor, photographs[0], work.options)]
    return _several(photographs, work, settings)


def _several(
    photographs: list[Photograph | RefusedRequestError],
    work: Work,
    settings: Settings,
) -> Answers:
    """One entry for each image, in the order sent; what is refused does not stop the rest."""
    predictor, options = work.predictor, work.options
    predictor.check_request(operating_point=options.operating_point, explain=options.explain)
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
            answers.append(_predict(predictor, photograph, options))
        except (PhotographError, RefusedRequestError) as refused:
            answers.append(RefusedRequestError(refused.status, refused.detail))
        except EngineError as error:
            answers.append(RefusedRequestError(500, f"{error}."))
        slowest_s = max(slowest_s, time.perf_counter() - started)
    return answers


def _predict(
    predictor: Predictor, photograph: Photograph | RefusedRequestError, options: Options
) -> Answer:
    if isinstance(photograph, RefusedRequestError):
        raise photograph
    return predictor.predict(
        photograph.data,
        declared_type=photograph.declared_type,
        operating_point=options.operating_point,
        explain=options.explain,
        explain_px=options.explain_px,
        explain_media=options.explain_media,
    )


def _pixels(predictor: Predictor, photograph: Photograph | RefusedRequestError) -> int:
    if isinstance(photograph, RefusedRequestError):
        raise photograph
    return predictor.pixels(photograph.data, declared_type=photograph.declared_type)
