"""May a newly trained model go on? The lower bounds of its figures decide, not the figures.

    >>> decided = decide(answers, threshold=0.3, minimums=minimums)
    >>> decided["verdict"], decided["sensitivity"]
    ('refused', {'value': 0.9, 'low': 0.8331, 'high': 0.9468, ...})

A figure passes where the lower bound of its two-sided 95 % interval is at least its minimum, so a
model that is no better than the minimum passes once in forty tests. Sensitivity and specificity
have exact intervals over patients (`dr_training.exact_interval`): photographs of one patient count
as one. Kappa has a percentile bootstrap over patients; without a disagreement every draw is 1, and
its bound is that of the share of disagreements that may have been missed, each of one grade.

| verdict | when |
|---|---|
| `passed` | every lower bound reaches its minimum |
| `refused` | a lower bound does not, or the model gave no number |
| `insufficient data` | photographs or patients are too few for any model to pass |
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dr_training.bootstrap import DRAWS, Estimate, bootstrap_figures
from dr_training.data.faults import DataError
from dr_training.evaluate import auc, confusion, quadratic_weighted_kappa
from dr_training.exact_interval import (
    best_bound,
    effective_number,
    exact_interval,
    number_needed,
)
from dr_training.gate import INSUFFICIENT, PASSED, REFUSED
from inference_image.contract import GRADE_LABELS, REFERABLE_FROM_GRADE

# Below this an interval by bootstrap covers less than it says.
LEAST: Final = 30
_DIGITS: Final = 10_000
_INTERVAL: Final = (
    "two-sided 95 %: exact (Clopper-Pearson) over patients for sensitivity and specificity, "
    f"percentile bootstrap over patients for the others, {DRAWS} draws"
)


@dataclass(frozen=True, kw_only=True)
class Minimums:
    """What the lower bound of each figure must reach; a model that only refers has no kappa."""

    sensitivity: float
    specificity: float
    kappa: float | None = None
    photographs: int = 100

    def __post_init__(self) -> None:
        for name, value in (("sensitivity", self.sensitivity), ("specificity", self.specificity)):
            if not 0 <= value < 1:
                raise DataError(
                    f"--min-{name} is a share from 0 to below 1, for no number of photographs "
                    f"shows a 1; got {value:g}"
                )
        if self.kappa is not None and not -1 <= self.kappa < 1:
            raise DataError(f"--min-kappa is from -1 to below 1; got {self.kappa:g}")
        if self.photographs < LEAST:
            raise DataError(
                f"--min-photographs must be at least {LEAST}, fewer show nothing; "
                f"got {self.photographs}"
            )

    def check_fits(self, *, grades: bool) -> None:
        """Refuse what cannot be asked of a model that grades, or of one that only refers.

        Raises:
            DataError: a kappa is asked of a model that has none, or none of one that has it.
        """
        if grades and self.kappa is None:
            raise DataError("the model grades from 0 to 4: give --min-kappa")
        if not grades and self.kappa is not None:
            raise DataError("the model only refers and has no kappa: leave --min-kappa out")


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What a model said of photographs whose grade is known.

    `truth` (n,) grades 0 to 4; `probabilities` (n, 5), or (n, 2) of a model that only refers, NaN
    where it gave no number; `owners` whose each photograph is, never empty.
    """

    truth: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    owners: Sequence[str]

    @property
    def grades(self) -> bool:
        """Whether the model grades, or only refers."""
        return bool(self.probabilities.shape[1] > 2)

    @property
    def score(self) -> NDArray[np.float64]:
        """(n,) P(grade >= 2), added as the service adds."""
        first = REFERABLE_FROM_GRADE if self.grades else 1
        return np.array([min(1.0, math.fsum(row[first:])) for row in self.probabilities])


def decide(
    answers: Answers, *, threshold: float, minimums: Minimums, draws: int = DRAWS, seed: int = 0
) -> dict[str, Any]:
    """The verdict with its reasons and all figures behind it, as JSON values.

    Args:
        answers: to photographs that chose nothing of the model.
        threshold: on P(grade >= 2), at and above which the model refers.
        minimums: what is asked for.
        draws: of the bootstrap.
        seed: of the draws.

    Raises:
        DataError: a kappa is asked of a model that does not grade, or none of one that does.
    """
    minimums.check_fits(grades=answers.grades)
    count = len(answers.truth)
    patients = len(set(answers.owners))
    silent = int(np.isnan(answers.probabilities).any(axis=1).sum())
    document: dict[str, Any] = {
        "n": count,
        "patients": patients,
        "interval": _INTERVAL,
        "minimums": asdict(minimums),
    }
    few: list[str] = []
    if count < minimums.photographs:
        few.append(f"{count} photographs in the test part, at least {minimums.photographs} needed")
    if patients < LEAST:
        few.append(f"{patients} patients in the test part, at least {LEAST} needed")
    if silent:
        reasons = [f"the model gave no number for {silent} of {count} photographs"]
        return document | _ended(REFUSED, reasons)
    if count == 0:
        return document | _ended(INSUFFICIENT, few)
    refused: list[str] = []
    certain = False
    for name, figure, minimum in _figures(answers, threshold, minimums, draws=draws, seed=seed):
        document[name] = figure
        if minimum is None:
            continue
        too_few = _too_few(name, figure, minimum)
        if too_few:
            few.append(too_few)
        if figure["value"] is None or figure["low"] >= minimum:
            continue
        below = figure["high"] < minimum
        certain = certain or below
        if below or not too_few:
            refused.append(
                f"{name.replace('_', ' ')} is {figure['value']:.4f} (95 % interval "
                f"{figure['low']:.4f} to {figure['high']:.4f}): the lower bound is below "
                f"{minimum:g}"
            )
    if answers.grades:
        predicted = answers.probabilities.argmax(axis=1)
        document["confusion"] = {
            "rows": "true grade",
            "columns": "predicted grade",
            "counts": confusion(answers.truth, predicted).tolist(),
        }
    # What is too bad for certain is refused, however few the photographs are.
    if few and not certain:
        return document | _ended(INSUFFICIENT, few)
    return document | (_ended(REFUSED, refused + few) if refused else _ended(PASSED, []))


def _ended(verdict: str, reasons: Sequence[str]) -> dict[str, Any]:
    if verdict == INSUFFICIENT:
        reasons = [f"{INSUFFICIENT}: {reason}" for reason in reasons]
    return {"verdict": verdict, "passed": verdict == PASSED, "reasons": list(reasons)}


def _figures(
    answers: Answers, threshold: float, minimums: Minimums, *, draws: int, seed: int
) -> list[tuple[str, dict[str, Any], float | None]]:
    positive = answers.truth >= REFERABLE_FROM_GRADE
    score = answers.score
    called = score >= threshold
    found: list[tuple[str, dict[str, Any], float | None]] = [
        (
            "sensitivity",
            _share(called[positive], _chosen(answers.owners, positive)),
            minimums.sensitivity,
        ),
        (
            "specificity",
            _share(~called[~positive], _chosen(answers.owners, ~positive)),
            minimums.specificity,
        ),
    ]
    predicted = answers.probabilities.argmax(axis=1)

    def of(index: NDArray[np.intp]) -> dict[str, float]:
        figures = {"referable_auc": auc(positive[index], score[index])}
        if answers.grades:
            figures["quadratic_weighted_kappa"] = quadratic_weighted_kappa(
                answers.truth[index], predicted[index]
            )
        return figures

    estimates = bootstrap_figures(of, answers.owners, draws=draws, seed=seed)
    if answers.grades:
        kappa = _widened(
            estimates["quadratic_weighted_kappa"], answers.truth, predicted, answers.owners
        )
        found.append(("quadratic_weighted_kappa", _rounded(kappa), minimums.kappa))
    found.append(("referable_auc", _rounded(estimates["referable_auc"]), None))
    return found


def _share(right: NDArray[np.bool_], owners: Sequence[str]) -> dict[str, Any]:
    """Share of right calls with its exact interval, as if each patient counted once."""
    count = len(right)
    if count == 0:
        return {**_rounded(Estimate(value=math.nan, low=math.nan, high=math.nan)), "n": 0}
    number = effective_number(owners)
    value = float(np.mean(right))
    low, high = exact_interval(min(value * number, number), number)
    return {
        **_rounded(Estimate(value=value, low=low, high=high)),
        "n": count,
        "right": int(right.sum()),
        "effective_n": math.floor(number * 100) / 100,
        "low_at_best": _down(best_bound(number)),
    }


def _widened(
    kappa: Estimate, truth: NDArray[np.int64], predicted: NDArray[np.int64], owners: Sequence[str]
) -> Estimate:
    """Kappa without a disagreement, which a bootstrap would call certain."""
    if math.isnan(kappa.value) or bool((truth != predicted).any()):
        return kappa
    missed = 1 - best_bound(effective_number(owners))
    grades = np.arange(len(GRADE_LABELS))
    shares = np.bincount(truth, minlength=len(grades)) / len(truth)
    by_chance = float(np.sum((grades[:, None] - grades[None, :]) ** 2 * np.outer(shares, shares)))
    return Estimate(value=kappa.value, low=1 - missed / by_chance, high=kappa.high)


def _too_few(name: str, figure: dict[str, Any], minimum: float) -> str:
    """Why no model could pass with these photographs; empty where one could."""
    if name == "quadratic_weighted_kappa":
        return "kappa needs photographs of several grades" if figure["value"] is None else ""
    kind = (
        "referable photographs" if name == "sensitivity" else "photographs that are not referable"
    )
    if figure["n"] and figure["low_at_best"] >= minimum:
        return ""
    needed = number_needed(minimum)
    at_best = figure.get("low_at_best", 0.0)
    return (
        f"{figure['n']} {kind} cannot show a {name} of {minimum:g}: without one mistake the lower "
        f"bound would be {at_best:.4f}; those of at least {needed} patients are needed"
    )


def _chosen(owners: Sequence[str], rows: NDArray[np.bool_]) -> list[str]:
    return [owners[int(index)] for index in np.flatnonzero(rows)]


def _rounded(estimate: Estimate) -> dict[str, float | None]:
    """With bounds rounded outwards, so that what is printed decides as what was computed."""
    return {
        "value": None if math.isnan(estimate.value) else round(estimate.value, 4),
        "low": None if math.isnan(estimate.low) else _down(estimate.low),
        "high": None if math.isnan(estimate.high) else -_down(-estimate.high),
    }


def _down(value: float) -> float:
    # A bound of 0.85 that came out as 0.8499999999 is 0.85.
    return math.floor(round(value * _DIGITS, 6)) / _DIGITS
