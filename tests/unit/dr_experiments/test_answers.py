"""A fast answer that the contract does not allow is no success."""

import json
from typing import Any

import pytest

from dr_experiments.answers import AnswerError, check_answer
from tests.unit.dr_experiments.fakes import answer

REFERABLE = answer()["referable"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"predictions": [0.5, 0.5, 0.5, 0, 0]}, "sum to 1.5"),
        ({"predictions": [float("nan"), 0.25, 0.25, 0.25, 0.25]}, "between 0 and 1"),
        ({"predictions": [1.2, -0.2, 0, 0, 0]}, "between 0 and 1"),
        ({"predictions": [True, 0, 0, 0, 0]}, "between 0 and 1"),
        ({"predictions": None}, "probabilities"),
        ({"grade": 5}, "grade"),
        ({"grade": None}, "grade"),
        ({"label": "Severe"}, "label"),
        ({"referable": {**REFERABLE, "positive": None}}, "decision"),
        ({"quality": {"gradable": False, "reasons": []}}, "reason"),
        ({"quality": {"gradable": False, "reasons": ["blurred"]}}, "carries a prediction"),
        ({"quality": {}}, "gradable"),
        ({"quality": []}, "object"),
        ({"requestLatency": -0.1}, "latency"),
        ({"requestLatency": None}, "latency"),
        ({"requestLatency": 10**400}, "latency"),
        ({"requestLatency": float("inf")}, "latency"),
        ({"requestLatency": 0}, "cannot be"),
        ({"requestLatency": 0.1, "predictionLatency": 0.2}, "cannot be"),
        ({"container": {"start_id": ["a"]}}, "'start_id' of the answer is not a text"),
        ({"container": {"start_id": "a", "requests_before": "0"}}, "whole number"),
        ({"container": {"start_id": "a", "started_to_ready_ms": "x"}}, "duration"),
        ({"model": {"id": {"a": 1}, "sha256": "0"}}, "'id' of the answer is not a text"),
        ({"model": {"id": "\ud800", "sha256": "0"}}, "'id' of the answer is not a text"),
        ({"model": {"id": "a", "sha256": "\u001b[31m"}}, "'sha256' of the answer is not a text"),
    ],
)
def test_wrong_answers(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(AnswerError, match=reason):
        check_answer(json.dumps(answer(**changes)).encode())


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[]", b"\xff\xd8", b"{}", b"[" * 200_000, b'{"a": ' + b"1" * 6000 + b"}"],
)
def test_bodies_that_are_no_answer(body: bytes) -> None:
    with pytest.raises(AnswerError):
        check_answer(body)


def test_allowed_answers() -> None:
    assert check_answer(json.dumps(answer()).encode())["grade"] == 2
    ungradable = answer(
        predictions=None, grade=None, label=None, consistent=None,
        referable={**REFERABLE, "probability": None, "positive": None},
        quality={"gradable": False, "reasons": ["blurred"]},
    )  # fmt: skip
    assert check_answer(json.dumps(ungradable).encode())["quality"]["reasons"] == ["blurred"]
    referral = answer(predictions=[0.2, 0.8], grade=None, label=None)
    assert check_answer(json.dumps(referral).encode())["predictions"] == [0.2, 0.8]
