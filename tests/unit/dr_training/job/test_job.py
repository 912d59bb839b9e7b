"""The steps' common start: what is said, where, and with which exit code; no TensorFlow."""

import json
import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dr_training.data.faults import DataError
from dr_training.job import train
from dr_training.job.__main__ import main
from dr_training.job.faults import JobError, StepArguments
from inference_image.model_spec import ModelPackageError


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("DR_ML_ROOT", str(tmp_path))
    before = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, before)


def _step(monkeypatch: pytest.MonkeyPatch, run: Callable[..., None]) -> None:
    module = types.ModuleType("dr_training.job.gate")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "dr_training.job.gate", module)


def test_a_step_gets_the_root_and_its_own_arguments(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    _step(monkeypatch, lambda *given: calls.append(given))
    assert main(["gate", "--min-kappa", "0.5"]) == 0
    assert calls == [(root, ["--min-kappa", "0.5"])]
    assert not (root / "output").exists()


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (JobError("no records", 2), 2, "no records."),
        (JobError("stopped", 143), 143, "stopped."),
        (DataError("row 7 is empty"), 1, "row 7 is empty."),
        (DataError("patient Silva twice", anonymous="one twice"), 1, "one twice."),
        (ModelPackageError("no model.json\nthere"), 1, "no model.json there."),
        (FileNotFoundError(2, "No such file", "/x/y"), 1, "/x/y: no such file."),
        (ModuleNotFoundError("no", name="scipy"), 1, "the image holds no Python module 'scipy'"),
        (MemoryError(), 1, "the memory is not enough; take a larger instance type."),
        (KeyError("Silva"), 1, "unexpected KeyError in this step; set DR_DEBUG=1"),
    ],
)
def test_why_a_step_ended_is_one_sentence_on_both_ways(
    error: Exception,
    code: int,
    said: str,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(*_: object) -> None:
        raise error

    _step(monkeypatch, run)
    assert main(["gate"]) == code
    reason = (root / "output" / "message").read_text()
    assert reason.startswith(said)
    assert capsys.readouterr().err == f"job gate: {reason}\n"
    assert "Silva" not in reason


def test_the_traceback_comes_where_it_is_asked_for(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*_: object) -> None:
        raise KeyError("x")

    _step(monkeypatch, run)
    monkeypatch.setenv("DR_DEBUG", "1")
    assert main(["gate"]) == 1
    assert "Traceback" in capsys.readouterr().err
    assert "Traceback" not in (root / "output" / "message").read_text()


@pytest.mark.parametrize("words", [[], ["judge"], ["--help"]])
def test_an_unknown_step_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "one of train, prepare, gate, pack; got" in capsys.readouterr().err


def test_arguments_that_are_wrong_are_a_sentence() -> None:
    parser = StepArguments("gate", "Judges.")
    parser.add_argument("--min-kappa", type=float)
    with pytest.raises(JobError, match=r"gate: argument --min-kappa: invalid float") as found:
        parser.parse_args(["--min-kappa", "x"])
    assert found.value.code == 2
    with pytest.raises(JobError, match="unrecognized arguments"):
        parser.parse_args(["--min", "0.5"])


def _fill(root: Path, parameters: object, resources: object) -> None:
    folder = root / "input" / "config"
    folder.mkdir(parents=True)
    (folder / "hyperparameters.json").write_text(json.dumps(parameters))
    (folder / "resourceconfig.json").write_text(json.dumps(resources))


ONE = {"current_host": "algo-1", "hosts": ["algo-1"]}
LEAST = {"network": "mobilenet", "package_id": "clinic-1"}


def test_a_training_without_its_files_says_which(root: Path) -> None:
    with pytest.raises(JobError, match=r"hyperparameters\.json cannot be read: no such file"):
        train.run(root, [])
    with pytest.raises(JobError, match="takes no arguments, but hyper-parameters; got '--epochs'"):
        train.run(root, ["--epochs"])
    _fill(root, LEAST, ONE)
    with pytest.raises(JobError, match=r"the channel records .* holds no manifest\.json"):
        train.run(root, [])
    config = root / "input" / "config" / "resourceconfig.json"
    config.write_bytes(b"\xff")
    with pytest.raises(JobError, match=r"resourceconfig\.json is not UTF-8"):
        train.run(root, [])
    config.write_bytes(b" " * 1_048_577)
    with pytest.raises(JobError, match="is larger than 1048576 bytes"):
        train.run(root, [])
    config.unlink()
    with pytest.raises(JobError, match=r"resourceconfig\.json cannot be read"):
        train.run(root, [])


def test_a_cluster_of_before_is_forgotten(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["elsewhere:1", "b:1"]}}')
    monkeypatch.setattr(train, "_train", lambda *given: found.append(given))
    _fill(root, LEAST, ONE)
    records = root / "input" / "data" / "records"
    records.mkdir(parents=True)
    (records / "manifest.json").write_text("{}")
    train.run(root, [])

    assert "TF_CONFIG" not in os.environ
    ((places, wanted, hosts, out),) = found
    assert out == places.checkpoints == root / "checkpoints"
    assert out.is_dir()
    assert wanted.package_id == "clinic-1"
    assert hosts.is_chief


def test_a_host_that_is_not_the_chief_writes_no_checkpoints(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    monkeypatch.setattr(train, "_train", lambda *given: found.append(given[-1]))
    monkeypatch.delenv("TF_CONFIG", raising=False)
    hosts = ["127.0.0.1:4001", "127.0.0.1:4002"]
    _fill(root, LEAST, {"current_host": hosts[1], "hosts": hosts})
    records = root / "input" / "data" / "records"
    records.mkdir(parents=True)
    (records / "manifest.json").write_text("{}")
    train.run(root, [])
    assert root not in found[0].parents
    assert not (root / "checkpoints").exists()

    assert json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1


def test_the_command_of_the_provenance_does_the_same_again() -> None:
    from dr_training.job.hyperparameters import read_hyperparameters

    given = {**LEAST, "epochs": "7", "augment": "false", "learning_rate": "0.0001", "threads": "2"}
    command = train._command(read_hyperparameters(json.dumps(given)))
    assert command == (
        "dr model train records --out model --network mobilenet --epochs 7 --learning-rate 0.0001 "
        "--no-augment --threads 2"
    )


def test_a_stop_outside_of_an_epoch_is_said_and_is_no_success(tmp_path: Path) -> None:
    code = (
        "import os, signal; from pathlib import Path; from dr_training.job import train;"
        f"train._end_at_sigterm(Path({str(tmp_path)!r})); os.kill(os.getpid(), signal.SIGTERM);"
        "signal.pause()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (143, "", "")
    reason = (tmp_path / "output" / "failure").read_text()
    assert reason.startswith("stopped by SIGTERM before the first epoch or after the last one;")
