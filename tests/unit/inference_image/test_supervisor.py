"""The supervisor: workers that it starts, and callers while none is ready."""

import io
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing, suppress

import pytest

from inference_image import supervisor
from inference_image.board import Board
from inference_image.listener import listen
from inference_image.log import JsonLog
from inference_image.settings import Settings
from inference_image.stopping import EXIT_WORKERS
from inference_image.supervisor import Supervisor
from tests.service_harness import TINY_MODEL


def settings(port: int = 0) -> Settings:
    environment = {"DR_BIND_HOST": "127.0.0.1", "SAGEMAKER_BIND_TO_PORT": str(port)}
    return Settings.from_environment(environment, cpus=1)


ID = "5F" * 16


@pytest.mark.parametrize(
    ("sent", "named"),
    [
        (b"POST /invocations HTTP/1.1\r\nx-request-ID: \t%b \r\nHost: x\r\n\r\n", True),
        (b"HEAD /ping HTTP/1.1\r\nHost: x\r\nX-Request-Id:%b\r\n\r\n", True),
        (b"POST /invocations HTTP/1.1\r\nX-Request-Id: %b ", False),
        (b"POST /invocations HTTP/1.1\r\n\r\n\r\nX-Request-Id: %b\r\n", False),
        (b"POST /invocations HTTP/1.1\r\nX-Request-Id: Marta\r\n\r\n%b", False),
        (b"\r\nX-Request-Id:" + b" " * 65_000 + b"\r\n\r\n%b", False),
        (b"%b", False),
    ],
)
def test_the_answer_while_loading_is_complete_http(sent: bytes, named: bool) -> None:
    answer = supervisor._loading_answer(sent % ID.encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    if sent.startswith(b"HEAD"):
        assert body == b""
    else:
        assert f"content-length: {len(body)}".encode() in head
    (said,) = [line for line in head.split(b"\r\n") if line.startswith(b"x-request-id: ")]
    given = said.partition(b" ")[2].decode()
    assert (given == ID) is named
    assert len(given) == 32


def supervising(listener: socket.socket) -> Supervisor:
    return Supervisor(
        listener=listener,
        board=Board(2),
        work=lambda _: 0,
        log=JsonLog(level="info", stream=io.StringIO()),
    )


def test_a_worker_that_fails_says_why(capfd: pytest.CaptureFixture[str]) -> None:
    def work(_: int) -> int:
        raise RuntimeError("no room")

    with closing(listen(settings())) as listener:
        failing = supervising(listener)
        failing._work = work
        failing._lifeline = os.pipe()
        failing._start(0)
        (pid,) = failing._running
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == EXIT_WORKERS
        for end in failing._lifeline:
            os.close(end)
    assert capfd.readouterr().err == "serve: a worker has failed (RuntimeError: no room).\n"


def test_no_worker_starts_once_the_others_have_been_told_to_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor.os, "fork", lambda: pytest.fail("a worker was started"))
    with closing(listen(settings())) as listener:
        stopping = supervising(listener)
        stopping._stopping = True
        before = signal.pthread_sigmask(signal.SIG_BLOCK, set())
        stopping._start(0)
        assert stopping._running == {}
        assert signal.pthread_sigmask(signal.SIG_BLOCK, set()) == before


def test_a_caller_who_sends_drop_by_drop_is_left_after_a_second() -> None:
    with closing(listen(settings())) as listener:

        def trickle() -> None:
            caller = socket.create_connection(listener.getsockname())
            with closing(caller), suppress(OSError):
                while True:
                    caller.sendall(b"x")
                    time.sleep(0.05)

        # It ends by itself only when the connection is closed on it.
        trickling = threading.Thread(target=trickle, daemon=True)
        trickling.start()
        turning = supervising(listener)
        give_up = time.monotonic() + 60
        while trickling.is_alive():
            turning._turn_away(lambda: True)
            assert time.monotonic() < give_up
        assert turning._callers == {}


def test_callers_who_send_nothing_keep_nobody_waiting() -> None:
    with closing(listen(settings())) as listener, ExitStack() as callers:
        address = listener.getsockname()
        idle = [callers.enter_context(socket.create_connection(address)) for _ in range(20)]
        asking = callers.enter_context(socket.create_connection(address, timeout=10))
        asking.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
        turning = supervising(listener)
        while not select.select([asking], [], [], 0)[0]:
            turning._turn_away(lambda: True)
        # None of them had to be given up first.
        assert len(turning._callers) >= len(idle)
        assert asking.recv(1000).startswith(b"HTTP/1.1 503 ")
        # Nor are they kept.
        turning.turn_away_the_rest()
        assert turning._callers == {}
        for caller in idle:
            assert caller.recv(1000) == b""


def test_who_comes_when_a_worker_has_just_become_ready_is_left_to_it() -> None:
    with closing(listen(settings())) as listener:
        listener.setblocking(False)
        turning = supervising(listener)
        caller = socket.create_connection(listener.getsockname(), timeout=10)
        # Not ready when the wait begins, ready when it ends.
        due = iter([True, False])
        turning._turn_away(lambda: next(due))
        assert list(due) == []
        assert turning._callers == {}
        with closing(caller), closing(listener.accept()[0]):
            pass


def test_at_the_end_whoever_still_waits_is_told() -> None:
    with closing(listen(settings())) as listener:
        listener.setblocking(False)
        callers = [socket.create_connection(listener.getsockname(), timeout=5) for _ in range(3)]
        for caller in callers:
            caller.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
            caller.shutdown(socket.SHUT_WR)
        supervising(listener).turn_away_the_rest()
        for caller in callers:
            with closing(caller):
                assert caller.recv(1000).startswith(b"HTTP/1.1 503 ")


def test_a_new_worker_finds_all_that_it_imports_in_the_process_that_forks_it() -> None:
    """Nothing is left to import, or another worker would not be there at once."""
    code = (
        "import sys; from inference_image import supervisor; supervisor._import_service();"
        "before = set(sys.modules);"
        "from inference_image.http_app import create_app;"
        "from inference_image.http_protocol import bounded_protocol;"
        "from inference_image.container import ContainerStart;"
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
