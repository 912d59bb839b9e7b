"""Process 1 of a local container: starts `serve`, holds its limits, leaves nothing behind.

Run by file name with `python -I -S`, so that it costs a few milliseconds and a few MiB. It reads
one line of JSON (see `ContainerOrder` in `containers`) from standard input and then keeps that
pipe as a lifeline: when the runtime server goes, even by SIGKILL, the pipe closes and the whole
tree is killed. Events go to standard output, one JSON object a line:

    {"event": "started", "pid": 42, "at": 1234.5}       `at` is CLOCK_MONOTONIC in seconds
    {"event": "exited", "code": -9, "reason": "out_of_memory", "peak_bytes": …, "by": "cgroup"}
"""

# pathlib would be a tenth of the start.
# ruff: noqa: PTH100, PTH106, PTH112, PTH118, PTH120, PTH123
import ctypes
import json
import os
import select
import signal
import sys
import time
from typing import Any, NoReturn

if __name__ == "__main__":  # -I leaves the script's folder out of the path
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from dr_local import process_tree

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# The same period as the kernel's own CPU controller.
_CPU_PERIOD_S = 0.1
_CPU_TICK_S = 0.005
_MEMORY_TICK_S = 0.02
_SLOW_TICK_S = 0.1
_STOP_GRACE_S = 2.0
_REMOVE_S = 1.0


def main() -> NoReturn:
    """Start the ordered command and stay until it has ended; exits 0."""
    line = sys.stdin.buffer.readline()
    if not line:  # the runtime server went before it could say what to start
        sys.exit(1)
    order = json.loads(line)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    # Ctrl-C in a terminal reaches the whole group; the runtime server decides instead.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    terminate = _TerminateFlag()
    child = _start(order)
    started = time.monotonic()
    _report({"event": "started", "pid": child, "at": started})
    watch = _Watch(order, child)
    code = None
    reason = None
    stop_at = None
    while code is None:
        if _lifeline_closed(watch.tick_s):
            reason = reason or "runtime_gone"
            process_tree.kill_descendants(os.getpid())
        if terminate.requested and stop_at is None:
            reason = reason or "stopped"
            stop_at = time.monotonic() + _STOP_GRACE_S
            watch.release()
            process_tree.send([child], signal.SIGTERM)
        if stop_at is not None and time.monotonic() > stop_at:
            process_tree.kill_descendants(os.getpid())
        elif watch.look():
            reason = reason or "out_of_memory"
            process_tree.kill_descendants(os.getpid())
        code = _reap(child)
    if watch.cgroup_killed() or watch.over_limit:
        reason = "out_of_memory" if reason in (None, "out_of_memory") else reason
    process_tree.kill_descendants(os.getpid())
    # Read before the groups go, and removed here: the runtime server may be gone already.
    peak_bytes, killer = watch.peak_bytes(), watch.killer
    _remove_groups([os.path.dirname(procs) for procs in order["cgroup_procs"]])
    _report(
        {
            "event": "exited",
            "code": code,
            "reason": reason or "exited",
            "peak_bytes": peak_bytes,
            "by": killer,
        }
    )
    os._exit(0)


class _TerminateFlag:
    def __init__(self) -> None:
        self.requested = False
        signal.signal(signal.SIGTERM, self._set)

    def _set(self, _signal: int, _frame: object) -> None:
        self.requested = True


class _Watch:
    """Holds what the kernel was not asked to hold, and notices what it did."""

    def __init__(self, order: dict[str, Any], child: int) -> None:
        self._limit_bytes: int | None = order["memory_limit_bytes"]
        self._cgroup_memory: str | None = order["cgroup_memory"]
        self._share: float | None = order["cpu_share"]
        self._own_pid = os.getpid()
        self._peak_bytes = 0
        self._kills_before = self._cgroup_kills()
        self._budget_s = 0.0
        self._seen_s: dict[int, float] = {}
        self._last = time.monotonic()
        self._stopped = False
        self._next_memory = 0.0
        self.over_limit = False

    @property
    def tick_s(self) -> float:
        if self._share is not None:
            return _CPU_TICK_S
        return _SLOW_TICK_S if self._cgroup_memory else _MEMORY_TICK_S

    def look(self) -> bool:
        """Keep the CPU share; True when the tree must die for its memory."""
        now = time.monotonic()
        if self._share is None and now < self._next_memory:
            return False
        pids = process_tree.descendants(self._own_pid)
        if self._share is not None:
            self._keep_share(now, pids)
        if now >= self._next_memory:
            self._next_memory = now + (_SLOW_TICK_S if self._cgroup_memory else _MEMORY_TICK_S)
            resident = process_tree.resident_bytes(pids)
            self._peak_bytes = max(self._peak_bytes, resident)
            # Behind a cgroup the kernel is first: it counts shared pages once, this sum does not.
            if self._cgroup_memory is None and self._limit_bytes is not None:
                # Once is enough: the next look may already see a smaller tree.
                self.over_limit = self.over_limit or resident > self._limit_bytes
        return self.over_limit or self.cgroup_killed()

    def cgroup_killed(self) -> bool:
        return self._cgroup_kills() > self._kills_before

    @property
    def killer(self) -> str | None:
        """Who ended the tree for its memory; None when nobody did."""
        if self.over_limit:
            return "watcher"
        return "cgroup" if self.cgroup_killed() else None

    def release(self) -> None:
        """Let stopped processes run again, so that they can act on SIGTERM."""
        if self._stopped:
            process_tree.send(process_tree.descendants(self._own_pid), signal.SIGCONT)
        self._share = None

    def peak_bytes(self) -> int:
        for name in ("memory.max_usage_in_bytes", "memory.peak"):
            value = _read_number(self._cgroup_memory, name)
            if value:
                return value
        return self._peak_bytes

    def _keep_share(self, now: float, pids: list[int]) -> None:
        share = self._share or 0.0
        used = 0.0
        seen = {pid: process_tree.cpu_seconds(pid) for pid in pids}
        for pid, seconds in seen.items():
            used += max(0.0, seconds - self._seen_s.get(pid, 0.0))
        self._seen_s = seen
        earned = share * (now - self._last)
        self._last = now
        self._budget_s = min(self._budget_s + earned - used, share * _CPU_PERIOD_S)
        if self._budget_s < 0:
            process_tree.send(pids, signal.SIGSTOP)
            self._stopped = True
        elif self._stopped:
            process_tree.send(pids, signal.SIGCONT)
            self._stopped = False

    def _cgroup_kills(self) -> int:
        if self._cgroup_memory is None:
            return 0
        for name in ("memory.events", "memory.oom_control"):
            try:
                with open(os.path.join(self._cgroup_memory, name)) as stream:
                    for line in stream:
                        key, _, value = line.partition(" ")
                        if key == "oom_kill":
                            return int(value)
            except OSError:
                continue
        return 0


def _start(order: dict[str, Any]) -> int:
    init = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != init:
            os._exit(1)
        # A new session: a terminal's Ctrl-C does not reach the container.
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        for procs in order["cgroup_procs"]:
            with open(procs, "w") as stream:
                stream.write("0")
        if order["cpus"]:
            os.sched_setaffinity(0, order["cpus"])
        os.chdir(order["directory"])
        os.execve(order["command"][0], order["command"], order["environment"])  # noqa: S606
    except BaseException as error:  # noqa: BLE001  (it must not return into the parent's code)
        os.write(2, f"the container could not be started: {error}\n".encode())
    finally:
        os._exit(126)


def _lifeline_closed(timeout_s: float) -> bool:
    try:
        readable, _, _ = select.select([0], [], [], timeout_s)
    except InterruptedError:
        return False
    return bool(readable) and os.read(0, 1) == b""


def _reap(child: int) -> int | None:
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == child:
            code = os.waitstatus_to_exitcode(status)


def _remove_groups(folders: list[str]) -> None:
    deadline = time.monotonic() + _REMOVE_S
    for folder in folders:
        while os.path.isdir(folder) and time.monotonic() < deadline:
            try:
                os.rmdir(folder)
            except OSError:  # a process in it has not quite ended
                _reap(-1)
                time.sleep(0.005)


def _report(event: dict[str, Any]) -> None:
    try:
        os.write(1, json.dumps(event).encode() + b"\n")
    except BrokenPipeError:
        return


def _read_number(folder: str | None, name: str) -> int:
    if folder is None:
        return 0
    try:
        with open(os.path.join(folder, name)) as stream:
            return int(stream.read())
    except (OSError, ValueError):
        return 0


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main()
