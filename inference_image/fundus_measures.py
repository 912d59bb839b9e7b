"""Light, colour, sharpness and vessels of a prepared photograph: the measures of the quality gate
of `fundus.py`, in NumPy.

native/fundus.c is the same, compiled; whoever changes one changes the other.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from inference_image.fundus_terms import VESSEL_PX, Measures, sample_of

# Red and green both at this level: nothing of the retina is left in the pixel.
_WASHED_OUT: Final = 243
_VESSEL_MARGIN_PX: Final = 24
_VESSEL_ROW_STEP: Final = 4
# What a quarter of these rows shows is enough where it is this many times what is asked for.
_GLANCE_ROW_STEP: Final = 16
_GLANCE_FACTOR: Final = 1.5
_RIDGE_HALF_WIDTH_PX: Final = 3
# Steps of a line on each side of a pixel, and its directions (x, y); the shorter ones first.
_LONGEST_LINE: Final = 4
_LINE_REACH_PX: Final = 10
_LINES: Final[Mapping[int, tuple[tuple[int, int], ...]]] = {
    2: ((2, 1), (1, 2), (-1, 2), (-2, 1)),
    4: ((1, 0), (0, 1), (1, 1), (1, -1)),
}

IndexArray = npt.NDArray[np.intp]
ByteArray = npt.NDArray[np.uint8]
ShortArray = npt.NDArray[np.int16]


def measure(prepared: ByteArray, hidden: float | None) -> Measures:
    """Measures of S x S x 3 uint8 RGB; `hidden` is the share of the disc beyond the frame, None
    where no disc was found."""
    colours = _disc_colours(prepared)
    red, green, blue = colours
    peak = _sorted(np.maximum(np.maximum(red, green), blue))
    # What is beyond the frame is black, and says nothing about the light.
    black = int(peak.searchsorted(1))
    if hidden is not None:
        black = min(black, round(hidden * peak.size))
    peak = peak[black if black < peak.size else 0 :]
    # In order, the pixels below a level are those before its place.
    dark = int(peak.searchsorted(math.ceil(0.25 * _quantile(peak, 0.9)))) / peak.size
    washed = int(np.count_nonzero(np.minimum(red, green) >= _WASHED_OUT)) / peak.size
    sums = colours.sum(axis=1).tolist()
    return Measures(
        _quantile(peak, 0.5),
        dark,
        washed,
        (sums[0] - sums[2]) / max(1.0, sum(sums)),
        *_colour_ratios(colours),
        _sharpness(prepared[:, :, 1].astype(np.int16)),
    )


def vesselness(green: ByteArray, least: float) -> float:
    """How much more dark thin lines stand out than bright ones, in 224 x 224 levels.

    A pixel's line contrast is the least difference, over both halves of a line through it,
    between that half and the lines on either side of it: an edge, a spot or the end of a line
    gives none. Of each pixel the best of eight directions counts, and of the disc the 95th
    percentile. Vessels are dark; a texture has as many bright lines as dark ones.

    A few rows tell where a picture is far above the `least`; only where they leave a doubt are
    more rows counted.
    """
    levels = green.astype(np.int16)
    glance = _line_ratio(levels, _GLANCE_ROW_STEP)
    if glance >= _GLANCE_FACTOR * least:
        return glance
    return _line_ratio(levels, _VESSEL_ROW_STEP)


def _sharpness(green: ShortArray) -> float:
    size = green.shape[0]
    margin = sample_of(size)[2]
    green = green[margin : size - margin, margin : size - margin]
    if min(green.shape) < 3:
        return 0.0
    # Every second row is sample enough for a mean.
    centre = green[1:-1:2, 1:-1]
    around = green[:-2:2, 1:-1] + green[2::2, 1:-1]
    around += green[1:-1:2, :-2]
    around += green[1:-1:2, 2:]
    around -= 4 * centre
    size = centre.size
    return float(np.abs(around).sum()) / size / (4 * max(1.0, float(centre.sum()) / size))


@lru_cache(maxsize=8)
def _disc_indices(side: int, row_step: int = 1) -> IndexArray:
    """Flat indices of the disc that touches a square's sides, of every `row_step`-th row."""
    offsets = np.arange(side) + 0.5 - side / 2
    inside = offsets[::row_step, None] ** 2 + offsets[None, :] ** 2 <= (side / 2) ** 2
    return np.flatnonzero(inside)


def _disc_colours(prepared: ByteArray) -> ByteArray:
    """A sample of the disc's pixels, 3 x N; its rim, where cameras differ, is left out."""
    return prepared.ravel().take(_colour_indices(prepared.shape[0]))


@lru_cache(maxsize=8)
def _colour_indices(size: int) -> IndexArray:
    """Flat indices of the sampled pixels' channels, 3 x N, in size x size x 3 bytes."""
    margin, step, _ = sample_of(size)
    places = np.arange(size * size).reshape(size, size)[margin : size - margin : step]
    places = places[:, margin : size - margin : step]
    inside = places.ravel()[_disc_indices(places.shape[0])]
    return np.ascontiguousarray(3 * inside + np.arange(3)[:, None])


def _colour_ratios(colours: ByteArray) -> tuple[float, float, float]:
    """Median green and blue over red of the disc, and the spread of green over red within it."""
    # Exactly black is what lies beyond the frame or the mask.
    lit = np.flatnonzero(colours[0] | colours[1])
    if len(lit) < colours.shape[1]:
        colours = colours.take(lit, axis=1)
    if len(lit) == 0:
        return 0.0, 0.0, 0.0
    red, green, blue = (_quantile(channel, 0.5) for channel in _sorted(colours))
    ratio = np.sort(colours[1] / np.maximum(colours[0], 8).astype(np.float32))
    last = len(ratio) - 1
    spread = float(ratio[int(0.9 * last)] - ratio[int(0.1 * last)])
    return green / max(1.0, red), blue / max(1.0, red), spread


def _line_ratio(green: ShortArray, row_step: int) -> float:
    """Vesselness by every `row_step`-th row."""
    side = VESSEL_PX - 2 * _VESSEL_MARGIN_PX
    first = _VESSEL_MARGIN_PX - _LINE_REACH_PX
    row, column = green.strides
    # What lies a whole number of rows from the sampled ones is one long row: NumPy takes no
    # longer for it than for a single row of the picture.
    shape = (2 * _LINE_REACH_PX + 1, -(-side // row_step), VESSEL_PX)
    offset, strides = first * row, (row, row_step * row, column)
    bands = np.ascontiguousarray(np.ndarray(shape, np.int16, green, offset, strides))
    length = shape[1] * VESSEL_PX
    # Dark lines in the first half, bright ones in the second.
    best = np.zeros((2, length - 2 * _LINE_REACH_PX), np.int16)
    for steps, lines in _LINES.items():
        np.maximum(best, _line_contrast(bands, lines, steps, best.shape[1]), out=best)
        if steps < _LONGEST_LINE:  # the shorter ones come first
            best *= _LONGEST_LINE // steps
    inside = _vessel_places(row_step)
    lit = bands[_LINE_REACH_PX].ravel().take(inside) > 0
    if not lit.all():
        inside = inside[lit]
    if inside.size == 0:
        return 0.0
    # Sums of four pixels; half a level of contrast is what rounding alone gives.
    dark, bright = _sorted(best.take(inside - _LINE_REACH_PX, axis=1))
    return _quantile(dark, 0.95) / max(2.0, _quantile(bright, 0.95))


@lru_cache(maxsize=2)
def _vessel_places(row_step: int) -> IndexArray:
    """Where the disc's pixels are in the sampled rows of the whole picture's width."""
    side = VESSEL_PX - 2 * _VESSEL_MARGIN_PX
    rows, columns = np.divmod(_disc_indices(side, row_step), side)
    return rows * VESSEL_PX + columns + _VESSEL_MARGIN_PX


def _line_contrast(
    bands: ShortArray, lines: tuple[tuple[int, int], ...], steps: int, length: int
) -> ShortArray:
    """By how much lines are darker, and brighter, than the lines beside them; the most of all."""
    row, _, column = bands.strides
    # For each direction both halves of the line, each with its neighbours: few, long operations.
    sums = np.empty((len(lines), 2, 3, length), np.int16)
    for total, (dx, dy) in zip(sums, lines, strict=True):
        along = dy * row + dx * column
        # Across the line, to the middle of what lies on either side of it.
        away = _RIDGE_HALF_WIDTH_PX / math.hypot(dx, dy)
        aside = round(dx * away) * row - round(dy * away) * column
        start = _LINE_REACH_PX * (row + column) - aside
        strides = (along, -steps * along, aside, column)
        pixels: ShortArray = np.ndarray((steps, *total.shape), np.int16, bands, start, strides)
        np.add.reduce(pixels, axis=0, out=total)
    one, centre, other = sums[:, :, 0], sums[:, :, 1], sums[:, :, 2]
    darker = np.minimum(one, other)
    darker -= centre
    brighter = np.maximum(one, other, out=one)
    np.subtract(centre, brighter, out=brighter)
    best = np.empty((2, length), np.int16)
    np.minimum(darker[:, 0], darker[:, 1]).max(axis=0, out=best[0])
    np.minimum(brighter[:, 0], brighter[:, 1]).max(axis=0, out=best[1])
    return best


def _sorted(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Small integers in order: NumPy's stable sort of them is a radix sort, the fastest here."""
    return np.sort(values, axis=-1, kind="stable")


def _quantile(ordered: npt.NDArray[Any], share: float) -> float:
    """The least of sorted values that at least this share of them do not exceed."""
    return float(ordered[max(0, math.ceil(share * ordered.size) - 1)])
