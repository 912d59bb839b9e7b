"""What the two ways to search and to measure share: see `fundus.py`."""

import math
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

THUMBNAIL_PX: Final = 144
# No disc is searched in a thumbnail with a shorter side.
SHORTEST_SIDE_PX: Final = 16
# Red minus blue of a corner that no background has, but a retina in full light does.
RED_BACKGROUND: Final = 64
HYPOTHESES: Final = 64
ANGLE_BINS: Final = 64
# Vessels are looked for at this size of the disc, at which they are two to five pixels wide.
VESSEL_PX: Final = 224
# Share of the prepared square on each side that the verdict on light and colour leaves out, and
# that the one on sharpness does.
_RIM: Final = 0.07
_SHARP_RIM: Final = 0.18
_SAMPLED_PX: Final = 50

DoubleArray = npt.NDArray[np.float64]


# Left, top, right and bottom of a part of a picture; the last two are not part of it.
Box = tuple[int, int, int, int]


class Disc(NamedTuple):
    """A circle in pixels of a thumbnail, and the share of its circumference inside the frame
    where an edge was seen."""

    x: float
    y: float
    radius: float
    arc: float


class Measures(NamedTuple):
    """What the quality gate compares with its limits, see `QualityGate`."""

    level: float
    dark: float
    washed_out: float
    redness: float
    green_to_red: float
    blue_to_red: float
    colour_spread: float
    sharpness: float


@lru_cache(maxsize=1)
def triplets() -> DoubleArray:
    """Random triplets in [0, 1), the same ones each time: the answer must not depend on luck."""
    return np.random.default_rng(20_260_101).random((3, HYPOTHESES))


@lru_cache(maxsize=1)
def bin_directions() -> DoubleArray:
    """Cosines and sines of where 64 bins of equal angle begin, from -pi on, and of their centres:
    4 x 64."""
    begins = np.arange(ANGLE_BINS) * (2 * math.pi / ANGLE_BINS) - math.pi
    centres = begins + math.pi / ANGLE_BINS
    return np.stack((np.cos(begins), np.sin(begins), np.cos(centres), np.sin(centres)))


def sample_of(side_px: int) -> tuple[int, int, int]:
    """Of a prepared square: margin and step of the sample for light and colour, and the margin
    of the part whose sharpness is measured; pixels."""
    return round(side_px * _RIM), max(1, side_px // _SAMPLED_PX), round(side_px * _SHARP_RIM)
