"""Reads and checks the JSON of one prediction, so that a fast wrong answer is not a success.

>>> check_answer(b'{"predictions": null}')
Traceback (most recent call last):
...
dr_experiments.answers.AnswerError: the answer has no 'referable'
"""

import json
import math
import sys
from typing import Any, cast

from inference_image.contract import GRADE_LABELS, Prediction

# Probabilities are a float softmax printed as JSON: the sum is 1 up to rounding.
SUM_TOLERANCE = 1e-6
_KEYS = (
    "referable",
    "quality",
    "predictions",
    "grade",
    "label",
    "model",
    "container",
    "requestLatency",
    "predictionLatency",
)


class AnswerError(ValueError):
    """The answer is not one that the contract allows; the text says why in a few words."""


def check_answer(body: bytes) -> Prediction:
    """The checked answer to one image.

    A gradable answer has finite probabilities in [0, 1] that sum to 1 and a decision; an
    ungradable one has reasons and no probabilities. Raises `AnswerError` for anything else.
    """
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        # Also numbers and nestings beyond what Python reads.
        raise AnswerError("the answer is not JSON") from None
    if not isinstance(answer, dict):
        raise AnswerError("the answer is not a JSON object")
    for key in _KEYS:
        if key not in answer:
            raise AnswerError(f"the answer has no {key!r}")
    for key in ("referable", "quality", "model", "container"):
        if not isinstance(answer[key], dict):
            raise AnswerError(f"{key!r} of the answer is not an object")
    for key in ("requestLatency", "predictionLatency"):
        if not _finite(answer[key]) or answer[key] < 0:
            raise AnswerError(f"{key!r} of the answer is not a latency")
    if answer["requestLatency"] == 0 or answer["predictionLatency"] > answer["requestLatency"]:
        raise AnswerError("the latencies of the answer cannot be: none, or the model's is longer")
    _check_identity(answer["model"], answer["container"])
    if answer["quality"].get("gradable") is True:
        _check_gradable(answer)
    elif answer["quality"].get("gradable") is False:
        _check_ungradable(answer)
    else:
        raise AnswerError("the answer does not say whether the photograph is gradable")
    return cast(Prediction, answer)


def _check_identity(model: dict[str, Any], container: dict[str, Any]) -> None:
    """Go into records and pages, and tell containers apart; what is missing is not known."""
    for holder, key in ((model, "id"), (model, "sha256"), (container, "start_id")):
        if holder.get(key) is not None and not _text(holder[key]):
            raise AnswerError(f"{key!r} of the answer is not a text")
    before = container.get("requests_before")
    if before is not None and (not isinstance(before, int) or isinstance(before, bool)):
        raise AnswerError("'requests_before' of the answer is not a whole number")
    started = container.get("started_to_ready_ms")
    if started is not None and not (_finite(started) and started >= 0):
        raise AnswerError("'started_to_ready_ms' of the answer is not a duration")


def _check_gradable(answer: dict[str, Any]) -> None:
    probabilities = answer["predictions"]
    if not isinstance(probabilities, list) or len(probabilities) < 2:
        raise AnswerError("'predictions' of a gradable answer is not a list of probabilities")
    if not all(_finite(p) and 0 <= p <= 1 for p in probabilities):
        raise AnswerError("a probability is not a number between 0 and 1")
    total = math.fsum(probabilities)
    if abs(total - 1) > SUM_TOLERANCE:
        raise AnswerError(f"the probabilities sum to {total:.6f}, not to 1")
    if not isinstance(answer["referable"].get("positive"), bool):
        raise AnswerError("a gradable answer has no referable decision")
    grade = answer["grade"]
    if len(probabilities) == len(GRADE_LABELS):
        if not isinstance(grade, int) or not 0 <= grade < len(GRADE_LABELS):
            raise AnswerError("the grade is not one of 0 to 4")
        if answer["label"] != GRADE_LABELS[grade]:
            raise AnswerError("label and grade do not belong together")


def _check_ungradable(answer: dict[str, Any]) -> None:
    if not answer["quality"].get("reasons"):
        raise AnswerError("an ungradable answer gives no reason")
    if answer["predictions"] is not None or answer["referable"].get("positive") is not None:
        raise AnswerError("an ungradable answer carries a prediction")


def _finite(value: Any) -> bool:
    # Compared, and not asked: `math.isfinite` fails on whole numbers beyond the range of a float.
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    return known and -sys.float_info.max <= value <= sys.float_info.max


def _text(value: Any) -> bool:
    """Whether it can be written: JSON may hold half of a character that has two."""
    if not isinstance(value, str):
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return value.isprintable()
