"""The compiled kernel: the search for the disc, its resampling, the measures of the quality gate.

It gives what `fundus_search.py`, Pillow and `fundus_measures.py` give, in a fraction of their time:
those are hundreds of small calls, and this is one. ctypes lets other threads run meanwhile.
"""

import ctypes
import threading
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from inference_image import kernel, resampling
from inference_image.fundus_terms import (
    SHORTEST_SIDE_PX,
    THUMBNAIL_PX,
    VESSEL_PX,
    Box,
    Disc,
    Measures,
    bin_directions,
    sample_of,
    triplets,
)
from inference_image.resampling import REDUCING_GAP, thumbnail_of

ByteArray = npt.NDArray[np.uint8]

# Answers of `dr_search`.
_FOUND, _FRAMED = 1, 2
_NOT_TAKEN, _ASKS_FOR_TRIPLETS = -1, -2
# A disc, and the box within a frame.
_DiscNumbers: Final = ctypes.c_double * (len(Disc._fields) + 4)
_MeasureNumbers: Final = ctypes.c_double * len(Measures._fields)
_Box: Final = ctypes.c_float * 4
# From so many pixels of the picture for one of the result on, Pillow averages whole ones first.
_REDUCED_FROM: Final = 2 * REDUCING_GAP


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


def _memory(picture: Image.Image) -> tuple[int | None, object]:
    """Where Pillow says how an RGB picture lies in memory, and what keeps it there; None where it
    does not lie in one place, as more than 16 MiB do not."""
    if picture.mode != "RGB":
        return None, None
    try:
        capsule = picture.__arrow_c_array__()[1]
    except ValueError:
        return None, None
    return _capsule_pointer(capsule, b"arrow_array"), capsule


@lru_cache(maxsize=1)
def _library() -> Any:
    """The kernel with the types of its functions; `kernel.load()` must have found it."""
    library = kernel.load()
    if library is None:
        raise RuntimeError("there is no compiled kernel for this machine")
    library.dr_search.argtypes = (
        ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, _DiscNumbers,
    )  # fmt: skip
    library.dr_find.argtypes = (
        ctypes.c_void_p, *(7 * (ctypes.c_int,)), ctypes.c_void_p, ctypes.c_void_p, _DiscNumbers,
    )  # fmt: skip
    library.dr_resize.argtypes = (
        ctypes.c_void_p, ctypes.c_int, ctypes.c_int, _Box, ctypes.c_int,
        ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int,
    )  # fmt: skip
    library.dr_measure.argtypes = (
        ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_double,
        _MeasureNumbers,
    )  # fmt: skip
    library.dr_vesselness.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_double)
    library.dr_vesselness.restype = ctypes.c_double
    return library


# Threads look at what the first one makes: it is made before there are others, or behind a lock,
# and kept for good.
_ANGLES: Final = bin_directions()
_ANGLES_AT: Final = int(_ANGLES.ctypes.data)
# Once a photograph has asked for them: NumPy takes milliseconds to make them, and whoever starts
# needs none.
_triplets_made: Final[list[npt.NDArray[np.float64]]] = []
_triplets_lock: Final = threading.Lock()


def _triplets_at() -> int | None:
    """Where the triplets are; None as long as no photograph has asked for them."""
    return int(_triplets_made[0].ctypes.data) if _triplets_made else None


def _make_triplets() -> None:
    with _triplets_lock:
        if not _triplets_made:
            _triplets_made.append(triplets())


def find_disc(picture: Image.Image, box: Box, factor: int) -> tuple[Disc | None, Box | None]:
    """As `fundus_search.find_disc`."""
    left, top, right, bottom = box
    size = (right - left, bottom - top)
    if max(size) > factor * THUMBNAIL_PX:
        raise ValueError(f"a thumbnail has at most {THUMBNAIL_PX} pixels a side")
    if min(size) <= factor * (SHORTEST_SIDE_PX - 1):
        return None, None
    numbers = _DiscNumbers()
    shown, _kept = _memory(picture)
    library = _library()

    def ask(triplets_at: int | None) -> int:
        words = (*picture.size, left, top, *size, factor)
        answer: int = library.dr_find(shown, *words, triplets_at, _ANGLES_AT, numbers)
        if answer != _NOT_TAKEN:
            return answer
        thumbnail = thumbnail_of(picture, box, factor)
        width, height = thumbnail.size
        return int(
            library.dr_search(thumbnail.tobytes(), height, width, triplets_at, _ANGLES_AT, numbers)
        )

    answer = ask(_triplets_at())
    if answer == _ASKS_FOR_TRIPLETS:
        _make_triplets()
        answer = ask(_triplets_at())
    if answer == _NOT_TAKEN:
        return None, None
    x, y, radius, arc, *within = numbers
    left, top, right, bottom = map(int, within)
    return (
        Disc(x, y, radius, arc) if answer & _FOUND else None,
        (left, top, right, bottom) if answer & _FRAMED else None,
    )


def resize_into(
    target: ByteArray, picture: Image.Image, box: tuple[float, float, float, float], bilinear: bool
) -> None:
    """As `resampling.resize_into`."""
    height, width = target.shape[:2]
    shown, _kept = _memory(picture)
    across, down = (box[2] - box[0]) / width, (box[3] - box[1]) / height
    if (
        target.strides[1:] != (3, 1)
        or (not bilinear and max(across, down) >= _REDUCED_FROM)
        or _library().dr_resize(
            shown, *picture.size, _Box(*box), bilinear, target.ctypes.data, width, height,
            target.strides[0],
        )
    ):  # fmt: skip
        resampling.resize_into(target, picture, box, bilinear)


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


# Before there are threads: two that look a function up at once would give it its types twice.
if kernel.load() is not None:
    _library()
