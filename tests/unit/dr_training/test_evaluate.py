"""Figures of merit against cases worked out by hand."""

import math
from typing import Any

import numpy as np
import pytest

from dr_training.bootstrap import bootstrap_figures
from dr_training.evaluate import (
    accuracy,
    auc,
    class_logits,
    confusion,
    expected_calibration_error,
    fit_temperature,
    grader_metrics,
    quadratic_weighted_kappa,
    referable_score,
    sensitivity,
    sensitivity_at_specificity,
    softmax,
    specificity,
    threshold_for_sensitivity,
    threshold_for_specificity,
    true_classes,
)

POSITIVE = np.array([False, False, True, True])
SCORE = np.array([0.1, 0.4, 0.35, 0.8])


def test_softmax_sums_to_one_and_does_not_overflow() -> None:
    probabilities = softmax(np.array([[1000.0, 1000.0, -1000.0]]))
    assert probabilities.tolist() == [[0.5, 0.5, 0.0]]


def test_a_temperature_above_one_softens() -> None:
    logits = np.array([[2.0, 0.0]])
    assert softmax(logits, 2.0)[0, 0] == pytest.approx(1 / (1 + math.exp(-1)))


def test_the_referable_score_is_the_probability_of_grade_2_or_more() -> None:
    assert referable_score(np.array([[0.4, 0.3, 0.2, 0.07, 0.03]]))[0] == pytest.approx(0.3)


def test_confusion_counts_true_by_predicted() -> None:
    table = confusion(np.array([0, 0, 4, 2]), np.array([0, 1, 4, 3]))
    assert table[0, 0] == table[0, 1] == table[4, 4] == table[2, 3] == 1
    assert table.sum() == 4


def test_accuracy() -> None:
    assert accuracy(np.array([0, 1, 2, 3]), np.array([0, 1, 2, 4])) == 0.75


def test_kappa_of_a_case_worked_by_hand() -> None:
    # Squared distances of the four: 1 + 4 + 0 + 4 = 9. By chance, from the margins (2, 1, 1)
    # and (1, 2, 1): 2*2*1 + 2*1*4 = 12 for class 0, 1*1*1 + 1*1*1 = 2 for class 1,
    # 1*1*4 + 1*2*1 = 6 for class 2; 20 / 4 = 5. Kappa = 1 - 9/5.
    truth, predicted = np.array([0, 0, 1, 2]), np.array([1, 2, 1, 0])
    assert quadratic_weighted_kappa(truth, predicted, 3) == pytest.approx(-0.8)


def test_kappa_limits() -> None:
    truth = np.array([0, 1, 2, 3, 4])
    assert quadratic_weighted_kappa(truth, truth) == 1.0
    assert quadratic_weighted_kappa(truth, truth[::-1]) == pytest.approx(-1.0)
    assert quadratic_weighted_kappa(truth, np.full(5, 2)) == pytest.approx(0.0)
    assert math.isnan(quadratic_weighted_kappa(np.zeros(3, int), np.zeros(3, int)))


def test_auc_of_a_case_worked_by_hand() -> None:
    # Pairs (positive above negative): 0.35>0.1, 0.35<0.4, 0.8>0.1, 0.8>0.4: 3 of 4.
    assert auc(POSITIVE, SCORE) == pytest.approx(0.75)


def test_auc_counts_ties_half_and_is_nan_for_one_class() -> None:
    assert auc(POSITIVE, np.full(4, 0.5)) == pytest.approx(0.5)
    assert math.isnan(auc(np.array([True, True]), np.array([0.1, 0.2])))


def test_sensitivity_and_specificity() -> None:
    called = SCORE >= 0.38
    assert sensitivity(POSITIVE, called) == 0.5
    assert specificity(POSITIVE, called) == 0.5
    assert math.isnan(sensitivity(np.array([False]), np.array([True])))
    assert math.isnan(specificity(np.array([True]), np.array([True])))


def test_calibration_error_of_a_case_worked_by_hand() -> None:
    # Two bins of two: mean score 0.25 against frequency 0.5, 0.75 against 1.0.
    positive = np.array([True, False, True, True])
    score = np.array([0.2, 0.3, 0.7, 0.8])
    assert expected_calibration_error(positive, score, bins=2) == pytest.approx(0.25)


def test_the_bootstrap_interval_holds_the_value_and_is_repeatable() -> None:
    rng = np.random.default_rng(1)
    truth = rng.integers(0, 5, 400)
    predicted = np.where(rng.random(400) < 0.8, truth, (truth + 1) % 5)

    def figures(index: np.ndarray) -> dict[str, float]:
        return {"accuracy": accuracy(truth[index], predicted[index])}

    one, two = (
        bootstrap_figures(figures, [""] * 400, draws=300, seed=3)["accuracy"] for _ in range(2)
    )
    assert one == two
    assert one.low < one.value < one.high
    # Normal approximation: 1.96 * sqrt(p (1 - p) / n) on either side.
    half = 1.96 * math.sqrt(one.value * (1 - one.value) / 400)
    assert one.high - one.low == pytest.approx(2 * half, rel=0.2)


def test_the_temperature_undoes_overconfidence() -> None:
    rng = np.random.default_rng(2)
    logits = rng.normal(0, 1.5, (4000, 5))
    probabilities = softmax(logits)
    truth = np.array([rng.choice(5, p=row) for row in probabilities])
    assert fit_temperature(3 * logits, truth) == pytest.approx(3, rel=0.1)


def test_thresholds_reach_their_aims_with_the_least_demand() -> None:
    positive = np.array([True] * 10 + [False] * 10)
    score = np.concatenate([np.arange(10) * 0.1 + 0.05, np.arange(10) * 0.05])
    at_least_90 = threshold_for_sensitivity(positive, score, 0.9)
    assert sensitivity(positive, score >= at_least_90) == 0.9
    assert sensitivity(positive, score >= at_least_90 + 1e-9) < 0.9
    specific_90 = threshold_for_specificity(positive, score, 0.9)
    assert specificity(positive, score >= specific_90) == 0.9
    assert specificity(positive, score >= specific_90 - 1e-9) < 0.9


def test_thresholds_without_a_class_are_refused() -> None:
    with pytest.raises(ValueError, match="no referable"):
        threshold_for_sensitivity(np.array([False]), np.array([0.1]), 0.9)
    with pytest.raises(ValueError, match="every photograph is referable"):
        threshold_for_specificity(np.array([True]), np.array([0.1]), 0.9)


def test_grader_metrics_of_a_perfect_grader() -> None:
    truth = np.arange(50) % 5
    logits = np.full((50, 5), -8.0)
    logits[np.arange(50), truth] = 8.0
    metrics = grader_metrics(logits, truth, temperature=1.0, thresholds={"one": 0.5})
    perfect = {"value": 1.0, "low": 1.0, "high": 1.0}
    for name in ("accuracy", "quadratic_weighted_kappa", "referable_auc"):
        assert metrics[name] == perfect
    # All of 30 referable and of 20 other photographs: Clopper-Pearson, not certainty.
    assert metrics["operating_points"] == {
        "one": {
            "sensitivity": {**perfect, "low": round(0.025 ** (1 / 30), 4)},
            "specificity": {**perfect, "low": round(0.025 ** (1 / 20), 4)},
        }
    }
    assert metrics["photographs"] == 50


def test_intervals_are_over_patients_where_they_are_named() -> None:
    """Ten photographs of a patient that are answered alike are one piece of evidence, not ten."""
    rng = np.random.default_rng(8)
    eyes = rng.integers(0, 5, 60)
    said = np.where(rng.random(60) < 0.7, eyes, (eyes + 1) % 5)
    truth, logits = np.repeat(eyes, 10), 4 * np.eye(5)[np.repeat(said, 10)]
    patients = [f"p{n // 10}" for n in range(600)]

    def metrics(whose: list[str], rows: slice = slice(None)) -> dict[str, Any]:
        return grader_metrics(
            logits[rows], truth[rows], temperature=1.0, thresholds={"one": 0.5}, patients=whose
        )

    over, apart, single = metrics(patients), metrics([]), metrics([], slice(None, None, 10))
    assert (over["interval_unit"], over["patients"]) == ("patients", 60)
    assert "bootstrap over patients, 1000 draws" in over["interval"]
    assert (apart["interval_unit"], apart["patients"]) == ("photographs", None)
    assert "bootstrap over photographs, 1000 draws" in apart["interval"]
    for name in ("accuracy", "quadratic_weighted_kappa", "referable_auc"):
        # As wide as one photograph of each patient makes it, and three times the other.
        assert over[name] == single[name]
        assert over[name]["value"] == apart[name]["value"]
        widths = [one[name]["high"] - one[name]["low"] for one in (over, apart)]
        assert widths[0] > 2.5 * widths[1]
    # No referable photograph is missed: the exact interval is that of so many patients.
    perfect = grader_metrics(
        4 * np.eye(5)[truth], truth, temperature=1.0, thresholds={"one": 0.5}, patients=patients
    )
    referable = int((eyes >= 2).sum())
    point = perfect["operating_points"]["one"]["sensitivity"]
    assert point["low"] == round(0.025 ** (1 / referable), 4)


def test_photographs_without_a_patient_among_others_count_as_their_own() -> None:
    truth = np.arange(50) % 5
    logits = 4 * np.eye(5)[truth]
    patients = ["one"] * 25 + [""] * 25
    metrics: dict[str, Any] = grader_metrics(
        logits, truth, temperature=1.0, thresholds={"one": 0.5}, patients=patients
    )
    assert (metrics["interval_unit"], metrics["patients"]) == ("patients", 1)
    # The referable ones are those of one patient, and 15 others.
    point = metrics["operating_points"]["one"]["sensitivity"]
    assert point["low"] == round(0.025 ** (1 / 16), 4)


def test_a_part_without_a_referable_photograph_has_figures_that_are_null() -> None:
    truth = np.zeros(20, np.int64)
    metrics: dict[str, Any] = grader_metrics(
        np.eye(5)[truth], truth, temperature=1.0, thresholds={"one": 0.5}
    )
    none = {"value": None, "low": None, "high": None}
    assert metrics["referable_auc"] == none
    assert metrics["operating_points"]["one"]["sensitivity"] == none


def test_the_sensitivity_at_a_specificity_of_a_case_worked_by_hand() -> None:
    # Of ten others the highest scores 0.9; nine lie below 0.5, and so do two of four referable.
    positive = np.array([False] * 10 + [True] * 4)
    score = np.array([0.1] * 9 + [0.9] + [0.05, 0.08, 0.5, 0.95])
    assert sensitivity_at_specificity(positive, score, 0.90) == 0.5
    assert sensitivity_at_specificity(positive, score, 1.00) == 0.25
    assert math.isnan(sensitivity_at_specificity(np.array([True, True]), np.array([0.1, 0.2])))


def test_a_referral_model_is_measured_on_its_decision_alone() -> None:
    truth = np.array([0, 1, 2, 3, 4, 0] * 10)
    logits = np.stack([np.zeros(60), np.where(truth >= 2, 2.0, -2.0)], axis=1)
    figures = grader_metrics(logits, truth, temperature=1.0, thresholds={"even": 0.5})
    assert "accuracy" not in figures
    assert "confusion" not in figures
    assert figures["operating_points"]["even"]["sensitivity"]["value"] == 1.0
    # 30 of 30: exact, not certain.
    low = figures["operating_points"]["even"]["sensitivity"]["low"]
    assert low == pytest.approx(0.025 ** (1 / 30), abs=1e-4)


def test_log_odds_are_the_logits_of_two_classes() -> None:
    odds = np.array([[0.0], [2.0], [-1.0]])
    both = softmax(class_logits(odds))
    assert both[:, 1] == pytest.approx(1 / (1 + np.exp(-odds[:, 0])))
    # A temperature divides the odds, as the service does.
    cooled = softmax(class_logits(odds), 2.0)
    assert cooled[:, 1] == pytest.approx(1 / (1 + np.exp(-odds[:, 0] / 2)))
    grades = np.zeros((2, 5))
    assert class_logits(grades) is grades


def test_the_true_class_of_a_referral_model_is_whether_to_refer() -> None:
    grades = np.arange(5)
    assert true_classes(grades, "grade5").tolist() == [0, 1, 2, 3, 4]
    assert true_classes(grades, "referable").tolist() == [0, 0, 1, 1, 1]
