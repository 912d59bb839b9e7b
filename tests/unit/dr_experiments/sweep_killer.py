"""Runs sweeps that are killed at each of their steps, and continues them: one JSON line each.

A program of its own, so that it may fork without threads around: `python -m … FOLDER`.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from dr_experiments.records import read_jsonl
from dr_experiments.sweep import journal as journals
from dr_experiments.sweep import runner
from dr_experiments.sweep.journal import Journal
from dr_experiments.sweep.runner import SWEEP, holding, watch
from tests.unit.dr_experiments.sweep_fakes import (
    NAMES,
    FileCloud,
    HalfPricePurse,
    a_run,
    killed_at,
    measure_with,
    small_plan,
)

MOST_STEPS = 200


def main(root: Path) -> None:
    """Kill at step 1, 2, … until a run comes through; then continue and report each."""
    # A kill leaves the system's own buffers as they are: forcing them to the disk shows nothing.
    os.fsync = lambda _descriptor: None  # type: ignore[assignment]
    for number in range(1, MOST_STEPS):
        folder = root / str(number)
        folder.mkdir()
        code = _in_child(lambda folder=folder, n=number: _sweep(folder, killed_at(n)))
        cloud = FileCloud(folder / "cloud")
        after_kill = sorted(cloud.standing)
        known = sorted(Journal(folder / "journal.jsonl").state().standing)
        if number % 2:
            # Half of them: the watcher first, as in the field; else the next run alone.
            watch(folder, cloud, HalfPricePurse())
            assert not cloud.standing, cloud.standing
        _sweep(folder, lambda: None)
        report = {
            "killed": code == 9,
            "after_kill": after_kill,
            "known": known,
            "standing": sorted(cloud.standing),
            "still_known": sorted(Journal(folder / "journal.jsonl").state().standing),
            "records": [
                (r.configuration, r.index, r.run_id) for r in read_jsonl(folder / "requests.jsonl")
            ],
            "finished": Journal(folder / "journal.jsonl").state().finished,
            "measured_events": [
                e["name"]
                for e in Journal(folder / "journal.jsonl").events()
                if e["event"] == journals.MEASURED
            ],
        }
        print(json.dumps(report), flush=True)
        if code == 0:
            return
    raise SystemExit("no run came through")


def _sweep(folder: Path, step: Callable[[], None]) -> None:
    cloud = FileCloud(folder / "cloud", step)
    run = a_run(folder, cloud, plan=small_plan(NAMES[1:]), measure=measure_with(step))
    _step_around(Journal, "append", step)
    _step_around(runner, "keep_records", step)
    with holding(folder, SWEEP):
        run.carry_out()


def _step_around(owner: object, name: str, step: Callable[[], None]) -> None:
    original = getattr(owner, name)
    original = getattr(original, "plain", original)

    def stepped(*arguments: object, **named: object) -> object:
        step()
        answer = original(*arguments, **named)
        step()
        return answer

    stepped.plain = original  # type: ignore[attr-defined]
    setattr(owner, name, stepped)


def _in_child(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
