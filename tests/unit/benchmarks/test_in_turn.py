"""Two settings of the service beside each other: what is set, and how it is summed up."""

from pathlib import Path

import pytest

from benchmarks.serving.contenders import SERVICE
from benchmarks.serving.in_turn import main, table, with_settings
from benchmarks.serving.inputs import REPOSITORY, Model


def test_a_setting_is_added_to_those_of_the_service() -> None:
    package = REPOSITORY / "model_artifacts" / "mobilenet-demo"
    model = Model(name="mobilenet", package=package, without_gate=package, keras_file=None)
    plain = SERVICE.environment(model, 8080, 2)
    found = with_settings({"DR_KERNEL": "numpy"}).environment(model, 8080, 2)
    assert found == {**plain, "DR_KERNEL": "numpy"}


def test_the_ratio_is_that_of_each_round() -> None:
    """The machine became three times as slow in the second round, for both."""
    cpu_ms = [[10.0, 30.0, 10.0], [8.0, 24.0, 9.0]]
    per_s = [[100.0, 33.0, 100.0], [125.0, 41.25, 111.0]]
    lines = [line.split() for line in table(["first", "second"], cpu_ms, per_s)]
    assert lines[1] == ["first", "10.00", "100.0"]
    assert lines[2] == ["second", "9.00", "111.0"]
    assert lines[3] == ["second", "/", "first", "0.80", "1.25"]


@pytest.mark.parametrize("words", [["DR_KERNEL=numpy"], ["a", "b"], ["A=1", "B=2", "C=3"]])
def test_it_takes_two_settings(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert "give two settings as NAME=VALUE, or none" in capsys.readouterr().err


def test_a_version_before_runs_by_its_own_code(tmp_path: Path) -> None:
    assert with_settings({}).folder == REPOSITORY
    assert with_settings({}, folder=tmp_path).folder == tmp_path


def test_a_version_before_without_its_kernel_is_no_measure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "inference_image" / "native").mkdir(parents=True)
    (tmp_path / "inference_image" / "serve.py").touch()
    with pytest.raises(SystemExit):
        main(["--before", str(tmp_path)])
    assert "has no compiled kernel; type `make setup` there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--before", "nowhere"], "nowhere is no checkout of this project"),
        (["--before", ".", "A=1", "B=2"], "give two settings, or --before a checkout, not both"),
    ],
)
def test_the_version_before_is_a_checkout(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert said in capsys.readouterr().err
