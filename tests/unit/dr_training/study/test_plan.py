"""plan.csv: every run once, in a random order that a seed fixes, within the budget."""

import csv
from pathlib import Path

import pytest

from dr_training.data.faults import DataError
from dr_training.study.plan import (
    affordable_runs,
    describe,
    make_plan,
    open_plan,
    specification,
    write_plan,
)
from dr_training.study.study_file import read_study
from tests.unit.dr_training.study.study_texts import SMALL, planned, study_of


def test_the_methodology_is_c1_to_c48_with_five_runs_each(tmp_path: Path) -> None:
    plan = make_plan(read_study(Path("methodology")))
    write_plan(plan, tmp_path)
    with (tmp_path / "plan.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 240
    assert [int(row["order"]) for row in rows] == list(range(1, 241))
    repetitions: dict[str, set[str]] = {}
    for row in rows:
        repetitions.setdefault(row["scenario"], set()).add(row["repetition"])
    assert set(repetitions) == {f"C{n}" for n in range(1, 49)}
    assert all(found == set("12345") for found in repetitions.values())
    # Counted with the last factor fastest.
    levels = {row["scenario"]: [row[f.name] for f in plan.study.factors] for row in rows}
    assert levels["C1"] == ["MXNet", "MNIST", "32", "1", "CPU"]
    assert levels["C2"] == ["MXNet", "MNIST", "32", "1", "CPU+GPU"]
    assert levels["C48"] == ["TensorFlow", "CIFAR-10", "64", "2", "CPU+GPU"]
    assert len({tuple(found) for found in levels.values()}) == 48


def test_the_order_is_random_and_the_seed_fixes_it(tmp_path: Path) -> None:
    first = make_plan(study_of(tmp_path))
    again = make_plan(study_of(tmp_path))
    other = make_plan(study_of(tmp_path, SMALL.replace("order_seed = 5", "order_seed = 6")))
    names = [run.name for run in first.runs]
    assert names == [run.name for run in again.runs]
    assert names != sorted(names)
    assert names != [run.name for run in other.runs]
    assert sorted(names) == sorted(run.name for run in other.runs)


def test_a_repetition_starts_from_the_same_seed_in_every_scenario(tmp_path: Path) -> None:
    plan = make_plan(study_of(tmp_path))
    seeds = {(run.repetition, run.seed) for run in plan.runs}
    assert len(seeds) == plan.study.repetitions


def test_a_plan_is_opened_as_it_was_written(tmp_path: Path) -> None:
    plan, out = planned(tmp_path)
    assert open_plan(out) == plan
    write_plan(plan, out)  # once more changes nothing
    text = (out / "plan.csv").read_text()
    (out / "plan.csv").write_text(text.replace("C1-r1", "C9-r1"))
    with pytest.raises(DataError, match="is not the plan of"):
        open_plan(out)
    with pytest.raises(DataError, match="holds no plan"):
        open_plan(tmp_path / "nowhere")


def test_another_study_does_not_go_into_the_same_folder(tmp_path: Path) -> None:
    _, out = planned(tmp_path)
    for text in (SMALL.replace("order_seed = 5", "order_seed = 9"), SMALL + "\n# edited\n"):
        with pytest.raises(DataError, match="another"):
            write_plan(make_plan(study_of(tmp_path, text)), out)


BUDGET = SMALL + "\n[budget]\n"


def test_a_short_budget_is_refused_or_gives_a_fraction(tmp_path: Path) -> None:
    text = read_study(Path("methodology")).text
    short = text + "\n[budget]\nruns = 150\n"
    with pytest.raises(DataError, match=r"has 240 runs .* allows 150.*when_short"):
        make_plan(study_of(tmp_path, short))
    plan = make_plan(study_of(tmp_path, short + 'when_short = "fraction"\n'))
    assert len(plan.runs) == 120
    words = "\n".join(describe(plan))
    assert "1/2 of all scenarios" in words
    assert "confounded: size with data x network x environment" in words
    with pytest.raises(DataError, match="no regular fraction"):
        make_plan(study_of(tmp_path, short.replace("150", "20") + 'when_short = "fraction"\n'))


@pytest.mark.parametrize(
    ("lines", "most"),
    [
        ("runs = 7", 7),
        ("runs = 0", 0),
        ('hours = "0"', 0),
        ("amount = 0", 0),
        ('hours = "1"\nexpected_s = 600', 6),
        # 3.60 EUR an hour, 100 s a run: 0.10 EUR each.
        ('amount = "0.99"\nexpected_s = 100', 9),
        ('hours = "1"', None),
        ("", None),
    ],
)
def test_what_the_budget_allows(tmp_path: Path, lines: str, most: int | None) -> None:
    assert affordable_runs(study_of(tmp_path, BUDGET + lines)) == most


def test_a_budget_of_nothing_is_planned_and_said(tmp_path: Path) -> None:
    plan = make_plan(study_of(tmp_path, BUDGET + "runs = 0"))
    assert len(plan.runs) == 12
    assert "will run nothing" in describe(plan)[-1]


def test_a_specification_says_all_that_a_run_needs(tmp_path: Path) -> None:
    plan = make_plan(study_of(tmp_path))
    spec = specification(plan, plan.runs[0], data_dir=tmp_path)
    assert spec["parameters"].keys() == {
        "framework", "size", "data", "network", "environment", "batch", "epochs", "learning_rate",
    }  # fmt: skip
    assert spec["environment"]["threads"] == 1
    assert spec["data_dir"] == str(tmp_path)
    assert spec["share_of_images"] == 0.01
