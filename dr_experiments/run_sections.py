"""Sections of the report: tables and figures of recorded runs, in words of its language.

    >>> sections(groups, month=month, requests=20_000, words=Words("en"))

Pure functions over the records. Every number has its unit in the column's head and its n in the
row; failures are in a table of their own and in no other.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from typing import Any, Final

from dr_experiments import run_figures
from dr_experiments.cold_start import COLD_PHASES
from dr_experiments.deployment_cost import Bill
from dr_experiments.languages import Words
from dr_experiments.measured import Measured, precedence
from dr_experiments.months import ROUND_TRIP, Month
from dr_experiments.pricing import NotedPrices, Price, UnknownPriceError
from dr_experiments.run_groups import Group, interleaved
from dr_experiments.statistics import (
    BOOTSTRAP_DRAWS,
    Interval,
    Summary,
    minimum_n,
    percentile,
    ratio_of_means,
    summarise,
    summarise_durations,
)

_NUMBER: Final = re.compile(r"(\d+)")
_DASH: Final = "\N{EN DASH}"
_DAGGER: Final = "\N{DAGGER}"
_MOST_SERIES: Final = 8
# More lines than this lie too near to each other to be followed.
_MOST_CURVES: Final = 6
# Every figure that a page can have: what else lies among them was written by somebody else.
FIGURES: Final = (
    "latency", "cold-start", *(f"load-{number}" for number in range(1, _MOST_SERIES + 1)),
    "cost-latency", "break-even",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell; `small` stands below the text."""

    text: str
    small: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells; the first `text_columns` are words, the others numbers."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    text_columns: int = 1


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure with the stem of its file, of `FIGURES`; `draw` makes it, as matplotlib's figure."""

    name: str
    draw: Callable[[], Any]
    caption: str

    def __post_init__(self) -> None:
        if self.name not in FIGURES:
            raise ValueError(f"a figure is one of {', '.join(FIGURES)}; got {self.name!r}")


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading with what stands below it; `notes` come last."""

    title: str
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()
    notes: tuple[str, ...] = ()


def sections(
    groups: Sequence[Group], *, month: Month, requests: int, words: Words
) -> tuple[Section, ...]:
    """All sections that the records allow, in the order of the page.

    Args:
        requests: per month, for the costs.
    """
    names = {id(group): label(group, words) for group in groups}
    # A sweep measures in an order drawn from its seed, in which nobody finds anything.
    groups = sorted(groups, key=lambda group: _natural(names[id(group)]))
    single = [g for g in groups if g.warm_s and not g.is_load]
    loads = [g for g in groups if g.is_load]
    found = [
        _latency(single, words, names),
        _cold([g for g in groups if g.cold_s], words, names),
        _load(loads, words, names),
        _speed(single, words, names),
        *_costs(_priced_groups(groups), words, names, month=month, requests=requests),
        _failures(groups, words, names),
        _method(words),
    ]
    return tuple(section for section in found if section is not None)


def _natural(name: str) -> list[tuple[int, str]]:
    """A key by which 512 comes before 1024."""
    return [
        (int(part), "") if number % 2 else (-1, part)
        for number, part in enumerate(_NUMBER.split(name))
    ]


def label(group: Group, words: Words) -> str:
    """The group's name for people: as short as it can be without being another one's."""
    scenario = words.named("scenario", group.scenario)
    said = []
    if group.mixed:
        said.append(platform_name(group.platform, words))
    if group.same_scenario:
        said.append(words("in_run", scenario=scenario, run=group.run_id))
    elif group.same_name:
        said.append(scenario)
    return f"{group.configuration} ({', '.join(said)})" if said else group.configuration


def platform_name(platform: str | None, words: Words) -> str:
    """AWS, the local AWS, or that nobody knows."""
    return words("platform_unknown") if platform is None else words.named("platform", platform)


def prices_used(groups: Sequence[Group], *, month: Month, requests: int) -> list[Price]:
    """The rows of the price table that the costs came from, by name."""
    noted = NotedPrices(rows=month.prices.rows)
    watched = replace(month, prices=noted)
    candidates = [one for g in _priced_groups(groups) if (one := g.measured)]
    priced, _ = run_figures.with_prices(candidates, month, requests)
    for one in priced:
        watched.bill(one, requests)
    return sorted(noted.used, key=lambda row: row.name)


def _priced_groups(groups: Sequence[Group]) -> list[Group]:
    """Those of one scenario of each configuration: the calmest, and before others the warm one.

    The choice must not depend on the page's language, in whose order the groups stand.
    """
    able = [group for group in groups if group.warm_s and not group.is_offline]
    chosen: dict[str, tuple[int, bool, str]] = {}
    for group in able:
        rank = precedence(group.scenario)
        chosen[group.configuration] = min(rank, chosen.get(group.configuration, rank))
    return [group for group in able if precedence(group.scenario) == chosen[group.configuration]]


def _latency(groups: Sequence[Group], words: Words, names: dict[int, str]) -> Section | None:
    if not groups:
        return None
    rows, few = [], False
    scale = words(f"caption.{run_figures.box_scale(groups)}")
    for group in groups:
        seconds = group.warm_s
        found, container = (summarise_durations(s) for s in (seconds, group.container_s))
        percentiles = [(p, percentile(seconds, p)) for p in (50, 95, 99)]
        few = few or any(len(seconds) < minimum_n(p) for p, _ in percentiles)
        rows.append(
            (
                _name(group, words, names),
                Cell(text=words.integer(found.n)),
                Cell(
                    text=words.integer(len(group.failed)),
                    small=words("column.of", n=words.integer(len(group.records))),
                ),
                _mean_ms(found, words),
                Cell(text=words.milliseconds(found.sd)),
                *(_percentile(p, interval, words) for p, interval in percentiles),
                _mean_ms(container, words),
            )
        )
    return Section(
        title=words("head.latency"),
        tables=(
            Table(
                caption=words("caption.latency"),
                head=_heads(
                    words, "configuration", "n", "failed", "mean", "sd", "p50", "p95", "p99",
                    "container",
                ),
                rows=tuple(rows),
            ),
        ),
        pictures=(
            Picture(
                name="latency",
                draw=partial(run_figures.box_figure, groups, words, names),
                caption=words("caption.boxes", scale=scale),
            ),
        ),
        notes=(_extreme(words),) if few else (),
    )  # fmt: skip


def _cold(groups: Sequence[Group], words: Words, names: dict[int, str]) -> Section | None:
    if not groups:
        return None
    phases_of = {id(group): group.phases_s() for group in groups}
    split = [group for group in groups if phases_of[id(group)][0]]
    shown = [p for p in COLD_PHASES if any(p in phases_of[id(group)][1] for group in split)]
    rows = []
    for group in groups:
        found = summarise_durations(group.cold_s)
        n, phases, estimated = phases_of[id(group)]
        cells = [
            _name(group, words, names),
            Cell(
                text=words.integer(found.n),
                small=words("column.split", n=words.integer(n)) if n != found.n else "",
            ),
            _mean_s(found, words),
        ]
        for phase in shown:
            if phase not in phases:
                cells.append(Cell(text=_DASH))
                continue
            if phase in estimated:
                cell = _mean_s(summarise(phases[phase]), words)
                cells.append(replace(cell, text=f"≈ {cell.text}"))
            else:
                cells.append(_mean_s(summarise_durations(phases[phase]), words))
        rows.append(tuple(cells))
    table = Table(
        caption=words("caption.cold"),
        head=(
            *_heads(words, "configuration", "n", "fresh"),
            *(words.named("phase", phase) for phase in shown),
        ),
        rows=tuple(rows),
    )
    if not split:
        return Section(
            title=words("head.cold"), tables=(table,), notes=(words("caption.cold_none"),)
        )
    picture = Picture(
        name="cold-start",
        draw=partial(run_figures.phase_figure, split, words, names),
        caption=words("caption.phases"),
    )
    return Section(title=words("head.cold"), tables=(table,), pictures=(picture,))


def _load(groups: Sequence[Group], words: Words, names: dict[int, str]) -> Section | None:
    if not groups:
        return None
    rows, pictures, few = [], [], False
    notes: list[str] = []
    for number, group in enumerate(groups, start=1):
        waits = group.waits_s
        length = max(r.start_offset_s + _took(r) for r in group.records)
        cells = [
            _name(group, words, names),
            Cell(text=words.integer(len(waits))),
            Cell(
                text=words.integer(len(group.failed)),
                small=words("column.of", n=words.integer(len(group.records))),
            ),
            Cell(text=words.number(length, 1)),
            Cell(
                text=words.number((len(waits) + len(group.cold)) / length, 1) if length else _DASH
            ),
        ]
        if group.is_offline:
            cells += [Cell(text=_DASH)] * 4
            notes.append(f"{names[id(group)]}: {words('caption.offline')}")
        elif waits:
            cells.append(_mean_ms(summarise_durations(waits), words))
            few = few or len(waits) < minimum_n(99)
            cells += [_percentile(p, percentile(waits, p), words) for p in (50, 95, 99)]
        else:
            cells += [Cell(text=_DASH)] * 4
        rows.append(tuple(cells))
        if number <= _MOST_SERIES:
            caption = words(
                "caption.series", name=names[id(group)], n=words.integer(len(waits)),
                failed=words.integer(len(group.failed)),
            )  # fmt: skip
            pictures.append(
                Picture(
                    name=f"load-{number}",
                    draw=partial(run_figures.series_figure, group, words),
                    caption=caption,
                )
            )
    return Section(
        title=words("head.load"),
        tables=(
            Table(
                caption=words("caption.load"),
                head=_heads(
                    words,
                    "configuration",
                    "n",
                    "failed",
                    "duration",
                    "rate",
                    "mean_wait",
                    "p50",
                    "p95",
                    "p99",
                ),
                rows=tuple(rows),
            ),
        ),
        pictures=tuple(pictures),
        notes=(*notes, *([_extreme(words)] if few else [])),
    )


def _speed(groups: Sequence[Group], words: Words, names: dict[int, str]) -> Section | None:
    rows = []
    # A quotient of times on two platforms would compare machines and not configurations.
    for scenario, platform in dict.fromkeys((g.scenario, g.platform) for g in groups):
        alike = [g for g in groups if (g.scenario, g.platform) == (scenario, platform)]
        slowest = max(alike, key=lambda group: summarise(group.warm_s).mean)
        for group in alike:
            if group is slowest:
                continue
            paired = interleaved(slowest, group)
            ratio = ratio_of_means(slowest.warm_s, group.warm_s, paired=paired)
            rows.append(
                (
                    Cell(text=names[id(slowest)]), Cell(text=names[id(group)]),
                    Cell(text=words("caption.paired" if paired else "caption.unpaired")),
                    Cell(text=" / ".join(words.integer(n) for n in ratio.n)),
                    _ratio(ratio, words),
                )
            )  # fmt: skip
    if not rows:
        return None
    table = Table(
        caption=words("caption.speed"),
        head=_heads(words, "slower", "faster", "comparison", "n", "ratio"),
        rows=tuple(rows),
        text_columns=3,
    )
    return Section(title=words("head.speed"), tables=(table,))


def _costs(
    groups: Sequence[Group], words: Words, names: dict[int, str], *, month: Month, requests: int
) -> Iterable[Section]:
    name_of: dict[int, str] = {}
    candidates = []
    for group in groups:
        one = group.measured
        if one is not None:
            candidates.append(one)
            name_of[id(one)] = names[id(group)]
    priced, missing = run_figures.with_prices(candidates, month, requests)
    notes = [
        words("caption.no_price", name=name_of[id(one)], reason=_reason(error, words))
        for one, error in missing
    ]
    if not priced:
        notes.insert(0, words("caption.no_costs", region=month.region))
        yield Section(title=words("head.cost"), notes=tuple(notes))
        return
    rows = []
    for one in priced:
        bill = month.bill(one, requests)
        parts = ", ".join(
            f"{words.named('part', name)} {words.usd(usd)}" for name, usd in bill.parts.items()
        )
        rows.append(
            (
                Cell(text=name_of[id(one)]), Cell(text=parts),
                Cell(text=words.integer(one.container.n)),
                _usd(bill, [month.bill(one, requests, side=s) for s in (-1, 1)], words),
                _usd(
                    month.bill(one, requests, basis=ROUND_TRIP),
                    [month.bill(one, requests, side=s, basis=ROUND_TRIP) for s in (-1, 1)],
                    words,
                ),
            )
        )  # fmt: skip
    labels = [name_of[id(one)] for one in priced]
    many = words.integer(requests)
    table = Table(
        caption=words(
            "caption.cost", requests=many, hours=words.integer(float(month.hours)),
            region=month.region,
        ),
        head=_heads(words, "configuration", "parts", "n", "usd_container", "usd_round_trip"),
        rows=tuple(rows),
        text_columns=2,
    )  # fmt: skip
    yield Section(
        title=words("head.cost"),
        tables=(table,),
        pictures=(
            Picture(
                name="cost-latency",
                draw=partial(run_figures.cost_figure, priced, month, requests, words, labels),
                caption=words(
                    "caption.scatter",
                    requests=many,
                    scale=words(f"caption.{run_figures.cost_scale(priced)}"),
                ),
            ),
        ),
        notes=tuple(notes),
    )
    yield _even(priced, words, name_of, month=month, requests=requests)


def _reason(error: UnknownPriceError, words: Words) -> str:
    """What is missing for a price, in the page's language."""
    row = " ".join(part for part in (error.item, error.sku) if part)
    return words(
        f"reason.{error.kind}",
        item=item_name(error.item or "", error.sku, words),
        row=row,
        region=error.region or "",
    )


def item_name(item: str, sku: str | None, words: Words) -> str:
    """What is sold, with its size, instance type or architecture."""
    name = words.named("item", item)
    if sku is None:
        return name
    return f"{name}, {sku} MiB" if sku.isdecimal() else f"{name}, {sku}"


def _curves(priced: Sequence[Measured], month: Month, requests: int) -> list[Measured]:
    """What is drawn: all, or where they are many the cheapest of each mode, model and platform."""
    if len(priced) <= _MOST_CURVES:
        return list(priced)
    cheapest: dict[tuple[str | None, ...], Measured] = {}
    for one in sorted(priced, key=lambda one: month.bill(one, requests).usd):
        mode = one.setup.mode if one.setup else None
        cheapest.setdefault((mode, one.model_id, one.platform), one)
    kept = {id(one) for one in cheapest.values()}
    return [one for one in priced if id(one) in kept]


def _even(
    priced: Sequence[Measured],
    words: Words,
    name_of: dict[int, str],
    *,
    month: Month,
    requests: int,
) -> Section:
    rows = []
    for crossing in month.crossings(priced):
        low, high = (
            words("caption.never") if n is None else words.integer(n)
            for n in (crossing.at.low, crossing.at.high)
        )
        at = crossing.at.requests
        rows.append(
            (
                Cell(text=name_of[id(crossing.first)]),
                Cell(text=name_of[id(crossing.second)]),
                Cell(
                    text=words("caption.never") if at is None else words.integer(at),
                    small=low if low == high else words("to", low=low, high=high),
                ),
                Cell(
                    text=" / ".join(
                        words.integer(one.container.n) for one in (crossing.first, crossing.second)
                    )
                ),
            )
        )
    drawn = _curves(priced, month, requests)
    caption = words("caption.curves")
    if len(drawn) < len(priced):
        fewer = words(
            "caption.curves_cheapest",
            requests=words.integer(requests),
            drawn=words.integer(len(drawn)),
            all=words.integer(len(priced)),
        )
        caption = f"{caption} {fewer}"
    picture = Picture(
        name="break-even",
        draw=partial(
            run_figures.curve_figure, drawn, month, words, [name_of[id(one)] for one in drawn]
        ),
        caption=caption,
    )
    if not rows:
        return Section(
            title=words("head.even"), pictures=(picture,), notes=(words("caption.even_none"),)
        )
    table = Table(
        caption=words("caption.even"),
        head=_heads(words, "cheap_at_rest", "cheap_later", "requests_per_month", "n"),
        rows=tuple(rows),
        text_columns=2,
    )
    return Section(title=words("head.even"), tables=(table,), pictures=(picture,))


def _failures(groups: Sequence[Group], words: Words, names: dict[int, str]) -> Section:
    rows = tuple(
        (
            Cell(text=names[id(group)]),
            Cell(text=reason),
            Cell(
                text=words.integer(count),
                small=words("column.of", n=words.integer(len(group.records))),
            ),
        )
        for group in groups
        for reason, count in group.failures
    )
    if not rows:
        total = words.integer(sum(len(group.records) for group in groups))
        return Section(
            title=words("head.failures"), notes=(words("caption.failures_none", requests=total),)
        )
    table = Table(
        caption=words("caption.failures"),
        head=_heads(words, "configuration", "reason", "count"),
        rows=rows,
        text_columns=2,
    )
    return Section(title=words("head.failures"), tables=(table,))


def _method(words: Words) -> Section:
    minimum = {f"p{p}": words.integer(minimum_n(p)) for p in (50, 95, 99)}
    return Section(
        title=words("head.method"),
        notes=(
            words("method.clock"),
            words("method.outliers"),
            words("method.mean"),
            words("method.bootstrap", draws=words.integer(BOOTSTRAP_DRAWS)),
            words("method.minimum", **minimum),
            words("method.dependent"),
            words("method.month"),
        ),
    )


def _name(group: Group, words: Words, names: dict[int, str]) -> Cell:
    """The label, with the scenario below where the label does not say it."""
    said = group.same_name or group.same_scenario
    small = "" if said else words.named("scenario", group.scenario)
    return Cell(text=names[id(group)], small=small)


def _heads(words: Words, *keys: str) -> tuple[str, ...]:
    return tuple(words(f"column.{key}") for key in keys)


def _extreme(words: Words) -> str:
    needed = "; ".join(f"p{p}: {minimum_n(p)}" for p in (50, 95, 99))
    return words("caption.extreme", minimum=needed)


def _mean_ms(found: Summary, words: Words) -> Cell:
    return Cell(
        text=words.milliseconds(found.mean),
        small=_bounds_ms(found.mean_low, found.mean_high, words),
    )


def _mean_s(found: Summary, words: Words) -> Cell:
    low, high = found.mean_low, found.mean_high
    text = words.number(found.mean, 2)
    if low is None or high is None:
        return Cell(text=text)
    return Cell(text=text, small=words("to", low=words.number(low, 2), high=words.number(high, 2)))


def _percentile(percent: float, found: Interval, words: Words) -> Cell:
    mark = _DAGGER if found.n[0] < minimum_n(percent) else ""
    return Cell(
        text=words.milliseconds(found.value) + mark, small=_bounds_ms(found.low, found.high, words)
    )


def _bounds_ms(low: float | None, high: float | None, words: Words) -> str:
    if low is None or high is None:
        return ""
    return words("to", low=words.milliseconds(low), high=words.milliseconds(high))


def _ratio(found: Interval, words: Words) -> Cell:
    text = words.number(found.value, 2)
    if found.low is None or found.high is None:
        return Cell(text=text)
    low, high = words.number(found.low, 2), words.number(found.high, 2)
    return Cell(text=text, small=words("to", low=low, high=high))


def _usd(bill: Bill, bounds: Sequence[Bill], words: Words) -> Cell:
    low, high = (words.usd(Decimal(one.usd)) for one in bounds)
    small = "" if low == high else words("to", low=low, high=high)
    return Cell(text=words.usd(bill.usd), small=small)


def _took(record: Any) -> float:
    return float(record.fullLatency or record.failed_after_s or 0)
