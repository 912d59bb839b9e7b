"""The page of a study: what is in it, what is not averaged, what is labelled."""

import math
from pathlib import Path
from typing import Any

import pytest

from dr_training.data.faults import DataError
from dr_training.study import figures
from dr_training.study.analysis import Anova, Source
from dr_training.study.plan import Plan
from dr_training.study.report import TRAINING, analyse, format_number, left_out_words, render
from dr_training.study.results import Row, read_monitor, read_results
from dr_training.study.running import run_plan
from tests.unit.dr_training.study.study_texts import SMALL, FakeRunner, planned, result_of

FACTS = {"created": "today", "command": "dr study run small"}


def answer(spec: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """64 px take four times as long as 32; TensorFlow half of PyTorch; 1 % of scatter."""
    seconds = 4.0 * (4 if spec["parameters"]["size"] == 64 else 1)
    seconds /= 2 if spec["parameters"]["framework"] == "TensorFlow" else 1
    seconds *= math.exp(0.01 * (spec["repetition"] - 2))
    return result_of(spec, training_s=seconds, **changes)


def run(tmp_path: Path, answering: Any = answer, text: str = SMALL) -> tuple[Plan, list[Row]]:
    plan, out = planned(tmp_path, text)
    run_plan(plan, out, runner_of=lambda _: FakeRunner(answering), report=lambda _: None)
    return plan, read_results(plan, out)


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take seconds to draw; where a test is about the words, they are left out."""
    for name in ("bars_with_cost", "main_effects_figure", "interactions_figure", "use_figure"):
        monkeypatch.setattr(figures, name, lambda *_, **__: "<svg></svg>")


def test_effects_costs_and_times_to_the_target(tmp_path: Path) -> None:
    plan, rows = run(tmp_path)
    analysis = analyse(plan, rows)
    effects = {effect.factor: effect.ratio for effect in analysis.effects[TRAINING]}
    assert effects["size"] == pytest.approx(4)
    assert effects["framework"] == pytest.approx(0.5)
    first = analysis.scenarios[0]
    assert (first.name, first.levels) == ("C1", ("PyTorch", "32"))
    assert first.training is not None
    assert first.training.mean == pytest.approx(4, rel=1e-3)
    # 4 s at 0.001 EUR; billed in whole seconds of 5.56, 5.6 and 5.64.
    assert first.training_cost is not None
    assert first.training_cost.mean == pytest.approx(0.004, rel=1e-3)
    assert first.billed_cost is not None
    assert first.billed_cost.mean == pytest.approx(0.006)
    # The second epoch, at the end of training, is the first with an accuracy of 0.5 or more.
    assert first.reached == 3
    assert first.to_target is not None
    assert first.to_target.mean == pytest.approx(first.training.mean)
    assert analysis.counts == {"ok": 12}
    assert list(analysis.use) == ["PyTorch", "TensorFlow"]
    assert analysis.use["PyTorch"] == {"cpu": pytest.approx(100)}


@pytest.mark.usefixtures("no_figures")
def test_failed_runs_are_listed_with_their_reason_and_in_no_mean(tmp_path: Path) -> None:
    def some_fail(spec: dict[str, Any]) -> dict[str, Any]:
        if (spec["scenario"], spec["repetition"]) == ("C1", 2):
            return answer(spec, status="memory", reason="it took <9,000> MiB", life_s=1e6)
        return answer(spec)

    plan, rows = run(tmp_path, some_fail)
    analysis = analyse(plan, rows)
    first = analysis.scenarios[0]
    assert (first.planned, first.failed) == (3, 1)
    assert first.training is not None
    assert first.training.n == 2
    assert first.life is not None
    assert first.life.mean < 10
    assert not analysis.anovas[TRAINING].balanced
    page = render(plan, rows, style="", facts=FACTS)
    assert "it took &lt;9,000&gt; MiB" in page
    assert "shares do not add up to 100 %" in page


def test_a_target_that_not_every_run_reaches_has_no_mean(tmp_path: Path) -> None:
    def slow_learner(spec: dict[str, Any]) -> dict[str, Any]:
        result = answer(spec)
        if (spec["scenario"], spec["repetition"]) == ("C1", 1):
            for epoch in result["worker"]["epochs"]:
                epoch["accuracy"] = 0.1
        return result

    plan, rows = run(tmp_path, slow_learner)
    first = analyse(plan, rows).scenarios[0]
    assert first.reached == 2
    assert first.to_target is None
    assert first.cost_to_target is None


@pytest.mark.usefixtures("no_figures")
def test_every_table_and_figure_says_that_images_are_stand_ins(tmp_path: Path) -> None:
    plan, rows = run(tmp_path)
    page = render(plan, rows, style="", facts=FACTS)
    label = "Data: seeded stand-ins of"
    captions = page.split("<caption>")[1:] + page.split("<figcaption>")[1:]
    of_results = [text.split("</")[0] for text in captions]
    assert len(of_results) >= 8
    assert all(label in text for text in of_results), of_results

    def from_files(spec: dict[str, Any]) -> dict[str, Any]:
        result = answer(spec)
        result["worker"]["stand_in"] = False
        return result

    other = tmp_path / "files"
    other.mkdir()
    plan, rows = run(other, from_files)
    assert label not in render(plan, rows, style="", facts=FACTS)


def test_the_page_is_self_contained_and_names_currency_and_day(tmp_path: Path) -> None:
    plan, rows = run(tmp_path)
    page = render(plan, rows, style="body { color: black; }", facts=FACTS)
    for outside in ("<script", "src=", 'href="http', "@import", "url("):
        assert outside not in page.replace("url(#", "")
    assert page.count("<svg") == 4
    assert "EUR, of 2026-11-28 (a test): cpu 3.60 per hour" in page
    assert "None" not in page.replace("&#39;None&#39;", "")
    assert "nan" not in page.lower().replace("finance", "").split("<svg")[0]
    assert "C1</td>" in page


@pytest.mark.usefixtures("no_figures")
def test_without_prices_there_is_no_cost_and_it_is_said(tmp_path: Path) -> None:
    text = SMALL.split("[prices]")[0].replace('hourly = "3.60"', "")
    plan, rows = run(tmp_path, text=text)
    page = render(plan, rows, style="", facts=FACTS)
    assert "states no prices" in page
    assert analyse(plan, rows).missed is None


def test_the_share_that_the_formula_misses(tmp_path: Path) -> None:
    plan, rows = run(tmp_path)
    missed = analyse(plan, rows).missed
    assert missed is not None
    costs = [row.cost for row in rows if row.cost]
    training, billed = (
        sum(float(getattr(one, name)) for one in costs) for name in ("training", "billed")
    )
    assert float(missed) == pytest.approx(1 - training / billed)


def test_nothing_to_analyse_is_said(tmp_path: Path) -> None:
    plan, out = planned(tmp_path)
    with pytest.raises(DataError, match="no run of this study has ended well"):
        analyse(plan, read_results(plan, out))


@pytest.mark.usefixtures("no_figures")
def test_a_part_of_the_runs_is_analysed_as_such(tmp_path: Path) -> None:
    plan, out = planned(tmp_path, f"{SMALL}\n[budget]\nruns = 12\n")
    made = 0

    def until_nine(spec: dict[str, Any]) -> dict[str, Any]:
        nonlocal made
        made += 1
        if made > 9:
            raise KeyboardInterrupt
        return answer(spec)

    with pytest.raises(KeyboardInterrupt):
        run_plan(plan, out, runner_of=lambda _: FakeRunner(until_nine), report=lambda _: None)
    page = render(plan, read_results(plan, out), style="", facts=FACTS)
    assert "2 planned runs have not been made" in page


def test_terms_that_are_left_out_are_named_or_counted() -> None:
    nothing = Source(name="residual", df=1, sum_of_squares=0, share=0)
    left_out = ("a x b (confounded)", "a x b x c (confounded)", "a x b x d (in the residual)")
    table = Anova(sources=(), residual=nothing, total=0, n=2, balanced=True, left_out=left_out)
    words = "a x b (confounded); 2 interactions of three or more factors"
    assert left_out_words(table) == words


def test_means_of_a_monitor_weigh_by_time(tmp_path: Path) -> None:
    file = tmp_path / "monitor.csv"
    file.write_text(
        "time_s,interval_s,cpu_percent,rss_mib,gpu_percent,energy_j\n1,1,100,50,,2\n4,3,20,80,,3\n"
    )
    found = read_monitor(file)
    assert found["cpu_percent"] == pytest.approx(40)
    assert found["rss_mib"] == 80
    assert found["energy_j"] == 5
    assert found["gpu_percent"] is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "\N{EN DASH}"), (0, "0"), (1234.5, "1,234"), (12.345, "12.3"), (0.000123, "0.000123")],
)
def test_numbers_have_three_digits(value: float | None, text: str) -> None:
    assert format_number(value) == text
