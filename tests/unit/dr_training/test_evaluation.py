"""Evaluation against cases worked out by hand; nobody is left out."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dr_training.bootstrap import Estimate, bootstrap_figures, exact_at_the_ends, units
from dr_training.data.faults import DataError
from dr_training.data.readers import Options, read
from dr_training.evaluate import auc, quadratic_weighted_kappa, sensitivity
from dr_training.evaluation import evaluate, predictive_values, roc_curve
from dr_training.evaluation_page import estimate, write_evaluation
from dr_training.scoring import ModelAnswer, score_answers, score_package
from tests.unit.dr_training.scored import answers, scored

HALF = {"half": 0.5}


def probabilities_of(referable: list[float]) -> np.ndarray:
    """Five probabilities with this much on grade 2."""
    rows = np.zeros((len(referable), 5))
    rows[:, 2] = referable
    rows[:, 0] = 1 - rows[:, 2]
    return rows


def test_figures_are_those_of_the_gradable_and_the_others_are_counted() -> None:
    one = scored(
        [0, 0, 1, 2, 3, 4, 4, 0],
        probabilities_of([0.1, 0.6, 0.2, 0.9, 0.4, 0.8, 0.0, 0.0]),
        gradable=np.array([True] * 6 + [False] * 2),
    )
    report = evaluate(one, thresholds=HALF, draws=50)
    point = report["operating_points"]["half"]
    assert (report["photographs"], report["gradable"], report["referable"]) == (8, 6, 3)
    assert point["sensitivity"]["value"] == pytest.approx(2 / 3, abs=1e-4)
    assert point["specificity"]["value"] == pytest.approx(2 / 3, abs=1e-4)
    # Both ungradable ones referred: 3 of 4 referable, 2 of 4 others.
    assert point["with_ungradable_referred"]["sensitivity"]["value"] == 0.75
    assert point["with_ungradable_referred"]["specificity"]["value"] == 0.5
    assert report["ungradable"] == {
        "photographs": 2,
        "by_grade": [1, 0, 0, 0, 1],
        "reasons": {"too_dark": 2},
        "failed": 0,
    }
    assert report["accuracy"]["value"] == pytest.approx(2 / 6, abs=1e-4)
    assert report["confusion"]["counts"][3] == [1, 0, 0, 0, 0]
    assert report["auc_by_grade"]["4"]["value"] == 0.5


def test_predictive_values_hold_at_the_stated_prevalence() -> None:
    assert predictive_values(0.9, 0.9, 0.1) == pytest.approx((0.5, 0.81 / 0.82))
    assert math.isnan(predictive_values(0.0, 1.0, 0.1)[0])
    one = scored([0] * 10 + [2] * 10, probabilities_of([0.9] + [0.1] * 10 + [0.9] * 9))
    point = evaluate(one, thresholds=HALF, prevalence=0.1, draws=200)["operating_points"]["half"]
    assert point["ppv"]["value"] == 0.5
    assert point["ppv"]["low"] < 0.5 < point["ppv"]["high"]
    assert point["npv"]["value"] == pytest.approx(0.9878, abs=1e-4)


@pytest.mark.parametrize("prevalence", [0.0, 1.0, -0.1, 12.0])
def test_a_prevalence_is_a_share(prevalence: float) -> None:
    with pytest.raises(DataError, match="share between 0 and 1"):
        evaluate(answers(), thresholds=HALF, prevalence=prevalence)


def test_the_interval_is_drawn_over_patients() -> None:
    # Ten photographs of each patient say the same: ten patients, not a hundred photographs.
    rng = np.random.default_rng(0)
    right = np.repeat(rng.random(10) < 0.7, 10)
    positive = np.ones(100, bool)

    def figures(index: np.ndarray) -> dict[str, float]:
        return {"sensitivity": sensitivity(positive[index], right[index])}

    alone = bootstrap_figures(figures, [""] * 100, draws=400)["sensitivity"]
    together = bootstrap_figures(figures, [f"p{n // 10}" for n in range(100)], draws=400)
    assert together["sensitivity"].value == alone.value
    width = together["sensitivity"].high - together["sensitivity"].low
    assert width > 2 * (alone.high - alone.low)


def test_a_bootstrap_interval_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(3)
    holds = 0
    for _ in range(200):
        right = rng.random(120) < 0.8

        def figures(index: np.ndarray, right: np.ndarray = right) -> dict[str, float]:
            return {"share": float(right[index].mean())}

        found = bootstrap_figures(figures, [""] * 120, draws=200)["share"]
        holds += found.low <= 0.8 <= found.high
    assert 178 <= holds <= 199


def test_a_share_of_one_is_not_called_certain() -> None:
    # None of n lost leaves about 3.7/n at 97.5 %.
    low = exact_at_the_ends(Estimate(value=1.0, low=1.0, high=1.0), 48).low
    assert low == pytest.approx(1 - 3.69 / 48, abs=3e-3)
    one = scored([0] * 9 + [2] * 9, probabilities_of([0.1] * 9 + [0.9] * 9))
    report = evaluate(one, thresholds=HALF, draws=20)
    interval = report["operating_points"]["half"]["sensitivity"]
    assert (interval["value"], interval["high"]) == (1.0, 1.0)
    assert interval["low"] == pytest.approx(0.025 ** (1 / 9), abs=1e-4)
    point = evaluate(one, thresholds=HALF, prevalence=0.1, draws=20)["operating_points"]["half"]
    assert (point["ppv"]["value"], point["ppv"]["high"]) == (1.0, 1.0)
    low = 0.025 ** (1 / 9)
    assert point["ppv"]["low"] == pytest.approx(predictive_values(low, low, 0.1)[0], abs=1e-4)
    assert units(["a", "a", "", ""], np.array([True, True, True, False])) == 2


def test_figures_that_are_not_defined_are_null() -> None:
    report = evaluate(scored([0] * 5, probabilities_of([0.1] * 5)), thresholds=HALF, draws=20)
    assert report["referable_auc"] == {"value": None, "low": None, "high": None}
    assert report["operating_points"]["half"]["sensitivity"]["value"] is None
    json.dumps(report, allow_nan=False)
    assert estimate(report["referable_auc"]) == "not defined (a class is empty)"


def test_subgroups_by_a_column_and_a_warning_where_they_are_small() -> None:
    extra = [{"camera": "A" if n < 300 else "B" if n < 390 else ""} for n in range(400)]
    base = answers()
    one = scored(base.truth, base.probabilities, extra=extra)
    groups = evaluate(one, thresholds=HALF, by=["camera"], draws=50)["subgroups"]["camera"]
    assert {name: group["photographs"] for name, group in groups.items()} == {
        "A": 300,
        "B": 90,
        "not stated": 10,
    }
    assert [group["few"] for group in groups.values()] == [False, False, True]
    rows = slice(0, 300)
    assert groups["A"]["quadratic_weighted_kappa"]["value"] == pytest.approx(
        quadratic_weighted_kappa(one.truth[rows], one.probabilities[rows].argmax(axis=1)), abs=1e-4
    )
    with pytest.raises(DataError, match="cannot be by 'site'; they can be by eye, camera"):
        evaluate(one, thresholds=HALF, by=["site"])


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 5).map(lambda n: n / 5)), min_size=2, max_size=40
    )
)
def test_the_area_under_the_drawn_curve_is_the_auc(rows: list[tuple[bool, float]]) -> None:
    positive, score = (np.array(column) for column in zip(*rows, strict=True))
    if positive.all() or not positive.any():
        return
    false, true = roc_curve(positive, score)
    assert np.trapezoid(true, false) == pytest.approx(auc(positive, score))
    assert (false[-1], true[-1]) == (1, 1)


def test_a_referral_model_is_evaluated_without_grades() -> None:
    one = scored([0, 1, 2, 4], np.array([[0.9, 0.1], [0.3, 0.7], [0.2, 0.8], [0.4, 0.6]]))
    report = evaluate(one, thresholds=HALF, draws=20)
    assert "accuracy" not in report
    assert "confusion" not in report
    assert report["referable_auc"]["value"] == 0.75
    assert report["operating_points"]["half"]["specificity"]["value"] == 0.5


def test_nothing_gradable_is_said() -> None:
    one = scored([0, 2], probabilities_of([0.1, 0.9]), gradable=np.zeros(2, bool))
    with pytest.raises(DataError, match="called every photograph ungradable"):
        evaluate(one, thresholds=HALF)


def test_the_page_the_pictures_and_a_row_for_each_photograph(tmp_path: Path) -> None:
    base = answers(60)
    one = scored(
        base.truth,
        base.probabilities,
        gradable=np.arange(60) > 4,
        extra=[{"camera": "AB"[n % 2]} for n in range(60)],
    )
    report = evaluate(one, thresholds=HALF, prevalence=0.08, by=["camera"], draws=30)
    files = write_evaluation(report, one, tmp_path / "out", title="Evaluation of X")
    assert all(path.exists() for path in files)
    for name in ("roc.png", "confusion.png"):
        with Image.open(tmp_path / "out" / name) as picture:
            assert min(picture.size) > 300
            assert len(picture.convert("L").getcolors(100_000) or []) > 20
    page = (tmp_path / "out" / "report.md").read_text()
    assert estimate(report["accuracy"]) in page
    assert "PPV at 8 %" in page
    assert "## By camera" in page
    assert "Diabetic macular oedema is not assessed." in page
    assert "too_dark 5" in page
    with (tmp_path / "out" / "predictions.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["status"] for row in rows] == ["ungradable"] * 5 + ["graded"] * 55
    assert float(rows[9]["p2"]) == pytest.approx(one.probabilities[9, 2], rel=1e-5)
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == report


def test_a_package_is_asked_as_it_serves_and_failures_are_counted(
    repository: Path, tmp_path: Path
) -> None:
    from dr_training.drawing import draw_fundus

    for grade in range(5):
        data = draw_fundus(3, grade, 200).jpeg_bytes()
        (tmp_path / f"grade{grade}-seed3.jpg").write_bytes(data)
    (tmp_path / "grade0-seed4.jpg").write_bytes(data[: len(data) // 2])
    (tmp_path / "grade1-seed5.jpg").write_bytes(data)
    table = read("drawn", tmp_path, Options(keep_unreadable=True)).table
    (tmp_path / "grade1-seed5.jpg").unlink()
    package = repository / "tests" / "data" / "tiny-model"
    one = score_package(package, table.photographs, threads=1)
    failed = [p.id for p, lost in zip(one.photographs, one.failed, strict=True) if lost]
    assert failed == ["grade0-seed4", "grade1-seed5"]
    assert one.gradable.sum() == 5
    assert one.probabilities[one.gradable].sum(axis=1) == pytest.approx(np.ones(5))
    # Logits come back from probabilities up to a constant.
    logits = one.logits(1.5)[one.gradable]
    powers = np.exp(logits / 1.5)
    assert powers / powers.sum(axis=1, keepdims=True) == pytest.approx(
        one.probabilities[one.gradable]
    )
    report = evaluate(one, thresholds=HALF, draws=20)
    assert report["ungradable"]["failed"] == 2
    assert report["ungradable"]["photographs"] == 0


def test_answers_of_different_models_are_refused(repository: Path) -> None:
    photographs = answers(2).photographs
    replies = iter([(0.5, 0.5), (0.2, 0.2, 0.2, 0.2, 0.2)])
    package = repository / "tests" / "data" / "tiny-model" / "model.tflite"
    shown = [replace(one, path=str(package)) for one in photographs]
    with pytest.raises(DataError, match="answers have 2 and 5 probabilities"):
        score_answers(shown, lambda _: ModelAnswer(probabilities=next(replies)))
    with pytest.raises(DataError, match="no photograph has a grade"):
        score_answers([replace(photographs[0], grade=None)], lambda _: ModelAnswer())
