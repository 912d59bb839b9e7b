"""Folders that a person named for results."""

import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from dr_cli.errors import CommandError

EARLIER_FOLDER: Final = "earlier"


def result_folder(path: Path) -> Path:
    """Make the folder `path` where it is missing, and return it.

    Raises:
        CommandError: it, or a part of its path, is a file, or nothing can be written there.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        file = next(part for part in (path, *path.parents) if part.exists() and not part.is_dir())
        raise CommandError(f"{file} is a file; name a folder with --out") from None
    except OSError as error:
        raise CommandError(
            f"{path} cannot be made ({error.strerror}); name another --out"
        ) from None
    try:
        # Before hours of measuring, and not after.
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        reason = error.strerror
        raise CommandError(f"{path} cannot be written ({reason}); name another --out") from None
    return path


def keep_earlier(folder: Path, results: Iterable[Path]) -> Path | None:
    """Move what an earlier run left in `folder` out of the way, and return where it is now.

    Args:
        folder: of results.
        results: files in it, which may be missing; they keep their place below the new folder.
    """
    found = [path for path in results if path.is_file()]
    if not found:
        return None
    when = datetime.fromtimestamp(max(path.stat().st_mtime for path in found), UTC)
    stamp = when.strftime("%Y%m%dT%H%M%SZ")
    kept, number = folder / EARLIER_FOLDER / stamp, 1
    while kept.exists():
        number += 1
        kept = folder / EARLIER_FOLDER / f"{stamp}-{number}"
    for path in found:
        target = kept / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)
    return kept
