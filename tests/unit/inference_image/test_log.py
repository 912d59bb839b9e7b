"""Lines of the log, and what happens to them when nobody reads."""

import io
import json
import os
import select
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from inference_image.log import JsonLog


class Unwritable(io.StringIO):
    """A stream that fails until it is mended."""

    broken = True

    def write(self, text: str) -> int:
        if self.broken:
            raise BrokenPipeError
        return super().write(text)


def test_what_cannot_be_written_is_counted_and_told_with_the_next_line() -> None:
    stream = Unwritable()
    log = JsonLog(level="info", stream=stream, context={"start_id": "a"})
    for _ in range(3):
        log.info("lost")
    stream.broken = False
    log.info("seen")
    log.info("after")
    seen, after = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (seen["event"], seen["dropped"], seen["start_id"]) == ("seen", 3, "a")
    assert "dropped" not in after


def test_a_full_pipe_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        log = JsonLog(level="info")
        put, writers = log._put, set()

        def noting(text: str, **options: Any) -> bool:
            writers.add(threading.current_thread().name)
            return put(text, **options)

        monkeypatch.setattr(log, "_put", noting)
        log.in_background()
        # Far more than the pipe takes, and nobody reads: whoever wrote would not come back.
        for number in range(3000):
            log.info("line", number=number, filling="x" * 200)
        assert writers <= {"log"}
        assert len(log._waiting) <= 1000
        log.close(within_s=0.1)
        # What waited comes out as soon as somebody reads.
        first = json.loads(reader.readline())
        assert first["number"] == 0
        # The writer has one more line in hand, and must not find another test's pipe in its place.
        assert log._writer is not None
        while log._writer.is_alive():
            if select.select([reading], [], [], 0.01)[0]:
                os.read(reading, 65_536)


def test_a_pipe_that_another_process_has_just_filled_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()
    write = os.write
    filled = iter([True, False, False, True, True, False])

    def quicker(target: int, data: bytes) -> int:
        if target == writing and next(filled, False):
            raise BlockingIOError
        return write(target, data[:50_000])

    with os.fdopen(reading, "rb") as reader, ThreadPoolExecutor(1) as beside:
        with os.fdopen(writing, "w") as stdout:
            monkeypatch.setattr(sys, "stdout", stdout)
            monkeypatch.setattr(os, "write", quicker)
            everything = beside.submit(reader.read)
            log = JsonLog(level="info")
            for number in range(2):
                log.info("line", number=number, filling="x" * 100_000)
        lines = [json.loads(line) for line in everything.result().splitlines()]
    assert [(line["number"], len(line["filling"])) for line in lines] == [
        (0, 100_000),
        (1, 100_000),
    ]
    assert all("dropped" not in line for line in lines)


def test_a_line_that_a_pipe_takes_in_pieces_stays_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who shares the pipe may have set it not to block."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with os.fdopen(reading, "rb") as reader, ThreadPoolExecutor(1) as beside:
        with os.fdopen(writing, "w") as stdout:
            monkeypatch.setattr(sys, "stdout", stdout)
            everything = beside.submit(reader.read)
            log = JsonLog(level="info")
            log.in_background()
            for number in range(3):
                log.info("line", number=number, filling="x" * 200_000)
            log.close(within_s=60)
        lines = [json.loads(line) for line in everything.result().splitlines()]
    assert [(line["number"], len(line["filling"])) for line in lines] == [
        (number, 200_000) for number in range(3)
    ]


def test_closing_writes_what_waits() -> None:
    stream = io.StringIO()
    log = JsonLog(level="info", stream=stream)
    log.in_background()
    for _ in range(100):
        log.info("line")
    log.close(within_s=60)
    assert len(stream.getvalue().splitlines()) == 100


def test_lines_are_gathered_but_no_piece_is_longer_than_the_kernel_keeps_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pieces: list[str] = []
    all_logged = threading.Event()
    log = JsonLog(level="info", stream=io.StringIO())

    def put(text: str, **_: Any) -> bool:
        pieces.append(text)
        # A writer that was quicker than the lines come would have nothing to gather.
        return all_logged.wait(60)

    monkeypatch.setattr(log, "_put", put)
    log.in_background()
    for number in range(200):
        log.info("line", number=number, filling="é" * 50)
    log.info("long", filling="x" * 3 * select.PIPE_BUF)
    all_logged.set()
    log.close(within_s=60)
    lines = [json.loads(line) for piece in pieces for line in piece.splitlines()]
    assert [line.get("number") for line in lines] == [*range(200), None]
    assert len(pieces) < 100
    assert all(len(piece.encode()) <= select.PIPE_BUF for piece in pieces[:-1])
