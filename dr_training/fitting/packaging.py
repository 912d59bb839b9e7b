"""Turns a trained network into a package: conversion, temperature, thresholds, figures, card."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dr_training import evaluate
from dr_training.data.faults import DataError
from dr_training.data.pipeline import Part, TrainingData
from dr_training.data.preparation import MANIFEST
from dr_training.data.splits import TEST, VALIDATION
from dr_training.export import DenseLayer, PackageContent, write_package
from dr_training.fitting.figures import mean_auc
from dr_training.networks import head_layers
from dr_training.operating_points import HIGH_SENSITIVITY, operating_points
from dr_training.origin import RECORDS, origin_of
from dr_training.quantise import Runner, convert
from dr_training.remarks import REMARKS, remarks
from inference_image.contract import (
    NOT_A_DEVICE,
    NOT_ASSESSED,
    REFERABLE_FROM_GRADE,
    TASK_GRADE5,
)
from inference_image.model_spec import ModelSpec, file_sha256

NOTICE: Final = "Trained by its user; not validated for clinical use."
INTENDED_USE: Final = (
    "Research. Before it meets patients: evaluate it on images of the cameras and the population "
    "that it is for (dr evaluate), and recalibrate it there (dr model recalibrate). "
    f"{NOT_A_DEVICE} {NOT_ASSESSED}"
)
_AIM: Final = 0.90


def package_network(
    network: Any,
    data: TrainingData,
    *,
    folder: Path,
    model_id: str,
    network_facts: Mapping[str, Any],
    provenance: Mapping[str, Any],
    task: str = TASK_GRADE5,
    aim: float = _AIM,
    saved_model: bool = False,
) -> ModelSpec:
    """Convert to a float `.tflite` and write a package; what is measured is the converted model.

    Temperature and thresholds (aims: `aim` sensitivity, `aim` specificity) come from the
    validation part, figures from the test part, or from the validation part where there is no
    other, which the package then says; their intervals are over patients where the records name
    them. A network of the task `referable` has log-odds (n, 1), and
    is measured on its decision alone. With `saved_model` the package holds the network as a
    SavedModel in place of the `.tflite`, for the tensorflow image. Its provenance names the records
    by their digests (`dr_training.origin`).

    Raises:
        DataError: the validation part has no referable photograph, or no other.
    """
    validation = data.part(VALIDATION)
    check_thresholds(validation.grades)
    positive = validation.grades >= REFERABLE_FROM_GRADE
    model, _ = convert(network, size_px=validation.size_px, calibration=None)
    runner = Runner(model, threads=1)
    logits = evaluate.class_logits(runner(_pixels(validation))[0])
    truth = evaluate.true_classes(validation.grades, task)
    temperature = evaluate.fit_temperature(logits, truth)
    raw = evaluate.referable_score(evaluate.softmax(logits))
    score = evaluate.referable_score(evaluate.softmax(logits, temperature))
    calibration = {
        "data": "the validation part",
        "photographs": len(positive),
        "temperature": {"before": 1.0, "after": temperature},
        "expected_calibration_error": {
            name: round(evaluate.expected_calibration_error(positive, one), 4)
            for name, one in (("before", raw), ("after", score))
        },
        REMARKS: remarks(temperature=temperature, positive=positive),
    }
    points = operating_points(
        positive, score, sensitivity=aim, specificity=aim, data="the validation part"
    )
    measured, measured_on = validation, "validation part: it also chose epoch and thresholds"
    part = VALIDATION
    if TEST in data.parts and len(data.parts[TEST]):
        measured, measured_on = data.parts[TEST], "test part: it chose nothing"
        part = TEST
        logits = evaluate.class_logits(runner(_pixels(measured))[0])
    metrics: dict[str, Any] = {
        "data": measured_on,
        "model": "f32",
        **evaluate.grader_metrics(
            logits,
            measured.grades,
            temperature=temperature,
            thresholds={point["name"]: point["threshold"] for point in points},
            patients=measured.patients,
        ),
    }
    if task == TASK_GRADE5:
        area = mean_auc(evaluate.softmax(logits, temperature), measured.grades)
        metrics["mean_auc"] = round(area, 4)
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
            calibration=calibration,
            notice=NOTICE,
            metrics=metrics,
            provenance={
                **provenance,
                RECORDS: origin_of(
                    manifest,
                    manifest_sha256=file_sha256(data.folder / MANIFEST),
                    measured_on=part,
                ),
            },
            model=model,
            head=[
                DenseLayer(kernel=kernel, bias=bias)
                for kernel, bias in (layer.get_weights() for layer in head_layers(network))
            ],
            task=task,
            intended_use=INTENDED_USE,
            # That of the photographs and of the backbone's weights, which are not ours.
            licence=None,
        ),
        folder,
    )
    if saved_model:
        from dr_training.saved_model import replace_by_saved_model

        spec = replace_by_saved_model(folder, network)
    return spec


def check_thresholds(grades: NDArray[np.int64]) -> None:
    """Refuse a validation part on which no threshold can be chosen.

    Args:
        grades: (n,) of its photographs.

    Raises:
        DataError: it has no referable photograph, or no other.
    """
    positive = grades >= REFERABLE_FROM_GRADE
    if positive.all() or not positive.any():
        raise DataError(
            "thresholds need referable photographs and others in the validation part; it has "
            f"{int(positive.sum())} referable of {len(positive)}"
        )


def _pixels(part: Part) -> Any:
    return np.concatenate([batch.pixels for batch in part.batches(64)])
