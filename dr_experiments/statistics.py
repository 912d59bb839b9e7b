"""Summaries of latencies: mean with its 95 % interval, standard deviation, percentiles.

    >>> summarise([1.0, 2.0, 3.0]).mean
    2.0

Method: the interval of the mean is Student's t with n - 1 degrees of freedom; the standard
deviation is the sample's (n - 1); percentiles interpolate linearly between order statistics
(definition 7 of Hyndman and Fan, The American Statistician 1996;50:361-5, NumPy's default).
No value is removed as an outlier. Requests of one process in a row are not independent, so the
interval is optimistic; it says how well this run knows its own mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

CONFIDENCE: Final = 0.95
PERCENTILE_METHOD: Final = "linear interpolation between order statistics (Hyndman-Fan 7)"
INTERVAL_METHOD: Final = "Student's t"


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


def _between_two_largest(n: int, quantile: float) -> bool:
    # Definition 7 puts the quantile at position (n - 1) * q of the sorted values, from 0.
    return (n - 1) * quantile > n - 2
