"""What a training writes of its epochs: a CSV file, TensorBoard's events and a progress bar."""

import csv
import io
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import tensorflow as tf
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

COLUMNS: Final = (
    "epoch",
    "train_loss",
    "loss",
    "accuracy",
    "kappa",
    "auc",
    "referable_auc",
    "learning_rate",
    "seconds",
    "images_per_s",
)
HISTORY: Final = "history.csv"
EVENTS: Final = "tensorboard"


def write_history(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """All epochs as `history.csv`, written whole; a figure that is not defined is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        shown = {name: row[name] for name in COLUMNS}
        writer.writerow({k: "" if v is None or v != v else v for k, v in shown.items()})
    path = folder / HISTORY
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    partial.write_text(text.getvalue(), encoding="utf-8")
    partial.replace(path)


class Journal:
    """Writes events and moves the bar; does nothing on workers other than the chief."""

    def __init__(self, folder: Path, *, is_chief: bool, steps: int) -> None:
        self._chief = is_chief
        self._folder = folder
        self._steps = steps

    def __enter__(self) -> Self:
        self._writer = None
        if self._chief:
            self._writer = tf.summary.create_file_writer(str(self._folder / EVENTS))
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.4f}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not (self._chief and sys.stderr.isatty()),
        )
        self._bar.start()
        self._task = self._bar.add_task("", total=self._steps, loss=float("nan"))
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
        if self._writer is not None:
            self._writer.close()

    def step(self, epoch: int, step: int, loss: float) -> None:
        """The bar after a step."""
        self._bar.update(self._task, description=f"epoch {epoch}", completed=step, loss=loss)

    def epoch(self, row: Mapping[str, Any], *, say: bool = True) -> None:
        """One line on standard output, and the epoch's figures as events."""
        if self._writer is None:
            return
        with self._writer.as_default():
            for name in COLUMNS[1:]:
                _scalar(name, row[name], int(row["epoch"]))
        self._writer.flush()
        if say:
            kappa = "" if row["kappa"] is None else f", kappa {row['kappa']:.4f}"
            print(
                f"epoch {row['epoch']}: training loss {row['train_loss']:.4f}; validation loss "
                f"{row['loss']:.4f}, accuracy {row['accuracy']:.4f}{kappa}, AUC "
                f"{_shown(row['auc'])}; rate {row['learning_rate']:.2e}, {row['seconds']:.1f} s",
                flush=True,
            )


def _shown(value: float | None) -> str:
    return "not defined" if value is None else f"{value:.4f}"


def _scalar(name: str, value: float | None, step: int) -> None:
    """As `tf.summary.scalar` does, which needs the package TensorBoard; this does not."""
    if value is None:
        return
    metadata = tf.compat.v1.SummaryMetadata(
        plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars")
    )
    tf.summary.write(name, tf.constant(value, tf.float32), step=step, metadata=metadata)
