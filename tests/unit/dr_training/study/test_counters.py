"""Counters from made-up files of a kernel, a control group and a power meter."""

import ctypes
import os
from pathlib import Path
from typing import Any

import pytest

from dr_training.study.counters import ControlGroup, Gpus, PowerMeters, ProcessTree

TICK = os.sysconf("SC_CLK_TCK")


def process(
    proc: Path, pid: int, parent: int, *, session: int = 1, ticks: int = 0, state: str = "S"
) -> None:
    (proc / str(pid)).mkdir(parents=True, exist_ok=True)
    cells = [state, parent, parent, session, 0, 0, 0, 0, 0, 0, 0, ticks, 0, 0, 0]
    cells += [20, 0, 3, 0, 100, 5000, 256]
    text = f"{pid} (a (strange) name) {' '.join(map(str, cells))}\n"
    (proc / str(pid) / "stat").write_text(text)


def test_the_whole_tree_is_counted_and_nobody_else(tmp_path: Path) -> None:
    process(tmp_path, 10, 1, ticks=2 * TICK)
    process(tmp_path, 11, 10, ticks=3 * TICK)
    process(tmp_path, 12, 11, ticks=TICK)
    process(tmp_path, 20, 1, ticks=50 * TICK)
    tree = ProcessTree(10, proc=tmp_path)
    use = tree.read()
    assert use is not None
    assert use.cpu_s == 6
    assert (use.processes, use.threads) == (3, 9)
    assert use.rss_mib == pytest.approx(3 * 256 * os.sysconf("SC_PAGE_SIZE") / 2**20)
    assert sorted(tree.pids()) == [10, 11, 12]


def test_an_orphan_belongs_by_its_session(tmp_path: Path) -> None:
    process(tmp_path, 10, 1, session=10, ticks=TICK)
    process(tmp_path, 15, 1, session=10, ticks=4 * TICK)
    assert ProcessTree(10, session=10, proc=tmp_path).pids() == [10, 15]
    assert ProcessTree(10, proc=tmp_path).pids() == [10]


def test_time_that_was_used_does_not_come_back(tmp_path: Path) -> None:
    process(tmp_path, 10, 1, session=10, ticks=TICK)
    process(tmp_path, 15, 1, session=10, ticks=4 * TICK)
    tree = ProcessTree(10, session=10, proc=tmp_path)
    assert tree.read().cpu_s == 5  # type: ignore[union-attr]
    (tmp_path / "15" / "stat").unlink()
    assert tree.read().cpu_s == 5  # type: ignore[union-attr]


def test_nobody_left_is_nothing(tmp_path: Path) -> None:
    process(tmp_path, 20, 1)
    assert ProcessTree(10, proc=tmp_path).read() is None


def test_control_group_of_version_2(tmp_path: Path) -> None:
    proc, mount = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "7").mkdir(parents=True)
    (proc / "7" / "cgroup").write_text("0::/box/one\n")
    folder = mount / "box" / "one"
    folder.mkdir(parents=True)
    (folder / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (folder / "memory.current").write_text(f"{300 * 2**20}\n")
    (folder / "memory.max").write_text("max\n")
    (folder / "memory.events").write_text("low 0\noom 1\noom_kill 2\n")
    use = ControlGroup(7, proc=proc, mount=mount).read()
    assert (use.cpu_s, use.memory_mib, use.limit_mib, use.oom_kills) == (2.5, 300, None, 2)
    (folder / "memory.max").write_text(f"{512 * 2**20}\n")
    assert ControlGroup(7, proc=proc, mount=mount).read().limit_mib == 512


def test_control_group_of_version_1(tmp_path: Path) -> None:
    proc, mount = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "7").mkdir(parents=True)
    (proc / "7" / "cgroup").write_text("4:memory:/box\n2:cpu,cpuacct:/box\n0::/\n")
    (mount / "memory" / "box").mkdir(parents=True)
    # Inside a container the group's path is the host's; its files are at the mount.
    (mount / "cpu,cpuacct").mkdir()
    (mount / "cpu,cpuacct" / "cpuacct.usage").write_text("1500000000\n")
    (mount / "memory" / "box" / "memory.usage_in_bytes").write_text(f"{64 * 2**20}\n")
    (mount / "memory" / "box" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (mount / "memory" / "box" / "memory.oom_control").write_text("under_oom 0\noom_kill 3\n")
    use = ControlGroup(7, proc=proc, mount=mount).read()
    assert (use.cpu_s, use.memory_mib, use.limit_mib, use.oom_kills) == (1.5, 64, None, 3)


def test_no_control_group_is_not_nothing_used(tmp_path: Path) -> None:
    use = ControlGroup(7, proc=tmp_path, mount=tmp_path).read()
    assert (use.cpu_s, use.memory_mib, use.limit_mib, use.oom_kills) == (None,) * 4


def meter(root: Path, name: str, energy: int, size: int = 1000) -> Path:
    zone = root / name
    zone.mkdir(exist_ok=True)
    (zone / "energy_uj").write_text(f"{energy}\n")
    (zone / "max_energy_range_uj").write_text(f"{size}\n")
    return zone


def test_energy_is_added_over_packages_and_over_the_end_of_the_counter(tmp_path: Path) -> None:
    meter(tmp_path, "intel-rapl:0", 900)
    meter(tmp_path, "intel-rapl:1", 100)
    meter(tmp_path, "intel-rapl:0:0", 500)  # a part of package 0
    meters = PowerMeters(tmp_path)
    assert meters.read() == 0
    meter(tmp_path, "intel-rapl:0", 99)  # 101 more to the end, the step to 0 included, and 99
    meter(tmp_path, "intel-rapl:1", 300)
    meter(tmp_path, "intel-rapl:0:0", 900)
    assert meters.read() == pytest.approx((200 + 200) / 1e6)


def test_no_power_meter_is_blank(tmp_path: Path) -> None:
    assert PowerMeters(tmp_path / "none").read() is None


class FakeDriver:
    """Answers as libnvidia-ml does: 0 and a value, or an error code."""

    def __init__(self, *, starts: bool = True, energy: bool = True) -> None:
        self.starts, self.energy = starts, energy

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return 0 if self.starts else 9

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:  # noqa: N802
        handle._obj.value = index + 1
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle: ctypes.c_void_p, rates: Any) -> int:  # noqa: N802
        rates._obj.gpu = 40 * (handle.value or 0)
        return 0

    def nvmlDeviceGetMemoryInfo(self, _handle: Any, memory: Any) -> int:  # noqa: N802
        memory._obj.used = 512 * 2**20
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, _handle: Any, energy: Any) -> int:  # noqa: N802
        energy._obj.value = 2500
        return 0 if self.energy else 3


def test_gpus_through_their_driver() -> None:
    gpus = Gpus(FakeDriver())
    assert len(gpus) == 2
    use = gpus.read()
    assert (use.percent, use.memory_mib, use.energy_j) == (60, 1024, 5)


def test_what_a_driver_does_not_report_is_blank() -> None:
    assert Gpus(FakeDriver(energy=False)).read().energy_j is None
    use = Gpus(FakeDriver(starts=False)).read()
    assert (use.percent, use.memory_mib, use.energy_j) == (None, None, None)
