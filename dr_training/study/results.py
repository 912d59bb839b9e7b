"""The results of a study's runs, read back and checked, one row per run.

>>> rows = read_results(open_plan(out), out)
>>> [row.run.name for row in rows if row.status == "memory"]
['C12-r2']
"""

import contextlib
import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dr_training.data.faults import DataError
from dr_training.study import supervise
from dr_training.study.costs import Cost, cost
from dr_training.study.journal import Journal
from dr_training.study.plan import Plan, Run
from dr_training.study.study_file import ENVIRONMENT

RUNS: Final = "runs"
NOT_RUN: Final = "not run"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A run and what came of it; `result` is empty where it has not ended."""

    run: Run
    status: str
    reason: str
    result: Mapping[str, Any]
    cost: Cost | None
    monitor: Mapping[str, float | None]

    @property
    def ok(self) -> bool:
        """Whether it is counted."""
        return self.status == supervise.OK

    @property
    def training_s(self) -> float:
        """Seconds of its epochs."""
        return float(self.result["training_s"])

    @property
    def life_s(self) -> float:
        """Seconds from the start of its process to its end."""
        return float(self.result["life_s"])

    @property
    def epochs(self) -> list[dict[str, Any]]:
        """What it noted of each epoch."""
        found: list[dict[str, Any]] = self.result["worker"].get("epochs", [])
        return found

    @property
    def accuracy(self) -> float | None:
        """On the test images after the last epoch."""
        accuracy = self.epochs[-1].get("accuracy") if self.epochs else None
        return None if accuracy is None else float(accuracy)

    @property
    def cpu_percent(self) -> float | None:
        """Processor time of its epochs per second of them, percent of one core."""
        if not self.training_s:
            return None
        return 100 * float(self.result["training_cpu_s"]) / self.training_s

    def time_to(self, target: float) -> float | None:
        """Seconds of training until an epoch ends with this accuracy; None if none does."""
        seconds = 0.0
        for epoch in self.epochs:
            seconds += float(epoch["end"]) - float(epoch["start"])
            if epoch.get("accuracy") is not None and epoch["accuracy"] >= target:
                return seconds
        return None


def read_result(folder: Path) -> dict[str, Any] | None:
    """`result.json` of a run's folder, if it is there and whole."""
    try:
        result = json.loads((folder / supervise.RESULT).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    needed = {"status", "reason", "life_s", "training_s"}
    return result if isinstance(result, dict) and needed <= set(result) else None


def read_results(plan: Plan, out: Path) -> list[Row]:
    """All runs of a plan in its order.

    Raises:
        DataError: the journal says that a run has ended and its result is missing or damaged.
    """
    state = Journal(out).state()
    rows = []
    for run in plan.runs:
        status = state.status.get(run.name, NOT_RUN)
        folder = out / RUNS / run.name
        if status in (NOT_RUN, supervise.INTERRUPTED):
            rows.append(Row(run=run, status=status, reason="", result={}, cost=None, monitor={}))
            continue
        result = read_result(folder)
        if result is None or result["status"] != status:
            raise DataError(
                f"{folder / supervise.RESULT} is not what the journal says of {run.name} "
                f"({status}); remove the folder of the study and run it again, or restore the file"
            )
        environment = plan.study.environment(str(plan.parameters(run)[ENVIRONMENT]))
        priced = None
        if plan.study.prices is not None and environment.hourly is not None:
            priced = cost(result, hourly=environment.hourly, prices=plan.study.prices)
        rows.append(
            Row(
                run=run,
                status=status,
                reason=result["reason"],
                result=result,
                cost=priced,
                monitor=read_monitor(folder / supervise.MONITOR),
            )
        )
    return rows


def last_instant(path: Path) -> float:
    """`time_s` of the last whole row of a monitor's file; 0 where there is none."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError:
        return 0.0
    for line in reversed(lines[1:]):
        with contextlib.suppress(ValueError):
            return float(line.partition(",")[0])
    return 0.0


def read_monitor(path: Path) -> dict[str, float | None]:
    """Time-weighted means of a monitor's columns, sums of its energies, and its highest memory.

    A column without any figure is None.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError:
        return {}
    found: dict[str, float | None] = {}
    for name in rows[0] if rows else ():
        pairs = [
            (float(row[name]), float(row["interval_s"]))
            for row in rows
            if row.get(name) and row.get("interval_s")
        ]
        if not pairs:
            found[name] = None
        elif name in ("energy_j", "gpu_energy_j"):
            found[name] = sum(value for value, _ in pairs)
        elif name == "rss_mib":
            found[name] = max(value for value, _ in pairs)
        else:
            span = sum(seconds for _, seconds in pairs)
            found[name] = sum(value * seconds for value, seconds in pairs) / span if span else None
    return found
