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
_HYPOTHESES: Final = 64
_SCORED_POINTS: Final = 128
_ANGLE_BINS: Final = 64
# Red and green both at this level: nothing of the retina is left in the pixel.
_WASHED_OUT: Final = 243
# Red minus blue of a corner that no background has, but a retina in full light does.
_RED_BACKGROUND: Final = 64
# How much a frame of one colour may vary (JPEG), and how much darker than it the photograph's
# own corners must be, before the frame is cut away.
_FRAME_VARIATION: Final = 12
_FRAME_CONTRAST: Final = 10
# Vessels are looked for at this size of the disc, at which they are two to five pixels wide.
_VESSEL_PX: Final = 224
_MIN_VESSEL_PX: Final = 160
_VESSEL_MARGIN_PX: Final = 24
_VESSEL_ROW_STEP: Final = 3
_RIDGE_HALF_WIDTH_PX: Final = 3
# Direction (x, y) of a line and the number of its steps on each side of a pixel.
_LINES: Final = (
    (1, 0, 4),
    (0, 1, 4),
    (1, 1, 4),
    (1, -1, 4),
    (2, 1, 2),
    (1, 2, 2),
    (-1, 2, 2),
    (-2, 1, 2),
)

FloatArray = npt.NDArray[np.float32]
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


@dataclass(frozen=True, kw_only=True)
class FundusView:
    """What the search saw: the circle and, for the verdict, the pixels inside it."""

    circle: FundusCircle
    thumbnail: ByteArray
    thumbnail_circle: FundusCircle


def find_circle(image: Image.Image | ByteArray) -> FundusCircle:
    """The fundus disc of an RGB image, height x width x 3 uint8 or a Pillow image."""
    return survey(image).circle


def survey(image: Image.Image | ByteArray) -> FundusView:
    """As `find_circle`, keeping the thumbnail for `assess`. Never raises on any picture."""
    picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
    view = _survey_box(picture, (0, 0, *picture.size))
    box = _without_frame(view.thumbnail, picture.size)
    if box is None:
        return view
    inner = _survey_box(picture, box)
    better = inner.circle.found and (
        not view.circle.found or inner.circle.arc_fraction > view.circle.arc_fraction
    )
    return inner if better else view


def _survey_box(picture: Image.Image, box: tuple[int, int, int, int]) -> FundusView:
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
        return FundusView(
            circle=_whole_frame(*picture.size),
            thumbnail=thumbnail,
            thumbnail_circle=_whole_frame(thumbnail.shape[1], thumbnail.shape[0]),
        )
    # The last row and column of a reduced image may stand for fewer source pixels, but each
    # thumbnail pixel still begins at a multiple of the factor.
    circle = found.scaled(factor)
    if left or top:
        circle = replace(circle, x_px=circle.x_px + left, y_px=circle.y_px + top)
    return FundusView(circle=circle, thumbnail=thumbnail, thumbnail_circle=found)


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


def assess(view: FundusView, prepared: ByteArray, gate: QualityGate) -> QualityVerdict:
    """Judge a photograph from its thumbnail and its prepared pixels (S x S x 3, uint8)."""
    circle = view.circle
    height, width = view.thumbnail.shape[:2]
    rows, columns = _pixel_centres(height, width)
    small = view.thumbnail_circle
    squared = (columns - small.x_px) ** 2 + (rows - small.y_px) ** 2
    inside = squared <= (0.93 * small.radius_px) ** 2
    red, green, blue = (plane[inside] for plane in _planes(view.thumbnail))
    if red.size == 0:
        return QualityVerdict(gradable=False, reasons=(REASON_NOT_FUNDUS,), measures={})
    peak = np.maximum(np.maximum(red, green), blue)
    level = _quantile(peak, 0.5)
    dark = float(np.count_nonzero(peak < 0.25 * _quantile(peak, 0.9))) / peak.size
    washed = float(np.count_nonzero(np.minimum(red, green) >= _WASHED_OUT)) / peak.size
    total = float(red.sum()) + float(green.sum()) + float(blue.sum())
    redness = (float(red.sum()) - float(blue.sum())) / max(1.0, total)
    sharpness = _sharpness(prepared)
    measures = {
        "min_level": level,
        "max_dark_fraction": dark,
        "max_bright_fraction": washed,
        "min_sharpness": sharpness,
        "min_visible_fraction": circle.visible_fraction,
        "min_redness": redness,
    }
    measures |= _colours(prepared)
    vesselness = _vesselness(prepared)
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


def _whole_frame(width: int, height: int) -> FundusCircle:
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
    distance, threshold, background = _distance_from_background(_planes(thumbnail))
    # All corners are red: they are retina, and an edge found within it would be a shadow's.
    if int(background[0]) - int(background[2]) > _RED_BACKGROUND:
        return None
    mask = _without_specks(distance > threshold)
    points = _contour(distance, mask)
    if len(points) < _MIN_CONTOUR_POINTS:
        return None
    longest = max(height, width)
    fit = _fit_circle(
        points, min_radius=_MIN_RADIUS_SHARE * longest, max_radius=_MAX_RADIUS_SHARE * longest
    )
    if fit is None:
        return None
    x, y, radius, inliers = fit
    arc = _arc_fraction(points[inliers], x, y, radius, width, height)
    rows, columns = _pixel_centres(height, width)
    squared = (columns - x) ** 2 + (rows - y) ** 2
    inside = squared <= (0.95 * radius) ** 2
    outside = squared > (1.05 * radius + 1) ** 2
    inside_count = int(np.count_nonzero(inside))
    if inside_count == 0 or arc < _MIN_ARC_FRACTION:
        return None
    fill = np.count_nonzero(mask & inside) / inside_count
    stray = np.count_nonzero(mask & outside) / max(1, int(np.count_nonzero(outside)))
    if fill < _MIN_FILL or stray > _MAX_OUTSIDE:
        return None
    in_frame = np.count_nonzero(squared <= radius**2)
    return FundusCircle(
        x_px=x,
        y_px=y,
        radius_px=radius,
        found=True,
        arc_fraction=arc,
        visible_fraction=min(1.0, float(in_frame / (math.pi * radius**2))),
    )


def _distance_from_background(planes: ByteArray) -> tuple[ByteArray, float, ByteArray]:
    """Largest channel difference from the darkest corner, the level that stands out, its colour."""
    height, width = planes.shape[1:]
    size = max(3, min(height, width) // 24)
    corners = [
        planes[:, rows, columns].reshape(3, -1)
        for rows in (slice(0, size), slice(height - size, height))
        for columns in (slice(0, size), slice(width - size, width))
    ]
    # A partial sort of some hundred bytes; np.median costs ten times as much in overhead.
    middle = corners[0].shape[1] // 2
    medians = [np.sort(corner, axis=1)[:, middle] for corner in corners]
    darkest = min(range(4), key=lambda index: int(medians[index].max()))
    background = medians[darkest]
    distance = _difference(planes[0], background[0])
    for plane, level in zip(planes[1:], background[1:], strict=True):
        np.maximum(distance, _difference(plane, level), out=distance)
    noise = np.maximum.reduce(
        [_difference(corners[darkest][channel], background[channel]) for channel in range(3)]
    )
    # 1.4826 MAD estimates the standard deviation of a normal background.
    spread = 1.4826 * float(np.sort(noise)[middle])
    threshold = max(4.0, 6.0 * spread, 0.12 * _quantile(distance.ravel(), 0.95))
    return distance, threshold, background


def _difference(values: ByteArray, level: np.uint8) -> ByteArray:
    """|values - level| without leaving bytes."""
    return np.maximum(values, level) - np.minimum(values, level)


def _without_specks(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Pixels that keep at least half of their 3 x 3 neighbourhood: a majority filter."""
    padded = np.pad(mask, 1, mode="edge").astype(np.uint8)
    rows = padded[:-2] + padded[1:-1] + padded[2:]
    count = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]
    kept: npt.NDArray[np.bool_] = mask & (count >= 5)
    return kept


def _contour(distance: ByteArray, mask: npt.NDArray[np.bool_]) -> FloatArray:
    """First and last marked pixel of each row and column, as an N x 2 array of (x, y)."""
    parts = []
    for transposed in (False, True):
        marked = mask.T if transposed else mask
        level = distance.T if transposed else distance
        for flipped in (False, True):
            seen = marked[:, ::-1] if flipped else marked
            along, across = _edge(level[:, ::-1] if flipped else level, seen)
            if flipped:
                along = seen.shape[1] - along
            parts.append(np.stack((across, along) if transposed else (along, across), axis=1))
    return np.concatenate(parts).astype(np.float32)


def _edge(level: ByteArray, marked: npt.NDArray[np.bool_]) -> tuple[FloatArray, FloatArray]:
    """Where each row enters the mask: position along the row, and the row's centre."""
    first = marked.argmax(axis=1)
    length = marked.shape[1]
    # argmax is 0 for an empty row and for one that begins marked: neither is an edge.
    rows = np.flatnonzero((first > 1) & (first < length - 3))
    start = first[rows]
    plateau = np.maximum(level[rows, start + 2], level[rows, start + 3])
    covered = np.zeros(len(rows), dtype=np.float32)
    for offset in (-1, 0, 1):
        covered += np.minimum(level[rows, start + offset], plateau)
    covered /= np.maximum(plateau, 1)
    along = start + 2.0 - covered
    return along.astype(np.float32), (rows + 0.5).astype(np.float32)


@lru_cache(maxsize=8)
def _triplets(count: int) -> npt.NDArray[np.intp]:
    """Random index triplets, the same ones each time: the answer must not depend on luck."""
    generator = np.random.default_rng(20_260_101)
    return generator.integers(0, count, size=(3, _HYPOTHESES))


def _fit_circle(
    points: FloatArray, *, min_radius: float, max_radius: float
) -> tuple[float, float, float, npt.NDArray[np.bool_]] | None:
    scored = points[:: max(1, len(points) // _SCORED_POINTS)]
    first, second, third = scored[_triplets(len(scored))]
    with np.errstate(divide="ignore", invalid="ignore"):
        ax, ay = first[:, 0], first[:, 1]
        bx, by = second[:, 0] - ax, second[:, 1] - ay
        cx, cy = third[:, 0] - ax, third[:, 1] - ay
        twice_area = 2 * (bx * cy - by * cx)
        b_squared, c_squared = bx * bx + by * by, cx * cx + cy * cy
        ux = (cy * b_squared - by * c_squared) / twice_area
        uy = (bx * c_squared - cx * b_squared) / twice_area
    radii = np.hypot(ux, uy)
    usable = np.isfinite(radii) & (radii >= min_radius) & (radii <= max_radius)
    if not usable.any():
        return None
    x, y, radii = (ux + ax)[usable], (uy + ay)[usable], radii[usable]
    squared = np.square(scored[:, 0] - x[:, None]) + np.square(scored[:, 1] - y[:, None])
    # |d^2 - r^2| / 2r is the distance from the circle for points near it, without a root.
    squared -= np.square(radii)[:, None]
    np.abs(squared, out=squared)
    squared /= (2 * radii * np.maximum(1.0, 0.02 * radii))[:, None]
    # Truncated loss rather than a count: among equal counts the tighter circle wins.
    best = int(np.minimum(squared, 1.0, out=squared).sum(axis=1).argmin())
    return _refine(points, float(x[best]), float(y[best]), float(radii[best]), max_radius)


def _refine(
    points: FloatArray, x: float, y: float, radius: float, max_radius: float
) -> tuple[float, float, float, npt.NDArray[np.bool_]] | None:
    px, py = points[:, 0].astype(np.float64), points[:, 1].astype(np.float64)
    jacobian = np.ones((3, len(px)))
    for scale in (3.0, 2.0, 1.3, 1.0):
        dx, dy = px - x, py - y
        lengths = np.sqrt(dx * dx + dy * dy) + 1e-9
        gaps = lengths - radius
        closeness = 1.0 - np.square(gaps / (scale * max(1.0, 0.012 * radius)))
        weights = np.square(np.maximum(0.0, closeness, out=closeness))
        if np.count_nonzero(weights) < _MIN_CONTOUR_POINTS // 2:
            return None
        np.divide(dx, lengths, out=jacobian[0])
        np.divide(dy, lengths, out=jacobian[1])
        weighted = jacobian * weights
        try:
            step = np.linalg.solve(weighted @ jacobian.T, weighted @ gaps)
        except np.linalg.LinAlgError:
            return None
        x, y, radius = x + float(step[0]), y + float(step[1]), radius + float(step[2])
        if not 2.0 <= radius <= max_radius:
            return None
    gaps = np.abs(np.hypot(px - x, py - y) - radius)
    return x, y, radius, gaps <= max(1.0, 0.02 * radius)


def _arc_fraction(
    points: FloatArray, x: float, y: float, radius: float, width: int, height: int
) -> float:
    if len(points) == 0:
        return 0.0
    angles = np.arctan2(points[:, 1] - y, points[:, 0] - x)
    bins = ((angles + math.pi) * (_ANGLE_BINS / (2 * math.pi))).astype(np.intp) % _ANGLE_BINS
    seen = np.zeros(_ANGLE_BINS, dtype=bool)
    seen[bins] = True
    centres = (np.arange(_ANGLE_BINS) + 0.5) * (2 * math.pi / _ANGLE_BINS) - math.pi
    edge_x, edge_y = x + radius * np.cos(centres), y + radius * np.sin(centres)
    framed = (edge_x > 2) & (edge_x < width - 2) & (edge_y > 2) & (edge_y < height - 2)
    total = int(np.count_nonzero(framed))
    # A disc whose edge lies almost wholly outside the frame leaves too little to trust.
    if total < _ANGLE_BINS // 8:
        return 0.0
    return float(np.count_nonzero(seen & framed)) / total


def _planes(thumbnail: ByteArray) -> ByteArray:
    """3 x height x width: NumPy works an order of magnitude faster along long rows."""
    return np.ascontiguousarray(thumbnail.transpose(2, 0, 1))


@lru_cache(maxsize=16)
def _pixel_centres(height: int, width: int) -> tuple[FloatArray, FloatArray]:
    rows = (np.arange(height, dtype=np.float32) + 0.5)[:, None]
    columns = (np.arange(width, dtype=np.float32) + 0.5)[None, :]
    return rows, columns


def _quantile(values: ByteArray | ShortArray, share: float) -> float:
    """Quantile of bytes by counting, which is several times faster than sorting."""
    counts = np.cumsum(np.bincount(values, minlength=256))
    return float(np.searchsorted(counts, share * counts[-1]))


def _sharpness(prepared: ByteArray) -> float:
    size = prepared.shape[0]
    margin = round(size * 0.18)
    green = prepared[margin : size - margin, margin : size - margin, 1].astype(np.int16)
    if min(green.shape) < 3:
        return 0.0
    centre = green[1:-1, 1:-1]
    around = green[:-2, 1:-1] + green[2:, 1:-1] + green[1:-1, :-2] + green[1:-1, 2:]
    return float(np.abs(4 * centre - around).mean()) / (4 * max(1.0, float(centre.mean())))


@lru_cache(maxsize=8)
def _disc(side: int) -> npt.NDArray[np.bool_]:
    """The disc that touches a square's sides."""
    offsets = np.arange(side) + 0.5 - side / 2
    return np.asarray(offsets[:, None] ** 2 + offsets[None, :] ** 2 <= (side / 2) ** 2)


@lru_cache(maxsize=8)
def _disc_indices(side: int) -> npt.NDArray[np.intp]:
    return np.flatnonzero(_disc(side))


def _colours(prepared: ByteArray) -> dict[str, float]:
    """Median colour ratios of the disc and the spread of green over red within it."""
    size = prepared.shape[0]
    margin = round(size * 0.11)
    step = max(1, size // 75)
    part = prepared[margin : size - margin : step, margin : size - margin : step]
    red, green, blue = _planes(part).reshape(3, -1)[:, _disc_indices(part.shape[0])]
    # Exactly black is what lies beyond the frame or the mask.
    shown = np.maximum(red, green) > 0
    red, green, blue = red[shown], green[shown], blue[shown]
    if red.size == 0:
        names = ("max_green_to_red", "max_blue_to_red", "min_colour_spread", "max_colour_spread")
        return dict.fromkeys(names, 0.0)
    medians = [_quantile(channel, 0.5) for channel in (red, green, blue)]
    ratio = np.sort(green / np.maximum(red, 8).astype(np.float32))
    last = len(ratio) - 1
    spread = float(ratio[int(0.9 * last)] - ratio[int(0.1 * last)])
    return {
        "max_green_to_red": medians[1] / max(1.0, medians[0]),
        "max_blue_to_red": medians[2] / max(1.0, medians[0]),
        "min_colour_spread": spread,
        "max_colour_spread": spread,
    }


def _vesselness(prepared: ByteArray) -> float | None:
    """How much more dark thin lines stand out than bright ones; None below 160 pixels.

    A pixel's line contrast is the least difference, over both halves of a line through it,
    between that half and the lines on either side of it: an edge, a spot or the end of a line
    gives none. Of each pixel the best of eight directions counts, and of the disc the 95th
    percentile. Vessels are dark; a texture has as many bright lines as dark ones.
    """
    if prepared.shape[0] < _MIN_VESSEL_PX:
        return None
    if prepared.shape[0] != _VESSEL_PX:
        size = (_VESSEL_PX, _VESSEL_PX)
        prepared = np.asarray(Image.fromarray(prepared).resize(size, Image.Resampling.BOX))
    green = prepared[:, :, 1].astype(np.int16)
    side = _VESSEL_PX - 2 * _VESSEL_MARGIN_PX
    # Every third row is sample enough for a percentile, at a third of the time.
    rows = slice(_VESSEL_MARGIN_PX, _VESSEL_MARGIN_PX + side, _VESSEL_ROW_STEP)
    inner = green[rows, _VESSEL_MARGIN_PX : _VESSEL_MARGIN_PX + side]
    dark, bright = np.zeros_like(inner), np.zeros_like(inner)
    for line in _LINES:
        darker, brighter = _line_contrast(green, *line, side)
        np.maximum(dark, darker, out=dark)
        np.maximum(bright, brighter, out=bright)
    inside = _disc(side)[::_VESSEL_ROW_STEP] & (inner > 0)
    if not inside.any():
        return 0.0
    # Sums of four pixels; half a level of contrast is what rounding alone gives.
    dark_95, bright_95 = (_quantile(v[inside], 0.95) for v in (dark, bright))
    return dark_95 / max(2.0, bright_95)


def _line_contrast(
    green: ShortArray, dx: int, dy: int, steps: int, side: int
) -> tuple[ShortArray, ShortArray]:
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
    length = math.hypot(dx, dy)
    aside_x = round(-dy * _RIDGE_HALF_WIDTH_PX / length)
    aside_y = round(dx * _RIDGE_HALF_WIDTH_PX / length)

    def window(y: int, x: int) -> ShortArray:
        first_y, first_x = _VESSEL_MARGIN_PX + y - top, _VESSEL_MARGIN_PX + x - left
        return sums[first_y : first_y + side : _VESSEL_ROW_STEP, first_x : first_x + side]

    contrasts = []
    for y, x in ((0, 0), (-dy * steps, -dx * steps)):
        centre = window(y, x)
        one, other = window(y + aside_y, x + aside_x), window(y - aside_y, x - aside_x)
        contrasts.append((np.minimum(one, other) - centre, centre - np.maximum(one, other)))
    darker = np.minimum(contrasts[0][0], contrasts[1][0])
    brighter = np.minimum(contrasts[0][1], contrasts[1][1])
    return darker * (4 // steps), brighter * (4 // steps)
