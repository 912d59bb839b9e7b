"""Figures of the report as SVG text: readable in black and white, units on each axis."""

import io
import math
import re
from collections.abc import Sequence
from typing import Any, Final

from dr_experiments.analysis import ConfigurationAnalysis
from dr_experiments.statistics import summarise

INK: Final = "#1b2a33"
_SERVERLESS: Final = "#2a7f8e"
_REALTIME: Final = "#c8702a"
_MUTED: Final = "#8a979e"
_ROW_INCHES: Final = 0.42
_MOST_DOTS: Final = 4000
_MOST_PATHS: Final = 500
# Tags alone, so that no number that is read loses a digit.
_MARKUP: Final = re.compile(r"<[^>]*>")
_DIGITS: Final = re.compile(r"(\d\.\d\d)\d+")


def latency_figure(rows: Sequence[ConfigurationAnalysis]) -> str:
    """Box plot of the client's round trips (ms), every request as a dot, mean and sd."""
    measured = [row for row in rows if row.round_trip is not None]
    figure, axes = _axes(len(measured))
    positions = draw_boxes(
        axes,
        [row.round_trip_values_ms for row in measured],
        [_colour(row) for row in measured],
    )
    _label_rows(axes, measured, positions)
    axes.set_xlim(left=0)
    axes.set_xlabel("client's round trip of a warm request, ms")
    return svg_text(figure)


def draw_boxes(axes: Any, rows: Sequence[Sequence[float]], colours: Sequence[str]) -> list[int]:
    """Horizontal box plots, the first on top, each value as a dot, mean and sd as a diamond.

    Args:
        rows: values of each box, at least one each; `colours` of the same length.

    Returns:
        The height of each box on the vertical axis.
    """
    import numpy as np

    positions = list(range(len(rows), 0, -1))
    boxes = axes.boxplot(
        rows,
        positions=positions,
        orientation="horizontal",
        widths=0.5,
        showfliers=False,  # every request is drawn as a dot already
        patch_artist=True,
        medianprops={"color": INK, "linewidth": 1.6},
        whiskerprops={"color": INK},
        capprops={"color": INK},
    )
    # A fixed seed: the vertical scatter of the dots is decoration and must not change a file.
    scatter = np.random.default_rng(0)
    for row, position, colour, box in zip(rows, positions, colours, boxes["boxes"], strict=True):
        box.set(facecolor=colour, alpha=0.35, edgecolor=INK)
        dots = row[:: max(1, math.ceil(len(row) / _MOST_DOTS))]
        heights = position + scatter.uniform(-0.16, 0.16, len(dots))
        axes.plot(
            dots, heights, ".", color=colour, markersize=3.5, alpha=0.7,
            # Thousands of them as paths would make the page megabytes.
            rasterized=len(dots) > _MOST_PATHS,
        )  # fmt: skip
        found = summarise(row)
        axes.errorbar(
            found.mean, position - 0.36, xerr=found.sd or 0, fmt="D", color=INK,
            markersize=3.5, capsize=2.5, linewidth=1,
        )  # fmt: skip
    return positions


def cost_figure(rows: Sequence[ConfigurationAnalysis]) -> str:
    """Estimated cost of 1,000 inferences (USD, logarithmic), one mark per assumption."""
    priced = [row for row in rows if row.cost is not None]
    figure, axes = _axes(len(priced))
    positions = list(range(len(priced), 0, -1))
    for row, position in zip(priced, positions, strict=True):
        if row.cost is None:
            continue
        cost = float(row.cost.usd_per_1000)
        axes.plot(cost, position, "o", color=_colour(row), markersize=7)
        if row.cost_full_use is not None:
            full = float(row.cost_full_use.usd_per_1000)
            axes.plot([full, cost], [position, position], "-", color=_colour(row), linewidth=1)
            axes.plot(full, position, "o", color="white", markeredgecolor=_colour(row))
    _label_rows(axes, priced, positions)
    axes.set_xscale("log")
    # Plain decimals: a reader of costs should not have to undo powers of ten.
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.6f}".rstrip("0").rstrip("."))
    axes.margins(x=0.15)
    axes.set_xlabel("estimated cost of 1,000 inferences, USD (logarithmic)")
    return svg_text(figure)


def start_figure(rows: Sequence[ConfigurationAnalysis]) -> str:
    """Start of the process to its first prediction (s) and memory after it (MiB)."""
    known = [row for row in rows if row.facts.start_to_first_prediction_s is not None]
    figure, (left, right) = new_figure(len(known), columns=2)
    positions = list(range(len(known), 0, -1))
    colours = [_colour(row) for row in known]
    starts = [row.facts.start_to_first_prediction_s or 0 for row in known]
    memory = [row.facts.memory_after_mib or 0 for row in known]
    for axes, values, digits in ((left, starts, 2), (right, memory, 0)):
        axes.barh(positions, values, height=0.55, color=colours, alpha=0.7)
        for position, value in zip(positions, values, strict=True):
            if value:
                axes.text(value, position, f" {value:.{digits}f}", va="center", fontsize=8)
        axes.margins(x=0.18)
    _label_rows(left, known, positions)
    right.set_yticks([])
    right.set_ylim(left.get_ylim())
    left.set_xlabel("process start to first prediction, s")
    right.set_xlabel("memory after it, MiB")
    return svg_text(figure)


def _colour(row: ConfigurationAnalysis) -> str:
    if not row.facts.distinguishable:
        return _MUTED
    return _SERVERLESS if row.target.memory_mib else _REALTIME


def _label_rows(axes: Any, rows: Sequence[ConfigurationAnalysis], positions: list[int]) -> None:
    labels = [row.title + ("" if row.facts.distinguishable else " *") for row in rows]
    axes.set_yticks(positions, labels)
    axes.set_ylim(0.3, len(rows) + 0.7)


def _axes(count: int) -> tuple[Any, Any]:
    figure, axes = new_figure(count, columns=1)
    return figure, axes


def new_figure(count: int, *, columns: int) -> tuple[Any, Any]:
    """A figure with `columns` axes, high enough for `count` rows, and the axes."""
    # The object interface without pyplot: no global state, no display, no leaked figures.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.2, 0.9 + _ROW_INCHES * max(count, 2)), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=True)
    for one in [axes] if columns == 1 else axes:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(axis="x", color="#dde3e6", linewidth=0.7)
        one.set_axisbelow(True)
        one.tick_params(labelsize=9)
    return figure, axes


def svg_text(figure: Any) -> str:
    """The figure as an SVG element to stand in a page; the same figure gives the same text."""
    import matplotlib as mpl

    stream = io.StringIO()
    # Text stays text (searchable, small), ids are derived from a salt instead of at random.
    with mpl.rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "dr",
            "font.family": "sans-serif",
            # Every text names them all.
            "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
        }
    ):
        figure.savefig(
            stream,
            format="svg",
            # None of it is shown, and all of it is English, whatever the page is in.
            metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")),
            transparent=True,
        )
    text = stream.getvalue()
    # Only the element: a page holds one XML declaration at most, and it is not this one.
    return _MARKUP.sub(_rounded, text[text.index("<svg") :])


def _rounded(tag: re.Match[str]) -> str:
    """A tag with coordinates to a hundredth of a point: nobody can see more, and it is smaller."""
    return _DIGITS.sub(r"\1", tag[0])
