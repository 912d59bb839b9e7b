"""Means with intervals, allocation of variation, effects and what a wanted precision needs.

    >>> table = anova(study.factors, measurements)
    >>> table.residual.df
    192

Effects of factors on a time multiply: a network that takes 1.5 times as long does so on a fast
machine and on a slow one. On seconds that looks like an interaction; on their logarithm it is
none. The analysis of variance is therefore of log(time), and effects are ratios.

Sources: Jain, The Art of Computer Systems Performance Analysis, chapters 13, 18 and 22
(intervals, allocation of variation, full factorials with repetitions); Montgomery, Design and
Analysis of Experiments, chapter 5.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dr_training.data.faults import DataError
from dr_training.study.design import Term, columns, name_of, terms
from dr_training.study.study_file import Factor, Level

CONFIDENCE: Final = 0.95
_TOLERANCE: Final = 1e-8
_MOST_REPETITIONS: Final = 10_000


@dataclass(frozen=True, kw_only=True)
class Mean:
    """Mean of n values with its 95 % interval by Student's t; None where n is 1."""

    n: int
    mean: float
    low: float | None
    high: float | None
    sd: float | None


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The levels of a run, and a time or amount above 0."""

    levels: Mapping[str, Level]
    value: float


@dataclass(frozen=True, kw_only=True)
class Source:
    """A row of the analysis of variance. `f` and `p` are None where nothing is left to test by."""

    name: str
    df: int
    sum_of_squares: float
    share: float
    f: float | None = None
    p: float | None = None


@dataclass(frozen=True, kw_only=True)
class Anova:
    """Analysis of variance of log(value).

    `balanced` is false where scenarios have different numbers of runs: shares then do not add
    up to 1. `left_out` names interactions that are in the residual, since there are too few runs
    to estimate them, or that cannot be told from a term that is in the table.
    """

    sources: tuple[Source, ...]
    residual: Source
    total: float
    n: int
    balanced: bool
    left_out: tuple[str, ...] = ()

    @property
    def residual_sd(self) -> float | None:
        """Standard deviation of log(value) between repetitions of a scenario."""
        if self.residual.df == 0:
            return None
        return math.sqrt(self.residual.sum_of_squares / self.residual.df)


@dataclass(frozen=True, kw_only=True)
class Effect:
    """How many times as much a level takes as the first level of its factor."""

    factor: str
    level: Level
    against: Level
    ratio: float
    low: float | None
    high: float | None


def mean_of(values: Sequence[float]) -> Mean:
    """Mean and interval of at least one finite value."""
    data = np.asarray(values, dtype=np.float64)
    if data.size == 0 or not np.isfinite(data).all():
        raise ValueError("a mean needs at least one value, all of them finite")
    mean = float(data.mean())
    if data.size == 1:
        return Mean(n=1, mean=mean, low=None, high=None, sd=None)
    sd = float(data.std(ddof=1))
    half = _t(data.size - 1) * sd / math.sqrt(data.size)
    return Mean(n=int(data.size), mean=mean, low=mean - half, high=mean + half, sd=sd)


def anova(factors: Sequence[Factor], measured: Sequence[Measurement]) -> Anova:
    """Allocation of the variation of log(value) to factors and their interactions.

    Every interaction is in the table when repetitions leave degrees of freedom for the residual;
    else the interactions of most factors are left out until they do. Each sum of squares is what
    the model loses without the term (type III, effect coding), which is the usual one where
    scenarios have equally many runs.

    Raises:
        DataError: a value is not above 0, a factor has only one level left, or there are too
            few runs for the main effects.
    """
    rows, values = _table(factors, measured)
    logs = np.log(values)
    total = float(((logs - logs.mean()) ** 2).sum())
    # Rounding alone: equal times have logarithms that differ in their last digit.
    if total <= len(logs) * (_TOLERANCE * max(1.0, float(np.abs(logs).max()))) ** 2:
        total = 0.0
    for highest in range(len(factors), 0, -1):
        kept, left_out = _independent_terms(factors, rows, highest)
        matrix = _matrix(factors, rows, kept)
        rank = int(np.linalg.matrix_rank(matrix))
        if len(rows) - rank >= 1 or highest == 1:
            break
    if len(rows) < rank:
        raise DataError(f"{len(rows)} runs are too few for {rank} main effects")
    rss = _rss(matrix, logs)
    residual_df = len(rows) - rank
    # The same where a model explains everything.
    rss = rss if rss > total * _TOLERANCE**2 and total else 0.0
    sources = []
    for term in kept:
        without = _matrix(factors, rows, [one for one in kept if one != term])
        df = rank - int(np.linalg.matrix_rank(without))
        if df == 0:
            left_out.append(f"{name_of(term)} (too few runs)")
            continue
        size = max(0.0, _rss(without, logs) - rss) if total else 0.0
        sources.append(_source(name_of(term), df, size, total, rss, residual_df))
    left_out += [
        f"{name_of(term)} (in the residual)"
        for term in terms(factors, len(factors))
        if len(term) > highest
    ]
    counts: dict[tuple[int, ...], int] = {}
    for row in rows:
        counts[row] = counts.get(row, 0) + 1
    return Anova(
        sources=tuple(sources),
        residual=Source(
            name="residual",
            df=residual_df,
            sum_of_squares=rss,
            share=rss / total if total else 0.0,
        ),
        total=total,
        n=len(rows),
        balanced=len(set(counts.values())) == 1,
        left_out=tuple(left_out),
    )


def main_effects(
    factors: Sequence[Factor], measured: Sequence[Measurement], table: Anova
) -> list[Effect]:
    """Ratios of geometric means to the first level of each factor, with 95 % intervals.

    Two levels are compared where both have runs with the same levels of all other factors, so
    that a scenario that has failed does not tilt the comparison; in a fraction of the
    scenarios, where there is no such pair, over all of them.
    """
    rows, values = _table(factors, measured)
    cells: dict[tuple[int, ...], list[float]] = {}
    for row, value in zip(rows, np.log(values), strict=True):
        cells.setdefault(row, []).append(float(value))
    effects = []
    for index, factor in enumerate(factors):
        for level in range(1, len(factor.levels)):
            chosen = _compared(cells, index, level)
            if chosen is None:
                continue
            first, second = chosen
            difference = np.mean([np.mean(cells[row]) for row in second]) - np.mean(
                [np.mean(cells[row]) for row in first]
            )
            low = high = None
            if table.residual_sd is not None:
                spread = sum(
                    1 / (len(side) ** 2 * len(cells[row]))
                    for side in (first, second)
                    for row in side
                )
                half = _t(table.residual.df) * table.residual_sd * math.sqrt(spread)
                low, high = math.exp(difference - half), math.exp(difference + half)
            effects.append(
                Effect(
                    factor=factor.name,
                    level=factor.levels[level],
                    against=factor.levels[0],
                    ratio=math.exp(difference),
                    low=low,
                    high=high,
                )
            )
    return effects


def level_means(
    factors: Sequence[Factor], measured: Sequence[Measurement], term: Term
) -> dict[tuple[Level, ...], float]:
    """Geometric mean of the value at each combination of the levels of some factors."""
    found: dict[tuple[Level, ...], list[float]] = {}
    for one in measured:
        found.setdefault(tuple(one.levels[name] for name in term), []).append(math.log(one.value))
    order = itertools.product(*(f.levels for name in term for f in factors if f.name == name))
    return {key: math.exp(float(np.mean(found[key]))) for key in order if key in found}


def repetitions_needed(residual_sd: float, *, precision: float) -> int:
    """Repetitions after which a scenario's mean is known to ± `precision` (0.05 is 5 %).

    The least n of at least 2 with t(n-1) · sd / √n ≤ log(1 + precision), with 95 % confidence:
    the half width of the interval of the mean of log(time), and so of the geometric mean.

    Raises:
        ValueError: the precision is not above 0.
    """
    if precision <= 0 or not math.isfinite(precision):
        raise ValueError(f"the precision is a share above 0 such as 0.05; got {precision}")
    for n in range(2, _MOST_REPETITIONS):
        if _t(n - 1) * residual_sd / math.sqrt(n) <= math.log1p(precision):
            return n
    return _MOST_REPETITIONS


def _table(
    factors: Sequence[Factor], measured: Sequence[Measurement]
) -> tuple[list[tuple[int, ...]], NDArray[np.float64]]:
    values = np.array([one.value for one in measured], np.float64)
    if len(values) < 2 or not (np.isfinite(values).all() and (values > 0).all()):
        raise DataError("the analysis needs at least two runs, each with a time above 0")
    rows = [
        tuple(factor.levels.index(one.levels[factor.name]) for factor in factors)
        for one in measured
    ]
    for index, factor in enumerate(factors):
        seen = {row[index] for row in rows}
        if len(seen) < len(factor.levels):
            lost = [str(lv) for n, lv in enumerate(factor.levels) if n not in seen]
            raise DataError(
                f"no run with {factor.name} {', '.join(lost)} has succeeded, so its effect is "
                "not known; look at the reasons in the table of failures"
            )
    return rows, values


def _independent_terms(
    factors: Sequence[Factor], rows: Sequence[tuple[int, ...]], highest: int
) -> tuple[list[Term], list[str]]:
    """Terms whose columns are not wholly those of terms before them."""
    kept: list[Term] = []
    left_out: list[str] = []
    matrix = np.ones((len(rows), 1))
    rank = 1
    for term in terms(factors, highest):
        wider = np.hstack([matrix, columns(factors, rows, term)])
        new_rank = int(np.linalg.matrix_rank(wider))
        if new_rank == rank:
            left_out.append(f"{name_of(term)} (confounded)")
            continue
        kept.append(term)
        matrix, rank = wider, new_rank
    return kept, left_out


def _matrix(
    factors: Sequence[Factor], rows: Sequence[tuple[int, ...]], kept: Sequence[Term]
) -> NDArray[np.float64]:
    return np.hstack([np.ones((len(rows), 1)), *(columns(factors, rows, one) for one in kept)])


def _rss(matrix: NDArray[np.float64], values: NDArray[np.float64]) -> float:
    left, sizes, _ = np.linalg.svd(matrix, full_matrices=False)
    basis = left[:, sizes > _TOLERANCE * sizes[0]]
    rest = values - basis @ (basis.T @ values)
    return float(rest @ rest)


def _source(name: str, df: int, size: float, total: float, rss: float, residual_df: int) -> Source:
    f = p = None
    if residual_df and rss > 0:
        from scipy.stats import f as distribution

        f = size / df / (rss / residual_df)
        p = float(distribution.sf(f, df, residual_df))
    return Source(
        name=name, df=df, sum_of_squares=size, share=size / total if total else 0.0, f=f, p=p
    )


def _compared(
    cells: Mapping[tuple[int, ...], list[float]], index: int, level: int
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]] | None:
    def moved(row: tuple[int, ...], to: int) -> tuple[int, ...]:
        return (*row[:index], to, *row[index + 1 :])

    first = [row for row in cells if row[index] == 0]
    second = [row for row in cells if row[index] == level]
    paired = [row for row in first if moved(row, level) in cells]
    if paired:
        return paired, [moved(row, level) for row in paired]
    return (first, second) if first and second else None


def _t(df: int) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + CONFIDENCE) / 2, df))
