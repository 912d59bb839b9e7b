"""Golden arithmetic by hand, and the refusal of what has no price (field problem B04)."""

from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from dr_cli.errors import explain
from dr_experiments.pricing import (
    ITEMS,
    Price,
    PriceTable,
    PriceTableError,
    UnknownPriceError,
    full_utilisation_per_hour,
    month_at_rest,
    realtime_cost,
    serverless_cost,
)
from stacks.matrix import MATRIX, Mode

GB = 2**30


def price(item: str, usd: str, *, sku: str | None = None, checked: str = "2026-01-01") -> Price:
    return Price(
        item=item,
        region="us-east-1",
        sku=sku,
        usd=Decimal(usd),
        source="https://example.org",
        checked=date.fromisoformat(checked),
    )


TABLE = PriceTable(
    rows=(
        price("serverless-compute", "0.00004", sku="2048"),
        price("data-in", "0.016"),
        price("data-out", "0.032"),
        price("instance-hour", "0.23", sku="ml.m5.xlarge"),
        price("instance-hour", "0.25", sku="ml.m5.xlarge", checked="2026-06-01"),
    )
)


def test_serverless_cost_is_seconds_times_price_plus_data_both_ways() -> None:
    cost = serverless_cost(
        compute_s=0.1, memory_mib=2048, bytes_in=GB / 1000, bytes_out=GB / 2000,
        region="us-east-1", prices=TABLE,
    )  # fmt: skip
    # 1000 x 0.1 s x 0.00004 = 0.004; 1 GB x 0.016; 0.5 GB x 0.032.
    assert cost.parts_usd_per_1000["compute"] == Decimal("0.004")
    assert float(cost.parts_usd_per_1000["data in"]) == pytest.approx(0.016, rel=1e-12)
    assert float(cost.parts_usd_per_1000["data out"]) == pytest.approx(0.016, rel=1e-12)
    assert float(cost.usd_per_1000) == pytest.approx(0.036, rel=1e-12)
    assert [row.item for row in cost.prices] == ["serverless-compute", "data-in", "data-out"]


def test_idle_serverless_costs_nothing_and_idle_instances_cost_their_hours() -> None:
    free = serverless_cost(
        compute_s=0, memory_mib=2048, bytes_in=0, bytes_out=0, region="us-east-1", prices=TABLE
    )
    assert free.usd_per_1000 == 0
    rest = month_at_rest(instance_type="ml.m5.xlarge", region="us-east-1", prices=TABLE)
    assert rest == Decimal("182.50")  # 0.25 x 730


@pytest.mark.parametrize(
    ("requests_per_hour", "instances", "expected"),
    [(1, 1, "250"), (1000, 1, "0.25"), (360_000, 1, "0.000694444"), (1000, 3, "0.75")],
)
def test_realtime_cost_divides_the_hour(
    requests_per_hour: int, instances: int, expected: str
) -> None:
    """From one request an hour to a hundred a second."""
    cost = realtime_cost(
        instance_type="ml.m5.xlarge", requests_per_hour=requests_per_hour, bytes_in=0, bytes_out=0,
        region="us-east-1", prices=TABLE, instance_count=instances,
    )  # fmt: skip
    assert float(cost.usd_per_1000) == pytest.approx(float(expected), rel=1e-5)
    assert f"{requests_per_hour:,}" in cost.assumption


def test_full_utilisation_is_one_request_after_another() -> None:
    assert full_utilisation_per_hour(0.02) == 180_000


def test_the_published_cost_of_the_study_follows_from_the_table(shared_data: Path) -> None:
    """Its cost per inference is its mean round trip times the price of a second."""
    published = {
        ("MobileNet", 1024): "0.0000095", ("MobileNet", 2048): "0.0000144",
        ("MobileNet", 3072): "0.0000206", ("VGG19", 1024): "0.0000376",
        ("VGG19", 2048): "0.0000344", ("VGG19", 3072): "0.0000408",
    }  # fmt: skip
    prices = PriceTable.load()
    for (model, memory_mib), expected in published.items():
        name = f"warm-up-{model}-{memory_mib // 1024}gb.csv"
        lines = (shared_data / "thesis-measurements" / name).read_text().splitlines()[1:]
        seconds = [float(line.split(",")[3]) for line in lines]
        cost = serverless_cost(
            compute_s=sum(seconds) / len(seconds), memory_mib=memory_mib,
            bytes_in=0, bytes_out=0, region="us-east-1", prices=prices,
        )  # fmt: skip
        per_inference = cost.usd_per_1000 / 1000
        # Printed with seven decimals, some rounded and some cut off.
        assert abs(per_inference - Decimal(expected)) < Decimal("0.0000001"), name


def test_the_newest_price_wins_and_an_older_day_keeps_its_own() -> None:
    find = TABLE.find
    assert find("instance-hour", region="us-east-1", sku="ml.m5.xlarge").usd == Decimal("0.25")
    old = find("instance-hour", region="us-east-1", sku="ml.m5.xlarge", on=date(2026, 5, 31))
    assert old.usd == Decimal("0.23")


@pytest.mark.parametrize(
    ("item", "region", "sku", "on", "named"),
    [
        ("serverless-compute", "sa-east-1", "2048", None, ["2048", "sa-east-1", "USD per second"]),
        ("serverless-compute", "us-east-1", "1500", None, ["1500", "us-east-1"]),
        ("instance-hour", "us-east-1", "ml.m4.xlarge", None, ["ml.m4.xlarge", "USD per hour"]),
        ("instance-hour", "us-east-1", "ml.m5.xlarge", date(2025, 1, 1), ["2025-01-01"]),
        ("lambda", "us-east-1", None, None, ["lambda", "serverless-compute"]),
    ],
)
def test_an_unknown_price_is_refused_and_named(
    item: str, region: str, sku: str | None, on: date | None, named: list[str]
) -> None:
    with pytest.raises(UnknownPriceError) as caught:
        TABLE.find(item, region=region, sku=sku, on=on)
    message = str(caught.value)
    assert all(word in message for word in named), message
    assert "\n" not in message


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf")])
def test_impossible_quantities_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="compute_s"):
        serverless_cost(
            compute_s=value, memory_mib=2048, bytes_in=0, bytes_out=0,
            region="us-east-1", prices=TABLE,
        )  # fmt: skip


def test_an_hour_without_requests_has_no_cost_per_request() -> None:
    with pytest.raises(ValueError, match="requests_per_hour"):
        realtime_cost(
            instance_type="ml.m5.xlarge", requests_per_hour=0, bytes_in=0, bytes_out=0,
            region="us-east-1", prices=TABLE,
        )  # fmt: skip
    with pytest.raises(ValueError, match="service_s"):
        full_utilisation_per_hour(0)


def test_the_projects_own_table_is_dated_sourced_and_known() -> None:
    rows = PriceTable.load().rows
    assert rows
    for row in rows:
        assert row.source.startswith("https://"), row.name
        assert row.item in ITEMS
        # The oldest rows are those of the earlier study.
        assert date(2023, 1, 1) <= row.checked


def test_every_serverless_size_of_the_matrix_has_a_price() -> None:
    prices = PriceTable.load()
    sizes = {row.memory_mib for row in MATRIX if row.mode is Mode.SERVERLESS}
    assert sizes
    for memory_mib in sizes:
        for region in ("us-east-1", "sa-east-1"):
            assert prices.find("serverless-compute", region=region, sku=str(memory_mib)).usd > 0


ROW = """
[[price]]
item = "data-in"
region = "us-east-1"
usd = "0.016"
source = "https://example.org"
checked = 2026-01-01
"""


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (ROW.replace('"0.016"', "0.016"), "string"),
        (ROW.replace('"0.016"', '"-1"'), "above 0"),
        (ROW.replace('item = "data-in"', 'item = "data"'), "item"),
        (ROW.replace("2026-01-01", "2026-01-01T00:00:00"), "date"),
        (ROW.replace('source = "https://example.org"\n', ""), "source"),
        (ROW + 'sku = "1"\n', "sku"),
        (ROW + 'unit = "EUR"\n', "unit"),
        (ROW + ROW, "two prices"),
        ("[[price]", "TOML"),
        ("a = " + "[" * 5000, "TOML"),
        *(
            (ROW.replace('"0.016"', f'"{usd}"'), "usd must be a number with a point")
            for usd in ("0,02", "abc", "nan", "inf", "1e999999", "1_0", "0x1", " 1", "USD 1")
        ),
        (ROW.replace('"0.016"', '"\N{ARABIC-INDIC DIGIT ONE}"'), "usd must be a number"),
        (ROW.replace('"0.016"', '"0.0"'), "usd must be above 0; got '0.0'"),
        (ROW.replace('"0.016"', '"1e99"'), "usd must be at most 1,000,000"),
        (ROW.replace('"0.016"', '["0.016"]'), "usd must be a string"),
        (ROW.replace('"data-in"', "3"), "item must be a string"),
        (ROW.replace('"data-in"', '["data-in"]'), "item must be a string"),
        (ROW.replace('"us-east-1"', "1"), "region must be a string"),
        (ROW.replace('"https://example.org"', "{a = 1}"), "source must be a string"),
        (ROW.replace("data-in", "serverless-compute") + "sku = 1024\n", "sku must be a string"),
        (ROW.replace("data-in", "serverless-compute") + 'sku = ""\n', "sku is missing"),
        (ROW + "note = 5\n", "note must be a string"),
        ("price = 3", r"price must be a list of tables: \[\[price\]\]"),
        ("[price]\nusd = '1'", "price must be a list of tables"),
        ("price = [3]", "price 1 is not a table"),
        (ROW.replace("[[price]]", "[[prices]]"), r"only \[\[price\]\] is known here; got prices"),
        (ROW.encode("utf-16"), "not UTF-8"),
        (ROW.encode() + b"# \xe9\n", "not UTF-8"),
    ],
)
def test_a_faulty_price_file_is_refused(tmp_path: Path, text: str | bytes, named: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(PriceTableError, match=named) as caught:
        PriceTable.load(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: ")
    assert "\n" not in said
    assert explain(caught.value) == said


def test_the_row_of_a_fault_is_named_by_its_number_and_what_it_is_of(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(ROW + ROW.replace("data-in", "data-out").replace("0.016", "0,016"))
    with pytest.raises(PriceTableError, match=r"toml: price 2 \(data-out, us-east-1\): usd must"):
        PriceTable.load(path)
    path.write_text(ROW + ROW)
    with pytest.raises(PriceTableError, match=r"two prices for data-in .* \(prices 1 and 2\)"):
        PriceTable.load(path)


@pytest.mark.parametrize("usd", ["0.02", "2E-2", "2", "0.0000000309"])
def test_an_amount_is_the_decimal_that_was_written(tmp_path: Path, usd: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(ROW.replace("0.016", usd))
    assert PriceTable.load(path).find("data-in", region="us-east-1").usd == Decimal(usd)


def test_a_given_price_takes_the_place_of_the_tables_own_in_its_region_alone() -> None:
    day = date(2026, 11, 29)
    table = PriceTable.load()
    given = table.with_given(
        ["data-in=0.5", "instance-hour:ml.m5.xlarge=2e-1"], region="us-east-1", on=day
    )
    row = given.find("data-in", region="us-east-1")
    assert (row.usd, row.checked, row.source) == (Decimal("0.5"), day, "--price data-in=0.5")
    hour = given.find("instance-hour", region="us-east-1", sku="ml.m5.xlarge")
    assert hour.usd == Decimal("0.2")
    for item, region in (("data-out", "us-east-1"), ("data-in", "eu-west-1")):
        assert given.find(item, region=region) == table.find(item, region=region)
    assert table.with_given([], region="us-east-1", on=day) == table


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["data=1"], "'data=1' is no price"),
        ([""], "'' is no price"),
        (["data-in:1=1"], "is not of the form data-in=USD"),
        (["data-in:=1"], "is not of the form data-in=USD"),
        (["data-in"], "data-in: usd must be a number"),
        (["data-in=0,016"], "data-in: usd must be a number with a point"),
        (["data-in=-1"], "usd must be above 0"),
        (["data-in=nan"], "usd must be a number"),
        (["instance-hour=1"], "is not of the form instance-hour:SIZE=USD"),
        (["instance-hour:=1"], "is not of the form instance-hour:SIZE=USD"),
        (["data-in=1", "data-in=2"], "two prices are given for data-in sa-east-1"),
    ],
)
def test_a_given_price_that_is_none_is_refused(texts: list[str], said: str) -> None:
    with pytest.raises(PriceTableError, match=said):
        PriceTable.load().with_given(texts, region="sa-east-1", on=date(2026, 11, 29))
