"""Intervals of figures: a percentile bootstrap over patients, exact where a share is 0 or 1.

    >>> figures = {"accuracy": ...}  # of the photographs with given indices
    >>> bootstrap_figures(lambda index: {"accuracy": right[index].mean()}, patients)
    {'accuracy': Estimate(value=0.87, low=0.85, high=0.89)}

Two eyes of a patient are not two patients: what is drawn is a patient, with all photographs of
theirs (Efron & Tibshirani, 1993). A photograph whose patient is not named counts as a patient of
its own, so that without any patient the bootstrap is one over photographs. NumPy only.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

DRAWS: Final = 1000
LEVEL: Final = 0.95
PATIENTS: Final = "patients"
PHOTOGRAPHS: Final = "photographs"
_DIGITS: Final = 4

Index = NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A figure and the bounds of its percentile bootstrap interval (95 % by default)."""

    value: float
    low: float
    high: float


def bootstrap_figures(
    figures: Callable[[Index], Mapping[str, float]],
    patients: Sequence[str],
    *,
    draws: int = DRAWS,
    level: float = LEVEL,
    seed: int = 0,
) -> dict[str, Estimate]:
    """Percentile bootstrap of several figures on the same draws, over patients.

    Args:
        figures: figures by name of the photographs with these indices (with repeats).
        patients: whose each photograph is; an empty name is a patient of its own.

    A figure that is NaN in a draw (no referable photograph was drawn) is left out of its
    interval; one that always is NaN has no interval.
    """
    count = len(patients)
    groups = _groups(patients)
    starts = np.cumsum([0, *map(len, groups)])
    order = np.concatenate(groups)
    sizes = np.diff(starts)
    rng = np.random.default_rng(seed)
    drawn: dict[str, list[float]] = {}
    for _ in range(draws):
        chosen = rng.integers(0, len(groups), len(groups))
        repeated = np.repeat(starts[chosen], sizes[chosen])
        ends = np.cumsum(sizes[chosen])
        within = np.arange(ends[-1]) - np.repeat(ends - sizes[chosen], sizes[chosen])
        for name, value in figures(order[repeated + within]).items():
            drawn.setdefault(name, []).append(value)
    tail = (1 - level) / 2
    estimates = {}
    for name, value in figures(np.arange(count)).items():
        known = np.array([one for one in drawn.get(name, []) if not math.isnan(one)])
        low, high = np.quantile(known, [tail, 1 - tail]) if len(known) else (math.nan, math.nan)
        estimates[name] = Estimate(value=value, low=float(low), high=float(high))
    return estimates


def units(patients: Sequence[str], rows: NDArray[np.bool_]) -> int:
    """Different patients among the photographs where `rows` is true; without a name, its own."""
    chosen = [patients[int(index)] for index in np.flatnonzero(rows)]
    return len({one for one in chosen if one}) + sum(not one for one in chosen)


def resampled(patients: Sequence[str], *, draws: int) -> dict[str, Any]:
    """What a report says of its intervals: how many patients there are, and what was drawn.

    Args:
        patients: whose each photograph is; empty where nobody is named.
        draws: of the bootstrap.
    """
    named = len({one for one in patients if one})
    unit = PATIENTS if named else PHOTOGRAPHS
    return {
        "patients": named or None,
        "interval_unit": unit,
        "interval": f"{100 * LEVEL:g} % percentile bootstrap over {unit}, {draws} draws; exact "
        "(Clopper-Pearson) where a share is 0 or 1",
    }


def exact_at_the_ends(estimate: Estimate, count: int, level: float = 0.95) -> Estimate:
    """A share of 0 or 1 over `count` patients or photographs with its Clopper-Pearson interval.

    A bootstrap of a share that is 1 draws nothing but 1, and would call it certain.
    """
    reach = 1 - ((1 - level) / 2) ** (1 / count) if count else math.nan
    if estimate.value == 1:
        return Estimate(value=1.0, low=1 - reach, high=1.0)
    if estimate.value == 0:
        return Estimate(value=0.0, low=0.0, high=reach)
    return estimate


def rounded(estimate: Estimate) -> dict[str, float | None]:
    """An estimate as JSON values; what is not defined is null."""
    return {
        name: None if math.isnan(value) else round(value, _DIGITS)
        for name, value in (
            ("value", estimate.value),
            ("low", estimate.low),
            ("high", estimate.high),
        )
    }


def _groups(patients: Sequence[str]) -> list[Index]:
    groups: dict[str, list[int]] = {}
    for index, patient in enumerate(patients):
        groups.setdefault(patient or f"\0{index}", []).append(index)
    return [np.array(members, np.intp) for members in groups.values()]
