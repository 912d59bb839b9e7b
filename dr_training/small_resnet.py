"""A small residual network for pictures of 28 to 64 px, trained from nothing.

Three stages of pre-activation blocks (He et al., 2016, arXiv:1603.05027) at 1, 1/2 and 1/4 of the
side, 273,000 parameters: 40 million multiplications for a picture of 28 px, small enough for CPUs.
"""

from typing import Any, Final

import keras

_WIDTHS: Final = (16, 32, 64)
_BLOCKS: Final = 3


def build_small_resnet(scaled: Any) -> Any:
    """The last feature map (n, S/4, S/4, 64) of pictures (n, S, S, 3) scaled to -1..1."""
    x = _conv(scaled, _WIDTHS[0], 3, 1, "stem")
    for stage, width in enumerate(_WIDTHS):
        for index in range(_BLOCKS):
            stride = 2 if stage and not index else 1
            x = _block(x, width, stride, f"stage_{stage}_{index}")
    return _activated(x, "last")


def _block(x: Any, width: int, stride: int, name: str) -> Any:
    active = _activated(x, f"{name}_a")
    short = x
    if stride != 1 or x.shape[-1] != width:
        short = _conv(active, width, 1, stride, f"{name}_short")
    y = _conv(active, width, 3, stride, f"{name}_first")
    y = _conv(_activated(y, f"{name}_b"), width, 3, 1, f"{name}_second")
    return keras.layers.Add(name=f"{name}_add")([y, short])


def _activated(x: Any, name: str) -> Any:
    norm = keras.layers.BatchNormalization(momentum=0.9, name=f"{name}_norm")(x)
    return keras.layers.ReLU(name=f"{name}_relu")(norm)


def _conv(x: Any, width: int, kernel: int, stride: int, name: str) -> Any:
    return keras.layers.Conv2D(
        width,
        kernel,
        stride,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
        name=f"{name}_conv",
    )(x)
