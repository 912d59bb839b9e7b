"""The search for the disc and the measures of the quality gate by the compiled kernel.

It gives what `fundus_search.py` and `fundus_measures.py` give, in a tenth of their time: those are
hundreds of small calls, and this is one. ctypes lets other threads run meanwhile.
"""

import ctypes
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from inference_image import kernel
from inference_image.fundus_terms import (
    THUMBNAIL_PX,
    VESSEL_PX,
    Disc,
    Measures,
    bin_directions,
    sample_of,
    triplets,
)

ByteArray = npt.NDArray[np.uint8]

# Answers of `dr_search`.
_FOUND, _FRAMED = 1, 2
_NOT_TAKEN, _ASKS_FOR_TRIPLETS = -1, -2
_DiscNumbers: Final = ctypes.c_double * len(Disc._fields)
_MeasureNumbers: Final = ctypes.c_double * len(Measures._fields)


@lru_cache(maxsize=1)
def _library() -> Any:
    """The kernel with the types of its functions; `kernel.load()` must have found it."""
    library = kernel.load()
    if library is None:
        raise RuntimeError("there is no compiled kernel for this machine")
    library.dr_search.argtypes = (
        ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, _DiscNumbers,
    )  # fmt: skip
    library.dr_measure.argtypes = (
        ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_double,
        _MeasureNumbers,
    )  # fmt: skip
    library.dr_vesselness.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_double)
    library.dr_vesselness.restype = ctypes.c_double
    return library


@lru_cache(maxsize=2)
def _address(table: Any) -> int:
    """Where the numbers of a table that is kept for good begin."""
    return int(table().ctypes.data)


def find_disc(thumbnail: Image.Image) -> tuple[Disc | None, bool]:
    """As `fundus_search.find_disc`."""
    width, height = thumbnail.size
    pixels = thumbnail.tobytes()
    # What the kernel reads is not checked there.
    if max(width, height) > THUMBNAIL_PX or len(pixels) != 3 * width * height:
        raise ValueError(f"a thumbnail is RGB and has at most {THUMBNAIL_PX} pixels a side")
    numbers = _DiscNumbers()
    search, angles = _library().dr_search, _address(bin_directions)
    answer = search(pixels, height, width, None, angles, numbers)
    if answer == _ASKS_FOR_TRIPLETS:  # most photographs need none, and NumPy makes them slowly
        answer = search(pixels, height, width, _address(triplets), angles, numbers)
    if answer == _NOT_TAKEN:
        return None, False
    return Disc(*numbers) if answer & _FOUND else None, bool(answer & _FRAMED)


def measure(prepared: ByteArray, hidden: float | None) -> Measures:
    """As `fundus_measures.measure`."""
    side = prepared.shape[0]
    if prepared.shape != (side, side, 3) or prepared.dtype != np.uint8:
        raise ValueError("a prepared photograph is S x S x 3 uint8")
    pixels = np.ascontiguousarray(prepared)
    numbers = _MeasureNumbers()
    answer = _library().dr_measure(
        pixels.ctypes.data, side, *sample_of(side), -1.0 if hidden is None else hidden, numbers
    )
    if answer == _NOT_TAKEN:
        raise ValueError(f"the quality gate cannot measure a square of {side} pixels")
    return Measures(*numbers)


def vesselness(green: ByteArray, least: float) -> float:
    """As `fundus_measures.vesselness`; the levels may lie apart, as a channel of a picture does."""
    if green.shape != (VESSEL_PX, VESSEL_PX) or green.dtype != np.uint8:
        raise ValueError(f"vessels are looked for in {VESSEL_PX} x {VESSEL_PX} uint8 levels")
    if green.strides[0] != green.shape[1] * green.strides[1]:
        green = np.ascontiguousarray(green)
    return float(_library().dr_vesselness(green.ctypes.data, green.strides[1], least))
