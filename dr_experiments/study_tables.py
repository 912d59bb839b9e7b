"""The study's measurements as Markdown: tables, errata and what changes in the conclusions.

    >>> replace_block(page, study_markdown(study, prices=PriceTable.load()))

Pure functions over `dr_experiments.study`; the same measurements give the same text.
"""

import itertools
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Final

from dr_experiments.pricing import PriceTable, UnknownPriceError, month_at_rest
from dr_experiments.statistics import BOOTSTRAP_METHOD, INTERVAL_METHOD, ratio_of_means
from dr_experiments.study import (
    COLD,
    CONTAINER,
    PREDICTION,
    REALTIME,
    ROUND_TRIP,
    STUDY_REGION,
    WARM,
    Candidate,
    Erratum,
    Series,
    Study,
    StudyError,
    Verdict,
    errata,
    rounding,
)

BEGIN: Final = "<!-- begin: dr bench analyse -->"
END: Final = "<!-- end: dr bench analyse -->"
_SCENARIO_WORDS: Final = {COLD: "cold", WARM: "warm", REALTIME: "real-time"}
_INSTANCE: Final = "ml.m5.xlarge"
_DASH: Final = "\N{EN DASH}"


def study_markdown(study: Study, *, prices: PriceTable) -> str:
    """All sections that the files allow; the errata only where serverless files are there."""
    sections = [measurements_markdown(study), speed_ups_markdown(study)]
    if study.of(WARM):
        sections.append(costs_markdown(study, prices=prices))
    if study.of(COLD) and study.of(WARM):
        sections.append(cold_over_warm_markdown(study))
    if any(one.memory_mib for one in study.series):
        sections.append(errata_markdown(errata(study, prices=prices)))
    if study.of(WARM):
        sections.append(conclusions_markdown(study, prices=prices))
        sections.append(break_even_markdown(study, prices=prices))
    return "\n\n".join(section for section in sections if section) + "\n"


def replace_block(page: str, text: str, *, begin: str = BEGIN, end: str = END) -> str:
    """`page` with `text` between its markers.

    Raises:
        StudyError: the page lacks a marker, or has them in the wrong order.
    """
    before, found_begin, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise StudyError(f"the page needs the lines {begin} and {end}, in this order")
    return f"{before}{begin}\n\n{text}\n{end}{after}"


def measurements_markdown(study: Study) -> str:
    """Mean (s) with its 95 % interval and sd by file, and the model's share of the round trip."""
    rows = [
        (
            _SCENARIO_WORDS[one.scenario],
            one.model,
            one.size,
            str(one.n),
            *(_mean_words(one, column) for column in (ROUND_TRIP, CONTAINER, PREDICTION)),
            f"{100 * one.summary(PREDICTION).mean / one.summary(ROUND_TRIP).mean:.1f} %",
        )
        for one in study.series
    ]
    head = (
        "scenario", "model", "size", "n", "round trip, s", "in the container, s", "prediction, s",
        "prediction / round trip",
    )  # fmt: skip
    return (
        "### What was measured\n\n"
        f"Mean with its 95 % interval ({INTERVAL_METHOD}) and, after ±, the standard deviation. "
        f"No value was removed.\n\n{markdown_table(head, rows)}"
    )


def speed_ups_markdown(study: Study) -> str:
    """Ratios of means between every two sizes of a model, with bootstrap intervals."""
    rows = [
        (
            _SCENARIO_WORDS[scenario],
            model,
            f"{first.size} → {second.size}",
            *(
                _ratio_words(first, second, column)
                for column in (ROUND_TRIP, CONTAINER, PREDICTION)
            ),
        )
        for scenario in (WARM, COLD, REALTIME)
        for model in study.models()
        for first, second in study.pairs(scenario, model)
    ]
    if not rows:
        return ""
    return (
        "### Speed-ups between sizes\n\n"
        "Mean on the first size over mean on the second, with its 95 % interval "
        f"({BOOTSTRAP_METHOD}; the two sizes were measured one after the other, so nothing is "
        "paired).\n\n"
        + markdown_table(
            ("scenario", "model", "sizes", "round trip", "in the container", "prediction"), rows
        )
    )


def costs_markdown(study: Study, *, prices: PriceTable) -> str:
    """USD per warm inference on both bases. A size without a price shows a dash."""
    rows = []
    for one in study.of(WARM):
        try:
            cells = [_usd_words(one, column, prices) for column in (ROUND_TRIP, CONTAINER)]
            share = f"{one.usd(ROUND_TRIP, prices=prices) / one.usd(CONTAINER, prices=prices):.2f}"
        except UnknownPriceError:
            cells, share = [_DASH, _DASH], _DASH
        rows.append((one.model, one.size, str(one.n), *cells, share))
    return (
        "### Cost per inference, on both bases\n\n"
        "USD per warm inference: mean seconds times the price of a second (`prices.toml`), "
        "with the 95 % interval of the mean; no data charge. The study multiplied the client's "
        "round trip; AWS bills the time in which the container computes, which the second basis is "
        "closer to.\n\n"
        + markdown_table(
            ("model", "size", "n", "round trip, USD", "in the container, USD", "first / second"),
            rows,
        )
    )


def cold_over_warm_markdown(study: Study) -> str:
    """Cold over warm on the same size, round trip."""
    warm = {(one.model, one.size): one for one in study.of(WARM)}
    rows = [
        (
            one.model,
            one.size,
            f"{one.n}, {warm[one.model, one.size].n}",
            _ratio_words(one, warm[one.model, one.size], ROUND_TRIP),
        )
        for one in study.of(COLD)
        if (one.model, one.size) in warm
    ]
    return (
        "### Cold over warm\n\nMean round trip, cold over warm on the same size, with its 95 % "
        f"interval ({BOOTSTRAP_METHOD}).\n\n"
        + markdown_table(("model", "size", "n cold, n warm", "cold / warm"), rows)
    )


def errata_markdown(rows: Sequence[Erratum]) -> str:
    """The errata table: printed, recomputed as stated, and what gives the printed figure."""
    table = markdown_table(
        ("printed", "about", "recomputed as stated", "what gives the printed figure"),
        [
            (
                one.claim.text,
                one.claim.about,
                _DASH if one.recomputed is None else _value(one.recomputed, one.claim.unit),
                _verdict_words(one),
            )
            for one in rows
        ],
    )
    return (
        "### Errata\n\n"
        "A printed figure is given by a candidate that equals it when rounded or cut to its "
        "decimals. Candidates are the pairs of sizes of one model, the three columns, and three "
        "statistics: the mean, the quotient of means that were first rounded to 0.01 s, and the "
        "median. The number of other candidates that give the same digits says how much a match is "
        f"worth.\n\n{table}"
    )


def conclusions_markdown(study: Study, *, prices: PriceTable) -> str:
    """What the choice of the basis changes, computed from the costs."""
    lines = []
    for model in study.models():
        rows = [one for one in study.of(WARM, model) if one.memory_mib]
        if len(rows) < 2:
            continue
        cheapest = {
            column: min(rows, key=lambda one: one.usd(column, prices=prices))
            for column in (ROUND_TRIP, CONTAINER)
        }
        steps = "; ".join(
            f"{first.size} to {second.size} costs {_change(first, second, ROUND_TRIP, prices)} by "
            f"the round trip and {_change(first, second, CONTAINER, prices)} by the time in the "
            f"container, for a round trip shorter by {_shorter(first, second)}"
            for first, second in itertools.pairwise(rows)
        )
        lines.append(
            f"- **{model}**: cheapest at {cheapest[ROUND_TRIP].size} by the round trip, at "
            f"{cheapest[CONTAINER].size} by the time in the container. {steps}."
        )
    between = _between_models(study, prices=prices)
    if not lines:
        return ""
    return "### What changes in the conclusions\n\n" + "\n".join([*lines, *between])


def break_even_markdown(study: Study, *, prices: PriceTable) -> str:
    """Requests per month from which an instance that is always on costs less, on both bases."""
    month = month_at_rest(instance_type=_INSTANCE, region=STUDY_REGION, prices=prices)
    rows = []
    for one in study.of(WARM):
        if one.memory_mib:
            cells = []
            for column in (ROUND_TRIP, CONTAINER):
                summary = one.summary(column)
                bounds = (summary.mean, summary.mean_high, summary.mean_low)
                rate = one.rate(prices)
                at, low, high = (
                    None if seconds is None else _requests(month, seconds, rate)
                    for seconds in bounds
                )
                cells.append(f"{at} ({low} to {high})" if low and high else str(at))
            rows.append((one.model, one.size, str(one.n), *cells))
    if not rows:
        return ""
    return (
        f"### Break-even with an instance\n\nRequests per month from which one {_INSTANCE} that is "
        f"always on ({month:.2f} USD a month) costs less than on-demand serverless, with the 95 % "
        "interval from that of the mean; no data charge on either side. Whether one instance can "
        "answer that many is another question: it was not measured here.\n\n"
        + markdown_table(("model", "size", "n", "by round trip", "by time in the container"), rows)
    )


def _between_models(study: Study, *, prices: PriceTable) -> Iterable[str]:
    models = study.models()
    if len(models) != 2:
        return
    sizes = {one.size: one for one in study.of(WARM, models[0])}
    for other in study.of(WARM, models[1]):
        one = sizes.get(other.size)
        if one and one.memory_mib:
            ratios = [
                other.usd(column, prices=prices) / one.usd(column, prices=prices)
                for column in (ROUND_TRIP, CONTAINER)
            ]
            yield (
                f"- At {one.size} an inference of {models[1]} costs {ratios[0]:.2f} times one of "
                f"{models[0]} by the round trip, {ratios[1]:.2f} times by the time in the "
                "container."
            )


def _change(first: Series, second: Series, column: str, prices: PriceTable) -> str:
    change = 100 * (second.usd(column, prices=prices) / first.usd(column, prices=prices) - 1)
    return f"{abs(change):.1f} % {'more' if change > 0 else 'less'}"


def _shorter(first: Series, second: Series) -> str:
    share = 1 - second.summary(ROUND_TRIP).mean / first.summary(ROUND_TRIP).mean
    return f"{100 * share:.1f} %"


def _verdict_words(row: Erratum) -> str:
    if row.verdict is Verdict.NO_DATA:
        return "the data are not there"
    if row.source is None:
        return f"none of {row.candidates} candidates"
    also = (
        f"; {row.also} other{'s' if row.also > 1 else ''} of {row.candidates} too"
        if row.also
        else ""
    )
    if row.verdict is Verdict.AGREES:
        return f"agrees ({row.source.how}, {rounding(row.source.value, row.claim.printed)})"
    value = _value(row.source, row.claim.unit)
    if row.recomputed and row.recomputed.where == row.source.where:
        return f"the stated pair, {row.source.how}: {value}{also}"
    return f"{row.source.where}; {row.source.how}: {value}{also}"


def _value(candidate: Candidate, unit: str) -> str:
    if unit == "USD":
        return f"{Decimal(repr(candidate.value)):.9f} USD"
    return {
        "x": f"{candidate.value:.4f}\N{MULTIPLICATION SIGN}", "%": f"{candidate.value:.2f} %",
        "s": f"{candidate.value:.3f} s",
    }[unit]  # fmt: skip


def _requests(month: Decimal, seconds: float, rate: Decimal) -> str:
    # The lower bound of few, scattered times is 0, and what costs nothing is never dearer.
    return f"{month / (Decimal(repr(seconds)) * rate):,.0f}" if seconds > 0 else "never"


def _mean_words(series: Series, column: str) -> str:
    one = series.summary(column)
    if one.mean_low is None or one.sd is None:
        return f"{one.mean:.4f}"
    return f"{one.mean:.4f} ({one.mean_low:.4f} to {one.mean_high:.4f}) ± {one.sd:.4f}"


def _ratio_words(first: Series, second: Series, column: str) -> str:
    ratio = ratio_of_means(first.seconds[column], second.seconds[column])
    if ratio.low is None:
        return f"{ratio.value:.3f}"
    return f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"


def _usd_words(series: Series, column: str, prices: PriceTable) -> str:
    summary = series.summary(column)
    rate = series.rate(prices)
    text = f"{series.usd(column, prices=prices):.8f}"
    if summary.mean_low is None or summary.mean_high is None:
        return text
    low, high = (Decimal(repr(bound)) * rate for bound in (summary.mean_low, summary.mean_high))
    return f"{text} ({low:.8f} to {high:.8f})"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of cells that are text already."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
