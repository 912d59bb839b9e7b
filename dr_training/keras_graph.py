"""Finds the logits, the last feature map and the head between them in somebody's network."""

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from dr_training.data.faults import DataError

_SQUASHING = ("softmax", "sigmoid")


@dataclass(frozen=True, kw_only=True)
class AnsweringParts:
    """`model` gives [logits] or [logits, feature map]; `head` is (kernel, bias) of each layer.

    Without a `head`, `why_not` says why there can be no heat map.
    """

    model: Any
    size_px: int
    head: tuple[tuple[NDArray[np.float32], NDArray[np.float32]], ...]
    why_not: str = ""


def answering_parts(network: Any, classes: int, *, origin: str) -> AnsweringParts:
    """Take the softmax or sigmoid off the end, and look for pooling and dense layers before it.

    Args:
        network: a Keras model with one input and one output.
        classes: how many values it answers with.
        origin: names it in messages.

    Raises:
        DataError: another shape of input or output than one square RGB image and `classes` values.
    """
    shape = getattr(network, "input_shape", None)
    if not isinstance(shape, tuple) or len(shape) != 4 or shape[3] != 3 or shape[1] != shape[2]:
        raise DataError(f"{origin} takes {shape}; [batch, S, S, 3] is expected: one RGB image")
    if shape[1] is None:
        raise DataError(
            f"{origin} takes images of any size; save it with the size it was trained at"
        )
    if len(network.outputs) != 1 or network.outputs[0].shape[1:] != (classes,):
        shapes = [list(one.shape[1:]) for one in network.outputs]
        raise DataError(f"{origin} answers with {shapes}, but {classes} labels were given")
    layers = [one for one in network.layers if not isinstance(one, keras.layers.InputLayer)]
    last = layers[-1]
    if isinstance(last, keras.layers.Softmax) or (
        isinstance(last, keras.layers.Activation) and last.activation.__name__ in _SQUASHING
    ):
        layers.pop()
        logits = last.input
        last = layers[-1]
    elif getattr(getattr(last, "activation", None), "__name__", "linear") in _SQUASHING:
        # The same layer without what squashes its sums.
        config = last.get_config() | {"activation": "linear", "name": f"{last.name}_logits"}
        twin = last.__class__.from_config(config)
        logits = twin(last.input)
        twin.set_weights(last.get_weights())
    else:
        logits = network.outputs[0]
    head, pooled = _head(layers)
    if pooled is None:
        reason = "no global average pooling with dense layers (relu) behind it ends the network"
        model = keras.Model(network.inputs, [logits])
        return AnsweringParts(model=model, size_px=shape[1], head=(), why_not=reason)
    model = keras.Model(network.inputs, [logits, pooled.input])
    return AnsweringParts(model=model, size_px=shape[1], head=tuple(head))


def _head(layers: list[Any]) -> tuple[list[tuple[Any, Any]], Any]:
    """Dense layers from the pooling to the end, and the pooling; None where they are not so."""
    found: list[tuple[Any, Any]] = []
    for layer in reversed(layers):
        if isinstance(layer, keras.layers.Dropout):
            continue
        if isinstance(layer, keras.layers.GlobalAveragePooling2D):
            flat = not layer.keepdims and layer.data_format == "channels_last"
            return (found[::-1], layer) if found and flat else ([], None)
        if not isinstance(layer, keras.layers.Dense):
            return [], None
        if found and layer.activation.__name__ != "relu":
            return [], None
        bias = layer.get_weights()[1] if layer.use_bias else np.zeros(layer.units, np.float32)
        found.append((layer.get_weights()[0], bias))
    return [], None
