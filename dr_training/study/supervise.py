"""Runs one training beside its monitor, and says how it ended.

    python -m dr_training.study.supervise SPEC.json OUT

Needs the standard library only, on whatever machine the training runs. In `OUT` it leaves
`result.json`, `monitor.csv`, `worker.json` and `worker.log`. Its own exit code is 0 when it
could write `result.json`, whatever became of the training.
"""

import contextlib
import ctypes
import json
import os
import platform
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from dr_training.study.counters import Gpus
from dr_training.study.monitor import Monitor

RESULT = "result.json"
MONITOR = "monitor.csv"
LOG = "worker.log"
WORKER = "worker.json"
# How a run can end; only `ok` is averaged.
OK, MEMORY, UNAVAILABLE, DATA, ERROR, KILLED, TIME, INTERRUPTED = STATUSES = (
    "ok",
    "memory",
    "unavailable",
    "data",
    "error",
    "killed",
    "time",
    "interrupted",
)
_PR_SET_PDEATHSIG = 1
_LOOK_S = 0.1
_GRACE_S = 10.0
_TAIL_BYTES = 2000
# Each library reads its own name for the number of its threads, when it is loaded.
_THREAD_SETTINGS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "MXNET_CPU_WORKER_NTHREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)


class _Stopped(Exception):  # noqa: N818 - a message, not an error
    pass


def supervise(
    spec: dict[str, Any], out: Path, *, command: list[str] | None = None, gpus: Gpus | None = None
) -> dict[str, Any]:
    """Run the training of a specification to its end and write `result.json`.

    Args:
        spec: of `plan.specification`, as JSON has it.
        out: folder for the files, made where it is missing.
        command: what to run instead of the worker (it gets no arguments more).

    Returns:
        What is in `result.json`: `status` (one of `STATUSES`), `reason`, times in seconds,
        figures of the monitor, and what the worker noted.
    """
    out.mkdir(parents=True, exist_ok=True)
    for name in (RESULT, MONITOR, WORKER):
        (out / name).unlink(missing_ok=True)
    spec_file = out / "spec.json"
    spec_file.write_text(json.dumps(spec, indent=1) + "\n")
    command = command or [
        sys.executable, "-m", "dr_training.study.worker", str(spec_file), str(out),
    ]  # fmt: skip
    cores = spec["environment"].get("cores")
    with (out / LOG).open("wb") as log, _terminations():
        wall, start = time.time(), time.monotonic()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=_environment(spec),
            # A session of its own: whoever it starts can be found and ended with it.
            start_new_session=True,
            preexec_fn=lambda: _prepare(cores),  # noqa: PLW1509 - this program has one thread
        )
        monitor = Monitor(
            process.pid,
            out / MONITOR,
            interval_s=spec["monitor_interval_s"],
            start=start,
            session=process.pid,
            gpus=gpus,
        )
        own = time.process_time()
        ended: tuple[str, str] | None = None
        try:
            ended = _watch(process, monitor, spec, start)
        except _Stopped as stop:
            ended = (INTERRUPTED, str(stop))
        finally:
            _end(process, monitor)
            monitor.close()
        life_s = time.monotonic() - start
        own_s = time.process_time() - own
    result = _result(spec, out, process.returncode, ended, monitor)
    result.update(
        started_at=wall,
        life_s=life_s,
        peak_rss_mib=monitor.peak_rss_mib,
        cpu_s=monitor.cpu_s,
        monitor_cpu_percent=100 * own_s / life_s,
        machine=machine(),
    )
    result.update(_times(result["worker"], start, life_s))
    write(out / RESULT, result)
    return result


def machine() -> dict[str, Any]:
    """Processor, cores that may be used, memory and system; no name of the machine."""
    processor = platform.processor() or "unknown"
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                processor = line.partition(":")[2].strip()
                break
    return {
        "processor": processor,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "load_1min": round(os.getloadavg()[0], 1),
    }


def write(path: Path, document: dict[str, Any]) -> None:
    """Write JSON whole or not at all."""
    partial = path.with_name(f".{path.name}.part")
    partial.write_text(json.dumps(document, indent=1) + "\n")
    partial.replace(path)


def _environment(spec: dict[str, Any]) -> dict[str, str]:
    environment = dict(os.environ)
    threads = str(spec["environment"]["threads"])
    environment.update(dict.fromkeys(_THREAD_SETTINGS, threads))
    if spec["environment"]["device"] == "cpu":
        # Where there is a GPU, a run on the processor must not use it.
        environment["CUDA_VISIBLE_DEVICES"] = ""
        environment["JAX_PLATFORMS"] = "cpu"
    environment["PYTHONUNBUFFERED"] = "1"
    # Compiling a framework's modules again at each start would be measured as its start-up.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    # The package is found from where this module lies, wherever that is.
    root = str(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(
        [root, *filter(None, [environment.get("PYTHONPATH")])]
    )
    return environment


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """Ask the kernel to end this process when its parent ends, however that happens."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))


def _prepare(cores: int | None) -> None:
    end_with_parent()
    if cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


@contextlib.contextmanager
def _terminations() -> Any:
    def stop(number: int, _frame: FrameType | None) -> None:
        raise _Stopped(f"the run was ended from outside (signal {number})")

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    try:
        before = {number: signal.signal(number, stop) for number in numbers}
    except ValueError:  # not the main thread: whoever called handles signals
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch(
    process: subprocess.Popen[bytes], monitor: Monitor, spec: dict[str, Any], start: float
) -> tuple[str, str] | None:
    """Sample until the process ends; why it was ended, where it was."""
    most_mib, most_s = spec.get("memory_limit_mib"), spec.get("time_limit_s")
    while not _has_ended(process):
        if monitor.due_in_s == 0:
            use = monitor.sample()
            if most_mib is not None and use is not None and use.rss_mib > most_mib:
                return MEMORY, (
                    f"it took {use.rss_mib:,.0f} MiB of memory; its limit is {most_mib:,.0f} MiB"
                )
        if most_s is not None and time.monotonic() - start > most_s:
            return TIME, f"it was ended after {most_s:,.0f} s, the limit of a run"
        left = [monitor.due_in_s]
        if most_s is not None:
            left.append(max(0.0, start + most_s - time.monotonic()))
        _wait(process, min(left))
    # It is still in the table of processes, with all the time that it has used.
    monitor.sample()
    process.wait()
    return None


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has, without taking it out of the table of processes as `poll` does."""
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _wait(process: subprocess.Popen[bytes], most_s: float) -> None:
    """Sleep until the process ends, without looking again and again."""
    try:
        handle = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # a kernel before 5.3, or it has just ended
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.001, most_s))
        return
    try:
        # A thousandth more, so that what is due is due when it returns.
        select.select([handle], [], [], most_s + 0.001)
    finally:
        os.close(handle)


def _end(process: subprocess.Popen[bytes], monitor: Monitor) -> None:
    """End the process and all that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        left = monitor.pids()
        if process.poll() is not None:
            left = [pid for pid in left if pid != process.pid]
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline:
            if process.poll() is not None and not [
                pid for pid in monitor.pids() if pid != process.pid
            ]:
                return
            time.sleep(_LOOK_S)


def _result(
    spec: dict[str, Any],
    out: Path,
    code: int | None,
    ended: tuple[str, str] | None,
    monitor: Monitor,
) -> dict[str, Any]:
    worker = _read(out / WORKER)
    failure = worker.get("failure")
    if ended is not None:
        status, reason = ended
    elif code == 0 and failure is None and "done" in worker.get("marks", {}):
        status, reason = OK, ""
    elif failure is not None:
        status, reason = failure["kind"], failure["reason"]
    elif (kills := monitor.oom_kills()) and code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        status, reason = (
            MEMORY,
            (f"the kernel killed it for memory (oom_kill of its control group rose by {kills})"),
        )
    elif code is not None and code < 0:
        name = signal.Signals(-code).name
        status, reason = KILLED, f"it was killed by {name}"
        if code == -signal.SIGKILL:
            reason += "; no counter says that it was for memory"
    else:
        status, reason = ERROR, f"it ended with exit code {code} and gave no reason: {_tail(out)}"
    return {
        "run": spec.get("run"),
        "scenario": spec.get("scenario"),
        "repetition": spec.get("repetition"),
        "status": status,
        "reason": reason,
        "worker": worker,
    }


def _times(worker: dict[str, Any], start: float, life_s: float) -> dict[str, float]:
    """The life of a run in parts that add up to it; parts that were not reached are 0."""
    marks, epochs = worker.get("marks", {}), worker.get("epochs", [])
    training = sum(epoch["end"] - epoch["start"] for epoch in epochs)
    ends = {"start_up_s": "imported", "data_s": "data_ready", "build_s": "built"}
    times, last = {}, start
    for name, mark in ends.items():
        times[name] = marks[mark] - last if mark in marks else 0.0
        last = marks.get(mark, last)
    done = marks.get("done", epochs[-1]["end"] if epochs else last)
    evaluation = done - last - training
    return {
        **times,
        "training_s": training,
        "training_cpu_s": sum(epoch["cpu_s"] for epoch in epochs),
        "evaluation_s": evaluation,
        "ending_s": life_s - (done - start),
    }


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _tail(out: Path) -> str:
    lines = (out / LOG).read_bytes()[-_TAIL_BYTES:].decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")


def main(spec_file: str, out: str) -> int:
    """See the module."""
    result = supervise(json.loads(Path(spec_file).read_text()), Path(out))
    print(f"{result['status']} {result['reason']}".strip())
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
