"""The service behind Lambda events: one model load, each kind of event, deadlines, folders."""

import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from inference_image import lambda_handler
from inference_image.lambda_handler import (
    LambdaHandler,
    settings_on_lambda,
    use_writable_folders,
)
from inference_image.log import JsonLog
from inference_image.model_spec import ModelPackageError
from inference_image.predictor import Predictor
from inference_image.settings import SettingsError
from tests.lambda_harness import (
    EVENTS,
    InLambda,
    function_url_event,
    http_api_event,
    reply_of,
    rest_api_event,
)
from tests.service_harness import REPOSITORY, TINY_MODEL, copy_package, drawn_jpeg

JPEG_TYPE = {"Content-Type": "image/jpeg"}
KINDS = pytest.mark.parametrize("kind", EVENTS)


@pytest.fixture(scope="module")
def service() -> Iterator[InLambda]:
    with InLambda() as made:
        yield made


def grade(service: InLambda, kind: str, **headers: str) -> Any:
    named = {**JPEG_TYPE, **{name.replace("_", "-"): text for name, text in headers.items()}}
    return reply_of(
        service.handler(EVENTS[kind]("POST", "/invocations", drawn_jpeg(), named), None)
    )


@KINDS
def test_each_kind_of_event_is_graded_alike(service: InLambda, kind: str) -> None:
    reply = grade(service, kind)
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    assert reply.json()["predictions"] == grade(service, "function URL").json()["predictions"]


@KINDS
def test_each_kind_of_event_reaches_ping_and_problems(service: InLambda, kind: str) -> None:
    make = EVENTS[kind]
    assert reply_of(service.handler(make("GET", "/ping"), None)).status == 200
    answer = service.handler(make("POST", "/invocations", b"\xff\xd8", JPEG_TYPE), None)
    # A gateway without binary media types would hand base64 on as it is.
    assert answer["isBase64Encoded"] is False
    problem = reply_of(answer)
    assert problem.status == problem.json()["status"] == 422
    assert problem.headers["content-type"] == "application/problem+json"
    missing = reply_of(service.handler(make("GET", "/nowhere"), None))
    assert missing.status == 404
    assert "POST /invocations" in missing.json()["detail"]


@KINDS
def test_a_csv_answer_is_text(service: InLambda, kind: str) -> None:
    event = EVENTS[kind]("POST", "/invocations", drawn_jpeg(), {**JPEG_TYPE, "Accept": "text/csv"})
    answer = service.handler(event, None)
    assert answer["isBase64Encoded"] is False
    assert answer["body"].count(",") == 8


def test_an_image_as_text_is_refused_and_logged_without_its_bytes() -> None:
    stream = io.StringIO()
    with InLambda(log=JsonLog(level="info", stream=stream)) as service:
        event = rest_api_event("POST", "/invocations", b"", JPEG_TYPE)
        event |= {"body": drawn_jpeg().decode("utf-8", "replace"), "isBase64Encoded": False}
        reply = reply_of(service.handler(event, context()))
    assert reply.status == 400
    assert "binary media types" in reply.json()["detail"]
    line = json.loads(stream.getvalue().splitlines()[-1])
    assert (line["event"], line["outcome"], line["status"]) == ("request", "refused", 400)
    assert "JFIF" not in stream.getvalue()
    check_as_the_services_own(reply, line)
    assert line["bytes"] == len(event["body"].encode())


INVOCATION = "8476a536-e9f4-11e8-9739-2dfe598c3fcd"


def check_as_the_services_own(
    reply: Any, line: dict[str, Any], request_id: str = INVOCATION
) -> None:
    """An answer and its line in the log have what each of the service's has."""
    assert reply.headers["x-request-id"] == line["request_id"] == request_id
    assert reply.headers["content-type"] == "application/problem+json"
    assert (line["model"], len(line["model_sha256"])) == ("tiny-test", 64)
    assert line["total_ms"] > 0
    assert line["bytes"] > 0


@pytest.mark.parametrize("named", [{}, {"X-Request-Id": "5f" * 16}])
@KINDS
def test_what_is_refused_before_the_service_is_as_the_services_own(
    kind: str, named: dict[str, str]
) -> None:
    photograph = drawn_jpeg()
    event = EVENTS[kind]("POST", "/invocations", photograph, {**JPEG_TYPE, **named})
    unreadable = {"headers": {"host": "a:b:c"}, "multiValueHeaders": {"host": ["a:b:c"]}}
    no_base64 = {"body": "@@", "isBase64Encoded": True}
    stream = io.StringIO()
    with InLambda(
        load=lambda: cast("Predictor", SlowOnce(0.6)), log=JsonLog(level="info", stream=stream)
    ) as service:
        late = reply_of(service.handler(event, context(left_ms=700)))
        refused = reply_of(service.handler(event | no_base64, context()))
        strange = reply_of(service.handler(event | unreadable, context()))
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    lines = [line for line in lines if line["event"] == "request"]
    replies = (late, refused, strange)
    assert [(reply.status, line["status"], line["outcome"], line["bytes"]) for reply, line in
            zip(replies, lines, strict=True)] == [
        (504, 504, "error", len(photograph)),
        (400, 400, "refused", 2),
        (400, 400, "refused", len(photograph)),
    ]  # fmt: skip
    given = named.get("X-Request-Id", INVOCATION)
    # The caller's id is among the headers that cannot be read.
    for reply, line, known in zip(replies, lines, (given, given, INVOCATION), strict=True):
        check_as_the_services_own(reply, line, known)


def test_what_is_refused_before_the_service_is_a_metric_as_well() -> None:
    stream = io.StringIO()
    log = JsonLog(level="error", stream=stream)
    with InLambda(log=log, environment={"DR_METRICS": "emf"}) as service:
        event = function_url_event("POST", "/invocations", b"", JPEG_TYPE)
        service.handler(event | {"body": "@@", "isBase64Encoded": True}, context())
    (line,) = map(json.loads, stream.getvalue().splitlines())
    assert (line["answered"], line["faults"]) == (0, 0)
    assert line["_aws"]


def context(left_ms: float = 60_000, request_id: str = INVOCATION) -> Any:
    return SimpleNamespace(aws_request_id=request_id, get_remaining_time_in_millis=lambda: left_ms)


def test_the_model_is_loaded_once_for_many_invocations() -> None:
    loads = []

    def load() -> Predictor:
        loads.append(threading.current_thread().name)
        return Predictor.load(TINY_MODEL, threads=1)

    with InLambda(load=load) as service:
        assert len(loads) == 1
        containers = [
            grade(service, "function URL").json()["container"],
            grade(service, "HTTP API").json()["container"],
            grade(service, "REST API").json()["container"],
        ]
    assert len(loads) == 1
    assert {container["start_id"] for container in containers} == {containers[0]["start_id"]}
    assert [container["requests_before"] for container in containers] == [0, 1, 2]


def test_invocations_from_several_threads_are_answered() -> None:
    with InLambda() as service:
        replies: list[Any] = []
        threads = [
            threading.Thread(target=lambda: replies.append(grade(service, "function URL")))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
    assert [reply.status for reply in replies] == [200] * 4
    assert sorted(reply.json()["container"]["requests_before"] for reply in replies) == [0, 1, 2, 3]


class SlowOnce:
    """A predictor that takes its time once."""

    def __init__(self, wait_s: float) -> None:
        self._predictor = Predictor.load(TINY_MODEL, threads=1)
        self.spec = self._predictor.spec
        self.described = self._predictor.described
        self.engine = self._predictor.engine
        self.second = None
        self._waits = [wait_s]

    def warm_up(self) -> None:
        self._predictor.warm_up()

    def check_request(self, **options: Any) -> None:
        self._predictor.check_request(**options)

    def read(self, *arguments: Any, **options: Any) -> Any:
        return self._predictor.read(*arguments, **options)

    def answer(self, *arguments: Any, **options: Any) -> Any:
        if self._waits:
            time.sleep(self._waits.pop())
        return self._predictor.answer(*arguments, **options)


def test_the_functions_time_out_gives_a_504_and_the_next_call_works() -> None:
    with InLambda(load=lambda: SlowOnce(0.6)) as service:
        event = function_url_event("POST", "/invocations", drawn_jpeg(), JPEG_TYPE)
        late = reply_of(service.handler(event, context(left_ms=700)))
        assert late.status == 504
        assert "0.2 s" in late.json()["detail"]
        next_one = reply_of(service.handler(event, context()))
        assert next_one.status == 200


def test_a_late_answer_leaves_no_place_taken_in_the_queue() -> None:
    environment = {"DR_QUEUE_LIMIT": "0"}
    with InLambda(load=lambda: SlowOnce(0.2), environment=environment) as service:
        event = function_url_event("POST", "/invocations", drawn_jpeg(), JPEG_TYPE)
        assert reply_of(service.handler(event, context(left_ms=600))).status == 504
        # The one thread that predicts is free again after this.
        service.handler._mangum.app._app._service.executor.submit(int).result(timeout=60)
        assert [reply_of(service.handler(event, context())).status for _ in range(2)] == [200] * 2


def test_the_log_names_the_invocation_unless_the_caller_named_the_request() -> None:
    stream = io.StringIO()
    with InLambda(log=JsonLog(level="info", stream=stream)) as service:
        for headers in (
            JPEG_TYPE,
            {**JPEG_TYPE, "X-Request-Id": "5f0c2a34-0000-4000-8000-0123456789ab"},
        ):
            event = http_api_event("POST", "/invocations", drawn_jpeg(), headers)
            service.handler(event, context())
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    ids = [line["request_id"] for line in lines if line["event"] == "request"]
    assert ids == [INVOCATION, "5f0c2a34-0000-4000-8000-0123456789ab"]
    ready = next(line for line in lines if line["event"] == "ready")
    assert ready["model_source"] == "image"
    assert ready["started_to_ready_ms"] > 0
    assert ready["kernel"] == "compiled"


def test_headers_that_cannot_be_read_are_a_400(service: InLambda) -> None:
    event = function_url_event("GET", "/ping", b"", {"X-Forwarded-Port": "443, 443"})
    reply = reply_of(service.handler(event, None))
    assert reply.status == 400
    assert reply.json()["title"] == "Malformed request"


def test_events_with_nulls_where_gateways_send_them(service: InLambda) -> None:
    event = rest_api_event("GET", "/ping")
    event |= {"headers": None, "multiValueHeaders": None, "pathParameters": None}
    assert reply_of(service.handler(event, None)).status == 200


@KINDS
@pytest.mark.parametrize(
    "changes",
    [
        {"headers": {"x-length": 5}},
        {"headers": ["x"], "multiValueHeaders": None},
        {"cookies": "a=b"},
        {"rawQueryString": 7},
        {"pathParameters": []},
        {"isBase64Encoded": "false"},
        {"body": ["/9j/"]},
        {"headers": {"x-half": "\ud800"}, "multiValueHeaders": {"x-half": ["\ud800"]}},
        {"headers": {"host": "a:b:c"}, "multiValueHeaders": {"host": ["a:b:c"]}},
    ],
)
def test_an_event_written_by_hand_is_a_400_and_the_next_one_is_served(
    service: InLambda, kind: str, changes: dict[str, Any]
) -> None:
    event = EVENTS[kind]("POST", "/invocations", drawn_jpeg(), JPEG_TYPE)
    reply = reply_of(service.handler(event | changes, context()))
    assert reply.status == 400
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.json()["detail"].endswith(".")
    assert reply_of(service.handler(event, context())).status == 200


@KINDS
def test_an_event_needs_no_more_than_method_and_path(service: InLambda, kind: str) -> None:
    event = EVENTS[kind]("GET", "/ping")
    needed = {"requestContext", "httpMethod", "path"}
    bare = {name: value for name, value in event.items() if name in needed}
    if "http" in event["requestContext"]:
        bare["requestContext"] = {"http": {"method": "GET", "path": "/ping"}}
    assert reply_of(service.handler(bare, context())).status == 200


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"DR_MODEL_DIR": "/nonexistent"}, "DR_MODEL_URL is not set"),
        ({"DR_OPERATING_POINT": "best"}, "best"),
    ],
)
def test_a_model_that_cannot_be_served_ends_the_start(
    changes: dict[str, str], fragment: str
) -> None:
    environment = {"DR_MODEL_DIR": str(TINY_MODEL), **changes}
    with pytest.raises(ModelPackageError, match=fragment):
        LambdaHandler(environment=environment)


def test_a_fault_behind_the_loading_ends_the_start_too() -> None:
    class Incomplete:
        """A predictor that lacks what the service asks of it once it is loaded."""

        def warm_up(self) -> None:
            pass

    with pytest.raises(ModelPackageError, match=r"cannot be loaded \(AttributeError"):
        LambdaHandler(environment={}, load=lambda: cast("Predictor", Incomplete()))


def test_a_damaged_model_ends_the_start_with_one_sentence(tmp_path: Path) -> None:
    package = copy_package(tmp_path / "damaged")
    (package / "model.tflite").write_bytes(b"not a network")
    with pytest.raises(ModelPackageError, match=r"model\.tflite"):
        LambdaHandler(environment={"DR_MODEL_DIR": str(package)})


@pytest.mark.parametrize(
    ("environment", "threads"),
    [
        ({"AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "128"}, 1),
        ({"AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "1769"}, 1),
        ({"AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "3538"}, 2),
        ({"AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "10240"}, 4),
        ({"AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "10240", "DR_THREADS": "6"}, 6),
        ({}, 4),
    ],
)
def test_the_functions_memory_decides_the_threads(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], threads: int
) -> None:
    monkeypatch.setattr(lambda_handler, "available_cpus", lambda: 4.0)
    settings = settings_on_lambda(environment)
    assert (settings.workers, settings.threads) == (1, threads)
    assert settings.serving_mode == "serverless"


def test_a_base_path_must_be_a_path() -> None:
    assert settings_on_lambda({"DR_BASE_PATH": "/dr/"}).base_path == "/dr"
    with pytest.raises(SettingsError, match="DR_BASE_PATH must begin with '/'"):
        settings_on_lambda({"DR_BASE_PATH": "dr"})


def test_a_base_path_is_removed(tmp_path: Path) -> None:
    with InLambda(environment={"DR_BASE_PATH": "/dr"}) as service:
        event = function_url_event("GET", "/dr/ping")
        assert reply_of(service.handler(event, None)).status == 200


def test_folders_that_cannot_be_written_move_to_the_temporary_one(tmp_path: Path) -> None:
    environment = {
        "HOME": "/nonexistent",
        "KERAS_HOME": str(tmp_path),
        "MPLCONFIGDIR": "/nonexistent/matplotlib",
    }
    use_writable_folders(environment)
    assert environment == {"HOME": tempfile.gettempdir(), "KERAS_HOME": str(tmp_path)}
    kept = {"HOME": str(tmp_path)}
    use_writable_folders(kept)
    assert kept == {"HOME": str(tmp_path)}


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd="/proc",
        env={"PYTHONPATH": str(REPOSITORY), "PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_importing_the_module_loads_neither_engine_nor_adapter() -> None:
    done = run_python(
        "import sys, inference_image.lambda_handler\n"
        "heavy = {'numpy', 'PIL', 'ai_edge_litert', 'mangum', 'starlette', 'fastapi', 'boto3'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


def test_the_first_look_at_the_handler_makes_it_in_a_folder_that_cannot_be_written() -> None:
    """The working folder is /proc and there is no home: as on Lambda, only /tmp is writable."""
    done = run_python(
        "import sys, os\n"
        "import inference_image.lambda_handler as module\n"
        "first = module.handler\n"
        "assert module.handler is first\n"
        "assert os.access(os.environ['HOME'], os.W_OK)\n"
        "assert 'fastapi' not in sys.modules\n"
        "event = {'version': '2.0', 'headers': {}, 'requestContext':\n"
        "         {'http': {'method': 'GET', 'path': '/ping'}}}\n"
        "print('status', first(event, None)['statusCode'])",
        DR_MODEL_DIR=str(TINY_MODEL),
        HOME="/nonexistent",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "status 200"
    # The process ends without complaints about what was still open.
    assert "pending" not in done.stderr


def test_no_other_name_is_made_up() -> None:
    with pytest.raises(AttributeError, match="no attribute 'application'"):
        _ = lambda_handler.application


def test_an_answer_that_is_no_text_is_base64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heat maps of a route of its own, or a compressed answer, would be bytes."""
    from starlette.responses import Response

    from inference_image import service as module

    picture = b"\xff\xd8\xff\xe0" + bytes(range(256))

    async def ping(*_: Any) -> Response:
        return Response(content=picture, media_type="image/jpeg")

    monkeypatch.setattr(module.Service, "ping", ping)
    with InLambda() as service:
        for make in EVENTS.values():
            answer = service.handler(make("GET", "/ping"), None)
            assert answer["isBase64Encoded"] is True
            assert reply_of(answer).body == picture
