"""Apache MXNet itself: Gluon blocks, hybridised, `gluon.Trainer` with sgd."""

from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from dr_training.study.worker.networks import CONVOLUTIONS_OF_BLOCK, Network, channels_first
from dr_training.study.worker.trainers import UnavailableError


class _MXNet:
    def __init__(self, block: Any, context: Any, learning_rate: float, momentum: float) -> None:
        self._block, self._context = block, context
        self._loss = gluon.loss.SoftmaxCrossEntropyLoss()
        choices = {"learning_rate": learning_rate, "momentum": momentum}
        self._trainer = gluon.Trainer(block.collect_params(), "sgd", choices)

    def train(self, pixels: Any, labels: Any) -> float:
        wanted = mx.nd.array(labels, ctx=self._context, dtype="int32")
        with autograd.record():
            loss = self._loss(self._block(self._array(pixels)), wanted)
        loss.backward()
        self._trainer.step(len(labels))
        # MXNet works in the background: the number waits for the step.
        return float(loss.mean().asscalar())

    def predict(self, pixels: Any) -> Any:
        return self._block(self._array(pixels)).asnumpy()

    def versions(self) -> dict[str, str]:
        return {"mxnet": mx.__version__, "numpy": np.__version__}

    def _array(self, pixels: Any) -> Any:
        first = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
        return mx.nd.array(first, ctx=self._context)


def make(
    network: Network,
    weights: list[tuple[Any, Any]],
    *,
    device: str,
    threads: int,
    learning_rate: float,
    momentum: float,
) -> _MXNet:
    """See `trainers.make_trainer`; MXNet takes its threads from OMP_NUM_THREADS, set before."""
    if device == "gpu" and not mx.context.num_gpus():
        raise UnavailableError(f"mxnet {mx.__version__} sees no GPU")
    context = mx.gpu() if device == "gpu" else mx.cpu()
    block = gluon.nn.HybridSequential()
    layers = network.layers()
    for number, (kind, inputs, outputs) in enumerate(layers):
        activation = "relu" if number < len(layers) - 1 else None
        if kind == "convolution":
            block.add(
                gluon.nn.Conv2D(outputs, 3, padding=1, in_channels=inputs, activation=activation)
            )
            if number % CONVOLUTIONS_OF_BLOCK == CONVOLUTIONS_OF_BLOCK - 1:
                block.add(gluon.nn.MaxPool2D(2))
        else:
            block.add(gluon.nn.Dense(outputs, in_units=inputs, activation=activation))
    block.initialize(ctx=context)
    values = [value for pair in channels_first(network, weights) for value in pair]
    parameters = list(block.collect_params().values())
    if len(parameters) != len(values):
        raise AssertionError(f"{len(parameters)} parameters for {len(values)} arrays")
    for parameter, value in zip(parameters, values, strict=True):
        parameter.set_data(mx.nd.array(value, ctx=context))
    block.hybridize(static_alloc=True)
    return _MXNet(block, context, learning_rate, momentum)
