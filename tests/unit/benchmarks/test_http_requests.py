"""Requests as bytes, and one answer."""

import email

import pytest

from benchmarks.generator import LoadError
from benchmarks.http_requests import ask, form, post, request_bytes
from tests.unit.benchmarks.scripted_server import OK, answering

REQUEST = post("/invocations", b"x", "image/jpeg")


def test_one_answer_is_read_whole() -> None:
    with answering(REQUEST, pieces=4) as server:
        assert ask(server.port, REQUEST) == b"hello"


def test_another_status_is_no_answer() -> None:
    refusal = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 4\r\n\r\nfull"
    with (
        answering(REQUEST, refusal) as server,
        pytest.raises(LoadError, match=r"^the server answered: 429 Too Many Requests full$"),
    ):
        ask(server.port, REQUEST)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", r"^the server closed the connection$"),
        (OK[:20], r"^the server's answer has no Content-Length$"),
        (OK[:-2], r"^the server closed the connection$"),
    ],
    ids=["nothing", "half a header", "half a body"],
)
def test_half_an_answer_is_none(answer: bytes, said: str) -> None:
    with (
        answering(REQUEST, answer, closes=True) as server,
        pytest.raises(LoadError, match=said),
    ):
        ask(server.port, REQUEST)


def test_garbage_is_no_answer() -> None:
    with (
        answering(REQUEST, b"\x00garbage\r\n\r\n", closes=True) as server,
        pytest.raises(LoadError, match=r"^the server answered: .*garbage"),
    ):
        ask(server.port, REQUEST)


def test_a_form_holds_the_photograph_as_a_file() -> None:
    request = form("/invocations", "request", b"\xff\xd8photograph", "image/jpeg")
    head, _, body = request.partition(b"\r\n\r\n")
    kind = next(line for line in head.split(b"\r\n") if line.startswith(b"Content-Type"))
    message = email.message_from_bytes(kind + b"\r\n\r\n" + body)
    (part,) = message.get_payload()
    assert part.get_param("name", header="Content-Disposition") == "request"
    assert part.get_payload(decode=True) == b"\xff\xd8photograph"
    assert f"Content-Length: {len(body)}".encode() in head


@pytest.mark.parametrize(("close", "said"), [(True, b"close"), (False, b"keep-alive")])
def test_a_request_says_whether_its_connection_takes_another(close: bool, said: bytes) -> None:
    head, _, body = request_bytes(b"\r\n\r\nx", close=close).partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"POST /invocations HTTP/1.1",
        b"Host: localhost",
        b"Content-Type: image/jpeg",
        b"Connection: " + said,
        b"Content-Length: 5",
    ]
    assert body == b"\r\n\r\nx"
