"""The HTTP service of the SageMaker container contract: `GET /ping`, `POST /invocations`, and
`GET /execution-parameters` for Batch Transform.

    >>> app = create_app(Settings.from_environment(os.environ))

`/ping` answers at once whatever the load: all that takes long is done elsewhere (`service.py`). The
model is loaded after the server has begun to listen; until then everything is 503.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inference_image.container import ContainerStart
from inference_image.log import JsonLog
from inference_image.metrics import Metrics
from inference_image.predictor import Predictor
from inference_image.problems import problem
from inference_image.service import Service, load_predictor
from inference_image.settings import Settings


def create_app(
    settings: Settings,
    *,
    log: JsonLog | None = None,
    start: ContainerStart | None = None,
    load: Callable[[], Predictor] | None = None,
    on_ready: Callable[[dict[str, float]], None] | None = None,
    on_failure: Callable[[str], None] | None = None,
    listen_while_loading: bool = True,
    metrics: Metrics | None = None,
    slot: int = 0,
) -> "Application":
    """The ASGI application.

    Args:
        settings: limits and defaults.
        log: where events go; standard output when omitted.
        start: identity of the container; a new one when omitted.
        load: makes the predictor, in the worker thread; from `settings.model_dir` when omitted.
        on_ready: called with `model_load_ms`, `warm_up_ms` and `started_to_ready_ms`.
        on_failure: called with one sentence where the model cannot be served.
        listen_while_loading: whether requests are accepted (and answered 503) before the
            model is ready; false for a worker whose ready peers can take them.
        metrics: numbers of all workers of the container; of this one alone when omitted.
        slot: which of those workers this one is.
    """
    return Application(
        Service(
            settings=settings,
            log=log or JsonLog(level=settings.log_level),
            start=start or ContainerStart.now(),
            load=load or (lambda: load_predictor(settings)),
            on_ready=on_ready or (lambda _: None),
            on_failure=on_failure or (lambda _: None),
            metrics=metrics or Metrics(),
            slot=slot,
        ),
        listen_while_loading=listen_while_loading,
    )


class Application:
    """Sends the platform's routes to the service, everything else to a FastAPI app.

    Importing FastAPI takes as long as all the rest of a cold start, and the platform never
    asks for anything but these routes; so it is imported for the first request that needs
    it: the OpenAPI document, and what does not exist.
    """

    def __init__(self, service: "Service", *, listen_while_loading: bool = True) -> None:
        self._service = service
        self.admission = service.admission
        self._listen_while_loading = listen_while_loading
        self._documented: ASGIApp | None = None
        self._documenting: asyncio.Future[ASGIApp] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)

    def invoke_at_once(
        self,
        header: Iterable[tuple[bytes, bytes]],
        body: bytes,
        *,
        closing: set[Callable[[], None]],
        reply: Callable[[Response], None],
    ) -> None:
        """Answer a `POST /invocations` whose body is there; see `Service.invoke_at_once`."""
        self._service.invoke_at_once(header, body, closing=closing, reply=reply)

    def refuse(
        self, header: Iterable[tuple[bytes, bytes]], status: int, detail: str, **line: Any
    ) -> Response:
        """The answer where whoever carries a request refuses it; see `Service.refuse`."""
        return self._service.refuse(header, status, detail, **line)

    def note_connections(self, count: int) -> None:
        """So many connections are held, for the metrics and the other workers."""
        self._service.recorder.connections(count)

    def is_busy(self) -> bool:
        """Whether so many predictions wait that the event loop works now and then only."""
        return self._service.turns.is_busy

    def end_waiting(self) -> None:
        """Answer 503 to what is not computed yet: the time to stop is nearly over."""
        self._service.end_waiting()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            scope, send = {**scope, "method": "GET"}, partial(_send_header, send)
        answer = self._service.routes.get((scope["method"], scope["path"]))
        try:
            if answer is None:
                documented = await self._documents()
                await documented(scope, receive, send)
                return
            response = await answer(Request(scope, receive))
        except Exception as error:  # noqa: BLE001
            # The last resort: one request fails, says so, and the worker goes on.
            response = self._service.fault(error)
        await response(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Load the model behind the listening socket; wait for the worker thread at the end."""
        await receive()
        service = self._service
        loading = asyncio.get_running_loop().run_in_executor(service.executor, service.prepare)
        if not self._listen_while_loading:
            await loading
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await loading
        service.executor.shutdown(wait=True)
        service.admission.note_turned_away()
        await send({"type": "lifespan.shutdown.complete"})

    async def _documents(self) -> ASGIApp:
        """The FastAPI app, made in a thread: its import takes long, and `/ping` must not wait."""
        if self._documented is None:
            if self._documenting is None:
                self._documenting = asyncio.ensure_future(asyncio.to_thread(self._document))
            making = self._documenting
            try:
                # Whoever asks may leave; the others wait for the same.
                self._documented = await asyncio.shield(making)
            finally:
                if making.done():
                    self._documenting = None
        return self._documented

    def _document(self) -> ASGIApp:
        from inference_image.openapi import documented_app

        return documented_app(
            ping=self._service.ping,
            invocations=self._service.invoke,
            execution_parameters=self._service.execution_parameters,
            metrics=self._service.metrics if self._service.shows_metrics else None,
            problem=problem,
        )


async def _send_header(send: Send, message: Message) -> None:
    """What GET would be answered, without its body: the answer to HEAD (RFC 9110, 9.3.2)."""
    if message["type"] == "http.response.body":
        message = {**message, "body": b""}
    await send(message)
