"""What the worker thread reads ahead of its turn, and whose answer becomes of it."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from inference_image import computation
from inference_image.computation import Unread, Work, answers_to
from inference_image.decoding import PhotographError
from inference_image.predictor import RequestError
from inference_image.requests import Options, RefusedRequestError
from inference_image.settings import Settings
from tests.service_harness import b64, drawn_jpeg, drawn_pixels, encoded, pending, wait_until
from tests.unit.inference_image.test_http_app import Engine, loader, service

SETTINGS = Settings.from_environment({}, cpus=1)


class Reader:
    """A predictor that notes what it reads and what it answers, in order."""

    def __init__(self) -> None:
        self.did: list[str] = []

    def check_request(self, *, operating_point: str | None, explain: str | None) -> None:
        if operating_point == "none such":
            raise RequestError("no such operating point")

    def pixels(self, data: bytes, *, declared_type: str | None) -> int:
        if data == b"no header":
            raise PhotographError(422, "It has no header.")
        return 10**6 if data == b"large" else 50_000

    def read(self, data: bytes, *, declared_type: str | None) -> Any:
        self.did.append(f"read {data.decode()}")
        if data == b"damaged":
            raise PhotographError(422, "It is damaged.")
        return data

    def answer(self, read: Any, **options: Any) -> Any:
        self.did.append(f"answer {read.decode()}")
        return read


def works(
    reader: Reader, *names: str, content_type: str = "image/png", **options: Any
) -> list[Work]:
    return [
        Work(
            reader,  # type: ignore[arg-type]
            body=name.encode(),
            content_type=content_type,
            options=Options(**options),
            due_s=1e9,
        )
        for name in names
    ]


def queue(*waiting: Work, busy: bool = True) -> Unread:
    unread = Unread(most_images=16, is_busy=lambda: busy)
    for work in waiting:
        unread.append(work)
    return unread


def answered(unread: Unread, work: Work) -> Any:
    unread.read(work)
    return answers_to(work, SETTINGS)


def test_while_many_wait_those_behind_are_read_before_the_first_is_answered() -> None:
    reader = Reader()
    waiting = works(reader, "a", "b", "c")
    unread = queue(*waiting)
    assert [answered(unread, work) for work in waiting] == [[b"a"], [b"b"], [b"c"]]
    assert reader.did == ["read a", "read b", "read c", "answer a", "answer b", "answer c"]


def test_with_few_waiting_each_is_read_in_its_turn() -> None:
    reader = Reader()
    waiting = works(reader, "a", "b")
    unread = queue(*waiting, busy=False)
    for work in waiting:
        answered(unread, work)
    assert reader.did == ["read a", "answer a", "read b", "answer b"]


def test_no_more_is_begun_once_the_first_has_waited_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = Reader()
    waiting = works(reader, "a", "b", "c", "d")
    unread = queue(*waiting)
    clock = SimpleNamespace(now_s=0.0)

    def read(data: bytes, **_: Any) -> Any:
        clock.now_s += 0.003
        return Reader.read(reader, data, declared_type=None)

    reader.read = read  # type: ignore[method-assign]
    monkeypatch.setattr(
        computation, "time", SimpleNamespace(perf_counter=lambda: float(clock.now_s))
    )
    unread.read(waiting[0])
    assert reader.did == ["read a", "read b"]


def test_what_one_is_refused_for_is_its_own() -> None:
    reader = Reader()
    first, damaged, last = works(reader, "a", "damaged", "c")
    (unknown,) = works(reader, "d", operating_point="none such")
    unread = queue(first, damaged, last, unknown)
    assert answered(unread, first) == [b"a"]
    with pytest.raises(PhotographError, match="damaged"):
        answered(unread, damaged)
    assert answered(unread, last) == [b"c"]
    with pytest.raises(RequestError, match="operating point"):
        answered(unread, unknown)
    assert "read d" not in reader.did


def test_a_body_without_photographs_is_refused_in_its_turn() -> None:
    reader = Reader()
    (first,) = works(reader, "a")
    (empty,) = works(reader, "{}", content_type="application/json")
    unread = queue(first, empty)
    assert answered(unread, first) == [b"a"]
    with pytest.raises(RefusedRequestError):
        answered(unread, empty)


def test_what_was_taken_back_is_not_read() -> None:
    reader = Reader()
    gone, first, left, last = works(reader, "gone", "a", "left", "c")
    unread = queue(gone, first, left, last)
    for work in (gone, left):
        work.abandon()
        work.drop()
    assert answered(unread, first) == [b"a"]
    assert answered(unread, last) == [b"c"]
    assert reader.did == ["read a", "read c", "answer a", "answer c"]


def test_what_is_dropped_after_it_was_read_holds_nothing() -> None:
    reader = Reader()
    first, left = works(reader, "a", "left")
    unread = queue(first, left)
    unread.read(first)
    assert "read left" in reader.did
    left.drop()
    with pytest.raises(RuntimeError, match="dropped"):
        left.take()


def test_what_is_taken_back_while_it_is_read_holds_nothing() -> None:
    reader = Reader()
    first, left = works(reader, "a", "left")
    unread = queue(first, left)

    def read(data: bytes, **_: Any) -> Any:
        if data == b"left":
            left.abandon()
            left.drop()
        return data

    reader.read = read  # type: ignore[method-assign]
    unread.read(first)
    assert left.is_read
    with pytest.raises(RuntimeError, match="dropped"):
        left.take()


NOT_QUICK = {
    "another type": ("b", "image/tiff"),
    "several": ('{"inputs": []}', "application/json"),
    "many pixels": ("large", "image/png"),
    "many bytes": ("x" * 200_000, "image/png"),
    "no header": ("no header", "image/png"),
    "no scan": ("b", "image/jpeg"),
}


@pytest.mark.parametrize("kind", NOT_QUICK)
def test_nothing_is_read_ahead_that_may_take_long(kind: str) -> None:
    reader = Reader()
    body, content_type = NOT_QUICK[kind]
    first, last = works(reader, "a", "c")
    (slow,) = works(reader, body, content_type=content_type)
    queue(first, slow, last).read(first)
    # Neither it nor who comes after it.
    assert reader.did == ["read a"]
    assert not slow.is_read
    assert not last.is_read


@pytest.mark.parametrize(("progressive", "quick"), [(False, True), (True, False)])
def test_a_jpeg_of_several_scans_is_read_in_its_turn(progressive: bool, quick: bool) -> None:
    drawn = Image.fromarray(drawn_pixels(5, 2, 300))
    body = encoded(drawn, "JPEG", progressive=progressive)
    work = Work(
        loader(Engine())(),
        body=body,
        content_type="image/jpeg; q=1",
        options=Options(),
        due_s=1e9,
    )
    assert work.is_quick is quick


def test_a_slow_photograph_delays_nobody_before_it() -> None:
    gate = threading.Event()
    engine = Engine(gate=gate)
    predictor = loader(engine)()
    read, slow_began = predictor.read, threading.Event()
    release = threading.Event()

    def slow(data: bytes, *, declared_type: str | None = None) -> Any:
        if declared_type == "image/bmp":
            slow_began.set()
            assert release.wait(60)
        return read(data, declared_type=declared_type)

    predictor.read = slow  # type: ignore[method-assign]
    drawn = Image.fromarray(drawn_pixels(5, 2, 300))
    png, bmp = (encoded(drawn, kind) for kind in ("PNG", "BMP"))
    kinds = ["image/png", "image/png", "image/bmp", *["image/png"] * 7]
    with service(lambda: predictor) as (transport, _, _), ThreadPoolExecutor(20) as callers:

        def ask(kind: str) -> Any:
            body = bmp if kind == "image/bmp" else png
            return transport.request("POST", "/invocations", body, {"Content-Type": kind})

        answers = [callers.submit(ask, "image/png")]
        wait_until(lambda: engine.calls == 2)
        for kind in kinds:
            answers.append(callers.submit(ask, kind))
            wait_until(lambda: pending(transport) == len(answers))
        gate.set()
        wait_until(slow_began.is_set)
        assert [answer.result(timeout=60).status for answer in answers[:3]] == [200] * 3
        release.set()
        assert {answer.result(timeout=60).status for answer in answers} == {200}


def test_what_would_end_a_thread_is_the_requests_own_failure() -> None:
    reader = Reader()
    first, second = works(reader, "a", "b")

    def read(data: bytes, **_: Any) -> Any:
        if data == b"b":
            raise SystemExit(3)
        return data

    reader.read = read  # type: ignore[method-assign]
    unread = queue(first, second)
    assert answered(unread, first) == [b"a"]
    with pytest.raises(RuntimeError, match="SystemExit"):
        answered(unread, second)


def test_a_failure_that_waits_holds_nothing_of_where_it_came_from() -> None:
    reader = Reader()
    first, damaged = works(reader, "a", "damaged")
    queue(first, damaged).read(first)
    assert damaged.has_failed
    assert damaged._failure is not None
    assert damaged._failure.__traceback__ is None


def test_the_time_in_the_queue_is_without_the_time_of_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = Reader()
    now_s = 10.0
    clock = SimpleNamespace(perf_counter=lambda: now_s)
    monkeypatch.setattr(computation, "time", clock)
    (work,) = works(reader, "a")

    def read(data: bytes, **_: Any) -> Any:
        nonlocal now_s
        now_s += 0.25
        return data

    reader.read = read  # type: ignore[method-assign]
    now_s += 1.0
    work.read(most_images=1)
    now_s += 2.0
    taken: Any = work.take()
    assert taken == b"a"
    assert work.queued_ms == 3000.0
    assert work.read_s == 0.25


def test_many_at_once_each_get_the_answer_to_their_own_request() -> None:
    gate = threading.Event()
    engine = Engine(gate=gate)
    drawn = [Image.fromarray(drawn_pixels(5, 2, side)) for side in range(300, 330, 2)]
    bodies = [(encoded(picture, "PNG"), "image/png") for picture in drawn]
    bodies[3] = (b"no photograph", "image/png")
    bodies[6] = (json.dumps({"inputs": [b64(drawn_jpeg())] * 3}).encode(), "application/json")
    bodies[9] = (b"{}", "application/json")
    with service(loader(engine)) as (transport, events, _), ThreadPoolExecutor(20) as callers:

        def ask(body: bytes, kind: str) -> Any:
            return transport.request("POST", "/invocations", body, {"Content-Type": kind})

        first = callers.submit(ask, drawn_jpeg(), "image/jpeg")
        wait_until(lambda: engine.calls == 2)
        answers = [callers.submit(ask, *one) for one in bodies]
        wait_until(lambda: pending(transport) == 1 + len(bodies))
        gate.set()
        assert first.result().status == 200
        replies = [answer.result() for answer in answers]
    assert [reply.status for reply in replies] == [
        {3: 422, 9: 400}.get(index, 200) for index in range(len(bodies))
    ]
    assert [entry["grade"] for entry in replies[6].json()] == [2, 2, 2]
    lines = {e["request_id"]: e for e in events if e["event"] == "request"}
    for index, reply in enumerate(replies):
        line = lines[reply.headers["x-request-id"]]
        if index not in (3, 6, 9):
            assert (line["width"], line["outcome"]) == (drawn[index].width, "graded")
        spent = sum(line.get(f"{stage}_ms", 0.0) for stage in ("decode", "prepare", "engine"))
        # Each is rounded to a hundredth.
        assert line["total_ms"] >= line["queue_ms"] + spent - 0.05
        assert line["queue_ms"] >= 0
