"""The client's figures against a target whose latencies are known."""

import csv
import json
from dataclasses import asdict
from itertools import chain, repeat
from pathlib import Path

import pytest

from dr_experiments.analysis import analyse
from dr_experiments.client import Client
from dr_experiments.pricing import PriceTable
from dr_experiments.records import (
    STUDY_COLUMNS,
    RunContext,
    read_jsonl,
    records_of,
    write_csv,
    write_jsonl,
    write_study_csv,
)
from dr_experiments.scenarios import ScenarioResult, warm
from dr_experiments.targets import TargetDescription, TargetError
from tests.unit.dr_experiments.fakes import PAYLOAD, FakeClock, FakeTarget, answer

CONTEXT = RunContext(run_id="r1", git_commit="abc", seed=7)


def run(steps: list[float | TargetError], *, interval_s: float = 1.0, **kwargs: object):
    clock = FakeClock()
    target = FakeTarget(clock, iter(steps), **kwargs)  # type: ignore[arg-type]
    client = Client(target, clock=clock, sleep=clock.sleep)
    result = warm(client, PAYLOAD, requests=len(steps) - 1, interval_s=interval_s)
    return result, target


def test_the_first_request_is_not_counted_and_starts_keep_their_interval() -> None:
    result, target = run([5.0, 0.1, 0.2, 0.3], interval_s=1.0)
    assert result.warm_up.full_latency_s == pytest.approx(5.0)
    assert [m.full_latency_s for m in result.answered] == pytest.approx([0.1, 0.2, 0.3])
    assert target.starts == pytest.approx([100, 105, 106, 107])
    assert [m.start_offset_s for m in result.measurements] == pytest.approx([0, 1, 2])


def test_an_answer_slower_than_the_interval_delays_the_next_and_no_time_is_lost() -> None:
    result, target = run([0.0, 2.5, 0.1, 0.1], interval_s=1.0)
    # The third start is due at 102 and happens at once at 102.5; the schedule is then regained.
    assert target.starts[1:] == pytest.approx([100, 102.5, 102.6])
    # What is reported is the gap that was reached, not the one that was asked for.
    assert result.mean_gap_s == pytest.approx(1.3)
    assert len(result.answered) == 3


def test_failures_are_counted_and_never_become_latencies() -> None:
    throttled = TargetError("throttled", "too many requests", status=429)
    result, _ = run([0.0, 0.1, throttled, 0.1, throttled, 0.1])
    assert [m.full_latency_s for m in result.answered] == pytest.approx([0.1] * 3)
    assert [m.outcome for m in result.failures] == ["throttled", "throttled"]
    for failure in result.failures:
        assert failure.full_latency_s is None
        assert failure.failed_after_s == pytest.approx(9)
    row = analyse(result, prices=PriceTable.load(), region="us-east-1")
    assert row.round_trip is not None
    assert (row.requests, row.failed, row.round_trip.n) == (5, 2, 3)
    assert row.round_trip.maximum == pytest.approx(100)
    assert row.failure_reasons == ("throttled: too many requests",)


def test_wrong_answers_are_failures_however_fast() -> None:
    result, _ = run([0.0, 0.001, 0.001], body=b'{"predictions": [2]}')
    assert not result.answered
    assert {m.outcome for m in result.failures} == {"wrong-answer"}
    row = analyse(result, prices=PriceTable.load(), region="us-east-1")
    assert row.round_trip is None
    assert row.cost is None


def test_a_container_cannot_take_longer_than_the_round_trip() -> None:
    result, _ = run([0.0, 0.01, 0.0099], answers=repeat(answer(requestLatency=0.01)))
    assert [m.outcome for m in result.measurements] == ["ok", "wrong-answer"]
    assert result.failures[0].error == "the container says that it took longer than the round trip"


def test_a_container_that_starts_inside_the_run_is_kept_apart() -> None:
    """Field problem B02: cold samples in a warm table."""
    fresh = answer(container={"start_id": "c2", "started_to_ready_ms": 1, "requests_before": 0})
    answers = chain([answer(), answer(), fresh], repeat(answer()))
    result, _ = run([0.0, 0.1, 8.0, 0.1], answers=answers)
    assert [m.full_latency_s for m in result.answered] == pytest.approx([0.1, 0.1])
    assert [m.full_latency_s for m in result.cold] == pytest.approx([8.0])
    row = analyse(result, prices=PriceTable.load(), region="us-east-1")
    assert (row.requests, row.cold, row.failed) == (3, 1, 0)


def test_cost_is_estimated_from_the_time_in_the_container() -> None:
    result, _ = run([0.0, 0.5, 0.5], answers=repeat(answer()))
    row = analyse(result, prices=PriceTable.load(), region="us-east-1")
    assert row.cost is not None
    # 1000 x 0.010 s (requestLatency, not the client's 0.5 s) x 0.00004 USD.
    assert float(row.cost.parts_usd_per_1000["compute"]) == pytest.approx(0.0004)
    assert row.cost_full_use is None


def test_a_price_that_is_not_known_leaves_the_latency_and_says_why() -> None:
    result, _ = run([0.0, 0.5, 0.5])
    row = analyse(result, prices=PriceTable.load(), region="ap-south-1")
    assert row.round_trip is not None
    assert row.cost is None
    assert "ap-south-1" in str(row.cost_missing)


def test_realtime_is_priced_at_a_rate_and_at_full_use() -> None:
    description = TargetDescription(
        name="dr-realtime-mobilenet-m5-xlarge", mode="realtime", instance_type="ml.m5.xlarge"
    )
    result, _ = run([0.0, 0.5], description=description, answers=repeat(answer()))
    row = analyse(result, prices=PriceTable.load(), region="us-east-1", requests_per_hour=100)
    assert row.cost is not None
    assert row.cost_full_use is not None
    assert float(row.cost.parts_usd_per_1000["instances"]) == pytest.approx(2.3)
    # 10 ms in the container: 360,000 requests an hour.
    full = float(row.cost_full_use.parts_usd_per_1000["instances"])
    assert full == pytest.approx(230 / 360_000)


@pytest.mark.parametrize(("requests", "interval_s"), [(0, 1.0), (1, -1.0)])
def test_impossible_scenarios_are_refused(requests: int, interval_s: float) -> None:
    clock = FakeClock()
    client = Client(FakeTarget(clock, repeat(0.1)), clock=clock, sleep=clock.sleep)
    with pytest.raises(ValueError, match="must"):
        warm(client, PAYLOAD, requests=requests, interval_s=interval_s)


@pytest.fixture
def failed_once() -> ScenarioResult:
    result, _ = run([0.2, 0.1, TargetError("timeout", "no answer within 70 s"), 0.3])
    return result


def test_json_lines_come_back_as_they_were_written(
    tmp_path: Path, failed_once: ScenarioResult
) -> None:
    records = records_of(failed_once, context=CONTEXT)
    path = tmp_path / "requests.jsonl"
    write_jsonl(path, records)
    assert read_jsonl(path) == records
    first = json.loads(path.read_text().splitlines()[0])
    assert (first["counted"], first["run_id"], first["model_sha256"]) == (False, "r1", "ab" * 32)
    path.write_text("{}\n")
    with pytest.raises(ValueError, match="line 1"):
        read_jsonl(path)


def test_csv_has_the_columns_of_the_study_in_seconds(
    tmp_path: Path, failed_once: ScenarioResult
) -> None:
    records = records_of(failed_once, context=CONTEXT)
    assert write_study_csv(tmp_path / "study.csv", records) == 2
    with (tmp_path / "study.csv").open() as stream:
        rows = list(csv.reader(stream))
    assert rows[0] == ["", *STUDY_COLUMNS]
    assert [float(row[3]) for row in rows[1:]] == pytest.approx([0.1, 0.3])
    assert [row[0] for row in rows[1:]] == ["0", "1"]


def test_the_columns_are_those_of_the_studys_own_files(shared_data: Path) -> None:
    own = (shared_data / "thesis-measurements" / "warm-up-VGG19-2gb.csv").read_text()
    assert own.splitlines()[0] == ",".join(["", *STUDY_COLUMNS])


def test_the_full_table_keeps_failures_with_empty_latencies(
    tmp_path: Path, failed_once: ScenarioResult
) -> None:
    write_csv(tmp_path / "requests.csv", records_of(failed_once, context=CONTEXT))
    with (tmp_path / "requests.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["outcome"] for row in rows] == ["ok", "timeout", "ok"]
    assert rows[1]["fullLatency"] == ""
    assert rows[0]["configuration"] == "dr-serverless-mobilenet-2048"
    assert {row["platform"] for row in rows} == {"local-aws"}


def test_records_hold_neither_the_image_nor_what_was_found(failed_once: ScenarioResult) -> None:
    for record in records_of(failed_once, context=CONTEXT):
        text = json.dumps(asdict(record))
        for word in ("Moderate", "grade", "probab", "image/jpeg", "body"):
            assert word not in text
    # Not in what a log or a traceback would print, either.
    assert "\\xff" not in repr(PAYLOAD)
    assert "Moderate" not in repr(failed_once)
