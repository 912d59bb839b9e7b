"""Gives memory that nobody uses any more back to the system.

    >>> return_spare_memory()
    True

The C library keeps what programs free, in pieces between what is still in use. A worker that has
decoded many different pictures looks a fifth larger than it is, for as long as it lives. Where
the library is glibc it can be told to give the pages back (malloc_trim(3)), which takes about a
millisecond; others do so by themselves, or cannot.
"""

import functools
from collections.abc import Callable


def return_spare_memory() -> bool:
    """Whether there was anything to give back; the interpreter goes on meanwhile."""
    trim = _trim()
    return trim is not None and bool(trim(0))


@functools.cache
def _trim() -> Callable[[int], int] | None:
    import ctypes

    try:
        function = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    function.argtypes, function.restype = [ctypes.c_size_t], ctypes.c_int
    return function
