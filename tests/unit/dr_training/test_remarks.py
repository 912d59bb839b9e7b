"""A temperature at its bound, and too few photographs, are told of in a sentence each."""

import math

import numpy as np
import pytest

from dr_training.evaluate import fit_temperature, softmax
from dr_training.remarks import FEW, remarks

ENOUGH = np.arange(2 * FEW) % 2 == 0


def test_nothing_is_said_where_all_is_well() -> None:
    assert remarks(temperature=1.3, positive=ENOUGH) == []
    assert remarks(temperature=7.9, positive=ENOUGH) == []
    assert remarks(temperature=0.21, positive=ENOUGH) == []


def test_a_fitted_temperature_at_a_bound_is_told_of() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 5, 300)
    chance = fit_temperature(rng.normal(0, 5, (300, 5)), truth)
    perfect = fit_temperature(5 * np.eye(5)[truth], truth)
    for temperature, words in ((chance, "is 8, the highest"), (perfect, "is 0.2, the lowest")):
        (told,) = remarks(temperature=temperature, positive=ENOUGH)
        assert words in told
        assert "\n" not in told


@pytest.mark.parametrize("referable", [5, FEW - 1, 2 * FEW + 51])
def test_few_photographs_of_a_kind_are_told_of(referable: int) -> None:
    positive = np.arange(2 * FEW + 100) < referable
    (told,) = remarks(temperature=1.0, positive=positive)
    assert f"only {referable} referable photographs and {2 * FEW + 100 - referable} others" in told


def test_the_number_of_photographs_has_its_reason() -> None:
    """What a threshold of an aim of 0.90 truly reaches, one time in twenty: its order statistic."""
    rng = np.random.default_rng(1)

    def reached(count: int) -> float:
        rank = math.ceil(0.9 * count)
        return float(np.quantile(rng.beta(rank, count + 1 - rank, 200_000), 0.05))

    assert reached(FEW) == pytest.approx(0.80, abs=0.005)
    assert reached(20) == pytest.approx(0.72, abs=0.005)
    errors = []
    for _ in range(60):
        logits = rng.normal(0, 2, (2 * FEW, 5))
        truth = np.array([rng.choice(5, p=row) for row in softmax(logits)])
        errors.append(abs(fit_temperature(2 * logits, truth) / 2 - 1))
    assert np.quantile(errors, 0.9) == pytest.approx(0.2, abs=0.08)
