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
# So near to the frame an edge is the frame's.
_FRAME_EDGE_PX: Final = 2
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
    if min(height, width) < 16 or not _may_be_framed(thumbnail):
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


def _may_be_framed(thumbnail: ByteArray) -> bool:
    """Whether the middle of an edge is not dark and like both ends of it; lists are faster here."""
    height, width = thumbnail.shape[:2]
    picked: list[list[list[int]]] = thumbnail[:: max(1, height - 1), :: max(1, width - 1)].tolist()
    (top_left, top_right), (bottom_left, bottom_right) = picked
    for middle, ends in (
        (thumbnail[height // 2, 0], (top_left, bottom_left)),
        (thumbnail[0, width // 2], (top_left, top_right)),
        (thumbnail[height // 2, -1], (top_right, bottom_right)),
        (thumbnail[-1, width // 2], (bottom_left, bottom_right)),
    ):
        colour = middle.tolist()
        if max(colour) >= _FRAME_CONTRAST and all(
            abs(level - wanted) <= _FRAME_VARIATION
            for end in ends
            for level, wanted in zip(end, colour, strict=True)
        ):
            return True
    return False


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
    red, green, blue = colours
    peak = _sorted(np.maximum(np.maximum(red, green), blue))
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
    vesselness = _vesselness(lightness, gate.min_vesselness)
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
    if min(thumbnail.shape[:2]) < 16:
        return None
    planes = _planes(thumbnail)
    distance, threshold, background = _distance_from_background(planes, thumbnail)
    # All corners are red: they are retina, and an edge found within it would be a shadow's.
    if background[0] - background[2] > _RED_BACKGROUND:
        return None
    if all(abs(level - _FILTERED_GREY) <= _FILTERED_TOLERANCE for level in background):
        return _search_filtered(planes, distance, threshold)
    return _locate(distance, threshold, least_fill=_MIN_FILL)


def _search_filtered(planes: ByteArray, distance: ByteArray, threshold: int) -> FundusCircle | None:
    """The disc of a photograph whose Gaussian blur was subtracted already.

    The blur leaves a dark ring around the disc and a bright one within: the disc begins where
    it is brighter than the background, not where it differs. Where the filter's author blanked
    both rings, the disc is what differs.
    """
    grey = np.uint8(_FILTERED_GREY)
    brighter = np.maximum(_largest(planes), grey) - grey
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
    """The share of a circle's area inside the frame."""
    beyond = 0.0
    for inside in (x, y, width - x, height - y):  # the centre's distance from each side
        part = max(-1.0, min(1.0, inside / radius))
        beyond += math.acos(part) - part * math.sqrt(1.0 - part * part)
    for across in (x, width - x):
        for down in (y, height - y):
            if math.hypot(across, down) < radius or min(across, down) < 0:
                # The segments overlap beyond this corner of the frame.
                return _visible_by_rows(x, y, radius, width, height)
    return max(0.0, 1.0 - beyond / math.pi)


def _visible_by_rows(x: float, y: float, radius: float, width: int, height: int) -> float:
    """The same by the chord of each row of pixels."""
    rows, _ = _pixel_centres(height, 1, 1)
    halves = np.sqrt(np.maximum(0.0, radius**2 - np.square(rows[:, 0].astype(np.float64) - y)))
    chords = np.minimum(x + halves, width) - np.maximum(x - halves, 0)
    return min(1.0, float(np.maximum(0.0, chords).sum()) / (math.pi * radius**2))


def _distance_from_background(
    planes: ByteArray, thumbnail: ByteArray
) -> tuple[ByteArray, int, list[int]]:
    """Largest channel difference from the darkest corner, the level that stands out, its colour."""
    height, width = thumbnail.shape[:2]
    size = max(3, min(height, width) // 24)
    middle = size * size // 2
    # Of so few pixels, lists are several times faster than arrays.
    corners = [
        thumbnail[rows, columns].tobytes()
        for rows in (slice(size), slice(height - size, height))
        for columns in (slice(size), slice(width - size, width))
    ]
    ordered = [[sorted(corner[channel::3]) for channel in range(3)] for corner in corners]
    darkest = min(range(4), key=lambda index: max(v[middle] for v in ordered[index]))
    background = [levels[middle] for levels in ordered[darkest]]
    if any(background):
        # A copy for every pixel: NumPy is several times slower where it repeats one byte itself.
        everywhere = np.empty_like(planes)
        everywhere[:] = np.array(background, np.uint8)[:, None, None]
        distance = _largest(np.maximum(planes, everywhere) - np.minimum(planes, everywhere))
    else:
        distance = _largest(planes)
    bright = _quantile(_sorted(distance[::2, ::2].ravel()), 0.95)
    least = max(4.0, 0.12 * bright)
    # 1.4826 MAD estimates the standard deviation of a normal background.
    most = max(max(v[-1] - v[middle], v[middle] - v[0]) for v in ordered[darkest])
    if 6.0 * 1.4826 * most > least:
        red, green, blue = background
        corner = corners[darkest]
        noise = sorted(
            max(abs(r - red), abs(g - green), abs(b - blue))
            for r, g, b in zip(corner[0::3], corner[1::3], corner[2::3], strict=True)
        )
        least = max(least, 6.0 * 1.4826 * noise[middle])
    return distance, int(least), background


def _largest(planes: ByteArray) -> ByteArray:
    """The largest of each pixel's three levels."""
    largest: ByteArray = np.maximum(np.maximum(planes[0], planes[1]), planes[2])
    return largest


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
    `most` the position before which an edge has all of its pixels; `origin` and `sign` turn a
    position along it into a coordinate, and `across` is its other coordinate. The first `rows`
    ways are rows.
    """

    rows: int
    start: IndexArray
    step: IndexArray
    most: IndexArray
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
        most=np.repeat((width - 3, width - 3, height - 3, height - 3), counts),
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
    ways = np.flatnonzero((first > 1) & (first < scan.most))
    step = scan.step.take(ways)
    first = first.take(ways)
    edges = scan.start.take(ways)
    edges += step * first
    level = distance.take(edges + _AROUND_EDGE * step)
    # How much of the pixels around the edge is disc says where in them it lies.
    plateau = np.maximum(level[3], level[4])
    covered = np.minimum(level[:3], plateau).sum(axis=0, dtype=np.float64)
    covered /= np.maximum(plateau, 1)
    along = np.subtract(first + 2.0, covered, out=covered)
    along *= scan.sign.take(ways)
    along += scan.origin.take(ways)
    across = scan.across.take(ways)
    points = np.empty((2, len(ways)))
    rows = int(ways.searchsorted(scan.rows))
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
    x, y = (points.sum(axis=1) / points.shape[1]).tolist() if start is None else start[:2]
    # The columns of x, y, x^2 + y^2 and 1, as rows.
    terms = np.empty((4, points.shape[1]))
    np.subtract(points, ((x,), (y,)), out=terms[:2])
    np.square(terms[:2]).sum(axis=0, out=terms[2])
    terms[3] = 1.0
    # x^2 + y^2 = 2 cx x + 2 cy y + (r^2 - cx^2 - cy^2) on the circle.
    circle = None if start is None else (0.0, 0.0, start[2] ** 2)
    if circle is None:
        circle = _solve((terms @ terms.T).tolist())
    for scale in (3.0, 2.0, 1.3, 1.0):
        radius = _radius(circle, max_radius)
        if circle is None or radius is None:
            return None
        gaps = _gaps(circle, 2 * radius * scale * max(1.0, 0.012 * radius), terms)
        gaps *= gaps
        weights = np.maximum(np.subtract(1.0, gaps, out=gaps), 0.0, out=gaps)
        if np.count_nonzero(weights) < _MIN_CONTOUR_POINTS // 2:
            return None
        weights *= weights
        circle = _solve(((terms * weights) @ terms.T).tolist())
    radius = _radius(circle, max_radius)
    if circle is None or radius is None:
        return None
    gaps = np.abs(_gaps(circle, 2 * radius * max(1.0, 0.02 * radius), terms))
    return x + circle[0] / 2, y + circle[1] / 2, radius, gaps <= 1.0


def _gaps(circle: tuple[float, float, float], unit: float, terms: DoubleArray) -> DoubleArray:
    """What each point lacks of the circle's equation, in a unit of it."""
    gaps: DoubleArray = (
        np.array((-circle[0] / unit, -circle[1] / unit, 1 / unit, -circle[2] / unit)) @ terms
    )
    return gaps


def _radius(circle: tuple[float, float, float] | None, most: float) -> float | None:
    """Radius of a circle as `_refine` writes it; None below 2 pixels or above the most."""
    if circle is None:
        return None
    squared = circle[2] + (circle[0] ** 2 + circle[1] ** 2) / 4
    return math.sqrt(squared) if 4.0 <= squared <= most**2 else None


def _solve(products: list[list[float]]) -> tuple[float, float, float] | None:
    """The circle of least squares by the products of its terms; None if they are singular.

    Cramer's rule for a symmetric 3 x 3 system has a fifth of NumPy's overhead.
    """
    (a00, a01, b0, a02), (_, a11, b1, a12), _, (_, _, b2, a22) = products
    c00, c01, c02 = a11 * a22 - a12 * a12, a02 * a12 - a01 * a22, a01 * a12 - a02 * a11
    determinant = a00 * c00 + a01 * c01 + a02 * c02
    if not abs(determinant) > 1e-9 * abs(a00 * a11 * a22):
        return None
    c11, c12, c22 = a00 * a22 - a02 * a02, a01 * a02 - a00 * a12, a00 * a11 - a01 * a01
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
    if min(x, y, width - x, height - y) - radius > _FRAME_EDGE_PX:
        return float(np.count_nonzero(seen)) / _ANGLE_BINS
    edge_x, edge_y = x + radius * _BIN_COSINES, y + radius * _BIN_SINES
    framed = (edge_x > _FRAME_EDGE_PX) & (edge_x < width - _FRAME_EDGE_PX)
    framed &= (edge_y > _FRAME_EDGE_PX) & (edge_y < height - _FRAME_EDGE_PX)
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
    return prepared.ravel().take(_colour_indices(prepared.shape[0]))


@lru_cache(maxsize=8)
def _colour_indices(size: int) -> IndexArray:
    """Flat indices of the sampled pixels' channels, 3 x N, in size x size x 3 bytes."""
    margin = round(size * _RIM)
    step = max(1, size // 50)
    places = np.arange(size * size).reshape(size, size)[margin : size - margin : step]
    places = places[:, margin : size - margin : step]
    inside = places.ravel()[_disc_indices(places.shape[0])]
    return np.ascontiguousarray(3 * inside + np.arange(3)[:, None])


def _colour_ratios(colours: ByteArray) -> dict[str, float]:
    """Median colour ratios of the disc and the spread of green over red within it."""
    # Exactly black is what lies beyond the frame or the mask.
    lit = np.flatnonzero(colours[0] | colours[1])
    if len(lit) < colours.shape[1]:
        colours = colours.take(lit, axis=1)
    if len(lit) == 0:
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


def _vesselness(green: ShortArray, least: float) -> float | None:
    """How much more dark thin lines stand out than bright ones; None below 160 pixels.

    A pixel's line contrast is the least difference, over both halves of a line through it,
    between that half and the lines on either side of it: an edge, a spot or the end of a line
    gives none. Of each pixel the best of eight directions counts, and of the disc the 95th
    percentile. Vessels are dark; a texture has as many bright lines as dark ones.

    A few rows tell where a picture is far above the `least`; only where they leave a doubt are
    more rows counted.
    """
    if green.shape[0] < _MIN_VESSEL_PX:
        return None
    if green.shape[0] != _VESSEL_PX:
        picture = Image.fromarray(green.astype(np.uint8))
        scaled = picture.resize((_VESSEL_PX, _VESSEL_PX), Image.Resampling.BOX)
        green = np.asarray(scaled).astype(np.int16)
    glance = _line_ratio(green, _GLANCE_ROW_STEP)
    if glance >= _GLANCE_FACTOR * least:
        return glance
    return _line_ratio(green, _VESSEL_ROW_STEP)


def _line_ratio(green: ShortArray, row_step: int) -> float:
    """Vesselness by every `row_step`-th row."""
    side = _VESSEL_PX - 2 * _VESSEL_MARGIN_PX
    first = _VESSEL_MARGIN_PX - _LINE_REACH_PX
    row, column = green.strides
    # What lies a whole number of rows from the sampled ones is one long row: NumPy takes no
    # longer for it than for a single row of the picture.
    shape = (2 * _LINE_REACH_PX + 1, -(-side // row_step), _VESSEL_PX)
    offset, strides = first * row, (row, row_step * row, column)
    bands = np.ascontiguousarray(np.ndarray(shape, np.int16, green, offset, strides))
    length = shape[1] * _VESSEL_PX
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
    side = _VESSEL_PX - 2 * _VESSEL_MARGIN_PX
    rows, columns = np.divmod(_disc_indices(side, row_step), side)
    return rows * _VESSEL_PX + columns + _VESSEL_MARGIN_PX


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
