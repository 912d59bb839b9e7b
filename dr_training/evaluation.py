"""What a model is worth on labelled photographs: figures with intervals, nobody left out.

    >>> report = evaluate(scored, thresholds={"high_sensitivity": 0.3}, prevalence=0.1)
    >>> report["operating_points"]["high_sensitivity"]["sensitivity"]
    {'value': 0.94, 'low': 0.91, 'high': 0.97}

Intervals are 95 % percentile bootstrap intervals (Efron & Tibshirani, 1993), drawn over patients
where the table names them, since two eyes of a patient are not two patients. A share that is 0
or 1 in every draw gets the exact interval instead (Clopper & Pearson, 1934). Ungradable
photographs are counted by grade, and sensitivity and specificity are given twice: over the
gradable ones, and with every ungradable one referred, as screening programmes do. PPV and NPV
hold at the prevalence that is stated, not at that of the data.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dr_training.bootstrap import (
    DRAWS,
    Estimate,
    Index,
    bootstrap_figures,
    exact_at_the_ends,
    resampled,
    rounded,
    units,
)
from dr_training.data.faults import DataError
from dr_training.data.table import Photograph
from dr_training.evaluate import (
    accuracy,
    auc,
    confusion,
    expected_calibration_error,
    quadratic_weighted_kappa,
    sensitivity,
    specificity,
)
from dr_training.scoring import Scored
from inference_image.contract import GRADE_LABELS

# With fewer of a kind a share says little; the subgroup is shown with this warning.
FEW: Final = 10
_DIGITS: Final = 4


def evaluate(
    scored: Scored,
    *,
    thresholds: Mapping[str, float],
    prevalence: float | None = None,
    by: Sequence[str] = (),
    draws: int = DRAWS,
    seed: int = 0,
) -> dict[str, Any]:
    """The report of an evaluation, as JSON values.

    Args:
        scored: answers of one model.
        thresholds: operating points on P(referable), by name.
        prevalence: share of referable patients in the population for PPV and NPV.
        by: columns of the table to break the figures down by (camera, site, eye).
        draws: bootstrap draws.
        seed: of the draws.

    Raises:
        DataError: the prevalence is no share, a column is missing, or nothing was gradable.
    """
    check_choices(scored.photographs, prevalence=prevalence, by=by)
    if not scored.gradable.any():
        raise DataError("the model called every photograph ungradable: there is nothing to measure")
    report = _figures(scored, thresholds, prevalence=prevalence, draws=draws, seed=seed)
    report["ungradable"] = _ungradable(scored)
    if by:
        report["subgroups"] = {
            column: {
                value: _subgroup(scored.chosen(rows), thresholds, draws=draws, seed=seed)
                for value, rows in _values(scored, column).items()
            }
            for column in by
        }
    return report


def predictive_values(
    sensitivity_value: float, specificity_value: float, prevalence: float
) -> tuple[float, float]:
    """PPV and NPV by Bayes' rule; NaN where nobody would be called so."""
    true_positive = sensitivity_value * prevalence
    false_positive = (1 - specificity_value) * (1 - prevalence)
    true_negative = specificity_value * (1 - prevalence)
    false_negative = (1 - sensitivity_value) * prevalence
    positive, negative = true_positive + false_positive, true_negative + false_negative
    return (
        true_positive / positive if positive > 0 else math.nan,
        true_negative / negative if negative > 0 else math.nan,
    )


def roc_curve(
    positive: NDArray[np.bool_], score: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """False and true positive rates at every threshold, from (0, 0) to (1, 1)."""
    order = np.argsort(-score, kind="stable")
    hits = positive[order]
    last_of_ties = np.append(np.diff(score[order]) != 0, True)
    true = np.cumsum(hits)[last_of_ties] / max(1, int(hits.sum()))
    false = np.cumsum(~hits)[last_of_ties] / max(1, int((~hits).sum()))
    return np.concatenate([[0.0], false]), np.concatenate([[0.0], true])


def roc_points(
    positive: NDArray[np.bool_], score: NDArray[np.float64], *, most: int = 60
) -> list[list[float]]:
    """At most so many corners of the ROC curve, evenly by rate: enough to draw it."""
    false, true = roc_curve(positive, score)
    way = false + true
    chosen = np.unique(np.searchsorted(way, np.linspace(0, way[-1], most)))
    return [
        [round(float(x), _DIGITS), round(float(y), _DIGITS)]
        for x, y in zip(false[chosen], true[chosen], strict=True)
    ]


def _figures(
    scored: Scored,
    thresholds: Mapping[str, float],
    *,
    prevalence: float | None,
    draws: int,
    seed: int,
) -> dict[str, Any]:
    graded = scored.chosen(scored.gradable)
    truth, positive, score = graded.truth, graded.referable, graded.score
    predicted = graded.probabilities.argmax(axis=1)
    every_positive = scored.referable
    called_of_all = {
        name: np.where(scored.gradable, np.nan_to_num(scored.score) >= threshold, True)
        for name, threshold in thresholds.items()
    }

    def of_graded(index: Index) -> dict[str, float]:
        t, p, s = truth[index], positive[index], score[index]
        found = {"referable_auc": auc(p, s)}
        if graded.grades:
            found["accuracy"] = accuracy(t, predicted[index])
            found["quadratic_weighted_kappa"] = quadratic_weighted_kappa(t, predicted[index])
            for grade in range(len(GRADE_LABELS)):
                found[f"auc {grade}"] = auc(t == grade, graded.probabilities[index, grade])
        for name, threshold in thresholds.items():
            called = s >= threshold
            sens, spec = sensitivity(p, called), specificity(p, called)
            found[f"sensitivity {name}"], found[f"specificity {name}"] = sens, spec
            if prevalence is not None:
                ppv, npv = predictive_values(sens, spec, prevalence)
                found[f"ppv {name}"], found[f"npv {name}"] = ppv, npv
        return found

    def of_all(index: Index) -> dict[str, float]:
        return {
            f"{kind} {name}": figure(every_positive[index], called[index])
            for name, called in called_of_all.items()
            for kind, figure in (("sensitivity", sensitivity), ("specificity", specificity))
        }

    patients = [one.patient for one in graded.photographs]
    everyone = [one.patient for one in scored.photographs]
    estimates = bootstrap_figures(of_graded, patients, draws=draws, seed=seed)
    referred = bootstrap_figures(of_all, everyone, draws=draws, seed=seed)
    for found, owners, right in (
        (estimates, patients, positive),
        (referred, everyone, every_positive),
    ):
        for name in thresholds:
            for kind, rows in (("sensitivity", right), ("specificity", ~right)):
                key = f"{kind} {name}"
                found[key] = exact_at_the_ends(found[key], units(owners, rows))
    if prevalence is not None:
        for name in thresholds:
            sens, spec = estimates[f"sensitivity {name}"], estimates[f"specificity {name}"]
            if {sens.value, spec.value} & {0.0, 1.0}:
                # Draws of a share of 1 are all 1: the values follow the exact bounds instead.
                lows = predictive_values(sens.low, spec.low, prevalence)
                highs = predictive_values(sens.high, spec.high, prevalence)
                for kind, low, high in zip(("ppv", "npv"), lows, highs, strict=True):
                    value = estimates[f"{kind} {name}"].value
                    estimates[f"{kind} {name}"] = Estimate(value=value, low=low, high=high)
    report: dict[str, Any] = {
        "photographs": len(scored),
        "gradable": len(graded),
        "referable": int(positive.sum()),
        **resampled(patients, draws=draws),
    }
    for name in ("accuracy", "quadratic_weighted_kappa"):
        if name in estimates:
            report[name] = rounded(estimates[name])
    report["referable_auc"] = rounded(estimates["referable_auc"])
    if graded.grades:
        report["auc_by_grade"] = {
            str(grade): rounded(estimates[f"auc {grade}"]) for grade in range(len(GRADE_LABELS))
        }
    report["referable_calibration_error"] = round(expected_calibration_error(positive, score), 4)
    points: dict[str, Any] = {}
    for name, threshold in thresholds.items():
        points[name] = {
            "threshold": threshold,
            "sensitivity": rounded(estimates[f"sensitivity {name}"]),
            "specificity": rounded(estimates[f"specificity {name}"]),
            "with_ungradable_referred": {
                kind: rounded(referred[f"{kind} {name}"]) for kind in ("sensitivity", "specificity")
            },
        }
        if prevalence is not None:
            points[name] |= {
                "prevalence": prevalence,
                "ppv": rounded(estimates[f"ppv {name}"]),
                "npv": rounded(estimates[f"npv {name}"]),
            }
    report["operating_points"] = points
    report["roc"] = roc_points(positive, score)
    if graded.grades:
        report["confusion"] = {
            "rows": "true grade",
            "columns": "predicted grade",
            "labels": list(GRADE_LABELS),
            "counts": confusion(truth, predicted).tolist(),
        }
    return report


def _subgroup(
    scored: Scored, thresholds: Mapping[str, float], *, draws: int, seed: int
) -> dict[str, Any]:
    referable = int((scored.referable & scored.gradable).sum())
    others = int((~scored.referable & scored.gradable).sum())
    document: dict[str, Any] = {
        "photographs": len(scored),
        "ungradable": int((~scored.gradable & ~scored.failed).sum()),
        "referable": referable,
        "few": referable < FEW or others < FEW,
    }
    if scored.gradable.any():
        figures = _figures(scored, thresholds, prevalence=None, draws=draws, seed=seed)
        for name in ("accuracy", "quadratic_weighted_kappa", "referable_auc"):
            if name in figures:
                document[name] = figures[name]
        document["operating_points"] = figures["operating_points"]
    return document


def _ungradable(scored: Scored) -> dict[str, Any]:
    refused = ~scored.gradable & ~scored.failed
    reasons: dict[str, int] = {}
    for index in np.flatnonzero(refused):
        for reason in scored.reasons[index].split():
            reasons[reason] = reasons.get(reason, 0) + 1
    return {
        "photographs": int(refused.sum()),
        "by_grade": np.bincount(scored.truth[refused], minlength=len(GRADE_LABELS)).tolist(),
        "reasons": dict(sorted(reasons.items())),
        "failed": int(scored.failed.sum()),
    }


def check_choices(
    photographs: Sequence[Photograph], *, prevalence: float | None, by: Sequence[str]
) -> None:
    """Refuse what no answers could be evaluated by; needs no answers.

    Raises:
        DataError: the prevalence is no share, or a column is missing.
    """
    if prevalence is not None and not 0 < prevalence < 1:
        raise DataError(f"the prevalence is a share between 0 and 1, not {prevalence:g}")
    known: dict[str, None] = {"eye": None}
    for one in photographs:
        known.update(dict.fromkeys(one.extra))
    for column in by:
        if column not in known:
            raise DataError(f"subgroups cannot be by {column!r}; they can be by {', '.join(known)}")


def _values(scored: Scored, column: str) -> dict[str, NDArray[np.bool_]]:
    values = np.array(
        [
            (one.eye if column == "eye" else one.extra.get(column, "")) or "not stated"
            for one in scored.photographs
        ]
    )
    return {str(value): values == value for value in np.unique(values)}
