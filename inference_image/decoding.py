"""Turns the bytes of a photograph into upright 8-bit RGB, within limits.

    >>> decoded = decode(data, declared_type="image/jpeg", limits=Limits(), min_side_px=500)
    >>> decoded.image.mode, decoded.media_type
    ('RGB', 'image/jpeg')

The type is sniffed from the bytes. Bytes and pixels are bounded from the header, before
anything is decoded. A camera's JPEG is decoded at a reduced DCT scale where the caller says
how small it may become: full decoding of 3216 x 2136 pixels costs many times the network.
EXIF orientation is applied, alpha is composited on black (the colour around a fundus disc),
16-bit samples are scaled and never clipped, and an RGB profile other than sRGB is converted.
Of a file with several pages or frames the first is taken. `docs/formats.md` lists it all.

Decoders beyond JPEG and PNG are imported when the first such file arrives.
"""

import functools
import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from PIL import Image, ImageChops, UnidentifiedImageError

from inference_image.bmp_headers import BmpHeader
from inference_image.colour import from_gamma, to_srgb
from inference_image.contract import (
    ACCEPTED_IMAGE_TYPES,
    MEDIA_BMP,
    MEDIA_DICOM,
    MEDIA_JPEG,
    MEDIA_OPAQUE,
    MEDIA_PNG,
    MEDIA_TIFF,
    MEDIA_WEBP,
    Acquisition,
)
from inference_image.headers import (
    MEDIA_JPEG2000,
    Header,
    PhotographError,
    read_header,
    sniff,
)
from inference_image.jpeg2000_headers import Jpeg2000Header, codestream
from inference_image.jpeg_data import open_jpeg
from inference_image.jpeg_headers import JpegHeader
from inference_image.libtiff import silence_libtiff
from inference_image.png_data import low_bytes, open_png
from inference_image.png_headers import PngHeader
from inference_image.tiff_headers import TiffHeader, first_page
from inference_image.webp_headers import WebpHeader

if TYPE_CHECKING:
    from inference_image.dicom import DicomPhotograph

__all__ = ["MAX_SIDE_PX", "Decoded", "Limits", "PhotographError", "decode", "measure", "sniff"]

DEFAULT_MAX_IMAGE_BYTES: Final = 25 * 1024 * 1024
# Fundus cameras reach 24 megapixels, phones 50; Pillow itself warns above 89.
DEFAULT_MAX_IMAGE_PIXELS: Final = 60_000_000
# A picture of one row or column is no photograph, and costs a resampling out of proportion.
MAX_SIDE_PX: Final = 20_000
# Decoded bytes for one encoded byte, beyond which a large file without loss is a bomb. A photograph
# has at most some tens, with its black corners; a blank one is refused from 16 megapixels on. With
# loss, a large photograph may have some hundreds.
_MOST_EXPANSION: Final = 250
_EXPANSION_FROM_BYTES: Final = 48_000_000
# Rows that are converted at a time, so that a large picture has no large intermediate.
_BAND_ROWS: Final = 64
_PILLOW_FORMATS: Final[Mapping[str, str]] = {
    MEDIA_JPEG: "JPEG",
    MEDIA_PNG: "PNG",
    MEDIA_TIFF: "TIFF",
    MEDIA_WEBP: "WEBP",
    MEDIA_BMP: "BMP",
    MEDIA_JPEG2000: "JPEG2000",
}
_NAMES: Final[Mapping[str, str]] = {**_PILLOW_FORMATS, MEDIA_DICOM: "DICOM"}
# Pillow imports all of its decoders for the first file that is not of the common types.
_PLUGINS: Final[Mapping[str, str]] = {
    MEDIA_TIFF: "PIL.TiffImagePlugin",
    MEDIA_WEBP: "PIL.WebPImagePlugin",
    MEDIA_JPEG2000: "PIL.Jpeg2KImagePlugin",
}
_ACCEPTED: Final = ", ".join(ACCEPTED_IMAGE_TYPES)
# "image/jpg" and "image/pjpeg" are common slips for the registered name.
_ALIASES: Final = {
    "image/jpg": MEDIA_JPEG,
    "image/pjpeg": MEDIA_JPEG,
    "image/x-png": MEDIA_PNG,
    "image/tif": MEDIA_TIFF,
    "image/x-tiff": MEDIA_TIFF,
    "image/x-bmp": MEDIA_BMP,
    "image/x-ms-bmp": MEDIA_BMP,
}
_COLOUR_BITS: Final = 8
# The names of components that a decoder takes for RGB, where no marker says what they are.
_RGB_NAMES: Final = b"RGB"
_EXIF_ORIENTATION: Final = 0x0112
_TIFF_BITS, _TIFF_PHOTOMETRIC = 258, 262
_WHITE_IS_ZERO: Final = 0
# A camera writes some tens of entries; each costs the reader some microseconds.
_MOST_EXIF_ENTRIES: Final = 1000
_EXIF_PREFIX: Final = b"Exif\0\0"
# Where a PNG says that it is grey.
_PNG_COLOUR, _PNG_GREY = 25, 0
_WIDE_BITS: Final = 16
_TRANSPOSE: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds on one picture: encoded bytes, and pixels as its header states them."""

    max_bytes: int = DEFAULT_MAX_IMAGE_BYTES
    max_pixels: int = DEFAULT_MAX_IMAGE_PIXELS


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """An upright RGB picture; `scale` is its size relative to the file's (1 = full size).

    `acquisition` is what a DICOM file says about the photograph; None for other types.
    """

    image: Image.Image
    media_type: str
    source_width_px: int
    source_height_px: int
    scale: float
    acquisition: Acquisition | None = None


def measure(
    data: bytes, *, declared_type: str | None = None, limits: Limits | None = None
) -> tuple[int, int] | None:
    """Width and height by the header, without decoding; None where it is not complete.

    Raises:
        PhotographError: as `decode` does for what the header alone shows.
    """
    header = _admit(data, declared_type, limits or Limits())[1]
    return None if header is None else (header.width_px, header.height_px)


def decode(
    data: bytes,
    *,
    declared_type: str | None = None,
    limits: Limits | None = None,
    min_side_px: int | None = None,
) -> Decoded:
    """Decode one file of an accepted type.

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
    media_type, header, dicom = _admit(data, declared_type, bounds)
    # Pillow's warnings quote what it found in the metadata, which may be about a person,
    # and are of no use to whoever reads the log.
    with _refusals_only(_NAMES[media_type]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dicom is not None:
            return _decode_dicom(dicom, bounds, min_side_px)
        return _decode(data, media_type, header, bounds, min_side_px)


@contextmanager
def _refusals_only(name: str) -> Iterator[None]:
    """Let nothing out but PhotographError; what else was raised is its cause."""
    try:
        yield
    except PhotographError:
        raise
    except Exception as error:
        # Decoders and readers of headers raise whatever the damaged bytes lead them to (OSError,
        # SyntaxError, OverflowError, struct.error, ...), and none of it is a fault of the service.
        raise PhotographError(
            422, f"The {name} cannot be decoded: it is truncated or damaged."
        ) from error


def _admit(
    data: bytes, declared_type: str | None, bounds: Limits
) -> "tuple[str, Header | None, DicomPhotograph | None]":
    """Type and header of a file that is within the limits; nothing is decoded."""
    if not data:
        raise PhotographError(400, "The image is empty: the request carried 0 bytes.")
    if len(data) > bounds.max_bytes:
        raise PhotographError(
            413, f"The image has {len(data)} bytes; at most {bounds.max_bytes} are accepted."
        )
    with _refusals_only("image"):
        media_type = _check_type(data, declared_type)
    with _refusals_only(_NAMES[media_type]):
        dicom = None
        if media_type == MEDIA_DICOM:
            from inference_image.dicom import read_dicom

            dicom = read_dicom(data)
            header: Header | None = dicom.header
            encoded, encoding = dicom.frame, dicom.media_type
        else:
            header, encoded, encoding = read_header(data, media_type), data, media_type
        if header is not None:
            _check_pixels((header.width_px, header.height_px), bounds)
            if encoding is not None:
                _check_expansion(header, encoded, encoding)
    return media_type, header, dicom


def _check_expansion(header: Header, encoded: bytes, media_type: str) -> None:
    # A JPEG is decoded as small as the model allows, and cannot expand much further. A lossy WebP
    # can, but its pixels are bounded, and a blank one costs no more than a photograph of its size.
    lossy = media_type == MEDIA_JPEG or (isinstance(header, WebpHeader) and header.lossy)
    if lossy or header.decoded_bytes < _EXPANSION_FROM_BYTES:
        return
    if header.decoded_bytes > _MOST_EXPANSION * len(encoded):
        raise PhotographError(
            413,
            f"The image's {len(encoded)} bytes expand to {header.decoded_bytes}, more than "
            f"{_MOST_EXPANSION} times; no photograph does.",
        )


def _check_type(data: bytes, declared_type: str | None) -> str:
    declared = (declared_type or "").strip().lower()
    declared = _ALIASES.get(declared, declared)
    found = sniff(data)
    if found is None:
        raise PhotographError(
            422, f"The bytes are not an image that is known here; accepted are {_ACCEPTED}."
        )
    if found not in ACCEPTED_IMAGE_TYPES:
        raise PhotographError(415, f"The bytes are {found}; accepted are {_ACCEPTED}.")
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


def _open(data: bytes, media_type: str, header: Header | None) -> Image.Image:
    if isinstance(header, JpegHeader):
        return open_jpeg(data, header)
    if isinstance(header, PngHeader):
        return open_png(data, header)
    if isinstance(header, BmpHeader) and header.masks is not None:
        from inference_image.bmp_data import open_masked

        return open_masked(data, header, header.masks)
    if media_type in _PLUGINS:
        import_module(_PLUGINS[media_type])
    return Image.open(io.BytesIO(data), formats=[_PILLOW_FORMATS[media_type]])


def _open_tiff(data: bytes, header: TiffHeader) -> Image.Image:
    from PIL import TiffImagePlugin

    header.check_data(data)
    # The only kind of grey that is missing in its list. `_white_is_zero` turns it around.
    TiffImagePlugin.OPEN_INFO[(b"MM", 0, (1,), 1, (16,), ())] = ("I;16B", "I;16B")
    page = first_page(data)
    # Pillow's own reader of uncompressed planes knows 8-bit samples only, and takes those of 16
    # bits for two pixels each, without a word; it knows no colours that pixels share, and makes all
    # YCbCr a level too dark. The library that reads the others knows all.
    before, TiffImagePlugin.READ_LIBTIFF = TiffImagePlugin.READ_LIBTIFF, header.is_strange
    try:
        image = _open(page, MEDIA_TIFF, None)
    except UnidentifiedImageError:
        # The directory has been read before, and was whole.
        raise PhotographError(
            415,
            "The TIFF's samples lie in a way that is not accepted: their photometric "
            "interpretation, extra samples and order of bits do not go together here.",
        ) from None
    finally:
        TiffImagePlugin.READ_LIBTIFF = before
    silence_libtiff()
    return image


def _decode(
    data: bytes, media_type: str, header: Header | None, bounds: Limits, min_side_px: int | None
) -> Decoded:
    if isinstance(header, TiffHeader):
        image = _open_tiff(data, header)
    else:
        image = _open(data, media_type, header)
    _check_pixels(image.size, bounds)
    width, height = image.size
    if min_side_px is not None and isinstance(header, JpegHeader) and not header.lossless:
        image.draft(image.mode, (min_side_px, min_side_px))
    white_is_zero = media_type == MEDIA_TIFF and _white_is_zero(image)
    image.load()
    if media_type == MEDIA_WEBP:
        # It holds two more canvases, for the pictures that follow: eight bytes for each pixel.
        image._decoder = None  # type: ignore[attr-defined]  # noqa: SLF001
    if isinstance(header, PngHeader):
        _apply_transparent_value(image, data, header)
    scale = image.width / width
    # Of a TIFF, Pillow itself applies the orientation.
    orientation = 1 if media_type == MEDIA_TIFF else _orientation(image)
    upright = _to_rgb(image, white_is_zero=white_is_zero)
    if image.mode in ("RGB", "RGBA", "P", "PA"):
        upright = to_srgb(upright, image.info.get("icc_profile"))
    if isinstance(header, PngHeader) and not {"icc_profile", "srgb"} & image.info.keys():
        upright = from_gamma(upright, image.info.get("gamma"))
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


def _decode_dicom(dicom: "DicomPhotograph", bounds: Limits, min_side_px: int | None) -> Decoded:
    from inference_image.dicom import finish_grey, raw_picture

    size = dicom.columns_px, dicom.rows_px
    if dicom.media_type is None:
        image = raw_picture(dicom)
    else:
        embedded = read_header(dicom.frame, dicom.media_type)
        if embedded is None or (embedded.width_px, embedded.height_px) != size:
            raise PhotographError(
                422, "The DICOM and the image inside it differ in size, or the latter is damaged."
            )
        if isinstance(embedded, JpegHeader):
            image = _from_jpeg(embedded, dicom, min_side_px)
        elif isinstance(embedded, Jpeg2000Header):
            image = _from_jpeg2000(embedded, dicom)
        if dicom.samples == 1:
            image = finish_grey(_to_rgb(image).convert("L"), dicom.photometric)
    if dicom.samples > 1 or dicom.photometric == "PALETTE COLOR":
        image = to_srgb(image, dicom.icc_profile)
    spacing = dicom.pixel_spacing_mm
    return Decoded(
        image=image,
        media_type=MEDIA_DICOM,
        source_width_px=size[0],
        source_height_px=size[1],
        scale=image.width / size[0],
        acquisition={
            "pixel_spacing_mm": None if spacing is None else list(spacing),
            "laterality": dicom.laterality,
        },
    )


def _check_components(dicom: "DicomPhotograph", components: int) -> None:
    """Raise for a number that is not the DICOM's, and for indices that became something else."""
    if dicom.photometric == "PALETTE COLOR":
        raise PhotographError(
            415, "The DICOM's PALETTE COLOR is compressed, which is not accepted; send it raw."
        )
    if components != dicom.samples:
        raise PhotographError(
            422,
            f"The DICOM says {dicom.samples} samples per pixel, and the image inside it has "
            f"{components}: they contradict each other.",
        )


def _from_jpeg(
    header: JpegHeader, dicom: "DicomPhotograph", min_side_px: int | None
) -> Image.Image:
    """Decode the JPEG of a DICOM; colour as PS3.5 8.2.1 says."""
    from inference_image.dicom import from_ybr

    _check_components(dicom, len(header.component_ids))
    image = open_jpeg(dicom.frame, header)
    # Only a lossless one has no smaller scale.
    smaller = None if min_side_px is None or header.lossless else (min_side_px, min_side_px)
    jfif, adobe = "jfif" in image.info, image.info.get("adobe_transform")
    # What the decoder takes three components for: by a marker, else by their names.
    unmarked = not jfif and adobe is None
    as_rgb = header.lossless or header.component_ids == _RGB_NAMES if unmarked else adobe == 0
    # Only the DICOM says that unmarked ones are RGB; a marker rules that out.
    plain = dicom.photometric == "RGB" and unmarked and not as_rgb and image.mode == "RGB"
    if plain or smaller is not None:
        image.draft("YCbCr" if plain else image.mode, smaller or image.size)
    image.load()
    if image.mode == "YCbCr":
        # The same samples under their true name.
        return Image.merge("RGB", image.split())
    ybr = dicom.photometric.startswith("YBR_FULL") and image.mode == "RGB"
    return from_ybr(image) if as_rgb and ybr else image


def _from_jpeg2000(header: Jpeg2000Header, dicom: "DicomPhotograph") -> Image.Image:
    """Decode the JPEG 2000 of a DICOM; colour as PS3.5 8.2.4 says."""
    from inference_image.dicom import from_ybr

    _check_components(dicom, len(header.bits))
    if dicom.samples > 1 and (max(header.bits) > _COLOUR_BITS or header.is_subsampled):
        # Pillow rounds their whitest values to black, and takes shared colours for YCbCr.
        raise PhotographError(
            415,
            "The JPEG 2000 in the DICOM has colours of more than 8 bits, or shared by several "
            "pixels; accepted are grey of up to 16 bits and colours of 8 bits.",
        )
    if {*header.bits} != {dicom.bits_stored} or {*header.signed} != {dicom.signed}:
        # One of the two says which value is white, and nobody knows which.
        raise PhotographError(
            422,
            f"The DICOM says {dicom.bits_stored} bits {'with' if dicom.signed else 'without'} "
            "sign, and the JPEG 2000 inside it says others: they contradict each other.",
        )
    # Without the boxes of a JP2 file, which might say other colours than the DICOM.
    stream = codestream(dicom.frame, header)
    if stream is None:
        raise PhotographError(422, "The JPEG 2000 in the DICOM has no end: it is truncated.")
    image = _open(stream, MEDIA_JPEG2000, header)
    # Pillow decodes at the first look, and what is damaged must be found out here.
    image.load()
    # The codestream undoes its own colour transform (YBR_ICT, YBR_RCT), but no other.
    return from_ybr(image) if dicom.photometric.startswith("YBR_FULL") else image


def _white_is_zero(image: Image.Image) -> bool:
    """Whether 16-bit grey counts from white; Pillow turns only fewer bits around."""
    photometric = _tiff_tags(image).get(_TIFF_PHOTOMETRIC)
    return image.mode.startswith("I;16") and photometric == _WHITE_IS_ZERO


def _tiff_tags(image: Image.Image) -> Mapping[int, Any]:
    return getattr(image, "tag_v2", None) or {}


def _orientation(image: Image.Image) -> int:
    if not ("exif" in image.info or "xmp" in image.info or "Raw profile type exif" in image.info):
        return 1
    try:
        if _exif_entries(image) > _MOST_EXIF_ENTRIES:
            return 1
        return int(image.getexif().get(_EXIF_ORIENTATION, 1))
    except Exception:  # noqa: BLE001
        # A broken EXIF block says nothing about the picture, which is whole: it stays as it is.
        return 1


def _exif_entries(image: Image.Image) -> int:
    """How many entries the first directory of an EXIF block claims to have."""
    block = image.info.get("exif")
    if block is None:
        # Some programs write it into a PNG as hexadecimal text, after three lines.
        text = str(image.info.get("Raw profile type exif", ""))
        block = bytes.fromhex("".join(text.split("\n")[3:]))
    block = block.removeprefix(_EXIF_PREFIX)
    order: Literal["little", "big"] = "little" if block.startswith(b"II") else "big"
    start = int.from_bytes(block[4:8], order)
    return int.from_bytes(block[start : start + 2], order)


def _apply_transparent_value(image: Image.Image, data: bytes, header: PngHeader) -> None:
    """Bring the transparent value of a PNG to the 8 bits that its samples have been brought to.

    One of three times 16 bits is compared with all of them (PNG, third edition, 11.3.1.1), and
    turns black here: white is often the value that means "transparent", and nearly white are bright
    places of a retina.
    """
    key, bits = image.info.get("transparency"), header.bits
    if isinstance(key, tuple) and bits == _WIDE_BITS:
        del image.info["transparency"]
        hidden = _equal(image, [value >> 8 for value in key])
        # Most keys are of no pixel at all, and the low bytes need not be looked at.
        if hidden.getbbox() is not None:
            low = _equal(low_bytes(data, header), [value & 0xFF for value in key])
            image.paste(0, mask=ImageChops.multiply(hidden, low))
    elif isinstance(key, int) and data[_PNG_COLOUR] == _PNG_GREY and bits in (2, 4):
        image.info["transparency"] = key * 255 // (2**bits - 1)


def _equal(image: Image.Image, levels: Sequence[int]) -> Image.Image:
    """255 where each channel has its level, else 0."""
    found = [
        channel.point([255 if value == level else 0 for value in range(256)])
        for channel, level in zip(image.split(), levels, strict=True)
    ]
    return functools.reduce(ImageChops.multiply, found)


def _to_rgb(image: Image.Image, *, white_is_zero: bool = False) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I;16"):
        return _from_sixteen_bits(image, white_is_zero=white_is_zero)
    if image.mode in ("I", "F"):
        raise PhotographError(
            415, "The image has 32-bit samples; accepted are samples of at most 16 bits."
        )
    if "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "La", "RGBa"):
        layered = image if image.mode == "RGBA" else image.convert("RGBA")
        alpha = layered.getchannel("A")
        if image.format == "BMP" and alpha.getextrema() == (0, 0):
            # Most programs that write 32-bit BMP leave the fourth byte empty.
            return layered.convert("RGB")
        black = Image.new("RGB", layered.size)
        black.paste(layered, mask=alpha)
        return black
    return image.convert("RGB")


def _from_sixteen_bits(image: Image.Image, *, white_is_zero: bool) -> Image.Image:
    """Scale 0..65535 to 0..255: Pillow's own conversion clips and turns a photograph white."""
    bits: int = next(iter(_tiff_tags(image).get(_TIFF_BITS, (16,))))
    highest = 2**bits - 1
    table = np.clip((np.arange(65_536) * 255 + highest // 2) // highest, 0, 255).astype(np.uint8)
    if white_is_zero:
        table = 255 - table
    key = image.info.get("transparency")
    if isinstance(key, int) and 0 <= key <= highest:
        table[key] = 0
    grey = Image.new("RGB", image.size)
    for top in range(0, image.height, _BAND_ROWS):
        band = image.crop((0, top, image.width, min(top + _BAND_ROWS, image.height)))
        grey.paste(Image.fromarray(table[np.asarray(band)]).convert("RGB"), (0, top))
    return grey
