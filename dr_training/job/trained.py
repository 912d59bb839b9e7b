"""Opens what a training job left: the archive that SageMaker made of its results.

    >>> with trained(places.model_archive) as model:
    ...     model.spec.id, model.records_sha256

It holds `package/`, the package that would be served, and `training.json`. The archive is unpacked
as one that a stranger sent: links, paths that leave it and bombs are refused, and every file of
the package has the digest that its `model.json` records.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dr_training.fitting.results import PACKAGE, RECORDS_SHA256, REPORT
from dr_training.job.faults import JobError
from inference_image.model_package import unpack_model
from inference_image.model_spec import MODEL_JSON, ModelSpec, load_model_spec, verify_files

_MOST_JSON_BYTES: Final = 4 * 1024**2


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A checked package, and the digest of the records' manifest that it was trained on."""

    package: Path
    spec: ModelSpec
    records_sha256: str


@contextmanager
def trained(archive: Path) -> Iterator[Trained]:
    """The results of a training, unpacked for the while.

    Raises:
        JobError: there is no archive, no package, or no word about the records.
        ModelPackageError: the archive or the package is damaged or hostile.
    """
    if not archive.is_file():
        raise JobError(f"there is no {archive}; it is what a training job leaves")
    with tempfile.TemporaryDirectory(prefix="dr-trained-") as folder:
        unpack_model(archive, Path(folder))
        package = Path(folder) / PACKAGE
        if not (package / MODEL_JSON).is_file():
            raise JobError(
                f"{archive.name} holds no {PACKAGE}/{MODEL_JSON}, which a training leaves when it "
                "has ended; let the training job end first"
            )
        spec = load_model_spec(package)
        verify_files(spec, package)
        report = read_object(Path(folder) / REPORT)
        digest = report.get(RECORDS_SHA256)
        if not isinstance(digest, str):
            raise JobError(
                f"{REPORT} of {archive.name} does not say which records it was trained on "
                f"({RECORDS_SHA256}), so no part of any records is known to be new to it"
            )
        yield Trained(package=package, spec=spec, records_sha256=digest)


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object of one of the steps.

    Raises:
        JobError: there is no such file, or it is none.
    """
    try:
        if path.stat().st_size > _MOST_JSON_BYTES:
            raise JobError(f"{path.name} is larger than {_MOST_JSON_BYTES:,} bytes")
        document = json.loads(path.read_bytes())
    except OSError as error:
        reason = (error.strerror or "unreadable").lower()
        raise JobError(f"{path} cannot be read: {reason}") from None
    except (ValueError, RecursionError):
        raise JobError(f"{path.name} is not JSON") from None
    if not isinstance(document, dict):
        raise JobError(f"{path.name} must hold a JSON object")
    return document
