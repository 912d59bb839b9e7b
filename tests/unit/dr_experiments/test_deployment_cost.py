"""A month of a deployment, by hand-computed cases, and the crossing of two modes."""

import re
from decimal import Decimal
from pathlib import Path

import pytest

from dr_experiments.deployment_cost import (
    FixedPart,
    Setup,
    Traffic,
    break_even,
    instances_needed,
    monthly_bill,
)
from dr_experiments.pricing import PriceTable, UnknownPriceError

PRICES = PriceTable.load()
SERVERLESS = Setup(mode="serverless", memory_mib=2048)
REALTIME = Setup(mode="realtime", instance_type="ml.m5.xlarge")
LAMBDA = Setup(mode="lambda", memory_mib=2048, architecture="arm64")


def parts(
    setup: Setup, traffic: Traffic, compute_s: float = 0.1, fixed: FixedPart | None = None
) -> dict[str, str]:
    bill = monthly_bill(
        setup, traffic, compute_s=compute_s, region="us-east-1", prices=PRICES, fixed=fixed
    )
    assert bill.usd == sum(bill.parts.values())
    return {name: f"{usd:.4f}" for name, usd in bill.parts.items()}


def test_serverless_by_hand() -> None:
    # 20,000 x 0.1 s x 0.00004; 20,000 x 1 MiB = 19.53125 GB x 0.016
    traffic = Traffic(requests=20_000, bytes_in=2**20)
    assert parts(SERVERLESS, traffic) == {"compute": "0.0800", "data in": "0.3125"}
    assert parts(SERVERLESS, Traffic(requests=0)) == {}


def test_serverless_kept_warm_by_hand() -> None:
    # 2 x 100 h x 3600 s x 0.0000233; three quarters of 2,000 s x 0.00001, a quarter x 0.00004
    setup = Setup(
        mode="serverless", memory_mib=2048, provisioned=2, warm_hours=Decimal(100),
        provisioned_share=Decimal("0.75"),
    )  # fmt: skip
    assert parts(setup, Traffic(requests=20_000)) == {
        "compute": "0.0200",
        "provisioned concurrency": "16.7760",
        "compute, provisioned": "0.0150",
    }


def test_containers_kept_warm_serve_no_more_than_they_have_time_for() -> None:
    # One has 730 x 3,600 = 2,628,000 s; 100,000,000 x 0.605 s are 60,500,000 busy seconds.
    many = Traffic(requests=100_000_000)
    setup = Setup(mode="serverless", memory_mib=2048, provisioned=1)
    assert parts(setup, many, compute_s=0.605) == {
        "compute": "2314.8800",  # 57,872,000 s x 0.00004
        "provisioned concurrency": "61.2324",  # 2,628,000 s x 0.0000233
        "compute, provisioned": "26.2800",  # 2,628,000 s x 0.00001
    }
    function = Setup(mode="lambda", memory_mib=1024, architecture="arm64", provisioned=1)
    assert parts(function, many, compute_s=0.605) == {
        "requests": "20.0000",
        "compute": "771.6305",  # 57,872,000 s x 1 GB x 0.0000133334
        "provisioned concurrency": "8.7599",
        "compute, provisioned": "20.4398",  # 2,628,000 s x 1 GB x 0.0000077777
    }
    for kept in (setup, function):
        bill = monthly_bill(kept, many, compute_s=0.605, region="us-east-1", prices=PRICES)
        assert bill.assumptions[-1] == (
            "4.3 % of the requests meet a container that is kept warm; those kept warm have time "
            "for 2,628,000 busy seconds a month, and the rest is billed on demand"
        )
    # Kept warm all month, they serve only in the 100 hours in which requests come.
    within = Traffic(requests=10_000_000, hours=Decimal(100))
    assert parts(setup, within)["compute, provisioned"] == "3.6000"  # 360,000 s x 0.00001


def test_the_break_even_knows_when_the_containers_kept_warm_are_full() -> None:
    kept = Setup(mode="serverless", memory_mib=2048, provisioned=1)

    def warm(n: int, side: int) -> Decimal:
        return monthly_bill(
            kept, Traffic(requests=n), compute_s=0.1, region="us-east-1", prices=PRICES
        ).usd

    found = break_even(warm, lambda n, side: Decimal("167.90"))
    # 61.2324 kept and 26.28 at the provisioned rate for the first 26.28 million requests, then
    # (167.90 - 87.5124) / (0.1 x 0.00004); at the provisioned rate alone it would be 107 million.
    assert found.requests == 26_280_000 + 20_096_900 + 1


def test_real_time_by_hand_with_storage_and_autoscaling() -> None:
    assert parts(REALTIME, Traffic(requests=1)) == {"instances": "167.9000"}
    setup = Setup(mode="realtime", instance_type="ml.m5.xlarge", storage_gb=Decimal(20))
    assert parts(setup, Traffic(requests=1))["storage"] == "2.2400"
    # 3,600,000 x 0.1 s in 100 h are one busy instance; at 70 % of its time two are needed.
    busy = Traffic(requests=3_600_000, hours=Decimal(100))
    assert instances_needed(REALTIME, busy, Decimal("0.1")) == 2
    assert parts(REALTIME, busy) == {"instances": "190.9000"}


def test_lambda_by_hand() -> None:
    # 1,000,000 x 0.101 s x 2 GB x 0.0000133334, rounded up from 0.1001 s; 10,000 starts of 0.5 s
    traffic = Traffic(
        requests=1_000_000, cold_share=Decimal("0.01"), init_s=Decimal("0.5"), bytes_in=1000
    )
    setup = Setup(mode="lambda", memory_mib=2048, architecture="arm64", ephemeral_mib=1536)
    assert parts(setup, traffic, compute_s=0.1001) == {
        "requests": "0.2000",
        "compute": "2.6933",
        "starts": "0.1333",
        "ephemeral storage": "0.0031",
    }
    warm = Setup(mode="lambda", memory_mib=1024, architecture="arm64", provisioned=1)
    assert parts(warm, Traffic(requests=10))["provisioned concurrency"] == "8.7599"


def test_the_fixed_part_by_hand() -> None:
    fixed = FixedPart(
        alarms=3, dashboards=1, keys=1, vpc_endpoints=2, log_gb=Decimal(2), model_gb=Decimal(1),
        image_gb=Decimal(1), probe_every_minutes=1,
    )  # fmt: skip
    assert parts(SERVERLESS, Traffic(requests=0), fixed=fixed) == {
        "compute": "0.1752",  # the probe's own 43,800 requests
        "alarms": "0.3000",
        "dashboards": "3.0000",
        "keys": "1.0000",
        "VPC endpoints": "14.6000",
        "logs": "1.0000",
        "logs at rest": "0.0600",
        "models at rest": "0.0230",
        "images at rest": "0.1000",
        "probe's function": "0.0635",
    }


@pytest.mark.parametrize(
    ("setup", "missing"),
    [
        (Setup(mode="async", instance_type="ml.c7g.xlarge"), "async-hour ml.c7g.xlarge"),
        (Setup(mode="batch", instance_type="ml.m5.xlarge"), "batch-hour ml.m5.xlarge"),
        (Setup(mode="realtime", instance_type="ml.m4.xlarge"), "instance-hour ml.m4.xlarge"),
        (Setup(mode="serverless", memory_mib=1024, provisioned=1), "serverless-provisioned 1024"),
    ],
)
def test_an_unknown_price_is_an_error_and_never_0(setup: Setup, missing: str) -> None:
    with pytest.raises(UnknownPriceError, match=missing):
        parts(setup, Traffic(requests=10))


def test_async_and_batch_by_hand_with_prices_of_ones_own() -> None:
    one = next(row for row in PRICES.rows if row.item == "instance-hour")
    kinds = ("async-hour", "batch-hour")
    own = PriceTable(
        rows=(
            *(row for row in PRICES.rows if row.item not in kinds),
            *(type(one)(**{**vars(one), "item": item, "usd": Decimal("0.2")}) for item in kinds),
        )
    )
    # 36,000 x 0.07 s / 0.7 = 3,600 s, and 20 starts of 180 s are another hour
    for mode in ("async", "batch"):
        setup = Setup(mode=mode, instance_type=one.sku, start_s=Decimal(180))
        bill = monthly_bill(
            setup, Traffic(requests=36_000), compute_s=0.07, region="us-east-1", prices=own
        )
        assert {name: f"{usd:.4f}" for name, usd in bill.parts.items()} == {
            "instances": "0.4000",
            "objects": "0.3888",
        }


def test_where_an_instance_becomes_cheaper_than_serverless() -> None:
    bounds = {-1: 0.08, 0: 0.1, 1: 0.125}

    def serverless(n: int, side: int) -> Decimal:
        return monthly_bill(
            SERVERLESS, Traffic(requests=n), compute_s=bounds[side], region="us-east-1",
            prices=PRICES,
        ).usd  # fmt: skip

    def always_on(n: int, side: int) -> Decimal:
        return Decimal("167.90")

    found = break_even(serverless, always_on)
    # 167.90 / (0.1 x 0.00004) and the same at the bounds
    assert found.requests == 41_975_001
    assert (found.low, found.high) == (33_580_001, 52_468_751)
    assert break_even(always_on, lambda n, side: Decimal(200)).requests is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "serverless"},
        {"mode": "serverless", "memory_mib": 1024, "instance_type": "ml.m5.xlarge"},
        {"mode": "lambda", "memory_mib": 1024},
        {"mode": "edge", "memory_mib": 1024},
        {"mode": "realtime", "instance_type": "ml.m5.xlarge", "instances": 0},
    ],
)
def test_a_setup_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"mode|has|belongs|needed"):
        Setup(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("compute_s", [0, -1, float("nan")])
def test_a_time_that_cannot_be_is_refused(compute_s: float) -> None:
    with pytest.raises(ValueError, match="compute_s"):
        parts(SERVERLESS, Traffic(requests=1), compute_s=compute_s)


def test_the_example_of_the_page_runs(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (repository / "docs/costs.md").read_text("utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(example, {})  # noqa: S102 - the project's own page
    out = capsys.readouterr().out
    # 217 h x 3,600 s x 0.0000233 and 2,000 s x 0.00001
    assert "'provisioned concurrency': Decimal('18.2019600')" in out
    assert "'compute, provisioned': Decimal('0.02" in out
