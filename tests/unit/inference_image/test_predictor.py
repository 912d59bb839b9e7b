"""Answers: probabilities, the referable decision, explanations, and packages that do not fit."""

import dataclasses
import hashlib
import io
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from inference_image.contract import GRADE_LABELS
from inference_image.decoding import Limits
from inference_image.explain import DenseHead
from inference_image.model_spec import ModelPackageError, load_model_spec
from inference_image.predictor import EngineError, Predictor, RequestError
from inference_image.runtimes import Outputs
from inference_image.runtimes.litert import LiteRTRuntime
from tests.service_harness import TINY_MODEL, copy_package, digest_of, drawn_jpeg, encoded


class FixedRuntime:
    """An engine that always answers with the same logits."""

    def __init__(self, *logits: float, channels: int = 8) -> None:
        self._logits = np.array(logits)
        self._features = np.zeros((4, 4, channels), np.float32)
        self.calls = 0

    def predict(self, pixels: Any, *, with_features: bool = False) -> Outputs:
        self.calls += 1
        return Outputs(logits=self._logits, features=self._features if with_features else None)


def predictor(*logits: float, head: DenseHead | None = None, **changes: Any) -> Predictor:
    spec = dataclasses.replace(load_model_spec(TINY_MODEL), temperature=1.0, **changes)
    return Predictor(spec=spec, runtime=FixedRuntime(*logits), head=head, limits=Limits())


@pytest.fixture(scope="module")
def tiny() -> Predictor:
    loaded = Predictor.load(TINY_MODEL, threads=1)
    loaded.warm_up()
    return loaded


def test_probabilities_are_a_softmax_in_float64_with_temperature() -> None:
    logits = [1.0, 2.0, 0.0, -1.0, 3.0]
    answer = predictor(*logits).predict(drawn_jpeg())
    powers = [math.exp(v) for v in logits]
    assert answer.probabilities == pytest.approx([p / sum(powers) for p in powers], abs=1e-15)
    cool = dataclasses.replace(load_model_spec(TINY_MODEL), temperature=2.0)
    halved = Predictor(spec=cool, runtime=FixedRuntime(*logits), head=None, limits=Limits())
    powers = [math.exp(v / 2) for v in logits]
    expected = [p / sum(powers) for p in powers]
    assert halved.predict(drawn_jpeg()).probabilities == pytest.approx(expected, abs=1e-15)


def test_huge_logits_do_not_overflow() -> None:
    answer = predictor(1e6, -1e6, 0.0, 0.0, 0.0).predict(drawn_jpeg())
    assert answer.probabilities == (1.0, 0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("logits", "grade", "positive", "consistent"),
    [
        # P(>=2) is well above 0.1 although the most probable grade is 0.
        ((2.0, 0.0, 1.0, 0.0, 0.0), 0, True, False),
        ((0.0, 0.0, 9.0, 0.0, 0.0), 2, True, True),
        ((9.0, 0.0, 0.0, 0.0, 0.0), 0, False, True),
        ((0.0, 9.0, 0.0, 0.0, 0.0), 1, False, True),
    ],
)
def test_the_decision_is_the_threshold_and_disagreement_is_said(
    logits: tuple[float, ...], grade: int, positive: bool, consistent: bool
) -> None:
    answer = predictor(*logits).predict(drawn_jpeg())
    assert answer.grade == grade
    assert answer.label == GRADE_LABELS[grade]
    assert answer.probabilities is not None
    assert answer.referable.probability == pytest.approx(sum(answer.probabilities[2:]))
    assert (answer.referable.positive, answer.consistent) == (positive, consistent)


@pytest.mark.parametrize("logits", [(0.4, 1.7), (1.3,)])
def test_a_referral_model_answers_with_two_probabilities_and_no_grade(
    logits: tuple[float, ...],
) -> None:
    # (0.4, 1.7) as a pair and 1.3 as log-odds are the same statement.
    model = predictor(*logits, task="referable", labels=("Not referable", "Referable"))
    model.warm_up()
    answer = model.predict(drawn_jpeg())
    p = 1 / (1 + math.exp(-1.3))
    assert answer.probabilities == pytest.approx((1 - p, p))
    assert answer.grade is None
    assert answer.label == "Referable"
    assert answer.referable.probability == pytest.approx(p)
    assert answer.consistent is None


@pytest.mark.parametrize("log_odds", [2.0, -2.0])
def test_the_heat_map_of_log_odds_is_that_of_referable_and_says_so(log_odds: float) -> None:
    head = DenseHead(kernels=(np.ones((8, 1), np.float32),), biases=(np.zeros(1, np.float32),))
    model = predictor(log_odds, head=head, task="referable", labels=("Not referable", "Referable"))
    model.warm_up()
    answer = model.predict(drawn_jpeg(), explain="gradcam")
    assert answer.label == ("Referable" if log_odds > 0 else "Not referable")
    assert answer.heat_map is not None
    assert (answer.heat_map.grade, answer.heat_map.label) == (None, "Referable")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_is_an_error_of_the_engine(value: float) -> None:
    with pytest.raises(EngineError, match="tiny-test"):
        predictor(0.0, 0.0, value, 0.0, 0.0).predict(drawn_jpeg())


def test_a_temperature_that_leaves_no_number_is_an_error_and_found_at_warm_up() -> None:
    spec = dataclasses.replace(load_model_spec(TINY_MODEL), temperature=1e-320)
    runtime = FixedRuntime(0.0, 1.0, 2.0, 3.0, -4.0)
    extreme = Predictor(spec=spec, runtime=runtime, head=None, limits=Limits())
    with pytest.raises(EngineError, match="not a number"):
        extreme.predict(drawn_jpeg())
    with pytest.raises(ModelPackageError, match="not a number"):
        extreme.warm_up()


def test_an_ungradable_photograph_does_not_reach_the_engine() -> None:
    engine = FixedRuntime(0, 0, 0, 0, 0)
    model = Predictor(spec=load_model_spec(TINY_MODEL), runtime=engine, head=None, limits=Limits())
    answer = model.predict(encoded(Image.new("RGB", (300, 300)), "PNG"))
    assert engine.calls == 0
    assert answer.probabilities is answer.grade is answer.label is answer.consistent is None
    assert answer.referable.positive is answer.referable.probability is None


def test_before_each_run_of_the_engine_others_are_told_that_it_begins() -> None:
    asked = predictor(1.0, 2.0, 0.0, -1.0, 3.0)
    told: list[int] = []
    asked.before_engine = lambda: told.append(asked._runtime.calls)  # type: ignore[attr-defined]
    asked.predict(drawn_jpeg())
    asked.predict(drawn_jpeg())
    asked.predict(encoded(Image.new("RGB", (300, 300)), "PNG"))  # never reaches it
    assert told == [0, 1]


def test_the_engine_agrees_with_the_head_it_explains(tiny: Predictor) -> None:
    engine = LiteRTRuntime(
        TINY_MODEL / "model.tflite",
        outputs={"logits": "logits", "feature_map": "features"},
        threads=1,
    )
    pixels = np.random.default_rng(1).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    outputs = engine.predict(pixels, with_features=True)
    assert outputs.features is not None
    assert outputs.features.shape == (4, 4, 8)
    head = DenseHead.load(TINY_MODEL / "head.npz")
    assert head.logits(outputs.features.mean(axis=(0, 1))) == pytest.approx(
        outputs.logits, abs=1e-4
    )
    assert engine.predict(pixels).features is None
    answer = tiny.predict(drawn_jpeg(), explain="gradcam")
    assert answer.heat_map is not None
    assert (answer.heat_map.grade, answer.heat_map.label) == (answer.grade, answer.label)


@pytest.mark.parametrize("photograph", ["small", "large"])
def test_a_camera_file_gives_nearly_the_probabilities_of_full_decoding(
    tiny: Predictor, photograph: str
) -> None:
    # A large frame with a small disc needs the second, larger pass.
    canvas = Image.new("RGB", (2400, 1800))
    eye = Image.open(io.BytesIO(drawn_jpeg(size_px=600)))
    size = 420 if photograph == "small" else 1700
    canvas.paste(eye.resize((size, size), Image.Resampling.LANCZOS), (300, 40))
    jpeg = encoded(canvas, "JPEG", quality=95)
    answer = tiny.predict(jpeg)
    exact = tiny.predict(encoded(Image.open(io.BytesIO(jpeg)), "PNG"))
    assert answer.quality.gradable
    assert exact.quality.gradable
    assert answer.probabilities == pytest.approx(exact.probabilities, abs=0.02)


def test_unknown_wishes_are_refused(tiny: Predictor) -> None:
    with pytest.raises(RequestError, match="high_sensitivity, high_specificity"):
        tiny.predict(drawn_jpeg(), operating_point="best")
    with pytest.raises(RequestError, match="gradcam"):
        tiny.predict(drawn_jpeg(), explain="lime")
    with pytest.raises(RequestError, match="cannot be explained"):
        predictor(0, 0, 0, 0, 0).predict(drawn_jpeg(), explain="gradcam")


def test_the_operating_point_of_the_settings_is_the_default() -> None:
    model = Predictor.load(TINY_MODEL, threads=1, operating_point="high_specificity")
    assert model.predict(drawn_jpeg()).referable.operating_point.threshold == 0.9
    with pytest.raises(ModelPackageError, match="'none' is not in model tiny-test"):
        Predictor.load(TINY_MODEL, threads=1, operating_point="none")


def test_the_digest_is_that_of_the_description(tmp_path: Path) -> None:
    package = copy_package(tmp_path / "package", {"notice": "Another."})
    assert Predictor.load(package, threads=1).spec.sha256 == digest_of(package)


def damage(package: Path, name: str, data: bytes | None) -> None:
    """Replace a file without telling `model.json`; None deletes it."""
    if data is None:
        (package / name).unlink()
    else:
        (package / name).write_bytes(data)


@pytest.mark.parametrize(
    ("name", "data", "fragment"),
    [
        ("model.json", b"{", "is not JSON"),
        ("model.tflite", None, "model.tflite is missing"),
        ("model.tflite", b"short", "has 5 bytes where model.json says"),
        ("head.npz", None, "head.npz is missing"),
    ],
)
def test_a_damaged_package_is_never_loaded(
    tmp_path: Path, name: str, data: bytes | None, fragment: str
) -> None:
    package = copy_package(tmp_path / "package")
    damage(package, name, data)
    with pytest.raises(ModelPackageError, match=fragment):
        Predictor.load(package, threads=1)


def test_one_flipped_byte_is_found(tmp_path: Path) -> None:
    package = copy_package(tmp_path / "package")
    data = bytearray((package / "model.tflite").read_bytes())
    data[len(data) // 2] ^= 1
    damage(package, "model.tflite", bytes(data))
    with pytest.raises(ModelPackageError, match="SHA-256"):
        Predictor.load(package, threads=1)


def test_a_folder_without_a_package_says_what_it_holds(tmp_path: Path) -> None:
    with pytest.raises(ModelPackageError, match="the folder does not exist"):
        Predictor.load(tmp_path / "absent", threads=1)
    (tmp_path / "model.h5").write_bytes(b"x")
    with pytest.raises(ModelPackageError, match=r"it holds model\.h5"):
        Predictor.load(tmp_path, threads=1)
    (tmp_path / "model.tflite").write_bytes(b"TFL3")
    with pytest.raises(ModelPackageError, match=r"model\.tflite cannot be loaded by LiteRT"):
        Predictor.load(tmp_path, threads=1)


def with_model(package: Path, data: bytes) -> Path:
    """A consistent package around another model file."""
    (package / "model.tflite").write_bytes(data)
    document = json.loads((package / "model.json").read_text(encoding="utf-8"))
    document["files"]["model.tflite"] = {
        "sha256": hashlib.sha256(data).hexdigest(),
        "size_bytes": len(data),
    }
    (package / "model.json").write_text(json.dumps(document), encoding="utf-8")
    return package


def test_what_is_no_model_is_refused_by_the_engine_in_one_sentence(tmp_path: Path) -> None:
    package = with_model(copy_package(tmp_path / "package"), b"not a model at all")
    with pytest.raises(ModelPackageError, match="cannot be loaded by LiteRT") as refusal:
        Predictor.load(package, threads=1)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"outputs": {"logits": "scores"}}, "no output 'scores'; it has features, logits"),
        ({"input_size_px": 32}, "says input_size_px 32, but the network takes 64"),
        ({"preprocessing": [{"step": "clahe"}]}, "'clahe' is not known"),
        ({"quality_gate": {"min_contrast": 1}}, "has no limit 'min_contrast'"),
        ({"quality_gate": {"min_level": float("nan")}}, "min_level must be a number of at least 0"),
        ({"quality_gate": {"min_level": float("inf")}}, "min_level must be a number of at least 0"),
        ({"quality_gate": {"min_level": -1}}, "min_level must be a number of at least 0; it is -1"),
        ({"quality_gate": {"min_level": 10**400}}, "min_level must be a number of at least 0"),
        ({"quality_gate": {"min_level": "30"}}, "min_level must be a number of at least 0"),
        ({"default_operating_point": "x"}, "not in operating_points"),
    ],
)
def test_a_description_that_does_not_fit_the_model_is_refused(
    tmp_path: Path, changes: dict[str, Any], fragment: str
) -> None:
    package = copy_package(tmp_path / "package", changes)
    with pytest.raises(ModelPackageError, match=fragment):
        Predictor.load(package, threads=1)


def test_warm_up_finds_outputs_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(ModelPackageError, match="3 values, but has 5 labels"):
        predictor(1.0, 2.0, 3.0).warm_up()
    head = DenseHead(kernels=(np.zeros((6, 5), np.float32),), biases=(np.zeros(5, np.float32),))
    with pytest.raises(ModelPackageError, match="8 channels"):
        predictor(0, 0, 0, 0, 0, head=head).warm_up()


def test_a_feature_map_that_is_none_is_found_at_warm_up() -> None:
    head = DenseHead(kernels=(np.zeros((8, 5), np.float32),), biases=(np.zeros(5, np.float32),))
    pooled = predictor(0, 0, 0, 0, 0, head=head)
    pooled._runtime._features = np.zeros(8, np.float32)  # type: ignore[attr-defined]
    with pytest.raises(ModelPackageError, match=r"shape \[8\]; height, width and channels"):
        pooled.warm_up()


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("link", r"model\.json is a link to a file that does not exist"),
        ("folder", r"model\.json is no plain file"),
        ("pipe", r"model\.json is no plain file"),
    ],
)
def test_a_description_that_cannot_be_read_is_not_passed_over(
    tmp_path: Path, kind: str, sentence: str
) -> None:
    """The model beside it would be served with other thresholds."""
    package = copy_package(tmp_path / "package")
    path = package / "model.json"
    path.unlink()
    if kind == "link":
        path.symlink_to(tmp_path / "nowhere")
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(ModelPackageError, match=sentence):
        Predictor.load(package, threads=1)


def test_an_engine_that_fails_on_a_photograph_is_one_sentence(
    tiny: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("Input tensor 5 lacks data\nNode number 3")

    monkeypatch.setattr(LiteRTRuntime, "_run", fail)
    with pytest.raises(EngineError, match=r"model\.tflite fails on an image: Input .* data$"):
        tiny.predict(drawn_jpeg())


def test_logits_are_bound_by_name_whatever_their_order() -> None:
    swapped = LiteRTRuntime(
        TINY_MODEL / "model.tflite",
        outputs={"feature_map": "features", "logits": "logits"},
        threads=1,
    )
    assert swapped.predict(np.zeros((64, 64, 3), np.uint8)).logits.shape == (5,)
