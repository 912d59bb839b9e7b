"""The container's first process, with the fallbacks for machines without writable cgroups."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dr_local import container_init, process_tree

MIB = 1024**2


class Init:
    """A container_init that runs `code` in a Python child."""

    def __init__(self, folder: Path, code: str, **order: Any) -> None:
        self.log = folder / "log"
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", container_init.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        document = {
            "command": [sys.executable, "-I", "-S", "-c", code],
            "environment": {"PATH": os.defpath, "MARK": "yes"},
            "directory": str(folder),
            "log": str(self.log),
            "cgroup_procs": [],
            "cgroup_memory": None,
            "memory_limit_bytes": None,
            "cpus": [],
            "cpu_share": None,
            **order,
        }
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(document) + "\n")
        self.process.stdin.flush()

    def event(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return dict(json.loads(self.process.stdout.readline()))

    def close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self.process.wait(10)


@pytest.fixture
def start(tmp_path: Path):
    made: list[Init] = []

    def start_one(code: str, **order: Any) -> Init:
        made.append(Init(tmp_path, code, **order))
        return made[-1]

    yield start_one
    for init in made:
        init.close()


def test_output_environment_and_exit_code(start):
    init = start("import os, sys; print(os.environ['MARK'], os.getcwd()); sys.exit(7)")
    started = init.event()
    assert started["event"] == "started"
    assert 0 <= time.monotonic() - started["at"] < 10
    exited = init.event()
    assert (exited["code"], exited["reason"], exited["by"]) == (7, "exited", None)
    assert init.log.read_text() == f"yes {init.log.parent}\n"


def test_a_command_that_does_not_exist_says_so_in_the_log(start):
    init = start("", command=["/nowhere/serve"])
    init.event()
    assert init.event()["code"] == 126
    assert "could not be started" in init.log.read_text()


def test_the_watcher_kills_above_the_memory_limit(start):
    init = start(
        "b = bytearray(80 << 20)\nb[::4096] = b'x' * len(b[::4096])\nimport time; time.sleep(60)",
        memory_limit_bytes=50 * MIB,
    )
    init.event()
    exited = init.event()
    assert (exited["reason"], exited["by"]) == ("out_of_memory", "watcher")
    assert exited["peak_bytes"] > 50 * MIB


def test_the_watcher_counts_the_whole_tree(start):
    code = (
        "import os, time\nfor _ in range(2): os.fork()\n"
        "b = bytearray(20 << 20)\nb[::4096] = b'x' * len(b[::4096])\ntime.sleep(60)"
    )
    init = start(code, memory_limit_bytes=70 * MIB)
    init.event()
    assert init.event()["reason"] == "out_of_memory"


def test_the_watcher_spares_what_is_below_the_limit(start):
    init = start(
        "b = bytearray(30 << 20)\nb[::4096] = b'x' * len(b[::4096])\nimport time; time.sleep(.3)",
        memory_limit_bytes=100 * MIB,
    )
    init.event()
    exited = init.event()
    assert (exited["code"], exited["reason"]) == (0, "exited")
    assert exited["peak_bytes"] > 30 * MIB


def test_stop_and_continue_keeps_the_processor_share(start):
    code = (
        "import time\nbegin = time.monotonic()\nend = time.process_time() + 0.3\n"
        "while time.process_time() < end: pass\nprint(time.monotonic() - begin)"
    )
    init = start(code, cpu_share=0.25)
    init.event()
    assert init.event()["code"] == 0
    # 0.3 s of work at a quarter of a processor: 1.2 s, less the burst of the first period.
    assert float(init.log.read_text()) > 0.9


def test_sigterm_reaches_the_command_even_while_it_is_stopped(start):
    code = (
        "import signal, sys\nsignal.signal(15, lambda *_: (print('bye', flush=True), sys.exit(0)))"
        "\nprint('ready', flush=True)\nwhile True: pass"
    )
    init = start(code, cpu_share=0.05)
    init.event()
    deadline = time.monotonic() + 10
    while "ready" not in (init.log.read_text() if init.log.exists() else ""):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    init.process.send_signal(signal.SIGTERM)
    assert init.event()["reason"] == "stopped"
    assert init.log.read_text().endswith("bye\n")


def test_a_command_that_ignores_sigterm_is_killed(start):
    init = start("import signal, time\nsignal.signal(15, signal.SIG_IGN)\ntime.sleep(60)")
    child = init.event()["pid"]
    time.sleep(0.3)
    init.process.send_signal(signal.SIGTERM)
    exited = init.event()
    assert (exited["code"], exited["reason"]) == (-signal.SIGKILL, "stopped")
    assert not Path(f"/proc/{child}").exists()


@pytest.mark.parametrize("how", ["lifeline", "killed"])
def test_the_tree_ends_with_its_keeper(start, how: str):
    # The worker leaves its session, as a daemon would, and is found all the same.
    init = start("import os, time\nif os.fork() == 0: os.setsid()\ntime.sleep(60)")
    child = init.event()["pid"]
    deadline = time.monotonic() + 10
    while not (below := process_tree.descendants(child)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    if how == "lifeline":
        assert init.process.stdin is not None
        init.process.stdin.close()
        assert init.event()["reason"] == "runtime_gone"
        gone = [child, *below]
    else:
        init.process.kill()
        gone = [child]
    deadline = time.monotonic() + 10
    while [pid for pid in gone if process_tree._is_running(pid)]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process_tree.send(below, signal.SIGKILL)
