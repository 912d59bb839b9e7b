"""Targets carry bytes and name failures; nothing is retried and nothing is hidden."""

import io
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError

from dr_experiments.client import Client
from dr_experiments.targets import (
    OUTCOMES,
    Payload,
    SageMakerTarget,
    TargetDescription,
    TargetError,
    UrlTarget,
    describe_endpoint,
    platform_at,
    problem_detail,
    sagemaker_client,
    shown_url,
)
from tests.unit.dr_experiments.fakes import PAYLOAD, quick_answer
from tests.unit.dr_experiments.http_fakes import http, raw_server

DESCRIPTION = TargetDescription(name="dr-serverless-mobilenet-2048", mode="serverless")


class FakeRuntime:
    """A `sagemaker-runtime` client that does what it was given once."""

    def __init__(self, result: Any) -> None:
        self.result = result
        self.calls: list[dict[str, Any]] = []

    def invoke_endpoint(self, **arguments: Any) -> Any:
        self.calls.append(arguments)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def client_error(code: str, message: str = "m", status: int = 400, **fields: Any) -> ClientError:
    response: Any = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status},
        **fields,
    }
    return ClientError(response, "InvokeEndpoint")


def model_error(status: int, body: str) -> ClientError:
    return client_error(
        "ModelError", "Received client error", 424, OriginalStatusCode=status, OriginalMessage=body
    )


PROBLEM = json.dumps({"title": "t", "status": 422, "detail": "The JPEG is truncated."})


@pytest.mark.parametrize(
    ("error", "outcome", "status", "said"),
    [
        (client_error("ThrottlingException", "Rate exceeded", 429), "throttled", 429, "Rate"),
        (client_error("ValidationError", "Endpoint x not found.", 400), "refused", 400, "found"),
        (client_error("InternalFailure", "oops", 500), "server-error", 500, "oops"),
        (model_error(422, PROBLEM), "refused", 422, "The JPEG is truncated."),
        (model_error(429, PROBLEM), "throttled", 429, "truncated"),
        (model_error(504, PROBLEM), "timeout", 504, "truncated"),
        (model_error(500, "<html>"), "server-error", 500, "Received client error"),
        (client_error("ModelError", "died", 424), "server-error", 424, "died"),
        (ReadTimeoutError(endpoint_url="http://x"), "timeout", None, "within"),
        (EndpointConnectionError(endpoint_url="http://x"), "unreachable", None, "http://x"),
    ],
)
def test_failures_of_an_endpoint(
    error: Exception, outcome: str, status: int | None, said: str
) -> None:
    """SageMaker wraps a container's own status in a 424; it is unwrapped again."""
    runtime = FakeRuntime(error)
    measurement = Client(SageMakerTarget(DESCRIPTION, client=runtime)).measure(PAYLOAD)
    assert (measurement.outcome, measurement.status) == (outcome, status)
    assert outcome in OUTCOMES
    assert said in str(measurement.error)
    assert measurement.full_latency_s is None
    assert len(runtime.calls) == 1


def test_an_answer_with_the_times_of_the_local_platform() -> None:
    runtime = FakeRuntime(
        {
            "Body": io.BytesIO(json.dumps(quick_answer()).encode()),
            "ResponseMetadata": {
                "HTTPHeaders": {
                    "x-dr-local-model-setup-ms": "512.5",
                    "x-dr-local-model-latency-ms": "12",
                    "x-dr-local-overhead-latency-ms": "3",
                    "content-type": "application/json",
                }
            },
        }
    )
    payload = Payload(
        body=b"x", content_type="image/jpeg", custom_attributes="operating_point=high"
    )
    measurement = Client(SageMakerTarget(DESCRIPTION, client=runtime)).measure(payload)
    assert measurement.ok
    assert measurement.platform_ms == {
        "model_setup_ms": 512.5,
        "model_latency_ms": 12,
        "overhead_latency_ms": 3,
    }
    # A set-up means a fresh container, whatever that container counted.
    assert measurement.cold is True
    assert runtime.calls[0]["CustomAttributes"] == "operating_point=high"
    assert runtime.calls[0]["Accept"] == "application/json"


def test_the_client_of_boto3_does_not_retry() -> None:
    client = sagemaker_client(
        region="us-east-1",
        endpoint_url="http://localhost:1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )
    config = client.meta.config
    assert config.retries["total_max_attempts"] == 1
    assert config.proxies == {}
    assert config.read_timeout > 60


class FakeControl:
    """A `sagemaker` client that knows one endpoint."""

    def __init__(self, *variants: dict[str, Any]) -> None:
        self.variants = list(variants)
        url = "https://api.sagemaker.us-east-1.amazonaws.com"
        self.meta = type("Meta", (), {"region_name": "us-east-1", "endpoint_url": url})

    def describe_endpoint(self, **_: Any) -> dict[str, Any]:
        if not self.variants:
            raise client_error("ValidationException", "Could not find endpoint")
        return {"EndpointConfigName": "c"}

    def describe_endpoint_config(self, **_: Any) -> dict[str, Any]:
        return {"ProductionVariants": self.variants}

    def describe_model(self, **_: Any) -> dict[str, Any]:
        return {"PrimaryContainer": {"Image": "repo:digest"}}


def test_what_is_deployed_is_read_from_the_platform() -> None:
    serverless = describe_endpoint(
        "e", client=FakeControl({"ModelName": "m", "ServerlessConfig": {"MemorySizeInMB": 3072}})
    )
    assert (serverless.mode, serverless.memory_mib, serverless.instance_type) == (
        "serverless", 3072, None,
    )  # fmt: skip
    realtime = describe_endpoint(
        "e", client=FakeControl({"ModelName": "m", "InstanceType": "ml.m5.xlarge"})
    )
    assert (realtime.mode, realtime.instance_type) == ("realtime", "ml.m5.xlarge")
    assert realtime.image == "repo:digest"
    assert realtime.platform == "aws"
    with pytest.raises(TargetError, match="Could not find"):
        describe_endpoint("e", client=FakeControl())
    with pytest.raises(TargetError, match="2 variants"):
        describe_endpoint("e", client=FakeControl({"ModelName": "a"}, {"ModelName": "b"}))


@pytest.mark.parametrize(
    ("url", "platform"),
    [
        ("https://api.sagemaker.sa-east-1.amazonaws.com", "aws"),
        ("https://runtime.sagemaker.cn-north-1.amazonaws.com.cn/", "aws"),
        ("https://abc.lambda-url.us-east-1.on.aws", "aws"),
        ("http://localhost:4566", "local-aws"),
        ("http://127.3.2.1:80", "local-aws"),
        ("http://[::1]:80", "local-aws"),
        ("https://amazonaws.com.example.org", None),
        ("http://192.0.2.7:8080", None),
        (None, None),
    ],
)
def test_the_address_says_whose_interface_answers(url: str | None, platform: str | None) -> None:
    assert platform_at(url) == platform


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        status = int(self.headers.get("X-Amzn-SageMaker-Custom-Attributes", "200"))
        if status == 0:
            self.close_connection = True
            return
        body = json.dumps(quick_answer() if status == 200 else {"detail": "because"}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as http:
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        yield f"127.0.0.1:{http.server_port}"
        http.shutdown()


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(400, "refused"), (413, "refused"), (415, "refused"), (422, "refused"),
     (429, "throttled"), (500, "server-error"), (503, "server-error"), (504, "timeout"),
     (0, "unreachable")],
)  # fmt: skip
def test_failures_of_a_url_and_the_request_after_them(
    server: str, status: int, outcome: str
) -> None:
    target = UrlTarget(server)
    client = Client(target)
    failing = Payload(body=b"x", content_type="image/jpeg", custom_attributes=str(status))
    measurement = client.measure(failing)
    assert measurement.outcome == outcome
    if status:
        assert (measurement.status, measurement.error) == (status, "because")
    # A broken connection is opened again, and a good one is still in step.
    assert client.measure(PAYLOAD).ok
    target.close()


@pytest.mark.parametrize("url", ["ftp://host", "http://", "//", ""])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        UrlTarget(url)


def test_what_a_server_says_is_one_line_that_can_be_shown() -> None:
    said = json.dumps({"detail": "\ud800 bad\n\u001b[31mred " + "x" * 1000})
    error = TargetError("refused", str(problem_detail(said)))
    text = str(error)
    assert text.encode("utf-8")
    assert text.isprintable()
    assert text.startswith("\N{REPLACEMENT CHARACTER} bad ")
    assert len(text) == 500
    for deep in ("[" * 200_000, '{"detail": ' + "1" * 6000 + "}"):
        assert problem_detail(deep) is None


def test_a_secret_in_a_url_is_in_no_record_and_on_no_page() -> None:
    for url in ("http://user:secret@127.0.0.1:1", "http://secret@127.0.0.1:1/x"):
        with pytest.raises(ValueError, match="not taken") as caught:
            UrlTarget(url)
        assert "secret" not in str(caught.value)
    with pytest.raises(ValueError, match="is not an http or https URL") as caught:
        UrlTarget("ftp://user:secret@host/x?token=secret#secret")
    assert "secret" not in str(caught.value)
    assert shown_url("https://user:secret@host:1/x?token=secret") == "https://host:1/x?…"
    assert shown_url("127.0.0.1:8080") == "127.0.0.1:8080"
    for url in ("http://", "http://host:99999", "http://[::1", "http://host:0"):
        with pytest.raises(ValueError, match="is not an http or https URL"):
            UrlTarget(url)


def test_a_token_in_a_url_is_sent_and_not_shown() -> None:
    heads: list[bytes] = []

    def answer_to(connection: socket.socket, _: int) -> None:
        connection.sendall(http(json.dumps(quick_answer()).encode()))

    with raw_server(answer_to, heads) as url:
        target = UrlTarget(f"{url}/grade?token=secret")
        Client(target).measure(PAYLOAD)
        target.close()
    assert heads[0].startswith(b"POST /grade?token=secret HTTP/1.1\r\n")
    assert "secret" not in repr(target.describe())
