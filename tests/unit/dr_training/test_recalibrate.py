"""A site's own temperature and thresholds: fitted on its images, measured on others."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dr_training.data.faults import DataError
from dr_training.evaluate import softmax
from dr_training.recalibrate import recalibrate, rescaled
from dr_training.scoring import Scored
from inference_image.model_spec import load_model_spec
from inference_image.predictor import Predictor
from tests.unit.dr_training.scored import answers, scored

TINY_TEMPERATURE = 1.5


@pytest.fixture
def package(repository: Path, tmp_path: Path) -> Path:
    shutil.copytree(repository / "tests" / "data" / "tiny-model", tmp_path / "package")
    (tmp_path / "package" / "MODEL_CARD.md").write_text("# The old card\n")
    return tmp_path / "package"


def overconfident(count: int, *, seed: int, wanted: float = 3.0) -> Scored:
    """Answers of the tiny package whose right temperature would be `wanted`."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (count, 5))
    chances = softmax(logits, wanted)
    truth = [int(rng.choice(5, p=row)) for row in chances]
    return scored(truth, softmax(logits, TINY_TEMPERATURE))


def test_calibration_comes_first_then_thresholds_that_reach_their_aims(
    package: Path, tmp_path: Path
) -> None:
    chosen, test = overconfident(3000, seed=1), overconfident(1500, seed=2)
    made = recalibrate(
        package,
        chosen,
        tmp_path / "site",
        model_id="tiny-site",
        data="the site's images",
        sensitivity=0.9,
        specificity=0.8,
        test=test,
        prevalence=0.2,
        draws=50,
    )
    document = made.document
    assert made.spec.temperature == pytest.approx(3.0, rel=0.06)
    error = document["calibration"]["expected_calibration_error"]
    assert error["after"] < 0.5 * error["before"]
    after = rescaled(chosen, TINY_TEMPERATURE, made.spec.temperature)
    sensitive, specific = made.spec.operating_points
    assert (after.score >= sensitive.threshold)[after.referable].mean() >= 0.9
    assert (after.score < specific.threshold)[~after.referable].mean() >= 0.8
    # Thresholds lie on the calibrated scores: the old scores would not reach the aims by them.
    metrics = document["metrics"]
    assert metrics["photographs"] == 1500
    assert metrics["operating_points"]["high_sensitivity"]["sensitivity"]["value"] == pytest.approx(
        0.9, abs=0.04
    )
    assert metrics["operating_points"]["high_sensitivity"]["prevalence"] == 0.2
    assert document["calibration"]["from"] == {
        "id": "tiny-test",
        "sha256": load_model_spec(package).sha256,
    }


def test_the_new_package_serves_and_keeps_the_weights(package: Path, tmp_path: Path) -> None:
    old = load_model_spec(package)
    path = package / "model.json"
    path.write_text(json.dumps({**old.raw, "gate": {"verdict": "passed"}}))
    made = recalibrate(
        package, answers(300), tmp_path / "site", model_id="tiny-site", data="the site's images"
    )
    predictor = Predictor.load(tmp_path / "site", threads=1)
    predictor.warm_up()
    assert predictor.spec.id == "tiny-site"
    assert predictor.spec.files == old.files
    assert made.spec.sha256 != old.sha256
    assert "gate" not in made.spec.raw, "other thresholds were gated"
    assert made.document["metrics"] is None
    card = (tmp_path / "site" / "MODEL_CARD.md").read_text()
    assert "It was not measured on other images." in card
    assert card.endswith("# The old card\n")
    assert f"{made.spec.operating_points[0].threshold:.4f}" in card


def test_few_images_and_a_temperature_at_its_bound_are_told_of(
    package: Path, tmp_path: Path
) -> None:
    rng = np.random.default_rng(4)
    truth = [int(one) for one in rng.integers(0, 5, 90)]
    guessed = scored(truth, softmax(rng.normal(0, 60, (90, 5)), TINY_TEMPERATURE))
    aims = {"sensitivity": 0.8, "specificity": 0.8, "data": "x"}
    made = recalibrate(package, guessed, tmp_path / "a", model_id="a", **aims)
    bound, few = made.document["calibration"]["remarks"]
    assert made.spec.temperature == 8
    assert "the temperature is 8, the highest that is tried" in bound
    assert f"only {sum(one >= 2 for one in truth)} referable photographs" in few
    card = (tmp_path / "a" / "MODEL_CARD.md").read_text()
    assert f"Note: {bound}. Note: {few}." in card
    good = recalibrate(package, answers(400), tmp_path / "b", model_id="b", **aims)
    assert good.document["calibration"]["remarks"] == []
    assert "Note:" not in (tmp_path / "b" / "MODEL_CARD.md").read_text()


def test_ungradable_images_choose_nothing_and_are_counted(package: Path, tmp_path: Path) -> None:
    base = answers(300)
    gradable = np.arange(300) >= 40
    part = scored(base.truth, base.probabilities, gradable=gradable)
    made = recalibrate(package, part, tmp_path / "a", model_id="a", data="x")
    alone = recalibrate(package, part.chosen(gradable), tmp_path / "b", model_id="b", data="x")
    assert made.spec.operating_points == alone.spec.operating_points
    assert made.document["calibration"]["photographs"] == 300
    assert made.document["calibration"]["gradable"] == 260


@pytest.mark.parametrize(
    ("count", "aims", "text"),
    [
        (30, (0.8, 0.8), "and 50 in all"),
        (60, (0.98, 0.8), r"aims of 0.98 and 0.8 need at least 50 and 5"),
        (400, (1.0, 0.8), "share from 0.5 to below 1"),
        (400, (0.8, 0.2), "the aim for specificity"),
    ],
)
def test_too_few_images_and_aims_that_are_none_are_refused(
    package: Path, tmp_path: Path, count: int, aims: tuple[float, float], text: str
) -> None:
    with pytest.raises(DataError, match=text):
        recalibrate(
            package,
            answers(count),
            tmp_path / "site",
            model_id="x",
            data="x",
            sensitivity=aims[0],
            specificity=aims[1],
        )
    assert not (tmp_path / "site").exists()


def test_a_folder_in_use_is_left_alone(package: Path, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "thesis.tex").touch()
    with pytest.raises(DataError, match="is not empty"):
        recalibrate(package, answers(), tmp_path / "site", model_id="x", data="x")


def test_a_package_s_own_default_point_stays_where_it_exists(package: Path, tmp_path: Path) -> None:
    path = package / "model.json"
    document = json.loads(path.read_text())
    document["default_operating_point"] = "high_specificity"
    path.write_text(json.dumps(document))
    made = recalibrate(package, answers(), tmp_path / "a", model_id="a", data="x")
    assert made.spec.default_operating_point == "high_specificity"
    document["operating_points"] = [{"name": "balanced", "threshold": 0.5}]
    document["default_operating_point"] = "balanced"
    path.write_text(json.dumps(document))
    made = recalibrate(package, answers(), tmp_path / "b", model_id="b", data="x")
    assert made.spec.default_operating_point == "high_sensitivity"


def test_a_temperature_alone_never_changes_which_grade_is_first() -> None:
    one = answers(100)
    again = rescaled(replace(one, gradable=np.ones(100, bool)), 1.0, 2.5)
    assert (again.probabilities.argmax(axis=1) == one.probabilities.argmax(axis=1)).all()
