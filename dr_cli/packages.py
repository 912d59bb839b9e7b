"""Opens a model package that a person named: a folder, or a packed one."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dr_cli.errors import CommandError
from dr_cli.invocation import dr
from inference_image.contract import ENV_MODEL_DIR
from inference_image.model_package import read_spec_from_archive, unpack_model
from inference_image.model_spec import (
    MODEL_JSON,
    ModelSpec,
    has_model_json,
    load_model_spec,
    missing_files,
    verify_files,
)

# Beside this package in a checkout, whatever the current folder is.
DEFAULT_PACKAGE: Final = Path(__file__).resolve().parent.parent / "model_artifacts/mobilenet-demo"


def package_or_default(chosen: Path | None) -> Path:
    """The package that was chosen, or the demo model of the checkout.

    Raises:
        CommandError: none was chosen, and this installation is no checkout.
    """
    if chosen is not None:
        return chosen
    if not DEFAULT_PACKAGE.is_dir():
        raise CommandError(
            "no model comes with an installed dr-endpoints; name a package with --model"
        )
    return DEFAULT_PACKAGE


@contextmanager
def opened_package(path: Path) -> Iterator[tuple[Path, ModelSpec]]:
    """The folder of a checked package and its spec; an archive is unpacked for the while.

    Raises:
        CommandError: there is nothing at `path`, or files of the package are not on disk.
        ModelPackageError: the package is damaged.
    """
    if path.is_dir():
        _require_description(path, path)
        spec = load_model_spec(path)
        require_files(spec, path)
        verify_files(spec, path)
        yield path, spec
        return
    if not path.exists():
        raise CommandError(
            f"there is no model package {path}; name a folder with {MODEL_JSON} or a model.tar.gz"
        )
    with tempfile.TemporaryDirectory(prefix="dr-model-") as folder:
        unpacked = Path(folder)
        if path.suffix == ".tflite":
            raise CommandError(f"{path} is no model package; {_advice(path)}")
        unpack_model(path, unpacked)
        _require_description(unpacked, path)
        spec = load_model_spec(unpacked)
        verify_files(spec, unpacked)
        yield unpacked, spec


def spec_of(path: Path) -> ModelSpec:
    """The spec of a folder or an archive; the other files need not be there."""
    if path.is_dir():
        return load_model_spec(path)
    if not path.exists():
        raise CommandError(
            f"there is no model package {path}; name a folder with {MODEL_JSON} or a model.tar.gz"
        )
    return read_spec_from_archive(path)


def _require_description(folder: Path, named: Path) -> None:
    if not has_model_json(folder):
        raise CommandError(f"no {MODEL_JSON} in {named}; {_advice(named)}")


def _advice(named: Path) -> str:
    # An archive is unpacked first.
    what = named if named.is_dir() or named.suffix == ".tflite" else "FOLDER"
    return (
        f"`{dr(f'model import {what}')}` makes a package of a model, and {ENV_MODEL_DIR}=FOLDER "
        "`python -m inference_image.serve` serves one as it is, with assumptions "
        "(docs/plain-models.md)"
    )


def require_files(spec: ModelSpec, folder: Path) -> None:
    """Refuse a package whose large files were not generated yet, and say how to get them."""
    missing = missing_files(spec, folder)
    if missing:
        how = spec.raw.get("provenance", {}).get("command")
        raise CommandError(
            f"model {spec.id} in {folder} lacks {', '.join(missing)}"
            + (f"; make it with: {how}" if how else "; generate or download it first")
        )
