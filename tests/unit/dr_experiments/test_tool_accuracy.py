"""What the tool reports of an endpoint whose latency distribution is known."""

import time
from collections.abc import Callable
from contextlib import closing

import numpy as np
import pytest

from dr_experiments.client import Client
from dr_experiments.load import open_loop
from dr_experiments.scenarios import realtime
from dr_experiments.statistics import percentile, ratio_of_means, summarise
from dr_experiments.targets import UrlTarget
from tests.unit.dr_experiments.fakes import PAYLOAD
from tests.unit.dr_experiments.http_fakes import served

# What HTTP on this machine, a sleep that ends late and the client may add to a request. Medians
# are below 2 ms on a quiet machine (docs/experiments.md); other programs make single ones longer.
ADDED_MS = 15.0
REQUESTS = 120


@pytest.mark.parametrize("loop", ["closed", "open"])
def test_mean_and_percentiles_are_those_of_the_endpoint(loop: str) -> None:
    delays = np.random.default_rng(7).lognormal(np.log(0.020), 0.5, REQUESTS)

    def delay(number: int) -> float:
        return float(delays[number])

    slept = sorted(1000 * delays)
    truth = summarise(slept)
    added: list[dict[str, float]] = []
    # Whatever else runs here can only add: of three times the one that it disturbed least.
    for _ in range(3):
        measured = sorted(_times_ms(loop, delay))
        assert len(measured) == REQUESTS
        # Never faster than the endpoint, order statistic by order statistic.
        assert all(m >= s for m, s in zip(measured, slept, strict=True))
        summary = summarise(measured)
        added.append(
            {name: getattr(summary, name) - getattr(truth, name) for name in ("mean", "p50", "p95")}
            # One late wake-up is enough to move p99 of so few.
            | {"p99": (summary.p99 - truth.p99) / 4}
        )
        if max(added[-1].values()) < ADDED_MS:
            break
    assert min(max(one.values()) for one in added) < ADDED_MS, added


def _times_ms(loop: str, delay: Callable[[int], float]) -> list[float]:
    with served(delay) as (url, _):
        if loop == "closed":
            with closing(Client(UrlTarget(url))) as client:
                result = realtime(client, PAYLOAD, requests=REQUESTS, interval_s=0)
            times = [m.full_latency_s for m in result.answered]
        else:
            arrivals = [number * 0.02 for number in range(REQUESTS)]
            result = open_loop(lambda: Client(UrlTarget(url)), PAYLOAD, arrivals)
            times = [m.response_time_s for m in result.answered]
    return [1000 * t for t in times if t is not None]


def test_the_interval_of_the_mean_covers_as_often_as_it_says() -> None:
    """Of 1,000 runs of 25 exponential latencies; the bound is four standard errors below 95 %.

    For latencies as skewed as these Student's interval is known to cover less than it says: 92 %
    here, which the documentation states.
    """
    generator = np.random.default_rng(7)
    covered = 0
    for _ in range(1000):
        summary = summarise(list(generator.exponential(1.0, 25)))
        covered += float(summary.mean_low or 0) <= 1.0 <= float(summary.mean_high or 0)
    assert 890 <= covered <= 960


def test_p50_and_p99_converge_to_the_distribution() -> None:
    values = np.random.default_rng(7).exponential(1.0, 20_000)
    summary = summarise(list(values))
    # Exact: ln 2 and ln 100; the tolerance is four standard errors of the order statistic.
    assert summary.p50 == pytest.approx(np.log(2), abs=4 * (0.5 * 0.5 / 20_000) ** 0.5 / 0.5)
    assert summary.p99 == pytest.approx(np.log(100), abs=4 * (0.01 * 0.99 / 20_000) ** 0.5 / 0.01)


def test_the_client_costs_little_beside_a_request() -> None:
    """Processor time of this thread for one request over HTTP; a bound, the figure is in docs."""
    with served(lambda number: 0.0) as (url, _), closing(Client(UrlTarget(url))) as client:
        client.measure(PAYLOAD)
        begin = time.thread_time()
        for _ in range(200):
            assert client.measure(PAYLOAD).ok
        per_request_ms = (time.thread_time() - begin) / 200 * 1000
    assert per_request_ms < 5


def test_bootstrap_intervals_cover_as_often_as_the_documentation_says() -> None:
    """Median of 25, and the quotient of two means of 25; at least four standard errors below.

    Of 2,000 runs each the median's covered 1,914 and the quotient's 1,850 (docs/experiments.md).
    """
    generator = np.random.default_rng(11)
    medians = ratios = 0
    for _ in range(60):
        median = percentile(list(generator.exponential(1.0, 25)), 50)
        medians += float(median.low or 0) <= np.log(2) <= float(median.high or 0)
        ratio = ratio_of_means(
            list(1 + generator.exponential(2.0, 25)), list(1 + generator.exponential(1.0, 25))
        )
        ratios += float(ratio.low or 0) <= 1.5 <= float(ratio.high or 0)
    # 60 * 0.93 = 56, and a standard error of 2.
    assert 48 <= medians <= 60
    assert 48 <= ratios <= 60
