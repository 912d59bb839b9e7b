"""`dr study`: plan, run and analyse a study of training time and cost."""

import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from dr_cli.commands import CommandGroup
from dr_cli.errors import CommandError
from dr_cli.invocation import dr

study_app = typer.Typer(
    name="study",
    cls=CommandGroup,
    help="Studies of training time and cost: plan, run, analyse.",
    no_args_is_help=True,
)
REPORT_FILE: Final = "report.html"
StudyArgument = Annotated[
    str, typer.Argument(help="A study file (TOML), or the name of a bundled study.")
]
FolderArgument = Annotated[
    Path, typer.Argument(help="The folder of a study, of `dr study plan` or `dr study run`.")
]
OutOption = Annotated[
    Path | None, typer.Option(help="Folder of the study; out/study/NAME when left out.")
]


@study_app.command("plan")
def plan_study(study: StudyArgument, out: OutOption = None) -> None:
    """Write plan.csv: every run in its random order; a fraction where the budget is short."""
    from dr_training.study.plan import describe, make_plan, write_plan
    from dr_training.study.study_file import read_study

    plan = make_plan(read_study(Path(study)))
    folder = out or _folder(plan.study.name)
    written = write_plan(plan, folder)
    for line in describe(plan):
        typer.echo(line)
    typer.echo(f"plan in {written[0]}; run it with `{dr(f'study run {study} --out {folder}')}`")


@study_app.command("run")
def run_study(
    study: StudyArgument,
    out: OutOption = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the MNIST and CIFAR-10 binaries; seeded stand-ins when left out."
        ),
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Repetitions, instead of the file's.")
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Make runs that have failed again.")
    ] = False,
    dry: Annotated[
        bool,
        typer.Option("--check", help="Say what would be run and what is missing; run nothing."),
    ] = False,
) -> None:
    """Plan where there is no plan yet, and make the runs that are left; Ctrl-C, and go on later."""
    from dr_training.study.journal import JOURNAL, Journal
    from dr_training.study.plan import describe, make_plan, open_plan, write_plan
    from dr_training.study.runners.runner import runner_for
    from dr_training.study.running import over_budget, run_plan, spent
    from dr_training.study.study_file import REFERRAL, read_study

    wanted = make_plan(read_study(Path(study), repetitions=repeats))
    folder = out or _folder(wanted.study.name)
    if dry:
        for line in describe(wanted):
            typer.echo(line)
        typer.echo(over_budget(wanted, spent(wanted, Journal(folder))) or "within the budget")
        return
    write_plan(wanted, folder)
    plan = open_plan(folder)
    records = None
    if plan.study.workload == REFERRAL and over_budget(plan, spent(plan, Journal(folder))) is None:
        from dr_training.study.referral_data import prepared_records

        if data_dir is not None:
            raise CommandError("--data-dir is for MNIST and CIFAR-10; name a table in [referral]")
        records = prepared_records(plan.study, folder, report=typer.echo)
    summary = run_plan(
        plan,
        folder,
        runner_of=lambda environment: runner_for(plan.study, environment),
        data_dir=data_dir,
        records=records,
        retry_failed=retry_failed,
        report=typer.echo,
    )
    ended = ", ".join(f"{count} {status}" for status, count in summary.ended.items()) or "none"
    typer.echo(f"{summary.made} runs made now; ended so far: {ended}; left: {summary.left}")
    if summary.ended.get("ok"):
        typer.echo(f"analyse them with `{dr(f'study analyse {folder}')}`")
    elif summary.made:
        raise CommandError(
            f"no run ended well; {folder / JOURNAL} says why, and --retry-failed makes them again"
        )


@study_app.command("analyse")
def analyse_study(
    folder: FolderArgument,
    out: Annotated[
        Path | None, typer.Option(help="Page to write; report.html in the folder when left out.")
    ] = None,
) -> None:
    """Means, allocation of variation, effects, costs and figures, on one HTML page."""
    from dr_experiments.provenance import code_commit
    from dr_experiments.report import page_style
    from dr_training.data.table import write_whole
    from dr_training.study.plan import open_plan
    from dr_training.study.report import render
    from dr_training.study.results import read_results

    plan = open_plan(folder)
    rows = read_results(plan, folder)
    made = [row.result["started_at"] for row in rows if "started_at" in row.result]
    facts: Mapping[str, str] = {
        "created": _when(made),
        "command": f"dr study run {plan.study.name}; dr study analyse",
        "commit": code_commit() or "not a git checkout",
        "analysed with": f"Python {platform.python_version()}",
        "raw data": "plan.csv, journal.jsonl and runs/ in the folder of the study",
    }
    page = out or folder / REPORT_FILE
    write_whole(page, render(plan, rows, style=page_style(), facts=facts).encode())
    typer.echo(f"{sum(row.ok for row in rows)} of {len(rows)} runs analysed; page in {page}")


def _when(instants: list[float]) -> str:
    if not instants:
        return "no run yet"
    first, last = (datetime.fromtimestamp(one, UTC) for one in (min(instants), max(instants)))
    return f"runs of {first:%d %B %Y, %H:%M} to {last:%d %B, %H:%M} UTC"


def _folder(name: str) -> Path:
    safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)
    return Path("out") / "study" / (safe.strip(".") or "study")
