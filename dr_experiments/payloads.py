"""Makes a camera photograph smaller before it is sent: payload limits, and what data costs.

    >>> small = shrink(payload, max_side_px=1024)

The decision can change with the picture; `docs/experiments.md` says by how much it was seen to.
"""

import io
from typing import Final

from dr_experiments.targets import Payload
from inference_image.contract import MEDIA_JPEG

JPEG_QUALITY: Final = 92
# A network sees 224 pixels and more of the retina, and the quality gate looks at sharpness.
MIN_SIDE_PX: Final = 300


def shrink(payload: Payload, *, max_side_px: int, quality: int = JPEG_QUALITY) -> Payload:
    """The photograph as JPEG whose longer side has at most `max_side_px` pixels.

    One that is small enough is sent as it is. Metadata stays behind; its orientation is applied.

    Raises:
        ValueError: the side is below `MIN_SIDE_PX`, or Pillow cannot read the photograph.
    """
    from PIL import Image, ImageOps

    if max_side_px < MIN_SIDE_PX:
        raise ValueError(f"a photograph needs at least {MIN_SIDE_PX} pixels; got {max_side_px}")
    try:
        with Image.open(io.BytesIO(payload.body)) as image:
            if max(image.size) <= max_side_px:
                return payload
            # JPEG can be decoded at a half, a quarter or an eighth; twice the size is enough.
            image.draft("RGB", (2 * max_side_px, 2 * max_side_px))
            upright = ImageOps.exif_transpose(image).convert("RGB")
    except (OSError, Image.DecompressionBombError) as error:
        raise ValueError(f"the photograph cannot be made smaller: {error}") from None
    upright.thumbnail((max_side_px, max_side_px), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    # `info` would bring the metadata along.
    upright.info.clear()
    upright.save(out, "JPEG", quality=quality)
    return Payload(
        body=out.getvalue(),
        content_type=MEDIA_JPEG,
        custom_attributes=payload.custom_attributes,
    )
