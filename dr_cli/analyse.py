"""`dr bench analyse`: the study's measurements, recomputed."""

from pathlib import Path

import typer

from dr_cli.errors import CommandError
from dr_experiments.pricing import PriceTable
from dr_experiments.study import read_study
from dr_experiments.study_tables import replace_block, study_markdown


def analyse_study(folder: Path, *, write: Path | None, check: bool) -> None:
    """See `dr bench analyse --help`."""
    if check and write is None:
        raise CommandError("--check compares a page: name it with --write PAGE.md")
    text = study_markdown(read_study(folder), prices=PriceTable.load())
    if write is None:
        typer.echo(text, nl=False)
        return
    page = write.read_text("utf-8")
    wanted = replace_block(page, text)
    if check:
        if page != wanted:
            raise CommandError(f"{write} differs from the measurements; write it without --check")
        typer.echo(f"{write} says what the measurements say")
        return
    write.write_text(wanted, encoding="utf-8")
    typer.echo(f"wrote the tables of {write}")
