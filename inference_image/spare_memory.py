"""Gives memory that nobody uses any more back to the system.

    >>> return_spare_memory()
    True

A refusal leaves its exception, whose frames hold the picture and it them, until Python looks for
such circles, which it does while it works and never while it is idle; to look takes some 10 ms. And
the C library keeps what programs free, in pieces between what is still in use: a worker that has
decoded many different pictures looks a fifth larger than it is, for as long as it lives. Where the
library is glibc it can be told to give the pages back (malloc_trim(3)), which takes about a
millisecond; others do so by themselves, or cannot.
"""

import functools
import gc
from collections.abc import Callable


def return_spare_memory() -> bool:
    """Whether there was anything to give back; the interpreter goes on meanwhile."""
    gc.collect()
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
