"""Reads the size of a BMP, its kind, and the masks that say where its colours lie.

    >>> header = read_bmp(data)
    >>> header.width_px, header.height_px, header.masks
    (3216, 2136, (15, 240, 3840, 0))

Standard library only. Source: BITMAPINFOHEADER and BITMAPV4HEADER (learn.microsoft.com, wingdi.h).
"""

import struct
from dataclasses import dataclass
from typing import Final

from inference_image.photograph import Header, PhotographError

CORE_BYTES: Final = 12
_FILE_BYTES: Final = 14
_LEAST_BYTES: Final = 26
_BITS: Final = (1, 4, 8, 16, 24, 32)
# None, two kinds of RLE, and masks that say where the colours lie.
_COMPRESSIONS: Final = frozenset({0, 1, 2, 3})
_WITH_MASKS: Final = 3
# Behind the first 40 bytes of a header, within it or not; only a longer one has room for alpha.
_MASKS_AT: Final = 54
_FROM_ALPHA_BYTES: Final = 56
# IBM's header of this size, in which the same number is a kind of fax.
_IBM_BYTES: Final = 64
# What Pillow reads, and faster than `bmp_data` does. Without any masks they lie as they mostly do.
_COMMON: Final = frozenset(
    {
        (16, (0xF800, 0x07E0, 0x001F, 0)),
        (16, (0x7C00, 0x03E0, 0x001F, 0)),
        (24, (0xFF0000, 0xFF00, 0xFF, 0)),
        (32, (0xFF0000, 0xFF00, 0xFF, 0)),
        (32, (0xFF0000, 0xFF00, 0xFF, 0xFF000000)),
        (32, (0, 0, 0, 0)),
    }
)
_MASKED_BITS: Final = (16, 32)

Masks = tuple[int, int, int, int]


@dataclass(frozen=True, kw_only=True)
class BmpHeader(Header):
    """Also how the colours lie, where it is not one of the ways that every decoder knows.

    `masks` are those of red, green, blue and alpha (0 where there is none), or None.
    """

    bits: int
    top_down: bool
    pixels_at: int
    masks: Masks | None


def read_bmp(data: bytes) -> BmpHeader | None:
    """Size and kind; None where the header is not complete.

    Raises:
        PhotographError: 415 for a number of bits, a compression or masks that are not accepted.
        struct.error: the file ends within its masks.
    """
    if len(data) < _LEAST_BYTES:
        return None
    pixels_at, size = struct.unpack_from("<II", data, 10)
    compression, masks = 0, None
    if size == CORE_BYTES:
        width, height, _, bits = struct.unpack_from("<4H", data, 18)
    else:
        width, height, _, bits, compression = struct.unpack_from("<iiHHI", data, 18)
    if width > 0 and height != 0:
        if bits not in _BITS or compression not in _COMPRESSIONS:
            raise _not_accepted(f"{bits} bits per pixel and compression {compression}")
        if compression == _WITH_MASKS:
            masks = _masks(data, size, bits)
    return BmpHeader(
        width_px=width,
        # A negative height says that the rows run from top to bottom.
        height_px=abs(height),
        decoded_bytes=3 * width * abs(height),
        bits=bits,
        top_down=height < 0,
        pixels_at=pixels_at or max(_MASKS_AT + 12, _FILE_BYTES + size),
        masks=masks,
    )


def _masks(data: bytes, size: int, bits: int) -> Masks | None:
    """The masks, or None for those that every decoder knows."""
    red, green, blue = struct.unpack_from("<III", data, _MASKS_AT)
    alpha = 0
    if size >= _FROM_ALPHA_BYTES and bits in _MASKED_BITS:
        (alpha,) = struct.unpack_from("<I", data, _MASKS_AT + 12)
        # Some writers name the usual one, also where the pixels have no room for it.
        alpha &= (1 << bits) - 1
    masks = (red, green, blue, alpha)
    if size == _IBM_BYTES:
        raise _not_accepted(f"{bits} bits per pixel and compression {_WITH_MASKS} of OS/2")
    if (bits, masks) in _COMMON:
        return None
    runs = all(map(_is_run, masks[:3])) and (not alpha or _is_run(alpha))
    apart = sum(masks) == red | green | blue | alpha
    if bits not in _MASKED_BITS or not runs or not apart or max(masks) >> bits:
        shown = ", ".join(f"{mask:X}" for mask in masks)
        raise _not_accepted(f"{bits} bits per pixel and the colour masks {shown}")
    return masks


def _is_run(mask: int) -> bool:
    """Whether the bits of a mask stand side by side."""
    lowest = mask & -mask
    return mask > 0 and (mask + lowest) & mask == 0


def _not_accepted(kind: str) -> PhotographError:
    return PhotographError(
        415,
        f"The BMP has {kind}; accepted are {', '.join(map(str, _BITS))} bits, uncompressed or RLE, "
        "and 16 or 32 bits with a mask of neighbouring bits for each colour.",
    )
