"""Starts the inference service: what `docker run IMAGE serve` and `dr serve` run.

    DR_MODEL_DIR=model_artifacts/mobilenet-demo DR_BIND_HOST=127.0.0.1 \\
        python -m inference_image.serve

With one worker the service runs in this very process; with more, this process holds the
listening socket, starts the workers, restarts one that dies and passes SIGTERM on. It imports
only the standard library itself, so that it costs little memory and forks safely.

Exit codes: 0 stopped on request, 1 workers keep dying, 2 settings or port, 3 model. Each
failure is one sentence on standard error. With the argument `train` a training job begins instead
(`inference_image.training_job`).
"""

import contextlib
import errno
import json
import mmap
import os
import select
import signal
import socket
import struct
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from inference_image.contract import (
    ENV_BIND_HOST,
    ENV_BIND_TO_PORT,
    LAYOUT_FULL,
    MEDIA_PROBLEM,
    PROBLEM_TITLES,
)
from inference_image.listener import BACKLOG, Listener, acceptable, listen
from inference_image.log import JsonLog
from inference_image.metrics import Metrics
from inference_image.settings import Settings, SettingsError
from inference_image.sizing import fitting_workers
from inference_image.stopping import EXIT_STOPPED, end_now

if TYPE_CHECKING:
    import uvicorn


EXIT_WORKERS: Final = 1
EXIT_SETTINGS: Final = 2
EXIT_MODEL: Final = 3

# SageMaker sends SIGKILL 30 s after SIGTERM; the workers stop a little earlier.
_DRAIN_S: Final = 25
_KILL_AFTER_S: Final = 28
# Longer than the platform's own idle time, so that it never sends into a closing connection.
_KEEP_ALIVE_S: Final = 75
_MAX_DEATHS: Final = 5
_DEATHS_WITHIN_S: Final = 10.0
_COUNTER_BYTES: Final = 8
_POLL_S: Final = 0.05
# One caller who is told to come back may take this long, and send this much.
_TURN_AWAY_S: Final = 1.0
_TURN_AWAY_BYTES: Final = 64 * 1024 * 1024
_HEARTBEAT_S: Final = 1.0
# uvicorn and gunicorn read these by themselves, and end with a traceback where one is not as they
# expect. Here all that counts has a variable of its own.
_OF_OTHER_SERVERS: Final = (
    *("WEB_CONCURRENCY", "PORT", "SENDFILE", "FORWARDED_ALLOW_IPS", "GUNICORN_CMD_ARGS"),
)
# What a worker imports before it loads its model.
_SERVICE_MODULES: Final = (
    "uvicorn",
    "uvicorn.lifespan.on",
    "inference_image.http_protocol",
    "inference_image.http_app",
    "ai_edge_litert.interpreter",
)
# Workers that stop serve what has connected already; later callers are told to come back.
_ACCEPT_WITHIN_S: Final = 2.0
# A connection without a request may send one more within this time.
_IDLE_WITHIN_S: Final = 1.0
# What then still waits for the network is told to come back, so long before the process ends.
_LAST_ANSWERS_S: Final = 2.0


def _loading_answer() -> bytes:
    """What callers get while no worker is ready, as the workers would say it."""
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
        f"retry-after: 1\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return (head + body).encode("ascii")


_LOADING: Final = _loading_answer()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the service until it is told to stop; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words == ["train"]:
        # It has signals, exit codes and a way to speak of its own; a service does without.
        from inference_image.training_job import main as run_training

        return run_training(words)
    started_s = process_start_s()
    # PID 1 ignores signals that it does not handle, and the imports below take a while.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end_now)
    for name in _OF_OTHER_SERVERS:
        os.environ.pop(name, None)
    if words not in ([], ["serve"]):
        return _fail(
            EXIT_SETTINGS,
            f"the commands are 'serve' and 'train', alone; got {' '.join(words)!r}",
        )
    try:
        settings = Settings.from_environment(os.environ)
    except SettingsError as error:
        return _fail(EXIT_SETTINGS, str(error))
    try:
        listener = listen(settings)
    except OSError as error:
        where = f"{settings.bind_host}:{settings.port}"
        advice = f"set {ENV_BIND_HOST} to an address of this machine"
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            advice = f"set {ENV_BIND_TO_PORT} to a free port"
        reason = error.strerror or str(error)
        return _fail(EXIT_SETTINGS, f"cannot listen on {where} ({reason}); {advice}")
    except (ValueError, TypeError):
        # What Python raises for a name that cannot be encoded, by version.
        return _fail(EXIT_SETTINGS, f"{ENV_BIND_HOST} is not an address: {settings.bind_host!a}")
    start_id = uuid.uuid4().hex
    log = JsonLog(level=settings.log_level, context={"start_id": start_id})
    log.info(
        "listening",
        host=settings.bind_host,
        port=listener.getsockname()[1],
        workers=settings.workers,
        threads=settings.threads,
        serving_mode=settings.serving_mode,
    )
    board = Board(settings.workers)
    metrics = Metrics(settings.workers)

    def work(
        slot: int,
        sockets: Listener = listener,
        heartbeat: Callable[[], None] | None = None,
    ) -> int:
        return _run_worker(
            settings, sockets, log, start_id, started_s, board, metrics, slot, heartbeat
        )

    def planned() -> int:
        return _planned_workers(settings, board, log)

    supervisor = _Supervisor(listener=listener, board=board, work=work, planned=planned, log=log)
    with contextlib.closing(listener):
        if settings.layout == LAYOUT_FULL:
            return _run_full_layout(settings, listener, log, board, work, planned, supervisor)
        if settings.workers == 1:
            return work(0)
        return supervisor.run()


def _planned_workers(settings: Settings, board: "Board", log: JsonLog) -> int:
    """How many workers should run now: one until its memory is known, then as many as fit."""
    if not settings.workers_fit or settings.workers == 1:
        return settings.workers
    if board.planned:
        return board.planned
    worker_bytes = board.resident_bytes()
    if not worker_bytes:
        return 1
    board.planned = fitting_workers(
        settings.memory_bytes,
        worker_bytes=worker_bytes,
        pixels=settings.max_image_pixels,
        wanted=settings.workers,
    )
    log.info(
        "workers_fit",
        workers=board.planned,
        wanted=settings.workers,
        worker_mib=round(worker_bytes / 2**20, 1),
        memory_mib=round(settings.memory_bytes / 2**20),
    )
    return board.planned


def _run_full_layout(
    settings: Settings,
    listener: socket.socket,
    log: JsonLog,
    board: "Board",
    work: "Callable[[int, Listener, Callable[[], None]], int]",
    planned: Callable[[], int],
    supervisor: "_Supervisor",
) -> int:
    """nginx and gunicorn, imported only where they are asked for."""
    from inference_image.full_layout import FullLayout, LayoutError

    def run_workers(unix_socket: Path, timeout_s: int) -> int:
        from inference_image.gunicorn_workers import run_gunicorn

        return run_gunicorn(
            unix_socket=unix_socket,
            timeout_s=timeout_s,
            slots=settings.workers,
            planned=planned,
            work=lambda slot, inherited, beat: work(
                slot, Listener(fileno=inherited.detach()), beat
            ),
            on_death=lambda slot: board.set_ready(slot, False),
            log=log,
        )

    layout = FullLayout(
        settings=settings,
        listener=listener,
        any_ready=board.any_ready,
        run_workers=run_workers,
        end_waiting=board.end_waiting,
        turn_away=supervisor.turn_away_the_rest,
        log=log,
    )
    try:
        return layout.run()
    except LayoutError as error:
        return _fail(EXIT_SETTINGS, str(error))


class Board:
    """What the workers of one container tell each other, in memory that they share.

    Each worker writes only its own slot (a count of predictions and whether it is ready), so
    no lock is needed.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        # How many of them run, where that depends on the memory; 0 until it is known.
        self.planned = 0
        self._failure = (_COUNTER_BYTES + 1) * workers
        self._resident = self._failure + 1
        self._ending = self._resident + _COUNTER_BYTES
        self._memory = mmap.mmap(-1, self._ending + 1)

    def counted(self, slot: int) -> int:
        """Add one to a slot's count; the sum of all slots before."""
        counts = struct.unpack_from(f"<{self.workers}Q", self._memory)
        struct.pack_into("<Q", self._memory, slot * _COUNTER_BYTES, counts[slot] + 1)
        return int(sum(counts))

    def set_ready(self, slot: int, ready: bool) -> None:
        """Note whether the worker of a slot can predict."""
        self._memory[self.workers * _COUNTER_BYTES + slot] = int(ready)

    def note_resident(self, size_bytes: int) -> None:
        """Memory of a worker that has predicted once; the last one to say it is right."""
        struct.pack_into("<Q", self._memory, self._resident, size_bytes)

    def resident_bytes(self) -> int:
        """Memory of a worker, 0 until one is ready."""
        return int(struct.unpack_from("<Q", self._memory, self._resident)[0])

    def any_ready(self) -> bool:
        """Whether some worker can predict."""
        return any(self._memory[self.workers * _COUNTER_BYTES : self._failure])

    def end_waiting(self) -> None:
        """The time to stop is nearly over: workers answer 503 to what they have not computed."""
        self._memory[self._ending] = 1

    @property
    def is_ending(self) -> bool:
        """Whether `end_waiting` was called."""
        return self._memory[self._ending] != 0

    def first_failure(self) -> bool:
        """True for the first worker that asks: one reason is enough for the person reading."""
        first = self._memory[self._failure] == 0
        self._memory[self._failure] = 1
        return first


class SlotCounter:
    """The count of the whole container, as one worker adds to it."""

    def __init__(self, board: Board, slot: int) -> None:
        self._board = board
        self._slot = slot

    def next(self) -> int:
        """Add one; the number of the whole container before."""
        return self._board.counted(self._slot)


def _run_worker(
    settings: Settings,
    listener: Listener,
    log: JsonLog,
    start_id: str,
    started_s: float,
    board: Board,
    metrics: Metrics,
    slot: int,
    heartbeat: Callable[[], None] | None = None,
) -> int:
    """Import the service, serve until told to stop, return the exit code."""
    # The engine brings its own threads; those of NumPy's matrix library would only add to
    # them. It reads this variable when it is imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    begun = time.perf_counter()
    import uvicorn

    from inference_image import kernel
    from inference_image.http_app import create_app
    from inference_image.http_protocol import allowed_connections, bounded_protocol
    from inference_image.service import ContainerStart

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
            start_id=start_id, started_s=started_s, counter=SlotCounter(board, slot)
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
    listener.ahead = lambda: 0 if app.is_overloaded() else metrics.ahead(slot)
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
    return _fail(EXIT_MODEL, failures[0]) if board.first_failure() else EXIT_MODEL


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
            give_up = time.monotonic() + _ACCEPT_WITHIN_S
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


class _Supervisor:
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
                code = _fail(
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
        while self._stopping or not self._board.any_ready():
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid:
                return pid, status
            readable, _, _ = select.select([self._listener], [], [], _POLL_S)
            if readable and self._nobody_accepts():
                self._turn_away()
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
            return time.monotonic() > self._stopped_s + _ACCEPT_WITHIN_S
        return not self._board.any_ready()

    def turn_away_the_rest(self) -> None:
        """Tell whoever still waits in the kernel's queue to come back."""
        give_up = time.monotonic() + _TURN_AWAY_S
        while time.monotonic() < give_up and select.select([self._listener], [], [], 0)[0]:
            self._turn_away()

    def _turn_away(self) -> None:
        give_up = time.monotonic() + _TURN_AWAY_S
        left_bytes = _TURN_AWAY_BYTES

        def read(caller: socket.socket) -> bytes:
            caller.settimeout(max(0.001, give_up - time.monotonic()))
            return caller.recv(65_536)

        with contextlib.suppress(OSError):
            caller, _ = self._listener.accept()
            with contextlib.closing(caller):
                read(caller)
                caller.sendall(_LOADING)
                caller.shutdown(socket.SHUT_WR)
                # Read what else was sent: closing before would reset the connection, and the
                # caller might not see the answer.
                while left_bytes > 0 and time.monotonic() < give_up:
                    more = read(caller)
                    left_bytes -= len(more)
                    if not more:
                        break

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
                _end_with_parent(self._lifeline[0])
                code = self._work(slot)
            except SystemExit as stop:
                code = stop.code if isinstance(stop.code, int) else EXIT_WORKERS
            except Exception as error:  # noqa: BLE001
                # The process ends here, and nobody else would say why.
                _fail(EXIT_WORKERS, f"a worker has failed ({type(error).__name__}: {error})")
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


def process_start_s() -> float:
    """When this process began, on the boot clock (10 ms steps): before Python's own start-up."""
    try:
        stat = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace")
        # The name in brackets may hold spaces; the start time is the 20th field after it.
        ticks = int(stat.rpartition(")")[2].split()[19])
        return ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return time.clock_gettime(time.CLOCK_BOOTTIME)


def resident_mib() -> float | None:
    """Resident memory of this process in MiB, or None where the kernel does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


def _fail(code: int, sentence: str) -> int:
    with contextlib.suppress(OSError):
        print(f"serve: {sentence.rstrip('.')}.", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    exit_code = main()
    # A second signal while the interpreter ends is not worth a traceback or another exit code. No
    # handler in Python: the interpreter puts back the default before it has ended.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    raise SystemExit(exit_code)
