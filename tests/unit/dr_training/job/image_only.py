"""Runs a step with the standard library, the project and what the tensorflow image installs.

    python tests/unit/dr_training/job/image_only.py [ALSO …] -- prepare --seed 0
    python tests/unit/dr_training/job/image_only.py --import scipy

A module of any other distribution cannot be imported; the image's lock says what it installs.
"""

import importlib.abc
import importlib.metadata
import importlib.util
import re
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[4]
LOCK = REPOSITORY / "inference_image/requirements-tensorflow-amd64.txt"
# The environment of a test may have the build with GPUs.
SAME = {"tensorflow": "tensorflow-cpu"}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked() -> set[str]:
    """Distributions of the lock."""
    names = re.findall(r"^([A-Za-z0-9._-]+)==", LOCK.read_text(), re.MULTILINE)
    return {_plain(name) for name in names}


class ImageOnly(importlib.abc.MetaPathFinder):
    """Refuses modules that only distributions outside of the image have."""

    def __init__(self, also: Sequence[str]) -> None:
        inside = locked()
        self._hidden = {
            module
            for module, owners in importlib.metadata.packages_distributions().items()
            if module not in also
            and not any(SAME.get(_plain(one), _plain(one)) in inside for one in owners)
            and not (REPOSITORY / module).is_dir()
        }

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        """Never finds anything; says what must not be found."""
        if fullname.partition(".")[0] in self._hidden:
            raise ModuleNotFoundError(f"{fullname} is not in the tensorflow image", name=fullname)
        return None


def main() -> None:
    """Hide, then run as `python -m dr_training.job` would."""
    words = sys.argv[1:]
    if words[0] == "--import":
        sys.meta_path.insert(0, ImageOnly([]))
        importlib.import_module(words[1])
        return
    cut = words.index("--")
    also, rest = words[:cut], words[cut + 1 :]
    sys.meta_path.insert(0, ImageOnly(also))
    sys.path.insert(0, str(REPOSITORY))
    sys.argv = ["dr_training.job", *rest]
    runpy.run_module("dr_training.job", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
