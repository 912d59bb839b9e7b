"""`train` of the tensorflow image: one host, and two that are interrupted and go on."""

import csv
import importlib.util
import json
import os
import shutil
import signal
import sysconfig
import time
from pathlib import Path

import numpy as np
import pytest

from inference_image.model_spec import load_model_spec, verify_files
from tests.slow.sagemaker_job import Job, ended
from tests.slow.test_fitting_slow import HEAD, RECORDS, _losses
from tests.slow.test_training_slow import _run, training_python

__all__ = ["training_python"]

PARAMETERS = {name: str(value) for name, value in HEAD.items()} | {
    "package_id": "clinic-1", "threads": "1", "sagemaker_region": "eu-west-1",
}  # fmt: skip


@pytest.fixture(scope="module")
def records(
    training_python: Path, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("job-records")
    _run(training_python, "-c", RECORDS.format(folder=str(folder)), cwd=repository)
    return folder / "records"


def _not_in_the_image(repository: Path, files: list[Path]) -> list[Path]:
    """Files of packages that the build of the image removes."""
    removed = set()
    packages = Path(sysconfig.get_path("purelib"))
    for name, folder, prefix in (
        ("prune-tensorflow.txt", packages, ""),
        ("prune-debian.txt", Path(sysconfig.get_path("stdlib")), "usr/lib/python3.*/"),
    ):
        lines = (repository / "inference_image" / "docker" / name).read_text().splitlines()
        patterns = [line.strip() for line in lines if line.startswith(prefix)]
        patterns = [line for line in patterns if line and line[0] not in "#!"]
        assert patterns
        for pattern in patterns:
            removed |= set(folder.glob(pattern.removeprefix(prefix)))
    assert packages / "tensorflow" / "include" in removed
    return [file for file in files if removed & {file, *file.parents}]


def test_what_the_image_lacks_cannot_be_imported_on_a_host(
    training_python: Path, repository: Path, tmp_path: Path
) -> None:
    job = Job(tmp_path / "job", training_python, repository, 1)
    lacking = ["ai_edge_litert", "cv2", "pytest", "scipy"]
    assert all(importlib.util.find_spec(name) for name in lacking)
    code = f"""
for name in {lacking}:
    try:
        __import__(name)
    except ModuleNotFoundError as error:
        print(error)
import google_crc32c, numpy, PIL, rich
"""
    ((returned, printed),) = ended([job.start(0, "-c", code)])
    assert (returned, printed.splitlines()) == (
        0, [f"{name} is not in the tensorflow image" for name in lacking],
    )  # fmt: skip


@pytest.mark.timeout(1800)
def test_hosts_with_other_records_refuse_to_train_and_say_why(
    records: Path, training_python: Path, repository: Path, tmp_path: Path
) -> None:
    job = Job(tmp_path / "job", training_python, repository, 2)
    roots = [job.fill(index, records, PARAMETERS) for index in range(2)]
    manifest = roots[1] / "input" / "data" / "records" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "note": "another"}))
    found = ended([job.start(index) for index in range(2)])
    assert [code for code, _ in found] == [1, 1], found
    for root, (_, printed) in zip(roots, found, strict=True):
        reason = (root / "output" / "failure").read_text()
        assert reason == (
            "the 2 workers do not have the same records, plan and weights to begin with; give each "
            "of them all that the first one has."
        )
        assert f"job train: {reason}" in printed
        assert "Traceback" not in printed


@pytest.mark.timeout(1800)
def test_two_hosts_that_are_interrupted_end_as_one_that_is_not(
    records: Path, training_python: Path, repository: Path, tmp_path: Path
) -> None:
    alone = Job(tmp_path / "alone", training_python, repository, 1)
    root = alone.fill(0, records, PARAMETERS)
    ((code, printed),) = ended([alone.start(0)])
    assert code == 0, printed
    assert not (root / "output" / "failure").exists()
    imported = alone.imported(0)
    assert [one for one in imported if one.name == "train.py"]
    assert [one for one in imported if "tensorflow" in one.parts]
    assert _not_in_the_image(repository, imported) == []
    assert {one.name for one in (root / "model").iterdir()} == {
        "package", "training.json", "history.csv",
    }  # fmt: skip

    # A state of another plan is not gone on from, and what to do is said in a job's words.
    changed = Job(tmp_path / "changed", training_python, repository, 1)
    root = changed.fill(0, records, {**PARAMETERS, "learning_rate": "0.02"})
    shutil.copytree(alone.roots[0] / "checkpoints", root / "checkpoints")
    ((code, printed),) = ended([changed.start(0)])
    assert code == 1, printed
    assert (
        (root / "output" / "failure")
        .read_text()
        .endswith("(learning_rate was 0.01, now 0.02); name another prefix for the checkpoints.")
    )

    # The second host is told to stop, as at an interruption that not all hosts hear of.
    job = Job(tmp_path / "first", training_python, repository, 2)
    chief, other = (job.fill(index, records, PARAMETERS) for index in range(2))
    found = ended([job.start(0), job.start(1, STOP_AFTER="2:3")])
    assert [code for code, _ in found] == [143, 143], found
    for root in (chief, other):
        reason = (root / "output" / "failure").read_text()
        assert reason == "stopped by SIGTERM in epoch 2; the state is saved."
    assert not (other / "checkpoints").exists()
    assert not any(chief.joinpath("model").iterdir())

    # New hosts. SageMaker brings the checkpoints back to all of them; that one has none, or has
    # old ones, makes no difference, since the chief's count.
    again = Job(tmp_path / "again", training_python, repository, 2)
    chief_again, other_again = (again.fill(index, records, PARAMETERS) for index in range(2))
    shutil.copytree(chief / "checkpoints", chief_again / "checkpoints")
    (other_again / "checkpoints").mkdir()
    (other_again / "checkpoints" / "state.npz").write_bytes(b"old")
    found = ended([again.start(0), again.start(1)])
    assert [code for code, _ in found] == [0, 0], found
    assert (other_again / "checkpoints" / "state.npz").read_bytes() == b"old"
    assert not any((other_again / "model").iterdir())

    results, wanted = chief_again / "model", alone.roots[0] / "model"
    np.testing.assert_allclose(_losses(results), _losses(wanted), atol=1e-5)
    report = json.loads((results / "training.json").read_text())
    assert report["devices"] == {"strategy": "multi-worker", "replicas": 2, "workers": 2}
    spec = load_model_spec(results / "package")
    verify_files(spec, results / "package")
    assert spec.id == "clinic-1"
    with (results / "history.csv").open(newline="") as stream:
        assert [int(row["epoch"]) for row in csv.DictReader(stream)] == [1, 2, 3, 4]


def _step_of(launcher: int) -> int:
    """The process that a launcher has started."""
    (child,) = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return int(child)


@pytest.mark.timeout(1800)
def test_a_host_that_is_killed_is_no_riddle_to_the_other(
    records: Path, training_python: Path, repository: Path, tmp_path: Path
) -> None:
    job = Job(tmp_path / "job", training_python, repository, 2)
    endless = {**PARAMETERS, "epochs": "10000", "stop_patience": "10000"}
    chief, other = (job.fill(index, records, endless) for index in range(2))
    processes = [job.start(0), job.start(1)]
    until = time.monotonic() + 600
    # Both train once the first epoch's state is there.
    while not (chief / "checkpoints" / "state.npz").exists() and time.monotonic() < until:
        if any(one.poll() is not None for one in processes):
            break
        time.sleep(0.1)
    else:
        os.kill(_step_of(processes[1].pid), signal.SIGKILL)
    found = ended(processes)
    assert [code for code, _ in found] == [1, 137], found
    assert (other / "output" / "failure").read_text().startswith("train was ended by SIGKILL")
    reason = (chief / "output" / "failure").read_text()
    assert reason.startswith("the other hosts do not answer (TensorFlow: "), found
