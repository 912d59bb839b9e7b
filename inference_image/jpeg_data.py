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
"""

import io
from typing import Final

from PIL.JpegImagePlugin import JpegImageFile

from inference_image.jpeg_headers import JpegHeader
from inference_image.photograph import PhotographError

# Some cameras leave a few bytes behind the data; in a black margin they would be two blocks.
_TAIL_BYTES: Final = 4
# The decoder takes up to eight bytes before it looks at them. These are no code of any table
# (T.81 C.2: the code of ones only is not used), so that they complete no picture.
_NO_CODE: Final = b"\xff\0" * 8
_PADDING: Final = b"\xff\0"
_MOST_PADDING_BYTES: Final = 4096


def open_jpeg(data: bytes, header: JpegHeader) -> JpegImageFile:
    """A Pillow image of the file; its `load` raises PhotographError 422 for data that do not fit.

    Raises:
        OSError, SyntaxError, ValueError: Pillow cannot read the segments before the data.
    """
    return _CountedJpeg(data, header.data_end)


class _CountedJpeg(JpegImageFile):
    def __init__(self, data: bytes, end: int | None) -> None:
        self._counted = end is not None
        # The last comes first.
        self._left = [data] if end is None else [_NO_CODE, *_tail_and_rest(data, end)]
        super().__init__(io.BytesIO(data))

    def load_read(self, read_bytes: int) -> bytes:
        """The next piece of the file, in place of `read_bytes` bytes (Pillow calls this)."""
        if self._left:
            return self._left.pop()
        if self._counted:
            raise PhotographError(
                422, "The JPEG cannot be decoded: it has fewer data than pixels, it is truncated."
            )
        return b""

    def load_end(self) -> None:
        """Look at what the decoder has left (Pillow calls this)."""
        super().load_end()
        if self._counted and len(self._left) > 1:
            raise PhotographError(
                422, "The JPEG cannot be decoded: it has more data than pixels, it is damaged."
            )


def _tail_and_rest(data: bytes, end: int) -> tuple[bytes, bytes]:
    # Before a marker there may be any number of FF; zeros fill up to a length.
    last = data[max(end - _MOST_PADDING_BYTES, 0) : end]
    tail = max(end - len(last) + len(last.rstrip(_PADDING)) - _TAIL_BYTES, 0)
    return data[tail:end], data[:tail]
