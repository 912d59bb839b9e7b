"""The training loop: the same steps on a CPU, on GPUs, on several workers and on a TPU.

Every replica computes the gradient of the sum of its photographs' losses over the number of
photographs of the whole batch, and the optimizer adds the gradients of all replicas: the result
does not depend on how many there are, but for batch normalisation, whose statistics are those
of a replica's own photographs in training (`moving_statistics` averages them for what follows).

Keras's own `fit` does not work under `MultiWorkerMirroredStrategy` (keras 3.15), hence this loop.
"""

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from dr_training.data.faults import DataError
from dr_training.data.pipeline import Augmentation, Part
from dr_training.fitting.figures import validation_figures
from dr_training.fitting.journal import Journal, write_history
from dr_training.fitting.moving_statistics import MovingStatistics, follow_within_an_epoch
from dr_training.fitting.objectives import class_weights, photograph_loss
from dr_training.fitting.plan import FLOAT16, TrainingPlan
from dr_training.fitting.sharing import Sharing
from dr_training.fitting.state import assign, read_state, write_state
from dr_training.fitting.strategies import Devices

STATE: Final = "state.npz"
BEST: Final = "best.npz"
_VARIABLES, _OPTIMIZER = "network", "optimizer"
# In the facts of the best weights: the figures of their epoch, as in the history.
_ROW: Final = "row"
_SMALLEST_RATE: Final = 1e-7
_DIGITS: Final = 6


class TrainingStoppedError(Exception):
    """The training was asked to stop, and its state is on disk."""

    def __init__(self, epoch: int, step: int, state: Path) -> None:
        self.epoch, self.step = epoch, step
        super().__init__(
            f"stopped in epoch {epoch} after step {step}; the same command goes on from {state}"
        )


@dataclass
class _Progress:
    """Where a training stands; all of it is in the state file."""

    epoch: int = 1
    step: int = 0
    loss_sum: float = 0.0
    seconds: float = 0.0
    best: float | None = None
    best_epoch: int = 0
    since_better: int = 0
    since_reduced: int = 0
    finished: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)


class Trainer:
    """Trains a network on records; build it and the network inside the strategy's scope.

    Args:
        network: pixels to `logits`, as `networks.build_classifier` makes it.
        plan: what to do.
        train, validation: parts of the records.
        devices: on what.
        out: folder of state, best weights, `history.csv` and TensorBoard's events. The chief's
            counts; the other workers may have the same or one of their own.
        identity: JSON values that a state must agree with to be gone on from.
        threads: that decode.
    """

    def __init__(
        self,
        network: keras.Model,
        plan: TrainingPlan,
        *,
        train: Part,
        validation: Part,
        devices: Devices,
        out: Path,
        identity: dict[str, Any],
        threads: int = 1,
    ) -> None:
        if plan.batch_size % devices.replicas:
            raise DataError(
                f"batch_size {plan.batch_size} cannot be shared by {devices.replicas} devices; "
                f"use a multiple of {devices.replicas}"
            )
        self._steps = len(train) // plan.batch_size
        if self._steps == 0 or len(validation) == 0:
            raise DataError(
                f"there are {len(train)} photographs to train on and {len(validation)} to validate "
                f"with; a batch needs {plan.batch_size} and validation at least 1"
            )
        self.network = network
        self._plan, self._devices, self._threads = plan, devices, threads
        self._train, self._validation = train, validation
        self._out, self._identity = out, identity
        self._class_weights = class_weights(plan, train.grades)
        self._loss = photograph_loss(plan)
        self._variables = network.trainable_variables
        self._optimizer = _optimizer(plan)
        self._optimizer.build(self._variables)
        self._progress = _Progress()
        self._asked_to_stop = False
        follow_within_an_epoch(network, steps=self._steps)
        self._train_step, self._answer = self._functions()
        self._sharing = Sharing(devices)
        self._statistics = MovingStatistics(network, devices)

    def run(self) -> list[dict[str, Any]]:
        """Train until the last epoch or the early stop; gives a row per epoch.

        A state in `out` is gone on from.

        Raises:
            TrainingStoppedError: SIGTERM or Ctrl-C; the step in progress was ended and is in the
                state. Where it came in validation, the state holds the whole epoch before that.
            DataError: the state in `out` is of another training.
            FloatingPointError: the loss is no number.
        """
        self._sharing.agree(self._identity, "records, plan and weights to begin with")
        for name in (STATE, BEST):
            self._sharing.file(self._out / name)
        self._resume()
        with (
            _stopping(self._stop),
            Journal(self._out, is_chief=self._devices.is_chief, steps=self._steps) as journal,
        ):
            while not self._progress.finished:
                self._epoch(journal)
        return self._progress.history

    def load_best(self) -> dict[str, Any]:
        """Put the best epoch's weights into the network; gives the row of that epoch.

        It is what was measured with these weights, where the history may hold another figure of
        that epoch, or none: see `_resume_best`. No worker is needed by another one after this.
        """
        self._sharing.file(self._out / BEST)
        self._sharing.leave()
        facts, groups = read_state(self._out / BEST)
        assign(self.network.variables, groups[_VARIABLES], what="best weights")
        row: dict[str, Any] = facts[_ROW]
        return row

    def answers(self, part: Part) -> NDArray[np.float64]:
        """Logits (n, k) of every photograph of a part, in its order.

        Raises:
            TrainingStoppedError: a worker was asked to stop meanwhile.
        """
        batch_size = self._plan.batch_size
        dataset = self._dataset(part, fill=True)
        found = []
        for pixels, _, _ in dataset:
            logits, stops = self._answer(pixels, self._stop_flag())
            found.append(logits.numpy())
            if self._must_stop(float(stops)):
                self._leave()
        assert len(found) == math.ceil(len(part) / batch_size)  # noqa: S101
        return np.concatenate(found)[: len(part)].astype(np.float64)

    def _functions(self) -> tuple[Any, Any]:
        strategy, network, variables = self._devices.strategy, self.network, self._variables
        optimizer, loss_of = self._optimizer, self._loss

        def replica_step(pixels: Any, grades: Any, weights: Any, stop: Any) -> tuple[Any, Any]:
            context = tf.distribute.get_replica_context()
            count = context.all_reduce("SUM", tf.cast(tf.size(grades), tf.float32))
            with tf.GradientTape() as tape:
                logits = network(tf.cast(pixels, tf.float32), training=True)["logits"]
                loss = tf.reduce_sum(loss_of(logits, grades) * weights) / count
                scaled = optimizer.scale_loss(loss)
            optimizer.apply(tape.gradient(scaled, variables), variables)
            # A tensor of each replica's own: one that they share could not be summed.
            return loss, tf.identity(stop)

        @tf.function(autograph=False)  # type: ignore[untyped-decorator]
        def train_step(batch: Any, stop: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            loss, stops = strategy.run(replica_step, args=(*batch, stop))
            return (
                strategy.reduce("SUM", loss, axis=None),
                strategy.reduce("SUM", stops, axis=None),
            )

        def replica_answer(pixels: Any, stop: Any) -> tuple[Any, Any]:
            logits = network(tf.cast(pixels, tf.float32), training=False)["logits"]
            return logits, tf.identity(stop)

        @tf.function(autograph=False)  # type: ignore[untyped-decorator]
        def answer(pixels: Any, stop: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            logits, stops = strategy.run(replica_answer, args=(pixels, stop))
            return (
                strategy.gather(logits, axis=0),
                strategy.reduce("SUM", stops, axis=None),
            )

        return train_step, answer

    def _epoch(self, journal: Journal) -> None:
        at = self._progress
        if at.step < self._steps:
            self._training_pass(journal)
            # Validation may take longer than a host is given that has to end.
            self._save()
        asked_to_stop = self._finish_epoch(journal)
        if asked_to_stop and not at.finished:
            self._leave()

    def _training_pass(self, journal: Journal) -> None:
        at = self._progress
        start = time.monotonic() - at.seconds
        for batch in self._dataset(self._train, epoch=at.epoch, first=at.step):
            loss, stops = (float(value) for value in self._train_step(batch, self._stop_flag()))
            at.step += 1
            at.loss_sum += loss
            at.seconds = time.monotonic() - start
            if not math.isfinite(loss):
                raise FloatingPointError(
                    f"the loss is {loss} in epoch {at.epoch}, step {at.step}; use a smaller "
                    "--learning-rate"
                )
            journal.step(at.epoch, at.step, loss)
            if self._must_stop(stops):
                self._statistics.average()
                self._save()
                self._leave()
        self._statistics.average()

    def _finish_epoch(self, journal: Journal) -> bool:
        """Validate, judge and save; gives whether a worker was asked to stop, the same on all."""
        at, plan = self._progress, self._plan
        figures = validation_figures(self.answers(self._validation), self._validation.grades)
        row = {
            "epoch": at.epoch,
            "train_loss": round(at.loss_sum / at.step, _DIGITS + 2),
            **{k: None if math.isnan(v) else round(v, _DIGITS) for k, v in figures.items()},
            "learning_rate": self._rate(),
            "seconds": round(at.seconds, 3),
            "images_per_s": round(at.step * plan.batch_size / max(at.seconds, 1e-9), 1),
        }
        at.history.append(row)
        self._judge(row)
        at.finished = at.epoch >= plan.epochs or at.since_better >= plan.stop_patience
        if not at.finished:
            at.epoch += 1
        at.step, at.loss_sum, at.seconds = 0, 0.0, 0.0
        if self._devices.is_chief:
            write_history(self._out, at.history)
        self._save()
        # No worker goes on before the chief has written what the others may read.
        asked_to_stop = self._sharing.any_says(self._asked_to_stop)
        journal.epoch(row)
        return asked_to_stop

    def _judge(self, row: dict[str, Any]) -> None:
        """Best weights, rate reduction and early stop by the monitored figure."""
        at, plan = self._progress, self._plan
        value = row[plan.monitor]
        if value is None:
            raise DataError(
                f"{plan.monitor} is not defined on the validation part (too few grades); choose "
                "--monitor loss"
            )
        better = at.best is None or (value > at.best if plan.higher_is_better else value < at.best)
        if better:
            at.best, at.best_epoch = value, row["epoch"]
            at.since_better = at.since_reduced = 0
            if self._devices.is_chief:
                facts = {_ROW: row, **self._identity}
                write_state(self._out / BEST, facts, {_VARIABLES: _values(self.network.variables)})
            return
        at.since_better += 1
        at.since_reduced += 1
        if at.since_reduced >= plan.reduce_patience:
            at.since_reduced = 0
            rate = max(_SMALLEST_RATE, row["learning_rate"] * plan.reduce_factor)
            self._optimizer.learning_rate.assign(rate)

    def _dataset(self, part: Part, *, fill: bool = False, epoch: int = 0, first: int = 0) -> Any:
        """One pass over a part, dealt out to the replicas of this worker."""
        devices, plan = self._devices, self._plan
        training = not fill
        local = devices.local_replicas
        side = part.size_px

        def rows() -> Iterator[tuple[Any, ...]]:
            batches = part.batches(
                plan.batch_size,
                augment=Augmentation() if training and plan.augment else None,
                seed=plan.seed if training else None,
                epoch=epoch,
                drop_remainder=training,
                fill=fill,
                threads=self._threads,
                first=first,
                share=(devices.worker, devices.workers),
            )
            for batch in batches:
                weights = batch.weights * self._class_weights[batch.grades]
                count = len(weights) // local
                for index in range(local):
                    mine = slice(index * count, (index + 1) * count)
                    yield batch.pixels[mine], batch.grades[mine], weights[mine]

        per_replica = plan.batch_size // devices.replicas
        signature = (
            tf.TensorSpec((per_replica, side, side, 3), tf.uint8),
            tf.TensorSpec((per_replica,), tf.int64),
            tf.TensorSpec((per_replica,), tf.float32),
        )
        dataset = tf.data.Dataset.from_generator(rows, output_signature=signature).prefetch(local)
        return devices.strategy.distribute_datasets_from_function(lambda _: dataset)

    def _rate(self) -> float:
        return float(keras.ops.convert_to_numpy(self._optimizer.learning_rate))

    def _stop(self) -> None:
        self._asked_to_stop = True

    def _stop_flag(self) -> tf.Tensor:
        return tf.constant(float(self._asked_to_stop))

    def _must_stop(self, stops: float) -> bool:
        """Whether to stop after a step that began with so many flags raised.

        All workers see the same sum, so all of them stop after the same step; one alone need not
        take another step to hear of it.
        """
        return stops > 0 or (self._asked_to_stop and self._devices.workers == 1)

    def _leave(self) -> NoReturn:
        """End where all workers do; the chief has saved the state before it comes here.

        No other worker ends sooner: SageMaker may end a job as soon as one of its hosts has ended.
        """
        try:
            self._sharing.leave()
        except tf.errors.OpError:
            # The chief knows that the state is saved; another one does not know it of the chief.
            if not self._devices.is_chief:
                raise
        raise TrainingStoppedError(self._progress.epoch, self._progress.step, self._out / STATE)

    def _save(self) -> None:
        if not self._devices.is_chief:
            return
        facts = {"identity": self._identity, "progress": vars(self._progress)}
        groups = {
            _VARIABLES: _values(self.network.variables),
            _OPTIMIZER: _values(self._optimizer.variables),
        }
        write_state(self._out / STATE, facts, groups)

    def _resume(self) -> None:
        path = self._out / STATE
        if not path.exists():
            return
        facts, groups = read_state(path)
        for name, value in self._identity.items():
            was = facts["identity"].get(name)
            if was != value:
                changed = _first_difference(was, value)
                raise DataError(
                    f"{self._out} holds a training with another {name} ({changed}); name another "
                    "--out, or --restart to begin again"
                )
        assign(self.network.variables, groups[_VARIABLES], what="weights")
        assign(self._optimizer.variables, groups[_OPTIMIZER], what="optimizer's numbers")
        self._progress = _Progress(**facts["progress"])
        self._resume_best()

    def _resume_best(self) -> None:
        """Go on from the best weights that are there.

        Where a folder was brought back from elsewhere, file by file, the best weights may be
        older than the state, or missing, or newer. Newer ones do not change by what figures the
        epochs are judged: so a training that comes to the same figures again ends as one that was
        not cut. Where it does not, and no epoch is better than the state's best one, whose
        weights are gone, the newer ones are the best that are left, with their own figures.
        """
        at, path = self._progress, self._out / BEST
        facts = read_state(path)[0] if path.exists() else {}
        if any(facts.get(name) != value for name, value in self._identity.items()):
            facts = {}
        row = facts.get(_ROW, {})
        epoch = int(row.get("epoch", 0))
        if epoch > at.best_epoch:
            print(
                f"the best weights in {self._out} are those of epoch {epoch}, which is not the "
                "state's best one; a better epoch replaces them, or else they count with their own "
                "figures",
                flush=True,
            )
        elif epoch < at.best_epoch:
            if at.finished and epoch == 0:
                raise DataError(
                    f"{self._out} holds a finished training without {BEST}; name another --out, or "
                    "--restart to begin again"
                )
            print(
                f"the weights of epoch {at.best_epoch}, the best one, are not in {self._out}; "
                f"{f'those of epoch {epoch} are' if epoch else 'the next epoch counts as best'}",
                flush=True,
            )
            at.best, at.best_epoch = row.get(self._plan.monitor), epoch


def _optimizer(plan: TrainingPlan) -> keras.Optimizer:
    optimizer = keras.optimizers.AdamW(plan.learning_rate, weight_decay=plan.weight_decay)
    if keras.mixed_precision.dtype_policy().name == FLOAT16:
        return keras.optimizers.LossScaleOptimizer(optimizer)
    return optimizer


def _values(variables: list[Any]) -> list[NDArray[Any]]:
    return [np.asarray(keras.ops.convert_to_numpy(one)) for one in variables]


def _first_difference(was: Any, now: Any) -> str:
    if isinstance(was, dict) and isinstance(now, dict):
        for name in sorted(set(was) | set(now)):
            if was.get(name) != now.get(name):
                return f"{name} was {was.get(name)}, now {now.get(name)}"
    return f"it was {was}, now {now}"


@contextmanager
def _stopping(stop: Any) -> Iterator[None]:
    """Within, SIGTERM and Ctrl-C ask for a stop; a second one ends the process at once."""
    wanted = (signal.SIGTERM, signal.SIGINT)
    before: dict[signal.Signals, Any] = {}

    def handle(_number: int, _frame: object) -> None:
        for one, handler in before.items():
            signal.signal(one, handler)
        stop()

    for one in wanted:
        before[one] = signal.signal(one, handle)
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
