"""Watches a training from beside it: one row per interval, from differences of counters.

    >>> monitor = Monitor(pid, out / "monitor.csv", interval_s=1)
    >>> monitor.sample()      # again and again; `due_in_s` says when

A reading of "how busy now" depends on the instant: of a load that works 3 s and rests 2 s, a
reading each 10 s can say 100 %. The difference of two readings of a counter is right whatever
happens between them, so every share here is one. Processor shares are percent of one core.

The monitor takes less than 1 % of a core: when a pass over a machine with many processes costs
more, it waits longer before the next, and the row says how long its interval was.
"""

import csv
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from dr_training.study.counters import ControlGroup, Gpus, PowerMeters, ProcessTree, TreeUse

COLUMNS = (
    "time_s",
    "interval_s",
    "cpu_percent",
    "rss_mib",
    "processes",
    "threads",
    "group_cpu_percent",
    "group_memory_mib",
    "gpu_percent",
    "gpu_memory_mib",
    "gpu_energy_j",
    "energy_j",
    "monitor_cpu_percent",
)
# Leaves room below 1 % for what surrounds a pass.
_MOST_CPU_SHARE = 0.007


class Monitor:
    """Rows of a process tree's use, written as they are made.

    Args:
        pid: root of the tree; session: of processes whose parent has gone.
        path: CSV file to write, with the columns `COLUMNS`; a figure that the machine does not
            report is blank.
        interval_s: seconds between rows.
        start: monotonic instant that `time_s` counts from.
    """

    def __init__(
        self,
        pid: int,
        path: Path,
        *,
        interval_s: float,
        start: float | None = None,
        session: int | None = None,
        gpus: Gpus | None = None,
        meters: PowerMeters | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tree = ProcessTree(pid, session=session)
        self._group = ControlGroup(pid)
        self._gpus = gpus if gpus is not None else Gpus()
        self._meters = meters or PowerMeters()
        self._interval_s, self._clock = interval_s, clock
        self._start = clock() if start is None else start
        self._file: TextIO = path.open("w", newline="", encoding="utf-8")
        self._csv = csv.writer(self._file, lineterminator="\n")
        self._csv.writerow(COLUMNS)
        self._last: dict[str, float | None] = {"time": self._start, "cpu": 0.0}
        self._last_own = time.process_time()
        self._cost_s = 0.0
        self._next = self._start
        self.peak_rss_mib = 0.0
        self.cpu_s = 0.0
        first = self._group.read()
        self._last["group"] = first.cpu_s
        self.oom_kills_before = first.oom_kills

    @property
    def due_in_s(self) -> float:
        """Seconds until the next row is due."""
        return max(0.0, self._next - self._clock())

    def sample(self) -> TreeUse | None:
        """Write a row; None, and no row, when the tree has ended."""
        before = time.process_time()
        now = self._clock()
        use = self._tree.read()
        if use is not None:
            self.cpu_s = use.cpu_s
            self.peak_rss_mib = max(self.peak_rss_mib, use.rss_mib)
            if now > (self._last["time"] or 0.0):
                self._write(now, use)
        self._cost_s = time.process_time() - before
        self._next = max(now + self._interval_s, self._clock() + self._cost_s / _MOST_CPU_SHARE)
        return use

    def oom_kills(self) -> int | None:
        """Processes of the control group that the kernel killed for memory since the start."""
        now = self._group.read().oom_kills
        if now is None or self.oom_kills_before is None:
            return None
        return now - self.oom_kills_before

    def pids(self) -> list[int]:
        """Processes of the tree now."""
        return self._tree.pids()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, now: float, use: TreeUse) -> None:
        group, gpu = self._group.read(), self._gpus.read()
        span = now - (self._last["time"] or 0.0)
        own = time.process_time()
        row: dict[str, Any] = {
            "time_s": now - self._start,
            "interval_s": span,
            "cpu_percent": self._share("cpu", use.cpu_s, span),
            "rss_mib": use.rss_mib,
            "processes": use.processes,
            "threads": use.threads,
            "group_cpu_percent": self._share("group", group.cpu_s, span),
            "group_memory_mib": group.memory_mib,
            "gpu_percent": gpu.percent,
            "gpu_memory_mib": gpu.memory_mib,
            "gpu_energy_j": self._difference("gpu_energy", gpu.energy_j),
            "energy_j": self._difference("energy", self._meters.read()),
            "monitor_cpu_percent": 100 * (own - self._last_own) / span,
        }
        self._csv.writerow([_cell(row[name]) for name in COLUMNS])
        # A run that is killed keeps its rows.
        self._file.flush()
        self._last["time"], self._last_own = now, own

    def _difference(self, name: str, value: float | None) -> float | None:
        last = self._last.get(name)
        self._last[name] = value
        return None if value is None or last is None else value - last

    def _share(self, name: str, value: float | None, span: float) -> float | None:
        difference = self._difference(name, value)
        return None if difference is None else 100 * difference / span


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.3f}"
