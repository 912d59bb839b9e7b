"""Who takes a caller, of the workers that wait on one socket."""

import errno
import socket
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inference_image.listener import Listener, acceptable, listen
from inference_image.metrics import Metrics
from inference_image.settings import Settings


def settings(port: int = 0) -> Settings:
    environment = {"DR_BIND_HOST": "127.0.0.1", "SAGEMAKER_BIND_TO_PORT": str(port)}
    return Settings.from_environment(environment, cpus=1)


def test_accepted_connections_name_their_protocol_so_that_asyncio_disables_nagle() -> None:
    with closing(listen(settings())) as listener:
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

    with closing(listen(settings())) as listener:
        monkeypatch.setattr(socket.socket, "accept", accept)
        for turn in range(1, 4):
            with pytest.raises(OSError, match="Too many open files"):
                listener.accept()
            with pytest.raises(BlockingIOError):
                listener.accept()
            assert calls == turn


def test_of_several_workers_each_takes_one_caller_at_a_time_until_it_is_full() -> None:
    with closing(listen(settings())) as listener:
        listener.setblocking(False)
        full = False
        told: list[int | None] = []

        def at_once(waiting: int | None) -> int:
            told.append(waiting)
            return 3 if full else 1

        listener.at_once = at_once

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
        # Asked once in each turn, and told how many wait.
        assert told == [8, 7, 6, 3, 0]
        callers += [socket.create_connection(listener.getsockname()) for _ in range(4)]
        listener.at_once = None
        assert taken_in_one_turn() == 4
        for caller in callers:
            caller.close()


class Clock:
    """Time that passes by sleeping only."""

    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_a_worker_that_holds_more_leaves_a_caller_to_another_but_not_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr("inference_image.listener.time", clock)
    with closing(listen(settings())) as listener:
        listener.setblocking(False)
        ahead = 2
        listener.at_once = lambda _: 1
        listener.ahead = lambda: ahead

        def seconds_until_taken() -> float:
            began = clock.now_s
            while True:
                with suppress(BlockingIOError):
                    listener.accept()[0].close()
                    return round(clock.now_s - began, 4)

        callers = [socket.create_connection(listener.getsockname()) for _ in range(7)]
        # More wait than it is ahead, so that the other one has enough with the rest.
        assert [seconds_until_taken() for _ in range(4)] == [0.0, 0.0, 0.0, 0.0]
        assert listener.waiting() == 3
        assert listener.others_take_callers()
        assert seconds_until_taken() == 0.008
        assert not listener.others_take_callers()
        callers += [socket.create_connection(listener.getsockname()) for _ in range(2)]
        assert [seconds_until_taken() for _ in range(2)] == [0.0, 0.008]
        # The other one has died: then it takes whoever comes at once, for a while.
        ahead = 1000
        assert [seconds_until_taken() for _ in range(2)] == [0.05, 0.0]
        clock.now_s += 1.0
        assert listener.others_take_callers()
        ahead = 0
        callers += [socket.create_connection(listener.getsockname())]
        assert seconds_until_taken() == 0.0
        for caller in callers:
            caller.close()


def test_what_a_worker_may_accept_follows_its_load_and_what_others_hold() -> None:
    admission = SimpleNamespace(is_full=lambda: full)
    app = SimpleNamespace(admission=admission, is_busy=lambda: busy)
    one, two = Metrics(1), Metrics(2)
    full = busy = False
    recorders = [two.recorder(slot) for slot in (0, 1)]

    def allowed(metrics: Metrics, waiting: int | None = 0) -> int:
        return acceptable(app, metrics, 0, waiting)  # type: ignore[arg-type]

    one.recorder(0)
    assert [allowed(one), allowed(two), allowed(two, 40)] == [16, 1, 1]
    busy = True
    assert [allowed(one), allowed(two)] == [64, 4]
    assert [allowed(two, waiting) for waiting in (8, 9, 40, 500, None)] == [4, 4, 20, 64, 16]
    # Of a worker that is not ready nobody knows what it will hold.
    recorders[0].connections(10)
    assert allowed(two) == 4
    recorders[1].ready()
    # It holds 10 more: with its share both hold as many.
    assert [allowed(two, waiting) for waiting in (0, 10, 14, 30)] == [2, 2, 2, 10]
    recorders[1].connections(30)
    assert [allowed(two, waiting) for waiting in (0, 20, 30, None)] == [24, 24, 25, 36]
    recorders[1].connections(300)
    assert allowed(two) == 64
    full = True
    recorders[1].connections(0)
    assert [allowed(one), allowed(two)] == [64, 64]


def test_of_a_unix_socket_nobody_says_how_many_wait_and_callers_are_taken_all_the_same(
    tmp_path: Path,
) -> None:
    with closing(Listener(socket.AF_UNIX, socket.SOCK_STREAM)) as listener:
        path = str(tmp_path / "socket")
        listener.bind(path)
        listener.listen()
        listener.setblocking(False)
        listener.at_once = lambda waiting: 2 if waiting is None else 0
        listener.ahead = lambda: 0
        with ExitStack() as callers:
            for _ in range(3):
                callers.enter_context(closing(socket.socket(socket.AF_UNIX))).connect(path)
            assert listener.waiting() is None
            for _ in range(2):
                listener.accept()[0].close()
            with pytest.raises(BlockingIOError):
                listener.accept()
            listener.accept()[0].close()
