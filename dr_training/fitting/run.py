"""A training from records to a package: what `dr model train` does.

    >>> train_records(Path("records"), Path("out/trained"), TrainingPlan(network="mobilenet"))

Into the output folder go `state.npz` (to go on from), `best.npz` (weights and figures of the best
epoch), `history.csv`, TensorBoard's events, `training.json` and a package that
`dr serve` serves (`package/`). Temperature and thresholds are chosen on the validation part.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from dr_training.backbones import WEIGHTS_AUTO, WEIGHTS_RANDOM, weights_words
from dr_training.data.faults import DataError
from dr_training.data.pipeline import Part, TrainingData
from dr_training.data.preparation import MANIFEST
from dr_training.data.splits import TEST, TRAIN, VALIDATION
from dr_training.export import environment
from dr_training.fitting.figures import validation_figures
from dr_training.fitting.journal import write_history
from dr_training.fitting.loop import BEST, STATE, Trainer
from dr_training.fitting.packaging import check_thresholds, package_network
from dr_training.fitting.plan import (
    AUTO,
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    TPU,
    TRAIN_HEAD,
    TrainingPlan,
)
from dr_training.fitting.results import NETWORK, PACKAGE, RECORDS_SHA256, REPORT
from dr_training.fitting.strategies import Devices, choose_devices
from dr_training.networks import Classifier, build_classifier
from dr_training.remarks import REMARKS
from inference_image.model_spec import file_sha256

_DIGITS: Final = 4


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What came out: the report as JSON values, and the folder of the package (the chief's)."""

    report: Mapping[str, Any]
    package: Path | None


def train_records(
    records: Path,
    out: Path,
    plan: TrainingPlan,
    *,
    strategy: str = "auto",
    cpu_devices: int = 1,
    threads: int = 1,
    saved_model: bool = False,
    keras_file: bool = False,
    restart: bool = False,
    package_id: str | None = None,
    command: str = "dr model train",
    results: Path | None = None,
) -> Trained:
    """Train, go on from what a stopped training left, and write report and package.

    Args:
        records: folder that `dr data prepare` wrote; it needs `train` and `validation`.
        out: folder of state, epochs and results; the chief's counts.
        strategy: as in `strategies.choose_devices`.
        cpu_devices: logical devices of the CPU.
        threads: that decode pictures.
        saved_model: as in `packaging.package_network`.
        keras_file: also write the network as `network.keras` into `out`, from which
            quantisation-aware training goes on.
        restart: forget a training that `out` holds.
        package_id: model id; the folder's name when left out.
        command: what was typed, for the package's provenance.
        results: folder of report, package and the epochs' figures; `out` when left out.

    Raises:
        DataError: the records leak, lack a part, or what is asked for is not possible.
        TrainingStoppedError: SIGTERM or Ctrl-C; the state is on disk.
    """
    devices = choose_devices(strategy, cpu_devices=cpu_devices)
    data = TrainingData.open(records)
    train, validation = data.part(TRAIN), data.part(VALIDATION)
    # Now, not after the training.
    check_thresholds(validation.grades)
    manifest_sha256 = file_sha256(records / MANIFEST)
    out.mkdir(parents=True, exist_ok=True)
    if restart and devices.is_chief:
        for name in (STATE, BEST):
            (out / name).unlink(missing_ok=True)
    keras.mixed_precision.set_dtype_policy(_precision(plan, devices))
    with devices.strategy.scope():
        classifier = _classifier(plan, size_px=train.size_px)
        trainer = Trainer(
            classifier.network,
            plan,
            train=train,
            validation=validation,
            devices=devices,
            out=out,
            identity={
                "plan": plan.as_document(),
                "records": manifest_sha256,
                # Not why they are random, which may be told otherwise at another start.
                "weights": classifier.weights,
            },
            threads=threads,
        )
        history = trainer.run()
        best = trainer.load_best()
        values = [keras.ops.convert_to_numpy(one) for one in classifier.network.weights]
    keras.mixed_precision.set_dtype_policy(FLOAT32)
    report: dict[str, Any] = {
        "plan": plan.as_document(),
        "records": records.name,
        RECORDS_SHA256: manifest_sha256,
        "photographs": {name: len(part) for name, part in data.parts.items()},
        **classifier.weights_record(),
        "parameters": int(classifier.network.count_params()),
        "trained_parameters": int(
            sum(np.prod(one.shape) for one in classifier.network.trainable_variables)
        ),
        "devices": {
            "strategy": devices.name,
            "replicas": devices.replicas,
            "workers": devices.workers,
        },
        "epochs": len(history),
        "best_epoch": best["epoch"],
        "validation": best,
        "environment": environment(threads=tf.config.threading.get_intra_op_parallelism_threads()),
    }
    package = None
    folder = out if results is None else results
    if devices.is_chief:
        folder.mkdir(parents=True, exist_ok=True)
        if folder != out:
            write_history(folder, history)
        network = _plain_network(plan, size_px=train.size_px, values=values)
        if TEST in data.parts and len(data.parts[TEST]):
            report["test"] = _measured(network, data.parts[TEST], plan.batch_size)
        if keras_file:
            _write_network(out / NETWORK, network)
        package = folder / PACKAGE
        spec = package_network(
            network,
            data,
            folder=package,
            model_id=package_id or out.resolve().name,
            task=plan.task,
            saved_model=saved_model,
            network_facts={
                "name": plan.network,
                **classifier.weights_record(),
                "parameters": report["parameters"],
            },
            provenance={
                "trained_on": f"{len(train)} photographs of {records.name}",
                "command": command,
                **{k: report[k] for k in ("plan", "best_epoch", "devices", "environment")},
            },
        )
        report[REMARKS] = spec.raw["calibration"][REMARKS]
        _write_report(folder / REPORT, report)
    return Trained(report=report, package=package)


def _classifier(plan: TrainingPlan, *, size_px: int) -> Classifier:
    keras.utils.set_random_seed(plan.seed)
    classifier = build_classifier(
        plan.network,
        input_size_px=size_px,
        network_size_px=plan.network_size_px,
        task=plan.task,
        dropout=plan.dropout,
        weights=plan.weights,
    )
    if plan.train == TRAIN_HEAD:
        if plan.weights == WEIGHTS_AUTO and not classifier.pretrained:
            words = weights_words(classifier.weights_record())
            raise DataError(
                f"the backbone's weights would be {words}, and a head on a random "
                "backbone learns little; use --train all, another --network (efficientnet-lite0 "
                "has its weights in a package), or --weights random if that is meant"
            )
        for name in classifier.backbone_layers:
            classifier.network.get_layer(name).trainable = False
    return classifier


def _plain_network(plan: TrainingPlan, *, size_px: int, values: list[NDArray[Any]]) -> keras.Model:
    """The network in float32 without a strategy, as conversions need it."""
    network = build_classifier(
        plan.network,
        input_size_px=size_px,
        network_size_px=plan.network_size_px,
        task=plan.task,
        dropout=plan.dropout,
        weights=WEIGHTS_RANDOM,
    ).network
    network.set_weights(values)
    return network


def _measured(network: keras.Model, part: Part, batch_size: int) -> dict[str, Any]:
    """Figures on a part that chose nothing."""
    logits = [
        network(batch.pixels.astype(np.float32), training=False)["logits"].numpy()
        for batch in part.batches(batch_size)
    ]
    figures = validation_figures(np.concatenate(logits).astype(np.float64), part.grades)
    return {
        "photographs": len(part),
        **{k: None if v != v else round(v, _DIGITS) for k, v in figures.items()},
    }


def _precision(plan: TrainingPlan, devices: Devices) -> str:
    if plan.precision != AUTO:
        return plan.precision
    if devices.name == TPU:
        return BFLOAT16
    return FLOAT16 if tf.config.list_physical_devices("GPU") else FLOAT32


def _write_network(path: Path, network: keras.Model) -> None:
    # Keras goes by the suffix.
    partial = path.with_name(f"{path.stem}.{os.getpid()}.part{path.suffix}")
    try:
        network.save(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _write_report(path: Path, report: Mapping[str, Any]) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    partial.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)
