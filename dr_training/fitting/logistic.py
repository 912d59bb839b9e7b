"""Multinomial logistic regression on features, with its penalty chosen by cross-validation."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from dr_training.evaluate import softmax
from inference_image.contract import GRADE_LABELS

PENALTIES: Final = tuple(float(10**power) for power in np.arange(0, 4.1, 0.5))
FOLDS: Final = 5
_CLASSES: Final = len(GRADE_LABELS)

Floats = NDArray[np.float64]


def fit_logistic(
    features: Floats, grades: NDArray[np.int64], penalty: float
) -> tuple[Floats, Floats]:
    """Weights (channels, 5) and bias (5,) of a multinomial logistic regression.

    Minimises the mean log loss plus `penalty` / 2 times the squared weights over the channels;
    the bias is not penalised.
    """
    count, channels = features.shape
    wanted = np.eye(_CLASSES)[grades]

    def value(flat: Floats) -> tuple[float, Floats]:
        parts = flat.reshape(channels + 1, _CLASSES)
        weights, bias = parts[:-1], parts[-1]
        probabilities = softmax(features @ weights + bias)
        right = probabilities[np.arange(count), grades]
        loss = -float(np.mean(np.log(np.maximum(right, 1e-300))))
        gap = (probabilities - wanted) / count
        slope = np.concatenate(
            [features.T @ gap + penalty / channels * weights, gap.sum(axis=0)[None]]
        )
        return loss + penalty / 2 / channels * float(np.sum(weights**2)), slope.ravel()

    start = np.zeros((channels + 1, _CLASSES))
    found = minimize(value, start.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": 200})
    parts = np.asarray(found.x, np.float64).reshape(channels + 1, _CLASSES)
    return parts[:-1], parts[-1]


def choose_penalty(
    features: Floats, grades: NDArray[np.int64], groups: Sequence[str], *, seed: int
) -> tuple[float, list[float]]:
    """The penalty of `PENALTIES` with the least cross-validated log loss, and all losses.

    Rows of one group (the orientations of a picture, the pictures of a patient) stay together.
    """
    names = sorted(set(groups))
    folds = np.arange(len(names)) % FOLDS
    np.random.default_rng(seed).shuffle(folds)
    fold_of = dict(zip(names, folds.tolist(), strict=True))
    rows = np.array([fold_of[one] for one in groups])
    losses = []
    for penalty in PENALTIES:
        total = 0.0
        for fold in range(FOLDS):
            held = rows == fold
            weights, bias = fit_logistic(features[~held], grades[~held], penalty)
            probabilities = softmax(features[held] @ weights + bias)
            right = probabilities[np.arange(int(held.sum())), grades[held]]
            total -= float(np.sum(np.log(np.maximum(right, 1e-12))))
        losses.append(total / len(grades))
    return PENALTIES[int(np.argmin(losses))], losses


class FeatureScale:
    """Centres features and divides them by their standard deviation."""

    def __init__(self, mean: Floats, deviation: Floats) -> None:
        self._mean, self._deviation = mean, deviation

    @classmethod
    def of(cls, features: Floats) -> "FeatureScale":
        deviation = features.std(axis=0)
        # A channel that never changes says nothing: its scaled value stays 0.
        return cls(features.mean(axis=0), np.where(deviation > 1e-6, deviation, np.inf))

    def __call__(self, features: Floats) -> Floats:
        return (features - self._mean) / self._deviation

    def folded(self, weights: Floats, bias: Floats) -> tuple[Floats, Floats]:
        """Weights and bias for features as they are."""
        kernel = weights / self._deviation[:, None]
        return kernel, bias - self._mean @ kernel
