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
from PIL import Image

from inference_image.model_spec import load_model_spec, verify_files
from inference_image.predictor import Predictor
from tests.service_harness import encoded
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
import json, os, shutil, signal, time
from pathlib import Path
import numpy as np
import tensorflow as tf
from dr_training.fitting import journal, loop
from dr_training.fitting.plan import TrainingPlan
from dr_training.fitting.run import train_records
from dr_training.fitting.state import read_state, write_state
folder = Path({folder!r})
plan = TrainingPlan(**{plan!r})
renew, renewed = loop.follow_within_an_epoch, []
def renewing(network, *, steps):
    renewed.append(steps)
    renew(network, steps=steps)
loop.follow_within_an_epoch = renewing
whole = train_records(folder / "records", folder / "whole", plan, strategy="cpu", threads=2)
loop.follow_within_an_epoch = renew

step, answers = journal.Journal.step, loop.Trainer.answers
steps, answered, stops = [], [], []
def tell():
    handler = signal.getsignal(signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    while signal.getsignal(signal.SIGTERM) is handler:
        time.sleep(0.01)
def stopping(self, epoch, number, loss):
    step(self, epoch, number, loss)
    steps.append((epoch, number))
    if (epoch, number) in ((1, 5), (2, 3), (4, 1)):
        tell()
def validating(self, part):
    answer = self._answer
    def counting(*arguments):
        answered.append(self._progress.epoch)
        if self._progress.epoch == 3 and answered.count(3) == 1:
            tell()
        return answer(*arguments)
    self._answer = counting
    try:
        return answers(self, part)
    finally:
        self._answer = answer
loop.Journal.step, loop.Trainer.answers = stopping, validating
for _ in range(4):
    try:
        train_records(folder / "records", folder / "cut", plan, strategy="cpu")
    except loop.TrainingStoppedError as error:
        stops.append(str(error))
    if len(stops) == 3:
        # Brought back file by file: best weights of an epoch that the state has yet to come to.
        shutil.copy(folder / "whole" / "best.npz", folder / "cut" / "best.npz")
cut = train_records(folder / "records", folder / "cut", plan, strategy="cpu")
loop.Journal.step, loop.Trainer.answers = step, answers

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
referred = train_records(
    folder / "records", folder / "referral", referral, strategy="cpu", saved_model=True,
    keras_file=True,
)

# The best weights of an epoch that this training, which is finished, never came to.
best = folder / "referral" / "best.npz"
facts, groups = read_state(best)
write_state(best, {{**facts, "row": {{**facts["row"], "epoch": 9, "loss": 0.125}}}}, groups)
later = train_records(
    folder / "records", folder / "referral", referral, strategy="cpu", results=folder / "later",
)
print(json.dumps({{
    "stops": stops, "steps": steps, "renewed": renewed, "answered": answered, "tags": tags,
    "whole": whole.report,
    "cut": cut.report, "half_loss": half.report["validation"]["loss"],
    "referral_auc": referred.report["validation"]["auc"], "later": later.report,
}}))
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

# Every weight, stopped in an epoch and gone on; how far apart the devices' moving means were before
# they were averaged, and how far they are from the average after.
import json, os, signal, time
import numpy as np
from dr_training.fitting import loop
from dr_training.fitting.moving_statistics import MovingStatistics
step, average, gaps = loop.Journal.step, MovingStatistics.average, []
def stopping(self, epoch, number, loss):
    step(self, epoch, number, loss)
    if (epoch, number) == (2, 3):
        handler = signal.getsignal(signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        while signal.getsignal(signal.SIGTERM) is handler:
            time.sleep(0.01)
def averaging(self):
    def copies():
        local = made.strategy.experimental_local_results(self.statistics[0].value)
        return [one.numpy() for one in local]
    one, other = copies()
    average(self)
    gaps.append([float(np.abs(one - other).max())])
    gaps[-1] += [float(np.abs(copy - (one + other) / 2).max()) for copy in copies()]
loop.Journal.step, MovingStatistics.average = stopping, averaging
for _ in range(2):
    try:
        train_records(folder / "records", folder / "mirrored-cut", TrainingPlan(**{whole!r}))
    except loop.TrainingStoppedError:
        pass
(folder / "gaps.json").write_text(json.dumps(gaps))

# What the first of several workers would send, which has two devices: once, whole and exactly.
from dr_training.fitting.sharing import Sharing
chief = Sharing(Devices(name="x", strategy=made.strategy, replicas=2, workers=2, worker=0))
content = np.random.default_rng(0).bytes(8 * 1024 * 1024 + 13)
assert chief._bytes(content, len(content)) == content
other = Sharing(Devices(name="x", strategy=made.strategy, replicas=2, workers=2, worker=1))
assert not any(other._bytes(content, len(content)))
"""

# Two workers that stop twice and go on: the second one is told to. The chief saves the state of the
# first stop only when the other has ended, or has had three seconds for it.
WORKER = """
import json, os, signal, sys, time
from pathlib import Path
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
from dr_cli import training
from dr_training.fitting import loop, run
from dr_training.fitting.strategies import choose_devices
folder = Path({folder!r})
made = choose_devices("auto")
run.choose_devices = lambda *_, **__: made  # the workers of a process meet once
ended, chief = folder / "the-other-has-ended", made.worker == 0
step, answers, save = loop.Journal.step, loop.Trainer.answers, loop.Trainer._save
steps, told, waited, states = [], [], [], []
def tell(where):
    if chief or where in told:
        return
    told.append(where)
    handler = signal.getsignal(signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    while signal.getsignal(signal.SIGTERM) is handler:
        time.sleep(0.01)
def stopping(self, epoch, number, loss):
    step(self, epoch, number, loss)
    steps.append((epoch, number))
    if (epoch, number) == (1, 4):
        tell("step")
def validating(self, part):
    tell("validation")
    return answers(self, part)
def saving(self):
    if chief and not waited:
        until = time.monotonic() + 3
        while not ended.exists() and time.monotonic() < until:
            time.sleep(0.01)
        waited.append(ended.exists())
    save(self)
loop.Journal.step, loop.Trainer.answers, loop.Trainer._save = stopping, validating, saving
codes = []
for _ in range(3):
    arguments = {{"records": str(folder / "records"), "out": str(folder / "workers-cut")}}
    codes.append(training.train(**arguments, plan={plan!r}, choices={{"strategy": "auto"}}))
    if not chief:
        ended.touch()
    progress = loop.read_state(folder / "workers-cut" / "state.npz")[0]["progress"]
    states.append((progress["epoch"], progress["step"]))
found = {{"codes": codes, "steps": steps, "ended_before": waited, "states": states}}
(folder / f"worker-{{made.worker}}.json").write_text(json.dumps(found))
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
) -> tuple[Path, dict[str, Any]]:
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
def test_a_training_that_was_stopped_four_times_ends_as_one_that_was_not(
    trained: tuple[Path, dict[str, Any]],
) -> None:
    folder, found = trained
    # In an epoch's last step, in the middle, in validation, and in the first step.
    assert [one.split(";")[0] for one in found["stops"]] == [
        "stopped in epoch 1 after step 5",
        "stopped in epoch 2 after step 3",
        "stopped in epoch 3 after step 5",
        "stopped in epoch 4 after step 1",
    ]
    # Batch normalisation was told how many steps an epoch has.
    assert found["renewed"] == [5]
    # No step was done twice; of the validation that was stopped, its first batch of three.
    epochs = range(1, HEAD["epochs"] + 1)
    assert found["steps"] == [[epoch, step] for epoch in epochs for step in range(1, 6)]
    assert found["answered"] == [1] * 3 + [2] * 3 + [3] * (1 + 3) + [4] * 3
    whole = _losses(folder / "whole")
    assert len(whole) == HEAD["epochs"]
    # The best weights that were put beside the state of epoch 3 were those of epoch 4.
    assert found["whole"]["best_epoch"] == found["cut"]["best_epoch"] == 4
    np.testing.assert_allclose(_losses(folder / "cut"), whole, atol=1e-6)
    assert whole[-1, 0] < whole[0, 0]
    assert 0 < found["half_loss"] < 10
    # The drawn photographs get brighter with the grade, and a few epochs do not rank them yet.
    referral = _losses(folder / "referral")
    assert referral[-1, 0] < referral[0, 0]
    assert 0 <= found["referral_auc"] <= 1


@pytest.mark.timeout(1800)
def test_a_referral_training_leaves_a_package_that_answers_as_one(
    trained: tuple[Path, dict[str, Any]],
) -> None:
    folder, _ = trained
    package = folder / "referral" / "package"
    spec = load_model_spec(package)
    verify_files(spec, package)
    assert (spec.task, spec.labels) == ("referable", ("Not referable", "Referable"))
    assert [point.name for point in spec.operating_points] == [
        "high_sensitivity",
        "high_specificity",
    ]
    assert "accuracy" not in spec.raw["metrics"]
    error = spec.raw["calibration"]["expected_calibration_error"]
    assert 0 <= min(error.values()) <= max(error.values()) <= 1
    folders = (package, folder / "later" / "package")
    predictors = [Predictor.load(one, threads=1) for one in folders]
    with np.load(folder / "tiny.npz") as arrays:
        pictures = [encoded(Image.fromarray(one), "PNG") for one in arrays["val_images"][:3]]
    for picture in pictures:
        answers = []
        for predictor in predictors:
            predictor.warm_up()
            answers.append(predictor.predict(picture, explain="gradcam"))
        for one in answers:
            assert one.probabilities is not None
            assert len(one.probabilities) == 2
            assert sum(one.probabilities) == pytest.approx(1)
            assert one.grade is None
            assert one.referable.probability == pytest.approx(one.probabilities[1])
            assert one.heat_map is not None
            # One log-odds: what speaks for "referable" is what can be shown.
            assert (one.heat_map.grade, one.heat_map.label) == (None, "Referable")
        # The SavedModel and the .tflite of one training.
        assert answers[0].probabilities == pytest.approx(answers[1].probabilities, abs=1e-4)


@pytest.mark.timeout(1800)
def test_best_weights_of_an_epoch_that_was_never_come_to_count_with_their_own_figures(
    trained: tuple[Path, dict[str, Any]],
) -> None:
    folder, found = trained
    later = found["later"]
    assert (later["best_epoch"], later["epochs"]) == (9, HEAD["epochs"])
    assert (later["validation"]["epoch"], later["validation"]["loss"]) == (9, 0.125)
    assert len(_losses(folder / "referral")) == HEAD["epochs"]


@pytest.mark.timeout(1800)
def test_events_history_and_package_say_the_same(trained: tuple[Path, dict[str, Any]]) -> None:
    folder, found = trained
    tags, report = found["tags"], found["whole"]
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
    trained: tuple[Path, dict[str, Any]], training_python: Path, repository: Path
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
    # Every device's moving statistics count, also where the training is stopped in an epoch.
    gaps = np.array(json.loads((folder / "gaps.json").read_text()))
    assert len(gaps) == 3  # after epoch 1, where it was stopped, and after epoch 2
    assert gaps[:, 0].min() > 1e-4
    assert gaps[:, 1:].max() < 1e-6
    np.testing.assert_allclose(
        _losses(folder / "mirrored-cut"), _losses(folder / "mirrored-all"), atol=1e-6
    )
    arguments = {
        "records": str(folder / "records"),
        "out": str(folder / "workers-all"),
        "plan": ALL,
        "choices": {"strategy": "auto", "compute_threads": 1},
    }
    words = ["-m", "dr_cli.tensorflow_side", "dr_cli.training:train", json.dumps(arguments)]
    _two_workers(training_python, repository, words)
    np.testing.assert_allclose(
        _losses(folder / "workers-all"), _losses(folder / "mirrored-all"), atol=1e-5
    )
    report = json.loads((folder / "workers-all" / "training.json").read_text())
    assert report["devices"] == {"strategy": "multi-worker", "replicas": 2, "workers": 2}


@pytest.mark.timeout(1800)
def test_two_workers_that_stop_leave_together_and_end_as_one_device_that_did_not(
    trained: tuple[Path, dict[str, Any]], training_python: Path, repository: Path
) -> None:
    folder, _ = trained
    code = WORKER.format(folder=str(folder), plan=HEAD)
    _two_workers(training_python, repository, ["-c", code])
    chief, other = (json.loads((folder / f"worker-{index}.json").read_text()) for index in range(2))
    epochs = range(1, HEAD["epochs"] + 1)
    for one in (chief, other):
        assert one["codes"] == [143, 143, 0]
        # Told in step 4 of epoch 1, they stop after step 5, the last one; then in validation.
        assert one["states"] == [[1, 5], [1, 5], [HEAD["epochs"], 0]]
        assert one["steps"] == [[epoch, step] for epoch in epochs for step in range(1, 6)]
    assert chief["ended_before"] == [False]
    np.testing.assert_allclose(
        _losses(folder / "workers-cut"), _losses(folder / "whole"), atol=1e-5
    )


def _two_workers(python: Path, repository: Path, words: list[str]) -> None:
    ports = [_free_port() for _ in range(2)]
    hosts = [f"127.0.0.1:{port}" for port in ports]
    processes = []
    for index in range(2):
        task = {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}}
        processes.append(
            subprocess.Popen(
                [str(python), *words],
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
