"""What the caller and the log read about the photographs of a request.

    >>> json_text(answers, predictor.spec, container, began=began)

One image is answered as an object, several as a list in the order sent, each of them a result or a
problem of its own. Nothing about the picture but its type, size and outcome goes into the log.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from inference_image.contract import Prediction, Problem
from inference_image.model_spec import ModelSpec
from inference_image.predictor import Answer
from inference_image.problems import problem_record
from inference_image.requests import RefusedRequestError

_ENCODER: Final = json.JSONEncoder(allow_nan=False)

Answers = list[Answer | RefusedRequestError]


@dataclass
class Container:
    """What each answer says about the container; `next` counts one prediction, over all of its
    workers, and returns the number before."""

    start_id: str
    next: Callable[[], int]
    started_to_ready_ms: float = 0.0


def json_text(answers: Answers, spec: ModelSpec, container: Container, *, began: float) -> str:
    """The body of an answer; `began` is when the request arrived (`time.perf_counter`)."""
    entries: list[Prediction | Problem] = [
        problem_record(answer.status, answer.detail)
        if isinstance(answer, RefusedRequestError)
        else _record(answer, spec, container, began)
        for answer in answers
    ]
    # One image is answered as it always was; a list only where several were sent.
    return _ENCODER.encode(entries if len(entries) > 1 else entries[0])


def csv_text(answers: Answers, spec: ModelSpec, container: Container) -> str:
    """The same as rows without header."""
    for answer in answers:
        if isinstance(answer, Answer):
            container.next()
    return "".join(_row(answer, len(spec.labels)) for answer in answers)


def empty_row(labels: int) -> str:
    """The row of an image that was refused, of a model with so many labels."""
    return "," * (labels + 3) + "\n"


def log_fields(answers: Answers) -> dict[str, Any]:
    """Of one image what happened to it; of several their outcomes in order, and times in sum."""
    graded = [answer for answer in answers if isinstance(answer, Answer)]
    if len(answers) > 1:
        fields: dict[str, Any] = {
            "outcome": "several",
            "images": len(answers),
            "outcomes": [_outcome(answer) for answer in answers],
        }
    else:
        answer = graded[0]
        fields = {
            "outcome": _outcome(answer),
            "reasons": list(answer.quality.reasons),
            "media_type": answer.media_type,
            "width": answer.source_width_px,
            "height": answer.source_height_px,
        }
    decode_ms = prepare_ms = engine_ms = explain_ms = 0.0
    for answer in graded:
        spent = answer.timings
        decode_ms += spent.decode_ms
        prepare_ms += spent.prepare_ms
        engine_ms += spent.engine_ms
        explain_ms += spent.explain_ms
    fields["decode_ms"] = round(decode_ms, 2)
    fields["prepare_ms"] = round(prepare_ms, 2)
    fields["engine_ms"] = round(engine_ms, 2)
    fields["explain_ms"] = round(explain_ms, 2)
    return fields


def _outcome(answer: Answer | RefusedRequestError) -> str:
    if isinstance(answer, RefusedRequestError):
        return f"refused {answer.status}"
    return "graded" if answer.quality.gradable else "ungradable"


def _record(answer: Answer, spec: ModelSpec, container: Container, began: float) -> Prediction:
    probabilities = answer.probabilities
    point = answer.referable.operating_point
    record: Prediction = {
        "predictions": None if probabilities is None else list(probabilities),
        "grade": answer.grade,
        "label": answer.label,
        "referable": {
            "probability": answer.referable.probability,
            "operating_point": point.name,
            "threshold": point.threshold,
            "positive": answer.referable.positive,
        },
        "consistent": answer.consistent,
        "quality": {
            "gradable": answer.quality.gradable,
            "reasons": list(answer.quality.reasons),
        },
        "model": {"id": spec.id, "sha256": spec.sha256},
        "container": {
            "start_id": container.start_id,
            "started_to_ready_ms": container.started_to_ready_ms,
            "requests_before": container.next(),
        },
        "requestLatency": time.perf_counter() - began,
        "predictionLatency": answer.timings.engine_ms / 1000,
    }
    if spec.notice:
        record["model"]["notice"] = spec.notice
    if answer.acquisition is not None:
        record["acquisition"] = answer.acquisition
    if answer.heat_map is not None:
        record["explanation"] = {
            "method": "grad-cam",
            "grade": answer.heat_map.grade,
            "label": answer.heat_map.label,
            "media_type": answer.heat_map.media_type,
            "width": answer.heat_map.width_px,
            "height": answer.heat_map.height_px,
            "image": answer.heat_map.image_base64,
        }
    return record


def _row(answer: Answer | RefusedRequestError, labels: int) -> str:
    """One row without header: probabilities, grade, P(referable), referable, gradable.

    Unknown values are empty, truth values are `true` or `false`; every row of a model has the
    same number of columns. In the row of a problem all of them are empty, `gradable` too.
    """
    if isinstance(answer, RefusedRequestError):
        return empty_row(labels)
    values: list[Any] = list(answer.probabilities or [None] * labels)
    values += [answer.grade, answer.referable.probability]
    values += [answer.referable.positive, answer.quality.gradable]
    return ",".join("" if v is None else json.dumps(v) for v in values) + "\n"
