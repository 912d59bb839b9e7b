"""One self-contained HTML page with figures for somebody who was not there.

    >>> write_report(Path("report.html"), Report(...))

The page loads nothing from outside, holds no image of a patient, and says for each number its
unit and n. Everything in it is derived from the analyses; nothing is measured here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from importlib import resources
from pathlib import Path

from dr_experiments.analysis import ConfigurationAnalysis
from dr_experiments.figures import cost_figure, latency_figure, start_figure
from dr_experiments.pricing import Price
from dr_experiments.provenance import Provenance
from dr_experiments.statistics import INTERVAL_METHOD, PERCENTILE_METHOD
from inference_image.contract import NOT_A_DEVICE, NOT_ASSESSED


@dataclass(frozen=True, kw_only=True)
class Report:
    """Contents of a page about a warm experiment.

    Args:
        payload: what was sent, in words and bytes, without its name.
        notices: sentences of the models about themselves.
        raw_files: file names of records beside the page.
    """

    title: str
    rows: Sequence[ConfigurationAnalysis]
    provenance: Provenance
    requests: int
    interval_s: float
    requests_per_hour: float
    payload: str
    notices: Sequence[str] = ()
    raw_files: Sequence[str] = ()


def write_report(path: Path, report: Report) -> None:
    """Render the page to `path`."""
    path.write_text(render_report(report), encoding="utf-8")


def render_report(report: Report) -> str:
    """The page as text. Raises `ValueError` when there is no row at all."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    if not report.rows:
        raise ValueError("a report needs at least one measured deployment")
    template = template_text("warm.html.j2")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    rows = report.rows
    measured = [row for row in rows if row.round_trip is not None]
    muted = [row for row in rows if not row.facts.distinguishable]
    prices = _prices(rows)
    # The SVG comes from matplotlib and holds no outside text but our own row labels.
    figure_of = {
        "latency_svg": latency_figure(rows) if measured else "",
        "cost_svg": cost_figure(rows) if any(row.cost for row in rows) else "",
        "start_svg": (
            start_figure(rows)
            if any(row.facts.start_to_first_prediction_s is not None for row in rows)
            else ""
        ),
    }
    return environment.from_string(template).render(
        title=report.title,
        style=Markup(page_style()),  # noqa: S704 - our own file
        provenance=report.provenance,
        lead=_lead(report, measured),
        rows=rows,
        muted=bool(muted),
        muted_why=(
            "they ask for more processor than it has, so they ran with the same cores as the "
            "smaller rows; on AWS they would be faster."
        ),
        notices=report.notices,
        not_a_device=NOT_A_DEVICE,
        not_assessed=NOT_ASSESSED,
        extreme=any(row.round_trip.p99_is_extreme for row in measured if row.round_trip),
        failures=[f"{row.target.name}: {reason}" for row in rows for reason in row.failure_reasons],
        totals=_totals(rows),
        cold=sum(row.cold for row in rows),
        requests=report.requests,
        interval=f"{report.interval_s:g} s",
        gaps=[
            f"{row.title} {format_ms(row.mean_gap_s * 1000)} ms"
            for row in rows
            if row.mean_gap_s is not None
        ],
        requests_per_hour=f"{report.requests_per_hour:,.0f}",
        payload=report.payload,
        interval_method=INTERVAL_METHOD,
        percentile_method=PERCENTILE_METHOD,
        prices=prices,
        sources=list(dict.fromkeys(price.source for price in prices)),
        model_digests=sorted({row.model_sha256 for row in rows if row.model_sha256}),
        raw_files=report.raw_files,
        ms=format_ms,
        usd=format_usd,
        **{name: Markup(svg) for name, svg in figure_of.items()},  # noqa: S704 - see above
    )


def page_style() -> str:
    """CSS of the project's pages."""
    return template_text("page.css")


def template_text(name: str) -> str:
    """A file of the templates, such as the style that all pages share."""
    return resources.files("dr_experiments").joinpath("templates", name).read_text("utf-8")


def format_ms(value: float | None) -> str:
    """Milliseconds with about three significant digits; an en dash for nothing."""
    if value is None:
        return "\N{EN DASH}"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def format_usd(value: Decimal) -> str:
    """US dollars with three significant digits, never in scientific notation."""
    if value == 0:
        return "0"
    digits = max(2, 2 - value.adjusted())
    return f"{value:.{digits}f}"


def _lead(report: Report, measured: Sequence[ConfigurationAnalysis]) -> str:
    count = len(report.rows)
    text = (
        f"A fundus photograph was sent {report.requests} times to each of {count} "
        f"deployment{'s' if count != 1 else ''} of the grading service, to see how long an answer "
        "takes once a container is warm and what it would cost."
    )
    medians = [
        (row.round_trip.p50, row.title)
        for row in measured
        if row.round_trip and row.facts.distinguishable
    ]
    if len(medians) < 2:
        return text
    (fast_ms, fast), (slow_ms, slow) = min(medians), max(medians)
    return (
        f"{text} The median round trip was between {format_ms(fast_ms)} ms ({fast}) "
        f"and {format_ms(slow_ms)} ms ({slow})."
    )


def _totals(rows: Sequence[ConfigurationAnalysis]) -> str:
    requests = sum(row.requests for row in rows)
    failed = sum(row.failed for row in rows)
    return f"In all {requests} counted requests, {failed} failed."


def _prices(rows: Sequence[ConfigurationAnalysis]) -> list[Price]:
    found = {
        price.name: price
        for row in rows
        for cost in (row.cost, row.cost_full_use)
        if cost
        for price in cost.prices
    }
    return [found[name] for name in sorted(found)]
