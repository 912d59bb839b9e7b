"""TensorFlow itself: variables, `tf.nn`, a gradient tape under `tf.function`; no Keras."""

from typing import Any

import numpy as np
import tensorflow as tf

from dr_training.study.worker.networks import CONVOLUTIONS_OF_BLOCK, Network
from dr_training.study.worker.trainers import UnavailableError


class _TensorFlow:
    def __init__(
        self,
        network: Network,
        weights: list[tuple[Any, Any]],
        device: str,
        learning_rate: float,
        momentum: float,
    ) -> None:
        self._device = device
        with tf.device(device):
            self._weights = [(tf.Variable(kernel), tf.Variable(bias)) for kernel, bias in weights]
            self._variables = [one for pair in self._weights for one in pair]
            self._speeds = [tf.Variable(tf.zeros_like(one)) for one in self._variables]
        self._rate, self._momentum = learning_rate, momentum
        side, channels = network.size_px, network.channels
        pixels = tf.TensorSpec((None, side, side, channels), tf.float32)
        self._step = tf.function(
            self._train, input_signature=[pixels, tf.TensorSpec((None,), tf.int64)]
        )
        self._answer = tf.function(self._logits, input_signature=[pixels])

    def train(self, pixels: Any, labels: Any) -> float:
        with tf.device(self._device):
            return float(self._step(pixels, labels))

    def predict(self, pixels: Any) -> Any:
        with tf.device(self._device):
            return self._answer(pixels).numpy()

    def versions(self) -> dict[str, str]:
        return {"tensorflow": tf.__version__, "numpy": np.__version__}

    def _logits(self, pixels: Any) -> Any:
        values = pixels
        *hidden, (kernel, bias) = self._weights
        for number, (weight, offset) in enumerate(hidden):
            if len(weight.shape) == 4:
                values = tf.nn.relu(tf.nn.conv2d(values, weight, 1, "SAME") + offset)
                if number % CONVOLUTIONS_OF_BLOCK == CONVOLUTIONS_OF_BLOCK - 1:
                    values = tf.nn.max_pool2d(values, 2, 2, "VALID")
            else:
                flat = tf.reshape(values, (tf.shape(values)[0], weight.shape[0]))
                values = tf.nn.relu(flat @ weight + offset)
        return values @ kernel + bias

    def _train(self, pixels: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, self._logits(pixels))
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, self._variables)
        for variable, speed, gradient in zip(self._variables, self._speeds, gradients, strict=True):
            speed.assign(self._momentum * speed + gradient)
            variable.assign_sub(self._rate * speed)
        return loss


def make(
    network: Network,
    weights: list[tuple[Any, Any]],
    *,
    device: str,
    threads: int,
    learning_rate: float,
    momentum: float,
) -> _TensorFlow:
    """See `trainers.make_trainer`."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    if device == "gpu" and not tf.config.list_physical_devices("GPU"):
        raise UnavailableError(f"tensorflow {tf.__version__} sees no GPU")
    where = "/GPU:0" if device == "gpu" else "/CPU:0"
    return _TensorFlow(network, weights, where, learning_rate, momentum)
