"""Finds the compiled kernel of `fundus`, or says that there is none and NumPy does its work.

    >>> name()
    'compiled'

`docker/build_kernel.py` compiles it, in set-up and when the image is built. Standard library only.
"""

import ctypes
import os
import platform
import struct
from functools import lru_cache
from pathlib import Path
from typing import Final

from inference_image import contract
from inference_image.variables import read_setting

# Of the native/fundus.c that this code calls: `python -m inference_image.docker.build_kernel
# --version` says it, and a test holds the two to each other.
KERNEL_VERSION: Final = 787_819
FOLDER: Final = Path(__file__).resolve().parent / "native"
_ELF_HEADER_BYTES: Final = 64


@lru_cache(maxsize=1)
def load() -> ctypes.CDLL | None:
    """The kernel for this machine, loaded once; None where there is none that fits this source.

    None also where the variable `DR_KERNEL` is `numpy`.

    Raises:
        SettingsError: `DR_KERNEL` has a value that cannot be.
    """
    if read_setting(contract.ENV_KERNEL, os.environ) == contract.KERNEL_NUMPY:
        return None
    path = FOLDER / f"fundus-{platform.machine()}.so"
    try:
        if not _is_whole(path):
            return None
        library = ctypes.CDLL(str(path))
        version = int(library.dr_kernel_version())
    except (OSError, AttributeError):
        return None
    return library if version == KERNEL_VERSION else None


def name() -> str:
    """Which of the two is used: `compiled` or `numpy`."""
    return contract.KERNEL_NUMPY if load() is None else contract.KERNEL_COMPILED


def _is_whole(path: Path) -> bool:
    """Whether an ELF file ends where it says. A cut one may end the process that loads it.

    The table of sections is the last thing in a file of 64 bits (System V ABI, chapter 4).
    """
    with path.open("rb") as file:
        head = file.read(_ELF_HEADER_BYTES)
        if len(head) < _ELF_HEADER_BYTES or not head.startswith(b"\x7fELF\x02\x01"):
            return False
        (start,) = struct.unpack_from("<Q", head, 40)
        size, count = struct.unpack_from("<HH", head, 58)
        return bool(os.fstat(file.fileno()).st_size >= start + size * count > start)
