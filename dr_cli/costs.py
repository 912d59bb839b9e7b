"""`dr bench cost` and `dr bench recommend`: what measured deployments cost, and which to take."""

import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import typer

from dr_cli.amounts import hours_per_month, seconds
from dr_cli.errors import CommandError
from dr_experiments.deployment_cost import (
    FREE_EPHEMERAL_MIB,
    MODE_ASYNC,
    MODE_BATCH,
    MODE_LAMBDA,
    Bill,
    FixedPart,
    Setup,
)
from dr_experiments.measured import Measured, joined, only_fresh
from dr_experiments.months import CONTAINER, DATA_ITEMS, ROUND_TRIP, Month, spread, usd_digits
from dr_experiments.price_list import LISTED_ITEMS
from dr_experiments.pricing import (
    GIVEN,
    ITEM_DATA_IN,
    NotedPrices,
    PriceTable,
    PriceTableError,
    UnknownPriceError,
)
from dr_experiments.recommend import (
    PLATFORM_WORDS,
    Option,
    Quality,
    Ranking,
    Wish,
    data_words,
    deploy_command,
    deployment_of,
    explain,
    platform_notice,
    recommend,
    row_source,
    settled,
    without_data,
)
from dr_experiments.records import read_jsonl
from dr_experiments.study_tables import markdown_table
from dr_experiments.sweep.plan import Entry
from dr_experiments.sweep.runner import PACKAGES_FOLDER
from inference_image.contract import SERVING_MODE_REALTIME
from inference_image.model_spec import MODEL_JSON, file_sha256

RECORDS_FILE: Final = "requests.jsonl"
# Modes whose work runs on the instances of a real-time row.
ON_INSTANCES: Final = (MODE_ASYNC, MODE_BATCH)
MODEL_FOLDER: Final = Path("model_artifacts")
_CURVE: Final = tuple(10**power for power in range(2, 9))
_DASH: Final = "-"
# Stands in a command where only a person knows the folder.
_ANY_FOLDER: Final = "FOLDER"
_WITHOUT_DATA: Final = "The charge for data in and out is not counted (--without-data)."


def print_costs(
    runs: Sequence[Path],
    *,
    requests_per_month: int,
    hours: str,
    region: str,
    fixed: FixedPart,
    prices_file: Path | None,
    given: Sequence[str] = (),
    provisioned: int = 0,
    storage_gb: float = 0,
    ephemeral_mib: int = FREE_EPHEMERAL_MIB,
    cold_share: float = 0,
    also: Sequence[str] = (),
    data: bool = True,
) -> None:
    """See `dr bench cost --help`."""
    unknown = [mode for mode in also if mode not in ON_INSTANCES]
    if unknown:
        raise CommandError(f"--also is one of {', '.join(ON_INSTANCES)}; got {unknown[0]!r}")
    within = hours_per_month(hours)
    prices = price_table(prices_file, given, region=region)
    month = Month(
        region=region,
        prices=prices,
        hours=within,
        fixed=fixed,
        left_out=frozenset() if data else DATA_ITEMS,
        cold_share=Decimal(str(cold_share)),
    )
    read = read_runs(runs)
    _check_options(
        read,
        also=also,
        provisioned=provisioned,
        storage_gb=storage_gb,
        ephemeral_mib=ephemeral_mib,
        cold_share=cold_share,
    )
    found = [
        _sized(
            one,
            provisioned=provisioned,
            storage_gb=storage_gb,
            ephemeral_mib=ephemeral_mib,
            hours=within,
        )
        for one in read
    ]
    found += [
        _moved(one, mode) for mode in dict.fromkeys(also) for one in found if _on_instance(one)
    ]
    rows, bills, missing = [], {}, []
    assumed: dict[str, list[str]] = {}
    for one in found:
        try:
            bill = month.bill(one, requests_per_month)
            other = month.bill(one, requests_per_month, basis=ROUND_TRIP)
        except UnknownPriceError as error:
            missing.append(f"{one.name}: {error}")
            continue
        bills[one.name] = one
        for words in _assumptions(one, bill, other):
            assumed.setdefault(words, []).append(one.name)
        # Without commas in the numbers, which would end a part.
        parts = ", ".join(
            f"{name} {_exact(usd).replace(',', '')}" for name, usd in bill.parts.items()
        )
        bounds = (
            spread(
                [month.bill(one, requests_per_month, side=s, basis=b).usd for s in (-1, 1)], _exact
            )
            for b in (ROUND_TRIP, CONTAINER)
        )
        rows.append(
            (one.name, str(one.container.n), _exact(other.usd), _exact(bill.usd), parts, *bounds)
        )
    if rows:
        typer.echo(
            f"USD per month for {requests_per_month:,} requests within {within:.0f} hours, "
            f"{region}, list prices; low to high with the mean time at the bounds of its 95 % "
            "interval:\n"
        )
        typer.echo(
            markdown_table(
                (
                    "configuration",
                    "n",
                    "by round trip",
                    "by time in the container",
                    "of which",
                    "by round trip, low to high",
                    "in the container, low to high",
                ),
                rows,
            )
        )
        typer.echo("\nAssumed:\n")
        for words, names in assumed.items():
            typer.echo(f"- {words}: {', '.join(names)}")
        _print_curves(list(bills.values()), month)
        notices = [platform_notice(list(bills.values())), given_prices(prices)]
        for notice in (*notices, None if data else _WITHOUT_DATA):
            if notice:
                typer.echo(f"\n{notice}")
    for line in missing:
        typer.echo(f"no cost: {line}", err=True)
    if not rows:
        hint = _price_hint(" ".join(missing), region)
        raise CommandError(f"none of the configurations has a cost; the reasons are above.{hint}")


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
    given: Sequence[str] = (),
    data: bool = True,
) -> None:
    """See `dr bench recommend --help`."""
    wish = Wish(
        requests_per_month=requests_per_month,
        region=region,
        p99_s=None if p99 is None else seconds(p99, option="--p99"),
        hours=hours_per_month(hours),
        min_sensitivity=min_sensitivity,
        left_out=frozenset() if data else DATA_ITEMS,
    )
    prices = price_table(prices_file, given, region=region)
    found, qualities = read_runs(runs), read_qualities(MODEL_FOLDER)
    no_qualities = f"./{MODEL_FOLDER} was looked for, and is not there"

    def rank(wish: Wish) -> Ranking:
        return recommend(
            found,
            wish=wish,
            prices=prices,
            qualities=qualities,
            no_qualities=None if MODEL_FOLDER.is_dir() else no_qualities,
            fixed=fixed,
        )

    ranking, left_out = settled(rank, wish=wish, prices=prices)
    kind = f", without {data_words(left_out)}" if left_out else ""
    head = (
        "configuration", "measured on", "p99, ms", "n", f"USD/month (container{kind})",
        f"USD/month (round trip{kind})", "sensitivity, lower bound", "Pareto front", "against",
    )  # fmt: skip
    typer.echo(markdown_table(head, [_row(one) for one in (*ranking.suitable, *ranking.others)]))
    words = explain(ranking, wish=wish)
    if ranking.choice is None:
        raise CommandError(words + _price_hint(words, region))
    typer.echo("")
    if data and left_out:
        typer.echo(
            f"The price of {data_words(left_out)} in {region} is not known, and does not decide "
            "this."
        )
    if left_out:
        typer.echo(without_data(ranking, left_out, prices=prices))
    typer.echo(words)
    notice = given_prices(prices)
    if notice:
        typer.echo(notice)
    typer.echo(f"\n{_how_to_deploy(ranking.choice.measured, runs, region=region)}")


def price_table(prices_file: Path | None, given: Sequence[str], *, region: str) -> NotedPrices:
    """The price file, the project's own by default, with the prices of `--price` before it.

    Raises:
        CommandError: a price of `--price` is none.
        PriceTableError: as `PriceTable.load`.
    """
    table = PriceTable.load(prices_file)
    try:
        table = table.with_given(given, region=region, on=datetime.now(UTC).date())
    except PriceTableError as error:
        raise CommandError(f"--price: {error}") from None
    return NotedPrices(rows=table.rows)


def given_prices(prices: NotedPrices) -> str | None:
    """Which prices are of no file, and which of those nothing has; None where there are none."""
    texts = []
    for words, used in (("not looked up", True), ("in none of these amounts", False)):
        given = [
            f"{row.name} {row.usd:f} {row.unit}"
            for row in prices.rows
            if row.source.startswith(GIVEN) and (row in prices.used) == used
        ]
        if given:
            texts.append(f"Given with --price, and {words}: {', '.join(given)}.")
    return " ".join(texts) or None


def read_runs(runs: Sequence[Path]) -> tuple[Measured, ...]:
    """Configurations of all runs; a run is a folder of `dr bench`, or its requests.jsonl.

    Fresh containers of one run join what another measured warm; what none did is named on stderr.

    Raises:
        CommandError: no records, a line that is none, or one configuration warm in two runs.
    """
    try:
        records = [read_jsonl(records_file(run)) for run in runs]
        found = joined(records)
    except ValueError as error:
        raise CommandError(str(error)) from None
    fresh = only_fresh(itertools.chain(*records))
    for name, count in fresh.items():
        typer.echo(
            f"left out: {name}: fresh containers alone gave its {count} answers, and a cost starts "
            "from warm ones; measure it warm, too, and name both runs",
            err=True,
        )
    if not found and fresh:
        raise CommandError("none of these runs has a warm answer; the reasons are above")
    if not found:
        raise CommandError("no request of these runs was answered; there is nothing to compute")
    return found


def records_file(run: Path) -> Path:
    """The records of a run: in its folder, or the file itself; `CommandError` without one."""
    path = run / RECORDS_FILE if run.is_dir() else run
    if not path.is_file():
        raise CommandError(f"{path} is not there; name a folder that `dr bench` has written")
    return path


def read_qualities(folder: Path) -> tuple[Quality, ...]:
    """Sensitivity at the default operating point of each package of `folder` whose card has it.

    Raises:
        CommandError: a `model.json` that is not JSON or not of a package's form.
    """
    qualities = []
    for path in sorted(folder.glob(f"*/{MODEL_JSON}")):
        try:
            content = path.read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            qualities += _quality(json.loads(content.decode("utf-8")), digest)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise CommandError(f"{path} does not describe a model package") from None
    return tuple(qualities)


def _quality(model: dict[str, Any], digest: str) -> list[Quality]:
    metrics = model.get("metrics") or {}
    point = (metrics.get("operating_points") or {}).get(model.get("default_operating_point"))
    if not point or "sensitivity" not in point:
        return []
    return [
        Quality(
            model_id=model["id"],
            model_sha256=digest,
            sensitivity=float(point["sensitivity"]["value"]),
            low=float(point["sensitivity"]["low"]),
            data=str(metrics.get("data", "not stated")),
        )
    ]


def _how_to_deploy(one: Measured, runs: Sequence[Path], *, region: str) -> str:
    """Row and command of what was measured, or what keeps it from having them."""
    entry = deployment_of(one)
    if entry is None:
        return (
            f"{one.name} is no row of the deployment matrix (stacks/matrix.py): there is no row "
            "and no command to print."
        )
    root, known = _model_root(entry, one, runs)
    command = deploy_command(entry, region=region, model_root=root)
    lines = [f"row     {row_source(entry.deployment)}", f"deploy  {command}"]
    if not known:
        digest = f", SHA-256 of its {MODEL_JSON} {one.model_sha256}" if one.model_sha256 else ""
        lines.append(
            f"\n{_ANY_FOLDER} has to hold, under the name {entry.deployment.package}, the package "
            f"that was measured ({one.model_id or 'its id is not recorded'}{digest})."
        )
    return "\n".join(lines)


def _model_root(entry: Entry, one: Measured, runs: Sequence[Path]) -> tuple[str | None, bool]:
    """Folder for the context `model-root`, None for the app's own; and whether it is known."""
    package = entry.deployment.package
    own = _digest(MODEL_FOLDER / package)
    if entry.package is None and (own is None or one.model_sha256 is None):
        return None, True
    if own is not None and own == one.model_sha256:
        return None, True
    # A sweep's folder has the packages that were named for it.
    for run in runs if entry.package is not None else ():
        folder = (run if run.is_dir() else run.parent) / PACKAGES_FOLDER / str(entry.package)
        found = _digest(folder / package)
        if found is not None and found == (one.model_sha256 or found):
            return str(folder), True
    return _ANY_FOLDER, False


def _digest(package: Path) -> str | None:
    """The digest that names a package; None where there is none."""
    path = package / MODEL_JSON
    return file_sha256(path) if path.is_file() else None


def _check_options(
    found: Sequence[Measured],
    *,
    also: Sequence[str],
    provisioned: int,
    storage_gb: float,
    ephemeral_mib: int,
    cold_share: float,
) -> None:
    """Refuse an option that would change no bill: its price would be taken for counted."""
    setups = [one.setup for one in found if one.setup is not None]

    def is_function(setup: Setup) -> bool:
        return setup.mode == MODE_LAMBDA

    asked: list[tuple[object, str, str, Callable[[Setup], bool]]] = [
        *((mode, f"--also {mode}", "real-time", _is_instance) for mode in dict.fromkeys(also)),
        (storage_gb, "--storage-gb", "real-time", _is_instance),
        (
            provisioned,
            "--provisioned",
            "serverless or Lambda",
            lambda setup: bool(setup.memory_mib),
        ),
        (ephemeral_mib != FREE_EPHEMERAL_MIB, "--ephemeral-mib", "Lambda", is_function),
        (cold_share, "--cold-share", "Lambda", is_function),
    ]
    vain = [
        f"{option} applies to {kind} rows, and the runs have none"
        for wanted, option, kind, applies in asked
        if wanted and not any(map(applies, setups))
    ]
    if vain:
        raise CommandError("; ".join(vain))


def _assumptions(one: Measured, bill: Bill, by_round_trip: Bill) -> list[str]:
    """What the bill of `one` takes for granted; by the round trip, where that differs."""
    found = [*bill.assumptions]
    found += [
        f"{words} (by round trip)"
        for words in by_round_trip.assumptions
        if words not in bill.assumptions
    ]
    if one.setup is not None and one.setup.instance_type:
        found.append(
            f"an instance is busy for at most {one.setup.utilisation * 100:.0f} % of its time"
        )
    return found


def _sized(
    one: Measured, *, provisioned: int, storage_gb: float, ephemeral_mib: int, hours: Decimal
) -> Measured:
    """The same measurement with containers kept warm in the hours of traffic, or with volumes."""
    if one.setup is None:
        return one
    if one.setup.memory_mib:
        setup = replace(one.setup, provisioned=provisioned, warm_hours=hours)
        if setup.mode == MODE_LAMBDA:
            setup = replace(setup, ephemeral_mib=ephemeral_mib)
    else:
        setup = replace(one.setup, storage_gb=Decimal(str(storage_gb)))
    return replace(one, setup=setup)


def _price_hint(words: str, region: str) -> str:
    """What helps where a price of the region is not known."""
    ways = ["give one that you have read yourself with --price"] if "no price for" in words else []
    if any(f"no price for {item}" in words for item in LISTED_ITEMS):
        command = f"dr bench prices --region {region} --refresh --write prices.toml"
        ways.append(
            f"ask AWS for SageMaker's prices ({command}, with credentials) and name that file: "
            "--prices"
        )
    if f"no price for {ITEM_DATA_IN}" in words:
        ways.append("leave that charge out, and have the result say so, with --without-data")
    return f" Or {', or '.join(ways)}." if ways else ""


def _on_instance(one: Measured) -> bool:
    return one.setup is not None and _is_instance(one.setup)


def _is_instance(setup: Setup) -> bool:
    return setup.mode == SERVING_MODE_REALTIME


def _moved(one: Measured, mode: str) -> Measured:
    """What was measured on an instance, priced in another mode that runs on one."""
    setup = one.setup and replace(one.setup, mode=mode)
    return replace(one, name=f"{one.name} as {mode}", row=None, setup=setup)


def _row(option: Option) -> tuple[str, ...]:
    one = option.measured
    return (
        one.name,
        PLATFORM_WORDS[one.platform],
        f"{one.p99.value * 1000:,.1f}",
        str(one.p99.n[0]),
        _DASH if option.usd is None else f"{option.usd:.4f}",
        _DASH if option.usd_round_trip is None else f"{option.usd_round_trip:.4f}",
        _DASH if option.quality is None else f"{option.quality.low:.3f}",
        "yes" if option.on_front else "no",
        "; ".join(option.against) or _DASH,
    )


def _exact(amount: Decimal) -> str:
    return usd_digits(amount, least=4)


def _print_curves(found: Sequence[Measured], month: Month) -> None:
    """Cost by requests per month, and where one mode becomes cheaper than another."""
    typer.echo("\nUSD per month by requests per month (time in the container):\n")
    typer.echo(
        markdown_table(
            ("configuration", "n", *(f"{n:,}" for n in _CURVE)),
            [
                (
                    one.name,
                    str(one.container.n),
                    *(usd_digits(month.bill(one, n).usd) for n in _CURVE),
                )
                for one in found
            ],
        )
    )
    rows = []
    for crossing in month.crossings(found):
        # The bounds are equal where neither crosses, or where steps hide the difference.
        bounds = " to ".join(
            dict.fromkeys(
                "never" if n is None else f"{n:,}" for n in (crossing.at.low, crossing.at.high)
            )
        )
        at = "never" if crossing.at.requests is None else f"{crossing.at.requests:,}"
        n = f"{crossing.first.container.n} / {crossing.second.container.n}"
        rows.append((crossing.first.name, crossing.second.name, at, bounds, n))
    if rows:
        typer.echo("\nFrom how many requests per month the second is cheaper:\n")
        typer.echo(
            markdown_table(
                (
                    "first",
                    "second",
                    "requests per month",
                    "with both times at their 95 % bounds",
                    "n",
                ),
                rows,
            )
        )
