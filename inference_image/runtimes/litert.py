"""Runs a `.tflite` model with LiteRT (ai-edge-litert), on the CPU through XNNPACK.

>>> runtime = LiteRTRuntime(Path("model.tflite"), threads=1, outputs={"logits": "logits"})
>>> runtime.predict(pixels).logits.shape
(5,)
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from inference_image.model_spec import InputEncoding, ModelPackageError
from inference_image.runtimes import Binding, Facts, Outputs, encode


class LiteRTRuntime:
    """A loaded `.tflite` file; implements `inference_image.runtimes.OpenedModel`.

    Outputs are bound by the names of the model's signature, or by tensor name where it has no
    signature: the converter is free to reorder them. Quantised inputs and outputs are
    converted with the model's own scale and zero point.

    Args:
        model_path: the `.tflite` file.
        threads: engine threads.
        outputs: our name ("logits" or "probabilities", optionally "feature_map") -> the
            model's; None leaves them to a later `bind`.

    Raises:
        ModelPackageError: the file cannot be loaded, has another input than one RGB image, or
            lacks a named output (the message lists those it has).
    """

    def __init__(
        self, model_path: Path, *, threads: int, outputs: Mapping[str, str] | None = None
    ) -> None:
        # Importing the engine costs a tenth of a second; whoever only needs the type does not.
        from ai_edge_litert.interpreter import Interpreter

        self._name = model_path.name
        try:
            self._interpreter = Interpreter(model_path=str(model_path), num_threads=threads)
            self._interpreter.allocate_tensors()
        except (ValueError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else "no reason given"
            raise ModelPackageError(f"{self._name} cannot be loaded by LiteRT: {reason}") from None
        inputs = self._interpreter.get_input_details()
        if len(inputs) != 1:
            raise ModelPackageError(f"{self._name} has {len(inputs)} inputs; one image is expected")
        self._input: dict[str, Any] = inputs[0]
        shape = tuple(int(n) for n in self._input["shape"])
        if len(shape) != 4 or shape[0] != 1 or shape[3] != 3 or shape[1] != shape[2]:
            raise ModelPackageError(
                f"{self._name} has an input of shape {list(shape)}; [1, S, S, 3] is expected"
            )
        self._named = self._named_outputs()
        self.facts = Facts(
            input_size_px=shape[1],
            input_dtype=np.dtype(self._input["dtype"]).name,
            output_shapes={
                name: tuple(int(n) for n in detail["shape"][1:])
                for name, detail in self._named.items()
            },
        )
        self._encoding: InputEncoding | None = None
        if outputs is not None:
            self.bind(outputs)

    def bind(self, outputs: Mapping[str, str], *, encoding: InputEncoding | None = None) -> None:
        """Read these outputs, and scale the input so; see `runtimes.OpenedModel`."""
        self._binding = Binding(self._name, self.facts, outputs)
        self._encoding = encoding

    def predict(self, pixels: npt.NDArray[Any], *, with_features: bool = False) -> Outputs:
        """Run S x S x 3 uint8 RGB pixels through the model; not thread-safe."""
        self._interpreter.set_tensor(self._input["index"], self._as_input(pixels))
        self._interpreter.invoke()
        features = None
        if with_features and self._binding.features is not None:
            features = self._as_float(self._binding.features).astype(np.float32)[0]
        return Outputs(
            logits=self._binding.logits(self._as_float(self._binding.scores)), features=features
        )

    def _named_outputs(self) -> dict[str, dict[str, Any]]:
        signatures = self._interpreter.get_signature_list()
        if signatures:
            runner = self._interpreter.get_signature_runner(next(iter(signatures)))
            return dict(runner.get_output_details())
        return {detail["name"]: detail for detail in self._interpreter.get_output_details()}

    def _as_input(self, pixels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        kind = self._input["dtype"]
        scale, zero_point = self._input["quantization"]
        batch = encode(pixels, self._encoding)
        if kind == np.float32 or scale == 0 or (kind == np.uint8 and (scale, zero_point) == (1, 0)):
            return np.asarray(batch, dtype=kind)
        limits = np.iinfo(kind)
        steps = np.rint(batch / np.float32(scale)) + zero_point
        return np.asarray(np.clip(steps, limits.min, limits.max), dtype=kind)

    def _as_float(self, name: str) -> npt.NDArray[np.float64]:
        detail = self._named[name]
        tensor = self._interpreter.get_tensor(detail["index"])
        values = np.asarray(tensor, dtype=np.float64)
        scale, zero_point = detail["quantization"]
        if tensor.dtype.kind == "f" or scale == 0:
            return values
        return np.asarray((values - zero_point) * float(scale))
