"""Packages: written files, digests, cards, and the commands' messages."""

import json
from pathlib import Path

import numpy as np
import pytest

from dr_training import random_package, sheets, train_demo
from dr_training.evaluate import (
    grader_metrics,
    referable_score,
    sensitivity,
    softmax,
    specificity,
)
from dr_training.export import DenseLayer, PackageContent, environment, write_package
from dr_training.lesions import GRADES
from dr_training.model_card import DEMO_NOTICE, RANDOM_NOTICE, model_card
from dr_training.origin import origin_of
from dr_training.recipe import Recipe
from dr_training.train_demo import HIGH_SENSITIVITY, HIGH_SPECIFICITY, choose_operating_points
from inference_image.contract import NOT_ASSESSED
from inference_image.explain import DenseHead
from inference_image.model_spec import ModelPackageError, verify_files
from inference_image.preprocessing import Preparation


def _content(**changes: object) -> PackageContent:
    recipe = Recipe()
    values: dict[str, object] = {
        "id": "test-model",
        "network": {"name": "mobilenet", "alpha": 1.0, "parameters": 3},
        "input_size_px": 224,
        "preprocessing": recipe.preprocessing(),
        "quality_gate": recipe.quality_gate(),
        "operating_points": [{"name": "one", "threshold": 0.5}],
        "default_operating_point": "one",
        "temperature": 1.0,
        "notice": DEMO_NOTICE,
        "metrics": None,
        "provenance": {"recipe": recipe.as_document(), "environment": environment(threads=1)},
        "model": b"not a network",
        "head": [
            DenseLayer(kernel=np.ones((4, 3), np.float32), bias=np.zeros(3, np.float32)),
            DenseLayer(kernel=np.ones((3, 5), np.float32), bias=np.zeros(5, np.float32)),
        ],
        "card": "# Card\n",
    }
    return PackageContent(**{**values, **changes})  # type: ignore[arg-type]


def test_a_contradiction_is_refused_by_the_loader_that_serves(tmp_path: Path) -> None:
    with pytest.raises(ModelPackageError, match="default_operating_point"):
        write_package(_content(default_operating_point="another"), tmp_path)


def test_a_package_is_written_with_the_digests_of_its_files(tmp_path: Path) -> None:
    spec = write_package(_content(), tmp_path)
    verify_files(spec, tmp_path)
    assert {entry.path for entry in spec.files} == {"model.tflite", "head.npz"}
    assert (tmp_path / "MODEL_CARD.md").read_text() == "# Card\n"


def test_the_same_content_gives_the_same_package(tmp_path: Path) -> None:
    one, two = (write_package(_content(), tmp_path / name) for name in ("one", "two"))
    assert one.sha256 == two.sha256


def test_a_package_rebuilt_elsewhere_keeps_its_digest(tmp_path: Path) -> None:
    first = write_package(_content(), tmp_path)
    elsewhere = {**_content().provenance, "environment": {"python": "3.13.0"}}
    assert write_package(_content(provenance=elsewhere), tmp_path).sha256 == first.sha256
    assert write_package(_content(temperature=1.5), tmp_path).sha256 != first.sha256


def test_a_package_without_a_head_cannot_be_explained(tmp_path: Path) -> None:
    spec = write_package(_content(head=()), tmp_path)
    assert spec.head_file is None
    assert [entry.path for entry in spec.files] == ["model.tflite"]


def test_the_head_is_read_back_by_the_service(tmp_path: Path) -> None:
    write_package(_content(), tmp_path)
    head = DenseHead.load(tmp_path / "head.npz")
    assert head.logits(np.ones(4, np.float32)).tolist() == [12.0] * 5


def test_training_and_serving_share_one_preprocessing(tmp_path: Path) -> None:
    spec = write_package(_content(), tmp_path)
    assert Preparation.from_spec(spec) == Recipe().preparation()


def test_the_provenance_names_versions_seeds_and_threads(tmp_path: Path) -> None:
    write_package(_content(), tmp_path)
    provenance = json.loads((tmp_path / "model.json").read_text())["provenance"]
    assert provenance["environment"]["threads"] == 1
    assert provenance["environment"]["libraries"]["numpy"] == np.__version__
    assert provenance["recipe"]["seed"] == Recipe().seed
    assert provenance["recipe"]["test"]["first_seed"] == Recipe().test.first_seed


def test_operating_points_reach_their_aims_on_the_data_they_were_chosen_on() -> None:
    rng = np.random.default_rng(4)
    grades = rng.integers(0, 5, 600)
    logits = np.eye(5)[grades] * 2 + rng.normal(0, 1, (600, 5))
    points = {row["name"]: row for row in choose_operating_points(logits, grades, 1.0)}
    score, positive = referable_score(softmax(logits)), grades >= 2
    sensitive, specific = (
        score >= points[name]["threshold"] for name in ("high_sensitivity", "high_specificity")
    )
    assert sensitivity(positive, sensitive) >= HIGH_SENSITIVITY
    assert specificity(positive, specific) >= HIGH_SPECIFICITY
    assert points["high_sensitivity"]["threshold"] < points["high_specificity"]["threshold"]


def test_grades_far_apart_still_give_the_more_sensitive_point_the_lower_threshold() -> None:
    grades = np.arange(100) % 5
    logits = np.full((100, 5), -4.0)
    logits[np.arange(100), grades] = np.linspace(2, 6, 100)
    low, high = choose_operating_points(logits, grades, 1.0)
    assert (low["name"], high["name"]) == ("high_sensitivity", "high_specificity")
    assert low["threshold"] < high["threshold"]
    score, positive = referable_score(softmax(logits)), grades >= 2
    for row in (low, high):
        assert sensitivity(positive, score >= row["threshold"]) >= HIGH_SENSITIVITY
        assert specificity(positive, score >= row["threshold"]) >= HIGH_SPECIFICITY


def test_a_card_says_what_the_package_is_not_and_invents_no_figure(tmp_path: Path) -> None:
    write_package(_content(notice=RANDOM_NOTICE, head=(), card=None), tmp_path)
    card = (tmp_path / "MODEL_CARD.md").read_text()
    document = json.loads((tmp_path / "model.json").read_text())
    assert card == model_card(document)
    for words in (RANDOM_NOTICE, NOT_ASSESSED, "Not measured", "offers no heat map"):
        assert words in card
    assert "Accuracy" not in card
    gated = {
        "reference": {"id": "the-f32"},
        "data": "held-out images",
        "photographs": 40,
        "verdict": "refused",
        "reasons": ["sensitivity may have fallen by 0.2000, more than 0.02"],
        "sensitivity": {"reference": 0.9, "candidate": 0.8, "fall_at_most": 0.2},
    }
    told = model_card({**document, "gate": gated, "task": "referable"})
    assert "**refused**. sensitivity may have fallen by 0.2000" in told
    assert "says referable or not, and no grade" in told


def test_a_card_says_of_how_many_patients_the_photographs_are(tmp_path: Path) -> None:
    truth = np.arange(40) % 5
    metrics = grader_metrics(
        4 * np.eye(5)[truth],
        truth,
        temperature=1.0,
        thresholds={"one": 0.5},
        patients=[f"p{n // 2}" for n in range(40)],
    )
    write_package(_content(metrics={"data": "a test part", **metrics}, card=None), tmp_path)
    card = (tmp_path / "MODEL_CARD.md").read_text()
    assert (
        "On a test part, n = 40 photographs of 20 patients; in brackets: 95 % percentile bootstrap"
        in card
    )
    assert "bootstrap over patients, 1000 draws" in card


def test_a_card_names_table_and_split_by_their_digests(tmp_path: Path) -> None:
    manifest = {
        name: letter * 64 for name, letter in (("table_sha256", "a"), ("train_sha256", "c"))
    }
    for split in ("b" * 64, None):
        record = origin_of(
            {**manifest, "split_sha256": split}, manifest_sha256="d" * 64, measured_on="validation"
        )
        write_package(_content(provenance={"records": record}, card=None), tmp_path)
        card = (tmp_path / "MODEL_CARD.md").read_text()
        named = f"Of table `{'a' * 12}`" + (f", split `{'b' * 12}`" if split else "")
        assert f"{named} (first digits of their digests) it was trained on the part train" in card
        assert "its figures are of the part validation." in card


def test_a_referral_package_has_its_own_two_labels(tmp_path: Path) -> None:
    spec = write_package(_content(task="referable"), tmp_path)
    assert (spec.task, spec.labels) == ("referable", ("Not referable", "Referable"))


def test_the_card_of_a_network_trained_here_says_what_it_began_with(tmp_path: Path) -> None:
    network = {"name": "mobilenet", "parameters": 3, "backbone_weights": "random"}
    changes = {"network": network, "card": None, "licence": None, "intended_use": "Research."}
    write_package(_content(**changes), tmp_path)
    card = (tmp_path / "MODEL_CARD.md").read_text()
    assert "| backbone's weights at the start | random |" in card
    assert "| licence | not stated |" in card
    assert "## Intended use\nResearch." in card


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (train_demo, ["--out", "x"]),
        (random_package, ["--network", "vgg19", "--out", "x"]),
    ],
)
def test_without_tensorflow_a_command_says_what_to_install(
    command: object,
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # None makes the import fail, whether TensorFlow is installed here or not.
    monkeypatch.setitem(__import__("sys").modules, "tensorflow", None)
    monkeypatch.chdir(tmp_path)
    assert command.main(arguments) == 1  # type: ignore[attr-defined]
    assert "extra 'training'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_single_photograph_can_be_written(tmp_path: Path) -> None:
    target = tmp_path / "fundus.jpg"
    arguments = ["--seed", "5", "--grade", "2", "--size-px", "256", "--photograph", str(target)]
    assert sheets.main(arguments) == 0
    assert target.read_bytes()[:2] == b"\xff\xd8"


def test_the_documentation_shows_every_grade(repository: Path) -> None:
    page = (repository / "docs" / "drawn-photographs.md").read_text()
    assert all(f"\n| {grade} " in page for grade in GRADES)
    for name in ("drawn-grades", "drawn-signs"):
        assert f"images/{name}.jpg" in page
        size = (repository / "docs" / "images" / f"{name}.jpg").stat().st_size
        assert 10_000 < size < 300_000
