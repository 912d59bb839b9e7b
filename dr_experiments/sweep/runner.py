"""Carries a plan out: deploy, measure, keep, remove; from wherever the last run got to.

    >>> run = Run(folder=out, plan=plan, deployer=deployer, measure=measure,
    ...           purse=FreePurse(), limits=Limits(ttl_s=3600))
    >>> with holding(out, SWEEP):
    ...     state = run.carry_out()

What makes it safe to end at any moment, also by SIGKILL: a line in the journal *precedes* each
deployment, so that nothing can stand that the journal does not know; the records of an entry
become its file in one step, so that it is either measured or not; and a run first removes what
stands and takes up what was measured.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Protocol

from dr_experiments.client import Measurement
from dr_experiments.cold_start import ReadyLine
from dr_experiments.measured import COLD
from dr_experiments.records import RequestRecord, read_jsonl, write_csv, write_jsonl
from dr_experiments.sweep import journal as journals
from dr_experiments.sweep.journal import SHARED, Journal, Standing, State
from dr_experiments.sweep.plan import Entry, Plan
from dr_experiments.sweep.spending import Purse
from dr_experiments.targets import OUTCOME_OK, Target

JOURNAL_FILE: Final = "journal.jsonl"
LOCK_FILE: Final = "sweep.lock"
ROWS_FOLDER: Final = "rows"
# A folder for each label, with the packages by the names that the rows have for them.
PACKAGES_FOLDER: Final = "packages"
RECORDS_FILE: Final = "requests.jsonl"
CSV_FILE: Final = "requests.csv"
SWEEP: Final = "sweep"
WATCHER: Final = "watcher"
_POLL_S: Final = 0.2


ReadReadyLines = Callable[[Sequence[Measurement]], Mapping[str, ReadyLine]]


class SweepError(Exception):
    """The sweep cannot go on; the text says why and what to do."""


class EntryError(Exception):
    """One entry could not be deployed or measured; the sweep goes on with the next."""


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """An entry that answers.

    `ready_lines` reads what the containers behind cold answers logged, by start id.
    """

    target: Target
    image_digest: str | None = None
    ready_lines: ReadReadyLines = lambda _measurements: {}


class Deployer(Protocol):
    """Somewhere to deploy to. Removing what is not there is no error."""

    def prepare(self, *, ttl_s: float) -> None:
        """Deploy what all entries share. Raises `SweepError`."""
        ...

    def deploy(self, entry: Entry, *, ttl_s: float) -> Deployed:
        """Deploy one entry and wait until it is in service. Raises `EntryError`."""
        ...

    def remove(self, entry: Entry) -> None:
        """Remove one entry and wait until it is gone. Raises `EntryError`."""
        ...

    def release(self) -> None:
        """Remove what all entries share. Raises `EntryError`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a measurement is told. It must end before `deadline`, or raise `EntryError`."""

    entry: Entry
    deployed: Deployed
    run_id: str
    deadline: datetime


Measure = Callable[[Task], Sequence[RequestRecord]]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Seconds that a deployment may stand, and US dollars for the whole sweep."""

    ttl_s: float
    spending_limit_usd: Decimal | None = None


@dataclass(kw_only=True)
class Run:
    """One run of a plan in `folder`; call `carry_out` while `holding` the folder's lock."""

    folder: Path
    plan: Plan
    deployer: Deployer
    measure: Measure
    purse: Purse
    limits: Limits
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    on_step: Callable[[str, str], None] = lambda _step, _name: None
    journal: Journal = field(init=False)

    def __post_init__(self) -> None:
        self.journal = Journal(self.folder / JOURNAL_FILE)

    def carry_out(self) -> State:
        """Measure every entry that is not measured yet; returns the state at the end.

        Raises:
            SweepError: the shared part could not be deployed, or something could not be removed.
            UnknownPriceError: an entry has no price, so that no limit could be kept.
        """
        (self.folder / ROWS_FOLDER).mkdir(parents=True, exist_ok=True)
        if self.journal.state().plan is None:
            self._note(journals.PLANNED, plan=self.plan.document())
        self._take_up()
        remove_standing(self.journal, self.deployer, self.purse, now=self.now)
        open_names = self.journal.state().open_names
        for name in open_names:
            # A missing price must not be found out when half of the rows are measured.
            self._reserve(self.plan.entry(name))
        try:
            for name in open_names:
                entry = self.plan.entry(name)
                if not self._affordable(entry):
                    break
                self._share(entries_left=len(open_names))
                self._one(entry)
        finally:
            if SHARED in self.journal.state().standing:
                self._remove(SHARED)
            collect(self.folder, self.plan)
        if not self.journal.state().open_names:
            self._note(journals.FINISHED)
        return self.journal.state()

    def _take_up(self) -> None:
        """Count what an earlier run measured and was killed before it could say so."""
        for name, standing in self.journal.state().standing.items():
            path = row_file(self.folder, name)
            if name in self.journal.state().measured or not path.is_file():
                continue
            records = read_jsonl(path)
            if records and records[0].run_id == run_id(self.plan, standing.attempt):
                self._note_measured(name, standing.attempt, records)

    def _share(self, *, entries_left: int) -> None:
        if SHARED in self.journal.state().standing:
            return
        # It stands as long as all entries together may.
        ttl_s = self.limits.ttl_s * (entries_left + 1)
        self._announce(SHARED, ttl_s=ttl_s, reserve=Decimal(0))
        self.on_step("sharing", SHARED)
        self.deployer.prepare(ttl_s=ttl_s)
        self._note(journals.DEPLOYED, name=SHARED)

    def _one(self, entry: Entry) -> None:
        name = entry.name
        deadline = self._announce(name, ttl_s=self.limits.ttl_s, reserve=self._reserve(entry))
        attempt = self.journal.state().attempts[name]
        try:
            self.on_step("deploying", name)
            deployed = self.deployer.deploy(entry, ttl_s=self.limits.ttl_s)
            self._note(journals.DEPLOYED, name=name)
            self.on_step("measuring", name)
            task = Task(
                entry=entry,
                deployed=deployed,
                run_id=run_id(self.plan, attempt),
                deadline=deadline,
            )
            records = self.measure(task)
            if not any(record.counted and record.outcome == OUTCOME_OK for record in records):
                raise EntryError(_why_nothing(records))
            keep_records(row_file(self.folder, name), records)
            self._note_measured(name, attempt, records)
            self._say_missing_starts(name, records)
        except EntryError as error:
            self._note(journals.FAILED, name=name, attempt=attempt, reason=str(error))
            self.on_step("failed", name)
        finally:
            self._remove(name)
        collect(self.folder, self.plan)

    def _say_missing_starts(self, name: str, records: Sequence[RequestRecord]) -> None:
        """Whoever asked for ten fresh containers must not take three for them."""
        asked = [record for record in records if record.scenario == COLD]
        fresh = sum(bool(record.cold) for record in asked)
        wanted = self.plan.settings.cold_requests
        if asked and fresh < wanted:
            self.on_step(f"met only {fresh} of {wanted} fresh containers, too short a gap:", name)

    def _announce(self, name: str, *, ttl_s: float, reserve: Decimal) -> datetime:
        now = self.now()
        expires_at = now + timedelta(seconds=ttl_s)
        self._note(
            journals.DEPLOYING,
            name=name,
            attempt=self.journal.state().attempts.get(name, 0) + 1,
            expires_at=expires_at.isoformat(),
            reserve_usd=str(reserve),
        )
        return expires_at

    def _note_measured(self, name: str, attempt: int, records: Sequence[RequestRecord]) -> None:
        answered = [r for r in records if r.outcome == OUTCOME_OK]
        self._note(
            journals.MEASURED,
            name=name,
            attempt=attempt,
            requests=len(records),
            answered=len(answered),
            busy_s=sum(_busy_s(record) for record in records),
        )

    def _remove(self, name: str) -> None:
        self.on_step("removing", name)
        standing = self.journal.state().standing.get(name)
        if standing is not None:
            _remove_one(self.journal, self.deployer, self.purse, standing, now=self.now, by=SWEEP)

    def _reserve(self, entry: Entry) -> Decimal:
        return self.purse.reserve_usd(
            entry, stands_s=self.limits.ttl_s, requests=self.plan.settings.of(entry).most_requests
        )

    def _affordable(self, entry: Entry) -> bool:
        limit = self.limits.spending_limit_usd
        state = self.journal.state()
        committed = state.spent_usd + state.reserved_usd
        reserve = self._reserve(entry)
        if limit is None or committed + reserve <= limit:
            return True
        reason = (
            f"{entry.name} may cost up to {reserve:.4f} USD, {committed:.4f} USD are spent, and "
            f"the limit is {limit:.4f} USD"
        )
        self._note(journals.STOPPED, name=entry.name, reason=reason)
        self.on_step(f"stopped: {reason}", entry.name)
        return False

    def _note(self, event: str, **facts: Any) -> None:
        self.journal.append(event, at=self.now(), **facts)


def remove_standing(
    journal: Journal,
    deployer: Deployer,
    purse: Purse,
    *,
    now: Callable[[], datetime],
    by: str = SWEEP,
    only_expired: bool = False,
) -> None:
    """Remove what the journal says may stand, the shared part last.

    Raises:
        SweepError: something could not be removed; the rest was tried.
    """
    state = journal.state()
    found = state.expired(now()) if only_expired else list(state.standing.values())
    faults = []
    for standing in sorted(found, key=lambda one: one.name == SHARED):
        try:
            _remove_one(journal, deployer, purse, standing, now=now, by=by)
        except SweepError as error:
            faults.append(str(error))
    if faults:
        raise SweepError("; ".join(faults))


def _remove_one(
    journal: Journal,
    deployer: Deployer,
    purse: Purse,
    standing: Standing,
    *,
    now: Callable[[], datetime],
    by: str,
) -> None:
    name = standing.name
    state = journal.state()
    journal.append(journals.REMOVING, at=now(), name=name, by=by)
    try:
        if name == SHARED:
            deployer.release()
        elif state.plan is not None:
            deployer.remove(state.plan.entry(name))
    except EntryError as error:
        journal.append(journals.NOT_REMOVED, at=now(), name=name, by=by, reason=str(error))
        raise SweepError(f"{name} could not be removed: {error}; run the sweep again") from None
    usd = _usd(state, standing, purse, stood_s=(now() - standing.since).total_seconds())
    journal.append(journals.REMOVED, at=now(), name=name, by=by, usd=str(usd))


def _usd(state: State, standing: Standing, purse: Purse, *, stood_s: float) -> Decimal:
    if standing.name == SHARED or state.plan is None:
        return Decimal(0)
    entry = state.plan.entry(standing.name)
    measured = state.measured.get(standing.name)
    if measured is not None and measured["attempt"] == standing.attempt:
        return purse.cost_usd(
            entry, stood_s=stood_s, requests=measured["requests"], busy_s=measured["busy_s"]
        )
    # Nobody knows how many requests it answered; it may also have stood longer than it should.
    stood = purse.cost_usd(entry, stood_s=stood_s, requests=0, busy_s=0.0)
    return max(standing.reserve_usd, stood)


def watch(
    folder: Path,
    deployer: Deployer,
    purse: Purse,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    sleep: Callable[[float], None] = time.sleep,
    poll_s: float = 1.0,
    give_up_after_s: float = 6 * 3600.0,
) -> None:
    """Remove what outlives its time while a sweep runs, and everything once the sweep has ended.

    Returns when the sweep has ended, in whatever way, and nothing stands. What cannot be removed
    is tried again, for `give_up_after_s`.

    Raises:
        SweepError: something still stands after that.
    """
    journal = Journal(folder / JOURNAL_FILE)
    pause_s, waited_s = poll_s, 0.0
    while True:
        fault: SweepError | None = None
        with contextlib.suppress(LockedError), holding(folder, WATCHER):
            try:
                remove_standing(journal, deployer, purse, now=now, by=WATCHER)
                return
            except SweepError as error:
                fault = error
        if fault is None:
            try:
                remove_standing(journal, deployer, purse, now=now, by=WATCHER, only_expired=True)
                pause_s, waited_s = poll_s, 0.0
            except SweepError as error:
                fault = error
        if fault is not None and waited_s >= give_up_after_s:
            raise fault
        sleep(pause_s)
        if fault is not None:
            waited_s += pause_s
            pause_s = min(2 * pause_s, 60.0)


class LockedError(SweepError):
    """Somebody else works in this folder; `role` says who."""

    def __init__(self, folder: Path, role: str) -> None:
        super().__init__(f"a {role} already works in {folder}; wait for it, or use another --out")
        self.role = role


@contextlib.contextmanager
def holding(
    folder: Path,
    role: str,
    *,
    wait_s: float = 0.0,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[None]:
    """The folder's lock, which the system releases when its holder ends in whatever way.

    Args:
        wait_s: how long to wait for a watcher that cleans up; a sweep is not waited for.

    Raises:
        LockedError: it is held by another process.
    """
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        waited_s = 0.0
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or SWEEP
                if holder != WATCHER or waited_s >= wait_s:
                    raise LockedError(folder, holder) from None
            sleep(_POLL_S)
            waited_s += _POLL_S
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, role.encode(), 0)
        yield
    finally:
        os.close(descriptor)


def keep_records(path: Path, records: Sequence[RequestRecord]) -> None:
    """Make `path` hold these records, whole or not at all, also if the power fails."""
    partial = path.with_name(f".{path.name}.partial")
    write_jsonl(partial, records)
    with partial.open("rb") as stream:
        os.fsync(stream.fileno())
    partial.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def collect(folder: Path, plan: Plan) -> list[RequestRecord]:
    """Put the records of all measured entries into one file and one CSV; returns them."""
    measured = Journal(folder / JOURNAL_FILE).state().measured
    records = [
        record
        for entry in plan.entries
        if entry.name in measured
        for record in read_jsonl(row_file(folder, entry.name))
    ]
    keep_records(folder / RECORDS_FILE, records)
    table = folder / f".{CSV_FILE}.partial"
    write_csv(table, records)
    table.replace(folder / CSV_FILE)
    return records


def row_file(folder: Path, name: str) -> Path:
    """Where the records of an entry are."""
    return folder / ROWS_FOLDER / f"{name}.jsonl"


def run_id(plan: Plan, attempt: int) -> str:
    """Name of an attempt in its records."""
    return f"{plan.sweep_id}-{attempt}"


def _busy_s(record: RequestRecord) -> float:
    """Seconds that a request may have been billed for: the longest that is known."""
    known = (record.requestLatency, record.fullLatency, record.failed_after_s)
    return max((value for value in known if value is not None), default=0.0)


def _why_nothing(records: Sequence[RequestRecord]) -> str:
    reasons = sorted({f"{r.outcome}: {r.error}" for r in records if r.outcome != OUTCOME_OK})
    return f"no request was answered ({'; '.join(reasons[:3]) or 'none was sent'})"
