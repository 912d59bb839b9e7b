"""Against values computed by hand and against SciPy's own interval."""

import math
import time
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dr_experiments.statistics import (
    BOOTSTRAP_DRAWS,
    percentile,
    summarise,
    summarise_durations,
)


def test_five_values_by_hand() -> None:
    s = summarise([1.0, 2.0, 3.0, 4.0, 10.0])
    assert (s.n, s.mean, s.p50, s.minimum, s.maximum) == (5, 4.0, 3.0, 1.0, 10.0)
    assert s.sd == pytest.approx(math.sqrt(50 / 4))  # 9 + 4 + 1 + 0 + 36 over n - 1
    # Position (n - 1) * 0.95 = 3.8: between the fourth value and the fifth.
    assert s.p95 == pytest.approx(4 + 0.8 * 6)
    assert s.p99 == pytest.approx(4 + 0.96 * 6)
    half = 2.7764451051977987 * math.sqrt(12.5) / math.sqrt(5)  # t(0.975, 4) from a table
    assert (s.mean_low, s.mean_high) == pytest.approx((4 - half, 4 + half))


def test_interval_equals_scipys() -> None:
    data = [0.21, 0.25, 0.19, 0.33, 0.24, 0.22]
    s = summarise(data)
    low, high = stats.t.interval(0.95, len(data) - 1, loc=s.mean, scale=stats.sem(data))
    assert (s.mean_low, s.mean_high) == pytest.approx((low, high))


def test_one_value_has_neither_sd_nor_interval() -> None:
    s = summarise([7.0])
    assert (s.n, s.mean, s.sd, s.mean_low, s.mean_high) == (1, 7.0, None, None, None)
    assert s.p50 == s.p99 == 7.0


@pytest.mark.parametrize(
    ("n", "p95_is_extreme", "p99_is_extreme"),
    [(1, True, True), (20, True, True), (21, False, True), (25, False, True),
     (100, False, True), (101, False, False)],
)  # fmt: skip
def test_percentiles_that_are_nearly_the_maximum_are_flagged(
    n: int, p95_is_extreme: bool, p99_is_extreme: bool
) -> None:
    s = summarise([float(i) for i in range(n)])
    assert (s.p95_is_extreme, s.p99_is_extreme) == (p95_is_extreme, p99_is_extreme)
    if n > 1:
        assert (s.p99 > n - 2) == p99_is_extreme


@pytest.mark.parametrize("values", [[], [1.0, float("nan")], [float("inf")]])
def test_nothing_and_no_number_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="summary"):
        summarise(values)


@pytest.mark.parametrize("percent", [50, 95, 99])
@pytest.mark.parametrize("n", [2, 5, 25, 101, 400])
def test_the_interval_of_a_percentile_is_that_of_drawn_samples(n: int, percent: float) -> None:
    data = np.random.default_rng(n).lognormal(size=n)
    found = percentile(data.tolist(), percent)

    def of(sample: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.asarray(np.percentile(sample, percent, axis=axis))

    drawn = stats.bootstrap(
        (data,),
        of,
        n_resamples=BOOTSTRAP_DRAWS,
        method="percentile",
        batch=1000,
        rng=np.random.default_rng(5),
    ).bootstrap_distribution
    # Each bound cuts 2.5 % off, with a standard error of 0.16 % on either side; where n is
    # small, few values can be drawn, and the bound is one of them.
    for bound, share in ((found.low, 0.025), (found.high, 0.975)):
        below = (drawn < bound * (1 - 1e-12)).mean()
        upto = (drawn <= bound * (1 + 1e-12)).mean()
        assert below - 0.01 <= share <= upto + 0.01


def test_the_interval_of_a_percentile_takes_no_longer_for_more_values() -> None:
    data = np.random.default_rng(1).exponential(1.0, 200_000).tolist()
    begun = time.process_time()
    found = percentile(data, 99)
    assert time.process_time() - begun < 1
    # Two standard errors of the order statistic on either side.
    half = 2 * (0.01 * 0.99 / 200_000) ** 0.5 / 0.01
    bounds = (found.value - half, found.value + half)
    assert (found.low, found.high) == pytest.approx(bounds, abs=0.3 * half)


def test_an_interval_of_durations_does_not_reach_below_0() -> None:
    scattered = [0.001, 0.1]
    assert (summarise(scattered).mean_low or 0) < 0
    cut = summarise_durations(scattered)
    assert cut.mean_low == 0
    assert replace(cut, mean_low=None) == replace(summarise(scattered), mean_low=None)
    assert summarise_durations([5.0]) == summarise([5.0])
    assert summarise_durations([1.0, 1.1, 1.2]) == summarise([1.0, 1.1, 1.2])
