"""`dr bench cold`, `realtime` and `load`: one target, one scenario, records and a table."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from dr_cli.amounts import seconds
from dr_cli.bench import DRAWN_GRADE
from dr_cli.console import make_console
from dr_cli.container_logs import ready_lines_of
from dr_cli.errors import CommandError
from dr_cli.experiment import (
    CSV_FILE,
    LOADGEN_FILE,
    RECORDS_FILE,
    STUDY_FILE,
    set_aside,
)
from dr_cli.folders import result_folder
from dr_cli.local_process import LocalProcess
from dr_cli.packages import opened_package, package_or_default
from dr_cli.photographs import drawn_photograph, read_photograph
from dr_cli.predict import Place, target_at
from dr_cli.serving import running_service
from dr_experiments.client import Client, Measurement
from dr_experiments.cold_start import ReadyLine
from dr_experiments.journal import Journal
from dr_experiments.lambda_targets import FunctionUrlTarget
from dr_experiments.load import SHAPES, closed_loop, open_loop, poisson_arrivals
from dr_experiments.loadgen import (
    LOADGEN_PREFIX,
    LOADGEN_SCENARIOS,
    OFFLINE,
    LoadgenError,
    LoadgenPlan,
    LoadgenVerdict,
    measured_so_far,
    run_loadgen,
)
from dr_experiments.payloads import prepare
from dr_experiments.provenance import code_commit, machine, machine_busy, new_run_id
from dr_experiments.records import RunContext, records_of, write_csv, write_jsonl, write_study_csv
from dr_experiments.scenarios import (
    COLD_GAP_S,
    InterruptedScenario,
    OnMeasured,
    ScenarioResult,
    UnknownContainerError,
    cold,
    realtime,
)
from dr_experiments.statistics import Summary, summarise_durations
from dr_experiments.targets import Payload, UrlTarget

OPEN: Final = "open"
# The folder of MLPerf LoadGen's own logs.
LOADGEN_FOLDER: Final = "loadgen"
_PLACES: Final = "an endpoint, --url, --function, --function-url or --model"


@dataclass(frozen=True, kw_only=True)
class Sending:
    """What is sent, and where results go."""

    photograph: Path | None
    seed: int
    out: Path
    retries: int = 0
    max_side_px: int | None = None
    crop: bool = False

    def payload(self) -> Payload:
        """The photograph, or a drawn one; made smaller where that is asked for."""
        if self.photograph:
            payload = read_photograph(self.photograph)
        else:
            payload = drawn_photograph(seed=self.seed, grade=DRAWN_GRADE)
        try:
            return prepare(payload, cropped=self.crop, max_side_px=self.max_side_px)
        except ValueError as error:
            raise CommandError(str(error)) from None


@dataclass(frozen=True, kw_only=True)
class _Run:
    """One run: what it sends, and what is the same for all of its records.

    `busy` is what else the machine did before, which drawing a photograph would itself be.
    """

    sending: Sending
    payload: Payload
    busy: str | None
    context: RunContext

    @classmethod
    def begun(cls, sending: Sending) -> "_Run":
        """Make what is sent, and look whether results can be written."""
        busy, payload = machine_busy(), sending.payload()
        result_folder(sending.out)
        context = RunContext(
            run_id=new_run_id(datetime.now(UTC)),
            git_commit=code_commit(),
            seed=sending.seed,
            machine=machine(),
        )
        return cls(sending=sending, payload=payload, busy=busy, context=context)

    def journal(self, scenario: str, client: Client, *, interval_s: float = 0.0) -> Journal:
        """Where each request is written down at once."""
        out = self.sending.out
        return Journal(
            out / RECORDS_FILE,
            scenario=scenario,
            target=client.describe(),
            interval_s=interval_s,
            context=self.context,
            before_first=lambda: set_aside(out),
        )


def bench_cold(
    where: Place,
    sending: Sending,
    *,
    requests: int,
    gap_s: float | None,
    attempts: int,
    model: Path | None = None,
) -> None:
    """See `dr bench cold --help`."""

    def run(
        client: Client,
        payload: Payload,
        journal: OnMeasured,
        renew: Callable[[], None] | None = None,
    ) -> ScenarioResult:
        return cold(
            client,
            payload,
            requests=requests,
            gap_s=gap,
            attempts=attempts,
            renew=renew,
            on_request=_say_cold(requests),
            on_measured=journal,
        )

    # A process is ended between requests; nothing has to be waited for.
    gap = gap_s if gap_s is not None else 0 if model is not None else COLD_GAP_S

    try:
        if model is None:
            result = _run_one(where, sending, run, scenario="cold", interval_s=gap)
        else:
            result = _cold_process(where, sending, model, run, gap_s=gap)
    except UnknownContainerError as error:
        raise CommandError(str(error)) from None
    if len(result.cold) < requests:
        raise CommandError(
            f"{len(result.cold)} of {requests} requests met a fresh container; the others were "
            "answered by one that had answered before, or not at all: use a longer --gap-s"
        )


def bench_realtime(
    where: Place,
    sending: Sending,
    *,
    requests: int,
    interval_s: float,
    model: Path | None = None,
) -> None:
    """See `dr bench realtime --help`."""
    with _standing(where, model) as place:
        _run_one(
            place,
            sending,
            lambda client, payload, journal: realtime(
                client, payload, requests=requests, interval_s=interval_s, on_measured=journal
            ),
            scenario="realtime",
            interval_s=interval_s,
        )


def bench_load(
    where: Place,
    sending: Sending,
    *,
    shape: str,
    users: int,
    duration_s: float,
    think_s: float,
    rate_per_s: float,
    max_in_flight: int,
    latency_bound: str = "1s",
    queries: int = 1,
    model: Path | None = None,
) -> None:
    """See `dr bench load --help`."""
    if model is not None:
        with _standing(where, model) as place:
            bench_load(
                place, sending, shape=shape, users=users, duration_s=duration_s, think_s=think_s,
                rate_per_s=rate_per_s, max_in_flight=max_in_flight, latency_bound=latency_bound,
                queries=queries,
            )  # fmt: skip
        return
    if shape in LOADGEN_SCENARIOS:
        plan = LoadgenPlan(
            scenario=shape,
            duration_s=duration_s,
            queries=queries,
            rate_per_s=rate_per_s,
            latency_bound_s=seconds(latency_bound),
            seed=sending.seed,
            # Offline has no arrivals: as many at once as there are users.
            in_flight=users if shape == OFFLINE else max_in_flight,
        )
        _bench_loadgen(where, sending, plan)
        return
    if shape != OPEN and shape not in SHAPES:
        known = ", ".join((*SHAPES, OPEN, *LOADGEN_SCENARIOS))
        raise CommandError(f"{shape!r} is not a shape of load; use one of: {known}")
    one = _Run.begun(sending)
    make = _clients(where, retries=sending.retries)
    with (
        contextlib.closing(make()) as client,
        one.journal(f"load-{shape}", client) as journal,
        _kept_when_interrupted(one),
    ):
        if shape == OPEN:
            arrivals = poisson_arrivals(rate_per_s, duration_s=duration_s, seed=sending.seed)
            if not arrivals:
                raise CommandError("nobody arrives in that time; use a longer one or a higher rate")
            result = open_loop(
                make, one.payload, arrivals, max_in_flight=max_in_flight, on_measured=journal
            )
        else:
            form = SHAPES[shape](users, duration_s, sending.seed)
            result = closed_loop(make, one.payload, form, think_s=think_s, on_measured=journal)
    _finish(result, one)


def _bench_loadgen(where: Place, sending: Sending, plan: LoadgenPlan) -> None:
    one = _Run.begun(sending)
    make = _clients(where, retries=sending.retries)
    logs = sending.out / LOADGEN_FOLDER
    logs.mkdir(parents=True, exist_ok=True)
    told: list[Measurement] = []
    with (
        contextlib.closing(make()) as client,
        one.journal(LOADGEN_PREFIX + plan.scenario, client) as journal,
    ):

        def note(measurement: Measurement) -> None:
            told.append(measurement)
            journal(measurement)

        try:
            result, verdict = run_loadgen(
                make, one.payload, plan, logs=logs.resolve(), on_measured=note
            )
        except LoadgenError as error:
            raise CommandError(str(error)) from None
        except KeyboardInterrupt:
            if told:
                _finish(measured_so_far(plan, client.describe(), told), one)
            raise
    document = {"asked": asdict(plan), "verdict": asdict(verdict)}
    _finish(result, one, loadgen=document)
    make_console().print("\n".join(_verdict_lines(plan, verdict)), soft_wrap=True, markup=False)


def _verdict_lines(plan: LoadgenPlan, verdict: LoadgenVerdict) -> list[str]:
    """LoadGen's own figures and verdict, as it measured them."""
    words = "valid" if verdict.valid else "not valid"
    lines = [f"MLPerf LoadGen {verdict.version.split()[0]}, {plan.scenario}: {words}"]
    figures = [f"n = {verdict.queries}"]
    if verdict.completed_per_s is not None:
        figures.append(f"{verdict.completed_per_s:.1f} answers a second")
    if verdict.scheduled_per_s is not None:
        figures.append(f"{verdict.scheduled_per_s:.1f} arrivals a second")
    figures += [
        f"{name} {value:,.1f} ms"
        for name, value in (
            ("p50", verdict.p50_ms),
            ("p90", verdict.p90_ms),
            ("p99", verdict.p99_ms),
            ("longest", verdict.max_ms),
        )
        if value is not None
    ]
    if verdict.over_bound is not None:
        figures.append(f"{verdict.over_bound} later than {plan.latency_bound_s:g} s")
    return [*lines, "  " + ", ".join(figures), *(f"  {reason}" for reason in verdict.why)]


@contextlib.contextmanager
def _standing(where: Place, model: Path | None) -> Iterator[Place]:
    """The place itself, or that of a service for a package that runs for the while."""
    if model is None:
        yield where
        return
    _only_model(where)
    with running_service(package_or_default(model)) as (url, spec):
        yield replace(where, url=url, name=f"process-{spec.id}")


def _only_model(where: Place) -> None:
    if where.given:
        raise CommandError(f"name one thing to measure: {_PLACES}")


def _cold_process(
    where: Place,
    sending: Sending,
    model: Path,
    run: Callable[[Client, Payload, OnMeasured, Callable[[], None]], ScenarioResult],
    *,
    gap_s: float,
) -> ScenarioResult:
    """A cold scenario whose containers are processes of this machine."""
    _only_model(where)
    one = _Run.begun(sending)
    with (
        opened_package(package_or_default(model)) as (folder, spec),
        contextlib.closing(LocalProcess(folder, spec)) as target,
    ):
        client = Client(target, retries=sending.retries)
        with (
            one.journal("cold", client, interval_s=gap_s) as journal,
            _kept_when_interrupted(one),
        ):
            result = run(client, one.payload, journal, target.renew)
        _finish(result, one, ready=target.ready_lines())
    return result


def _run_one(
    where: Place,
    sending: Sending,
    run: Callable[[Client, Payload, OnMeasured], ScenarioResult],
    *,
    scenario: str,
    interval_s: float,
) -> ScenarioResult:
    one = _Run.begun(sending)
    with (
        contextlib.closing(_clients(where, retries=sending.retries)()) as client,
        one.journal(scenario, client, interval_s=interval_s) as journal,
        _kept_when_interrupted(one),
    ):
        result = run(client, one.payload, journal)
    _finish(result, one)
    return result


@contextlib.contextmanager
def _kept_when_interrupted(one: _Run) -> Iterator[None]:
    """Ctrl-C ends the command, with the tables of what was measured until then."""
    try:
        yield
    except InterruptedScenario as interrupted:
        measured = len(interrupted.result.measurements)
        if measured:
            with contextlib.suppress(CommandError):
                # Whoever interrupts does not want to wait for logs that come late.
                _finish(interrupted.result, one, join_logs=False)
            print(f"Interrupted after {measured} requests; their records were kept.")
        else:
            print("Interrupted before a request was answered; no records were written.")
        raise


def _clients(where: Place, *, retries: int) -> Callable[[], Client]:
    """Makes clients of their own connection; what AWS's library connects is shared by all."""
    if len(where.given) != 1:
        raise CommandError(f"name one thing to measure: {_PLACES}")
    first, _ = target_at(where, describe=True)
    if isinstance(first, UrlTarget | FunctionUrlTarget):
        first.close()
        return lambda: Client(target_at(where)[0], retries=retries)
    return lambda: Client(first, retries=retries)


def _finish(
    result: ScenarioResult,
    one: _Run,
    *,
    loadgen: Mapping[str, Any] | None = None,
    join_logs: bool = True,
    ready: Mapping[str, ReadyLine] | None = None,
) -> None:
    """Write what has been measured, now with what was known only at the end, and show it."""
    if ready is None:
        wanted = join_logs and result.cold
        ready = ready_lines_of(result.target, result.cold) if wanted else {}
    records = records_of(result, context=one.context, ready=ready)
    out = one.sending.out
    if loadgen is not None:
        (out / LOADGEN_FILE).write_text(json.dumps(loadgen, indent=2) + "\n", encoding="utf-8")
    write_jsonl(out / RECORDS_FILE, records)
    write_csv(out / CSV_FILE, records)
    write_study_csv(out / STUDY_FILE, records)
    console = make_console()
    if one.busy:
        console.print(one.busy, soft_wrap=True)
    console.print(_table(result))
    for line in _failures(result):
        console.print(line, soft_wrap=True, markup=False)
    console.print(f"\nrecords {out / RECORDS_FILE}\nCSV     {out / CSV_FILE}", soft_wrap=True)
    if not result.answered and not result.cold:
        raise CommandError(f"no request was answered; the reasons are in {out / RECORDS_FILE}")


def _table(result: ScenarioResult) -> Table:
    count = len(result.measurements)
    table = Table(
        title=f"{result.target.name} · {result.scenario} · {count} requests, "
        f"{len(result.failures)} failed, {sum(m.retries for m in result.measurements)} retries, "
        f"{sum(m.throttles for m in result.measurements)} throttled",
    )
    for heading in ("milliseconds", "n", "mean", "95 % interval", "p50", "p95", "p99", "max"):
        table.add_column(heading, justify="left" if heading == "milliseconds" else "right")
    rows = (
        ("round trip, warm", [m.full_latency_s for m in result.answered]),
        ("without connection and upload", [m.answer_latency_s for m in result.answered]),
        ("since it was due", [m.response_time_s for m in _scheduled(result)]),
        ("round trip, fresh container", [m.full_latency_s for m in result.cold]),
    )
    for name, values in rows:
        known = [1000 * value for value in values if value is not None]
        if known:
            table.add_row(name, *_cells(summarise_durations(known)))
    return table


def _scheduled(result: ScenarioResult) -> list[Measurement]:
    return [m for m in result.answered if m.intended_offset_s is not None]


def _cells(summary: Summary) -> tuple[str, ...]:
    low, high = summary.mean_low, summary.mean_high
    interval = "" if low is None or high is None else f"{low:.1f} to {high:.1f}"
    numbers = (summary.p50, summary.p95, summary.p99, summary.maximum)
    return (
        str(summary.n),
        f"{summary.mean:.1f}",
        interval,
        *(f"{number:.1f}" for number in numbers),
    )


def _failures(result: ScenarioResult) -> list[str]:
    counts: dict[str, int] = {}
    for failure in result.failures:
        reason = f"{failure.outcome}: {failure.error}"
        counts[reason] = counts.get(reason, 0) + 1
    return [f"{count} times {reason}" for reason, count in sorted(counts.items())]


def _say_cold(wanted: int) -> Callable[[int, Measurement], None]:
    console = make_console()

    def say(found: int, measurement: Measurement) -> None:
        what = "fresh" if measurement.cold else "warm" if measurement.ok else measurement.outcome
        console.print(f" {found} of {wanted} fresh containers ({what})", soft_wrap=True)

    return say
