"""The two VGG-like networks of the studies, as data that every framework builds.

The published description says only that both are like VGG. Here: blocks of two 3 x 3
convolutions (same padding, ReLU) and a 2 x 2 maximum pooling, then Dense(128, relu) and
Dense(10). Network 1 has two blocks, network 2 three; each block has twice the channels of the
one before.

Every framework starts from the same weights, which NumPy draws: the same loss on the first
batch shows that they all train the same network.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dr_training.study.worker.images import CLASSES

BLOCKS = {1: 2, 2: 3}
CONVOLUTIONS_OF_BLOCK = 2
HIDDEN = 128


@dataclass(frozen=True)
class Network:
    """Input side and channels, output channels of each block."""

    size_px: int
    channels: int
    blocks: tuple[int, ...]

    @property
    def map_px(self) -> int:
        """Side of the last map, before the dense layers."""
        return int(self.size_px // 2 ** len(self.blocks))

    def layers(self) -> list[tuple[str, int, int]]:
        """(kind, inputs, outputs) of each layer with weights, in order."""
        found, inputs = [], self.channels
        for outputs in self.blocks:
            for _ in range(CONVOLUTIONS_OF_BLOCK):
                found.append(("convolution", inputs, outputs))
                inputs = outputs
        found.append(("dense", self.map_px**2 * inputs, HIDDEN))
        found.append(("dense", HIDDEN, CLASSES))
        return found

    def parameters(self) -> int:
        """Number of weights and biases."""
        taps = {"convolution": 9, "dense": 1}
        return sum(
            taps[kind] * inputs * outputs + outputs for kind, inputs, outputs in self.layers()
        )


def network(number: int, *, size_px: int, channels: int, first_channels: int) -> Network:
    """Network 1 or 2 for an input (size_px, size_px, channels)."""
    blocks = tuple(first_channels * 2**block for block in range(BLOCKS[number]))
    return Network(size_px=size_px, channels=channels, blocks=blocks)


def initial_weights(of: Network, *, seed: int) -> list[tuple[Any, Any]]:
    """Kernel and bias of each layer, float32: He-normal kernels, zero biases.

    Kernels are (3, 3, in, out) and (in, out); the first dense kernel takes the last map in the
    order row, column, channel.
    """
    rng = np.random.default_rng(seed)
    weights = []
    for kind, inputs, outputs in of.layers():
        shape = (3, 3, inputs, outputs) if kind == "convolution" else (inputs, outputs)
        fan_in = int(np.prod(shape[:-1]))
        kernel = rng.normal(0, np.sqrt(2 / fan_in), shape).astype(np.float32)
        weights.append((kernel, np.zeros(outputs, np.float32)))
    return weights


def channels_first(of: Network, weights: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """The same weights for frameworks that put channels first: (out, in, 3, 3) and (out, in)."""
    turned, first_dense = [], True
    for kernel, bias in weights:
        values = kernel
        if values.ndim == 4:
            values = values.transpose(3, 2, 0, 1)
        else:
            if first_dense:
                side, channels = of.map_px, of.blocks[-1]
                values = values.reshape(side, side, channels, -1).transpose(2, 0, 1, 3)
                values = values.reshape(side * side * channels, -1)
                first_dense = False
            values = values.T
        turned.append((np.ascontiguousarray(values), bias))
    return turned
