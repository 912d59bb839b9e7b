"""How a process of the container ends: with which exit code, and what it says.

    >>> signal.signal(signal.SIGTERM, end_now)       # before it has anything to finish
    >>> raise SystemExit(fail(EXIT_SETTINGS, "the port is taken"))

An exception would not do. Raised while the interpreter runs a callback of its own, such as the one
that frees an import's lock or a finaliser, it is printed and forgotten, and the process goes on: a
container that is stopped while it starts would then be killed half a minute later.
"""

import contextlib
import os
import sys
from types import FrameType
from typing import Final

EXIT_STOPPED: Final = 0
EXIT_WORKERS: Final = 1
EXIT_SETTINGS: Final = 2
EXIT_MODEL: Final = 3
# Workers that stop serve what has connected already; later callers are told to come back.
ACCEPT_WITHIN_S: Final = 2.0


def end_now(_number: int, _frame: FrameType | None) -> None:
    """A signal handler: end this process, with exit code 0."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            stream.flush()
    os._exit(EXIT_STOPPED)


def fail(code: int, sentence: str) -> int:
    """Say on standard error, in one sentence, why the process ends; returns `code`."""
    with contextlib.suppress(OSError):
        print(f"serve: {sentence.rstrip('.')}.", file=sys.stderr, flush=True)
    return code
