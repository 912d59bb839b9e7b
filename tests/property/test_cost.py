"""Invariants of cost and statistics over all inputs."""

import itertools
import math
from dataclasses import replace
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from dr_experiments.deployment_cost import Setup, Traffic, monthly_bill
from dr_experiments.pricing import (
    HOURS_PER_MONTH,
    PriceTable,
    full_utilisation_per_hour,
    realtime_cost,
    serverless_cost,
)
from dr_experiments.statistics import summarise

PRICES = PriceTable.load()
SECONDS = st.floats(min_value=0, max_value=60, allow_nan=False)
SIZES = st.integers(min_value=0, max_value=4 * 1024**2)
MEMORY = st.sampled_from([1024, 2048, 3072, 4096, 5120, 6144])
RATES = st.floats(min_value=0.01, max_value=1e7)
MANY = st.integers(min_value=0, max_value=10**9)
BUSY_S = st.floats(min_value=1e-3, max_value=60)
KEPT_WARM = st.builds(
    lambda mode, containers, share: Setup(
        mode=mode,
        memory_mib=2048,
        architecture="arm64" if mode == "lambda" else None,
        provisioned=containers,
        provisioned_share=share,
    ),
    st.sampled_from(["serverless", "lambda"]),
    st.integers(min_value=1, max_value=20),
    st.decimals(min_value=0, max_value=1, places=2),
)
VALUES = st.lists(st.floats(min_value=0, max_value=1e6), min_size=1, max_size=60)


def serverless(seconds: float, memory_mib: int, size: int) -> Decimal:
    return serverless_cost(
        compute_s=seconds, memory_mib=memory_mib, bytes_in=size, bytes_out=size,
        region="us-east-1", prices=PRICES,
    ).usd_per_1000  # fmt: skip


def realtime(rate: float, *, instances: int = 1) -> Decimal:
    return realtime_cost(
        instance_type="ml.m5.xlarge", requests_per_hour=rate, bytes_in=0, bytes_out=0,
        region="us-east-1", prices=PRICES, instance_count=instances,
    ).usd_per_1000  # fmt: skip


@given(seconds=SECONDS, memory_mib=MEMORY, size=SIZES)
def test_serverless_cost_never_falls_with_time_memory_or_data(
    seconds: float, memory_mib: int, size: int
) -> None:
    cost = serverless(seconds, memory_mib, size)
    assert cost >= 0
    assert serverless(seconds + 1, memory_mib, size) > cost
    assert serverless(seconds, memory_mib, size + 1) > cost
    if memory_mib < 6144:
        assert serverless(seconds, memory_mib + 1024, size) >= cost


@given(seconds=SECONDS, memory_mib=MEMORY)
def test_serverless_cost_is_proportional_to_time(seconds: float, memory_mib: int) -> None:
    once, twice = serverless(seconds, memory_mib, 0), serverless(2 * seconds, memory_mib, 0)
    assert math.isclose(twice, 2 * once, rel_tol=1e-12, abs_tol=1e-18)


def month(setup: Setup, requests: int, seconds: float) -> dict[str, Decimal]:
    return dict(
        monthly_bill(
            setup, Traffic(requests=requests), compute_s=seconds, region="us-east-1", prices=PRICES
        ).parts
    )


@given(setup=KEPT_WARM, requests=MANY, more=st.integers(min_value=1), seconds=BUSY_S)
def test_a_month_never_falls_with_requests_though_containers_are_kept_warm(
    setup: Setup, requests: int, more: int, seconds: float
) -> None:
    fewer, many = month(setup, requests, seconds), month(setup, requests + more, seconds)
    assert sum(many.values()) > sum(fewer.values())
    assert many.get("compute", 0) >= fewer.get("compute", 0)
    assert many.get("compute, provisioned", 0) >= fewer.get("compute, provisioned", 0)


@given(setup=KEPT_WARM, requests=MANY, seconds=BUSY_S)
def test_containers_kept_warm_are_billed_for_what_they_have_time_for(
    setup: Setup, requests: int, seconds: float
) -> None:
    """Below that, requests and share alone count; above it, another request is on demand."""
    found = month(setup, requests, seconds)
    in_full = replace(setup, provisioned=10**9)  # never short of time
    capacity = setup.provisioned * HOURS_PER_MONTH * 3600
    served = month(in_full, requests, seconds).get("compute, provisioned", Decimal(0))
    item = f"{setup.mode}-provisioned-compute"
    sku = "arm64" if setup.mode == "lambda" else "2048"
    rate = PRICES.find(item, region="us-east-1", sku=sku).usd * (2 if setup.mode == "lambda" else 1)
    assert found.get("compute, provisioned", Decimal(0)) == min(served, capacity * rate)
    if served <= capacity * rate:
        assert found.get("compute") == month(in_full, requests, seconds).get("compute")


@given(rate=RATES, instances=st.integers(min_value=1, max_value=20))
def test_an_hour_costs_the_same_however_many_share_it(rate: float, instances: int) -> None:
    hour = realtime(rate, instances=instances) / 1000 * Decimal(str(rate))
    assert math.isclose(hour, Decimal("0.23") * instances, rel_tol=1e-9)


@given(seconds=st.floats(min_value=1e-4, max_value=60))
def test_no_rate_of_one_client_is_cheaper_than_full_use(seconds: float) -> None:
    full = full_utilisation_per_hour(seconds)
    assert realtime(float(full) / 2) > realtime(float(full))


@given(values=VALUES)
def test_statistics_keep_their_order(values: list[float]) -> None:
    s = summarise(values)
    tolerance = 1e-9 * max(1.0, s.maximum)
    ordered = [s.minimum, s.p50, s.p95, s.p99, s.maximum]
    for low, high in itertools.pairwise(ordered):
        assert low <= high + tolerance
    assert s.minimum - tolerance <= s.mean <= s.maximum + tolerance
    if s.mean_low is not None and s.mean_high is not None:
        assert s.mean_low <= s.mean <= s.mean_high
        assert math.isclose(s.mean - s.mean_low, s.mean_high - s.mean, abs_tol=tolerance)


@given(values=VALUES, shift=st.floats(min_value=0, max_value=1e3))
def test_a_constant_delay_moves_every_statistic_but_the_spread(
    values: list[float], shift: float
) -> None:
    before, after = summarise(values), summarise([value + shift for value in values])
    for name in ("mean", "p50", "p95", "p99", "maximum"):
        moved = getattr(after, name) - getattr(before, name)
        assert math.isclose(moved, shift, rel_tol=1e-6, abs_tol=1e-6)
    if before.sd is not None and after.sd is not None:
        assert math.isclose(before.sd, after.sd, rel_tol=1e-6, abs_tol=1e-5)
