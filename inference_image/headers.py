"""What the first bytes of an image file say: its type, its pixels, and how far it expands.

    >>> sniff(data)
    'image/tiff'
    >>> read_header(data, "image/tiff")
    Header(width_px=3216, height_px=2136, decoded_bytes=20608128)

Standard library only, and nothing is decoded: a file is refused for its size before any memory
is taken for its pixels. What a header leaves out is left to the decoder, which refuses the file
as damaged.
"""

import re
import struct
from collections.abc import Callable, Mapping
from typing import Final

from inference_image.bmp_headers import CORE_BYTES, read_bmp
from inference_image.contract import (
    MEDIA_BMP,
    MEDIA_DICOM,
    MEDIA_JPEG,
    MEDIA_PNG,
    MEDIA_TIFF,
    MEDIA_WEBP,
)
from inference_image.jpeg2000_headers import read_jpeg2000
from inference_image.jpeg_headers import read_jpeg
from inference_image.photograph import Header, PhotographError
from inference_image.png_headers import read_png
from inference_image.tiff_headers import read_tiff
from inference_image.webp_headers import read_webp

__all__ = ["MEDIA_JPEG2000", "Header", "PhotographError", "read_header", "sniff"]

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
    (0, b"%PDF-", "application/pdf"),
    (0, b"PK\x03\x04", "application/zip"),
    (0, b"\x1f\x8b", "application/gzip"),
    (0, b"\xd0\xcf\x11\xe0", "application/x-ole-storage"),
    (0, b"P6", "image/x-portable-pixmap"),
    (0, b"P5", "image/x-portable-graymap"),
)
# What begins with a box "ftyp": its brands (ISO 14496-12 4.3; ISO 23008-12, annexes B and E; AVIF).
# Also the general "mif1" and "msf1" are HEIC, unless an AVIF brand stands beside them.
_AVIF_BRANDS: Final = frozenset({b"avif", b"avis"})
_HEIC_BRANDS: Final = frozenset(
    {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"}
)
_MOST_BRANDS: Final = 64
# Texts may begin with a byte order mark, white space, comments or a DOCTYPE; a PDF with anything.
_TEXT_BYTES: Final = 1024
_COMMENT: Final = rb"<!--(?:(?!-->).)*-->"
_SVG: Final = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:(?:"
    + _COMMENT
    + rb"|<\?[^>]*>|<!DOCTYPE\s+svg[^>]*>)\s*)*<svg[\s>/]",
    re.DOTALL | re.IGNORECASE,
)
_XML: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml\s|<!--|<!DOCTYPE\s)", re.IGNORECASE)
_BMP_HEADER_SIZES: Final = frozenset({CORE_BYTES, 40, 52, 56, 64, 108, 124})


def sniff(data: bytes) -> str | None:
    """Media type by the first bytes, or None where nothing is recognised."""
    for offset, signature, media_type in _SIGNATURES:
        if data.startswith(signature, offset):
            return media_type
    # "BM" alone also begins many an English sentence.
    if data.startswith(b"BM") and len(data) >= 18:
        return MEDIA_BMP if _u32(data, 14) in _BMP_HEADER_SIZES else None
    return _container(data) or _text(data[:_TEXT_BYTES])


def _container(data: bytes) -> str | None:
    """Type by the brands of an ISO media file."""
    if data[4:8] != b"ftyp":
        return None
    size = min(int.from_bytes(data[:4]), 16 + 4 * _MOST_BRANDS)
    brands = {data[8:12], *(data[at : at + 4] for at in range(16, size, 4))}
    if brands & _AVIF_BRANDS:
        return "image/avif"
    return "image/heic" if brands & _HEIC_BRANDS else "video/mp4"


def _text(begin: bytes) -> str | None:
    """Type of a document that does not begin with its signature."""
    if b"%PDF-" in begin:
        return "application/pdf"
    if begin.startswith((b"\xff\xfe<\0", b"\xfe\xff\0<")):
        begin = begin.decode("utf-16", errors="ignore").encode()
    if _SVG.match(begin):
        return "image/svg+xml"
    return "application/xml" if _XML.match(begin) else None


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


def _u32(data: bytes, position: int) -> int:
    return int.from_bytes(data[position : position + 4], "little")


_READERS: Final[Mapping[str, Callable[[bytes], Header | None]]] = {
    MEDIA_JPEG: read_jpeg,
    MEDIA_PNG: read_png,
    MEDIA_TIFF: read_tiff,
    MEDIA_WEBP: read_webp,
    MEDIA_BMP: read_bmp,
    MEDIA_JPEG2000: read_jpeg2000,
}
