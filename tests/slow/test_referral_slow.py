"""A referral model by the commands that a user types: from records to a gated int8 package."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference_image.model_spec import load_model_spec, verify_files
from inference_image.predictor import Predictor
from tests.slow.test_training_slow import training_python
from tests.slow.tiny_network import pictures

__all__ = ["training_python"]

POINTS = ("high_sensitivity", "high_specificity")


def _dr(
    repository: Path, python: Path, folder: Path, words: str, *, expected: tuple[int, ...] = (0,)
) -> str:
    """Output of a command, as typed in `folder`."""
    done = subprocess.run(
        [str(repository / ".venv" / "bin" / "dr"), *words.split()],
        cwd=folder,
        env={**os.environ, "DR_TRAINING_PYTHON": str(python)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode in expected, f"{words}: {done.stdout[-500:]}{done.stderr[-1500:]}"
    return done.stdout


@pytest.fixture(scope="module")
def made(training_python: Path, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained referral model, and its variants."""
    folder = tmp_path_factory.mktemp("referral")
    arrays: dict[str, Any] = {}
    for seed, (part, count) in enumerate((("train", 240), ("val", 160), ("test", 160))):
        arrays[f"{part}_images"], grades = pictures(count, seed)
        arrays[f"{part}_labels"] = grades[:, None].astype(np.uint8)
    np.savez(folder / "pictures.npz", **arrays)
    for words in (
        "data table npz pictures.npz --out table.csv",
        "data split table.csv --column published_split --out split.csv",
        (
            "data prepare table.csv --split split.csv --prepared-already --size-px 32 --format png "
            "--out records"
        ),
        (
            "model train records --out trained --network small-resnet --weights random "
            "--task referable --epochs 2 --learning-rate 0.002 --saved-model --id referral"
        ),
    ):
        _dr(repository, training_python, folder, words)
    # So small a margin asks for more pictures than there are: int8 does not pass, and is trained on
    # with its rounding.
    _dr(
        repository,
        training_python,
        folder,
        "model quantise trained/package table.csv --split split.csv --out variants --kind int8 "
        "--network trained/network.keras --epochs 1 --representatives 40 --draws 50 "
        "--margin 0.001 --sensitivity 0.9 --specificity 0.9",
        expected=(1,),
    )
    return folder


@pytest.mark.timeout(1800)
def test_its_variants_are_referral_packages_with_thresholds_of_their_own(made: Path) -> None:
    summary = json.loads((made / "variants" / "variants.json").read_text())
    assert [row["kind"] for row in summary] == ["f32", "int8", "int8-aware"]
    for row in summary:
        spec = load_model_spec(made / "variants" / row["kind"])
        verify_files(spec, made / "variants" / row["kind"])
        assert (spec.task, len(spec.labels)) == ("referable", 2)
        assert tuple(point.name for point in spec.operating_points) == POINTS
        assert "accuracy" not in row["metrics"]
        Predictor.load(made / "variants" / row["kind"], threads=1).warm_up()
    verdicts = [load_model_spec(made / "variants" / kind).raw["gate"]["verdict"]
                for kind in ("int8", "int8-aware")]  # fmt: skip
    assert "passed" not in verdicts
    assert "kappa" not in load_model_spec(made / "variants" / "int8").raw["gate"]


@pytest.mark.timeout(1800)
def test_it_is_shown_evaluated_gated_and_fitted_to_a_site(
    made: Path, training_python: Path, repository: Path
) -> None:
    shown = _dr(repository, training_python, made, "model inspect variants/int8")
    assert "referable: Not referable, Referable" in " ".join(shown.split())
    _dr(
        repository,
        training_python,
        made,
        "evaluate table.csv --split split.csv --model variants/int8 --draws 50 --out evaluation",
    )
    report = json.loads((made / "evaluation" / "report.json").read_text())
    assert set(POINTS) <= set(json.dumps(report).replace('"', " ").split())
    assert "quadratic_weighted_kappa" not in json.dumps(report)
    _dr(
        repository,
        training_python,
        made,
        "model gate variants/int8 table.csv --split split.csv --reference variants/f32 --draws 50",
        expected=(0, 1),
    )
    assert (
        load_model_spec(made / "variants" / "int8").raw["gate"]["reference"]["id"].endswith("f32")
    )
    _dr(
        repository,
        training_python,
        made,
        "model recalibrate variants/int8 table.csv --split split.csv --out site --draws 50 "
        "--sensitivity 0.9 --specificity 0.9",
    )
    assert load_model_spec(made / "site").task == "referable"
    _dr(repository, training_python, made, "model card site")
    card = (made / "site" / "MODEL_CARD.md").read_text()
    assert "It says referable or not, and no grade." in card
