"""`dr study`: from a file to a page, and one sentence for every mistake."""

import csv
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dr_cli import study as commands
from dr_cli.app import app
from dr_training.data.faults import DataError
from dr_training.study.runners import runner
from tests.unit.dr_training.study.study_texts import SMALL, FakeRunner, result_of


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path


def dr(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["study", *arguments])


def test_plan_run_analyse(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRunner(lambda spec: result_of(spec, training_s=1.0 + spec["repetition"]))
    monkeypatch.setattr(runner, "runner_for", lambda *_: fake)
    planned = dr("plan", "small.toml", "--out", "s")
    assert planned.exit_code == 0, planned.output
    assert "4 scenarios (2 framework x 2 size), 3 repetitions, 12 runs" in planned.output
    with (folder / "s" / "plan.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 12
    run = dr("run", "small.toml", "--out", "s")
    assert run.exit_code == 0, run.output
    assert "12 runs made now; ended so far: 12 ok; left: 0" in run.output
    assert "0 runs made now" in dr("run", "small.toml", "--out", "s").output
    analysed = dr("analyse", "s")
    assert analysed.exit_code == 0, analysed.output
    page = (folder / "s" / "report.html").read_text()
    assert "A small study" in page
    assert "font: 16px/1.55" in page  # the style of the project's other pages


def test_a_study_in_which_no_run_ended_well_is_no_success(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeRunner(lambda spec: result_of(spec, status="error", reason="no module"))
    monkeypatch.setattr(runner, "runner_for", lambda *_: fake)
    result = dr("run", "small.toml", "--out", "s")
    assert result.exit_code == 1
    assert "12 runs made now; ended so far: 12 error; left: 0" in result.output
    assert f"no run ended well; {Path('s', 'journal.jsonl')} says why" in str(result.exception)


def test_a_budget_of_nothing_is_said(folder: Path) -> None:
    (folder / "none.toml").write_text(f"{SMALL}\n[budget]\nruns = 0\n")
    result = dr("run", "none.toml")
    assert result.exit_code == 0
    assert "the budget is 0 runs, so nothing is run" in result.output
    assert not (folder / "out" / "study" / "small" / "runs").exists()


def test_repetitions_and_a_look_without_running(folder: Path) -> None:
    result = dr("run", "small.toml", "--repeats", "2", "--check")
    assert "8 runs" in result.output
    assert "within the budget" in result.output
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "nothing.toml"], "no such study file"),
        (["analyse", "nowhere"], "holds no plan"),
        (["run", "small.toml", "--data-dir", "nowhere"], "no such folder"),
        (["run", "small.toml"], "there is no interpreter"),
    ],
)
def test_mistakes_are_sentences(folder: Path, arguments: list[str], words: str) -> None:
    text = f'{SMALL}\n[python]\nPyTorch = "no/python"\nTensorFlow = "no/python"\n'
    (folder / "small.toml").write_text(text)
    result = dr(*arguments)
    assert isinstance(result.exception, DataError)
    assert words in str(result.exception)


def test_the_name_of_a_study_is_no_path() -> None:
    assert commands._folder("../../etc") == Path("out/study/-..-etc")
    assert commands._folder("...") == Path("out/study/study")
    assert os.sep not in commands._folder("a/b").name
