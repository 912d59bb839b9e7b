"""Folders that a person named for results."""

from pathlib import Path

from dr_cli.errors import CommandError


def result_folder(path: Path) -> Path:
    """Make the folder `path` where it is missing, and return it.

    Raises:
        CommandError: it, or a part of its path, is a file.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        file = next(part for part in (path, *path.parents) if part.exists() and not part.is_dir())
        raise CommandError(f"{file} is a file; name a folder with --out") from None
    return path
