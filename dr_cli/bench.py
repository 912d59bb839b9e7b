"""`dr bench`: measures endpoints or a URL, and writes records, CSV files and a page."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from dr_cli.console import make_console
from dr_cli.errors import CommandError
from dr_cli.experiment import Plan, Results, run_warm
from dr_cli.panels import results_table
from dr_cli.photographs import drawn_photograph, read_photograph
from dr_experiments.analysis import ContainerFacts
from dr_experiments.targets import Target

_GRADE = 2
_NO_IMAGE_KNOWN = "not known: what runs behind a URL does not say its image"


def bench_warm(
    endpoints: Sequence[str],
    *,
    url: str | None,
    photograph: Path | None,
    requests: int,
    interval_s: float,
    region: str,
    requests_per_hour: float,
    seed: int,
    out: Path,
) -> None:
    """See `dr bench warm --help`."""
    if bool(endpoints) == bool(url):
        raise CommandError("name the endpoints to measure, or a service with --url")
    targets, facts, image, image_note, local, assumptions = _targets(endpoints, url, region)
    if photograph:
        payload, words = read_photograph(photograph), "a photograph"
    else:
        payload, words = drawn_photograph(seed=seed, grade=_GRADE), "a drawn photograph"
    console = make_console()
    plan = Plan(
        title="Warm latency and cost of " + ("a service" if url else "deployed endpoints"),
        payload=payload,
        payload_words=words,
        requests=requests,
        interval_s=interval_s,
        requests_per_hour=requests_per_hour,
        region=region,
        # The command as typed; a photograph's name may be a patient's, so it is left out.
        command=_command(photograph),
        image=image,
        image_note=image_note,
        local=local,
        assumptions=assumptions,
        seed=None if photograph else seed,
    )
    results = run_with_progress(plan, targets, out=out, facts=facts, console=console)
    console.print(results_table(results.rows, requests_per_hour=requests_per_hour))
    console.print(f"\nCSV   {results.csv}\npage  {results.report}")
    if not any(row.round_trip for row in results.rows):
        raise CommandError(f"no request was answered; the reasons are in {results.records}")


def run_with_progress(
    plan: Plan, targets: Sequence[Target], *, out: Path, facts: object, console: object
) -> Results:
    """Run the plan with a bar on a terminal, and one line per target elsewhere."""
    from rich.console import Console

    assert isinstance(console, Console)  # noqa: S101 - narrows the type for the checker
    facts_of = facts if callable(facts) else None
    if not console.is_terminal:

        def say(name: str, done: int) -> None:
            if done == plan.requests:
                console.print(f" ✓ {name}: {done} requests", soft_wrap=True)

        return run_warm(plan, targets, out=out, facts_of=facts_of, on_progress=say)
    with Progress(
        TextColumn("  {task.description:<36}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    ) as progress:
        tasks = {
            target.describe().name: progress.add_task(target.describe().name, total=plan.requests)
            for target in targets
        }
        return run_warm(
            plan,
            targets,
            out=out,
            facts_of=facts_of,
            on_progress=lambda name, done: progress.update(tasks[name], completed=done),
        )
