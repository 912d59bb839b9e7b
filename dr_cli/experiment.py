"""Runs the warm scenario against several targets and writes records, CSV files and the page.

Shared by `dr bench warm` and `dr demo`.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from dr_cli.folders import keep_earlier
from dr_experiments.analysis import ConfigurationAnalysis, ContainerFacts, analyse
from dr_experiments.client import Client, Measurement
from dr_experiments.journal import Journal
from dr_experiments.pricing import PriceTable
from dr_experiments.provenance import Provenance, code_commit, machine, new_run_id
from dr_experiments.records import (
    RequestRecord,
    RunContext,
    read_jsonl,
    records_of,
    write_csv,
    write_jsonl,
    write_study_csv,
)
from dr_experiments.report import Report, write_report
from dr_experiments.scenarios import ScenarioResult, warm, warm_in_turn
from dr_experiments.targets import Payload, Target

RECORDS_FILE: Final = "requests.jsonl"
CSV_FILE: Final = "requests.csv"
REPORT_FILE: Final = "report.html"
STUDY_FILE: Final = "study.csv"
# What MLPerf LoadGen said.
LOADGEN_FILE: Final = "loadgen.json"
STUDY_FOLDER: Final = "csv"
_STUDY_PREFIX: Final = "warm-up-"
# Facts of the container are known to the platform only after it has answered.
FactsOf = Callable[[str], ContainerFacts]
# Told the name of a target, and how many of its requests are done.
OnProgress = Callable[[str, int], None]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A warm experiment. `region` is whose prices are used.

    `busy` is `machine_busy()` before anything was done, which would itself be load. `in_turn` says
    whether the targets are asked request by request, and not one series after the other.
    """

    title: str
    payload: Payload
    payload_words: str
    requests: int
    interval_s: float
    requests_per_hour: float
    region: str
    command: str
    image: str | None
    image_note: str
    local: bool
    busy: str | None
    assumptions: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    seed: int | None = None
    in_turn: bool = False


@dataclass(frozen=True, kw_only=True)
class Results:
    """Analysed rows, and where the files are."""

    rows: tuple[ConfigurationAnalysis, ...]
    csv: Path
    records: Path
    report: Path
    study_folder: Path


def result_files(out: Path) -> list[Path]:
    """What a run writes into `out`, whether it is there or not."""
    named = (REPORT_FILE, CSV_FILE, RECORDS_FILE, STUDY_FILE, LOADGEN_FILE)
    series = (out / STUDY_FOLDER).glob(f"{_STUDY_PREFIX}*.csv")
    return [*(out / name for name in named), *series]


def set_aside(out: Path) -> None:
    """Move what an earlier run left in `out`: a run that is cut short must not show its page."""
    kept = keep_earlier(out, result_files(out))
    if kept is not None:
        print(f"Earlier results are in {kept}.")


def read_kept(out: Path) -> list[RequestRecord]:
    """Records in `out` of what a run has measured so far."""
    path = out / RECORDS_FILE
    return read_jsonl(path) if path.is_file() else []


def run_warm(
    plan: Plan,
    targets: Sequence[Target],
    *,
    out: Path,
    facts_of: FactsOf | None = None,
    on_progress: OnProgress | None = None,
) -> Results:
    """Measure every target and write everything below `out`, which is made."""
    import platform

    prices = PriceTable.load()
    created_at = datetime.now(UTC)
    context = RunContext(
        run_id=new_run_id(created_at),
        git_commit=code_commit(),
        seed=plan.seed,
        machine=machine(),
    )
    set_aside(out)
    records: list[RequestRecord] = []
    rows: list[ConfigurationAnalysis] = []
    study_folder = out / STUDY_FOLDER
    study_folder.mkdir(parents=True, exist_ok=True)
    series = _in_turn if plan.in_turn else _one_after_the_other
    try:
        for result in series(plan, targets, out=out, context=context, on_progress=on_progress):
            name = result.target.name
            of_target = records_of(result, context=context)
            records += of_target
            # Written after each target: an interrupted run keeps what it has measured.
            write_csv(out / CSV_FILE, records)
            write_study_csv(study_folder / f"{_STUDY_PREFIX}{_file_name(name)}.csv", of_target)
            rows.append(
                analyse(
                    result,
                    prices=prices,
                    region=plan.region,
                    requests_per_hour=plan.requests_per_hour,
                    facts=facts_of(name) if facts_of else None,
                )
            )
    except KeyboardInterrupt:
        # Raw records are kept; a page and tables are made of whole series only.
        kept = read_kept(out)
        if any(record.counted for record in kept):
            write_csv(out / CSV_FILE, kept)
        raise
    write_jsonl(out / RECORDS_FILE, records)
    provenance = Provenance(
        run_id=context.run_id,
        created_at=created_at,
        command=plan.command,
        git_commit=context.git_commit,
        machine=machine(),
        python=platform.python_version(),
        image=plan.image,
        image_note=plan.image_note,
        region_of_prices=plan.region,
        local=plan.local,
        busy=plan.busy,
        assumptions=plan.assumptions,
        seed=plan.seed,
    )
    write_report(
        out / REPORT_FILE,
        Report(
            title=plan.title,
            rows=rows,
            provenance=provenance,
            requests=plan.requests,
            interval_s=plan.interval_s,
            requests_per_hour=plan.requests_per_hour,
            payload=f"{plan.payload_words}, {len(plan.payload.body):,} bytes",
            notices=plan.notices,
            raw_files=(RECORDS_FILE, CSV_FILE, f"{STUDY_FOLDER}/"),
        ),
    )
    return Results(
        rows=tuple(rows),
        csv=out / CSV_FILE,
        records=out / RECORDS_FILE,
        report=out / REPORT_FILE,
        study_folder=study_folder,
    )


def _one_after_the_other(
    plan: Plan,
    targets: Sequence[Target],
    *,
    out: Path,
    context: RunContext,
    on_progress: OnProgress | None,
) -> Iterator[ScenarioResult]:
    for target in targets:
        with _journal(plan, target, out=out, context=context) as journal:
            result = warm(
                Client(target),
                plan.payload,
                requests=plan.requests,
                interval_s=plan.interval_s,
                on_request=_tell(on_progress, target.describe().name),
                on_measured=journal,
            )
        yield result


def _in_turn(
    plan: Plan,
    targets: Sequence[Target],
    *,
    out: Path,
    context: RunContext,
    on_progress: OnProgress | None,
) -> Iterator[ScenarioResult]:
    tell = [_tell(on_progress, target.describe().name) for target in targets]
    with contextlib.ExitStack() as stack:
        yield from warm_in_turn(
            [Client(target) for target in targets],
            plan.payload,
            requests=plan.requests,
            interval_s=plan.interval_s,
            on_request=lambda place, number, measurement: tell[place](number, measurement),
            on_measured=[
                stack.enter_context(_journal(plan, target, out=out, context=context))
                for target in targets
            ],
        )


def _journal(plan: Plan, target: Target, *, out: Path, context: RunContext) -> Journal:
    return Journal(
        out / RECORDS_FILE,
        scenario="warm",
        target=target.describe(),
        interval_s=plan.interval_s,
        context=context,
    )


def _tell(on_progress: OnProgress | None, name: str) -> Callable[[int, Measurement], None]:
    def tell(number: int, _measurement: Measurement) -> None:
        if on_progress:
            on_progress(name, number)

    return tell


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name)
