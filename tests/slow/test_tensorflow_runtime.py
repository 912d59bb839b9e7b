"""The TensorFlow runtime on SavedModels as different exporters write them.

Each model is made here, in the environment that has TensorFlow; every test of loading runs in a
process of its own where threads matter, since TensorFlow fixes them once.
"""

import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference_image.contract import GRADE_LABELS
from inference_image.model_files import models_of_folder
from inference_image.model_spec import InputEncoding, ModelPackageError, file_sha256
from inference_image.predictor import Predictor
from inference_image.runtimes.litert import LiteRTRuntime
from inference_image.runtimes.tensorflow import TensorFlowRuntime
from tests.service_harness import (
    REPOSITORY,
    TINY_MODEL,
    Served,
    drawn_jpeg,
    drawn_pixels,
    stop,
    wait_until,
)

tf = pytest.importorskip("tensorflow")

SIZE_PX = 64
# As `conftest.py` has told TensorFlow.
THREADS = 1


def keras_network(*, softmax: bool = True, units: int = 5, rescaling: bool = False) -> Any:
    keras = tf.keras
    keras.utils.set_random_seed(3)
    layers = [keras.Input((SIZE_PX, SIZE_PX, 3))]
    if rescaling:
        layers.append(keras.layers.Rescaling(1 / 255))
    layers += [
        keras.layers.Conv2D(6, 5, strides=4, activation="relu"),
        keras.layers.Conv2D(8, 3, strides=2, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(units, activation="softmax" if softmax else None),
    ]
    return keras.Sequential(layers)


class Module(tf.Module):
    """A model with whatever signatures a test needs."""

    def __init__(self, function: Callable[..., Any], *specs: Any) -> None:
        super().__init__()
        self.weights = tf.Variable(tf.random.stateless_normal((3, 5), (1, 2)) / 50)
        self.serve = tf.function(lambda *inputs: function(self, *inputs), input_signature=specs)


def mean_scores(module: Module, images: Any) -> Any:
    return tf.reduce_mean(tf.cast(images, tf.float32), (1, 2)) @ module.weights


def image_spec(dtype: Any = tf.float32, *shape: int | None, name: str = "image") -> Any:
    return tf.TensorSpec(shape or (None, SIZE_PX, SIZE_PX, 3), dtype, name=name)


def saved(folder: Path, module: Module, *, signature: str | None = "serving_default") -> Path:
    signatures = {} if signature is None else {signature: module.serve}
    tf.saved_model.save(module, str(folder), signatures=signatures)
    return folder


@pytest.fixture(scope="module")
def pixels() -> Any:
    from PIL import Image

    picture = Image.fromarray(drawn_pixels()).resize((SIZE_PX, SIZE_PX))
    return np.asarray(picture)


@pytest.mark.parametrize("exporter", ["export", "save", "renamed", "bytes"])
def test_each_exporters_names_and_types_are_read(
    tmp_path: Path, pixels: Any, exporter: str
) -> None:
    network = keras_network(softmax=False)
    expected = network(pixels[np.newaxis].astype(np.float32), training=False).numpy()[0]
    if exporter == "export":
        network.export(str(tmp_path), verbose=False)
    elif exporter == "save":
        tf.saved_model.save(network, str(tmp_path))
    else:
        kind = tf.uint8 if exporter == "bytes" else tf.float32

        @tf.function(input_signature=[image_spec(kind, name="photograph")])
        def serve(photograph: Any) -> Any:
            return {"severity": network(tf.cast(photograph, tf.float32), training=False)}

        network.serve = serve
        tf.saved_model.save(network, str(tmp_path), signatures={"grade": serve})
    runtime = TensorFlowRuntime(tmp_path, threads=THREADS)
    (output,) = runtime.facts.output_shapes
    assert runtime.facts.output_shapes[output] == (5,)
    assert runtime.facts.input_size_px == SIZE_PX
    assert runtime.facts.input_dtype == ("uint8" if exporter == "bytes" else "float32")
    runtime.bind({"logits": output})
    assert runtime.predict(pixels).logits == pytest.approx(expected, abs=1e-3)


def test_no_photograph_after_the_first_has_the_graph_traced_again(
    tmp_path: Path, pixels: Any
) -> None:
    from tensorflow.python.eager import context

    for number, open_side in enumerate((SIZE_PX, None)):
        spec = image_spec(tf.float32, None, open_side, open_side, 3)
        folder = saved(tmp_path / str(number), Module(mean_scores, spec))
        runtime = TensorFlowRuntime(folder, threads=THREADS)
        runtime.bind({"logits": next(iter(runtime.facts.output_shapes))})
        first = runtime.predict(pixels).logits
        traced = sorted(context.context().list_function_names())
        assert traced
        for _ in range(3):
            assert runtime.predict(pixels).logits == pytest.approx(first)
        assert sorted(context.context().list_function_names()) == traced


def test_outputs_are_bound_by_name(tmp_path: Path, pixels: Any) -> None:
    def both(module: Module, images: Any) -> Any:
        scores = mean_scores(module, images)
        return {"b_map": tf.cast(images, tf.float32)[:, ::8, ::8], "a_other": -scores, "z": scores}

    folder = saved(tmp_path / "m", Module(both, image_spec()))
    runtime = TensorFlowRuntime(
        folder, threads=THREADS, outputs={"logits": "z", "feature_map": "b_map"}
    )
    outputs = runtime.predict(pixels, with_features=True)
    assert outputs.features is not None
    assert outputs.features.shape == (8, 8, 3)
    other = TensorFlowRuntime(folder, threads=THREADS, outputs={"logits": "a_other"})
    assert other.predict(pixels).logits == pytest.approx(-outputs.logits)
    with pytest.raises(ModelPackageError, match=r"no output 'y'; it has a_other, b_map, z"):
        TensorFlowRuntime(folder, threads=THREADS, outputs={"logits": "y"})


@pytest.mark.parametrize("beside", ["names", "class", "good"])
def test_what_stands_beside_the_scores_is_not_taken_for_them(
    tmp_path: Path, pixels: Any, beside: str
) -> None:
    """Names, the best class and a verdict, as TensorFlow's own estimators add them."""

    def answer(module: Module, images: Any) -> Any:
        scores = mean_scores(module, images)
        count = tf.shape(scores)[0]
        more = {
            "names": tf.tile(tf.constant([["0", "1", "2", "3", "4"]]), [count, 1]),
            "class": tf.argmax(scores, -1),
            "good": tf.reduce_max(scores, -1) > 0,
        }
        return {beside: more[beside], "scores": scores}

    folder = saved(tmp_path / "1", Module(answer, image_spec()))
    assert Predictor.load(tmp_path, threads=THREADS).spec.outputs == {"logits": "scores"}
    (tmp_path / "lite").mkdir()
    (tmp_path / "lite" / "m.tflite").write_bytes(lite(folder))
    if beside == "names":
        # That engine does not tell what they are before an image is there.
        with pytest.raises(ModelPackageError, match="'names' names the 5 values of 'scores'"):
            Predictor.load(tmp_path / "lite", threads=1)
    else:
        assert Predictor.load(tmp_path / "lite", threads=1).spec.outputs == {"logits": "scores"}
    for runtime in (
        TensorFlowRuntime(folder, threads=THREADS),
        LiteRTRuntime(tmp_path / "lite" / "m.tflite", threads=1),
    ):
        runtime.bind({"logits": "scores"})
        assert runtime.predict(pixels).logits.shape == (5,)
        if beside != "class":
            with pytest.raises(ModelPackageError, match=rf"{beside!r} of .* holds no numbers"):
                runtime.bind({"logits": beside})


GRADES = ["No_DR", "Mild", "Moderate", "Severe", "Proliferative DR"]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (GRADES, None),
        (["No DR", "Severe", "Mild", "Moderate", "Proliferative DR"], r"\(No DR, Severe, Mild, .*"),
        ([1, 0, 2, 3, 4], r"\(1, 0, 2, 3, 4\) names the 5 values of"),
        # The best first, as `top_k` answers: every eye would have no retinopathy.
        (None, "fall from the first to the last|names the 5 values of"),
    ],
)
def test_names_of_the_scores_in_another_order_are_not_passed_over(
    tmp_path: Path, names: list[Any] | None, sentence: str | None, *, named: bool
) -> None:
    def answer(module: Module, images: Any) -> Any:
        scores = mean_scores(module, images)
        if names is None:
            scores, order = tf.math.top_k(scores, k=5)
        else:
            order = tf.tile(tf.constant([names]), [tf.shape(scores)[0], 1])
        return {"order": order, "logits" if named else "scores": scores}

    saved(tmp_path / "1", Module(answer, image_spec()))
    if sentence is None:
        assert Predictor.load(tmp_path, threads=THREADS).spec.task == "grade5"
    else:
        with pytest.raises(ModelPackageError, match=sentence):
            Predictor.load(tmp_path, threads=THREADS)


@pytest.mark.parametrize("beside", ["class", "name", "good"])
def test_the_confidence_in_a_class_is_not_taken_for_referable(tmp_path: Path, beside: str) -> None:
    def answer(module: Module, images: Any) -> Any:
        scores = tf.nn.softmax(mean_scores(module, images))
        best = tf.argmax(scores, -1)
        more = {"class": best, "name": tf.as_string(best), "good": best > 0}
        return {beside: more[beside], "confidence": tf.reduce_max(scores, -1)}

    folder = saved(tmp_path / "1", Module(answer, image_spec()))
    (tmp_path / "lite").mkdir()
    if beside != "name":
        (tmp_path / "lite" / "m.tflite").write_bytes(lite(folder))
    for model in [tmp_path, tmp_path / "lite"][: 1 + (beside != "name")]:
        with pytest.raises(ModelPackageError, match=f"the confidence in what '{beside}.* says"):
            Predictor.load(model, threads=THREADS)


def test_a_class_alone_is_no_score(tmp_path: Path) -> None:
    module = Module(lambda m, x: {"class": tf.argmax(mean_scores(m, x), -1)}, image_spec())
    saved(tmp_path / "1", module)
    with pytest.raises(ModelPackageError, match=r"0 outputs that could .* has class int64 \[\]"):
        Predictor.load(tmp_path, threads=THREADS)


@pytest.mark.parametrize("shape", [(-1, 1, 1, 5), (5,)])
def test_the_scores_may_come_with_sides_or_without_a_batch(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    module = Module(lambda m, x: {"y": tf.reshape(mean_scores(m, x), shape)}, image_spec())
    plain = Predictor.load(saved(tmp_path / "1", module).parent, threads=THREADS)
    plain.warm_up()
    assert plain.spec.outputs == {"logits": "y"}
    assert plain.spec.task == "grade5"


def test_the_only_signature_is_taken_and_several_are_named(tmp_path: Path) -> None:
    module = Module(lambda m, x: {"logits": mean_scores(m, x)}, image_spec())
    saved(tmp_path / "one", module, signature="grade")
    TensorFlowRuntime(tmp_path / "one", threads=THREADS, outputs={"logits": "logits"})
    tf.saved_model.save(
        module, str(tmp_path / "two"), signatures={"b": module.serve, "a": module.serve}
    )
    with pytest.raises(ModelPackageError, match=r"serving_default.*`signature`.*a, b"):
        TensorFlowRuntime(tmp_path / "two", threads=THREADS)
    TensorFlowRuntime(tmp_path / "two", threads=THREADS, signature="b")
    with pytest.raises(ModelPackageError, match=r"no signature 'c'; it has a, b"):
        TensorFlowRuntime(tmp_path / "two", threads=THREADS, signature="c")
    saved(tmp_path / "none", Module(mean_scores, image_spec()), signature=None)
    with pytest.raises(ModelPackageError, match="has no signature; export it with"):
        TensorFlowRuntime(tmp_path / "none", threads=THREADS)


@pytest.mark.parametrize(
    ("specs", "sentence"),
    [
        ((image_spec(tf.float32, None, 3, 64, 64),), r"float32 \[None, 3, 64, 64\].*channels last"),
        ((image_spec(tf.float32, None, 64, 32, 3),), r"\[None, 64, 32, 3\]"),
        ((image_spec(tf.float32, 8, 64, 64, 3),), r"\[8, 64, 64, 3\]"),
        ((image_spec(tf.float32, None, 64, 64, 1),), r"\[None, 64, 64, 1\]"),
        ((image_spec(tf.float32, None, 12288),), r"\[None, 12288\]"),
        ((image_spec(tf.string, None),), r"string \[None\].*pixels"),
        ((image_spec(tf.int8),), r"int8 \[None, 64, 64, 3\].*pixels"),
        (
            (image_spec(name="left"), image_spec(name="right")),
            r"2 inputs.*left: float32 \[None, 64, 64, 3\]; right",
        ),
    ],
)
def test_an_input_that_is_no_image_is_described(
    tmp_path: Path, specs: tuple[Any, ...], sentence: str
) -> None:
    module = Module(lambda _m, x, *_: {"y": tf.zeros((tf.shape(x)[0], 5))}, *specs)
    with pytest.raises(ModelPackageError, match=sentence):
        TensorFlowRuntime(saved(tmp_path / "m", module), threads=THREADS)


@pytest.mark.parametrize(
    ("spec", "size_px"),
    [
        (image_spec(tf.float32, None, None, None, 3), None),
        (image_spec(tf.float32, None, None, None, None), None),
        (tf.TensorSpec(None, tf.float32, name="image"), None),
        (image_spec(tf.float32, None, SIZE_PX, None, 3), SIZE_PX),
        (image_spec(tf.float32, None, None, SIZE_PX, 3), SIZE_PX),
    ],
)
def test_sides_that_are_left_open(
    tmp_path: Path, pixels: Any, spec: Any, size_px: int | None
) -> None:
    module = Module(lambda m, x: {"y": mean_scores(m, x)}, spec)
    folder = saved(tmp_path / "m", module)
    runtimes: list[Any] = [TensorFlowRuntime(folder, threads=THREADS)]
    # The converter wants the number of channels.
    if spec.shape.rank is not None and spec.shape[3] == 3:
        (tmp_path / "m.tflite").write_bytes(lite(folder))
        runtimes.append(LiteRTRuntime(tmp_path / "m.tflite", threads=1))
    answers = []
    for runtime in runtimes:
        assert runtime.facts.input_size_px == size_px
        runtime.bind({"logits": "y"})
        answers += [runtime.predict(pixels).logits, runtime.predict(pixels[::-1]).logits]
    for answer in answers:
        assert answer == pytest.approx(answers[0], rel=1e-4)


@pytest.mark.parametrize("as_text", [False, True])
def test_of_several_graphs_the_one_for_serving_is_taken(
    tmp_path: Path, pixels: Any, *, as_text: bool
) -> None:
    """As TensorFlow 1 wrote them for accelerators and for training on, and as text."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        images = v1.placeholder(tf.float32, (None, SIZE_PX, SIZE_PX, 3))
        weights = v1.get_variable("weights", initializer=np.eye(3, 5, dtype=np.float32))
        scores = tf.reduce_mean(images, (1, 2)) @ weights
        session.run(v1.global_variables_initializer())
        signature = v1.saved_model.predict_signature_def({"image:0": images}, {"my/scores": scores})
        builder = v1.saved_model.Builder(str(tmp_path / "1"))
        signatures = {"serving_default": signature}
        builder.add_meta_graph_and_variables(session, ["serve"], signature_def_map=signatures)
        builder.add_meta_graph(["serve", "tpu"], signature_def_map=signatures)
        builder.save(as_text=as_text)
    (model,) = models_of_folder(tmp_path).values()
    runtime = TensorFlowRuntime(model.path, threads=THREADS, outputs={"logits": "my/scores"})
    assert runtime.predict(pixels).logits[:3] == pytest.approx(pixels.mean((0, 1)), rel=1e-4)


@pytest.mark.parametrize(
    "dtype",
    [
        *(tf.float16, tf.float64, tf.bfloat16),
        *(tf.uint8, tf.uint16, tf.uint32, tf.uint64, tf.int16, tf.int32, tf.int64),
    ],
)
def test_pixels_are_cast_to_what_the_signature_takes(
    tmp_path: Path, pixels: Any, dtype: Any
) -> None:
    module = Module(lambda m, x: {"logits": mean_scores(m, x)}, image_spec(dtype))
    runtime = TensorFlowRuntime(
        saved(tmp_path / "m", module), threads=THREADS, outputs={"logits": "logits"}
    )
    expected = pixels.astype(np.float64).mean((0, 1)) @ module.weights.numpy()
    assert runtime.predict(pixels).logits == pytest.approx(expected, rel=2e-2, abs=2e-2)
    if dtype.is_integer:
        with pytest.raises(ModelPackageError, match="cannot be rescaled"):
            runtime.bind({"logits": "logits"}, encoding=InputEncoding(scale=(1 / 255,)))


@pytest.mark.parametrize("damage", ["cut", "empty", "no variables", "cut variables"])
def test_a_damaged_model_is_one_sentence(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "m"
    keras_network().export(str(folder), verbose=False)
    if damage == "cut":
        data = (folder / "saved_model.pb").read_bytes()
        (folder / "saved_model.pb").write_bytes(data[: len(data) // 2])
    elif damage == "empty":
        (folder / "saved_model.pb").write_bytes(b"")
    elif damage == "cut variables":
        (data_file,) = (folder / "variables").glob("variables.data*")
        data = data_file.read_bytes()
        data_file.write_bytes(data[: len(data) // 2])
    else:
        shutil.rmtree(folder / "variables")
    with pytest.raises(ModelPackageError) as caught:
        TensorFlowRuntime(folder, threads=THREADS)
    assert "\n" not in str(caught.value)
    assert "the SavedModel m cannot be loaded" in str(caught.value)


def test_a_plain_model_that_gives_no_numbers_is_told_so(tmp_path: Path) -> None:
    network = keras_network()
    network.layers[-1].bias.assign([np.nan] * 5)
    network.export(str(tmp_path), verbose=False)
    with pytest.raises(ModelPackageError, match=r"'output_0' are no numbers \(NaN"):
        Predictor.load(tmp_path, threads=THREADS)


def test_both_runtimes_agree_on_the_same_f32_model(tmp_path: Path) -> None:
    network = keras_network(softmax=False, rescaling=True)
    network.export(str(tmp_path / "saved"), verbose=False)
    converter = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path / "saved"))
    (tmp_path / "model.tflite").write_bytes(converter.convert())
    tensorflow = TensorFlowRuntime(tmp_path / "saved", threads=THREADS)
    litert = LiteRTRuntime(tmp_path / "model.tflite", threads=1)
    for runtime in (tensorflow, litert):
        runtime.bind({"logits": next(iter(runtime.facts.output_shapes))})
    generator = np.random.default_rng(1)
    for _ in range(20):
        image = generator.integers(0, 256, (SIZE_PX, SIZE_PX, 3), np.uint8)
        ours, theirs = (softmax(r.predict(image).logits) for r in (tensorflow, litert))
        assert np.abs(ours - theirs).max() < 1e-4


def test_the_runtimes_agree_on_a_mobilenet_from_photograph_to_answer(tmp_path: Path) -> None:
    keras = tf.keras
    keras.utils.set_random_seed(5)
    backbone = keras.applications.MobileNet(
        input_shape=(224, 224, 3), alpha=0.25, weights=None, classes=5, classifier_activation=None
    )
    inputs = keras.Input((224, 224, 3))
    network = keras.Model(inputs, backbone(keras.layers.Rescaling(1 / 127.5, -1)(inputs)))
    network.export(str(tmp_path / "1"), verbose=False)
    converter = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path / "1"))
    (tmp_path / "model.tflite").write_bytes(converter.convert())
    tensorflow = Predictor.load(
        tmp_path, threads=THREADS, runtime="tensorflow", plain_input="0..255"
    )
    litert = Predictor.load(tmp_path, threads=1, runtime="litert", plain_input="0..255")
    for seed in (1, 2, 3):
        photograph = drawn_jpeg(seed, 3)
        answers = [p.predict(photograph).probabilities for p in (tensorflow, litert)]
        assert answers[0] is not None
        assert answers[0] == pytest.approx(answers[1], abs=1e-4)


def test_a_saved_model_in_a_package_is_verified_and_served(tmp_path: Path) -> None:
    keras_network().export(str(tmp_path / "1"), verbose=False)
    files = {
        path.relative_to(tmp_path).as_posix(): {
            "sha256": file_sha256(path),
            "size_bytes": path.stat().st_size,
        }
        for path in (tmp_path / "1").rglob("*")
        if path.is_file()
    }
    document = {
        "schema_version": 1,
        "id": "own",
        "task": "grade5",
        "input_size_px": SIZE_PX,
        "labels": list(GRADE_LABELS),
        "input": {"scale": 1 / 255},
        "preprocessing": [{"step": "crop_to_fundus"}, {"step": "resize_area"}],
        "quality_gate": None,
        "operating_points": [{"name": "p", "threshold": 0.5}],
        "default_operating_point": "p",
        "temperature": 1.0,
        "outputs": {"probabilities": "output_0"},
        "files": files,
    }
    (tmp_path / "model.json").write_text(json.dumps(document), encoding="utf-8")
    predictor = Predictor.load(tmp_path, threads=THREADS)
    predictor.warm_up()
    answer = predictor.predict(drawn_jpeg())
    assert answer.probabilities is not None
    assert sum(answer.probabilities) == pytest.approx(1)
    # The same model without its description: the softmax and the range are found.
    (tmp_path / "model.json").unlink()
    plain = Predictor.load(tmp_path, threads=THREADS)
    assert plain.predict(drawn_jpeg()).probabilities == pytest.approx(
        answer.probabilities, abs=1e-6
    )
    assert "'output_0' holds probabilities" in (plain.spec.notice or "")
    assert "0..1" in (plain.spec.notice or "")


@pytest.mark.parametrize(
    ("units", "sentence"), [(3, r"answers with 3 values"), (1000, r"answers with 1000 values")]
)
def test_a_plain_model_with_other_answers_is_refused(
    tmp_path: Path, units: int, sentence: str
) -> None:
    keras_network(units=units).export(str(tmp_path), verbose=False)
    with pytest.raises(ModelPackageError, match=sentence):
        Predictor.load(tmp_path, threads=THREADS)


@pytest.mark.parametrize(
    ("units", "words"),
    [
        (1, "one value that speaks for referable, and is no grade; the output 'output_0' holds"),
        (2, "Assumed: referable last; the output 'output_0' holds logits"),
        (5, "Assumed: five grades, No DR first; the output 'output_0' holds logits"),
    ],
)
def test_what_a_plain_model_is_taken_for_is_in_every_answer(
    tmp_path: Path, units: int, words: str
) -> None:
    keras_network(units=units, softmax=False).export(str(tmp_path), verbose=False)
    plain = Predictor.load(tmp_path, threads=THREADS)
    plain.warm_up()
    assert words in (plain.spec.notice or "")


def test_a_plain_model_of_any_size_is_refused(tmp_path: Path) -> None:
    module = Module(
        lambda m, x: {"logits": mean_scores(m, x)}, image_spec(tf.float32, None, None, None, 3)
    )
    with pytest.raises(ModelPackageError, match="must say input_size_px"):
        Predictor.load(saved(tmp_path / "m", module), threads=THREADS)


def lite(module: Any, *, quantised_for: tuple[float, float] | None = None, **options: Any) -> bytes:
    """A `.tflite` of a Keras network or of a folder with a SavedModel."""
    if isinstance(module, Path):
        converter = tf.lite.TFLiteConverter.from_saved_model(str(module), **options)
    else:
        converter = tf.lite.TFLiteConverter.from_keras_model(module)
    if quantised_for is not None:
        low, high = quantised_for
        generator = np.random.default_rng(0)

        def photographs() -> Any:
            for _ in range(8):
                batch = generator.uniform(low, high, (1, SIZE_PX, SIZE_PX, 3)).astype(np.float32)
                batch[0, 0, 0], batch[0, 0, 1] = low, high
                yield [batch]

        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = photographs
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = tf.int8
    with warnings.catch_warnings():
        # It asks for statistics that only its predecessor used.
        warnings.filterwarnings("ignore", "Statistics for quantized inputs")
        return bytes(converter.convert())


@pytest.mark.parametrize("ends", [(0, 1), (-1, 1), (0, 255)])
def test_a_quantised_model_gets_the_range_it_was_calibrated_for(
    tmp_path: Path, ends: tuple[int, int]
) -> None:
    """Other numbers would saturate, and every photograph would have the same grade."""
    network = keras_network()
    (tmp_path / "m.tflite").write_bytes(lite(network, quantised_for=ends))
    plain = Predictor.load(tmp_path, threads=THREADS)
    assert f"{ends[0]}..{ends[1]}" in (plain.spec.notice or "")
    low, high = ends
    answers = []
    for level in (40, 200):
        pixels = np.full((SIZE_PX, SIZE_PX, 3), level, np.uint8)
        batch = (pixels[np.newaxis] / 255.0 * (high - low) + low).astype(np.float32)
        wanted = network(batch, training=False).numpy()[0].tolist()
        answers.append(plain._probabilities(plain._runtime.predict(pixels).logits))
        assert answers[-1] == pytest.approx(wanted, abs=0.1)
    assert answers[0] != answers[1]
    wrong = "0..255" if ends != (0, 255) else "0..1"
    with pytest.raises(ModelPackageError, match="pixels from 0 to 255 become"):
        Predictor.load(tmp_path, threads=THREADS, plain_input=wrong)


class TwoSignatures(tf.Module):
    """The second is the negative of the first, and has one more output before its own."""

    weights = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)

    @tf.function(input_signature=[image_spec(tf.float32, 1, SIZE_PX, SIZE_PX, 3)])
    def first(self, image: Any) -> Any:
        return {"scores": tf.reduce_mean(image, (1, 2)) @ self.weights}

    @tf.function(input_signature=[image_spec(tf.float32, 1, SIZE_PX, SIZE_PX, 3)])
    def second(self, image: Any) -> Any:
        mean = tf.reduce_mean(image, (1, 2))
        return {"mean": mean, "scores": -(mean @ self.weights)}


def test_the_signature_of_a_lite_model_is_chosen_as_that_of_a_saved_model(
    tmp_path: Path, pixels: Any
) -> None:
    module = TwoSignatures()
    expected = pixels.mean((0, 1)) @ module.weights
    for second in ("b", "serving_default"):
        folder = tmp_path / second
        signatures = {"a": module.first, second: module.second}
        tf.saved_model.save(module, str(folder), signatures=signatures)
        path = tmp_path / f"{second}.tflite"
        path.write_bytes(lite(folder, signature_keys=["a", second]))
        for name, sign in (("a", 1), (second, -1)):
            runtime = LiteRTRuntime(path, threads=1, signature=name, outputs={"logits": "scores"})
            assert runtime.predict(pixels).logits == pytest.approx(sign * expected, rel=1e-3)
    default = LiteRTRuntime(path, threads=1, outputs={"logits": "scores"})
    assert default.predict(pixels).logits == pytest.approx(-expected, rel=1e-3)
    with pytest.raises(ModelPackageError, match=r"more than one other.*: a, b"):
        LiteRTRuntime(tmp_path / "b.tflite", threads=1)
    with pytest.raises(ModelPackageError, match="no signature 'c'"):
        LiteRTRuntime(path, threads=1, signature="c")


def test_a_model_that_fails_on_every_image_is_one_sentence(tmp_path: Path) -> None:
    def fails(module: Module, images: Any) -> Any:
        tf.debugging.assert_less(tf.reduce_max(images), -1.0, message="pixels below zero wanted")
        return {"p": mean_scores(module, images)}

    saved(tmp_path / "m", Module(fails, image_spec()))
    with pytest.raises(ModelPackageError) as refusal:
        TensorFlowRuntime(tmp_path / "m", threads=THREADS)
    assert "fails on an image (InvalidArgumentError: " in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_many_predictions_keep_their_memory(tmp_path: Path, pixels: Any) -> None:
    keras_network(softmax=False).export(str(tmp_path), verbose=False)
    code = f"""
import os, numpy as np
from pathlib import Path
from inference_image.runtimes.tensorflow import TensorFlowRuntime
from inference_image.own_process import resident_mib
runtime = TensorFlowRuntime(Path({str(tmp_path)!r}), threads=2)
runtime.bind({{"logits": next(iter(runtime.facts.output_shapes))}})
pixels = np.zeros(({SIZE_PX}, {SIZE_PX}, 3), np.uint8)
for _ in range(200): runtime.predict(pixels)
before = resident_mib()
for _ in range(2000): runtime.predict(pixels)
import tensorflow as tf
threading = tf.config.threading
print(resident_mib() - before, threading.get_intra_op_parallelism_threads())
print(threading.get_inter_op_parallelism_threads(), os.environ["OMP_NUM_THREADS"])
"""
    # The tests before have set it for their own one thread.
    environment = {name: text for name, text in os.environ.items() if name != "OMP_NUM_THREADS"}
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    grown_mib, *threads = ended.stdout.split()
    assert float(grown_mib) < 20
    # Within an operation, between operations, of the libraries below.
    assert threads == ["2", "1", "2"]
    assert "Traceback" not in ended.stderr


def test_two_workers_predict_after_the_fork_and_are_counted_as_one(tmp_path: Path) -> None:
    script = REPOSITORY / "tests" / "data" / "make_tiny_model.py"
    subprocess.run(
        [sys.executable, str(script), "--saved-model", str(tmp_path)],
        check=True,
        capture_output=True,
    )
    environment = {
        "DR_RUNTIME": "tensorflow",
        "DR_SERVING_MODE": "realtime",
        "MODEL_SERVER_WORKERS": "2",
        # A model that was built before the fork would hang here for ever.
        "MODEL_SERVER_TIMEOUT": "10",
        "TF_ENABLE_ONEDNN_OPTS": "0",
    }
    photograph = drawn_jpeg()
    with Served(tmp_path, environment=environment) as served:
        wait_until(lambda: sum(e["event"] == "ready" for e in served.events) == 2, within_s=240)
        answers = [
            served.request("POST", "/invocations", photograph, {"Content-Type": "image/jpeg"})
            for _ in range(20)
        ]
        assert {answer.status for answer in answers} == {200}
        counts = [answer.json()["container"]["requests_before"] for answer in answers]
        assert counts == list(range(20))
        loaded = served.event("model")
        assert loaded is not None
        assert loaded["runtime"] == "tensorflow"
        assert loaded["runtime_version"] == tf.__version__
        # Two machines whose probabilities differ may differ in this.
        assert loaded["onednn"] == "0"
        litert = Predictor.load(TINY_MODEL, threads=1).predict(photograph)
        assert answers[0].json()["predictions"] == pytest.approx(litert.probabilities, abs=1e-4)
        stop(served)
        assert served.end() == 0


def softmax(logits: Any) -> Any:
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()
