"""Turns a photograph into the model's input; training and serving both call `prepare`.

    >>> prepared = prepare(pixels, spec)
    >>> prepared.pixels.shape, prepared.quality.gradable
    ((224, 224, 3), True)

The steps are the package's own (`model.json`, key `preprocessing`), in its order:

`crop_to_fundus` (`min_radius_px`, default 32)
    Cuts the square around the fundus disc, black where it reaches beyond the frame. A disc
    smaller than `min_radius_px` counts as not found; without one the whole frame is centred
    in a square and the verdict says `not_a_fundus_photograph`.
`resize_area`
    Shrinks to `input_size_px` by area (every source pixel counts, so thin lesions are
    averaged, not skipped); a picture smaller than the input is enlarged bilinearly.
`mask_outside_disc` (`radius_fraction`, default 0.98)
    Blackens what lies outside the disc, so that labels and notches cannot be learnt.

An empty list means that the caller sends prepared images: they are only fitted to the input.
Rescaling to the network's range happens inside the graph, so the result is always uint8 RGB.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from inference_image.contract import REASON_NOT_FUNDUS
from inference_image.fundus import (
    ACCEPTED,
    FundusCircle,
    FundusView,
    QualityGate,
    QualityVerdict,
    assess,
    survey,
)
from inference_image.model_spec import ModelPackageError, ModelSpec

STEP_CROP: Final = "crop_to_fundus"
STEP_RESIZE: Final = "resize_area"
STEP_MASK: Final = "mask_outside_disc"
KNOWN_STEPS: Final = (STEP_CROP, STEP_RESIZE, STEP_MASK)
_PARAMETERS: Final[Mapping[str, frozenset[str]]] = {
    STEP_CROP: frozenset({"min_radius_px"}),
    STEP_RESIZE: frozenset(),
    STEP_MASK: frozenset({"radius_fraction"}),
}
_DEFAULT_MIN_RADIUS_PX: Final = 32
_DEFAULT_MASK_FRACTION: Final = 0.98
# No picture that is accepted has a longer side.
_LARGEST_NUMBER: Final = 20_000

ByteArray = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A model input and what was found on the way.

    `pixels` is S x S x 3 uint8 RGB; `circle` is in pixels of the picture that was given.
    """

    pixels: ByteArray
    circle: FundusCircle
    quality: QualityVerdict


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """The preprocessing of one model, checked once; call it for each photograph."""

    size_px: int
    crop: bool
    min_radius_px: float
    mask_fraction: float | None
    gate: QualityGate | None

    @classmethod
    def from_spec(cls, spec: ModelSpec) -> "Preparation":
        """Read the steps of a package.

        Raises:
            ModelPackageError: a step, its parameter or a limit of the gate is not known here.
        """
        crop, mask_fraction, min_radius_px = False, None, float(_DEFAULT_MIN_RADIUS_PX)
        seen: list[str] = []
        for entry in spec.preprocessing:
            step = str(entry["step"])
            _check_step(spec, entry, step, seen)
            seen.append(step)
            if step == STEP_CROP:
                crop = True
                min_radius_px = _number(spec, entry, "min_radius_px", _DEFAULT_MIN_RADIUS_PX)
            elif step == STEP_MASK:
                mask_fraction = _number(spec, entry, "radius_fraction", _DEFAULT_MASK_FRACTION)
        return cls(
            size_px=spec.input_size_px,
            crop=crop,
            min_radius_px=min_radius_px,
            mask_fraction=mask_fraction,
            gate=None if spec.quality_gate is None else QualityGate.from_mapping(spec.quality_gate),
        )

    def __call__(self, picture: Image.Image | ByteArray, *, scale: float = 1.0) -> Prepared:
        """Prepare an RGB picture (a Pillow image, or height x width x 3 uint8).

        `scale` is the picture's size relative to the file's, where it was decoded smaller:
        `min_radius_px` counts pixels of the file.
        """
        image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
        if image.mode != "RGB":
            image = image.convert("RGB")
        view = survey(image) if self.crop or self.gate is not None else None
        if view is not None and view.circle.radius_px < self.min_radius_px * scale:
            view = _not_found(view, image)
        circle = view.circle if view is not None else _frame(image)
        pixels = _square(image, circle if self.crop else _frame(image), self.size_px)
        if self.mask_fraction is not None:
            pixels = pixels * _disc_mask(self.size_px, self.mask_fraction)
        return Prepared(pixels=pixels, circle=circle, quality=self._verdict(view, pixels))

    def _verdict(self, view: FundusView | None, pixels: ByteArray) -> QualityVerdict:
        if view is None:
            return ACCEPTED
        if self.gate is not None:
            return assess(view, pixels, self.gate)
        if not view.circle.found:
            return QualityVerdict(gradable=False, reasons=(REASON_NOT_FUNDUS,), measures={})
        return ACCEPTED


def prepare(picture: Image.Image | ByteArray, spec: ModelSpec) -> Prepared:
    """Prepare one RGB picture for a model; never raises for what the picture shows.

    Args:
        picture: height x width x 3 uint8 RGB, upright; or the same as a Pillow image, which
            saves two copies.
        spec: the package whose steps and gate apply.

    Raises:
        ModelPackageError: the package asks for a step that is not known here.
    """
    return Preparation.from_spec(spec)(picture)


def _check_step(spec: ModelSpec, entry: Mapping[str, Any], step: str, seen: list[str]) -> None:
    if step not in KNOWN_STEPS:
        raise ModelPackageError(
            f"model {spec.id}: preprocessing step {step!r} is not known; "
            f"known are {', '.join(KNOWN_STEPS)}"
        )
    unknown = set(entry) - {"step"} - _PARAMETERS[step]
    if unknown:
        raise ModelPackageError(
            f"model {spec.id}: step {step} has no parameter {', '.join(sorted(unknown))}"
        )
    # The crop and the resize are one resampling, so their order is fixed.
    if seen and KNOWN_STEPS.index(step) <= KNOWN_STEPS.index(seen[-1]):
        raise ModelPackageError(
            f"model {spec.id}: preprocessing steps come once each, in the order "
            f"{', '.join(KNOWN_STEPS)}"
        )


def _number(spec: ModelSpec, entry: Mapping[str, Any], name: str, default: float) -> float:
    value = entry.get(name, default)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 < value <= _LARGEST_NUMBER:
        raise ModelPackageError(
            f"model {spec.id}: {entry['step']}.{name} must be a positive number, at most "
            f"{_LARGEST_NUMBER}; it is {str(value)[:40]!r}"
        )
    return float(value)


def _frame(image: Image.Image) -> FundusCircle:
    width, height = image.size
    return FundusCircle(
        x_px=width / 2,
        y_px=height / 2,
        radius_px=max(width, height) / 2,
        found=False,
        arc_fraction=0.0,
        visible_fraction=1.0,
    )


def _not_found(view: FundusView, image: Image.Image) -> FundusView:
    height, width = view.thumbnail.shape[:2]
    whole = FundusCircle(
        x_px=width / 2,
        y_px=height / 2,
        radius_px=max(width, height) / 2,
        found=False,
        arc_fraction=0.0,
        visible_fraction=1.0,
    )
    return FundusView(circle=_frame(image), thumbnail=view.thumbnail, thumbnail_circle=whole)


def _square(image: Image.Image, circle: FundusCircle, size_px: int) -> ByteArray:
    """Resample the square around a circle to size_px, black beyond the frame."""
    width, height = image.size
    left, top = circle.x_px - circle.radius_px, circle.y_px - circle.radius_px
    scale = 2 * circle.radius_px / size_px  # source pixels per target pixel
    if scale == 1.0 and left == 0 == top and (width, height) == (size_px, size_px):
        return np.asarray(image)
    first_x, last_x = _span(left, width, scale, size_px)
    first_y, last_y = _span(top, height, scale, size_px)
    target = np.zeros((size_px, size_px, 3), dtype=np.uint8)
    if last_x <= first_x or last_y <= first_y:
        return target
    box = (
        max(0.0, left + first_x * scale),
        max(0.0, top + first_y * scale),
        min(float(width), left + last_x * scale),
        min(float(height), top + last_y * scale),
    )
    shrinking = scale > 1.0
    part = image.resize(
        (last_x - first_x, last_y - first_y),
        Image.Resampling.BOX if shrinking else Image.Resampling.BILINEAR,
        box=box,
        # Whole-number averaging first: the same area mean to within 1/255, at a third of the
        # time on a camera's picture.
        reducing_gap=1.0 if shrinking else None,
    )
    target[first_y:last_y, first_x:last_x] = np.asarray(part)
    return target


def _span(start: float, length: int, scale: float, size_px: int) -> tuple[int, int]:
    """First and last whole target pixel whose source lies inside [0, length]."""
    tolerance = 1e-6
    first = max(0, math.ceil(-start / scale - tolerance))
    last = min(size_px, math.floor((length - start) / scale + tolerance))
    return first, last


@lru_cache(maxsize=8)
def _disc_mask(size_px: int, fraction: float) -> ByteArray:
    offsets = np.arange(size_px) + 0.5 - size_px / 2
    inside = offsets[:, None] ** 2 + offsets[None, :] ** 2 <= (fraction * size_px / 2) ** 2
    return inside[:, :, None].astype(np.uint8)
