"""One worker: the HTTP server around the service, from its imports to the last answer.

    >>> code = run_worker(common, slot=0, listener=listener)

uvicorn and the service are imported when it runs: whoever forks workers must not hold them before.
"""

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from inference_image.board import Board, SlotCounter
from inference_image.listener import BACKLOG, Listener, acceptable
from inference_image.log import JsonLog
from inference_image.metrics import Metrics
from inference_image.own_process import resident_mib
from inference_image.settings import Settings
from inference_image.stopping import ACCEPT_WITHIN_S, EXIT_MODEL, EXIT_STOPPED, fail

if TYPE_CHECKING:
    import uvicorn

# SageMaker sends SIGKILL 30 s after SIGTERM, and the supervisor a little earlier.
_DRAIN_S: Final = 25
# Longer than the platform's own idle time, so that it never sends into a closing connection.
_KEEP_ALIVE_S: Final = 75
_POLL_S: Final = 0.05
_HEARTBEAT_S: Final = 1.0
# A connection without a request may send one more within this time.
_IDLE_WITHIN_S: Final = 1.0
# What then still waits for the network is told to come back, so long before the process ends.
_LAST_ANSWERS_S: Final = 2.0


@dataclass(frozen=True, kw_only=True)
class Common:
    """What all workers of a container have in common; `started_s` is on the boot clock."""

    settings: Settings
    log: JsonLog
    start_id: str
    started_s: float
    board: Board
    metrics: Metrics


def run_worker(
    common: Common,
    *,
    slot: int,
    listener: Listener,
    heartbeat: Callable[[], None] | None = None,
) -> int:
    """Import the service, serve until told to stop, return the exit code.

    Args:
        common: what it shares with the other workers.
        slot: which of them it is.
        listener: the socket that it accepts callers from.
        heartbeat: called every second where a manager wants to know that the worker is alive.
    """
    settings, log, board, metrics = common.settings, common.log, common.board, common.metrics
    # The engine brings its own threads; those of NumPy's matrix library would only add to
    # them. It reads this variable when it is imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    begun = time.perf_counter()
    import uvicorn

    from inference_image import kernel
    from inference_image.container import ContainerStart
    from inference_image.http_app import create_app
    from inference_image.http_protocol import allowed_connections, bounded_protocol

    log.in_background()
    imports_ms = round((time.perf_counter() - begun) * 1000, 1)
    failures: list[str] = []

    def on_failure(sentence: str) -> None:
        failures.append(sentence)
        server.should_exit = True

    def on_ready(phases: dict[str, float]) -> None:
        resident = resident_mib()
        board.note_resident(int((resident or 0) * 2**20))
        board.set_ready(slot, True)
        log.info(
            "ready",
            imports_ms=imports_ms,
            **phases,
            resident_mib=resident,
            kernel=kernel.name(),
        )

    app = create_app(
        settings,
        log=log,
        start=ContainerStart(
            start_id=common.start_id,
            started_s=common.started_s,
            counter=SlotCounter(board, slot),
        ),
        on_ready=on_ready,
        on_failure=on_failure,
        # With peers on the same socket a request must never meet a worker that still loads;
        # while none is ready, the supervisor or nginx answers.
        listen_while_loading=settings.workers == 1 and heartbeat is None,
        metrics=metrics,
        slot=slot,
    )
    listener.at_once = lambda waiting: acceptable(app, metrics, slot, waiting)
    # Under overload callers come by the hundred, and none of them should wait to be refused.
    listener.ahead = lambda: 0 if app.admission.is_overloaded() else metrics.ahead(slot)
    _log_server(log)
    config = uvicorn.Config(
        app,
        # Not whichever happens to be installed: how many connections a worker accepts at a time is
        # said to this one only, and with another `/ping` waited for seconds under overload.
        loop="asyncio",
        http=bounded_protocol(
            allowed_connections(),
            app.note_connections,
            lambda: metrics.ahead(slot) if listener.others_take_callers() else 0,
        ),
        lifespan="on",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        # The platform's own proxy is the only one, and nothing here asks for the sender's address.
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_DRAIN_S,
        backlog=BACKLOG,
    )

    def beat(manager: Callable[[], None]) -> None:
        manager()
        # Behind nginx a worker is told to stop only when nginx has ended.
        if board.is_ending:
            app.end_waiting()

    server = _server_class(log, heartbeat and partial(beat, heartbeat))(config)
    server.run(sockets=[listener])
    log.close()
    if not failures:
        return EXIT_STOPPED
    return fail(EXIT_MODEL, failures[0]) if board.first_failure() else EXIT_MODEL


def _log_server(log: JsonLog) -> None:
    """What the HTTP server has to say becomes lines of our log."""
    import logging

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            log.warning("http_server", message=record.getMessage().partition("\n")[0])

    # asyncio says why no connection can be accepted, with a traceback and the caller's address.
    for name in ("uvicorn", "asyncio"):
        server_log = logging.getLogger(name)
        server_log.setLevel(logging.WARNING)
        server_log.propagate = False
        server_log.addHandler(Handler())


def _server_class(
    log: JsonLog, heartbeat: Callable[[], None] | None = None
) -> "type[uvicorn.Server]":
    import asyncio

    import uvicorn

    def is_new(connection: Any) -> bool:
        return connection.cycle is None

    def is_idle(connection: Any) -> bool:
        return connection.cycle is None or connection.cycle.response_complete

    class Server(uvicorn.Server):
        """Stops with exit code 0: uvicorn's own raises the signal again when it is done."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            if heartbeat is not None:
                # Also while the model loads, which may take longer than the manager waits.
                self._beating = asyncio.create_task(self._beat(heartbeat))
            await super().startup(sockets)

        @staticmethod
        async def _beat(heartbeat: Callable[[], None]) -> None:
            while True:
                heartbeat()
                await asyncio.sleep(_HEARTBEAT_S)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            """Let callers go in good order.

            Every answer from now on says `connection: close`. A connection without a request
            gets a moment to send its next one: closed at once, a request that is on its way
            would meet the close and no answer. What waits in the kernel's queue is served too:
            closing the listener would reset it.
            """
            self.server_state.default_headers = [
                *self.server_state.default_headers,
                (b"connection", b"close"),
            ]
            connections = self.server_state.connections
            log.info("stopping", connections=len(connections))
            for connection in list(connections):
                if not is_idle(connection):
                    connection.shutdown()
            begun = time.monotonic()
            asyncio.get_running_loop().call_later(
                _DRAIN_S - _LAST_ANSWERS_S,
                self.config.app.end_waiting,  # type: ignore[union-attr]
            )
            while time.monotonic() < begun + _IDLE_WITHIN_S and any(map(is_idle, connections)):
                await asyncio.sleep(_POLL_S)
            give_up = time.monotonic() + ACCEPT_WITHIN_S
            while time.monotonic() < give_up and any(select.select(sockets or [], [], [], 0)):
                await asyncio.sleep(0)
            # No further connection is accepted. Those that just were get their transport, which
            # they need an open server for; and all is closed while the queue is still empty.
            for listening in sockets or []:
                asyncio.get_running_loop().remove_reader(listening)
            for _ in range(3):
                await asyncio.sleep(0)
            for server in self.servers:
                server.close()
            # What has just connected sends its request.
            give_up = time.monotonic() + _IDLE_WITHIN_S
            while time.monotonic() < give_up and any(map(is_new, connections)):
                await asyncio.sleep(_POLL_S)
            left_s = _DRAIN_S - (time.monotonic() - begun)
            self.config.timeout_graceful_shutdown = max(1, int(left_s))
            await super().shutdown(sockets)

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self.handle_exit)
            yield

    return Server
