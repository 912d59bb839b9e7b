"""`dr bench` with a process of this machine: each cold start is one, inside the round trip."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from dr_cli.errors import CommandError
from dr_cli.local_process import LocalProcess
from dr_cli.packages import opened_package
from dr_cli.predict import Place
from dr_cli.scenario_runs import Sending, bench_cold, bench_load, bench_realtime
from dr_experiments.records import read_jsonl
from dr_experiments.targets import Payload
from tests.service_harness import TINY_MODEL


def test_each_cold_request_meets_a_process_of_its_own(tmp_path: Path) -> None:
    sending = Sending(photograph=None, seed=7, out=tmp_path)
    bench_cold(Place(), sending, requests=2, gap_s=None, attempts=1, model=TINY_MODEL)
    records = read_jsonl(tmp_path / "requests.jsonl")
    assert [record.cold for record in records] == [True, True]
    assert len({record.container_start_id for record in records}) == 2
    for record in records:
        assert record.configuration == "process-tiny-test"
        assert (record.mode, record.platform, record.region) == ("local", None, None)
        assert record.phases is not None
        assert record.fullLatency == pytest.approx(sum(record.phases.values()))
        assert all(record.phases[phase] > 0 for phase in ("imports", "model_load"))
        assert record.phases_estimated == ["platform", "process_start"]
    # Both have ended with the command.
    assert not [
        child
        for child in psutil.Process().children(recursive=True)
        if "inference_image.serve" in " ".join(child.cmdline())
    ]


def test_other_scenarios_ask_one_process_that_stands_for_the_run(tmp_path: Path) -> None:
    sending = Sending(photograph=None, seed=7, out=tmp_path)
    bench_realtime(Place(), sending, requests=3, interval_s=0, model=TINY_MODEL)
    records = read_jsonl(tmp_path / "requests.jsonl")
    assert [record.outcome for record in records] == ["ok"] * 3
    assert {record.configuration for record in records} == {"process-tiny-test"}
    assert len({record.container_start_id for record in records}) == 1


def test_a_process_and_another_place_are_two_things_to_measure(tmp_path: Path) -> None:
    sending, both = Sending(photograph=None, seed=7, out=tmp_path), Place(url="http://127.0.0.1:9")
    for bench in (
        lambda: bench_cold(both, sending, requests=1, gap_s=0, attempts=1, model=TINY_MODEL),
        lambda: bench_realtime(both, sending, requests=1, interval_s=0, model=TINY_MODEL),
        lambda: bench_load(
            both, sending, shape="constant", users=1, duration_s=1, think_s=0, rate_per_s=1,
            max_in_flight=1, model=TINY_MODEL,
        ),
    ):  # fmt: skip
        with pytest.raises(CommandError, match="name one thing to measure"):
            bench()


@pytest.fixture
def command(
    tmp_path: Path, repository: Path
) -> Iterator[Callable[[str], tuple[psutil.Popen, list[psutil.Process]]]]:
    """Begins a scenario and returns it with its service, once two requests are written down."""
    begun: list[psutil.Process] = []

    def begin(scenario: str) -> tuple[psutil.Popen, list[psutil.Process]]:
        options = ["--requests", "1000", "--model", str(TINY_MODEL), "--out", str(tmp_path)]
        process = psutil.Popen(
            [sys.executable, "-m", "dr_cli", "bench", scenario, *options],
            cwd=repository,
            stdout=subprocess.DEVNULL,
        )
        begun.append(process)
        deadline = time.monotonic() + 60
        records = tmp_path / "requests.jsonl"
        while not (records.is_file() and records.read_bytes().count(b"\n") >= 2):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        while not (services := process.children()):
            time.sleep(0.001)
        begun.extend(services)
        return process, services

    yield begin
    for one in begun:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()


@pytest.mark.parametrize("scenario", ["cold", "realtime"])
def test_ctrl_c_ends_the_run_and_its_process_and_keeps_what_was_measured(
    tmp_path: Path,
    command: Callable[[str], tuple[psutil.Popen, list[psutil.Process]]],
    scenario: str,
) -> None:
    process, services = command(scenario)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 130
    assert not psutil.wait_procs(services, timeout=10)[1]
    assert len(read_jsonl(tmp_path / "requests.jsonl")) >= 2
    assert (tmp_path / "requests.csv").is_file()


@pytest.mark.parametrize("scenario", ["cold", "realtime"])
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux's kernel ends it")
def test_a_killed_run_leaves_no_process(
    command: Callable[[str], tuple[psutil.Popen, list[psutil.Process]]], scenario: str
) -> None:
    process, services = command(scenario)
    process.kill()
    process.wait(timeout=10)
    assert not psutil.wait_procs(services, timeout=10)[1]


def test_ctrl_c_while_a_process_is_being_ended_is_not_lost(tmp_path: Path) -> None:
    payload = Payload(body=b"no picture", content_type="image/jpeg")
    with (
        opened_package(TINY_MODEL) as (folder, spec),
        contextlib.closing(LocalProcess(folder, spec)) as target,
    ):
        with contextlib.suppress(Exception):
            target.send(payload)
        process = target._process
        assert process is not None
        ending, wait = process.terminate, process.wait

        def interrupted() -> None:
            ending()
            signal.raise_signal(signal.SIGINT)

        process.terminate = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            target.renew()
        assert wait(0) is not None
