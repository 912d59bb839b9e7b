"""Turns a photograph into the model's input; training and serving both call `prepare`.

    >>> prepared = prepare(pixels, spec)
    >>> prepared.pixels.shape, prepared.quality.gradable
    ((224, 224, 3), True)

The steps are the package's own (`model.json`, key `preprocessing`), in its order:

`crop_to_fundus` (`min_radius_px`, default 32)
    Cuts the square around the fundus disc, black where it reaches beyond the frame. A disc
    smaller than `min_radius_px` counts as not found, and so does any below 6 % of the longer
    side; without one the whole frame is centred in a square and the verdict says
    `not_a_fundus_photograph`.
`resize_area`
    Shrinks to `input_size_px` by area (every source pixel counts, so thin lesions are
    averaged, not skipped); a picture smaller than the input is enlarged bilinearly.
`subtract_gaussian` (`sigma_px`, default 10; `gain`, default 4; `level`, default 128)
    `gain * pixels - gain * blurred + level`, clipped to 0-255: what differs from the light
    around it, on grey. With the defaults it is the filter of the 224 x 224 release of APTOS
    2019, after Graham's report on the 2015 competition (`cv2.addWeighted(image, 4,
    cv2.GaussianBlur(image, (0, 0), 10), -4, 128)`). `sigma_px` counts pixels of the input. The
    quality verdict is on the photograph before this step.
`mask_outside_disc` (`radius_fraction`, default 0.98)
    Makes what lies outside the disc black, or after `subtract_gaussian` its `level`, so that
    labels and notches cannot be learnt.

An empty list means that the caller sends prepared images: no disc is searched, and they are only
fitted to the input. An image of that size passes through unchanged.
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
    QualityGate,
    QualityVerdict,
    assess,
    find_circle,
    whole_frame,
)
from inference_image.fundus_chosen import resize_into
from inference_image.model_spec import ModelPackageError, ModelSpec

STEP_CROP: Final = "crop_to_fundus"
STEP_RESIZE: Final = "resize_area"
STEP_SUBTRACT: Final = "subtract_gaussian"
STEP_MASK: Final = "mask_outside_disc"
KNOWN_STEPS: Final = (STEP_CROP, STEP_RESIZE, STEP_SUBTRACT, STEP_MASK)
_PARAMETERS: Final[Mapping[str, frozenset[str]]] = {
    STEP_CROP: frozenset({"min_radius_px"}),
    STEP_RESIZE: frozenset(),
    STEP_SUBTRACT: frozenset({"sigma_px", "gain", "level"}),
    STEP_MASK: frozenset({"radius_fraction"}),
}
_DEFAULT_MIN_RADIUS_PX: Final = 32
_DEFAULT_MASK_FRACTION: Final = 0.98
_DEFAULT_SIGMA_PX, _DEFAULT_GAIN, _DEFAULT_LEVEL = 10.0, 4.0, 128.0
_MOST_SIGMA, _MOST_GAIN = 200, 100
# OpenCV's choice for 8-bit pictures, with which the released data sets were filtered.
_BLUR_REACH_SIGMAS: Final = 3.0
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
    subtraction: "GaussianSubtraction | None" = None
    mask_fraction: float | None
    gate: QualityGate | None

    @classmethod
    def from_spec(cls, spec: ModelSpec) -> "Preparation":
        """Read the steps of a package.

        Raises:
            ModelPackageError: a step, its parameter or a limit of the gate is not known here.
        """
        crop, mask_fraction, min_radius_px = False, None, float(_DEFAULT_MIN_RADIUS_PX)
        subtraction = None
        seen: list[str] = []
        for entry in spec.preprocessing:
            step = str(entry["step"])
            _check_step(spec, entry, step, seen)
            seen.append(step)
            if step == STEP_CROP:
                crop = True
                min_radius_px = _number(spec, entry, "min_radius_px", _DEFAULT_MIN_RADIUS_PX)
            elif step == STEP_SUBTRACT:
                subtraction = GaussianSubtraction(
                    sigma_px=_number(spec, entry, "sigma_px", _DEFAULT_SIGMA_PX, most=_MOST_SIGMA),
                    gain=_number(spec, entry, "gain", _DEFAULT_GAIN, most=_MOST_GAIN),
                    level=_number(spec, entry, "level", _DEFAULT_LEVEL, most=255),
                )
            elif step == STEP_MASK:
                mask_fraction = _number(spec, entry, "radius_fraction", _DEFAULT_MASK_FRACTION)
        return cls(
            size_px=spec.input_size_px,
            crop=crop,
            min_radius_px=min_radius_px,
            subtraction=subtraction,
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
        searched = self.crop or self.gate is not None
        circle = find_circle(image) if searched else whole_frame(image.size)
        if circle.radius_px < self.min_radius_px * scale:
            circle = whole_frame(image.size)
        pixels = _square(image, circle if self.crop else whole_frame(image.size), self.size_px)
        quality = ACCEPTED
        if self.gate is not None:
            disc = pixels if self.crop else _square(image, circle, self.size_px)
            quality = assess(circle, disc, self.gate)
        elif self.crop and not circle.found:
            quality = QualityVerdict(gradable=False, reasons=(REASON_NOT_FUNDUS,), measures={})
        outside = 0
        if self.subtraction is not None:
            pixels = self.subtraction(pixels)
            outside = round(self.subtraction.level)
        if self.mask_fraction is not None:
            pixels = _mask_outside(pixels, self.mask_fraction, outside)
        return Prepared(pixels=pixels, circle=circle, quality=quality)


@dataclass(frozen=True, kw_only=True)
class GaussianSubtraction:
    """The step `subtract_gaussian`.

    The blur is exact up to float32 and rounded once, at the end. It reaches three sigmas and
    mirrors the image at its border, as `cv2.GaussianBlur` of 8-bit pictures does; OpenCV rounds
    the blurred image first, which moves a pixel by at most half the gain.
    """

    sigma_px: float
    gain: float
    level: float

    def __call__(self, pixels: ByteArray) -> ByteArray:
        """Filter S x S x 3 uint8 pixels; the result is uint8 as well."""
        matrix = _blur_matrix(pixels.shape[0], self.sigma_px)
        planes = np.ascontiguousarray(pixels.transpose(2, 0, 1)).astype(np.float32)
        planes -= matrix @ planes @ matrix.T
        planes *= np.float32(self.gain)
        planes += np.float32(self.level)
        np.clip(np.rint(planes, out=planes), 0, 255, out=planes)
        return np.ascontiguousarray(planes.astype(np.uint8).transpose(1, 2, 0))


@lru_cache(maxsize=8)
def _blur_matrix(size_px: int, sigma_px: float) -> npt.NDArray[np.float32]:
    """Gaussian blur along an axis of `size_px` pixels, which mirror at their ends, as a product.

    A band of a matrix wastes operations and still takes less time than any other way that NumPy
    offers; three passes of Pillow's box blur would be off by some levels after the gain.
    """
    reach = (round(2 * _BLUR_REACH_SIGMAS * sigma_px + 1) | 1) // 2
    offsets = np.arange(-reach, reach + 1)
    taps = np.exp(-0.5 * np.square(offsets / sigma_px))
    taps /= taps.sum()
    mirrored = np.pad(np.arange(size_px), reach, mode="reflect")
    matrix = np.zeros((size_px, size_px))
    rows = np.arange(size_px)
    for index, tap in enumerate(taps):
        np.add.at(matrix, (rows, mirrored[index : index + size_px]), tap)
    return matrix.astype(np.float32)


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


def _number(
    spec: ModelSpec,
    entry: Mapping[str, Any],
    name: str,
    default: float,
    *,
    most: int = _LARGEST_NUMBER,
) -> float:
    value = entry.get(name, default)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 < value <= most:
        raise ModelPackageError(
            f"model {spec.id}: {entry['step']}.{name} must be a positive number, at most "
            f"{most}; it is {str(value)[:40]!r}"
        )
    return float(value)


def _square(image: Image.Image, circle: FundusCircle, size_px: int) -> ByteArray:
    """Resample the square around a circle to size_px, black beyond the frame."""
    width, height = image.size
    left, top = circle.x_px - circle.radius_px, circle.y_px - circle.radius_px
    scale = 2 * circle.radius_px / size_px  # source pixels per target pixel
    if scale == 1.0 and left == 0 == top and (width, height) == (size_px, size_px):
        return np.asarray(image)
    first_x, last_x = _span(left, width, scale, size_px)
    first_y, last_y = _span(top, height, scale, size_px)
    if last_x <= first_x or last_y <= first_y:
        return np.zeros((size_px, size_px, 3), dtype=np.uint8)
    box = (
        max(0.0, left + first_x * scale),
        max(0.0, top + first_y * scale),
        min(float(width), left + last_x * scale),
        min(float(height), top + last_y * scale),
    )
    whole = (last_x - first_x, last_y - first_y) == (size_px, size_px)
    target = (np.empty if whole else np.zeros)((size_px, size_px, 3), np.uint8)
    resize_into(target[first_y:last_y, first_x:last_x], image, box, scale <= 1.0)
    return target


def _span(start: float, length: int, scale: float, size_px: int) -> tuple[int, int]:
    """First and last whole target pixel whose source lies inside [0, length]."""
    tolerance = 1e-6
    first = max(0, math.ceil(-start / scale - tolerance))
    last = min(size_px, math.floor((length - start) / scale + tolerance))
    return first, last


def _mask_outside(pixels: ByteArray, fraction: float, level: int) -> ByteArray:
    """The same with `level` outside of the disc; in place, but for a picture's own memory."""
    mask = _disc_mask(pixels.shape[0], fraction)
    masked = np.multiply(pixels, mask, out=pixels if pixels.flags.writeable else None)
    if level:
        masked += (1 - mask) * np.uint8(level)
    return masked


@lru_cache(maxsize=8)
def _disc_mask(size_px: int, fraction: float) -> ByteArray:
    offsets = np.arange(size_px) + 0.5 - size_px / 2
    inside = offsets[:, None] ** 2 + offsets[None, :] ** 2 <= (fraction * size_px / 2) ** 2
    # One byte for each channel: NumPy multiplies long rows many times faster than threes.
    return np.repeat(inside[:, :, None], 3, axis=2).astype(np.uint8)
