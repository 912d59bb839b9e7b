"""The exact interval of a share (Clopper & Pearson, 1934), for effective numbers as well.

    >>> low, high = exact_interval(45, 50)
    >>> round(low, 4), round(high, 4)
    (0.7819, 0.9667)

Photographs of one patient are not independent. `effective_number` counts them as if they said
nothing more than one does (Kish, Survey Sampling, 1965), and the interval takes such a number in
the place of a count, as Korn & Graubard (Survey Methodology 1998;24:193-201) have it.
"""

import math
from collections import Counter
from collections.abc import Sequence

_TINY = 1e-300
_HALVINGS = 60
_MOST_TERMS = 10_000


def exact_interval(right: float, number: float, level: float = 0.95) -> tuple[float, float]:
    """Two-sided bounds of a share.

    Args:
        right: how many were right; need not be whole.
        number: of how many, above 0; need not be whole.
        level: of both sides together.

    Raises:
        ValueError: so many of so many cannot be.
    """
    if not 0 <= right <= number or number <= 0:
        raise ValueError(f"{right:g} of {number:g} is no share")
    tail = (1 - level) / 2
    low = _quantile(tail, right, number - right + 1) if right > 0 else 0.0
    high = _quantile(1 - tail, right + 1, number - right) if right < number else 1.0
    return low, high


def effective_number(owners: Sequence[str]) -> float:
    """(Σ m)² / Σ m² of photographs whose owners have m each; 0 of none.

    As many as there are owners where each has as many, and fewer where one has most of them.
    """
    counts = Counter(owners).values()
    return sum(counts) ** 2 / sum(count * count for count in counts) if counts else 0.0


def best_bound(number: float, level: float = 0.95) -> float:
    """The lower bound of so many without one wrong: no share can show more."""
    return ((1 - level) / 2) ** (1 / number) if number > 0 else 0.0


def number_needed(minimum: float, level: float = 0.95) -> int:
    """How many show a share of at least `minimum` (0 to below 1) if none is wrong."""
    if minimum <= 0:
        return 1
    return max(1, math.ceil(round(math.log((1 - level) / 2) / math.log(minimum), 9)))


def _quantile(probability: float, a: float, b: float) -> float:
    """Where the beta distribution reaches a probability."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _beta(middle, a, b) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function (continued fraction of DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        # Where the fraction converges slowly, its mirror image converges fast.
        return 1 - _beta(1 - x, b, a)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    above, below = 1.0, 1 / _away(1 - (a + b) * x / (a + 1))
    fraction = below
    for m in range(1, _MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            above, below = _away(1 + term / above), 1 / _away(1 + term * below)
            fraction *= above * below
        if abs(above * below - 1) < 1e-15:
            break
    return front * fraction / a


def _away(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
