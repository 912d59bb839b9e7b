"""Describes a `.tflite` file or SavedModel that comes without `model.json`.

    >>> spec, opened = describe(model, folder, threads=1, input_range="auto")
    >>> spec.labels
    ('No DR', 'Mild', 'Moderate', 'Severe', 'Proliferative DR')

What the network itself does not say is assumed, as `docs/plain-models.md` documents it, and never
in silence: the assumptions are in the log and in `model.notice` of every answer. What cannot be
assumed is refused with a sentence that says what was seen.
"""

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from inference_image.contract import (
    ENV_PLAIN_INPUT,
    GRADE_LABELS,
    PLAIN_INPUT_AUTO,
    TASK_GRADE5,
    TASK_REFERABLE,
)
from inference_image.model_files import ModelFile, folder_files
from inference_image.model_spec import (
    MODEL_JSON,
    OUTPUT_LOGITS,
    OUTPUT_PROBABILITIES,
    SCHEMA_VERSION,
    InputEncoding,
    ModelPackageError,
    ModelSpec,
    file_sha256,
    parse_model_spec,
)
from inference_image.runtimes import Facts, OpenedModel, open_model

PLAIN_ID: Final = "plain-model"
REFERABLE_LABELS: Final = ("Not referable", "Referable")
OPERATING_POINT: Final = "default"
THRESHOLD: Final = 0.5
# A network that was trained on numbers from 0 to 1 is the most frequent among those that take
# floating-point numbers and do not rescale themselves.
FLOAT_RANGE: Final = "0..1"
BYTE_RANGE: Final = "0..255"
_SCALES: Final = {
    "0..255": (1.0, 0.0),
    "0..1": (1 / 255, 0.0),
    "-1..1": (1 / 127.5, -1.0),
}
# By the number of values. A network that estimates the grade as one number looks like log-odds.
_ORDERS: Final = {
    1: "one value that speaks for referable, and is no grade",
    2: "referable last",
    5: "five grades, No DR first",
}
_SUM_TOLERANCE: Final = 0.01
# Calibration sees some photographs only, of which none may be quite white.
_RANGE_TOLERANCE: Final = 0.15


def describe(
    model: ModelFile, folder: Path, *, threads: int, input_range: str
) -> tuple[ModelSpec, OpenedModel]:
    """Open a model and say all that a `model.json` would.

    Args:
        model: the model, inside `folder`.
        folder: where paths of the description start.
        threads: engine threads.
        input_range: one of `contract.PLAIN_INPUT_RANGES`, or "auto".

    Raises:
        ModelPackageError: the model cannot be loaded, or is not one that can be assumed.
    """
    opened = open_model(model, threads=threads)
    facts = opened.facts
    if facts.input_size_px is None:
        raise ModelPackageError(
            f"{model.path.name} takes images of any size, so {MODEL_JSON} must say input_size_px"
        )
    output, values = _score_output(facts, model.path.name)
    has_order = _check_beside(facts, output, values)
    chosen = _range(facts, input_range)
    scale, offset = _SCALES[chosen]
    encoding = InputEncoding(scale=(scale,), offset=(offset,))
    opened.bind({OUTPUT_LOGITS: output}, encoding=encoding)
    rows = _answers(opened, facts.input_size_px)
    falls = [row.tolist() == sorted(row, reverse=True) for row in rows if np.isfinite(row).all()]
    if has_order and falls and all(falls):
        raise ModelPackageError(
            f"the values of the output {output!r} fall from the first to the last, whatever the "
            "picture, as the best of a list do; the scores are expected in one order"
        )
    kind = _kind(output, rows)
    task = TASK_GRADE5 if values == len(GRADE_LABELS) else TASK_REFERABLE
    labels = GRADE_LABELS if task == TASK_GRADE5 else REFERABLE_LABELS
    order = _ORDERS[values]
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "id": PLAIN_ID,
        "task": task,
        "notice": (
            f"Served without {MODEL_JSON}. Assumed: {order}; the output {output!r} holds {kind}; "
            f"pixels as RGB in {chosen}; fundus disc cropped; threshold {THRESHOLD} on "
            "P(referable). Not for clinical use."
        ),
        "input_size_px": facts.input_size_px,
        "labels": list(labels),
        "input": {"scale": scale, "offset": offset},
        "preprocessing": [{"step": "crop_to_fundus"}, {"step": "resize_area"}],
        "quality_gate": {},
        "operating_points": [{"name": OPERATING_POINT, "threshold": THRESHOLD}],
        "default_operating_point": OPERATING_POINT,
        "temperature": 1.0,
        "outputs": {kind: output},
        "files": _digests(model.path, folder),
    }
    text = json.dumps(document, sort_keys=True).encode()
    return parse_model_spec(text, origin=f"the description of {model.path.name}"), opened


def _score_output(facts: Facts, name: str) -> tuple[str, int]:
    """The output with one value per label, and how many it has."""
    vectors = facts.vectors
    named = [key for key in (OUTPUT_LOGITS, OUTPUT_PROBABILITIES) if key in vectors]
    candidates = named[:1] or list(vectors)
    seen = facts.outputs_seen()
    if len(candidates) != 1:
        raise ModelPackageError(
            f"{name} has {len(candidates)} outputs that could hold the grades, so {MODEL_JSON} "
            f"must name one; it has {seen}"
        )
    output = candidates[0]
    if vectors[output] not in _ORDERS:
        raise ModelPackageError(
            f"{name} answers with {vectors[output]} values ({seen}); without {MODEL_JSON} "
            "1 or 2 (referable) or 5 (grades) are expected"
        )
    return output, vectors[output]


def _check_beside(facts: Facts, output: str, values: int) -> bool:
    """Refuse scores beside which an output says that they mean something else than is assumed.

    Returns:
        Whether there is one that says what is assumed, as TensorFlow's estimators add it.
    """
    has_order = False
    for other, count in sorted(facts.beside.items()):
        if values == 1:
            raise ModelPackageError(
                f"the one value of {output!r} may be the confidence in what {other!r} says, and "
                f"not in referable, so {MODEL_JSON} must name it; it has {facts.outputs_seen()}"
            )
        if count == values:
            has_order = True
            written = facts.written.get(other, ())
            if not _is_our_order(written, values):
                said = f"({', '.join(written)[:100]}) " if written else ""
                raise ModelPackageError(
                    f"the output {other!r} {said}names the {values} values of {output!r}, and not "
                    f"as they are assumed to be ordered, so {MODEL_JSON} must say what they are; "
                    f"it has {facts.outputs_seen()}"
                )
    return has_order


def _is_our_order(written: tuple[str, ...], values: int) -> bool:
    labels = GRADE_LABELS if values == len(GRADE_LABELS) else REFERABLE_LABELS
    orders = (tuple(map(str, range(values))), tuple(map(_letters, labels)))
    return written in orders[:1] or tuple(map(_letters, written)) in orders[1:]


def _letters(text: str) -> str:
    return "".join(filter(str.isalpha, text.casefold()))


def _range(facts: Facts, wanted: str) -> str:
    whole = not facts.input_dtype.startswith(("float", "bfloat"))
    if facts.input_range is not None:
        return _quantised_range(facts.input_range, wanted)
    if wanted == PLAIN_INPUT_AUTO:
        return BYTE_RANGE if whole else FLOAT_RANGE
    if whole and wanted != BYTE_RANGE:
        raise ModelPackageError(
            f"{ENV_PLAIN_INPUT} is {wanted}, but the model takes {facts.input_dtype} pixels, "
            f"which are {BYTE_RANGE}"
        )
    return wanted


def _quantised_range(held: tuple[float, float], wanted: str) -> str:
    """The range that a quantised input was calibrated for, or the one that is wanted."""
    if wanted != PLAIN_INPUT_AUTO:
        # Whether it fits is checked when the input is bound.
        return wanted
    low, high = held
    tolerance = _RANGE_TOLERANCE * (high - low)
    for name, (scale, offset) in _SCALES.items():
        if abs(offset - low) <= tolerance and abs(255 * scale + offset - high) <= tolerance:
            return name
    raise ModelPackageError(
        f"the model's quantised input holds numbers from {low:.4g} to {high:.4g}, which is none of "
        f"{', '.join(_SCALES)}, so {MODEL_JSON} must say its input (scale and offset)"
    )


def _answers(opened: OpenedModel, size_px: int) -> list[npt.NDArray[np.float64]]:
    """The scores of three pictures."""
    noise = np.random.default_rng(0).integers(0, 256, (size_px, size_px, 3), np.uint8)
    return [
        opened.predict(pixels).logits
        for pixels in (noise, np.zeros_like(noise), np.full_like(noise, 255))
    ]


def _kind(output: str, rows: list[npt.NDArray[np.float64]]) -> str:
    """Whether the output holds probabilities or logits, by the answers to three pictures."""
    if output in (OUTPUT_LOGITS, OUTPUT_PROBABILITIES):
        return output
    rows = [row for row in rows if np.isfinite(row).all()]
    if not rows:
        raise ModelPackageError(
            f"the values of the output {output!r} are no numbers (NaN or infinite), whatever the "
            "picture: the model is damaged, or its training has failed"
        )
    if any(row.min() < 0 or row.max() > 1 for row in rows):
        return OUTPUT_LOGITS
    if all(row.size == 1 or abs(float(row.sum()) - 1) <= _SUM_TOLERANCE for row in rows):
        return OUTPUT_PROBABILITIES
    raise ModelPackageError(
        f"the values of the output {output!r} lie between 0 and 1 and do not add up to 1, as those "
        f"of a sigmoid for each grade do; one grade of five is expected, or {MODEL_JSON} must name "
        "the output logits"
    )


def _digests(model: Path, folder: Path) -> dict[str, dict[str, Any]]:
    files = folder_files(model) if model.is_dir() else [model]
    return {
        path.relative_to(folder).as_posix(): {
            "sha256": file_sha256(path),
            "size_bytes": path.stat().st_size,
        }
        for path in files
    }
