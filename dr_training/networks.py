"""Networks: a backbone under one small dense head, pixels 0..255 in.

    >>> network = build_classifier("inceptionv3", input_size_px=299, task="referable")
    >>> network.count_params()
    21804833

The head of a grader is global average pooling, `Dense(128, relu)` twice and `Dense(5)`: with
MobileNet (alpha 1.0) 3,377,221 parameters, with VGG19 20,107,205, as in the studies this project
follows. That of a referral model is pooling and `Dense(1)`, whose value is the log-odds of
grade >= 2. Scaling (see `backbones`) and enlarging are part of the graph.
"""

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import keras

from dr_training.backbones import (
    BACKBONE_WEIGHTS,
    EFFICIENTNET_LITE0,
    IMAGENET_BGR,
    IMAGENET_RGB,
    LITE,
    MINUS_ONE_TO_ONE,
    SMALL_RESNET,
    WEIGHTS,
    WEIGHTS_IMAGENET,
    WEIGHTS_RANDOM,
    WHY_RANDOM,
    Backbone,
    backbone,
)
from dr_training.data.faults import DataError
from dr_training.efficientnet_lite import DISTRIBUTION, build_lite0, load_lite0
from dr_training.small_resnet import build_small_resnet
from inference_image.contract import GRADE_LABELS, TASK_GRADE5, TASK_REFERABLE, TASKS

# Backbone of a demo -> (constructor, layer whose output is 1/16 of the input's side).
_DEMO_BACKBONES: Mapping[str, tuple[Callable[..., Any], str]] = {
    "mobilenet": (keras.applications.MobileNet, "conv_pw_11_relu"),
    "vgg19": (keras.applications.VGG19, "block5_conv4"),
}
NETWORKS = tuple(_DEMO_BACKBONES)

# Dense layers between pooling and answer.
HEADS: Final[Mapping[str, tuple[int, ...]]] = {TASK_GRADE5: (128, 128), TASK_REFERABLE: ()}
_ANSWERS: Final[Mapping[str, int]] = {TASK_GRADE5: len(GRADE_LABELS), TASK_REFERABLE: 1}
_FETCH_TIMEOUT_S: Final = 20.0


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """A network and where its backbone's weights are from, in words for tables.

    `why_random` says why they are random where ImageNet's were wanted, and is None elsewhere.
    `network` maps pixels (n, S, S, 3) float 0..255 to `logits` (n, 5) or (n, 1) and `features`,
    the last map before pooling. `backbone_layers` are the layers that a frozen backbone keeps.
    """

    network: keras.Model
    weights: str
    pretrained: bool
    backbone_layers: tuple[str, ...]
    why_random: str | None = None

    def weights_record(self) -> dict[str, str | None]:
        """Of reports and packages: where the weights are from, and why they are random."""
        return {BACKBONE_WEIGHTS: self.weights, WHY_RANDOM: self.why_random}


def build_classifier(
    name: str,
    *,
    input_size_px: int,
    network_size_px: int | None = None,
    task: str = TASK_GRADE5,
    dense_units: tuple[int, ...] | None = None,
    dropout: float = 0.0,
    weights: str = WEIGHTS_RANDOM,
) -> Classifier:
    """A classifier of fundus photographs on one of `backbones.BACKBONES`.

    Args:
        name: of the backbone.
        input_size_px: side of the pictures that enter.
        network_size_px: side to which the graph enlarges them (bilinear) for the backbone; when
            left out the input's, or the least that the backbone takes.
        task: `grade5` or `referable`.
        dense_units: hidden layers of the head; those of the studies when left out.
        dropout: share of pooled features that are dropped in training.
        weights: `random`; `imagenet`, an error where they cannot be had; `auto`, ImageNet's
            where they can be had.

    Raises:
        DataError: a name or size that is not possible, or weights that cannot be had.
    """
    found = backbone(name)
    if task not in TASKS:
        raise DataError(f"the task must be one of {', '.join(TASKS)}; got {task!r}")
    if weights not in WEIGHTS:
        raise DataError(f"weights must be one of {', '.join(WEIGHTS)}; got {weights!r}")
    size_px = network_size_px or max(input_size_px, found.least_px)
    if size_px < found.least_px:
        raise DataError(f"{name} needs pictures of at least {found.least_px} px; got {size_px}")
    pixels = keras.Input((input_size_px, input_size_px, 3), name="pixels")
    x = pixels
    if size_px != input_size_px:
        x = keras.layers.Resizing(size_px, size_px, name="enlarge")(x)
    features, source = _backbone_features(found, pixels, x, weights)
    trunk = keras.Model(pixels, features)
    units = HEADS[task] if dense_units is None else dense_units
    logits = _head(features, units, _ANSWERS[task], dropout=dropout)
    network = keras.Model(
        pixels,
        {"logits": logits, "features": _as_float32(features)},
        name=f"{name.replace('-', '_')}_{task}",
    )
    return Classifier(
        network=network,
        weights=source.weights,
        pretrained=source.pretrained,
        why_random=source.why_random,
        backbone_layers=tuple(layer.name for layer in trunk.layers),
    )


def scaled(pixels: Any, scaling: str) -> Any:
    """Pixels (n, h, w, 3) 0..255 RGB as a backbone with this scaling expects them.

    The numbers are those of `keras.applications.imagenet_utils.preprocess_input`.
    """
    if scaling == MINUS_ONE_TO_ONE:
        return keras.layers.Rescaling(1 / 127.5, offset=-1, name="rescale")(pixels)
    if scaling == LITE:
        return keras.layers.Rescaling(1 / 128, offset=-127 / 128, name="rescale")(pixels)
    if scaling == IMAGENET_RGB:
        mean, deviation = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
        return keras.layers.Rescaling(
            [1 / (255 * one) for one in deviation],
            offset=[-m / d for m, d in zip(mean, deviation, strict=True)],
            name="rescale",
        )(pixels)
    if scaling == IMAGENET_BGR:
        return keras.layers.Rescaling(1.0, offset=[-103.939, -116.779, -123.68], name="rescale")(
            pixels[..., ::-1]
        )
    return pixels


def build_network(
    name: str, *, input_size_px: int, alpha: float = 1.0, dense_units: tuple[int, ...] = (128, 128)
) -> keras.Model:
    """The demo packages' networks: three outputs, random weights by the global Keras seed.

    `logits` (n, 5); `features`, the last map before pooling; `middle`, a map at 1/16 of the
    input's side, which only training uses. Both backbones take -1..1 here, whatever ImageNet's
    weights expect, because these never meet them.

    Raises:
        ValueError: the network's name is not one of `NETWORKS`.
    """
    if name not in _DEMO_BACKBONES:
        raise ValueError(f"network must be one of {', '.join(NETWORKS)}; got {name!r}")
    construct, middle_layer = _DEMO_BACKBONES[name]
    options = {"alpha": alpha} if name == "mobilenet" else {}
    pixels = keras.Input((input_size_px, input_size_px, 3), name="pixels")
    trunk = construct(
        input_tensor=scaled(pixels, MINUS_ONE_TO_ONE), include_top=False, weights=None, **options
    )
    features = trunk.output
    outputs = {
        "logits": _head(features, dense_units, len(GRADE_LABELS)),
        "features": features,
        "middle": trunk.get_layer(middle_layer).output,
    }
    return keras.Model(pixels, outputs, name=f"{name}_grade5")


def head_layers(model: keras.Model) -> list[keras.layers.Dense]:
    """The dense layers after pooling, in order."""
    return [layer for layer in model.layers if layer.name.startswith("head_")]


def _head(features: Any, units: tuple[int, ...], answers: int, *, dropout: float = 0.0) -> Any:
    hidden = keras.layers.GlobalAveragePooling2D(name="pool")(features)
    if dropout:
        hidden = keras.layers.Dropout(dropout, name="pool_dropout")(hidden)
    for index, count in enumerate(units):
        hidden = keras.layers.Dense(count, activation="relu", name=f"head_{index}")(hidden)
    # Mixed precision must not reach the logits: their softmax would lose digits.
    return keras.layers.Dense(answers, dtype="float32", name="head_logits")(hidden)


def _as_float32(features: Any) -> Any:
    if features.dtype == "float32":
        return features
    return keras.layers.Activation("linear", dtype="float32", name="features_float32")(features)


@dataclass(frozen=True, kw_only=True)
class _Source:
    weights: str = WEIGHTS_RANDOM
    pretrained: bool = False
    why_random: str | None = None


def _backbone_features(
    one: Backbone, pixels: Any, enlarged: Any, weights: str
) -> tuple[Any, _Source]:
    """The last feature map, and where the weights are from."""
    x = scaled(enlarged, one.scaling)
    if one.name == SMALL_RESNET:
        if weights == WEIGHTS_IMAGENET:
            raise DataError(f"there are no ImageNet weights for {SMALL_RESNET}; use random ones")
        return build_small_resnet(x), _Source()
    if one.name == EFFICIENTNET_LITE0:
        features = build_lite0(x)
        if weights == WEIGHTS_RANDOM:
            return features, _Source()
        try:
            load_lite0(keras.Model(pixels, features))
        except DataError as error:
            if weights == WEIGHTS_IMAGENET:
                raise
            return features, _Source(why_random=str(error))
        return features, _Source(weights=f"ImageNet ({DISTRIBUTION})", pretrained=True)
    return _keras_features(one, x, weights)


def _keras_features(one: Backbone, x: Any, weights: str) -> tuple[Any, _Source]:
    construct = getattr(keras.applications, one.keras_class)
    if weights == WEIGHTS_RANDOM:
        return _without_top(construct, x, None), _Source()
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_FETCH_TIMEOUT_S)
    try:
        source = _Source(weights="ImageNet (keras.applications)", pretrained=True)
        return _without_top(construct, x, "imagenet"), source
    except Exception as error:  # noqa: BLE001
        # Keras raises a bare Exception when it cannot fetch a file, and others when it is damaged.
        reason = " ".join(str(error).split())[:200]
        problem = f"ImageNet's weights of {one.keras_class} cannot be had: {reason}"
        if weights == WEIGHTS_IMAGENET:
            raise DataError(f"{problem}; train from random ones with --weights random") from None
    finally:
        socket.setdefaulttimeout(before)
    return _without_top(construct, x, None), _Source(why_random=problem)


def _without_top(construct: Callable[..., Any], x: Any, weights: str | None) -> Any:
    return construct(input_tensor=x, include_top=False, weights=weights).output
