"""Wraps somebody else's SavedModel, `.keras`, `.h5` or `.tflite` as a package.

    >>> made = import_model(Path("theirs.tflite"), Path("model"), declared, model_id="theirs")
    >>> made.cannot
    ('no heat map: …',)

What the file does not say (scaling, channel order, order of the classes) is declared by whoever
imports it and recorded as such: a wrong declaration gives wrong grades that look right, so
`sanity_check` shows answers to photographs. A `.tflite` is wrapped without TensorFlow.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from dr_training.data.faults import DataError
from dr_training.drawing import draw_fundus
from dr_training.export import CARD_FILE, HEAD_FILE, MODEL_FILE
from dr_training.keras_files import SUFFIXES, load_network
from dr_training.model_card import model_card
from inference_image.contract import (
    GRADE_LABELS,
    NOT_A_DEVICE,
    NOT_ASSESSED,
    RUNTIME_LITERT,
    TASK_GRADE5,
    TASK_REFERABLE,
)
from inference_image.decoding import PhotographError
from inference_image.model_files import ModelFile, models_of_folder
from inference_image.model_spec import (
    MODEL_JSON,
    OUTPUT_FEATURES,
    OUTPUT_LOGITS,
    SCHEMA_VERSION,
    ModelPackageError,
    ModelSpec,
    file_sha256,
    load_model_spec,
)
from inference_image.plain_model import REFERABLE_LABELS, describe
from inference_image.predictor import Predictor

# What the pixels 0..255 become, by the names that people know.
SCALINGS: Final = {
    "0..255": (1.0, 0.0),
    "0..1": (1 / 255, 0.0),
    "-1..1": (1 / 127.5, -1.0),
    # keras.applications.imagenet_utils, modes "torch" and "caffe"; red, green, blue.
    "torch": (
        (1 / 58.395, 1 / 57.12, 1 / 57.375),
        (-0.485 / 0.229, -0.456 / 0.224, -0.406 / 0.225),
    ),
    "caffe": (1.0, (-123.68, -116.779, -103.939)),
}
ORDERS: Final = ("rgb", "bgr")
CROP, PREPARED = "crop", "none"
PREPARATIONS: Final = (CROP, PREPARED)
_SAVED_MODEL: Final = Path("model") / "1"
_SAMPLE_PX: Final = 600
_OTHER_NAMES: Final = {"proliferate dr": 4, "proliferative": 4, "pdr": 4, "normal": 0, "healthy": 0}


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What the importing person says of the network.

    `labels`: the class of each output in the network's order, as grade numbers, grade names, or
    "not referable" and "referable". `scaling` is one of `SCALINGS`, `channel_order` of `ORDERS`,
    `preparation` of `PREPARATIONS` (crop to the fundus with the quality gate, or none of both).
    """

    labels: tuple[str, ...]
    scaling: str
    channel_order: str
    preparation: str = CROP
    threshold: float = 0.5
    licence: str | None = None

    def __post_init__(self) -> None:
        for name, value, known in (
            ("scaling", self.scaling, tuple(SCALINGS)),
            ("channel order", self.channel_order, ORDERS),
            ("preparation", self.preparation, PREPARATIONS),
        ):
            if value not in known:
                raise DataError(f"the {name} is one of {', '.join(known)}; got {value!r}")
        if not 0 < self.threshold < 1:
            raise DataError(f"the threshold lies between 0 and 1; got {self.threshold:g}")


@dataclass(frozen=True, kw_only=True)
class Imported:
    """The new package, and what it cannot offer, one phrase each."""

    spec: ModelSpec
    cannot: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One line of the sanity check: a photograph and what the package says of it."""

    name: str
    answer: str
    referable: float | None


@dataclass
class _Content:
    """What a source gives: files are in the folder already."""

    outputs: dict[str, str]
    size_px: int
    explains: bool
    why_not: str
    folded: bool = False


def needs_tensorflow(source: Path) -> bool:
    """Whether importing `source` needs TensorFlow: everything but a `.tflite`."""
    return source.suffix != ".tflite"


def order_of(labels: Sequence[str]) -> tuple[str, tuple[int, ...]]:
    """Task and, for each class of ours, which output of the network holds it.

    Raises:
        DataError: the labels are not the five grades, nor the two of a referral model.
    """
    plain = [" ".join(one.replace("_", " ").replace("-", " ").lower().split()) for one in labels]
    names = {name.lower(): grade for grade, name in enumerate(GRADE_LABELS)}
    names |= {str(grade): grade for grade in range(len(GRADE_LABELS))} | _OTHER_NAMES
    referable = {name.lower(): index for index, name in enumerate(REFERABLE_LABELS)}
    if plain == ["referable"]:
        return TASK_REFERABLE, (0,)
    for task, known, count in ((TASK_GRADE5, names, 5), (TASK_REFERABLE, referable, 2)):
        classes = [known.get(one) for one in plain]
        if len(plain) == count and sorted(c for c in classes if c is not None) == [*range(count)]:
            return task, tuple(classes.index(wanted) for wanted in range(count))
    raise DataError(
        "the labels, in the order of the network's outputs, are each of the grades 0,1,2,3,4 once, "
        f"or 'not referable,referable', or 'referable'; got {','.join(labels)!r}"
    )


def import_model(source: Path, out: Path, declared: Declared, *, model_id: str) -> Imported:
    """Write a package for `source` into `out`, which must not exist or be empty.

    Raises:
        DataError: the source cannot be wrapped so; the message says what to declare or do.
        ModelPackageError: the file itself cannot be loaded.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out} is not an empty folder; name a new one for the package")
    task, order = order_of(declared.labels)
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        content = _wrap(source, partial, declared, order)
        document = _document(source, partial, declared, task, content, model_id)
        text = json.dumps(document, indent=2) + "\n"
        (partial / MODEL_JSON).write_text(text, encoding="utf-8")
        (partial / CARD_FILE).write_text(model_card(document), encoding="utf-8")
        try:
            Predictor.load(partial, threads=1).warm_up()
        except ModelPackageError as error:
            what = str(error).partition("; correct scale")[0]
            raise DataError(f"the network does not fit what was stated: {what}") from None
        if out.exists():
            out.rmdir()
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Imported(spec=load_model_spec(out), cannot=_cannot(task, declared, content))


def sanity_check(package: Path, images: Sequence[Path] = ()) -> tuple[list[Sample], list[str]]:
    """Answers to drawn photographs of every grade and to `images`, and what looks wrong in them."""
    predictor = Predictor.load(package, threads=1)
    pictures = [(f"drawn, grade {grade}", _drawn(grade)) for grade in range(len(GRADE_LABELS))]
    pictures += [(path.name, path.read_bytes()) for path in images]
    samples, rows = [], []
    for name, data in pictures:
        try:
            answer = predictor.predict(data)
        except PhotographError as error:
            samples.append(Sample(name=name, answer=str(error), referable=None))
            continue
        if answer.probabilities is None:
            words = f"ungradable: {', '.join(answer.quality.reasons)}"
            samples.append(Sample(name=name, answer=words, referable=None))
            continue
        rows.append(answer.probabilities)
        samples.append(
            Sample(
                name=name,
                answer=f"{answer.label} ({max(answer.probabilities):.2f})",
                referable=answer.referable.probability,
            )
        )
    return samples, _doubts(rows)


def _doubts(rows: Sequence[Sequence[float]]) -> list[str]:
    if not rows:
        return ["no photograph was graded, so nothing was checked"]
    table = np.array(rows)
    doubts = []
    if len(table) > 1 and float(np.ptp(table, axis=0).max()) < 1e-3:
        doubts.append("the answers hardly depend on the photograph: is the scaling right?")
    elif len(table) > 2 and len(set(table.argmax(axis=1).tolist())) == 1:
        doubts.append(
            "every photograph gets the same label: check scaling, channel order and labels"
        )
    if float(np.median(table.max(axis=1))) > 1 - 1e-6:
        doubts.append("the network is certain of everything: pixels may be scaled too large")
    return doubts


def _wrap(source: Path, folder: Path, declared: Declared, order: tuple[int, ...]) -> _Content:
    if source.suffix in SUFFIXES:
        return _wrap_keras(source, folder, declared, order)
    plain = order == tuple(range(len(order)))
    if source.is_file() and source.suffix == ".tflite":
        if not plain:
            raise DataError(
                "the outputs of a .tflite cannot be put in another order here; export the network "
                "with its classes in the order of the grades, or import it before its conversion"
            )
        shutil.copyfile(source, folder / MODEL_FILE)
        model = ModelFile(runtime=RUNTIME_LITERT, path=folder / MODEL_FILE)
        reason = "a .tflite does not say which layers follow its feature map"
        return _described(model, folder, declared, len(order), reason)
    if source.is_dir():
        found = models_of_folder(source)
        if set(found) != {"tensorflow"}:
            raise DataError(f"{source} holds a .tflite file; name the file itself")
        saved = found["tensorflow"].path
        shutil.copytree(saved, folder / _SAVED_MODEL)
        model = ModelFile(runtime="tensorflow", path=folder / _SAVED_MODEL)
        reason = "a SavedModel does not say which layers follow its feature map"
        content = _described(model, folder, declared, len(order), reason)
        if not plain:
            _reorder(folder / _SAVED_MODEL, content, order)
        return content
    raise DataError(
        f"{source} is not there or is none of these: a SavedModel folder, .keras, .h5 or .tflite"
    )


def _described(
    model: ModelFile, folder: Path, declared: Declared, classes: int, why_not: str
) -> _Content:
    """What the network says itself; its output's kind is found with the declared scaling."""
    named = declared.scaling if declared.scaling in ("0..1", "-1..1") else "0..255"
    try:
        spec, _ = describe(model, folder, threads=1, input_range=named)
    except ModelPackageError as error:
        text = str(error)
        if "DR_PLAIN_INPUT" in text:
            text = "the network takes whole numbers as pixels, so its scaling is 0..255"
        raise DataError(text) from None
    ((kind, name),) = spec.outputs.items()
    found = len(spec.labels)
    if (TASK_REFERABLE if classes < len(GRADE_LABELS) else TASK_GRADE5) != spec.task:
        raise DataError(
            f"{classes} labels were given, but the network's answer holds "
            f"{found if spec.task == TASK_GRADE5 else '1 or 2'} values"
        )
    return _Content({kind: name}, spec.input_size_px, explains=False, why_not=why_not)


def _reorder(saved: Path, content: _Content, order: tuple[int, ...]) -> None:
    """Write the SavedModel again with the classes of its answer in our order."""
    import tensorflow as tf

    loaded = tf.saved_model.load(str(saved))
    signature = loaded.signatures["serving_default"]
    ((name, spec),) = signature.structured_input_signature[1].items()
    ((kind, output),) = content.outputs.items()

    @tf.function(input_signature=[tf.TensorSpec(spec.shape, spec.dtype, name=name)])  # type: ignore[untyped-decorator]
    def serve(pixels: Any) -> dict[str, Any]:
        return {kind: tf.gather(signature(**{name: pixels})[output], order, axis=-1)}

    module = tf.Module()
    module.inner = loaded
    module.serve = serve
    again = saved.with_name("again")
    tf.saved_model.save(module, str(again), signatures=serve)
    shutil.rmtree(saved)
    again.rename(saved)
    content.outputs = {kind: kind}


def _wrap_keras(source: Path, folder: Path, declared: Declared, order: tuple[int, ...]) -> _Content:
    import tensorflow as tf

    from dr_training.keras_graph import answering_parts
    from dr_training.quantise import F32, convert_variant
    from dr_training.saved_model import write_saved_model

    network = load_network(source)
    parts = answering_parts(network, len(order), origin=source.name)
    scale, offset = _numbers(declared)

    def outputs(pixels: tf.Tensor) -> dict[str, tf.Tensor]:
        taken = pixels
        if declared.channel_order == "bgr":
            taken = tf.gather(taken, [2, 1, 0], axis=3)
        taken = taken * tf.constant(scale, tf.float32) + tf.constant(offset, tf.float32)
        answer = parts.model(taken, training=False)
        named = {OUTPUT_LOGITS: tf.gather(answer[0], order, axis=-1)}
        return {**named, "features": answer[1]} if parts.head else named

    (folder / _SAVED_MODEL).parent.mkdir()
    write_saved_model(parts.model, folder / _SAVED_MODEL, size_px=parts.size_px, outputs=outputs)
    model = convert_variant(outputs, F32, size_px=parts.size_px)
    (folder / MODEL_FILE).write_bytes(model)
    content = _Content(
        {OUTPUT_LOGITS: OUTPUT_LOGITS},
        parts.size_px,
        explains=bool(parts.head),
        why_not=parts.why_not,
        folded=True,
    )
    if parts.head:
        arrays: dict[str, Any] = {}
        for index, (kernel, bias) in enumerate(parts.head):
            last = index == len(parts.head) - 1
            arrays[f"kernel_{index}"] = kernel[:, list(order)] if last else kernel
            arrays[f"bias_{index}"] = bias[list(order)] if last else bias
        np.savez(folder / HEAD_FILE, **arrays)
        content.outputs[OUTPUT_FEATURES] = "features"
    return content


def _numbers(declared: Declared) -> tuple[Any, Any]:
    """Scale and offset in the network's channel order."""
    numbers = SCALINGS[declared.scaling]
    if declared.channel_order == "rgb":
        return numbers
    scale, offset = (one[::-1] if isinstance(one, tuple) else one for one in numbers)
    return scale, offset


def _document(
    source: Path,
    folder: Path,
    declared: Declared,
    task: str,
    content: _Content,
    model_id: str,
) -> dict[str, Any]:
    crop = declared.preparation == CROP
    steps = [{"step": "crop_to_fundus"}, {"step": "resize_area"}] if crop else []
    scale, offset = _numbers(declared)
    encoding = {
        "channel_order": declared.channel_order,
        "scale": list(scale) if isinstance(scale, tuple) else scale,
        "offset": list(offset) if isinstance(offset, tuple) else offset,
    }
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "id": model_id,
        "task": task,
        "notice": (
            "Imported: scaling, channel order and labels are as stated by whoever imported it, "
            "and its threshold is not validated. Not for clinical use."
        ),
        "intended_use": f"Not stated by its maker. {NOT_A_DEVICE} {NOT_ASSESSED}",
        "licence": declared.licence,
        "network": {"name": source.name},
        "input_size_px": content.size_px,
        "labels": list(GRADE_LABELS if task == TASK_GRADE5 else REFERABLE_LABELS),
        "preprocessing": steps,
        "quality_gate": {} if crop else None,
        "operating_points": [
            {
                "name": "unvalidated",
                "threshold": declared.threshold,
                "chosen": "not: stated at import",
            }
        ],
        "default_operating_point": "unvalidated",
        "temperature": 1.0,
        "outputs": content.outputs,
        "head_file": HEAD_FILE if content.explains else None,
        "files": {
            path.relative_to(folder).as_posix(): {
                "sha256": file_sha256(path),
                "size_bytes": path.stat().st_size,
            }
            for path in files
        },
        "metrics": None,
        "provenance": {
            "trained_on": None,
            "imported_from": source.name,
            "declared": {
                "labels": list(declared.labels),
                "scaling": declared.scaling,
                "channel_order": declared.channel_order,
            },
        },
    }
    # The scaling of a Keras network has become part of the exported graph.
    if not content.folded:
        document["input"] = encoding
    return document


def _cannot(task: str, declared: Declared, content: _Content) -> tuple[str, ...]:
    missing = []
    if not content.explains:
        missing.append(f"no heat map: {content.why_not}")
    if task == TASK_REFERABLE:
        missing.append("no grade: the network says referable or not")
    if declared.preparation == PREPARED:
        missing.append("no quality gate: whatever is sent is graded, without a crop")
    missing.append("no validated threshold and no figures: fit it with dr model recalibrate")
    return tuple(missing)


def _drawn(grade: int) -> bytes:
    return draw_fundus(grade, grade, _SAMPLE_PX).jpeg_bytes()
