"""Looks at and ends process trees through /proc; standard library only.

Every container starts with this module, so it imports little: no dataclasses, no pathlib.

A process is named by its id *and* its start time: ids are used again, and a stale state file
must never end a stranger's process.

    >>> me = identify(os.getpid())
    >>> is_alive(me)
    True
"""

# ruff: noqa: PTH110, PTH123, PTH208
import contextlib
import os
import signal
import time
from typing import NamedTuple

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_REAP_S = 5.0
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
# Needs CONFIG_PROC_CHILDREN, which distribution kernels set.
_CHILDREN_LISTED = os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
# Fields of /proc/PID/stat counted after the command name, which may hold spaces: proc(5).
_STATE, _PPID, _UTIME, _STIME, _START = 0, 1, 11, 12, 19


class ProcessIdentity(NamedTuple):
    """A process id with the clock tick at which the process started."""

    pid: int
    start_ticks: int


def identify(pid: int) -> ProcessIdentity | None:
    """The identity of a running process; None when there is none of this id."""
    fields = _stat(pid)
    return None if fields is None else ProcessIdentity(pid=pid, start_ticks=int(fields[_START]))


def is_alive(process: ProcessIdentity) -> bool:
    """True while this very process runs; a zombie that waits for its parent does not."""
    fields = _stat(process.pid)
    return (
        fields is not None
        and int(fields[_START]) == process.start_ticks
        and fields[_STATE] not in "ZX"
    )


def descendants(pid: int) -> list[int]:
    """Ids of all processes below `pid`, parents before children; `pid` itself is left out."""
    found: list[int] = []
    queue = [pid]
    while queue:
        children = _children(queue.pop(0))
        found += children
        queue += children
    return found


def resident_bytes(pids: list[int]) -> int:
    """Sum of the resident memory of `pids` in bytes; pages they share count for each."""
    total = 0
    for pid in pids:
        with contextlib.suppress(*_GONE, IndexError):
            total += int(_read(f"/proc/{pid}/statm").split()[1]) * _PAGE_BYTES
    return total


def cpu_seconds(pid: int) -> float:
    """User and system time that `pid` has used so far; 0 when it has gone."""
    try:
        # The process's own CPU clock (clock_getcpuclockid(3)): nanoseconds where /proc counts
        # in hundredths of a second, which is a whole period of the share that is kept here.
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        fields = _stat(pid)
        if fields is None:
            return 0.0
        return (int(fields[_UTIME]) + int(fields[_STIME])) / _TICKS_PER_S


def send(pids: list[int], signal_number: int) -> None:
    """Signal each process that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal_number)


def kill_descendants(pid: int, *, timeout_s: float = 5.0) -> None:
    """SIGKILL everything below `pid` until nothing is left; returns after `timeout_s` anyway."""
    deadline = time.monotonic() + timeout_s
    # A grandchild whose parent died first is nobody's descendant any more, but still dying.
    seen: set[int] = set()
    while living := [child for child in seen.union(descendants(pid)) if _is_running(child)]:
        seen.update(living)
        send(living, signal.SIGKILL)
        if time.monotonic() > deadline:
            return
        time.sleep(0.005)


def stop(process: ProcessIdentity, *, grace_s: float) -> bool:
    """SIGTERM, then SIGKILL with everything below after `grace_s`; True when it had been alive."""
    if not is_alive(process):
        return False
    send([process.pid], signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while is_alive(process):
        _reap(process.pid)
        if time.monotonic() > deadline:
            below = descendants(process.pid)
            if is_alive(process):
                send([process.pid, *below], signal.SIGKILL)
            _wait_gone(process)
            break
        time.sleep(0.02)
    deadline = time.monotonic() + _REAP_S
    # A process is a zombie as soon as its first thread ends, but can be waited for, and its
    # memory is free, only when the last one has.
    while not _reap(process.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return True


def _wait_gone(process: ProcessIdentity) -> None:
    deadline = time.monotonic() + 5.0
    while is_alive(process) and time.monotonic() < deadline:
        _reap(process.pid)
        time.sleep(0.01)


def _reap(pid: int) -> bool:
    """True when nothing is left to be waited for."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        # Only a child of ours can be waited for; a daemon of an earlier command cannot.
        return True


def _read(path: str) -> str:
    with open(path) as stream:
        return stream.read()


def _is_running(pid: int) -> bool:
    fields = _stat(pid)
    return fields is not None and fields[_STATE] not in "ZX"


def _stat(pid: int) -> list[str] | None:
    try:
        text = _read(f"/proc/{pid}/stat")
    except _GONE:
        return None
    return text[text.rindex(")") + 2 :].split()


def _children(pid: int) -> list[int]:
    if not _CHILDREN_LISTED:
        return _children_by_scan(pid)
    children: list[int] = []
    with contextlib.suppress(*_GONE):
        for thread in os.listdir(f"/proc/{pid}/task"):
            # A thread may end while we look; those of the others still count.
            with contextlib.suppress(*_GONE):
                text = _read(f"/proc/{pid}/task/{thread}/children")
                children += [int(child) for child in text.split()]
    return children


def _children_by_scan(pid: int) -> list[int]:
    children = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _stat(int(entry))
            if fields is not None and int(fields[_PPID]) == pid:
                children.append(int(entry))
    return children
