"""Starts the workers of a container and keeps them running; answers callers while none is ready.

    >>> Supervisor(listener=listener, board=board, work=work, log=log).run()

Imports only the standard library itself, so that it costs little memory and forks safely.
"""

import contextlib
import json
import os
import re
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import FrameType
from typing import Final

from inference_image.board import Board
from inference_image.contract import MEDIA_PROBLEM, PROBLEM_TITLES
from inference_image.log import JsonLog
from inference_image.overload import request_id
from inference_image.stopping import (
    ACCEPT_WITHIN_S,
    EXIT_MODEL,
    EXIT_STOPPED,
    EXIT_WORKERS,
    end_now,
    fail,
)

# SageMaker sends SIGKILL 30 s after SIGTERM; the workers stop a little earlier.
_KILL_AFTER_S: Final = 28
_MAX_DEATHS: Final = 5
_DEATHS_WITHIN_S: Final = 10.0
_POLL_S: Final = 0.05
# One caller who is told to come back may take this long, and send this much; and so many are told
# at the same time.
_TURN_AWAY_S: Final = 1.0
_TURN_AWAY_BYTES: Final = 64 * 1024 * 1024
_READ_BYTES: Final = 65_536
_MOST_CALLERS: Final = 256
_ID: Final = re.compile(rb"\r\nx-request-id:([^\r\n]*)\r\n", re.IGNORECASE)
# What a worker imports before it loads its model.
_SERVICE_MODULES: Final = (
    "uvicorn",
    "uvicorn.lifespan.on",
    "inference_image.http_protocol",
    "inference_image.http_app",
    "ai_edge_litert.interpreter",
)


def _loading_answer(request: bytes) -> bytes:
    """What callers get while no worker is ready, as the workers would say it.

    Of the request, which may not be there as a whole, its id is returned where it is usable.
    """
    end = request.find(b"\r\n\r\n")
    named = _ID.search(request if end < 0 else request[: end + 2])
    given = named[1].strip().decode("latin-1") if named else ""
    body = json.dumps(
        {
            "type": "about:blank",
            "title": PROBLEM_TITLES[503],
            "status": 503,
            "detail": "The model is still loading; try again.",
            "retry_after_s": 1.0,
        }
    )
    head = (
        f"HTTP/1.1 503 Service Unavailable\r\ncontent-type: {MEDIA_PROBLEM}\r\n"
        f"retry-after: 1\r\nx-request-id: {request_id(given)}\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    # As to HEAD anybody answers.
    return (head if request.startswith(b"HEAD ") else head + body).encode("ascii")


@dataclass
class _Caller:
    """One who is told to come back: until when, whether it has been, and what it may still send."""

    give_up_s: float
    answered: bool = False
    left_bytes: int = _TURN_AWAY_BYTES


def _step(caller: socket.socket, state: _Caller) -> None:
    """Read what there is; answer its beginning, and pass over the rest.

    Closing before all was read would reset the connection, and the caller might not see the answer.
    """
    data = b""
    try:
        data = caller.recv(_READ_BYTES)
    finally:
        state.left_bytes = state.left_bytes - len(data) if data else 0
    if data and not state.answered:
        state.answered = True
        caller.sendall(_loading_answer(data))
        caller.shutdown(socket.SHUT_WR)


class Supervisor:
    """Keeps the workers running; one thread.

    The first workers are forked before anything heavy is imported, so that the port answers at
    once. After that the service's modules are imported here as well: a worker that replaces a
    dead one finds them in memory, and is ready in a fifth of the time.
    """

    def __init__(
        self,
        *,
        listener: socket.socket,
        board: Board,
        work: Callable[[int], int],
        log: JsonLog,
        planned: Callable[[], int] | None = None,
    ) -> None:
        self._listener = listener
        self._board = board
        self._work = work
        self._planned = planned or (lambda: board.workers)
        self._started = 0
        self._log = log
        self._running: dict[int, int] = {}  # pid -> slot
        self._deaths: list[float] = []
        self._stopping = False
        self._stopped_s = 0.0
        self._imported = False
        # Who is being told to come back.
        self._callers: dict[socket.socket, _Caller] = {}

    def run(self) -> int:
        """Returns when every worker has ended."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGALRM, self._on_overdue)
        # A worker that has just become ready may take the connection first.
        self._listener.setblocking(False)
        # The read end tells a worker that this process is gone, however it went.
        self._lifeline = os.pipe()
        self._start_planned()
        code = EXIT_STOPPED
        while self._running:
            pid, status = self._wait()
            slot = self._running.pop(pid)
            self._board.set_ready(slot, False)
            ended = os.waitstatus_to_exitcode(status)
            if self._stopping:
                code = code or max(0, ended)
            elif ended == EXIT_MODEL:
                # It has said why; the others would fail in the same way.
                code = EXIT_MODEL
                self._stop()
            elif self._keeps_dying():
                code = fail(
                    EXIT_WORKERS, f"workers keep ending; the last one with exit code {ended}"
                )
                self._stop()
            else:
                self._log.error("worker_died", slot=slot, exit_code=ended)
                self._start(slot)
        self.turn_away_the_rest()
        return code

    def _wait(self) -> tuple[int, int]:
        """The next worker to end. While none accepts, tells callers to come back."""
        while self._stopping or self._callers or not self._board.any_ready():
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid:
                return pid, status
            self._turn_away(self._nobody_accepts)
        if not self._imported:
            self._imported = True
            _import_service()
        self._start_planned()
        return os.wait()

    def _start_planned(self) -> None:
        while not self._stopping and self._started < self._planned():
            self._started += 1
            self._start(self._started - 1)

    def _nobody_accepts(self) -> bool:
        if self._stopping:
            return time.monotonic() > self._stopped_s + ACCEPT_WITHIN_S
        return not self._board.any_ready()

    def turn_away_the_rest(self) -> None:
        """Tell whoever still waits in the kernel's queue to come back."""
        give_up = time.monotonic() + _TURN_AWAY_S
        while time.monotonic() < give_up:
            waits = bool(select.select([self._listener], [], [], 0)[0])
            if not waits and not self._callers:
                break
            self._turn_away(lambda: True)
        for caller in list(self._callers):
            self._callers.pop(caller)
            caller.close()

    def _turn_away(self, is_due: Callable[[], bool]) -> None:
        """Take a caller, and one step with each that was taken: none of them keeps others waiting.

        Waits for a moment where there is nothing to do. Whether callers are to be turned away is
        asked again after it: a worker may have become ready, and they are its own then.
        """
        accepts = len(self._callers) < _MOST_CALLERS and is_due()
        watched = [self._listener, *self._callers] if accepts else [*self._callers]
        readable, _, _ = select.select(watched, [], [], _POLL_S)
        waits = self._listener in readable
        if waits:
            readable.remove(self._listener)
        if waits and is_due():
            with contextlib.suppress(OSError):
                caller, _ = self._listener.accept()
                caller.setblocking(False)
                self._callers[caller] = _Caller(give_up_s=time.monotonic() + _TURN_AWAY_S)
        now = time.monotonic()
        for caller, state in list(self._callers.items()):
            if caller in readable:
                with contextlib.suppress(OSError):
                    _step(caller, state)
            if state.left_bytes <= 0 or now >= state.give_up_s:
                self._callers.pop(caller)
                caller.close()

    def _start(self, slot: int) -> None:
        blocked = {signal.SIGTERM, signal.SIGINT, signal.SIGALRM}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        if self._stopping:
            # The signal came just before: a worker that starts now would not have had it.
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return
        pid = os.fork()
        if pid == 0:
            code = EXIT_WORKERS
            try:
                for number in (signal.SIGTERM, signal.SIGINT):
                    signal.signal(number, end_now)
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                os.close(self._lifeline[1])
                for caller in self._callers:
                    caller.close()
                _end_with_parent(self._lifeline[0])
                code = self._work(slot)
            except SystemExit as stop:
                code = stop.code if isinstance(stop.code, int) else EXIT_WORKERS
            except Exception as error:  # noqa: BLE001
                # The process ends here, and nobody else would say why.
                fail(EXIT_WORKERS, f"a worker has failed ({type(error).__name__}: {error})")
            finally:
                for stream in (sys.stdout, sys.stderr):
                    with contextlib.suppress(OSError):
                        stream.flush()
                os._exit(code)
        self._running[pid] = slot
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _keeps_dying(self) -> bool:
        now = time.monotonic()
        self._deaths = [then for then in self._deaths if now - then < _DEATHS_WITHIN_S] + [now]
        return len(self._deaths) > _MAX_DEATHS * self._board.workers

    def _on_stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stop()

    def _stop(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._stopped_s = time.monotonic()
            signal.alarm(_KILL_AFTER_S)
        self._send(signal.SIGTERM)

    def _on_overdue(self, _number: int, _frame: FrameType | None) -> None:
        self._log.error("drain_overdue", workers=len(self._running))
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        for pid in list(self._running):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _import_service() -> None:
    """Modules that a worker needs; no model, no engine and no thread, which a fork would lose."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in _SERVICE_MODULES:
        # The tensorflow image has another engine, which is too large to be held here.
        with contextlib.suppress(ImportError):
            import_module(name)


def _end_with_parent(lifeline: int) -> None:
    """Send this process SIGTERM once the other end of the pipe is closed."""
    import threading

    def watch() -> None:
        os.read(lifeline, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
