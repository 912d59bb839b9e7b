"""Reads the photograph out of a DICOM file, and nothing about the patient.

    >>> photograph = read_dicom(data)
    >>> photograph.columns_px, photograph.rows_px, photograph.laterality
    (3216, 2136, 'R')

Only the elements named here are ever read (PS3.3 C.7.6.3, image pixel module; C.8.17,
ophthalmic photography); every other one, names and dates among them, is stepped over without
its value being looked at. Nothing is logged and no value but numbers and known codes is
returned. The reader is our own: the usual library adds 9 MB to the image and half a second to
the first DICOM, unpacks deflated files without a bound, and warns with the values it finds.

Source: DICOM PS3.5 and PS3.3, current edition (dicom.nema.org), read for transfer syntaxes,
encapsulation and photometric interpretations.
"""

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from inference_image.contract import MEDIA_JPEG
from inference_image.headers import MEDIA_JPEG2000, Header, PhotographError

_UNDEFINED: Final = 0xFFFFFFFF
_ITEM, _ITEM_END, _SEQUENCE_END = (0xFFFE, 0xE000), (0xFFFE, 0xE00D), (0xFFFE, 0xE0DD)
# Value representations whose length takes four bytes (PS3.5, table 7.1-1).
_LONG: Final = frozenset(
    {b"OB", b"OD", b"OF", b"OL", b"OV", b"OW", b"SQ", b"SV", b"UC", b"UN", b"UR", b"UT", b"UV"}
)
_PIXEL_DATA: Final = (0x7FE0, 0x0010)
_PALETTES: Final = (0x1101, 0x1102, 0x1103, 0x1201, 0x1202, 0x1203)
_PROFILE: Final = (0x0028, 0x2000)
_WANTED: Final = frozenset(
    {(0x0008, 0x0016), (0x0020, 0x0060), (0x0020, 0x0062)}
    | {(0x0028, element) for element in (0x02, 0x04, 0x06, 0x08, 0x10, 0x11, 0x30)}
    | {(0x0028, element) for element in (0x0100, 0x0101, 0x0102, 0x0103, *_PALETTES)}
    | {_PROFILE}
)
_RAW: Final = "raw"
_ENCODINGS: Final[Mapping[str, str]] = {
    "1.2.840.10008.1.2": _RAW,
    "1.2.840.10008.1.2.1": _RAW,
    "1.2.840.10008.1.2.2": _RAW,
    "1.2.840.10008.1.2.4.50": MEDIA_JPEG,
    "1.2.840.10008.1.2.4.51": MEDIA_JPEG,
    "1.2.840.10008.1.2.4.57": MEDIA_JPEG,
    "1.2.840.10008.1.2.4.70": MEDIA_JPEG,
    "1.2.840.10008.1.2.4.90": MEDIA_JPEG2000,
    "1.2.840.10008.1.2.4.91": MEDIA_JPEG2000,
}
_IMPLICIT, _BIG_ENDIAN = "1.2.840.10008.1.2", "1.2.840.10008.1.2.2"
ACCEPTED_SYNTAXES: Final = "uncompressed, JPEG and JPEG 2000"
# Storage classes (PS3.4 B.5) whose images may be colour photographs of an eye. A CT or an
# ultrasound is not one, whatever it looks like.
_PHOTOGRAPH_CLASSES: Final = (
    "1.2.840.10008.5.1.4.1.1.77.1.5.1",  # ophthalmic photography, 8 bit
    "1.2.840.10008.5.1.4.1.1.77.1.5.2",  # ophthalmic photography, 16 bit
    "1.2.840.10008.5.1.4.1.1.77.1.5.5",  # wide field, stereographic projection
    "1.2.840.10008.5.1.4.1.1.77.1.5.6",  # wide field, three-dimensional coordinates
    "1.2.840.10008.5.1.4.1.1.77.1.4",  # visible-light photography
    "1.2.840.10008.5.1.4.1.1.7",  # secondary capture, and its multi-frame kinds
    "1.2.840.10008.5.1.4.1.1.7.2",
    "1.2.840.10008.5.1.4.1.1.7.3",
    "1.2.840.10008.5.1.4.1.1.7.4",
)
_LATERALITIES: Final = ("R", "L", "B")
_GREY: Final = ("MONOCHROME1", "MONOCHROME2")
_YBR: Final = ("YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT", "YBR_PARTIAL_420")
_COLOUR: Final = ("RGB", *_YBR)
_PALETTE: Final = "PALETTE COLOR"
# A photograph has some hundred elements; stepping over millions would take seconds.
_MOST_ELEMENTS: Final = 10_000
# The group in front of the data set has some ten.
_MOST_META_ELEMENTS: Final = 100
# Rows that are scaled at once: bounds the memory that indexing takes.
_BLOCK_ROWS: Final = 256
_DAMAGED: Final = "The DICOM file cannot be read: it is truncated or damaged."

Samples = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]


@dataclass(frozen=True, kw_only=True)
class DicomPhotograph:
    """The first frame of a DICOM file, still encoded, and what is needed to decode it.

    `media_type` is that of `frame`: JPEG, JPEG 2000, or None for raw samples.
    `pixel_spacing_mm` is the distance of rows and of columns.
    """

    media_type: str | None
    frame: bytes
    rows_px: int
    columns_px: int
    samples: int
    bits_allocated: int
    bits_stored: int
    high_bit: int
    signed: bool
    planar: bool
    big_endian: bool
    photometric: str
    palettes: tuple[bytes, ...]
    icc_profile: bytes
    pixel_spacing_mm: tuple[float, float] | None
    laterality: str | None

    @property
    def header(self) -> Header:
        """Size as the DICOM states it."""
        return Header(
            width_px=self.columns_px,
            height_px=self.rows_px,
            decoded_bytes=self.rows_px * self.columns_px * self.samples * self.bits_allocated // 8,
        )


def read_dicom(data: bytes) -> DicomPhotograph:
    """Read the elements of the image and find its first frame.

    Raises:
        PhotographError: 415 for a kind of DICOM that is not accepted, 422 where it is damaged.
    """
    try:
        return _read(data)
    except (struct.error, IndexError, ValueError, KeyError) as error:
        if isinstance(error, PhotographError):
            raise
        # From None: the error may quote what stands in the file.
        raise PhotographError(422, _DAMAGED) from None


def raw_picture(photograph: DicomPhotograph) -> Image.Image:
    """Decode raw samples to 8-bit RGB.

    Raises:
        PhotographError: 415 for a photometric interpretation that is not accepted, 422 where
            there are fewer bytes than pixels.
    """
    rows, columns = photograph.rows_px, photograph.columns_px
    if photograph.photometric == "YBR_FULL_422":
        return _from_422(photograph)
    order = ">" if photograph.big_endian else "<"
    kind = np.dtype("u1" if photograph.bits_allocated == 8 else order + "u2")
    count = rows * columns * photograph.samples
    if len(photograph.frame) < count * kind.itemsize:
        raise PhotographError(422, "The DICOM file has fewer bytes than pixels: it is truncated.")
    samples = np.frombuffer(photograph.frame, dtype=kind, count=count)
    if photograph.photometric == _PALETTE:
        return Image.fromarray(_from_palette(samples.reshape(rows, columns), photograph))
    if photograph.samples == 1:
        grey = _eight_bits(samples.reshape(rows, columns), photograph)
        return finish_grey(Image.fromarray(grey), photograph.photometric)
    if photograph.planar:
        samples = samples.reshape(3, rows, columns).transpose(1, 2, 0)
    pixels = np.ascontiguousarray(_eight_bits(samples.reshape(rows, columns, 3), photograph))
    if photograph.photometric == "RGB":
        return Image.fromarray(pixels)
    return from_ybr(pixels)


def finish_grey(image: Image.Image, photometric: str) -> Image.Image:
    """RGB of an 8-bit grey image; MONOCHROME1 counts from white to black."""
    upright = image.point(range(255, -1, -1)) if photometric == "MONOCHROME1" else image
    return upright.convert("RGB")


def _read(data: bytes) -> DicomPhotograph:
    syntax, position = _transfer_syntax(data)
    encoding = _ENCODINGS.get(syntax)
    if encoding is None:
        raise PhotographError(
            415, f"The DICOM's transfer syntax is not accepted; accepted are {ACCEPTED_SYNTAXES}."
        )
    order = ">" if syntax == _BIG_ENDIAN else "<"
    implicit = _is_implicit(data, position, order)
    values: dict[tuple[int, int], bytes] = {}
    for tag, start, length in _elements(data, position, order, implicit=implicit):
        if tag == _PIXEL_DATA:
            return _photograph(data, values, encoding, order, start, length)
        if tag > _PIXEL_DATA:
            break
        if tag in _WANTED and length != _UNDEFINED:
            values[tag] = data[start : start + length]
    raise PhotographError(422, "The DICOM file holds no image.")


def _transfer_syntax(data: bytes) -> tuple[str, int]:
    """Transfer syntax, and where the data set begins. The meta group is explicit, little-endian."""
    position, syntax = 132, _IMPLICIT
    for _ in range(_MOST_META_ELEMENTS):
        if data[position : position + 2] != b"\2\0":
            return syntax, position
        tag, start, length = _element(data, position, "<", implicit=False)
        if tag == (0x0002, 0x0010):
            syntax = data[start : start + length].rstrip(b"\0 ").decode("ascii")
        position = start + length
    raise PhotographError(422, _DAMAGED)


def _is_implicit(data: bytes, position: int, order: str) -> bool:
    """Whether the data set names no value representations. Some files do not do as they say."""
    group = struct.unpack_from(order + "H", data, position)[0]
    named = data[position + 4 : position + 6]
    return not (named.isalpha() and named.isupper() and group < 0xFFFE)


def _element(
    data: bytes, position: int, order: str, *, implicit: bool
) -> tuple[tuple[int, int], int, int]:
    """Tag, where the value starts, and its length."""
    group, element = struct.unpack_from(order + "HH", data, position)
    if implicit or group == 0xFFFE:
        return (
            (group, element),
            position + 8,
            struct.unpack_from(order + "I", data, position + 4)[0],
        )
    if data[position + 4 : position + 6] in _LONG:
        length = struct.unpack_from(order + "I", data, position + 8)[0]
        return (group, element), position + 12, length
    return (group, element), position + 8, struct.unpack_from(order + "H", data, position + 6)[0]


def _elements(
    data: bytes, position: int, order: str, *, implicit: bool
) -> Iterator[tuple[tuple[int, int], int, int]]:
    """The elements of the outermost level; sequences are stepped over."""
    for _ in range(_MOST_ELEMENTS):
        if position + 8 > len(data):
            return
        tag, start, length = _element(data, position, order, implicit=implicit)
        yield tag, start, length
        if length == _UNDEFINED:
            unknown = data[position + 4 : position + 6] == b"UN" and not implicit
            position = _after_sequence(data, start, order, implicit=implicit or unknown)
        else:
            position = start + length
    raise PhotographError(422, _DAMAGED)


def _after_sequence(data: bytes, position: int, order: str, *, implicit: bool) -> int:
    """Where a sequence of undefined length ends: a loop, since a file may nest without end."""
    levels = [implicit]
    for _ in range(_MOST_ELEMENTS):
        tag, start, length = _element(data, position, order, implicit=levels[-1])
        position = start if length == _UNDEFINED else start + length
        if tag == _SEQUENCE_END:
            levels.pop()
            if not levels:
                return position
        elif tag not in (_ITEM, _ITEM_END) and length == _UNDEFINED:
            levels.append(levels[-1])
    raise PhotographError(422, _DAMAGED)


def _photograph(
    data: bytes,
    values: Mapping[tuple[int, int], bytes],
    encoding: str,
    order: str,
    start: int,
    length: int,
) -> DicomPhotograph:
    def number(element: int, default: int | None = None) -> int:
        value = values.get((0x0028, element))
        if value is None and default is not None:
            return default
        return int(struct.unpack_from(order + "H", value or b"")[0])

    storage = _text(values, (0x0008, 0x0016))
    if storage not in _PHOTOGRAPH_CLASSES:
        raise PhotographError(
            415,
            "The DICOM is not a photograph; accepted are ophthalmic photography, visible-light "
            "photography and secondary capture.",
        )
    allocated = number(0x0100)
    stored = number(0x0101, allocated)
    photograph = DicomPhotograph(
        media_type=None if encoding == _RAW else encoding,
        frame=b"",
        rows_px=number(0x10),
        columns_px=number(0x11),
        samples=number(0x02, 1),
        bits_allocated=allocated,
        bits_stored=stored,
        high_bit=number(0x0102, stored - 1),
        signed=number(0x0103, 0) == 1,
        planar=number(0x06, 0) == 1,
        big_endian=order == ">",
        photometric=_text(values, (0x0028, 0x0004)),
        palettes=tuple(values.get((0x0028, element), b"") for element in _PALETTES),
        icc_profile=values.get(_PROFILE, b""),
        pixel_spacing_mm=_spacing(_text(values, (0x0028, 0x0030))),
        laterality=_laterality(values),
    )
    _check(photograph)
    frame = _frame(data, photograph, start, length)
    if photograph.big_endian and photograph.bits_allocated == 8 and _is_in_words(data, start):
        # Two samples share a word, of which the second comes first (PS3.5, 8.1.1 and 7.3).
        frame = np.frombuffer(frame[: len(frame) // 2 * 2], dtype=np.uint16).byteswap().tobytes()
    return replace(photograph, frame=frame)


def _is_in_words(data: bytes, start: int) -> bool:
    """Whether the value that begins at `start` has the representation OW, in explicit syntax."""
    return data[start - 8 : start - 6] == b"OW"


def _check(photograph: DicomPhotograph) -> None:
    """Raise for a combination that PS3.3 does not allow or that is not accepted."""
    if photograph.rows_px < 1 or photograph.columns_px < 1:
        raise PhotographError(422, "The DICOM says that it has no pixels: it is damaged.")
    known = photograph.photometric in (*_GREY, *_COLOUR, _PALETTE)
    if not known or photograph.photometric == "YBR_PARTIAL_420":
        raise PhotographError(
            415,
            "The DICOM's photometric interpretation is not accepted; accepted are "
            f"{', '.join((*_GREY, _PALETTE, *_COLOUR[:-1]))}.",
        )
    if photograph.bits_allocated not in (8, 16):
        raise PhotographError(
            415,
            f"The DICOM's samples take {photograph.bits_allocated} bits; accepted are 8 and 16.",
        )
    samples = 3 if photograph.photometric in _COLOUR else 1
    stored, high = photograph.bits_stored, photograph.high_bit
    if photograph.samples != samples or not stored - 1 <= high < photograph.bits_allocated:
        raise PhotographError(422, "The DICOM's image attributes contradict each other.")
    if stored < 1:
        raise PhotographError(422, "The DICOM's image attributes contradict each other.")


def _frame(data: bytes, photograph: DicomPhotograph, start: int, length: int) -> bytes:
    """The first frame: of an encapsulated image its fragments, joined (PS3.5 A.4)."""
    if length != _UNDEFINED:
        if photograph.media_type is not None:
            raise PhotographError(422, _DAMAGED)
        # A view would do, but the copy lets go of the file while the frame is decoded.
        return data[start : start + length]
    if photograph.media_type is None:
        raise PhotographError(422, _DAMAGED)
    begins = b"\xff\xd8" if photograph.media_type == MEDIA_JPEG else b"\xff\x4f"
    fragments: list[bytes] = []
    offsets = True
    for tag, at, size in _items(data, start):
        if tag != _ITEM:
            break
        if offsets:
            # The first item is the table of frame offsets, which is often empty or wrong.
            offsets = False
            continue
        fragment = data[at : at + size]
        if fragments and fragment.startswith(begins):
            break
        fragments.append(fragment)
    if not fragments:
        raise PhotographError(422, "The DICOM file holds no image.")
    return b"".join(fragments)


def _items(data: bytes, position: int) -> Iterator[tuple[tuple[int, int], int, int]]:
    for _ in range(_MOST_ELEMENTS):
        if position + 8 > len(data):
            return
        tag, start, length = _element(data, position, "<", implicit=True)
        yield tag, start, length
        position = start + length


def _text(values: Mapping[tuple[int, int], bytes], tag: tuple[int, int]) -> str:
    return values.get(tag, b"").rstrip(b"\0 ").strip().decode("ascii", errors="replace")


def _laterality(values: Mapping[tuple[int, int], bytes]) -> str | None:
    """Image laterality, else laterality of the series; only a known code leaves this module."""
    for tag in ((0x0020, 0x0062), (0x0020, 0x0060)):
        value = _text(values, tag)
        if value in _LATERALITIES:
            return value
    return None


def _spacing(text: str) -> tuple[float, float] | None:
    """Row and column distance in mm; None where it is absent or no two positive numbers."""
    try:
        row, column = (float(part) for part in text.split("\\"))
    except ValueError:
        return None
    usable = all(math.isfinite(value) and 0 < value < 1000 for value in (row, column))
    return (row, column) if usable else None


def _eight_bits(samples: Samples, photograph: DicomPhotograph) -> npt.NDArray[np.uint8]:
    """Scale stored values to 0..255 by the range of their bits; never clip."""
    stored, allocated = photograph.bits_stored, photograph.bits_allocated
    if stored == allocated == 8 and not photograph.signed:
        return np.asarray(samples, dtype=np.uint8)
    values = np.arange(2**allocated) >> (photograph.high_bit + 1 - stored)
    values &= 2**stored - 1
    if photograph.signed:
        # Two's complement: the lowest value is black.
        values ^= 2 ** (stored - 1)
    return _looked_up(samples, _scaled(values, 2**stored - 1))


def _scaled(values: npt.NDArray[np.int64], highest: int) -> npt.NDArray[np.uint8]:
    return ((values * 255 + highest // 2) // highest).astype(np.uint8)


def _looked_up(samples: Samples, table: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    out = np.empty(samples.shape, dtype=np.uint8)
    for row in range(0, samples.shape[0], _BLOCK_ROWS):
        np.take(table, samples[row : row + _BLOCK_ROWS], out=out[row : row + _BLOCK_ROWS])
    return out


def _from_palette(samples: Samples, photograph: DicomPhotograph) -> npt.NDArray[np.uint8]:
    """Apply the three look-up tables of PS3.3 C.7.6.3.1.5."""
    order = ">" if photograph.big_endian else "<"
    channels = []
    for descriptor, table in zip(photograph.palettes[:3], photograph.palettes[3:], strict=True):
        entries, first, bits = struct.unpack(order + "3H", descriptor)
        if bits not in (8, 16):
            raise PhotographError(422, "The DICOM's image attributes contradict each other.")
        entries = entries or 65_536
        wide = bits == 16 and len(table) >= 2 * entries
        kind = np.dtype(order + "u2" if wide else "u1")
        colours = np.frombuffer(table, dtype=kind, count=entries).astype(np.int64)
        eight = _scaled(colours, 65_535 if wide else 255)
        index = np.arange(2**photograph.bits_allocated) & (2**photograph.bits_stored - 1)
        index = np.clip(index - first, 0, entries - 1)
        channels.append(_looked_up(samples, eight[index]))
    return np.stack(channels, axis=-1)


def _from_422(photograph: DicomPhotograph) -> Image.Image:
    """Raw YBR_FULL_422: two luminances share one pair of colour differences (PS3.3 C.7.6.3.1.2)."""
    rows, columns = photograph.rows_px, photograph.columns_px
    if photograph.bits_allocated != 8 or columns % 2:
        raise PhotographError(422, "The DICOM's image attributes contradict each other.")
    if len(photograph.frame) < rows * columns * 2:
        raise PhotographError(422, "The DICOM file has fewer bytes than pixels: it is truncated.")
    packed = np.frombuffer(photograph.frame, dtype=np.uint8, count=rows * columns * 2)
    packed = packed.reshape(rows, columns // 2, 4)
    pixels = np.empty((rows, columns, 3), dtype=np.uint8)
    pixels[:, :, 0] = packed[:, :, :2].reshape(rows, columns)
    pixels[:, :, 1] = packed[:, :, 2].repeat(2, axis=1)
    pixels[:, :, 2] = packed[:, :, 3].repeat(2, axis=1)
    return from_ybr(pixels)


def from_ybr(picture: npt.NDArray[np.uint8] | Image.Image) -> Image.Image:
    """RGB of YBR_FULL (PS3.3 C.7.6.3.1.2). Pillow's own conversion is a level too dark."""
    pixels = np.asarray(picture)
    out = np.empty_like(pixels)
    for row in range(0, pixels.shape[0], _BLOCK_ROWS):
        block = pixels[row : row + _BLOCK_ROWS].astype(np.float32)
        luminance, blue, red = block[..., 0], block[..., 1] - 128, block[..., 2] - 128
        rgb = (
            luminance + 1.402 * red,
            luminance - 0.344136 * blue - 0.714136 * red,
            luminance + 1.772 * blue,
        )
        rounded = np.clip(np.rint(np.stack(rgb, axis=-1)), 0, 255)
        out[row : row + _BLOCK_ROWS] = rounded.astype(np.uint8)
    return Image.fromarray(out)
