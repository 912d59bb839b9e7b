"""May a quantised variant replace its reference? Paired decisions on the same images decide.

    >>> verdict = gate(reference, candidate, margins=Margins(sensitivity=0.02))
    >>> verdict.verdict, verdict.document["sensitivity"]["fall_at_most"]
    ('passed', 0.0134)

Both packages answer the same held-out images, each at its own threshold of one operating point.
What counts is the *fall* of sensitivity, and how large it may be given so many images: the upper
bound of a one-sided 95 % interval for a difference of paired proportions (Tango, Statistics in
Medicine 1998;17:891-908), which needs no pair that differs to be right. The same for
specificity; the falls of AUC and of kappa are bounded by a paired bootstrap over patients. How
often both give the same of five grades is reported and decides nothing. An image that the reference
grades and the variant does not is in no pair: where there is one, the variant is refused.

| verdict | when |
|---|---|
| `passed` | no bound is above its margin |
| `refused` | a bound is above its margin, the variant says the same of all, or grades fewer |
| `insufficient data` | too few images for a variant without a single lost one to pass |
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dr_training.bootstrap import DRAWS, bootstrap_figures
from dr_training.data.faults import DataError
from dr_training.data.table import write_whole
from dr_training.evaluate import auc, quadratic_weighted_kappa
from dr_training.scoring import Scored
from inference_image.model_spec import MODEL_JSON, ModelSpec, load_model_spec

PASSED: Final = "passed"
REFUSED: Final = "refused"
INSUFFICIENT: Final = "insufficient data"
# One-sided 95 %.
Z: Final = 1.6448536269514722
_DIGITS: Final = 4
_MOST_IMAGES: Final = 10_000_000


@dataclass(frozen=True, kw_only=True)
class Margins:
    """How far each figure may have fallen, at the most that the data leave open."""

    sensitivity: float = 0.02
    specificity: float = 0.05
    auc: float = 0.02
    kappa: float = 0.05

    def __post_init__(self) -> None:
        for name, margin in asdict(self).items():
            if not 0 < margin < 1:
                raise DataError(f"the margin of {name} is a share between 0 and 1, not {margin:g}")


@dataclass(frozen=True)
class Verdict:
    """`passed`, `refused` or `insufficient data`, the reasons, and all numbers behind it."""

    verdict: str
    reasons: tuple[str, ...]
    document: Mapping[str, Any]


def gate(
    reference: Scored,
    candidate: Scored,
    *,
    thresholds: tuple[float, float],
    operating_point: str,
    margins: Margins | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> Verdict:
    """Compare a candidate with its reference.

    Args:
        reference: answers of the f32 package.
        candidate: answers of the variant to the same photographs, in the same order.
        thresholds: on P(referable), of the reference and of the candidate.
        operating_point: its name, for the record.
        margins: how far figures may have fallen.
        draws: of the bootstrap for AUC and kappa.
        seed: of the draws.

    Raises:
        DataError: the answers are to different photographs.
    """
    margins = margins or Margins()
    if [one.id for one in reference.photographs] != [one.id for one in candidate.photographs]:
        raise DataError("the two packages answered different photographs")
    both = reference.gradable & candidate.gradable
    only_one = reference.gradable != candidate.gradable
    first, second = reference.chosen(both), candidate.chosen(both)
    positive = first.referable
    called = first.score >= thresholds[0], second.score >= thresholds[1]
    document: dict[str, Any] = {
        "operating_point": operating_point,
        "thresholds": {"reference": thresholds[0], "candidate": thresholds[1]},
        "photographs": len(reference),
        "gradable_by_both": int(both.sum()),
        "gradable_by_one": int(only_one.sum()),
        "gradable_by_reference_only": int((reference.gradable & ~candidate.gradable).sum()),
        "failed": {
            "reference": int(reference.failed.sum()),
            "candidate": int(candidate.failed.sum()),
        },
        "margins": asdict(margins),
        "bounds": "one-sided 95 %",
    }
    for name, right, kind in (
        ("sensitivity", positive, called),
        ("specificity", ~positive, tuple(~one for one in called)),
    ):
        document[name] = paired_fall(kind[0][right], kind[1][right], getattr(margins, name))
    document.update(_scores(first, second, draws=draws, seed=seed))
    reasons, verdict = _decide(document, margins, constant=_constant(second))
    document |= {"verdict": verdict, "reasons": list(reasons)}
    return Verdict(verdict, tuple(reasons), document)


def paired_fall(
    before: NDArray[np.bool_], after: NDArray[np.bool_], margin: float
) -> dict[str, Any]:
    """Fall of the share of right calls from `before` to `after`, over the same n images.

    Returns:
        The shares, the images lost and gained, the fall, its one-sided bounds, and how many
        images would be needed: at the rates observed, or at the least where there are too few.
    """
    count = len(before)
    lost, gained = int((before & ~after).sum()), int((~before & after).sum())
    least = least_images(margin)
    document: dict[str, Any] = {
        "images": count,
        "reference": _share(before),
        "candidate": _share(after),
        "lost": lost,
        "gained": gained,
        "least_images": least,
    }
    if count == 0:
        return document | {
            "fall": None,
            "fall_at_most": None,
            "fall_at_least": None,
            "needed": least,
        }
    return document | {
        "fall": round((lost - gained) / count, _DIGITS),
        "fall_at_most": round(fall_bound(lost, gained, count), _DIGITS),
        "fall_at_least": round(-fall_bound(gained, lost, count), _DIGITS),
        "needed": images_needed(lost, gained, count, margin),
    }


def fall_bound(lost: int, gained: int, count: int, z: float = Z) -> float:
    """Upper one-sided bound of the fall (lost - gained) / count, by Tango's score method."""
    if count < 1 or lost < 0 or gained < 0 or lost + gained > count:
        raise ValueError(f"{lost} lost and {gained} gained of {count} images cannot be")
    return _bound_of_rates(lost, gained, count, z)


def least_images(margin: float, z: float = Z) -> int:
    """Images that a variant without a lost one needs to pass: z² (1 - margin) / margin."""
    return math.ceil(round(z * z * (1 - margin) / margin, 9))


def images_needed(lost: int, gained: int, count: int, margin: float) -> int | None:
    """Images at which these rates of lost and gained ones would pass; None where none would."""
    least = least_images(margin)
    if (lost - gained) / count >= margin:
        return None

    def passes(images: int) -> bool:
        scale = images / count
        return _bound_of_rates(lost * scale, gained * scale, images) <= margin

    low, high = 1, least
    while not passes(high):
        low, high = high, high * 2
        if high > _MOST_IMAGES:
            return None
    while low < high:
        middle = (low + high) // 2
        if passes(middle):
            high = middle
        else:
            low = middle + 1
    return max(high, least)


def variant_kind(spec: ModelSpec) -> str | None:
    """Which variant a package says it is; None where it does not say.

    `dr model quantise` writes it as the variant, the demo models' training beside their figures.
    """
    variant, metrics = spec.raw.get("variant") or {}, spec.raw.get("metrics") or {}
    kind = variant.get("kind") or metrics.get("model")
    return None if kind is None else str(kind)


def record_verdict(
    package: Path, verdict: Verdict, *, reference: ModelSpec, data: str
) -> ModelSpec:
    """Write the verdict and its numbers into the package's `model.json`; gives the new spec.

    The package's digest changes with it: gate a package before you publish it.
    """
    spec = load_model_spec(package)
    document = json.loads(json.dumps(spec.raw))
    document["gate"] = {
        "reference": {"id": reference.id, "sha256": reference.sha256},
        "data": data,
        **verdict.document,
    }
    write_whole(package / MODEL_JSON, (json.dumps(document, indent=2) + "\n").encode())
    return load_model_spec(package)


def _decide(
    document: Mapping[str, Any], margins: Margins, *, constant: bool
) -> tuple[list[str], str]:
    if constant:
        return ["the variant says the same of every image"], REFUSED
    ungraded = document["gradable_by_reference_only"]
    if ungraded:
        return [f"the variant does not grade {ungraded} images that the reference grades"], REFUSED
    refused, too_few, sure = [], [], False
    for name in ("sensitivity", "specificity"):
        fall, margin = document[name], getattr(margins, name)
        kind = "referable" if name == "sensitivity" else "other"
        bound = fall["fall_at_most"]
        if bound is not None and bound <= margin:
            continue
        certain = bound is not None and fall["fall_at_least"] > margin
        sure = sure or certain
        if fall["images"] < fall["least_images"] and not certain:
            too_few.append(
                f"{fall['images']} {kind} images cannot show that {name} fell by at most "
                f"{margin:g}: at least {fall['needed'] or fall['least_images']} are needed"
            )
            continue
        needed = fall["needed"]
        refused.append(
            f"{name} may have fallen by {bound:.4f}, more than {margin:g} "
            f"({fall['lost']} of {fall['images']} {kind} images lost, {fall['gained']} gained)"
            + (f"; at these rates {needed} images would do" if needed else "")
        )
    for name in ("auc", "kappa"):
        fall, margin = document.get(name), getattr(margins, name)
        if fall is not None and fall["fall_at_most"] is not None and fall["fall_at_most"] > margin:
            refused.append(
                f"{name} may have fallen by {fall['fall_at_most']:.4f}, more than {margin:g}"
            )
    if too_few and not sure:
        return too_few, INSUFFICIENT
    return (refused, REFUSED) if refused else ([], PASSED)


def _scores(first: Scored, second: Scored, *, draws: int, seed: int) -> dict[str, Any]:
    if len(first) == 0:
        return {}
    positive = first.referable
    grades = tuple(one.probabilities.argmax(axis=1) for one in (first, second))
    has_grades = first.grades and second.grades

    def falls(index: NDArray[np.intp]) -> dict[str, float]:
        chosen = positive[index]
        found = {"auc": auc(chosen, first.score[index]) - auc(chosen, second.score[index])}
        if has_grades:
            truth = first.truth[index]
            found["kappa"] = quadratic_weighted_kappa(
                truth, grades[0][index]
            ) - quadratic_weighted_kappa(truth, grades[1][index])
        return found

    patients = [one.patient for one in first.photographs]
    # Two-sided 90 % has the upper bound of one-sided 95 %.
    bounds = bootstrap_figures(falls, patients, draws=draws, level=0.90, seed=seed)
    values = {"auc": (auc(positive, first.score), auc(positive, second.score))}
    if has_grades:
        kappas = tuple(quadratic_weighted_kappa(first.truth, one) for one in grades)
        values["kappa"] = (kappas[0], kappas[1])
    document: dict[str, Any] = {
        name: {
            "reference": _number(values[name][0]),
            "candidate": _number(values[name][1]),
            "fall": _number(bound.value),
            "fall_at_most": _number(bound.high),
        }
        for name, bound in bounds.items()
    }
    if has_grades:
        document["grade_agreement"] = _number(float(np.mean(grades[0] == grades[1])))
    return document


def _constant(scored: Scored) -> bool:
    """Whether more than one image got one and the same answer, or every grade is one."""
    return len(scored) > 1 and bool(np.ptp(scored.probabilities, axis=0).max() < 1e-6)


def _score(lost: float, gained: float, count: float, fall: float) -> float:
    """Tango's statistic: how far the observed fall is above `fall`, in standard errors."""
    a = 2 * count
    b = -lost - gained + (2 * count - lost + gained) * fall
    c = -gained * fall * (1 - fall)
    rate = (math.sqrt(max(0.0, b * b - 4 * a * c)) - b) / (2 * a)
    variance = count * (2 * rate + fall * (1 - fall))
    difference = lost - gained - count * fall
    if variance <= 0:
        return math.copysign(math.inf, difference) if difference else 0.0
    return difference / math.sqrt(variance)


def _bound_of_rates(lost: float, gained: float, count: float, z: float = Z) -> float:
    low, high = (lost - gained) / count, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _score(lost, gained, count, middle) > -z:
            low = middle
        else:
            high = middle
    return high


def _share(right: NDArray[np.bool_]) -> float | None:
    return round(float(np.mean(right)), _DIGITS) if len(right) else None


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(value, _DIGITS)
