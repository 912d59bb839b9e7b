"""Runs the handler under AWS's own runtime interface emulator.

    >>> with Function(emulator_binary(), {"DR_MODEL_DIR": str(TINY_MODEL)}) as function:
    ...     function.invoke(event).answer["statusCode"]
    200

The emulator is the binary that `sam local invoke` puts beside a function; `make lambda-emulator`
takes it from the aws-sam-cli wheel. It starts the runtime with the first invocation.
"""

import contextlib
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.lambda_harness import Event
from tests.service_harness import REPOSITORY, wait_until

HANDLER = "inference_image.lambda_handler.handler"
_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "arm64", "arm64": "arm64"}


def emulator_binary() -> Path:
    """The binary for this machine; fails with what to run where it is not installed."""
    name = f"aws-lambda-rie-{_MACHINES[platform.machine().lower()]}"
    binary = REPOSITORY / ".lambda-emulator" / "samcli" / "local" / "rapid" / name
    assert binary.is_file(), f"there is no {name}: run `make lambda-emulator`"
    # A wheel may lose the mode of its files on the way.
    binary.chmod(binary.stat().st_mode | 0o111)
    return binary


@dataclass(frozen=True, kw_only=True)
class Invoked:
    """What the emulator answered, and how long the caller waited."""

    answer: dict[str, Any]
    wait_ms: float


class Function:
    """The emulator with one function, on two free ports of the loopback interface."""

    def __init__(self, emulator: Path, environment: Mapping[str, str]) -> None:
        self._port, runtime_port = free_ports(2)
        self._command = [
            str(emulator),
            "--runtime-interface-emulator-address",
            f"127.0.0.1:{self._port}",
            "--runtime-api-address",
            f"127.0.0.1:{runtime_port}",
            sys.executable,
            "-m",
            "awslambdaric",
            HANDLER,
        ]
        self._environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(REPOSITORY),
            "PYTHONDONTWRITEBYTECODE": "1",
            # As on Lambda: there is no home, and the working folder cannot be written.
            "HOME": "/nonexistent",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "2048",
            "AWS_LAMBDA_FUNCTION_TIMEOUT": "30",
            **environment,
        }
        self.lines: list[str] = []

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self._command,
            env=self._environment,
            cwd="/proc",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        wait_until(self._listens)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        # The handler's process outlives the emulator where it cannot be stopped, and holds the
        # pipe open.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self._reader.join(timeout=10)
        assert self.process.stdout is not None
        # Closing waits for whoever still reads, for ever.
        if not self._reader.is_alive():
            self.process.stdout.close()

    def invoke(self, event: Event) -> Invoked:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/2015-03-31/functions/function/invocations",
            data=json.dumps(event).encode(),
        )
        began = time.perf_counter()
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as refusal:
            with refusal:
                answer = json.load(refusal)
        return Invoked(answer=answer, wait_ms=(time.perf_counter() - began) * 1000)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Lines of the service's log; they stand among the emulator's own."""
        found = []
        for line in self.lines:
            with contextlib.suppress(ValueError):
                document = json.loads(line)
                if isinstance(document, dict) and document.get("event") == name:
                    found.append(document)
        return found

    def _listens(self) -> bool:
        assert self.process.poll() is None, self.lines
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port)):
            return True
        return False

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
