"""What the first bytes of an image file say: its type, its pixels, and how far it expands.

    >>> sniff(data)
    'image/tiff'
    >>> read_header(data, "image/tiff")
    Header(width_px=3216, height_px=2136, decoded_bytes=20608128)

Standard library only, and nothing is decoded: a file is refused for its size before any memory
is taken for its pixels. What a header leaves out is left to the decoder, which refuses the file
as damaged.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from inference_image.contract import (
    MEDIA_BMP,
    MEDIA_DICOM,
    MEDIA_JPEG,
    MEDIA_PNG,
    MEDIA_TIFF,
    MEDIA_WEBP,
)
from inference_image.jpeg_headers import read_jpeg
from inference_image.photograph import Header, PhotographError

__all__ = ["MEDIA_JPEG2000", "Header", "PhotographError", "first_page", "read_header", "sniff"]

MEDIA_JPEG2000: Final = "image/jp2"
# Types beyond the accepted ones are recognised so that the refusal can name them.
_SIGNATURES: Final = (
    (0, b"\xff\xd8\xff", MEDIA_JPEG),
    (0, b"\x89PNG\r\n\x1a\n", MEDIA_PNG),
    # Before TIFF: a DICOM preamble may itself look like one.
    (128, b"DICM", MEDIA_DICOM),
    (0, b"GIF8", "image/gif"),
    (0, b"II*\0", MEDIA_TIFF),
    (0, b"MM\0*", MEDIA_TIFF),
    (0, b"II+\0", MEDIA_TIFF),
    (0, b"MM\0+", MEDIA_TIFF),
    (8, b"WEBP", MEDIA_WEBP),
    (0, b"\0\0\0\x0cjP  \r\n\x87\n", MEDIA_JPEG2000),
    (0, b"\xff\x4f\xff\x51", MEDIA_JPEG2000),
    (4, b"ftyphei", "image/heic"),
    (4, b"ftypmif1", "image/heic"),
    (4, b"ftypavif", "image/avif"),
    (0, b"%PDF-", "application/pdf"),
    (0, b"PK\x03\x04", "application/zip"),
    (0, b"\x1f\x8b", "application/gzip"),
    (0, b"\xd0\xcf\x11\xe0", "application/x-ole-storage"),
    (0, b"P6", "image/x-portable-pixmap"),
    (0, b"P5", "image/x-portable-graymap"),
    (0, b"<svg", "image/svg+xml"),
    (0, b"<?xml", "application/xml"),
)
_BMP_CORE_BYTES: Final = 12
_BMP_HEADER_SIZES: Final = frozenset({_BMP_CORE_BYTES, 40, 52, 56, 64, 108, 124})
# Encoders write pieces of 8 KiB or more; each chunk costs the reader the same, however small.
_MAX_SMALL_CHUNKS: Final = 1000
_PNG_CHUNK_BYTES: Final = 1024
_MOST_TIFF_ENTRIES: Final = 4096

# TIFF tags, TIFF 6.0 section 8 and 15 (adobe.com), and the sizes of its field types.
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _SAMPLES, _PLANES = 256, 257, 258, 259, 277, 284
_TILE_WIDTH, _TILE_HEIGHT, _SAMPLE_FORMAT = 322, 323, 339
_TIFF_TAGS: Final = frozenset(
    {_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _SAMPLES, _PLANES}
    | {_TILE_WIDTH, _TILE_HEIGHT, _SAMPLE_FORMAT}
)
# None, three kinds of fax, LZW, two of JPEG, two numbers for Deflate, PackBits, LZMA, Zstandard.
_TIFF_COMPRESSIONS: Final = frozenset({1, 2, 3, 4, 5, 6, 7, 8, 32773, 32946, 34925, 50000})
_SEPARATE_PLANES: Final = 2
_GREY_BITS: Final = frozenset({1, 2, 4, 8, 12, 16})
_COLOUR_BITS: Final = frozenset({8, 16})
_TIFF_NUMBERS: Final[Mapping[int, str]] = {1: "B", 3: "H", 4: "I", 16: "Q"}
_TIFF_SIZES: Final[Mapping[int, int]] = {
    **dict.fromkeys((1, 2, 6, 7), 1),
    **dict.fromkeys((3, 8), 2),
    **dict.fromkeys((4, 9, 11, 13), 4),
    **dict.fromkeys((5, 10, 12, 16, 17, 18), 8),
}
_MOST_SAMPLES: Final = 8
_UNSIGNED: Final = 1
_BMP_BITS: Final = (1, 4, 8, 16, 24, 32)
# None, two kinds of RLE, and masks that say where the colours lie.
_BMP_COMPRESSIONS: Final = frozenset({0, 1, 2, 3})
# A tile is decoded whole, also where the image is smaller than it.
_MOST_TILE_PX: Final = 1 << 22


def sniff(data: bytes) -> str | None:
    """Media type by the first bytes, or None where nothing is recognised."""
    for offset, signature, media_type in _SIGNATURES:
        if data.startswith(signature, offset):
            return media_type
    # "BM" alone also begins many an English sentence.
    if data.startswith(b"BM") and len(data) >= 18:
        return MEDIA_BMP if _u32(data, 14) in _BMP_HEADER_SIZES else None
    return None


def read_header(data: bytes, media_type: str) -> Header | None:
    """Size by the file's header; None where the header is not complete.

    Raises:
        PhotographError: 415 for a kind of JPEG, TIFF or BMP that is not accepted, 422 for a
            header that contradicts itself.
    """
    reader = _READERS.get(media_type)
    if reader is None:
        return None
    try:
        header = reader(data)
    except (struct.error, IndexError):
        return None
    if header is not None and (header.width_px < 1 or header.height_px < 1):
        raise PhotographError(
            422, f"The header says {header.width_px} x {header.height_px} pixels: it is damaged."
        )
    return header


def first_page(data: bytes) -> bytes:
    """A TIFF without the link from its first directory to a second one.

    Decoders follow the chain of pages to count them, and a hostile chain has millions.
    """
    try:
        directory = _directory(data)
        link = struct.calcsize("=" + directory.pointer)
        at = directory.entries + directory.count * directory.step
        if not any(data[at : at + link]):
            return data
    except struct.error:
        return data
    return data[:at] + bytes(link) + data[at + link :]


def _u16(data: bytes, position: int) -> int:
    return int.from_bytes(data[position : position + 2], "little")


def _u24(data: bytes, position: int) -> int:
    return int.from_bytes(data[position : position + 3], "little")


def _u32(data: bytes, position: int) -> int:
    return int.from_bytes(data[position : position + 4], "little")


def _rgb(width: int, height: int) -> Header:
    return Header(width_px=width, height_px=height, decoded_bytes=3 * width * height)


def _png(data: bytes) -> Header | None:
    width, height, bits, colour = struct.unpack_from(">IIBB", data, 16)
    left = _MAX_SMALL_CHUNKS + len(data) // _PNG_CHUNK_BYTES
    position = 8
    while position + 8 <= len(data):
        position += 12 + int(struct.unpack_from(">I", data, position)[0])
        left -= 1
        if left < 0:
            raise PhotographError(422, "The PNG cannot be decoded: it has too many chunks.")
    samples = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}.get(colour, 4)
    return Header(
        width_px=width, height_px=height, decoded_bytes=width * height * samples * bits // 8
    )


def _bmp(data: bytes) -> Header | None:
    if len(data) < 26:
        return None
    compression = 0
    if _u32(data, 14) == _BMP_CORE_BYTES:
        width, height, _, bits = struct.unpack_from("<4H", data, 18)
    else:
        # A negative height says that the rows run from top to bottom.
        width, height, _, bits, compression = struct.unpack_from("<iiHHI", data, 18)
        height = abs(height)
    if width < 1 or height < 1:
        return _rgb(width, height)
    if bits not in _BMP_BITS or compression not in _BMP_COMPRESSIONS:
        raise PhotographError(
            415,
            f"The BMP has {bits} bits per pixel and compression {compression}; accepted are "
            f"{', '.join(map(str, _BMP_BITS))} bits, uncompressed or RLE.",
        )
    return _rgb(width, height)


def _webp(data: bytes) -> Header | None:
    kind = data[12:16]
    if len(data) < 30:
        return None
    if kind == b"VP8X":
        return _rgb(1 + _u24(data, 24), 1 + _u24(data, 27))
    if kind == b"VP8L":
        bits = _u32(data, 21)
        return _rgb(1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF))
    if kind == b"VP8 ":
        return _rgb(_u16(data, 26) & 0x3FFF, _u16(data, 28) & 0x3FFF)
    return None


def _jpeg2000(data: bytes) -> Header | None:
    # A JP2 file wraps the codestream in boxes; its SIZ segment comes first (ISO 15444-1 A.5.1).
    position = data.find(b"\xff\x4f\xff\x51")
    if position < 0:
        return None
    right, bottom, left, top = struct.unpack_from(">IIII", data, position + 8)
    return _rgb(right - left, bottom - top)


@dataclass(frozen=True, kw_only=True)
class _Directory:
    """Where the first directory of a TIFF or BigTIFF lies and how to read it."""

    order: str
    entry: str
    pointer: str
    count: int
    entries: int

    @property
    def head(self) -> int:
        return struct.calcsize("=" + self.entry)

    @property
    def step(self) -> int:
        return self.head + struct.calcsize("=" + self.pointer)


def _directory(data: bytes) -> _Directory:
    order = "<" if data[:2] == b"II" else ">"
    big = data[2:4] in (b"+\0", b"\0+")
    entry, count_format, pointer = ("HHQ", "Q", "Q") if big else ("HHI", "H", "I")
    start = int(struct.unpack_from(order + pointer, data, 8 if big else 4)[0])
    if start > len(data):
        raise PhotographError(422, "The TIFF's directory is outside the file: it is truncated.")
    return _Directory(
        order=order,
        entry=entry,
        pointer=pointer,
        count=int(struct.unpack_from(order + count_format, data, start)[0]),
        entries=start + struct.calcsize("=" + count_format),
    )


def _tiff(data: bytes) -> Header | None:
    directory = _directory(data)
    order, head, step = directory.order, directory.head, directory.step
    if directory.count * step > len(data) or directory.count > _MOST_TIFF_ENTRIES:
        raise PhotographError(422, "The TIFF's directory is longer than the file: it is damaged.")
    end = directory.entries + directory.count * step
    fields: dict[int, tuple[int, ...]] = {}
    for entry in range(directory.entries, end, step):
        tag, kind, length = struct.unpack_from(order + directory.entry, data, entry)
        size = length * _TIFF_SIZES.get(kind, 1)
        if size > len(data):
            raise PhotographError(
                422, f"The TIFF's tag {tag} is longer than the file: it is damaged."
            )
        if tag in _TIFF_TAGS and kind in _TIFF_NUMBERS and length:
            at = entry + head
            if size > step - head and at + step - head <= len(data):
                at = int(struct.unpack_from(order + directory.pointer, data, at)[0])
            shown = min(length, _MOST_SAMPLES)
            fields[tag] = struct.unpack_from(f"{order}{shown}{_TIFF_NUMBERS[kind]}", data, at)
    if _WIDTH not in fields or _HEIGHT not in fields:
        return None
    return _tiff_header(fields, order)


def _tiff_header(fields: Mapping[int, tuple[int, ...]], order: str) -> Header:
    width, height = fields[_WIDTH][0], fields[_HEIGHT][0]
    bits, samples = max(fields.get(_BITS, (1,))), fields.get(_SAMPLES, (1,))[0]
    if any(kind != _UNSIGNED for kind in fields.get(_SAMPLE_FORMAT, ())) or bits > 16:
        # Nothing says which of their values is black and which is white.
        raise PhotographError(
            415,
            "The TIFF has signed, floating-point or more than 16-bit samples; accepted are "
            "unsigned samples of at most 16 bits.",
        )
    if samples > _MOST_SAMPLES:
        raise PhotographError(
            415, f"The TIFF has {samples} samples per pixel; at most {_MOST_SAMPLES} are accepted."
        )
    compression = fields.get(_COMPRESSION, (1,))[0]
    if compression not in _TIFF_COMPRESSIONS:
        raise PhotographError(
            415,
            f"The TIFF's compression {compression} is not accepted; accepted are none, LZW, "
            "Deflate, JPEG, PackBits, fax, LZMA and Zstandard.",
        )
    planes = fields.get(_PLANES, (1,))[0] == _SEPARATE_PLANES
    if not _is_known_layout(samples, bits, planes=planes, order=order):
        raise PhotographError(
            415,
            f"The TIFF has {samples} samples of {bits} bits{' in planes' if planes else ''}; "
            "accepted are grey of 1, 2, 4, 8, 12 (little-endian) or 16 bits, palettes, and "
            "colours of 8 or 16 bits.",
        )
    tile_px = fields.get(_TILE_WIDTH, (0,))[0] * fields.get(_TILE_HEIGHT, (0,))[0]
    if tile_px > max(_MOST_TILE_PX, 4 * width * height):
        raise PhotographError(422, "The TIFF's tiles are larger than its image: it is damaged.")
    return Header(
        width_px=width, height_px=height, decoded_bytes=width * height * samples * bits // 8
    )


def _is_known_layout(samples: int, bits: int, *, planes: bool, order: str) -> bool:
    """Whether the decoder knows samples that lie so."""
    if samples == 1:
        return bits in _GREY_BITS and (bits != 12 or order == "<")
    if samples == 2:
        # Grey and alpha.
        return bits == 8 and not planes
    return bits in _COLOUR_BITS


_READERS: Final[Mapping[str, Callable[[bytes], Header | None]]] = {
    MEDIA_JPEG: read_jpeg,
    MEDIA_PNG: _png,
    MEDIA_TIFF: _tiff,
    MEDIA_WEBP: _webp,
    MEDIA_BMP: _bmp,
    MEDIA_JPEG2000: _jpeg2000,
}
