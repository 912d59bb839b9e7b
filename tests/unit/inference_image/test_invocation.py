"""One request on its way: what its header says, its place, and its time limit."""

import asyncio
import time

import pytest

from inference_image.invocation import Deadlines, Invocation, Place, Queue, read_header
from inference_image.metrics import Metrics

ID = "0f" * 16
ATTRIBUTES = b"x-amzn-sagemaker-custom-attributes"


def test_a_header_is_read_and_what_it_lacks_is_empty() -> None:
    header = read_header([(b"host", b"a"), (b"content-type", b"image/jpeg; q=\xe9")])
    assert header.content_type == "image/jpeg; q=\u00e9"
    assert (header.accept, header.content_length, header.attributes) == (None, "", "")
    assert len(header.request_id) == 32
    assert read_header([]).content_type is None


def test_two_headers_of_a_list_mean_both_and_of_others_the_first_counts() -> None:
    header = read_header(
        [
            (b"x-request-id", ID.encode()),
            (ATTRIBUTES, b"a=1"),
            (b"accept", b"text/csv"),
            (b"accept", b"application/json"),
            (b"content-encoding", b"identity"),
            (b"content-encoding", b"gzip"),
            (ATTRIBUTES, b"b=2"),
            (b"x-request-id", b"1" * 32),
        ]
    )
    assert header.attributes == "a=1,b=2"
    assert header.encodings == "identity,gzip"
    assert header.accept == "text/csv,application/json"
    assert header.request_id == ID


def test_a_place_is_given_back_once_with_its_bytes() -> None:
    left: list[int] = []
    queue = Queue(
        most_bytes=100, recorder=Metrics().recorder(), on_leaving=lambda: left.append(queue.pending)
    )
    one, other = Place(queue), Place(queue)
    assert one.hold(60)
    assert one.hold(50)
    assert not other.hold(41)
    assert other.hold(40)
    assert not one.hold(61)
    assert (queue.pending, queue.bytes_held) == (2, 100)
    for _ in range(2):
        one.leave()
    other.leave()
    assert (queue.pending, queue.bytes_held) == (0, 0)
    assert left == [1, 0]


def an_invocation(timeout_s: float, then: list[str], name: str) -> Invocation:
    call = Invocation(read_header([]), timeout_s=timeout_s)
    call.when_over(lambda: then.append(name))
    return call


def test_what_is_over_is_over_once() -> None:
    over: list[str] = []
    call = an_invocation(1.0, over, "one")
    call.leave()
    call.over()
    assert over == ["one"]
    assert call.sender_has_left


@pytest.mark.parametrize("order", [(0.05, 0.1, 0.2), (0.2, 0.1, 0.05), (0.1, 0.2, 0.05)])
def test_each_ends_when_it_is_due_and_not_when_another_is(order: tuple[float, ...]) -> None:
    async def run() -> None:
        deadlines = Deadlines()
        # Before the first of them is made: their time runs from then on.
        began = time.perf_counter()
        calls = {s: an_invocation(s, over, str(s)) for s in (*order, 0.08)}
        for seconds, call in calls.items():
            call.when_over(
                lambda s=seconds: over.append((s, time.perf_counter() - began))  # type: ignore[misc]
            )
            deadlines.add(call)
        deadlines.forget(calls[0.08])
        while len(over) < 3:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        # Nothing is waited for any more.
        assert deadlines._timer is None

    over: list = []
    asyncio.run(asyncio.wait_for(run(), 10))
    assert [seconds for seconds, _ in over] == [0.05, 0.1, 0.2]
    assert all(at_s >= seconds for seconds, at_s in over)


def test_one_that_fails_keeps_no_other_from_its_end() -> None:
    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: failed.append("one"))
        deadlines = Deadlines()
        failing = Invocation(read_header([]), timeout_s=0.0)
        failing.when_over(lambda: 1 / 0)  # type: ignore[arg-type, return-value]
        for call in (failing, an_invocation(0.0, over, "other"), an_invocation(0.02, over, "late")):
            deadlines.add(call)
        while len(over) < 2:
            await asyncio.sleep(0.005)

    over: list[str] = []
    failed: list[str] = []
    asyncio.run(asyncio.wait_for(run(), 10))
    assert over == ["other", "late"]
    assert failed == ["one"]
