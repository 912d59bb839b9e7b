"""Makes int8, float16, dynamic-range and f32 packages from one trained package, and gates them.

    >>> made = make_variants(Path("model"), Path("variants"), photographs=parts)
    >>> [(one.kind, one.size_bytes, one.verdict) for one in made]
    [('f32', 13414012, None), ('int8', 3675408, 'passed')]

The source is a package with a SavedModel. Representative photographs come from the training
part and pass the service's own preprocessing; each variant gets a temperature and thresholds of
its own from the validation part, is measured on the test part, and is compared there with f32
by the gate. Where int8 does not pass and the trained Keras network is at hand, training goes on
with the rounding in the loop (`quantisation_aware`).
"""

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from dr_training.bootstrap import DRAWS
from dr_training.data.faults import DataError
from dr_training.data.table import Photograph
from dr_training.evaluate import true_classes
from dr_training.export import MODEL_FILE
from dr_training.gate import PASSED, Margins, gate, record_verdict
from dr_training.latency import latencies
from dr_training.model_card import model_card
from dr_training.quantise import F32, INT8, VARIANTS, Inference, convert_variant
from dr_training.recalibrate import CARD, recalibrate, rescaled
from dr_training.runner import FEATURES, LOGITS
from dr_training.scoring import Scored, encoded_photograph, score_package
from inference_image.contract import RUNTIME_TENSORFLOW
from inference_image.decoding import PhotographError
from inference_image.model_files import ModelFile, models_of_package
from inference_image.model_spec import (
    MODEL_JSON,
    OUTPUT_FEATURES,
    OUTPUT_LOGITS,
    OUTPUT_PROBABILITIES,
    ModelSpec,
    file_sha256,
    load_model_spec,
    verify_files,
)
from inference_image.predictor import read_photograph
from inference_image.preprocessing import Preparation

AWARE: Final = "int8-aware"
REPRESENTATIVES: Final = 300
_TIMED: Final = 30
Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Photographs of the three parts of a split."""

    train: Sequence[Photograph]
    validation: Sequence[Photograph]
    test: Sequence[Photograph]


@dataclass(frozen=True, kw_only=True)
class Aims:
    """What the operating points are chosen for, and how far a variant may fall."""

    sensitivity: float = 0.95
    specificity: float = 0.95
    margins: Margins = dataclasses.field(default_factory=Margins)
    draws: int = DRAWS


@dataclass(frozen=True, kw_only=True)
class Aware:
    """Quantisation-aware training: the trained network, and for how long."""

    network: Path
    epochs: int = 3
    rate: float = 3e-4


@dataclass(frozen=True, kw_only=True)
class Made:
    """A variant that was written: `folder`, its size, CPU time of the engine, and its verdict."""

    kind: str
    folder: Path
    spec: ModelSpec
    size_bytes: int
    engine_cpu_ms: float
    metrics: Mapping[str, Any]
    verdict: str | None


def make_variants(
    package: Path,
    out: Path,
    *,
    photographs: Parts,
    kinds: Sequence[str] = VARIANTS,
    representatives: int = REPRESENTATIVES,
    aims: Aims | None = None,
    aware: Aware | None = None,
    data: str = "the table",
    seed: int = 0,
    report: Report = lambda line: None,
) -> list[Made]:
    """Write one package for each kind into a folder of `out`; f32 is always among them.

    Args:
        package: folder of a package with a SavedModel.
        out: folder that does not exist or is empty; it appears when all is done.
        photographs: of the split.
        kinds: of `quantise.VARIANTS`.
        representatives: how many training photographs show int8 its ranges.
        aims: of operating points and gate.
        aware: what int8 is trained with where it does not pass.
        data: what the photographs are, one phrase for the record.
        seed: of the choice of representatives.
        report: takes lines about the progress.

    Raises:
        DataError: too few photographs, a folder in use, or nothing to quantise.
        ModelPackageError: the package cannot be used.
    """
    unknown = sorted(set(kinds) - set(VARIANTS))
    if unknown:
        raise DataError(f"a variant is one of {', '.join(VARIANTS)}; got {unknown[0]!r}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out} is not an empty folder; name a new one for the variants")
    aims = aims or Aims()
    source = _Source.of(package)
    shown = prepared(source.spec, photographs.train, most=representatives, seed=seed)
    report(f"{len(shown.pixels)} representative photographs of the training part")
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        writer = _Writer(source, partial, shown.pixels, photographs, aims, data)
        made = [writer.write(F32, source.infer)]
        report(_line(made[-1]))
        for kind in [kind for kind in VARIANTS if kind in kinds and kind != F32]:
            made.append(writer.write(kind, source.infer))
            report(_line(made[-1]))
        refused = any(one.kind == INT8 and one.verdict != PASSED for one in made)
        if refused and aware is not None:
            made.append(writer.write(AWARE, _trained_on(source, aware, shown, photographs, report)))
            report(_line(made[-1]))
        if out.exists():
            out.rmdir()
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return [dataclasses.replace(one, folder=out / one.kind) for one in made]


@dataclass(frozen=True)
class Prepared:
    """Model inputs (n, S, S, 3) uint8 and the true grades (n,)."""

    pixels: NDArray[np.uint8]
    grades: NDArray[np.int64]


def prepared(
    spec: ModelSpec, photographs: Sequence[Photograph], *, most: int | None, seed: int = 0
) -> Prepared:
    """Photographs as the service prepares them for this package, a random choice of at most `most`.

    Ungradable and unreadable ones, and those without a grade, are left out.

    Raises:
        DataError: none is left.
    """
    preparation = Preparation.from_spec(spec)
    order = np.random.default_rng(seed).permutation(len(photographs))
    pixels: list[NDArray[np.uint8]] = []
    grades: list[int] = []
    for index in order:
        one = photographs[int(index)]
        if most is not None and len(pixels) == most:
            break
        if one.grade is None:
            continue
        try:
            made = read_photograph(encoded_photograph(one), preparation)[1]
        except (DataError, PhotographError):
            continue
        if made.quality.gradable:
            pixels.append(made.pixels)
            grades.append(one.grade)
    if not pixels:
        raise DataError("no photograph of the training part can be graded and used")
    return Prepared(np.stack(pixels).astype(np.uint8), np.array(grades, np.int64))


@dataclass(frozen=True)
class _Source:
    folder: Path
    spec: ModelSpec
    infer: Inference
    scores: str

    @classmethod
    def of(cls, folder: Path) -> "_Source":
        spec = load_model_spec(folder)
        verify_files(spec, folder)
        model = models_of_package(spec, folder).get(RUNTIME_TENSORFLOW)
        if model is None:
            raise DataError(
                f"{folder} holds no SavedModel, and a .tflite cannot be quantised again; export "
                "the trained network with its SavedModel, or import it: dr model import"
            )
        scores = OUTPUT_LOGITS if OUTPUT_LOGITS in spec.outputs else OUTPUT_PROBABILITIES
        return cls(folder, spec, _inference(model, spec, scores), scores)

    @property
    def has_map(self) -> bool:
        return OUTPUT_FEATURES in self.spec.outputs


def _inference(model: ModelFile, spec: ModelSpec, scores: str) -> Inference:
    """Bytes as 0..255 RGB to named outputs; the package's own scaling becomes part of the graph."""
    loaded = tf.saved_model.load(str(model.path))
    signature = loaded.signatures[model.signature or "serving_default"]
    ((name, wanted),) = signature.structured_input_signature[1].items()
    encoding = spec.input_encoding

    def infer(pixels: tf.Tensor) -> dict[str, tf.Tensor]:
        taken = pixels
        if encoding.channel_order == "bgr":
            taken = tf.gather(taken, [2, 1, 0], axis=3)
        if encoding.rescales:
            taken = taken * tf.constant(encoding.scale) + tf.constant(encoding.offset)
        answer = signature(**{name: tf.cast(taken, wanted.dtype)})
        outputs = {scores: answer[spec.outputs[scores]]}
        if OUTPUT_FEATURES in spec.outputs:
            outputs[FEATURES] = answer[spec.outputs[OUTPUT_FEATURES]]
        return outputs

    # The signature refers to the model weakly.
    infer.model = loaded  # type: ignore[attr-defined]
    return infer


class _Writer:
    """Writes variants of one source; the first, f32, is what the others are compared with."""

    def __init__(
        self,
        source: _Source,
        out: Path,
        shown: NDArray[np.uint8],
        photographs: Parts,
        aims: Aims,
        data: str,
    ) -> None:
        self._source, self._out, self._shown = source, out, shown
        self._photographs, self._aims, self._data = photographs, aims, data
        self._reference: tuple[ModelSpec, Scored] | None = None

    def write(self, kind: str, infer: Inference) -> Made:
        variant = INT8 if kind == AWARE else kind
        size_px = self._source.spec.input_size_px
        model = convert_variant(
            infer,
            variant,
            size_px=size_px,
            calibration=self._shown if variant == INT8 else None,
        )
        raw = self._out / f"{kind}-raw"
        document = self._describe(kind, model, raw)
        folder = self._out / kind
        test = score_package(raw, self._photographs.test)
        made = recalibrate(
            raw,
            score_package(raw, self._photographs.validation),
            folder,
            model_id=document["id"],
            data=self._data,
            sensitivity=self._aims.sensitivity,
            specificity=self._aims.specificity,
            test=test,
            draws=self._aims.draws,
        )
        shutil.rmtree(raw)
        measured = rescaled(test, document["temperature"], made.spec.temperature)
        spec, verdict = made.spec, None
        if self._reference is None:
            self._reference = spec, measured
        else:
            spec, verdict = self._gated(folder, spec, measured)
        text = model_card(json.loads((folder / MODEL_JSON).read_text("utf-8")))
        (folder / CARD).write_text(text, encoding="utf-8")
        return Made(
            kind=kind,
            folder=folder,
            spec=spec,
            size_bytes=len(model),
            engine_cpu_ms=round(latencies([model], rounds=_TIMED)[0].cpu_ms, 3),
            metrics=made.document["metrics"],
            verdict=verdict,
        )

    def _describe(self, kind: str, model: bytes, folder: Path) -> dict[str, Any]:
        folder.mkdir(parents=True)
        spec = self._source.spec
        (folder / MODEL_FILE).write_bytes(model)
        names = [MODEL_FILE]
        if spec.head_file:
            shutil.copyfile(self._source.folder / spec.head_file, folder / spec.head_file)
            names.append(spec.head_file)
        document: dict[str, Any] = json.loads(json.dumps(spec.raw))
        # Scaling and channel order are in the graph now.
        for key in ("input", "signature", "gate", "calibration"):
            document.pop(key, None)
        outputs = {self._source.scores: self._source.scores}
        if self._source.has_map:
            outputs[OUTPUT_FEATURES] = FEATURES
        document.update(
            id=f"{spec.id}-{kind}",
            outputs=outputs,
            metrics=None,
            variant={
                "kind": kind,
                "from": {"id": spec.id, "sha256": spec.sha256},
                "representative_photographs": len(self._shown) if INT8 in kind else 0,
            },
            files={
                name: {
                    "sha256": file_sha256(folder / name),
                    "size_bytes": (folder / name).stat().st_size,
                }
                for name in sorted(names)
            },
        )
        (folder / MODEL_JSON).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        return document

    def _gated(self, folder: Path, spec: ModelSpec, measured: Scored) -> tuple[ModelSpec, str]:
        assert self._reference is not None  # noqa: S101 - f32 came first
        reference, answers = self._reference
        name = reference.default_operating_point
        verdict = gate(
            answers,
            measured,
            thresholds=(
                reference.operating_point(name).threshold,
                spec.operating_point(name).threshold,
            ),
            operating_point=name,
            margins=self._aims.margins,
            draws=self._aims.draws,
        )
        data = f"{self._data}, part test"
        return record_verdict(folder, verdict, reference=reference, data=data), verdict.verdict


def _trained_on(
    source: _Source, aware: Aware, shown: Prepared, photographs: Parts, report: Report
) -> Inference:
    from dr_training.keras_files import load_network
    from dr_training.quantisation_aware import QuantisationAware

    if source.scores != OUTPUT_LOGITS:
        raise DataError("quantisation-aware training needs a package with logits")
    network = load_network(aware.network)
    try:
        trainer = QuantisationAware(network, shown.pixels)
    except ValueError as error:
        raise DataError(f"{aware.network}: {error}") from None
    whole = prepared(source.spec, photographs.train, most=None)
    classes = true_classes(whole.grades, source.spec.task)
    trainer.train(whole.pixels, classes, epochs=aware.epochs, rate=aware.rate, report=report)

    def infer(pixels: tf.Tensor) -> dict[str, tf.Tensor]:
        outputs = trainer.infer(pixels)
        chosen = {LOGITS: outputs[LOGITS]}
        return {**chosen, FEATURES: outputs[FEATURES]} if source.has_map else chosen

    return infer


def _line(one: Made) -> str:
    verdict = f", gate: {one.verdict}" if one.verdict else ""
    return f"{one.kind}: {one.size_bytes:,} bytes, {one.engine_cpu_ms:.2f} ms of CPU{verdict}"
