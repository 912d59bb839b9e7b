"""Cold starts: verified by the container's own start id, and split into phases."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat
from typing import Any

import pytest

from dr_experiments.client import Client
from dr_experiments.cold_start import (
    ANSWER,
    CONNECTION,
    FIRST_PREDICTION,
    IMPORTS,
    MODEL_LOAD,
    PLATFORM,
    PROCESS_START,
    ReadyLine,
    read_ready_lines,
    split_cold_start,
)
from dr_experiments.records import RunContext, records_of
from dr_experiments.scenarios import InterruptedScenario, UnknownContainerError, cold, realtime
from dr_experiments.targets import TargetError
from tests.unit.dr_experiments.fakes import PAYLOAD, FakeClock, FakeTarget, answer

CONTEXT = RunContext(run_id="r1", git_commit=None)
READY = ReadyLine(imports_ms=150.0, model_load_ms=60.0, warm_up_ms=20.0, started_to_ready_ms=400.0)


class QuietTarget(FakeTarget):
    """A target whose platform says nothing about set-up, as AWS does."""

    def send(self, payload: Any) -> Any:
        return replace(super().send(payload), platform_ms={})


def container(start_id: str, before: int) -> dict[str, Any]:
    return answer(
        container={"start_id": start_id, "started_to_ready_ms": 400.0, "requests_before": before}
    )


def run(answers: Iterator[dict[str, Any]], **options: Any):
    clock = FakeClock()
    target = QuietTarget(clock, repeat(5.0), answers=answers)
    client = Client(target, clock=clock, sleep=clock.sleep)
    return cold(client, PAYLOAD, **options), target


def test_each_fresh_container_counts_once_and_comes_after_its_gap() -> None:
    answers = iter([container("a", 0), container("b", 0), container("c", 0)])
    result, target = run(answers, requests=3, gap_s=900)
    assert [m.start_id for m in result.cold] == ["a", "b", "c"]
    # The gap is without a request: it begins at the end of the answer before.
    assert target.starts == pytest.approx([1000, 1905, 2810])
    assert result.answered == ()


def test_a_container_that_stayed_warm_is_waited_for_again() -> None:
    answers = iter([container("a", 0), container("a", 1), container("b", 0)])
    result, target = run(answers, requests=2, gap_s=60, attempts=3)
    assert [m.start_id for m in result.cold] == ["a", "b"]
    assert [m.start_id for m in result.answered] == ["a"]
    assert len(target.starts) == 3


def test_it_ends_with_fewer_where_no_fresh_container_comes() -> None:
    answers = iter([container("a", number) for number in range(9)])
    result, target = run(answers, requests=5, gap_s=60, attempts=2)
    assert len(result.cold) == 1
    assert len(target.starts) == 3


def test_a_container_that_always_says_it_is_fresh_is_one_container() -> None:
    result, target = run(repeat(container("a", 0)), requests=3, gap_s=60, attempts=2)
    assert [m.start_id for m in result.cold] == ["a"]
    assert len(result.answered) == len(target.starts) - 1 == 2
    records = records_of(result, context=CONTEXT)
    assert [record.cold for record in records] == [True, False, False]


@pytest.mark.parametrize("start_id", ["", None])
def test_nothing_is_taken_for_a_fresh_container_that_does_not_say_which_it_is(
    start_id: str | None,
) -> None:
    nameless = answer(container={"start_id": start_id, "requests_before": 0})
    with pytest.raises(UnknownContainerError, match="have no start_id"):
        run(repeat(nameless), requests=2, gap_s=0)


def test_a_container_that_is_renewed_needs_no_gap() -> None:
    numbers: list[int] = []
    answers = (container(f"c{number}", 0) for number in range(9))
    result, _ = run(answers, requests=3, gap_s=0, renew=lambda: numbers.append(1))
    assert (len(result.cold), len(numbers)) == (3, 3)


def test_ctrl_c_while_a_container_is_renewed_keeps_what_was_measured() -> None:
    numbers: list[int] = []

    def renew() -> None:
        if numbers:
            raise KeyboardInterrupt
        numbers.append(1)

    with pytest.raises(InterruptedScenario) as caught:
        run(iter([container("a", 0)]), requests=3, gap_s=0, renew=renew)
    assert len(caught.value.result.measurements) == 1


def test_every_request_of_the_realtime_scenario_counts() -> None:
    clock = FakeClock()
    client = Client(FakeTarget(clock, repeat(0.1)), clock=clock, sleep=clock.sleep)
    result = realtime(client, PAYLOAD, requests=4, interval_s=5)
    assert result.warm_up is None
    assert [m.start_offset_s for m in result.measurements] == pytest.approx([0, 5, 10, 15])
    records = records_of(result, context=CONTEXT)
    assert [(r.index, r.counted) for r in records] == [(n, True) for n in (1, 2, 3, 4)]
    assert records[3].response_time_s == pytest.approx(0.1)


@pytest.mark.parametrize(
    "options", [{"requests": 0}, {"gap_s": -1}, {"attempts": 0}], ids=lambda o: next(iter(o))
)
def test_impossible_cold_runs_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        run(repeat(container("a", 0)), **options)


def test_the_phases_add_up_to_the_round_trip_and_estimates_are_named() -> None:
    result, _ = run(iter([container("a", 0)]), requests=1, gap_s=0)
    (measurement,) = result.cold
    measurement = replace(measurement, phases_ms={"dns_ms": 30.0, "connect_ms": 20.0})
    split = split_cold_start(measurement, ready=READY)
    assert split is not None
    assert sum(split.phases_s.values()) == pytest.approx(5.0)
    assert split.phases_s == pytest.approx(
        {
            CONNECTION: 0.05,
            PLATFORM: 5.0 - 0.4 - 0.01 - 0.05,
            PROCESS_START: 0.17,
            IMPORTS: 0.15,
            MODEL_LOAD: 0.06,
            FIRST_PREDICTION: 0.02,
            ANSWER: 0.01,
        }
    )
    assert split.estimated == (PLATFORM, PROCESS_START)
    without = split_cold_start(measurement)
    assert without is not None
    assert without.phases_s[PROCESS_START] == pytest.approx(0.4)
    assert IMPORTS not in without.phases_s
    assert sum(without.phases_s.values()) == pytest.approx(5.0)


def test_what_did_not_wait_for_a_start_is_not_split() -> None:
    result, _ = run(iter([container("a", 0)]), requests=1, gap_s=0)
    (measurement,) = result.cold
    # Ready long before: the start lies outside the round trip.
    assert split_cold_start(replace(measurement, full_latency_s=0.03)) is None
    assert split_cold_start(replace(measurement, answer=container("a", 4))) is None  # type: ignore[arg-type]
    failed = replace(measurement, answer=None, full_latency_s=None)
    assert split_cold_start(failed) is None


def test_two_clocks_that_disagree_by_less_than_a_tick_still_give_phases_that_add_up() -> None:
    result, _ = run(iter([container("a", 0)]), requests=1, gap_s=0)
    (measurement,) = result.cold
    # The container says 0.4 s to its readiness and 0.01 s for the answer.
    split = split_cold_start(replace(measurement, full_latency_s=0.402), ready=READY)
    assert split is not None
    assert split.phases_s[PLATFORM] == 0
    assert sum(split.phases_s.values()) == pytest.approx(0.402)
    assert split_cold_start(replace(measurement, full_latency_s=0.38), ready=READY) is None


def test_records_carry_the_phases_of_their_own_container() -> None:
    result, _ = run(iter([container("a", 0), container("b", 0)]), requests=2, gap_s=0)
    first, second = records_of(result, context=CONTEXT, ready={"a": READY})
    assert first.phases is not None
    assert first.phases[IMPORTS] == pytest.approx(0.15)
    assert first.phases_estimated == [PLATFORM, PROCESS_START]
    assert second.phases is not None
    assert IMPORTS not in second.phases


def test_ready_lines_are_found_among_other_lines() -> None:
    line = {
        "event": "ready",
        "start_id": "a",
        "imports_ms": 150.0,
        "model_load_ms": 60.0,
        "warm_up_ms": 20.0,
        "started_to_ready_ms": 400.0,
        "resident_mib": 79,
    }
    lines = ["Traceback", "3", "{}", json.dumps({"event": "ready"}), json.dumps(line)]
    assert read_ready_lines(lines) == {"a": READY}


def test_a_failure_is_no_cold_start() -> None:
    clock = FakeClock()
    steps = iter([TargetError("timeout", "no answer within 70 s")] * 2)
    client = Client(FakeTarget(clock, steps), clock=clock, sleep=clock.sleep)
    result = cold(client, PAYLOAD, requests=1, gap_s=1, attempts=2)
    assert (len(result.cold), len(result.failures)) == (0, 2)
