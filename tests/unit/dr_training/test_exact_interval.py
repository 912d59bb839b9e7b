"""Exact intervals against SciPy's beta distribution, and what a number can show at best."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, binom

from dr_training.exact_interval import (
    best_bound,
    effective_number,
    exact_interval,
    number_needed,
)


# SciPy's own quantiles overflow for the smallest numbers there are.
@given(
    st.sampled_from([0.0, 1.0]) | st.floats(1e-6, 1 - 1e-6),
    st.floats(0.5, 20_000),
    st.sampled_from([0.9, 0.95, 0.99]),
)
def test_the_bounds_are_quantiles_of_the_beta_distribution(
    share: float, number: float, level: float
) -> None:
    right = min(share * number, number)
    low, high = exact_interval(right, number, level)
    tail = (1 - level) / 2
    if right > 0:
        assert low == pytest.approx(beta.ppf(tail, right, number - right + 1), abs=1e-9)
    else:
        assert low == 0
    if right < number:
        assert high == pytest.approx(beta.ppf(1 - tail, right + 1, number - right), abs=1e-9)
    else:
        assert high == 1


def test_published_example() -> None:
    # Clopper & Pearson's own table: 10 of 20 at 95 % gives 0.272 to 0.728.
    assert exact_interval(10, 20) == pytest.approx((0.272, 0.728), abs=5e-4)


@pytest.mark.parametrize(("right", "number"), [(-1, 10), (11, 10), (0, 0), (math.nan, 10)])
def test_impossible_counts_are_refused(right: float, number: float) -> None:
    with pytest.raises(ValueError, match="is no share"):
        exact_interval(right, number)


def test_photographs_of_one_patient_count_as_one() -> None:
    assert effective_number([]) == 0
    assert effective_number(["a", "b", "c"]) == 3
    assert effective_number(["a", "a", "b", "b"]) == 2
    # One patient with most of the photographs: fewer than two.
    assert effective_number(["a"] * 9 + ["b"]) == pytest.approx(100 / 82)


@pytest.mark.parametrize("minimum", [0.5, 0.8, 0.9, 0.95, 0.99])
def test_the_number_needed_is_the_least_that_can_show_the_minimum(minimum: float) -> None:
    number = number_needed(minimum)
    assert best_bound(number) >= minimum > best_bound(number - 1)
    assert exact_interval(number, number)[0] == pytest.approx(best_bound(number), abs=1e-9)


def test_of_nothing_nothing_can_be_shown() -> None:
    assert best_bound(0) == 0
    assert number_needed(0) == 1


def _passes(number: int, minimum: float, share: float) -> float:
    """How often a model of this share passes with so many photographs, each of another patient."""
    right = np.arange(1, number + 1)
    least = right[beta.ppf(0.025, right, number - right + 1) >= minimum]
    return float(binom.sf(least[0] - 1, number, share)) if len(least) else 0.0


@pytest.mark.parametrize("minimum", [0.70, 0.80, 0.85, 0.90, 0.95])
def test_the_page_says_how_many_patients_are_needed(minimum: float, repository: Path) -> None:
    page = (repository / "docs" / "training-on-sagemaker.md").read_text()
    (row,) = re.findall(rf"^\| {minimum:.2f} \| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    assert int(row[0]) == number_needed(minimum)
    # One photograph more can make it a little rarer, so the least number holds from there on.
    enough = [_passes(number, minimum, (1 + minimum) / 2) >= 0.8 for number in range(1, 700)]
    assert int(row[1]) == 700 - enough[::-1].index(False)
