"""`dr bench report`: a page about recorded runs, in English or Brazilian Portuguese."""

import shlex
from collections.abc import Sequence
from pathlib import Path

import typer

from dr_cli.amounts import hours_per_month
from dr_cli.costs import records_file
from dr_cli.errors import CommandError
from dr_experiments.languages import Words
from dr_experiments.months import Month
from dr_experiments.pricing import PriceTable
from dr_experiments.provenance import git_commit
from dr_experiments.run_report import RunReport, now, read_source, write_run_report


def report_runs(
    runs: Sequence[Path],
    *,
    out: Path,
    language: str,
    requests_per_month: int,
    hours: str,
    region: str,
    prices_file: Path | None,
) -> None:
    """See `dr bench report --help`."""
    if out.suffix.lower() not in {".html", ".htm"}:
        raise CommandError(f"--out names the page to write, such as report.html; got {out}")
    if out.is_dir():
        raise CommandError(f"{out} is a folder; --out names the page to write")
    month = Month(region=region, prices=PriceTable.load(prices_file), hours=hours_per_month(hours))
    options = ["--language", language, "--requests-per-month", str(requests_per_month)]
    options += ["--hours", hours, "--region", region]
    if prices_file:
        options += ["--prices", prices_file.name]
    # Folders by their last name only: what lies above may hold a person's.
    names = [_name(run) for run in runs]
    command = shlex.join(["dr", "bench", "report", *names, "--out", out.name, *options])
    try:
        words = Words(language)
        sources = [
            read_source(records_file(run), name=name) for run, name in zip(runs, names, strict=True)
        ]
        out.parent.mkdir(parents=True, exist_ok=True)
        written = write_run_report(
            out,
            RunReport(
                sources=sources,
                month=month,
                requests=requests_per_month,
                command=command,
                git_commit=git_commit(Path.cwd()),
                created_at=now(),
            ),
            words,
        )
    except ValueError as error:
        raise CommandError(str(error)) from None
    typer.echo(f"page     {written[0]}")
    if len(written) > 1:
        typer.echo(f"figures  {written[1].parent} ({len(written) - 1} files)")


def _name(run: Path) -> str:
    parts = run.resolve().parts
    return "/".join(parts[-2:]) if run.is_file() else parts[-1]
