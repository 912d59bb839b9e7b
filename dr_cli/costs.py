"""`dr bench cost` and `dr bench recommend`: what measured deployments cost, and which to take."""

import itertools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Final

import typer

from dr_cli.errors import CommandError
from dr_experiments.deployment_cost import (
    CLINIC_HOURS_PER_MONTH,
    Bill,
    FixedPart,
    Traffic,
    break_even,
    monthly_bill,
)
from dr_experiments.measured import Measured, measured
from dr_experiments.pricing import HOURS_PER_MONTH, PriceTable, UnknownPriceError
from dr_experiments.recommend import (
    Option,
    Quality,
    Wish,
    deploy_command,
    explain,
    recommend,
    row_source,
)
from dr_experiments.records import read_jsonl
from dr_experiments.statistics import Summary
from dr_experiments.study_tables import markdown_table

RECORDS_FILE: Final = "requests.jsonl"
MODEL_FOLDER: Final = Path("model_artifacts")
_CURVE: Final = tuple(10**power for power in range(2, 9))
_DASH: Final = "-"


def print_costs(
    runs: Sequence[Path],
    *,
    requests_per_month: int,
    hours: str,
    region: str,
    fixed: FixedPart,
    prices_file: Path | None,
    provisioned: int = 0,
    storage_gb: float = 0,
) -> None:
    """See `dr bench cost --help`."""
    prices = PriceTable.load(prices_file)
    within = hours_per_month(hours)
    found = tuple(
        _sized(one, provisioned=provisioned, storage_gb=storage_gb, hours=within)
        for one in read_runs(runs)
    )
    rows, bills, missing = [], {}, []
    for one in found:
        try:
            bill = _bill(one, requests_per_month, one.container.mean, within, region, prices, fixed)
            other = _bill(
                one, requests_per_month, one.round_trip.mean, within, region, prices, fixed
            )
        except UnknownPriceError as error:
            missing.append(f"{one.name}: {error}")
            continue
        bills[one.name] = one
        parts = ", ".join(f"{name} {usd:.4f}" for name, usd in bill.parts.items())
        rows.append((one.name, str(one.container.n), f"{other.usd:.4f}", f"{bill.usd:.4f}", parts))
    if rows:
        typer.echo(
            f"USD per month for {requests_per_month:,} requests within {within:.0f} hours, "
            f"{region}, list prices:\n"
        )
        typer.echo(
            markdown_table(
                ("configuration", "n", "by round trip", "by time in the container", "of which"),
                rows,
            )
        )
        _print_curves(list(bills.values()), within, region, prices, fixed)
    for line in missing:
        typer.echo(f"no cost: {line}", err=True)
    if not rows:
        raise CommandError("none of the configurations has a cost; the reasons are above")


def print_recommendation(
    runs: Sequence[Path],
    *,
    p99: str | None,
    requests_per_month: int,
    hours: str,
    region: str,
    min_sensitivity: float | None,
    fixed: FixedPart,
    prices_file: Path | None,
) -> None:
    """See `dr bench recommend --help`."""
    wish = Wish(
        requests_per_month=requests_per_month,
        region=region,
        p99_s=seconds(p99) if p99 else None,
        hours=hours_per_month(hours),
        min_sensitivity=min_sensitivity,
    )
    ranking = recommend(
        read_runs(runs),
        wish=wish,
        prices=PriceTable.load(prices_file),
        qualities=read_qualities(MODEL_FOLDER),
        fixed=fixed,
    )
    head = (
        "configuration", "p99, ms", "n", "USD/month (container)", "USD/month (round trip)",
        "sensitivity, lower bound", "Pareto front", "against",
    )  # fmt: skip
    typer.echo(markdown_table(head, [_row(one) for one in (*ranking.suitable, *ranking.others)]))
    words = explain(ranking, wish=wish)
    if ranking.choice is None:
        raise CommandError(words)
    typer.echo(f"\n{words}")
    row = ranking.choice.measured.row
    if row is not None:
        typer.echo(f"\nrow     {row_source(row)}\ndeploy  {deploy_command(row)}")


def read_runs(runs: Sequence[Path]) -> tuple[Measured, ...]:
    """Configurations of all runs; a run is a folder of `dr bench`, or its requests.jsonl.

    Raises:
        CommandError: no records, a line that is none, or one configuration in two runs.
    """
    found: list[Measured] = []
    for run in runs:
        path = run / RECORDS_FILE if run.is_dir() else run
        if not path.is_file():
            raise CommandError(f"{path} is not there; name a folder that `dr bench` has written")
        try:
            found += measured(read_jsonl(path))
        except ValueError as error:
            raise CommandError(str(error)) from None
    names = [one.name for one in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise CommandError(f"{', '.join(twice)}: measured in two of the runs; name one of them")
    if not found:
        raise CommandError("no request of these runs was answered; there is nothing to compute")
    return tuple(found)


def read_qualities(folder: Path) -> dict[str, Quality]:
    """Sensitivity at the default operating point of each package of `folder`, by model id."""
    qualities = {}
    for path in sorted(folder.glob("*/model.json")):
        model = json.loads(path.read_text("utf-8"))
        metrics = model.get("metrics") or {}
        point = (metrics.get("operating_points") or {}).get(model.get("default_operating_point"))
        if point and "sensitivity" in point:
            qualities[model["id"]] = Quality(
                sensitivity=point["sensitivity"]["value"],
                low=point["sensitivity"]["low"],
                data=str(metrics.get("data", "not stated")),
            )
    return qualities


def seconds(text: str) -> float:
    """`1s`, `800ms` or `0.8` as seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s)?", text.strip())
    if match is None or float(match[1]) <= 0:
        raise CommandError(f"a time is like 1s or 800ms; got {text!r}")
    return float(match[1]) / (1000 if match[2] == "ms" else 1)


def hours_per_month(text: str) -> Decimal:
    """`always` (730), `clinic` (217: five days of ten hours) or a number of hours."""
    if text == "always":
        return HOURS_PER_MONTH
    if text == "clinic":
        return CLINIC_HOURS_PER_MONTH
    if re.fullmatch(r"\d+(\.\d+)?", text) and 0 < Decimal(text) <= HOURS_PER_MONTH:
        return Decimal(text)
    raise CommandError(f"hours must be always, clinic or 1 to 730 a month; got {text!r}")


def _sized(one: Measured, *, provisioned: int, storage_gb: float, hours: Decimal) -> Measured:
    """The same measurement with containers kept warm in the hours of traffic, or with volumes."""
    if one.setup is None:
        return one
    if one.setup.memory_mib:
        setup = replace(one.setup, provisioned=provisioned, warm_hours=hours)
    else:
        setup = replace(one.setup, storage_gb=Decimal(str(storage_gb)))
    return replace(one, setup=setup)


def _row(option: Option) -> tuple[str, ...]:
    one = option.measured
    return (
        one.name,
        f"{one.p99.value * 1000:,.1f}",
        str(one.p99.n[0]),
        _DASH if option.usd is None else f"{option.usd:.4f}",
        _DASH if option.usd_round_trip is None else f"{option.usd_round_trip:.4f}",
        _DASH if option.quality is None else f"{option.quality.low:.3f}",
        "yes" if option.on_front else "no",
        "; ".join(option.against) or _DASH,
    )


def _bill(
    one: Measured,
    requests: int,
    compute_s: float,
    hours: Decimal,
    region: str,
    prices: PriceTable,
    fixed: FixedPart,
) -> Bill:
    if one.setup is None:
        raise UnknownPriceError("not a deployment of the matrix, so it has no price")
    traffic = Traffic(
        requests=requests, bytes_in=one.bytes_in, bytes_out=one.bytes_out, hours=hours
    )
    return monthly_bill(
        one.setup, traffic, compute_s=compute_s, region=region, prices=prices, fixed=fixed
    )


def _print_curves(
    found: Sequence[Measured], hours: Decimal, region: str, prices: PriceTable, fixed: FixedPart
) -> None:
    """Cost by requests per month, and where one mode becomes cheaper than another."""

    def cost(one: Measured) -> Callable[[int, int], Decimal]:
        def of(requests: int, side: int) -> Decimal:
            bound = _bound(one.container, side)
            return _bill(one, requests, bound, hours, region, prices, fixed).usd

        return of

    typer.echo("\nUSD per month by requests per month (time in the container):\n")
    typer.echo(
        markdown_table(
            ("configuration", *(f"{n:,}" for n in _CURVE)),
            [(one.name, *(f"{cost(one)(n, 0):.2f}" for n in _CURVE)) for one in found],
        )
    )
    rows = []
    for first, second in itertools.permutations(found, 2):
        if first.setup is None or second.setup is None or first.setup.mode == second.setup.mode:
            continue
        if cost(first)(1, 0) < cost(second)(1, 0):
            crossing = break_even(cost(first), cost(second))
            # The bounds are equal where neither crosses, or where steps hide the difference.
            bounds = " to ".join(
                dict.fromkeys(
                    "never" if n is None else f"{n:,}" for n in (crossing.low, crossing.high)
                )
            )
            at = "never" if crossing.requests is None else f"{crossing.requests:,}"
            rows.append((first.name, second.name, at, bounds))
    if rows:
        typer.echo("\nFrom how many requests per month the second is cheaper:\n")
        typer.echo(
            markdown_table(
                ("first", "second", "requests per month", "with both times at their 95 % bounds"),
                rows,
            )
        )


def _bound(summary: Summary, side: int) -> float:
    bound = {-1: summary.mean_low, 0: summary.mean, 1: summary.mean_high}[side]
    # A few scattered values can have a lower bound below zero; the smallest value is above it.
    return max(bound if bound is not None else summary.mean, summary.minimum / 2)
