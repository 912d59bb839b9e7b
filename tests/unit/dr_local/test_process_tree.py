"""Processes are known by id and start time, and trees end whole."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from dr_local import process_tree

FAMILY = (
    "import subprocess, sys, time\n"
    "child = 'import subprocess, sys, time; '\n"
    'child += \'subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]); \'\n'
    "child += 'print(1, flush=True); time.sleep(60)'\n"
    "subprocess.Popen([sys.executable, '-c', child])\n"
    "time.sleep(60)\n"
)


@pytest.fixture
def family() -> Iterator[subprocess.Popen[str]]:
    """A process with a child and a grandchild."""
    process = subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process_tree.kill_descendants(process.pid)
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_process_is_itself_and_not_a_later_one_of_the_same_id():
    me = process_tree.identify(os.getpid())
    assert me is not None
    assert process_tree.is_alive(me)
    assert not process_tree.is_alive(me._replace(start_ticks=me.start_ticks - 1))


def test_no_process_has_no_identity():
    assert process_tree.identify(2**22 + 1) is None


def test_a_zombie_is_not_alive():
    process = subprocess.Popen([sys.executable, "-c", ""])
    identity = process_tree.identify(process.pid)
    assert identity is not None
    deadline = time.monotonic() + 5
    while process_tree.is_alive(identity) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not process_tree.is_alive(identity)
    process.wait()


@pytest.mark.parametrize("listed", [True, False], ids=["children files", "scan of /proc"])
def test_descendants_are_children_and_grandchildren(family, monkeypatch, listed: bool):
    if listed and not process_tree._CHILDREN_LISTED:
        pytest.fail("this kernel lists no children; the fallback is tested, the files are not")
    monkeypatch.setattr(process_tree, "_CHILDREN_LISTED", listed)
    below = process_tree.descendants(family.pid)
    assert len(below) == 2
    assert process_tree.resident_bytes(below) > 2 * 1024**2


def test_killing_descendants_spares_the_process_itself(family):
    below = process_tree.descendants(family.pid)
    process_tree.kill_descendants(family.pid)
    assert family.poll() is None
    assert not [pid for pid in below if process_tree._is_running(pid)]


def test_stop_waits_for_a_process_that_heeds_sigterm(family):
    identity = process_tree.identify(family.pid)
    assert identity is not None
    assert process_tree.stop(identity, grace_s=5)
    assert not process_tree.is_alive(identity)
    assert not process_tree.stop(identity, grace_s=5)


def test_stop_kills_one_that_does_not():
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True)"
    process = subprocess.Popen(
        [sys.executable, "-c", code + "; time.sleep(60)"], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    identity = process_tree.identify(process.pid)
    assert identity is not None
    assert process_tree.stop(identity, grace_s=0.2)
    assert not process_tree.is_alive(identity)
    process.stdout.close()
    process.wait()


def test_stop_waits_for_the_last_thread():
    # Its first thread ends at SIGTERM, the second one a moment later: a zombie in between.
    program = (
        "import ctypes, os, platform, signal, threading, time\n"
        "exit_thread = {'x86_64': 60, 'aarch64': 93}[platform.machine()]\n"
        "def last():\n"
        "    asked.wait()\n"
        "    time.sleep(0.5)\n"
        "    os._exit(0)\n"
        "def first(*_):\n"
        "    asked.set()\n"
        "    ctypes.CDLL(None).syscall(exit_thread, 0)\n"
        "asked = threading.Event()\n"
        "threading.Thread(target=last).start()\n"
        "signal.signal(signal.SIGTERM, first)\n"
        "print(1, flush=True)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    identity = process_tree.identify(process.pid)
    assert identity is not None
    try:
        assert process_tree.stop(identity, grace_s=5.0)
        assert process_tree.identify(process.pid) is None
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_processor_time_is_counted_finely():
    before = process_tree.cpu_seconds(os.getpid())
    end = time.process_time() + 0.005
    while time.process_time() < end:
        pass
    assert 0.004 < process_tree.cpu_seconds(os.getpid()) - before < 0.5
    assert process_tree.cpu_seconds(2**22 + 1) == 0.0
