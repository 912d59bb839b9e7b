"""Lambda functions: signed URLs, `Invoke` with the project's own handler, REPORT lines."""

import base64
import contextlib
import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from dr_experiments.client import Client
from dr_experiments.lambda_targets import (
    MAX_EVENT_BYTES,
    FunctionUrlTarget,
    LambdaInvokeTarget,
    function_target,
    parse_report,
)
from dr_experiments.targets import Payload, TargetDescription, TargetError, invoking_client
from inference_image.contract import ENV_MODEL_DIR
from inference_image.lambda_handler import LambdaHandler
from tests.service_harness import TINY_MODEL, drawn_jpeg
from tests.unit.dr_experiments.fakes import PAYLOAD
from tests.unit.dr_experiments.http_fakes import served

REPORT = (
    "START RequestId: 8f5 Version: $LATEST\n"
    "REPORT RequestId: 8f5\tDuration: 41.37 ms\tBilled Duration: 712 ms\t"
    "Memory Size: 1769 MB\tMax Memory Used: 133 MB\tInit Duration: 670.20 ms\t\n"
)
DESCRIPTION = TargetDescription(name="dr-lambda", mode="lambda", memory_mib=1769)


def test_the_report_line() -> None:
    report = parse_report(REPORT)
    assert report is not None
    assert report.request_id == "8f5"
    assert report.platform_ms == {
        "duration_ms": 41.37,
        "billed_duration_ms": 712,
        "init_duration_ms": 670.2,
    }
    assert (report.memory_size_mib, report.max_memory_mib) == (1769, 133)
    warm = parse_report(REPORT.replace("\tInit Duration: 670.20 ms", ""))
    assert warm is not None
    # Unknown is not zero.
    assert warm.init_duration_ms is None
    assert "init_duration_ms" not in warm.platform_ms
    assert parse_report("START RequestId: 8f5\n") is None


def test_a_function_url_is_called_with_a_signature_that_aws_would_accept() -> None:
    credentials = Credentials("AKIDEXAMPLE", "secret", "session")
    with served(lambda number: 0.0) as (url, seen):
        target = FunctionUrlTarget(url, region="sa-east-1", credentials=credentials)
        measurement = Client(target).measure(PAYLOAD)
        target.close()
    assert measurement.ok, measurement.error
    assert "wait_ms" in measurement.phases_ms
    (headers,) = seen
    assert headers["x-amz-security-token"] == "session"
    scope = headers["authorization"].partition("Credential=")[2].partition(",")[0]
    assert scope.split("/")[2:] == ["sa-east-1", "lambda", "aws4_request"]
    # Signed again from what arrived, at the same moment: the two must agree.
    again = AWSRequest(
        method="POST",
        url=url + "/invocations",
        data=PAYLOAD.body,
        headers={"Content-Type": headers["content-type"], "Accept": headers["accept"]},
    )
    signer = SigV4Auth(credentials, "lambda", "sa-east-1")
    again.context["timestamp"] = headers["x-amz-date"]
    again.headers["X-Amz-Date"] = headers["x-amz-date"]
    again.headers["X-Amz-Security-Token"] = "session"
    text = signer.string_to_sign(again, signer.canonical_request(again))
    assert headers["authorization"].endswith(f"Signature={signer.signature(text, again)}")


def test_without_credentials_a_function_url_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("botocore.session.Session.get_credentials", lambda self: None)
    with pytest.raises(TargetError, match="log in"):
        FunctionUrlTarget("https://x.lambda-url.us-east-1.on.aws", region="us-east-1")


@contextlib.contextmanager
def lambda_api(
    answer_event: Any, *, status: int = 200, headers: dict[str, str] | None = None
) -> Iterator[Any]:
    """A boto3 client of a Lambda API on this machine that answers `Invoke` with `answer_event`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps(answer_event(event)).encode()
            self.send_response(status)
            log = base64.b64encode(REPORT.encode()).decode()
            for name, value in ({"X-Amz-Log-Result": log} | (headers or {})).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """A test's output stays readable."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield invoking_client(
            "lambda",
            region="us-east-1",
            endpoint_url=f"http://127.0.0.1:{server.server_address[1]}",
            aws_access_key_id="local",
            aws_secret_access_key="local",
        )
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_invoke_brings_the_services_answer_and_the_report() -> None:
    handler = LambdaHandler(environment={ENV_MODEL_DIR: str(TINY_MODEL)})
    with (
        contextlib.closing(handler),
        lambda_api(lambda event: handler(event, None)) as client,
    ):
        payload = Payload(body=drawn_jpeg(), content_type="image/jpeg")
        measurement = Client(LambdaInvokeTarget(DESCRIPTION, client=client)).measure(payload)
    assert measurement.ok, measurement.error
    assert measurement.platform_ms["billed_duration_ms"] == 712
    assert measurement.max_memory_mib == 133


@pytest.mark.parametrize(
    ("reply", "status", "headers", "outcome", "said"),
    [
        ({"statusCode": 429, "body": '{"detail": "full"}'}, 200, {}, "throttled", "full"),
        ({"statusCode": 422, "body": "{}"}, 200, {}, "refused", "status 422"),
        (
            {"errorMessage": "died"},
            200,
            {"X-Amz-Function-Error": "Unhandled"},
            "server-error",
            "died",
        ),
        (["no"], 200, {}, "server-error", "not one of an HTTP function"),
        (
            {"message": "Rate Exceeded."},
            429,
            {"x-amzn-ErrorType": "TooManyRequestsException"},
            "throttled",
            "Rate",
        ),
        (
            {"message": "Function not found"},
            404,
            {"x-amzn-ErrorType": "ResourceNotFoundException"},
            "refused",
            "not found",
        ),
    ],
)
def test_failures_of_a_function(
    reply: Any, status: int, headers: dict[str, str], outcome: str, said: str
) -> None:
    with lambda_api(lambda event: reply, status=status, headers=headers) as client:
        measurement = Client(LambdaInvokeTarget(DESCRIPTION, client=client)).measure(PAYLOAD)
    assert measurement.outcome == outcome
    assert said in str(measurement.error)
    assert measurement.full_latency_s is None


def test_an_event_that_lambda_would_refuse_is_not_sent() -> None:
    """Field problem L02: the limit counts the photograph in base64."""
    body = bytes(MAX_EVENT_BYTES * 3 // 4)
    target = LambdaInvokeTarget(DESCRIPTION, client=None)
    with pytest.raises(TargetError, match="base64"):
        target.send(Payload(body=body, content_type="image/jpeg"))


class Control:
    """A boto3 `lambda` client that knows these functions and aliases."""

    meta = type(
        "Meta",
        (),
        {"region_name": "sa-east-1", "endpoint_url": "https://lambda.sa-east-1.amazonaws.com"},
    )

    def __init__(self, *known: str) -> None:
        self._known = known
        self.invoked: list[str] = []

    def invoke(self, FunctionName: str, **_: Any) -> dict[str, Any]:  # noqa: N803
        self.invoked.append(FunctionName)
        return {"Payload": io.BytesIO(json.dumps({"statusCode": 200, "body": "{}"}).encode())}

    def get_function(self, FunctionName: str) -> dict[str, Any]:  # noqa: N803
        if FunctionName not in self._known:
            reply: Any = {
                "Error": {"Code": "ResourceNotFoundException", "Message": f"no {FunctionName}"},
                "ResponseMetadata": {"HTTPStatusCode": 404},
            }
            raise ClientError(reply, "GetFunction")
        return {
            "Configuration": {"MemorySize": 1769, "Architectures": ["x86_64"]},
            "Code": {"ResolvedImageUri": "x/y@sha256:ab"},
        }


@pytest.mark.parametrize(
    ("known", "asked", "answers"),
    [
        (("dr-lambda", "dr-lambda:live"), "dr-lambda", "dr-lambda:live"),
        (("dr-lambda", "dr-lambda:live"), "dr-lambda:7", None),
        (("dr-lambda", "dr-lambda:7"), "dr-lambda:7", "dr-lambda:7"),
        # Not one of this project's.
        (("other",), "other", "other"),
        ((), "other", None),
    ],
)
def test_a_function_is_described_as_its_url_answers(
    known: tuple[str, ...], asked: str, answers: str | None
) -> None:
    if answers is None:
        with pytest.raises(TargetError, match=f"no {asked}") as refused:
            function_target(asked, client=Control(*known))
        assert refused.value.outcome == "refused"
        return
    control = Control(*known)
    target = function_target(asked, client=control)
    found = target.describe()
    # Records have the name that was asked for; what is invoked is what the URL answers with.
    assert (found.name, found.mode, found.memory_mib) == (asked, "lambda", 1769)
    target.send(PAYLOAD)
    assert control.invoked == [answers]
    assert (found.architecture, found.region, found.image) == (
        "amd64",
        "sa-east-1",
        "x/y@sha256:ab",
    )
