"""One self-contained HTML page about a study, for somebody who was not there.

    >>> page = render(open_plan(out), read_results(plan, out), style=css, facts=facts)

Everything on it is derived from the results in the folder; nothing is measured here. Failed
runs are listed with their reason and are in no mean.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from importlib import resources
from typing import Final

from dr_training.data.faults import DataError
from dr_training.study import figures
from dr_training.study.analysis import (
    Anova,
    Effect,
    Mean,
    Measurement,
    anova,
    main_effects,
    mean_of,
    repetitions_needed,
)
from dr_training.study.costs import BILLED_PARTS, missed_share
from dr_training.study.plan import Plan
from dr_training.study.published import Finding, findings
from dr_training.study.results import NOT_RUN, Row
from dr_training.study.study_file import DATA, ENVIRONMENT, FRAMEWORK, STRATEGY
from inference_image.contract import NOT_A_DEVICE

TRAINING, CPU, LIFE = RESPONSES = ("training", "cpu", "life")
RESPONSE_WORDS: Final[Mapping[str, str]] = {
    TRAINING: "time of training, s",
    CPU: "processor time of training, s",
    LIFE: "billed life of a run, s",
}
_KEYS: Final = {TRAINING: "training_s", CPU: "training_cpu_s", LIFE: "life_s"}
PRECISIONS: Final = (0.01, 0.02, 0.05, 0.10)
_DASH: Final = "\N{EN DASH}"


@dataclass(frozen=True, kw_only=True)
class ScenarioRow:
    """A scenario in the tables; means over its runs that ended well."""

    name: str
    levels: tuple[str, ...]
    planned: int
    failed: int
    training: Mean | None
    cpu: Mean | None
    life: Mean | None
    training_cost: Mean | None
    billed_cost: Mean | None
    accuracy: Mean | None
    reached: int
    to_target: Mean | None
    cost_to_target: Mean | None
    peak_rss_mib: float | None


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """All that a page says, as numbers."""

    scenarios: tuple[ScenarioRow, ...]
    anovas: Mapping[str, Anova]
    effects: Mapping[str, tuple[Effect, ...]]
    findings: tuple[Finding, ...]
    precision: Mapping[float, int]
    use: Mapping[str, Mapping[str, float]]
    parts: Mapping[str, float]
    missed: Decimal | None
    counts: Mapping[str, int]


def analyse(plan: Plan, rows: Sequence[Row]) -> Analysis:
    """Analyse what has been run.

    Raises:
        DataError: no run ended well.
    """
    good = [row for row in rows if row.ok]
    if not good:
        raise DataError(
            "no run of this study has ended well, so there is nothing to analyse; run it with "
            "`dr study run`, and see the reasons in its journal"
        )
    factors = plan.study.factors
    anovas, effects = {}, {}
    for response in RESPONSES:
        measured = measurements(good, response)
        if measured is None:
            continue
        anovas[response] = anova(factors, measured)
        effects[response] = tuple(main_effects(factors, measured, anovas[response]))
    use = _use(plan, good)
    spread = anovas[TRAINING].residual_sd if TRAINING in anovas else None
    return Analysis(
        scenarios=tuple(_scenarios(plan, rows)),
        anovas=anovas,
        effects=effects,
        findings=tuple(
            findings(
                anovas[TRAINING],
                effects[TRAINING],
                [(name, sum(row.values()) / len(row)) for name, row in use.items()],
            )
            if TRAINING in anovas
            else ()
        ),
        precision=(
            {}
            if spread is None
            else {share: repetitions_needed(spread, precision=share) for share in PRECISIONS}
        ),
        use=use,
        parts=_parts(good),
        missed=_missed(good),
        counts={
            status: sum(row.status == status for row in rows)
            for status in dict.fromkeys(row.status for row in rows)
        },
    )


def measurements(rows: Sequence[Row], response: str) -> list[Measurement] | None:
    """Levels and value of each run; None where a value is 0, which has no logarithm."""
    values = [float(row.result[_KEYS[response]]) for row in rows]
    if not all(value > 0 for value in values):
        return None
    return [
        Measurement(levels=row.run.levels, value=value)
        for row, value in zip(rows, values, strict=True)
    ]


def render(plan: Plan, rows: Sequence[Row], *, style: str, facts: Mapping[str, str]) -> str:
    """The page as text.

    Args:
        style: CSS of the project's pages.
        facts: how it was made, in words: `command`, `commit`, `created` …
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    analysis = analyse(plan, rows)
    study = plan.study
    good = [row for row in rows if row.ok]
    measured = measurements(good, TRAINING) or []
    shown = [one for one in analysis.scenarios if one.training is not None]
    costs = [float(one.billed_cost.mean) for one in shown if one.billed_cost]
    currency = study.prices.currency if study.prices else ""
    svg = {
        "bars_svg": figures.bars_with_cost(
            [one.name for one in shown],
            [one.training.mean for one in shown if one.training],
            [_half(one.training) for one in shown if one.training],
            costs if len(costs) == len(shown) else None,
            unit=RESPONSE_WORDS[TRAINING],
            currency=currency,
        ),
        "effects_svg": figures.main_effects_figure(
            study.factors, measured, unit=RESPONSE_WORDS[TRAINING]
        ),
        "interactions_svg": (
            figures.interactions_figure(study.factors, measured, unit=RESPONSE_WORDS[TRAINING])
            if len(study.factors) > 1
            else ""
        ),
        "use_svg": figures.use_figure(analysis.use) if analysis.use else "",
    }
    template = resources.files("dr_training.study").joinpath("templates/study.html.j2")
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    return environment.from_string(template.read_text("utf-8")).render(
        study=study,
        plan=plan,
        analysis=analysis,
        style=Markup(style),  # noqa: S704 - our own file
        facts=facts,
        failed=[row for row in rows if not row.ok and row.status != NOT_RUN],
        not_run=analysis.counts.get(NOT_RUN, 0),
        stand_ins=stand_ins(good),
        machines=machines(good),
        versions=versions(good),
        images=_images(good),
        load=_load(good),
        monitor=_monitor_cost(good),
        reports=_reported(good),
        currency=currency,
        response_words=RESPONSE_WORDS,
        left_out=left_out_words,
        factor_names=[factor.name for factor in study.factors],
        not_a_device=NOT_A_DEVICE,
        number=format_number,
        dash=_DASH,
        **{name: Markup(text) for name, text in svg.items()},  # noqa: S704 - matplotlib's
    )


def format_number(value: float | Decimal | None) -> str:
    """Three significant digits without powers of ten; an en dash for nothing."""
    if value is None:
        return _DASH
    number = float(value)
    if number == 0:
        return "0"
    digits = max(0, 2 - int(Decimal(repr(abs(number))).adjusted()))
    return f"{number:,.{min(digits, 9)}f}"


def left_out_words(table: Anova) -> str:
    """Terms that the table lacks: those of two factors by name, the others by their number."""
    pairs = [text for text in table.left_out if text.count(" x ") < 2]
    higher = len(table.left_out) - len(pairs)
    if higher:
        pairs.append(f"{higher} interaction{'s' if higher > 1 else ''} of three or more factors")
    return "; ".join(pairs)


def stand_ins(rows: Sequence[Row]) -> tuple[str, ...]:
    """Data sets that were drawn here instead of read, for the label of every table."""
    return tuple(
        sorted(
            {
                str(row.run.levels.get(DATA, "the data"))
                for row in rows
                if row.result["worker"].get("stand_in")
            }
        )
    )


def machines(rows: Sequence[Row]) -> list[str]:
    """The machines of the runs, in words."""
    return sorted(
        {
            "{processor}, {cores} cores, {memory_gib} GiB, {system}, Python {python}".format(
                **row.result["machine"]
            )
            for row in rows
            if "machine" in row.result
        }
    )


def versions(rows: Sequence[Row]) -> list[str]:
    """Versions of the frameworks."""
    return sorted(
        {
            ", ".join(f"{name} {text}" for name, text in row.result["worker"]["versions"].items())
            for row in rows
            if "versions" in row.result["worker"]
        }
    )


def _images(rows: Sequence[Row]) -> list[str]:
    found = {}
    for row in rows:
        worker = row.result["worker"]
        if "train_images" in worker:
            name = str(row.run.levels.get(DATA, "images"))
            train, test = worker["train_images"], worker["test_images"]
            found[name] = f"{name}: {train:,} to train on, {test:,} to test on"
    return [found[name] for name in sorted(found)]


def _load(rows: Sequence[Row]) -> str:
    loads = sorted(row.result["machine"]["load_1min"] for row in rows if "machine" in row.result)
    cores = max(
        (row.result["machine"]["cores"] for row in rows if "machine" in row.result), default=0
    )
    if not loads:
        return ""
    middle = loads[len(loads) // 2]
    text = f"Load of the machine (1 min) at the ends of the runs: median {middle:g}, "
    text += f"{loads[0]:g} to {loads[-1]:g}, on {cores} cores."
    if middle > cores + 1:
        text += (
            " Other programs competed for the processor: elapsed times are longer and spread "
            "wider than on a quiet machine; the processor times are less affected."
        )
    return text


def _monitor_cost(rows: Sequence[Row]) -> str:
    shares = sorted(row.result["monitor_cpu_percent"] for row in rows)
    return (
        f"median {shares[len(shares) // 2]:.2f} %, at most {shares[-1]:.2f} % of a core"
        if shares
        else _DASH
    )


def _reported(rows: Sequence[Row]) -> str:
    """Which of the figures that not every machine reports there were."""
    words = {"gpu_percent": "GPU use", "energy_j": "energy of the processor"}
    there = [
        text
        for name, text in words.items()
        if any(row.monitor.get(name) is not None for row in rows)
    ]
    absent = [text for text in words.values() if text not in there]
    return "; ".join(
        part
        for part in (
            f"reported: {', '.join(there)}" if there else "",
            f"not reported by the machine, and left blank: {', '.join(absent)}" if absent else "",
        )
        if part
    )


def _scenarios(plan: Plan, rows: Sequence[Row]) -> list[ScenarioRow]:
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(row.run.scenario, []).append(row)
    target = plan.study.quality_target
    found = []
    for name in sorted(by_name, key=lambda scenario: int(scenario[1:])):
        of_it = by_name[name]
        good = [row for row in of_it if row.ok]
        times = [] if target is None else [row.time_to(target) for row in good]
        reached = [(row, t) for row, t in zip(good, times, strict=False) if t is not None]
        # A mean over those that happened to arrive would be too good.
        all_there = bool(good) and len(reached) == len(good)
        accuracies = [row.accuracy for row in good if row.accuracy is not None]
        found.append(
            ScenarioRow(
                name=name,
                levels=tuple(str(value) for value in of_it[0].run.levels.values()),
                planned=len(of_it),
                failed=sum(not row.ok and row.status != NOT_RUN for row in of_it),
                training=_mean([row.training_s for row in good]),
                cpu=_mean([float(row.result["training_cpu_s"]) for row in good]),
                life=_mean([row.life_s for row in good]),
                training_cost=_mean([float(row.cost.training) for row in good if row.cost]),
                billed_cost=_mean([float(row.cost.billed) for row in good if row.cost]),
                accuracy=_mean(accuracies),
                reached=len(reached),
                to_target=_mean([t for _, t in reached]) if all_there else None,
                cost_to_target=(
                    _mean(
                        [
                            float(row.cost.training) * t / row.training_s
                            for row, t in reached
                            if row.cost
                        ]
                    )
                    if all_there
                    else None
                ),
                peak_rss_mib=max((row.result["peak_rss_mib"] for row in good), default=None),
            )
        )
    return found


def _mean(values: Sequence[float]) -> Mean | None:
    return mean_of(values) if values else None


def _half(mean: Mean) -> float:
    return 0.0 if mean.high is None else mean.high - mean.mean


def _use(plan: Plan, rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Processor use while training, by framework (or strategy) and environment."""
    names = {factor.name for factor in plan.study.factors}
    by = FRAMEWORK if FRAMEWORK in names else STRATEGY if STRATEGY in names else None
    if by is None:
        return {}
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if row.cpu_percent is None:
            continue
        environment = str(plan.parameters(row.run)[ENVIRONMENT])
        group = found.setdefault(str(row.run.levels[by]), {})
        group.setdefault(environment, []).append(row.cpu_percent)
    order = next(factor.levels for factor in plan.study.factors if factor.name == by)
    return {
        str(level): {name: mean_of(v).mean for name, v in sorted(found[str(level)].items())}
        for level in order
        if str(level) in found
    }


def _parts(rows: Sequence[Row]) -> dict[str, float]:
    """Mean seconds of each part of a run's life, where the run says them."""
    known = [row for row in rows if all(part in row.result for part in BILLED_PARTS)]
    return {
        part: mean_of([float(row.result[part]) for row in known]).mean
        for part in BILLED_PARTS
        if known
    }


def _missed(rows: Sequence[Row]) -> Decimal | None:
    costs = [row.cost for row in rows if row.cost is not None]
    billed = sum((one.billed for one in costs), Decimal(0))
    if not billed:
        return None
    return missed_share(sum((one.training for one in costs), Decimal(0)), billed)
