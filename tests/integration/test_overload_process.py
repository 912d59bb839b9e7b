"""A real `serve` whose queue is full: what it says, and that connections go on."""

import contextlib
import json
import socket
from collections.abc import Iterator

import pytest

from benchmarks.faults.document import DescribedService
from tests.service_harness import TINY_MODEL, Reply, Served, drawn_jpeg, running, stop, wait_until

ONE_AT_A_TIME = {"DR_QUEUE_LIMIT": "0"}


def head(length: int, *more: str) -> bytes:
    lines = ("POST /invocations HTTP/1.1", "Host: x", f"Content-Length: {length}", *more)
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n"


@contextlib.contextmanager
def full(served: Served) -> Iterator[socket.socket]:
    """The service while a request's body is still arriving; that request's connection."""
    with socket.create_connection(("127.0.0.1", served.connect().port), timeout=20) as first:
        first.sendall(head(len(drawn_jpeg())))
        wait_until(lambda: b"dr_pending_requests 1\n" in served.request("GET", "/metrics").body)
        yield first


def read_answer(caller: socket.socket) -> Reply:
    data = b""
    while b"\r\n\r\n" not in data:
        more = caller.recv(65_536)
        assert more, "the connection ended without an answer"
        data += more
    text, _, body = data.partition(b"\r\n\r\n")
    lines = text.decode().split("\r\n")
    headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines[1:])}
    while len(body) < int(headers["content-length"]):
        body += caller.recv(65_536)
    assert len(body) == int(headers["content-length"])
    return Reply(status=int(lines[0].split()[1]), headers=headers, body=body)


def test_who_finds_the_queue_full_is_told_when_and_can_go_on_on_the_same_connection() -> None:
    with running(Served(TINY_MODEL, environment=ONE_AT_A_TIME)) as served:
        described = DescribedService(served.request("GET", "/openapi.json").json())
        with (
            full(served) as first,
            socket.create_connection(("127.0.0.1", served.connect().port), timeout=20) as caller,
        ):
            # All at once, in pieces, and unread so far: the body is dropped, then comes a next.
            body = drawn_jpeg()
            for pieces in ([head(len(body)) + body], [head(len(body)), body[:9], body[9:]]):
                for piece in pieces:
                    caller.sendall(piece)
                reply = read_answer(caller)
                assert reply.status == 429
                assert reply.json()["retry_after_s"] > 0
                faults = described.faults(
                    "POST", "/invocations", status=429, headers=reply.headers, body=reply.body
                )
                assert faults == []
            # The ordinary way says the same, less the time.
            caller.sendall(head(len(body), "Expect: 100-continue"))
            slow = read_answer(caller)
            assert slow.status == 429
            for name in ("type", "title", "status"):
                assert slow.json()[name] == reply.json()[name]
            first.sendall(body)
            assert read_answer(first).status == 200
        numbers = served.request("GET", "/metrics").body
        assert b'dr_requests_total{status="429"} 3\n' in numbers
        with socket.create_connection(("127.0.0.1", served.connect().port), timeout=20) as caller:
            with full(served) as first:
                caller.sendall(head(len(body)) + body)
                assert read_answer(caller).status == 429
                first.sendall(body)
                assert read_answer(first).status == 200
            caller.sendall(head(len(body)) + body)
            assert read_answer(caller).status == 200
        stop(served)
        assert served.end() == 0
        assert sum(e["count"] for e in served.events if e["event"] == "turned_away") == 3
        lines = [e["status"] for e in served.events if e["event"] == "request"]
        assert sorted(lines) == [200, 200, 200, 429]


@pytest.mark.parametrize("late", [False, True])
def test_a_connection_that_is_to_close_closes_after_the_refusal(late: bool) -> None:
    with (
        running(Served(TINY_MODEL, environment=ONE_AT_A_TIME)) as served,
        full(served),
        socket.create_connection(("127.0.0.1", served.connect().port), timeout=20) as caller,
    ):
        caller.sendall(head(4, "Connection: close") + (b"" if late else b"body"))
        assert read_answer(caller).status == 429
        if late:
            caller.sendall(b"body")
        assert caller.recv(100) == b""


def test_ping_and_metrics_answer_while_the_queue_is_full() -> None:
    asked = {**ONE_AT_A_TIME, "DR_METRICS": "prometheus,emf"}
    with running(Served(TINY_MODEL, environment=asked)) as served, full(served):
        assert served.request("GET", "/ping").status == 200
        for _ in range(5):
            body = drawn_jpeg()
            assert served.request("POST", "/invocations", body).status == 429
        # CloudWatch counts them in a line of their own.
        wait_until(
            lambda: sum(e["turned_away"] for e in served.events if e["event"] == "turned_away") == 5
        )
        (directive,) = served.event("turned_away")["_aws"]["CloudWatchMetrics"]  # type: ignore[index]
        assert json.dumps(directive["Metrics"]) == '[{"Name": "turned_away", "Unit": "Count"}]'
