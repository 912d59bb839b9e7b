"""Converts RGB pictures to sRGB: by their ICC profile, or by the gamma that a PNG states.

    >>> picture = to_srgb(picture, image.info.get("icc_profile"))

Nearly every photograph with a profile has one of sRGB, in one of dozens of versions, and many a
profile that is not sRGB mentions it. So a profile is asked what it does to some colours, once:
what is done to a profile is kept for the next pictures of the same camera.

Source: PNG, third edition (w3.org/TR/png-3), 11.3.2.2 and 13.13, for gAMA; IEC 61966-2-1 for sRGB.
"""

import io
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from PIL import ImageCms

# Larger profiles describe printers, and take long to read.
MOST_PROFILE_BYTES: Final = 1_000_000
_COLOUR_SPACE, _RGB = slice(16, 20), b"RGB "
# A profile that moves no colour further changes a picture as little as rounding does.
_SAME_LEVELS: Final = 1
_LEVELS_TRIED: Final = 9
# A service meets the profiles of a few cameras. Each is kept with its bytes.
_KEPT: Final = 4

# sRGB as a power; files that state it round it, and so did libpng, to within a twentieth.
_SRGB_GAMMA: Final = 1 / 2.2
_GAMMA_TOLERANCE: Final = 0.05
_LEAST_GAMMA, _MOST_GAMMA = 0.1, 5.0


def to_srgb(picture: Image.Image, profile: bytes | None) -> Image.Image:
    """The same colours in sRGB; a profile that is damaged, too large or not of RGB is ignored."""
    if not profile or len(profile) > MOST_PROFILE_BYTES or profile[_COLOUR_SPACE] != _RGB:
        return picture
    transform = _transform(profile)
    return picture if transform is None else _converted(picture, transform)


def from_gamma(picture: Image.Image, gamma: float | None) -> Image.Image:
    """The same picture in sRGB, if its samples are light to the power of `gamma`.

    A gamma that is about that of sRGB, or that cannot be, is ignored.
    """
    if gamma is None or not _LEAST_GAMMA <= gamma <= _MOST_GAMMA:
        return picture
    if abs(gamma / _SRGB_GAMMA - 1) < _GAMMA_TOLERANCE:
        return picture
    light = (np.arange(256) / 255) ** (1 / gamma)
    curved = np.where(light > 0.0031308, 1.055 * light ** (1 / 2.4) - 0.055, 12.92 * light)
    return picture.point((curved * 255).round().astype(int).tolist() * 3)


@lru_cache(maxsize=_KEPT)
def _transform(profile: bytes) -> "ImageCms.ImageCmsTransform | None":
    """What turns its colours to sRGB; None where it changes none, or cannot be read."""
    from PIL import ImageCms

    try:
        transform = ImageCms.buildTransform(
            ImageCms.ImageCmsProfile(io.BytesIO(profile)),
            ImageCms.createProfile("sRGB"),
            "RGB",
            "RGB",
            renderingIntent=ImageCms.Intent.RELATIVE_COLORIMETRIC,
        )
        tried = _colours()
        changed = np.asarray(_converted(Image.fromarray(tried), transform))
    except Exception:  # noqa: BLE001
        # Its parser raises whatever the damaged bytes lead it to; the picture itself is whole.
        return None
    apart = np.abs(changed.astype(int) - tried)
    return transform if apart.max() > _SAME_LEVELS else None


def _converted(picture: Image.Image, transform: Any) -> Image.Image:
    from PIL import ImageCms

    return ImageCms.applyTransform(picture, transform) or picture


def _colours() -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """Colours from all over the cube, and every grey, as an image of one row."""
    levels = np.linspace(0, 255, _LEVELS_TRIED).round()
    cube = np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(-1, 3)
    greys = np.arange(256)[:, np.newaxis].repeat(3, axis=1)
    return np.concatenate([cube, greys])[np.newaxis].astype(np.uint8)
