"""`dr model train` and its kin: bad input is refused before TensorFlow is started."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dr_cli import __main__ as program
from dr_cli import tensorflow_side
from dr_training.fitting.plan import TrainingPlan


@pytest.fixture
def records(tmp_path: Path) -> Path:
    folder = tmp_path / "records"
    folder.mkdir()
    (folder / "manifest.json").write_text("{}")
    return folder


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What is handed over to the training environment, as it arrives there."""
    calls: list[tuple[str, dict[str, Any]]] = []

    def hand_over(function: str, arguments: dict[str, Any]) -> int:
        calls.append((function, json.loads(json.dumps(arguments))))
        return 143

    monkeypatch.setattr(tensorflow_side, "hand_over", hand_over)
    monkeypatch.setattr(program.signal, "signal", lambda *_: None)
    return calls


def _run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["dr", *arguments])
    with pytest.raises(SystemExit) as caught:
        program.main()
    return int(caught.value.code or 0)


def test_options_become_the_plan_and_the_exit_code_comes_back(
    records: Path, tmp_path: Path, handed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    code = _run(
        monkeypatch, "model", "train", str(records), "--out", str(out), "--network", "vgg16",
        "--loss", "focal", "--no-augment", "--strategy", "mirrored", "--cpu-devices", "2",
    )  # fmt: skip
    assert code == 143
    ((function, arguments),) = handed
    assert function == "dr_cli.training:train"
    plan = TrainingPlan(**arguments["plan"])
    assert (plan.network, plan.loss, plan.augment) == ("vgg16", "focal", False)
    assert plan.batch_size == TrainingPlan(network="vgg16").batch_size
    assert arguments["choices"]["cpu_devices"] == 2
    assert arguments["choices"]["command"] == (
        f"dr model train {records} --out {out} --network vgg16 --loss focal --no-augment"
    )
    assert arguments["choices"]["saved_model"] is arguments["choices"]["keras_file"] is False


def test_a_network_to_be_quantised_leaves_its_saved_model_and_itself(
    records: Path, tmp_path: Path, handed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = str(tmp_path / "out")
    words = ("model", "train", str(records), "--out", out, "--network", "vgg16", "--saved-model")
    assert _run(monkeypatch, *words) == 143
    choices = handed[0][1]["choices"]
    assert choices["saved_model"] is choices["keras_file"] is True
    assert choices["command"].endswith("--network vgg16 --saved-model")


def test_the_defaults_of_the_command_are_those_of_the_plan() -> None:
    from typer.main import get_command

    from dr_cli.app import app

    options = {
        one.name: one.default
        for one in get_command(app).commands["model"].commands["train"].params  # type: ignore[attr-defined]
    }
    plan = TrainingPlan(network="vgg16").as_document()
    for name, value in plan.items():
        if name not in ("network", "focal_gamma"):
            assert options[name] == value, name
    assert set(plan) - set(options) == {"focal_gamma"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["model", "train", "{records}", "--out", "o", "--network", "mobilnet"], "mobilenet"),
        (
            ["model", "train", "{records}", "--out", "o", "--network", "vgg16", "--monitor", "f1"],
            "monitor must be one of loss, kappa, auc; got 'f1'",
        ),
        (["model", "train", "nowhere", "--out", "o", "--network", "vgg16"], "holds no manifest"),
        (
            ["model", "compare", "{records}", "--out", "o", "--networks", "vgg16"],
            "name two or more",
        ),
        (
            ["model", "compare", "{records}", "--out", "o", "--networks", "vgg16,vgg61"],
            "no network 'vgg61'",
        ),
        (
            ["model", "linear-head", "{records}", "--out", "{records}/manifest.json"],
            "is a file; name a folder",
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_starts_nothing(
    arguments: list[str],
    sentence: str,
    records: Path,
    handed: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = _run(monkeypatch, *(one.format(records=records) for one in arguments))
    error = capsys.readouterr().err
    assert code == 1
    assert sentence in error
    assert len(error.strip().splitlines()) == 1
    assert handed == []
