"""Converts the trained network to `.tflite` and checks the result with LiteRT.

The quantised network takes the photograph's own bytes (uint8, scale 1, zero point 0) and
answers float logits and features, so that neither the service nor Grad-CAM sees a quantised
number. `tf.lite` converts only; `ai_edge_litert` is what runs, here as in the service.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter
from numpy.typing import NDArray
from tensorflow.python.framework.convert_to_constants import (
    convert_variables_to_constants_v2,
)

# The converter wants the outputs in a fixed order; the signature names them.
LOGITS = "logits"
FEATURES = "features"


@dataclass(frozen=True, kw_only=True)
class InputScale:
    """How the quantised input reads a byte: value = scale * (byte - zero_point)."""

    scale: float
    zero_point: int


def convert(
    network: keras.Model, *, size_px: int, calibration: NDArray[np.uint8] | None
) -> tuple[bytes, InputScale | None]:
    """The network as a `.tflite`: int8 with `calibration` photographs, float32 without.

    Args:
        network: from `networks.build_network` at `size_px`.
        size_px: side of the input.
        calibration: representative photographs (n, S, S, 3) uint8, prepared by the service's
            preprocessing. The first sample is padded to span 0..255, so that the input's scale
            is 1 and its zero point 0.

    Raises:
        ValueError: the converter chose another input scale than 1 and 0.
    """

    signature = tf.TensorSpec((1, size_px, size_px, 3), tf.float32, name="pixels")

    @tf.function(input_signature=[signature])  # type: ignore[untyped-decorator]
    def infer(pixels: tf.Tensor) -> list[tf.Tensor]:
        outputs = network(pixels, training=False)
        return [outputs["logits"], outputs["features"]]

    # Constants instead of variables: the converter's calibration cannot read the latter.
    frozen = convert_variables_to_constants_v2(infer.get_concrete_function())

    @tf.function(input_signature=[signature])  # type: ignore[untyped-decorator]
    def serve(pixels: tf.Tensor) -> dict[str, tf.Tensor]:
        logits, features = frozen(pixels)
        return {LOGITS: logits, FEATURES: features}

    module = tf.Module()
    module.serve = serve
    with tempfile.TemporaryDirectory() as folder, _quiet():
        tf.saved_model.save(module, folder, signatures=module.serve)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        if calibration is None:
            return converter.convert(), None
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: _samples(calibration)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = tf.uint8
        converter.inference_output_type = tf.float32
        model = converter.convert()
    scale, zero_point = Interpreter(model_content=model).get_input_details()[0]["quantization"]
    if abs(scale - 1) > 1e-6 or zero_point != 0:
        raise ValueError(f"input scale is {scale} and zero point {zero_point}; 1 and 0 are needed")
    return model, InputScale(scale=float(scale), zero_point=int(zero_point))


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


def _samples(calibration: NDArray[np.uint8]) -> Iterator[list[NDArray[np.float32]]]:
    for index, photograph in enumerate(calibration):
        sample = photograph.astype(np.float32)
        if index == 0:
            sample[0, 0], sample[0, 1] = 0.0, 255.0
        yield [sample[None]]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide what the converter writes to the process's standard error; keep Python's own."""
    saved = os.dup(2)
    with open(os.devnull, "wb") as sink:  # noqa: PTH123 - a descriptor is needed, not a path
        os.dup2(sink.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
