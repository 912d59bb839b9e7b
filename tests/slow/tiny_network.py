"""Trains a tiny network once and tries on it what `test_quantise_slow.py` looks at.

    .venv-training/bin/python tests/slow/tiny_network.py FOLDER

Its pictures hold more bright squares the higher the grade. Facts go to standard output as JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from tensorflow.lite.tools import flatbuffer_utils

from dr_training import quantise
from dr_training.delegated_input import delegate_input
from dr_training.quantisation_aware import QuantisationAware, fold_normalisation
from dr_training.quantise import VARIANTS, Runner, convert_variant
from dr_training.saved_model import raw_weight_bytes, write_saved_model

SIZE_PX = 32
layers = keras.layers


def build(*, softmax: bool = False) -> keras.Model:
    """Convolutions with normalisation, a depthwise one, pooling and a dense head."""
    pixels = x = keras.Input((SIZE_PX, SIZE_PX, 3), name="pixels")
    x = layers.Rescaling(1 / 127.5, offset=-1, name="rescale")(x)
    for index, channels in enumerate((8, 16)):
        x = layers.Conv2D(channels, 3, strides=2, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization(momentum=0.8, name=f"norm_{index}")(x)
        x = layers.ReLU(6.0 if index else None)(x)
    x = layers.DepthwiseConv2D(3, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization(momentum=0.8)(x)
    features = x = layers.ReLU()(x)
    x = layers.GlobalAveragePooling2D()(x)
    x = layers.Dense(16, activation="relu", name="head_0")(x)
    if softmax:
        return keras.Model(pixels, layers.Dense(5, activation="softmax", name="head_1")(x))
    return keras.Model(pixels, {"logits": layers.Dense(5, name="head_1")(x), "features": features})


def pictures(count: int, seed: int) -> tuple[Any, Any]:
    """Pictures (n, S, S, 3) uint8 and their grades."""
    rng = np.random.default_rng(seed)
    grades = rng.integers(0, 5, count)
    pixels = rng.integers(0, 120, (count, SIZE_PX, SIZE_PX, 3)).astype(np.float32)
    for index, grade in enumerate(grades):
        for _ in range(2 + 3 * grade):
            row, column = rng.integers(0, SIZE_PX - 3, 2)
            pixels[index, row : row + 3, column : column + 3] += 90
    return np.clip(pixels, 0, 255).astype(np.uint8), grades


def train(network: keras.Model, pixels: Any, grades: Any, epochs: int = 25) -> None:
    """Plain supervised training."""
    optimizer = keras.optimizers.Adam(5e-3)
    variables = network.trainable_variables
    optimizer.build(variables)

    @tf.function
    def step(batch: Any, wanted: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = network(tf.cast(batch, tf.float32), training=True)["logits"]
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(wanted, logits))
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    for _ in range(epochs):
        for first in range(0, len(pixels), 50):
            step(tf.constant(pixels[first : first + 50]), tf.constant(grades[first : first + 50]))


def stretch(network: keras.Model, factor: float) -> None:
    """Make one channel so many times as large, and read it so much more softly.

    The function stays the same in float; int8 gives the whole tensor one scale, and the other
    channels keep a few steps.
    """
    norm = network.get_layer("norm_0")
    weights = norm.get_weights()
    weights[0][3] *= factor
    weights[1][3] *= factor
    norm.set_weights(weights)
    reader = [one for one in network.layers if isinstance(one, layers.Conv2D)][1]
    kernel = reader.get_weights()[0]
    kernel[:, :, 3] /= factor
    reader.set_weights([kernel])


def logits_of(network: Any, pixels: Any) -> Any:
    return network(tf.constant(pixels.astype(np.float32)), training=False)["logits"].numpy()


def main() -> None:
    folder = Path(sys.argv[1])
    keras.utils.set_random_seed(1)
    network = build()
    shown, grades = pictures(600, 0)
    held, truth = pictures(400, 1)
    train(network, shown, grades)
    network.save(folder / "network.keras")
    facts: dict[str, Any] = {}
    facts["saved_model"] = saved_model(folder)
    facts["variants"] = variants(network, shown[:100], held)
    graded = build(softmax=True)
    graded.set_weights(network.get_weights())
    graded.save(folder / "theirs.keras")
    graded.save(folder / "theirs.h5")
    graded.export(folder / "theirs", verbose=False)
    unsafe = keras.Sequential(
        [keras.Input((32, 32, 3)), layers.Lambda(lambda x: x), layers.Flatten()]
    )
    unsafe.save(folder / "lambda.keras")
    unsafe.save(folder / "lambda.h5")
    parts = dict(
        zip(
            ("train", "val", "test"),
            ((shown[:200], grades[:200]), (held[:200], truth[:200]), (held[200:], truth[200:])),
            strict=True,
        )
    )
    arrays = {}
    for name, (images, labels) in parts.items():
        arrays[f"{name}_images"], arrays[f"{name}_labels"] = images, labels[:, None]
    np.savez(folder / "pictures.npz", **arrays)
    stretch(network, 300)
    network.save(folder / "stretched.keras")
    facts["aware"] = aware(network, shown, grades, held, truth)
    print(json.dumps(facts))


def saved_model(folder: Path) -> dict[str, Any]:
    """One of the size that matters: a MobileNet."""
    from dr_training.networks import build_network

    keras.utils.set_random_seed(2)
    network = build_network("mobilenet", input_size_px=32)
    for name in ("one", "two"):
        write_saved_model(network, folder / name, size_px=32)
    files = sorted(path for path in (folder / "one").rglob("*") if path.is_file())
    loaded = tf.saved_model.load(str(folder / "one"))
    signature = loaded.signatures["serving_default"]
    pixels = pictures(2, 5)[0]
    answer = signature(pixels=tf.constant(pixels.astype(np.float32)))
    again = [folder / "two" / path.relative_to(folder / "one") for path in files]
    return {
        "bytes": sum(path.stat().st_size for path in files),
        "raw_bytes": raw_weight_bytes(network),
        "outputs": sorted(answer),
        "gap": float(np.abs(answer["logits"].numpy() - logits_of(network, pixels)).max()),
        "same_weights": all(
            one.read_bytes() == two.read_bytes()
            for one, two in zip(files, again, strict=True)
            if "variables.data" in one.name
        ),
        "files": [path.relative_to(folder / "one").as_posix() for path in files],
    }


def variants(network: keras.Model, shown: Any, held: Any) -> dict[str, Any]:
    def infer(pixels: Any) -> dict[str, Any]:
        answer = network(pixels, training=False)
        return {name: answer[name] for name in ("logits", "features")}

    expected = logits_of(network, held)
    models = {
        kind: convert_variant(infer, kind, size_px=SIZE_PX, calibration=shown) for kind in VARIANTS
    }
    largest = float(np.abs(expected).max())
    details = Runner(models["int8"])._run.get_input_details()
    with mock.patch.object(quantise, "delegate_input", side_effect=lambda model: model) as skipped:
        plain = convert_variant(infer, "int8", size_px=SIZE_PX, calibration=shown)
    answers, plain_answers = Runner(models["int8"])(held), Runner(plain)(held)
    return {
        "first_steps": {"plain": first_steps(plain), "written": first_steps(models["int8"])},
        "same_answers": skipped.called and all(map(np.array_equal, answers, plain_answers)),
        "changed_twice": delegate_input(models["int8"]) != models["int8"],
        "float_model_changed": delegate_input(models["f32"]) != models["f32"],
        "gaps": {
            kind: float(np.abs(Runner(model)(held)[0] - expected).max()) / largest
            for kind, model in models.items()
        },
        "bytes": {kind: len(model) for kind, model in models.items()},
        "int8_input": np.dtype(next(iter(details.values()))["dtype"]).name,
    }


def first_steps(model: bytes) -> list[str]:
    """Names of the first two steps of a `.tflite`."""
    content = flatbuffer_utils.convert_bytearray_to_object(bytearray(model))
    steps = content.subgraphs[0].operators[:2]
    return [
        flatbuffer_utils.opcode_to_name(content, step.opcodeIndex) or "unknown" for step in steps
    ]


def aware(network: Any, shown: Any, grades: Any, held: Any, truth: Any) -> dict[str, Any]:
    expected = logits_of(network, held)
    trainer = QuantisationAware(network, shown[:100])

    def int8() -> Any:
        model = convert_variant(trainer.infer, "int8", size_px=SIZE_PX, calibration=shown[:100])
        return Runner(model)(held)[0]

    def right(logits: Any) -> float:
        return float(np.mean(logits.argmax(axis=1) == truth))

    plain, simulated = int8(), trainer.rounded_logits(held)
    losses = trainer.train(shown, grades, epochs=10, rate=1e-3)
    return {
        "fold_gap": float(
            np.abs(logits_of(fold_normalisation(network), held) - expected).max()
            / np.abs(expected).max()
        ),
        "plain_gap": float(np.abs(expected - plain).mean()),
        "simulated_gap": float(np.abs(simulated - plain).mean()),
        "losses": losses,
        "accuracy": {
            "f32": right(expected),
            "int8": right(plain),
            "int8_aware": right(int8()),
        },
    }


if __name__ == "__main__":
    main()
