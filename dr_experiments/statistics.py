"""Summaries of latencies: mean with its 95 % interval, standard deviation, percentiles.

    >>> summarise([1.0, 2.0, 3.0]).mean
    2.0

Method: the interval of the mean is Student's t with n - 1 degrees of freedom; the standard
deviation is the sample's (n - 1); percentiles interpolate linearly between order statistics
(definition 7 of Hyndman and Fan, The American Statistician 1996;50:361-5, NumPy's default).
Of few, scattered durations the interval would reach below 0, where no duration lies:
`summarise_durations` cuts it there. No value is removed as an outlier. Requests of one process in a
row are not independent, so the interval is optimistic; it says how well this run knows its own
mean.

Percentiles and ratios of means have bootstrap intervals (percentile method, Efron and Tibshirani,
An Introduction to the Bootstrap, 1993, chapter 13), drawn with a fixed seed: the same values give
the same interval. Of a drawn sample a percentile needs two order statistics only, and those are
drawn by themselves: order statistics of uniform numbers are beta distributed (David and Nagaraja,
Order Statistics, 2003, section 2.3), and a uniform number picks a value of the data.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

CONFIDENCE: Final = 0.95
PERCENTILE_METHOD: Final = "linear interpolation between order statistics (Hyndman-Fan 7)"
INTERVAL_METHOD: Final = "Student's t, cut at 0"
BOOTSTRAP_DRAWS: Final = 9999
BOOTSTRAP_METHOD: Final = f"percentile bootstrap, {BOOTSTRAP_DRAWS:,} draws, fixed seed"
_BOOTSTRAP_SEED: Final = 20
# Values held at once: all draws of up to 1,000 values.
_BOOTSTRAP_VALUES: Final = 10_000_000


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Statistics of n values, in the unit of the values.

    `sd` and the interval are None when n is 1. `p95_is_extreme` and `p99_is_extreme` are true
    where the percentile lies between the two largest values, so that it says little more than
    the maximum: below 21 and 101 values.
    """

    n: int
    mean: float
    mean_low: float | None
    mean_high: float | None
    sd: float | None
    p50: float
    p95: float
    p99: float
    minimum: float
    maximum: float
    p95_is_extreme: bool
    p99_is_extreme: bool


def summarise(values: Sequence[float]) -> Summary:
    """Summary of one or more finite values; raises `ValueError` for none or a NaN."""
    data = np.asarray(values, dtype=np.float64)
    if data.ndim != 1 or data.size == 0:
        raise ValueError("a summary needs at least one value")
    if not np.isfinite(data).all():
        raise ValueError("a summary takes finite values only; a failed request has no latency")
    n = int(data.size)
    mean = float(data.mean())
    sd = low = high = None
    if n > 1:
        # SciPy takes half a second to import; callers that only format should not pay.
        from scipy.stats import t

        sd = float(data.std(ddof=1))
        half = float(t.ppf((1 + CONFIDENCE) / 2, n - 1)) * sd / n**0.5
        low, high = mean - half, mean + half
    p50, p95, p99 = (float(p) for p in np.percentile(data, [50, 95, 99], method="linear"))
    return Summary(
        n=n,
        mean=mean,
        mean_low=low,
        mean_high=high,
        sd=sd,
        p50=p50,
        p95=p95,
        p99=p99,
        minimum=float(data.min()),
        maximum=float(data.max()),
        p95_is_extreme=_between_two_largest(n, 0.95),
        p99_is_extreme=_between_two_largest(n, 0.99),
    )


def summarise_durations(values: Sequence[float]) -> Summary:
    """`summarise` with an interval that does not reach below 0.

    Not for remainders of two clocks, which can be negative themselves.
    """
    found = summarise(values)
    return found if found.mean_low is None else replace(found, mean_low=max(0.0, found.mean_low))


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate with its 95 % interval; the bounds are None where one value cannot have one."""

    value: float
    low: float | None
    high: float | None
    n: tuple[int, ...]


def ratio_of_means(
    numerator: Sequence[float], denominator: Sequence[float], *, paired: bool = False
) -> Interval:
    """Mean of `numerator` over mean of `denominator`, such as a speed-up.

    Args:
        numerator: positive values, such as seconds; `denominator`: likewise.
        paired: value i of both was measured under the same conditions (an interleaved run), so
            pairs are drawn; otherwise each side is drawn on its own.

    Raises:
        ValueError: nothing to divide, a value not above 0, or pairs of unequal number.
    """
    top, bottom = (np.asarray(side, dtype=np.float64) for side in (numerator, denominator))
    for side in (top, bottom):
        if side.ndim != 1 or side.size == 0:
            raise ValueError("a ratio of means needs at least one value on each side")
        if not (np.isfinite(side).all() and (side > 0).all()):
            raise ValueError("a ratio of means takes finite values above 0 only")
    if paired and top.size != bottom.size:
        raise ValueError(
            f"pairs need as many values on each side; got {top.size} and {bottom.size}"
        )
    low = high = None
    if min(top.size, bottom.size) > 1:
        low, high = _bootstrap((top, bottom), _ratio, paired=paired)
    return Interval(
        value=float(top.mean() / bottom.mean()),
        low=low,
        high=high,
        n=(int(top.size), int(bottom.size)),
    )


def percentile(values: Sequence[float], percent: float) -> Interval:
    """A percentile (0 < percent < 100) with its bootstrap interval.

    Below `minimum_n(percent)` values the upper bound is the largest value and says nothing more.
    """
    if not 0 < percent < 100:
        raise ValueError(f"percent must lie between 0 and 100; got {percent}")
    data = np.asarray(values, dtype=np.float64)
    if data.ndim != 1 or data.size == 0 or not np.isfinite(data).all():
        raise ValueError("a percentile needs at least one value, all of them finite")

    low = high = None
    if data.size > 1:
        tail = 50 * (1 - CONFIDENCE)
        low, high = np.percentile(_drawn_percentiles(data, percent), [tail, 100 - tail]).tolist()
    return Interval(
        value=float(np.percentile(data, percent, method="linear")),
        low=low,
        high=high,
        n=(int(data.size),),
    )


def _drawn_percentiles(data: np.ndarray, percent: float) -> np.ndarray:
    """The percentile of each bootstrap sample, without the samples: n values take no longer."""
    generator = np.random.default_rng(_BOOTSTRAP_SEED)
    ascending, n = np.sort(data), data.size
    # It lies between the order statistics `below` and `below + 1`, counted from 0.
    share, below = math.modf((n - 1) * percent / 100)
    lower = generator.beta(below + 1, n - below, BOOTSTRAP_DRAWS)
    # Given that one, the next is the least of the n - below - 1 uniform numbers above it.
    upper = lower + (1 - lower) * generator.beta(1, n - below - 1, BOOTSTRAP_DRAWS)
    drawn = [ascending[np.minimum((n * place).astype(int), n - 1)] for place in (lower, upper)]
    return np.asarray(drawn[0] + share * (drawn[1] - drawn[0]))


def minimum_n(percent: float) -> int:
    """Values needed before the largest exceeds the percentile with 95 % confidence.

    The least n with `1 - (percent / 100) ** n >= 0.95`: 5 for the median, 59 for p95, 299 for p99.
    Source: the distribution-free bound of order statistics (Hahn and Meeker, Statistical
    Intervals, 1991, section 5.2).
    """
    if not 0 < percent < 100:
        raise ValueError(f"percent must lie between 0 and 100; got {percent}")
    return math.ceil(math.log(1 - CONFIDENCE) / math.log(percent / 100))


def _ratio(top: np.ndarray, bottom: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.asarray(top.mean(axis=axis) / bottom.mean(axis=axis))


def _bootstrap(
    samples: tuple[np.ndarray, ...], statistic: Callable[..., np.ndarray], *, paired: bool
) -> tuple[float, float]:
    from scipy.stats import bootstrap

    interval = bootstrap(
        samples,
        statistic,
        n_resamples=BOOTSTRAP_DRAWS,
        paired=paired,
        vectorized=True,
        # All draws at once would take gigabytes for the records of a load.
        batch=max(1, _BOOTSTRAP_VALUES // max(sample.size for sample in samples)),
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(_BOOTSTRAP_SEED),
    ).confidence_interval
    return float(interval.low), float(interval.high)


def _between_two_largest(n: int, quantile: float) -> bool:
    # Definition 7 puts the quantile at position (n - 1) * q of the sorted values, from 0.
    return (n - 1) * quantile > n - 2
