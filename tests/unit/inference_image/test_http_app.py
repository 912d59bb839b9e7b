"""The service under load and in trouble, with engines that are slow or broken on purpose."""

import asyncio
import io
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import jsonschema
import numpy as np
import openapi_spec_validator
import pytest
from PIL import Image

from benchmarks.faults.document import DescribedService
from inference_image import http_app
from inference_image.contract import (
    ACCEPTED_CONTENT_TYPES,
    CUSTOM_ATTRIBUTES_HEADER,
    PROBLEM_TITLES,
)
from inference_image.decoding import Limits
from inference_image.http_app import create_app
from inference_image.log import JsonLog
from inference_image.model_spec import ModelPackageError, load_model_spec
from inference_image.predictor import Predictor
from inference_image.runtimes import Outputs
from inference_image.settings import Settings
from tests.service_harness import (
    TINY_MODEL,
    InProcess,
    b64,
    drawn_jpeg,
    encoded,
    pending,
    running,
    wait_until,
)


class Engine:
    """Answers at once, or when `gate` opens."""

    def __init__(
        self,
        *,
        gate: threading.Event | None = None,
        logits: tuple[float, ...] = (0.0, 0.0, 1.0, 0.0, 0.0),
        warm: tuple[float, ...] | None = None,
    ) -> None:
        self.gate = gate
        self.logits = np.array(logits)
        self.warm = self.logits if warm is None else np.array(warm)
        self.calls = 0

    def predict(self, pixels: Any, *, with_features: bool = False) -> Outputs:
        # The first call is the warm-up.
        self.calls += 1
        if self.calls > 1 and self.gate is not None:
            assert self.gate.wait(60)
        return Outputs(logits=self.logits if self.calls > 1 else self.warm, features=None)


def loader(engine: Engine) -> Callable[[], Predictor]:
    spec = load_model_spec(TINY_MODEL)
    return lambda: Predictor(spec=spec, runtime=engine, head=None, limits=Limits())


@contextmanager
def service(
    load: Callable[[], Predictor], *, wait: bool = True, **environment: str
) -> Iterator[tuple[InProcess, list[dict[str, Any]], list[str]]]:
    stream = io.StringIO()
    failures: list[str] = []
    settings = Settings.from_environment(environment, cpus=1)
    log = JsonLog(level=settings.log_level, stream=stream)
    app = create_app(settings, log=log, load=load, on_failure=failures.append)
    events: list[dict[str, Any]] = []
    with running(InProcess(app)) if wait else InProcess(app) as transport:
        yield transport, events, failures
    events += [json.loads(line) for line in stream.getvalue().splitlines()]


def send(transport: InProcess) -> Any:
    return transport.request("POST", "/invocations", drawn_jpeg(), {"Content-Type": "image/jpeg"})


def test_until_the_warm_up_everything_is_503_and_ping_answers_at_once() -> None:
    release = threading.Event()

    def slow_load() -> Predictor:
        assert release.wait(30)
        return loader(Engine())()

    with service(slow_load, wait=False) as (transport, _, failures):
        # The model goes on loading until this has been answered.
        ping = transport.request("GET", "/ping")
        assert ping.status == 503
        assert ping.json()["retry_after_s"] == 1.0
        assert ping.headers["retry-after"] == "1"
        assert send(transport).status == 503
        release.set()
        transport.wait_ready()
        assert send(transport).status == 200
        assert failures == []


@pytest.mark.parametrize("error", [ModelPackageError("the package is damaged"), OSError("disk")])
def test_a_failed_load_is_never_ready_and_is_reported_once(error: Exception) -> None:
    def broken() -> Predictor:
        raise error

    with service(broken, wait=False) as (transport, _, failures):
        wait_until(lambda: failures)
        ping = transport.request("GET", "/ping")
        assert ping.status == 503
        assert str(error) in ping.json()["detail"]
        assert send(transport).status == 503
    assert len(failures) == 1


def test_ping_answers_while_predictions_are_slow() -> None:
    gate = threading.Event()
    with (
        service(loader(Engine(gate=gate))) as (transport, _, _),
        ThreadPoolExecutor(40) as callers,
    ):
        answers = [callers.submit(send, transport) for _ in range(40)]
        wait_until(lambda: pending(transport) == 40)
        # The network stands still meanwhile, so this waits for no prediction.
        assert {transport.request("GET", "/ping").status for _ in range(20)} == {200}
        assert not any(answer.done() for answer in answers)
        gate.set()
        assert {answer.result().status for answer in answers} == {200}


def test_a_full_queue_is_429_with_the_time_to_wait_and_recovers() -> None:
    gate = threading.Event()
    with (
        service(loader(Engine(gate=gate)), DR_QUEUE_LIMIT="2") as (transport, events, _),
        ThreadPoolExecutor(3) as callers,
    ):
        accepted = [callers.submit(send, transport) for _ in range(3)]
        wait_until(lambda: pending(transport) == 3)
        refused = send(transport)
        assert refused.status == 429
        assert refused.json()["retry_after_s"] > 0
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.headers["content-type"] == "application/problem+json"
        gate.set()
        assert [answer.result().status for answer in accepted] == [200, 200, 200]
        assert send(transport).status == 200
    statuses = [event["status"] for event in events if event["event"] == "request"]
    assert statuses.count(429) == 1
    assert statuses.count(200) == 4


def test_of_many_that_come_in_one_turn_only_those_with_a_place_are_parsed() -> None:
    plain = b"POST /invocations HTTP/1.1\r\nContent-Length: 0\r\n\r\n"
    settings = Settings.from_environment({"DR_QUEUE_LIMIT": "2"}, cpus=1)
    app = create_app(
        settings, log=JsonLog(level="info", stream=io.StringIO()), load=loader(Engine())
    )
    app._service.prepare()

    def is_let_in() -> bool:
        if app.admission.turn_away(plain, []) is not None:
            return False
        app.admission.arrives()
        return True

    async def turn() -> list[bool]:
        found = [
            app.admission.turn_away(b"GET /ping", []) is None,
            *(is_let_in() for _ in range(5)),
        ]
        await asyncio.sleep(0)
        return found

    async def turns() -> None:
        for _ in range(2):
            assert await turn() == [True, True, True, True, False, False]

    asyncio.run(turns())
    app._service.executor.shutdown()


def test_what_takes_too_long_is_504_and_the_next_request_is_served() -> None:
    gate = threading.Event()
    engine = Engine(gate=gate)
    with service(loader(engine), MODEL_SERVER_TIMEOUT="1") as (transport, _, _):
        reply = send(transport)
        assert reply.status == 504
        assert "longer than 1 s" in reply.json()["detail"]
        gate.set()
        wait_until(lambda: send(transport).status == 200)


def test_a_heat_map_in_csv_is_refused_before_anything_is_computed() -> None:
    engine = Engine()
    headers = {CUSTOM_ATTRIBUTES_HEADER: "explain=gradcam", "Accept": "text/csv"}
    with service(loader(engine)) as (transport, _, _):
        reply = transport.request("POST", "/invocations", drawn_jpeg(), headers)
        assert (reply.status, engine.calls) == (400, 1)
    assert "CSV cannot hold a heat map" in reply.json()["detail"]


def test_nan_is_a_500_that_says_so_and_does_not_end_the_service() -> None:
    engine = Engine(logits=(0.0, float("nan"), 0.0, 0.0, 0.0), warm=(0.0,) * 5)
    with service(loader(engine)) as (transport, events, _):
        reply = send(transport)
        assert reply.status == 500
        assert "not a number" in reply.json()["detail"]
        assert transport.request("GET", "/ping").status == 200
    assert [event["outcome"] for event in events if event["event"] == "request"] == ["error"]


def test_a_network_that_warms_up_to_nan_never_becomes_ready() -> None:
    engine = Engine(logits=(0.0, float("nan"), 0.0, 0.0, 0.0))
    with service(loader(engine), wait=False) as (transport, _, failures):
        wait_until(lambda: failures)
        assert transport.request("GET", "/ping").status == 503
    assert "not a number" in failures[0]


def post(app: Any, receive: Callable[[], Any], headers: dict[str, str] | None = None) -> Any:
    """A POST whose body comes from `receive`, as an awaitable status."""
    named = {"content-type": "image/jpeg", **(headers or {})}
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/invocations",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in named.items()],
    }
    answered: list[Any] = []

    async def send(message: Any) -> None:
        answered.append(message)

    async def answer() -> int:
        await app(scope, receive, send)
        return int(answered[0]["status"])

    return answer()


async def never() -> Any:
    await asyncio.sleep(3600)


def test_a_body_that_does_not_come_is_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference_image.service._BODY_WITHIN_S", 0.1)
    with service(loader(Engine())) as (transport, _, _):
        assert transport._run(post(transport._app, never)) == 400
        assert send(transport).status == 200


def test_requests_whose_bodies_still_arrive_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference_image.service._BODY_WITHIN_S", 2.0)

    async def many(app: Any, headers: dict[str, str]) -> list[int]:
        return list(await asyncio.gather(*(post(app, never, headers) for _ in range(12))))

    with service(loader(Engine()), DR_QUEUE_LIMIT="3") as (transport, _, _):
        assert Counter(transport._run(many(transport._app, {}))) == {400: 4, 429: 8}
    with service(loader(Engine())) as (transport, _, _):
        statuses = Counter(transport._run(many(transport._app, {"content-length": "30000000"})))
        assert statuses == {400: 8, 429: 4}
        too_large = {"content-length": "99999999999"}
        assert set(transport._run(many(transport._app, too_large))) == {413}
        assert send(transport).status == 200


def test_a_request_that_is_too_large_is_told_the_limit_that_it_exceeds() -> None:
    """Three images, none of them too large, may be so together."""
    together = "larger than 198869 bytes, which is the limit for all of its images together"
    alone = "The body is larger than 198869 bytes; an image may have 100000."
    with service(loader(Engine()), DR_MAX_IMAGE_BYTES="100000") as (transport, _, _):
        for content_type, sentence in (
            ("multipart/form-data; boundary=x", together),
            ("application/json", together),
            ("image/png", alone),
            ("application/octet-stream", alone),
        ):
            headers = {"Content-Type": content_type}
            for known in ({"Content-Length": "210000"}, {}):
                reply = transport.request(
                    "POST", "/invocations", bytes(210_000), {**headers, **known}
                )
                assert reply.status == 413
                assert sentence in reply.json()["detail"]


def test_a_body_without_a_length_counts_as_it_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference_image.service._MOST_BYTES_HELD", 1)

    async def endless() -> Any:
        return {"type": "http.request", "body": bytes(60_000), "more_body": True}

    with service(loader(Engine()), DR_MAX_IMAGE_BYTES="100000") as (transport, _, _):
        assert transport._run(post(transport._app, endless)) == 413

        async def beside_another() -> int:
            first = asyncio.ensure_future(post(transport._app, never, {"content-length": "190000"}))
            await asyncio.sleep(0.1)
            second = await post(transport._app, endless)
            first.cancel()
            return int(second)

        assert transport._run(beside_another()) == 429
        assert send(transport).status == 200


def test_a_request_whose_sender_is_gone_is_not_computed() -> None:
    gate = threading.Event()
    engine = Engine(gate=gate)
    with (
        service(loader(engine)) as (transport, events, _),
        ThreadPoolExecutor(1) as caller,
    ):
        first = caller.submit(send, transport)
        wait_until(lambda: engine.calls == 2)
        messages = [{"type": "http.request", "body": drawn_jpeg(), "more_body": False}]

        async def receive() -> Any:
            return messages.pop() if messages else {"type": "http.disconnect"}

        assert transport._run(post(transport._app, receive)) == 400
        gate.set()
        assert first.result().status == 200
        assert send(transport).status == 200
    assert engine.calls == 3
    outcomes = [event["outcome"] for event in events if event["event"] == "request"]
    assert sorted(outcomes) == ["abandoned", "graded", "graded"]


def test_of_several_images_those_after_the_senders_end_are_not_computed() -> None:
    gate = threading.Event()
    engine = Engine(gate=gate)
    body = json.dumps({"image": [b64(drawn_jpeg())] * 5}).encode()
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        # The sender leaves while the engine works on the first image.
        while engine.calls < 2:
            await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}

    with service(loader(engine)) as (transport, events, _):
        headers = {"content-type": "application/json"}
        assert transport._run(post(transport._app, receive, headers)) == 400
        gate.set()
        assert send(transport).status == 200
    # The warm-up, the first image, and the later request.
    assert engine.calls == 3
    outcomes = [event["outcome"] for event in events if event["event"] == "request"]
    assert outcomes == ["abandoned", "graded"]


def test_under_batch_transform_an_image_without_numbers_is_a_record_as_of_several() -> None:
    engine = Engine(logits=(0.0, float("nan"), 0.0, 0.0, 0.0), warm=(0.0,) * 5)
    with service(loader(engine), SAGEMAKER_BATCH="true") as (transport, events, _):
        reply = send(transport)
        assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
        assert reply.json()["status"] == 500
        assert "not a number" in reply.json()["detail"]
        assert [entry["status"] for entry in several(transport, 2).json()] == [500, 500]
    assert [e["outcome"] for e in events if e["event"] == "request"] == ["error", "several"]


def test_under_batch_transform_what_may_go_well_the_next_time_stays_a_refusal() -> None:
    """The platform tries it again; a record would give the image up."""
    gate = threading.Event()
    batch = {"SAGEMAKER_BATCH": "true", "MODEL_SERVER_TIMEOUT": "1", "DR_QUEUE_LIMIT": "0"}
    with (
        service(loader(Engine(gate=gate)), **batch) as (transport, _, _),
        ThreadPoolExecutor(1) as caller,
    ):
        first = caller.submit(send, transport)
        wait_until(lambda: pending(transport) == 1)
        assert send(transport).status == 429
        assert first.result().status == 504
        gate.set()
    release = threading.Event()

    def slow_load() -> Predictor:
        assert release.wait(60)
        return loader(Engine())()

    with service(slow_load, wait=False, **batch) as (transport, _, _):
        assert send(transport).status == 503
        release.set()


def test_under_batch_transform_as_many_wait_as_the_platform_ever_sends() -> None:
    gate = threading.Event()
    with (
        service(loader(Engine(gate=gate)), SAGEMAKER_BATCH="true") as (transport, _, _),
        ThreadPoolExecutor(100) as callers,
    ):
        answers = [callers.submit(send, transport) for _ in range(100)]
        wait_until(lambda: pending(transport) == 100)
        gate.set()
        assert {answer.result().status for answer in answers} == {200}


def test_one_line_per_request_with_timings_and_nothing_about_the_patient() -> None:
    exif = Image.Exif()
    exif[0x010E] = "Patient Marta Example 1961-03-04"
    exif[0x0112] = 6
    photograph = encoded(Image.open(io.BytesIO(drawn_jpeg())), "JPEG", exif=exif)
    headers = {
        "Content-Type": "image/jpeg",
        "Content-Disposition": 'attachment; filename="Marta.jpg"',
    }
    with service(loader(Engine())) as (transport, events, _):
        assert transport.request("POST", "/invocations", photograph, headers).status == 200
        assert transport.request("POST", "/invocations", photograph[:900], headers).status == 422
    graded, refused = (event for event in events if event["event"] == "request")
    assert graded["outcome"] == "graded"
    assert graded["bytes"] == len(photograph)
    assert (graded["width"], graded["height"]) == (600, 600)
    for name in ("decode_ms", "prepare_ms", "engine_ms", "total_ms"):
        assert graded[name] >= 0
    assert len(graded["request_id"]) == 32
    assert (refused["status"], refused["outcome"]) == (422, "refused")
    assert "marta" not in json.dumps(events).lower()
    assert all(len(json.dumps(event)) < 1000 for event in events)


def test_the_document_of_the_api_names_routes_types_and_refusals() -> None:
    with service(loader(Engine())) as (transport, _, _):
        document = transport.request("GET", "/openapi.json").json()
    openapi_spec_validator.validate(document)
    paths = document["paths"]
    assert set(paths) == {
        "/ping",
        "/invocations",
        "/execution-parameters",
        "/metrics",
        "/openapi.json",
    }
    assert document["openapi"].startswith("3.1.")
    operation = paths["/invocations"]["post"]
    assert set(operation["requestBody"]["content"]) == set(ACCEPTED_CONTENT_TYPES)
    assert {int(status) for status in operation["responses"]} == {200, *PROBLEM_TITLES}
    assert set(operation["responses"]["200"]["content"]) == {"application/json", "text/csv"}
    assert "Retry-After" in operation["responses"]["429"]["headers"]
    named = {parameter["name"] for parameter in operation["parameters"]}
    assert named == {CUSTOM_ATTRIBUTES_HEADER, "X-Request-Id"}


def test_answers_and_requests_are_as_the_document_says() -> None:
    text = b64(drawn_jpeg())
    bodies: list[Any] = [
        {"image": text},
        {"instances": [{"b64": text}, {"b64": text}]},
        {"inputs": [text, "@@"]},
        {"instances": [{"b64": text, "id": "left"}, {"image": text, "id": 7}]},
    ]
    with service(loader(Engine())) as (transport, _, _):
        paths = transport.request("GET", "/openapi.json").json()["paths"]
        operation = paths["/invocations"]["post"]
        taken = operation["requestBody"]["content"]["application/json"]["schema"]
        given = operation["responses"]["200"]["content"]["application/json"]["schema"]
        for body in bodies:
            jsonschema.validate(body, taken)
            headers = {"Content-Type": "application/json"}
            reply = transport.request("POST", "/invocations", json.dumps(body).encode(), headers)
            assert reply.status == 200
            jsonschema.validate(reply.json(), given)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"picture": text}, taken)
        for misplaced in ({"image": text}, {"inputs": [{"b64": text}]}):
            body = json.loads(json.dumps(misplaced).replace(f'"{text}"', f'"{text}", "explain": 1'))
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(body, taken)
            sent = json.dumps(body).encode()
            assert transport.request("POST", "/invocations", sent, headers).status == 400
        refused = transport.request("POST", "/invocations", b"x", {})
        media = operation["responses"][str(refused.status)]["content"]["application/problem+json"]
        jsonschema.validate(refused.json(), media["schema"])
        for path in ("/ping", "/execution-parameters"):
            answer = paths[path]["get"]["responses"]["200"]["content"]["application/json"]
            jsonschema.validate(transport.request("GET", path).json(), answer["schema"])


def several(transport: InProcess, count: int) -> Any:
    body = json.dumps({"inputs": [b64(drawn_jpeg())] * count}).encode()
    return transport.request("POST", "/invocations", body, {"Content-Type": "application/json"})


class ByTheClock(Engine):
    """Takes ten seconds for an image, of a clock that nothing else moves."""

    now_s = 0.0

    def predict(self, pixels: Any, *, with_features: bool = False) -> Outputs:
        self.now_s += 10.0
        return super().predict(pixels, with_features=with_features)


def test_of_several_images_those_without_time_left_are_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = ByTheClock()
    clock = SimpleNamespace(**{**vars(time), "perf_counter": lambda: engine.now_s})
    for module in ("invocation", "computation"):
        monkeypatch.setattr(f"inference_image.{module}.time", clock)
    with service(loader(engine), MODEL_SERVER_TIMEOUT="50") as (transport, events, _):
        reply = several(transport, 10)
        assert reply.status == 200
        statuses = [answer.get("status") for answer in reply.json()]
        # The fifth would end at 50 s, and some of the time is kept for the answer.
        assert statuses == [None] * 4 + [504] * 6
        assert "fewer in one request" in reply.json()[-1]["detail"]
        # Not even begun: only the warm-up and the answered ones reached the engine.
        assert engine.calls == 4 + 1
    line = next(event for event in events if event["event"] == "request")
    assert (line["outcome"], line["images"]) == ("several", 10)
    assert line["outcomes"] == ["graded"] * 4 + ["refused 504"] * 6


def test_a_value_that_is_no_number_spoils_its_own_image_only() -> None:
    class Sometimes(Engine):
        def predict(self, pixels: Any, *, with_features: bool = False) -> Outputs:
            outputs = super().predict(pixels, with_features=with_features)
            if self.calls == 3:
                return Outputs(logits=outputs.logits * np.nan, features=None)
            return outputs

    with service(loader(Sometimes())) as (transport, _, _):
        statuses = [answer.get("status") for answer in several(transport, 3).json()]
    assert statuses == [None, 500, None]


def test_a_fault_of_the_service_is_a_500_problem_and_a_line_in_the_log() -> None:
    class Broken(Engine):
        def predict(self, pixels: Any, *, with_features: bool = False) -> Outputs:
            if self.calls:
                raise RuntimeError("the engine is gone")
            return super().predict(pixels, with_features=with_features)

    with service(loader(Broken())) as (transport, events, _):
        reply = send(transport)
        assert reply.status == 500
        assert reply.headers["content-type"] == "application/problem+json"
        assert "gone" not in reply.body.decode()
        assert transport.request("GET", "/ping").status == 200
    assert [e["kind"] for e in events if e["event"] == "fault"] == ["RuntimeError"]


READ_PATHS = ("/ping", "/execution-parameters", "/metrics", "/openapi.json")


def check_described(
    described: DescribedService, reply: Any, path: str = "/invocations", method: str = "GET"
) -> None:
    method = "POST" if path == "/invocations" else method
    faults = described.faults(
        method, path, status=reply.status, headers=reply.headers, body=reply.body
    )
    assert faults == []


def test_every_answer_of_the_document_can_be_had_and_is_as_it_says() -> None:
    with service(loader(Engine())) as (transport, _, _):
        described = DescribedService(transport.request("GET", "/openapi.json").json())
        for path in READ_PATHS:
            for method in ("GET", "HEAD"):
                check_described(described, transport.request(method, path), path, method)
        for body, headers in (
            (drawn_jpeg(), {}),
            (drawn_jpeg(), {"Accept": "text/csv"}),
            (b"", {}),
            (bytes(40_000_000), {}),
            (drawn_jpeg(), {"Content-Type": "text/plain"}),
            (b"no image", {}),
        ):
            check_described(described, transport.request("POST", "/invocations", body, headers))
    release = threading.Event()

    def loads_on_command() -> Predictor:
        assert release.wait(30)
        return loader(Engine(gate=release))()

    with service(loads_on_command, wait=False) as (transport, _, _):
        for path in READ_PATHS:
            for method in ("GET", "HEAD"):
                check_described(described, transport.request(method, path), path, method)
        check_described(described, send(transport))
        release.set()
        transport.wait_ready()
    gate = threading.Event()
    slow = service(loader(Engine(gate=gate)), MODEL_SERVER_TIMEOUT="0.5", DR_QUEUE_LIMIT="0")
    with slow as (transport, _, _), ThreadPoolExecutor(1) as caller:
        first = caller.submit(send, transport)
        wait_until(lambda: b"dr_pending_requests 1" in transport.request("GET", "/metrics").body)
        check_described(described, send(transport))
        check_described(described, first.result())
        gate.set()
    broken = Engine(logits=(0.0, float("nan"), 0.0, 0.0, 0.0), warm=(0.0,) * 5)
    with service(loader(broken)) as (transport, _, _):
        check_described(described, send(transport))
    # These are answers of the proxy in front of the workers: see the full layout's tests.
    by_proxy = {(method, path, 503) for path in READ_PATHS[1:] for method in ("GET", "HEAD")}
    assert described.seen == described.answers() - by_proxy


def test_head_is_answered_like_get_without_a_body() -> None:
    with service(loader(Engine())) as (transport, _, _):
        for path in (*READ_PATHS, "/nowhere", "/invocations"):
            head, get = (transport.request(method, path) for method in ("HEAD", "GET"))
            assert head.body == b""
            assert (head.status, set(head.headers)) == (get.status, set(get.headers))
            assert head.headers["content-type"] == get.headers["content-type"]
        assert head.headers["allow"] == "POST"
        refused = transport.request("POST", "/ping")
        assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD")


def test_an_answer_that_the_document_lacks_is_found() -> None:
    with service(loader(Engine())) as (transport, _, _):
        described = DescribedService(transport.request("GET", "/openapi.json").json())
        good = send(transport)

    def faults(status: int = 200, body: bytes = good.body, **headers: str) -> list[str]:
        named = {**good.headers, **{k.replace("_", "-"): v for k, v in headers.items()}}
        return described.faults("POST", "/invocations", status=status, headers=named, body=body)

    assert faults() == []
    assert "not described" in faults(status=418)[0]
    assert "x-secret is not described" in faults(x_secret="1")[0]
    assert "media type" in faults(content_type="text/html")[0]
    assert "not JSON" in faults(body=b"{")[0]
    assert faults(body=b"{}")
    bare = {"content-type": "application/json"}
    (missing,) = described.faults("POST", "/invocations", status=200, headers=bare, body=good.body)
    assert "x-request-id is missing" in missing
    assert described.faults("GET", "/", status=200, headers={}, body=b"")


def test_each_line_of_a_request_has_what_the_docs_promise() -> None:
    spec = load_model_spec(TINY_MODEL)
    with service(loader(Engine())) as (transport, events, _):
        send(transport)
        transport.request("POST", "/invocations", b"no image", {})
        several(transport, 2)
    graded, refused, both = (event for event in events if event["event"] == "request")
    for line in (graded, refused, both):
        assert (line["model"], line["model_sha256"]) == (spec.id, spec.sha256)
        assert len(line["request_id"]) == 32
        assert line["bytes"] > 0
        assert line["total_ms"] >= line["queue_ms"] >= 0
    assert [line["status"] for line in (graded, refused, both)] == [200, 422, 200]
    assert [line["outcome"] for line in (graded, refused, both)] == ["graded", "refused", "several"]


def test_a_fault_is_logged_with_the_request_it_spoiled() -> None:
    class Broken(Engine):
        def predict(self, pixels: Any, *, with_features: bool = False) -> Outputs:
            if self.calls:
                raise RuntimeError("the engine is gone")
            return super().predict(pixels, with_features=with_features)

    with service(loader(Broken())) as (transport, events, _):
        reply = send(transport)
        assert b'dr_images_total{outcome="error"} 1' in transport.request("GET", "/metrics").body
    fault, line = (event for event in events if event["event"] in ("fault", "request"))
    assert fault["request_id"] == line["request_id"] == reply.headers["x-request-id"]
    assert (line["outcome"], line["status"], fault["kind"]) == ("error", 500, "RuntimeError")


# The schema that the specification publishes, by its sentences (checked 2026-11-28):
# https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/
# CloudWatch_Embedded_Metric_Format_Specification.html
def text_of(longest: int) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": longest}


EMBEDDED = {
    "type": "object",
    "required": ["_aws"],
    "properties": {
        "_aws": {
            "type": "object",
            "required": ["Timestamp", "CloudWatchMetrics"],
            "properties": {
                "Timestamp": {"type": "integer", "minimum": 0},
                "CloudWatchMetrics": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "required": ["Namespace", "Dimensions", "Metrics"],
                        "additionalProperties": False,
                        "properties": {
                            "Namespace": text_of(1024),
                            "Dimensions": {
                                "type": "array",
                                "minItems": 1,
                                "items": {"type": "array", "maxItems": 30, "items": text_of(250)},
                            },
                            "Metrics": {
                                "type": "array",
                                "minItems": 1,
                                "maxItems": 100,
                                "items": {
                                    "type": "object",
                                    "required": ["Name"],
                                    "additionalProperties": False,
                                    "properties": {
                                        "Name": text_of(1024),
                                        "Unit": {"enum": ["Milliseconds", "Bytes", "Count"]},
                                        "StorageResolution": {"enum": [1, 60]},
                                    },
                                },
                            },
                        },
                    },
                },
            },
        }
    },
}


@pytest.mark.parametrize("level", ["info", "error"])
def test_when_asked_each_request_is_a_cloudwatch_metric_at_any_level(level: str) -> None:
    begun_ms = time.time() * 1000
    asked = {"DR_METRICS": "emf", "DR_LOG_LEVEL": level}
    with service(loader(Engine()), **asked) as (transport, events, _):
        send(transport)
        transport.request("POST", "/invocations", b"no image", {})
        several(transport, 2)
        assert transport.request("GET", "/metrics").status == 404
        assert "/metrics" not in transport.request("GET", "/openapi.json").json()["paths"]
    lines = [event for event in events if event["event"] == "request"]
    assert len(lines) == 3
    for line in lines:
        jsonschema.validate(line, EMBEDDED)
        assert begun_ms - 1 <= line["_aws"]["Timestamp"] <= time.time() * 1000
        (directive,) = line["_aws"]["CloudWatchMetrics"]
        # What a directive refers to must be in the line: numbers, and texts of dimensions.
        for metric in directive["Metrics"]:
            assert isinstance(line[metric["Name"]], int | float), metric
        for dimension in directive["Dimensions"][0]:
            assert 0 < len(line[dimension]) <= 1024
        assert line["turned_away"] == line["faults"] == line["ungradable"] == 0
    assert [line["answered"] for line in lines] == [1, 0, 1]


@pytest.mark.parametrize("batch", ["false", "true"])
def test_in_cloudwatch_each_image_counts_of_which_the_status_says_nothing(batch: str) -> None:
    no_numbers = Engine(logits=(0.0, float("nan"), 0.0, 0.0, 0.0), warm=(0.0,) * 5)
    dark = b64(encoded(Image.new("RGB", (300, 300)), "PNG"))
    body = json.dumps({"inputs": [b64(drawn_jpeg()), dark, dark, "AAAA"]}).encode()
    asked = {"DR_METRICS": "emf", "SAGEMAKER_BATCH": batch}
    with service(loader(no_numbers), **asked) as (transport, events, _):
        for sent, kind in ((body, "application/json"), (drawn_jpeg(), "image/jpeg")):
            transport.request("POST", "/invocations", sent, {"Content-Type": kind})
    lines = [event for event in events if event["event"] == "request"]
    assert [line["outcome"] for line in lines] == ["several", "error"]
    assert [line["faults"] for line in lines] == [1, 1]
    assert [line["ungradable"] for line in lines] == [2, 0]


def test_without_being_asked_no_line_is_a_metric() -> None:
    with service(loader(Engine())) as (transport, events, _):
        send(transport)
    assert all("_aws" not in event for event in events)


def test_a_worker_without_work_gives_spare_memory_back_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, given = Engine(), list[int]()
    monkeypatch.setattr("inference_image.service._IDLE_FOR_S", 0.1)
    monkeypatch.setattr(
        "inference_image.service.return_spare_memory", lambda: given.append(engine.calls)
    )
    with service(loader(engine)) as (transport, _, _):
        for count in (3, 1):
            for _ in range(count):
                assert send(transport).status == 200
            wait_until(lambda: given and given[-1] == engine.calls)
            # Nothing is set to give more back, as long as nothing is asked.
            assert transport._app._service._tidying is None
            assert given.count(engine.calls) == 1


def test_ping_waits_for_no_import_of_the_first_request_that_needs_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The OpenAPI application takes as long to import as all the rest of a start."""
    imported = threading.Event()
    really = http_app.Application._document

    def slow(self: http_app.Application) -> Any:
        assert imported.wait(60)
        return really(self)

    monkeypatch.setattr(http_app.Application, "_document", slow)
    with (
        service(loader(Engine())) as (transport, _, _),
        ThreadPoolExecutor(3) as callers,
    ):
        absent = [callers.submit(transport.request, "GET", "/nowhere") for _ in range(3)]
        # The import stands still meanwhile.
        assert transport.request("GET", "/ping").status == 200
        assert send(transport).status == 200
        assert not any(reply.done() for reply in absent)
        imported.set()
        assert [reply.result().status for reply in absent] == [404, 404, 404]
        assert transport.request("GET", "/openapi.json").status == 200


def test_an_import_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    really = http_app.Application._document
    failures = [ImportError("no memory")]

    def failing(self: http_app.Application) -> Any:
        if failures:
            raise failures.pop()
        return really(self)

    monkeypatch.setattr(http_app.Application, "_document", failing)
    with service(loader(Engine())) as (transport, _, _):
        assert transport.request("GET", "/nowhere").status == 500
        assert transport.request("GET", "/nowhere").status == 404
