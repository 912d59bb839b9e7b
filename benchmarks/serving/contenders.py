"""Starts, measures and stops each server that is compared, and the ceiling.

    >>> with Running(SERVICE, model=model, workers=2) as server:
    ...     server.wait_ready(request)
    ...     server.resident_mb()

A server's environment has a mark of its own, by which all its processes are found, counted and
stopped, whatever sessions and groups it makes.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from benchmarks.generator import LoadError
from benchmarks.http_requests import ask, form, post
from benchmarks.serving.inputs import REPOSITORY, Model, Photograph

_READY_WITHIN_S = 120.0
_STOP_WITHIN_S = 10.0
_POLL_S = 0.005
# Each connection goes to any worker: so many for each leave none out, but for bad luck.
_ASKED_EACH = 8
_MARK = "DR_BENCH_MARK"
_PATH = "/invocations"
_JPEG = "image/jpeg"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

CEILING = "ceiling"
GRADES = 5


class ServerError(RuntimeError):
    """A server did not start or ended by itself; the text has the end of what it said."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """How to start one server: `words` after the interpreter, from the port and the workers;
    `folder` is where it starts, and so whose code it runs."""

    name: str
    words: Callable[[int, int], list[str]]
    environment: Callable[[Model, int, int], Mapping[str, str]]
    as_form: bool = False
    folder: Path = REPOSITORY

    def request(self, photograph: Photograph) -> bytes:
        """The bytes that ask this server to grade a photograph."""
        if self.as_form:
            return form(_PATH, "request", photograph.data, _JPEG)
        return post(_PATH, photograph.data, _JPEG)


SERVICE = Server(
    name="service",
    words=lambda _port, _workers: ["-m", "inference_image.serve", "serve"],
    environment=lambda model, port, workers: {
        "DR_MODEL_DIR": str(model.package),
        "DR_BIND_HOST": "127.0.0.1",
        "SAGEMAKER_BIND_TO_PORT": str(port),
        "MODEL_SERVER_WORKERS": str(workers),
        "DR_SERVING_MODE": "realtime" if workers > 1 else "serverless",
    },
)
BASELINE = Server(
    name="baseline",
    words=lambda port, workers: [
        "-m",
        "uvicorn",
        "benchmarks.serving.servers.baseline:app",
        "--log-level=warning",
        f"--port={port}",
        # One worker needs no supervisor.
        *([f"--workers={workers}"] if workers > 1 else []),
    ],
    environment=lambda model, _port, _workers: {
        "DR_BENCH_MODEL": str(model.keras_file),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    },
)
LITSERVE = Server(
    name="litserve",
    words=lambda port, workers: [
        "-m",
        "benchmarks.serving.servers.litserve_server",
        f"--port={port}",
        f"--workers={workers}",
    ],
    environment=lambda model, _port, _workers: {"DR_BENCH_MODEL": str(model.package)},
    as_form=True,
)
BENTOML = Server(
    name="bentoml",
    words=lambda port, _workers: [
        "-m",
        "bentoml",
        "serve",
        "benchmarks.serving.servers.bentoml_service:Grader",
        "--host=127.0.0.1",
        f"--port={port}",
    ],
    environment=lambda model, _port, workers: {
        "DR_BENCH_MODEL": str(model.package),
        "DR_BENCH_WORKERS": str(workers),
        "BENTOML_DO_NOT_TRACK": "true",
    },
)
SERVERS = {server.name: server for server in (SERVICE, BASELINE, LITSERVE, BENTOML)}


class Running:
    """One server, from its start to its end; usable in a `with` statement."""

    def __init__(self, server: Server, *, model: Model, workers: int) -> None:
        self.server = server
        self.port = free_port()
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self._words = [sys.executable, *server.words(self.port, workers)]
        self._mark = uuid.uuid4().hex
        self._environment = {
            **environment(),
            **server.environment(model, self.port, workers),
            _MARK: self._mark,
        }

    def __enter__(self) -> Self:
        self.started = time.perf_counter()
        self._process = subprocess.Popen(
            self._words,
            cwd=self.server.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        _end(self._process)
        for stat in _marked(self._mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(stat.pid, signal.SIGKILL)
        self._log.close()

    def first_answer(self, request: bytes) -> tuple[float, dict[str, Any]]:
        """Seconds from the process's start to its first prediction, and the prediction.

        Raises:
            ServerError: it ended, or was not ready in time.
        """
        answered = ""
        while True:
            try:
                answer = json.loads(ask(self.port, request))
                return time.perf_counter() - self.started, answer
            except OSError:
                pass
            except LoadError as error:
                answered = str(error)
            if self._process.poll() is not None:
                raise ServerError(f"{self.server.name} ended: {self._said()}")
            if time.perf_counter() - self.started > _READY_WITHIN_S:
                raise ServerError(
                    f"{self.server.name} was not ready within {_READY_WITHIN_S:g} s: "
                    f"{answered} {self._said()}"
                )
            time.sleep(_POLL_S)

    def wait_workers(self, request: bytes, workers: int) -> None:
        """Ask until each of the workers has very likely answered, so that none still loads."""
        self.first_answer(request)
        until = time.perf_counter() + 0.5 * workers
        asked = 0
        while asked < _ASKED_EACH * workers or time.perf_counter() < until:
            ask(self.port, request)
            asked += 1
        # A worker that still starts uses the processor without any request.
        give_up = time.perf_counter() + _READY_WITHIN_S
        while time.perf_counter() < give_up:
            before = self.cpu_s()
            time.sleep(0.4)
            if self.cpu_s() - before < 0.1:
                return
        raise ServerError(f"{self.server.name} does not come to rest")

    def cpu_s(self) -> float:
        """CPU seconds of all its processes so far."""
        return sum(stat.cpu_s for stat in _marked(self._mark))

    def check(self, request: bytes) -> None:
        """Raise `ServerError` where the answer is no grade: the network would not have run."""
        answer = json.loads(ask(self.port, request))
        if answer.get("grade") is None or len(answer.get("predictions") or ()) != GRADES:
            raise ServerError(f"{self.server.name} did not grade the photograph: {answer}")

    def resident_mb(self) -> float:
        """Resident memory of all its processes, in millions of bytes."""
        return sum(stat.resident_mb for stat in _marked(self._mark))

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-2000:]


class Ceiling:
    """Processes that only decode, locate, prepare and run the network."""

    def __init__(self, *, model: Model, photograph: Photograph, processes: int) -> None:
        self._words = [
            sys.executable,
            "-m",
            "benchmarks.serving.servers.ceiling",
            str(model.without_gate),
            str(photograph.path),
        ]
        self._processes: list[subprocess.Popen[str]] = []
        self._count = processes

    def __enter__(self) -> Self:
        try:
            for _ in range(self._count):
                self._processes.append(
                    subprocess.Popen(
                        self._words,
                        cwd=REPOSITORY,
                        env=environment(),
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL,
                        text=True,
                        start_new_session=True,
                    )
                )
            for process in self._processes:
                if _line(process) != "ready":
                    raise ServerError("a process of the ceiling did not start")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            _end(process)
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()

    def run(self, seconds: float) -> list[dict[str, Any]]:
        """All processes at once for some seconds; the record of each."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{seconds}\n")
            process.stdin.flush()
        return [json.loads(_line(process)) for process in self._processes]


def free_port() -> int:
    """A port of the loopback interface that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, kw_only=True)
class _Stat:
    pid: int
    cpu_s: float
    resident_mb: float


def _marked(mark: str) -> list[_Stat]:
    """All processes whose environment began with this mark; those that have ended are left out."""
    wanted = f"{_MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            if wanted not in (folder / "environ").read_bytes():
                continue
            # The name in brackets may hold spaces; fields are counted after it.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            found.append(
                _Stat(
                    pid=int(folder.name),
                    cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
                    resident_mb=int(fields[21]) * _PAGE_BYTES / 1e6,
                )
            )
    return found


def environment() -> dict[str, str]:
    """The same for all: nothing of the caller's shell but where programs and folders are."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return {**kept, "PYTHONPATH": str(REPOSITORY)}


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise ServerError("a process of the ceiling ended")
    return line


def _end(process: subprocess.Popen[Any]) -> None:
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_STOP_WITHIN_S)
    # What the leader left behind, or did not end in time.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
