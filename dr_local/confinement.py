"""Memory limits and CPU shares for local containers, by whatever this machine lets us use.

Where cgroups are writable, `memory.limit_in_bytes` (v1) or `memory.max` (v2) and
`cpu.cfs_quota_us` (v1) or `cpu.max` (v2) hold them. Elsewhere a watcher sums the resident memory
of the process tree every 20 ms and kills it above the limit, and stops and continues the tree
(SIGSTOP, SIGCONT) so that it uses its share of each 100 ms.

Whether a mechanism works is found out by trying: some sandboxes accept the files and enforce
nothing. `RLIMIT_AS` is not used: it counts address space, of which a model server reserves far
more than it touches.
"""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "dr-local-"
_CPU_PERIOD_US = 100_000
_PROBE_MEMORY_BYTES = 48 * 1024**2
_PROBE_TIMEOUT_S = 10
# Touches twice the limit, page by page.
_MEMORY_PROBE = f"b = bytearray({2 * _PROBE_MEMORY_BYTES})\nb[::4096] = b'x' * len(b[::4096])"
_CPU_PROBE = "import time\nend = time.process_time() + 0.04\nwhile time.process_time() < end: pass"
_PROBE_CPU_SHARE = 0.2

WATCHER = "watcher"
DUTY_CYCLE = "stop-and-continue"


@dataclass(frozen=True, kw_only=True)
class Controller:
    """A cgroup hierarchy in which this process may make groups. `version` is 1 or 2."""

    version: int
    parent: Path

    @property
    def label(self) -> str:
        return f"cgroup v{self.version}"


@dataclass(frozen=True, kw_only=True)
class Confinement:
    """What holds memory and CPU on this machine; None stands for the fallback."""

    memory: Controller | None
    cpu: Controller | None

    @property
    def memory_mechanism(self) -> str:
        """`cgroup v1`, `cgroup v2` or `watcher`."""
        return self.memory.label if self.memory else WATCHER

    @property
    def cpu_mechanism(self) -> str:
        """`cgroup v1`, `cgroup v2` or `stop-and-continue`."""
        return self.cpu.label if self.cpu else DUTY_CYCLE

    def group(
        self, name: str, *, memory_bytes: int | None, cpu_share: float | None
    ) -> "ContainerGroup":
        """Make the groups of one container; limits that are None are not set.

        Raises:
            OSError: a hierarchy that had worked refuses the group.
        """
        memory_path = cpu_path = None
        try:
            if self.memory and memory_bytes is not None:
                memory_path = _make(self.memory, name)
                _limit_memory(self.memory, memory_path, memory_bytes)
            if self.cpu and cpu_share is not None:
                cpu_path = _make(self.cpu, name)
                _limit_cpu(self.cpu, cpu_path, cpu_share)
        except OSError:
            _remove(memory_path)
            _remove(cpu_path)
            raise
        return ContainerGroup(memory=memory_path, cpu=cpu_path)

    @property
    def parents(self) -> tuple[Path, ...]:
        """Folders below which groups are made; `remove_groups` clears them after a crash."""
        controllers = [c for c in (self.memory, self.cpu) if c is not None]
        return tuple(dict.fromkeys(c.parent for c in controllers))


@dataclass(frozen=True, kw_only=True)
class ContainerGroup:
    """The cgroup folders of one container; either may be None."""

    memory: Path | None
    cpu: Path | None

    @property
    def procs_files(self) -> list[str]:
        """Files into which the container's first process writes itself."""
        return [str(p / "cgroup.procs") for p in dict.fromkeys((self.memory, self.cpu)) if p]

    def remove(self) -> None:
        """Remove the folders; those that still hold a process stay."""
        _remove(self.memory)
        _remove(self.cpu)


FALLBACK = Confinement(memory=None, cpu=None)


def find_confinement(*, instance: str) -> Confinement:
    """Try the cgroup hierarchies (about 0.3 s); `instance` goes into the names of the groups."""
    return Confinement(
        memory=_first_working("memory", instance), cpu=_first_working("cpu", instance)
    )


def remove_groups(parents: Sequence[Path], *, instance: str) -> None:
    """Remove what an ended instance left in `parents`; groups with processes stay."""
    for parent in parents:
        for path in parent.glob(f"{_PREFIX}{instance}-*"):
            _remove(path)


def group_name(instance: str, container: str) -> str:
    """Name of a container's groups, recognisable as ours."""
    return f"{_PREFIX}{instance}-{container}"


def _first_working(kind: str, instance: str) -> Controller | None:
    for controller in _candidates(kind):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            if _works(controller, kind, group_name(instance, f"probe-{kind}")):
                return controller
    return None


def _candidates(kind: str) -> list[Controller]:
    """Own group first, then the root of the hierarchy; v1 before v2 where both are mounted."""
    paths_v1, path_v2 = _own_groups()
    found = []
    if kind in paths_v1:
        root = _CGROUP_ROOT / kind
        found += [Controller(version=1, parent=p) for p in _own_then_root(root, paths_v1[kind])]
    for root in (_CGROUP_ROOT, _CGROUP_ROOT / "unified"):
        if path_v2 is not None and (root / "cgroup.controllers").exists():
            found += [Controller(version=2, parent=p) for p in _own_then_root(root, path_v2)]
    return found


def _own_then_root(root: Path, own: str) -> list[Path]:
    return list(dict.fromkeys((root / own.lstrip("/"), root)))


def _own_groups() -> tuple[dict[str, str], str | None]:
    paths_v1: dict[str, str] = {}
    path_v2 = None
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return {}, None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            path_v2 = path
        for controller in controllers.split(","):
            paths_v1[controller] = path
    return paths_v1, path_v2


def _works(controller: Controller, kind: str, name: str) -> bool:
    path = _make(controller, name)
    try:
        if kind == "memory":
            _limit_memory(controller, path, _PROBE_MEMORY_BYTES)
            return _run_in(path, _MEMORY_PROBE) == -signal.SIGKILL
        _limit_cpu(controller, path, _PROBE_CPU_SHARE)
        return _run_in(path, _CPU_PROBE) == 0 and _throttled(path) > 0
    finally:
        _remove(path)


def _run_in(path: Path, code: str) -> int:
    enter = f"open({str(path / 'cgroup.procs')!r}, 'w').write('0')\n"
    command = [sys.executable, "-I", "-S", "-c", enter + code]
    return subprocess.run(
        command,
        timeout=_PROBE_TIMEOUT_S,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    ).returncode


def _throttled(path: Path) -> int:
    for line in (path / "cpu.stat").read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == "nr_throttled":
            return int(value)
    return 0


def _make(controller: Controller, name: str) -> Path:
    path = controller.parent / name
    path.mkdir(exist_ok=True)
    return path


def _limit_memory(controller: Controller, path: Path, limit_bytes: int) -> None:
    if controller.version == 1:
        (path / "memory.limit_in_bytes").write_text(str(limit_bytes))
        # AWS gives no swap; the files are absent where swap is not accounted.
        with contextlib.suppress(OSError):
            (path / "memory.memsw.limit_in_bytes").write_text(str(limit_bytes))
        return
    (path / "memory.max").write_text(str(limit_bytes))
    for name, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
        with contextlib.suppress(OSError):
            (path / name).write_text(value)


def _limit_cpu(controller: Controller, path: Path, share: float) -> None:
    quota_us = max(1000, round(share * _CPU_PERIOD_US))
    if controller.version == 1:
        (path / "cpu.cfs_period_us").write_text(str(_CPU_PERIOD_US))
        (path / "cpu.cfs_quota_us").write_text(str(quota_us))
    else:
        (path / "cpu.max").write_text(f"{quota_us} {_CPU_PERIOD_US}")


def _remove(path: Path | None) -> None:
    if path is not None:
        with contextlib.suppress(OSError):
            path.rmdir()
