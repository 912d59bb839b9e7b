"""Reads the chunks of a PNG: its size, their checksums, and what metadata a decoder may see.

    >>> header = read_png(data)
    >>> header.check_data(data)
    >>> readable = without_large_metadata(data, header)

Pillow does not look at the checksums of the picture's own data, and refuses a whole file for a
large text that compresses well. Standard library only.

Source: PNG, third edition (w3.org/TR/png-3), sections 5, 7.2, 8.1 and 11.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from inference_image.photograph import Header, PhotographError

# Encoders write pieces of 8 KiB or more; each chunk costs the reader the same, however small.
_MAX_SMALL_CHUNKS: Final = 1000
_PNG_CHUNK_BYTES: Final = 1024
_SIGNATURE_BYTES: Final = 8
_SAMPLES: Final = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
# Left, top, and the steps across and down, of each pass (8.1).
_PASSES: Final = (
    (0, 0, 8, 8),
    (4, 0, 8, 8),
    (0, 4, 4, 8),
    (2, 0, 4, 4),
    (0, 2, 2, 4),
    (1, 0, 2, 2),
    (0, 1, 1, 2),
)
# The names under which programs write EXIF and XMP, which say how a picture is turned.
_WANTED_TEXTS: Final = (b"Raw profile type exif", b"XML:com.adobe.xmp")
_LONGEST_NAME: Final = 80
# Larger profiles and texts are of no use here (`colour`), and take long to read: of each so much is
# inflated, and of all of them together.
_MOST_METADATA_BYTES: Final = 1_000_000
_MOST_INFLATED_BYTES: Final = 8_000_000
# What expands to more than this is there to cost something. Profiles and lists of edits do not.
_MOST_EXPANSION: Final = 250
_INFLATED_AT_ONCE: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class PngHeader(Header):
    """Also how the samples lie, and whether there are chunks that a decoder would inflate."""

    bits: int
    samples: int
    interlaced: bool
    has_compressed_metadata: bool

    @property
    def raw_bytes(self) -> int:
        """What the picture's data inflate to: its rows, each behind one byte (7.2)."""
        passes = _PASSES if self.interlaced else ((0, 0, 1, 1),)
        total = 0
        for left, top, across, down in passes:
            columns = -(-(self.width_px - left) // across)
            rows = -(-(self.height_px - top) // down)
            if columns > 0 and rows > 0:
                total += rows * (1 + -(-columns * self.samples * self.bits // 8))
        return total

    def check_data(self, data: bytes) -> None:
        """Raise PhotographError 422 where a chunk of the picture is not what was written."""
        view = memoryview(data)
        for kind, start, length in _chunks(data):
            # An upper-case first letter: without it there is no picture.
            if kind[:1].isupper():
                checksum = zlib.crc32(view[start - 4 : start + length])
                if data[start + length : start + length + 4] != checksum.to_bytes(4):
                    raise _damaged()

    def check_length(self, data: bytes) -> None:
        """Raise PhotographError 422 where the data inflate to less than the picture."""
        left, inflater = self.raw_bytes, zlib.decompressobj()
        for kind, start, length in _chunks(data):
            piece = data[start : start + length] if kind == b"IDAT" else b""
            while piece and left > 0:
                left -= len(inflater.decompress(piece, _INFLATED_AT_ONCE))
                piece = inflater.unconsumed_tail
        if left > 0:
            raise _damaged()


def read_png(data: bytes) -> PngHeader:
    """Size and kind of a PNG.

    Raises:
        PhotographError: 422 for too many chunks.
        struct.error: the file ends within its first chunk.
    """
    width, height, bits, colour = struct.unpack_from(">IIBB", data, 16)
    left = _MAX_SMALL_CHUNKS + len(data) // _PNG_CHUNK_BYTES
    compressed = False
    position = _SIGNATURE_BYTES
    while position + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        if kind == b"IEND":
            # What stands behind it belongs to somebody else.
            break
        compressed = compressed or kind in (b"iCCP", b"zTXt", b"iTXt")
        position += 12 + length
        left -= 1
        if left < 0:
            raise PhotographError(422, "The PNG cannot be decoded: it has too many chunks.")
    samples = _SAMPLES.get(colour, 4)
    return PngHeader(
        width_px=width,
        height_px=height,
        decoded_bytes=width * height * samples * bits // 8,
        bits=bits,
        samples=samples,
        interlaced=data[28:29] == b"\1",
        has_compressed_metadata=compressed,
    )


def without_large_metadata(data: bytes, header: PngHeader) -> bytes:
    """The same file without compressed metadata that are too large, damaged, or of no use here.

    Raises:
        PhotographError: 413 where they expand as no metadata do.
    """
    if not header.has_compressed_metadata:
        return data
    kept: list[bytes] = []
    taken: set[bytes] = set()
    copied, left = 0, _MOST_INFLATED_BYTES
    for kind, start, length in _chunks(data):
        name = _name(kind, data[start : start + min(length, _LONGEST_NAME + 2)])
        if name is None:
            continue
        method, packed = _packed(kind, data[start : start + length])
        size, read = _inflated_bytes(packed) if method == b"\0" else (0, 0)
        left -= size
        if left <= 0 or size > max(_MOST_METADATA_BYTES, _MOST_EXPANSION * read):
            raise PhotographError(413, "The PNG's metadata expand as no photograph's do.")
        if name not in taken and name in (b"iCCP", *_WANTED_TEXTS):
            # The first counts. There is one method, and the decoder refuses a file of another.
            taken.add(name)
            if 0 < size <= _MOST_METADATA_BYTES or method > b"\0":
                continue
        kept.append(data[copied : start - 8])
        copied = start + length + 4
    return b"".join((*kept, data[copied:])) if kept else data


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Type, where the body starts, and its length."""
    position = _SIGNATURE_BYTES
    while position + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        yield kind, position + 8, length
        if kind == b"IEND":
            return
        position += 12 + length


def _name(kind: bytes, begin: bytes) -> bytes | None:
    """What compressed metadata are about; None for any other chunk."""
    if kind == b"iCCP":
        return kind
    name, _, rest = begin.partition(b"\0")
    compressed = kind == b"zTXt" or (kind == b"iTXt" and rest[:1] != b"\0")
    return name if compressed else None


def _packed(kind: bytes, body: bytes) -> tuple[bytes, bytes]:
    """Method of compression, and what is compressed."""
    rest = body.partition(b"\0")[2]
    if kind == b"iTXt":
        # Flag and method, then the language and a translated name.
        return rest[1:2], rest[2:].split(b"\0", 2)[-1]
    return rest[:1], rest[1:]


def _inflated_bytes(packed: bytes) -> tuple[int, int]:
    """How much it inflates to, and of how many bytes; 0 where it is damaged.

    Not much further than to what is of use here: whatever comes behind is never read.
    """
    inflater, size, left = zlib.decompressobj(), 0, packed
    try:
        while left and size <= _MOST_METADATA_BYTES:
            size += len(inflater.decompress(left, _INFLATED_AT_ONCE))
            left = inflater.unconsumed_tail
    except zlib.error:
        return 0, 0
    return size, len(packed) - len(left)


def _damaged() -> PhotographError:
    return PhotographError(422, "The PNG cannot be decoded: it is truncated or damaged.")
