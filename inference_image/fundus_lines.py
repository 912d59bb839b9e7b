"""What thin lines around a photograph surround: borders of viewers, reports and screens.

    >>> inside_lines(picture, (0, 0, *picture.size), factor)
    (36, 36, 2556, 1908)

The search for the disc takes the first pixel of each row and column that stands out for the edge
of the disc, and a line in front of it hides the disc. This is asked only where no disc was found,
or less than three quarters of its edge: in most photographs more is seen, and they pay nothing.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from inference_image.fundus_terms import SHORTEST_SIDE_PX, Box
from inference_image.resampling import thumbnail_of

# Lines are looked for in this share of the shorter side from each edge on.
_REACH_SHARE: Final = 8
# How much a row of one colour may vary (JPEG, noise).
_VARIATION: Final = 12
# What so many rows in front of anything else have in common is a line, and no background.
_LINE_ROWS: Final = 2

ByteArray = npt.NDArray[np.uint8]


def inside_lines(picture: Image.Image, box: Box, factor: int) -> Box | None:
    """The part of a box of an RGB picture that lies within lines along its sides; None without any.

    `factor` pixels a side become one of the thumbnail that is looked at.
    """
    pixels = np.asarray(thumbnail_of(picture, box, factor))
    reach = min(pixels.shape[:2]) // _REACH_SHARE
    if reach <= _LINE_ROWS:
        return None
    turned = pixels.transpose(1, 0, 2)
    depths = [_depth(view, reach) for view in (turned, pixels, turned[::-1], pixels[::-1])]
    left, top, right, bottom = depths
    height, width = pixels.shape[:2]
    if not any(depths) or min(width - left - right, height - top - bottom) < SHORTEST_SIDE_PX:
        return None
    return (
        box[0] + left * factor,
        box[1] + top * factor,
        min(box[2], box[0] + (width - right) * factor),
        min(box[3], box[1] + (height - bottom) * factor),
    )


def _depth(pixels: ByteArray, reach: int) -> int:
    """How many rows from the first on the lines take; 0 where there is none."""
    rows = pixels[:reach, reach:-reach]
    lowest, highest = rows.min(axis=1), rows.max(axis=1)
    plain = ((highest - lowest).max(axis=1) <= _VARIATION).tolist()
    colours: list[list[int]] = (lowest + (highest - lowest) // 2).tolist()
    # Where the last rows of one colour begin and end.
    begin = end = 0
    last: list[int] | None = None
    for row, colour in enumerate(colours):
        if not plain[row]:
            # Retina, or a text.
            last = None
            continue
        if last is None or any(
            abs(level - before) > _VARIATION for level, before in zip(colour, last, strict=True)
        ):
            begin = row
        end, last = row + 1, colour
    return end if end < reach and end - begin <= _LINE_ROWS else begin
