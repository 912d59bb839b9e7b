"""The committed packages: whole, small, as good as they say, and honest about what they are."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter
from PIL import Image

from dr_training.drawing import draw_fundus
from dr_training.evaluate import auc, quadratic_weighted_kappa, referable_score, softmax
from dr_training.model_card import DEMO_NOTICE, RANDOM_NOTICE
from dr_training.recipe import Recipe, small
from inference_image.contract import NOT_ASSESSED, REFERABLE_FROM_GRADE
from inference_image.explain import DenseHead
from inference_image.model_spec import ModelSpec, load_model_spec, verify_files
from inference_image.predictor import Predictor
from inference_image.preprocessing import Preparation, prepare
from inference_image.runtimes.litert import LiteRTRuntime

MAX_MODEL_BYTES = 4_000_000
# Seeds that no split of the recipe uses.
FRESH_SEEDS = range(9_000_000, 9_000_060)


@pytest.fixture(scope="module")
def demo_dir(repository: Path) -> Path:
    return repository / "model_artifacts" / "mobilenet-demo"


@pytest.fixture(scope="module")
def demo(demo_dir: Path) -> ModelSpec:
    return load_model_spec(demo_dir)


@pytest.fixture(scope="module")
def runtime(demo: ModelSpec, demo_dir: Path) -> LiteRTRuntime:
    return LiteRTRuntime(demo_dir / "model.tflite", outputs=demo.outputs, threads=1)


def test_the_demo_package_is_whole_and_small(demo: ModelSpec, demo_dir: Path) -> None:
    verify_files(demo, demo_dir)
    (model,) = (entry for entry in demo.files if entry.path == "model.tflite")
    assert model.size_bytes <= MAX_MODEL_BYTES


@pytest.mark.parametrize("name", ["mobilenet-demo", "vgg19-small-demo", "referral-demo"])
def test_the_engine_computes_every_step_of_a_demo_network_in_one_piece(
    repository: Path, name: str
) -> None:
    interpreter = Interpreter(str(repository / "model_artifacts" / name / "model.tflite"))
    interpreter.allocate_tensors()
    steps = interpreter._get_ops_details()
    # After the network's own steps come the pieces that XNNPACK has taken.
    (piece,) = [step for step in steps if step["op_name"] == "DELEGATE"]
    taken = interpreter.get_input_details()[0]["index"]
    assert [index for index in piece["inputs"] if index == taken] == [taken]
    given = {detail["index"] for detail in interpreter.get_output_details()}
    assert given == set(map(int, piece["outputs"]))


def test_the_demo_package_was_made_by_the_recipe_in_the_source(demo: ModelSpec) -> None:
    recipe = Recipe()
    assert demo.raw["provenance"]["recipe"] == json.loads(json.dumps(recipe.as_document()))
    assert Preparation.from_spec(demo) == recipe.preparation()


def test_the_demo_package_records_its_figures_with_intervals(demo: ModelSpec) -> None:
    metrics: dict[str, Any] = demo.raw["metrics"]
    assert metrics["photographs"] >= 1000
    for name in ("accuracy", "quadratic_weighted_kappa", "referable_auc"):
        figure = metrics[name]
        assert figure["low"] <= figure["value"] <= figure["high"]
    assert metrics["quadratic_weighted_kappa"]["value"] > 0.9
    low, high = demo.operating_point("high_sensitivity"), demo.operating_point("high_specificity")
    assert low.threshold < high.threshold
    assert demo.operating_point() == low
    assert metrics["grade_agreement_int8_with_float"] > 0.9


def test_the_demo_package_says_that_it_saw_only_drawings(demo: ModelSpec, demo_dir: Path) -> None:
    card = (demo_dir / "MODEL_CARD.md").read_text()
    assert demo.notice == DEMO_NOTICE
    for sentence in (DEMO_NOTICE, NOT_ASSESSED):
        assert sentence in card
    kappa = demo.raw["metrics"]["quadratic_weighted_kappa"]["value"]
    assert f"{kappa:.3f}" in card


def test_fresh_drawings_are_graded_as_well_as_the_package_says(
    demo: ModelSpec, runtime: LiteRTRuntime
) -> None:
    truth, logits = [], []
    for index, seed in enumerate(FRESH_SEEDS):
        drawn = draw_fundus(seed, index % 5, 480)
        prepared = prepare(drawn.image, demo)
        assert prepared.quality.gradable, prepared.quality
        truth.append(drawn.grade)
        logits.append(runtime.predict(prepared.pixels).logits)
    grades = np.asarray(truth)
    probabilities = softmax(np.stack(logits), demo.temperature)
    assert quadratic_weighted_kappa(grades, probabilities.argmax(axis=1)) > 0.85
    assert auc(grades >= REFERABLE_FROM_GRADE, referable_score(probabilities)) > 0.97


def test_the_head_repeats_the_engines_logits(
    demo: ModelSpec, demo_dir: Path, runtime: LiteRTRuntime
) -> None:
    head = DenseHead.load(demo_dir / "head.npz")
    for seed, grade in ((9_100_000, 0), (9_100_001, 2), (9_100_002, 4)):
        prepared = prepare(draw_fundus(seed, grade, 480).image, demo)
        outputs = runtime.predict(prepared.pixels, with_features=True)
        assert outputs.features is not None
        repeated = head.logits(outputs.features.mean(axis=(0, 1)))
        # The engine's head is int8, this one float: near, and of the same opinion.
        assert int(np.argmax(repeated)) == int(np.argmax(outputs.logits))
        assert np.abs(repeated - outputs.logits).max() < 1.0


def test_the_size_at_which_a_photograph_was_taken_matters_little(
    demo: ModelSpec, runtime: LiteRTRuntime
) -> None:
    for grade in range(5):
        answers = [
            softmax(
                runtime.predict(prepare(draw_fundus(77, grade, size_px).image, demo).pixels).logits[
                    None
                ],
                demo.temperature,
            )
            for size_px in (640, 1280)
        ]
        referable = [float(referable_score(one)[0]) for one in answers]
        assert (referable[0] > 0.5) == (referable[1] > 0.5)


def test_a_real_photograph_passes_the_quality_gate(
    demo: ModelSpec, runtime: LiteRTRuntime, real_photograph: Path
) -> None:
    with Image.open(real_photograph) as image:
        prepared = prepare(np.asarray(image.convert("RGB")), demo)
    assert prepared.quality.gradable
    logits = runtime.predict(prepared.pixels).logits
    # What the grade is proves nothing about a model that never saw a real photograph.
    assert np.isfinite(logits).all()


def test_the_vgg19_package_has_no_figures_and_says_why(repository: Path) -> None:
    folder = repository / "model_artifacts" / "vgg19-demo"
    spec = load_model_spec(folder)
    assert spec.raw["network"]["parameters"] == 20_107_205
    assert spec.raw["metrics"] is None
    assert spec.notice == RANDOM_NOTICE
    assert RANDOM_NOTICE in (folder / "MODEL_CARD.md").read_text()
    assert spec.raw["provenance"]["command"] in (folder / "MODEL_CARD.md").read_text()


@pytest.fixture(scope="module")
def fresh() -> list[tuple[int, bytes]]:
    """Grades and files of a few photographs that nobody has seen."""
    return [
        (index % 5, draw_fundus(seed, index % 5, 480).jpeg_bytes())
        for index, seed in enumerate(FRESH_SEEDS[:15])
    ]


@pytest.mark.parametrize(
    ("name", "task"), [("vgg19-small-demo", "grade5"), ("referral-demo", "referable")]
)
def test_the_small_packages_are_whole_measured_and_good_on_fresh_drawings(
    name: str, task: str, repository: Path, fresh: list[tuple[int, bytes]]
) -> None:
    folder = repository / "model_artifacts" / name
    spec = load_model_spec(folder)
    verify_files(spec, folder)
    assert spec.task == task
    assert sum(entry.size_bytes for entry in spec.files) < 1_000_000
    recipe = spec.raw["provenance"]["recipe"]
    chosen = small(Recipe(), network=recipe["network"], alpha=recipe["alpha"])
    assert recipe == json.loads(json.dumps(chosen.as_document()))
    metrics: dict[str, Any] = spec.raw["metrics"]
    assert metrics["photographs"] == 1000
    assert metrics["referable_auc"]["value"] > 0.97
    assert ("accuracy" in metrics) is (task == "grade5")
    card = (folder / "MODEL_CARD.md").read_text()
    assert DEMO_NOTICE in card
    predictor = Predictor.load(folder, threads=1)
    answers = [predictor.predict(data) for _, data in fresh]
    positive = np.array([grade for grade, _ in fresh]) >= REFERABLE_FROM_GRADE
    scores = np.array([one.referable.probability for one in answers], np.float64)
    assert auc(positive, scores) > 0.95
