"""`dr bench cold`, `realtime` and `load` against a server on this machine."""

import csv
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dr_cli.errors import CommandError
from dr_cli.predict import Place
from dr_cli.scenario_runs import Sending, bench_cold, bench_load, bench_realtime
from dr_experiments.client import Client, Measurement
from dr_experiments.provenance import code_commit, machine
from dr_experiments.records import read_jsonl
from dr_experiments.targets import Payload
from tests.unit.dr_experiments.http_fakes import served

LOAD = {
    "users": 4,
    "duration_s": 0.5,
    "think_s": 0.0,
    "rate_per_s": 40.0,
    "max_in_flight": 16,
}


@pytest.mark.parametrize("shape", ["constant", "incremental", "random", "spike", "open"])
def test_a_load_leaves_records_and_says_percentiles(
    shape: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sending = Sending(photograph=None, seed=7, out=tmp_path)
    with served(lambda number: 0.01) as (url, seen):
        bench_load(Place(url=url), sending, shape=shape, **LOAD)  # type: ignore[arg-type]
    records = read_jsonl(tmp_path / "requests.jsonl")
    assert len(records) == len(seen) > 3
    assert {record.scenario for record in records} == {f"load-{shape}"}
    # The server may have read the last byte before this process knows that it was sent.
    assert all((r.upload_ms or 0) + (r.wait_ms or 0) >= 10 for r in records)
    assert all((record.user is None) == (shape == "open") for record in records)
    said = capsys.readouterr().out
    assert "0 failed" in said
    assert ("since it was due" in said) == (shape == "open")
    with (tmp_path / "study.csv").open() as stream:
        assert len(list(csv.DictReader(stream))) == len(records)


def test_a_record_names_the_code_and_the_machine_wherever_it_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", str(tmp_path)], check=True, capture_output=True)
    monkeypatch.chdir(tmp_path)
    with served(lambda number: 0.0) as (url, _):
        bench_realtime(
            Place(url=url), Sending(photograph=None, seed=7, out=tmp_path), requests=1, interval_s=0
        )
    (record,) = read_jsonl(tmp_path / "requests.jsonl")
    assert record.git_commit == code_commit() is not None
    assert record.machine == machine()


@pytest.mark.parametrize("shape", ["single-stream", "server", "offline"])
def test_loadgen_leaves_records_its_verdict_and_its_logs(
    shape: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sending = Sending(photograph=None, seed=7, out=tmp_path)
    with served(lambda number: 0.005) as (url, seen):
        bench_load(
            Place(url=url), sending, shape=shape, queries=5, latency_bound="800ms",
            **{**LOAD, "duration_s": 0.2},  # type: ignore[arg-type]
        )  # fmt: skip
    records = read_jsonl(tmp_path / "requests.jsonl")
    assert len(records) == len(seen) >= 5
    assert {record.scenario for record in records} == {f"loadgen-{shape}"}
    document = json.loads((tmp_path / "loadgen.json").read_text())
    assert document["asked"]["latency_bound_s"] == 0.8
    assert document["verdict"]["queries"] == len(records)
    said = capsys.readouterr().out
    assert f"{shape}: " in said
    assert f"n = {len(records)}" in said
    assert ("later than 0.8 s" in said) == (shape == "server")
    assert (tmp_path / "loadgen" / "mlperf_log_summary.txt").is_file()

    # Another kind of run in the same folder does not keep the verdict of this one.
    with served(lambda number: 0.0) as (url, _):
        bench_realtime(Place(url=url), sending, requests=1, interval_s=0)
    assert not (tmp_path / "loadgen.json").exists()


def test_an_interrupted_loadgen_run_keeps_what_was_measured(tmp_path: Path) -> None:
    main = threading.get_ident()
    sending = Sending(photograph=None, seed=7, out=tmp_path)

    def delay(number: int) -> float:
        if number == 3:
            signal.pthread_kill(main, signal.SIGINT)
        return 0.0

    with served(delay) as (url, seen), pytest.raises(KeyboardInterrupt):
        bench_load(
            Place(url=url), sending, shape="server", **{**LOAD, "duration_s": 600.0}  # type: ignore[arg-type]
        )  # fmt: skip
    assert len(read_jsonl(tmp_path / "requests.jsonl")) == len(seen) >= 4
    assert not (tmp_path / "loadgen.json").exists()


def test_a_realtime_run_counts_all(tmp_path: Path) -> None:
    sending = Sending(photograph=None, seed=7, out=tmp_path)
    with served(lambda number: 0.0) as (url, _):
        bench_realtime(Place(url=url), sending, requests=3, interval_s=0)
    assert [r.counted for r in read_jsonl(tmp_path / "requests.jsonl")] == [True] * 3


def test_a_cold_run_that_met_no_fresh_container_says_so(tmp_path: Path) -> None:
    sending = Sending(photograph=None, seed=7, out=tmp_path)
    with (
        served(lambda number: 0.0) as (url, seen),
        pytest.raises(CommandError, match="0 of 2 requests met a fresh container"),
    ):
        bench_cold(Place(url=url), sending, requests=2, gap_s=0, attempts=3)
    # What was measured is kept all the same.
    assert len(read_jsonl(tmp_path / "requests.jsonl")) == len(seen) == 3


def test_one_thing_is_measured_with_a_known_shape(tmp_path: Path) -> None:
    sending = Sending(photograph=None, seed=7, out=tmp_path)
    both = Place(url="http://127.0.0.1:9", endpoint="x")
    for where in (both, Place()):
        with pytest.raises(CommandError, match="name one thing"):
            bench_realtime(where, sending, requests=1, interval_s=0)
    with pytest.raises(CommandError, match="random, spike, open, single-stream, server"):
        bench_load(both, sending, shape="wave", **LOAD)  # type: ignore[arg-type]


def test_a_load_that_nobody_answers_is_an_error_with_its_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sending = Sending(photograph=None, seed=7, out=tmp_path)
    with (
        served(lambda number: 0.02, status=lambda number: 500) as (url, _),
        pytest.raises(CommandError, match="no request was answered"),
    ):
        bench_load(Place(url=url), sending, shape="constant", **LOAD)  # type: ignore[arg-type]
    assert "server-error" in capsys.readouterr().out


@pytest.mark.parametrize("what", ["cold", "realtime", "open", "constant"])
def test_ctrl_c_keeps_the_records_of_what_was_measured(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sending = Sending(photograph=None, seed=7, out=tmp_path)
    measured = 0
    plain = Client.measure

    def measure(client: Client, payload: Payload) -> Measurement:
        nonlocal measured
        if threading.current_thread() is threading.main_thread() and measured == 2:
            raise KeyboardInterrupt
        measured += 1
        if measured == 3:
            # Where threads send, the signal comes to the one that waits for them.
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGINT)
        return plain(client, payload)

    monkeypatch.setattr(Client, "measure", measure)
    load = {**LOAD, "users": 1, "duration_s": 30.0}
    with served(lambda number: 0.0) as (url, _):
        run: dict[str, Callable[[], None]] = {
            "cold": lambda: bench_cold(Place(url=url), sending, requests=9, gap_s=0, attempts=9),
            "realtime": lambda: bench_realtime(Place(url=url), sending, requests=9, interval_s=0),
        }
        in_threads = lambda: bench_load(Place(url=url), sending, shape=what, **load)  # noqa: E731
        with pytest.raises(KeyboardInterrupt):
            run.get(what, in_threads)()
    kept = len(read_jsonl(tmp_path / "requests.jsonl"))
    assert kept >= 2
    assert f"Interrupted after {kept} requests; their records were kept." in capsys.readouterr().out


def test_ctrl_c_before_an_answer_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(_client: Client, _payload: Payload) -> Measurement:
        raise KeyboardInterrupt

    monkeypatch.setattr(Client, "measure", measure)
    with served(lambda number: 0.0) as (url, _), pytest.raises(KeyboardInterrupt):
        bench_realtime(
            Place(url=url), Sending(photograph=None, seed=7, out=tmp_path), requests=3, interval_s=0
        )
    assert "no records were written" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def started(out: Path, *words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "dr_cli", "bench", *words, "--out", str(out)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize(
    "words",
    [
        ("realtime", "--requests=500", "--interval-s=0"),
        ("cold", "--requests=500", "--gap-s=0", "--attempts=100"),
        ("load", "--users=3", "--duration-s=600"),
        ("load", "--shape=server", "--rate-per-s=50", "--duration-s=600"),
        ("warm", "--requests=500", "--interval-s=0"),
    ],
    ids=lambda words: "-".join(word.lstrip("-") for word in words[:2]),
)
def test_a_run_that_is_killed_keeps_what_it_measured(
    words: tuple[str, ...], number: signal.Signals, tmp_path: Path
) -> None:
    with served(lambda number: 0.01) as (url, seen):
        run = started(tmp_path, *words, "--url", url)
        try:
            until(lambda: len(seen) > 20)
        finally:
            run.send_signal(number)
            run.communicate(timeout=60)
        answered = len(seen)
    assert run.returncode != 0
    text = (tmp_path / "requests.jsonl").read_text()
    records = [json.loads(line) for line in text.splitlines()]
    # Those under way when it was killed have no line: one a user at most.
    assert answered - 60 <= len(records) <= answered
    assert len(records) >= 10
    assert {record["outcome"] for record in records} == {"ok"}


def until(done: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 60
    while not done():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_earlier_results_are_moved_and_not_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sending = Sending(photograph=None, seed=7, out=tmp_path)
    with served(lambda number: 0.0) as (url, _):
        bench_realtime(Place(url=url), sending, requests=3, interval_s=0)
        good = (tmp_path / "requests.jsonl").read_bytes()
    assert "Earlier results" not in capsys.readouterr().out
    for _ in range(2):
        with pytest.raises(CommandError, match="no request was answered"):
            bench_realtime(Place(url="http://127.0.0.1:1"), sending, requests=2, interval_s=0)
        assert "Earlier results are in" in capsys.readouterr().out
    kept = sorted((tmp_path / "earlier").glob("*/requests.jsonl"))
    assert len(kept) == 2
    assert good in [path.read_bytes() for path in kept]
    assert {path.name for path in kept[0].parent.iterdir()} == {
        "requests.jsonl", "requests.csv", "study.csv",
    }  # fmt: skip
    assert len(read_jsonl(tmp_path / "requests.jsonl")) == 2


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_sent() -> None:
    for out in ("/proc/results", "/sys"):
        sending = Sending(photograph=None, seed=7, out=Path(out))
        with (
            served(lambda number: 0.0) as (url, seen),
            pytest.raises(CommandError, match=r"cannot be (made|written) .*name another --out"),
        ):
            bench_realtime(Place(url=url), sending, requests=3, interval_s=0)
        assert seen == []
