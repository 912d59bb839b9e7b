"""What one worker does: its model, the queue in front of it, its answers and counters.

    >>> service = Service(settings=settings, log=log, start=start, ...)
    >>> response = await service.invoke(request)                      # whoever carries it
    >>> service.invoke_at_once(header, body, closing=closing, reply=reply)   # its body is there

The event loop only moves bytes; decoding and the network run in one worker thread behind a
bounded queue. The model is loaded and warmed up in that thread.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from inference_image.admission import Admission
from inference_image.alone import Alone
from inference_image.answers import Answers, Container, csv_text, empty_row, json_text, log_fields
from inference_image.computation import Unread, Work, answers_to
from inference_image.container import ContainerStart, boot_clock_s
from inference_image.contract import (
    ENV_OPERATING_POINT,
    EXECUTION_PARAMETERS_PATH,
    INVOCATIONS_PATH,
    MEDIA_CSV,
    MEDIA_JSON,
    METRICS_EMF,
    METRICS_PATH,
    METRICS_PROMETHEUS,
    PING_PATH,
    ExecutionParameters,
)
from inference_image.decoding import Limits, PhotographError
from inference_image.invocation import (
    REQUEST_ID_NAME,
    Deadlines,
    Invocation,
    Place,
    Queue,
    Sender,
    read_header,
)
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
from inference_image.model_files import code_beside
from inference_image.model_spec import ModelPackageError
from inference_image.predictor import (
    EngineError,
    OperatingPointError,
    Predictor,
    RequestError,
)
from inference_image.problems import problem, problem_record
from inference_image.requests import (
    RefusedRequestError,
    check_content_encoding,
    check_content_type,
    media_type,
    parse_attributes,
    wants_csv,
)
from inference_image.settings import Settings
from inference_image.spare_memory import return_spare_memory
from inference_image.turns import Turns

# An oversized body is read to its end (and dropped) up to this multiple, so that the sender
# sees the 413 and not a broken connection.
_DRAIN_FACTOR: Final = 4
# The platform sends a body at once; whoever takes longer keeps others from their turn.
_BODY_WITHIN_S: Final = 20.0
# Bodies that one worker holds, arriving or waiting; one body of the largest size always fits.
_MOST_BYTES_HELD: Final = 256 * 1024 * 1024
# A worker without work for so long gives spare memory back, once for each stretch of work.
_IDLE_FOR_S: Final = 2.0
# Refusals that say something about the image; the others are about the service's load. Under
# Batch Transform a refused image is a 200.
_ABOUT_THE_IMAGE: Final = frozenset({200, 400, 413, 415, 422})
# Of an engine's error, which may go on for pages.
_LONGEST_REASON: Final = 300
_ERROR_OF_ONE: Final = "refused 500"
# The platform's bound on the product of both (CreateTransformJob, read 2026-11-28).
_MOST_TRANSFORM_MIB: Final = 100
_MIB: Final = 1024 * 1024


@dataclass
class _Readiness:
    predictor: Predictor | None = None
    alone: Alone | None = None
    failure: str | None = None


def load_predictor(settings: Settings) -> Predictor:
    """The predictor of the package that the settings name."""
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


class _Job(NamedTuple):
    """What was handed over to the worker thread, and what will come back."""

    work: Work
    computing: "Future[Answers]"


class Service:
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
        self._container = Container(start.start_id, start.counter.next)
        self._deadlines = Deadlines()
        self.turns = Turns()
        self._unread = Unread(most_images=settings.max_images, is_busy=lambda: self.turns.is_busy)
        self._tidying: asyncio.TimerHandle | None = None
        # Base64 needs 4 bytes for 3, and JSON some around it. Several images share it: a platform
        # sends 25 MB at most, and what one request holds is taken from the others.
        self._body_limit = settings.max_image_bytes * 4 // 3 + 65_536
        self.queue = Queue(
            most_bytes=max(_MOST_BYTES_HELD, self._body_limit),
            recorder=self.recorder,
            on_leaving=self.tidy_when_idle,
        )
        self.admission = Admission(
            queue=self.queue,
            turns=self.turns,
            recorder=self.recorder,
            settings=settings,
            most_body_bytes=self._body_limit,
            note=self._note_turned_away,
        )
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
        )
        self.admission.is_open = True
        self._container.started_to_ready_ms = phases["started_to_ready_ms"]
        spec = predictor.spec
        self.log.info("model", model=spec.id, model_sha256=spec.sha256, **predictor.engine)
        if not predictor.described:
            self.log.warning("model_without_description", assumed=predictor.spec.notice)
        elif code := code_beside(self._settings.model_dir):
            self.log.warning("code_not_run", code=code)
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
        call = Invocation(read_header(request.scope["headers"]), timeout_s=self._settings.timeout_s)
        try:
            response = await self._carry(call, request)
        except Exception as error:  # noqa: BLE001
            response = self._failed(call, error)
        return self._close(call, response)

    def invoke_at_once(
        self,
        header: Iterable[tuple[bytes, bytes]],
        body: bytes,
        *,
        closing: set[Callable[[], None]],
        reply: Callable[[Response], None],
    ) -> None:
        """The same for a request whose body is there, in few steps.

        Args:
            header: pairs of name, in lower case, and value.
            body: all of it.
            closing: what will be called when the sender closes the connection.
            reply: called once with the answer, now or later.
        """
        call = Invocation(read_header(header), timeout_s=self._settings.timeout_s)
        place: Place | None = None

        def end() -> None:
            closing.discard(call.leave)
            self._deadlines.forget(call)
            try:
                response = self._conclude(call, job)
            except Exception as error:  # noqa: BLE001
                response = self._failed(call, error)
            reply(self._close(call, response))

        try:
            predictor = self._ready.predictor
            if predictor is None:
                response = self._not_ready()
            else:
                _read_options(call)
                place = Place(self.queue)
                refused = self.admission.room_for(place, len(body), call.header.content_type)
                if refused is None:
                    job = self._submit(call, predictor, place, body, end)
                    closing.add(call.leave)
                    return
                response = refused
        except Exception as error:  # noqa: BLE001
            response = self._failed(call, error)
        if place is not None:
            place.leave()
        reply(self._close(call, response))

    def refuse(
        self,
        header: Iterable[tuple[bytes, bytes]],
        status: int,
        detail: str,
        *,
        outcome: str,
        body_bytes: int,
        began_s: float,
        **fields: Any,
    ) -> Response:
        """Answer a request that whoever carries it refuses, and log one line about it.

        Args:
            header: pairs of name, in lower case, and value.
            status: of the answer.
            detail: one sentence for the caller.
            outcome: for the log: "refused" or "error".
            body_bytes: of the body, as it arrived.
            began_s: when the request came, on the clock of `time.perf_counter`.
            fields: what else the line says.
        """
        call = Invocation(read_header(header), timeout_s=self._settings.timeout_s)
        call.began_s = began_s
        call.fields.update(fields, outcome=outcome, bytes=body_bytes)
        return self._close(call, problem(status, detail))

    def _close(self, call: Invocation, response: Response) -> Response:
        """One line in the log, the numbers of one request, and its id in the answer."""
        fields = call.fields
        fields["status"] = response.status_code
        fields.setdefault("outcome", "refused")
        self._note(fields, time.perf_counter() - call.began_s)
        response.raw_headers.append((REQUEST_ID_NAME, call.header.request_id.encode("ascii")))
        return response

    def _failed(self, call: Invocation, error: Exception) -> Response:
        if isinstance(error, RefusedRequestError):
            return self._refusal(call, error.status, error.detail)
        if isinstance(error, ClientDisconnect):
            # Nobody is left to read an answer; the line in the log is for us.
            call.fields["outcome"] = "abandoned"
            return problem(400, "The sender closed the connection.")
        call.fields["outcome"] = "error"
        return self.fault(error, request_id=call.header.request_id)

    def _note(self, fields: dict[str, Any], seconds: float) -> None:
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

    async def _carry(self, call: Invocation, request: Request) -> Response:
        predictor = self._ready.predictor
        if predictor is None:
            return self._not_ready()
        _read_options(call)
        left_s = call.due_s - time.perf_counter()
        # The place in the queue is taken before the body is read, so that the limits hold for
        # all that is in memory.
        place = Place(self.queue)
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def end() -> None:
            if not ended.done():
                ended.set_result(None)

        try:
            read = await self._body(call, request, place, min(left_s, _BODY_WITHIN_S))
            if isinstance(read, Response):
                place.leave()
                return read
            job = self._submit(call, predictor, place, read, end)
            del read
        except BaseException:
            place.leave()
            raise
        sender = Sender(request, on_leaving=call.leave)
        try:
            await ended
        finally:
            self._deadlines.forget(call)
            sender.forget()
        return self._conclude(call, job)

    def _submit(
        self,
        call: Invocation,
        predictor: Predictor,
        place: Place,
        body: bytes,
        end: Callable[[], None],
    ) -> _Job:
        """Hand a body over to the worker thread; `end` is called, once, when that is over."""
        call.when_over(end)
        call.fields["bytes"] = len(body)
        work = Work(
            predictor,
            body=body,
            content_type=call.header.content_type,
            options=call.options,
            due_s=call.due_s,
        )
        self._unread.append(work)
        try:
            computing = self.executor.submit(self._run, work)
        except RuntimeError:
            # It is shutting down.
            work.abandon()
            work.drop()
            raise
        self.turns.queued()
        loop = asyncio.get_running_loop()

        def finish() -> None:
            work.drop()
            place.leave()
            self._widen_when_due()
            call.over()

        # One step from the worker thread to the handler: each turn of the event loop costs.
        computing.add_done_callback(lambda _: self.turns.finished(loop, finish))
        self._deadlines.add(call)
        return _Job(work, computing)

    def _conclude(self, call: Invocation, job: _Job) -> Response:
        """The answer to what was submitted, once it is over for whatever reason."""
        work = job.work
        if work.queued_ms is not None:
            call.fields["queue_ms"] = work.queued_ms
        if job.computing.done():
            return self._result(call, job)
        if job.computing.cancel():
            self.turns.queued(-1)
        work.abandon()
        if call.sender_has_left:
            raise ClientDisconnect
        if self._deadlines.all_ended:
            return problem(503, "The container is stopping; send it again.", retry_after_s=1.0)
        return problem(
            504,
            f"The answer took longer than {self._settings.timeout_s:g} s; send it again.",
        )

    def _run(self, work: Work) -> Answers:
        """Everything that the worker thread does for one request."""
        self.turns.begun()
        self.turns.predicting = True
        try:
            self._unread.read(work)
            if self._ready.alone is not None and not work.has_failed:
                self._ready.alone.begin()
            begun = time.perf_counter()
            answers = answers_to(work, self._settings)
        finally:
            self.turns.predicting = False
        self.admission.took(work.read_s + time.perf_counter() - begun)
        return answers

    def _result(self, call: Invocation, job: _Job) -> Response:
        try:
            answers = job.computing.result(timeout=0)
        except (PhotographError, RefusedRequestError) as refused:
            return self._refusal(call, refused.status, refused.detail)
        except RequestError as refused:
            return self._refusal(call, 400, f"{refused}.")
        except EngineError as error:
            # This image is at fault, as of several images it would be: the warm-up had numbers.
            call.fields["outcome"] = "error"
            return self._refusal(call, 500, f"{error}.")
        except CancelledError as error:
            call.fields["outcome"] = "error"
            return problem(500, f"{error}.")
        call.fields.update(log_fields(answers))
        spec = job.work.predictor.spec
        if wants_csv(call.header.accept):
            return Response(content=csv_text(answers, spec, self._container), media_type=MEDIA_CSV)
        text = json_text(answers, spec, self._container, began=call.began_s)
        return Response(content=text, media_type=MEDIA_JSON)

    def end_waiting(self) -> None:
        """Answer 503 to what is not computed yet, and to all that is still to come."""
        self._deadlines.end_all()

    def tidy_when_idle(self) -> None:
        """Give spare memory back when nothing has been asked for a while."""
        if self._tidying is not None:
            self._tidying.cancel()
            self._tidying = None
        if not self.queue.pending:
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
        if alone is not None and alone.is_due and not self.queue.pending:
            # It may be shutting down.
            with contextlib.suppress(RuntimeError):
                self.executor.submit(alone.widen)

    def _note_turned_away(self, count: int) -> None:
        """One line in the log about all that were turned away since the last one."""
        predictor = self._ready.predictor
        if predictor is None:
            return
        fields = {"count": count, "model": predictor.spec.id}
        if self._embeds:
            self.log.always("turned_away", **fields, **embedded_refusals(count))
        else:
            self.log.info("turned_away", **fields)

    def _refusal(self, call: Invocation, status: int, detail: str) -> Response:
        predictor = self._ready.predictor
        if not self._settings.batch or predictor is None:
            return problem(status, detail)
        # One 4xx would fail the whole Batch Transform job, with every other image in it.
        if wants_csv(call.header.accept):
            return Response(content=empty_row(len(predictor.spec.labels)), media_type=MEDIA_CSV)
        record = json.dumps(problem_record(status, detail))
        return Response(content=record, media_type=MEDIA_JSON)

    async def _body(
        self, call: Invocation, request: Request, place: Place, within_s: float
    ) -> bytes | Response:
        """The whole body; or the refusal where there is no room for it or it comes too slowly."""
        declared, content_type = call.header.content_length, call.header.content_type
        size = int(declared[:20]) if declared.isdecimal() else 0
        # The server drops what is not read, so the sender sees the answer.
        refused = self.admission.room_for(place, size, content_type)
        if refused is not None:
            return refused
        limit = self._body_limit
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
                        return self.admission.queue_full()
        except TimeoutError:
            return problem(
                400,
                f"The body did not arrive within {within_s:.3g} s; send it again.",
                headers={"Connection": "close"},
            )
        if size > limit:
            raise self.admission.too_large(content_type)
        return b"".join(chunks)


def _read_options(call: Invocation) -> None:
    """Read what a header asks for; raises `RefusedRequestError` for what is not accepted."""
    header = call.header
    call.options = parse_attributes(header.attributes)
    if call.options.explain is not None and wants_csv(header.accept):
        raise RefusedRequestError(
            400, "CSV cannot hold a heat map: leave out explain, or ask for JSON in Accept."
        )
    check_content_type(media_type(header.content_type))
    check_content_encoding(header.encodings)
