"""Prices of SageMaker from AWS's own price list, as rows for `prices.toml`.

    >>> found = list_prices(boto3.client("pricing", region_name="us-east-1"), region="sa-east-1")
    >>> append_rows(path, new_rows(found.rows, PriceTable.load()))

Only what is recognised is taken: a product whose usage type, unit or currency is another one is
passed over or named in `refused`, and two prices for one thing are a refusal, never a choice.
Usage types: https://github.com/infracost/infracost/blob/057e158b6704fbf067e451539eceb5fa860d05dd/internal/resources/aws/sagemaker_endpoint_configuration.go
and, for batch transform and asynchronous endpoints,
https://github.com/venkatakrishna-pullela/vpullela-powers/blob/main/aws-cost-optimization/steering/services/sagemaker-cost-optimization.md
(both read on 2026-11-28). Tried against a stub only.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final

from dr_experiments.pricing import (
    ITEM_ASYNC_HOUR,
    ITEM_BATCH_HOUR,
    ITEM_DATA_IN,
    ITEM_DATA_OUT,
    ITEM_INSTANCE_HOUR,
    ITEM_INSTANCE_STORAGE,
    ITEM_SERVERLESS_COMPUTE,
    ITEM_SERVERLESS_WARM,
    ITEM_SERVERLESS_WARM_COMPUTE,
    Price,
    PriceTable,
    UnknownPriceError,
)

SERVICE: Final = "AmazonSageMaker"
SOURCE: Final = "AWS Price List, GetProducts, AmazonSageMaker"
_HOURS: Final = frozenset({"hrs", "hours", "hour"})
_SECONDS: Final = frozenset({"seconds", "second", "secs"})
_GB: Final = frozenset({"gb", "gigabytes"})
_GB_MONTHS: Final = frozenset({"gb-mo", "gb-month"})
_TYPE: Final = r"(ml\.[a-z0-9-]+\.[a-z0-9]+)"


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """A usage type (without its region's prefix) and what it is here; group 1 is the sku."""

    usage: re.Pattern[str]
    item: str
    units: frozenset[str]
    gigabytes: bool = False


_RULES: Final = (
    _Rule(
        usage=re.compile(r"ServerlessInf:Mem-(\d+)GB", re.IGNORECASE),
        item=ITEM_SERVERLESS_COMPUTE, units=_SECONDS, gigabytes=True,
    ),
    _Rule(
        usage=re.compile(r"\S*ProvisionedConcurrency:Usage-(\d+)GB", re.IGNORECASE),
        item=ITEM_SERVERLESS_WARM, units=_SECONDS, gigabytes=True,
    ),
    _Rule(
        usage=re.compile(r"\S*ProvisionedConcurrency:Mem-(\d+)GB", re.IGNORECASE),
        item=ITEM_SERVERLESS_WARM_COMPUTE, units=_SECONDS, gigabytes=True,
    ),
    _Rule(usage=re.compile(f"Host:{_TYPE}"), item=ITEM_INSTANCE_HOUR, units=_HOURS),
    _Rule(usage=re.compile(f"AsyncInf:{_TYPE}"), item=ITEM_ASYNC_HOUR, units=_HOURS),
    _Rule(usage=re.compile(f"Tsform:{_TYPE}"), item=ITEM_BATCH_HOUR, units=_HOURS),
    _Rule(
        usage=re.compile(r"Host:VolumeUsage\.gp2"),
        item=ITEM_INSTANCE_STORAGE, units=_GB_MONTHS,
    ),
    _Rule(usage=re.compile(r"Hosting:IN"), item=ITEM_DATA_IN, units=_GB),
    _Rule(usage=re.compile(r"Hosting:OUT"), item=ITEM_DATA_OUT, units=_GB),
)  # fmt: skip

# What of a price table can be asked of AWS's price list here.
LISTED_ITEMS: Final = frozenset(rule.item for rule in _RULES)


@dataclass(frozen=True, kw_only=True)
class Listed:
    """Rows that were read, by item and sku, and a sentence for each price that was refused."""

    rows: tuple[Price, ...]
    refused: tuple[str, ...]


def list_prices(client: Any, *, region: str, today: date | None = None) -> Listed:
    """Ask AWS's price list for SageMaker in one region.

    Args:
        client: boto3's `pricing`; it exists in few regions, us-east-1 among them.
        region: whose prices. today: the day that the rows are dated.

    Raises:
        botocore's errors: the list cannot be reached, or the caller may not read it.
    """
    pages = client.get_paginator("get_products").paginate(
        ServiceCode=SERVICE,
        Filters=[{"Type": "TERM_MATCH", "Field": "regionCode", "Value": region}],
    )
    products = (json.loads(text) for page in pages for text in page["PriceList"])
    return read_products(products, region=region, today=today or date.today())


def read_products(products: Iterable[Mapping[str, Any]], *, region: str, today: date) -> Listed:
    """Rows of products as the price list describes them."""
    found: dict[tuple[str, str | None], set[Decimal]] = {}
    refused: list[str] = []
    for product in products:
        attributes = product.get("product", {}).get("attributes", {})
        if attributes.get("regionCode") != region:
            continue
        match = _recognised(attributes)
        if match is None:
            continue
        rule, sku = match
        for unit, usd in _dimensions(product):
            name = " ".join(part for part in (rule.item, sku, region) if part)
            if unit.lower() not in rule.units:
                refused.append(f"{name}: its unit is {unit!r}, not one of {sorted(rule.units)}")
            elif usd is None or usd <= 0:
                refused.append(f"{name}: it has no price in USD above 0")
            else:
                found.setdefault((rule.item, sku), set()).add(usd)
    rows = []
    for (item, sku), amounts in found.items():
        if len(amounts) > 1:
            listed = ", ".join(str(amount) for amount in sorted(amounts))
            refused.append(f"{' '.join(p for p in (item, sku, region) if p)}: priced {listed}")
            continue
        rows.append(
            Price(
                item=item, region=region, sku=sku, usd=amounts.pop(), source=SOURCE, checked=today
            )
        )
    rows.sort(key=lambda row: (row.item, row.sku or ""))
    return Listed(rows=tuple(rows), refused=tuple(refused))


def new_rows(rows: Sequence[Price], table: PriceTable) -> list[Price]:
    """Those that the table lacks or has with another amount."""
    wanted = []
    for row in rows:
        try:
            known = table.find(row.item, region=row.region, sku=row.sku)
        except UnknownPriceError:
            wanted.append(row)
            continue
        if known.usd != row.usd:
            wanted.append(row)
    return wanted


def append_rows(path: Path, rows: Sequence[Price], *, start: str) -> None:
    """Append rows to a price file, which begins as `start` where it is not there yet.

    The new text is read before it takes the old one's place.

    Raises:
        PriceTableError: it would contradict itself, such as two prices of one day.
    """
    before = path.read_text("utf-8-sig") if path.exists() else start
    text = before.rstrip("\n") + "\n" + "".join(_toml(row) for row in rows)
    PriceTable.parse(text.encode(), name=str(path))
    partial = path.with_name(f".{path.name}.part")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _recognised(attributes: Mapping[str, Any]) -> tuple[_Rule, str | None] | None:
    usage = str(attributes.get("usagetype", ""))
    # USE1-Host:…, SAE1-Host:…; the first region of all has none.
    bare = re.sub(r"^[A-Z]{2,4}\d*-", "", usage)
    for rule in _RULES:
        match = rule.usage.fullmatch(bare) or rule.usage.fullmatch(str(attributes.get("group", "")))
        if match:
            sku = match[1] if match.groups() else None
            if rule.gigabytes and sku:
                sku = str(1024 * int(sku))
            return rule, sku
    return None


def _dimensions(product: Mapping[str, Any]) -> Iterable[tuple[str, Decimal | None]]:
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term.get("priceDimensions", {}).values():
            try:
                usd = Decimal(dimension["pricePerUnit"]["USD"])
            except (KeyError, InvalidOperation):
                usd = None
            yield str(dimension.get("unit", "")), usd


def _toml(row: Price) -> str:
    lines = [
        "",
        "[[price]]",
        f"item = {json.dumps(row.item)}",
        f"region = {json.dumps(row.region)}",
    ]
    if row.sku is not None:
        lines.append(f"sku = {json.dumps(row.sku)}")
    lines += [
        f'usd = "{row.usd:f}"',
        f"source = {json.dumps(row.source)}",
        f"checked = {row.checked.isoformat()}",
    ]
    return "\n".join(lines) + "\n"
