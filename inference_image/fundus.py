"""Finds the fundus disc in a photograph and judges whether the photograph can be graded.

    >>> circle = find_circle(Image.open("left_eye.jpg"))
    >>> circle.found, round(circle.radius_px)
    (True, 694)

The search runs on a thumbnail of at most about 144 pixels, so that it costs a fraction of
the network whatever the camera (`fundus_search.py` says how). A frame of one colour around the
photograph (a screen, a page) is cut away first where it would hide the edge, and so are lines
around it where less than three quarters of the edge are seen (fundus_lines.py).

A disc alone is no retina: the verdict also asks for the colours of one, and for vessels, which
are dark, thin and long on a brighter ground. docs/quality-gate.md says how well that works.

Search and measures exist twice, with the same answers: in NumPy, and compiled (native/fundus.c),
which takes a fifth of the time and is used where it is found (fundus_chosen.py).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
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
from inference_image.fundus_chosen import find_disc, measure, vesselness
from inference_image.fundus_lines import inside_lines
from inference_image.fundus_terms import RED_BACKGROUND, THUMBNAIL_PX, VESSEL_PX, Box, Disc
from inference_image.model_spec import ModelPackageError, finite_number
from inference_image.resampling import thumbnail_of

# A frame around a photograph may have another one within, or lines.
_MOST_FRAMES: Final = 3
# A disc of which less is seen is looked for within lines as well. What is found only there, or on
# a page, shows so much: a line across the retina leaves half of an edge, and of a smaller circle.
# What is to take another disc's place shows nearly all: a photograph that is cropped to its disc
# shows two thirds, and has no lines.
_CERTAIN_ARC: Final = 0.75
_WHOLE_ARC: Final = 0.9
# The least level of a page.
_PALE: Final = 160
# A disc that is smaller in the model's input shows no vessels.
_MIN_VESSEL_PX: Final = 160

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
            number = finite_number(value)
            if number is None or number < 0:
                # Nothing is below or above what is no number, so that such a gate lets all pass.
                raise ModelPackageError(
                    f"quality_gate.{name} must be a number of at least 0; it is {str(value)[:40]}"
                )
            values[name] = number
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
    if picture.mode != "RGB":
        picture = picture.convert("RGB")
    box: Box = (0, 0, *picture.size)
    circle, framed = _find_in(picture, box)
    has_lines = False
    for _ in range(_MOST_FRAMES):
        if framed is None and circle.arc_fraction < _CERTAIN_ARC:
            framed = inside_lines(picture, box, _factor((box[2] - box[0], box[3] - box[1])))
            has_lines = True
        if framed is None:
            break
        box = framed
        inner, framed = _find_in(picture, box)
        least = circle.arc_fraction
        if has_lines:
            least = _WHOLE_ARC if circle.found else _CERTAIN_ARC
        if inner.found and inner.arc_fraction >= least:
            circle = inner
        elif has_lines and circle.found:
            break
        if circle.arc_fraction >= _CERTAIN_ARC:
            break
    return circle if circle.found else _find_on_white(picture)


def _find_on_white(picture: Image.Image) -> FundusCircle:
    """The disc in a picture with a bright background of which it covers a corner: the search takes
    the darkest corner for the background, and is shown the negative."""
    factor = _factor(picture.size)
    thumbnail = thumbnail_of(picture, (0, 0, *picture.size), factor)
    pixels = np.asarray(thumbnail)
    page = max(pixels[[0, 0, -1, -1], [0, -1, 0, -1]].tolist(), key=max)
    if min(page) < _PALE or page[0] - page[2] > RED_BACKGROUND:
        # That is retina, or a line: an edge found so would be a shadow's, or anything's.
        return whole_frame(picture.size)
    negative = thumbnail.point([*range(255, -1, -1)] * 3)
    disc, _ = find_disc(negative, (0, 0, *negative.size), 1)
    if disc is None or disc.arc < _CERTAIN_ARC:
        return whole_frame(picture.size)
    return _circle(disc, (0, 0), negative.size, factor)


def _factor(size: tuple[int, int]) -> int:
    """So many pixels a side of a picture of this size become one of its thumbnail."""
    return max(1, math.ceil(max(size) / THUMBNAIL_PX))


def _find_in(picture: Image.Image, box: Box) -> tuple[FundusCircle, Box | None]:
    """The disc within a box of the picture, and what a frame in it surrounds, in the picture's
    pixels."""
    left, top, right, bottom = box
    width, height = right - left, bottom - top
    factor = _factor((width, height))
    disc, framed = find_disc(picture, box, factor)
    if framed is not None:
        framed = (
            left + framed[0] * factor,
            top + framed[1] * factor,
            min(right, left + framed[2] * factor),
            min(bottom, top + framed[3] * factor),
        )
    if disc is None:
        return whole_frame(picture.size), framed
    # The last row and column of a reduced image may stand for fewer source pixels, but each
    # thumbnail pixel still begins at a multiple of the factor.
    size = -(-width // factor), -(-height // factor)
    return _circle(disc, (left, top), size, factor), framed


def _circle(
    disc: Disc, origin: tuple[int, int], size: tuple[int, int], factor: int
) -> FundusCircle:
    """A disc of a thumbnail of this size, in pixels of the picture in which that has its origin."""
    return FundusCircle(
        x_px=origin[0] + disc.x * factor,
        y_px=origin[1] + disc.y * factor,
        radius_px=disc.radius * factor,
        found=True,
        arc_fraction=disc.arc,
        visible_fraction=_visible_fraction(disc, *size),
    )


def assess(circle: FundusCircle, prepared: ByteArray, gate: QualityGate) -> QualityVerdict:
    """Judge a photograph by its circle and the pixels of the square around it.

    Args:
        circle: as `find_circle` gives it.
        prepared: S x S x 3, uint8 RGB; the disc touches its sides, and is black beyond the frame.
        gate: the limits.
    """
    found = measure(prepared, 1 - circle.visible_fraction if circle.found else None)
    measures = {
        "min_level": found.level,
        "max_dark_fraction": found.dark,
        "max_bright_fraction": found.washed_out,
        "min_sharpness": found.sharpness,
        "min_visible_fraction": circle.visible_fraction,
        "min_redness": found.redness,
        "max_green_to_red": found.green_to_red,
        "max_blue_to_red": found.blue_to_red,
        "min_colour_spread": found.colour_spread,
        "max_colour_spread": found.colour_spread,
    }
    if prepared.shape[0] >= _MIN_VESSEL_PX:
        measures["min_vesselness"] = vesselness(_vessel_levels(prepared), gate.min_vesselness)
    too_dark = found.level < gate.min_level
    blurred = found.sharpness < gate.min_sharpness
    reasons = []
    # Of a nearly black picture neither colour nor sharpness says anything.
    if not circle.found or (not too_dark and not _is_like_retina(measures, gate, blurred)):
        reasons.append(REASON_NOT_FUNDUS)
    if too_dark or found.dark > gate.max_dark_fraction:
        reasons.append(REASON_TOO_DARK)
    if found.washed_out > gate.max_bright_fraction:
        reasons.append(REASON_TOO_BRIGHT)
    if circle.found and not too_dark and blurred:
        reasons.append(REASON_BLURRED)
    if circle.found and circle.visible_fraction < gate.min_visible_fraction:
        reasons.append(REASON_CLIPPED_FIELD)
    return QualityVerdict(gradable=not reasons, reasons=tuple(reasons), measures=measures)


def _vessel_levels(prepared: ByteArray) -> ByteArray:
    """The green levels at the size at which vessels are looked for."""
    green = prepared[:, :, 1]
    if green.shape[0] == VESSEL_PX:
        return green
    picture = Image.fromarray(np.ascontiguousarray(green))
    return np.asarray(picture.resize((VESSEL_PX, VESSEL_PX), Image.Resampling.BOX))


def _is_like_retina(measures: Mapping[str, float], gate: QualityGate, blurred: bool) -> bool:
    coloured = (
        measures["min_redness"] >= gate.min_redness
        and measures["max_green_to_red"] <= gate.max_green_to_red
        and measures["max_blue_to_red"] <= gate.max_blue_to_red
        and gate.min_colour_spread <= measures["min_colour_spread"] <= gate.max_colour_spread
    )
    # A blurred retina shows no vessels; that it is blurred says enough.
    lines = measures.get("min_vesselness")
    return coloured and (blurred or lines is None or lines >= gate.min_vesselness)


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


def _visible_fraction(disc: Disc, width: int, height: int) -> float:
    """The share of a disc's area inside a frame."""
    x, y, radius, _ = disc
    if radius <= min(x, y, width - x, height - y):
        return 1.0
    beyond = 0.0
    for inside in (x, y, width - x, height - y):  # the centre's distance from each side
        part = max(-1.0, min(1.0, inside / radius))
        beyond += math.acos(part) - part * math.sqrt(1.0 - part * part)
    for across in (x, width - x):
        for down in (y, height - y):
            if math.hypot(across, down) < radius or min(across, down) < 0:
                # The segments overlap beyond this corner of the frame.
                return _visible_by_rows(disc, width, height)
    return max(0.0, 1.0 - beyond / math.pi)


def _visible_by_rows(disc: Disc, width: int, height: int) -> float:
    """The same by the chord of each row of pixels."""
    x, y, radius, _ = disc
    rows = np.arange(height) + 0.5
    halves = np.sqrt(np.maximum(0.0, radius**2 - np.square(rows - y)))
    chords = np.minimum(x + halves, width) - np.maximum(x - halves, 0)
    return min(1.0, float(np.maximum(0.0, chords).sum()) / (math.pi * radius**2))
