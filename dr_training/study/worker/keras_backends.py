"""Keras 3 on the back end that KERAS_BACKEND names; a study of its own label, never "native"."""

from typing import Any

import keras
import numpy as np

from dr_training.study.worker.networks import CONVOLUTIONS_OF_BLOCK, Network
from dr_training.study.worker.trainers import UnavailableError


class _Keras:
    def __init__(self, model: Any, learning_rate: float, momentum: float) -> None:
        self._model = model
        model.compile(
            optimizer=keras.optimizers.SGD(learning_rate, momentum=momentum),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )

    def train(self, pixels: Any, labels: Any) -> float:
        return float(self._model.train_on_batch(pixels, labels))

    def predict(self, pixels: Any) -> Any:
        return np.asarray(self._model.predict_on_batch(pixels))

    def versions(self) -> dict[str, str]:
        backend = keras.config.backend()
        library = __import__(backend)
        return {
            "keras": keras.__version__,
            backend: library.__version__,
            "numpy": np.__version__,
        }


def make(
    network: Network,
    weights: list[tuple[Any, Any]],
    *,
    device: str,
    threads: int,
    learning_rate: float,
    momentum: float,
) -> _Keras:
    """See `trainers.make_trainer`; jax takes its threads from the cores that it may run on."""
    backend = keras.config.backend()
    _set_up(backend, device=device, threads=threads)
    layers: list[Any] = [keras.Input((network.size_px, network.size_px, network.channels))]
    rows = network.layers()
    for number, (kind, _, outputs) in enumerate(rows):
        activation = "relu" if number < len(rows) - 1 else None
        if kind == "convolution":
            layers.append(keras.layers.Conv2D(outputs, 3, padding="same", activation=activation))
            if number % CONVOLUTIONS_OF_BLOCK == CONVOLUTIONS_OF_BLOCK - 1:
                layers.append(keras.layers.MaxPooling2D(2))
            continue
        if kind != rows[number - 1][0]:
            layers.append(keras.layers.Flatten())
        layers.append(keras.layers.Dense(outputs, activation=activation))
    model = keras.Sequential(layers)
    model.set_weights([value for pair in weights for value in pair])
    return _Keras(model, learning_rate, momentum)


def _set_up(backend: str, *, device: str, threads: int) -> None:
    found: list[Any] = []
    if backend == "torch":
        import torch

        torch.set_num_threads(threads)
        found = ["cuda"] if torch.cuda.is_available() else []
    elif backend == "tensorflow":
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
        found = tf.config.list_physical_devices("GPU")
    elif device == "gpu":
        import jax

        found = [one for one in jax.devices() if one.platform == "gpu"]
    if device == "gpu" and not found:
        raise UnavailableError(f"{backend} under keras {keras.__version__} sees no GPU")
