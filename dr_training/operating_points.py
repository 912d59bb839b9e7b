"""Chooses the thresholds of a package on labelled validation images, never on test images."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dr_training.evaluate import threshold_for_sensitivity, threshold_for_specificity

HIGH_SENSITIVITY: Final = "high_sensitivity"
HIGH_SPECIFICITY: Final = "high_specificity"


def operating_points(
    positive: NDArray[np.bool_],
    score: NDArray[np.float64],
    *,
    sensitivity: float,
    specificity: float,
    data: str,
) -> list[dict[str, Any]]:
    """Thresholds on P(grade >= 2) for `high_sensitivity` and `high_specificity`.

    Where the grades overlap, each is the least demanding threshold that reaches its own aim.
    Where they are so far apart that every threshold of a range reaches both aims,
    `high_sensitivity` is the low end of that range and `high_specificity` the high end. Each
    lies midway between two scores, so that a rounding error does not decide.

    Args:
        positive: (n,) whether the true grade is 2 or more.
        score: (n,) P(grade >= 2), calibrated.
        sensitivity: aim of the first, as a share.
        specificity: aim of the second.
        data: what the images are, for the package's record.

    Raises:
        ValueError: everything or nothing is referable.
    """
    sensitive = threshold_for_sensitivity(positive, score, sensitivity)
    specific = threshold_for_specificity(positive, score, specificity)
    sensitive, specific = min(sensitive, specific), max(sensitive, specific)
    rows = (
        (HIGH_SENSITIVITY, sensitive, f"sensitivity at least {sensitivity:g}"),
        (HIGH_SPECIFICITY, specific, f"specificity at least {specificity:g}"),
    )
    return [
        {"name": name, "threshold": _halfway(score, threshold), "chosen": f"{aim} on {data}"}
        for name, threshold, aim in rows
    ]


def _halfway(score: NDArray[np.float64], threshold: float) -> float:
    """Midway between the scores on either side of a threshold: the same calls, with room."""
    below, above = score[score < threshold], score[score >= threshold]
    if len(below) == 0 or len(above) == 0:
        return threshold
    return round((float(below.max()) + float(above.min())) / 2, 12)
