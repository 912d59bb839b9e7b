"""Decodes a JPEG, and notices where its data are too short or too long for its size.

    >>> image = open_jpeg(data, header)
    >>> image.draft(image.mode, (500, 500))
    >>> image.load()

Of a file that ends early libjpeg fills up the rest in grey, of data with a damaged part in the
middle it shifts and recolours the rest, and Pillow passes on none of its warnings. But it asks
for data as it needs them. Of a picture in one scan the last bytes are therefore handed out
singly: who does not ask for them has found the end too early, and who asks for more has not found
it. A part that was lost or doubled is found so, and most of what was overwritten, since codes
differ in length; a few bits that were changed mostly are not.

Several scans are read to the last before a pixel is shown. Such a picture is decoded twice, the
second time with bytes behind each scan that mean something: where they change the picture, a scan
ends too early.
"""

import io
import zlib
from itertools import pairwise
from typing import Final

from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from inference_image.jpeg_headers import JpegHeader
from inference_image.photograph import PhotographError

# Some cameras leave a few bytes behind the data; in a black margin they would be two blocks.
_TAIL_BYTES: Final = 4
# The decoder takes up to eight bytes before it looks at them. These are no code of any table
# (T.81 C.2: the code of ones only is not used), so that they complete no picture.
_NO_CODE: Final = b"\xff\0" * 8
_PADDING: Final = b"\xff\0"
# Without FF, so that they are neither a marker nor its beginning.
_ANY_CODES: Final = bytes(1 + (k * k * 7919 + k * 104_729) % 254 for k in range(1024))
# Looked for padding at a time.
_PADDING_BYTES: Final = 4096
# Compared at a time, so that a large picture is not copied.
_BAND_ROWS: Final = 64


def open_jpeg(data: bytes, header: JpegHeader) -> JpegImageFile:
    """A Pillow image of the file; its `load` raises PhotographError 422 for data that do not fit.

    Raises:
        PhotographError: 422, the file ends within its data.
        OSError, SyntaxError, ValueError: Pillow cannot read the segments before the data.
    """
    if header.data_end is None:
        return _RepeatedJpeg(data, header.scan_ends)
    if header.data_end == len(data):
        # Its last bytes may be missing as well, and a part of a block is easily made up.
        raise PhotographError(422, "The JPEG cannot be decoded: it is truncated or damaged.")
    return _CountedJpeg(data, header.data_end)


class _RepeatedJpeg(JpegImageFile):
    """Several scans."""

    def __init__(self, data: bytes, ends: tuple[int, ...]) -> None:
        self._more = _with_more(data, ends)
        self._drafted: tuple[str | None, tuple[int, int] | None] | None = None
        super().__init__(io.BytesIO(data))

    def draft(
        self, mode: str | None, size: tuple[int, int] | None
    ) -> tuple[str, tuple[int, int, float, float]] | None:
        """Choose mode and scale, as Pillow does, for both times."""
        self._drafted = mode, size
        return super().draft(mode, size)

    def load_prepare(self) -> None:
        """Decode the longer file first, and keep of it a checksum only (Pillow calls this)."""
        again = JpegImageFile(io.BytesIO(self._more))
        self._more = b""
        if self._drafted is not None:
            again.draft(*self._drafted)
        self._expected = _checksum(again)
        del again
        super().load_prepare()

    def load_end(self) -> None:
        """Compare (Pillow calls this)."""
        super().load_end()
        if _checksum(self) != self._expected:
            raise _too_few()


class _CountedJpeg(JpegImageFile):
    """One scan."""

    def __init__(self, data: bytes, end: int) -> None:
        # The last comes first.
        self._left = _tail_and_rest(data, end)
        super().__init__(io.BytesIO(data))

    def load_read(self, read_bytes: int) -> bytes:
        """The next piece of the file, in place of `read_bytes` bytes (Pillow calls this)."""
        if self._left:
            return self._left.pop()
        raise _too_few()

    def load_end(self) -> None:
        """Look at what the decoder has left (Pillow calls this)."""
        super().load_end()
        if self._left:
            raise PhotographError(
                422,
                "The JPEG cannot be decoded: it has more data than pixels, it is truncated or "
                "damaged.",
            )


def _checksum(image: Image.Image) -> int:
    checksum = 0
    for top in range(0, image.height, _BAND_ROWS):
        band = image.crop((0, top, image.width, min(top + _BAND_ROWS, image.height)))
        checksum = zlib.crc32(band.tobytes(), checksum)
    return checksum


def _with_more(data: bytes, ends: tuple[int, ...]) -> bytes:
    """The file with meaningful bytes behind each of its scans, which end there."""
    pieces = []
    for begin, end in pairwise((0, *ends)):
        pieces += [data[begin:end], _ANY_CODES]
    return b"".join((*pieces, data[ends[-1] :])) if ends else b""


def _too_few() -> PhotographError:
    return PhotographError(
        422,
        "The JPEG cannot be decoded: it has fewer data than pixels, it is truncated or damaged.",
    )


def _tail_and_rest(data: bytes, end: int) -> list[bytes]:
    tail = end
    # Before a marker there may be any number of FF; zeros fill up to a length.
    while tail and data[tail - 1] in _PADDING:
        last = data[max(tail - _PADDING_BYTES, 0) : tail]
        tail -= len(last) - len(last.rstrip(_PADDING))
    tail = max(tail - _TAIL_BYTES, 0)
    return [data[tail:end] + _NO_CODE, data[:tail]]
