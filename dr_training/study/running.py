"""Makes the runs of a plan one after the other, and stops when the budget is used up.

    >>> summary = run_plan(open_plan(out), out, runner_of=runner_of)
    >>> summary.left
    0

Called again on the same folder it goes on where it stopped: runs that have ended are not made
again, a run that was cut off is. Failed runs stay failed, with their reason, until they are
asked for with `retry_failed`; they cost time and money, which counts, and they are never in a
mean.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from dr_training.data.faults import DataError
from dr_training.study import supervise
from dr_training.study.costs import cost, price_of
from dr_training.study.journal import ENDED, STARTED, STOPPED, Journal
from dr_training.study.plan import Plan, Run, specification, uses_images
from dr_training.study.results import RUNS, last_instant, read_result
from dr_training.study.runners.runner import Runner
from dr_training.study.study_file import DATA, ENVIRONMENT, Environment
from dr_training.study.worker.images import missing_files

LOCK: Final = ".running"
RunnerOf = Callable[[Environment], Runner]
Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Runs by how they ended, those that are left, and why it stopped before the end."""

    ended: dict[str, int]
    made: int
    left: int
    stopped: str | None


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Runs that ended by themselves, and the time and money of all attempts.

    `amount` is None where the study has no prices.
    """

    runs: int
    hours: Decimal
    amount: Decimal | None


def run_plan(
    plan: Plan,
    out: Path,
    *,
    runner_of: RunnerOf,
    data_dir: Path | None = None,
    records: Path | None = None,
    retry_failed: bool = False,
    report: Report = print,
) -> Summary:
    """Make the runs that are left.

    Args:
        out: folder of the plan; runs are written to `runs/NAME`.
        runner_of: the runner of an environment.
        data_dir: folder of the published binaries; None draws stand-ins.
        records: prepared records, for the referral workload.
        retry_failed: make failed runs again.

    Raises:
        DataError: another process runs this folder, a data set is missing, a machine cannot be
            reached.
    """
    # A run is another process in another folder.
    out = out.resolve()
    data_dir = None if data_dir is None else data_dir.resolve()
    records = None if records is None else records.resolve()
    with _alone(out):
        if data_dir is not None and uses_images(plan.study):
            _refuse_missing(plan, data_dir)
        journal = Journal(out)
        state = journal.state()
        for run in plan.runs:
            if run.name in state.cut_off:
                _close(plan, run, out, journal)
                report(f"{run.name}: was cut off; it is run again")
        state = journal.state()
        left = [
            run
            for run in plan.runs
            if run.name not in state.status
            or state.status[run.name] == supervise.INTERRUPTED
            or (retry_failed and state.status[run.name] != supervise.OK)
        ]
        made, stopped = 0, None
        for run in left:
            stopped = over_budget(plan, spent(plan, journal))
            if stopped:
                journal.add(STOPPED, reason=stopped)
                report(f"stopped: {stopped}")
                break
            result = _make(plan, run, out, journal, runner_of, data_dir=data_dir, records=records)
            made += 1
            words = " ".join(str(level) for level in run.levels.values())
            outcome = (
                f"training {result['training_s']:.1f} s, life {result['life_s']:.1f} s"
                if result["status"] == supervise.OK
                else f"{result['status']}: {result['reason']}"
            )
            report(f"{made}/{len(left)} {run.name} ({words}): {outcome}")
        state = journal.state()
        ended = dict.fromkeys(supervise.STATUSES, 0)
        for name in (run.name for run in plan.runs):
            if name in state.status:
                ended[state.status[name]] += 1
        return Summary(
            ended={status: count for status, count in ended.items() if count},
            made=made,
            left=sum(run.name not in state.status for run in plan.runs),
            stopped=stopped,
        )


def spent(plan: Plan, journal: Journal) -> Spent:
    """What the journal says has been used, failed and repeated runs included."""
    runs, seconds, amount = 0, Decimal(0), Decimal(0)
    for event in journal.events():
        if event["event"] == ENDED:
            runs += event["status"] != supervise.INTERRUPTED
            seconds += Decimal(str(event["life_s"]))
            amount += Decimal(str(event.get("amount", 0)))
    priced = plan.study.prices is not None
    return Spent(runs=runs, hours=seconds / 3600, amount=amount if priced else None)


def over_budget(plan: Plan, used: Spent) -> str | None:
    """Why no further run may begin; None when one may."""
    budget = plan.study.budget
    if budget.runs is not None and used.runs >= budget.runs:
        return _used_up("runs", str(budget.runs), str(used.runs))
    if budget.hours is not None and used.hours >= budget.hours:
        return _used_up("hours", f"{budget.hours:f}", f"{used.hours:.3f}")
    if budget.amount is not None:
        if used.amount is None:
            raise DataError("budget.amount needs hourly prices; the study has none")
        if used.amount >= budget.amount:
            unit = plan.study.prices.currency if plan.study.prices else ""
            return _used_up(unit, f"{budget.amount:f}", f"{used.amount:.4f}")
    return None


def _used_up(unit: str, limit: str, used: str) -> str:
    if Decimal(limit) == 0:
        return f"the budget is 0 {unit}, so nothing is run"
    return f"the budget of {limit} {unit} is used up ({used})"


def _make(
    plan: Plan,
    run: Run,
    out: Path,
    journal: Journal,
    runner_of: RunnerOf,
    *,
    data_dir: Path | None,
    records: Path | None,
) -> dict[str, Any]:
    environment = plan.study.environment(str(plan.parameters(run)[ENVIRONMENT]))
    spec = specification(plan, run, data_dir=data_dir, records=records)
    runner = runner_of(environment)
    folder = out / RUNS / run.name
    journal.add(STARTED, run=run.name)
    try:
        result = runner.run(spec, folder)
    except (KeyboardInterrupt, SystemExit):
        # What the run left says how long it was billed.
        left = read_result(folder) or {"training_s": 0.0, "life_s": 0.0}
        life_s, facts = left["life_s"], _facts(plan, environment, left)
        journal.add(ENDED, run=run.name, status=supervise.INTERRUPTED, life_s=life_s, **facts)
        raise
    except DataError as error:
        # There is no run where its machine or interpreter is missing: the next would fail alike.
        journal.add(
            ENDED, run=run.name, status=supervise.INTERRUPTED, life_s=0.0, reason=str(error)
        )
        raise
    supervise.write(folder / supervise.RESULT, result)
    journal.add(
        ENDED,
        run=run.name,
        status=result["status"],
        reason=result["reason"],
        life_s=result["life_s"],
        **_facts(plan, environment, result),
    )
    return result


def _close(plan: Plan, run: Run, out: Path, journal: Journal) -> None:
    """Note the end of a run that was cut off; its monitor says how far it came."""
    folder = out / RUNS / run.name
    life_s = last_instant(folder / supervise.MONITOR)
    environment = plan.study.environment(str(plan.parameters(run)[ENVIRONMENT]))
    facts = _facts(plan, environment, {"training_s": 0.0, "life_s": life_s})
    journal.add(ENDED, run=run.name, status=supervise.INTERRUPTED, life_s=life_s, **facts)


def _facts(plan: Plan, environment: Environment, result: dict[str, Any]) -> dict[str, Any]:
    if plan.study.prices is None or environment.hourly is None:
        return {}
    hourly = price_of(plan.study, environment.name)
    return {"amount": str(cost(result, hourly=hourly, prices=plan.study.prices).billed)}


def _refuse_missing(plan: Plan, data_dir: Path) -> None:
    if not data_dir.is_dir():
        raise DataError(f"{data_dir}: there is no such folder; leave --data-dir out for stand-ins")
    names = {str(plan.parameters(run)[DATA]) for run in plan.runs}
    missing = [
        f"{file} ({name})" for name in sorted(names) for file in missing_files(name, data_dir)
    ]
    if missing:
        raise DataError(
            f"{data_dir} lacks {', '.join(missing)}; put the published binaries there, or leave "
            "--data-dir out for seeded stand-ins"
        )


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Two runners in one folder would make the same runs, and each would disturb the other."""
    with (out / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DataError(f"another `dr study run` works on {out}; wait for it to end") from None
        os.set_inheritable(lock.fileno(), False)
        yield
