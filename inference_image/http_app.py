"""The HTTP service of the SageMaker container contract: `GET /ping`, `POST /invocations`, and
`GET /execution-parameters` for Batch Transform.

    >>> app = create_app(Settings.from_environment(os.environ))

The event loop only moves bytes; decoding and the network run in one worker thread behind a
bounded queue, so `/ping` answers at once whatever the load. The model is loaded and warmed up
in that thread after the server has begun to listen: until then everything is 503.
"""

import asyncio
import contextlib
import json
import math
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from inference_image.alone import Alone
from inference_image.contract import (
    CUSTOM_ATTRIBUTES_HEADER,
    ENV_OPERATING_POINT,
    EXECUTION_PARAMETERS_PATH,
    INVOCATIONS_PATH,
    MEDIA_CSV,
    MEDIA_JSON,
    MEDIA_PROBLEM,
    METRICS_EMF,
    METRICS_PATH,
    METRICS_PROMETHEUS,
    PING_PATH,
    TITLES,
    ExecutionParameters,
    Prediction,
    Problem,
)
from inference_image.decoding import Limits, PhotographError
from inference_image.log import JsonLog
from inference_image.metrics import (
    CONTENT_TYPE,
    OUTCOMES,
    STAGES,
    Metrics,
    Recorder,
    embedded,
    embedded_refusals,
)
from inference_image.model_spec import ModelPackageError
from inference_image.overload import (
    is_plain,
    queue_full_detail,
    read_head,
    refusal,
    request_id,
)
from inference_image.predictor import (
    Answer,
    EngineError,
    OperatingPointError,
    Predictor,
    RequestError,
)
from inference_image.requests import (
    Options,
    Photograph,
    RefusedRequestError,
    boundary_of,
    check_content_encoding,
    check_content_type,
    extract,
    media_type,
    parse_attributes,
    wants_csv,
)
from inference_image.settings import Settings
from inference_image.spare_memory import return_spare_memory
from inference_image.turns import Turns

# An ASGI extension: functions to call when the sender closes the connection.
CLOSING: Final = "dr_endpoints.closing"
REQUEST_ID_HEADER: Final = "X-Request-Id"
# An oversized body is read to its end (and dropped) up to this multiple, so that the sender
# sees the 413 and not a broken connection.
_DRAIN_FACTOR: Final = 4
# The platform sends a body at once; whoever takes longer keeps others from their turn.
_BODY_WITHIN_S: Final = 20.0
# Bodies that one worker holds, arriving or waiting; one body of the largest size always fits.
_MOST_BYTES_HELD: Final = 256 * 1024 * 1024
# A worker without work for so long gives spare memory back, once for each stretch of work.
_IDLE_FOR_S: Final = 2.0
# Requests that are turned away unread share a line in the log for so long.
_SUMMED_FOR_S: Final = 1.0
# Of several images, the last is begun while this share of the time limit is left for writing
# the answer.
_ANSWER_SHARE: Final = 0.03
# Refusals that say something about the image; the others are about the service's load. Under
# Batch Transform a refused image is a 200.
_ABOUT_THE_IMAGE: Final = frozenset({200, 400, 413, 415, 422})
# Of an engine's error, which may go on for pages.
_LONGEST_REASON: Final = 300
_ERROR_OF_ONE: Final = "refused 500"
# The platform's bound on the product of both (CreateTransformJob, read 2026-11-28).
_MOST_TRANSFORM_MIB: Final = 100
_MIB: Final = 1024 * 1024
_ENCODER: Final = json.JSONEncoder(allow_nan=False)

Answers = list[Answer | RefusedRequestError]


class Counter(Protocol):
    """Counts predictions of the whole container, over all of its workers."""

    def next(self) -> int:
        """Add one; the number before."""
        ...


class ProcessCounter:
    """A counter for a container of one process."""

    def __init__(self) -> None:
        self._count = 0

    def next(self) -> int:
        """Add one; the number before."""
        self._count += 1
        return self._count - 1


@dataclass(frozen=True, kw_only=True)
class ContainerStart:
    """Identity of this container: `start_id`, and when its first process began (boot clock)."""

    start_id: str
    started_s: float
    counter: Counter

    @classmethod
    def now(cls) -> "ContainerStart":
        """A container that starts at this moment, for tests and embedding."""
        return cls(start_id=uuid.uuid4().hex, started_s=boot_clock_s(), counter=ProcessCounter())


def boot_clock_s() -> float:
    """Seconds since boot: the clock in which the kernel notes when a process started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass
class _Readiness:
    predictor: Predictor | None = None
    alone: Alone | None = None
    started_to_ready_ms: float = 0.0
    failure: str | None = None


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
        _Service(
            settings=settings,
            log=log or JsonLog(level=settings.log_level),
            start=start or ContainerStart.now(),
            load=load or (lambda: _load(settings)),
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

    def __init__(self, service: "_Service", *, listen_while_loading: bool = True) -> None:
        self._service = service
        self._listen_while_loading = listen_while_loading
        self._documented: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)

    def turn_away(
        self, data: bytes, headers: Iterable[tuple[bytes, bytes]]
    ) -> tuple[bytes, int, bool] | None:
        """A 429 for a request that is not parsed yet, where the queue is full.

        Args:
            data: the first bytes of the request.
            headers: what the server adds to each answer.

        Returns:
            The answer, how many bytes of the request's body are still to come, and whether the
            connection ends then; None where the request is to be parsed and answered.
        """
        return self._service.turn_away(data, headers)

    def is_busy(self) -> bool:
        """Whether so many predictions wait that the event loop works now and then only."""
        return self._service.is_full() or self._service.turns.is_busy

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._service.routes.get((scope["method"], scope["path"]))
        try:
            if answer is None:
                await self._documents()(scope, receive, send)
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
        service.note_turned_away()
        await send({"type": "lifespan.shutdown.complete"})

    def _documents(self) -> ASGIApp:
        if self._documented is None:
            from inference_image.openapi import documented_app

            self._documented = documented_app(
                ping=self._service.ping,
                invocations=self._service.invoke,
                execution_parameters=self._service.execution_parameters,
                metrics=self._service.metrics if self._service.shows_metrics else None,
                problem=problem,
            )
        return self._documented


def problem(
    status: int,
    detail: str,
    *,
    retry_after_s: float | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    """An `application/problem+json` answer (RFC 9457).

    The retry time is in the body as well: SageMaker drops the headers of a refusal.
    """
    every = dict(headers or {})
    if retry_after_s is not None:
        every["Retry-After"] = str(max(1, math.ceil(retry_after_s)))
    return Response(
        content=problem_text(status, detail, retry_after_s=retry_after_s),
        status_code=status,
        media_type=MEDIA_PROBLEM,
        headers=every,
    )


def problem_text(status: int, detail: str, *, retry_after_s: float | None = None) -> str:
    """The body of a problem as JSON."""
    return json.dumps(problem_record(status, detail, retry_after_s=retry_after_s))


def problem_record(status: int, detail: str, *, retry_after_s: float | None = None) -> Problem:
    """The body of a problem; also the record of a bad image under Batch Transform."""
    record: Problem = {
        "type": "about:blank",
        "title": TITLES.get(status, "Refused"),
        "status": status,
        "detail": detail,
    }
    if retry_after_s is not None:
        record["retry_after_s"] = round(retry_after_s, 2)
    return record


def _load(settings: Settings) -> Predictor:
    limits = Limits(max_bytes=settings.max_image_bytes, max_pixels=settings.max_image_pixels)
    try:
        return Predictor.load(
            settings.model_dir,
            threads=settings.threads,
            limits=limits,
            operating_point=settings.operating_point,
            runtime=settings.runtime,
            plain_input=settings.plain_input,
        )
    except OperatingPointError as error:
        raise ModelPackageError(f"{ENV_OPERATING_POINT} cannot be used: {error}") from None


class _Service:
    """State of one worker: the model, the queue in front of it and the counters."""

    def __init__(
        self,
        *,
        settings: Settings,
        log: JsonLog,
        start: ContainerStart,
        load: Callable[[], Predictor],
        on_ready: Callable[[dict[str, float]], None],
        on_failure: Callable[[str], None],
        metrics: Metrics,
        slot: int,
    ) -> None:
        self.log = log
        self._metrics = metrics
        self.recorder: Recorder = metrics.recorder(slot)
        # One thread: the engine takes one caller at a time and uses the CPUs itself.
        self.executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="predict")
        self._settings = settings
        self._start = start
        self._load = load
        self._on_ready = on_ready
        self._on_failure = on_failure
        self._ready = _Readiness()
        self.pending = 0
        self.bytes_held = 0
        # Let in during this turn of the event loop; not yet pending.
        self._arriving = 0
        self._turned_away = 0
        self.turns = Turns()
        self._tidying: asyncio.TimerHandle | None = None
        self._typical_s = 0.05
        # Base64 needs 4 bytes for 3, and JSON some around it.
        self._body_limit = settings.max_image_bytes * 4 // 3 + 65_536
        self.most_bytes_held = max(_MOST_BYTES_HELD, self._body_limit)
        self.routes: dict[tuple[str, str], Callable[[Request], Awaitable[Response]]] = {
            ("GET", PING_PATH): self.ping,
            ("POST", INVOCATIONS_PATH): self.invoke,
            ("GET", EXECUTION_PARAMETERS_PATH): self.execution_parameters,
        }
        self._embeds = METRICS_EMF in settings.metrics
        self.shows_metrics = METRICS_PROMETHEUS in settings.metrics
        if self.shows_metrics:
            self.routes["GET", METRICS_PATH] = self.metrics

    def prepare(self) -> None:
        """Load the model and predict once; runs in the worker thread."""
        try:
            self._become_ready()
        except ModelPackageError as error:
            self._fail(str(error))
        except Exception as error:  # noqa: BLE001
            # Whatever a damaged file leads the engine to, the container must end and say so.
            reason = " ".join(str(error).split())[:_LONGEST_REASON]
            self._fail(f"the model cannot be loaded ({type(error).__name__}: {reason})")

    def _become_ready(self) -> None:
        started = time.perf_counter()
        predictor = self._load()
        loaded = time.perf_counter()
        predictor.warm_up()
        predictor.before_engine = self.turns.enter_engine
        warm = time.perf_counter()
        phases = {
            "model_load_ms": round((loaded - started) * 1000, 1),
            "warm_up_ms": round((warm - loaded) * 1000, 1),
            "started_to_ready_ms": round((boot_clock_s() - self._start.started_s) * 1000, 1),
        }
        self._ready = _Readiness(
            predictor=predictor,
            alone=Alone(predictor, settings=self._settings, metrics=self._metrics, log=self.log),
            started_to_ready_ms=phases["started_to_ready_ms"],
        )
        self.log.info("model", model=predictor.spec.id, model_sha256=predictor.spec.sha256)
        if not predictor.described:
            self.log.warning("model_without_description", assumed=predictor.spec.notice)
        self.recorder.ready()
        self._on_ready(phases)

    def _fail(self, sentence: str) -> None:
        self._ready = _Readiness(failure=sentence)
        self._on_failure(sentence)

    async def ping(self, _: Request) -> Response:
        """Answer `GET /ping`."""
        if self._ready.predictor is None:
            return self._not_ready()
        return Response(content='{"status": "ready"}', media_type=MEDIA_JSON)

    async def execution_parameters(self, _: Request) -> Response:
        """Answer `GET /execution-parameters`, which Batch Transform asks before its first image."""
        payload_mib = min(_MOST_TRANSFORM_MIB, -(-self._body_limit // _MIB))
        # One request more than there are workers, so that none waits for the network.
        transforms = min(self._settings.workers + 1, _MOST_TRANSFORM_MIB // payload_mib)
        parameters: ExecutionParameters = {
            "MaxConcurrentTransforms": max(1, transforms),
            "BatchStrategy": "SINGLE_RECORD",
            "MaxPayloadInMB": payload_mib,
        }
        return Response(content=json.dumps(parameters), media_type=MEDIA_JSON)

    async def metrics(self, _: Request) -> Response:
        """Answer `GET /metrics` for all workers of the container."""
        predictor = self._ready.predictor
        model = None
        if predictor is not None:
            model = {"id": predictor.spec.id, "sha256": predictor.spec.sha256}
        return Response(self._metrics.text(model=model), headers={"Content-Type": CONTENT_TYPE})

    def fault(self, error: Exception, *, request_id: str | None = None) -> Response:
        """The answer where the service itself failed; the log says more than the caller hears."""
        named = {} if request_id is None else {"request_id": request_id}
        self.log.error("fault", kind=type(error).__name__, **named)
        return problem(500, "The service failed on this request; see its log.")

    def _not_ready(self) -> Response:
        failure = self._ready.failure
        if failure is not None:
            return problem(503, f"The model cannot be served: {failure}.")
        return problem(503, "The model is still loading; try again.", retry_after_s=1.0)

    async def invoke(self, request: Request) -> Response:
        """Answer `POST /invocations` and log one line about it."""
        began = time.perf_counter()
        own_id = request_id(request.headers.get(REQUEST_ID_HEADER, ""))
        fields: dict[str, Any] = {"request_id": own_id}
        try:
            response = await self._answer(request, began, fields)
        except RefusedRequestError as refused:
            response = self._refusal(request, refused.status, refused.detail)
        except ClientDisconnect:
            # Nobody is left to read an answer; the line in the log is for us.
            response = problem(400, "The sender closed the connection.")
        except Exception as error:  # noqa: BLE001
            fields["outcome"] = "error"
            response = self.fault(error, request_id=own_id)
        fields["status"] = response.status_code
        fields.setdefault("outcome", "refused")
        self._note(fields, time.perf_counter() - began)
        response.headers[REQUEST_ID_HEADER] = own_id
        return response

    def _note(self, fields: dict[str, Any], seconds: float) -> None:
        """One line in the log and the numbers of one request."""
        fields["total_ms"] = round(seconds * 1000, 2)
        recorder, outcome, status = self.recorder, fields["outcome"], fields["status"]
        recorder.request(
            status=status,
            seconds=seconds,
            body_bytes=fields.get("bytes", 0),
            abandoned=outcome == "abandoned",
        )
        if outcome != "refused" or status in _ABOUT_THE_IMAGE:
            for became in fields.get("outcomes", (outcome,)):
                kind = "error" if became == _ERROR_OF_ONE else became.partition(" ")[0]
                if kind in OUTCOMES:
                    recorder.image(kind)
        for stage in STAGES:
            spent_ms = fields.get(f"{stage}_ms")
            if spent_ms:
                recorder.stage(stage, spent_ms / 1000)
        predictor = self._ready.predictor
        if predictor is not None:
            fields["model"], fields["model_sha256"] = predictor.spec.id, predictor.spec.sha256
            if self._embeds:
                self.log.always("request", **fields, **embedded(fields))
                return
        self.log.info("request", **fields)

    async def _answer(self, request: Request, began: float, fields: dict[str, Any]) -> Response:
        predictor = self._ready.predictor
        if predictor is None:
            return self._not_ready()
        # A header that comes twice means both (RFC 9110, 5.3).
        options = parse_attributes(",".join(request.headers.getlist(CUSTOM_ATTRIBUTES_HEADER)))
        content_type = request.headers.get("content-type")
        check_content_type(media_type(content_type))
        check_content_encoding(request.headers.getlist("content-encoding"))
        deadline_s = began + self._settings.timeout_s
        left_s = deadline_s - time.perf_counter()
        # The place in the queue is taken before the body is read, so that the limits hold for
        # all that is in memory.
        place = _Place(self)
        try:
            read = await self._body(request, place, min(left_s, _BODY_WITHIN_S))
            if isinstance(read, Response):
                place.leave()
                return read
            fields["bytes"] = len(read)
            work = _Work(body=read)
            del read
            job = self.executor.submit(
                self._run, predictor, work, content_type, options, deadline_s
            )
            self.turns.queued()
        except BaseException:
            place.leave()
            raise
        left_s = deadline_s - time.perf_counter()
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def end() -> None:
            if not ended.done():
                ended.set_result(None)

        def finish() -> None:
            work.drop()
            place.leave()
            self._widen_when_due()
            end()

        # One step from the worker thread to the handler: each turn of the event loop costs.
        job.add_done_callback(lambda _: self.turns.finished(loop, finish))
        sender = _Sender(request, on_leaving=end)
        timer = loop.call_later(max(0.0, left_s), end)
        try:
            await ended
        finally:
            timer.cancel()
            sender.forget()
        if work.queued_ms is not None:
            fields["queue_ms"] = work.queued_ms
        if job.done():
            return self._result(job, predictor, request, began, fields)
        if job.cancel():
            self.turns.queued(-1)
        work.abandon()
        if sender.has_left:
            fields["outcome"] = "abandoned"
            raise ClientDisconnect
        return problem(
            504,
            f"The answer took longer than {self._settings.timeout_s:g} s; send it again.",
        )

    def _run(
        self,
        predictor: Predictor,
        work: "_Work",
        content_type: str | None,
        options: Options,
        deadline_s: float,
    ) -> Answers:
        begun = time.perf_counter()
        self.turns.begun()
        photographs = extract(
            work.begin(),
            media_type(content_type),
            boundary=boundary_of(content_type),
            most=self._settings.max_images,
        )
        if self._ready.alone is not None:
            self._ready.alone.begin()
        self.turns.predicting = True
        try:
            if len(photographs) == 1:
                answers: Answers = [_predict(predictor, photographs[0], options)]
            else:
                answers = self._several(predictor, photographs, options, deadline_s, work)
        finally:
            self.turns.predicting = False
        # Follows the load slowly; only the waiting time that a 429 names depends on it.
        self._typical_s += 0.1 * (time.perf_counter() - begun - self._typical_s)
        return answers

    def _several(
        self,
        predictor: Predictor,
        photographs: list[Photograph | RefusedRequestError],
        options: Options,
        deadline_s: float,
        work: "_Work",
    ) -> Answers:
        """One entry for each image, in the order sent; what is refused does not stop the rest."""
        predictor.check_request(operating_point=options.operating_point, explain=options.explain)
        last_start_s = deadline_s - _ANSWER_SHARE * self._settings.timeout_s
        left_px = self._settings.max_request_pixels
        slowest_s = 0.0
        answers: Answers = []
        for photograph in photographs:
            # What the engine has begun cannot be taken back; the images after it can.
            if work.abandoned:
                break
            started = time.perf_counter()
            try:
                if started + slowest_s > last_start_s:
                    raise RefusedRequestError(
                        504,
                        "There was no time left for this image within "
                        f"{self._settings.timeout_s:g} s; send fewer in one request.",
                    )
                pixels = _pixels(predictor, photograph)
                if pixels > left_px:
                    raise RefusedRequestError(
                        413,
                        f"The image has {pixels} pixels; {left_px} are left of the "
                        f"{self._settings.max_request_pixels} that one request may have.",
                    )
                left_px -= pixels
                answers.append(_predict(predictor, photograph, options))
            except (PhotographError, RefusedRequestError) as refused:
                answers.append(RefusedRequestError(refused.status, refused.detail))
            except EngineError as error:
                answers.append(RefusedRequestError(500, f"{error}."))
            slowest_s = max(slowest_s, time.perf_counter() - started)
        return answers

    def _result(
        self,
        job: "Future[Answers]",
        predictor: Predictor,
        request: Request,
        began: float,
        fields: dict[str, Any],
    ) -> Response:
        try:
            answers = job.result(timeout=0)
        except (PhotographError, RefusedRequestError) as refused:
            return self._refusal(request, refused.status, refused.detail)
        except RequestError as refused:
            return self._refusal(request, 400, f"{refused}.")
        except EngineError as error:
            # This image is at fault, as of several images it would be: the warm-up had numbers.
            fields["outcome"] = "error"
            return self._refusal(request, 500, f"{error}.")
        except CancelledError as error:
            fields["outcome"] = "error"
            return problem(500, f"{error}.")
        fields.update(_log_fields(answers))
        if wants_csv(request.headers.get("accept")):
            for _ in filter(_is_answer, answers):
                self._start.counter.next()
            rows = (_row(answer, len(predictor.spec.labels)) for answer in answers)
            return Response(content="".join(rows), media_type=MEDIA_CSV)
        records = [self._entry(answer, predictor, began) for answer in answers]
        # One image is answered as it always was; a list only where several were sent.
        content = records if len(records) > 1 else records[0]
        return Response(content=_ENCODER.encode(content), media_type=MEDIA_JSON)

    def _entry(
        self, answer: Answer | RefusedRequestError, predictor: Predictor, began: float
    ) -> Prediction | Problem:
        if isinstance(answer, RefusedRequestError):
            return problem_record(answer.status, answer.detail)
        return self._record(answer, predictor, began)

    def _record(self, answer: Answer, predictor: Predictor, began: float) -> Prediction:
        spec = predictor.spec
        probabilities = answer.probabilities
        point = answer.referable.operating_point
        record: Prediction = {
            "predictions": None if probabilities is None else list(probabilities),
            "grade": answer.grade,
            "label": answer.label,
            "referable": {
                "probability": answer.referable.probability,
                "operating_point": point.name,
                "threshold": point.threshold,
                "positive": answer.referable.positive,
            },
            "consistent": answer.consistent,
            "quality": {
                "gradable": answer.quality.gradable,
                "reasons": list(answer.quality.reasons),
            },
            "model": {"id": spec.id, "sha256": spec.sha256},
            "container": {
                "start_id": self._start.start_id,
                "started_to_ready_ms": self._ready.started_to_ready_ms,
                "requests_before": self._start.counter.next(),
            },
            "requestLatency": time.perf_counter() - began,
            "predictionLatency": answer.timings.engine_ms / 1000,
        }
        if spec.notice:
            record["model"]["notice"] = spec.notice
        if answer.acquisition is not None:
            record["acquisition"] = answer.acquisition
        if answer.heat_map is not None:
            record["explanation"] = {
                "method": "grad-cam",
                "grade": answer.heat_map.grade,
                "media_type": answer.heat_map.media_type,
                "width": answer.heat_map.width_px,
                "height": answer.heat_map.height_px,
                "image": answer.heat_map.image_base64,
            }
        return record

    def _queue_full(self) -> Response:
        return problem(
            429, queue_full_detail(self.pending - 1), retry_after_s=self._retry_after_s()
        )

    def _retry_after_s(self) -> float:
        return max(0.1, self.pending * self._typical_s)

    def is_full(self) -> bool:
        """Whether a request that comes now would be turned away."""
        waiting = self.pending + self._arriving
        return waiting > self._settings.queue_limit and self._ready.predictor is not None

    def _note_arrival(self, data: bytes) -> None:
        """Count a request that will take its place in the event loop's next turn.

        Of many that come in one turn, no more than there is room for are to be parsed.
        """
        if is_plain(data):
            if not self._arriving:
                # Before the tasks of these requests, which are about to be made.
                asyncio.get_running_loop().call_soon(self._forget_arrivals)
            self._arriving += 1

    def _forget_arrivals(self) -> None:
        self._arriving = 0

    def turn_away(
        self, data: bytes, headers: Iterable[tuple[bytes, bytes]]
    ) -> tuple[bytes, int, bool] | None:
        """See `Application.turn_away`."""
        if not self.is_full():
            self._note_arrival(data)
            return None
        head = read_head(data, most_bytes=self._body_limit)
        if head is None:
            return None
        answer = refusal(
            head,
            retry_after_s=self._retry_after_s(),
            waiting=self.pending - 1,
            headers=headers,
        )
        self.recorder.request(status=429, seconds=0.0)
        if not self._turned_away:
            asyncio.get_running_loop().call_later(_SUMMED_FOR_S, self.note_turned_away)
        self._turned_away += 1
        self.turns.refused()
        return answer, head.body_left, head.closes

    def tidy_when_idle(self) -> None:
        """Give spare memory back when nothing has been asked for a while."""
        if self._tidying is not None:
            self._tidying.cancel()
            self._tidying = None
        if not self.pending:
            loop = asyncio.get_running_loop()
            self._tidying = loop.call_later(_IDLE_FOR_S, self._tidy)

    def _tidy(self) -> None:
        self._tidying = None
        # It may be shutting down.
        with contextlib.suppress(RuntimeError):
            self.executor.submit(return_spare_memory)

    def _widen_when_due(self) -> None:
        """Open the second engine between two requests; see `alone`."""
        alone = self._ready.alone
        if alone is not None and alone.is_due and not self.pending:
            # It may be shutting down.
            with contextlib.suppress(RuntimeError):
                self.executor.submit(alone.widen)

    def note_turned_away(self) -> None:
        """One line in the log about all that were turned away since the last one."""
        count, self._turned_away = self._turned_away, 0
        predictor = self._ready.predictor
        if not count or predictor is None:
            return
        fields = {"count": count, "model": predictor.spec.id}
        if self._embeds:
            self.log.always("turned_away", **fields, **embedded_refusals(count))
        else:
            self.log.info("turned_away", **fields)

    def _refusal(self, request: Request, status: int, detail: str) -> Response:
        predictor = self._ready.predictor
        if not self._settings.batch or predictor is None:
            return problem(status, detail)
        # One 4xx would fail the whole Batch Transform job, with every other image in it.
        if wants_csv(request.headers.get("accept")):
            return Response(content=_empty_row(len(predictor.spec.labels)), media_type=MEDIA_CSV)
        record = json.dumps(problem_record(status, detail))
        return Response(content=record, media_type=MEDIA_JSON)

    async def _body(self, request: Request, place: "_Place", within_s: float) -> bytes | Response:
        """The whole body; or the refusal where there is no room for it or it comes too slowly."""
        if self.pending > self._settings.queue_limit + 1:
            return self._queue_full()
        limit = self._body_limit
        too_large = RefusedRequestError(
            413,
            f"The body is larger than {limit} bytes; an image may have "
            f"{self._settings.max_image_bytes}.",
        )
        declared = request.headers.get("content-length", "")
        if declared.isdecimal():
            # The server drops what is not read, so the sender sees the answer.
            if int(declared[:20]) > limit:
                raise too_large
            if not place.hold(int(declared)):
                return self._queue_full()
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(max(0.0, within_s)):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > limit:
                        chunks.clear()
                        if size > _DRAIN_FACTOR * limit:
                            break
                    elif place.hold(size):
                        chunks.append(chunk)
                    else:
                        return self._queue_full()
        except TimeoutError:
            return problem(
                400,
                f"The body did not arrive within {within_s:.3g} s; send it again.",
                headers={"Connection": "close"},
            )
        if size > limit:
            raise too_large
        return b"".join(chunks)


class _Place:
    """One request's place in the queue and the bytes that it may hold there."""

    def __init__(self, service: _Service) -> None:
        self._service = service
        self._taken = True
        self._bytes_held = 0
        service.pending += 1
        self._show()

    def hold(self, size: int) -> bool:
        """Whether there is room for a body of at least `size` bytes; if so, it is taken."""
        more = max(0, size - self._bytes_held)
        if self._service.bytes_held + more > self._service.most_bytes_held:
            return False
        self._bytes_held += more
        self._service.bytes_held += more
        self._show()
        return True

    def leave(self) -> None:
        """Give the place back, once."""
        if self._taken:
            self._taken = False
            self._service.pending -= 1
            self._service.bytes_held -= self._bytes_held
            self._show()
            self._service.tidy_when_idle()

    def _show(self) -> None:
        service = self._service
        service.recorder.queue(pending=service.pending, bytes_held=service.bytes_held)


class _Work:
    """A body on its way to the worker thread, which takes it out.

    A job that was cancelled stays in the executor's queue, and must not hold the body there.
    """

    def __init__(self, *, body: bytes) -> None:
        self._body = body
        self._since = time.perf_counter()
        self.queued_ms: float | None = None
        self.abandoned = False

    def abandon(self) -> None:
        """Nobody waits for the answer any more."""
        self.abandoned = True

    def begin(self) -> bytes:
        """The body, once; notes how long it has waited."""
        self.queued_ms = round((time.perf_counter() - self._since) * 1000, 2)
        body = self._body
        self.drop()
        return body

    def drop(self) -> None:
        """Let the body go."""
        self._body = b""


class _Sender:
    """Notices that the sender of a request closes the connection.

    A server that offers `CLOSING` tells it, which costs nothing; any other is asked, in a task.
    """

    def __init__(self, request: Request, *, on_leaving: Callable[[], None]) -> None:
        self.has_left = False
        self._on_leaving = on_leaving
        self._asking: asyncio.Task[None] | None = None
        self._told: set[Callable[[], None]] | None = request.scope.get("extensions", {}).get(
            CLOSING
        )
        if self._told is not None:
            self._told.add(self._leave)
        else:
            self._asking = asyncio.ensure_future(_disconnected(request))
            self._asking.add_done_callback(self._asked)

    def forget(self) -> None:
        """The request has its answer."""
        if self._told is not None:
            self._told.discard(self._leave)
        if self._asking is not None:
            self._asking.cancel()

    def _asked(self, asking: "asyncio.Task[None]") -> None:
        if not asking.cancelled():
            self._leave()

    def _leave(self) -> None:
        self.has_left = True
        self._on_leaving()


async def _disconnected(request: Request) -> None:
    """Returns when the sender has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _predict(
    predictor: Predictor, photograph: Photograph | RefusedRequestError, options: Options
) -> Answer:
    if isinstance(photograph, RefusedRequestError):
        raise photograph
    return predictor.predict(
        photograph.data,
        declared_type=photograph.declared_type,
        operating_point=options.operating_point,
        explain=options.explain,
    )


def _pixels(predictor: Predictor, photograph: Photograph | RefusedRequestError) -> int:
    if isinstance(photograph, RefusedRequestError):
        raise photograph
    return predictor.pixels(photograph.data, declared_type=photograph.declared_type)


def _log_fields(answers: Answers) -> dict[str, Any]:
    """Of one image what happened to it; of several their outcomes in order, and times in sum."""
    graded = [answer for answer in answers if isinstance(answer, Answer)]
    spent = {
        f"{stage}_ms": round(sum(getattr(a.timings, f"{stage}_ms") for a in graded), 2)
        for stage in ("decode", "prepare", "engine", "explain")
    }
    if len(answers) > 1:
        outcomes = [_outcome(answer) for answer in answers]
        return {"outcome": "several", "images": len(answers), "outcomes": outcomes, **spent}
    answer = graded[0]
    return {
        "outcome": _outcome(answer),
        "reasons": list(answer.quality.reasons),
        "media_type": answer.media_type,
        "width": answer.source_width_px,
        "height": answer.source_height_px,
        **spent,
    }


def _is_answer(answer: Answer | RefusedRequestError) -> bool:
    return isinstance(answer, Answer)


def _outcome(answer: Answer | RefusedRequestError) -> str:
    if isinstance(answer, RefusedRequestError):
        return f"refused {answer.status}"
    return "graded" if answer.quality.gradable else "ungradable"


def _row(answer: Answer | RefusedRequestError, labels: int) -> str:
    """One row without header: probabilities, grade, P(referable), referable, gradable.

    Unknown values are empty, truth values are `true` or `false`; every row of a model has the
    same number of columns. In the row of a problem all of them are empty, `gradable` too.
    """
    if isinstance(answer, RefusedRequestError):
        return _empty_row(labels)
    values: list[Any] = list(answer.probabilities or [None] * labels)
    values += [answer.grade, answer.referable.probability]
    values += [answer.referable.positive, answer.quality.gradable]
    return ",".join("" if v is None else json.dumps(v) for v in values) + "\n"


def _empty_row(labels: int) -> str:
    return "," * (labels + 3) + "\n"
