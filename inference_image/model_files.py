"""Finds the models in a folder: the `.tflite` file, and the SavedModel however deep it lies.

    >>> saved_model_folder(["export/Servo/9/saved_model.pb", "export/Servo/10/saved_model.pb"])
    PurePosixPath('export/Servo/10')

Exporters, archives and other servers nest a SavedModel in different ways. They are looked for in
the order of `SEARCH_ORDER`; the first place that has one decides, and of numbered versions the
highest number, so that 10 comes after 9. Where that leaves more than one, the message lists them.
Standard library only.
"""

import json
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from inference_image.contract import RUNTIME_LITERT, RUNTIME_TENSORFLOW
from inference_image.model_spec import (
    MAX_MODEL_JSON_BYTES,
    MODEL_JSON,
    ModelPackageError,
    ModelSpec,
)

# TensorFlow writes the second where it is asked for text, and reads both.
SAVED_MODEL_FILES: Final = ("saved_model.pb", "saved_model.pbtxt")
SEARCH_ORDER: Final = ("root", "1/", "model/ or model/1/", "export/…/", "anywhere else")
# Code that other containers would import from the archive; this one runs none.
CODE_FOLDER: Final = "code"
# Keras reads them with the code that made them, which is not here.
_KERAS_FILES: Final = (".keras", ".h5", ".hdf5")
_EXPORT_IT: Final = '; of a Keras model write a SavedModel with model.export("export/1")'
_DEEPEST: Final = 8
_MOST_FILES: Final = 10_000
_MOST_NAMED: Final = 8


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """A model on disk: the `.tflite` file or the folder of the SavedModel, and its runtime."""

    runtime: str
    path: Path
    signature: str | None = None


def models_of_package(spec: ModelSpec, package_dir: Path) -> dict[str, ModelFile]:
    """Runtime -> model, of those that `model.json` lists.

    Raises:
        ModelPackageError: none is listed, or several of one kind, or files of the SavedModel
            are not listed, so that nobody would have checked them.
    """
    listed = [entry.path for entry in spec.files]
    found = _models(listed, package_dir, origin=f"model {spec.id}", signature=spec.signature)
    if not found:
        raise ModelPackageError(
            f"model {spec.id} must list a .tflite file or a SavedModel; it lists {_names(listed)}"
        )
    saved = found.get(RUNTIME_TENSORFLOW)
    if saved is not None:
        present = {path.relative_to(package_dir).as_posix() for path in folder_files(saved.path)}
        unlisted = sorted(present - set(listed) - {MODEL_JSON})
        if unlisted:
            raise ModelPackageError(
                f"model {spec.id}: {unlisted[0]} lies in the SavedModel and is not listed in "
                f"{MODEL_JSON}, so its digest is unknown"
            )
    return found


def models_of_folder(folder: Path) -> dict[str, ModelFile]:
    """Runtime -> model, in a folder without `model.json`.

    Raises:
        ModelPackageError: there is none, or several of one kind; the message says what is there.
    """
    files, unseen = _files(folder)
    paths = [path.relative_to(folder).as_posix() for path in files]
    # Links are not followed; what one of this name leads to is not known.
    for here, _, names in os.walk(folder):
        for link in (Path(here, name) for name in names if name.lower() == MODEL_JSON):
            if link.is_symlink():
                raise ModelPackageError(
                    f"{link.relative_to(folder)} in {folder} is a link, which is not followed; put "
                    f"{MODEL_JSON} itself at the root, or remove the link"
                )
    for path in paths:
        if path != MODEL_JSON and _describes_a_package(folder / path):
            raise ModelPackageError(
                f"the description of the model in {folder} is {path}, and not {MODEL_JSON} at its "
                "root, so its thresholds would be passed over; pack what that folder holds, "
                f"with {MODEL_JSON} at the root"
            )
    found = _models(paths, folder, origin=str(folder), signature=None)
    code = [path for path in paths if CODE_FOLDER in PurePosixPath(path).parts[:-1]]
    if found and any(path.endswith(".py") for path in code):
        raise ModelPackageError(
            f"{folder} brings code of its own ({code[0]}), which this container does not run; "
            f"leave it out and describe the model in {MODEL_JSON}"
        )
    if not found:
        raise ModelPackageError(
            f"{folder} holds no {MODEL_JSON}, .tflite file or SavedModel; it holds "
            + (_names(paths) if folder.is_dir() else f"nothing ({_no_folder(folder)})")
            + "".join(f"; {reason}" for reason in unseen[:_MOST_NAMED])
            + (_EXPORT_IT if any(path.endswith(_KERAS_FILES) for path in paths) else "")
        )
    return found


def code_beside(folder: Path) -> str | None:
    """A file of Python that came with the model for other containers to run; this one does not."""
    found = min((folder / CODE_FOLDER).rglob("*.py"), default=None)
    return None if found is None else found.relative_to(folder).as_posix()


def saved_model_folder(paths: Iterable[str], *, origin: str = "the folder") -> PurePosixPath | None:
    """The folder of the SavedModel among these files; None where there is none.

    Raises:
        ModelPackageError: several lie in places of the same rank; they are listed.
    """
    # (rank, parent of the version, is numbered, number, folder)
    seen: list[tuple[int, PurePosixPath, bool, int, PurePosixPath]] = []
    for path in map(PurePosixPath, paths):
        if path.name not in SAVED_MODEL_FILES:
            continue
        folder = path.parent
        numbered = folder.name.isdecimal() and folder.name.isascii()
        base = folder.parent if numbered else folder
        number = int(folder.name) if numbered else 0
        seen.append((_rank(base, numbered=numbered), base, numbered, number, folder))
    if not seen:
        return None
    best = min(seen)[0]
    ranked = [row for row in seen if row[0] == best]
    if len({row[1] for row in ranked}) > 1:
        raise ModelPackageError(
            f"{origin} holds more than one SavedModel, and nothing says which to serve: "
            + _names([row[4].as_posix() for row in ranked])
        )
    # Without a number comes before any number, as the root comes before 1/.
    return max(ranked, key=lambda row: (not row[2], row[3]))[4]


def folder_files(folder: Path) -> list[Path]:
    """Every plain file of a model folder, sorted; links are not followed."""
    return _files(folder)[0]


def _no_folder(path: Path) -> str:
    return "it is no folder" if path.exists() else "the folder does not exist"


def _describes_a_package(path: Path) -> bool:
    """Whether it is a `model.json` of ours: Keras and TensorFlow.js have files of that name."""
    if path.name.lower() != MODEL_JSON or path.stat().st_size > MAX_MODEL_JSON_BYTES:
        return False
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        # Theirs are written by a program.
        return True
    return isinstance(document, dict) and "operating_points" in document


def _models(
    paths: list[str], folder: Path, *, origin: str, signature: str | None
) -> dict[str, ModelFile]:
    found = {}
    flat = [path for path in paths if path.endswith(".tflite")]
    if len(flat) > 1:
        raise ModelPackageError(f"{origin} holds more than one .tflite file: {_names(flat)}")
    saved = saved_model_folder(paths, origin=origin)
    if flat:
        # Beside a SavedModel the name is that of its signature, which a converter may change.
        own = signature if saved is None else None
        found[RUNTIME_LITERT] = ModelFile(
            runtime=RUNTIME_LITERT, path=folder / flat[0], signature=own
        )
    if saved is not None:
        found[RUNTIME_TENSORFLOW] = ModelFile(
            runtime=RUNTIME_TENSORFLOW, path=folder / saved, signature=signature
        )
    return found


def _rank(base: PurePosixPath, *, numbered: bool) -> int:
    """Position in `SEARCH_ORDER`."""
    if not base.parts:
        return 1 if numbered else 0
    if base.parts == ("model",):
        return 2
    return 3 if base.parts[0] == "export" else 4


def _files(folder: Path) -> tuple[list[Path], list[str]]:
    """Plain files, sorted, and why others were not seen."""
    found: list[Path] = []
    unseen: list[str] = []

    def note(error: OSError) -> None:
        path = Path(str(error.filename))
        if path != folder:
            unseen.append(f"{path.relative_to(folder)} cannot be read ({error.strerror})")
        elif not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise ModelPackageError(f"{folder} cannot be read ({error.strerror})")

    def is_plain(path: Path) -> bool:
        try:
            return stat.S_ISREG(path.lstat().st_mode)
        except OSError as error:
            note(error)
            return False

    for here, folders, names in os.walk(folder, onerror=note):
        inside = Path(here)
        if folders and len(inside.relative_to(folder).parts) >= _DEEPEST:
            unseen.append(f"what lies deeper than {_DEEPEST} folders was not looked at")
            folders.clear()
        # lost+found belongs to a volume, hidden folders to whoever made the archive.
        folders[:] = sorted(n for n in folders if not n.startswith(".") and n != "lost+found")
        paths = (inside / name for name in names if not name.startswith("."))
        found += filter(is_plain, paths)
        if len(found) > _MOST_FILES:
            raise ModelPackageError(f"{folder} holds more than {_MOST_FILES} files")
    return sorted(found), unseen


def _names(paths: list[str]) -> str:
    shown = ", ".join(sorted(paths)[:_MOST_NAMED]) + (", ..." if len(paths) > _MOST_NAMED else "")
    return shown or "nothing"
