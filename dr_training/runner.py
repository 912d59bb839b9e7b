"""Runs a `.tflite` of a trained network on prepared photographs.

The engine is LiteRT, which needs no TensorFlow. Where it is not installed, as in the tensorflow
image, it is the interpreter inside TensorFlow: the same engine, of TensorFlow's release.
"""

import warnings
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

# Names of the outputs in the signature.
LOGITS: Final = "logits"
FEATURES: Final = "features"


def open_interpreter(model: bytes, *, threads: int = 1) -> Any:
    """An interpreter of a `.tflite`; LiteRT's and TensorFlow's have the same methods."""
    with warnings.catch_warnings():
        # TensorFlow's says at every use that LiteRT's is the newer one.
        warnings.filterwarnings("ignore", message=r"\s*Warning: tf\.lite\.Interpreter is depr")
        return _engine()(model_content=model, num_threads=threads)


def _engine() -> Any:
    try:
        from ai_edge_litert import interpreter
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "ai_edge_litert":
            raise
        import tensorflow as tf

        return tf.lite.Interpreter
    return interpreter.Interpreter


class Runner:
    """Runs a `.tflite` on prepared photographs, one at a time, as the service does."""

    def __init__(self, model: bytes | Path, *, threads: int = 2) -> None:
        content = model if isinstance(model, bytes) else model.read_bytes()
        self._interpreter = open_interpreter(content, threads=threads)
        self._run = self._interpreter.get_signature_runner()
        details = self._run.get_input_details()
        (self._name,) = details
        self._dtype = details[self._name]["dtype"]

    def __call__(self, pixels: NDArray[np.uint8]) -> tuple[NDArray[np.float32], ...]:
        """Logits (n, 5) and pooled features (n, channels) of photographs (n, S, S, 3)."""
        logits, pooled = [], []
        for photograph in pixels:
            outputs = self._run(**{self._name: photograph[None].astype(self._dtype)})
            logits.append(outputs[LOGITS][0].copy())
            pooled.append(outputs[FEATURES][0].mean(axis=(0, 1)))
        return np.stack(logits), np.stack(pooled)
