"""Drives the inference service in two ways: the application in this process, and a real `serve`.

Both transports have the same `request`, so that one suite of contract tests runs over each.
"""

import asyncio
import base64
import contextlib
import functools
import hashlib
import http.client
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import uvicorn
from PIL import Image

from dr_training.drawing import draw_fundus
from inference_image import http_protocol

REPOSITORY = Path(__file__).resolve().parent.parent
TINY_MODEL = REPOSITORY / "tests" / "data" / "tiny-model"
READY_WITHIN_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Reply:
    """Status, headers by lower-case name, and body of one answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class InProcess:
    """Runs an ASGI application with its lifespan on an event loop in a thread."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._to_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._from_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()

    def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        return self._run(self._request(method, path, body, headers or {}))

    def wait_ready(self) -> None:
        wait_until(lambda: self.request("GET", "/ping").status == 200)

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=60)

    async def _start(self) -> None:
        async def lifespan() -> None:
            await self._app(
                {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}},
                self._to_app.get,
                self._from_app.put,
            )

        self._lifespan = asyncio.create_task(lifespan())
        await self._to_app.put({"type": "lifespan.startup"})
        message = await self._from_app.get()
        assert message["type"] == "lifespan.startup.complete", message

    async def _stop(self) -> None:
        await self._to_app.put({"type": "lifespan.shutdown"})
        await self._lifespan

    async def _request(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> Reply:
        sent = [{"type": "http.request", "body": body, "more_body": False}]
        answered: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if sent:
                return sent.pop(0)
            await asyncio.sleep(3600)
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            answered.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(k.lower().encode(), v.encode()) for k, v in headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8080),
            "state": {},
        }
        await self._app(scope, receive, send)
        start = answered[0]
        return Reply(
            status=start["status"],
            headers={k.decode().lower(): v.decode() for k, v in start["headers"]},
            body=b"".join(message.get("body", b"") for message in answered[1:]),
        )


# Starts the service with other spans of time: a test that is in the middle of one would have to be
# as quick as the span is short.
_OTHER_SPANS = """\
import importlib, json, os
from inference_image import serve
for path, value in json.loads(os.environ.pop("TEST_SPANS")).items():
    name, _, span = path.partition(".")
    module = importlib.import_module(f"inference_image.{name}")
    assert hasattr(module, span), path
    setattr(module, span, value)
raise SystemExit(serve.main())
"""


class Served:
    """A real `python -m inference_image.serve` on a free port of the loopback interface.

    `spans` are seconds that constants have in this process, by module and name.
    """

    def __init__(
        self,
        model_dir: Path,
        *,
        environment: Mapping[str, str] | None = None,
        prefix: tuple = (),
        python: str = sys.executable,
        spans: Mapping[str, float] | None = None,
    ) -> None:
        self.model_dir = model_dir
        self._environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(REPOSITORY),
            "PYTHONDONTWRITEBYTECODE": "1",
            "DR_MODEL_DIR": str(model_dir),
            "DR_BIND_HOST": "127.0.0.1",
            "DR_SERVING_MODE": "serverless",
            "SAGEMAKER_BIND_TO_PORT": "0",
            **(environment or {}),
        }
        how = ["-m", "inference_image.serve"]
        if spans is not None:
            self._environment["TEST_SPANS"] = json.dumps(spans)
            how = ["-c", _OTHER_SPANS]
        self._command = [*prefix, python, *how, "serve"]
        self.events: list[dict[str, Any]] = []
        self.port = 0

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self._command,
            env=self._environment,
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._errors: list[bytes] = []
        self._readers = [
            threading.Thread(target=self._read_events, args=(self.process.stdout,), daemon=True),
            threading.Thread(
                target=self._errors.extend,
                args=(self.process.stderr,),
                daemon=True,
            ),
        ]
        for reader in self._readers:
            reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        # A worker that a failed test left stopped hears nothing else, and holds the pipes open.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self._drain()

    def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        with contextlib.closing(self.connect()) as connection:
            connection.request(method, path, body=body, headers=dict(headers or {}))
            response = connection.getresponse()
            return Reply(
                status=response.status,
                headers={k.lower(): v for k, v in response.getheaders()},
                body=response.read(),
            )

    def connect(self) -> http.client.HTTPConnection:
        wait_until(lambda: self.event("listening") is not None or self.process.poll() is not None)
        listening = self.event("listening")
        assert listening is not None, self.errors
        return http.client.HTTPConnection("127.0.0.1", listening["port"], timeout=30)

    def event(self, name: str) -> dict[str, Any] | None:
        return next((event for event in self.events if event["event"] == name), None)

    def wait_ready(self) -> None:
        def ready() -> bool:
            assert self.process.poll() is None, self.errors
            with contextlib.suppress(OSError):
                return self.request("GET", "/ping").status == 200
            return False

        wait_until(ready)

    def end(self, timeout_s: float = 30.0) -> int:
        """Exit code, once the process has ended by itself."""
        code = self.process.wait(timeout=timeout_s)
        self._drain()
        return code

    @property
    def errors(self) -> str:
        return b"".join(self._errors).decode()

    def sentences(self) -> list[str]:
        """Lines on standard error."""
        return [line for line in self.errors.splitlines() if line.strip()]

    def _read_events(self, stream: Any) -> None:
        for line in stream:
            self.events.append(json.loads(line))

    def _drain(self) -> None:
        streams = (self.process.stdout, self.process.stderr)
        for reader, stream in zip(self._readers, streams, strict=True):
            reader.join(timeout=10)
            # Closing waits for whoever still reads, for ever.
            if stream is not None and not reader.is_alive():
                stream.close()


def wait_until(condition: Any, *, within_s: float = READY_WITHIN_S) -> None:
    """Poll a condition; fails the test where it does not come true in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"nothing happened within {within_s} s"
        time.sleep(0.02)


def copy_package(target: Path, changes: Mapping[str, Any] | None = None) -> Path:
    """A copy of the tiny package whose `model.json` has the given keys replaced."""
    shutil.copytree(TINY_MODEL, target)
    document = json.loads((target / "model.json").read_text(encoding="utf-8"))
    document.update(changes or {})
    (target / "model.json").write_text(json.dumps(document), encoding="utf-8")
    return target


def digest_of(package: Path) -> str:
    """The package digest: SHA-256 of `model.json`."""
    return hashlib.sha256((package / "model.json").read_bytes()).hexdigest()


@functools.cache
def drawn_pixels(seed: int = 5, grade: int = 2, size_px: int = 600) -> np.ndarray:
    """A drawn fundus photograph, height x width x 3."""
    return draw_fundus(seed=seed, grade=grade, size_px=size_px).image


@functools.cache
def drawn_jpeg(seed: int = 5, grade: int = 2, size_px: int = 600) -> bytes:
    return encoded(Image.fromarray(drawn_pixels(seed, grade, size_px)), "JPEG", quality=95)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    """The bytes of an image file."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def stop(served: Served) -> None:
    """Send SIGTERM, as the platform does."""
    served.process.send_signal(signal.SIGTERM)


@contextlib.contextmanager
def running(transport: Any) -> Iterator[Any]:
    """A transport that has become ready."""
    with transport:
        transport.wait_ready()
        yield transport


def pending(served: Served | InProcess) -> int:
    """Requests that arrive, wait or are computed."""
    numbers = served.request("GET", "/metrics").body.decode()
    return int(numbers.partition("\ndr_pending_requests ")[2].split()[0])


@contextlib.asynccontextmanager
async def listening(app: Any, *, most: int = 100, ahead: int = 0) -> AsyncIterator[tuple[str, int]]:
    """The service's HTTP protocol in front of an application, and its address.

    It holds so many connections `ahead` of another worker.
    """
    protocol = http_protocol.bounded_protocol(most, ahead=lambda: ahead)
    config = uvicorn.Config(app, http=protocol, lifespan="off", log_config=None)
    config.load()
    server = uvicorn.Server(config)
    socket_server = await asyncio.get_running_loop().create_server(
        lambda: config.http_protocol_class(  # type: ignore[call-arg]
            config=config, server_state=server.server_state, app_state={}
        ),
        "127.0.0.1",
        0,
    )
    async with socket_server:
        yield socket_server.sockets[0].getsockname()
