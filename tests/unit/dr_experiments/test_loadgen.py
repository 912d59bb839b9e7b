"""Load by MLPerf LoadGen against servers with known delays."""

import signal
import threading
from pathlib import Path

import numpy as np
import pytest

from benchmarks.stalled_server import STALL_S, by_loadgen, closed, seconds_waited
from dr_experiments import loadgen
from dr_experiments.client import Client, Measurement
from dr_experiments.loadgen import (
    OFFLINE,
    SERVER,
    SINGLE_STREAM,
    LoadgenError,
    LoadgenPlan,
    LoadgenVerdict,
    read_verdict,
    run_loadgen,
)
from dr_experiments.targets import UrlTarget
from tests.unit.dr_experiments.fakes import PAYLOAD
from tests.unit.dr_experiments.http_fakes import served


def test_a_stalled_server_cannot_hide_its_queue_from_loadgen() -> None:
    """Field problem B01: the same frozen server, seen by one user and by LoadGen's arrivals."""
    verdicts: list[LoadgenVerdict] = []
    waiting = seconds_waited(closed)
    arriving = seconds_waited(lambda make: by_loadgen(make, verdicts))
    # The user's one slow request is below one in ten even where a busy machine lets few through.
    assert np.percentile(waiting, 90) < 0.5 * STALL_S < np.percentile(arriving, 90)
    assert np.percentile(arriving, 99) > 0.7 * STALL_S
    # LoadGen counts from its schedule, this client from the moment it was handed the query.
    verdict = verdicts[0]
    assert verdict.queries == len(arriving)
    assert verdict.p99_ms is not None
    assert verdict.p99_ms / 1000 > 0.7 * STALL_S
    assert not verdict.valid
    assert verdict.over_bound is not None
    assert verdict.over_bound > 30


def test_a_single_stream_sends_one_after_the_other(tmp_path: Path) -> None:
    open_now, most = [], []

    def delay(_number: int) -> float:
        open_now.append(1)
        most.append(len(open_now))
        threading.Event().wait(0.01)
        open_now.pop()
        return 0.0

    with served(delay) as (url, seen):
        plan = LoadgenPlan(scenario=SINGLE_STREAM, duration_s=0.3, queries=70)
        told: list[Measurement] = []
        result, verdict = run_loadgen(
            lambda: Client(UrlTarget(url)), PAYLOAD, plan, logs=tmp_path, on_measured=told.append
        )
    assert len(result.measurements) == len(seen) == len(told) == verdict.queries >= 70
    assert max(most) == 1
    assert verdict.valid
    assert verdict.p90_ms is not None
    assert verdict.p90_ms >= 10
    assert result.scenario == "loadgen-single-stream"
    assert verdict.version.startswith("6.")


def test_offline_has_a_throughput_and_nobody_who_waits(tmp_path: Path) -> None:
    with served(lambda number: 0.02) as (url, _):
        plan = LoadgenPlan(
            scenario=OFFLINE, duration_s=0.2, rate_per_s=100, queries=20, in_flight=4
        )
        result, verdict = run_loadgen(lambda: Client(UrlTarget(url)), PAYLOAD, plan, logs=tmp_path)
    assert verdict.queries >= 20
    assert verdict.p99_ms is None
    assert verdict.completed_per_s is not None
    # Four at a time, each at least 20 ms.
    assert 0 < verdict.completed_per_s <= 4 / 0.02
    assert all(m.intended_offset_s is None for m in result.measurements)
    assert {m.response_time_s for m in result.measurements} == {
        m.full_latency_s for m in result.measurements
    }


def test_failures_make_the_verdict_void_and_are_in_no_latency(tmp_path: Path) -> None:
    with served(lambda n: 0.0, status=lambda n: 500 if n % 2 else 200) as (url, _):
        plan = LoadgenPlan(scenario=SINGLE_STREAM, duration_s=0.1, queries=80)
        result, verdict = run_loadgen(lambda: Client(UrlTarget(url)), PAYLOAD, plan, logs=tmp_path)
    assert verdict.failed == len(result.failures) >= 40
    assert not verdict.valid
    assert "failed" in verdict.why[0]
    assert all(m.full_latency_s is None for m in result.failures)


def test_arrivals_come_from_the_seed(tmp_path: Path) -> None:
    def scheduled(seed: int, name: str) -> float | None:
        (tmp_path / name).mkdir()
        plan = LoadgenPlan(scenario=SERVER, duration_s=0.5, rate_per_s=40, seed=seed)
        with served(lambda n: 0.0) as (url, _):
            _, verdict = run_loadgen(
                lambda: Client(UrlTarget(url)), PAYLOAD, plan, logs=tmp_path / name
            )
        return verdict.scheduled_per_s

    # The rate of the drawn schedule, which depends on nothing but the draws.
    assert scheduled(7, "a") == scheduled(7, "b") != scheduled(8, "c")


def test_an_interruption_stops_loadgen_and_sends_nothing_more(tmp_path: Path) -> None:
    main = threading.get_ident()

    def interrupt(number: int) -> None:
        if number == 5:
            signal.pthread_kill(main, signal.SIGINT)

    with served(lambda n: 0.0) as (url, seen):
        plan = LoadgenPlan(scenario=SERVER, duration_s=600, rate_per_s=50)
        told: list[Measurement] = []
        with pytest.raises(KeyboardInterrupt):
            run_loadgen(
                lambda: Client(UrlTarget(url)),
                PAYLOAD,
                plan,
                logs=tmp_path,
                on_request=interrupt,
                on_measured=told.append,
            )
        # What was measured until then has been told; the senders have ended.
        assert len(told) == len(seen) >= 5


def test_a_plan_that_cannot_be_is_refused() -> None:
    for changes in (
        {"scenario": "multi-stream"},
        {"duration_s": 0},
        {"rate_per_s": float("nan")},
        {"queries": 0},
        {"latency_bound_s": -1},
    ):
        with pytest.raises(ValueError, match=next(iter(changes)).split("_")[0]):
            LoadgenPlan(**{"scenario": SERVER, "duration_s": 1, **changes})  # type: ignore[arg-type]


def test_a_log_without_a_verdict_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LoadgenError, match="cannot be read"):
        read_verdict(tmp_path / "none.txt", scenario=SERVER)
    cut = tmp_path / "cut.txt"
    cut.write_text(':::MLLOG {"key": "loadgen_version", "value": "6"}\n')
    with pytest.raises(LoadgenError, match="no verdict"):
        read_verdict(cut, scenario=SERVER)


def test_a_missing_loadgen_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loadgen, "loadgen_available", lambda: False)
    plan = LoadgenPlan(scenario=SERVER, duration_s=1)
    with pytest.raises(LoadgenError, match=r"pip install 'dr-endpoints\[loadgen\]'"):
        run_loadgen(lambda: Client(UrlTarget("http://127.0.0.1:9")), PAYLOAD, plan, logs=tmp_path)


def test_a_loadgen_that_ends_early_says_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LoadgenPlan, "settings", lambda plan: {"scenario": "Nonsense"})
    plan = LoadgenPlan(scenario=SERVER, duration_s=1)
    with (
        served(lambda n: 0.0) as (url, _),
        pytest.raises(LoadgenError, match=r"ended early: AttributeError.*Nonsense"),
    ):
        run_loadgen(lambda: Client(UrlTarget(url)), PAYLOAD, plan, logs=tmp_path)
