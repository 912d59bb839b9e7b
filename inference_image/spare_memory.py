"""Gives memory that nobody uses any more back to the system.

    >>> keep_one_heap()                        # in the first thread, before there is another
    >>> return_spare_memory()
    True

A refusal leaves its exception, whose frames hold the picture and it them, until Python looks for
such circles, which it does while it works and never while it is idle; to look takes some 10 ms. And
the C library keeps what programs free, in pieces between what is still in use: a worker that has
decoded many different pictures looks a fifth larger than it is, for as long as it lives. Where the
library is glibc it can be told to give the pages back (malloc_trim(3)), which takes about a
millisecond; others do so by themselves, or cannot. Of each further heap, which glibc makes for a
thread, it never gives back the end: up to 64 MB once a body or a picture of 30 MB has been there.
"""

import functools
import gc
from collections.abc import Callable
from typing import Any, Final

# malloc.h of glibc.
_M_ARENA_MAX: Final = -8


def return_spare_memory() -> bool:
    """Whether there was anything to give back; the interpreter goes on meanwhile."""
    gc.collect()
    trim = _trim()
    return trim is not None and bool(trim(0))


def keep_one_heap() -> bool:
    """Whether all threads of this process, and of those it forks, take memory from one heap."""
    import ctypes

    mallopt = _function("mallopt", ctypes.c_int, ctypes.c_int)
    return mallopt is not None and bool(mallopt(_M_ARENA_MAX, 1))


@functools.cache
def _trim() -> Callable[[int], int] | None:
    import ctypes

    return _function("malloc_trim", ctypes.c_size_t)


def _function(name: str, *kinds: Any) -> Callable[..., int] | None:
    """One of the C library, if it has it."""
    import ctypes

    try:
        function = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
    function.argtypes, function.restype = kinds, ctypes.c_int
    return function  # type: ignore[no-any-return]
