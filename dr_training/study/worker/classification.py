"""The run of the framework study: epochs over MNIST or CIFAR-10, timed apart from all else."""

from pathlib import Path
from typing import Any

import numpy as np

from dr_training.study.worker import images, networks
from dr_training.study.worker.record import Record
from dr_training.study.worker.trainers import import_framework, make_trainer

_TEST_BATCH = 500


def train(spec: dict[str, Any], record: Record, _out: Path) -> None:
    """Train as `spec` says and note times, losses and accuracies in `record`."""
    chosen = spec["parameters"]
    module = import_framework(chosen["framework"])
    record.mark("imported")
    data = images.load(
        chosen["data"],
        data_dir=Path(spec["data_dir"]) if spec["data_dir"] else None,
        size_px=chosen["size"],
        share=spec["share_of_images"],
        seed=spec["data_seed"],
    )
    record.mark("data_ready")
    network = networks.network(
        chosen["network"],
        size_px=chosen["size"],
        channels=data.train.shape[3],
        first_channels=spec["first_channels"],
    )
    trainer = make_trainer(
        module,
        network,
        networks.initial_weights(network, seed=spec["seed"]),
        device=spec["environment"]["device"],
        threads=spec["environment"]["threads"],
        learning_rate=chosen["learning_rate"],
        momentum=spec["momentum"],
    )
    record.mark("built")
    record.set(
        versions=trainer.versions(),
        stand_in=data.stand_in,
        train_images=len(data.train),
        test_images=len(data.test),
        parameters=network.parameters(),
    )
    for epoch in range(chosen["epochs"]):
        order = np.random.default_rng([spec["seed"], epoch]).permutation(len(data.train))
        with record.epoch() as noted:
            noted["loss"], noted["first_loss"] = _epoch(trainer, data, order, chosen["batch"])
        noted["accuracy"] = _accuracy(trainer, data)
        record.save()


def _epoch(trainer: Any, data: images.Images, order: Any, batch: int) -> tuple[float, float]:
    """One pass over the training images; a smaller last batch is left out, as shapes cost time."""
    losses = []
    batch = min(batch, len(order))
    for start in range(0, len(order) - batch + 1, batch):
        rows = order[start : start + batch]
        losses.append(trainer.train(_scaled(data.train[rows]), data.train_labels[rows]))
        if not np.isfinite(losses[-1]):
            raise FloatingPointError(f"the loss became {losses[-1]} at batch {len(losses)}")
    return float(np.mean(losses)), losses[0]


def _accuracy(trainer: Any, data: images.Images) -> float:
    right = 0
    for start in range(0, len(data.test), _TEST_BATCH):
        rows = slice(start, start + _TEST_BATCH)
        answers = trainer.predict(_scaled(data.test[rows]))
        right += int((answers.argmax(axis=1) == data.test_labels[rows]).sum())
    return right / len(data.test)


def _scaled(pixels: Any) -> Any:
    return pixels.astype(np.float32) / np.float32(255)
