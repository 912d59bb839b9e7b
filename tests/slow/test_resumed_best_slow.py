"""Best weights beside a state, where a folder was brought back file by file."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dr_training.data.faults import DataError
from dr_training.fitting.loop import BEST, Trainer, _Progress
from dr_training.fitting.plan import TrainingPlan
from dr_training.fitting.state import write_state

IDENTITY = {"records": "a", "plan": {"network": "vgg19"}}


def _resumed(out: Path, *, finished: bool = False, **best: Any) -> _Progress:
    """A state whose best epoch is 3, with a loss of 0.5, goes on from these best weights."""
    if best:
        write_state(out / BEST, {**IDENTITY, **best}, {"network": [np.zeros(2)]})
    progress = _Progress(epoch=5, best=0.5, best_epoch=3, since_better=1, finished=finished)
    trainer = SimpleNamespace(
        _progress=progress,
        _out=out,
        _identity=IDENTITY,
        _plan=TrainingPlan(network="mobilenet"),
    )
    Trainer._resume_best(trainer)  # type: ignore[arg-type]
    return progress


@pytest.mark.parametrize("epoch", [3, 4])
def test_those_of_the_state_and_newer_ones_change_nothing(
    epoch: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = _resumed(tmp_path, epoch=epoch, loss=0.4)
    assert (progress.best, progress.best_epoch, progress.since_better) == (0.5, 3, 1)
    assert capsys.readouterr().out == ""


def test_older_ones_count_as_what_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = _resumed(tmp_path, epoch=2, loss=0.7)
    assert (progress.best, progress.best_epoch) == (0.7, 2)
    assert "the weights of epoch 3, the best one, are not in" in capsys.readouterr().out


@pytest.mark.parametrize("best", [{}, {"epoch": 2, "loss": 0.1, "records": "b"}])
def test_without_any_or_with_another_trainings_the_next_epoch_is_best(
    best: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = _resumed(tmp_path, **best)
    assert (progress.best, progress.best_epoch) == (None, 0)
    assert "the next epoch counts as best" in capsys.readouterr().out


def test_a_finished_training_needs_its_best_weights(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a finished training without best\.npz"):
        _resumed(tmp_path, finished=True)
    assert _resumed(tmp_path, finished=True, epoch=2, loss=0.7).best_epoch == 2
