"""Opens a model package that a person named: a folder, or a packed one."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dr_cli.errors import CommandError
from inference_image.model_package import read_spec_from_archive, unpack_model
from inference_image.model_spec import (
    MODEL_JSON,
    ModelSpec,
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
        unpack_model(path, unpacked)
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


def require_files(spec: ModelSpec, folder: Path) -> None:
    """Refuse a package whose large files were not generated yet, and say how to get them."""
    missing = missing_files(spec, folder)
    if missing:
        how = spec.raw.get("provenance", {}).get("command")
        raise CommandError(
            f"model {spec.id} in {folder} lacks {', '.join(missing)}"
            + (f"; make it with: {how}" if how else "; generate or download it first")
        )
