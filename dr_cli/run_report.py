"""`dr bench report`: a page about recorded runs, in English or Brazilian Portuguese."""

import shlex
from collections.abc import Sequence
from pathlib import Path

import typer

from dr_cli.amounts import hours_per_month
from dr_cli.bench import PRICE_REGION
from dr_cli.costs import price_table, records_file
from dr_cli.errors import CommandError
from dr_experiments.languages import Words
from dr_experiments.months import Month
from dr_experiments.pricing import GIVEN, UnknownPriceError
from dr_experiments.provenance import code_commit
from dr_experiments.run_groups import group_records
from dr_experiments.run_report import RunReport, Source, now, read_source, write_run_report


def report_runs(
    runs: Sequence[Path],
    *,
    out: Path,
    language: str,
    requests_per_month: int,
    hours: str,
    region: str | None,
    prices_file: Path | None,
    given: Sequence[str] = (),
) -> None:
    """See `dr bench report --help`."""
    if out.suffix.lower() not in {".html", ".htm"}:
        raise CommandError(f"--out names the page to write, such as report.html; got {out}")
    if out.is_dir():
        raise CommandError(f"{out} is a folder; --out names the page to write")
    prices_of = PRICE_REGION if region is None else region
    month = Month(
        region=prices_of,
        prices=price_table(prices_file, given, region=prices_of),
        hours=hours_per_month(hours),
    )
    options = ["--language", language, "--requests-per-month", str(requests_per_month)]
    options += ["--hours", hours, "--region", prices_of]
    if prices_file:
        options += ["--prices", prices_file.name]
    for text in given:
        options += [GIVEN, text]
    names = _names(runs)
    command = shlex.join(["dr", "bench", "report", *names, "--out", out.name, *options])
    try:
        words = Words(language)
        sources = [
            read_source(records_file(run), name=name) for run, name in zip(runs, names, strict=True)
        ]
        _each_once(sources)
        if region is not None:
            _check_region(sources, month, requests_per_month)
        out.parent.mkdir(parents=True, exist_ok=True)
        written = write_run_report(
            out,
            RunReport(
                sources=sources,
                month=month,
                requests=requests_per_month,
                command=command,
                git_commit=code_commit(),
                created_at=now(),
            ),
            words,
        )
    except ValueError as error:
        raise CommandError(str(error)) from None
    typer.echo(f"page     {written[0]}")
    if len(written) > 1:
        typer.echo(f"figures  {written[1].parent} ({len(written) - 1} files)")


def _each_once(sources: Sequence[Source]) -> None:
    """Refuse what two of the files hold: it would count twice."""
    seen: dict[tuple[str, str, str, int], str] = {}
    for source in sources:
        for record in source.records:
            if record.key in seen:
                raise CommandError(
                    f"{record.key_words} is in {seen[record.key]} and in {source.name}; "
                    "name one of them"
                )
        seen.update(dict.fromkeys((record.key for record in source.records), source.name))


def _check_region(sources: Sequence[Source], month: Month, requests: int) -> None:
    """Refuse a region in which nothing has a price: whoever names it wants its costs."""
    if not any(row.region == month.region for row in month.prices.rows):
        raise CommandError(f"no price is known for {month.region}; {_without(month.region)}")
    groups = group_records(record for source in sources for record in source.records)
    deployed = [group.measured for group in groups if group.measured and group.measured.setup]
    reasons = []
    for one in deployed:
        try:
            month.bill(one, requests)
        except UnknownPriceError as error:
            reasons.append(str(error))
        else:
            return
    if reasons:
        every = "; ".join(dict.fromkeys(reasons))
        raise CommandError(f"nothing measured has a cost: {every}; {_without(month.region)}")


def _without(region: str) -> str:
    return (
        f"ask AWS for its prices (dr bench prices --region {region} --refresh --write FILE), name "
        "a table with --prices, give one that you have read with --price, or leave out --region "
        f"for those of {PRICE_REGION}"
    )


def _names(runs: Sequence[Path]) -> list[str]:
    """The runs by their last names, as many as tell them apart: those above may hold a person's."""
    paths = [run.resolve() for run in runs]

    def name(path: Path) -> str:
        others = {other for other in paths if other != path}
        depth = 2 if path.is_file() else 1
        while any(other.parts[-depth:] == path.parts[-depth:] for other in others):
            depth += 1
        return "/".join(path.parts[-depth:])

    return [name(path) for path in paths]
