"""Networks of the demo packages: a Keras backbone under one small dense head.

The head is global average pooling, `Dense(128, relu)` twice and `Dense(5)`: with MobileNet
(alpha 1.0) 3,377,221 parameters, with VGG19 20,107,205, as in the studies this project
follows. Pixels enter as 0..255; rescaling is part of the graph.
"""

from collections.abc import Callable, Mapping
from typing import Any

import keras

from inference_image.contract import GRADE_LABELS

# Backbone -> (constructor, layer whose output is 1/16 of the input's side).
_BACKBONES: Mapping[str, tuple[Callable[..., Any], str]] = {
    "mobilenet": (keras.applications.MobileNet, "conv_pw_11_relu"),
    "vgg19": (keras.applications.VGG19, "block5_conv4"),
}
NETWORKS = tuple(_BACKBONES)


def build_network(
    name: str, *, input_size_px: int, alpha: float = 1.0, dense_units: tuple[int, ...] = (128, 128)
) -> keras.Model:
    """Pixels (n, S, S, 3) float 0..255 to a dictionary of three tensors.

    `logits` (n, 5); `features`, the last map before pooling; `middle`, a map at 1/16 of the
    input's side, which only training uses. Weights are random, by the global Keras seed.

    Raises:
        ValueError: the network's name is not one of `NETWORKS`.
    """
    if name not in _BACKBONES:
        raise ValueError(f"network must be one of {', '.join(NETWORKS)}; got {name!r}")
    construct, middle_layer = _BACKBONES[name]
    options = {"alpha": alpha} if name == "mobilenet" else {}
    pixels = keras.Input((input_size_px, input_size_px, 3), name="pixels")
    scaled = keras.layers.Rescaling(1 / 127.5, offset=-1, name="rescale")(pixels)
    backbone = construct(input_tensor=scaled, include_top=False, weights=None, **options)
    features = backbone.output
    hidden = keras.layers.GlobalAveragePooling2D(name="pool")(features)
    for index, units in enumerate(dense_units):
        hidden = keras.layers.Dense(units, activation="relu", name=f"head_{index}")(hidden)
    logits = keras.layers.Dense(len(GRADE_LABELS), name="head_logits")(hidden)
    outputs = {
        "logits": logits,
        "features": features,
        "middle": backbone.get_layer(middle_layer).output,
    }
    return keras.Model(pixels, outputs, name=f"{name}_grade5")


def head_layers(model: keras.Model) -> list[keras.layers.Dense]:
    """The dense layers after pooling, in order."""
    return [layer for layer in model.layers if layer.name.startswith("head_")]
