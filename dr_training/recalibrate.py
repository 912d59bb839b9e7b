"""Fits a package to a site: temperature and thresholds from the site's own labelled images.

    >>> made = recalibrate(Path("model"), chosen, Path("model-site"), model_id="model-site", ...)
    >>> made.document["calibration"]["expected_calibration_error"]
    {'before': 0.081, 'after': 0.019}

The weights stay. Calibration comes first (Guo et al., 2017), then the thresholds on the
calibrated scores. Figures are measured on other images, or not at all: those that chose the
thresholds would flatter them.
"""

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from dr_training.bootstrap import DRAWS
from dr_training.data.faults import DataError
from dr_training.evaluate import expected_calibration_error, fit_temperature, softmax
from dr_training.evaluation import evaluate
from dr_training.operating_points import operating_points
from dr_training.origin import RECORDS
from dr_training.remarks import REMARKS, remarks
from dr_training.scoring import Scored
from inference_image.model_spec import (
    MODEL_JSON,
    ModelSpec,
    load_model_spec,
    verify_files,
)

CARD: Final = "MODEL_CARD.md"
# A temperature is one number; fewer images than this cannot give it.
LEAST_IMAGES: Final = 50


@dataclass(frozen=True)
class Recalibrated:
    """The new package, and the record of how it was made (also in its `model.json`)."""

    spec: ModelSpec
    document: Mapping[str, Any]


def recalibrate(
    package: Path,
    chosen: Scored,
    out: Path,
    *,
    model_id: str,
    data: str,
    sensitivity: float = 0.95,
    specificity: float = 0.95,
    test: Scored | None = None,
    prevalence: float | None = None,
    draws: int = DRAWS,
    records: Mapping[str, Any] | None = None,
) -> Recalibrated:
    """Write a new package with the site's temperature and thresholds.

    Args:
        package: folder of the package whose answers `chosen` and `test` hold.
        chosen: the images that decide (validation).
        out: folder of the new package; it must not exist or be empty.
        model_id: its id.
        data: what the images are, one phrase for the record.
        sensitivity: aim of the operating point `high_sensitivity`.
        specificity: aim of the operating point `high_specificity`.
        test: other images, on which the new package is measured; None leaves it unmeasured.
        prevalence: of referable patients at the site, for PPV and NPV.
        draws: of the bootstrap.
        records: table, split and parts of the images, by digests and names, for the record.

    Raises:
        DataError: too few images to choose from, an aim that is no share, or a folder in use.
        ModelPackageError: the package cannot be used.
    """
    spec = load_model_spec(package)
    verify_files(spec, package)
    if out.exists() and any(out.iterdir()):
        raise DataError(f"{out} is not empty; name a new folder for the new package")
    graded = chosen.chosen(chosen.gradable)
    check_enough(graded, sensitivity=sensitivity, specificity=specificity)
    logits = graded.logits(spec.temperature)
    target = graded.truth if graded.grades else graded.referable.astype(np.int64)
    temperature = fit_temperature(logits, target)
    after = rescaled(graded, spec.temperature, temperature)
    points = operating_points(
        graded.referable,
        after.score,
        sensitivity=sensitivity,
        specificity=specificity,
        data=data,
    )
    record: dict[str, Any] = {
        "from": {"id": spec.id, "sha256": spec.sha256},
        "data": data,
        **({} if records is None else {RECORDS: dict(records)}),
        "photographs": len(chosen),
        "gradable": len(graded),
        "failed": int(chosen.failed.sum()),
        "referable": int(graded.referable.sum()),
        "temperature": {"before": spec.temperature, "after": temperature},
        "expected_calibration_error": {
            "before": round(expected_calibration_error(graded.referable, graded.score), 4),
            "after": round(expected_calibration_error(graded.referable, after.score), 4),
        },
        REMARKS: remarks(temperature=temperature, positive=graded.referable),
    }
    metrics = None
    if test is not None:
        measured = rescaled(test, spec.temperature, temperature)
        thresholds = {point["name"]: float(point["threshold"]) for point in points}
        metrics = {
            "data": f"test images of {data}",
            **evaluate(measured, thresholds=thresholds, prevalence=prevalence, draws=draws),
        }
    document = json.loads(json.dumps(spec.raw))
    names = [point["name"] for point in points]
    document.update(
        id=model_id,
        temperature=temperature,
        operating_points=points,
        default_operating_point=(
            spec.default_operating_point if spec.default_operating_point in names else names[0]
        ),
        calibration=record,
        metrics=metrics,
    )
    # What was gated were other thresholds.
    document.pop("gate", None)
    _write(package, spec, document, out, record)
    return Recalibrated(spec=load_model_spec(out), document=document)


def rescaled(scored: Scored, before: float, after: float) -> Scored:
    """The same answers at another temperature."""
    probabilities = softmax(scored.logits(before), after)
    return Scored(
        photographs=scored.photographs,
        truth=scored.truth,
        gradable=scored.gradable,
        failed=scored.failed,
        probabilities=np.where(scored.gradable[:, None], probabilities, np.nan),
        reasons=scored.reasons,
    )


def check_enough(graded: Scored, *, sensitivity: float, specificity: float) -> None:
    """Refuse images that cannot tell thresholds with these aims apart.

    Raises:
        DataError: it says how many images would do.
    """
    for name, aim in (("sensitivity", sensitivity), ("specificity", specificity)):
        if not 0.5 <= aim < 1:
            raise DataError(f"the aim for {name} is a share from 0.5 to below 1, not {aim:g}")
    referable = int(graded.referable.sum())
    others = len(graded) - referable
    # At an aim of 0.95 the threshold lies above 1 in 20 referable images: 20 are the least.
    needed = math.ceil(round(1 / (1 - sensitivity), 6)), math.ceil(round(1 / (1 - specificity), 6))
    if referable < needed[0] or others < needed[1] or len(graded) < LEAST_IMAGES:
        raise DataError(
            f"insufficient data: {referable} referable and {others} other gradable images; aims of "
            f"{sensitivity:g} and {specificity:g} need at least {needed[0]} and {needed[1]}, and "
            f"{LEAST_IMAGES} in all"
        )


def _write(
    package: Path,
    spec: ModelSpec,
    document: Mapping[str, Any],
    out: Path,
    record: Mapping[str, Any],
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for entry in spec.files:
        target = out / entry.path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(package / entry.path, target)
    (out / MODEL_JSON).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    card = package / CARD
    before = card.read_text(encoding="utf-8") if card.is_file() else ""
    (out / CARD).write_text(_card(document, record) + before, encoding="utf-8")
    verify_files(load_model_spec(out), out)


def _card(document: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    points = "\n".join(
        f"| `{point['name']}` | {point['threshold']:.4f} | {point['chosen']} |"
        for point in document["operating_points"]
    )
    error = record["expected_calibration_error"]
    changed = f"{error['before']:.4f} → {error['after']:.4f}"
    told = "".join(f" Note: {remark}." for remark in record[REMARKS])
    measured = (
        "Its figures on other images of the site are in `model.json`."
        if document["metrics"]
        else "It was not measured on other images."
    )
    return f"""# Model card: {document["id"]}

The weights of `{record["from"]["id"]}` ({record["from"]["sha256"][:12]}) with temperature and
thresholds for {record["data"]}: {record["photographs"]:,} labelled images,
{record["gradable"]:,} gradable, {record["referable"]:,} referable. {measured}

| operating point | threshold | chosen |
|---|---|---|
{points}

Temperature {record["temperature"]["before"]:g} → {record["temperature"]["after"]:g}; expected
calibration error of P(referable) on these images {changed}.{told}

What follows is the card of the package that it was made from; its thresholds and figures are
not this one's.

---

"""
