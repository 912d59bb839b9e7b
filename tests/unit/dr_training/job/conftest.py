"""A job's folders with a small data set and a small model, both without TensorFlow.

Patients have names that nothing which others read may hold.
"""

import csv
import io
import json
import shutil
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dr_training.data.table import pixels_sha256
from dr_training.job.places import ProcessingPlaces
from inference_image.model_spec import file_sha256

SIZE_PX = 28
# What must not be in a message: an unusual word for every kind of name.
PATIENT = "Oliveira"
PHOTOGRAPH = "fundus-of-Oliveira"
PACKAGE = Path("tests/data/tiny-prepared")


@dataclass(frozen=True)
class Job:
    """The root of a processing job, and what tests put there."""

    root: Path

    @property
    def places(self) -> ProcessingPlaces:
        return ProcessingPlaces(self.root)

    def write_table(self, rows: Sequence[dict[str, Any]]) -> None:
        columns = list(dict.fromkeys(name for row in rows for name in row))
        self.places.photographs.mkdir(parents=True, exist_ok=True)
        with (self.places.photographs / "table.csv").open("w", newline="") as stream:
            writer = csv.DictWriter(stream, columns)
            writer.writeheader()
            writer.writerows(rows)

    def put_photographs(
        self, count: int, *, per_patient: int = 1, size_px: int = SIZE_PX
    ) -> list[Any]:
        """So many pictures of grades in turn, and their table; gives its rows."""
        grades = np.arange(count) // per_patient % 5
        rng = np.random.default_rng(0)
        noise = rng.integers(0, 90, (count, size_px, size_px, 3))
        pixels = (30 * grades[:, None, None, None] + noise).astype(np.uint8)
        self.places.photographs.mkdir(parents=True)
        np.savez(self.places.photographs / "pictures.npz", all_images=pixels)
        rows = rows_of(pixels, grades.tolist(), per_patient=per_patient)
        self.write_table(rows)
        return rows

    def hand_on(self) -> None:
        """What the state machine does between jobs: outputs become inputs."""
        for output, target in (
            (self.places.prepared, self.places.records),
            (self.places.judged.parent, self.places.verdict.parent),
        ):
            if output.exists():
                shutil.rmtree(target, ignore_errors=True)
                shutil.copytree(output, target)

    def archive(self, files: dict[str, bytes | Path]) -> None:
        """`model.tar.gz` as SageMaker packs the folder of a training's results."""
        target = self.places.model_archive
        target.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(target, "w:gz") as tar:
            for name, content in files.items():
                data = content if isinstance(content, bytes) else content.read_bytes()
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))

    def trained_files(self, package: Path = PACKAGE, **report: Any) -> dict[str, bytes | Path]:
        """What a training on the records of this job would leave."""
        manifest = self.places.records / "manifest.json"
        said = {"records_sha256": file_sha256(manifest)} if manifest.exists() else {}
        files: dict[str, bytes | Path] = {
            f"package/{path.name}": path for path in sorted(package.iterdir())
        }
        return {**files, "training.json": json.dumps({**said, **report}).encode()}

    def gate_json(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.places.judged.read_bytes())
        return document


def rows_of(pixels: np.ndarray, grades: Sequence[int], *, per_patient: int = 1) -> list[Any]:
    """A table's rows over an array beside it."""
    return [
        {
            "id": f"{PHOTOGRAPH}-{index}",
            "patient": f"{PATIENT} {index // per_patient}",
            "grade": grade,
            "sha256": pixels_sha256(pixels[index]),
            "path": f"pictures.npz#all/{index}",
        }
        for index, grade in enumerate(grades)
    ]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "ml")


@pytest.fixture
def photographs(job: Job) -> Callable[..., list[Any]]:
    """Puts so many pictures and their table into the job; gives the table's rows."""
    return job.put_photographs
