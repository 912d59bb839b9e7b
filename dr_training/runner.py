"""Runs a `.tflite` of a trained network on prepared photographs; needs no TensorFlow."""

from pathlib import Path
from typing import Final

import numpy as np
from ai_edge_litert.interpreter import Interpreter
from numpy.typing import NDArray

# Names of the outputs in the signature.
LOGITS: Final = "logits"
FEATURES: Final = "features"


class Runner:
    """Runs a `.tflite` on prepared photographs, one at a time, as the service does."""

    def __init__(self, model: bytes | Path, *, threads: int = 2) -> None:
        content = model if isinstance(model, bytes) else model.read_bytes()
        self._interpreter = Interpreter(model_content=content, num_threads=threads)
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
