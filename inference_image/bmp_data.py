"""Decodes a BMP whose colours lie where its masks say, in any order and of any number of bits.

>>> image = open_masked(data, header, header.masks)
>>> image.mode
'RGB'
"""

from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from inference_image.bmp_headers import BmpHeader, Masks
from inference_image.photograph import PhotographError

# Rows that are converted at a time, so that a large picture has no large intermediate.
_BAND_ROWS: Final = 64
_MOST_BITS: Final = 16


def open_masked(data: bytes, header: BmpHeader, masks: Masks) -> Image.Image:
    """RGB, or RGBA where there is a mask for it.

    Raises:
        PhotographError: 422 where the file ends before its pixels do.
    """
    width, height = header.width_px, header.height_px
    # Each row takes a multiple of four bytes.
    step = -(-width * header.bits // 32) * 4
    if len(data) < header.pixels_at + step * height:
        raise PhotographError(422, "The BMP cannot be decoded: it is truncated or damaged.")
    kind = np.dtype("<u2" if header.bits == 16 else "<u4")
    rows = np.ndarray(
        (height, width), kind, data, offset=header.pixels_at, strides=(step, kind.itemsize)
    )
    if not header.top_down:
        rows = rows[::-1]
    channels = [_table(mask) for mask in masks if mask]
    image = Image.new("RGBA" if len(channels) == len(masks) else "RGB", (width, height))
    for top in range(0, height, _BAND_ROWS):
        band = rows[top : top + _BAND_ROWS]
        levels = np.stack([table[band >> shift & most] for table, shift, most in channels], axis=-1)
        image.paste(Image.fromarray(levels), (0, top))
    # As one that Pillow has opened: of this format an empty alpha says nothing.
    image.format = "BMP"
    return image


def _table(mask: int) -> tuple[npt.NDArray[np.uint8], int, int]:
    """Each value below a mask scaled to 0..255, how far it is shifted, and the largest value."""
    shift, width = (mask & -mask).bit_length() - 1, mask.bit_count()
    # More than 16 bits say nothing that 8 could show.
    shift, width = shift + max(0, width - _MOST_BITS), min(width, _MOST_BITS)
    highest = 2**width - 1
    levels = (np.arange(highest + 1) * 255 + highest // 2) // highest
    return levels.astype(np.uint8), shift, highest
