"""The verdict: bounds decide, patients count once, and too few are not passed."""

import json
import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta

from dr_training.data.faults import DataError
from dr_training.job import decision
from dr_training.job.decision import Answers, Minimums

USUAL = Minimums(sensitivity=0.85, specificity=0.80, kappa=0.70)


def decide(answers: Answers, *, threshold: float, minimums: Minimums) -> dict[str, Any]:
    """With fewer draws than a job takes: only kappa and AUC are drawn."""
    return decision.decide(answers, threshold=threshold, minimums=minimums, draws=100)


def _answers(
    truth: Any, said: Any, *, owners: Any = None, confidence: float = 0.9, classes: int = 5
) -> Answers:
    """A model that says these grades with this confidence."""
    said = np.asarray(said)
    rest = (1 - confidence) / (classes - 1)
    probabilities = np.full((len(said), classes), rest)
    probabilities[np.arange(len(said)), said] = confidence
    return Answers(
        truth=np.asarray(truth, np.int64),
        probabilities=probabilities,
        owners=owners or [f"p{index}" for index in range(len(said))],
    )


def _mistaken(count: int, wrong: int, *, by: int = 4) -> tuple[Any, Any]:
    """Grades in turn, and a model that takes the first `wrong` grade 4 for grade 4 - `by`."""
    truth = np.arange(count) % 5
    said = truth.copy()
    said[np.flatnonzero(truth == 4)[:wrong]] -= by
    return truth, said


def test_a_good_model_passes_with_every_figure_written_down() -> None:
    document = decide(_answers(*_mistaken(300, 3)), threshold=0.5, minimums=USUAL)
    assert document["passed"] is True
    assert document["verdict"] == "passed"
    assert document["reasons"] == []
    assert document["n"] == document["patients"] == 300
    assert document["sensitivity"]["right"] == 177
    assert document["sensitivity"]["n"] == 180
    assert document["specificity"]["value"] == 1
    assert document["confusion"]["counts"][4] == [3, 0, 0, 0, 57]
    json.dumps(document, allow_nan=False)


def test_the_interval_is_the_exact_one() -> None:
    figure = decide(_answers(*_mistaken(300, 20)), threshold=0.5, minimums=USUAL)["sensitivity"]
    assert figure["value"] == pytest.approx(160 / 180, abs=1e-4)
    assert figure["low"] == pytest.approx(beta.ppf(0.025, 160, 21), abs=1e-4)
    assert figure["high"] == pytest.approx(beta.ppf(0.975, 161, 20), abs=1e-4)


def test_the_bound_decides_and_not_the_point() -> None:
    # 160 of 180 is 0.889, above 0.85; the lower bound is 0.834.
    document = decide(_answers(*_mistaken(300, 20, by=3)), threshold=0.5, minimums=USUAL)
    assert document["sensitivity"]["value"] > 0.85 > document["sensitivity"]["low"]
    assert document["passed"] is False
    assert document["verdict"] == "refused"
    assert document["reasons"] == [
        "sensitivity is 0.8889 (95 % interval 0.8336 to 0.9308): the lower bound is below 0.85"
    ]


def test_the_same_share_of_more_photographs_passes() -> None:
    document = decide(_answers(*_mistaken(3000, 200, by=3)), threshold=0.5, minimums=USUAL)
    assert document["sensitivity"]["value"] == pytest.approx(0.8889)
    assert document["verdict"] == "passed"


def test_a_bound_that_equals_its_minimum_passes() -> None:
    answers = _answers(*_mistaken(300, 20, by=3))
    low = decide(answers, threshold=0.5, minimums=USUAL)["sensitivity"]["low"]
    for minimum, verdict in ((low, "passed"), (low + 1e-4, "refused")):
        minimums = Minimums(sensitivity=minimum, specificity=0.5, kappa=0.5)
        assert decide(answers, threshold=0.5, minimums=minimums)["verdict"] == verdict


def test_two_photographs_of_a_patient_say_what_one_says() -> None:
    truth, said = _mistaken(200, 5, by=3)
    once = decide(_answers(truth, said), threshold=0.5, minimums=USUAL)
    owners = [f"p{index}" for index in range(200)] * 2
    twice = decide(
        _answers(np.tile(truth, 2), np.tile(said, 2), owners=owners), threshold=0.5, minimums=USUAL
    )
    for name in ("sensitivity", "specificity"):
        for bound in ("low", "high"):
            assert twice[name][bound] == once[name][bound]
    assert twice["quadratic_weighted_kappa"]["low"] == pytest.approx(
        once["quadratic_weighted_kappa"]["low"], abs=0.02
    )
    assert twice["patients"] == 200


@pytest.mark.parametrize("count", [0, 1, 29, 99])
def test_too_few_photographs_are_not_passed_however_good(count: int) -> None:
    document = decide(_answers(*_mistaken(count, 0)), threshold=0.5, minimums=USUAL)
    assert document["passed"] is False
    assert document["verdict"] == "insufficient data"
    assert all(reason.startswith("insufficient data: ") for reason in document["reasons"])
    assert f"{count} photographs in the test part, at least 100 needed" in document["reasons"][0]
    json.dumps(document, allow_nan=False)


def test_many_photographs_of_few_patients_are_too_few() -> None:
    owners = [f"p{index % 8}" for index in range(400)]
    document = decide(_answers(*_mistaken(400, 0), owners=owners), threshold=0.5, minimums=USUAL)
    assert document["verdict"] == "insufficient data"
    assert "8 patients in the test part, at least 30 needed" in document["reasons"][0]
    assert any("cannot show a sensitivity of 0.85" in reason for reason in document["reasons"])


def test_a_minimum_that_so_few_can_never_show_is_named_with_the_number_needed() -> None:
    minimums = Minimums(sensitivity=0.99, specificity=0.5, kappa=0.5)
    document = decide(_answers(*_mistaken(200, 0)), threshold=0.5, minimums=minimums)
    assert document["verdict"] == "insufficient data"
    (reason,) = document["reasons"]
    assert "120 referable photographs cannot show a sensitivity of 0.99" in reason
    # 0.99 ** n must be at most 0.025.
    assert f"at least {math.ceil(math.log(0.025) / math.log(0.99))} patients" in reason


def test_a_model_that_is_certainly_too_bad_is_refused_with_few_photographs_too() -> None:
    truth = np.arange(50) % 5
    document = decide(_answers(truth, np.zeros(50, int)), threshold=0.5, minimums=USUAL)
    assert document["verdict"] == "refused"
    assert document["sensitivity"]["value"] == 0
    assert any("50 photographs" in reason for reason in document["reasons"])


@pytest.mark.parametrize(("says", "bad"), [(0, "sensitivity"), (4, "specificity")])
def test_a_model_that_says_the_same_of_all_is_refused(says: int, bad: str) -> None:
    truth = np.arange(500) % 5
    document = decide(_answers(truth, np.full(500, says)), threshold=0.5, minimums=USUAL)
    assert document["verdict"] == "refused"
    assert [reason.split(" is ")[0] for reason in document["reasons"]] == [
        bad,
        "quadratic weighted kappa",
    ]


@pytest.mark.parametrize("grade", [0, 3])
def test_without_both_kinds_of_photographs_nothing_is_shown(grade: int) -> None:
    truth = np.full(500, grade)
    document = decide(_answers(truth, truth), threshold=0.5, minimums=USUAL)
    assert document["verdict"] == "insufficient data"
    text = " ".join(document["reasons"])
    assert ("0 referable photographs" if grade == 0 else "0 photographs that are not") in text
    assert "kappa needs photographs of several grades" in text
    json.dumps(document, allow_nan=False)


def test_a_kappa_without_a_disagreement_is_not_certain() -> None:
    minimums = Minimums(sensitivity=0.5, specificity=0.5, kappa=0.99999)
    document = decide(_answers(*_mistaken(100, 0)), threshold=0.5, minimums=minimums)
    kappa = document["quadratic_weighted_kappa"]
    assert kappa["value"] == 1
    assert kappa["low"] == pytest.approx(1 - (1 - 0.025**0.01) / 4, abs=2e-4)
    assert document["verdict"] == "refused"


def test_a_model_without_numbers_is_refused() -> None:
    answers = _answers(*_mistaken(300, 0))
    answers.probabilities[7] = math.nan
    document = decide(answers, threshold=0.5, minimums=USUAL)
    assert document["verdict"] == "refused"
    assert document["reasons"] == ["the model gave no number for 1 of 300 photographs"]
    json.dumps(document, allow_nan=False)


def test_the_threshold_is_reached_from_above() -> None:
    truth = np.arange(200) % 5
    answers = _answers(truth, np.where(truth >= 2, 4, 0), confidence=0.6)
    # P(grade >= 2) of a referable one is 0.6 and two shares of 0.1.
    score = float(answers.score[4])
    minimums = Minimums(sensitivity=0, specificity=0, kappa=-1)
    for threshold, value in ((score, 1), (np.nextafter(score, 1), 0)):
        document = decide(answers, threshold=float(threshold), minimums=minimums)
        assert document["sensitivity"]["value"] == value


def test_a_model_that_only_refers_has_no_kappa() -> None:
    truth = np.arange(300) % 5
    answers = _answers(truth, (truth >= 2).astype(int), classes=2)
    minimums = Minimums(sensitivity=0.8, specificity=0.8)
    document = decide(answers, threshold=0.5, minimums=minimums)
    assert document["verdict"] == "passed"
    assert "quadratic_weighted_kappa" not in document
    with pytest.raises(DataError, match="leave --min-kappa out"):
        decide(answers, threshold=0.5, minimums=USUAL)


def test_a_model_that_grades_needs_a_minimum_for_its_kappa() -> None:
    minimums = Minimums(sensitivity=0.8, specificity=0.8)
    with pytest.raises(DataError, match="give --min-kappa"):
        decide(_answers(*_mistaken(300, 0)), threshold=0.5, minimums=minimums)


def test_the_same_answers_give_the_same_document() -> None:
    answers = _answers(*_mistaken(150, 6))
    assert decide(answers, threshold=0.5, minimums=USUAL) == decide(
        answers, threshold=0.5, minimums=USUAL
    )


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"sensitivity": 1.0}, "--min-sensitivity is a share from 0 to below 1"),
        ({"sensitivity": -0.1}, "got -0.1"),
        ({"sensitivity": math.nan}, "got nan"),
        ({"specificity": 85.0}, "--min-specificity is a share"),
        ({"specificity": math.inf}, "got inf"),
        ({"kappa": 1.0}, "--min-kappa is from -1 to below 1"),
        ({"kappa": math.nan}, "got nan"),
        ({"photographs": 29}, "--min-photographs must be at least 30"),
    ],
)
def test_impossible_minimums_are_refused(choices: dict[str, float], said: str) -> None:
    with pytest.raises(DataError, match=said):
        Minimums(**{"sensitivity": 0.8, "specificity": 0.8, "kappa": 0.7, **choices})  # type: ignore[arg-type]
