"""The training loop on one device, two devices and two workers, stopped and gone on.

The records are made once; each process trains what can share its devices.
"""

import csv
import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference_image.model_spec import load_model_spec, verify_files
from tests.slow.test_training_slow import _run, training_python

__all__ = ["training_python"]

# The backbone keeps its batch statistics: so one device and two must agree.
HEAD: dict[str, Any] = {
    "network": "small-resnet", "weights": "random", "train": "head", "epochs": 4,
    "batch_size": 8, "seed": 3, "class_weights": "balanced", "dropout": 0.0,
    "reduce_patience": 1, "learning_rate": 0.01,
}  # fmt: skip
# Every weight, and one thread each: with several, sums are added in another order, and Adam's first
# steps, which see the sign of a gradient, make much of a rounding error.
ALL = {**HEAD, "train": "all", "epochs": 2, "loss": "ordinal", "learning_rate": 1e-4}

ONE_DEVICE = """
import json, os, signal
from pathlib import Path
import numpy as np
import tensorflow as tf
from dr_training.fitting import journal, loop
from dr_training.fitting.plan import TrainingPlan
from dr_training.fitting.run import train_records
folder = Path({folder!r})
plan = TrainingPlan(**{plan!r})
whole = train_records(folder / "records", folder / "whole", plan, strategy="cpu", threads=2)

step = journal.Journal.step
def stopping(self, epoch, number, loss):
    step(self, epoch, number, loss)
    if (epoch, number) in ((2, 3), (4, 1)):
        os.kill(os.getpid(), signal.SIGTERM)
loop.Journal.step = stopping
stops = []
for _ in range(2):
    try:
        train_records(folder / "records", folder / "cut", plan, strategy="cpu")
    except loop.TrainingStoppedError as error:
        stops.append(str(error))
loop.Journal.step = step
train_records(folder / "records", folder / "cut", plan, strategy="cpu")

tags = {{}}
for path in sorted((folder / "whole" / "tensorboard").iterdir()):
    for record in tf.data.TFRecordDataset(str(path)):
        event = tf.compat.v1.Event.FromString(record.numpy())
        for value in event.summary.value:
            tags.setdefault(value.tag, []).append(float(tf.make_ndarray(value.tensor)))
# Half a precision of activations; the package is float32 again.
mixed = TrainingPlan(**{{**{plan!r}, "epochs": 1, "precision": "mixed_bfloat16", "loss": "focal"}})
half = train_records(folder / "records", folder / "half", mixed, strategy="cpu")
referral = TrainingPlan(**{{**{plan!r}, "task": "referable"}})
referred = train_records(folder / "records", folder / "referral", referral, strategy="cpu")
print(json.dumps([stops, tags, whole.report, half.report["validation"]["loss"],
                  referred.report["validation"]["auc"]]))
"""

TWO_DEVICES = """
from pathlib import Path
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(1)
from dr_training.fitting.plan import TrainingPlan
from dr_training.fitting.run import train_records
from dr_training.fitting.strategies import Devices, choose_devices
from dr_training.fitting import run
folder = Path({folder!r})
made = choose_devices("mirrored", cpu_devices=2)
run.choose_devices = lambda *_, **__: made  # a CPU can be split once
for name, plan in (("mirrored-head", {head!r}), ("mirrored-all", {whole!r})):
    report = train_records(folder / "records", folder / name, TrainingPlan(**plan)).report
assert report["devices"] == {{"strategy": "mirrored", "replicas": 2, "workers": 1}}, report

# What the first of several workers would send, which has two devices: once, whole and exactly.
import numpy as np
from dr_training.fitting.sharing import Sharing
chief = Sharing(Devices(name="x", strategy=made.strategy, replicas=2, workers=2, worker=0))
content = np.random.default_rng(0).bytes(8 * 1024 * 1024 + 13)
assert chief._bytes(content, len(content)) == content
other = Sharing(Devices(name="x", strategy=made.strategy, replicas=2, workers=2, worker=1))
assert not any(other._bytes(content, len(content)))
"""

RECORDS = """
from pathlib import Path
import numpy as np
from dr_training.data.preparation import Plan, prepare
from dr_training.data.readers import PUBLISHED_SPLIT, read
from dr_training.data.splits import published_split
folder = Path({folder!r})
rng = np.random.default_rng(0)
arrays = {{}}
for part, count in (("train", 43), ("val", 21)):
    grades = np.arange(count) % 5
    pictures = 40 * grades[:, None, None, None] + rng.integers(0, 60, (count, 16, 16, 3))
    arrays[f"{{part}}_images"] = pictures.astype(np.uint8)
    arrays[f"{{part}}_labels"] = grades[:, None].astype(np.uint8)
np.savez(folder / "tiny.npz", **arrays)
table = read("npz", folder / "tiny.npz").table
split = published_split(table, PUBLISHED_SPLIT)
prepare(table, split, folder / "records", plan=Plan.prepared_already(size_px=16, image_format="png"))
"""  # noqa: E501


@pytest.fixture(scope="module")
def trained(
    training_python: Path, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Any]]:
    """A folder with trainings, and what the process on one device found."""
    folder = tmp_path_factory.mktemp("fitting")
    _run(training_python, "-c", RECORDS.format(folder=str(folder)), cwd=repository)
    code = ONE_DEVICE.format(folder=str(folder), plan=HEAD)
    printed = _run(training_python, "-c", code, cwd=repository)
    return folder, json.loads(printed.splitlines()[-1])


def _losses(folder: Path) -> np.ndarray:
    with (folder / "history.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    return np.array([[float(row["train_loss"]), float(row["loss"])] for row in rows])


@pytest.mark.timeout(1800)
def test_a_training_that_was_stopped_twice_ends_as_one_that_was_not(
    trained: tuple[Path, list[Any]],
) -> None:
    folder, (stops, _, _, half_loss, referral_auc) = trained
    # The signals came after steps 3 and 1: a step that begins later tells all workers of it.
    assert [one.split(";")[0] for one in stops] == [
        "stopped in epoch 2 after step 4",
        "stopped in epoch 4 after step 2",
    ]
    whole = _losses(folder / "whole")
    assert len(whole) == HEAD["epochs"]
    np.testing.assert_allclose(_losses(folder / "cut"), whole, atol=1e-6)
    assert whole[-1, 0] < whole[0, 0]
    assert 0 < half_loss < 10
    # The drawn photographs get brighter with the grade, and a few epochs do not rank them yet.
    referral = _losses(folder / "referral")
    assert referral[-1, 0] < referral[0, 0]
    assert 0 <= referral_auc <= 1


@pytest.mark.timeout(1800)
def test_events_history_and_package_say_the_same(trained: tuple[Path, list[Any]]) -> None:
    folder, (_, tags, report, *_) = trained
    np.testing.assert_allclose(tags["loss"], _losses(folder / "whole")[:, 1], rtol=1e-5)
    spec = load_model_spec(folder / "whole" / "package")
    verify_files(spec, folder / "whole" / "package")
    assert (spec.input_size_px, spec.preprocessing, spec.quality_gate) == (16, (), None)
    assert spec.raw["network"]["backbone_weights"] == "random"
    assert report["trained_parameters"] < report["parameters"]
    accuracy = spec.raw["metrics"]["accuracy"]["value"]
    # 43 photographs are five batches of 8; validation counts all 21, not 24.
    assert accuracy * 21 == pytest.approx(round(accuracy * 21), abs=0.01)
    assert accuracy == pytest.approx(report["validation"]["accuracy"], abs=1e-3)


@pytest.mark.timeout(1800)
def test_two_devices_and_two_workers_give_the_same_losses(
    trained: tuple[Path, list[Any]], training_python: Path, repository: Path
) -> None:
    folder, _ = trained
    _run(
        training_python,
        "-c",
        TWO_DEVICES.format(folder=str(folder), head=HEAD, whole=ALL),
        cwd=repository,
    )
    np.testing.assert_allclose(
        _losses(folder / "mirrored-head"), _losses(folder / "whole"), atol=1e-5
    )
    _two_workers(training_python, repository, folder)
    np.testing.assert_allclose(
        _losses(folder / "workers-all"), _losses(folder / "mirrored-all"), atol=1e-5
    )
    report = json.loads((folder / "workers-all" / "training.json").read_text())
    assert report["devices"] == {"strategy": "multi-worker", "replicas": 2, "workers": 2}


def _two_workers(python: Path, repository: Path, folder: Path) -> None:
    ports = [_free_port() for _ in range(2)]
    hosts = [f"127.0.0.1:{port}" for port in ports]
    arguments = {
        "records": str(folder / "records"),
        "out": str(folder / "workers-all"),
        "plan": ALL,
        "choices": {"strategy": "auto", "compute_threads": 1},
    }
    processes = []
    for index in range(2):
        task = {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}}
        command = ["-m", "dr_cli.tensorflow_side", "dr_cli.training:train", json.dumps(arguments)]
        processes.append(
            subprocess.Popen(
                [str(python), *command],
                cwd=repository,
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_CONFIG": json.dumps(task)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    try:
        texts = [process.communicate(timeout=900)[0] for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
    assert [process.returncode for process in processes] == [0, 0], texts


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
