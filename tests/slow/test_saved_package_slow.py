"""A random package that holds a SavedModel is served by the TensorFlow runtime."""

import json
from pathlib import Path

import pytest

from dr_training import random_package
from inference_image.predictor import Predictor
from tests.service_harness import drawn_jpeg

pytestmark = pytest.mark.timeout(600)


def test_a_random_saved_model_answers_and_holds_each_weight_once(tmp_path: Path) -> None:
    out = tmp_path / "small-saved"
    arguments = ["--network", "mobilenet", "--alpha", "0.25", "--input-size-px", "96"]
    assert random_package.main([*arguments, "--saved-model", "--out", str(out)]) == 0
    document = json.loads((out / "model.json").read_text())
    assert not [name for name in document["files"] if name.endswith(".tflite")]
    assert "1/saved_model.pb" in document["files"]
    assert document["provenance"]["command"].endswith(
        "--alpha 0.25 --input-size-px 96 --saved-model --out model_artifacts/small-saved"
    )
    weights = sum(
        file["size_bytes"] for name, file in document["files"].items() if "variables.data" in name
    )
    # Four bytes a parameter, and not eight.
    assert weights == pytest.approx(4 * document["network"]["parameters"], rel=0.1)
    predictor = Predictor.load(out, threads=1)
    predictor.warm_up()
    answer = predictor.predict(drawn_jpeg())
    assert answer.probabilities is not None
    assert sum(answer.probabilities) == pytest.approx(1)
