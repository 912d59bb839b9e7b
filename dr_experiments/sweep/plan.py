"""What a sweep measures, in which order, and within which limits.

    >>> plan = make_plan([Entry(row="dr-serverless-mobilenet-2048")], Settings(place="local"))
    >>> [entry.name for entry in plan.entries]
    ['dr-serverless-mobilenet-2048']

The order is drawn from the seed: a machine that warms up, or a region that is busy in the
evening, would otherwise favour the rows that happen to come first.
"""

import contextlib
import itertools
import random
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

from inference_image.contract import RUNTIME_LITERT, RUNTIMES
from stacks.matrix import MATRIX, Deployment, Mode

PLACE_LOCAL: Final = "local"
PLACE_AWS: Final = "aws"
PLACES: Final = (PLACE_LOCAL, PLACE_AWS)
_ROWS: Final = {row.stack_id: row for row in MATRIX}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One deployment to measure: a row of the matrix, with a container and a model package.

    Args:
        row: `stack_id` of a row of the matrix.
        runtime: container flavour, `litert` or `tensorflow`.
        package: label of a package other than the row's own (another quantisation, input size
            or network of the same interface); the command that runs the sweep knows its folder.
    """

    row: str
    runtime: str = RUNTIME_LITERT
    package: str | None = None

    def __post_init__(self) -> None:
        if self.row not in _ROWS:
            raise ValueError(f"{self.row!r} is no row of the deployment matrix (npx cdk list)")
        if self.runtime not in RUNTIMES:
            raise ValueError(f"runtime must be one of {', '.join(RUNTIMES)}; got {self.runtime!r}")
        if self.package is not None and not _is_label(self.package):
            raise ValueError(
                f"the label of a package has 1 to 32 small letters, digits and hyphens; got "
                f"{self.package!r}"
            )

    @property
    def name(self) -> str:
        """Name of the configuration in records: the row, and what differs from it."""
        differences = [] if self.runtime == RUNTIME_LITERT else [self.runtime]
        differences += [] if self.package is None else [self.package]
        return "+".join([self.row, *differences])

    @classmethod
    def named(cls, name: str, *, runtime: str | None = None) -> "Entry | None":
        """The entry whose records have this name, and this `runtime` where it is known."""
        label = name.rpartition("+")[2]
        # A label may be a flavour's word: without a `runtime` the word is taken for the flavour.
        for package in (None, label):
            for flavour in RUNTIMES if runtime is None else (runtime,):
                with contextlib.suppress(ValueError):
                    entry = cls(row=name.partition("+")[0], runtime=flavour, package=package)
                    if entry.name == name:
                        return entry
        return None

    @property
    def deployment(self) -> Deployment:
        """The row of the matrix."""
        return _ROWS[self.row]

    @property
    def has_cold_starts(self) -> bool:
        """False of an instance: it is always on."""
        return self.deployment.mode != Mode.REALTIME


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How each entry is measured. Two runs with different settings are two sweeps.

    Args:
        place: `local` or `aws`; `region` is whose prices are used, and where on AWS.
        requests: warm requests, every `interval_s` seconds, after one that is not counted.
        cold_requests: requests that each meet a fresh container, 0 for none, with `cold_gap_s`
            seconds of silence before each and `cold_attempts` gaps for each. Entries without cold
            starts have none (`of`).
        seed: of the order, and of the drawn photograph.
        payload_sha256: digest of what is sent.
    """

    place: str
    region: str = "us-east-1"
    requests: int = 25
    interval_s: float = 5.0
    cold_requests: int = 10
    cold_gap_s: float = 900.0
    cold_attempts: int = 3
    seed: int = 7
    payload_sha256: str = ""

    def __post_init__(self) -> None:
        if self.place not in PLACES:
            raise ValueError(f"place must be one of {', '.join(PLACES)}; got {self.place!r}")
        for name, least in (("requests", 1), ("cold_requests", 0), ("cold_attempts", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}; got {getattr(self, name)}")
        for name in ("interval_s", "cold_gap_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be a number of seconds; got {getattr(self, name)}")

    def of(self, entry: Entry) -> "Settings":
        """How `entry` itself is measured: an instance without cold starts."""
        return self if entry.has_cold_starts else replace(self, cold_requests=0)

    @property
    def most_requests(self) -> int:
        """Requests that one entry may take, the uncounted one and vain cold ones included."""
        return 1 + self.requests + self.cold_requests * self.cold_attempts

    @property
    def least_s(self) -> float:
        """Seconds that measuring one entry takes if every answer comes at once."""
        return self.requests * self.interval_s + self.cold_requests * self.cold_gap_s


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A sweep: `entries` in the order in which they are measured. `sweep_id` names its stacks."""

    sweep_id: str
    settings: Settings
    entries: tuple[Entry, ...]

    def document(self) -> dict[str, Any]:
        """As the journal holds it."""
        return {
            "sweep_id": self.sweep_id,
            "settings": asdict(self.settings),
            "entries": [asdict(entry) for entry in self.entries],
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Plan":
        """Read back; raises `ValueError` for what is no plan of this version."""
        try:
            return cls(
                sweep_id=str(document["sweep_id"]),
                settings=Settings(**document["settings"]),
                entries=tuple(Entry(**entry) for entry in document["entries"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"the plan in the journal cannot be read: {error}") from None

    def entry(self, name: str) -> Entry:
        """The entry of a name; `KeyError` without one."""
        return next((e for e in self.entries if e.name == name), None) or _missing(name)


def make_plan(entries: Iterable[Entry], settings: Settings, *, sweep_id: str = "") -> Plan:
    """A plan over `entries` in random order; the same seed gives the same order.

    Raises:
        ValueError: no entry, or one twice.
    """
    ordered = sorted(entries, key=lambda entry: entry.name)
    if not ordered:
        raise ValueError("a sweep needs at least one deployment to measure")
    twice = sorted({a.name for a, b in itertools.pairwise(ordered) if a == b})
    if twice:
        raise ValueError(f"named twice: {', '.join(twice)}")
    # Shuffled from a sorted list: the order of the arguments plays no part.
    random.Random(settings.seed).shuffle(ordered)  # noqa: S311 - an order, no secret
    return Plan(
        sweep_id=sweep_id or secrets.token_hex(3), settings=settings, entries=tuple(ordered)
    )


def differences(old: Plan, new: Plan) -> list[str]:
    """What keeps `new` from being a continuation of `old`, in words; empty when nothing does."""
    found = [
        f"{field.name} was {getattr(old.settings, field.name)!r} and is now "
        f"{getattr(new.settings, field.name)!r}"
        for field in fields(Settings)
        if getattr(old.settings, field.name) != getattr(new.settings, field.name)
    ]
    before, now = _names(old.entries), _names(new.entries)
    found += [f"{name} is new" for name in sorted(now - before)]
    found += [f"{name} is missing" for name in sorted(before - now)]
    return found


def _names(entries: Sequence[Entry]) -> set[str]:
    return {entry.name for entry in entries}


def _missing(name: str) -> Entry:
    raise KeyError(name)


def _is_label(text: str) -> bool:
    allowed = set("abcdefghijklmnopqrstuvwxyz0123456789-")
    return 0 < len(text) <= 32 and set(text) <= allowed
