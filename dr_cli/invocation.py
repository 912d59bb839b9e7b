"""How this program was called, so that a hint can be typed as it stands.

>>> dr("local up")
'.venv/bin/dr local up'
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Final

_NAME: Final = "dr"


def dr(arguments: str = "") -> str:
    """A command line of this program that works in the shell that called it."""
    return f"{_program()} {arguments}".rstrip()


def _program() -> str:
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{_short(Path(sys.executable))} -m {called.parent.name}"
    if called.name != _NAME:
        # Called from Python, as a test does.
        return _NAME
    if not called.is_absolute():
        return str(called)
    found = shutil.which(_NAME)
    return _NAME if found and Path(found) == called else _short(called)


def _short(path: Path) -> str:
    """`path` from the current folder where it lies in it, else as it is."""
    here = Path.cwd()
    return os.path.relpath(path, here) if path.is_relative_to(here) else str(path)
