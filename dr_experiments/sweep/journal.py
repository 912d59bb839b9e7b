"""The memory of a sweep: a file to which whole lines are added, and what follows from them.

Each line is written at once and forced to the disk before the step that it announces. A line
that was cut off by a kill is no line: it is removed before the next one is added. Two processes
write (the sweep and its watcher), so each addition holds a lock on the file.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from dr_experiments.sweep.plan import Plan

SCHEMA: Final = 1
# What all entries share on the platform (bucket, images); deployed and removed like an entry.
SHARED: Final = "(shared)"

PLANNED: Final = "planned"
DEPLOYING: Final = "deploying"
DEPLOYED: Final = "deployed"
MEASURED: Final = "measured"
FAILED: Final = "failed"
REMOVING: Final = "removing"
REMOVED: Final = "removed"
NOT_REMOVED: Final = "not-removed"
STOPPED: Final = "stopped"
FINISHED: Final = "finished"


class JournalError(ValueError):
    """The journal is not one of this version, or was changed by hand; names the line."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Something that may be deployed: from the moment before it is, to the one after it is not."""

    name: str
    attempt: int
    since: datetime
    expires_at: datetime
    reserve_usd: Decimal


@dataclass(kw_only=True)
class State:
    """What a journal says. `spent_usd` counts what ended; `reserved_usd` what stands.

    `failed` has the reason of each entry whose last attempt failed, `stopped` why the last run
    ended before all entries were tried.
    """

    plan: Plan | None = None
    standing: dict[str, Standing] = field(default_factory=dict)
    measured: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    spent_usd: Decimal = Decimal(0)
    stopped: str | None = None
    finished: bool = False

    @property
    def reserved_usd(self) -> Decimal:
        """The most that what stands may still come to."""
        return sum((one.reserve_usd for one in self.standing.values()), Decimal(0))

    @property
    def open_names(self) -> list[str]:
        """Entries of the plan that are not measured yet, in its order."""
        entries = self.plan.entries if self.plan else ()
        return [entry.name for entry in entries if entry.name not in self.measured]

    def expired(self, now: datetime) -> list[Standing]:
        """What stands longer than it may."""
        return [one for one in self.standing.values() if one.expires_at <= now]


class Journal:
    """The journal at `path`, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, event: str, *, at: datetime | None = None, **facts: Any) -> None:
        """Add one event and force it to the disk."""
        moment = (at or datetime.now(UTC)).isoformat()
        line = json.dumps({"schema": SCHEMA, "at": moment, "event": event, **facts})
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            _cut_torn_line(descriptor)
            _write_all(descriptor, line.encode() + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def events(self) -> Iterator[dict[str, Any]]:
        """Whole events in the order in which they were added."""
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        # What follows the last line end is empty, or was cut off.
        for number, line in enumerate(lines[:-1], start=1):
            try:
                event = json.loads(line)
                schema = event["schema"]
            except (ValueError, KeyError, TypeError):
                raise JournalError(f"{self.path}: line {number} is no event") from None
            if schema != SCHEMA:
                raise JournalError(
                    f"{self.path}: line {number} has schema {schema}; this version reads {SCHEMA}"
                )
            yield event

    def state(self) -> State:
        """What all events together say."""
        state = State()
        for number, event in enumerate(self.events(), start=1):
            try:
                _apply(state, event)
            except (KeyError, ValueError, TypeError, ArithmeticError) as error:
                raise JournalError(
                    f"{self.path}: event {number} cannot be understood: {error}"
                ) from None
        return state


def _apply(state: State, event: Mapping[str, Any]) -> None:
    kind, name = event["event"], event.get("name", "")
    if kind == PLANNED:
        state.plan = Plan.of(event["plan"])
    elif kind == DEPLOYING:
        attempt = int(event["attempt"])
        state.attempts[name] = attempt
        state.standing[name] = Standing(
            name=name,
            attempt=attempt,
            since=datetime.fromisoformat(event["at"]),
            expires_at=datetime.fromisoformat(event["expires_at"]),
            reserve_usd=Decimal(event["reserve_usd"]),
        )
        state.finished, state.stopped = False, None
    elif kind == MEASURED:
        state.measured[name] = dict(event)
        state.failed.pop(name, None)
    elif kind == FAILED:
        state.failed[name] = str(event["reason"])
    elif kind == REMOVED:
        # Two may say it, the sweep and its watcher; it is paid for once.
        if state.standing.pop(name, None) is not None:
            state.spent_usd += Decimal(event["usd"])
    elif kind == STOPPED:
        state.stopped = str(event["reason"])
    elif kind == FINISHED:
        state.finished, state.stopped = True, None


def _cut_torn_line(descriptor: int) -> None:
    size = os.fstat(descriptor).st_size
    end = size
    while end > 0:
        begin = max(0, end - 65536)
        block = os.pread(descriptor, end - begin, begin)
        found = block.rfind(b"\n")
        if found >= 0:
            end = begin + found + 1
            break
        end = begin
    if end != size:
        os.ftruncate(descriptor, end)


def _write_all(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
