"""The parts of `serve` that need no process of their own."""

import errno
import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from inference_image import serve
from inference_image.log import JsonLog
from inference_image.metrics import Metrics
from inference_image.settings import Settings
from tests.service_harness import TINY_MODEL


def settings(port: int = 0) -> Settings:
    environment = {"DR_BIND_HOST": "127.0.0.1", "SAGEMAKER_BIND_TO_PORT": str(port)}
    return Settings.from_environment(environment, cpus=1)


def test_accepted_connections_name_their_protocol_so_that_asyncio_disables_nagle() -> None:
    with closing(serve._listen(settings())) as listener:
        address = listener.getsockname()
        with closing(socket.create_connection(address)), closing(listener.accept()[0]) as accepted:
            assert accepted.proto == socket.IPPROTO_TCP


def test_out_of_files_a_turn_of_accepting_ends_after_the_first_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """asyncio itself would go on for the length of its backlog."""
    calls = 0

    def accept(_: socket.socket) -> Any:
        nonlocal calls
        calls += 1
        raise OSError(errno.EMFILE, "Too many open files")

    with closing(serve._listen(settings())) as listener:
        monkeypatch.setattr(socket.socket, "accept", accept)
        for turn in range(1, 4):
            with pytest.raises(OSError, match="Too many open files"):
                listener.accept()
            with pytest.raises(BlockingIOError):
                listener.accept()
            assert calls == turn


def test_of_several_workers_each_takes_one_caller_at_a_time_until_it_is_full() -> None:
    with closing(serve._listen(settings())) as listener:
        listener.setblocking(False)
        full = False
        listener.at_once = lambda: 3 if full else 1

        def taken_in_one_turn() -> int:
            taken = 0
            with suppress(BlockingIOError):
                for _ in range(10):
                    listener.accept()[0].close()
                    taken += 1
            return taken

        callers = [socket.create_connection(listener.getsockname()) for _ in range(8)]
        assert [taken_in_one_turn() for _ in range(2)] == [1, 1]
        full = True
        assert [taken_in_one_turn() for _ in range(3)] == [3, 3, 0]
        callers += [socket.create_connection(listener.getsockname()) for _ in range(4)]
        listener.at_once = None
        assert taken_in_one_turn() == 4
        for caller in callers:
            caller.close()


def test_a_worker_that_holds_more_leaves_a_caller_to_another_but_not_for_long() -> None:
    with closing(serve._listen(settings())) as listener:
        listener.setblocking(False)
        ahead = 2
        listener.at_once = lambda: 1
        listener.ahead = lambda: ahead

        def seconds_until_taken() -> float:
            began = time.monotonic()
            while True:
                with suppress(BlockingIOError):
                    listener.accept()[0].close()
                    return time.monotonic() - began

        callers = [socket.create_connection(listener.getsockname()) for _ in range(5)]
        assert 0.008 <= seconds_until_taken() < 0.04
        assert 0.008 <= seconds_until_taken() < 0.04
        # The other one has died: then it takes whoever comes at once.
        ahead = 1000
        assert 0.05 <= seconds_until_taken() < 0.15
        assert seconds_until_taken() < 0.008
        time.sleep(0.25)
        ahead = 0
        assert seconds_until_taken() < 0.008
        for caller in callers:
            caller.close()


def test_what_a_worker_may_accept_follows_its_load_and_what_others_hold() -> None:
    app = SimpleNamespace(is_full=lambda: full, is_busy=lambda: busy)
    one, two = Metrics(1), Metrics(2)
    full = busy = False
    recorders = [two.recorder(slot) for slot in (0, 1)]

    def acceptable(metrics: Metrics) -> int:
        return serve._acceptable(app, metrics, 0)  # type: ignore[arg-type]

    one.recorder(0)
    assert [acceptable(one), acceptable(two)] == [16, 1]
    busy = True
    assert [acceptable(one), acceptable(two)] == [64, 4]
    # Of a worker that is not ready nobody knows what it will hold.
    recorders[0].connections(10)
    assert acceptable(two) == 4
    recorders[1].ready()
    assert acceptable(two) == 2
    recorders[1].connections(30)
    assert acceptable(two) == 24
    recorders[1].connections(300)
    assert acceptable(two) == 64
    full = True
    recorders[1].connections(0)
    assert [acceptable(one), acceptable(two)] == [64, 64]


def test_workers_count_together_and_share_readiness() -> None:
    board = serve.Board(3)
    counters = [serve.SlotCounter(board, slot) for slot in range(3)]
    assert [counters[slot].next() for slot in (0, 2, 2, 1, 0)] == [0, 1, 2, 3, 4]
    assert not board.any_ready()
    board.set_ready(1, True)
    assert board.any_ready()
    board.set_ready(1, False)
    assert not board.any_ready()
    # Readiness does not reach into the counts.
    assert counters[0].next() == 5


def test_only_the_first_failure_is_told() -> None:
    board = serve.Board(2)
    assert [board.first_failure() for _ in range(3)] == [True, False, False]


def test_the_process_started_before_now_and_not_long_ago() -> None:
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert 0 <= now - serve.process_start_s() < 3600


def test_the_answer_while_loading_is_complete_http() -> None:
    head, _, body = serve._LOADING.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert f"content-length: {len(body)}".encode() in head


def supervisor(listener: socket.socket) -> serve._Supervisor:
    return serve._Supervisor(
        listener=listener,
        board=serve.Board(2),
        work=lambda _: 0,
        log=JsonLog(level="info", stream=io.StringIO()),
    )


def test_a_worker_that_fails_says_why(capfd: pytest.CaptureFixture[str]) -> None:
    def work(_: int) -> int:
        raise RuntimeError("no room")

    with closing(serve._listen(settings())) as listener:
        failing = supervisor(listener)
        failing._work = work
        failing._lifeline = os.pipe()
        failing._start(0)
        (pid,) = failing._running
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == serve.EXIT_WORKERS
        for end in failing._lifeline:
            os.close(end)
    assert capfd.readouterr().err == "serve: a worker has failed (RuntimeError: no room).\n"


def test_no_worker_starts_once_the_others_have_been_told_to_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serve.os, "fork", lambda: pytest.fail("a worker was started"))
    with closing(serve._listen(settings())) as listener:
        stopping = supervisor(listener)
        stopping._stopping = True
        before = signal.pthread_sigmask(signal.SIG_BLOCK, set())
        stopping._start(0)
        assert stopping._running == {}
        assert signal.pthread_sigmask(signal.SIG_BLOCK, set()) == before


def test_a_caller_who_sends_drop_by_drop_is_left_after_a_second() -> None:
    with closing(serve._listen(settings())) as listener:

        def trickle() -> None:
            caller = socket.create_connection(listener.getsockname())
            with closing(caller), suppress(OSError):
                while True:
                    caller.sendall(b"x")
                    time.sleep(0.05)

        # It ends by itself only when the connection is closed on it.
        trickling = threading.Thread(target=trickle, daemon=True)
        trickling.start()
        supervisor(listener)._turn_away()
        trickling.join(timeout=60)
        assert not trickling.is_alive()


def test_at_the_end_whoever_still_waits_is_told() -> None:
    with closing(serve._listen(settings())) as listener:
        listener.setblocking(False)
        callers = [socket.create_connection(listener.getsockname(), timeout=5) for _ in range(3)]
        for caller in callers:
            caller.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
            caller.shutdown(socket.SHUT_WR)
        supervisor(listener).turn_away_the_rest()
        for caller in callers:
            with closing(caller):
                assert caller.recv(1000).startswith(b"HTTP/1.1 503 ")


def test_a_new_worker_finds_all_that_it_imports_in_the_process_that_forks_it() -> None:
    """Nothing is left to import, or another worker would not be there at once."""
    code = (
        "import sys; from inference_image import serve; serve._import_service();"
        "before = set(sys.modules);"
        "from inference_image.http_app import create_app;"
        "from inference_image.http_protocol import bounded_protocol;"
        "from inference_image.service import ContainerStart;"
        "from inference_image.settings import Settings;"
        "app = create_app(Settings.from_environment({'DR_MODEL_DIR': sys.argv[1]}));"
        "app._service.prepare(); app._service.executor.shutdown();"
        "print(*sorted(n for n in set(sys.modules) - before if n.startswith('inference_image')))"
    )
    command = [sys.executable, "-c", code, str(TINY_MODEL)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    # The loader of the chosen engine is imported with it.
    assert done.stdout.splitlines()[-1].split() == ["inference_image.runtimes.litert"]
