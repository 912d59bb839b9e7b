"""Validation figures of an epoch, from logits and grades; NumPy only."""

import math

import numpy as np
from numpy.typing import NDArray

from dr_training.evaluate import (
    accuracy,
    auc,
    class_logits,
    quadratic_weighted_kappa,
    referable_score,
    softmax,
)
from inference_image.contract import GRADE_LABELS, REFERABLE_FROM_GRADE


def validation_figures(logits: NDArray[np.float64], grades: NDArray[np.int64]) -> dict[str, float]:
    """Loss (plain cross-entropy), accuracy, kappa, AUC and referable AUC.

    For a grader `auc` is the mean over the grades that occur of one against the others, as
    MedMNIST reports it. For a referral model (logits (n, 1)) accuracy and AUC are those of the
    referable decision at 0.5, and kappa is NaN.
    """
    positive = grades >= REFERABLE_FROM_GRADE
    if logits.shape[1] == 1:
        probabilities = softmax(class_logits(logits))
        truth, score = positive.astype(np.int64), probabilities[:, 1]
        kappa, area = math.nan, auc(positive, score)
    else:
        probabilities, truth = softmax(logits), grades
        score = referable_score(probabilities)
        kappa = quadratic_weighted_kappa(truth, probabilities.argmax(axis=1))
        area = mean_auc(probabilities, grades)
    right = probabilities[np.arange(len(truth)), truth]
    return {
        "loss": -float(np.mean(np.log(np.maximum(right, 1e-12)))),
        "accuracy": accuracy(truth, probabilities.argmax(axis=1)),
        "kappa": kappa,
        "auc": area,
        "referable_auc": auc(positive, score),
    }


def mean_auc(probabilities: NDArray[np.float64], grades: NDArray[np.int64]) -> float:
    """Mean over the grades that occur of the AUC of one grade against the others."""
    areas = [auc(grades == one, probabilities[:, one]) for one in range(len(GRADE_LABELS))]
    known = [area for area in areas if not math.isnan(area)]
    return float(np.mean(known)) if known else math.nan
