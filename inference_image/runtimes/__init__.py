"""Engines that run a model; each offers `predict(pixels, with_features=…) -> Outputs`.

    >>> runtime = open_model(model, threads=1)
    >>> runtime.bind({"logits": "logits"})
    >>> runtime.predict(pixels).logits.shape
    (5,)

Opening says what the network takes and gives (`Facts`), binding names the outputs to read. What
is the same for every engine is here: the input's scaling and what an output means.
"""

import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from inference_image.contract import (
    ENV_PLAIN_INPUT,
    GRADE_LABELS,
    RUNTIME_AUTO,
    RUNTIME_LITERT,
    RUNTIME_TENSORFLOW,
    RUNTIMES,
)
from inference_image.model_files import ModelFile
from inference_image.model_spec import (
    OUTPUT_FEATURES,
    OUTPUT_LOGITS,
    OUTPUT_PROBABILITIES,
    InputEncoding,
    ModelPackageError,
)

# What must be installed for a runtime, and how people call it.
_MODULES: Final = {RUNTIME_LITERT: "ai_edge_litert", RUNTIME_TENSORFLOW: "tensorflow"}
_WORDS: Final = {
    RUNTIME_LITERT: "LiteRT (a .tflite file)",
    RUNTIME_TENSORFLOW: "TensorFlow (a SavedModel)",
}
# Quantised probabilities add up to 1 within some steps of 1/256.
_SUM_TOLERANCE: Final = 0.05
DEFAULT_SIGNATURE: Final = "serving_default"
# How the names of an output's type begin.
QUANTISED: Final = "quantised"
_FLOATING: Final = ("float", "bfloat", QUANTISED)
_NUMBERS: Final = (*_FLOATING, "int", "uint")
# Calibration sees some photographs only, so the ranges need not be equal. Four in ten levels lost
# at one end are no matter of calibration any more.
_RANGE_TOLERANCE: Final = 0.4
_LEAST_RANGE: Final = 0.1
# Further out the logarithm says nothing that a softmax could use.
_LEAST_PROBABILITY: Final = 1e-12


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What the engine computed for one image, in float.

    `logits` has one value per label; `features` is the last feature map (h x w x channels),
    or None where it was not asked for or the model has none.
    """

    logits: npt.NDArray[np.float64]
    features: npt.NDArray[np.float32] | None


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a network says about itself.

    `input_size_px` is None where any size is taken; `input_dtype` is NumPy's name;
    `output_shapes` has each output's shape without the batch, -1 where it is not fixed;
    `output_types` the engine's names of their types, with `QUANTISED` in front where they are
    scaled (an output without is float32); `input_range` is the least and the greatest number
    that a quantised or 8-bit input can hold, None where it holds all that a pixel may become;
    `written` is what an output of whole numbers or text said of a black picture, as text, where
    the engine tells.
    """

    input_size_px: int | None
    input_dtype: str
    output_shapes: Mapping[str, tuple[int, ...]]
    input_range: tuple[float, float] | None = None
    output_types: Mapping[str, str] = field(default_factory=dict)
    written: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def holds_numbers(self, output: str) -> bool:
        """Whether its values are numbers, and not text or truth values."""
        return self._type(output).startswith(_NUMBERS)

    def outputs_seen(self) -> str:
        """`classes string [5], scores float32 [5]`: all outputs, for a message."""
        return ", ".join(
            f"{name} {self._type(name)} {list(shape)}"
            for name, shape in sorted(self.output_shapes.items())
        )

    @property
    def vectors(self) -> dict[str, int]:
        """Outputs that could hold the scores, with how many: one number or one row of numbers.

        Whole numbers that nothing scales are none: they are a class, or an order of classes.
        """
        rows = self._rows(floating=True)
        if all(len(self.output_shapes[name]) > 1 for name in rows):
            # A network that ends in a convolution keeps the sides of 1 x 1.
            return rows
        # So do pooled features, which have more values than there are grades.
        return {
            name: count
            for name, count in rows.items()
            if len(self.output_shapes[name]) < 2 or count <= len(GRADE_LABELS)
        }

    @property
    def beside(self) -> dict[str, int]:
        """Outputs that could say what the scores mean, a class or names, with how many values."""
        return self._rows(floating=False)

    def _rows(self, *, floating: bool) -> dict[str, int]:
        return {
            name: shape[-1] if shape else 1
            for name, shape in self.output_shapes.items()
            if set(shape[:-1]) <= {1} and self._type(name).startswith(_FLOATING) == floating
        }

    def _type(self, output: str) -> str:
        return self.output_types.get(output, "float32")


def without_batch(shape: Iterable[int | None]) -> tuple[int, ...]:
    """The shape of an output for one image: no batch of one or of any size, -1 for any size."""
    sides = tuple(-1 if side is None else int(side) for side in shape)
    return sides[1:] if sides[:1] in ((1,), (-1,)) else sides


class Runtime(Protocol):
    """A loaded model. Not thread-safe: one caller at a time."""

    def predict(self, pixels: npt.NDArray[Any], *, with_features: bool = False) -> Outputs:
        """Run S x S x 3 uint8 RGB pixels through the model."""
        ...


class OpenedModel(Runtime, Protocol):
    """A runtime that says what it holds, and is told which outputs to read."""

    facts: Facts
    # What computes, for the log: its name, its version, and what changes its numbers.
    engine: Mapping[str, str]

    def bind(self, outputs: Mapping[str, str], *, encoding: InputEncoding | None = None) -> None:
        """Read the outputs of these names: ours (see `model_spec`) -> the model's.

        Raises:
            ModelPackageError: the model lacks one; the message lists those it has.
        """
        ...


def installed(runtime: str) -> bool:
    """Whether the engine of `runtime` can be imported; it is looked up, not imported."""
    return importlib.util.find_spec(_MODULES[runtime]) is not None


def choose(found: Mapping[str, ModelFile], wanted: str) -> ModelFile:
    """Which of the models that a package offers is run.

    Args:
        found: runtime -> model; at least one.
        wanted: one of `contract.RUNTIMES`; "auto" takes LiteRT where it is installed and the
            package has a model for it.

    Raises:
        ModelPackageError: the package has no model for the runtime, or this environment lacks it.
    """
    offers = " and ".join(_WORDS[runtime] for runtime in RUNTIMES if runtime in found)
    if wanted != RUNTIME_AUTO:
        if wanted not in found:
            raise ModelPackageError(
                f"the runtime is set to {wanted}, but the model is for {offers}"
            )
        candidates = [wanted]
    else:
        candidates = [runtime for runtime in RUNTIMES if runtime in found]
    for runtime in candidates:
        if installed(runtime):
            return found[runtime]
    packages = " or ".join(_MODULES[runtime] for runtime in candidates)
    raise ModelPackageError(
        f"the model is for {offers}, and {packages} is not installed here; "
        f"use the image of the other runtime (RUNTIME={candidates[0]})"
        + (
            ", or a .tflite of it (`dr model quantise`)"
            if candidates == [RUNTIME_TENSORFLOW]
            else ""
        )
    )


def open_model(model: ModelFile, *, threads: int) -> OpenedModel:
    """Load a model with its engine.

    Raises:
        ModelPackageError: it cannot be loaded or takes something else than one RGB image.
    """
    if model.runtime == RUNTIME_TENSORFLOW:
        from inference_image.runtimes.tensorflow import TensorFlowRuntime

        return TensorFlowRuntime(model.path, threads=threads, signature=model.signature)
    from inference_image.runtimes.litert import LiteRTRuntime

    return LiteRTRuntime(model.path, threads=threads, signature=model.signature)


def choose_signature(names: Iterable[str], wanted: str | None, *, origin: str) -> str:
    """The signature that is wanted, else `serving_default`, else the only one.

    Raises:
        ModelPackageError: it does not exist, or nothing says which of several it is.
    """
    known = sorted(names)
    if wanted is not None:
        if wanted not in known:
            raise ModelPackageError(
                f"{origin} has no signature {wanted!r}; it has {', '.join(known) or 'none'}"
            )
        return wanted
    if DEFAULT_SIGNATURE in known:
        return DEFAULT_SIGNATURE
    if len(known) != 1:
        raise ModelPackageError(
            f"{origin} has no signature {DEFAULT_SIGNATURE} and more than one other; "
            f"name one of them as `signature` in model.json: {', '.join(known)}"
        )
    return known[0]


def check_input_range(origin: str, facts: Facts, encoding: InputEncoding | None) -> None:
    """Refuse pixels that would saturate a quantised input, or fill a fraction of it.

    Either makes all photographs alike to the network, whose answers look right.

    Raises:
        ModelPackageError: with both ranges.
    """
    if facts.input_range is None:
        return
    low, high = facts.input_range
    first, last = pixel_range(encoding)
    span = high - low
    beyond = max(low - first, last - high) > _RANGE_TOLERANCE * span
    if beyond or last - first < _LEAST_RANGE * span:
        raise ModelPackageError(
            f"{origin} takes numbers from {low:.4g} to {high:.4g}, and pixels from 0 to 255 become "
            f"{first:.4g} to {last:.4g}; correct scale and offset of input in model.json, or "
            f"{ENV_PLAIN_INPUT}"
        )


def pixel_range(encoding: InputEncoding | None) -> tuple[float, float]:
    """What black and white become, over all channels."""
    encoding = encoding or InputEncoding()
    count = max(len(encoding.scale), len(encoding.offset))
    scales = encoding.scale * count if len(encoding.scale) == 1 else encoding.scale
    offsets = encoding.offset * count if len(encoding.offset) == 1 else encoding.offset
    ends = [
        level * scale + offset
        for scale, offset in zip(scales, offsets, strict=True)
        for level in (0, 255)
    ]
    return min(ends), max(ends)


class Binding:
    """Names of the outputs to read, and what they mean; each runtime has one."""

    def __init__(self, origin: str, facts: Facts, outputs: Mapping[str, str]) -> None:
        for ours in (OUTPUT_LOGITS, OUTPUT_PROBABILITIES, OUTPUT_FEATURES):
            theirs = outputs.get(ours)
            if theirs is not None and theirs not in facts.output_shapes:
                known = ", ".join(sorted(facts.output_shapes))
                raise ModelPackageError(f"{origin} has no output {theirs!r}; it has {known}")
            if theirs is not None and not facts.holds_numbers(theirs):
                raise ModelPackageError(
                    f"the output {theirs!r} of {origin}, named {ours}, holds no numbers; it has "
                    + facts.outputs_seen()
                )
        self._origin = origin
        self.gives_probabilities = OUTPUT_LOGITS not in outputs
        self.scores = outputs[OUTPUT_PROBABILITIES if self.gives_probabilities else OUTPUT_LOGITS]
        self.features = outputs.get(OUTPUT_FEATURES)

    def logits(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The scores as logits, of whatever shape they come.

        Raises:
            ModelPackageError: they are named probabilities and are none.
        """
        row = values.reshape(-1)
        if not self.gives_probabilities or not np.isfinite(row).all():
            return row
        total = float(row.sum()) if row.size > 1 else 1.0
        within = row.min() >= -_SUM_TOLERANCE and row.max() <= 1 + _SUM_TOLERANCE
        if not within or abs(total - 1) > _SUM_TOLERANCE:
            raise ModelPackageError(
                f"the output {self.scores!r} of {self._origin} is named probabilities, "
                "but its values are not between 0 and 1 with the sum 1; name it logits"
            )
        if row.size == 1:
            positive = np.clip(row, _LEAST_PROBABILITY, 1 - _LEAST_PROBABILITY)
            return np.asarray(np.log(positive) - np.log1p(-positive))
        return np.asarray(np.log(np.clip(row, _LEAST_PROBABILITY, 1.0)))


def encode(
    pixels: npt.NDArray[Any], encoding: InputEncoding | None
) -> npt.NDArray[np.uint8] | npt.NDArray[np.float32]:
    """A batch of one: the pixels as they are, or scaled as the network was trained.

    Args:
        pixels: S x S x 3, uint8 RGB.
        encoding: None leaves them as they are (0..255, RGB).
    """
    batch = pixels[np.newaxis]
    if encoding is None or encoding.is_identity:
        return np.asarray(batch)
    if encoding.channel_order == "bgr":
        batch = batch[..., ::-1]
    scale = np.asarray(encoding.scale, dtype=np.float32)
    offset = np.asarray(encoding.offset, dtype=np.float32)
    return np.asarray(batch.astype(np.float32) * scale + offset)
