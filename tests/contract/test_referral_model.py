"""A model that only refers, over the application: two probabilities, a decision, and no grade."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dr_training.gate import gate
from dr_training.recalibrate import recalibrate
from inference_image.http_app import create_app
from inference_image.model_spec import load_model_spec, verify_files
from inference_image.settings import Settings
from tests.service_harness import REPOSITORY, InProcess, drawn_jpeg, encoded, running
from tests.unit.dr_training.scored import scored

PACKAGE = REPOSITORY / "model_artifacts" / "referral-demo"


@pytest.fixture(scope="module")
def service() -> Iterator[Any]:
    application = create_app(Settings.from_environment({"DR_MODEL_DIR": str(PACKAGE)}))
    with running(InProcess(application)) as ready:
        yield ready


def ask(service: Any, body: bytes, kind: str = "image/jpeg", **headers: str) -> Any:
    reply = service.request("POST", "/invocations", body, {"Content-Type": kind, **headers})
    assert reply.status == 200, reply.body
    return reply


@pytest.mark.parametrize("grade", range(5))
def test_an_answer_has_two_probabilities_and_no_grade(service: Any, grade: int) -> None:
    answer = ask(service, drawn_jpeg(seed=9_300_000 + grade, grade=grade)).json()
    spec = load_model_spec(PACKAGE)
    no, yes = answer["predictions"]
    assert no + yes == pytest.approx(1)
    assert answer["grade"] is answer["consistent"] is None
    assert answer["label"] == spec.labels[int(yes > no)]
    point = spec.operating_point()
    assert answer["referable"] == {
        "probability": pytest.approx(yes),
        "operating_point": point.name,
        "threshold": point.threshold,
        "positive": yes >= point.threshold,
    }
    if grade in (0, 4):
        assert answer["referable"]["positive"] is (grade == 4)


def test_an_ungradable_image_has_no_decision(service: Any) -> None:
    answer = ask(service, encoded(Image.new("RGB", (400, 400)), "PNG"), "image/png").json()
    assert answer["quality"]["gradable"] is False
    assert answer["predictions"] is answer["label"] is answer["referable"]["positive"] is None


def test_a_table_has_a_column_for_each_probability(service: Any) -> None:
    row = ask(service, drawn_jpeg(), Accept="text/csv").body.decode().strip().split(",")
    # Two probabilities, no grade, P(referable), referable, gradable.
    assert len(row) == 6
    assert float(row[0]) + float(row[1]) == pytest.approx(1)
    assert row[2] == ""
    assert float(row[3]) == pytest.approx(float(row[1]))


def test_the_heat_map_is_of_one_of_the_two_classes_and_of_no_grade(service: Any) -> None:
    attributes = {"X-Amzn-SageMaker-Custom-Attributes": "explain=gradcam"}
    answer = ask(service, drawn_jpeg(), **attributes).json()
    assert answer["explanation"]["grade"] is None
    assert answer["explanation"]["label"] == answer["label"]


def test_it_is_recalibrated_and_gated_without_grades(tmp_path: Path) -> None:
    verify_files(load_model_spec(PACKAGE), PACKAGE)
    rng = np.random.default_rng(1)
    truth = np.arange(300) % 5
    lean = np.where(truth >= 2, 1.5, -1.5) + rng.normal(0, 1, 300)
    yes = 1 / (1 + np.exp(-lean))
    site = scored(truth.tolist(), np.stack([1 - yes, yes], axis=1))
    made = recalibrate(
        PACKAGE, site, tmp_path / "site", model_id="site", data="a site", sensitivity=0.9,
        specificity=0.8, test=site, draws=20,
    )  # fmt: skip
    assert (made.spec.task, len(made.spec.operating_points)) == ("referable", 2)
    metrics = json.loads((tmp_path / "site" / "model.json").read_text())["metrics"]
    assert "accuracy" not in metrics
    assert metrics["referable_auc"]["value"] > 0.9
    verdict = gate(site, site, thresholds=(0.5, 0.5), operating_point="high_sensitivity", draws=20)
    assert verdict.verdict == "passed"
    assert "kappa" not in verdict.document
