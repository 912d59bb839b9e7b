"""Starts the inference service: what `docker run IMAGE serve` and `dr serve` run.

    DR_MODEL_DIR=model_artifacts/mobilenet-demo DR_BIND_HOST=127.0.0.1 \\
        python -m inference_image.serve

With one worker the service runs in this very process (`worker.py`); with more, this process holds
the listening socket, starts the workers, restarts one that dies and passes SIGTERM on
(`supervisor.py`). It imports only the standard library itself, so that it costs little memory and
forks safely.

Exit codes: 0 stopped on request, 1 workers keep dying, 2 settings or port, 3 model. Each
failure is one sentence on standard error. With the argument `train` a training job begins instead
(`inference_image.training_job`).
"""

import contextlib
import errno
import os
import signal
import socket
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from inference_image.board import Board
from inference_image.contract import ENV_BIND_HOST, ENV_BIND_TO_PORT, LAYOUT_FULL
from inference_image.listener import Listener, listen
from inference_image.log import JsonLog
from inference_image.metrics import Metrics
from inference_image.own_process import process_start_s
from inference_image.settings import Settings, SettingsError
from inference_image.sizing import fitting_workers
from inference_image.spare_memory import keep_one_heap
from inference_image.stopping import EXIT_SETTINGS, end_now, fail
from inference_image.supervisor import Supervisor
from inference_image.worker import Common, run_worker

# uvicorn and gunicorn read these by themselves, and end with a traceback where one is not as they
# expect. Here all that counts has a variable of its own.
_OF_OTHER_SERVERS: Final = (
    *("WEB_CONCURRENCY", "PORT", "SENDFILE", "FORWARDED_ALLOW_IPS", "GUNICORN_CMD_ARGS"),
)


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
        return fail(
            EXIT_SETTINGS,
            f"the commands are 'serve' and 'train', alone; got {' '.join(words)!r}",
        )
    try:
        settings = Settings.from_environment(os.environ)
    except SettingsError as error:
        return fail(EXIT_SETTINGS, str(error))
    try:
        listener = listen(settings)
    except OSError as error:
        where = f"{settings.bind_host}:{settings.port}"
        advice = f"set {ENV_BIND_HOST} to an address of this machine"
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            advice = f"set {ENV_BIND_TO_PORT} to a free port"
        reason = error.strerror or str(error)
        return fail(EXIT_SETTINGS, f"cannot listen on {where} ({reason}); {advice}")
    except (ValueError, TypeError):
        # What Python raises for a name that cannot be encoded, by version.
        return fail(EXIT_SETTINGS, f"{ENV_BIND_HOST} is not an address: {settings.bind_host!a}")
    keep_one_heap()
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
    common = Common(
        settings=settings,
        log=log,
        start_id=start_id,
        started_s=started_s,
        board=board,
        metrics=Metrics(settings.workers),
    )

    def work(
        slot: int,
        sockets: Listener = listener,
        heartbeat: Callable[[], None] | None = None,
    ) -> int:
        return run_worker(common, slot=slot, listener=sockets, heartbeat=heartbeat)

    def planned() -> int:
        return _planned_workers(settings, board, log)

    supervisor = Supervisor(listener=listener, board=board, work=work, planned=planned, log=log)
    with contextlib.closing(listener):
        if settings.layout == LAYOUT_FULL:
            return _run_full_layout(settings, listener, log, board, work, planned, supervisor)
        if settings.workers == 1:
            return work(0)
        return supervisor.run()


def _planned_workers(settings: Settings, board: Board, log: JsonLog) -> int:
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
    board: Board,
    work: Callable[[int, Listener, Callable[[], None]], int],
    planned: Callable[[], int],
    supervisor: Supervisor,
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
        return fail(EXIT_SETTINGS, str(error))


if __name__ == "__main__":
    exit_code = main()
    # A second signal while the interpreter ends is not worth a traceback or another exit code. No
    # handler in Python: the interpreter puts back the default before it has ended.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    raise SystemExit(exit_code)
