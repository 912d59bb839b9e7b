"""Reads the size of a WebP, and whether its first picture is stored with or without loss.

    >>> header = read_webp(data)
    >>> header.width_px, header.height_px, header.lossy
    (3216, 2136, True)

Standard library only. Source: RFC 9649, section 2, and RFC 6386, section 9.1.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from inference_image.photograph import Header

_FIRST_CHUNK: Final = 12
_LEAST_BYTES: Final = 30
_LOSSY, _LOSSLESS, _EXTENDED, _FRAME = b"VP8 ", b"VP8L", b"VP8X", b"ANMF"
# Where the chunks of a frame begin: behind its place, size, duration and flags.
_FRAME_BYTES: Final = 16
# In front of a picture stand at most a profile, the animation's background, a frame and an alpha.
_MOST_CHUNKS: Final = 100
_SIDE: Final = 0x3FFF


@dataclass(frozen=True, kw_only=True)
class WebpHeader(Header):
    """Also whether the pixels are stored with loss, so that they may expand without a bound.

    An animation counts as such where its first picture covers the canvas.
    """

    lossy: bool


def read_webp(data: bytes) -> WebpHeader | None:
    """Size and kind; None where there is no picture.

    Raises:
        struct.error: the file ends within its header.
    """
    if len(data) < _LEAST_BYTES:
        return None
    kind, body = data[_FIRST_CHUNK : _FIRST_CHUNK + 4], _FIRST_CHUNK + 8
    if kind == _EXTENDED:
        width, height = 1 + _u24(data, body + 4), 1 + _u24(data, body + 7)
        return _header(width, height, lossy=_lossy_size(data) == (width, height))
    if kind == _LOSSLESS:
        (bits,) = struct.unpack_from("<I", data, body + 1)
        return _header(1 + (bits & _SIDE), 1 + (bits >> 14 & _SIDE), lossy=False)
    if kind == _LOSSY:
        return _header(*_key_frame(data, body), lossy=True)
    return None


def _header(width: int, height: int, *, lossy: bool) -> WebpHeader:
    return WebpHeader(
        width_px=width, height_px=height, decoded_bytes=3 * width * height, lossy=lossy
    )


def _lossy_size(data: bytes) -> tuple[int, int] | None:
    """Size of the first picture of an extended file; None where it is not lossy."""
    for kind, body in _chunks(data):
        if kind == _LOSSY:
            return _key_frame(data, body)
        if kind == _LOSSLESS:
            break
    return None


def _chunks(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Type and where the body starts, also of the chunks within a frame."""
    position = _FIRST_CHUNK
    for _ in range(_MOST_CHUNKS):
        if position + 18 > len(data):
            return
        kind, size = struct.unpack_from("<4sI", data, position)
        yield kind, position + 8
        position += 8 + (_FRAME_BYTES if kind == _FRAME else size + size % 2)


def _key_frame(data: bytes, body: int) -> tuple[int, int]:
    width, height = struct.unpack_from("<HH", data, body + 6)
    return width & _SIDE, height & _SIDE


def _u24(data: bytes, position: int) -> int:
    return int.from_bytes(data[position : position + 3], "little")
