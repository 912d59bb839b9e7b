"""Makes a camera photograph smaller before it is sent: payload limits, and what data costs.

    >>> small = prepare(payload, cropped=True, max_side_px=1024)

Cropping takes away the black border around the fundus, which the service would cut off anyway;
shrinking takes away detail. The decision can change with the picture: `dr bench parity` measures
on your own photographs how often it does, and `docs/experiments.md` says what was seen.
"""

import io
from typing import TYPE_CHECKING, Final

from dr_experiments.targets import Payload
from inference_image.contract import MEDIA_JPEG

if TYPE_CHECKING:
    from PIL import Image

JPEG_QUALITY: Final = 92
# A network sees 224 pixels and more of the retina, and the quality gate looks at sharpness.
MIN_SIDE_PX: Final = 300
# A border that a camera leaves black is a few levels bright after JPEG; a dim retina is brighter.
BORDER_LEVEL: Final = 20
# A row or column belongs to the fundus where this share of it is brighter: letters in a corner
# of the picture do not count.
_BRIGHT_SHARE: Final = 0.02
# What is left around the fundus, as a share of the box: the service looks for the disc's edge.
_MARGIN: Final = 0.04
_LOOK_PX: Final = 512
# A box that is nearly the whole picture is not worth another round of JPEG.
_WORTH_IT: Final = 0.97


def crop(payload: Payload, *, quality: int = JPEG_QUALITY) -> Payload:
    """`prepare` without its black border only."""
    return prepare(payload, cropped=True, max_side_px=None, quality=quality)


def shrink(payload: Payload, *, max_side_px: int, quality: int = JPEG_QUALITY) -> Payload:
    """`prepare` with a longer side of at most `max_side_px` pixels only."""
    return prepare(payload, cropped=False, max_side_px=max_side_px, quality=quality)


def prepare(
    payload: Payload, *, cropped: bool, max_side_px: int | None, quality: int = JPEG_QUALITY
) -> Payload:
    """The photograph as JPEG, cropped to the fundus, shrunk or both; encoded once.

    One that is small enough is sent as it is, and so is one that cropping alone does not make
    smaller: black costs a JPEG next to nothing, and then another round of encoding costs more.
    The fundus is the box around rows and columns that are not black. A picture without any, or
    whose box is nearly the whole, is not cropped: what it shows is for the service to judge.
    Metadata stays behind; its orientation is applied.

    Args:
        max_side_px: largest longer side, at least `MIN_SIDE_PX`; None leaves the size.

    Raises:
        ValueError: the side is too small, or Pillow cannot read the photograph.
    """
    from PIL import Image, ImageOps

    if max_side_px is not None and max_side_px < MIN_SIDE_PX:
        raise ValueError(f"a photograph needs at least {MIN_SIDE_PX} pixels; got {max_side_px}")
    if max_side_px is None and not cropped:
        return payload
    try:
        with Image.open(io.BytesIO(payload.body)) as image:
            if not cropped and max_side_px is not None:
                if max(image.size) <= max_side_px:
                    return payload
                # JPEG can be decoded at a half, a quarter or an eighth; twice the size is enough.
                image.draft("RGB", (2 * max_side_px, 2 * max_side_px))
            upright = ImageOps.exif_transpose(image).convert("RGB")
    except (OSError, Image.DecompressionBombError) as error:
        raise ValueError(f"the photograph cannot be made smaller: {error}") from None
    box = _fundus_box(upright) if cropped else None
    if box is not None:
        upright = upright.crop(box)
    if max_side_px is not None and max(upright.size) > max_side_px:
        upright.thumbnail((max_side_px, max_side_px), Image.Resampling.LANCZOS)
        return _jpeg(upright, payload, quality=quality)
    if box is None:
        return payload
    smaller = _jpeg(upright, payload, quality=quality)
    return smaller if len(smaller.body) < len(payload.body) else payload


def _fundus_box(image: "Image.Image") -> tuple[int, int, int, int] | None:
    """Left, upper, right and lower edge of what is not border, with its margin.

    None where everything is border, or nearly nothing is.
    """
    import numpy as np

    factor = max(1, max(image.size) // _LOOK_PX)
    small = np.asarray(image.reduce(factor)).max(axis=2) > BORDER_LEVEL
    columns = np.flatnonzero(small.mean(axis=0) > _BRIGHT_SHARE)
    rows = np.flatnonzero(small.mean(axis=1) > _BRIGHT_SHARE)
    if not len(columns) or not len(rows):
        return None
    edges = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
    left, upper, right, lower = (factor * int(edge) for edge in edges)
    margin = round(_MARGIN * max(right - left, lower - upper))
    left, upper = max(0, left - margin), max(0, upper - margin)
    right, lower = min(image.width, right + margin), min(image.height, lower + margin)
    if (right - left) * (lower - upper) > _WORTH_IT * image.width * image.height:
        return None
    return left, upper, right, lower


def _jpeg(image: "Image.Image", payload: Payload, *, quality: int) -> Payload:
    out = io.BytesIO()
    # `info` would bring the metadata along.
    image.info.clear()
    image.save(out, "JPEG", quality=quality)
    return Payload(
        body=out.getvalue(),
        content_type=MEDIA_JPEG,
        custom_attributes=payload.custom_attributes,
    )
