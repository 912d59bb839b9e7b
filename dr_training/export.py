"""Writes a model package: `model.json`, `model.tflite`, `head.npz` and the model card.

    >>> write_package(PackageContent(...), Path("model_artifacts/mobilenet-demo"))

`model.json` lists the other files with size and SHA-256, and its own digest names the package
(see `inference_image.model_spec`). Keys and figures are written in a fixed order, so the same
training gives the same bytes.
"""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dr_training.model_card import model_card
from inference_image.contract import (
    GRADE_LABELS,
    NOT_A_DEVICE,
    NOT_ASSESSED,
    TASK_GRADE5,
)
from inference_image.model_spec import (
    MODEL_JSON,
    SCHEMA_VERSION,
    ModelSpec,
    file_sha256,
    load_model_spec,
    verify_files,
)
from inference_image.plain_model import REFERABLE_LABELS

MODEL_FILE = "model.tflite"
HEAD_FILE = "head.npz"
CARD_FILE = "MODEL_CARD.md"
INTENDED_USE = (
    f"Demonstration, tests and measurements of the deployment. {NOT_A_DEVICE} {NOT_ASSESSED}"
)
_LIBRARIES = ("ai-edge-litert", "keras", "numpy", "pillow", "scipy", "tensorflow")

Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class DenseLayer:
    """A layer of the head: kernel (inputs, units) and bias (units,)."""

    kernel: Floats
    bias: Floats


@dataclass(frozen=True, kw_only=True)
class PackageContent:
    """All that a package says and holds.

    `card` is the model card's Markdown; where it is None, the card says what `model.json` says.
    Without `head` layers the package cannot be explained by Grad-CAM and has no `head.npz`.
    `calibration` says on what the temperature was chosen, and the calibration error before and
    after. `intended_use` and `licence` are those of the demo packages; None is not stated.
    """

    id: str
    network: Mapping[str, Any]
    input_size_px: int
    preprocessing: Sequence[Mapping[str, Any]]
    quality_gate: Mapping[str, float] | None
    operating_points: Sequence[Mapping[str, Any]]
    default_operating_point: str
    temperature: float
    notice: str
    metrics: Mapping[str, Any] | None
    provenance: Mapping[str, Any]
    model: bytes
    head: Sequence[DenseLayer]
    card: str | None = None
    task: str = TASK_GRADE5
    calibration: Mapping[str, Any] | None = None
    intended_use: str = INTENDED_USE
    licence: str | None = "Apache-2.0"


def write_package(content: PackageContent, folder: Path) -> ModelSpec:
    """Write the package's files and read them back with the loader that serves them.

    Raises:
        ModelPackageError: the result is not a package that the service would load.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MODEL_FILE).write_bytes(content.model)
    names = [MODEL_FILE]
    if content.head:
        arrays: dict[str, Floats] = {}
        for index, layer in enumerate(content.head):
            arrays[f"kernel_{index}"], arrays[f"bias_{index}"] = layer.kernel, layer.bias
        np.savez(folder / HEAD_FILE, **arrays)  # type: ignore[arg-type]
        names = [HEAD_FILE, MODEL_FILE]
    files = {
        name: {
            "sha256": file_sha256(folder / name),
            "size_bytes": (folder / name).stat().st_size,
        }
        for name in names
    }
    document = {
        "schema_version": SCHEMA_VERSION,
        "id": content.id,
        "task": content.task,
        "notice": content.notice,
        "intended_use": content.intended_use,
        "licence": content.licence,
        "network": dict(content.network),
        "input_size_px": content.input_size_px,
        "labels": list(GRADE_LABELS if content.task == TASK_GRADE5 else REFERABLE_LABELS),
        "preprocessing": [dict(step) for step in content.preprocessing],
        "quality_gate": content.quality_gate,
        "operating_points": [dict(point) for point in content.operating_points],
        "default_operating_point": content.default_operating_point,
        "temperature": content.temperature,
        **({"calibration": dict(content.calibration)} if content.calibration else {}),
        "outputs": {"logits": "logits", "feature_map": "features"},
        "head_file": HEAD_FILE if content.head else None,
        "files": files,
        "metrics": content.metrics,
        "provenance": dict(content.provenance),
    }
    # The same package built on another machine keeps its name: a record that differs in the
    # environment alone stays as it is.
    if not _same_but_environment(folder / MODEL_JSON, document):
        text = json.dumps(document, indent=2) + "\n"
        (folder / MODEL_JSON).write_text(text, encoding="utf-8")
    card = model_card(document) if content.card is None else content.card
    (folder / CARD_FILE).write_text(card, encoding="utf-8")
    spec = load_model_spec(folder)
    verify_files(spec, folder)
    return spec


def environment(*, threads: int) -> dict[str, Any]:
    """Versions, processor architecture and thread counts: what else decides the weights.

    The same seed with another number of threads adds in another order and gives other weights.
    """
    return {
        "python": platform.python_version(),
        "architecture": platform.machine(),
        "threads": threads,
        "processors": os.cpu_count(),
        "libraries": {name: _version(name) for name in _LIBRARIES}
        # The build for processors alone has a name of its own.
        | {"tensorflow": _version("tensorflow") or _version("tensorflow-cpu")},
    }


def _same_but_environment(path: Path, document: Mapping[str, Any]) -> bool:
    try:
        existing = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    wanted = json.loads(json.dumps(document))
    for one in (existing, wanted):
        if not isinstance(one, dict) or not isinstance(one.get("provenance"), dict):
            return False
        one["provenance"].pop("environment", None)
    return bool(existing == wanted)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
