"""Requests are in the file as soon as they were answered."""

import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dr_experiments.client import Measurement
from dr_experiments.journal import Journal
from dr_experiments.records import RunContext, read_jsonl
from dr_experiments.targets import TargetDescription

CONTEXT = RunContext(run_id="run", git_commit=None, seed=7)
TARGET = TargetDescription(name="one", mode="local")


def measurement(offset_s: float = 0.0) -> Measurement:
    return Measurement(
        started_at=datetime(2026, 11, 29, tzinfo=UTC),
        outcome="timeout",
        full_latency_s=None,
        failed_after_s=1.0,
        start_offset_s=offset_s,
    )


def journal(path: Path, **others: Any) -> Journal:
    named = {"target": TARGET, "scenario": "warm", "interval_s": 1.0, "context": CONTEXT}
    return Journal(path, **{**named, **others})


def test_each_line_is_there_before_the_next_request(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    with journal(path) as note:
        assert not path.exists()
        note(measurement(), False)
        for number in range(1, 4):
            note(measurement(number))
            records = read_jsonl(path)
            assert [record.index for record in records] == [0, *range(1, number + 1)]
            assert [record.counted for record in records] == [False] + [True] * number
    assert {(r.run_id, r.scenario, r.configuration, r.outcome) for r in records} == {
        ("run", "warm", "one", "timeout")
    }


def test_a_second_series_goes_on_in_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    for name in ("one", "two"):
        with journal(path, target=replace(TARGET, name=name)) as note:
            note(measurement())
    found = [(record.configuration, record.index) for record in read_jsonl(path)]
    assert found == [("one", 1), ("two", 1)]


def test_many_threads_write_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    with journal(path) as note:
        threads = [
            threading.Thread(target=lambda: [note(measurement()) for _ in range(50)])
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(record.index for record in read_jsonl(path)) == list(range(1, 401))


def test_what_comes_after_the_end_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    begun: list[bool] = []
    with journal(path, before_first=lambda: begun.append(path.exists())) as note:
        note(measurement())
        note(measurement())
    note(measurement())
    assert len(read_jsonl(path)) == 2
    assert begun == [False]
