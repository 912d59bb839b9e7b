"""Runs in their order: resumed after a crash, stopped by a budget, failures kept apart."""

import json
from pathlib import Path
from typing import Any

import pytest

from dr_training.data.faults import DataError
from dr_training.study.journal import Journal
from dr_training.study.plan import Plan
from dr_training.study.results import read_results
from dr_training.study.running import Summary, run_plan
from tests.unit.dr_training.study.study_texts import (
    SMALL,
    FakeRunner,
    planned,
    result_of,
)


def run(plan: Plan, out: Path, runner: FakeRunner, **choices: Any) -> tuple[Summary, list[str]]:
    said: list[str] = []
    summary = run_plan(plan, out, runner_of=lambda _: runner, report=said.append, **choices)
    return summary, said


def test_all_runs_are_made_once_in_the_order_of_the_plan(tmp_path: Path) -> None:
    plan, out = planned(tmp_path)
    runner = FakeRunner(result_of)
    summary, _ = run(plan, out, runner)
    assert [spec["run"] for spec in runner.specs] == [one.name for one in plan.runs]
    assert (summary.made, summary.left, summary.ended) == (12, 0, {"ok": 12})
    again, _ = run(plan, out, runner)
    assert (again.made, len(runner.specs)) == (0, 12)


def test_a_folder_may_be_named_from_where_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs are processes in folders of their own: all failed where `--out` was left out."""
    plan, out = planned(tmp_path)
    folders: list[Path] = []

    class Noting(FakeRunner):
        def run(self, spec: dict[str, Any], out: Path) -> dict[str, Any]:
            folders.append(out)
            return super().run(spec, out)

    monkeypatch.chdir(tmp_path)
    summary, _ = run(plan, out.relative_to(tmp_path), Noting(result_of))
    assert summary.ended == {"ok": 12}
    assert len(folders) == 12
    assert all(folder.is_absolute() and folder.is_relative_to(out) for folder in folders)


def test_a_killed_study_goes_on_with_the_run_that_was_cut_off(tmp_path: Path) -> None:
    plan, out = planned(tmp_path)

    class Killed(BaseException):
        """Stands for a power cut: nothing after it is written."""

    def answer(spec: dict[str, Any]) -> dict[str, Any]:
        if len(runner.specs) == 5:
            raise Killed
        return result_of(spec)

    runner = FakeRunner(answer)
    with pytest.raises(Killed):
        run(plan, out, runner)
    # The last line is cut in the middle, as by a power cut.
    with (out / "journal.jsonl").open("a") as file:
        file.write('{"event": "sta')
    second = FakeRunner(result_of)
    summary, said = run(plan, out, second)
    assert [spec["run"] for spec in second.specs] == [one.name for one in plan.runs[4:]]
    assert said[0] == f"{plan.runs[4].name}: was cut off; it is run again"
    assert summary.ended == {"ok": 12}
    ended = [e for e in Journal(out).events() if e["event"] == "ended"]
    # Its monitor had got as far as 1.0 s, which was paid for.
    assert [e["life_s"] for e in ended if e["status"] == "interrupted"] == [1.0]
    assert len(read_results(plan, out)) == 12


def test_an_interruption_stops_and_the_run_is_made_again(tmp_path: Path) -> None:
    plan, out = planned(tmp_path)

    def answer(spec: dict[str, Any]) -> dict[str, Any]:
        if len(runner.specs) == 2:
            raise KeyboardInterrupt
        return result_of(spec)

    runner = FakeRunner(answer)
    with pytest.raises(KeyboardInterrupt):
        run(plan, out, runner)
    second = FakeRunner(result_of)
    summary, _ = run(plan, out, second)
    assert second.specs[0]["run"] == plan.runs[1].name
    assert summary.left == 0


@pytest.mark.parametrize("status", ["memory", "error", "killed", "time", "unavailable"])
def test_failures_keep_their_reason_and_are_not_made_again_unasked(
    tmp_path: Path, status: str
) -> None:
    plan, out = planned(tmp_path)

    def answer(spec: dict[str, Any]) -> dict[str, Any]:
        if spec["scenario"] == "C2":
            return result_of(spec, training_s=1e6, status=status, reason="because")
        return result_of(spec)

    summary, said = run(plan, out, FakeRunner(answer))
    assert summary.ended == {"ok": 9, status: 3}
    assert sum("because" in line for line in said) == 3
    rows = read_results(plan, out)
    assert {row.run.scenario for row in rows if not row.ok} == {"C2"}
    assert run(plan, out, FakeRunner(result_of))[0].made == 0
    retried = FakeRunner(result_of)
    assert run(plan, out, retried, retry_failed=True)[0].ended == {"ok": 12}
    assert {spec["scenario"] for spec in retried.specs} == {"C2"}


@pytest.mark.parametrize("line", ["runs = 0", 'hours = "0"', "amount = 0"])
def test_a_budget_of_nothing_runs_nothing_and_says_so(tmp_path: Path, line: str) -> None:
    plan, out = planned(tmp_path, f"{SMALL}\n[budget]\n{line}\n")
    runner = FakeRunner(result_of)
    summary, said = run(plan, out, runner)
    assert runner.specs == []
    assert (summary.made, summary.left, summary.ended) == (0, 12, {})
    assert "the budget is 0" in said[-1]
    assert "nothing is run" in said[-1]


def test_the_budget_stops_the_study_and_counts_failures(tmp_path: Path) -> None:
    # A run lives 3.6 s and costs 4 s at 0.001 EUR: the fourth reaches 0.016.
    plan, out = planned(tmp_path, f'{SMALL}\n[budget]\namount = "0.015"\n')
    runner = FakeRunner(lambda spec: result_of(spec, status="error", reason="broken"))
    summary, said = run(plan, out, runner)
    assert summary.made == 4
    assert summary.left == 8
    assert said[-1] == "stopped: the budget of 0.015 EUR is used up (0.0160)"
    # It stays used up the next time.
    assert run(plan, out, runner)[0].made == 0


def test_two_runners_do_not_share_a_folder(tmp_path: Path) -> None:
    plan, out = planned(tmp_path)

    def answer(spec: dict[str, Any]) -> dict[str, Any]:
        with pytest.raises(DataError, match="another `dr study run`"):
            run(plan, out, FakeRunner(result_of))
        return result_of(spec)

    assert run(plan, out, FakeRunner(answer))[0].made == 12


def test_missing_data_is_said_before_anything_runs(tmp_path: Path) -> None:
    plan, out = planned(tmp_path)
    runner = FakeRunner(result_of)
    with pytest.raises(DataError, match=r"lacks train-images-idx3-ubyte \(MNIST\)"):
        run(plan, out, runner, data_dir=tmp_path)
    with pytest.raises(DataError, match="no such folder"):
        run(plan, out, runner, data_dir=tmp_path / "none")
    assert runner.specs == []


def test_a_result_that_the_journal_knows_otherwise_is_refused(tmp_path: Path) -> None:
    plan, out = planned(tmp_path)
    run(plan, out, FakeRunner(result_of))
    file = out / "runs" / "C1-r1" / "result.json"
    for content in ("", "{}", json.dumps({**json.loads(file.read_text()), "status": "memory"})):
        file.write_text(content)
        with pytest.raises(DataError, match="is not what the journal says of C1-r1"):
            read_results(plan, out)


def test_a_journal_that_was_changed_by_hand_is_refused(tmp_path: Path) -> None:
    plan, out = planned(tmp_path)
    run(plan, out, FakeRunner(result_of))
    path = out / "journal.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "what is this", *lines[1:]]) + "\n")
    with pytest.raises(DataError, match="line 2 is no event"):
        Journal(out).events()
