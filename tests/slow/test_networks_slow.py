"""The table of backbones against Keras, parameter counts, and EfficientNet-Lite0's exactness."""

import json
from pathlib import Path

import pytest

from tests.slow.test_training_slow import _run, training_python

__all__ = ["training_python"]


@pytest.mark.timeout(1800)
def test_every_classifier_of_keras_is_a_backbone_with_its_own_scaling(
    training_python: Path, repository: Path
) -> None:
    code = """
import importlib, inspect, json
import keras, numpy as np
from dr_training.backbones import BACKBONES, INSIDE
from dr_training.networks import scaled
table = {one.keras_class: one for one in BACKBONES if one.keras_class}
classes = {n for n, v in vars(keras.applications).items() if inspect.isfunction(v)}
pixels = keras.Input((8, 8, 3))
given = np.random.default_rng(0).uniform(0, 255, (2, 8, 8, 3)).astype(np.float32)
gaps, doubled = {}, []
for name, one in table.items():
    module = importlib.import_module(f"keras.applications.{one.module}")
    wanted = module.preprocess_input(given.copy())
    ours = np.asarray(keras.Model(pixels, keras.layers.Identity()(scaled(pixels, one.scaling)))(given))
    gaps[name] = float(np.abs(ours - wanted).max() / max(1, np.abs(wanted).max()))
    source = inspect.getsource(importlib.import_module(f"keras.src.applications.{one.module}"))
    if (one.scaling == INSIDE) != ("layers.Rescaling(" in source or "layers.Normalization(" in source):
        doubled.append(name)
print(json.dumps([sorted(classes ^ set(table)), max(gaps.values()), len(gaps), doubled]))
"""  # noqa: E501
    difference, gap, count, doubled = json.loads(
        _run(training_python, "-c", code, cwd=repository).splitlines()[-1]
    )
    assert difference == []
    assert count == 40
    assert gap < 1e-6
    # Whoever rescales inside must not be given scaled pixels, and the other way round.
    assert doubled == []


@pytest.mark.timeout(1800)
def test_heads_and_backbones_have_the_parameters_of_the_studies(
    training_python: Path, repository: Path
) -> None:
    code = """
import json
from dr_training.networks import build_classifier
def count(name, **choices):
    return build_classifier(name, **choices).network.count_params()
print(json.dumps([
    count("mobilenet", input_size_px=224), count("vgg19", input_size_px=224),
    count("inceptionv3", input_size_px=299, task="referable"),
    [build_classifier(name, input_size_px=28).network.output["logits"].shape[1] for name in
     ("mobilenetv3small", "xception", "vgg16",
      "small-resnet", "efficientnet-lite0")],
]))
"""
    found = json.loads(_run(training_python, "-c", code, cwd=repository).splitlines()[-1])
    assert found == [3_377_221, 20_107_205, 21_804_833, [5] * 5]


@pytest.mark.timeout(1800)
def test_why_weights_are_random_is_a_field_and_not_a_part_of_their_name(
    training_python: Path, repository: Path
) -> None:
    code = """
import json
import keras
from dr_training import networks
from dr_training.data.faults import DataError
construct = keras.applications.MobileNet
def offline(*, weights, **choices):
    if weights is not None:
        raise Exception("URL fetch failure (no name)")
    return construct(weights=None, **choices)
keras.applications.MobileNet = offline
def missing(_):
    raise DataError("the package is not installed")
networks.load_lite0 = missing
print(json.dumps([
    networks.build_classifier(name, input_size_px=32, weights=weights).weights_record()
    for name in ("mobilenet", "efficientnet-lite0", "small-resnet") for weights in ("auto", "random")
]))
"""  # noqa: E501
    found = json.loads(_run(training_python, "-c", code, cwd=repository).splitlines()[-1])
    assert {one["backbone_weights"] for one in found} == {"random"}
    reason = "ImageNet's weights of MobileNet cannot be had: URL fetch failure (no name)"
    reasons = [reason, None, "the package is not installed", None, None, None]
    assert [one["why_random"] for one in found] == reasons


@pytest.mark.timeout(1800)
def test_efficientnet_lite0_answers_as_the_network_that_was_published(
    training_python: Path, repository: Path
) -> None:
    """The file holds what `efficientnet_lite_pytorch` 0.1.0 on PyTorch 2.13 (CPU, one thread)
    answers to the two pictures below, scaled by (x - 127) / 128: pooled features and logits."""
    code = """
import json
import keras, numpy as np
from dr_training.efficientnet_lite import classifier_weights
from dr_training.networks import build_classifier
network = build_classifier("efficientnet-lite0", input_size_px=224, weights="imagenet").network
noise = np.random.default_rng(20261128).integers(0, 256, (224, 224, 3))
blocks = np.kron(np.random.default_rng(1).integers(0, 256, (14, 14, 3)), np.ones((16, 16, 1)))
features = network(np.stack([noise, blocks]).astype(np.float32), training=False)["features"]
pooled = np.asarray(features).mean(axis=(1, 2))
kernel, bias = classifier_weights()
with np.load("tests/data/efficientnet-lite0-expected.npz") as expected:
    wanted = {name: expected[name] for name in expected.files}
logits = pooled @ kernel + bias
print(json.dumps([float(np.abs(pooled - wanted["pooled"]).max()),
                  float(np.abs(logits - wanted["logits"]).max()), float(np.ptp(logits))]))
"""
    pooled, logits, spread = json.loads(
        _run(training_python, "-c", code, cwd=repository).splitlines()[-1]
    )
    assert spread > 5
    assert pooled < 2e-4
    assert logits < 2e-4
