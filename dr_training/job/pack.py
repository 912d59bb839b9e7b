"""Packs a model that passed its gate as `dr model push` would, for the bucket of the models.

    python3 -m dr_training.job pack

`models/<id>/<sha256>.tar.gz` of the output goes to the bucket that endpoints read; `pack.json` says
its key. The verdict must be of this model: its digest is compared, and a verdict that does not say
`passed` in so many words is none.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from dr_training.data.table import write_whole
from dr_training.gate import PASSED
from dr_training.job.faults import JobError, StepArguments
from dr_training.job.gate import SCHEMA_VERSION
from dr_training.job.places import ProcessingPlaces
from dr_training.job.trained import read_object, trained
from inference_image.model_package import pack_model
from inference_image.model_spec import ModelSpec

_MOST_REASONS: Final = 5


def run(root: Path, arguments: Sequence[str]) -> None:
    """Pack the model below `root`.

    Raises:
        JobError: the verdict is missing, of another model, or not that it passed.
        ModelPackageError: the archive or the package is damaged or hostile.
    """
    StepArguments("pack", "Packs a model that passed its gate").parse_args(arguments)
    places = ProcessingPlaces(root)
    verdict = read_object(places.verdict)
    with trained(places.model_archive) as model:
        _check(verdict, model.spec)
        _, _, inside = model.spec.object_key.partition("/")
        target = places.models / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        spec = pack_model(model.package, target)
    # Last, so that it never names an archive that is not there.
    packed = {"id": spec.id, "sha256": spec.sha256, "key": spec.object_key}
    write_whole(places.packed, (json.dumps(packed, indent=2) + "\n").encode())
    print(f"packed {spec.object_key}", flush=True)


def _check(verdict: dict[str, Any], spec: ModelSpec) -> None:
    if verdict.get("schema_version") != SCHEMA_VERSION:
        raise JobError(
            f"gate.json must be of schema_version {SCHEMA_VERSION}; "
            f"it says {str(verdict.get('schema_version'))[:20]}"
        )
    judged = verdict.get("model")
    digest = judged.get("sha256") if isinstance(judged, dict) else None
    if digest != spec.sha256:
        raise JobError(
            f"gate.json is of another model ({str(digest)[:12]}…) than the one to pack "
            f"({spec.id}, {spec.sha256[:12]}…)"
        )
    if verdict.get("passed") is not True or verdict.get("verdict") != PASSED:
        reasons = verdict.get("reasons")
        shown = "; ".join(map(str, reasons[:_MOST_REASONS])) if isinstance(reasons, list) else ""
        raise JobError(
            f"gate.json does not say that model {spec.id} passed"
            + (f": {shown}" if shown else "; only a model that passed is packed")
        )
