"""A run beside its monitor: what is counted, how it can end, and that nothing is left behind."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dr_training.study.monitor import COLUMNS, Monitor
from dr_training.study.results import read_monitor
from dr_training.study.supervise import _result, supervise
from dr_training.study.worker.__main__ import kind_of

SPEC: dict[str, Any] = {
    "run": "C1-r1",
    "scenario": "C1",
    "repetition": 1,
    "workload": "classification",
    "environment": {"name": "here", "device": "cpu", "threads": 1, "cores": None},
    "monitor_interval_s": 0.2,
    "memory_limit_mib": None,
    "time_limit_s": None,
}


def run(tmp_path: Path, code: str, **changes: Any) -> dict[str, Any]:
    """Supervise a Python program instead of a training."""
    command = [sys.executable, "-c", code, str(tmp_path)]
    return supervise({**SPEC, **changes}, tmp_path, command=command)


def test_a_load_is_read_as_what_it_was(tmp_path: Path) -> None:
    """A process that works 60 % of its time, by its own clock of processor time.

    On a busy machine it gets less than it wants; the monitor must say what it got.
    """
    code = """
import json, sys, time
start, cpu = time.monotonic(), time.process_time()
while time.monotonic() - start < 3:
    begin, used = time.monotonic(), time.process_time()
    while time.process_time() - used < 0.06 and time.monotonic() - begin < 0.1:
        pass
    time.sleep(max(0, begin + 0.1 - time.monotonic()))
share = 100 * (time.process_time() - cpu) / (time.monotonic() - start)
json.dump({"share": share, "cpu_s": time.process_time()}, open(sys.argv[1] + "/own.json", "w"))
"""
    result = run(tmp_path, code, monitor_interval_s=0.1)
    own = json.loads((tmp_path / "own.json").read_text())
    # Its own processor time, and what the interpreter takes to end; a counter has 10 ms.
    assert result["cpu_s"] == pytest.approx(own["cpu_s"], abs=0.06)
    with (tmp_path / "monitor.csv").open() as file:
        rows = list(csv.DictReader(file))
    used = sum(float(row["cpu_percent"]) * float(row["interval_s"]) / 100 for row in rows)
    assert used == pytest.approx(own["cpu_s"], abs=0.06)
    # The mean of its rows is the counter's difference over the time: 3 points of 100.
    seconds = sum(float(row["interval_s"]) for row in rows)
    mean = read_monitor(tmp_path / "monitor.csv")["cpu_percent"]
    assert mean == pytest.approx(100 * own["cpu_s"] / seconds, abs=3)


def test_what_the_machine_does_not_report_is_blank_and_not_nothing(tmp_path: Path) -> None:
    from dr_training.study.counters import Gpus

    class NoDriver:
        def nvmlInit_v2(self) -> int:  # noqa: N802
            return 12

    supervise(
        SPEC,
        tmp_path,
        command=[sys.executable, "-c", "import time; time.sleep(0.5)"],
        gpus=Gpus(NoDriver()),
    )
    with (tmp_path / "monitor.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows
    assert tuple(rows[0]) == COLUMNS
    assert all(row["gpu_percent"] == row["gpu_memory_mib"] == "" for row in rows)
    assert read_monitor(tmp_path / "monitor.csv")["gpu_percent"] is None


def test_children_are_counted_when_they_have_ended(tmp_path: Path) -> None:
    code = """
import subprocess, sys, time
burn = "import time\\nwhile time.process_time() < 0.5: pass"
subprocess.run([sys.executable, "-c", burn])
"""
    # A counter has steps of 10 ms.
    assert run(tmp_path, code)["cpu_s"] >= 0.48


@pytest.mark.parametrize(
    ("code", "status", "words"),
    [
        ("raise SystemExit(3)", "error", "exit code 3"),
        ("print('no such device'); raise SystemExit(1)", "error", "no such device"),
        ("import os; os.kill(os.getpid(), 9)", "killed", "SIGKILL; no counter says"),
        ("import os; os.kill(os.getpid(), 11)", "killed", "SIGSEGV"),
        # It ends well and has said nothing: not a run that went well.
        ("pass", "error", "gave no reason"),
    ],
)
def test_how_a_run_can_end(tmp_path: Path, code: str, status: str, words: str) -> None:
    result = run(tmp_path, code)
    assert result["status"] == status
    assert words in result["reason"]
    assert json.loads((tmp_path / "result.json").read_text()) == result


def test_too_much_memory_is_recorded_as_that(tmp_path: Path) -> None:
    code = (
        "import time\nblock = bytearray(400 * 2**20)\nblock[::4096] = b'x' * len(block[::4096])\n"
    )
    result = run(tmp_path, code + "time.sleep(60)", memory_limit_mib=200, monitor_interval_s=0.05)
    assert result["status"] == "memory"
    assert "its limit is 200 MiB" in result["reason"]
    assert result["peak_rss_mib"] > 200


def test_a_kill_by_the_kernel_for_memory_is_told_by_its_counter(tmp_path: Path) -> None:
    class Counted:
        def oom_kills(self) -> int:
            return 1

    result = _result(SPEC, tmp_path, -signal.SIGKILL, None, Counted())  # type: ignore[arg-type]
    assert result["status"] == "memory"
    assert "oom_kill of its control group rose by 1" in result["reason"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), "memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "memory"),
        (ValueError("OOM when allocating tensor with shape[9,9]"), "memory"),
        (ModuleNotFoundError("No module named 'mxnet'"), "unavailable"),
        (ValueError("shapes differ"), "error"),
    ],
)
def test_what_frameworks_say_about_memory(error: Exception, kind: str) -> None:
    assert kind_of(error) == kind


def test_a_run_without_end_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    code = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(sys.argv[1], "child").write_text(str(child.pid))
time.sleep(600)
"""
    result = run(tmp_path, code, time_limit_s=4)
    assert result["status"] == "time"
    assert "limit of a run" in result["reason"]
    child = int((tmp_path / "child").read_text())
    assert not _lives(child)


def test_a_run_ends_with_its_supervisor(tmp_path: Path) -> None:
    """However that ends: nobody would measure the run any more."""
    program = (
        "import json, sys; from pathlib import Path; "
        "from dr_training.study.supervise import supervise; "
        'code = \'import os, sys, time; open(sys.argv[1], "w").write(str(os.getpid())); '
        "time.sleep(600)'; "
        "supervise(json.loads(sys.argv[1]), Path(sys.argv[2]), "
        "command=[sys.executable, '-c', code, sys.argv[2] + '/pid'])"
    )
    command = [sys.executable, "-c", program, json.dumps(SPEC), str(tmp_path)]
    supervisor = subprocess.Popen(command)
    try:
        worker = int(_wait_for(lambda: (tmp_path / "pid").read_text() or None))
    finally:
        supervisor.kill()
        supervisor.wait()
    assert _wait_for(lambda: not _lives(worker))


def test_an_interruption_is_no_failure_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(json.dumps(SPEC))
    program = (
        "import json, sys; from pathlib import Path; "
        "from dr_training.study.supervise import supervise; "
        'code = \'import sys, time; open(sys.argv[1], "w").write("x"); time.sleep(600)\'; '
        "supervise(json.loads(sys.argv[1]), Path(sys.argv[2]), "
        "command=[sys.executable, '-c', code, sys.argv[2] + '/up'])"
    )
    supervisor = subprocess.Popen([sys.executable, "-c", program, json.dumps(SPEC), str(tmp_path)])
    _wait_for(lambda: (tmp_path / "up").read_text() or None)
    supervisor.terminate()
    assert supervisor.wait(timeout=60) == 0
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "interrupted"


def test_the_monitor_waits_longer_where_a_look_is_dear(tmp_path: Path) -> None:
    """Its share stays below 1 %, by fewer rows; time is what the test says it is."""
    now = [100.0]
    monitor = Monitor(os.getpid(), tmp_path / "m.csv", interval_s=0.001, clock=lambda: now[0])
    for _ in range(5):
        before = time.process_time()
        now[0] += 0.5
        monitor.sample()
        cost_s = time.process_time() - before
        # The wait that it asks for is at least a hundred times what the look has cost.
        assert monitor.due_in_s > 0
        assert monitor.due_in_s >= 0.9 * monitor._cost_s / 0.007
        assert monitor._cost_s <= cost_s
    monitor.close()


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def _wait_for(look: Any) -> Any:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if found := look():
                return found
        except OSError:
            pass
        time.sleep(0.02)
    raise AssertionError("it has not happened within 60 s")
