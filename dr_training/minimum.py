"""The minimum of a function of one number, without SciPy, which the tensorflow image lacks.

    >>> bounded_minimum(lambda x: (x - 1) ** 2, 0, 3)
    1.0

Brent's method (R. P. Brent, Algorithms for Minimization without Derivatives, 1973, chapter 5) as
`fmin` of Forsythe, Malcolm and Moler (1977) states it: a parabola through the three best points
where it can be trusted, a golden section where it cannot. The points are those that
`scipy.optimize.minimize_scalar(method="bounded")` visits, so that packages keep their temperature.
"""

import math
from collections.abc import Callable
from typing import Final

_GOLDEN: Final = 0.5 * (3.0 - math.sqrt(5.0))
_ROUNDING: Final = math.sqrt(2.2e-16)
_MOST_CALLS: Final = 500


def bounded_minimum(
    function: Callable[[float], float], low: float, high: float, *, within: float = 1e-5
) -> float:
    """Where `function` is least between `low` and `high`, to about `within`.

    A function with several minima gives one of them; the ends themselves are never tried.
    """
    # x is the best point, w the second, v the one that was the second before.
    x = w = v = low + _GOLDEN * (high - low)
    f_x = f_w = f_v = function(x)
    step = last_but_one = 0.0
    for _ in range(_MOST_CALLS - 1):
        middle = 0.5 * (low + high)
        least = _ROUNDING * abs(x) + within / 3.0
        if abs(x - middle) <= 2.0 * least - 0.5 * (high - low):
            break
        parabola = None
        if abs(last_but_one) > least:
            r = (x - w) * (f_x - f_v)
            q = (x - v) * (f_x - f_w)
            p = (x - v) * q - (x - w) * r
            q = 2.0 * (q - r)
            p, q = (-p, q) if q > 0.0 else (p, -q)
            before, last_but_one = last_but_one, step
            if abs(p) < abs(0.5 * q * before) and q * (low - x) < p < q * (high - x):
                parabola = p / q
        if parabola is None:
            last_but_one = (low if x >= middle else high) - x
            step = _GOLDEN * last_but_one
        else:
            step, tried = parabola, x + parabola
            if min(tried - low, high - tried) < 2.0 * least:
                step = least if middle >= x else -least
        # A step of -0.0 goes up as one of 0.0 does.
        tried = x - max(-step, least) if step < 0 else x + max(step, least)
        f_tried = function(tried)
        if f_tried <= f_x:
            low, high = (x, high) if tried >= x else (low, x)
            v, f_v, w, f_w, x, f_x = w, f_w, x, f_x, tried, f_tried
        else:
            low, high = (tried, high) if tried < x else (low, tried)
            if f_tried <= f_w or w == x:
                v, f_v, w, f_w = w, f_w, tried, f_tried
            elif f_tried <= f_v or v in (x, w):
                v, f_v = tried, f_tried
    return x
