"""Rows from AWS's price list, as a stub answers it."""

import codecs
import json
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber
from typer.testing import CliRunner

from dr_cli import prices as command
from dr_cli.cost_commands import cost_app
from dr_cli.errors import CommandError
from dr_experiments.price_list import append_rows, list_prices, new_rows, read_products
from dr_experiments.pricing import PriceTable, PriceTableError

DAY = date(2026, 11, 28)
REGION = "ap-south-1"


def product(usage: str, usd: str, unit: str, *, region: str = REGION, group: str = "") -> Any:
    return {
        "product": {"attributes": {"regionCode": region, "usagetype": usage, "group": group}},
        "terms": {"OnDemand": {"t": {"priceDimensions": {
            "d": {"unit": unit, "pricePerUnit": {"USD": usd}},
        }}}},
    }  # fmt: skip


PRODUCTS = [
    product("APS3-ServerlessInf:Mem-2GB", "0.0000640000", "seconds"),
    product("APS3-Host:ml.m5.xlarge", "0.3670000000", "Hrs"),
    product("APS3-AsyncInf:ml.m5.xlarge", "0.3680000000", "Hrs"),
    product("APS3-Tsform:ml.m5.xlarge", "0.3670000000", "Hrs"),
    product("APS3-Host:VolumeUsage.gp2", "0.2660000000", "GB-Mo"),
    product("APS3-Data-Bytes-In", "0.0160000000", "GB", group="Hosting:IN"),
    product("APS3-Notebk:ml.m5.xlarge", "0.3670000000", "Hrs"),
    product("USE1-Host:ml.c7g.xlarge", "0.17", "Hrs", region="us-east-1"),
]


@pytest.fixture
def client() -> Any:
    return boto3.client(
        "pricing", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="y"
    )


def stub(client: Any, products: list[Any]) -> Stubber:
    stubber = Stubber(client)
    for number, part in enumerate((products[:3], products[3:])):
        asked: dict[str, Any] = {
            "ServiceCode": "AmazonSageMaker",
            "Filters": [{"Type": "TERM_MATCH", "Field": "regionCode", "Value": REGION}],
        }
        answer: dict[str, Any] = {"PriceList": [json.dumps(one) for one in part]}
        if number == 0:
            answer["NextToken"] = "more"
        else:
            asked["NextToken"] = "more"
        stubber.add_response("get_products", answer, asked)
    return stubber


def test_recognised_products_of_the_region_become_dated_rows(client: Any) -> None:
    with stub(client, PRODUCTS) as stubber:
        listed = list_prices(client, region=REGION, today=DAY)
        stubber.assert_no_pending_responses()
    assert [(row.item, row.sku, row.usd) for row in listed.rows] == [
        ("async-hour", "ml.m5.xlarge", Decimal("0.368")),
        ("batch-hour", "ml.m5.xlarge", Decimal("0.367")),
        ("data-in", None, Decimal("0.016")),
        ("instance-hour", "ml.m5.xlarge", Decimal("0.367")),
        ("instance-storage", None, Decimal("0.266")),
        ("serverless-compute", "2048", Decimal("0.000064")),
    ]
    assert {(row.region, row.checked) for row in listed.rows} == {(REGION, DAY)}
    assert listed.refused == ()


def test_another_unit_a_price_of_nothing_and_two_prices_are_refused() -> None:
    listed = read_products(
        [
            product("APS3-ServerlessInf:Mem-1GB", "0.00002", "GB-seconds"),
            product("APS3-ServerlessInf:Mem-3GB", "0", "seconds"),
            product("APS3-Host:ml.m5.xlarge", "0.3", "Hrs"),
            product("APS3-Host:ml.m5.xlarge", "0.4", "Hrs"),
        ],
        region=REGION,
        today=DAY,
    )
    assert listed.rows == ()
    told = "\n".join(listed.refused)
    assert "serverless-compute 1024 ap-south-1: its unit is 'GB-seconds'" in told
    assert "serverless-compute 3072 ap-south-1: it has no price" in told
    assert "instance-hour ml.m5.xlarge ap-south-1: priced 0.3, 0.4" in told


def test_rows_are_appended_to_a_file_that_can_be_read_again(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    listed = read_products(PRODUCTS, region=REGION, today=DAY)
    append_rows(path, listed.rows, start="# mine\n")
    assert path.read_text().startswith("# mine\n")
    table = PriceTable.load(path)
    assert table.rows == listed.rows
    assert new_rows(listed.rows, table) == []
    # A second price of the same day contradicts the first, and the file stays as it was.
    before = path.read_text()
    with pytest.raises(PriceTableError, match="two prices"):
        append_rows(path, listed.rows, start="")
    assert path.read_text() == before
    assert [one.name for one in tmp_path.iterdir()] == ["prices.toml"]


def test_the_command_appends_what_is_new_and_says_what_is_not(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(boto3, "client", lambda *_, **__: client)
    mine = tmp_path / "mine.toml"
    for expected in ("6 rows appended", "0 rows appended"):
        with stub(client, PRODUCTS):
            command.refresh_prices(region=REGION, write=mine, prices_file=None)
        assert expected in capsys.readouterr().out
    table = PriceTable.load(mine)
    assert table.find("batch-hour", region=REGION, sku="ml.m5.xlarge").usd == Decimal("0.367")
    # The project's own rows are still there.
    assert len(table.rows) == len(PriceTable.load().rows) + 6


def test_a_list_that_does_not_answer_or_knows_nothing_is_one_sentence(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boto3, "client", lambda *_, **__: client)
    mine = tmp_path / "mine.toml"
    with pytest.raises(CommandError, match="--write FILE"):
        command.refresh_prices(region=REGION, write=None, prices_file=None)
    stubber = Stubber(client)
    stubber.add_client_error("get_products", "AccessDeniedException", "not allowed")
    with stubber, pytest.raises(CommandError, match=r"did not answer: .*not allowed"):
        command.refresh_prices(region=REGION, write=mine, prices_file=None)
    with stub(client, PRODUCTS[6:]), pytest.raises(CommandError, match="names nothing"):
        command.refresh_prices(region=REGION, write=mine, prices_file=None)
    assert not mine.exists()
    with pytest.raises(CommandError, match="no price is known for xx-1"):
        command.show_prices(region="xx-1", prices_file=None)


def test_each_price_is_shown_with_its_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command.show_prices(region="us-east-1", prices_file=None)
    table, _, listed = capsys.readouterr().out.partition("\nsources\n")
    sources = dict(line.split(" ", 1) for line in listed.strip().splitlines())
    rows = [row for row in PriceTable.load().rows if row.region == "us-east-1"]
    shown = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert [sources[row[5]] for row in shown] == [row.source for row in rows]
    # The addresses are below: the table itself fits into a terminal.
    assert max(map(len, table.splitlines())) <= 100
    assert len(set(sources.values())) == len(sources)


def test_a_file_to_write_without_asking_for_prices_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(cost_app, ["prices", "--write", str(tmp_path / "x.toml")])
    assert isinstance(done.exception, CommandError)
    assert str(done.exception) == "--write takes what --refresh finds; give both, or neither"


def test_a_file_with_a_byte_order_mark_is_read_and_appended_to(tmp_path: Path) -> None:
    """Editors and Excel put one before UTF-8."""
    path = tmp_path / "prices.toml"
    listed = read_products(PRODUCTS, region=REGION, today=DAY)
    append_rows(path, listed.rows[:1], start="")
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    assert PriceTable.load(path).rows == listed.rows[:1]
    append_rows(path, listed.rows[1:], start="")
    assert PriceTable.load(path).rows == listed.rows


def test_the_studys_prices_are_those_that_its_costs_imply() -> None:
    table = PriceTable.load()
    printed = {"1024": ("0.0000095", "0.4758"), "2048": ("0.0000144", "0.3614")}
    for sku, (cost, seconds) in printed.items():
        row = table.find("serverless-compute", region="us-east-1", sku=sku, on=date(2023, 12, 31))
        assert row.checked.year == 2023
        assert float(Decimal(cost) / Decimal(seconds)) == pytest.approx(float(row.usd), rel=0.01)
