"""How many CPUs and how much memory this container may use, for workers, threads and pictures.

    >>> available_cpus()
    2.0

The host's core count is not the answer: a container limited to two of 48 cores that starts 48
threads is slower than with two. The quota of the control group decides (v2 `cpu.max`, v1
`cpu.cfs_quota_us`), the affinity mask where no quota can be seen.
"""

import math
import os
from pathlib import Path
from typing import Final

# Measured up to 16.0, while a WebP is decoded; of the others up to 15.1, where a PNG of 16 bits has
# a transparent colour.
_BYTES_PER_PIXEL: Final = 16
_BYTES_BESIDE_PICTURE: Final = 300 * 1024 * 1024
_MOST_DEFAULT_PIXELS: Final = 60_000_000
_FEWEST_DEFAULT_PIXELS: Final = 12_000_000
_MOST_THREADS_ALONE: Final = 4
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_SELF_CGROUP = Path("/proc/self/cgroup")


def available_cpus(
    *,
    cgroup_root: Path = _CGROUP_ROOT,
    self_cgroup: Path = _SELF_CGROUP,
    affinity: int | None = None,
) -> float:
    """CPUs of the tightest limit in force, possibly fractional, at least 0.01.

    The paths and the affinity count are parameters so that other layouts can be tested.
    """
    limits = [float(affinity if affinity is not None else len(os.sched_getaffinity(0)))]
    limits += _quotas(cgroup_root, _own_paths(self_cgroup))
    return max(0.01, min(limits))


def default_workers(cpus: float, *, one_request_at_a_time: bool) -> int:
    """One worker per whole CPU; one where the platform sends one request at a time."""
    return 1 if one_request_at_a_time else max(1, int(cpus))


def fitting_workers(memory_bytes: float, *, worker_bytes: int, pixels: int, wanted: int) -> int:
    """As many of the wanted workers as fit in the memory, at least one.

    Each needs what the first one was measured to hold, and room for the largest picture.
    """
    each = worker_bytes + pixels * _BYTES_PER_PIXEL
    if math.isinf(memory_bytes) or each <= 0:
        return wanted
    return max(1, min(wanted, math.floor(memory_bytes / each)))


def default_threads(cpus: float, workers: int) -> int:
    """Engine threads of one worker, so that all workers together fill the CPUs once."""
    return max(1, round(cpus / workers))


def default_threads_alone(cpus: float, threads: int) -> int:
    """Engine threads for a request while no other is in the container, at least `threads`.

    All whole CPUs up to four. Two were measured to take 0.57 of one's time; more were not tried.
    """
    return max(threads, min(_MOST_THREADS_ALONE, int(cpus)))


def available_memory_bytes(
    *,
    cgroup_root: Path = _CGROUP_ROOT,
    self_cgroup: Path = _SELF_CGROUP,
    physical_bytes: int | None = None,
) -> float:
    """Memory of the tightest limit in force: that of the control group, or of the machine."""
    if physical_bytes is None:
        physical_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    paths = _own_paths(self_cgroup)
    texts = [
        _read(folder / "memory.max") for folder in _with_ancestors(cgroup_root, paths.get("", "/"))
    ]
    texts += [
        _read(folder / "memory.limit_in_bytes")
        for folder in _with_ancestors(cgroup_root / "memory", paths.get("memory", "/"))
    ]
    limits = [int(text) for text in map(str.strip, texts) if text.isdecimal() and int(text) > 0]
    return float(min([physical_bytes, *limits]))


def default_pixels(memory_bytes: float, workers: int) -> int:
    """Largest picture, in pixels, that each worker can decode at once in this memory.

    60 million where there is enough (about 1.3 GB a worker), and never below the 12 million of
    an ordinary fundus camera.
    """
    spare = memory_bytes / workers - _BYTES_BESIDE_PICTURE
    fitting = math.floor(spare / _BYTES_PER_PIXEL)
    return min(_MOST_DEFAULT_PIXELS, max(_FEWEST_DEFAULT_PIXELS, fitting))


def _own_paths(self_cgroup: Path) -> dict[str, str]:
    """Controller name -> path of this process's group; '' is the unified (v2) hierarchy."""
    paths: dict[str, str] = {}
    # Nothing but a line feed ends a line: a name may hold what Python takes for one as well.
    for line in filter(None, _read(self_cgroup).split("\n")):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def _quotas(root: Path, paths: dict[str, str]) -> list[float]:
    quotas = []
    # Inside a container the group is usually mounted as the root; on a host it is nested, and
    # every ancestor's limit counts as well.
    for folder in _with_ancestors(root, paths.get("", "/")):
        quota, _, period = _read(folder / "cpu.max").strip().partition(" ")
        quotas += _ratio(quota, period)
    for mount in ("cpu", "cpu,cpuacct"):
        for folder in _with_ancestors(root / mount, paths.get("cpu", "/")):
            quotas += _ratio(
                _read(folder / "cpu.cfs_quota_us").strip(),
                _read(folder / "cpu.cfs_period_us").strip(),
            )
    return quotas


def _with_ancestors(root: Path, path: str) -> list[Path]:
    folder = root
    folders = [root]
    for part in path.strip("/").split("/"):
        if part in ("", ".."):
            continue
        folder /= part
        folders.append(folder)
    return folders


def _ratio(quota: str, period: str) -> list[float]:
    """[quota / period], or nothing where there is no limit ("max", -1, an absent file)."""
    if not quota.isdecimal() or not period.isdecimal() or int(period) == 0 or int(quota) == 0:
        return []
    return [int(quota) / int(period)]


def _read(path: Path) -> str:
    try:
        # The name of a group may be any bytes.
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
