"""The local SageMaker runtime: `POST /endpoints/{name}/invocations`, as boto3 sends it.

    python -m dr_local.runtime_server --port 4567 --control-plane http://localhost:4566 \
        --state-dir .local-aws

Each answer carries the times of its invocation as headers (`x-dr-local-…`, see
`timing_headers`); `GET /metrics.json` has them with the containers and the memory they use, and
the control plane's CloudWatch receives the metrics that SageMaker publishes, under their names
and in their unit, microseconds:

- `ModelLatency`: from the request to the container until its answer;
- `OverheadLatency`: everything else in the service, a cold start included;
- `ModelSetupTime`: download, unpacking and start of a new container (cold starts only).

No log line holds a byte of a request or an answer.
"""

import argparse
import asyncio
import collections
import contextlib
import json
import logging
import platform
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import botocore.exceptions
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from constructs_lib.limits import INVOCATION_TIMEOUT_S, SERVERLESS_READY_TIMEOUT_S
from dr_local.clients import client, require_loopback
from dr_local.confinement import FALLBACK, Confinement, find_confinement
from dr_local.container_http import ContainerAnswer
from dr_local.containers import (
    SERVE_COMMAND,
    Container,
    ContainerPlace,
    InvocationFailedError,
    StartFailedError,
)
from dr_local.deployments import CPU_ASSUMPTION, Deployment, Deployments
from dr_local.endpoint_pools import Assignment, EndpointPool
from dr_local.parent_watch import exit_with_parent
from dr_local.platform_errors import (
    InternalFailure,
    ModelError,
    PayloadTooLargeError,
    PlatformError,
    ValidationError,
)

HOST = "127.0.0.1"
DEFAULT_IDLE_TIMEOUT_S = 300.0
_RECORDS = 1000
_JANITOR_INTERVAL_S = 0.25
_SHUTDOWN_GRACE_S = 2
_ANSWER_EXCERPT = 2000
_QUIET_S = 1.0
_PUBLISH_LATEST_S = 60.0
_CLOUDWATCH_BATCH = 100
_NAMESPACE = "AWS/SageMaker"
_CUSTOM_ATTRIBUTES = "x-amzn-sagemaker-custom-attributes"
_TARGET_VARIANT = "x-amzn-sagemaker-target-variant"
# What the platform passes on to the container.
_FORWARDED = ("content-type", "accept", _CUSTOM_ATTRIBUTES, "x-amzn-sagemaker-inference-id")
# ContentType, Accept and CustomAttributes: InvokeEndpoint, API reference (botocore's model).
_LONGEST_HEADER = 1024
# Parts of SageMaker that endpoints with one model and one variant do not have.
_REFUSED = {
    "x-amzn-sagemaker-target-model": "TargetModel (multi-model endpoints)",
    "x-amzn-sagemaker-target-container-hostname": "TargetContainerHostname",
    "x-amzn-sagemaker-inference-component": "InferenceComponentName",
    "x-amzn-sagemaker-session-id": "SessionId (sticky sessions)",
}

_log = logging.getLogger("dr_local.runtime")


@dataclass(frozen=True, kw_only=True)
class RuntimeSettings:
    """Settings of the runtime server.

    `idle_timeout_s` is when an unused serverless container is stopped (AWS publishes no figure),
    `invocation_timeout_s` and `startup_timeout_s` are the platform's limits, settable for tests.
    """

    control_plane_url: str
    state_dir: Path
    instance: str
    change_log: Path | None = None
    idle_timeout_s: float = DEFAULT_IDLE_TIMEOUT_S
    invocation_timeout_s: float = float(INVOCATION_TIMEOUT_S)
    startup_timeout_s: float = float(SERVERLESS_READY_TIMEOUT_S)
    serve_command: tuple[str, ...] = SERVE_COMMAND


@dataclass(frozen=True, kw_only=True)
class InvocationRecord:
    """One invocation that reached a container; times in milliseconds."""

    endpoint: str
    container: str
    at: float
    status: int
    cold_start: bool
    model_setup_ms: float
    model_latency_ms: float
    overhead_latency_ms: float
    request_bytes: int
    answer_bytes: int


class Runtime:
    """Endpoints, their containers and their measurements; lives in one event loop."""

    def __init__(self, *, settings: RuntimeSettings, confinement: Confinement) -> None:
        require_loopback(settings.control_plane_url)
        self.settings = settings
        self.confinement = confinement
        self.place = ContainerPlace(
            state_dir=settings.state_dir.resolve(),
            instance=settings.instance,
            s3=client("s3", url=settings.control_plane_url),
            confinement=confinement,
            startup_timeout_s=settings.startup_timeout_s,
            serve_command=settings.serve_command,
        )
        self.records: collections.deque[InvocationRecord] = collections.deque(maxlen=_RECORDS)
        self._deployments = Deployments(
            control_plane_url=settings.control_plane_url, change_log=settings.change_log
        )
        self._pools: dict[str, EndpointPool] = {}
        self._retired: list[EndpointPool] = []
        self._lookup = asyncio.Lock()
        self._cloudwatch = client("cloudwatch", url=settings.control_plane_url)
        self._unsent: list[dict[str, Any]] = []
        self._last_invocation = 0.0
        self._last_publication = 0.0
        self._containers_made = 0

    async def invoke(self, name: str, *, headers: Headers, request: Request) -> Response:
        """Answer one InvokeEndpoint call.

        Raises:
            PlatformError: what AWS answers in place of the container.
        """
        begin = time.perf_counter()
        self._last_invocation = time.monotonic()
        deployment = await self._deployment(name)
        _check_target(headers, deployment)
        _check_text(headers)
        body = await _read_body(request, deployment)
        pool = self._pool(deployment)
        try:
            async with pool.assigned() as assignment:
                answer, model_latency_ms = await self._ask(pool, assignment, headers, body)
        except StartFailedError as error:
            raise self._model_error(deployment, 0, str(error)) from None
        record = self._record(
            assignment,
            answer,
            model_latency_ms=model_latency_ms,
            total_ms=(time.perf_counter() - begin) * 1000,
            request_bytes=len(body),
        )
        return self._response(assignment, answer, record)

    async def metrics(self) -> dict[str, Any]:
        """What `/metrics.json` shows."""
        cores = self.place.machine_cores
        return {
            "instance": self.settings.instance,
            "machine_cores": cores,
            "machine_architecture": platform.machine(),
            "memory_limit_by": self.confinement.memory_mechanism,
            "cpu_share_by": self.confinement.cpu_mechanism,
            "cpu_assumption": CPU_ASSUMPTION,
            "idle_timeout_s": self.settings.idle_timeout_s,
            "endpoints": {
                name: pool.report(machine_cores=cores) for name, pool in self._pools.items()
            },
            "invocations": [asdict(record) for record in self.records],
        }

    async def keep_house(self) -> None:
        """Stop idle and outdated containers and publish metrics, until cancelled."""
        while True:
            await asyncio.sleep(_JANITOR_INTERVAL_S)
            try:
                await self._tidy()
            except (PlatformError, botocore.exceptions.ClientError, OSError) as error:
                # The next round may do better; idle containers must not stay for ever.
                _log.warning("housekeeping: %s", error)
            await self._publish()

    async def close(self) -> None:
        """Stop every container."""
        pools = [*self._pools.values(), *self._retired]
        await asyncio.gather(*(pool.close() for pool in pools))

    async def _deployment(self, name: str) -> Deployment:
        known = self._deployments.cached(name)
        if known is not None:
            return known
        async with self._lookup:
            # Another request may have asked while this one waited.
            known = self._deployments.cached(name)
            if known is not None:
                return known
            return await asyncio.to_thread(self._deployments.find, name)

    def _pool(self, deployment: Deployment) -> EndpointPool:
        name = deployment.endpoint_name
        pool = self._pools.get(name)
        if pool is not None and pool.deployment != deployment:
            self._retire(name)
            pool = None
        if pool is None:
            pool = EndpointPool(deployment=deployment, make_container=self._container)
            self._pools[name] = pool
        return pool

    def _container(self, deployment: Deployment) -> Container:
        self._containers_made += 1
        return Container(deployment=deployment, place=self.place, number=self._containers_made)

    def _retire(self, name: str) -> None:
        pool = self._pools.pop(name)
        pool.retire()
        self._retired.append(pool)

    async def _ask(
        self, pool: EndpointPool, assignment: Assignment, headers: Headers, body: bytes
    ) -> tuple[ContainerAnswer, float]:
        container = assignment.container
        deployment = container.deployment
        forwarded = [(name, headers[name]) for name in _FORWARDED if name in headers]
        begin = time.perf_counter()
        try:
            answer = await container.invoke(
                headers=forwarded, body=body, timeout_s=self.settings.invocation_timeout_s
            )
        except TimeoutError:
            if deployment.is_serverless:
                # It is still busy with the request, and may serve one at a time.
                pool.discard(container)
            raise self._model_error(
                deployment,
                0,
                "Your invocation timed out while waiting for a response from container primary. "
                f"The limit is {self.settings.invocation_timeout_s:g} s.",
                container,
            ) from None
        except InvocationFailedError as error:
            if not container.is_running:
                pool.discard(container)
            raise self._model_error(deployment, 0, str(error), container) from None
        latency_ms = (time.perf_counter() - begin) * 1000
        if answer.status >= 300:
            # Every status but success becomes a ModelError, and the container's headers go.
            text = answer.body[:_ANSWER_EXCERPT].decode("utf-8", errors="replace")
            raise self._model_error(deployment, answer.status, text, container)
        return answer, latency_ms

    def _model_error(
        self,
        deployment: Deployment,
        status: int,
        message: str,
        container: Container | None = None,
    ) -> ModelError:
        _log.warning(
            "%s: ModelError, original status %d%s",
            deployment.endpoint_name,
            status,
            # An answer of the container may quote its request; what we say ourselves does not.
            "" if status else f", {message}",
        )
        where = container.log_file if container else self.place.logs_dir
        return ModelError(
            original_status=status,
            original_message=message,
            log_stream_arn=deployment.log_stream_arn,
            log_file=str(where),
        )

    def _record(
        self,
        assignment: Assignment,
        answer: ContainerAnswer,
        *,
        model_latency_ms: float,
        total_ms: float,
        request_bytes: int,
    ) -> InvocationRecord:
        deployment = assignment.container.deployment
        record = InvocationRecord(
            endpoint=deployment.endpoint_name,
            container=assignment.container.id,
            at=time.time(),
            status=answer.status,
            cold_start=assignment.cold,
            model_setup_ms=assignment.setup_ms,
            model_latency_ms=round(model_latency_ms, 3),
            overhead_latency_ms=round(total_ms - model_latency_ms, 3),
            request_bytes=request_bytes,
            answer_bytes=len(answer.body),
        )
        self.records.append(record)
        self._unsent += _metric_data(record, deployment.variant_name)
        return record

    def _response(
        self, assignment: Assignment, answer: ContainerAnswer, record: InvocationRecord
    ) -> Response:
        headers = {
            "x-amzn-invoked-production-variant": assignment.container.deployment.variant_name,
            **timing_headers(record, assignment.container),
        }
        for name in ("content-type", _CUSTOM_ATTRIBUTES):
            if name in answer.headers:
                headers[name] = answer.headers[name]
        return Response(answer.body, headers=headers)

    async def _tidy(self) -> None:
        for pool in self._pools.values():
            if pool.deployment.is_serverless:
                pool.stop_idle(idle_timeout_s=self.settings.idle_timeout_s)
        for pool in self._retired:
            pool.retire()
        self._retired = [pool for pool in self._retired if not pool.is_empty]
        if self.settings.change_log is not None and self._deployments.changed():
            for name in list(self._pools):
                await self._recheck(name)

    async def _recheck(self, name: str) -> None:
        """Retire the containers of an endpoint that has changed or gone."""
        try:
            deployment = await self._deployment(name)
        except ValidationError:
            if name in self._pools:
                self._retire(name)
            return
        pool = self._pools.get(name)
        if pool is not None and pool.deployment != deployment:
            self._retire(name)

    async def _publish(self) -> None:
        # It takes processor time of this machine, so it waits for a pause in the measurements.
        now = time.monotonic()
        paused = now - self._last_invocation > _QUIET_S
        if not self._unsent or not (paused or now - self._last_publication > _PUBLISH_LATEST_S):
            return
        self._last_publication = now
        batch, self._unsent = self._unsent, []
        with contextlib.suppress(
            botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError
        ):
            await asyncio.to_thread(_put_metrics, self._cloudwatch, batch)


def timing_headers(record: InvocationRecord, container: Container) -> dict[str, str]:
    """The measurements that each answer carries, as header names and values."""
    headers = {
        "x-dr-local-container": record.container,
        "x-dr-local-cold-start": "true" if record.cold_start else "false",
        "x-dr-local-model-setup-ms": f"{record.model_setup_ms:.2f}",
        "x-dr-local-model-latency-ms": f"{record.model_latency_ms:.3f}",
        "x-dr-local-overhead-latency-ms": f"{record.overhead_latency_ms:.3f}",
    }
    if record.cold_start and container.times.start_to_first_prediction_ms is not None:
        first_ms = container.times.start_to_first_prediction_ms
        headers["x-dr-local-start-to-first-prediction-ms"] = f"{first_ms:.2f}"
        headers["x-dr-local-memory-rss-mib"] = f"{container.memory_after_first_mib}"
    return headers


def build_app(*, settings: RuntimeSettings, confinement: Confinement) -> Starlette:
    """The runtime server as an ASGI application."""
    runtime = Runtime(settings=settings, confinement=confinement)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        housekeeping = asyncio.create_task(runtime.keep_house())
        try:
            yield
        finally:
            housekeeping.cancel()
            await runtime.close()

    async def invocations(request: Request) -> Response:
        name = request.path_params["name"]
        return await runtime.invoke(name, headers=request.headers, request=request)

    async def unsupported(request: Request) -> Response:
        raise ValidationError(
            "The local runtime answers InvokeEndpoint; asynchronous and streaming invocations "
            "exist on AWS only."
        )

    async def metrics(_: Request) -> Response:
        return JSONResponse(await runtime.metrics())

    async def ping(_: Request) -> Response:
        return JSONResponse({"service": "dr-local-runtime", "instance": settings.instance})

    return Starlette(
        lifespan=lifespan,
        routes=[
            Route("/endpoints/{name}/invocations", invocations, methods=["POST"]),
            Route("/endpoints/{name}/async-invocations", unsupported, methods=["POST"]),
            Route("/endpoints/{name}/invocations-response-stream", unsupported, methods=["POST"]),
            Route("/metrics.json", metrics),
            Route("/ping", ping),
        ],
        exception_handlers={PlatformError: _platform_error, Exception: _unexpected},
    )


async def _platform_error(_: Request, error: Exception) -> Response:
    if not isinstance(error, PlatformError):  # pragma: no cover - registered for it alone
        raise error
    return JSONResponse(
        error.document(),
        status_code=error.status,
        headers={"x-amzn-errortype": error.code, "x-amzn-requestid": str(uuid.uuid4())},
    )


async def _unexpected(request: Request, error: Exception) -> Response:
    _log.error("unexpected %s", type(error).__name__)
    failure = InternalFailure(f"The local runtime failed: {type(error).__name__}.")
    return await _platform_error(request, failure)


def _check_text(headers: Headers) -> None:
    """Refuse what the service's own model does not allow in a header, as the platform does."""
    for name in _FORWARDED:
        value = headers.get(name, "")
        if len(value) > _LONGEST_HEADER or not (value.isascii() and (value + " ").isprintable()):
            raise ValidationError(
                f"{name} may hold at most {_LONGEST_HEADER} printable ASCII characters."
            )


def _check_target(headers: Headers, deployment: Deployment) -> None:
    for name, meaning in _REFUSED.items():
        if name in headers:
            raise ValidationError(f"{meaning} does not apply to {deployment.endpoint_name}.")
    variant = headers.get(_TARGET_VARIANT)
    if variant is not None and variant != deployment.variant_name:
        raise ValidationError(
            f"Variant {variant} not found for endpoint {deployment.endpoint_name}; it has "
            f"{deployment.variant_name}."
        )


async def _read_body(request: Request, deployment: Deployment) -> bytes:
    limit = deployment.payload_limit_bytes
    declared = request.headers.get("content-length", "")
    too_large = declared.isdigit() and int(declared) > limit
    body = bytearray()
    # Read to the end even when it is too large, or the client sees a broken pipe, not the answer.
    async for chunk in request.stream():
        if not too_large:
            body += chunk
            too_large = len(body) > limit
    if too_large:
        if deployment.is_serverless:
            raise ValidationError(
                f"Request {uuid.uuid4()} has oversize body: a serverless endpoint takes {limit} "
                "bytes."
            )
        raise PayloadTooLargeError(f"HTTP content length exceeded {limit} bytes.")
    return bytes(body)


def _metric_data(record: InvocationRecord, variant_name: str) -> list[dict[str, Any]]:
    dimensions = [
        {"Name": "EndpointName", "Value": record.endpoint},
        {"Name": "VariantName", "Value": variant_name},
    ]
    values = [
        ("Invocations", 1.0, "None"),
        ("ModelLatency", record.model_latency_ms * 1000, "Microseconds"),
        ("OverheadLatency", record.overhead_latency_ms * 1000, "Microseconds"),
    ]
    if record.cold_start:
        values.append(("ModelSetupTime", record.model_setup_ms * 1000, "Microseconds"))
    return [
        {"MetricName": name, "Dimensions": dimensions, "Value": value, "Unit": unit}
        for name, value, unit in values
    ]


def _put_metrics(cloudwatch: Any, data: list[dict[str, Any]]) -> None:
    for first in range(0, len(data), _CLOUDWATCH_BATCH):
        cloudwatch.put_metric_data(
            Namespace=_NAMESPACE, MetricData=data[first : first + _CLOUDWATCH_BATCH]
        )


def main(argv: list[str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m dr_local.runtime_server")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--control-plane", required=True, help="http://localhost:PORT")
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--instance", default="0")
    parser.add_argument("--change-log", type=Path)
    parser.add_argument("--idle-timeout-s", type=float, default=DEFAULT_IDLE_TIMEOUT_S)
    parser.add_argument("--invocation-timeout-s", type=float, default=float(INVOCATION_TIMEOUT_S))
    parser.add_argument(
        "--startup-timeout-s", type=float, default=float(SERVERLESS_READY_TIMEOUT_S)
    )
    parser.add_argument("--serve-command", type=json.loads, default=list(SERVE_COMMAND))
    parser.add_argument(
        "--no-cgroups", action="store_true", help="hold limits by watching and stopping instead"
    )
    parser.add_argument("--parent-pid", type=int, help="stop when this process has gone")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if arguments.parent_pid:
        exit_with_parent(arguments.parent_pid)
    settings = RuntimeSettings(
        control_plane_url=arguments.control_plane,
        state_dir=arguments.state_dir,
        instance=arguments.instance,
        change_log=arguments.change_log,
        idle_timeout_s=arguments.idle_timeout_s,
        invocation_timeout_s=arguments.invocation_timeout_s,
        startup_timeout_s=arguments.startup_timeout_s,
        serve_command=tuple(arguments.serve_command),
    )
    confinement = FALLBACK if arguments.no_cgroups else find_confinement(instance=settings.instance)
    note_cgroup_parents(settings.state_dir, confinement)
    uvicorn.run(
        build_app(settings=settings, confinement=confinement),
        host=HOST,
        port=arguments.port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=_SHUTDOWN_GRACE_S,
    )


def note_cgroup_parents(state_dir: Path, confinement: Confinement) -> None:
    """Write down where groups are made, so that `down` can clear them after a crash."""
    paths = [str(path) for path in confinement.parents]
    (state_dir / "cgroups.json").write_text(json.dumps(paths))


if __name__ == "__main__":
    main()
