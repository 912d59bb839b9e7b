"""Cost of inference from a dated price table; exact decimals, no defaults.

    >>> prices = PriceTable.load()
    >>> serverless_cost(
    ...     compute_s=0.1, memory_mib=2048, bytes_in=0, bytes_out=0,
    ...     region="us-east-1", prices=prices,
    ... ).usd_per_1000
    Decimal('0.00400000')

Serverless inference is billed for compute time by memory size and for data in and out, and
costs nothing at rest; a real-time endpoint is billed for its instance hours whether it is
used or not, and for data. Source of the formulas:
https://docs.aws.amazon.com/sagemaker/latest/dg/serverless-endpoints.html (billed "by the
millisecond" and "the amount of data processed"), https://aws.amazon.com/sagemaker-ai/pricing/.
Every amount here is an estimate from list prices: no free tier, discount, tax or exchange rate.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import ROUND_CEILING, Decimal
from importlib import resources
from pathlib import Path
from typing import Any, Final

ITEM_SERVERLESS_COMPUTE: Final = "serverless-compute"
ITEM_DATA_IN: Final = "data-in"
ITEM_DATA_OUT: Final = "data-out"
ITEM_INSTANCE_HOUR: Final = "instance-hour"
ITEM_SERVERLESS_WARM: Final = "serverless-provisioned"
ITEM_SERVERLESS_WARM_COMPUTE: Final = "serverless-provisioned-compute"
ITEM_INSTANCE_STORAGE: Final = "instance-storage"
ITEM_ASYNC_HOUR: Final = "async-hour"
ITEM_BATCH_HOUR: Final = "batch-hour"
ITEM_LAMBDA_REQUEST: Final = "lambda-request"
ITEM_LAMBDA_COMPUTE: Final = "lambda-compute"
ITEM_LAMBDA_WARM: Final = "lambda-provisioned"
ITEM_LAMBDA_WARM_COMPUTE: Final = "lambda-provisioned-compute"
ITEM_LAMBDA_STORAGE: Final = "lambda-ephemeral-storage"
ITEM_ALARM: Final = "alarm"
ITEM_DASHBOARD: Final = "dashboard"
ITEM_KEY: Final = "key"
ITEM_VPC_ENDPOINT_HOUR: Final = "vpc-endpoint-hour"
ITEM_LOG_INGESTION: Final = "log-ingestion"
ITEM_LOG_STORAGE: Final = "log-storage"
ITEM_S3_STORAGE: Final = "s3-storage"
ITEM_S3_WRITE: Final = "s3-write"
ITEM_S3_READ: Final = "s3-read"
ITEM_ECR_STORAGE: Final = "ecr-storage"
# The unit belongs to the item, so that a row cannot disagree with the formula that uses it.
ITEMS: Final[Mapping[str, str]] = {
    ITEM_SERVERLESS_COMPUTE: "USD per second",
    ITEM_DATA_IN: "USD per GB",
    ITEM_DATA_OUT: "USD per GB",
    ITEM_INSTANCE_HOUR: "USD per hour",
    ITEM_SERVERLESS_WARM: "USD per second",
    ITEM_SERVERLESS_WARM_COMPUTE: "USD per second",
    ITEM_INSTANCE_STORAGE: "USD per GB and month",
    ITEM_ASYNC_HOUR: "USD per hour",
    ITEM_BATCH_HOUR: "USD per hour",
    ITEM_LAMBDA_REQUEST: "USD per million requests",
    ITEM_LAMBDA_COMPUTE: "USD per GB-second",
    ITEM_LAMBDA_WARM: "USD per GB-second",
    ITEM_LAMBDA_WARM_COMPUTE: "USD per GB-second",
    ITEM_LAMBDA_STORAGE: "USD per GB-second",
    ITEM_ALARM: "USD per alarm and month",
    ITEM_DASHBOARD: "USD per dashboard and month",
    ITEM_KEY: "USD per key and month",
    ITEM_VPC_ENDPOINT_HOUR: "USD per hour and zone",
    ITEM_LOG_INGESTION: "USD per GB",
    ITEM_LOG_STORAGE: "USD per GB and month",
    ITEM_S3_STORAGE: "USD per GB and month",
    ITEM_S3_WRITE: "USD per 1,000 requests",
    ITEM_S3_READ: "USD per 1,000 requests",
    ITEM_ECR_STORAGE: "USD per GB and month",
}
# Sold by memory size, instance type or architecture; everything else has one price a region.
_WITH_SKU: Final = (
    ITEM_SERVERLESS_COMPUTE,
    ITEM_SERVERLESS_WARM,
    ITEM_SERVERLESS_WARM_COMPUTE,
    ITEM_INSTANCE_HOUR,
    ITEM_ASYNC_HOUR,
    ITEM_BATCH_HOUR,
    ITEM_LAMBDA_COMPUTE,
    ITEM_LAMBDA_WARM,
    ITEM_LAMBDA_WARM_COMPUTE,
)

# AWS meters data in binary gigabytes (2**30 bytes) and names them GB.
BYTES_PER_GB: Final = Decimal(2**30)
SECONDS_PER_HOUR: Final = Decimal(3600)
# 365 days / 12; the figure that AWS's own calculator uses.
HOURS_PER_MONTH: Final = Decimal(730)
PRICES_FILE: Final = "dr_experiments/prices.toml"
# How the source of a price begins that is of no file.
GIVEN: Final = "--price"
_AMOUNT: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?")
# No unit of a cloud costs as much: a point was forgotten.
_HIGHEST_USD: Final = Decimal(10**6)


class UnknownPriceError(LookupError):
    """No row for what was asked; the text names the row to add.

    Args:
        kind: what is missing, by which a page says it in its own language (`reason.…` in
            `report_words.toml`).
        item: what was asked for with `sku` and `region`, where it was a row.
    """

    def __init__(
        self,
        text: str,
        *,
        kind: str = "no_row",
        item: str | None = None,
        sku: str | None = None,
        region: str | None = None,
    ) -> None:
        super().__init__(text)
        self.kind, self.item, self.sku, self.region = kind, item, sku, region

    def __str__(self) -> str:
        # LookupError shows its argument with quotes otherwise.
        return str(self.args[0]) if self.args else ""


class PriceTableError(ValueError):
    """The price file is damaged or contradicts itself; the text names the file and the row."""


@dataclass(frozen=True, kw_only=True)
class Price:
    """One dated row. `usd` is per `unit`; `sku` is a size in MiB, a type or an architecture."""

    item: str
    region: str
    sku: str | None
    usd: Decimal
    source: str
    checked: date
    note: str = ""

    @property
    def unit(self) -> str:
        return ITEMS[self.item]

    @property
    def name(self) -> str:
        """Item, size and region in words, for tables and messages."""
        return " ".join(part for part in (self.item, self.sku, self.region) if part)


@dataclass(frozen=True, kw_only=True)
class PriceTable:
    """All rows of a price file, in the order of the file."""

    rows: tuple[Price, ...]

    @classmethod
    def load(cls, path: Path | None = None) -> "PriceTable":
        """Read a price file; the project's own by default.

        Raises:
            PriceTableError: it is no UTF-8, no TOML or no list of prices, a row is faulty, or two
                rows are of one thing and one day.
            OSError: the file cannot be read.
        """
        own = resources.files("dr_experiments").joinpath("prices.toml")
        return cls.parse((path or own).read_bytes(), name=str(path or PRICES_FILE))

    @classmethod
    def parse(cls, content: bytes, *, name: str) -> "PriceTable":
        """The table of a file's content; `name` is what an error calls it. Raises as `load`."""
        try:
            return cls(rows=_rows(content))
        except PriceTableError as error:
            raise PriceTableError(f"{name}: {error}") from None

    def with_given(self, texts: Sequence[str], *, region: str, on: date) -> "PriceTable":
        """The same with prices that somebody has read himself, in place of the table's own.

        Args:
            texts: `ITEM=USD`, or `ITEM:SKU=USD` where an item is sold by size, type or
                architecture.
            region: which they are of.
            on: the day on which they were read.

        Raises:
            PriceTableError: a text is not of that form, its item is not known, or is given twice.
        """
        given = [_given(text, region=region, on=on) for text in texts]
        names = [row.name for row in given]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise PriceTableError(f"two prices are given for {twice}")
        kept = [row for row in self.rows if row.name not in names]
        return PriceTable(rows=(*given, *kept))

    def find(
        self, item: str, *, region: str, sku: str | None = None, on: date | None = None
    ) -> Price:
        """The newest row checked on or before `on` (default: the newest of all).

        Raises:
            UnknownPriceError: no such row. There is no fallback to another region or size.
        """
        if item not in ITEMS:
            raise UnknownPriceError(f"{item!r} is not sold here; known items: {', '.join(ITEMS)}")
        matching = [
            row
            for row in self.rows
            if (row.item, row.region, row.sku) == (item, region, sku)
            and (on is None or row.checked <= on)
        ]
        if not matching:
            wanted = " ".join(part for part in (item, sku) if part)
            day = f" on or before {on}" if on else ""
            raise UnknownPriceError(
                f"no price for {wanted} in {region}{day} ({ITEMS[item]}); "
                f"add a dated row with its source to {PRICES_FILE}",
                item=item,
                sku=sku,
                region=region,
            )
        return max(matching, key=lambda row: row.checked)


@dataclass(frozen=True, kw_only=True)
class NotedPrices(PriceTable):
    """The same table, remembering which rows were found in it."""

    used: set[Price] = field(default_factory=set, compare=False)

    def find(
        self, item: str, *, region: str, sku: str | None = None, on: date | None = None
    ) -> Price:
        """As `PriceTable.find`."""
        row = super().find(item, region=region, sku=sku, on=on)
        self.used.add(row)
        return row


@dataclass(frozen=True, kw_only=True)
class CostEstimate:
    """Estimated cost of 1,000 inferences, by part, and the rows it came from."""

    parts_usd_per_1000: Mapping[str, Decimal]
    assumption: str
    prices: tuple[Price, ...]

    @property
    def usd_per_1000(self) -> Decimal:
        return sum(self.parts_usd_per_1000.values(), Decimal(0))


def serverless_cost(
    *,
    compute_s: float | Decimal,
    memory_mib: int,
    bytes_in: float,
    bytes_out: float,
    region: str,
    prices: PriceTable,
    on: date | None = None,
) -> CostEstimate:
    """Cost of 1,000 on-demand serverless inferences.

    Args:
        compute_s: seconds of compute billed for one inference, >= 0.
        memory_mib: memory size of the endpoint; must have a price row.
        bytes_in: request body, bytes per inference; bytes_out: answer body.
        region: AWS region; on: use the prices known on that day.
    """
    seconds = _not_negative("compute_s", compute_s)
    compute = prices.find(ITEM_SERVERLESS_COMPUTE, region=region, sku=str(memory_mib), on=on)
    data_parts, data_rows = _data(bytes_in, bytes_out, region=region, prices=prices, on=on)
    return CostEstimate(
        parts_usd_per_1000={"compute": 1000 * seconds * compute.usd, **data_parts},
        assumption="on demand, no provisioned concurrency; nothing is billed between requests",
        prices=(compute, *data_rows),
    )


def lambda_cost(
    *,
    compute_s: float | Decimal,
    memory_mib: int,
    architecture: str,
    region: str,
    prices: PriceTable,
    on: date | None = None,
) -> CostEstimate:
    """Cost of 1,000 invocations of a Lambda function that is not kept warm.

    Args:
        compute_s: seconds of one invocation, >= 0; billed in whole milliseconds, upwards.
        memory_mib: memory size of the function; architecture: `amd64` or `arm64`.
        region: AWS region; on: use the prices known on that day.
    """
    billed = _not_negative("compute_s", compute_s).quantize(
        Decimal("0.001"), rounding=ROUND_CEILING
    )
    compute = prices.find(ITEM_LAMBDA_COMPUTE, region=region, sku=architecture, on=on)
    request = prices.find(ITEM_LAMBDA_REQUEST, region=region, on=on)
    gb_seconds = billed * Decimal(memory_mib) / 1024
    return CostEstimate(
        parts_usd_per_1000={
            "compute": 1000 * gb_seconds * compute.usd,
            "requests": request.usd / 1000,
        },
        assumption="on demand, no provisioned concurrency, no starts; the function's URL and data "
        "in cost nothing, data out is not counted",
        prices=(compute, request),
    )


def realtime_cost(
    *,
    instance_type: str,
    requests_per_hour: float | Decimal,
    bytes_in: float,
    bytes_out: float,
    region: str,
    prices: PriceTable,
    instance_count: int = 1,
    on: date | None = None,
) -> CostEstimate:
    """Cost of 1,000 inferences on instances that run for the whole hour.

    Args:
        instance_type: for example `ml.m5.xlarge`; must have a price row.
        requests_per_hour: inferences that share one hour of all instances, > 0.
        instance_count: instances that are always on, >= 1.
    """
    rate = _not_negative("requests_per_hour", requests_per_hour)
    if rate == 0:
        raise ValueError("requests_per_hour must be above 0: an idle hour has no cost per request")
    if instance_count < 1:
        raise ValueError(f"instance_count must be at least 1; got {instance_count}")
    hour = prices.find(ITEM_INSTANCE_HOUR, region=region, sku=instance_type, on=on)
    data_parts, data_rows = _data(bytes_in, bytes_out, region=region, prices=prices, on=on)
    return CostEstimate(
        parts_usd_per_1000={"instances": 1000 * hour.usd * instance_count / rate, **data_parts},
        assumption=(
            f"{instance_count} instance{'s' if instance_count > 1 else ''} always on, "
            f"shared by {rate:,.0f} requests per hour"
        ),
        prices=(hour, *data_rows),
    )


def full_utilisation_per_hour(service_s: float | Decimal) -> Decimal:
    """Requests per hour when one request follows another without a pause.

    It is what one client can drive, a lower bound of what the instance can serve: several
    clients at once use more of its cores.
    """
    seconds = _not_negative("service_s", service_s)
    if seconds == 0:
        raise ValueError("service_s must be above 0")
    return SECONDS_PER_HOUR / seconds


def month_at_rest(
    *, instance_type: str, region: str, prices: PriceTable, instance_count: int = 1
) -> Decimal:
    """USD for a month (730 hours) of a real-time endpoint that nobody calls."""
    hour = prices.find(ITEM_INSTANCE_HOUR, region=region, sku=instance_type)
    return hour.usd * instance_count * HOURS_PER_MONTH


def _data(
    bytes_in: float, bytes_out: float, *, region: str, prices: PriceTable, on: date | None
) -> tuple[dict[str, Decimal], tuple[Price, ...]]:
    parts: dict[str, Decimal] = {}
    rows: list[Price] = []
    for label, item, size in (
        ("data in", ITEM_DATA_IN, bytes_in),
        ("data out", ITEM_DATA_OUT, bytes_out),
    ):
        row = prices.find(item, region=region, on=on)
        parts[label] = 1000 * _not_negative(label, size) / BYTES_PER_GB * row.usd
        rows.append(row)
    return parts, tuple(rows)


def _not_negative(name: str, value: float | Decimal) -> Decimal:
    # str() first: Decimal(0.1) would carry the binary error of the float into the cost.
    number = value if isinstance(value, Decimal) else Decimal(str(value))
    if not number.is_finite() or number < 0:
        raise ValueError(f"{name} must be a finite number of at least 0; got {value}")
    return number


def _rows(content: bytes) -> tuple[Price, ...]:
    try:
        document = tomllib.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise PriceTableError("it is not UTF-8 text") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise PriceTableError(f"it is not TOML: {error}") from None
    unknown = sorted(set(document) - {"price"})
    if unknown:
        raise PriceTableError(f"only [[price]] is known here; got {', '.join(unknown)}")
    entries = document.get("price", [])
    if not isinstance(entries, list):
        raise PriceTableError("price must be a list of tables: [[price]] above each row")
    rows = tuple(_row(entry, n) for n, entry in enumerate(entries, start=1))
    seen: dict[tuple[str, str, str | None, date], int] = {}
    for number, row in enumerate(rows, start=1):
        before = seen.setdefault((row.item, row.region, row.sku, row.checked), number)
        if before != number:
            raise PriceTableError(
                f"two prices for {row.name} are dated {row.checked} (prices {before} and {number})"
            )
    return rows


def _given(text: str, *, region: str, on: date) -> Price:
    what, _, usd = text.partition("=")
    item, colon, sku = what.partition(":")
    if item not in ITEMS:
        raise PriceTableError(
            f"{text[:60]!r} is no price: ITEM=USD, or ITEM:SIZE=USD, with one of {', '.join(ITEMS)}"
        )
    if bool(sku) != (item in _WITH_SKU) or bool(colon) != bool(sku):
        form = f"{item}:SIZE=USD" if item in _WITH_SKU else f"{item}=USD"
        raise PriceTableError(f"{text[:60]!r} is not of the form {form}")
    return Price(
        item=item,
        region=region,
        sku=sku or None,
        usd=_usd(usd, what),
        source=f"{GIVEN} {text}",
        checked=on,
    )


def _row(entry: Any, number: int) -> Price:
    if not isinstance(entry, dict):
        raise PriceTableError(f"price {number} is not a table")
    names = [str(entry[key])[:40] for key in ("item", "sku", "region") if key in entry]
    where = f"price {number} ({', '.join(names)})"
    unknown = set(entry) - {"item", "region", "sku", "usd", "source", "checked", "note"}
    if unknown:
        raise PriceTableError(f"{where} has unknown keys: {', '.join(sorted(unknown))}")
    for key in ("item", "region", "usd", "source", "checked"):
        if not entry.get(key):
            raise PriceTableError(f"{where} has no {key}")
    # A TOML float is binary already, and a number is no size's name: `find` compares texts.
    for key in ("item", "region", "sku", "usd", "source", "note"):
        if not isinstance(entry.get(key, ""), str):
            raise PriceTableError(f"{where}: {key} must be a string, in quotes")
    # A TOML datetime is a date with a time.
    if type(entry["checked"]) is not date:
        raise PriceTableError(f"{where}: checked must be a date, such as 2026-11-28")
    if entry["item"] not in ITEMS:
        raise PriceTableError(f"{where}: item must be one of {', '.join(ITEMS)}")
    sku = entry.get("sku")
    if (not sku) == (entry["item"] in _WITH_SKU) or sku == "":
        raise PriceTableError(f"{where}: sku is missing, or given where there is only one")
    return Price(
        item=entry["item"],
        region=entry["region"],
        sku=sku,
        usd=_usd(entry["usd"], where),
        source=entry["source"],
        checked=entry["checked"],
        note=entry.get("note", ""),
    )


def _usd(text: str, where: str) -> Decimal:
    if not _AMOUNT.fullmatch(text):
        negative = _AMOUNT.fullmatch(text.removeprefix("-"))
        demand = "be above 0" if negative else "be a number with a point, such as 0.016"
        raise PriceTableError(f"{where}: usd must {demand}; got {text[:40]!r}")
    usd = Decimal(text)
    if usd <= 0:
        raise PriceTableError(f"{where}: usd must be above 0; got {text[:40]!r}")
    if usd > _HIGHEST_USD:
        raise PriceTableError(f"{where}: usd must be at most {_HIGHEST_USD:,}; got {text[:40]!r}")
    return usd
