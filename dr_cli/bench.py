"""`dr bench`: measures endpoints or a URL, and writes records, CSV files and a page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from dr_cli.console import make_console
from dr_cli.errors import CommandError
from dr_cli.experiment import CSV_FILE, FactsOf, Plan, Results, read_kept, run_warm
from dr_cli.folders import result_folder
from dr_cli.invocation import dr
from dr_cli.panels import results_table
from dr_cli.photographs import drawn_photograph, read_photograph
from dr_cli.predict import endpoint_target, function_target, function_url_target, url_target
from dr_cli.region import aws_region
from dr_experiments.payloads import prepare
from dr_experiments.provenance import machine_busy
from dr_experiments.targets import Target, shown_url

DRAWN_GRADE: Final = 2
PRICE_REGION: Final = "us-east-1"


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """What is measured, and what the page says about it."""

    targets: tuple[Target, ...]
    image: str | None
    image_note: str
    local: bool
    region: str
    facts_of: FactsOf | None = None
    assumptions: tuple[str, ...] = ()


def bench_warm(
    endpoints: Sequence[str],
    *,
    url: str | None,
    functions: Sequence[str] = (),
    function_url: str | None = None,
    photograph: Path | None,
    crop: bool = False,
    max_side_px: int | None = None,
    requests: int,
    interval_s: float,
    region: str | None,
    requests_per_hour: float,
    seed: int,
    out: Path,
    in_turn: bool = False,
) -> None:
    """See `dr bench warm --help`."""
    busy = machine_busy()
    if sum(map(bool, (endpoints or functions, url, function_url))) != 1:
        raise CommandError(
            "name the endpoints to measure, functions with --function, or a service with --url or "
            "--function-url"
        )
    _each_once([*endpoints, *functions])
    if in_turn and len([*endpoints, *functions]) < 2:
        raise CommandError("--in-turn needs two endpoints or functions, or more")
    result_folder(out)
    if photograph:
        payload, words = read_photograph(photograph), "a photograph"
    else:
        payload = drawn_photograph(seed=seed, grade=DRAWN_GRADE)
        words = f"a drawn photograph (seed {seed}, grade {DRAWN_GRADE})"
    try:
        payload = prepare(payload, cropped=crop, max_side_px=max_side_px)
    except ValueError as error:
        raise CommandError(str(error)) from None
    if url:
        subject, what = _url(url, region=region), f"--url {shown_url(url)}"
    elif function_url:
        subject = _function_url(function_url, region=region)
        what = f"--function-url {shown_url(function_url)}"
    else:
        subject = _deployed(endpoints, functions, region=region)
        what = " ".join([*endpoints, *(f"--function {name}" for name in functions)])
    prices_of = subject.region
    options = f"--requests {requests} --interval-s {interval_s:g} --region {prices_of}"
    options += " --in-turn" if in_turn else ""
    options += " --crop" if crop else ""
    options += f" --max-side-px {max_side_px}" if max_side_px else ""
    plan = Plan(
        title="Warm latency and cost of " + ("a service" if url else "deployed endpoints"),
        payload=payload,
        payload_words=words,
        requests=requests,
        interval_s=interval_s,
        requests_per_hour=requests_per_hour,
        region=prices_of,
        # Rebuilt rather than copied: the name of a photograph may be a patient's.
        command=f"dr bench warm {what} {options}" + (" --photograph …" if photograph else ""),
        image=subject.image,
        image_note=subject.image_note,
        local=subject.local,
        busy=busy,
        assumptions=subject.assumptions,
        seed=None if photograph else seed,
        in_turn=in_turn,
    )
    console = make_console()
    try:
        results = run_with_progress(
            plan, subject.targets, out=out, facts_of=subject.facts_of, console=console
        )
    except KeyboardInterrupt:
        console.print(f"\n{_kept(out, len(subject.targets), requests)}", soft_wrap=True)
        raise
    console.print(results_table(results.rows, requests_per_hour=requests_per_hour, busy=busy))
    console.print(f"\nCSV   {results.csv}\npage  {results.report}", soft_wrap=True)
    if not any(row.round_trip for row in results.rows):
        if any(row.cold for row in results.rows):
            raise CommandError(
                "every answer came from a fresh container, so that nothing warm was measured; the "
                f"records are in {results.records}"
            )
        raise CommandError(f"no request was answered; the reasons are in {results.records}")


def run_with_progress(
    plan: Plan,
    targets: Sequence[Target],
    *,
    out: Path,
    facts_of: FactsOf | None,
    console: Console,
) -> Results:
    """Run the plan with a bar on a terminal, and one line per target elsewhere."""
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
        # Drawing takes processor time from what is measured.
        refresh_per_second=4,
    ) as progress:
        names = [target.describe().name for target in targets]
        tasks = {name: progress.add_task(name, total=plan.requests, start=False) for name in names}

        def update(name: str, done: int) -> None:
            if done == 1:
                progress.start_task(tasks[name])
            progress.update(tasks[name], completed=done)

        return run_warm(plan, targets, out=out, facts_of=facts_of, on_progress=update)


def _kept(out: Path, targets: int, requests: int) -> str:
    """What an interrupted run leaves: whole series, and the one that was cut off."""
    counts: dict[str, int] = {}
    for record in read_kept(out):
        counts[record.configuration] = counts.get(record.configuration, 0) + record.counted
    done = sorted(name for name, count in counts.items() if count >= requests)
    cut = [f"{n} of {requests} of {name}" for name, n in counts.items() if 0 < n < requests]
    if not done and not cut:
        return "No endpoint was measured to its end; no results were kept."
    ends = f"{len(done)} of {targets} measured to the end"
    names = f" ({', '.join(done)})" if done else ""
    part = f", and {', '.join(cut)}" if cut else ""
    return f"{ends}{names}{part}: {out / CSV_FILE} has the requests. No page was written."


def _each_once(names: Sequence[str]) -> None:
    # Records tell two series of a run apart by the name of what answered.
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise CommandError(f"{', '.join(twice)}: named twice; measure it twice with two commands")


def _url(url: str, *, region: str | None) -> _Subject:
    return _Subject(
        targets=(url_target(url),),
        image=None,
        image_note="not known: a service behind a URL does not say what it runs from",
        local=False,
        region=region or PRICE_REGION,
    )


def _function_url(url: str, *, region: str | None) -> _Subject:
    target, _ = function_url_target(url, region=region)
    return _Subject(
        targets=(target,),
        image=None,
        image_note="not known: the URL of a function does not say what it runs from",
        local=False,
        region=target.describe().region or PRICE_REGION,
    )


def _deployed(
    endpoints: Sequence[str], functions: Sequence[str], *, region: str | None
) -> _Subject:
    from dr_cli.local import running_local_aws

    # Functions are on AWS in any case: the local AWS runs none.
    local = running_local_aws() if endpoints else None
    if local is not None and functions:
        raise CommandError(
            "the local AWS is up, where endpoints are looked for, and it runs no functions; "
            f"measure them apart, or stop it with: {dr('local down')}"
        )
    targets = (
        *(endpoint_target(name, region=region, describe=True)[0] for name in endpoints),
        *(function_target(name, region=region)[0] for name in functions),
    )
    # On the local AWS a region says nothing but whose prices are meant.
    prices_of = region if local else aws_region(region)
    images = {target.describe().image for target in targets}
    return _Subject(
        targets=targets,
        image=images.pop() if len(images) == 1 else None,
        image_note=(
            "as deployed; the local AWS runs the source of this checkout instead of the image"
            if local
            else "as deployed"
        ),
        local=local is not None,
        region=prices_of or PRICE_REGION,
        facts_of=local.container_facts if local else None,
        assumptions=local.assumptions() if local else (),
    )
