"""Requests whose body comes along with their header are answered without a task of their own, and
nobody can tell by the answer."""

import asyncio
import io
import json
import re
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from starlette.responses import Response
from uvicorn.server import ServerState

from inference_image import http_protocol, service
from inference_image.contract import MEDIA_JSON
from inference_image.http_app import Application, create_app
from inference_image.log import JsonLog
from inference_image.settings import Settings
from tests.service_harness import b64, drawn_jpeg, listening
from tests.unit.inference_image.test_http_app import Engine, loader
from tests.unit.inference_image.test_http_protocol import Clock, Transport

PHOTOGRAPH = drawn_jpeg(size_px=240)
PING = b"GET /ping HTTP/1.1\r\nConnection: close\r\n\r\n"
METRICS = PING.replace(b"/ping", b"/metrics")
WITHIN_S = 30.0


def post(body: bytes, *lines: str, version: str = "1.1", typed: str = "image/jpeg") -> bytes:
    head = [f"POST /invocations HTTP/{version}", f"Content-Type: {typed}", *lines]
    return "\r\n".join([*head, f"Content-Length: {len(body)}", "\r\n"]).encode() + body


@contextmanager
def made(
    engine: Engine | None = None, *, ready: bool = True, **environment: str
) -> Iterator[tuple[Application, list[dict[str, Any]]]]:
    """The application without a server, and the lines of its log once it has ended."""
    stream = io.StringIO()
    settings = Settings.from_environment(environment, cpus=1)
    log = JsonLog(level="info", stream=stream)
    app = create_app(settings, log=log, load=loader(engine or Engine()))
    if ready:
        app._service.prepare()
    events: list[dict[str, Any]] = []
    yield app, events
    app._service.executor.shutdown()
    events += [json.loads(line) for line in stream.getvalue().splitlines()]


async def say(address: tuple[str, int], pieces: Iterable[bytes]) -> bytes:
    """All that is answered to what is sent, piece by piece, until the connection is closed."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.02)
        return await asyncio.wait_for(reader.read(), WITHIN_S)
    finally:
        writer.close()


def told(app: Application, *pieces: bytes, ahead: int = 0) -> bytes:
    async def ask() -> bytes:
        async with listening(app, ahead=ahead) as address:
            return await say(address, pieces)

    return asyncio.run(ask())


def parted(answer: bytes) -> tuple[bytes, dict[str, str], bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    return first, dict(line.decode().split(": ", 1) for line in lines), body


def comparable(answer: bytes) -> tuple[bytes, dict[str, str], Any]:
    """Without what differs between two answers to the same request."""
    status, header, body = parted(answer)
    assert int(header.pop("content-length")) == len(body)
    assert re.fullmatch("[0-9a-f]{32}", header.pop("x-request-id"))
    if "json" not in header["content-type"]:
        return status, header, body
    record = json.loads(body)
    for entry in record if isinstance(record, list) else [record]:
        entry.pop("requestLatency", None)
        entry.pop("predictionLatency", None)
        entry.pop("container", None)
    return status, header, record


REQUESTS = {
    "a photograph": post(PHOTOGRAPH, "Connection: close"),
    "as CSV": post(PHOTOGRAPH, "Accept: text/csv", "Connection: close"),
    "HTTP/1.0": post(PHOTOGRAPH, version="1.0"),
    "several": post(
        json.dumps({"instances": [b64(PHOTOGRAPH), "no base64!"]}).encode(),
        "Connection: close",
        typed=MEDIA_JSON,
    ),
    "a query": post(PHOTOGRAPH, "Connection: close").replace(b"/invocations", b"/invocations?a=1"),
    "not ready to say": post(PHOTOGRAPH, "Connection: close", typed="text/html"),
    "no image": post(b"PHOTOGRAPH", "Connection: close"),
    "no body": post(b"", "Connection: close"),
    "no JSON": post(b"{", "Connection: close", typed=MEDIA_JSON),
    "compressed": post(PHOTOGRAPH, "Content-Encoding: gzip", "Connection: close"),
    "attributes twice": post(
        PHOTOGRAPH,
        "X-Amzn-SageMaker-Custom-Attributes: operating_point=high_sensitivity",
        "X-Amzn-SageMaker-Custom-Attributes: unknown=1",
        "Connection: close",
    ),
    "too large": post(bytes(90_000), "Connection: close"),
    "chunked": b"POST /invocations HTTP/1.1\r\nContent-Type: image/jpeg\r\nConnection: close\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
    + f"{len(PHOTOGRAPH):x}\r\n".encode()
    + PHOTOGRAPH
    + b"\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("which", REQUESTS)
def test_the_answer_is_the_same_whether_the_body_comes_along_or_later(
    which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = REQUESTS[which]
    at = whole.index(b"\r\n\r\n") + 4
    directly: list[bytes] = []
    really = service.Service.invoke_at_once

    def noting(self: Any, header: Any, body: bytes, **named: Any) -> None:
        directly.append(body)
        really(self, header, body, **named)

    monkeypatch.setattr(service.Service, "invoke_at_once", noting)
    with made(DR_MAX_IMAGE_BYTES="15000", DR_MAX_IMAGES="4") as (app, events):
        at_once = told(app, whole)
        count = len(directly)
        later = told(app, whole[:at], whole[at:])
        held = app._service.queue
        assert (held.pending, held.bytes_held) == (0, 0)
    assert count == 1
    # A request without a body is whole with its header.
    assert len(directly) == 1 + (which == "no body")
    assert comparable(at_once) == comparable(later)
    one, other = (event for event in events if event["event"] == "request")
    assert list(one) == list(other)
    assert (one["status"], one["outcome"]) == (other["status"], other["outcome"])


TRAILERS = {
    "of attributes": b"X-Amzn-SageMaker-Custom-Attributes: nonsense=1",
    "of an encoding": b"Content-Encoding: gzip",
    "of what is accepted": b"Accept: text/csv",
    "of an id": b"X-Request-Id: " + b"a" * 32,
}


@pytest.mark.parametrize("which", TRAILERS)
def test_what_comes_after_a_body_is_no_header(which: str) -> None:
    whole = REQUESTS["chunked"].removesuffix(b"\r\n") + TRAILERS[which] + b"\r\n\r\n"
    at = whole.index(b"\r\n\r\n") + 4
    with made() as (app, _):
        for pieces in ([whole], [whole[:at], whole[at:]]):
            status, header, body = parted(told(app, *pieces))
            assert status == b"HTTP/1.1 200 OK"
            assert header["x-request-id"] != "a" * 32
            assert json.loads(body)["quality"]["gradable"]


def test_the_callers_id_is_in_the_answer_and_the_log() -> None:
    given = "0f" * 16
    with made() as (app, events):
        answer = told(app, post(PHOTOGRAPH, f"X-Request-Id: {given}", "Connection: close"))
    assert parted(answer)[1]["x-request-id"] == given
    assert [e["request_id"] for e in events if e["event"] == "request"] == [given]


def test_requests_that_come_together_are_answered_in_their_order() -> None:
    gate = threading.Event()
    with made(Engine(gate=gate)) as (app, events):
        sent = post(PHOTOGRAPH) + post(b"PHOTOGRAPH") + post(PHOTOGRAPH) + PING
        threading.Timer(0.2, gate.set).start()
        answer = told(app, sent)
    statuses = [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [200, 422, 200, 200]
    assert [e["status"] for e in events if e["event"] == "request"] == [200, 422, 200]


REFUSED = post(PHOTOGRAPH, typed="text/html")
HEAD_ALONE = post(bytes(1000))[:-1000]


@pytest.mark.parametrize("before", [[REFUSED], [post(PHOTOGRAPH)], [post(PHOTOGRAPH), REFUSED]])
@pytest.mark.parametrize("together", [True, False])
def test_a_request_behind_another_whose_body_does_not_come_has_its_limits(
    before: list[bytes], together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_BODY_WITHIN_S", 0.2)
    pieces = [b"".join([*before, HEAD_ALONE])] if together else [*before, HEAD_ALONE]
    with made() as (app, events):
        answer = told(app, *pieces)
        assert app._service.queue.pending == 0
    last = answer.rpartition(b"HTTP/1.1 ")[2]
    assert last.startswith(b"400 ")
    assert b"did not arrive within 0.2 s" in last
    assert events[-1]["outcome"] == "refused"
    assert len([e for e in events if e["event"] == "request"]) == len(before) + 1


def test_a_request_behind_another_may_say_that_it_is_too_large() -> None:
    head = HEAD_ALONE.replace(b"Length: 1000", b"Length: 1000000000")
    with made() as (app, _):
        answer = told(app, REFUSED + head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"415", b"413"]


def test_who_is_refused_at_once_keeps_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "_HEADER_WITHIN_S", 0.1)

    async def ask(app: Application) -> bytes:
        async with listening(app) as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(REFUSED)
            first = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WITHIN_S)
            await asyncio.sleep(0.3)
            writer.write(PING)
            rest = await asyncio.wait_for(reader.read(), WITHIN_S)
            writer.close()
            return first + rest

    with made() as (app, _):
        answer = asyncio.run(ask(app))
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"415", b"200"]


def test_a_connection_is_kept_and_the_next_request_answered() -> None:
    with made() as (app, _):
        answer = told(app, post(PHOTOGRAPH), post(PHOTOGRAPH), post(PHOTOGRAPH), PING)
    assert answer.count(b"HTTP/1.1 200 OK") == 4
    assert answer.lower().count(b"connection: close") <= 1


def test_who_waits_to_be_told_to_send_is_told() -> None:
    with made() as (app, _):
        sent = post(PHOTOGRAPH, "Expect: 100-continue", "Connection: close")
        answer = told(app, sent)
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")


def test_while_the_model_loads_it_is_503() -> None:
    with made(ready=False) as (app, events):
        status, header, body = parted(told(app, post(PHOTOGRAPH, "Connection: close")))
    assert status == b"HTTP/1.1 503 Service Unavailable"
    assert header["retry-after"] == "1"
    assert json.loads(body)["retry_after_s"] == 1.0
    assert [e["status"] for e in events if e["event"] == "request"] == [503]


def in_service(
    engine: Engine, script: Callable[[Application, tuple[str, int]], Awaitable[None]], **env: str
) -> list[dict[str, Any]]:
    async def run() -> None:
        async with listening(app) as address:
            await asyncio.wait_for(script(app, address), WITHIN_S)

    with made(engine, **env) as (app, events):
        asyncio.run(run())
        held = app._service.queue
        assert (held.pending, held.bytes_held) == (0, 0)
    return [event for event in events if event["event"] == "request"]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_what_takes_too_long_is_504_and_the_next_is_answered() -> None:
    gate = threading.Event()

    async def script(app: Application, address: tuple[str, int]) -> None:
        late, waiting = await asyncio.gather(
            say(address, [post(PHOTOGRAPH, "Connection: close")]),
            say(address, [post(PHOTOGRAPH, "Connection: close")]),
        )
        gate.set()
        await until(lambda: app._service.queue.pending == 0)
        in_time = await say(address, [post(PHOTOGRAPH, "Connection: close")])
        for answer, status in ((late, b"504"), (waiting, b"504"), (in_time, b"200")):
            assert answer.startswith(b"HTTP/1.1 " + status)

    engine = Engine(gate=gate)
    events = in_service(engine, script, MODEL_SERVER_TIMEOUT="1")
    assert [event["status"] for event in events] == [504, 504, 200]
    # The one that still waited was not computed; the first call was the warm-up.
    assert engine.calls == 3


def test_a_request_whose_sender_is_gone_is_not_computed() -> None:
    gate = threading.Event()

    async def script(app: Application, address: tuple[str, int]) -> None:
        first = asyncio.create_task(say(address, [post(PHOTOGRAPH, "Connection: close")]))
        await until(lambda: engine.calls == 2)
        _, writer = await asyncio.open_connection(*address)
        writer.write(post(PHOTOGRAPH))
        await until(lambda: app._service.queue.pending == 2)
        writer.close()
        await until(lambda: app._service.queue.pending == 1)
        gate.set()
        assert (await first).startswith(b"HTTP/1.1 200")

    engine = Engine(gate=gate)
    events = in_service(engine, script)
    assert [event["outcome"] for event in events] == ["abandoned", "graded"]
    assert engine.calls == 2


def test_a_half_closed_connection_is_taken_for_a_sender_who_is_gone() -> None:
    gate = threading.Event()

    async def script(app: Application, address: tuple[str, int]) -> None:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(post(PHOTOGRAPH))
        await until(lambda: engine.calls == 2)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        gate.set()
        await until(lambda: app._service.queue.pending == 0)

    engine = Engine(gate=gate)
    assert [event["outcome"] for event in in_service(engine, script)] == ["abandoned"]


@pytest.mark.parametrize("piece", [b"", b"half of it"])
@pytest.mark.parametrize("before", [b"", REFUSED])
def test_a_sender_who_leaves_in_the_middle_of_a_body_has_abandoned_it(
    before: bytes, piece: bytes
) -> None:
    """Also behind a request that is answered without a task of its own."""

    async def script(app: Application, address: tuple[str, int]) -> None:
        _, writer = await asyncio.open_connection(*address)
        writer.write(before + HEAD_ALONE + piece)
        await until(lambda: app._service.queue.pending == 1)
        writer.close()
        await until(lambda: app._service.queue.pending == 0)
        answer = await say(address, [METRICS])
        assert b"\ndr_requests_abandoned_total 1\n" in answer
        # It says nothing about an image.
        assert (b'dr_images_total{outcome="refused"} 1' in answer) == bool(before)

    events = in_service(Engine(), script)
    assert [(event["status"], event["outcome"]) for event in events][-1] == (400, "abandoned")


def test_a_full_queue_is_429_and_recovers() -> None:
    gate = threading.Event()

    async def script(app: Application, address: tuple[str, int]) -> None:
        request = post(PHOTOGRAPH, "Connection: close")
        waiting = [asyncio.create_task(say(address, [request])) for _ in range(3)]
        await until(lambda: app._service.queue.pending == 3)
        refused = await say(address, [request])
        gate.set()
        answers = await asyncio.gather(*waiting)
        assert refused.startswith(b"HTTP/1.1 429 ")
        assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)

    in_service(Engine(gate=gate), script, DR_QUEUE_LIMIT="2")


def test_without_room_for_its_bytes_a_request_is_429(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_MOST_BYTES_HELD", 1)
    gate = threading.Event()
    large = json.dumps({"image": b64(PHOTOGRAPH) + " " * 60_000}).encode()

    async def script(_: Application, address: tuple[str, int]) -> None:
        request = post(large, "Connection: close", typed=MEDIA_JSON)
        first = asyncio.create_task(say(address, [request]))
        await until(lambda: engine.calls == 2)
        assert (await say(address, [request])).startswith(b"HTTP/1.1 429 ")
        gate.set()
        assert (await first).startswith(b"HTTP/1.1 200")
        assert (await say(address, [request])).startswith(b"HTTP/1.1 200")

    engine = Engine(gate=gate)
    events = in_service(engine, script, DR_MAX_IMAGE_BYTES="60000")
    assert [event["status"] for event in events] == [429, 200, 200]


def test_a_fault_in_the_end_is_a_500_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_words: Any, **_named: Any) -> str:
        raise OSError("no space")

    monkeypatch.setattr(service, "json_text", broken)

    async def script(_: Application, address: tuple[str, int]) -> None:
        answer = await say(address, [post(PHOTOGRAPH), PING])
        assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"500", b"200"]

    events = in_service(Engine(), script)
    assert [(event["status"], event["outcome"]) for event in events] == [(500, "error")]


class _Asks:
    """An application that keeps what it is to answer."""

    def __init__(self) -> None:
        self.replies: list[Callable[[Any], None]] = []
        self.admission = SimpleNamespace(turn_away=lambda *_: None)

    def invoke_at_once(self, _header: Any, _body: bytes, *, closing: Any, reply: Any) -> None:
        self.replies.append(reply)


def a_connection(clock: Clock) -> tuple[Any, Transport, _Asks]:
    app, transport = _Asks(), Transport()
    config = uvicorn.Config(app, lifespan="off", log_config=None, timeout_keep_alive=75)  # type: ignore[arg-type]
    config.load()
    protocol = http_protocol.bounded_protocol(9)
    connection = protocol(config, ServerState(), {}, clock)  # type: ignore[arg-type]
    connection.connection_made(transport)  # type: ignore[arg-type]
    return connection, transport, app


def test_a_connection_closes_when_it_was_idle_since_its_last_answer() -> None:
    clock = Clock()
    connection, transport, app = a_connection(clock)
    for at_s in (10, 50, 80):
        clock.run_until(at_s)
        connection.data_received(post(b"x"))
        app.replies.pop()(Response())
    assert len(transport.calls) == 3
    # One timer serves all answers, and lets a request that is in hand when it fires be.
    assert len(clock.timers) == 1
    clock.run_until(154)
    connection.data_received(post(b"x"))
    clock.run_until(400)
    assert "closed" not in transport.calls
    app.replies.pop()(Response())
    clock.run_until(474)
    assert "closed" not in transport.calls
    clock.run_until(476)
    assert transport.calls[-1] == "closed"


def test_a_request_that_has_begun_to_arrive_is_waited_for() -> None:
    clock = Clock()
    connection, transport, app = a_connection(clock)
    connection.data_received(post(b"x"))
    app.replies.pop()(Response())
    clock.run_until(74)
    connection.data_received(post(b"x")[:30])
    clock.run_until(80)
    connection.data_received(post(b"x")[30:])
    app.replies.pop()(Response())
    assert "closed" not in transport.calls
    clock.run_until(156)
    assert transport.calls[-1] == "closed"


def test_a_connection_that_is_gone_leaves_no_timer_and_hears_no_answer() -> None:
    clock = Clock()
    connection, transport, app = a_connection(clock)
    connection.data_received(post(b"x"))
    app.replies.pop()(Response())
    connection.data_received(post(b"x"))
    before = len(transport.calls)
    connection.connection_lost(ConnectionResetError())
    assert clock.timers == []
    app.replies.pop()(Response())
    assert len(transport.calls) == before


def test_while_it_stops_an_answer_closes_its_connection() -> None:
    connection, transport, app = a_connection(Clock())
    connection.server_state.default_headers = [(b"connection", b"close")]
    connection.data_received(post(b"x"))
    app.replies.pop()(Response(b"body"))
    written = transport.calls[-2]
    assert isinstance(written, bytes)
    assert written.count(b"connection: close") == 1
    assert written.endswith(b"\r\n\r\nbody")
    assert transport.calls[-1] == "closed"


@pytest.mark.parametrize("sent_ahead", [False, True])
def test_an_answer_may_ask_the_caller_to_connect_anew_unless_it_has_asked_again(
    sent_ahead: bool,
) -> None:
    request = post(PHOTOGRAPH)
    if sent_ahead:
        request += post(PHOTOGRAPH, "Connection: close")
    gate = threading.Event()
    with made(Engine(gate=gate)) as (app, _):

        async def ask() -> bytes:
            async with listening(app, ahead=50) as address:
                asking = asyncio.create_task(say(address, [request]))
                await asyncio.sleep(0.2)
                gate.set()
                return await asking

        answer = asyncio.run(ask())
    first, *others = answer.split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert (b"connection: close" in first) == (not sent_ahead)
    assert len(others) == sent_ahead


@pytest.mark.parametrize("ahead", [0, 50])
def test_photographs_before_what_is_no_http_are_graded(ahead: int) -> None:
    with made() as (app, _):
        answer = told(app, 2 * post(PHOTOGRAPH) + b"GARBAGE\r\n\r\n", ahead=ahead)
    answers = answer.split(b"HTTP/1.1 ")[1:]
    assert [text[:3] for text in answers] == [b"200", b"200", b"400"]


def test_a_body_that_comes_later_may_be_answered_so_as_well() -> None:
    request = post(PHOTOGRAPH)
    with made() as (app, _):
        answer = told(app, request[:300], request[300:], ahead=50)
    status, header, _ = parted(answer)
    assert status == b"HTTP/1.1 200 OK"
    assert header["connection"] == "close"
