"""Compiles one C file for this machine and loads it: for what Python would be too slow for.

>>> library = load(Path(__file__).with_name("peak.c"), "-mavx512f")
>>> library.dr_float_products(1000)

At the time of the run, so that nobody has to build anything before: it takes some tenths of a
second. `cc`, or else the package ziglang, where Python finds it or where set-up has put it.
"""

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

FLAGS: Final = ("-std=gnu99", "-O2", "-shared", "-fPIC")
# Where set-up puts ziglang on a machine without a compiler, for the service's kernel.
_SET_UP: Final = Path(__file__).resolve().parents[1] / ".compiler"
_ZIG: Final = "ziglang"
_COMPILE_S: Final = 120


class NotCompiledError(RuntimeError):
    """There is no compiler, or none that compiles this file; the text says so in one sentence."""


def load(source: Path, *flags: str) -> ctypes.CDLL:
    """The functions of a C file; nothing of it stays on the disk.

    Args:
        source: the file, which includes nothing but what the system has.
        flags: of the compiler, besides `FLAGS`.

    Raises:
        NotCompiledError: no compiler does it.
    """
    said = "benchmarks need a C compiler (cc) or the package ziglang"
    for compiler in compilers():
        with tempfile.TemporaryDirectory(prefix="dr-compiled-") as folder:
            target = Path(folder, "compiled.so")
            words = [*compiler, *FLAGS, *flags, str(source), "-o", str(target)]
            try:
                done = subprocess.run(
                    words,
                    cwd=folder,
                    env=_environment(folder),
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=_COMPILE_S,
                    check=False,
                )
                if done.returncode == 0:
                    return ctypes.CDLL(str(target))
                wrong = done.stderr
            except (OSError, subprocess.TimeoutExpired) as error:
                wrong = str(error)
        said = f"{compiler[-1]} does not compile {source.name}: {_first_error(wrong)}"
    raise NotCompiledError(said)


def compilers() -> list[Sequence[str]]:
    """The first words of a call of each compiler that there is, the best one first."""
    found: list[Sequence[str]] = []
    if shutil.which("cc"):
        found.append(["cc"])
    if importlib.util.find_spec(_ZIG) is not None or (_SET_UP / _ZIG).is_dir():
        found.append([sys.executable, "-m", _ZIG, "cc"])
    return found


def _environment(folder: str) -> dict[str, str]:
    # Zig keeps what it has compiled; here it goes with the temporary folder.
    caches = dict.fromkeys(("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"), folder)
    paths = [path for path in (os.environ.get("PYTHONPATH"), str(_SET_UP)) if path]
    return {**os.environ, **caches, "LC_ALL": "C", "PYTHONPATH": os.pathsep.join(paths)}


def _first_error(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line]
    return (telling or lines or ["it says nothing"])[0]
