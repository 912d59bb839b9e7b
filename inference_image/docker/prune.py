"""Removes from a folder what a list names; says which lines match nothing.

    python3 prune.py FOLDER LIST [LIST ...]

A line is a pattern below FOLDER, as `pathlib.Path.glob` reads it; `!` before it keeps what a line
of the same file would remove. Runs inside the build, with the standard library alone.
"""

import shutil
import sys
from pathlib import Path


def prune(folder: Path, text: str) -> list[str]:
    """Remove what `text` lists below `folder`; returns the patterns that matched nothing."""
    lines = [line.strip() for line in text.splitlines()]
    patterns = [line for line in lines if line and not line.startswith("#")]
    # All are looked up before anything goes, so that their order does not matter.
    found = {pattern: set(folder.glob(pattern.removeprefix("!"))) for pattern in patterns}
    kept = {path for pattern in patterns if pattern.startswith("!") for path in found[pattern]}
    holding = kept | {parent for path in kept for parent in path.parents}
    for pattern in patterns:
        if not pattern.startswith("!"):
            for path in found[pattern] - holding:
                _remove(path)
    return [pattern for pattern in patterns if not found[pattern]]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        # It may have gone with its folder.
        path.unlink(missing_ok=True)


def main(arguments: list[str]) -> int:
    """Prune, and say which lines are out of date."""
    folder, *lists = [Path(argument) for argument in arguments]
    idle = [
        f"{path.name}: {pattern}"
        for path in lists
        for pattern in prune(folder, path.read_text(encoding="utf-8"))
    ]
    for line in idle:
        print(f"nothing matches {line}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
