"""gunicorn with workers that run this service on uvicorn; the inner half of the full layout.

Nothing of the model exists before a worker is forked (no `preload_app`): an engine's threads do
not survive a fork. The master imports gunicorn and the standard library only.
"""

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.errors import HaltServer
from gunicorn.glogging import Logger
from gunicorn.workers.base import Worker

from inference_image.full_layout import end_with_parent
from inference_image.log import JsonLog
from inference_image.stopping import end_now

# A worker runs one of these: (slot, sockets, heartbeat) -> exit code.
Work = Callable[[int, socket.socket, Callable[[], None]], int]

_DRAIN_S: Final = 25
_MAX_DEATHS: Final = 5
_DEATHS_WITHIN_S: Final = 10.0
_EXIT_WORKERS: Final = 1


def run_gunicorn(
    *,
    unix_socket: Path,
    timeout_s: int,
    slots: int,
    planned: Callable[[], int],
    work: Work,
    on_death: Callable[[int], None],
    log: JsonLog,
) -> int:
    """Run gunicorn in this process until it is told to stop; returns its exit code.

    Args:
        unix_socket: where the workers listen.
        timeout_s: a worker whose event loop stands still for so long is replaced.
        slots: most workers at once.
        planned: how many should run now.
        work: what a worker does; see `Work`.
        on_death: called with the slot of a worker that has ended.
        log: for what gunicorn has to say.
    """
    crew = _Crew(slots=slots, planned=planned, work=work, on_death=on_death)
    application = _Application(crew, unix_socket=unix_socket, timeout_s=timeout_s, log=log)
    try:
        _Arbiter(application, crew).run()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else _EXIT_WORKERS
    except HaltServer as halt:
        # A second worker that fails while the master stops because of the first.
        return int(halt.exit_status)
    return 0


class _Crew:
    """Which slots are taken, and whether workers keep dying."""

    def __init__(
        self,
        *,
        slots: int,
        planned: Callable[[], int],
        work: Work,
        on_death: Callable[[int], None],
    ) -> None:
        self.planned = planned
        self.work = work
        self._slots = slots
        self._on_death = on_death
        self._taken: dict[int, int] = {}  # age of the worker -> slot
        self._deaths: list[float] = []

    def enter(self, _arbiter: Any, worker: Any) -> None:
        """Before the fork: the worker gets the lowest free slot."""
        free = set(range(self._slots)) - set(self._taken.values())
        worker.slot = self._taken[worker.age] = min(free)

    def leave(self, arbiter: Any, worker: Any) -> None:
        """After its end: the slot is free. Ends the master where workers keep dying."""
        slot = self._taken.pop(worker.age, None)
        if slot is not None:
            self._on_death(slot)
        # The master closes its listeners when it stops; then an end is no death.
        if not arbiter.LISTENERS:
            return
        now = time.monotonic()
        self._deaths = [then for then in self._deaths if now - then < _DEATHS_WITHIN_S] + [now]
        if len(self._deaths) > _MAX_DEATHS * self._slots:
            print("serve: workers keep ending.", file=sys.stderr, flush=True)
            raise HaltServer("workers keep ending", _EXIT_WORKERS)


class _Arbiter(Arbiter):  # type: ignore[misc]
    """Starts one worker; the others when it is known how many fit."""

    def __init__(self, application: "_Application", crew: _Crew) -> None:
        self._crew = crew
        super().__init__(application)

    def manage_workers(self) -> None:
        self.num_workers = self._crew.planned()
        super().manage_workers()


class _Application(BaseApplication):  # type: ignore[misc]
    """Settings of gunicorn; none is read from files, arguments or the environment."""

    def __init__(self, crew: _Crew, *, unix_socket: Path, timeout_s: int, log: JsonLog) -> None:
        class Log(Logger):  # type: ignore[misc]
            """gunicorn's lines become lines of our log."""

            def setup(self, cfg: Any) -> None:
                self.cfg = cfg
                self._access_log_enabled = False
                self.error_log.handlers = [_Handler(log)]
                self.error_log.setLevel(logging.WARNING)
                self.access_log.handlers = []

        class ServiceWorker(_ServiceWorker):
            work = staticmethod(crew.work)

        self._options: dict[str, Any] = {
            "bind": f"unix:{unix_socket}",
            "workers": crew.planned(),
            "worker_class": ServiceWorker,
            "timeout": timeout_s,
            "graceful_timeout": _DRAIN_S,
            "preload_app": False,
            "worker_tmp_dir": str(unix_socket.parent),
            "control_socket_disable": True,
            "logger_class": Log,
            "pre_fork": crew.enter,
            "child_exit": crew.leave,
        }
        super().__init__()

    def load_config(self) -> None:
        for name, value in self._options.items():
            self.cfg.set(name, value)

    def load(self) -> None:
        """Nothing: each worker makes the application itself."""


class _ServiceWorker(Worker):  # type: ignore[misc]
    """One worker process: the service on uvicorn, on gunicorn's socket."""

    slot: int
    work: Work

    def init_signals(self) -> None:
        """uvicorn sets its own when it runs; until then a stop is the end."""
        for number in self.SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, end_now)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    def run(self) -> None:
        end_with_parent()
        number = os.dup(self.sockets[0].fileno())
        sys.exit(self.work(self.slot, socket.socket(fileno=number), self.notify))


class _Handler(logging.Handler):
    def __init__(self, log: JsonLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.warning("worker_manager", message=record.getMessage())
