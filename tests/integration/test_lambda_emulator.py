"""The handler under AWS's own runtime interface emulator, started as the image starts on Lambda."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from inference_image.lambda_events import MAX_IMAGE_BYTES
from inference_image.model_package import pack_model
from tests.lambda_emulator import Function, emulator_binary
from tests.lambda_harness import (
    Event,
    function_url_event,
    http_api_event,
    reply_of,
    rest_api_event,
)
from tests.service_harness import TINY_MODEL, b64, digest_of, drawn_jpeg, wait_until

JPEG_TYPE = {"Content-Type": "image/jpeg"}


@pytest.fixture(scope="session")
def emulator() -> Path:
    """The emulator's binary; `make lambda-emulator` installs it."""
    return emulator_binary()


@pytest.fixture(scope="module")
def function(emulator: Path) -> Iterator[Function]:
    with Function(emulator, {"DR_MODEL_DIR": str(TINY_MODEL)}) as made:
        yield made


def photograph_event() -> Event:
    return function_url_event("POST", "/invocations", drawn_jpeg(), JPEG_TYPE)


def test_the_first_call_loads_the_model_and_the_next_ones_do_not(
    emulator: Path, record_property: Any
) -> None:
    with Function(emulator, {"DR_MODEL_DIR": str(TINY_MODEL)}) as function:
        calls = [function.invoke(photograph_event()) for _ in range(5)]
        replies = [reply_of(call.answer) for call in calls]
        assert [reply.status for reply in replies] == [200] * 5
        containers = [reply.json()["container"] for reply in replies]
        assert [container["requests_before"] for container in containers] == [0, 1, 2, 3, 4]
        assert len({container["start_id"] for container in containers}) == 1
        wait_until(lambda: len(function.events("request")) == 5)
        assert len(function.events("ready")) == len(function.events("model")) == 1
        record_property("first_call_ms", round(calls[0].wait_ms, 1))
        record_property("second_call_ms", round(calls[1].wait_ms, 1))


def test_each_gateway_gets_an_answer(function: Function) -> None:
    for make in (function_url_event, http_api_event, rest_api_event):
        graded = reply_of(
            function.invoke(make("POST", "/invocations", drawn_jpeg(), JPEG_TYPE)).answer
        )
        assert graded.status == 200
        assert graded.json()["model"]["sha256"] == digest_of(TINY_MODEL)
        assert reply_of(function.invoke(make("GET", "/ping")).answer).status == 200


def test_base64_in_json_gives_the_answer_of_the_bytes(function: Function) -> None:
    event = http_api_event("POST", "/invocations", b"", {"Content-Type": "application/json"})
    event |= {"body": json.dumps({"image": b64(drawn_jpeg())}), "isBase64Encoded": False}
    as_json = reply_of(function.invoke(event).answer)
    as_bytes = reply_of(function.invoke(photograph_event()).answer)
    assert as_json.status == 200
    assert as_json.json()["predictions"] == as_bytes.json()["predictions"]


@pytest.mark.parametrize(
    ("body", "status"),
    [(lambda: drawn_jpeg()[:5000], 422), (bytes, 400), (lambda: b"GIF89a" + bytes(30), 415)],
)
def test_a_bad_image_is_a_problem_and_the_next_call_works(
    function: Function, body: Callable[[], bytes], status: int
) -> None:
    event = function_url_event("POST", "/invocations", body(), JPEG_TYPE)
    reply = reply_of(function.invoke(event).answer)
    assert (reply.status, reply.headers["content-type"]) == (status, "application/problem+json")
    assert reply_of(function.invoke(photograph_event()).answer).status == 200


def test_an_image_as_text_is_refused(function: Function) -> None:
    event = rest_api_event("POST", "/invocations", b"", JPEG_TYPE)
    event |= {"body": drawn_jpeg().decode("utf-8", "replace"), "isBase64Encoded": False}
    reply = reply_of(function.invoke(event).answer)
    assert reply.status == 400
    assert "binary media types" in reply.json()["detail"]


def test_an_event_that_is_no_request_is_an_error_of_the_function(function: Function) -> None:
    answer = function.invoke({"source": "aws.events"}).answer
    assert answer["errorType"] == "UnknownEventError"
    assert "HTTP requests" in answer["errorMessage"]
    assert reply_of(function.invoke(photograph_event()).answer).status == 200


@pytest.mark.parametrize("make", [function_url_event, http_api_event, rest_api_event])
def test_events_written_by_hand_are_answered_and_stop_nothing(
    function: Function, make: Callable[..., Event]
) -> None:
    event = make("POST", "/invocations", drawn_jpeg(), JPEG_TYPE)
    for changes, status in (
        ({"headers": {"x-length": 5}}, 400),
        ({"isBase64Encoded": "true"}, 400),
        ({"body": "no base64!"}, 400),
        ({"body": "\ud800\ud800", "isBase64Encoded": False}, 400),
        ({"pathParameters": ["proxy"]}, 400),
        ({"cookies": ["a=b", "c=d"], "headers": {**JPEG_TYPE, "x": "y" * 500_000}}, 200),
    ):
        assert reply_of(function.invoke(event | changes).answer).status == status, changes
    assert reply_of(function.invoke(event).answer).status == 200


def test_the_largest_image_passes_and_a_larger_one_does_not(function: Function) -> None:
    """The emulator cuts events off at the 6 MiB of the service."""
    largest = drawn_jpeg() + bytes(MAX_IMAGE_BYTES - len(drawn_jpeg()))
    fits = function.invoke(function_url_event("POST", "/invocations", largest, JPEG_TYPE))
    assert reply_of(fits.answer).status == 200
    over = function_url_event("POST", "/invocations", largest + bytes(100_000), JPEG_TYPE)
    assert "statusCode" not in function.invoke(over).answer
    assert reply_of(function.invoke(photograph_event()).answer).status == 200


def test_no_line_of_the_log_holds_the_image_or_a_secret(function: Function) -> None:
    function.invoke(photograph_event())
    wait_until(lambda: bool(function.events("request")))
    text = "".join(function.lines)
    assert b64(drawn_jpeg())[:40] not in text
    assert "JFIF" not in text


def test_a_model_that_is_not_there_ends_the_init_phase_and_says_why(emulator: Path) -> None:
    with Function(emulator, {"DR_MODEL_DIR": "/nonexistent"}) as function:
        # Each invocation begins a start of its own, and none is answered by half of one.
        for _ in range(2):
            answer = function.invoke(photograph_event()).answer
            assert answer["errorType"] == "ModelPackageError"
            assert "DR_MODEL_URL is not set" in answer["errorMessage"]


def test_the_model_comes_from_s3_into_the_temporary_folder(emulator: Path, tmp_path: Path) -> None:
    import boto3
    from moto.server import ThreadedMotoServer

    archive = tmp_path / "model.tar.gz"
    spec = pack_model(TINY_MODEL, archive)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        aws = {
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL_S3": f"http://{host}:{port}",
        }
        client = boto3.client(
            "s3",
            endpoint_url=aws["AWS_ENDPOINT_URL_S3"],
            region_name="us-east-1",
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )
        client.create_bucket(Bucket="models-of-us")
        client.put_object(Bucket="models-of-us", Key=spec.object_key, Body=archive.read_bytes())
        client.close()
        scratch = tmp_path / "tmp"
        scratch.mkdir()
        environment = {
            "DR_MODEL_DIR": "/nonexistent",
            "DR_MODEL_URL": f"s3://models-of-us/{spec.object_key}",
            "TMPDIR": str(scratch),
            **aws,
        }
        for source in ("s3", "cache"):
            with Function(emulator, environment) as function:
                reply = reply_of(function.invoke(photograph_event()).answer)
                assert reply.status == 200
                assert reply.json()["model"]["sha256"] == spec.sha256
                wait_until(lambda: bool(function.events("ready")))
                assert function.events("ready")[0]["model_source"] == source
        missing = {**environment, "DR_MODEL_URL": f"s3://models-of-us/models/x/{'0' * 64}.tar.gz"}
        with Function(emulator, missing) as function:
            answer = function.invoke(photograph_event()).answer
            assert answer["errorType"] == "ModelPackageError"
            assert "dr model push" in answer["errorMessage"]
    finally:
        server.stop()
