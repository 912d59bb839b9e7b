"""Runs a `.tflite` model with LiteRT (ai-edge-litert), on the CPU through XNNPACK.

>>> runtime = LiteRTRuntime(Path("model.tflite"), threads=1, outputs={"logits": "logits"})
>>> runtime.predict(pixels).logits.shape
(5,)
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from inference_image.contract import RUNTIME_LITERT
from inference_image.model_spec import InputEncoding, ModelPackageError
from inference_image.runtimes import (
    QUANTISED,
    Binding,
    Facts,
    Outputs,
    check_input_range,
    choose_signature,
    encode,
    without_batch,
)

# What the engine says of each model on standard error, where a log is read as JSON line by line.
_GREETING: Final = b"INFO: Created TensorFlow Lite XNNPACK delegate for CPU."


class LiteRTRuntime:
    """A loaded `.tflite` file; implements `inference_image.runtimes.OpenedModel`.

    Outputs are bound by the names of the model's signature, or by tensor name where it has no
    signature: the converter is free to reorder them. Quantised inputs and outputs are
    converted with the model's own scale and zero point.

    Args:
        model_path: the `.tflite` file.
        threads: engine threads.
        signature: name of the signature; `serving_default`, else the only one, when omitted.
        outputs: our name ("logits" or "probabilities", optionally "feature_map") -> the
            model's; None leaves them to a later `bind`.

    Raises:
        ModelPackageError: the file cannot be loaded, has no such signature, has another input
            than one RGB image, or lacks a named output (the message lists those it has).
    """

    def __init__(
        self,
        model_path: Path,
        *,
        threads: int,
        signature: str | None = None,
        outputs: Mapping[str, str] | None = None,
    ) -> None:
        # Importing the engine costs a tenth of a second; whoever only needs the type does not.
        import ai_edge_litert
        from ai_edge_litert.interpreter import Interpreter

        self.engine: Mapping[str, str] = {
            "runtime": RUNTIME_LITERT,
            "runtime_version": ai_edge_litert.__version__,
        }
        self._name = model_path.name
        try:
            with _without_greeting():
                self._interpreter = Interpreter(model_path=str(model_path), num_threads=threads)
                self._interpreter.allocate_tensors()
            # Only where the signature is not of the graph that the interpreter itself runs.
            self._runner: Any = None
            self._input_name, self._input, self._named = self._signature(signature)
        except ModelPackageError:
            raise
        except (ValueError, RuntimeError) as error:
            reason = _first_line(error)
            raise ModelPackageError(f"{self._name} cannot be loaded by LiteRT: {reason}") from None
        self._has_open_sides = False
        size_px = self._size_px()
        self.facts = Facts(
            input_size_px=size_px,
            input_dtype=np.dtype(self._input["dtype"]).name,
            input_range=self._input_range(),
            output_shapes={
                name: without_batch(detail["shape"]) for name, detail in self._named.items()
            },
            output_types={name: _type(detail) for name, detail in self._named.items()},
        )
        self._encoding: InputEncoding | None = None
        if outputs is not None:
            self.bind(outputs)

    def bind(self, outputs: Mapping[str, str], *, encoding: InputEncoding | None = None) -> None:
        """Read these outputs, and scale the input so; see `runtimes.OpenedModel`."""
        check_input_range(self._name, self.facts, encoding)
        self._binding = Binding(self._name, self.facts, outputs)
        self._encoding = encoding

    def predict(self, pixels: npt.NDArray[Any], *, with_features: bool = False) -> Outputs:
        """Run S x S x 3 uint8 RGB pixels through the model; not thread-safe."""
        try:
            answers = self._run(self._as_input(pixels))
        except (ValueError, RuntimeError) as error:
            raise ModelPackageError(
                f"{self._name} fails on an image: {_first_line(error)}"
            ) from None
        features = None
        if with_features and self._binding.features is not None:
            features = self._as_float(self._binding.features, answers).astype(np.float32)[0]
        scores = self._as_float(self._binding.scores, answers)
        return Outputs(logits=self._binding.logits(scores), features=features)

    def _run(self, batch: npt.NDArray[Any]) -> Mapping[str, npt.NDArray[Any]] | None:
        """All outputs of a signature's own graph; None where they are read one by one."""
        if self._runner is not None:
            answers: Mapping[str, npt.NDArray[Any]] = self._runner(**{self._input_name: batch})
            return answers
        if self._has_open_sides and batch.shape != tuple(self._input["shape"]):
            self._interpreter.resize_tensor_input(self._input["index"], batch.shape)
            self._interpreter.allocate_tensors()
            self._input = self._interpreter.get_input_details()[0]
        self._interpreter.set_tensor(self._input["index"], batch)
        self._interpreter.invoke()
        return None

    def _signature(
        self, wanted: str | None
    ) -> tuple[str, dict[str, Any], dict[str, dict[str, Any]]]:
        """Name and details of the only input, and of each output by its name."""
        own_inputs = self._interpreter.get_input_details()
        own_outputs = self._interpreter.get_output_details()
        signatures = self._interpreter.get_signature_list()
        if not signatures:
            if wanted is not None:
                choose_signature((), wanted, origin=self._name)
            inputs = {detail["name"]: detail for detail in own_inputs}
            outputs = {detail["name"]: detail for detail in own_outputs}
        else:
            chosen = choose_signature(signatures, wanted, origin=self._name)
            runner = self._interpreter.get_signature_runner(chosen)
            inputs, outputs = dict(runner.get_input_details()), dict(runner.get_output_details())
            # Numbers of tensors count within a graph.
            if sorted(map(_tensor, outputs.values())) != sorted(map(_tensor, own_outputs)):
                self._runner = runner
        if len(inputs) != 1:
            raise ModelPackageError(f"{self._name} has {len(inputs)} inputs; one image is expected")
        ((name, detail),) = inputs.items()
        return name, detail, outputs

    def _size_px(self) -> int | None:
        detail = self._input
        signed = detail.get("shape_signature")
        shape = [int(n) for n in (detail["shape"] if signed is None or not len(signed) else signed)]
        self._has_open_sides = -1 in shape[1:3]
        # A side that is left open is as long as the other.
        sides = set(shape[1:3]) - {-1}
        known = len(shape) == 4 and shape[0] in (1, -1) and shape[3] == 3 and len(sides) < 2
        if not known or (self._has_open_sides and self._runner is not None):
            raise ModelPackageError(
                f"{self._name} has an input of shape {shape}; [1, S, S, 3] is expected"
            )
        return sides.pop() if sides else None

    def _input_range(self) -> tuple[float, float] | None:
        kind = np.dtype(self._input["dtype"])
        if kind.kind not in "iuf":
            raise ModelPackageError(
                f"{self._name} takes {kind.name}; pixels as integers or floating-point numbers "
                "are expected"
            )
        scale, zero_point = self._input["quantization"]
        if kind.kind == "f" or (scale == 0 and kind.itemsize > 1):
            return None
        limits = np.iinfo(kind)
        ends = [(end - zero_point) * (float(scale) or 1.0) for end in (limits.min, limits.max)]
        return min(ends), max(ends)

    def _as_input(self, pixels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        kind = self._input["dtype"]
        scale, zero_point = self._input["quantization"]
        batch = encode(pixels, self._encoding)
        if kind == np.float32 or scale == 0 or (kind == np.uint8 and (scale, zero_point) == (1, 0)):
            return np.asarray(batch, dtype=kind)
        limits = np.iinfo(kind)
        steps = np.rint(batch / np.float32(scale)) + zero_point
        return np.asarray(np.clip(steps, limits.min, limits.max), dtype=kind)

    def _as_float(
        self, name: str, answers: Mapping[str, npt.NDArray[Any]] | None
    ) -> npt.NDArray[np.float64]:
        detail = self._named[name]
        tensor = self._interpreter.get_tensor(detail["index"]) if answers is None else answers[name]
        values = np.asarray(tensor, dtype=np.float64)
        scale, zero_point = detail["quantization"]
        if tensor.dtype.kind == "f" or scale == 0:
            return values
        return np.asarray((values - zero_point) * float(scale))


def _tensor(detail: Mapping[str, Any]) -> int:
    return int(detail["index"])


def _type(detail: Mapping[str, Any]) -> str:
    kind = np.dtype(detail["dtype"])
    # Text is bytes to NumPy.
    name = "string" if kind.kind in "SUO" else kind.name
    return f"{QUANTISED} {name}" if detail["quantization"][0] else name


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "no reason given")


@contextlib.contextmanager
def _without_greeting() -> Iterator[None]:
    """Hold standard error back, and then say all of it but the engine's greeting.

    The engine writes from C++ and has no switch for this line.
    """
    with contextlib.ExitStack() as undo:
        try:
            held = os.memfd_create("stderr")
            undo.callback(os.close, held)
            real = os.dup(2)
            undo.callback(os.close, real)
        except OSError:
            # Standard error is closed, or no file is left: then it is said.
            yield
            return
        os.dup2(held, 2)
        try:
            yield
        finally:
            os.dup2(real, 2)
            os.lseek(held, 0, os.SEEK_SET)
            with open(held, "rb", closefd=False) as said:
                rest = b"".join(line for line in said if line.rstrip() != _GREETING)
            with contextlib.suppress(OSError):
                os.write(2, rest)
