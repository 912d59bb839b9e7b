"""Converts the trained network to `.tflite` and checks the result with the engine that runs it.

The quantised network takes the photograph's own bytes (uint8, scale 1, zero point 0) and
answers float logits and features, so that neither the service nor Grad-CAM sees a quantised
number. `tf.lite` converts only; what runs is `runner`'s engine, LiteRT where it is installed.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.python.framework.convert_to_constants import (
    convert_variables_to_constants_v2,
)

from dr_training.delegated_input import delegate_input
from dr_training.runner import FEATURES, LOGITS, Runner, open_interpreter

__all__ = [
    "FEATURES",
    "LOGITS",
    "VARIANTS",
    "InputScale",
    "Runner",
    "convert",
    "convert_variant",
    "inference_of",
]


# From one trained network: how its weights and its arithmetic are stored.
F32: Final = "f32"
FLOAT16: Final = "float16"
DYNAMIC_RANGE: Final = "dynamic-range"
INT8: Final = "int8"
VARIANTS: Final = (F32, FLOAT16, DYNAMIC_RANGE, INT8)

Inference = Callable[[tf.Tensor], Mapping[str, tf.Tensor]]


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
        calibration: as in `convert_variant`.

    Raises:
        ValueError: the converter chose another input scale than 1 and 0.
    """

    infer = inference_of(network)
    if calibration is None:
        return convert_variant(infer, F32, size_px=size_px), None
    model = convert_variant(infer, INT8, size_px=size_px, calibration=calibration)
    return model, input_scale(model)


def inference_of(network: keras.Model) -> Inference:
    """Logits and last feature map of a network from `networks`, as it answers when it serves."""

    def infer(pixels: tf.Tensor) -> dict[str, tf.Tensor]:
        outputs = network(pixels, training=False)
        return {name: outputs[name] for name in (LOGITS, FEATURES)}

    return infer


def convert_variant(
    infer: Inference,
    variant: str,
    *,
    size_px: int,
    calibration: NDArray[np.uint8] | None = None,
) -> bytes:
    """One of `VARIANTS` of a trained network, as a `.tflite`.

    Args:
        infer: pixels (1, S, S, 3), float RGB from 0 to 255, to outputs by name; their order is
            kept and the signature has their names.
        variant: `int8` takes bytes (uint8, scale 1, zero point 0) and computes in integers;
            `dynamic-range` has int8 weights and float activations, `float16` weights of half the
            width, `f32` changes nothing. All give float outputs.
        size_px: side S of the input.
        calibration: representative photographs (n, S, S, 3) uint8, prepared by the service's
            preprocessing; `int8` needs them. The first is padded to span 0..255, so that the
            input's scale is 1 and its zero point 0.

    Raises:
        ValueError: an unknown variant, no photographs for `int8`, or another input scale.
    """
    if variant not in VARIANTS:
        raise ValueError(f"variant must be one of {', '.join(VARIANTS)}; got {variant!r}")
    if variant == INT8 and (calibration is None or len(calibration) == 0):
        raise ValueError("int8 needs representative photographs")
    with tempfile.TemporaryDirectory() as folder, quiet():
        module = _frozen(infer, size_px)
        tf.saved_model.save(module, folder, signatures=module.serve)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        if variant != F32:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if variant == FLOAT16:
            converter.target_spec.supported_types = [tf.float16]
        if variant == INT8:
            converter.representative_dataset = lambda: _samples(calibration)
            converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
            converter.inference_input_type = tf.uint8
            converter.inference_output_type = tf.float32
        model = bytes(converter.convert())
    if variant == INT8:
        scale = input_scale(model)
        if abs(scale.scale - 1) > 1e-6 or scale.zero_point != 0:
            raise ValueError(
                f"input scale is {scale.scale} and zero point {scale.zero_point}; 1 and 0 are "
                "needed"
            )
        return delegate_input(model)
    return model


def input_scale(model: bytes) -> InputScale:
    """How a quantised `.tflite` reads its input."""
    scale, zero_point = open_interpreter(model).get_input_details()[0]["quantization"]
    return InputScale(scale=float(scale), zero_point=int(zero_point))


def _frozen(infer: Inference, size_px: int) -> tf.Module:
    """A module whose `serve` computes `infer` with constants for variables."""
    signature = tf.TensorSpec((1, size_px, size_px, 3), tf.float32, name="pixels")
    names: list[str] = []

    @tf.function(input_signature=[signature])  # type: ignore[untyped-decorator]
    def listed(pixels: tf.Tensor) -> list[tf.Tensor]:
        outputs = infer(pixels)
        names[:] = outputs
        return list(outputs.values())

    # Constants instead of variables: the converter's calibration cannot read the latter.
    frozen = convert_variables_to_constants_v2(listed.get_concrete_function())

    @tf.function(input_signature=[signature])  # type: ignore[untyped-decorator]
    def serve(pixels: tf.Tensor) -> dict[str, tf.Tensor]:
        return dict(zip(names, frozen(pixels), strict=True))

    module = tf.Module()
    module.serve = serve
    return module


def _samples(calibration: NDArray[np.uint8] | None) -> Iterator[list[NDArray[np.float32]]]:
    for index, photograph in enumerate(() if calibration is None else calibration):
        sample = photograph.astype(np.float32)
        if index == 0:
            sample[0, 0], sample[0, 1] = 0.0, 255.0
        yield [sample[None]]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide what the converter writes to the process's standard error; keep Python's own."""
    saved = os.dup(2)
    with open(os.devnull, "wb") as sink:  # noqa: PTH123 - a descriptor is needed, not a path
        os.dup2(sink.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
