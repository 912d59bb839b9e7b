"""Figures and commands that the documents quote are those of the committed models."""

import json
import re
from pathlib import Path

import pytest

from dr_cli.photographs import drawn_photograph
from inference_image.contract import GRADE_LABELS
from inference_image.model_spec import load_model_spec
from inference_image.predictor import Predictor

MODELS = ("mobilenet-demo", "vgg19-demo", "vgg19-small-demo", "referral-demo")


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return " ".join((repository / "docs" / "models" / "README.md").read_text("utf-8").split())


def test_the_table_of_packages_has_the_parameters_and_input_of_each(
    page: str, repository: Path
) -> None:
    for name in MODELS:
        spec = load_model_spec(repository / "model_artifacts" / name)
        row = next(part for part in page.split("| `") if part.startswith(f"{name}`"))
        assert f"{spec.raw['network']['parameters']:,} parameters" in row
        assert f"{spec.input_size_px} px" in row


def test_what_is_quoted_of_the_real_photograph_is_what_the_model_answers(
    page: str, repository: Path, real_photograph: Path
) -> None:
    predictor = Predictor.load(repository / "model_artifacts" / "mobilenet-demo", threads=1)
    answer = predictor.predict(real_photograph.read_bytes(), declared_type="image/jpeg")
    quoted = re.search(
        r'calls it "(.+?)" \(probability (\S+)\) and not referable \(P\(grade ≥ 2\) is (\S+)\)',
        page,
    )
    assert quoted is not None
    assert answer.grade is not None
    assert answer.probabilities is not None
    assert answer.referable.positive is False
    assert quoted[1] == GRADE_LABELS[answer.grade]
    assert float(quoted[2]) == pytest.approx(answer.probabilities[answer.grade], abs=0.006)
    assert float(quoted[3]) == pytest.approx(answer.referable.probability, abs=0.006)


def test_the_readme_shows_what_its_commands_answer(repository: Path) -> None:
    photograph = drawn_photograph(seed=0, grade=3, size_px=None)
    predictor = Predictor.load(repository / "model_artifacts" / "mobilenet-demo", threads=1)
    answer = predictor.predict(photograph.body, declared_type=photograph.content_type)
    text = (repository / "README.md").read_text("utf-8")
    shown = re.search(
        r'"predictions": (\[.+?\]), "grade": (\d), "label": "(.+?)",\s+"referable": '
        r'\{"probability": (\S+), "operating_point": "(\w+)", "threshold": (\S+), '
        r'"positive": (\w+)',
        text,
    )
    assert shown is not None
    assert json.loads(shown[1]) == pytest.approx(answer.probabilities, abs=0.006)
    assert (int(shown[2]), shown[3]) == (answer.grade, GRADE_LABELS[3])
    assert float(shown[4]) == pytest.approx(answer.referable.probability, abs=0.006)
    assert shown[5] == answer.referable.operating_point.name
    assert float(shown[6]) == pytest.approx(answer.referable.operating_point.threshold, abs=0.001)
    assert json.loads(shown[7]) is answer.referable.positive


def test_the_card_of_the_demo_model_quotes_its_model_json(repository: Path) -> None:
    folder = repository / "model_artifacts" / "mobilenet-demo"
    card = (folder / "MODEL_CARD.md").read_text("utf-8")
    metrics = load_model_spec(folder).raw["metrics"]
    for name in ("accuracy", "quadratic_weighted_kappa"):
        value, low, high = (f"{metrics[name][bound]:.3f}" for bound in ("value", "low", "high"))
        assert f"{value} ({low} to {high})" in card


def test_commands_of_the_documents_name_a_program_of_the_checkout(repository: Path) -> None:
    for name in ("drawn-photographs.md", "models/README.md"):
        text = (repository / "docs" / name).read_text("utf-8")
        for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            for line in [] if language else block.splitlines():
                assert re.match(r"\.venv(-training)?/bin/(dr|python) ", line), line
