"""Judges a trained model on the test part of its records, and writes `gate.json`.

    python3 -m dr_training.job gate --min-sensitivity 0.85 --min-specificity 0.80 --min-kappa 0.70

The model is that of `package/` in the training's archive, run by the service's own code; the
pictures are those of the records, which the service's own preparation made. The test part chose
neither weights nor epoch, temperature or thresholds: the training must have been on these very
records. A model that does not pass is no fault: the step ends well, and `passed` is false.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from dr_training.data.pipeline import Part, TrainingData, default_threads
from dr_training.data.preparation import MANIFEST, UNGRADABLE, UNREADABLE
from dr_training.data.splits import TEST
from dr_training.data.table import write_whole
from dr_training.job.decision import Answers, Minimums, decide
from dr_training.job.faults import JobError, StepArguments, as_asked
from dr_training.job.places import ProcessingPlaces
from dr_training.job.shards import check_shards
from dr_training.job.trained import Trained, trained
from inference_image.contract import TASK_GRADE5
from inference_image.model_spec import ModelSpec, file_sha256
from inference_image.predictor import EngineError, Predictor

SCHEMA_VERSION: Final = 1
_BATCH: Final = 32
_UNGRADABLE: Final = f"{UNGRADABLE}_by_grade"
_UNREADABLE: Final = f"{UNREADABLE}_by_grade"


def run(root: Path, arguments: Sequence[str]) -> None:
    """Judge the model below `root`.

    Raises:
        JobError: model, records or arguments cannot be used, or do not belong together.
        ModelPackageError: the archive or the package is damaged or hostile.
        DataError: the records are damaged, or their parts leak into each other.
    """
    minimums = _minimums(arguments)
    places = ProcessingPlaces(root)
    data = TrainingData.open(places.records)
    digests = _digests(data)
    with trained(places.model_archive) as model:
        _check_belongs(model, data, digests["manifest_sha256"])
        with as_asked():
            minimums.check_fits(grades=model.spec.task == TASK_GRADE5)
        point = model.spec.operating_point()
        answers = _asked(model, data.parts[TEST]) if TEST in data.parts else _nothing(model)
        document = {
            "schema_version": SCHEMA_VERSION,
            **decide(answers, threshold=point.threshold, minimums=minimums),
            "operating_point": {"name": point.name, "threshold": point.threshold},
            "model": {"id": model.spec.id, "sha256": model.spec.sha256},
            "records": digests,
            "data": "test part: it chose nothing",
            "not_judged": _not_judged(data),
        }
    write_whole(places.judged, (json.dumps(document, indent=2) + "\n").encode())
    reasons = "; ".join(document["reasons"])
    print(
        f"model {document['model']['id']} on {document['n']:,} photographs: "
        f"{document['verdict']}{f': {reasons}' if reasons else ''}",
        flush=True,
    )


@as_asked()
def _minimums(arguments: Sequence[str]) -> Minimums:
    parser = StepArguments("gate", "Judges a trained model")
    parser.add_argument("--min-sensitivity", type=float, required=True, help="0 to below 1")
    parser.add_argument("--min-specificity", type=float, required=True, help="0 to below 1")
    parser.add_argument("--min-kappa", type=float, help="quadratic weighted; -1 to below 1")
    parser.add_argument("--min-photographs", type=int, default=Minimums.photographs)
    chosen = parser.parse_args(arguments)
    return Minimums(
        sensitivity=chosen.min_sensitivity,
        specificity=chosen.min_specificity,
        kappa=chosen.min_kappa,
        photographs=chosen.min_photographs,
    )


def _digests(data: TrainingData) -> dict[str, str]:
    """SHA-256 of the manifest, which names every shard, and of the judged shards themselves.

    Raises:
        JobError: a shard is another than the manifest says, or has no digest there.
    """
    judged = hashlib.sha256()
    shards = data.manifest["parts"].get(TEST, {"shards": []})["shards"]
    for file, digest in check_shards(data.folder, shards).items():
        judged.update(f"{file} {digest}\n".encode())
    return {
        "manifest_sha256": file_sha256(data.folder / MANIFEST),
        "test_sha256": judged.hexdigest(),
    }


def _not_judged(data: TrainingData) -> dict[str, int]:
    """Graded photographs of the test part that the records do not hold, by why."""
    part = data.manifest["parts"].get(TEST, {})
    ungradable = 0 if data.manifest.get("keep_ungradable") else sum(part.get(_UNGRADABLE, ()))
    return {"ungradable": ungradable, "unreadable": sum(part.get(_UNREADABLE, ()))}


def _check_belongs(model: Trained, data: TrainingData, manifest_sha256: str) -> None:
    """Refuse records that the model may have seen, or that it would not be served."""
    if model.records_sha256 != manifest_sha256:
        raise JobError(
            f"model {model.spec.id} was trained on other records (manifest "
            f"{model.records_sha256[:12]}…) than these ({manifest_sha256[:12]}…): their test part "
            "may hold what it has seen"
        )
    if _prepared_like(model.spec) != _prepared_by(data):
        raise JobError(
            f"model {model.spec.id} prepares photographs in another way than these records were"
        )


def _prepared_like(spec: ModelSpec) -> dict[str, Any]:
    steps = [dict(step) for step in spec.preprocessing]
    return {"size_px": spec.input_size_px, "preprocessing": steps, "gate": spec.quality_gate}


def _prepared_by(data: TrainingData) -> dict[str, Any]:
    manifest = data.manifest
    return {
        "size_px": manifest["size_px"],
        "preprocessing": manifest["preprocessing"],
        "gate": manifest.get("quality_gate"),
    }


def _asked(model: Trained, part: Part) -> Answers:
    predictor = Predictor.load(model.package, threads=default_threads())
    predictor.warm_up()
    rows = []
    for batch in part.batches(_BATCH):
        for pixels in batch.pixels:
            try:
                rows.append(predictor.probabilities_of(pixels))
            except EngineError:
                rows.append((float("nan"),) * len(model.spec.labels))
    return Answers(
        truth=part.grades,
        probabilities=np.array(rows, np.float64).reshape(len(rows), len(model.spec.labels)),
        owners=part.owners,
    )


def _nothing(model: Trained) -> Answers:
    return Answers(
        truth=np.zeros(0, np.int64), probabilities=np.zeros((0, len(model.spec.labels))), owners=()
    )
