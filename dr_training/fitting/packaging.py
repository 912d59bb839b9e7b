"""Turns a trained grader into a package: conversion, temperature, thresholds, figures, card."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from dr_training import evaluate
from dr_training.data.faults import DataError
from dr_training.data.pipeline import Part, TrainingData
from dr_training.data.splits import TEST, VALIDATION
from dr_training.export import DenseLayer, PackageContent, write_package
from dr_training.fitting.figures import mean_auc
from dr_training.networks import head_layers
from dr_training.operating_points import HIGH_SENSITIVITY, operating_points
from dr_training.quantise import Runner, convert
from inference_image.contract import NOT_ASSESSED, REFERABLE_FROM_GRADE
from inference_image.model_spec import ModelSpec

NOTICE: Final = "Trained by its user; not validated for clinical use."
_AIM: Final = 0.90


def package_grader(
    network: Any,
    data: TrainingData,
    *,
    folder: Path,
    model_id: str,
    network_facts: Mapping[str, Any],
    provenance: Mapping[str, Any],
    aim: float = _AIM,
    saved_model: bool = False,
) -> ModelSpec:
    """Convert to a float `.tflite` and write a package; what is measured is the converted model.

    Temperature and thresholds (aims: `aim` sensitivity, `aim` specificity) come from the
    validation part, figures from the test part, or from the validation part where there is no
    other, which the package then says. With `saved_model` the package holds the network as a
    SavedModel in place of the `.tflite`, for the tensorflow image.

    Raises:
        DataError: the validation part has no referable photograph, or no other.
    """
    validation = data.part(VALIDATION)
    positive = validation.grades >= REFERABLE_FROM_GRADE
    if positive.all() or not positive.any():
        raise DataError(
            "thresholds need referable photographs and others in the validation part; it has "
            f"{int(positive.sum())} referable of {len(positive)}"
        )
    model, _ = convert(network, size_px=validation.size_px, calibration=None)
    runner = Runner(model, threads=1)
    logits, _ = runner(_pixels(validation))
    temperature = evaluate.fit_temperature(logits, validation.grades)
    score = evaluate.referable_score(evaluate.softmax(logits, temperature))
    points = operating_points(
        positive, score, sensitivity=aim, specificity=aim, data="the validation part"
    )
    measured, measured_on = validation, "validation part: it also chose epoch and thresholds"
    if TEST in data.parts and len(data.parts[TEST]):
        measured, measured_on = data.parts[TEST], "test part: it chose nothing"
        logits, _ = runner(_pixels(measured))
    metrics = {
        "data": measured_on,
        "model": "f32",
        **evaluate.grader_metrics(
            logits,
            measured.grades,
            temperature=temperature,
            thresholds={point["name"]: point["threshold"] for point in points},
        ),
        "mean_auc": round(mean_auc(evaluate.softmax(logits, temperature), measured.grades), 4),
    }
    manifest = data.manifest
    gate = manifest.get("quality_gate")
    spec = write_package(
        PackageContent(
            id=model_id,
            network=network_facts,
            input_size_px=validation.size_px,
            preprocessing=manifest["preprocessing"],
            quality_gate=gate,
            operating_points=points,
            default_operating_point=HIGH_SENSITIVITY,
            temperature=temperature,
            notice=NOTICE,
            metrics=metrics,
            provenance=provenance,
            model=model,
            head=[
                DenseLayer(kernel=kernel, bias=bias)
                for kernel, bias in (layer.get_weights() for layer in head_layers(network))
            ],
            card=_card(model_id, network_facts, provenance, metrics, manifest, len(model)),
        ),
        folder,
    )
    if saved_model:
        from dr_training.saved_package import replace_by_saved_model

        spec = replace_by_saved_model(folder, network)
    return spec


def _pixels(part: Part) -> Any:
    return np.concatenate([batch.pixels for batch in part.batches(64)])


def _card(
    model_id: str,
    network: Mapping[str, Any],
    provenance: Mapping[str, Any],
    metrics: Mapping[str, Any],
    manifest: Mapping[str, Any],
    size_bytes: int,
) -> str:
    steps = ", ".join(step["step"] for step in manifest["preprocessing"]) or "none"
    gate = "the service's" if manifest.get("quality_gate") else "none"
    rows = "\n".join(
        f"| {title} | {metrics[key]['value']:.3f} ({metrics[key]['low']:.3f} to "
        f"{metrics[key]['high']:.3f}) |"
        for title, key in (
            ("Accuracy (5 grades)", "accuracy"),
            ("Quadratic weighted kappa", "quadratic_weighted_kappa"),
            ("AUC for referable DR (grade ≥ 2)", "referable_auc"),
        )
    )
    return f"""# Model card: {model_id}

**{NOTICE}** It is not a medical device. {NOT_ASSESSED}

The model grades diabetic retinopathy on fundus photographs from 0 to 4 (ICDR scale).

## Network
{network["name"]}, backbone weights at the start: {network["backbone_weights"]}.
{network["parameters"]:,} parameters, f32, {size_bytes / 1e6:.2f} MB. Preparation before the
network: {steps}. Quality gate: {gate}.

## Data
Trained on {provenance["trained_on"]}.

## Results
On the {metrics["data"]}. n = {metrics["photographs"]:,}; in brackets the 95 % bootstrap interval.

| figure | value |
|---|---|
{rows}
| Mean AUC of one grade against the others | {metrics["mean_auc"]:.3f} |

## Intended use
Research. Before it meets patients: evaluate it on images of the cameras and the population that
it is for (`dr evaluate`), and recalibrate it there (`dr model recalibrate`).

## Reproduce
```
{provenance["command"]}
```
"""
