"""The project's code for a training as one archive: what a job runs with, beside the image.

The image holds the service and nothing of `dr_training`; the archive is handed to each job as a
channel, and holds nothing of the service: a model is judged by the code that will serve it, the
image's own. It holds source only, in one order, with one date and uncompressed, so that its digest
follows the source alone: not caches, dates, or the machine's zlib.
"""

import importlib.util
import io
import zipfile
from pathlib import Path
from typing import Final

from constructs_lib.rules import ValidationError

CODE_FILE: Final = "dr-training-code.zip"
PACKAGE: Final = "dr_training"
_DATE: Final = (1980, 1, 1, 0, 0, 0)
_MODE: Final = 0o644 << 16


def package_folder(name: str) -> Path:
    """Where an installed package lies; it is found and not imported.

    Raises:
        ValidationError: it is not installed beside the constructs.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ValidationError(
            "DRTrainingPipeline",
            [f"the package {name} must be installed beside constructs_lib; it is not there"],
        )
    return Path(next(iter(spec.submodule_search_locations)))


def training_code(folder: Path | None = None) -> bytes:
    """The archive; `folder` is the package's, or where it is installed.

    Raises:
        ValidationError: the package is not there, or its folder holds no source.
    """
    found = folder or package_folder(PACKAGE)
    sources = sorted(
        path.relative_to(found).as_posix() for path in found.rglob("*.py") if path.is_file()
    )
    if not sources:
        raise ValidationError(
            "DRTrainingPipeline", [f"the package {PACKAGE} must hold source; it holds none"]
        )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression=zipfile.ZIP_STORED) as archive:
        for source in sources:
            entry = zipfile.ZipInfo(f"{PACKAGE}/{source}", date_time=_DATE)
            entry.external_attr = _MODE
            # Otherwise the system that packs is written into it.
            entry.create_system = 3
            archive.writestr(entry, (found / source).read_bytes())
    return buffer.getvalue()
