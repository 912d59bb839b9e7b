"""`dr bench analyse`: the study's measurements, recomputed."""

from pathlib import Path

import typer

from dr_cli.errors import CommandError
from dr_experiments import beside_study
from dr_experiments.pricing import PriceTable
from dr_experiments.records import read_jsonl
from dr_experiments.study import Study, read_study
from dr_experiments.study_tables import BEGIN, END, replace_block, study_markdown


def analyse_study(
    folder: Path, *, write: Path | None, check: bool, beside: Path | None = None
) -> None:
    """See `dr bench analyse --help`."""
    if check and write is None:
        raise CommandError("--check compares a page: name it with --write PAGE.md")
    study = read_study(folder)
    if beside is None:
        text, begin, end = study_markdown(study, prices=PriceTable.load()), BEGIN, END
    else:
        text, begin, end = _beside(study, beside), beside_study.BEGIN, beside_study.END
    if write is None:
        typer.echo(text, nl=False)
        return
    try:
        page = write.read_text("utf-8")
    except UnicodeDecodeError:
        raise CommandError(f"{write} is not UTF-8 text") from None
    wanted = replace_block(page, text, begin=begin, end=end)
    if check:
        if page != wanted:
            raise CommandError(f"{write} differs from the measurements; write it without --check")
        typer.echo(f"{write} says what the measurements say")
        return
    write.write_text(wanted, encoding="utf-8")
    typer.echo(f"wrote the tables of {write}")


def _beside(study: Study, path: Path) -> str:
    try:
        records = read_jsonl(path)
    except ValueError as error:
        raise CommandError(str(error)) from None
    phases = beside_study.phases_markdown(records)
    return (
        f"{beside_study.beside_markdown(study, beside_study.runs_of(records))}\n\n"
        f"### Phases of the cold starts\n\nMean seconds, local runs only.\n\n{phases}\n"
    )
