"""Engines that run a model; each offers `predict(pixels, with_features=…) -> Outputs`."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What the engine computed for one image, in float.

    `logits` has one value per label; `features` is the last feature map (h x w x channels),
    or None where it was not asked for or the model has none.
    """

    logits: npt.NDArray[np.float64]
    features: npt.NDArray[np.float32] | None


class Runtime(Protocol):
    """A loaded model. Not thread-safe: one caller at a time."""

    def predict(self, pixels: npt.NDArray[Any], *, with_features: bool = False) -> Outputs:
        """Run S x S x 3 uint8 RGB pixels through the model."""
        ...
