"""The runs of a study in the order in which they are made, as `plan.csv`.

    >>> plan = make_plan(read_study(Path("methodology")))
    >>> len(plan.runs), plan.runs[0].name
    (240, 'C34-r5')

The order is random, by the study's seed: what changes slowly on a machine (its temperature, its
neighbours) then falls on all scenarios alike, and not on those that happen to come last.
"""

import csv
import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path
from typing import Any, Final

import numpy as np

from dr_training.data.faults import DataError
from dr_training.data.table import write_whole
from dr_training.study.costs import price_of
from dr_training.study.design import Design, fractions, full
from dr_training.study.study_file import (
    CLASSIFICATION,
    ENVIRONMENT,
    FRACTION,
    Level,
    Study,
    read_study,
)

PLAN: Final = "plan.csv"
COPY: Final = "study.toml"
DESIGN: Final = "design.json"
_FIRST_COLUMNS: Final = ("order", "run", "scenario", "repetition", "seed")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training: its scenario C1 …, repetition (from 1), seed and the levels of its factors."""

    order: int
    scenario: str
    repetition: int
    seed: int
    levels: Mapping[str, Level]

    @property
    def name(self) -> str:
        """`C17-r3`."""
        return f"{self.scenario}-r{self.repetition}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A study, the scenarios of it that are run, and all runs in their order."""

    study: Study
    design: Design
    runs: tuple[Run, ...]

    def parameters(self, run: Run) -> dict[str, Level]:
        """Everything that a run is told, fixed and varied."""
        return {**self.study.fixed, **run.levels}


def make_plan(study: Study) -> Plan:
    """Plan a study within its budget.

    The full factorial where the budget allows it; else, with `when_short = "fraction"`, the
    largest regular fraction with all repetitions that it allows.

    Raises:
        DataError: the budget is too short, and the file does not allow a fraction or no
            fraction is small enough.
    """
    most = affordable_runs(study)
    design = full(study.factors)
    needed = len(design.kept) * study.repetitions
    # Nothing at all is a wish of its own: the plan is made, and `run` runs none of it.
    if most is not None and 0 < most < needed:
        shortage = (
            f"the study {study.name} has {needed:,} runs ({len(design.kept)} scenarios, "
            f"{study.repetitions} repetitions); its budget allows {most:,}"
        )
        if study.budget.when_short != FRACTION:
            raise DataError(
                f"{shortage}: raise [budget], lower the repetitions, or allow a fraction of the "
                f'scenarios with when_short = "{FRACTION}"'
            )
        fitting = [
            one for one in fractions(study.factors) if len(one.kept) * study.repetitions <= most
        ]
        if not fitting:
            raise DataError(
                f"{shortage}, and no regular fraction with all repetitions is as small as that"
            )
        design = fitting[0]
    return Plan(study=study, design=design, runs=tuple(_runs(study, design)))


def affordable_runs(study: Study) -> int | None:
    """Runs that the budget allows, by the expected length of one; None is no limit.

    Raises:
        DataError: hours or money are limited and nothing says how long a run takes.
    """
    budget = study.budget
    limits = [] if budget.runs is None else [budget.runs]
    for name, limit in (("hours", budget.hours), ("amount", budget.amount)):
        if limit is None:
            continue
        if limit == 0:
            return 0
        if budget.expected_s is None:
            continue  # `run` stops when it is used up
        # Seconds that the limit pays for; one division, so that 1 h is six times 600 s.
        paid_s = 3600 * limit
        each_s = max(budget.expected_s, Decimal(1))
        if name == "amount":
            each_s *= _mean_price(study)
        if each_s:
            limits.append(int((paid_s / each_s).to_integral_value(ROUND_FLOOR)))
    return min(limits, default=None)


def write_plan(plan: Plan, out: Path) -> list[Path]:
    """Write `plan.csv`, the study file and `design.json` into a folder.

    Raises:
        DataError: the folder holds results of another study or plan.
    """
    content = _csv(plan)
    if (out / PLAN).exists() and (out / PLAN).read_text("utf-8") != content:
        raise DataError(f"{out} holds another plan; choose another folder with --out")
    if (out / COPY).exists() and (out / COPY).read_text("utf-8") != plan.study.text:
        raise DataError(f"{out} holds a plan of another study file; choose another --out")
    design = {
        "share": str(plan.design.share),
        "scenarios": len(plan.design.kept),
        "runs": len(plan.runs),
        "fraction": list(plan.design.words),
        "confounded": [list(pair) for pair in plan.design.confounded],
        "plan_sha256": hashlib.sha256(content.encode()).hexdigest(),
    }
    write_whole(out / COPY, plan.study.text.encode())
    write_whole(out / DESIGN, (json.dumps(design, indent=1) + "\n").encode())
    write_whole(out / PLAN, content.encode())
    return [out / PLAN, out / COPY, out / DESIGN]


def open_plan(out: Path) -> Plan:
    """The plan that `write_plan` wrote.

    Raises:
        DataError: there is none, or it is not what its study file gives.
    """
    if not (out / COPY).is_file() or not (out / PLAN).is_file():
        raise DataError(f"{out} holds no plan; make one with `dr study plan STUDY --out {out}`")
    plan = make_plan(read_study(out / COPY))
    if (out / PLAN).read_text("utf-8") != _csv(plan):
        raise DataError(
            f"{out / PLAN} is not the plan of {out / COPY}: one of them was changed; plan again "
            "into another folder"
        )
    return plan


def specification(
    plan: Plan, run: Run, *, data_dir: Path | None, records: Path | None = None
) -> dict[str, Any]:
    """What a run's supervisor and worker read, as JSON has it."""
    study = plan.study
    parameters = plan.parameters(run)
    environment = study.environment(str(parameters[ENVIRONMENT]))
    return {
        "study": study.name,
        "workload": study.workload,
        "run": run.name,
        "scenario": run.scenario,
        "repetition": run.repetition,
        "seed": run.seed,
        "parameters": parameters,
        "environment": {
            "name": environment.name,
            "device": environment.device,
            "threads": environment.threads,
            "cores": environment.cores,
        },
        "data_dir": None if data_dir is None else str(data_dir.resolve()),
        "records": None if records is None else str(records.resolve()),
        "monitor_interval_s": study.monitor_interval_s,
        "memory_limit_mib": study.memory_limit_mib,
        "time_limit_s": study.time_limit_s,
        **study.settings.get(study.workload, {}),
    }


def uses_images(study: Study) -> bool:
    """Whether its runs read MNIST and CIFAR-10."""
    return study.workload == CLASSIFICATION


def describe(plan: Plan) -> list[str]:
    """What the plan is, in sentences."""
    study, design = plan.study, plan.design
    levels = " x ".join(f"{len(factor.levels)} {factor.name}" for factor in study.factors)
    runs = f"{study.repetitions} repetitions, {len(plan.runs)} runs"
    lines = [f"{len(design.kept)} scenarios ({levels}), {runs}, order by seed {study.order_seed}"]
    if not design.complete:
        lines.append(
            f"a fraction, {design.share} of all scenarios: those with "
            f"{' and '.join(design.words)} (levels counted from 0)"
        )
        lines += [f"confounded: {first} with {second}" for first, second in design.confounded]
    if affordable_runs(study) == 0:
        lines.append("the budget is 0: `dr study run` will run nothing")
    return lines


def _runs(study: Study, design: Design) -> list[Run]:
    scenarios = study.scenarios()
    rng = np.random.default_rng(study.order_seed)
    pairs = [(index, rep) for index in design.kept for rep in range(1, study.repetitions + 1)]
    return [
        Run(
            order=order,
            scenario=f"C{pairs[place][0] + 1}",
            repetition=pairs[place][1],
            # The same in every scenario: repetition 3 starts from the same weights everywhere.
            seed=study.order_seed * 1000 + pairs[place][1],
            levels=scenarios[pairs[place][0]],
        )
        for order, place in enumerate(rng.permutation(len(pairs)), start=1)
    ]


def _csv(plan: Plan) -> str:
    names = [factor.name for factor in plan.study.factors]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*_FIRST_COLUMNS, *names])
    for run in plan.runs:
        cells = [run.order, run.name, run.scenario, run.repetition, run.seed]
        writer.writerow([*cells, *(run.levels[name] for name in names)])
    return stream.getvalue()


def _mean_price(study: Study) -> Decimal:
    """Mean hourly price over the scenarios; a missing price is an error, not 0."""
    fixed = study.fixed.get(ENVIRONMENT)
    levels = next(
        (factor.levels for factor in study.factors if factor.name == ENVIRONMENT), (fixed,)
    )
    prices = [price_of(study, str(level)) for level in levels]
    return sum(prices, Decimal(0)) / len(prices)
