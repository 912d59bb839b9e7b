"""Starts a real `serve` and watches it from outside: log, processes, memory, CPU time.

>>> with Service(model_dir, workers=2) as service:
...     service.wait_ready()
...     service.request("GET", "/ping").status
200
"""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

REPOSITORY: Final = Path(__file__).resolve().parents[2]
_READY_WITHIN_S: Final = 60.0
_END_WITHIN_S: Final = 40.0
_ANSWER_WITHIN_S: Final = 60.0
_PEAK_RESET: Final = "5"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Status, headers by lower-case name and body of one answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Service:
    """One `python -m inference_image.serve` on a free port of the loopback interface."""

    def __init__(
        self,
        model_dir: Path,
        *,
        workers: int = 1,
        environment: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ) -> None:
        self._environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(REPOSITORY),
            "PYTHONDONTWRITEBYTECODE": "1",
            "DR_MODEL_DIR": str(model_dir),
            "DR_BIND_HOST": "127.0.0.1",
            "DR_SERVING_MODE": "realtime",
            "MODEL_SERVER_WORKERS": str(workers),
            "SAGEMAKER_BIND_TO_PORT": "0",
            **(environment or {}),
        }
        self._python = python
        self.workers = workers
        self.port = 0

    def __enter__(self) -> Self:
        # A file and not a pipe: whoever measures does not spend its time on reading.
        self._folder = tempfile.TemporaryDirectory(prefix="dr-faults-")
        self._log = Path(self._folder.name) / "log"
        with self._log.open("wb") as out, (Path(self._folder.name) / "errors").open("wb") as err:
            self.process = subprocess.Popen(
                [self._python, "-m", "inference_image.serve", "serve"],
                env=self._environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_END_WITHIN_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._folder.cleanup()

    # --- HTTP -----------------------------------------------------------------------------

    def wait_ready(self) -> None:
        """Returns when every worker can predict."""

        def ready() -> bool:
            if self.process.poll() is not None:
                raise RuntimeError(f"the service ended: {self.errors()}")
            return self.count("ready") >= self.workers

        wait_until(ready, within_s=_READY_WITHIN_S)
        listening = next(event for event in self.events() if event["event"] == "listening")
        self.port = int(listening["port"])

    def connect(self) -> http.client.HTTPConnection:
        """A connection for any number of requests."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=_ANSWER_WITHIN_S)

    def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request on a connection of its own."""
        with contextlib.closing(self.connect()) as connection:
            return ask(connection, method, path, body, headers)

    # --- the log --------------------------------------------------------------------------

    def events(self) -> Iterator[dict[str, Any]]:
        """Lines of the log so far."""
        with self._log.open("rb") as lines:
            for line in lines:
                # The last one may be half written.
                with contextlib.suppress(ValueError):
                    yield json.loads(line)

    def count(self, name: str) -> int:
        """How often an event has been logged."""
        mark = f'"event": "{name}"'.encode()
        return self._log.read_bytes().count(mark)

    def errors(self) -> str:
        """What the service wrote on standard error."""
        text = (Path(self._folder.name) / "errors").read_text(encoding="utf-8", errors="replace")
        return text.strip()

    # --- processes ------------------------------------------------------------------------

    def worker_pids(self) -> list[int]:
        """The processes that predict: the children, or the process itself where it has none."""
        main = self.process.pid
        return _children(main) or [main]

    def resident_bytes(self) -> int:
        """Memory of all workers together."""
        return sum(_memory(pid, "VmRSS") for pid in self.worker_pids())

    def reset_peak(self) -> None:
        """Forget how much memory the workers have had at most."""
        for pid in self.worker_pids():
            Path(f"/proc/{pid}/clear_refs").write_text(_PEAK_RESET, encoding="ascii")

    def peak_bytes(self) -> int:
        """Most memory of all workers since `reset_peak`."""
        return sum(_memory(pid, "VmHWM") for pid in self.worker_pids())

    def cpu_s(self) -> float:
        """CPU time of all of its processes, all threads, in nanosecond steps."""
        return sum(cpu_s(pid) for pid in _with_descendants(self.process.pid))

    def end(self) -> int | None:
        """SIGTERM; the exit code, or None where the process does not end in time."""
        self.process.terminate()
        try:
            return self.process.wait(_END_WITHIN_S)
        except subprocess.TimeoutExpired:
            return None


def ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """One request on a connection that stays open."""
    connection.request(method, path, body=body, headers=dict(headers or {}))
    response = connection.getresponse()
    found = {name.lower(): text for name, text in response.getheaders()}
    return Answer(status=response.status, headers=found, body=response.read())


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except OSError:
        return []
    return [int(child) for child in text.split()]


def _with_descendants(pid: int) -> Iterator[int]:
    """A process, and all that it and they started: the layout with nginx has two generations."""
    yield pid
    for child in _children(pid):
        yield from _with_descendants(child)


def cpu_s(pid: int) -> float:
    """CPU time of all threads that a process has now, in nanosecond steps."""
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            total_ns += int((task / "schedstat").read_text(encoding="ascii").split()[0])
    return total_ns / 1e9


def wait_until(condition: Callable[[], bool], *, within_s: float) -> None:
    """Poll a condition; raises `TimeoutError` where it does not come true in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing happened within {within_s:g} s")
        time.sleep(0.01)


def _memory(pid: int, name: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0
