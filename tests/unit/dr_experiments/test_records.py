"""Files of records as they should be, as a killed run leaves them, and as nobody wrote them."""

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from dr_cli.errors import explain
from dr_experiments.records import RecordsError, read_jsonl, write_jsonl
from tests.unit.dr_experiments.record_fakes import answered, cold_starts, failed

NAME = "dr-serverless-mobilenet-2048"
NOT_A_RECORD = "line 2 is not a request record: "


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "requests.jsonl"
    write_jsonl(made, answered(NAME, [0.1, 0.2, 0.3]))
    return made


def change(path: Path, **changes: Any) -> None:
    """Gives the second record these fields; a field of `...` is taken away."""
    lines = path.read_text().splitlines()
    entry = {**json.loads(lines[1]), **changes}
    lines[1] = json.dumps({key: value for key, value in entry.items() if value is not ...})
    path.write_text("\n".join(lines) + "\n")


def refusal(path: Path) -> str:
    with pytest.raises(RecordsError) as caught:
        read_jsonl(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: ")
    assert "\n" not in said
    assert explain(caught.value) == said
    return said.removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"run_id": ...}, "it has no run_id"),
        ({"bytes_in": ..., "index": ...}, "it has no index, bytes_in"),
        ({"colour": 1}, 'no field of schema 5 is called "colour"'),
        ({"schema": ...}, "its schema must be a whole number; got null"),
        ({"schema": "4"}, 'its schema must be a whole number; got "4"'),
        ({"schema": True}, "its schema must be a whole number; got true"),
        ({"run_id": 5}, "run_id must be a text; got 5"),
        ({"configuration": None}, "configuration must be a text; got null"),
        ({"model_id": ["a"]}, 'model_id must be a text or null; got ["a"]'),
        ({"counted": 1}, "counted must be true or false; got 1"),
        ({"cold": "no"}, 'cold must be true or false or null; got "no"'),
        ({"index": True}, "index must be a whole number; got true"),
        ({"index": 1.5}, "index must be a whole number; got 1.5"),
        ({"index": -1}, "index must be at least 0; got -1"),
        ({"bytes_in": -1}, "bytes_in must be at least 0; got -1"),
        ({"bytes_out": "700"}, 'bytes_out must be a whole number or null; got "700"'),
        ({"retries": None}, "retries must be a whole number; got null"),
        ({"memory_mib": 0}, "memory_mib must be above 0; got 0"),
        ({"fullLatency": 0.0}, "fullLatency must be above 0; got 0.0"),
        ({"fullLatency": -0.1}, "fullLatency must be above 0; got -0.1"),
        ({"requestLatency": False}, "requestLatency must be a finite number or null; got false"),
        ({"requestLatency": "0,1"}, 'requestLatency must be a finite number or null; got "0,1"'),
        ({"predictionLatency": -1}, "predictionLatency must be at least 0; got -1"),
        ({"fullLatency": float("nan")}, "fullLatency must be a finite number or null; got NaN"),
        ({"wait_ms": float("inf")}, "wait_ms must be a finite number or null; got Infinity"),
        ({"fullLatency": 1e300}, "fullLatency must be at most 1,000,000,000,000; got 1e+300"),
        ({"bytes_in": 10**90}, "bytes_in must be at most 1,000,000,000,000; got 1000"),
        ({"started_at": "yesterday"}, "started_at must be a moment"),
        ({"started_at": "2026-11-28T10:00:00"}, "started_at must be a moment"),
        ({"platform": "moon"}, 'platform must be one of aws, local-aws, or null; got "moon"'),
        ({"phases": {"answer": "1"}}, "phases must be an object of finite numbers or null"),
        ({"phases": [1]}, "phases must be an object of finite numbers or null"),
        ({"phases_estimated": [1]}, "phases_estimated must be a list of texts or null"),
    ],
)
def test_a_field_that_a_run_does_not_write_is_refused_by_its_line(
    path: Path, changes: dict[str, Any], said: str
) -> None:
    change(path, **changes)
    assert refusal(path).startswith(NOT_A_RECORD + said)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"fullLatency": 0.01, "requestLatency": 5.0},
         "it has a longer requestLatency than fullLatency, of which it is a part"),
        ({"requestLatency": 0.02, "predictionLatency": 0.03},
         "it has a longer predictionLatency than requestLatency, of which it is a part"),
        ({"fullLatency": None}, "its outcome is ok, and it has no fullLatency"),
        ({"requestLatency": None}, "its outcome is ok, and it has no requestLatency"),
        ({"outcome": "excellent"}, "outcome must be one of ok, throttled, timeout, "),
        ({"outcome": "timeout"},
         "its outcome is timeout, and it has a requestLatency, as only an answer has"),
        ({"outcome": "timeout", "requestLatency": None, "predictionLatency": None},
         "its outcome is timeout, and it has a fullLatency, as only an answer has"),
    ],
)  # fmt: skip
def test_fields_that_contradict_each_other_are_refused(
    path: Path, changes: dict[str, Any], said: str
) -> None:
    change(path, **changes)
    assert refusal(path).startswith(NOT_A_RECORD + said)


def test_two_clocks_may_differ_by_a_thousandth(path: Path) -> None:
    change(path, fullLatency=0.2, requestLatency=0.2001, predictionLatency=0.2001)
    assert read_jsonl(path)[1].requestLatency == 0.2001
    change(path, requestLatency=0.2003)
    assert "longer requestLatency" in refusal(path)


def test_another_schema_is_told_by_its_number_before_its_fields(path: Path) -> None:
    change(path, schema=6, colour="new", bytes_in="many")
    assert refusal(path) == (
        "line 2 is not a request record that this version can read: it has schema 6, and schemas "
        "1 to 5 are known; read it with the version of dr-endpoints that wrote it"
    )
    change(path, schema=0)
    assert "it has schema 0" in refusal(path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"", "it is not JSON"),
        (b"nonsense", "it is not JSON"),
        (b'{"schema": 4,', "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b'{"schema": ' + b"1" * 5000 + b"}", "it is not JSON"),
        (b"[1]", "it is not a JSON object"),
        (b"3", "it is not a JSON object"),
    ],
)
def test_a_broken_line_before_the_last_is_refused(path: Path, line: bytes, said: str) -> None:
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([lines[0], line, lines[2], b""]))
    assert refusal(path) == NOT_A_RECORD + said


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "latin-1"])
def test_another_encoding_is_named(path: Path, encoding: str) -> None:
    path.write_bytes(path.read_text().replace("c0ffee", "caf\N{LATIN SMALL LETTER E WITH ACUTE}")
                     .encode(encoding))  # fmt: skip
    said = refusal(path)
    # UTF-16 without its mark is valid UTF-8 full of NULs.
    assert said in ("line 1 is not UTF-8 text", "line 1 is not a request record: it is not JSON")


def test_the_mark_that_editors_write_before_utf8_is_no_fault(path: Path) -> None:
    records = read_jsonl(path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert read_jsonl(path) == records


@pytest.mark.parametrize("kept", [1, 12, 300, -1])
def test_a_last_line_that_a_kill_cut_off_is_left_out_with_a_warning(
    path: Path, caplog: pytest.LogCaptureFixture, kept: int
) -> None:
    records = read_jsonl(path)
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([*lines[:2], lines[2][:kept]]))
    with caplog.at_level(logging.WARNING):
        assert read_jsonl(path) == records[:2]
    assert [entry.getMessage() for entry in caplog.records] == [
        f"{path}: its last line, 3, is incomplete and is left out"
    ]


def test_every_place_at_which_a_write_can_end_keeps_what_was_whole(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    write_jsonl(path, [*cold_starts(NAME, [3.0]), failed(NAME, 2, error='said "}" and }')])
    content = path.read_bytes()
    records = read_jsonl(path)
    for end in range(len(content)):
        path.write_bytes(content[:end])
        assert read_jsonl(path) == records[: content[: end + 1].count(b"\n")], end


def test_the_warning_is_one_sentence_on_stderr(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])
    code = "import sys, pathlib; from dr_experiments.records import read_jsonl\n"
    code += "print(len(read_jsonl(pathlib.Path(sys.argv[1]))))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "2\n"
    assert done.stderr == f"{path}: its last line, 3, is incomplete and is left out\n"


@pytest.mark.parametrize("line", [b"nonsense", b'{"schema": 4,}', b"{}", b'{"schema": nul}'])
def test_a_last_line_that_no_kill_explains_is_refused(path: Path, line: bytes) -> None:
    path.write_bytes(path.read_bytes() + line)
    assert refusal(path).startswith("line 4 is not a request record: ")


def test_a_request_that_is_there_twice_is_refused_with_both_lines(path: Path) -> None:
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[1]]) + "\n")
    assert refusal(path) == (
        f"request 2 of {NAME} (warm, run 20261128T000000Z) is there twice (lines 2 and 4)"
    )


@pytest.mark.parametrize(
    "changes", [{"run_id": "b"}, {"scenario": "cold"}, {"configuration": "b"}, {"index": 9}]
)
def test_another_run_scenario_configuration_or_number_is_another_request(
    path: Path, changes: dict[str, Any]
) -> None:
    (record,) = answered(NAME, [0.1])
    write_jsonl(path, [record, type(record)(**{**asdict(record), **changes})])
    assert len(read_jsonl(path)) == 2


def test_records_of_the_first_schema_and_the_committed_ones_are_read(
    path: Path, repository: Path
) -> None:
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    last = list(entries[0]).index("overhead_latency_ms")
    names = list(entries[0])[: last + 1]
    path.write_text(
        "".join(json.dumps({k: e[k] for k in names} | {"schema": 1}) + "\n" for e in entries)
    )
    assert [one.platform for one in read_jsonl(path)] == [None] * 3
    committed = read_jsonl(repository / "docs/reports/local-study/requests.jsonl")
    assert len(committed) == 312
    assert len(read_jsonl(repository / "docs/reports/local-modes/requests.jsonl")) == 399


def test_what_a_client_writes_can_be_read(path: Path) -> None:
    writers: list[Callable[[], list[Any]]] = [
        lambda: cold_starts(NAME, [3.0, 4.0], phases=False),
        lambda: [failed(NAME, 1), failed(NAME, 2, failed_after_s=0.0, bytes_in=0)],
        # A photograph that cannot be graded: the engine did nothing.
        lambda: [type(one)(**{**asdict(one), "predictionLatency": 0.0})
                 for one in answered(NAME, [0.1])],
        # A little before the first request, and a container that was ready a tick too late.
        lambda: answered(NAME, [0.1], intended_offset_s=-0.01, overhead_latency_ms=-0.1,
                         phases={"process_start": -0.001}),
    ]  # fmt: skip
    for write in writers:
        write_jsonl(path, write())
        assert read_jsonl(path) == write()
