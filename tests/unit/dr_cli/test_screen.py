"""What a person reads: panels, the table, progress, and how soon the help is there."""

import io
import json
import subprocess
import sys
from datetime import UTC, datetime
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from dr_cli.app import app
from dr_cli.console import Steps, make_console
from dr_cli.experiment import Plan, run_warm
from dr_cli.panels import held_out, prediction_panel, results_table
from dr_experiments.analysis import ConfigurationAnalysis
from dr_experiments.client import Measurement
from dr_experiments.records import read_jsonl
from inference_image.contract import GRADE_LABELS
from inference_image.model_spec import load_model_spec
from tests.unit.dr_experiments.fakes import PAYLOAD, FakeClock, FakeTarget, answer
from tests.unit.dr_experiments.test_report import analysed


def shown(renderable: Any, *, width: int = 110) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, highlight=False).print(renderable)
    return stream.getvalue()


def measured(**changes: Any) -> Measurement:
    document: Any = answer(**changes)
    return Measurement(
        started_at=datetime.now(UTC), outcome="ok", full_latency_s=0.0312, answer=document
    )


def test_a_panel_shows_grade_decision_quality_latency_and_what_is_not_assessed() -> None:
    text = shown(prediction_panel("a", measured(), notice="Demo.", known_grade=3))
    for words in (
        "known grade 3, answered 2: one grade off",
        "2  Moderate",
        "0.40",
        "yes, refer",
        "P(grade ≥ 2) = 0.70, threshold 0.30 (high sensitivity)",
        "gradable",
        "31.2 ms round trip",
        "10.0 ms in the container",
        "8.00 ms model",
        "mobilenet-demo",
        "Demo. Diabetic macular oedema is not assessed.",
    ):
        assert words in text, words


def test_an_ungradable_photograph_has_no_grade_but_reasons() -> None:
    text = shown(
        prediction_panel(
            "a",
            measured(
                predictions=None, grade=None, label=None, consistent=None,
                referable={**answer()["referable"], "probability": None, "positive": None},
                quality={"gradable": False, "reasons": ["blurred", "clipped_field"]},
            ),
        )
    )  # fmt: skip
    assert "retake the photograph: blurred, field of view cut off" in text
    assert "no decision" in text
    assert "Moderate" not in text
    assert "model not run" in text
    assert "ms model" not in text


@pytest.mark.parametrize(
    ("known", "answered", "said"),
    [(2, 2, "right"), (3, 4, "one grade off"), (4, 2, "2 grades off"), (2, None, "not graded")],
)
def test_a_known_grade_is_compared_with_the_answer(
    known: int, answered: int | None, said: str
) -> None:
    label = None if answered is None else GRADE_LABELS[answered]
    text = shown(prediction_panel("a", measured(grade=answered, label=label), known_grade=known))
    assert f"known grade {known}, " in text
    assert said in text


def test_a_probability_is_never_rounded_to_certainty() -> None:
    sure = measured(
        predictions=[0.0, 0.0, 0.999, 0.001, 0.0],
        referable={**answer()["referable"], "probability": 1.0},
    )
    text = shown(prediction_panel("a", sure))
    assert " >0.99" in text
    assert "P(grade ≥ 2) > 0.99," in text
    assert "1.00" not in text
    unlikely = measured(referable={**answer()["referable"], "probability": 0.0001})
    assert "P(grade ≥ 2) < 0.01," in shown(prediction_panel("a", unlikely))


def test_figures_on_held_out_photographs_are_those_of_the_package(repository: Path) -> None:
    spec = load_model_spec(repository / "model_artifacts" / "mobilenet-demo")
    metrics = spec.raw["metrics"]
    text = str(held_out(spec))
    assert f"On {metrics['photographs']:,} held-out photographs" in text
    for name, scale, digits in (("accuracy", 100, 1), ("quadratic_weighted_kappa", 1, 3)):
        for bound in ("value", "low", "high"):
            assert f"{scale * metrics[name][bound]:.{digits}f}" in text
    assert held_out(load_model_spec(repository / "tests" / "data" / "tiny-model")) is None


def test_a_piped_screen_is_as_wide_as_columns_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, width in (("80", 80), ("200", 200), ("3", 40), ("many", 110), ("", 110)):
        monkeypatch.setenv("COLUMNS", columns)
        assert make_console().width == width


def test_a_wrapped_note_keeps_its_indent_and_a_path_stays_whole() -> None:
    stream = io.StringIO()
    steps = Steps(Console(file=stream, width=40, highlight=False))
    steps.say("word " * 20)
    steps.say_path("page  " + "long/" * 20)
    *note, path = stream.getvalue().splitlines()
    assert len(note) > 1
    assert all(line.startswith("   word") for line in note)
    assert path.endswith("long/" * 20)


@pytest.mark.parametrize("group", [[], ["local"], ["bench"], ["model"]])
def test_help_cuts_no_description_off(group: list[str]) -> None:
    out = CliRunner().invoke(app, [*group, "--help"]).output
    assert "Commands:" in out
    assert "..." not in out.replace("[ARGS]...", "")


def test_a_grade_that_contradicts_the_decision_is_pointed_out() -> None:
    assert "act on the decision" in shown(prediction_panel("a", measured(consistent=False)))
    assert "act on the decision" not in shown(prediction_panel("a", measured()))


def test_a_request_that_failed_shows_why() -> None:
    failed = Measurement(
        started_at=datetime.now(UTC), outcome="refused", full_latency_s=None, error="too large"
    )
    assert "refused: too large" in shown(prediction_panel("a", failed))


def test_the_table_has_units_n_and_its_footnotes() -> None:
    rows: list[ConfigurationAnalysis] = [
        analysed(memory_mib=2048),
        analysed(memory_mib=6144, distinguishable=False, failures=2),
        analysed(instance_type="ml.m5.xlarge"),
        analysed(memory_mib=1024, failures=25),
        analysed(memory_mib=3072, region="ap-south-1"),
    ]
    table = results_table(rows, requests_per_hour=720)
    text = shown(table)
    lines, flat = text.splitlines(), " ".join(text.split())
    assert lines[0].split() == ["mean", "sd", "p50", "p95", "p99"]
    assert lines[1].split() == ["deployment", "n", "fail", *["ms"] * 5, "USD/1,000"]
    assert lines[2].split()[:5] == ["serverless", "2048", "MB", "25", "0"]
    assert lines[3].split()[:6] == ["serverless", "6144", "MB", "*", "23", "2"]
    assert all(line.startswith("   ") for line in lines)
    assert max(len(line) for line in shown(table, width=80).splitlines()) <= 80
    for words in (
        "in ms, on this machine: not AWS latencies",
        "Cost is estimated",
        "at 720 requests an hour",
        "between the two slowest",
        "not distinguishable here",
        "throttled: Too many <requests>",
        "no price for serverless-compute 3072 in ap-south-1",
    ):
        assert words in flat, words


def test_without_a_terminal_a_step_is_one_line_with_its_seconds() -> None:
    stream = io.StringIO()
    steps = Steps(Console(file=stream, width=110, highlight=False))
    steps.heading("First")
    with steps.step("Working") as rename:
        rename("Worked on 3 things")
    with pytest.raises(KeyError), steps.step("Failing"):
        raise KeyError
    first, worked, failing = stream.getvalue().splitlines()[1:]
    assert first == "1  First"
    assert worked.startswith(" ✓ Worked on 3 things (0.")
    assert failing.startswith(" ✗ Failing (")


def test_help_imports_nothing_heavy() -> None:
    """Numbers of seconds differ between machines; what is imported does not."""
    code = (
        "import sys, dr_cli.__main__; "
        "heavy = {'numpy', 'scipy', 'matplotlib', 'boto3', 'botocore', 'PIL', 'aws_cdk', "
        "'tensorflow', 'fastapi', 'moto', 'jinja2', 'psutil'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_an_experiment_leaves_records_csv_files_and_a_page(tmp_path: Path) -> None:
    clock = FakeClock()
    plan = Plan(
        title="Title",
        payload=PAYLOAD,
        payload_words="a drawn photograph",
        requests=3,
        interval_s=0,
        requests_per_hour=720,
        region="us-east-1",
        command="dr bench warm",
        image="repo@sha256:1",
        image_note="as deployed",
        local=True,
        busy="This machine was busy",
    )
    (tmp_path / "out" / "csv").mkdir(parents=True)
    stale = tmp_path / "out" / "csv" / "warm-up-an-earlier-endpoint.csv"
    stale.touch()
    told: list[tuple[str, int]] = []
    results = run_warm(
        plan,
        [FakeTarget(clock, repeat(0.1))],
        out=tmp_path / "out",
        on_progress=lambda name, number: told.append((name, number)),
    )
    assert [number for _, number in told] == [1, 2, 3]
    records = read_jsonl(results.records)
    assert [record.counted for record in records] == [False, True, True, True]
    assert results.csv.read_text().count("\n") == 4
    study = results.study_folder / "warm-up-dr-serverless-mobilenet-2048.csv"
    assert study.read_text().startswith(",requestLatency,predictionLatency,fullLatency\n")
    page = results.report.read_text()
    assert "<title>Title</title>" in page
    assert "This machine was busy" in page
    assert not stale.exists()
    assert "repo@sha256:1" in page
    # Nothing in the files says what was found in the photograph.
    for file in (results.records, results.csv, study):
        assert "Moderate" not in file.read_text()
    assert json.loads(results.records.read_text().splitlines()[0])["index"] == 0
