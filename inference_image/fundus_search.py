"""Where the fundus disc is in a thumbnail: the search of `fundus.py`, in NumPy.

It measures each pixel's distance from the background (the darkest corner), collects the first
and the last pixel of every row and column that stands out, leaves out those on the image border
(there the frame cuts the disc, not the eye), and fits a circle to the rest: random triplets
choose the hypothesis (RANSAC, Fischler and Bolles, Commun. ACM 1981;24:381-95), Gauss-Newton on
the geometric distance with Tukey weights refines it. Contour points are placed within the pixel
from its coverage. Notches, labels, clipped edges and half-dark discs are outliers to such a fit,
not failures.

native/fundus.c is the same, compiled; whoever changes one changes the other.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from inference_image.fundus_terms import (
    ANGLE_BINS,
    RED_BACKGROUND,
    SHORTEST_SIDE_PX,
    Box,
    Disc,
    bin_directions,
    triplets,
)
from inference_image.resampling import thumbnail_of

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
_SCORED_POINTS: Final = 128
# Shares and medians of a thumbnail are counted on every second pixel of every second row; a
# thumbnail with a shorter side than this has too few for that.
_MIN_SAMPLED_PX: Final = 64
# Losses of hypotheses as near as that are equal.
_SAME_LOSS: Final = 1e-9
# So near to the frame an edge is the frame's.
_FRAME_EDGE_PX: Final = 2
# The background of a photograph from which its blur was subtracted, how much JPEG
# may change it, and how much of such a disc stands out from it.
_FILTERED_GREY: Final = 128
_FILTERED_TOLERANCE: Final = 8
_MIN_FILTERED_FILL: Final = 0.10
# How much a frame of one colour may vary (JPEG), and how much darker than it the photograph's
# own corners must be, before the frame is cut away.
_FRAME_VARIATION: Final = 12
_FRAME_CONTRAST: Final = 10

DoubleArray = npt.NDArray[np.float64]
FloatArray = npt.NDArray[np.float32]
IndexArray = npt.NDArray[np.intp]
ByteArray = npt.NDArray[np.uint8]


def find_disc(picture: Image.Image, box: Box, factor: int) -> tuple[Disc | None, Box | None]:
    """The disc in the thumbnail of a box of an RGB picture, and what a frame in it surrounds.

    `factor` pixels a side become one of the thumbnail, which has at most `THUMBNAIL_PX` a side.
    The latter is in pixels of the thumbnail; None where there is no frame to be cut.
    """
    pixels = np.asarray(thumbnail_of(picture, box, factor))
    if min(pixels.shape[:2]) < SHORTEST_SIDE_PX:
        return None, None
    return _search(pixels), _without_frame(pixels) if _may_be_framed(pixels) else None


def _search(thumbnail: ByteArray) -> Disc | None:
    planes = _planes(thumbnail)
    distance, threshold, background = _distance_from_background(planes, thumbnail)
    # All corners are red: they are retina, and an edge found within it would be a shadow's.
    if background[0] - background[2] > RED_BACKGROUND:
        return None
    if all(abs(level - _FILTERED_GREY) <= _FILTERED_TOLERANCE for level in background):
        return _search_filtered(planes, distance, threshold)
    return _locate(distance, threshold, least_fill=_MIN_FILL)


def _search_filtered(planes: ByteArray, distance: ByteArray, threshold: int) -> Disc | None:
    """The disc of a photograph whose Gaussian blur was subtracted already.

    The blur leaves a dark ring around the disc and a bright one within: the disc begins where
    it is brighter than the background, not where it differs. Where the filter's author blanked
    both rings, the disc is what differs.
    """
    grey = np.uint8(_FILTERED_GREY)
    brighter = np.maximum(_largest(planes), grey) - grey
    ringed = _locate(brighter, threshold, least_fill=_MIN_FILTERED_FILL)
    blanked = _locate(distance, threshold, least_fill=_MIN_FILTERED_FILL)
    if ringed is None or (blanked is not None and blanked.arc > ringed.arc):
        return blanked
    return ringed


def _locate(distance: ByteArray, threshold: int, *, least_fill: float) -> Disc | None:
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
    return Disc(x, y, radius, arc)


def _sampled(picture: npt.NDArray[Any], x: float, y: float) -> tuple[npt.NDArray[Any], FloatArray]:
    """A sample of a thumbnail's pixels, and the square of each one's distance from a point."""
    height, width = picture.shape[:2]
    step = 2 if min(height, width) >= _MIN_SAMPLED_PX else 1
    rows, columns = _pixel_centres(height, width, step)
    squared = np.square(rows - np.float32(y)) + np.square(columns - np.float32(x))
    return picture[::step, ::step], squared


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
    picked = scored[:, (triplets() * scored.shape[1]).astype(np.intp)]
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
    # Mirrored circles lose the same, up to the order of the sums: the first of them counts.
    losses = np.minimum(gaps, 1.0, out=gaps).sum(axis=1)
    best = int((losses <= losses.min() + _SAME_LOSS).argmax())
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


def _arc_fraction(
    points: DoubleArray, x: float, y: float, radius: float, width: int, height: int
) -> float:
    if points.shape[1] == 0:
        return 0.0
    angles = np.arctan2(points[1] - y, points[0] - x)
    bins = ((angles + math.pi) * (ANGLE_BINS / (2 * math.pi))).astype(np.intp) % ANGLE_BINS
    seen = np.zeros(ANGLE_BINS, dtype=bool)
    seen[bins] = True
    if min(x, y, width - x, height - y) - radius > _FRAME_EDGE_PX:
        return float(np.count_nonzero(seen)) / ANGLE_BINS
    cosines, sines = bin_directions()[2:]
    edge_x, edge_y = x + radius * cosines, y + radius * sines
    framed = (edge_x > _FRAME_EDGE_PX) & (edge_x < width - _FRAME_EDGE_PX)
    framed &= (edge_y > _FRAME_EDGE_PX) & (edge_y < height - _FRAME_EDGE_PX)
    total = int(np.count_nonzero(framed))
    # A disc whose edge lies almost wholly outside the frame leaves too little to trust.
    if total < ANGLE_BINS // 8:
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


def _without_frame(pixels: ByteArray) -> Box | None:
    """What a frame of one colour surrounds; None where nothing is cut.

    Only a frame that is paler than the corners of what it surrounds hides a disc: the search
    takes the darkest corner for its background, and there is none of the photograph's own.
    """
    height, width = pixels.shape[:2]
    colour = None
    for edge in (pixels[:, 0], pixels[0], pixels[:, -1], pixels[-1]):
        middle = edge[len(edge) // 2]
        if int(middle.max()) >= _FRAME_CONTRAST and _alike(edge, middle).all():
            colour = middle
            break
    if colour is None:
        return None
    other = ~_alike(pixels, colour)
    rows, columns = np.flatnonzero(other.any(axis=1)), np.flatnonzero(other.any(axis=0))
    if len(rows) == 0:
        return None
    # One pixel further in on each cut side: the border's pixel is half frame, half photograph.
    top, left = (int(v[0]) + (1 if v[0] else 0) for v in (rows, columns))
    bottom = int(rows[-1]) + (1 if rows[-1] == height - 1 else 0)
    right = int(columns[-1]) + (1 if columns[-1] == width - 1 else 0)
    inner = pixels[top:bottom, left:right]
    if min(inner.shape[:2]) < SHORTEST_SIDE_PX or inner.shape == pixels.shape:
        return None
    corners = inner[[0, 0, -1, -1], [0, -1, 0, -1]].max(axis=1)
    if int(corners.min()) > int(colour.max()) - _FRAME_CONTRAST:
        return None
    return left, top, right, bottom


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
