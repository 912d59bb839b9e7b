"""The steps' common start: what is said, where, and with which exit code; no TensorFlow."""

import hashlib
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
        (FileNotFoundError(2, "No such file", "/x/Silva.jpg"), 1, "no such file, while this step"),
        (OSError(28, "No space left on device"), 1, "no space left on device, while this step"),
        (OSError("of Silva"), 1, "unexpected OSError in this step; set DR_DEBUG=1"),
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


def _put_records(root: Path) -> Path:
    """A channel `records` as far as the step looks at it without TensorFlow."""
    folder = root / "input" / "data" / "records"
    folder.mkdir(parents=True)
    parts = {}
    for part in ("train", "test"):
        shard = folder / f"{part}-00000.tfrecord"
        shard.write_bytes(part.encode())
        digest = hashlib.sha256(part.encode()).hexdigest()
        parts[part] = {"shards": [{"file": shard.name, "records": 0, "sha256": digest}]}
    manifest = {"schema_version": 1, "size_px": 28, "preprocessing": [], "parts": parts}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


ONE = {"current_host": "algo-1", "hosts": ["algo-1"]}
LEAST = {"network": "mobilenet", "package_id": "clinic-1"}
TWO = ["127.0.0.1:4001", "127.0.0.1:4002"]


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
    _put_records(root)
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
    # Set, so that what the step sets is taken back.
    monkeypatch.setenv("TF_CONFIG", "")
    _fill(root, LEAST, {"current_host": TWO[1], "hosts": TWO})
    _put_records(root)
    train.run(root, [])
    assert root not in found[0].parents
    assert not (root / "checkpoints").exists()

    assert json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1


@pytest.mark.parametrize("host", TWO)
@pytest.mark.parametrize("strategy", ["cpu", "one-gpu", "mirrored", "tpu"])
def test_a_strategy_of_one_host_is_refused_to_several(root: Path, strategy: str, host: str) -> None:
    _fill(root, {**LEAST, "strategy": strategy}, {"current_host": host, "hosts": TWO})
    _put_records(root)
    with pytest.raises(JobError) as found:
        train.run(root, [])
    assert str(found.value) == (
        f"hyper-parameters: strategy {strategy} is for one host, and the job has 2; leave it out"
    )
    assert found.value.code == 2
    assert not (root / "checkpoints").exists()


def test_the_strategy_of_several_hosts_is_refused_to_one(root: Path) -> None:
    _fill(root, {**LEAST, "strategy": "multi-worker"}, ONE)
    _put_records(root)
    with pytest.raises(JobError, match="multi-worker is for several hosts, and the job has one"):
        train.run(root, [])


@pytest.mark.parametrize(
    ("strategy", "hosts"),
    [("auto", TWO), ("multi-worker", TWO), ("auto", ["algo-1"]), ("mirrored", ["algo-1"])],
)
def test_strategies_that_fit_the_hosts_are_taken(
    root: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, hosts: list[str]
) -> None:
    found = []
    monkeypatch.setenv("TF_CONFIG", "")
    monkeypatch.setattr(train, "_train", lambda _, wanted, *__: found.append(wanted.strategy))
    _fill(root, {**LEAST, "strategy": strategy}, {"current_host": hosts[0], "hosts": hosts})
    _put_records(root)
    train.run(root, [])
    assert found == [strategy]


@pytest.mark.parametrize("host", TWO)
@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"another", "is not the file that manifest.json names: digests differ"),
        (None, "which manifest.json names, cannot be read (no such file or directory)"),
    ],
)
def test_files_that_are_not_the_manifests_are_refused_on_every_host(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    part: str,
    content: bytes | None,
    said: str,
) -> None:
    found = []
    monkeypatch.setattr(train, "_train", lambda *given: found.append(given))
    _fill(root, LEAST, {"current_host": host, "hosts": TWO})
    shard = _put_records(root) / f"{part}-00000.tfrecord"
    if content is None:
        shard.unlink()
    else:
        shard.write_bytes(content)
    with pytest.raises(JobError) as caught:
        train.run(root, [])
    assert str(caught.value).startswith(shard.name)
    assert said in str(caught.value)
    assert caught.value.code == 1
    assert found == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sha256": None}, "manifest.json has no digests of its files; prepare the records again"),
        ({"file": "../manifest.json"}, "names '../manifest.json', which is no file beside it"),
        ({"file": 3}, "names 3, which is no file beside it"),
    ],
)
def test_a_manifest_that_does_not_say_which_files_it_means_is_refused(
    root: Path, change: dict[str, object], said: str
) -> None:
    _fill(root, LEAST, ONE)
    path = _put_records(root) / "manifest.json"
    manifest = json.loads(path.read_bytes())
    manifest["parts"]["train"]["shards"][0].update(change)
    path.write_text(json.dumps(manifest))
    with pytest.raises(JobError) as found:
        train.run(root, [])
    assert said in str(found.value)


@pytest.mark.parametrize("code", [1, 4, 10, 14])
def test_hosts_that_do_not_answer_are_told_from_other_faults(code: int) -> None:
    said = train.why_tensorflow_ended(code, 2) or ""
    assert said.startswith("the other hosts do not answer (TensorFlow: ")
    # One host waits for no other.
    assert train.why_tensorflow_ended(code, 1) is None


@pytest.mark.parametrize("hosts", [1, 2])
def test_what_tensorflow_says_of_itself_is_no_fault_of_the_other_hosts(hosts: int) -> None:
    said = train.why_tensorflow_ended(8, hosts) or ""
    assert said.startswith("the memory is not enough; take a larger instance type, or a smaller")
    for code in (2, 3, 5, 9, 11, 12, 13, 15):
        assert train.why_tensorflow_ended(code, hosts) is None


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (
            "x holds another plan (epochs was 3, now 4); name another --out, or --restart to go",
            "x holds another plan (epochs was 3, now 4); name another prefix for the checkpoints",
        ),
        ("the loss is not a number; give a smaller --learning-rate", None),
        ("use --train all, another --network (a-b), or --weights random", None),
        ("a file /x/a--b.tfrecord of 2026-11-28 -- is as it was", None),
    ],
)
def test_options_are_named_as_hyper_parameters(typed: str, said: str | None) -> None:
    if said is None:
        said = typed.replace("--learning-rate", "learning_rate")
        for name in ("train", "network", "weights"):
            said = said.replace(f"--{name}", name)
    assert train.as_hyperparameters(typed) == said


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
    reason = (tmp_path / "output" / "failure").read_text()
    said = f"job train: {reason}\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (143, "", said)
    assert reason.startswith("stopped by SIGTERM before the first epoch or after the last one;")
