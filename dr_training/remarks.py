"""What should be known of a temperature and thresholds before they are believed.

>>> remarks(temperature=8.0, positive=np.array([True, False] * 10))
['the temperature is 8, the highest that is tried: …', 'only 10 referable photographs and 10 …']
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from dr_training.evaluate import HIGHEST_TEMPERATURE, LOWEST_TEMPERATURE

REMARKS: Final = "remarks"
# Fewest photographs of a kind. A threshold that 45 of 50 referable photographs reach truly finds
# less than 0.80 of them in one of twenty such choices, and with 20 photographs less than 0.72
# (true shares have the distribution Beta(k, n + 1 - k)). A temperature of 100 photographs lies
# within a quarter of the right one nine times in ten. Both are computed in a test.
FEW: Final = 50


def remarks(*, temperature: float, positive: NDArray[np.bool_]) -> list[str]:
    """One sentence for each thing that speaks against what was chosen on these photographs.

    Args:
        temperature: that was fitted.
        positive: (n,) whether each photograph that chose is referable.
    """
    found = []
    if temperature >= HIGHEST_TEMPERATURE:
        found.append(
            f"the temperature is {temperature:g}, the highest that is tried: the answers are "
            "hardly better than chance, or far surer than they are right, and their probabilities "
            "say nothing"
        )
    if temperature <= LOWEST_TEMPERATURE:
        found.append(
            f"the temperature is {temperature:g}, the lowest that is tried: nearly all answers to "
            "these photographs are right, or all are far less sure than they are right, and the "
            "probabilities may be too sure on others"
        )
    referable = int(positive.sum())
    others = len(positive) - referable
    if min(referable, others) < FEW:
        found.append(
            f"only {referable} referable photographs and {others} others chose temperature and "
            f"thresholds: with fewer than {FEW} of a kind a threshold may truly miss its aim by "
            "0.1 or more"
        )
    return found
