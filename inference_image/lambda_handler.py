"""The service on AWS Lambda: the same application behind function URLs and API Gateway.

    python3 -m awslambdaric inference_image.lambda_handler.handler

Importing this module does nothing. The first look at `handler` makes it, which loads the model:
the Lambda runtime looks once, in the init phase of each execution environment, so that every
invocation finds the model ready. A model that cannot be served ends the init phase with one
sentence, as it ends `serve`.

Mangum translates between events and ASGI. Its own lifespan runs start-up and shutdown around
every invocation, which would load the model each time; the lifespan runs here instead, once,
on one event loop that all invocations share.
"""

import asyncio
import atexit
import contextlib
import logging
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from inference_image import kernel
from inference_image.contract import (
    ENV_METRICS,
    ENV_SERVING_MODE,
    MEDIA_PROBLEM,
    SERVING_MODE_SERVERLESS,
)
from inference_image.lambda_events import LambdaRequest, read_event
from inference_image.log import JsonLog
from inference_image.model_source import find_model
from inference_image.model_spec import ModelPackageError
from inference_image.own_process import process_start_s, resident_mib
from inference_image.settings import Settings
from inference_image.sizing import available_cpus

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from inference_image.http_app import Application
    from inference_image.predictor import Predictor

# A function has the equivalent of one vCPU at 1,769 MB and a share in proportion below and
# above: https://docs.aws.amazon.com/lambda/latest/dg/configuration-memory.html, checked
# 2026-11-28. The sandbox itself shows whole CPUs.
MIB_PER_VCPU: Final = 1769
_MEMORY_VARIABLE: Final = "AWS_LAMBDA_FUNCTION_MEMORY_SIZE"
# What is left of the function's time-out when the caller is told that it took too long.
_RESERVE_S: Final = 0.5
# Types that are sent as text; everything else is base64 in the answer.
_TEXT_TYPES: Final = ("text/", "application/json", MEDIA_PROBLEM)
_REQUEST_ID_HEADER: Final = b"x-request-id"
_REQUEST: Final = "dr.request"
# Lambda's home folder does not exist, and libraries that keep a cache there fail. These name
# a place for it; without them it is in the home folder.
_CACHE_VARIABLES: Final = ("XDG_CACHE_HOME", "MPLCONFIGDIR", "KERAS_HOME")


class LambdaHandler:
    """Answers events; made once per process, and then ready.

    Args:
        environment: settings of the container, credentials and region; `os.environ` when
            omitted.
        log: where events go; standard output when omitted.
        load: makes the predictor; from the model that `find_model` finds when omitted.

    Raises:
        SettingsError: a variable cannot be.
        ModelPackageError: the model cannot be served.
    """

    def __init__(
        self,
        *,
        environment: Mapping[str, str] | None = None,
        log: JsonLog | None = None,
        load: "Callable[[], Predictor] | None" = None,
    ) -> None:
        began = time.perf_counter()
        use_writable_folders(os.environ)
        # As in `serve`: the engine brings its own threads.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        from mangum import Mangum

        from inference_image.container import ContainerStart, ProcessCounter
        from inference_image.http_app import create_app

        imports_ms = _ms_since(began)
        environment = os.environ if environment is None else environment
        settings = settings_on_lambda(environment)
        start_id = uuid.uuid4().hex
        log = log or JsonLog(level=settings.log_level, context={"start_id": start_id})
        phases: dict[str, Any] = {"imports_ms": imports_ms}
        if load is None:
            began = time.perf_counter()
            found = find_model(
                model_dir=settings.model_dir,
                model_url=settings.model_url,
                environment=environment,
            )
            settings = replace(settings, model_dir=found.folder)
            phases |= {"model_source": found.source, "model_find_ms": _ms_since(began)}
        failures: list[str] = []
        app = create_app(
            settings,
            log=log,
            start=ContainerStart(
                start_id=start_id, started_s=process_start_s(), counter=ProcessCounter()
            ),
            load=load,
            on_ready=phases.update,
            on_failure=failures.append,
            # Start-up is over when the model is ready, or cannot be.
            listen_while_loading=False,
        )
        self._base_path = settings.base_path
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._lifespan = _Lifespan(app)
        # Mangum runs what it is given on the thread's current loop, and makes one otherwise.
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._lifespan.start())
        if failures:
            self.close()
            raise ModelPackageError(failures[0])
        self._app = app
        self._mangum = Mangum(_Front(app), lifespan="off", text_mime_types=list(_TEXT_TYPES))
        atexit.register(self.close)
        # It reports each answer; the service's own log has more.
        logging.getLogger("mangum").setLevel(logging.WARNING)
        log.info("ready", **phases, resident_mib=resident_mib(), kernel=kernel.name())

    def __call__(self, event: Any, context: Any) -> dict[str, Any]:
        """Answer one invocation.

        Args:
            event: of a function URL, a REST or HTTP API (formats 1.0 and 2.0) or a load balancer.
            context: of the Lambda runtime; None where there is none.

        Raises:
            UnknownEventError: the event is no HTTP request.
        """
        request = read_event(event, base_path=self._base_path)
        # A loop runs in one thread at a time, and the engine takes one caller at a time.
        with self._lock:
            asyncio.set_event_loop(self._loop)
            return self._answer(request, context)

    def _answer(self, request: LambdaRequest, context: Any) -> dict[str, Any]:
        began_s = time.perf_counter()
        try:
            return dict(self._mangum({**request.event, _REQUEST: request}, context))
        except Exception as error:  # noqa: BLE001
            # Mangum lets no error of the application through, so the event is at fault: a
            # header that is none, such as a port that is no number, or half a character. Each
            # kind of event takes an answer of this shape.
            response = self._app.refuse(
                _named([], context),
                400,
                "The request's headers or its query cannot be read.",
                outcome="refused",
                body_bytes=request.body_bytes,
                began_s=began_s,
                kind=type(error).__name__,
            )
            return {
                "statusCode": response.status_code,
                "headers": dict(response.headers),
                "body": bytes(response.body).decode(),
                "isBase64Encoded": False,
            }

    def close(self) -> None:
        """End the application, its threads and its loop, once; also when the process ends."""
        if self._loop.is_closed():
            return
        atexit.unregister(self.close)
        self._loop.run_until_complete(self._lifespan.stop())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()
        asyncio.set_event_loop(None)


class _Lifespan:
    """Runs the application's lifespan once, over as many invocations as there will be."""

    def __init__(self, app: "ASGIApp") -> None:
        self._app = app
        self._to_app: asyncio.Queue[Message] = asyncio.Queue()
        self._from_app: asyncio.Queue[Message] = asyncio.Queue()

    async def start(self) -> None:
        scope: Scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
        self._task = asyncio.ensure_future(self._app(scope, self._to_app.get, self._from_app.put))
        await self._exchange("lifespan.startup")

    async def stop(self) -> None:
        await self._exchange("lifespan.shutdown")
        await self._task

    async def _exchange(self, kind: str) -> None:
        await self._to_app.put({"type": kind})
        message = await self._from_app.get()
        if message["type"] != f"{kind}.complete":
            raise RuntimeError(f"the application answered {message['type']} to {kind}")


class _Front:
    """What Lambda adds in front of the application: refusals, request id and deadline."""

    def __init__(self, app: "Application") -> None:
        self._app = app

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        began_s = time.perf_counter()
        # A prediction that ended after its invocation has its say first: it leaves the queue.
        await asyncio.sleep(0)
        context = scope["aws.context"]
        request: LambdaRequest = scope["aws.event"][_REQUEST]
        scope["headers"] = _named(scope["headers"], context)
        refuse = partial(
            self._app.refuse, scope["headers"], body_bytes=request.body_bytes, began_s=began_s
        )
        if request.refusal is not None:
            await refuse(400, request.refusal, outcome="refused")(scope, receive, send)
            return
        started = False

        async def send_noting(message: "Message") -> None:
            nonlocal started
            started = True
            await send(message)

        left_s = _seconds_left(context)
        try:
            await asyncio.wait_for(self._app(scope, receive, send_noting), left_s)
        except TimeoutError:
            if started or left_s is None:
                raise
            detail = (
                f"The answer took longer than the {left_s:.1f} s that the function's time-out "
                "left; send it again, or give the function more memory or time."
            )
            await refuse(504, detail, outcome="error")(scope, receive, send)


def _named(headers: list[Any], context: Any) -> list[Any]:
    """The request's headers; without an id of the caller, they have that of the invocation."""
    request_id = getattr(context, "aws_request_id", None)
    if request_id and _REQUEST_ID_HEADER not in [name.lower() for name, _ in headers]:
        return [*headers, [_REQUEST_ID_HEADER, request_id.encode("ascii", "replace")]]
    return headers


def _seconds_left(context: Any) -> float | None:
    remaining = getattr(context, "get_remaining_time_in_millis", None)
    return None if remaining is None else max(0.0, remaining() / 1000 - _RESERVE_S)


def settings_on_lambda(environment: Mapping[str, str]) -> Settings:
    """The settings of `serve`, for one request at a time and the CPUs of the function's memory.

    Raises:
        SettingsError: naming the variable, its value and what is allowed.
    """
    # A gateway reaches one environment of many, and its counts would be those of no function.
    known = {ENV_SERVING_MODE: SERVING_MODE_SERVERLESS, ENV_METRICS: "none", **environment}
    cpus = available_cpus()
    with contextlib.suppress(ValueError):
        cpus = min(cpus, int(environment.get(_MEMORY_VARIABLE, "")) / MIB_PER_VCPU)
    return Settings.from_environment(known, cpus=cpus)


def use_writable_folders(environment: MutableMapping[str, str]) -> None:
    """Move a home that cannot be written to the temporary folder, and caches back under it."""
    if not _writable(environment.get("HOME", "")):
        # There is none where the disk is full; a model of the image needs none either.
        with contextlib.suppress(OSError):
            environment["HOME"] = tempfile.gettempdir()
    for name in _CACHE_VARIABLES:
        if name in environment and not _writable(environment[name]):
            del environment[name]


def _writable(folder: str) -> bool:
    return bool(folder) and Path(folder).is_dir() and os.access(folder, os.W_OK)


def _ms_since(began: float) -> float:
    return round((time.perf_counter() - began) * 1000, 1)


def __getattr__(name: str) -> Any:
    if name != "handler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = globals()["handler"] = LambdaHandler()
    return made
