"""Starts the project's own `serve` process for a model package, as a container would."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Final

from dr_cli.errors import CommandError
from dr_cli.invocation import dr
from dr_cli.packages import opened_package
from inference_image.contract import (
    ENV_BIND_HOST,
    ENV_BIND_TO_PORT,
    ENV_MODEL_DIR,
    ENV_SERVING_MODE,
    ENV_WORKERS,
    INVOCATIONS_PATH,
    PING_PATH,
    SERVING_MODE_LOCAL,
)
from inference_image.full_layout import end_with_parent
from inference_image.model_spec import ModelSpec

READY_TIMEOUT_S: Final = 60
STOP_TIMEOUT_S: Final = 10
# A service that a terminal has told to stop needs about a tenth of a second.
OWN_END_S: Final = 3
_POLL_S: Final = 0.05
_LOG_TAIL: Final = 400
LOOPBACK: Final = "127.0.0.1"


def serve_until_stopped(package: Path, *, host: str, port: int, workers: int) -> int:
    """Check the package and the port, then serve until Ctrl-C; returns the exit code."""
    with opened_package(package) as (folder, spec):
        require_free_port(host, port)
        print(f"{spec.id} (sha256 {spec.sha256[:12]}…) at http://{host}:{port}{INVOCATIONS_PATH}")
        ask = dr(f"predict IMAGE --url http://{host}:{port}")
        print(f"try it: {ask}   (Ctrl-C stops it)", flush=True)
        process = start_service(folder, host=host, port=port, workers=workers)
        try:
            code = process.wait()
        except KeyboardInterrupt:
            # A terminal has sent SIGINT to the service as well, and it ends by itself. A signal
            # to this process alone has not reached it, so it is told to end after a while.
            with contextlib.suppress(KeyboardInterrupt):
                stop_service(process, own_end_s=OWN_END_S)
            return 0
        finally:
            stop_service(process)
    return 0 if code == 0 else 1


@contextlib.contextmanager
def running_service(package: Path) -> Iterator[tuple[str, ModelSpec]]:
    """URL of a service that runs for the while, on a free port, and the spec it serves.

    Raises:
        CommandError: it did not become ready; with the last words of its log.
    """
    with (
        opened_package(package) as (folder, spec),
        tempfile.TemporaryFile(prefix="dr-serve-") as log,
    ):
        port = free_port()
        process = start_service(folder, host=LOOPBACK, port=port, workers=1, log=log.fileno())
        try:
            url = f"http://{LOOPBACK}:{port}"
            if not wait_until_ready(url, process):
                log.seek(0)
                words = log.read().decode("utf-8", "replace").strip().splitlines()
                last = words[-1][:_LOG_TAIL] if words else "it said nothing"
                raise CommandError(f"the service for {spec.id} did not start: {last}")
            yield url, spec
        finally:
            stop_service(process)


def require_free_port(host: str, port: int) -> None:
    """Raise `CommandError` when something listens at host:port, or host is not ours."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror:
        raise CommandError(f"{host!r} is not an address; use 127.0.0.1 or 0.0.0.0") from None
    with socket.socket(family, kind) as probe:
        # As servers do: an address in TIME_WAIT after a stopped service is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except PermissionError:
            raise CommandError(
                f"port {port} needs administrator rights; choose one above 1023 with --port"
            ) from None
        except OSError as error:
            reason = (error.strerror or "in use").lower()
            raise CommandError(
                f"port {port} of {host} cannot be used ({reason}); choose another with --port"
            ) from None


def free_port() -> int:
    """A TCP port of the loopback interface that nothing used a moment ago."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def start_service(
    folder: Path, *, host: str, port: int, workers: int, log: int | None = None
) -> subprocess.Popen[bytes]:
    """Start `serve` for an unpacked package; `log` is a file descriptor for all that it says.

    On Linux it ends with this process, however that goes, where the main thread starts it.
    """
    environment = os.environ | {
        ENV_MODEL_DIR: str(folder.resolve()),
        ENV_BIND_HOST: host,
        ENV_BIND_TO_PORT: str(port),
        ENV_WORKERS: str(workers),
        ENV_SERVING_MODE: SERVING_MODE_LOCAL,
    }
    return subprocess.Popen(
        [sys.executable, "-m", "inference_image.serve"],
        env=environment,
        stdout=log,
        stderr=log,
        preexec_fn=_tied(),  # noqa: PLW1509 - it takes no lock that a thread could hold
    )


def _tied() -> Callable[[], None] | None:
    """What a child does before its program, so that it does not outlive this process.

    The kernel ends it with the *thread* that started it: any other than the main one may be gone
    long before the process.
    """
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return None
    parent = os.getpid()

    def prepare() -> None:
        end_with_parent()
        if os.getppid() != parent:
            # It went before the kernel was asked.
            os._exit(1)

    return prepare


def wait_until_ready(
    url: str, process: subprocess.Popen[bytes], *, poll_s: float = _POLL_S
) -> bool:
    """Whether the service answers its ping within `READY_TIMEOUT_S`, and does not end before."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    # A proxy of the machine must not see loopback traffic.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), opener.open(url + PING_PATH, timeout=2):
            return True
        time.sleep(poll_s)
    return False


def stop_service(process: subprocess.Popen[bytes], *, own_end_s: float = 0) -> int:
    """End the process, by force after a grace period; returns its exit code.

    Ctrl-C waits until it has ended: it must not leave the process behind, and is not lost.

    Args:
        own_end_s: how long to wait for a process that is ending already.
    """
    with _interrupts_held():
        if own_end_s:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(own_end_s)
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
        return process.wait()


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Keep Ctrl-C until the end of the block, and let it have its effect there."""
    came: list[int] = []

    def keep(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    previous = signal.signal(signal.SIGINT, keep)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
        if came:
            signal.raise_signal(signal.SIGINT)
