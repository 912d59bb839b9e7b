"""One interface for every framework: build, train on a batch, answer a batch.

A trainer is made by the module of its framework; which module that is, `TRAINERS` says. The
framework is imported when the trainer is made and not before.
"""

import importlib
from typing import Any, Protocol

from dr_training.study.worker.networks import Network

# Level of the factor `framework` -> module of this package, and what Keras must run on.
TRAINERS = {
    "PyTorch": ("native_pytorch", None),
    "TensorFlow": ("native_tensorflow", None),
    "MXNet": ("native_mxnet", None),
    "Keras on TensorFlow": ("keras_backends", "tensorflow"),
    "Keras on torch": ("keras_backends", "torch"),
    "Keras on jax": ("keras_backends", "jax"),
}


class UnavailableError(RuntimeError):
    """The run asks for a device that this machine or this build of the framework lacks."""


class Trainer(Protocol):
    """A network under stochastic gradient descent with momentum and cross-entropy."""

    def train(self, pixels: Any, labels: Any) -> float:
        """One step on (n, S, S, c) float32 0..1 and (n,) int64; the mean loss before it."""

    def predict(self, pixels: Any) -> Any:
        """Logits (n, classes) as a NumPy array."""

    def versions(self) -> dict[str, str]:
        """Versions of the packages that matter."""


def import_framework(framework: str) -> Any:
    """The module of a framework, which has imported the framework itself."""
    module, backend = TRAINERS[framework]
    if backend is not None:
        import os

        # Keras reads it once, when it is imported.
        os.environ["KERAS_BACKEND"] = backend
    return importlib.import_module(f"dr_training.study.worker.{module}")


def make_trainer(
    module: Any,
    network: Network,
    weights: list[tuple[Any, Any]],
    *,
    device: str,
    threads: int,
    learning_rate: float,
    momentum: float,
) -> Trainer:
    """The trainer of an imported module; raises `UnavailableError` for a missing device."""
    trainer: Trainer = module.make(
        network,
        weights,
        device=device,
        threads=threads,
        learning_rate=learning_rate,
        momentum=momentum,
    )
    return trainer
