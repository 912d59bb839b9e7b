"""Turns the bytes of a photograph into upright 8-bit RGB, within limits.

    >>> decoded = decode(data, declared_type="image/jpeg", limits=Limits(), min_side_px=500)
    >>> decoded.image.mode, decoded.media_type
    ('RGB', 'image/jpeg')

The type is sniffed from the bytes. Bytes and pixels are bounded from the header, before
anything is decoded. A camera's JPEG is decoded at a reduced DCT scale where the caller says
how small it may become: full decoding of 3216 x 2136 pixels costs many times the network.
EXIF orientation is applied, alpha is composited on black (the colour around a fundus disc),
16-bit samples are scaled and never clipped.
"""

import io
import re
import struct
import warnings
from dataclasses import dataclass
from typing import Final

import numpy as np
from PIL import Image

from inference_image.contract import ACCEPTED_IMAGE_TYPES, MEDIA_JPEG, MEDIA_OPAQUE, MEDIA_PNG

DEFAULT_MAX_IMAGE_BYTES: Final = 25 * 1024 * 1024
# Fundus cameras reach 24 megapixels, phones 50; Pillow itself warns above 89.
DEFAULT_MAX_IMAGE_PIXELS: Final = 60_000_000
# A picture of one row or column is no photograph, and costs a resampling out of proportion.
MAX_SIDE_PX: Final = 20_000
_PILLOW_FORMATS: Final = {MEDIA_JPEG: "JPEG", MEDIA_PNG: "PNG"}
# "image/jpg" and "image/pjpeg" are common slips for the registered name.
_ALIASES: Final = {"image/jpg": MEDIA_JPEG, "image/pjpeg": MEDIA_JPEG, "image/x-png": MEDIA_PNG}
_EXIF_ORIENTATION: Final = 0x0112
_TRANSPOSE: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# Types that are recognised so that the refusal can name them.
_SIGNATURES: Final = (
    (0, b"\xff\xd8\xff", MEDIA_JPEG),
    (0, b"\x89PNG\r\n\x1a\n", MEDIA_PNG),
    # Before TIFF: a DICOM preamble may itself look like one.
    (128, b"DICM", "application/dicom"),
    (0, b"GIF8", "image/gif"),
    (0, b"II*\0", "image/tiff"),
    (0, b"MM\0*", "image/tiff"),
    (0, b"II+\0", "image/tiff"),
    (0, b"MM\0+", "image/tiff"),
    (8, b"WEBP", "image/webp"),
    (0, b"BM", "image/bmp"),
    (0, b"\0\0\0\x0cjP  \r\n\x87\n", "image/jp2"),
    (0, b"\xff\x4f\xff\x51", "image/jp2"),
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
_SOF_MARKERS: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SOS: Final = 0xDA
_EOI: Final = 0xD9
# Markers that no length follows: stuffing, TEM, RST0-7, SOI.
_BARE_MARKERS: Final = frozenset({0x00, 0x01, *range(0xD0, 0xD9)})
# In compressed data FF is followed by 00, by a restart marker or by another FF.
_NEXT_MARKER: Final = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
_MAX_FILL_BYTES: Final = 16
_MAX_SEGMENTS: Final = 1000
# Each scan of a JPEG goes over the whole picture again, also an empty one of ten bytes. Cameras
# write one, progressive files ten; the product keeps a large picture below seconds.
_MAX_SCANS: Final = 100
_MAX_SCANNED_PIXELS: Final = 1_200_000_000
# Encoders write pieces of 8 KiB or more; each chunk costs the reader the same, however small.
_MAX_SMALL_CHUNKS: Final = 1000
_PNG_CHUNK_BYTES: Final = 1024
# Rows that are converted at a time, so that a large picture has no large intermediate.
_BAND_ROWS: Final = 64


class PhotographError(ValueError):
    """A picture that cannot be used: HTTP status and one sentence for the sender."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds on one picture: encoded bytes, and pixels as its header states them."""

    max_bytes: int = DEFAULT_MAX_IMAGE_BYTES
    max_pixels: int = DEFAULT_MAX_IMAGE_PIXELS


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """An upright RGB picture; `scale` is its size relative to the file's (1 = full size)."""

    image: Image.Image
    media_type: str
    source_width_px: int
    source_height_px: int
    scale: float


def sniff(data: bytes) -> str | None:
    """Media type by the first bytes, or None where nothing is recognised."""
    for offset, signature, media_type in _SIGNATURES:
        if data.startswith(signature, offset):
            return media_type
    return None


def decode(
    data: bytes,
    *,
    declared_type: str | None = None,
    limits: Limits | None = None,
    min_side_px: int | None = None,
) -> Decoded:
    """Decode one JPEG or PNG.

    Args:
        data: the whole file.
        declared_type: media type that the sender claims, without parameters; None, or one of
            `MEDIA_OPAQUE`, claims nothing.
        limits: bounds; the defaults of `Limits` when omitted.
        min_side_px: a JPEG may be decoded at 1/2, 1/4 or 1/8 as long as its shorter side keeps
            at least this many pixels; None decodes at full size.

    Raises:
        PhotographError: 400 empty, 413 over a limit, 415 another type than declared or accepted,
            422 not decodable.
    """
    bounds = limits or Limits()
    if not data:
        raise PhotographError(400, "The image is empty: the request carried 0 bytes.")
    if len(data) > bounds.max_bytes:
        raise PhotographError(
            413, f"The image has {len(data)} bytes; at most {bounds.max_bytes} are accepted."
        )
    media_type = _check_type(data, declared_type)
    if media_type == MEDIA_PNG:
        _check_png(data, bounds)
    else:
        _check_jpeg(data, bounds)
    try:
        # Pillow's warnings quote what it found in the metadata, which may be about a person,
        # and are of no use to whoever reads the log.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _decode(data, media_type, bounds, min_side_px)
    except PhotographError:
        raise
    except Exception as error:
        # Decoders raise whatever the damaged bytes lead them to (OSError, SyntaxError,
        # ValueError, struct.error, ...), and none of it is a fault of the service.
        raise _damaged(media_type) from error


def _damaged(media_type: str) -> PhotographError:
    name = _PILLOW_FORMATS[media_type]
    return PhotographError(422, f"The {name} cannot be decoded: it is truncated or damaged.")


def _check_type(data: bytes, declared_type: str | None) -> str:
    declared = (declared_type or "").strip().lower()
    declared = _ALIASES.get(declared, declared)
    accepted = ", ".join(ACCEPTED_IMAGE_TYPES)
    found = sniff(data)
    if found is None:
        raise PhotographError(
            422, f"The bytes are not an image that is known here; accepted are {accepted}."
        )
    if found not in ACCEPTED_IMAGE_TYPES:
        raise PhotographError(415, f"The bytes are {found}; accepted are {accepted}.")
    if declared and declared not in MEDIA_OPAQUE and declared != found:
        raise PhotographError(
            415,
            f"The request declares {declared[:99]}, but the bytes are {found}; send the true type.",
        )
    return found


def _check_pixels(size: tuple[int, int], bounds: Limits) -> None:
    width, height = size
    if width * height > bounds.max_pixels:
        raise PhotographError(
            413,
            f"The image has {width} x {height} pixels; at most {bounds.max_pixels} pixels are "
            "accepted.",
        )
    if max(width, height) > MAX_SIDE_PX:
        raise PhotographError(
            413,
            f"The image has {width} x {height} pixels; a side may have at most {MAX_SIDE_PX}.",
        )


def _check_png(data: bytes, bounds: Limits) -> None:
    """Refuse by the header and by the number of chunks, before anything is decoded."""
    if len(data) >= 24:
        _check_pixels(struct.unpack(">II", data[16:24]), bounds)
    left = _MAX_SMALL_CHUNKS + len(data) // _PNG_CHUNK_BYTES
    position = 8
    while position + 8 <= len(data):
        position += 12 + int(struct.unpack_from(">I", data, position)[0])
        left -= 1
        if left < 0:
            raise PhotographError(422, "The PNG cannot be decoded: it has too many chunks.")


def _check_jpeg(data: bytes, bounds: Limits) -> None:
    """Refuse by the header and by the number of scans, before anything is decoded."""
    size, position = _jpeg_header(data, bounds)
    scans = segments = 0
    while True:
        # At a SOS marker or another one after it.
        if data[position + 1] == _SOS:
            scans += 1
            if scans > _MAX_SCANS or scans * size[0] * size[1] > _MAX_SCANNED_PIXELS:
                raise PhotographError(
                    422, f"The JPEG cannot be decoded: it has {scans} scans or more, too many."
                )
        if data[position + 1] == _EOI or position + 4 > len(data):
            return
        if data[position + 1] in _BARE_MARKERS:
            position += 2
        else:
            position += 2 + int(struct.unpack_from(">H", data, position + 2)[0])
        found = _NEXT_MARKER.search(data, position)
        segments += 1
        if segments > _MAX_SEGMENTS:
            raise _damaged(MEDIA_JPEG)
        if found is None:
            return
        position = found.start()


def _jpeg_header(data: bytes, bounds: Limits) -> tuple[tuple[int, int], int]:
    """Width and height, within bounds, and where the first scan begins."""
    size: tuple[int, int] | None = None
    position = 2
    for _ in range(_MAX_SEGMENTS):
        # Some writers pad between segments, with FF or with other bytes.
        end = position + _MAX_FILL_BYTES
        while position < end and data.startswith(b"\xff\xff", position):
            position += 1
        position = data.find(b"\xff", position, end + 1)
        if position < 0 or position + 4 > len(data):
            break
        marker = data[position + 1]
        if marker == _SOS and size is not None:
            return size, position
        if marker in _SOF_MARKERS and position + 9 <= len(data):
            height, width = struct.unpack_from(">HH", data, position + 5)
            size = (width, height)
            _check_pixels(size, bounds)
        if marker in _BARE_MARKERS:
            position += 2
        else:
            position += 2 + int(struct.unpack_from(">H", data, position + 2)[0])
    raise _damaged(MEDIA_JPEG)


def _decode(data: bytes, media_type: str, bounds: Limits, min_side_px: int | None) -> Decoded:
    image: Image.Image = Image.open(io.BytesIO(data), formats=[_PILLOW_FORMATS[media_type]])
    _check_pixels(image.size, bounds)
    width, height = image.size
    if min_side_px is not None and media_type == MEDIA_JPEG:
        image.draft(image.mode, (min_side_px, min_side_px))
    image.load()
    scale = image.width / width
    orientation = _orientation(image)
    upright = _to_rgb(image)
    if orientation in _TRANSPOSE:
        upright = upright.transpose(_TRANSPOSE[orientation])
        if orientation >= 5:
            width, height = height, width
    return Decoded(
        image=upright,
        media_type=media_type,
        source_width_px=width,
        source_height_px=height,
        scale=scale,
    )


def _orientation(image: Image.Image) -> int:
    if not ("exif" in image.info or "xmp" in image.info or "Raw profile type exif" in image.info):
        return 1
    try:
        return int(image.getexif().get(_EXIF_ORIENTATION, 1))
    except Exception:  # noqa: BLE001
        # A broken EXIF block says nothing about the picture, which is whole: it stays as it is.
        return 1


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I"):
        # Pillow's own conversion clips 16 bits at 255 and turns a photograph white.
        grey = Image.new("RGB", image.size)
        for top in range(0, image.height, _BAND_ROWS):
            band = image.crop((0, top, image.width, min(top + _BAND_ROWS, image.height)))
            samples = np.clip(np.asarray(band), 0, 65_535).astype(np.uint32)
            scaled = ((samples + 128) // 257).astype(np.uint8)
            grey.paste(Image.fromarray(scaled).convert("RGB"), (0, top))
        return grey
    if "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "La", "RGBa"):
        layered = image if image.mode == "RGBA" else image.convert("RGBA")
        black = Image.new("RGB", layered.size)
        black.paste(layered, mask=layered.getchannel("A"))
        return black
    return image.convert("RGB")
