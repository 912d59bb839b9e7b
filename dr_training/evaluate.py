"""Figures of merit of a grader, with bootstrap intervals; NumPy only.

Referable diabetic retinopathy is grade 2 or more; its score is the sum of the probabilities
of grades 2 to 4, as the service computes it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dr_training.bootstrap import (
    DRAWS,
    Index,
    bootstrap_figures,
    exact_at_the_ends,
    resampled,
    rounded,
    units,
)
from dr_training.minimum import bounded_minimum
from inference_image.contract import GRADE_LABELS, REFERABLE_FROM_GRADE, TASK_GRADE5

# Between these a temperature is looked for; beyond them answers are not those of a grader.
LOWEST_TEMPERATURE: Final = 0.2
HIGHEST_TEMPERATURE: Final = 8.0

Floats = NDArray[np.floating]
Grades = NDArray[np.integer]


def softmax(logits: Floats, temperature: float = 1.0) -> NDArray[np.float64]:
    """Probabilities of logits (n, k) divided by `temperature`."""
    scaled = np.asarray(logits, np.float64) / temperature
    powers = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True), np.float64)


def class_logits(logits: Floats) -> Floats:
    """Logits (n, k) of k classes; log-odds (n, 1) of a referral model become (n, 2)."""
    if logits.shape[1] > 1:
        return logits
    return np.concatenate([np.zeros_like(logits), logits], axis=1)


def true_classes(grades: Grades, task: str) -> NDArray[np.int64]:
    """The true class of each photograph: its grade, or whether it is referable (0 or 1)."""
    if task == TASK_GRADE5:
        return np.asarray(grades, np.int64)
    return (np.asarray(grades) >= REFERABLE_FROM_GRADE).astype(np.int64)


def referable_score(probabilities: Floats) -> NDArray[np.float64]:
    """P(grade >= 2) of probabilities (n, 5), or (n, 2) of a model that only refers."""
    first = REFERABLE_FROM_GRADE if probabilities.shape[1] > 2 else 1
    return np.asarray(probabilities[:, first:].sum(axis=1), np.float64)


def confusion(truth: Grades, predicted: Grades, classes: int = 5) -> NDArray[np.int64]:
    """Counts (true grade, predicted grade)."""
    flat = np.bincount(np.asarray(truth) * classes + np.asarray(predicted), minlength=classes**2)
    return flat.reshape(classes, classes)


def accuracy(truth: Grades, predicted: Grades) -> float:
    """Share of photographs whose grade is right."""
    return float(np.mean(np.asarray(truth) == np.asarray(predicted)))


def quadratic_weighted_kappa(truth: Grades, predicted: Grades, classes: int = 5) -> float:
    """Agreement beyond chance with squared distances as weights (Cohen, 1968).

    NaN where it is not defined: no disagreement is expected, because either side holds one
    grade only and they are the same.
    """
    observed = confusion(truth, predicted, classes).astype(np.float64)
    expected = np.outer(observed.sum(axis=1), observed.sum(axis=0)) / observed.sum()
    index = np.arange(classes)
    weights = (index[:, None] - index[None, :]) ** 2
    chance = float((weights * expected).sum())
    return 1 - float((weights * observed).sum()) / chance if chance > 0 else math.nan


def auc(positive: NDArray[np.bool_], score: Floats) -> float:
    """Area under the ROC curve by the Mann-Whitney statistic; ties count half.

    NaN where one of the classes is empty.
    """
    positive = np.asarray(positive, bool)
    score = np.asarray(score)
    high, low = score[positive], np.sort(score[~positive])
    if len(high) == 0 or len(low) == 0:
        return math.nan
    below = np.searchsorted(low, high, "left") + np.searchsorted(low, high, "right")
    return float(below.sum() / (2 * len(high) * len(low)))


def sensitivity(positive: NDArray[np.bool_], called: NDArray[np.bool_]) -> float:
    """Share of the referable that are called referable; NaN if there are none."""
    return float(np.mean(called[positive])) if np.any(positive) else math.nan


def specificity(positive: NDArray[np.bool_], called: NDArray[np.bool_]) -> float:
    """Share of the others that are not called referable; NaN if there are none."""
    return float(np.mean(~called[~positive])) if np.any(~positive) else math.nan


def expected_calibration_error(positive: NDArray[np.bool_], score: Floats, bins: int = 15) -> float:
    """Mean gap between score and frequency over equal-width bins, weighted by their size."""
    index = np.minimum((np.asarray(score) * bins).astype(int), bins - 1)
    total = 0.0
    for one in range(bins):
        inside = index == one
        if inside.any():
            gap = abs(float(np.mean(score[inside])) - float(np.mean(positive[inside])))
            total += gap * float(np.mean(inside))
    return total


def fit_temperature(logits: Floats, truth: Grades) -> float:
    """The temperature that minimises the log loss on validation data (Guo et al., 2017).

    Between `LOWEST_TEMPERATURE` and `HIGHEST_TEMPERATURE`; at one of them the best lies beyond, of
    which `dr_training.remarks` tells.
    """
    rows = np.arange(len(truth))

    def loss(log_temperature: float) -> float:
        chosen = softmax(logits, math.exp(log_temperature))[rows, truth]
        return -float(np.mean(np.log(np.maximum(chosen, 1e-12))))

    bounds = math.log(LOWEST_TEMPERATURE), math.log(HIGHEST_TEMPERATURE)
    return round(math.exp(bounded_minimum(loss, *bounds)), 4)


def threshold_for_sensitivity(positive: NDArray[np.bool_], score: Floats, wanted: float) -> float:
    """The highest threshold at which at least `wanted` of the referable score as high.

    Raises:
        ValueError: nothing is referable.
    """
    ranked = np.sort(np.asarray(score)[positive])[::-1]
    if len(ranked) == 0:
        raise ValueError("no referable photograph: a threshold cannot be chosen")
    return float(ranked[min(len(ranked), math.ceil(wanted * len(ranked))) - 1])


def threshold_for_specificity(positive: NDArray[np.bool_], score: Floats, wanted: float) -> float:
    """The lowest threshold at which at least `wanted` of the others score below it.

    Raises:
        ValueError: everything is referable.
    """
    ranked = np.sort(np.asarray(score)[~positive])
    if len(ranked) == 0:
        raise ValueError("every photograph is referable: a threshold cannot be chosen")
    index = math.ceil(wanted * len(ranked)) - 1
    # Just above the last one that must stay negative; a score equal to it is positive.
    return float(min(1.0, np.nextafter(ranked[max(0, index)], 2.0)))


def sensitivity_at_specificity(
    positive: NDArray[np.bool_], score: Floats, wanted: float = 0.90
) -> float:
    """Sensitivity at the lowest threshold with this specificity; NaN where a class is empty."""
    if not np.any(positive) or np.all(positive):
        return math.nan
    threshold = threshold_for_specificity(positive, score, wanted)
    return sensitivity(positive, np.asarray(score) >= threshold)


def grader_metrics(
    logits: Floats,
    truth: Grades,
    *,
    temperature: float,
    thresholds: Mapping[str, float],
    patients: Sequence[str] = (),
) -> dict[str, object]:
    """What `model.json` records of a test set: figures with 95 % intervals, and the counts.

    Args:
        logits: (n, k) of the photographs.
        truth: (n,) their grades.
        temperature: what divides the logits.
        thresholds: on P(grade >= 2), by name of the operating point.
        patients: whose each photograph is, so that intervals are over patients; without them,
            or where nobody is named, they are over photographs.
    """
    probabilities = softmax(logits, temperature)
    predicted = probabilities.argmax(axis=1)
    positive = np.asarray(truth) >= REFERABLE_FROM_GRADE
    score = referable_score(probabilities)
    graded = logits.shape[1] == len(GRADE_LABELS)
    whose = patients or ("",) * len(truth)

    def of(index: Index) -> dict[str, float]:
        p, s = positive[index], score[index]
        found = {"auc": auc(p, s), "at specificity": sensitivity_at_specificity(p, s)}
        if graded:
            found["accuracy"] = accuracy(truth[index], predicted[index])
            found["kappa"] = quadratic_weighted_kappa(truth[index], predicted[index])
        for name, threshold in thresholds.items():
            found[f"sensitivity {name}"] = sensitivity(p, s >= threshold)
            found[f"specificity {name}"] = specificity(p, s >= threshold)
        return found

    estimates = bootstrap_figures(of, whose)

    def share(name: str, rows: NDArray[np.bool_]) -> dict[str, float | None]:
        return rounded(exact_at_the_ends(estimates[name], units(whose, rows)))

    common = {"photographs": len(truth), **resampled(whose, draws=DRAWS)}
    figures = {
        "referable_auc": rounded(estimates["auc"]),
        "referable_calibration_error": round(expected_calibration_error(positive, score), 4),
        "sensitivity_at_0.90_specificity": share("at specificity", positive),
        "operating_points": {
            name: {
                "sensitivity": share(f"sensitivity {name}", positive),
                "specificity": share(f"specificity {name}", ~positive),
            }
            for name in thresholds
        },
    }
    if not graded:
        return {**common, **figures}
    return {
        **common,
        "accuracy": rounded(estimates["accuracy"]),
        "quadratic_weighted_kappa": rounded(estimates["kappa"]),
        **figures,
        "confusion": {
            "rows": "true grade",
            "columns": "predicted grade",
            "labels": list(GRADE_LABELS),
            "counts": confusion(truth, predicted).tolist(),
        },
    }
