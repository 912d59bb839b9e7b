"""`dr bench prices`: the price table, and its renewal from AWS's price list."""

from importlib import resources
from pathlib import Path

import typer

from dr_cli.errors import CommandError
from dr_experiments.price_list import append_rows, list_prices, new_rows
from dr_experiments.pricing import PriceTable
from dr_experiments.study_tables import markdown_table


def show_prices(*, region: str, prices_file: Path | None) -> None:
    """See `dr bench prices --help`."""
    rows = [row for row in PriceTable.load(prices_file).rows if row.region == region]
    if not rows:
        raise CommandError(
            f"no price is known for {region}; ask AWS's price list with --refresh --write FILE"
        )
    # Addresses are longer than a line of a terminal: a column holds their numbers.
    sources = {source: n for n, source in enumerate(dict.fromkeys(r.source for r in rows), start=1)}
    typer.echo(
        markdown_table(
            ("item", "sku", "USD", "unit", "checked", "source"),
            [
                (r.item, r.sku or "-", f"{r.usd:f}", r.unit, r.checked.isoformat(),
                 f"[{sources[r.source]}]")
                for r in rows
            ],
        )
    )  # fmt: skip
    typer.echo("\nsources\n")
    for source, number in sources.items():
        typer.echo(f"[{number}] {source}")


def refresh_prices(*, region: str, write: Path | None, prices_file: Path | None) -> None:
    """See `dr bench prices --help`."""
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    if write is None:
        raise CommandError("--refresh appends to a file of your own: name it with --write FILE")
    try:
        # The price list is served in few regions; it answers for all.
        listed = list_prices(boto3.client("pricing", region_name="us-east-1"), region=region)
    except (BotoCoreError, ClientError) as error:
        raise CommandError(f"AWS's price list did not answer: {error}") from None
    if not listed.rows:
        raise CommandError(
            f"AWS's price list names nothing that is known here for {region}"
            + "".join(f"; {reason}" for reason in listed.refused)
        )
    table = PriceTable.load(write if write.exists() else prices_file)
    wanted = new_rows(listed.rows, table)
    if wanted or not write.exists():
        own = resources.files("dr_experiments").joinpath("prices.toml")
        # What begins a new file is the one that was loaded above.
        start = "" if write.exists() else (prices_file or own).read_text("utf-8-sig")
        append_rows(write, wanted, start=start)
    unchanged = len(listed.rows) - len(wanted)
    typer.echo(f"{len(wanted)} rows appended to {write}, {unchanged} unchanged")
    for reason in listed.refused:
        typer.echo(f"not taken: {reason}", err=True)
