"""Keeps libtiff, which Pillow brings, from writing to standard error.

    >>> silence_libtiff()
    True

For every line of a damaged TIFF that it cannot decode, the library prints one of its own. They are
no lines of our log, anybody who sends such files can fill it with them, and where nobody reads
standard error a worker would wait for ever once the pipe is full. What is wrong with the file, the
sender is told (TIFFSetErrorHandler, libtiff.gitlab.io).
"""

import functools
import re
from pathlib import Path
from typing import Final

_LIBRARY: Final = re.compile(r"(/\S*/libtiff[^/\s]*\.so\S*)$", re.MULTILINE)
_HANDLERS: Final = ("TIFFSetErrorHandler", "TIFFSetWarningHandler")


@functools.cache
def silence_libtiff() -> bool:
    """Whether it was found in this process; to be called once it has been loaded."""
    import ctypes

    try:
        found = _LIBRARY.search(Path("/proc/self/maps").read_text(encoding="utf-8"))
        if found is None:
            return False
        # Loaded already, so that this is the very one which Pillow uses.
        library = ctypes.CDLL(found[1])
        for name in _HANDLERS:
            setter = getattr(library, name)
            setter.argtypes, setter.restype = [ctypes.c_void_p], ctypes.c_void_p
            setter(None)
    except (OSError, AttributeError):
        return False
    return True
