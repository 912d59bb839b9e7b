"""Decodes a PNG, and notices where its data are too short for its size.

    >>> image = open_png(data, header)
    >>> image.load()

Pillow leaves black what data that end too early leave out, without a word. Its checksums may be
right: then the program that wrote it was at fault.
"""

import io
from typing import Final

from PIL.PngImagePlugin import PngImageFile

from inference_image.png_headers import PngHeader, without_large_metadata

# A value for each kind of pixel that an empty image does not have.
_MARKS: Final[dict[str, int | tuple[int, ...]]] = {
    "1": 255,
    "L": 1,
    "LA": (1, 1),
    "I;16": 1,
    "P": 1,
    "RGB": (1, 0, 1),
    "RGBA": (1, 0, 1, 1),
}


def open_png(data: bytes, header: PngHeader) -> PngImageFile:
    """A Pillow image; its `load` raises PhotographError 422 for data that are damaged or short.

    Raises:
        OSError, SyntaxError, ValueError: Pillow cannot read the chunks before the data.
    """
    return _MarkedPng(data, header)


def low_bytes(data: bytes, header: PngHeader) -> PngImageFile:
    """Of an RGB PNG of 16 bits the lower 8, which Pillow leaves out when it reads the upper ones.

    The file is one that has been decoded before, and is whole.
    """
    image = PngImageFile(io.BytesIO(without_large_metadata(data, header)))
    # The same samples, taken for little-endian ones, of which it keeps the second byte.
    image.tile = [tile._replace(args="RGB;16L") for tile in image.tile]
    image.load()
    return image


class _MarkedPng(PngImageFile):
    def __init__(self, data: bytes, header: PngHeader) -> None:
        self._data, self._header = data, header
        super().__init__(io.BytesIO(without_large_metadata(data, header)))

    def load_prepare(self) -> None:
        """Mark the row that is decoded last (Pillow calls this)."""
        self._header.check_data(self._data)
        super().load_prepare()
        self._last = 0, self._last_row()
        self._mark = _MARKS.get(self.mode)
        if self._mark is not None:
            self.im.pixel_access()[self._last] = self._mark

    def load_end(self) -> None:
        """See whether the mark is gone (Pillow calls this)."""
        if self._mark is None or self.im.pixel_access()[self._last] == self._mark:
            # It may be the pixel's own value. Only then everything is inflated again.
            self._header.check_length(self._data)
        # The picture outlives its file.
        self._data = b""
        super().load_end()

    def _last_row(self) -> int:
        height = self._header.height_px
        # The last of seven passes has every other row.
        return height // 2 * 2 - 1 if self._header.interlaced and height > 1 else height - 1
