"""Where numbers come from: commit, machine, versions, command. No host or user name."""

import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

_OF_GIT: Final = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"})


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Everything a reader needs to judge or repeat a run; a None means it is not known.

    `busy` is a sentence when the machine was busy before the run began, see
    `machine_busy`.
    """

    run_id: str
    created_at: datetime
    command: str
    git_commit: str | None
    machine: str
    python: str
    image: str | None
    image_note: str
    region_of_prices: str
    local: bool
    busy: str | None = None
    assumptions: tuple[str, ...] = ()
    seed: int | None = None


def new_run_id(now: datetime | None = None) -> str:
    """A run's name: its start in UTC, to the second."""
    return (now or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")


def git_commit(folder: Path) -> str | None:
    """Commit of the checkout, with `+changes` when files differ from it; None without git."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return f"{commit}+changes" if changed else commit


def code_commit() -> str | None:
    """`git_commit` of the checkout that this code runs from; None where it was installed.

    An environment may lie inside a checkout of something else, whose commit says nothing here.
    """
    source = Path(__file__).resolve()
    if _git(source.parent, "ls-files", "--error-unmatch", source.name) is None:
        return None
    return git_commit(source.parent)


def machine() -> str:
    """Processor, CPUs that may be used, memory and system in one line, in words of any language."""
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    cores = usable_cores()
    return (
        f"{_processor()}, {cores} CPU{'s' if cores != 1 else ''}, {memory_gb:.0f} GB, "
        f"{platform.system()} {platform.machine()}"
    )


def machine_busy() -> str | None:
    """A warning when more programs wait for a processor than there are cores; else None.

    It is the load average of the last minute, so a run must ask before it does anything.
    """
    load = os.getloadavg()[0]
    cores = usable_cores()
    if load <= cores:
        return None
    return (
        f"This machine was busy when the run began (load {load:.1f} on {cores} cores): latencies "
        "are longer and spread wider than on an idle one, and differences between rows are "
        "mostly other programs'."
    )


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _git(folder: Path, *arguments: Sequence[str] | str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
            # In a hook of git these name the repository that the hook belongs to.
            env={name: value for name, value in os.environ.items() if name not in _OF_GIT},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
