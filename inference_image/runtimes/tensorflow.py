"""Runs a TensorFlow SavedModel, any one that takes a batch of RGB images, without modification.

>>> runtime = TensorFlowRuntime(Path("model/1"), threads=1, outputs={"logits": "logits"})
>>> runtime.predict(pixels).logits.shape
(5,)

The model's own signature says what its input and outputs are called, which type and size they
have. It is called as it is: `keras.Model.predict` would build a data pipeline for every image
(177 ms against 1.8 ms for one image on the machine where both were tried).

A SavedModel is a program. TensorFlow's own advice holds: load only those that you trust.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from inference_image.contract import RUNTIME_TENSORFLOW
from inference_image.model_spec import InputEncoding, ModelPackageError
from inference_image.runtimes import (
    Binding,
    Facts,
    Outputs,
    choose_signature,
    encode,
    without_batch,
)

# Lines of an engine's error that say where, not what.
_WHERE: Final = ("Graph execution error", "Detected at node", "<stack traces", "File ")
# Of the graphs of one SavedModel the one that is for serving has this tag alone.
_SERVING_TAG: Final = "serve"
_LEVELS: Final = 255
_MOST_WRITTEN: Final = 32
ENV_ONEDNN: Final = "TF_ENABLE_ONEDNN_OPTS"


class TensorFlowRuntime:
    """A loaded SavedModel; implements `inference_image.runtimes.OpenedModel`.

    Not made before a process forks: TensorFlow's threads do not survive it.

    Args:
        model_path: folder with `saved_model.pb`.
        threads: engine threads, fixed for the process by its first model.
        signature: name of the signature; `serving_default`, else the only one, when omitted.
        outputs: our name ("logits" or "probabilities", optionally "feature_map") -> the
            model's; None leaves them to a later `bind`.

    Raises:
        ModelPackageError: the model cannot be loaded, has no such signature, takes something
            else than RGB images, or lacks a named output; the message says what it has.
    """

    def __init__(
        self,
        model_path: Path,
        *,
        threads: int,
        signature: str | None = None,
        outputs: Mapping[str, str] | None = None,
    ) -> None:
        self._tf = _import_tensorflow(threads)
        self._name = f"the SavedModel {model_path.name or model_path}"
        # The signature refers to the model weakly, so the model is kept.
        self._model = self._load(model_path)
        self._signature = self._choose_signature(signature)
        self._function = self._model.signatures[self._signature]
        self._input_name, spec = self._only_input()
        self._dtype = self._pixel_type(spec)
        size_px = self._size_px(spec)
        answers = self._answers(size_px)
        self.facts = Facts(
            input_size_px=size_px,
            input_dtype=spec.dtype.name,
            output_shapes={name: _shape(answer) for name, answer in answers.items()},
            output_types={name: answer.dtype.name for name, answer in answers.items()},
            written={} if size_px is None else _written(answers),
        )
        self.engine: Mapping[str, str] = {
            "runtime": RUNTIME_TENSORFLOW,
            "runtime_version": self._tf.__version__,
            # Processors of other kinds give other probabilities, in the last digits, and so does
            # the same one with another value of this.
            "onednn": os.environ.get(ENV_ONEDNN, "default"),
        }
        self._encoding: InputEncoding | None = None
        if outputs is not None:
            self.bind(outputs)

    def bind(self, outputs: Mapping[str, str], *, encoding: InputEncoding | None = None) -> None:
        """Read these outputs, and scale the input so; see `runtimes.OpenedModel`."""
        if encoding is not None and encoding.rescales and self._dtype.kind in "iu":
            raise ModelPackageError(
                f"{self._name} takes {self.facts.input_dtype} pixels, which cannot be rescaled; "
                "leave scale and offset out of its input"
            )
        self._binding = Binding(self._name, self.facts, outputs)
        self._encoding = encoding

    def predict(self, pixels: npt.NDArray[Any], *, with_features: bool = False) -> Outputs:
        """Run S x S x 3 uint8 RGB pixels through the model; not thread-safe."""
        answer = self._call(encode(pixels, self._encoding))
        features = None
        if with_features and self._binding.features is not None:
            features = np.asarray(answer[self._binding.features].numpy(), dtype=np.float32)[0]
        scores = np.asarray(answer[self._binding.scores].numpy(), dtype=np.float64)
        return Outputs(logits=self._binding.logits(scores), features=features)

    def _call(self, batch: npt.NDArray[Any]) -> Mapping[str, Any]:
        tensor = self._tf.constant(batch.astype(self._dtype, copy=False))
        try:
            answer: Mapping[str, Any] = self._function(**{self._input_name: tensor})
        except self._tf.errors.OpError as error:
            # Most of its text is where in the graph it happened.
            lines = map(str.strip, str(error).splitlines())
            said = [line for line in lines if line and not line.startswith(_WHERE)] or [""]
            raise ModelPackageError(
                f"{self._name} fails on an image ({type(error).__name__}: {said[0][:200]})"
            ) from None
        return answer

    def _load(self, model_path: Path) -> Any:
        load = self._tf.saved_model.load
        try:
            try:
                return load(str(model_path))
            except ValueError as error:
                if "tags=" not in str(error):
                    raise
                return load(str(model_path), tags=[_SERVING_TAG])
        except Exception as error:  # noqa: BLE001 - a damaged file leads it to any of them
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise ModelPackageError(
                f"{self._name} cannot be loaded by TensorFlow {self._tf.__version__}: {lines[0]}"
            ) from None

    def _choose_signature(self, wanted: str | None) -> str:
        names: list[str] = sorted(self._model.signatures)
        if not names:
            raise ModelPackageError(
                f"{self._name} has no signature; export it with tf.saved_model.save(..., "
                "signatures=...) or keras.Model.export"
            )
        return choose_signature(names, wanted, origin=self._name)

    def _only_input(self) -> tuple[str, Any]:
        inputs = dict(self._function.structured_input_signature[1])
        if len(inputs) != 1:
            seen = "; ".join(f"{name}: {_words(spec)}" for name, spec in sorted(inputs.items()))
            raise ModelPackageError(
                f"signature {self._signature} of {self._name} has {len(inputs)} inputs; "
                f"one batch of images is expected; it has {seen or 'none'}"
            )
        return next(iter(inputs.items()))

    def _pixel_type(self, spec: Any) -> "np.dtype[Any]":
        kind = spec.dtype
        if kind.is_floating or (kind.is_integer and kind.max >= _LEVELS):
            pixels: np.dtype[Any] = np.dtype(kind.as_numpy_dtype)
            return pixels
        raise ModelPackageError(
            f"input {self._input_name!r} of {self._name} is {_words(spec)}; "
            "pixels as whole numbers up to 255 or floating-point numbers are expected"
        )

    def _size_px(self, spec: Any) -> int | None:
        shape = [None] * 4 if spec.shape.rank is None else spec.shape.as_list()
        # A side that is left open is as long as the other.
        sides = set(shape[1:3]) - {None}
        if (
            len(shape) != 4
            or shape[0] not in (None, 1)
            or shape[3] not in (None, 3)
            or len(sides) > 1
        ):
            raise ModelPackageError(
                f"input {self._input_name!r} of {self._name} is {_words(spec)}; "
                "[batch, S, S, 3] is expected: square RGB images, channels last"
            )
        return int(sides.pop()) if sides else None

    def _answers(self, size_px: int | None) -> Mapping[str, Any]:
        """What has shape and type of each output, by name."""
        if size_px is not None:
            # A signature may leave shapes open; an answer does not.
            return self._call(np.zeros((1, size_px, size_px, 3), self._dtype))
        specs: Mapping[str, Any] = self._function.structured_outputs
        return specs


def _shape(answer: Any) -> tuple[int, ...]:
    """Shape of an output or of its specification, without the batch."""
    return without_batch([None, None] if answer.shape.rank is None else answer.shape.as_list())


def _written(answers: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Outputs of whole numbers and of text, as text: a few names, and no map."""
    return {
        name: tuple(
            value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
            for value in answer.numpy().reshape(-1).tolist()
        )
        for name, answer in answers.items()
        if not answer.dtype.is_floating and answer.shape.num_elements() <= _MOST_WRITTEN
    }


def _words(spec: Any) -> str:
    """`float32 [None, 224, 224, 3]`"""
    shape = spec.shape.as_list() if spec.shape.rank is not None else "of any shape"
    return f"{spec.dtype.name} {shape}"


def _import_tensorflow(threads: int) -> Any:
    """TensorFlow with this many threads, quiet and on the CPU."""
    # Read when the library is loaded. Its notes are not lines of our log (the few before its own
    # logging begins cannot be turned off); looking for GPUs takes time and complains of none.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    import tensorflow as tf

    threading = tf.config.threading
    try:
        # One image at a time: the threads work on one operation, not on several at once.
        if threading.get_intra_op_parallelism_threads() != threads:
            threading.set_intra_op_parallelism_threads(threads)
        if threading.get_inter_op_parallelism_threads() != 1:
            threading.set_inter_op_parallelism_threads(1)
    except RuntimeError:
        raise ModelPackageError(
            f"TensorFlow has begun already, with another number of threads than {threads}"
        ) from None
    return tf
