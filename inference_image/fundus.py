"""Finds the fundus disc in a photograph and judges whether the photograph can be graded.

    >>> circle = find_circle(Image.open("left_eye.jpg"))
    >>> circle.found, round(circle.radius_px)
    (True, 694)

The search runs on a thumbnail of at most about 144 pixels, so that it costs a fraction of
the network whatever the camera. It measures each pixel's distance from the background (the
darkest corner), collects the first and the last pixel of every row and column that stands
out, leaves out those on the image border (there the frame cuts the disc, not the eye), and
fits a circle to the rest: random triplets choose the hypothesis (RANSAC, Fischler and Bolles,
Commun. ACM 1981;24:381-95), Gauss-Newton on the geometric distance with Tukey weights
refines it. Contour points are placed within the pixel from its coverage. Notches, labels,
clipped edges and half-dark discs are outliers to such a fit, not failures. A frame of one
colour around the photograph (a screen, a page) is cut away first where it would hide the edge.

A disc alone is no retina: the verdict also asks for the colours of one, and for vessels, which
are dark, thin and long on a brighter ground. docs/quality-gate.md says how well that works.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from inference_image.contract import (
    REASON_BLURRED,
    REASON_CLIPPED_FIELD,
    REASON_NOT_FUNDUS,
    REASON_TOO_BRIGHT,
    REASON_TOO_DARK,
)
from inference_image.model_spec import ModelPackageError

THUMBNAIL_PX: Final = 144
# How much of the visible circumference must be an edge of the disc, and how full and how
# alone the disc must be, before a circle counts as found at all. A half-dark photograph shows
# half of its edge; a portrait or a page of text shows less.
_MIN_ARC_FRACTION: Final = 0.45
_MIN_FILL: Final = 0.40
_MAX_OUTSIDE: Final = 0.12
_MIN_RADIUS_SHARE: Final = 0.06
_MAX_RADIUS_SHARE: Final = 0.85
_MIN_CONTOUR_POINTS: Final = 24
# Share of the contour on one circle that makes other hypotheses idle.
_AGREEMENT: Final = 0.85
_HYPOTHESES: Final = 64
_SCORED_POINTS: Final = 128
# Shares and medians of a thumbnail are counted on every second pixel of every second row; a
# thumbnail with a shorter side than this has too few for that.
_MIN_SAMPLED_PX: Final = 64
_ANGLE_BINS: Final = 64
# Red and green both at this level: nothing of the retina is left in the pixel.
_WASHED_OUT: Final = 243
# Red minus blue of a corner that no background has, but a retina in full light does.
_RED_BACKGROUND: Final = 64
# The background of a photograph from which its blur was subtracted, how much JPEG
# may change it, and how much of such a disc stands out from it.
_FILTERED_GREY: Final = 128
_FILTERED_TOLERANCE: Final = 8
_MIN_FILTERED_FILL: Final = 0.10
# Share of the prepared square on each side that the verdict on light and colour leaves out.
_RIM: Final = 0.07
# How much a frame of one colour may vary (JPEG), and how much darker than it the photograph's
# own corners must be, before the frame is cut away.
_FRAME_VARIATION: Final = 12
_FRAME_CONTRAST: Final = 10
# Vessels are looked for at this size of the disc, at which they are two to five pixels wide.
_VESSEL_PX: Final = 224
_MIN_VESSEL_PX: Final = 160
_VESSEL_MARGIN_PX: Final = 24
_VESSEL_ROW_STEP: Final = 4
_RIDGE_HALF_WIDTH_PX: Final = 3
# Steps of a line on each side of a pixel, and its directions (x, y); the shorter ones first.
_LONGEST_LINE: Final = 4
_LINE_REACH_PX: Final = 10
_LINES: Final[Mapping[int, tuple[tuple[int, int], ...]]] = {
    2: ((2, 1), (1, 2), (-1, 2), (-2, 1)),
    4: ((1, 0), (0, 1), (1, 1), (1, -1)),
}

FloatArray = npt.NDArray[np.float32]
DoubleArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.intp]
ByteArray = npt.NDArray[np.uint8]
ShortArray = npt.NDArray[np.int16]


@dataclass(frozen=True, kw_only=True)
class FundusCircle:
    """The edge of the fundus disc, in pixels of the image that was searched.

    Coordinates are continuous: the top left corner of the first pixel is (0, 0), its centre
    (0.5, 0.5). The circle may reach beyond the frame. `arc_fraction` is the share of the
    circumference inside the frame where an edge was seen, `visible_fraction` the share of the
    disc's area inside the frame. Where no disc was found, `found` is false and the circle is
    the one around the whole frame, so that callers never meet None.
    """

    x_px: float
    y_px: float
    radius_px: float
    found: bool
    arc_fraction: float
    visible_fraction: float

    def scaled(self, factor: float) -> "FundusCircle":
        """The same circle in an image `factor` times as large."""
        return FundusCircle(
            x_px=self.x_px * factor,
            y_px=self.y_px * factor,
            radius_px=self.radius_px * factor,
            found=self.found,
            arc_fraction=self.arc_fraction,
            visible_fraction=self.visible_fraction,
        )


@dataclass(frozen=True, kw_only=True)
class QualityGate:
    """Limits of the quality verdict; a package's `quality_gate` overrides any of them.

    Levels are 0-255, fractions 0-1 of the disc. `min_sharpness` is the mean absolute Laplacian
    of the green channel of the prepared image relative to its mean level. `min_redness` is
    (R - B) / (R + G + B): a fundus is red by its blood, a grey or channel-swapped picture is
    not what a colour model was trained on. `max_green_to_red` and `max_blue_to_red` compare
    the disc's median levels. The colour spread is the distance between the 10th and the 90th
    percentile of green over red: one dye or paint has almost none, a scene of many things has
    much. `min_vesselness` is how much more dark thin lines stand out than bright ones (1: a
    texture); it is not asked of a model input below 160 pixels, where vessels cannot be seen.
    The defaults are ours (docs/quality-gate.md gives the measurement), and a package should
    state its own, chosen on its data.
    """

    min_level: float = 30.0
    max_dark_fraction: float = 0.40
    max_bright_fraction: float = 0.20
    min_sharpness: float = 0.012
    min_visible_fraction: float = 0.70
    min_redness: float = 0.04
    max_green_to_red: float = 0.85
    max_blue_to_red: float = 0.65
    min_colour_spread: float = 0.02
    max_colour_spread: float = 0.50
    min_vesselness: float = 1.6

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> "QualityGate":
        """A gate from `model.json`; raises `ModelPackageError` on a name it does not know."""
        known = {field.name for field in fields(cls)}
        values: dict[str, float] = {}
        for name, value in mapping.items():
            if name not in known:
                raise ModelPackageError(
                    f"quality_gate has no limit {name!r}; it knows: {', '.join(sorted(known))}"
                )
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ModelPackageError(f"quality_gate.{name} must be a number; it is {value!r}")
            values[name] = float(value)
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class QualityVerdict:
    """Whether the photograph can be graded; `reasons` are members of `QUALITY_REASONS`.

    `measures` holds what the limits were compared with, by the names of `QualityGate`;
    `min_vesselness` is absent where it was not measured.
    """

    gradable: bool
    reasons: tuple[str, ...]
    measures: Mapping[str, float]


ACCEPTED: Final = QualityVerdict(gradable=True, reasons=(), measures={})


def find_circle(image: Image.Image | ByteArray) -> FundusCircle:
    """The fundus disc of an RGB image, height x width x 3 uint8 or a Pillow image.

    Never raises on any picture.
    """
    picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
    circle, thumbnail = _find_in(picture, (0, 0, *picture.size))
    box = _without_frame(thumbnail, picture.size)
    if box is not None:
        inner, _ = _find_in(picture, box)
        if inner.found and (not circle.found or inner.arc_fraction > circle.arc_fraction):
            return inner
    return circle


def _find_in(
    picture: Image.Image, box: tuple[int, int, int, int]
) -> tuple[FundusCircle, ByteArray]:
    """The disc within a box of the picture, in the picture's pixels, and the thumbnail."""
    left, top, right, bottom = box
    size = (right - left, bottom - top)
    factor = max(1, math.ceil(max(size) / THUMBNAIL_PX))
    if factor > 1:
        small = picture.reduce(factor, box=box)
    else:
        small = picture if size == picture.size else picture.crop(box)
    thumbnail = np.asarray(small)
    found = _search(thumbnail)
    if found is None:
        return whole_frame(picture.size), thumbnail
    # The last row and column of a reduced image may stand for fewer source pixels, but each
    # thumbnail pixel still begins at a multiple of the factor.
    circle = found.scaled(factor)
    if left or top:
        circle = replace(circle, x_px=circle.x_px + left, y_px=circle.y_px + top)
    return circle, thumbnail


def _without_frame(thumbnail: ByteArray, size: tuple[int, int]) -> tuple[int, int, int, int] | None:
    """What a frame of one colour surrounds, in source pixels; None where nothing is cut.

    Only a frame that is paler than the corners of what it surrounds hides a disc: the search
    takes the darkest corner for its background, and there is none of the photograph's own.
    """
    height, width = thumbnail.shape[:2]
    if min(height, width) < 16:
        return None
    colour = None
    for edge in (thumbnail[:, 0], thumbnail[0], thumbnail[:, -1], thumbnail[-1]):
        middle = edge[len(edge) // 2]
        if int(middle.max()) >= _FRAME_CONTRAST and _alike(edge, middle).all():
            colour = middle
            break
    if colour is None:
        return None
    other = ~_alike(thumbnail, colour)
    rows, columns = np.flatnonzero(other.any(axis=1)), np.flatnonzero(other.any(axis=0))
    if len(rows) == 0:
        return None
    # One pixel further in on each cut side: the border's pixel is half frame, half photograph.
    top, left = (int(v[0]) + (1 if v[0] else 0) for v in (rows, columns))
    bottom = int(rows[-1]) + (1 if rows[-1] == height - 1 else 0)
    right = int(columns[-1]) + (1 if columns[-1] == width - 1 else 0)
    inner = thumbnail[top:bottom, left:right]
    if min(inner.shape[:2]) < 16 or inner.shape == thumbnail.shape:
        return None
    corners = inner[[0, 0, -1, -1], [0, -1, 0, -1]].max(axis=1)
    if int(corners.min()) > int(colour.max()) - _FRAME_CONTRAST:
        return None
    factor = max(1, math.ceil(max(size) / THUMBNAIL_PX))
    return (
        left * factor,
        top * factor,
        min(size[0], right * factor),
        min(size[1], bottom * factor),
    )


def _alike(pixels: ByteArray, colour: ByteArray) -> npt.NDArray[np.bool_]:
    gap = np.maximum(pixels, colour) - np.minimum(pixels, colour)
    return np.asarray((gap <= _FRAME_VARIATION).all(axis=-1))


def assess(circle: FundusCircle, prepared: ByteArray, gate: QualityGate) -> QualityVerdict:
    """Judge a photograph by its circle and the pixels of the square around it.

    Args:
        circle: as `find_circle` gives it.
        prepared: S x S x 3, uint8 RGB; the disc touches its sides, and is black beyond the frame.
        gate: the limits.
    """
    colours = _disc_colours(prepared)
    red, green, _ = colours
    peak = _sorted(colours.max(axis=0))
    # What is beyond the frame is black, and says nothing about the light.
    black = int(peak.searchsorted(1))
    if circle.found:
        black = min(black, round((1 - circle.visible_fraction) * peak.size))
    peak = peak[black if black < peak.size else 0 :]
    level = _quantile(peak, 0.5)
    # In order, the pixels below a level are those before its place.
    dark = int(peak.searchsorted(math.ceil(0.25 * _quantile(peak, 0.9)))) / peak.size
    washed = int(np.count_nonzero(np.minimum(red, green) >= _WASHED_OUT)) / peak.size
    sums = colours.sum(axis=1).tolist()
    redness = (sums[0] - sums[2]) / max(1.0, sum(sums))
    lightness = prepared[:, :, 1].astype(np.int16)
    sharpness = _sharpness(lightness)
    measures = {
        "min_level": level,
        "max_dark_fraction": dark,
        "max_bright_fraction": washed,
        "min_sharpness": sharpness,
        "min_visible_fraction": circle.visible_fraction,
        "min_redness": redness,
    }
    measures |= _colour_ratios(colours)
    vesselness = _vesselness(lightness)
    if vesselness is not None:
        measures["min_vesselness"] = vesselness
    too_dark = level < gate.min_level
    blurred = sharpness < gate.min_sharpness
    reasons = []
    # Of a nearly black picture neither colour nor sharpness says anything.
    if not circle.found or (not too_dark and not _is_like_retina(measures, gate, blurred)):
        reasons.append(REASON_NOT_FUNDUS)
    if too_dark or dark > gate.max_dark_fraction:
        reasons.append(REASON_TOO_DARK)
    if washed > gate.max_bright_fraction:
        reasons.append(REASON_TOO_BRIGHT)
    if circle.found and not too_dark and blurred:
        reasons.append(REASON_BLURRED)
    if circle.found and circle.visible_fraction < gate.min_visible_fraction:
        reasons.append(REASON_CLIPPED_FIELD)
    return QualityVerdict(gradable=not reasons, reasons=tuple(reasons), measures=measures)


def _is_like_retina(measures: Mapping[str, float], gate: QualityGate, blurred: bool) -> bool:
    coloured = (
        measures["min_redness"] >= gate.min_redness
        and measures["max_green_to_red"] <= gate.max_green_to_red
        and measures["max_blue_to_red"] <= gate.max_blue_to_red
        and gate.min_colour_spread <= measures["min_colour_spread"] <= gate.max_colour_spread
    )
    # A blurred retina shows no vessels; that it is blurred says enough.
    vesselness = measures.get("min_vesselness")
    return coloured and (blurred or vesselness is None or vesselness >= gate.min_vesselness)


def whole_frame(size: tuple[int, int]) -> FundusCircle:
    """The circle around a whole picture of this width and height, which stands for none found."""
    width, height = size
    return FundusCircle(
        x_px=width / 2,
        y_px=height / 2,
        radius_px=max(width, height) / 2,
        found=False,
        arc_fraction=0.0,
        visible_fraction=1.0,
    )


def _search(thumbnail: ByteArray) -> FundusCircle | None:
    height, width = thumbnail.shape[:2]
    if min(height, width) < 16:
        return None
    planes = _planes(thumbnail)
    distance, threshold, background = _distance_from_background(planes)
    # All corners are red: they are retina, and an edge found within it would be a shadow's.
    if int(background[0]) - int(background[2]) > _RED_BACKGROUND:
        return None
    if np.all(np.abs(background.astype(np.int16) - _FILTERED_GREY) <= _FILTERED_TOLERANCE):
        return _search_filtered(planes, distance, threshold)
    return _locate(distance, threshold, least_fill=_MIN_FILL)


def _search_filtered(planes: ByteArray, distance: ByteArray, threshold: int) -> FundusCircle | None:
    """The disc of a photograph whose Gaussian blur was subtracted already.

    The blur leaves a dark ring around the disc and a bright one within: the disc begins where
    it is brighter than the background, not where it differs. Where the filter's author blanked
    both rings, the disc is what differs.
    """
    brighter = np.maximum(planes.max(axis=0), np.uint8(_FILTERED_GREY)) - np.uint8(_FILTERED_GREY)
    ringed = _locate(brighter, threshold, least_fill=_MIN_FILTERED_FILL)
    blanked = _locate(distance, threshold, least_fill=_MIN_FILTERED_FILL)
    if ringed is None or (blanked is not None and blanked.arc_fraction > ringed.arc_fraction):
        return blanked
    return ringed


def _locate(distance: ByteArray, threshold: int, *, least_fill: float) -> FundusCircle | None:
    """The disc of what stands out from the background by more than the threshold."""
    height, width = distance.shape
    mask = _without_specks(distance > threshold)
    points = _contour(distance, mask)
    if points.shape[1] < _MIN_CONTOUR_POINTS:
        return None
    longest = max(height, width)
    fit = _fit_circle(
        points, min_radius=_MIN_RADIUS_SHARE * longest, max_radius=_MAX_RADIUS_SHARE * longest
    )
    if fit is None:
        return None
    x, y, radius, inliers = fit
    arc = _arc_fraction(points[:, inliers], x, y, radius, width, height)
    if arc < _MIN_ARC_FRACTION:
        return None
    sample, squared = _sampled(mask, x, y)
    inside = squared <= (0.95 * radius) ** 2
    outside = squared > (1.05 * radius + 1) ** 2
    inside_count = int(np.count_nonzero(inside))
    if inside_count == 0:
        return None
    fill = np.count_nonzero(sample & inside) / inside_count
    stray = np.count_nonzero(sample & outside) / max(1, int(np.count_nonzero(outside)))
    if fill < least_fill or stray > _MAX_OUTSIDE:
        return None
    return FundusCircle(
        x_px=x,
        y_px=y,
        radius_px=radius,
        found=True,
        arc_fraction=arc,
        visible_fraction=_visible_fraction(x, y, radius, width, height),
    )


def _sampled(picture: npt.NDArray[Any], x: float, y: float) -> tuple[npt.NDArray[Any], FloatArray]:
    """A sample of a thumbnail's pixels, and the square of each one's distance from a point."""
    height, width = picture.shape[:2]
    step = 2 if min(height, width) >= _MIN_SAMPLED_PX else 1
    rows, columns = _pixel_centres(height, width, step)
    squared = np.square(rows - np.float32(y)) + np.square(columns - np.float32(x))
    return picture[::step, ::step], squared


def _visible_fraction(x: float, y: float, radius: float, width: int, height: int) -> float:
    """The share of a circle's area inside the frame, by the chord of each row of pixels."""
    rows, _ = _pixel_centres(height, 1, 1)
    halves = np.sqrt(np.maximum(0.0, radius**2 - np.square(rows[:, 0].astype(np.float64) - y)))
    chords = np.minimum(x + halves, width) - np.maximum(x - halves, 0)
    return min(1.0, float(np.maximum(0.0, chords).sum()) / (math.pi * radius**2))


def _distance_from_background(planes: ByteArray) -> tuple[ByteArray, int, ByteArray]:
    """Largest channel difference from the darkest corner, the level that stands out, its colour."""
    height, width = planes.shape[1:]
    size = max(3, min(height, width) // 24)
    corners = planes[:, *_corners(height, width, size)].reshape(3, 2, size, 2, size)
    corners = corners.transpose(1, 3, 0, 2, 4).reshape(4, 3, size * size)
    # np.median costs ten times as much in overhead.
    middle = size * size // 2
    medians = _sorted(corners)[:, :, middle]
    darkest = int(medians.max(axis=1).argmin())
    background = medians[darkest]
    # A copy for every pixel: NumPy is several times slower where it repeats one byte itself.
    everywhere = np.empty_like(planes)
    everywhere[:] = background[:, None, None]
    distance = _difference(planes, everywhere).max(axis=0)
    noise = _difference(corners[darkest], background[:, None]).max(axis=0)
    # 1.4826 MAD estimates the standard deviation of a normal background.
    spread = 1.4826 * float(_sorted(noise)[middle])
    bright = _quantile(_sorted(distance[::2, ::2].ravel()), 0.95)
    return distance, int(max(4.0, 6.0 * spread, 0.12 * bright)), background


@lru_cache(maxsize=16)
def _corners(height: int, width: int, size: int) -> tuple[IndexArray, IndexArray]:
    """Indices of the first and last `size` rows and columns."""
    rows, columns = (
        np.r_[0:size, length - size : length].astype(np.intp) for length in (height, width)
    )
    return rows[:, None], columns[None, :]


def _difference(values: ByteArray, level: ByteArray) -> ByteArray:
    """|values - level| without leaving bytes."""
    return np.maximum(values, level) - np.minimum(values, level)


def _without_specks(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Pixels that keep at least half of their 3 x 3 neighbourhood: a majority filter."""
    height, width = mask.shape
    padded = np.empty((height + 2, width + 2), dtype=np.uint8)
    padded[1:-1, 1:-1] = mask
    padded[0], padded[-1] = padded[1], padded[-2]
    padded[:, 0], padded[:, -1] = padded[:, 1], padded[:, -2]
    rows = padded[:-2] + padded[1:-1]
    rows += padded[2:]
    count = rows[:, :-2] + rows[:, 1:-1]
    count += rows[:, 2:]
    kept: npt.NDArray[np.bool_] = mask & (count >= 5)
    return kept


@dataclass(frozen=True, kw_only=True)
class _Scan:
    """The ways to cross a thumbnail: rows from the left and right, columns from above and below.

    `start` is the flat index of the first pixel of each way, `step` from one pixel to the next,
    `length` their number; `origin` and `sign` turn a position along it into a coordinate, and
    `across` is its other coordinate. The first `rows` ways are rows.
    """

    rows: int
    start: IndexArray
    step: IndexArray
    length: IndexArray
    origin: DoubleArray
    sign: DoubleArray
    across: DoubleArray


@lru_cache(maxsize=16)
def _scan(height: int, width: int) -> _Scan:
    rows, columns = np.arange(height), np.arange(width)
    counts = (height, height, width, width)
    return _Scan(
        rows=2 * height,
        start=np.concatenate(
            (rows * width, rows * width + width - 1, columns, columns + (height - 1) * width)
        ),
        step=np.repeat((1, -1, width, -width), counts),
        length=np.repeat((width, width, height, height), counts),
        origin=np.repeat((0.0, width, 0.0, height), counts),
        sign=np.repeat((1.0, -1.0, 1.0, -1.0), counts),
        across=np.concatenate((rows, rows, columns, columns)).astype(np.float64) + 0.5,
    )


_AROUND_EDGE: Final = np.arange(-1, 4)[:, None]


def _contour(distance: ByteArray, mask: npt.NDArray[np.bool_]) -> DoubleArray:
    """First and last marked pixel of each row and column, as a 2 x N array of x and y."""
    scan = _scan(*mask.shape)
    first = np.concatenate(
        (
            mask.argmax(axis=1),
            mask[:, ::-1].argmax(axis=1),
            mask.argmax(axis=0),
            mask[::-1].argmax(axis=0),
        )
    )
    # argmax is 0 for an empty way and for one that begins marked: neither is an edge.
    ways = np.flatnonzero((first > 1) & (first < scan.length - 3))
    first, step = first[ways], scan.step[ways]
    level = distance.ravel()[scan.start[ways] + step * first + _AROUND_EDGE * step]
    # How much of the pixels around the edge is disc says where in them it lies.
    plateau = np.maximum(level[3], level[4])
    covered = np.minimum(level[:3], plateau).sum(axis=0, dtype=np.float64)
    covered /= np.maximum(plateau, 1)
    along = scan.origin[ways] + scan.sign[ways] * (first + 2.0 - covered)
    across = scan.across[ways]
    points = np.empty((2, len(ways)))
    rows = int(np.searchsorted(ways, scan.rows))
    points[0, :rows], points[1, :rows] = along[:rows], across[:rows]
    points[0, rows:], points[1, rows:] = across[rows:], along[rows:]
    return points


@lru_cache(maxsize=1)
def _triplets() -> DoubleArray:
    """Random triplets in [0, 1), the same ones each time: the answer must not depend on luck."""
    return np.random.default_rng(20_260_101).random((3, _HYPOTHESES))


Fit = tuple[float, float, float, npt.NDArray[np.bool_]]


def _fit_circle(points: DoubleArray, *, min_radius: float, max_radius: float) -> Fit | None:
    """Centre, radius, and which of the points lie on the circle."""
    fit = _refine(points, None, max_radius)
    # Where nearly all points agree on one circle, no other could have more: most photographs.
    if fit is not None and np.count_nonzero(fit[3]) >= _AGREEMENT * points.shape[1]:
        return fit if fit[2] >= min_radius else None
    start = _best_hypothesis(points, min_radius, max_radius)
    return None if start is None else _refine(points, start, max_radius)


def _best_hypothesis(
    points: DoubleArray, min_radius: float, max_radius: float
) -> tuple[float, float, float] | None:
    """The circle through three points that is near the most others."""
    scored = points[:, :: -(-points.shape[1] // _SCORED_POINTS)]
    picked = scored[:, (_triplets() * scored.shape[1]).astype(np.intp)]
    ax, ay = picked[:, 0]
    (bx, cx), (by, cy) = picked[:, 1:] - picked[:, :1]
    twice_area = 2 * (bx * cy - by * cx)
    # Three points on a line define no circle.
    usable = np.abs(twice_area) > 1e-9
    twice_area[~usable] = 1.0
    b_squared, c_squared = bx * bx + by * by, cx * cx + cy * cy
    ux = (cy * b_squared - by * c_squared) / twice_area
    uy = (bx * c_squared - cx * b_squared) / twice_area
    radii = np.sqrt(ux * ux + uy * uy)
    usable &= (radii >= min_radius) & (radii <= max_radius)
    if not usable.any():
        return None
    x, y, radii = (ux + ax)[usable], (uy + ay)[usable], radii[usable]
    # |d^2 - r^2| / 2r is the distance from the circle for points near it, without a root; for
    # all circles and points it is one product of matrices.
    circles = np.stack((-2 * x, -2 * y, x * x + y * y - radii * radii, np.ones_like(x)), axis=1)
    circles /= (2 * radii * np.maximum(1.0, 0.02 * radii))[:, None]
    terms = np.stack((scored[0], scored[1], np.ones_like(scored[0]), (scored**2).sum(axis=0)))
    gaps = circles @ terms
    np.abs(gaps, out=gaps)
    # Truncated loss rather than a count: among equal counts the tighter circle wins.
    best = int(np.minimum(gaps, 1.0, out=gaps).sum(axis=1).argmin())
    return float(x[best]), float(y[best]), float(radii[best])


def _refine(
    points: DoubleArray, start: tuple[float, float, float] | None, max_radius: float
) -> Fit | None:
    """Least squares of (d^2 - r^2) / 2r, linear in its unknowns, with Tukey weights.

    It is the distance from the circle up to gap^2 / 2r, hundredths of a thumbnail's pixel for
    the gaps that keep a weight. Without a start, all points weigh the same at first.
    """
    # Coordinates count from near the centre, for precision.
    x, y = points.mean(axis=1).tolist() if start is None else start[:2]
    rows = np.empty((3, points.shape[1]))
    np.subtract(points, ((x,), (y,)), out=rows[:2])
    rows[2] = 1.0
    sums = rows[0] * rows[0] + rows[1] * rows[1]
    # x^2 + y^2 = 2 cx x + 2 cy y + (r^2 - cx^2 - cy^2) on the circle.
    circle = None if start is None else (0.0, 0.0, start[2] ** 2)
    if circle is None:
        circle = _solve((rows @ rows.T).tolist(), (rows @ sums).tolist())
    for scale in (3.0, 2.0, 1.3, 1.0):
        radius = _radius(circle, max_radius)
        if circle is None or radius is None:
            return None
        gaps = sums - np.array(circle) @ rows
        gaps *= 1.0 / (2 * radius * scale * max(1.0, 0.012 * radius))
        weights = np.maximum(0.0, 1.0 - gaps * gaps)
        weights *= weights
        if np.count_nonzero(weights) < _MIN_CONTOUR_POINTS // 2:
            return None
        weighted = rows * weights
        circle = _solve((weighted @ rows.T).tolist(), (weighted @ sums).tolist())
    radius = _radius(circle, max_radius)
    if circle is None or radius is None:
        return None
    gaps = np.abs(sums - np.array(circle) @ rows)
    inliers = gaps <= 2 * radius * max(1.0, 0.02 * radius)
    return x + circle[0] / 2, y + circle[1] / 2, radius, inliers


def _radius(circle: tuple[float, float, float] | None, most: float) -> float | None:
    """Radius of a circle as `_refine` writes it; None below 2 pixels or above the most."""
    if circle is None:
        return None
    squared = circle[2] + (circle[0] ** 2 + circle[1] ** 2) / 4
    return math.sqrt(squared) if 4.0 <= squared <= most**2 else None


def _solve(a: list[list[float]], b: list[float]) -> tuple[float, float, float] | None:
    """Cramer's rule for a symmetric 3 x 3 system, a fifth of NumPy's overhead; None if singular."""
    (a00, a01, a02), (_, a11, a12), (_, _, a22) = a
    c00, c01, c02 = a11 * a22 - a12 * a12, a02 * a12 - a01 * a22, a01 * a12 - a02 * a11
    determinant = a00 * c00 + a01 * c01 + a02 * c02
    if not abs(determinant) > 1e-9 * abs(a00 * a11 * a22):
        return None
    c11, c12, c22 = a00 * a22 - a02 * a02, a01 * a02 - a00 * a12, a00 * a11 - a01 * a01
    b0, b1, b2 = b
    return (
        (c00 * b0 + c01 * b1 + c02 * b2) / determinant,
        (c01 * b0 + c11 * b1 + c12 * b2) / determinant,
        (c02 * b0 + c12 * b1 + c22 * b2) / determinant,
    )


_BIN_CENTRES: Final = (np.arange(_ANGLE_BINS) + 0.5) * (2 * math.pi / _ANGLE_BINS) - math.pi
_BIN_COSINES, _BIN_SINES = np.cos(_BIN_CENTRES), np.sin(_BIN_CENTRES)


def _arc_fraction(
    points: DoubleArray, x: float, y: float, radius: float, width: int, height: int
) -> float:
    if points.shape[1] == 0:
        return 0.0
    angles = np.arctan2(points[1] - y, points[0] - x)
    bins = ((angles + math.pi) * (_ANGLE_BINS / (2 * math.pi))).astype(np.intp) % _ANGLE_BINS
    seen = np.zeros(_ANGLE_BINS, dtype=bool)
    seen[bins] = True
    edge_x, edge_y = x + radius * _BIN_COSINES, y + radius * _BIN_SINES
    framed = (edge_x > 2) & (edge_x < width - 2) & (edge_y > 2) & (edge_y < height - 2)
    total = int(np.count_nonzero(framed))
    # A disc whose edge lies almost wholly outside the frame leaves too little to trust.
    if total < _ANGLE_BINS // 8:
        return 0.0
    return float(np.count_nonzero(seen & framed)) / total


def _planes(thumbnail: ByteArray) -> ByteArray:
    """The channels one after the other: NumPy is an order of magnitude faster along long rows."""
    return np.ascontiguousarray(np.moveaxis(thumbnail, -1, 0))


@lru_cache(maxsize=32)
def _pixel_centres(height: int, width: int, step: int) -> tuple[FloatArray, FloatArray]:
    """Centres of every `step`-th row and column, as a column and a row."""
    rows = np.arange(0, height, step, dtype=np.float32)[:, None] + np.float32(0.5)
    columns = np.arange(0, width, step, dtype=np.float32)[None, :] + np.float32(0.5)
    return rows, columns


def _sorted(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Small integers in order: NumPy's stable sort of them is a radix sort, the fastest here."""
    return np.sort(values, axis=-1, kind="stable")


def _quantile(ordered: npt.NDArray[Any], share: float) -> float:
    """The least of sorted values that at least this share of them do not exceed."""
    return float(ordered[max(0, math.ceil(share * ordered.size) - 1)])


def _sharpness(green: ShortArray) -> float:
    size = green.shape[0]
    margin = round(size * 0.18)
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
    size = prepared.shape[0]
    margin = round(size * _RIM)
    step = max(1, size // 50)
    part = prepared[margin : size - margin : step, margin : size - margin : step]
    return _planes(part.reshape(-1, 3)[_disc_indices(part.shape[0])])


def _colour_ratios(colours: ByteArray) -> dict[str, float]:
    """Median colour ratios of the disc and the spread of green over red within it."""
    # Exactly black is what lies beyond the frame or the mask.
    colours = colours[:, (colours[0] | colours[1]) > 0]
    if colours.shape[1] == 0:
        names = ("max_green_to_red", "max_blue_to_red", "min_colour_spread", "max_colour_spread")
        return dict.fromkeys(names, 0.0)
    red, green, blue = (_quantile(channel, 0.5) for channel in _sorted(colours))
    ratio = np.sort(colours[1] / np.maximum(colours[0], 8).astype(np.float32))
    last = len(ratio) - 1
    spread = float(ratio[int(0.9 * last)] - ratio[int(0.1 * last)])
    return {
        "max_green_to_red": green / max(1.0, red),
        "max_blue_to_red": blue / max(1.0, red),
        "min_colour_spread": spread,
        "max_colour_spread": spread,
    }


def _vesselness(green: ShortArray) -> float | None:
    """How much more dark thin lines stand out than bright ones; None below 160 pixels.

    A pixel's line contrast is the least difference, over both halves of a line through it,
    between that half and the lines on either side of it: an edge, a spot or the end of a line
    gives none. Of each pixel the best of eight directions counts, and of the disc the 95th
    percentile. Vessels are dark; a texture has as many bright lines as dark ones.
    """
    if green.shape[0] < _MIN_VESSEL_PX:
        return None
    if green.shape[0] != _VESSEL_PX:
        picture = Image.fromarray(green.astype(np.uint8))
        scaled = picture.resize((_VESSEL_PX, _VESSEL_PX), Image.Resampling.BOX)
        green = np.asarray(scaled).astype(np.int16)
    side = _VESSEL_PX - 2 * _VESSEL_MARGIN_PX
    # Lines reach this far beyond what is sampled; what is further out need not be added up.
    border = _VESSEL_MARGIN_PX - _LINE_REACH_PX
    green = green[border:-border, border:-border]
    # One row of some is sample enough for a percentile, at a fraction of the time.
    rows = slice(_LINE_REACH_PX, _LINE_REACH_PX + side, _VESSEL_ROW_STEP)
    inner = green[rows, _LINE_REACH_PX : _LINE_REACH_PX + side]
    dark, bright = np.zeros_like(inner), np.zeros_like(inner)
    for steps, lines in _LINES.items():
        for dx, dy in lines:
            darker, brighter = _line_contrast(green, dx, dy, steps, side)
            np.maximum(dark, darker, out=dark)
            np.maximum(bright, brighter, out=bright)
        if steps < _LONGEST_LINE:  # the shorter ones come first
            dark *= _LONGEST_LINE // steps
            bright *= _LONGEST_LINE // steps
    inside = _disc_indices(side, _VESSEL_ROW_STEP)
    inside = inside[inner.ravel()[inside] > 0]
    if inside.size == 0:
        return 0.0
    # Sums of four pixels; half a level of contrast is what rounding alone gives.
    dark_95, bright_95 = (_quantile(_sorted(v.ravel()[inside]), 0.95) for v in (dark, bright))
    return dark_95 / max(2.0, bright_95)


def _line_contrast(
    green: ShortArray, dx: int, dy: int, steps: int, side: int
) -> tuple[ShortArray, ShortArray]:
    """By how much lines of a direction are darker, and brighter, than the lines beside them."""
    sums, top, left, reach = green, 0, 0, 1
    while reach < steps:  # sums of 2, then of 4 pixels along the line
        along_y, along_x = dy * reach, dx * reach
        height, width = sums.shape[0] - abs(along_y), sums.shape[1] - abs(along_x)
        y, x = max(0, -along_y), max(0, -along_x)
        sums = (
            sums[y : y + height, x : x + width]
            + sums[y + along_y : y + along_y + height, x + along_x : x + along_x + width]
        )
        top, left, reach = top + y, left + x, 2 * reach
    row, column = sums.strides
    # Across the line, to the middle of what lies on either side of it.
    away = _RIDGE_HALF_WIDTH_PX / math.hypot(dx, dy)
    aside = round(dx * away) * row - round(dy * away) * column
    # Both halves of the line, each with its neighbours, in one view: fewer and longer operations.
    rows = len(range(0, side, _VESSEL_ROW_STEP))
    windows: ShortArray = np.ndarray(
        (2, 3, rows, side),
        np.int16,
        sums,
        (_LINE_REACH_PX - top) * row + (_LINE_REACH_PX - left) * column - aside,
        (-steps * (dy * row + dx * column), aside, _VESSEL_ROW_STEP * row, column),
    )
    one, centre, other = windows[:, 0], windows[:, 1], windows[:, 2]
    darker = np.minimum(one, other)
    darker -= centre
    brighter = np.maximum(one, other)
    np.subtract(centre, brighter, out=brighter)
    return np.minimum(darker[0], darker[1]), np.minimum(brighter[0], brighter[1])
