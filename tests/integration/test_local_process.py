"""`dr bench` with a process of this machine: each cold start is one, inside the round trip."""

from pathlib import Path

import psutil
import pytest

from dr_cli.errors import CommandError
from dr_cli.predict import Place
from dr_cli.scenario_runs import Sending, bench_cold, bench_load, bench_realtime
from dr_experiments.records import read_jsonl
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
