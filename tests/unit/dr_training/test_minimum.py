"""The minimum of a function of one number, against SciPy's and against what is known."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from dr_training.minimum import bounded_minimum


def _functions(seed: int) -> list[Callable[[float], float]]:
    rng = np.random.default_rng(seed)
    centres, weights = rng.uniform(-3, 5, 3), rng.uniform(0.1, 5, 3)
    return [
        lambda x: float(np.sum(weights * np.log(np.cosh(x - centres)))),
        lambda x: float(np.sum(weights * np.abs(x - centres) ** 1.5)),
        lambda x: math.sin(weights[0] * x) + 0.1 * weights[1] * x * x,
        lambda x: float(weights[0] * x),
        lambda x: 0.0 * x,
    ]


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_number_that_scipy_finds(seed: int) -> None:
    for function in _functions(seed):
        for low, high in ((-1.6, 2.1), (0.0, 40.0), (-5.0, -4.9)):
            wanted = minimize_scalar(function, bounds=(low, high), method="bounded").x
            assert bounded_minimum(function, low, high) == wanted


@given(st.floats(-3, 3), st.floats(0.01, 50), st.floats(-2, 2), st.floats(0, 3), st.floats(0.5, 20))
def test_it_tries_the_points_that_scipy_tries(
    centre: float, steep: float, slope: float, wave: float, speed: float
) -> None:
    points: tuple[list[float], list[float]] = ([], [])

    def watched(seen: list[float]) -> Callable[[float], float]:
        def function(x: float) -> float:
            seen.append(float(x))
            return steep * (x - centre) ** 2 + slope * x + wave * math.sin(speed * x)

        return function

    bounded_minimum(watched(points[0]), -2.0, 2.5)
    minimize_scalar(watched(points[1]), bounds=(-2.0, 2.5), method="bounded")
    assert points[0] == points[1]


def test_it_is_as_near_as_it_says() -> None:
    for centre in (-0.9, 0.0, 1e-9, 0.7, 1.99):
        found = bounded_minimum(lambda x, at=centre: math.cosh(x - at), -1.0, 2.0)
        assert abs(found - centre) < 2e-5


def test_of_a_function_that_only_falls_it_is_the_end() -> None:
    assert bounded_minimum(lambda x: -x, 0.0, 1.0) == pytest.approx(1.0, abs=1e-4)
