"""One local container: the artifact, the process tree under its limits, and its clock.

A container is the project's own `serve` process, started from the artifact that the deployment
refers to, with the environment that the deployment gives it. There is no image: the code is
this checkout's, which is what the image would have been built from.
"""

import asyncio
import contextlib
import json
import math
import os
import re
import shutil
import signal
import socket
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import botocore.exceptions

import inference_image
from dr_local import container_init, process_tree
from dr_local.confinement import Confinement, ContainerGroup, group_name
from dr_local.container_http import (
    HOST,
    AnswerTooLargeError,
    ConnectionBrokenError,
    ContainerAnswer,
    ContainerHttp,
)
from dr_local.deployments import Deployment
from inference_image.contract import (
    ENV_BIND_HOST,
    ENV_BIND_TO_PORT,
    ENV_MODEL_DIR,
    INVOCATIONS_PATH,
    PING_PATH,
)
from inference_image.model_package import unpack_model
from inference_image.model_spec import MODEL_JSON, ModelPackageError, load_model_spec

SERVE_COMMAND = (sys.executable, "-m", "inference_image.serve")
_PING_INTERVAL_S = 0.01
_PING_ANSWER_S = 2.0
_EXIT_NOTICE_S = 2.0
_STOP_TIMEOUT_S = 6.0
_KEEP_LOGS = 50
_COPY_BYTES = 1024 * 1024
_MAX_SENTENCE = 600
_LOG_TAIL_BYTES = 16 * 1024
_DIGEST_KEY = re.compile(r"([0-9a-f]{64})\.tar\.gz$")


class StartFailedError(Exception):
    """The container did not become ready; the text is one sentence from whoever knew why."""


class InvocationFailedError(Exception):
    """The container gave no usable answer; the text says why in one sentence."""


@dataclass(frozen=True, kw_only=True)
class ContainerPlace:
    """Where and how the containers of one runtime server run.

    `ports` are those of the containers that run: two that start at once must not get the same.
    `s3` is a client of the local S3, made once: making one takes longer than a download.
    `startup_timeout_s` covers download, unpacking and everything until `/ping` answers 200.
    """

    state_dir: Path
    instance: str
    s3: Any
    confinement: Confinement
    startup_timeout_s: float
    serve_command: Sequence[str] = SERVE_COMMAND
    machine_cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    ports: set[int] = field(default_factory=set)

    @property
    def containers_dir(self) -> Path:
        return self.state_dir / "containers"

    @property
    def logs_dir(self) -> Path:
        return self.state_dir / "logs"


@dataclass(kw_only=True)
class Times:
    """How long the steps of a container's life took, in milliseconds; None until they happened.

    `boot_ms` runs from the start of the serve process to the first good `/ping`, `setup_ms` is
    download, unpacking and boot, and `start_to_first_prediction_ms` runs from the start of the
    serve process to the end of the first answered invocation.
    """

    download_ms: float | None = None
    unpack_ms: float | None = None
    boot_ms: float | None = None
    setup_ms: float | None = None
    start_to_first_prediction_ms: float | None = None


class Container:
    """A container of one deployment. `await start()` before anything else, `stop()` at the end."""

    def __init__(self, *, deployment: Deployment, place: ContainerPlace, number: int) -> None:
        self.id = f"{number:04d}"
        self.deployment = deployment
        self.times = Times()
        self.requests = 0
        self.busy = 0
        self.last_used = time.monotonic()
        self.memory_after_first_mib: float | None = None
        self.exit_reason: str | None = None
        self._place = place
        self._number = number
        self._folder = place.containers_dir / self.id
        self.log_file = place.logs_dir / f"container-{deployment.endpoint_name}-{self.id}.log"
        self._process: asyncio.subprocess.Process | None = None
        self._port = 0
        self._group: ContainerGroup | None = None
        self._events: asyncio.Task[None] | None = None
        self._exited = asyncio.Event()
        self._serve_started_at: float | None = None
        self._serve_start_known = asyncio.Event()
        self._http: ContainerHttp | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and not self._exited.is_set()

    @property
    def is_ready(self) -> bool:
        return self.is_running and self.times.setup_ms is not None

    async def start(self) -> None:
        """Download, unpack, start, wait for `/ping`; on failure nothing of it is left.

        Raises:
            StartFailedError: with the sentence of whoever knew why.
        """
        begin = time.monotonic()
        try:
            async with asyncio.timeout(self._place.startup_timeout_s):
                await self._start(begin)
        except TimeoutError:
            await self.stop()
            raise StartFailedError(
                f"The container was not ready within {self._place.startup_timeout_s:g} s"
                f"{self._last_words(prefix='; its last words: ')}."
            ) from None
        except BaseException:
            await self.stop()
            raise

    async def invoke(
        self, *, headers: Sequence[tuple[str, str]], body: bytes, timeout_s: float
    ) -> ContainerAnswer:
        """Pass one request on.

        Raises:
            InvocationFailedError: the container died or closed the connection.
            TimeoutError: no answer within `timeout_s`.
        """
        if self._http is None:
            raise InvocationFailedError("The container is not running.")
        self.last_used = time.monotonic()
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._http.post(
                    INVOCATIONS_PATH,
                    headers=headers,
                    body=body,
                    limit_bytes=self.deployment.payload_limit_bytes,
                )
        except ConnectionBrokenError:
            raise InvocationFailedError(await self._why_broken()) from None
        except AnswerTooLargeError as error:
            raise InvocationFailedError(
                f"The container's answer cannot be passed on: {error}."
            ) from None
        finally:
            self.last_used = time.monotonic()
        self.requests += 1
        if answer.status < 400 and self.times.start_to_first_prediction_ms is None:
            self._note_first_prediction()
        return answer

    async def stop(self) -> None:
        """SIGTERM, SIGKILL two seconds later, then remove the container's folder."""
        if self._http is not None:
            self._http.close()
            self._http = None
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(_STOP_TIMEOUT_S):
                    await process.wait()
            except TimeoutError:
                process_tree.kill_descendants(process.pid)
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if self._events is not None:
            await self._events
        self._place.ports.discard(self._port)
        if self._group is not None:
            self._group.remove()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def memory_mib(self) -> float | None:
        """Resident memory of the process tree now, in MiB (shared pages count per process)."""
        if self._process is None or not self.is_running:
            return None
        pids = process_tree.descendants(self._process.pid)
        return round(process_tree.resident_bytes(pids) / 1024**2, 1)

    def report(self) -> dict[str, Any]:
        """The container as a row of `/metrics.json`."""
        return {
            "id": self.id,
            "running": self.is_running,
            "busy": self.busy,
            "requests": self.requests,
            "exit_reason": self.exit_reason,
            "memory_rss_mib": self.memory_mib(),
            "memory_after_first_prediction_mib": self.memory_after_first_mib,
            **vars(self.times),
        }

    async def _start(self, begin: float) -> None:
        self._place.logs_dir.mkdir(parents=True, exist_ok=True)
        prune_logs(self._place.logs_dir)
        temporary = self._folder / "tmp"
        temporary.mkdir(parents=True)
        model_dir = self._folder / "model"
        await self._fetch(model_dir)
        port = self._port = free_port(avoid=self._place.ports)
        self._place.ports.add(port)
        self._http = ContainerHttp(port=port)
        await self._spawn(self._order(port=port, model_dir=model_dir, temporary=temporary))
        await self._serve_start_known.wait()
        while not await self._answers_ping():
            if self._exited.is_set():
                raise StartFailedError(self._why_not_started())
            await asyncio.sleep(_PING_INTERVAL_S)
        if self._exited.is_set():
            raise StartFailedError(self._why_not_started())
        now = time.monotonic()
        self.times.boot_ms = _ms(now - (self._serve_started_at or now))
        self.times.setup_ms = _ms(now - begin)
        self.last_used = now

    async def _fetch(self, model_dir: Path) -> None:
        url = self.deployment.model_data_url
        if url is None:
            model_dir.mkdir()
            return
        archive = self._folder / "model.tar.gz"
        started = time.monotonic()
        await asyncio.to_thread(self._download, url, archive)
        downloaded = time.monotonic()
        self.times.download_ms = _ms(downloaded - started)
        try:
            await asyncio.to_thread(_unpack, archive, model_dir, url)
        except ModelPackageError as error:
            raise StartFailedError(f"The model package {url} was refused: {error}.") from None
        archive.unlink()
        self.times.unpack_ms = _ms(time.monotonic() - downloaded)

    def _download(self, url: str, target: Path) -> None:
        parts = urlsplit(url)
        if parts.scheme != "s3":
            raise StartFailedError(f"ModelDataUrl must be an s3:// address, and {url!r} is not.")
        try:
            answer = self._place.s3.get_object(Bucket=parts.netloc, Key=parts.path.lstrip("/"))
            with contextlib.closing(answer["Body"]) as body, target.open("wb") as archive:
                shutil.copyfileobj(body, archive, _COPY_BYTES)
        except botocore.exceptions.ClientError as error:
            reason = error.response["Error"]["Message"]
            raise StartFailedError(
                f"The model package {url} cannot be read from the local S3 ({reason}); publish "
                "it with: dr model push"
            ) from None
        except (botocore.exceptions.BotoCoreError, OSError) as error:
            raise StartFailedError(
                f"The model package {url} cannot be read: {type(error).__name__}."
            ) from None

    def _order(self, *, port: int, model_dir: Path, temporary: Path) -> dict[str, Any]:
        deployment = self.deployment
        confinement = self._place.confinement
        cores = self._place.machine_cores
        share = deployment.vcpus if deployment.vcpus < cores else None
        limit_bytes = deployment.memory_limit_bytes
        self._group = confinement.group(
            group_name(self._place.instance, self.id), memory_bytes=limit_bytes, cpu_share=share
        )
        return {
            "command": list(self._place.serve_command),
            "environment": self._environment(port, model_dir, temporary),
            "directory": str(temporary),
            "log": str(self.log_file),
            "cgroup_procs": self._group.procs_files,
            "cgroup_memory": str(self._group.memory) if self._group.memory else None,
            "memory_limit_bytes": limit_bytes,
            "cpus": self._cpus(),
            "cpu_share": share if self._group.cpu is None else None,
        }

    def _cpus(self) -> list[int]:
        """As many processors as the container would see, spread over this machine's."""
        available = sorted(os.sched_getaffinity(0))
        count = min(len(available), math.ceil(self.deployment.vcpus))
        first = self._number % len(available)
        return [available[(first + step) % len(available)] for step in range(count)]

    def _environment(self, port: int, model_dir: Path, temporary: Path) -> Mapping[str, str]:
        package_root = Path(inference_image.__file__).resolve().parent.parent
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(package_root),
            "PYTHONUNBUFFERED": "1",
            **dict(self.deployment.environment),
            # What the platform decides, the model's environment cannot.
            "HOME": str(temporary),
            "TMPDIR": str(temporary),
            ENV_MODEL_DIR: str(model_dir),
            ENV_BIND_HOST: HOST,
            ENV_BIND_TO_PORT: str(port),
        }

    async def _spawn(self, order: Mapping[str, Any]) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            str(Path(container_init.__file__).resolve()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        identity = process_tree.identify(self._process.pid)
        if identity is not None:
            (self._folder / "process.json").write_text(json.dumps(identity._asdict()))
        stdin = self._process.stdin
        if stdin is None:  # pragma: no cover - a pipe was asked for
            raise StartFailedError("The container's process has no input.")
        # The pipe stays open: it is the lifeline that ends the container with this server.
        stdin.write(json.dumps(order).encode() + b"\n")
        with contextlib.suppress(ConnectionError):
            await stdin.drain()
        self._events = asyncio.create_task(self._read_events(self._process))

    async def _read_events(self, process: asyncio.subprocess.Process) -> None:
        stdout = process.stdout
        while stdout is not None and (line := await stdout.readline()):
            event = json.loads(line)
            if event["event"] == "started":
                self._serve_started_at = event["at"]
                self._serve_start_known.set()
            else:
                self.exit_reason = self._describe_exit(event)
        await process.wait()
        self._exited.set()
        # Releases a start that waits for a process which never came to life.
        self._serve_start_known.set()

    async def _answers_ping(self) -> bool:
        if self._http is None:
            return False
        try:
            async with asyncio.timeout(_PING_ANSWER_S):
                return await self._http.listens(PING_PATH)
        except TimeoutError:
            return False

    def _describe_exit(self, event: Mapping[str, Any]) -> str:
        if event["reason"] == "out_of_memory":
            limit_mib = self.deployment.memory_limit_bytes // 1024**2
            peak_mib = event["peak_bytes"] / 1024**2
            by = self._place.confinement.memory_mechanism
            if event["by"] == "watcher":
                by = "watcher of resident memory"
            return (
                f"The container ran out of memory: it may use {limit_mib} MB, had used "
                f"{peak_mib:.0f} MB, and was killed ({by})."
            )
        if event["reason"] in {"stopped", "runtime_gone"}:
            return "The container was stopped."
        code = event["code"]
        ending = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"The container ended with {ending}."

    async def _why_broken(self) -> str:
        # The end of the process is known a moment after the end of its connections.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_NOTICE_S):
                await self._exited.wait()
        if self.exit_reason is not None:
            return self.exit_reason
        return "The container closed the connection without an answer."

    def _why_not_started(self) -> str:
        reason = self.exit_reason or "The container ended."
        if "out of memory" in reason:
            return reason
        return f"The container did not start{self._last_words(prefix=': ') or f'. {reason}'}"

    def _last_words(self, *, prefix: str) -> str:
        sentence = last_sentence(self.log_file)
        return f"{prefix}{sentence}" if sentence else ""

    def _note_first_prediction(self) -> None:
        if self._serve_started_at is not None:
            elapsed = time.monotonic() - self._serve_started_at
            self.times.start_to_first_prediction_ms = _ms(elapsed)
        self.memory_after_first_mib = self.memory_mib()


def last_sentence(log_file: Path) -> str:
    """The last line of a log; of a JSON line, its message. Empty when there is none."""
    try:
        with log_file.open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - _LOG_TAIL_BYTES))
            lines = stream.read().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    for line in reversed(lines):
        if line.strip():
            return _message(line.strip())[:_MAX_SENTENCE]
    return ""


def _message(line: str) -> str:
    try:
        document = json.loads(line)
    except ValueError:
        return line
    if isinstance(document, dict):
        for key in ("message", "error", "detail", "reason"):
            if isinstance(document.get(key), str):
                return str(document[key])
    return line


def free_port(*, avoid: Collection[int] = ()) -> int:
    """A port of the loopback interface on which nobody listens now, and none of `avoid`."""
    while True:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port = int(probe.getsockname()[1])
        if port not in avoid:
            return port


def prune_logs(logs_dir: Path, *, keep: int = _KEEP_LOGS) -> None:
    """Remove all but the `keep` newest container logs: each cold start writes one."""
    logs = sorted(logs_dir.glob("container-*.log"), key=lambda path: path.stat().st_mtime)
    for path in logs[: max(0, len(logs) - keep)]:
        path.unlink(missing_ok=True)


def _unpack(archive: Path, model_dir: Path, url: str) -> None:
    unpack_model(archive, model_dir)
    named = _DIGEST_KEY.search(url)
    if named and (model_dir / MODEL_JSON).is_file():
        digest = load_model_spec(model_dir).sha256
        if digest != named[1]:
            raise ModelPackageError(
                f"its key promises the digest {named[1][:12]}… and its {MODEL_JSON} has "
                f"{digest[:12]}…"
            )


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)
