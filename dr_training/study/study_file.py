"""A study is one TOML file: what varies, what is fixed, how often, where, at which price.

    >>> study = read_study(Path("methodology"))
    >>> len(study.scenarios()), study.repetitions
    (48, 5)

Every key is documented in docs/training-studies.md. An unknown key, a level that its factor
does not have and a missing value are refused, all of them in one message.
"""

import itertools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal, InvalidOperation
from importlib import resources
from pathlib import Path
from typing import Any, Final

from dr_training.data.faults import DataError, Faults
from dr_training.study.worker.images import SETS
from dr_training.study.worker.networks import BLOCKS
from dr_training.study.worker.trainers import TRAINERS

FRAMEWORK, DATA, SIZE, NETWORK, ENVIRONMENT = FACTORS = (
    "framework",
    "data",
    "size",
    "network",
    "environment",
)
STRATEGY: Final = "strategy"
BATCH, EPOCHS, RATE = "batch", "epochs", "learning_rate"
CLASSIFICATION, REFERRAL = "classification", "referral"
STRATEGIES: Final = ("one device", "mirrored 2", "mirrored all")
REFERRAL_NETWORKS: Final = ("InceptionV3", "MobileNet")
# Which values a run of a workload has. Each is a factor of the study or in [fixed].
PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {
    CLASSIFICATION: (*FACTORS, BATCH, EPOCHS, RATE),
    REFERRAL: (STRATEGY, NETWORK, SIZE, ENVIRONMENT, BATCH, EPOCHS, RATE),
}
DEVICES: Final = ("cpu", "gpu")
RUNNERS: Final = ("local", "ssh", "sagemaker")
REFUSE, FRACTION = WHEN_SHORT = ("refuse", "fraction")
_REPETITIONS: Final = re.compile(r"(?m)^\s*repetitions\s*=\s*\d+")
FILES: Final = "dr_training.study.files"
Level = str | int | float


@dataclass(frozen=True, kw_only=True)
class Factor:
    """What varies, and its levels in the order of the file."""

    name: str
    levels: tuple[Level, ...]


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Where runs take place. `hourly` is None where the file gives no price.

    `cores` keeps a run to so many cores of the machine; None leaves it all of them. `where` is
    the host of an SSH runner or the instance type of a SageMaker one.
    """

    name: str
    device: str
    threads: int
    cores: int | None
    hourly: Decimal | None
    runner: str
    where: str


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Currency, day and source of the hourly prices, and how time is billed."""

    currency: str
    checked: date
    source: str
    minimum_s: Decimal = Decimal(0)
    step_s: Decimal = Decimal(1)
    idle_s: Decimal = Decimal(0)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Most runs, hours and money; None is no limit. `expected_s` is of one run, for planning."""

    runs: int | None = None
    hours: Decimal | None = None
    amount: Decimal | None = None
    expected_s: Decimal | None = None
    when_short: str = REFUSE


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study file, checked. `settings` are the tables of its workload and runners, as read."""

    name: str
    title: str
    workload: str
    repetitions: int
    order_seed: int
    factors: tuple[Factor, ...]
    fixed: Mapping[str, Level]
    environments: tuple[Environment, ...]
    prices: Prices | None
    budget: Budget
    source: str
    quality_target: float | None
    monitor_interval_s: float
    memory_limit_mib: float | None
    time_limit_s: float | None
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    text: str = ""

    def scenarios(self) -> list[dict[str, Level]]:
        """Every combination of levels: factors in the order of the file, the last fastest."""
        names = [factor.name for factor in self.factors]
        levels = [factor.levels for factor in self.factors]
        return [dict(zip(names, row, strict=True)) for row in itertools.product(*levels)]

    def environment(self, name: str) -> Environment:
        """An environment by name."""
        return next(one for one in self.environments if one.name == name)


def bundled() -> list[str]:
    """Names of the studies that come with the package."""
    folder = resources.files(FILES)
    return sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".toml"))


def read_study(path: Path, *, repetitions: int | None = None) -> Study:
    """Read a study file, or a bundled study by its name.

    Args:
        repetitions: instead of the file's; `text` says so, too.

    Raises:
        DataError: there is no such file, it is not TOML, or something in it is wrong.
    """
    if path.is_file():
        text = path.read_text("utf-8")
    elif str(path) in bundled():
        text = resources.files(FILES).joinpath(f"{path}.toml").read_text("utf-8")
    else:
        raise DataError(
            f"{path}: no such study file; name one, or a bundled study ({', '.join(bundled())})"
        )
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not TOML: {error}") from None
    if repetitions is not None and isinstance(document.get("study"), dict):
        # The copy beside the results must give the same plan.
        text = _REPETITIONS.sub(f"repetitions = {repetitions}", text, count=1)
        document = tomllib.loads(text)
        if document["study"].get("repetitions") != repetitions:
            raise DataError(f"{path}: write `repetitions = N` on a line of its own in [study]")
    return _Reader(document, where=str(path)).study(text)


class _Reader:
    """Takes values out of a document and collects what is wrong with them."""

    def __init__(self, document: dict[str, Any], *, where: str) -> None:
        self._document, self._where, self._faults = document, where, Faults()

    def study(self, text: str) -> Study:
        self._only("", self._document, _TABLES)
        head = self._table("study", required=True)
        workload = self._choice("study.workload", head.get("workload"), tuple(PARAMETERS))
        if workload not in tuple(PARAMETERS):
            # What else is right depends on it.
            self._faults.raise_if_any(f"the study {self._where} cannot be used")
        environments = tuple(self._environments())
        factors = tuple(self._factors(workload, environments))
        fixed = self._fixed(workload, environments, factors)
        limits, monitor = self._table("limits"), self._table("monitor")
        study = {
            "name": self._text("study.name", head.get("name")),
            "title": self._text("study.title", head.get("title")),
            "source": self._text("study.source", head.get("source", "-")),
            "repetitions": self._whole("study.repetitions", head.get("repetitions"), 1, 1000),
            "order_seed": self._whole("study.order_seed", head.get("order_seed"), 0, 2**32),
            "quality_target": self._number(
                "study.quality_target", head.get("quality_target"), 0, 1, optional=True
            ),
            "monitor_interval_s": self._number(
                "monitor.interval_s", monitor.get("interval_s", 1.0), 0.05, 3600
            ),
            "memory_limit_mib": self._number(
                "limits.memory_mib", limits.get("memory_mib"), 1, 2**30, optional=True
            ),
            "time_limit_s": self._number(
                "limits.time_s", limits.get("time_s"), 1, 10**7, optional=True
            ),
        }
        prices, budget = self._prices(environments), self._budget()
        settings = self._settings(workload, environments)
        self._faults.raise_if_any(f"the study {self._where} cannot be used")
        return Study(
            workload=workload,
            factors=factors,
            fixed=fixed,
            environments=environments,
            prices=prices,
            budget=budget,
            settings=settings,
            text=text,
            **study,
        )

    def _table(self, name: str, *, required: bool = False) -> dict[str, Any]:
        found = self._document.get(name)
        if found is None:
            if required:
                self._faults.add(f"[{name}]", "the table is missing")
            return {}
        if not isinstance(found, dict):
            self._faults.add(name, f"it is a table, [{name}]")
            return {}
        if name in _KEYS:
            self._only(name, found, _KEYS[name])
        return found

    def _rows(self, name: str) -> list[dict[str, Any]]:
        found = self._document.get(name, [])
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            self._faults.add(name, f"it is a list of tables, [[{name}]]")
            return []
        for number, one in enumerate(found, start=1):
            self._only(f"{name} {number}", one, _KEYS[name])
        if not found:
            self._faults.add(f"[[{name}]]", "there is none; give at least one")
        return found

    def _only(self, where: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
        for key in table:
            if key not in known:
                place = f"{where}.{key}" if where else f"[{key}]"
                self._faults.add(place, f"unknown; known: {', '.join(known)}")

    def _environments(self) -> list[Environment]:
        found: list[Environment] = []
        for number, row in enumerate(self._rows("environment"), start=1):
            place = f"environment {number}"
            runner = self._choice(f"{place}.runner", row.get("runner", "local"), RUNNERS)
            where = row.get("where", "")
            if runner != "local" or where:
                where = self._text(f"{place}.where", where)
            if runner == "local" and where:
                self._faults.add(f"{place}.where", "only for the runners ssh and sagemaker")
            name = self._text(f"{place}.name", row.get("name"))
            if name in {one.name for one in found}:
                self._faults.add(f"{place}.name", f"{name!r} is there twice")
            cores = row.get("cores")
            found.append(
                Environment(
                    name=name,
                    device=self._choice(f"{place}.device", row.get("device"), DEVICES),
                    threads=self._whole(f"{place}.threads", row.get("threads"), 1, 1024),
                    cores=None if cores is None else self._whole(f"{place}.cores", cores, 1, 1024),
                    hourly=self._money(f"{place}.hourly", row.get("hourly")),
                    runner=runner,
                    where=where,
                )
            )
        return found

    def _factors(self, workload: str, environments: Sequence[Environment]) -> list[Factor]:
        found: list[Factor] = []
        for number, row in enumerate(self._rows("factor"), start=1):
            name, levels = row.get("name"), row.get("levels")
            place = f"factor {number}"
            if name not in PARAMETERS.get(workload, ()):
                known = ", ".join(PARAMETERS.get(workload, ()))
                self._faults.add(f"{place}.name", f"{name!r} is not one of {known}")
                continue
            if name in {one.name for one in found}:
                self._faults.add(f"{place}.name", f"{name!r} is there twice")
            if not isinstance(levels, list) or len(levels) < 2:
                self._faults.add(f"{place}.levels", "a list of at least two; else use [fixed]")
                continue
            if len({str(level) for level in levels}) < len(levels):
                self._faults.add(f"{place}.levels", "a level is there twice")
            for level in levels:
                self._level(f"{place}.levels", str(name), level, workload, environments)
            found.append(Factor(name=str(name), levels=tuple(levels)))
        return found

    def _fixed(
        self, workload: str, environments: Sequence[Environment], factors: Sequence[Factor]
    ) -> dict[str, Level]:
        found = self._table("fixed")
        varied = {factor.name for factor in factors}
        names = PARAMETERS.get(workload, ())
        self._only("fixed", found, names)
        for name in names:
            if name in varied and name in found:
                self._faults.add(f"fixed.{name}", "it is a factor as well; leave one out")
            elif name in found:
                self._level(f"fixed.{name}", name, found[name], workload, environments)
            elif name not in varied:
                self._faults.add(name, "it is neither a factor nor in [fixed]")
        return dict(found)

    def _level(
        self,
        place: str,
        name: str,
        level: Any,
        workload: str,
        environments: Sequence[Environment],
    ) -> None:
        choices: Mapping[str, Sequence[Any]] = {
            FRAMEWORK: tuple(TRAINERS),
            DATA: tuple(SETS),
            NETWORK: tuple(BLOCKS) if workload == CLASSIFICATION else REFERRAL_NETWORKS,
            ENVIRONMENT: tuple(one.name for one in environments),
            STRATEGY: STRATEGIES,
        }
        if name in choices:
            self._choice(place, level, choices[name])
        elif name == SIZE:
            # A multiple of 8, so that three halvings leave whole pixels.
            side = self._whole(place, level, 8, 1024)
            if workload == CLASSIFICATION and side % 8:
                self._faults.add(place, f"{side} is no multiple of 8, as three poolings need")
        elif name == RATE:
            self._number(place, level, 0, 10)
        else:
            self._whole(place, level, 1, 10**6)

    def _prices(self, environments: Sequence[Environment]) -> Prices | None:
        priced = [one for one in environments if one.hourly is not None]
        table = self._table("prices")
        if not table:
            if priced:
                self._faults.add("[prices]", "hourly prices need currency, checked and source")
            return None
        checked = table.get("checked")
        if type(checked) is not date:
            self._faults.add("prices.checked", f"a date such as 2026-11-28, not {checked!r}")
            checked = date.min
        amounts = {
            key: self._money(f"prices.{key}", table[key])
            for key in ("minimum_s", "step_s", "idle_s")
            if key in table
        }
        if amounts.get("step_s") == 0:
            self._faults.add("prices.step_s", "seconds above 0 that a bill is rounded up to")
        return Prices(
            currency=self._text("prices.currency", table.get("currency")),
            checked=checked,
            source=self._text("prices.source", table.get("source")),
            **{key: value for key, value in amounts.items() if value is not None},
        )

    def _budget(self) -> Budget:
        table = self._table("budget")
        runs = table.get("runs")
        when_short = table.get("when_short", REFUSE)
        return Budget(
            runs=None if runs is None else self._whole("budget.runs", runs, 0, 10**6),
            hours=self._money("budget.hours", table.get("hours")),
            amount=self._money("budget.amount", table.get("amount")),
            expected_s=self._money("budget.expected_s", table.get("expected_s")),
            when_short=self._choice("budget.when_short", when_short, WHEN_SHORT),
        )

    def _settings(
        self, workload: str, environments: Sequence[Environment]
    ) -> dict[str, dict[str, Any]]:
        wanted = {workload, *(one.runner for one in environments)} - {"local"}
        found: dict[str, dict[str, Any]] = {}
        for name in (CLASSIFICATION, REFERRAL, "ssh", "sagemaker", "python"):
            table = self._table(name)
            if table and name != "python" and name not in wanted:
                self._faults.add(f"[{name}]", "nothing in this study uses it")
            if name in _SETTINGS:
                for key, (kind, default) in _SETTINGS[name].items():
                    value = table.get(key, default)
                    if name in wanted and value is _REQUIRED:
                        self._faults.add(f"{name}.{key}", "it is missing")
                    elif key in table:
                        self._kind(f"{name}.{key}", value, kind)
                    found.setdefault(name, {})[key] = value
            elif table:
                self._python(table)
                found[name] = table
        if workload == CLASSIFICATION and CLASSIFICATION in found:
            share = found[CLASSIFICATION]["share_of_images"]
            self._number("classification.share_of_images", share, 0, 1)
            if share == 0:
                self._faults.add("classification.share_of_images", "above 0")
        return {name: table for name, table in found.items() if name in wanted | {"python"}}

    def _python(self, table: Mapping[str, Any]) -> None:
        self._only("python", table, (*TRAINERS, REFERRAL))
        for key, value in table.items():
            self._text(f"python.{key}", value)

    def _kind(self, place: str, value: Any, kind: type) -> None:
        numeric = kind is float and isinstance(value, int)
        if isinstance(value, bool) or not (isinstance(value, kind) or numeric):
            self._faults.add(place, f"{value!r} is not a {_KIND_WORDS[kind]}")

    def _choice(self, place: str, value: Any, known: Sequence[Any]) -> Any:
        if isinstance(value, bool) or value not in known:
            words = ", ".join(map(str, known)) or "nothing"
            self._faults.add(place, f"{value!r} is not one of {words}")
        return value

    def _text(self, place: str, value: Any) -> str:
        if not isinstance(value, str) or not value.strip():
            self._faults.add(place, f"{value!r} is not a text")
            return ""
        return value

    def _whole(self, place: str, value: Any, low: int, high: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            self._faults.add(place, f"{value!r} is not a whole number from {low:,} to {high:,}")
            return low
        return value

    def _number(
        self, place: str, value: Any, low: float, high: float, *, optional: bool = False
    ) -> Any:
        if value is None and optional:
            return None
        right = isinstance(value, int | float) and not isinstance(value, bool)
        if not right or not low <= value <= high:
            self._faults.add(place, f"{value!r} is not a number from {low:,} to {high:,}")
            return low
        return float(value)

    def _money(self, place: str, value: Any) -> Decimal | None:
        """An exact decimal: a text or a whole number; TOML's own fractions are binary."""
        if value is None:
            return None
        try:
            if isinstance(value, bool | float):
                raise InvalidOperation
            amount = Decimal(str(value))
        except InvalidOperation:
            amount = Decimal("NaN")
        if not amount.is_finite() or amount < 0:
            self._faults.add(place, f'{value!r} is not an amount; write it as a text, "0.23"')
            return Decimal(0)
        return amount


_REQUIRED: Final = object()
_KIND_WORDS: Final = {str: "text", float: "number", int: "whole number", dict: "table"}
# Table -> key -> (kind, default).
_SETTINGS: Final[Mapping[str, Mapping[str, tuple[type, Any]]]] = {
    CLASSIFICATION: {
        "share_of_images": (float, 1.0),
        "first_channels": (int, 32),
        "momentum": (float, 0.9),
        "data_seed": (int, 1),
    },
    REFERRAL: {
        "table": (str, ""),
        "drawn_photographs": (int, 0),
        "train_share": (float, 0.7),
        "split_seed": (int, 0),
        "drop_rate_after": (int, 5),
    },
    "ssh": {
        "command": (str, "ssh"),
        "python": (str, _REQUIRED),
        "folder": (str, "dr-study"),
    },
    "sagemaker": {
        "role": (str, _REQUIRED),
        "bucket": (str, _REQUIRED),
        "images": (dict, _REQUIRED),
        "region": (str, _REQUIRED),
        "volume_gb": (int, 30),
        "spot": (int, 0),
    },
}
_TABLES: Final = (
    "study",
    "factor",
    "fixed",
    "environment",
    "prices",
    "budget",
    "monitor",
    "limits",
    "python",
    *_SETTINGS,
)
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "study": (
        "name", "title", "source", "workload", "repetitions", "order_seed", "quality_target",
    ),
    "factor": ("name", "levels"),
    "environment": ("name", "device", "threads", "cores", "hourly", "runner", "where"),
    "prices": ("currency", "checked", "source", "minimum_s", "step_s", "idle_s"),
    "budget": ("runs", "hours", "amount", "expected_s", "when_short"),
    "monitor": ("interval_s",),
    "limits": ("memory_mib", "time_s"),
    **{name: tuple(keys) for name, keys in _SETTINGS.items()},
}  # fmt: skip
