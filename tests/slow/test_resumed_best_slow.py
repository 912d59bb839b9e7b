"""Best weights beside a state, where a folder was brought back file by file."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from dr_training.data.faults import DataError
from dr_training.fitting.loop import BEST, Trainer, TrainingStoppedError, _Progress
from dr_training.fitting.plan import TrainingPlan
from dr_training.fitting.sharing import Sharing
from dr_training.fitting.state import write_state
from dr_training.fitting.strategies import Devices

IDENTITY = {"records": "a", "plan": {"network": "vgg19"}}


def _trainer(out: Path, progress: _Progress) -> Any:
    return SimpleNamespace(
        _progress=progress,
        _out=out,
        _identity=IDENTITY,
        _plan=TrainingPlan(network="mobilenet"),
    )


def _resumed(
    out: Path, *, finished: bool = False, row: dict[str, Any] | None = None, **others: Any
) -> _Progress:
    """A state whose best epoch is 3, with a loss of 0.5, goes on from these best weights."""
    if row is not None:
        write_state(out / BEST, {**IDENTITY, "row": row, **others}, {"network": [np.zeros(2)]})
    progress = _Progress(epoch=5, best=0.5, best_epoch=3, since_better=1, finished=finished)
    Trainer._resume_best(_trainer(out, progress))
    return progress


def test_those_of_the_state_change_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = _resumed(tmp_path, row={"epoch": 3, "loss": 0.5})
    assert (progress.best, progress.best_epoch, progress.since_better) == (0.5, 3, 1)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("finished", [False, True])
def test_newer_ones_do_not_change_how_epochs_are_judged_and_are_spoken_of(
    finished: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = _resumed(tmp_path, finished=finished, row={"epoch": 4, "loss": 0.4})
    assert (progress.best, progress.best_epoch, progress.since_better) == (0.5, 3, 1)
    assert "are those of epoch 4, which is not the state's best one" in capsys.readouterr().out


def test_older_ones_count_as_what_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = _resumed(tmp_path, row={"epoch": 2, "loss": 0.7})
    assert (progress.best, progress.best_epoch) == (0.7, 2)
    assert "the weights of epoch 3, the best one, are not in" in capsys.readouterr().out


@pytest.mark.parametrize("best", [{}, {"row": {"epoch": 4, "loss": 0.1}, "records": "b"}])
def test_without_any_or_with_another_trainings_the_next_epoch_is_best(
    best: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = _resumed(tmp_path, **best)
    assert (progress.best, progress.best_epoch) == (None, 0)
    assert "the next epoch counts as best" in capsys.readouterr().out


def test_a_finished_training_needs_its_best_weights(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a finished training without best\.npz"):
        _resumed(tmp_path, finished=True)
    assert _resumed(tmp_path, finished=True, row={"epoch": 2, "loss": 0.7}).best_epoch == 2


def test_the_best_weights_come_with_the_figures_that_were_measured_with_them(
    tmp_path: Path,
) -> None:
    # The history, of a training that went on elsewhere, has another figure of epoch 3.
    progress = _Progress(best=0.5, best_epoch=1, history=[{"epoch": 3, "loss": 0.6}])
    trainer = _trainer(tmp_path, progress)
    trainer._sharing = _sharing(workers=1)
    trainer.network = SimpleNamespace(variables=[tf.Variable([0.0, 0.0])])
    facts = {**IDENTITY, "row": {"epoch": 3, "loss": 0.4}}
    write_state(tmp_path / BEST, facts, {"network": [np.array([1.0, 2.0], np.float32)]})
    assert Trainer.load_best(trainer) == {"epoch": 3, "loss": 0.4}
    assert trainer.network.variables[0].numpy().tolist() == [1.0, 2.0]


def _sharing(*, workers: int, worker: int = 0) -> Sharing:
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    return Sharing(
        Devices(name="x", strategy=strategy, replicas=workers, workers=workers, worker=worker)
    )


class _Meetings:
    """Stands for the collectives: those of the given numbers fail, as where a worker has ended."""

    def __init__(self, *failing: int) -> None:
        self.count, self._failing = 0, failing

    def __call__(self, *, differs: bool) -> bool:
        self.count += 1
        if self.count in self._failing:
            raise tf.errors.UnavailableError(None, None, "socket closed")
        return differs


@pytest.mark.parametrize(
    ("worker", "failing", "error"),
    [
        (0, (), TrainingStoppedError),
        (1, (), TrainingStoppedError),
        # Somebody was quicker to leave the last meeting: all had come out of the first one.
        (0, (2,), TrainingStoppedError),
        (1, (2,), TrainingStoppedError),
        # Somebody has ended before: the chief knows that the state is saved, another does not.
        (0, (1, 2), TrainingStoppedError),
        (1, (1, 2), tf.errors.UnavailableError),
    ],
)
def test_workers_that_stop_leave_when_none_needs_another(
    worker: int,
    failing: tuple[int, ...],
    error: type[Exception],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = _trainer(tmp_path, _Progress(epoch=2, step=4))
    sharing, meetings = _sharing(workers=2, worker=worker), _Meetings(*failing)
    monkeypatch.setattr(sharing, "_any", meetings)
    trainer._sharing, trainer._devices = sharing, sharing._devices
    with pytest.raises(error):
        Trainer._leave(trainer)
    assert meetings.count == (1 if 1 in failing else 2)
