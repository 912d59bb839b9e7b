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
clipped edges and half-dark discs are outliers to such a fit, not failures.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
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

FloatArray = npt.NDArray[np.float32]
ByteArray = npt.NDArray[np.uint8]


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
    not what a colour model was trained on. The defaults are ours: they separate the hard
    inputs of the test suite, and a package should state its own, chosen on its data.
    """

    min_level: float = 30.0
    max_dark_fraction: float = 0.40
    max_bright_fraction: float = 0.20
    min_sharpness: float = 0.012
    min_visible_fraction: float = 0.70
    min_redness: float = 0.04

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

    `measures` holds what the limits were compared with, by the names of `QualityGate`.
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
    factor = max(1, math.ceil(max(picture.size) / THUMBNAIL_PX))
    small = picture.reduce(factor) if factor > 1 else picture
    thumbnail = np.asarray(small)
    found = _search(thumbnail)
    if found is None:
        circle = _whole_frame(*picture.size)
        return FundusView(
            circle=circle,
            thumbnail=thumbnail,
            thumbnail_circle=_whole_frame(thumbnail.shape[1], thumbnail.shape[0]),
        )
    # The last row and column of a reduced image may stand for fewer source pixels, but each
    # thumbnail pixel still begins at a multiple of the factor.
    return FundusView(circle=found.scaled(factor), thumbnail=thumbnail, thumbnail_circle=found)


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
    too_dark = level < gate.min_level
    reasons = []
    # Of a nearly black picture neither colour nor sharpness says anything.
    if not circle.found or (redness < gate.min_redness and not too_dark):
        reasons.append(REASON_NOT_FUNDUS)
    if too_dark or dark > gate.max_dark_fraction:
        reasons.append(REASON_TOO_DARK)
    if washed > gate.max_bright_fraction:
        reasons.append(REASON_TOO_BRIGHT)
    if circle.found and not too_dark and sharpness < gate.min_sharpness:
        reasons.append(REASON_BLURRED)
    if circle.found and circle.visible_fraction < gate.min_visible_fraction:
        reasons.append(REASON_CLIPPED_FIELD)
    return QualityVerdict(gradable=not reasons, reasons=tuple(reasons), measures=measures)


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
    distance, threshold = _distance_from_background(_planes(thumbnail))
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


def _distance_from_background(planes: ByteArray) -> tuple[ByteArray, float]:
    """Largest channel difference from the darkest corner, and the level that stands out."""
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
    return distance, max(4.0, 6.0 * spread, 0.12 * _quantile(distance.ravel(), 0.95))


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
    if total < _ANGLE_BINS // 5:
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


def _quantile(values: ByteArray, share: float) -> float:
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
