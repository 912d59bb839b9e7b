"""A cloud made of files, which outlives the process that deploys to it."""

import json
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

from dr_experiments.records import RequestRecord, RunContext, records_of
from dr_experiments.scenarios import warm
from dr_experiments.sweep.plan import Entry, Plan, Settings, make_plan
from dr_experiments.sweep.runner import Deployed, EntryError, Limits, Run, Task
from tests.unit.dr_experiments.fakes import PAYLOAD, FakeClock, FakeTarget

NAMES = (
    "dr-serverless-mobilenet-1024",
    "dr-serverless-mobilenet-2048",
    "dr-realtime-vgg19-m5-xlarge",
)
START = datetime(2026, 11, 28, 9, 0, tzinfo=UTC)
REQUESTS = 3


def small_plan(names: Sequence[str] = NAMES) -> Plan:
    return make_plan(
        [Entry(row=name) for name in names],
        Settings(place="local", requests=REQUESTS, cold_requests=0),
        sweep_id="abc123",
    )


class FileCloud:
    """Deploys by making a file; `log` has every deployment and every request."""

    def __init__(self, folder: Path, step: Callable[[], None] = lambda: None) -> None:
        self.folder = folder
        self.step = step
        self.refuse: set[str] = set()
        self.stuck: set[str] = set()
        folder.mkdir(exist_ok=True)

    @property
    def standing(self) -> set[str]:
        return {path.name for path in self.folder.iterdir() if path.name != "log"}

    def prepare(self, *, ttl_s: float) -> None:
        self._deploy("shared")

    def deploy(self, entry: Entry, *, ttl_s: float) -> Deployed:
        assert "shared" in self.standing
        if entry.name in self.refuse:
            raise EntryError("the account may run none of these")
        self._deploy(entry.name)
        clock = FakeClock()
        target = FakeTarget(clock, iter([0.1] * 99))
        target.description = replace(target.description, name=entry.name)
        return Deployed(target=target)

    def remove(self, entry: Entry) -> None:
        self._remove(entry.name)

    def release(self) -> None:
        self._remove("shared")

    def note(self, line: str) -> None:
        with (self.folder / "log").open("a") as stream:
            stream.write(line + "\n")

    def _deploy(self, name: str) -> None:
        self.step()
        self.note(f"deploy {name}")
        (self.folder / name).touch()
        self.step()

    def _remove(self, name: str) -> None:
        if name in self.stuck:
            raise EntryError("access denied")
        self.step()
        (self.folder / name).unlink(missing_ok=True)
        self.step()


def measure_with(step: Callable[[], None]) -> Callable[[Task], list[RequestRecord]]:
    """Measures three requests of a fake target, with a step before and after."""

    def measure(task: Task) -> list[RequestRecord]:
        from dr_experiments.client import Client

        step()
        target = task.deployed.target
        assert isinstance(target, FakeTarget)
        client = Client(target, clock=target.clock, sleep=target.clock.sleep)
        result = warm(client, PAYLOAD, requests=REQUESTS, interval_s=0)
        step()
        return records_of(result, context=RunContext(run_id=task.run_id, git_commit=None))

    return measure


class HalfPricePurse:
    """Everything may cost 2 USD and comes to 1."""

    def reserve_usd(self, entry: Entry, *, stands_s: float, requests: int) -> Decimal:
        return Decimal(2)

    def cost_usd(self, entry: Entry, *, stood_s: float, requests: int, busy_s: float) -> Decimal:
        return Decimal(1)


class Wall:
    """A wall clock that a test sets."""

    def __init__(self) -> None:
        self.moment = START

    def __call__(self) -> datetime:
        return self.moment

    def pass_s(self, seconds: float) -> None:
        self.moment += timedelta(seconds=seconds)


def a_run(folder: Path, cloud: FileCloud, **changes: object) -> Run:
    """A run of the small plan with all its parts faked."""
    parts: dict[str, object] = {
        "folder": folder,
        "plan": small_plan(),
        "deployer": cloud,
        "measure": measure_with(cloud.step),
        "purse": HalfPricePurse(),
        "limits": Limits(ttl_s=600),
        "now": Wall(),
    }
    return Run(**{**parts, **changes})  # type: ignore[arg-type]


def killed_at(number: int) -> Callable[[], None]:
    """A step that ends this process by SIGKILL when it is taken for the `number`th time."""
    taken = 0

    def step() -> None:
        nonlocal taken
        taken += 1
        if taken == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return step


def journal_lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
