"""prepare, train, gate and pack as SageMaker runs them: a container's process tree for each job.

Each job has a root of its own, as its container has `/opt/ml`; between jobs only what the state
machine hands on is carried over. A job's Python finds what the tensorflow image holds.
"""

import hashlib
import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dr_training.data.readers import Options, read
from dr_training.data.table import write_table
from dr_training.drawing import draw_fundus
from inference_image.model_package import pack_model, unpack_model
from inference_image.model_spec import load_model_spec, verify_files
from inference_image.predictor import Predictor
from tests.slow.sagemaker_job import Job, ended
from tests.slow.test_training_job_slow import _not_in_the_image
from tests.slow.test_training_slow import training_python

__all__ = ["training_python"]

PATIENT = "Oliveira"
COPIES = 8
NO_DEMANDS = [
    "--min-sensitivity", "0", "--min-specificity", "0", "--min-kappa", "-1",
    "--min-photographs", "30",
]  # fmt: skip
NETWORK = {
    "network": "small-resnet", "weights": "random", "epochs": "1", "batch_size": "16",
    "seed": "3", "threads": "1", "package_id": "clinic-1",
}  # fmt: skip


def _photographs(folder: Path) -> None:
    """120 drawn photographs of as many patients; copies differ in their light."""
    folder.mkdir(parents=True)
    labels = ["image,grade,patient"]
    for drawn in range(15):
        picture = np.asarray(draw_fundus(drawn, drawn % 5, 128).image, np.int16)
        for copy in range(COPIES):
            name = f"{PATIENT}-{drawn}-{copy}"
            lit = np.clip(picture + np.where(picture > 20, 2 * copy, 0), 0, 255)
            Image.fromarray(lit.astype(np.uint8)).save(folder / f"{name}.png")
            labels.append(f"{name}.png,{drawn % 5},{name}")
    (folder / "labels.csv").write_text("\n".join(labels) + "\n")
    reading = read("csv", folder / "labels.csv", Options(patient_column="patient"))
    write_table(reading.table, folder / "table.csv")


class Processing(Job):
    """A processing job: its inputs are folders, and its entry point takes arguments."""

    def give(self, **inputs: Path) -> None:
        """Copies a folder to each input."""
        for name, source in inputs.items():
            shutil.copytree(source, self.roots[0] / "processing" / "input" / name)

    def run(self, *words: str) -> tuple[int, str]:
        """Exit code and what was printed."""
        channel = self.roots[0] / "processing" / "input" / "code"
        channel.mkdir(parents=True, exist_ok=True)
        shutil.copy(self._code, channel)
        command = ("-m", "inference_image.training_job", *words)
        ((code, printed),) = ended([self.start(0, *command)])
        assert PATIENT not in printed
        return code, printed

    @property
    def output(self) -> Path:
        """Holds a folder for each output."""
        return self.roots[0] / "processing" / "output"


def _archive(results: Path, target: Path) -> None:
    """`model.tar.gz` as SageMaker makes it of `/opt/ml/model`."""
    target.mkdir()
    with tarfile.open(target / "model.tar.gz", "w:gz") as tar:
        tar.add(results, arcname=".")


@pytest.mark.timeout(1800)
def test_from_photographs_to_the_archive_that_endpoints_read(
    training_python: Path, repository: Path, tmp_path: Path
) -> None:
    def processing(name: str) -> Processing:
        return Processing(tmp_path / name, training_python, repository, 1)

    _photographs(tmp_path / "photographs")
    prepare = processing("prepare")
    prepare.give(photographs=tmp_path / "photographs")
    code, printed = prepare.run(
        "prepare", "--size-px", "32", "--shares", "0.5,0.2,0.3", "--workers", "2"
    )
    assert code == 0, printed
    assert "120 photographs: 120 ok" in printed
    records = prepare.output / "records"

    training = Job(tmp_path / "train", training_python, repository, 1)
    root = training.fill(0, records, NETWORK)
    ((code, printed),) = ended([training.start(0)])
    assert code == 0, printed
    _archive(root / "model", tmp_path / "model")

    # One epoch makes no good model: nothing is demanded of it here, and the bounds are looked at
    # where the answers are known (tests/unit/dr_training/job).
    gate = processing("gate")
    gate.give(model=tmp_path / "model", records=records)
    code, printed = gate.run("gate", *NO_DEMANDS)
    assert code == 0, printed
    document = json.loads((gate.output / "gate" / "gate.json").read_text())
    assert document["passed"] is True
    manifest = (records / "manifest.json").read_bytes()
    assert document["n"] == document["patients"] == json.loads(manifest)["parts"]["test"]["records"]
    assert document["records"]["manifest_sha256"] == hashlib.sha256(manifest).hexdigest()
    assert document["model"]["id"] == "clinic-1"

    pack = processing("pack")
    pack.give(model=tmp_path / "model", gate=gate.output / "gate")
    code, printed = pack.run("pack")
    assert code == 0, printed
    for job in (prepare, training, gate, pack):
        assert _not_in_the_image(repository, job.imported(0)) == []
        # Judged by the code that serves, and not by another copy that came with the step.
        assert job.service_of(0) == {job.image}
    packed = json.loads((pack.output / "packed" / "pack.json").read_text())
    assert packed["sha256"] == document["model"]["sha256"]
    assert packed["key"] == f"models/clinic-1/{packed['sha256']}.tar.gz"

    # What was packed is what a push of the training's own package would publish, ...
    package = root / "model" / "package"
    pack_model(package, tmp_path / "pushed.tar.gz")
    archive = pack.output / packed["key"]
    assert archive.read_bytes() == (tmp_path / "pushed.tar.gz").read_bytes()
    # ... and the image that trained it serves it.
    unpack_model(archive, tmp_path / "served")
    spec = load_model_spec(tmp_path / "served")
    verify_files(spec, tmp_path / "served")
    assert any(entry.path.endswith("saved_model.pb") for entry in spec.files)
    assert not any(entry.path.endswith(".tflite") for entry in spec.files)
    predictor = Predictor.load(tmp_path / "served", threads=1, runtime="tensorflow")
    predictor.warm_up()
    photograph = next((tmp_path / "photographs").glob("*.png")).read_bytes()
    assert predictor.predict(photograph).probabilities is not None
