"""Reads the first directory of a TIFF: its size, its kind, and whether all of its data are there.

    >>> header = read_tiff(data)
    >>> header.width_px, header.height_px
    (3216, 2136)
    >>> header.check_data(data)

Of a strip or tile that is missing, a decoder leaves black or whatever stood at that place, without
a word; so where each of them lies is looked at here. Standard library only, and nothing is decoded.

Source: TIFF 6.0 (adobe.com), sections 2, 8, 15 and 21; the BigTIFF design (libtiff.gitlab.io).
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from inference_image.photograph import Header, PhotographError

_MOST_TIFF_ENTRIES: Final = 4096
# Tags of TIFF 6.0, and the sizes of its field types.
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC = 256, 257, 258, 259, 262
_STRIP_OFFSETS, _SAMPLES, _ROWS_PER_STRIP, _STRIP_BYTES, _PLANES = 273, 277, 278, 279, 284
_TILE_WIDTH, _TILE_HEIGHT, _TILE_OFFSETS, _TILE_BYTES = 322, 323, 324, 325
_PREDICTOR, _SAMPLE_FORMAT, _SUBSAMPLING = 317, 339, 530
_PLACES: Final = frozenset({_STRIP_OFFSETS, _STRIP_BYTES, _TILE_OFFSETS, _TILE_BYTES})
_TIFF_TAGS: Final = frozenset(
    {_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC, _SAMPLES, _ROWS_PER_STRIP, _PLANES}
    | {_TILE_WIDTH, _TILE_HEIGHT, _PREDICTOR, _SAMPLE_FORMAT, _SUBSAMPLING, *_PLACES}
)
_UNCOMPRESSED, _OLD_JPEG, _JPEG, _PACKBITS = 1, 6, 7, 32773
# None, three kinds of fax, LZW, two of JPEG, two numbers for Deflate, PackBits, LZMA, Zstandard.
_TIFF_COMPRESSIONS: Final = frozenset({1, 2, 3, 4, 5, 6, 7, 8, _PACKBITS, 32946, 34925, 50000})
_YCBCR: Final = 6
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
_LONG, _LONG8 = 4, 16
_MOST_SAMPLES: Final = 8
_UNSIGNED: Final = 1
# A tile is decoded whole, also where the image is smaller than it.
_MOST_TILE_PX: Final = 1 << 22
# Of 16 x 16 pixels each, the smallest tiles, for an image of 67 megapixels.
_MOST_BLOCKS: Final = 1 << 18
_HEADER_BYTES: Final = 8

_Fields = Mapping[int, tuple[int, ...]]


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


@dataclass(frozen=True, kw_only=True)
class TiffHeader(Header):
    """Also the numbers of the tags that say where the data lie."""

    fields: Mapping[int, tuple[int, ...]] = field(repr=False)

    @property
    def is_strange(self) -> bool:
        """Whether samples lie in planes or are YCbCr, which Pillow reads wrongly by itself."""
        planes = self.fields.get(_PLANES, (1,))[0] == _SEPARATE_PLANES
        return planes or self.fields.get(_PHOTOMETRIC, (0,))[0] == _YCBCR

    def check_data(self, data: bytes) -> None:
        """Raise PhotographError 422 where a strip or tile cannot be whole."""
        _Blocks(self.fields).check(data)


def read_tiff(data: bytes) -> TiffHeader | None:
    """Size and kind of the first page; None where it has no size.

    Raises:
        PhotographError: 415 for a kind that is not accepted, 422 where the directory contradicts
            itself or the file.
        struct.error: the file ends within the directory.
    """
    directory = _directory(data)
    fields = _fields(data, directory)
    if _WIDTH not in fields or _HEIGHT not in fields:
        return None
    return _header(fields, directory.order)


def first_page(data: bytes) -> bytes:
    """A TIFF of one page, in a form that Pillow reads.

    Decoders follow the chain of pages to count them, and a hostile chain has millions. A big-endian
    BigTIFF, which Pillow does not know, becomes a classic TIFF.
    """
    try:
        directory = _directory(data)
        if directory.pointer == "Q" and directory.order == ">":
            return _as_classic(data, directory)
        link = struct.calcsize("=" + directory.pointer)
        at = directory.entries + directory.count * directory.step
        if not any(data[at : at + link]):
            return data
    except struct.error:
        return data
    return data[:at] + bytes(link) + data[at + link :]


def _directory(data: bytes) -> _Directory:
    order = "<" if data[:2] == b"II" else ">"
    big = data[2:4] in (b"+\0", b"\0+")
    entry, count_format, pointer = ("HHQ", "Q", "Q") if big else ("HHI", "H", "I")
    start = int(struct.unpack_from(order + pointer, data, 8 if big else 4)[0])
    if start > len(data):
        raise PhotographError(422, "The TIFF's directory is outside the file: it is truncated.")
    directory = _Directory(
        order=order,
        entry=entry,
        pointer=pointer,
        count=int(struct.unpack_from(order + count_format, data, start)[0]),
        entries=start + struct.calcsize("=" + count_format),
    )
    if directory.count * directory.step > len(data) or directory.count > _MOST_TIFF_ENTRIES:
        raise PhotographError(422, "The TIFF's directory is longer than the file: it is damaged.")
    return directory


def _fields(data: bytes, directory: _Directory) -> dict[int, tuple[int, ...]]:
    """The numbers of the tags that are of interest."""
    order, head, step = directory.order, directory.head, directory.step
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
                # Also, one of 64 bits may be more than any position in memory.
                if at > len(data):
                    raise PhotographError(
                        422, f"The TIFF's tag {tag} is outside the file: it is damaged."
                    )
            shown = min(length, _MOST_BLOCKS + 1 if tag in _PLACES else _MOST_SAMPLES)
            fields[tag] = struct.unpack_from(f"{order}{shown}{_TIFF_NUMBERS[kind]}", data, at)
    return fields


def _header(fields: _Fields, order: str) -> TiffHeader:
    width, height = fields[_WIDTH][0], fields[_HEIGHT][0]
    bits, samples = max(fields.get(_BITS, (1,))), fields.get(_SAMPLES, (1,))[0]
    if any(kind != _UNSIGNED for kind in fields.get(_SAMPLE_FORMAT, ())) or bits > 16:
        # Nothing says which of their values is black and which is white.
        raise PhotographError(
            415,
            "The TIFF has signed, floating-point or more than 16-bit samples; accepted are "
            "unsigned samples of at most 16 bits.",
        )
    if len(set(fields.get(_BITS, ())[:samples])) > 1:
        raise PhotographError(
            415, "The TIFF's samples differ in their bits; accepted are those of equal bits."
        )
    if samples > _MOST_SAMPLES:
        raise PhotographError(
            415, f"The TIFF has {samples} samples per pixel; at most {_MOST_SAMPLES} are accepted."
        )
    compression = fields.get(_COMPRESSION, (_UNCOMPRESSED,))[0]
    if compression not in _TIFF_COMPRESSIONS:
        raise PhotographError(
            415,
            f"The TIFF's compression {compression} is not accepted; accepted are none, LZW, "
            "Deflate, JPEG, PackBits, fax, LZMA and Zstandard.",
        )
    if compression == _PACKBITS and fields.get(_PREDICTOR, (1,))[0] != 1:
        # Some programs write differences then, and the decoder would take them for samples.
        raise PhotographError(
            415,
            "The TIFF's PackBits compression has a predictor, which is not accepted; send it "
            "with LZW or Deflate.",
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
    return TiffHeader(
        width_px=width,
        height_px=height,
        decoded_bytes=width * height * samples * bits // 8,
        fields=fields,
    )


def _is_known_layout(samples: int, bits: int, *, planes: bool, order: str) -> bool:
    """Whether the decoder knows samples that lie so."""
    if samples == 1:
        return bits in _GREY_BITS and (bits != 12 or order == "<")
    if samples == 2:
        # Grey and alpha.
        return bits == 8 and not planes
    return bits in _COLOUR_BITS


def _subsampling(fields: _Fields) -> tuple[int, int]:
    """How many pixels across and down share their colours; TIFF 6.0 takes 2 and 2 if unsaid."""
    across, down = (*fields.get(_SUBSAMPLING, (2, 2)), 0)[:2]
    return across, down


class _Blocks:
    """The strips or tiles of a page: how many there must be, and how large."""

    def __init__(self, fields: _Fields) -> None:
        self._fields = fields
        self._compression = fields.get(_COMPRESSION, (_UNCOMPRESSED,))[0]
        self._in_tiles = _TILE_OFFSETS in fields
        self._samples = fields.get(_SAMPLES, (1,))[0]
        self._planes = 1
        if fields.get(_PLANES, (1,))[0] == _SEPARATE_PLANES:
            self._planes, self._samples = self._samples, 1
        self._width, self._height = fields[_WIDTH][0], fields[_HEIGHT][0]
        if self._in_tiles:
            self._block_width = fields.get(_TILE_WIDTH, (0,))[0]
            self._block_height = fields.get(_TILE_HEIGHT, (0,))[0]
        else:
            rows = fields.get(_ROWS_PER_STRIP, (self._height,))[0]
            self._block_width, self._block_height = self._width, min(rows, self._height)
        if self._block_width < 1 or self._block_height < 1:
            raise _damaged()

    def check(self, data: bytes) -> None:
        """Raise where a block is missing, outside the file, too small, or shared by two places."""
        down = -(-self._height // self._block_height)
        number = self._planes * -(-self._width // self._block_width) * down
        offsets = self._fields.get(_TILE_OFFSETS if self._in_tiles else _STRIP_OFFSETS, ())
        sizes = self._fields.get(_TILE_BYTES if self._in_tiles else _STRIP_BYTES)
        if number > _MOST_BLOCKS:
            raise PhotographError(
                422, f"The TIFF has {number} strips or tiles; at most {_MOST_BLOCKS} are accepted."
            )
        raw = self._compression == _UNCOMPRESSED
        # Of raw ones, the decoder would take those that are too many for another plane.
        if len(offsets) < number or (raw and len(offsets) > number):
            raise _damaged()
        offsets = offsets[:number]
        if raw:
            needed = self._needed(number // self._planes, down)
            if number == 1 and sizes == (0,):
                # Some old writers did not know it; that the file has so much is looked at below.
                sizes = None
            if sizes is not None and (len(sizes) < number or any(map(int.__lt__, sizes, needed))):
                raise _damaged()
            sizes = needed
        elif sizes is None:
            # Some writers of a single strip left it out; it then ends with the file.
            if number > 1:
                raise _damaged()
            sizes = (len(data) - offsets[0],)
        elif len(sizes) < number:
            raise _damaged()
        self._check_places(data, offsets, sizes[:number])

    def _needed(self, number: int, down: int) -> tuple[int, ...]:
        """Bytes of each block without compression; the last strips have the rows that are left."""
        full = self._raw_bytes(self._block_height)
        if self._in_tiles:
            return (full,) * (number * self._planes)
        last = self._raw_bytes(self._height - (down - 1) * self._block_height)
        return ((full,) * (number - 1) + (last,)) * self._planes

    def _raw_bytes(self, rows: int) -> int:
        bits = max(self._fields.get(_BITS, (1,)))
        if self._fields.get(_PHOTOMETRIC, (0,))[0] == _YCBCR and self._samples == 3:
            across, down = _subsampling(self._fields)
            if across not in (1, 2, 4) or down not in (1, 2, 4):
                raise _damaged()
            units = -(-self._block_width // across) * -(-rows // down)
            return units * (across * down + 2) * bits // 8
        return -(-self._block_width * self._samples * bits // 8) * rows

    def _check_places(self, data: bytes, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> None:
        if min(sizes) < 1 or min(offsets) < _HEADER_BYTES:
            raise _damaged()
        end = _HEADER_BYTES
        for offset, size in sorted(zip(offsets, sizes, strict=True)):
            # An old JPEG may have its tables between, or be one stream for all strips.
            if offset < end and self._compression != _OLD_JPEG:
                raise _damaged()
            end = offset + size
        if end > len(data) and self._compression != _OLD_JPEG:
            raise _damaged()
        if self._compression == _JPEG:
            for offset, size in zip(offsets, sizes, strict=True):
                block = data[offset : offset + size]
                # What is cut off, the decoder fills up in grey.
                if not block.startswith(b"\xff\xd8") or not block.rstrip(b"\0").endswith(
                    b"\xff\xd9"
                ):
                    raise _damaged()


def _as_classic(data: bytes, directory: _Directory) -> bytes:
    """The same file with a directory of 32-bit numbers, which is put behind its end."""
    order, step = directory.order, directory.step
    start = len(data) + len(data) % 2
    entries, more = [], b""
    after = start + 2 + 12 * directory.count + 4
    for at in range(directory.entries, directory.entries + directory.count * step, step):
        tag, kind, length = struct.unpack_from(order + "HHQ", data, at)
        size = length * _TIFF_SIZES.get(kind, 1)
        value_at = at + 12
        if size > 8:
            value_at = int(struct.unpack_from(order + "Q", data, value_at)[0])
        value = data[value_at : value_at + size]
        if kind == _LONG8:
            numbers = struct.unpack(f"{order}{length}Q", value)
            # Larger ones point out of the file, which has been looked at before.
            value = struct.pack(f"{order}{length}I", *(min(n, 0xFFFFFFFF) for n in numbers))
            kind = _LONG
        if len(value) > 4:
            pointer = struct.pack(order + "I", after + len(more))
            more += value + bytes(len(value) % 2)
            value = pointer
        entries.append(struct.pack(order + "HHI", tag, kind, length) + value.ljust(4, b"\0"))
    body = struct.pack(order + "H", len(entries)) + b"".join(entries) + bytes(4) + more
    head = data[:2] + struct.pack(order + "HI", 42, start)
    return head + data[8:].ljust(start - 8, b"\0") + body


def _damaged() -> PhotographError:
    return PhotographError(
        422, "The TIFF cannot be decoded: strips or tiles are missing, it is truncated or damaged."
    )
