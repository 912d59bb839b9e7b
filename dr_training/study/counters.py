"""Counters that the kernel, a control group, a GPU driver and a power meter keep.

Standard library only: the monitor runs wherever a training does. Each reader takes the root of
its files, so that a test can hand it a folder. What a machine does not report is None, never 0.

Sources: proc(5); https://docs.kernel.org/admin-guide/cgroup-v2.html and the v1 documents beside
it; https://docs.kernel.org/power/powercap/powercap.html; the NVML API reference,
https://docs.nvidia.com/deploy/nvml-api/.
"""

import ctypes
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MIB = 2**20


@dataclass(frozen=True)
class TreeUse:
    """Of a process tree: processor seconds so far, resident MiB now, processes, threads."""

    cpu_s: float
    rss_mib: float
    processes: int
    threads: int


class ProcessTree:
    """A process, what it started, and what these started; also whom they left behind.

    A process belongs to it by descent, or by its session when its parent has gone. The
    processor time of a process that has ended is in its parent's counters, once that has waited
    for it; of one whose parent has gone as well, the last reading is kept.
    """

    def __init__(
        self, root: int, *, session: int | None = None, proc: Path = Path("/proc")
    ) -> None:
        self._root, self._session, self._proc = root, session, proc
        self._tick = os.sysconf("SC_CLK_TCK")
        self._page_mib = os.sysconf("SC_PAGE_SIZE") / MIB
        self._highest = 0.0

    def read(self) -> TreeUse | None:
        """Use of all its processes now; None when none is left."""
        rows = {row.pid: row for row in self._rows()}
        members = [row for row in rows.values() if self._belongs(row, rows)]
        if not members:
            return None
        cpu = sum(row.ticks for row in members) / self._tick
        # An orphan that ends takes its counters along; time that was used does not come back.
        self._highest = max(self._highest, cpu)
        return TreeUse(
            cpu_s=self._highest,
            rss_mib=sum(row.pages for row in members) * self._page_mib,
            processes=len(members),
            threads=sum(row.threads for row in members),
        )

    def pids(self) -> list[int]:
        """Its processes now."""
        rows = {row.pid: row for row in self._rows()}
        return [pid for pid, row in rows.items() if self._belongs(row, rows)]

    def _belongs(self, row: "_Row", rows: dict[int, "_Row"]) -> bool:
        if row.session == self._session:
            return True
        seen = set()
        while row.pid not in seen:
            if row.pid == self._root:
                return True
            seen.add(row.pid)
            if row.parent not in rows:
                return False
            row = rows[row.parent]
        return False

    def _rows(self) -> Iterator["_Row"]:
        for entry in os.scandir(self._proc):
            if not entry.name.isdigit():
                continue
            try:
                with open(f"{entry.path}/stat", "rb") as file:  # noqa: PTH123 - read often
                    text = file.read()
            except OSError:
                continue  # it has just ended
            # The name is in brackets and may hold spaces and brackets itself.
            cells = text[text.rindex(b")") + 2 :].split()
            if cells[0] in (b"X", b"x"):
                continue
            yield _Row(
                pid=int(entry.name),
                parent=int(cells[1]),
                session=int(cells[3]),
                ticks=sum(int(cell) for cell in cells[11:15]),
                threads=0 if cells[0] == b"Z" else int(cells[17]),
                pages=max(0, int(cells[21])),
            )


@dataclass(frozen=True)
class _Row:
    pid: int
    parent: int
    session: int
    ticks: int
    threads: int
    pages: int


@dataclass(frozen=True)
class GroupUse:
    """Of a control group: processor seconds, memory MiB, limit MiB, processes killed for memory."""

    cpu_s: float | None
    memory_mib: float | None
    limit_mib: float | None
    oom_kills: int | None


class ControlGroup:
    """The control group of a process, of version 1 or 2, as far as its files can be read.

    Everything in the group is counted: in a container that is the container, and on a machine
    without groups of their own it is the machine.
    """

    def __init__(
        self, pid: int, *, proc: Path = Path("/proc"), mount: Path = Path("/sys/fs/cgroup")
    ) -> None:
        self._folders: dict[str, Path] = {}
        try:
            lines = (proc / str(pid) / "cgroup").read_text().splitlines()
        except OSError:
            lines = []
        for line in lines:
            number, names, path = line.split(":", 2)
            if number == "0" and not names:
                self._place("unified", (mount, mount / "unified"), path)
            for name in names.split(","):
                if name in ("memory", "cpuacct"):
                    self._place(name, (mount / name, mount / names), path)

    def read(self) -> GroupUse:
        """What its files say now."""
        events = self._lines("unified", "memory.events") or self._lines(
            "memory", "memory.oom_control"
        )
        stat = self._lines("unified", "cpu.stat")
        cpu_s: float | None = None
        if "usage_usec" in stat:
            cpu_s = stat["usage_usec"] / 1e6
        else:
            nanoseconds = self._number("cpuacct", "cpuacct.usage")
            cpu_s = None if nanoseconds is None else nanoseconds / 1e9
        memory = self._number("unified", "memory.current")
        if memory is None:
            memory = self._number("memory", "memory.usage_in_bytes")
        limit = self._number("unified", "memory.max")
        if limit is None:
            limit = self._number("memory", "memory.limit_in_bytes")
        # Version 1 writes "no limit" as the largest multiple of a page.
        unlimited = limit is None or limit >= 2**62
        return GroupUse(
            cpu_s=cpu_s,
            memory_mib=None if memory is None else memory / MIB,
            limit_mib=None if unlimited or limit is None else limit / MIB,
            oom_kills=events.get("oom_kill"),
        )

    def _place(self, name: str, mounts: tuple[Path, ...], path: str) -> None:
        for mount in mounts:
            # In a container the path is the host's, and the files are at the mount itself.
            for folder in (mount / path.lstrip("/"), mount):
                if folder.is_dir() and any(folder.iterdir()):
                    self._folders.setdefault(name, folder)

    def _text(self, name: str, file: str) -> str | None:
        try:
            return (self._folders[name] / file).read_text()
        except (KeyError, OSError):
            return None

    def _number(self, name: str, file: str) -> int | None:
        text = self._text(name, file)
        return int(text) if text and text.strip().isdigit() else None

    def _lines(self, name: str, file: str) -> dict[str, int]:
        pairs = (line.split() for line in (self._text(name, file) or "").splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


@dataclass(frozen=True)
class GpuUse:
    """Of all GPUs: mean utilisation %, memory MiB in use, energy J since the driver's start."""

    percent: float | None
    memory_mib: float | None
    energy_j: float | None


class Gpus:
    """NVIDIA's GPUs through the driver's own library; none where there is no driver.

    The driver offers no counter of busy time: its utilisation is the share of its last sampling
    period (a sixth of a second to a second, by product) in which a kernel ran.
    """

    def __init__(self, library: Any = None) -> None:
        self._handles: list[ctypes.c_void_p] = []
        try:
            self._nvml = library or ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        if self._nvml.nvmlInit_v2() != 0:
            return
        count = ctypes.c_uint()
        if self._nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if self._nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
                self._handles.append(handle)

    def __len__(self) -> int:
        return len(self._handles)

    def read(self) -> GpuUse:
        """Use now; each figure is None where no GPU reports it."""
        percents, memories, energies = [], [], []
        for handle in self._handles:
            rates, memory, energy = _Rates(), _Memory(), ctypes.c_ulonglong()
            if self._nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)) == 0:
                percents.append(float(rates.gpu))
            if self._nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0:
                memories.append(memory.used / MIB)
            answer = self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(energy))
            if answer == 0:
                energies.append(energy.value / 1000)
        return GpuUse(
            percent=sum(percents) / len(percents) if percents else None,
            memory_mib=sum(memories) if memories else None,
            energy_j=sum(energies) if energies else None,
        )


class _Rates(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class PowerMeters:
    """Energy of processor packages (RAPL) in J since this object was made; None without meters."""

    def __init__(self, root: Path = Path("/sys/class/powercap")) -> None:
        self._zones: list[tuple[Path, int]] = []
        self._last: dict[Path, int] = {}
        self._total_uj = 0
        # A package's zone is intel-rapl:N; intel-rapl:N:M are parts of it.
        for zone in sorted(root.glob("intel-rapl:*")):
            if zone.name.count(":") != 1:
                continue
            try:
                size = int((zone / "max_energy_range_uj").read_text())
                self._last[zone] = int((zone / "energy_uj").read_text())
            except (OSError, ValueError):
                continue  # only root may read it on most systems
            self._zones.append((zone, size))

    def read(self) -> float | None:
        """Energy so far, J."""
        if not self._zones:
            return None
        for zone, size in self._zones:
            try:
                now = int((zone / "energy_uj").read_text())
            except (OSError, ValueError):
                return None
            # The counter starts again from 0 at its range.
            self._total_uj += (now - self._last[zone]) % (size + 1)
            self._last[zone] = now
        return self._total_uj / 1e6
