"""Figures of a study as SVG text: readable in black and white, units on each axis."""

import io
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dr_training.study.analysis import Measurement, level_means
from dr_training.study.study_file import Factor

_INK: Final = "#1b2a33"
_COLOURS: Final = ("#2a7f8e", "#c8702a", "#6b5b95", "#8a979e", "#a63d40", "#4f772d")
_MARKERS: Final = ("o", "s", "^", "D", "v", "P")
_STYLES: Final = ("-", "--", ":", "-.")


def bars_with_cost(
    labels: Sequence[str],
    means: Sequence[float],
    halves: Sequence[float],
    costs: Sequence[float] | None,
    *,
    unit: str,
    currency: str,
) -> str:
    """Mean time of each scenario as a bar with its interval, its cost as a line (right axis)."""
    figure, (axes,) = _figure(height=3.6)
    places = range(len(labels))
    axes.bar(places, means, color=_COLOURS[0], alpha=0.75)
    axes.errorbar(places, means, yerr=halves, fmt="none", ecolor=_INK, capsize=2, linewidth=0.9)
    axes.set_xticks(places, labels, rotation=90 if len(labels) > 12 else 0, fontsize=7)
    axes.set_ylabel(unit)
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    if costs is not None:
        right = axes.twinx()
        right.plot(places, costs, "-o", color=_COLOURS[1], markersize=2.5, linewidth=1)
        right.set_ylabel(f"cost of a run, {currency} (line)")
        right.set_ylim(bottom=0)
        right.spines[["top"]].set_visible(False)
        right.tick_params(labelsize=8)
    return _svg(figure)


def main_effects_figure(
    factors: Sequence[Factor], measured: Sequence[Measurement], *, unit: str
) -> str:
    """Geometric mean at each level of each factor, on one logarithmic axis."""
    figure, axes = _figure(columns=len(factors), height=2.8, share=True)
    for one, factor in zip(axes, factors, strict=True):
        means = level_means(factors, measured, (factor.name,))
        names = [str(key[0]) for key in means]
        one.plot(names, list(means.values()), "-o", color=_COLOURS[0], markersize=5)
        one.set_xlabel(factor.name)
        one.margins(x=0.25)
        _log_axis(one)
        one.tick_params(axis="x", labelrotation=20 if max(map(len, names)) > 6 else 0)
    axes[0].set_ylabel(unit)
    return _svg(figure)


def interactions_figure(
    factors: Sequence[Factor], measured: Sequence[Measurement], *, unit: str
) -> str:
    """Each pair of factors: parallel lines where their effects only multiply."""
    pairs = list(itertools.combinations(factors, 2))
    columns = min(3, len(pairs))
    rows = -(-len(pairs) // columns)
    figure, grid = _figure(columns=columns, rows=rows, height=2.5 * rows, share=True)
    for place, (first, second) in enumerate(pairs):
        one = grid[place]
        means = level_means(factors, measured, (first.name, second.name))
        for number, level in enumerate(second.levels):
            points = {str(key[0]): value for key, value in means.items() if key[1] == level}
            one.plot(
                list(points),
                list(points.values()),
                linestyle=_STYLES[number % len(_STYLES)],
                marker=_MARKERS[number % len(_MARKERS)],
                color=_COLOURS[number % len(_COLOURS)],
                markersize=4,
                label=str(level),
            )
        one.set_xlabel(first.name)
        one.margins(x=0.25)
        one.legend(title=second.name, fontsize=7, title_fontsize=7, frameon=False)
        _log_axis(one)
    for place, one in enumerate(grid):
        if place >= len(pairs):
            one.set_visible(False)
        elif place % columns == 0:
            one.set_ylabel(unit)
    return _svg(figure)


def use_figure(use: Mapping[str, Mapping[str, float]]) -> str:
    """Processor use while training (percent of one core): a group of bars for each framework."""
    figure, (axes,) = _figure(height=2.8)
    groups = list(use)
    series = list(dict.fromkeys(name for row in use.values() for name in row))
    width = 0.8 / len(series)
    for number, name in enumerate(series):
        places = [place + (number - (len(series) - 1) / 2) * width for place in range(len(groups))]
        heights = [use[group].get(name, 0.0) for group in groups]
        axes.bar(
            places,
            heights,
            width * 0.92,
            label=str(name),
            color=_COLOURS[number % len(_COLOURS)],
            alpha=0.8,
        )
        for place, height in zip(places, heights, strict=True):
            axes.text(place, height, f"{height:.0f}", ha="center", va="bottom", fontsize=8)
    axes.set_xticks(range(len(groups)), [str(group) for group in groups])
    axes.set_ylabel("processor use, % of one core")
    axes.margins(y=0.15)
    axes.legend(fontsize=8, frameon=False)
    return _svg(figure)


def _log_axis(axes: Any) -> None:
    axes.set_yscale("log")
    # Plain decimals: a reader of seconds should not have to undo powers of ten.
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: f"{value:g}")
    axes.tick_params(axis="y", which="both", labelsize=7)


def _figure(
    *, height: float, columns: int = 1, rows: int = 1, share: bool = False
) -> tuple[Any, list[Any]]:
    # The object interface without pyplot: no global state, no display, no leaked figures.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.6, height), layout="constrained")
    grid = figure.subplots(rows, columns, sharey=share, squeeze=False)
    every = [axes for row in grid for axes in row]
    for one in every:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(axis="y", color="#dde3e6", linewidth=0.7)
        one.set_axisbelow(True)
        one.tick_params(labelsize=8)
    return figure, every


def _svg(figure: Any) -> str:
    import matplotlib as mpl

    stream = io.StringIO()
    # Text stays text (searchable, small), ids are derived from a salt instead of at random.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "dr"}):
        figure.savefig(stream, format="svg", metadata={"Date": None}, transparent=True)
    text = stream.getvalue()
    return text[text.index("<svg") :]
