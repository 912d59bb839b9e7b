"""Requests that are refused before they are parsed: only plain ones, and never a wrong one."""

import json
import uuid

import h11
import pytest

from inference_image.overload import Head, read_head, refusal, request_id

ID = "0f8fad5b-d9cb-469f-a165-70867728950e"


def request(*lines: str, body: bytes = b"", first: str = "POST /invocations HTTP/1.1") -> bytes:
    return "\r\n".join([first, "Host: x", *lines, "", ""]).encode("latin-1") + body


@pytest.mark.parametrize("sent", [0, 1, 999, 1000])
def test_what_is_still_to_come_of_a_plain_request_is_known(sent: int) -> None:
    data = request("Content-Length: 1000", f"x-request-ID:  {ID} ", body=b"x" * sent)
    assert read_head(data, most_bytes=1000) == Head(
        body_left=1000 - sent, closes=False, request_id=ID
    )


@pytest.mark.parametrize("said", ["", "keep-alive", "Keep-Alive "])
def test_a_connection_that_is_kept_is_plain(said: str) -> None:
    head = read_head(request("Content-Length: 3", f"Connection: {said}"), most_bytes=10)
    assert head is not None
    assert not head.closes


def test_a_closing_connection_is_seen_and_a_strange_id_replaced() -> None:
    data = request("Connection: Close", "Content-Length: 0", "X-Request-Id: Marta")
    head = read_head(data, most_bytes=1)
    assert head is not None
    assert head.closes
    assert len(head.request_id) == 32
    assert request_id("A1" * 16) == "A1" * 16


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"POST /invocations HTTP/1.1\r\nContent-Length: 3\r\n",
        request("Content-Length: 3", first="GET /ping HTTP/1.1"),
        request("Content-Length: 3", first="POST /invocations HTTP/1.0"),
        request("Content-Length: 3", first="POST /invocations?a HTTP/1.1"),
        request(),
        request("Content-Length: 11"),
        request("Content-Length: -1"),
        request("Content-Length: 9" + "9" * 30),
        request("Content-Length: ٣".encode().decode("latin-1")),
        request("Content-Length: 3", "Content-Length: 4"),
        request("Content-Length: 3", "Transfer-Encoding: chunked"),
        request("Content-Length: 3", "Expect: 100-continue"),
        request("Content-Length: 3", "Upgrade: websocket"),
        request("Content-Length: 3", body=b"abcGET /ping HTTP/1.1\r\n"),
        request("X-Long: " + "x" * 9000, "Content-Length: 3"),
        request("X-Odd: a\nTransfer-Encoding: chunked", "Content-Length: 3"),
        request("X-Odd: a\rb", "Content-Length: 3"),
        request("Content-Length : 3"),
        request("Content-Length: 3", "content-length: 3"),
        request("Content-Length: 3", "Connection: TE, close"),
        request("Content-Length: 3", "Connection: keep-alive, Close"),
    ],
)
def test_whatever_is_not_plain_goes_the_ordinary_way(data: bytes) -> None:
    assert read_head(data, most_bytes=10) is None


@pytest.mark.parametrize("closes", [False, True])
def test_the_answer_is_http_with_the_time_to_wait_in_header_and_body(closes: bool) -> None:
    head = Head(body_left=0, closes=closes, request_id=ID)
    answer = refusal(head, retry_after_s=1.234, waiting=64, headers=[(b"date", b"today")])
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="POST", target="/", headers=[("host", "x")]))
    client.send(h11.EndOfMessage())
    client.receive_data(answer)
    response, data, end = client.next_event(), client.next_event(), client.next_event()
    assert isinstance(response, h11.Response)
    assert isinstance(data, h11.Data)
    assert isinstance(end, h11.EndOfMessage)
    headers = dict(response.headers)
    assert response.status_code == 429
    assert headers[b"content-type"] == b"application/problem+json"
    assert headers[b"retry-after"] == b"2"
    assert headers[b"x-request-id"] == ID.encode()
    assert headers[b"date"] == b"today"
    assert (client.their_state is h11.MUST_CLOSE) == closes
    problem = json.loads(bytes(data.data))
    assert problem["retry_after_s"] == 1.23
    assert problem["status"] == 429
    assert problem["detail"].startswith("64 requests are waiting")


def test_a_new_id_is_a_random_uuid() -> None:
    ids = [uuid.UUID(request_id("")) for _ in range(600)]
    assert {(made.version, made.variant) for made in ids} == {(4, uuid.RFC_4122)}
    assert len(set(ids)) == 600
