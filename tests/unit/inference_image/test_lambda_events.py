"""What gateways do to a request, and how it is undone or refused."""

import json
from typing import Any

import pytest

from inference_image.lambda_events import (
    ENVELOPE_BYTES,
    MAX_IMAGE_BYTES,
    PAYLOAD_LIMIT_BYTES,
    UnknownEventError,
    own_path,
    read_event,
)
from tests.lambda_harness import EVENTS, function_url_event, http_api_event, rest_api_event
from tests.service_harness import drawn_jpeg

JPEG_TYPE = {"Content-Type": "image/jpeg"}


def path_in(event: dict[str, Any]) -> str:
    http = event["requestContext"].get("http")
    path: str = http["path"] if http else event["path"]
    return path


@pytest.mark.parametrize("kind", EVENTS)
def test_each_kind_of_event_gives_the_own_path_and_the_bytes(kind: str) -> None:
    event = EVENTS[kind]("POST", "/invocations", drawn_jpeg(), JPEG_TYPE)
    before = json.dumps(event)
    request = read_event(event, base_path="")
    assert request.refusal is None
    assert request.event["body"] == drawn_jpeg()
    assert path_in(request.event) == "/invocations"
    assert json.dumps(event) == before


@pytest.mark.parametrize(
    ("path", "stage", "proxy", "base_path", "own"),
    [
        ("/ping", "$default", None, "", "/ping"),
        ("/prod/ping", "prod", None, "", "/ping"),
        ("/prod", "prod", None, "", "/"),
        ("/production/ping", "prod", None, "", "/production/ping"),
        ("/dr/ping", "prod", "ping", "", "/ping"),
        ("/dr/prod/ping", "prod", "prod/ping", "", "/ping"),
        ("/dr/prod/ping", "prod", None, "/dr", "/ping"),
        ("/dr/ping", "prod", None, "/dr", "/ping"),
        ("/dr", "prod", None, "/dr", "/"),
        ("/drs/ping", "prod", None, "/dr", "/drs/ping"),
        ("/ping", None, None, "/dr", "/ping"),
        ("/ping", "prod", "other", "", "/ping"),
        # A REST API, whose path has no stage in front of it.
        ("/invocations", "invocations", "invocations", "", "/invocations"),
        ("/ping", "ping", None, "", "/ping"),
        # An HTTP API, whose path has it.
        ("/invocations/invocations", "invocations", None, "", "/invocations"),
    ],
)
def test_prefixes_are_removed_by_whole_segments(
    path: str, stage: str | None, proxy: str | None, base_path: str, own: str
) -> None:
    event = {
        "requestContext": {"stage": stage},
        "pathParameters": None if proxy is None else {"proxy": proxy},
    }
    assert own_path(event, path, base_path=base_path) == own


def as_text(event: dict[str, Any], text: str) -> dict[str, Any]:
    return {**event, "body": text, "isBase64Encoded": False}


PNG_BYTES = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


@pytest.mark.parametrize("decode", [("utf-8", "replace"), ("latin-1", "strict")])
@pytest.mark.parametrize(
    ("image", "content_type"),
    [
        (drawn_jpeg, "image/jpeg"),
        (drawn_jpeg, "application/json"),
        (drawn_jpeg, "text/plain"),
        (lambda: PNG_BYTES, "image/png"),
        (lambda: b"II*\0" + bytes(range(256)), "image/tiff"),
        (lambda: bytes(128) + b"DICM" + bytes(range(256)), "application/dicom"),
        (lambda: b"RIFF" + bytes(range(256)), "application/octet-stream"),
        (lambda: b"BM" + bytes(range(256)), "application/x-image"),
        (lambda: b"--x\r\n\r\n" + drawn_jpeg(), "multipart/form-data; boundary=x"),
    ],
)
def test_an_image_that_became_text_is_refused_with_the_remedy(
    decode: tuple[str, str], image: Any, content_type: str
) -> None:
    text = image().decode(*decode)
    headers = {"Content-Type": content_type}
    rest = read_event(
        as_text(rest_api_event("POST", "/invocations", b"", headers), text), base_path=""
    )
    assert rest.event["body"] == b""
    assert rest.refusal is not None
    for named in (
        "binary media types",
        "image/*",
        "application/octet-stream",
        "multipart/form-data",
    ):
        assert named in rest.refusal
    url = read_event(
        as_text(function_url_event("POST", "/invocations", b"", headers), text), base_path=""
    )
    assert url.refusal is not None
    assert "Content-Type" in url.refusal


def test_the_two_ways_of_decoding_are_those_seen_in_the_field() -> None:
    """Field: a JPEG head of EFBFBD (UTF-8 with replacement) or of C3BF (Latin-1)."""
    assert drawn_jpeg().decode("utf-8", "replace").encode()[:3].hex() == "efbfbd"
    assert drawn_jpeg().decode("latin-1").encode()[:2].hex() == "c3bf"


@pytest.mark.parametrize(
    ("content_type", "text"),
    [
        ("application/json", '{"image": "/9j/4AAQ"}'),
        ("application/json", '{"image": "", "note": "Größe"}'),
        ("application/json", '\ufeff{"image": "/9j/4AAQ"}'),
        ("application/x-image", "/9j/4AAQSkZJRgABAQ"),
        ("application/octet-stream", '{"image": "/9j/4AAQ"}'),
        ("text/plain", "Größe des Bildes"),
        ("image/jpeg", "This is not an image."),
    ],
)
def test_text_that_was_text_passes(content_type: str, text: str) -> None:
    headers = {"Content-Type": content_type}
    for make in (rest_api_event, function_url_event):
        request = read_event(
            as_text(make("POST", "/invocations", b"", headers), text), base_path=""
        )
        assert request.refusal is None
        assert request.event["body"] == text.encode()


def test_a_type_given_in_the_multi_value_headers_only_counts() -> None:
    event = as_text(rest_api_event("POST", "/invocations"), "RIFF\u00ff")
    event["headers"] = None
    event["multiValueHeaders"] = {"Content-Type": ["image/webp"]}
    assert read_event(event, base_path="").refusal is not None
    event["multiValueHeaders"] = {"content-type": ["text/plain"]}
    assert read_event(event, base_path="").refusal is None


def test_what_claims_to_be_base64_and_is_not_is_refused() -> None:
    event = {**function_url_event("POST", "/invocations"), "body": "@@@", "isBase64Encoded": True}
    assert "base64" in (read_event(event, base_path="").refusal or "")
    event = {**event, "body": {"image": ""}}
    assert "its body must be text or base64" in (read_event(event, base_path="").refusal or "")


def test_no_body_is_an_empty_one() -> None:
    event = http_api_event("GET", "/ping")
    del event["body"]
    request = read_event(event, base_path="")
    assert (request.event["body"], request.refusal) == (b"", None)


@pytest.mark.parametrize(
    "event",
    [
        None,
        [],
        "text",
        {},
        {"image": "/9j/"},
        {"source": "aws.events", "detail-type": "Scheduled Event"},
        {"Records": [{"s3": {}}]},
        {"requestContext": None},
        {"requestContext": {"connectionId": "websocket"}},
        {"requestContext": {"http": {}}},
        {"requestContext": {}, "httpMethod": "GET"},
        {"requestContext": {}, "httpMethod": ["GET"], "path": "/ping"},
        {"requestContext": {"http": {"path": "/ping"}}},
        {"requestContext": {"http": {"path": "/ping", "method": 5}}},
    ],
)
def test_what_is_no_http_request_is_an_error_that_says_so(event: Any) -> None:
    with pytest.raises(
        UnknownEventError, match="HTTP requests of a function URL or of API Gateway"
    ):
        read_event(event, base_path="")


def test_the_largest_image_fits_with_the_largest_envelope() -> None:
    """Lambda refuses an event of 6 MiB; a REST event carries 10,240 bytes of headers twice."""
    headers = {"Content-Type": "image/jpeg", "X-Filler": "x" * 9_900}
    fits = rest_api_event("POST", "/invocations", bytes(MAX_IMAGE_BYTES), headers)
    size = len(json.dumps(fits))
    assert size < PAYLOAD_LIMIT_BYTES
    assert size - len(fits["body"]) < ENVELOPE_BYTES
    too_large = rest_api_event("POST", "/invocations", bytes(MAX_IMAGE_BYTES + 32_768), headers)
    assert len(json.dumps(too_large)) > PAYLOAD_LIMIT_BYTES
    assert 4.4 * 2**20 < MAX_IMAGE_BYTES < 4.5 * 2**20


@pytest.mark.parametrize("size", [1, 2, 3, 4, 1000, 1001])
def test_every_number_of_bytes_comes_back(size: int) -> None:
    body = bytes((index * 7 + 3) % 256 for index in range(size))
    request = read_event(rest_api_event("POST", "/invocations", body), base_path="")
    assert request.event["body"] == body


WRONG_PARTS = [
    ("headers", ["x"]),
    ("headers", "x: y"),
    ("headers", {"content-length": 5}),
    ("headers", {"content-type": None}),
    ("multiValueHeaders", {"content-type": "image/jpeg"}),
    ("multiValueHeaders", {"content-type": [1]}),
    ("queryStringParameters", []),
    ("multiValueQueryStringParameters", {"a": "b"}),
    ("rawQueryString", {}),
    ("cookies", "a=b"),
    ("cookies", [5]),
    ("pathParameters", ["proxy"]),
    ("pathParameters", {"proxy": 5}),
    ("isBase64Encoded", "false"),
    ("isBase64Encoded", 1),
    ("body", {}),
    ("body", 0),
]


@pytest.mark.parametrize("kind", EVENTS)
@pytest.mark.parametrize(("name", "value"), WRONG_PARTS)
def test_a_part_of_the_wrong_kind_is_named_and_left_out(kind: str, name: str, value: Any) -> None:
    event = EVENTS[kind]("POST", "/invocations", drawn_jpeg(), JPEG_TYPE) | {name: value}
    request = read_event(event, base_path="")
    assert request.refusal is not None
    assert f"its {name} must be " in request.refusal
    assert request.event.get(name) != value
    assert request.event["body"] == b""


@pytest.mark.parametrize("kind", EVENTS)
def test_parts_that_are_null_are_as_good_as_absent(kind: str) -> None:
    event = EVENTS[kind]("POST", "/invocations", drawn_jpeg(), JPEG_TYPE)
    for name, _ in WRONG_PARTS:
        request = read_event(event | {name: None}, base_path="")
        assert request.refusal is None
        assert path_in(request.event) == "/invocations"
