"""Reads the size and the components of a JPEG 2000 codestream.

    >>> header = read_jpeg2000(data)
    >>> header.width_px, header.height_px, header.bits
    (3216, 2136, (8, 8, 8))

Standard library only. Source: ISO/IEC 15444-1, A.5.1 (SIZ).
"""

import struct
from dataclasses import dataclass
from typing import Final

from inference_image.photograph import Header

# SOC and SIZ, which come first; and EOC, which comes last.
_BEGIN: Final = b"\xff\x4f\xff\x51"
_END: Final = b"\xff\xd9"
_MOST_COMPONENTS: Final = 8


@dataclass(frozen=True, kw_only=True)
class Jpeg2000Header(Header):
    """Also where the codestream begins, and of each component bits, sign and sampling."""

    begin: int
    bits: tuple[int, ...]
    signed: tuple[bool, ...]
    is_subsampled: bool


def read_jpeg2000(data: bytes) -> Jpeg2000Header | None:
    """Size and components; None where there is no codestream.

    Raises:
        struct.error: the file ends within its first segment.
    """
    # A JP2 file wraps the codestream in boxes.
    begin = data.find(_BEGIN)
    if begin < 0:
        return None
    right, bottom, left, top = struct.unpack_from(">IIII", data, begin + 8)
    (count,) = struct.unpack_from(">H", data, begin + 40)
    parts = list(
        struct.iter_unpack("BBB", data[begin + 42 : begin + 42 + 3 * min(count, _MOST_COMPONENTS)])
    )
    if len(parts) < min(count, _MOST_COMPONENTS):
        raise struct.error("the segment is cut")
    return Jpeg2000Header(
        width_px=right - left,
        height_px=bottom - top,
        decoded_bytes=3 * (right - left) * (bottom - top),
        begin=begin,
        bits=tuple(1 + (depth & 0x7F) for depth, _, _ in parts),
        signed=tuple(depth > 0x7F for depth, _, _ in parts),
        is_subsampled=any(across != 1 or down != 1 for _, across, down in parts),
    )


def codestream(data: bytes, header: Jpeg2000Header) -> bytes | None:
    """The codestream without its boxes; None where its end is missing."""
    stream = data[header.begin :]
    if header.begin:
        end = stream.rfind(_END)
        return stream[: end + 2] if end > 0 else None
    return stream if stream.rstrip(b"\0").endswith(_END) else None
