"""Figures of the report in its language: units on each axis, readable in black and white.

    >>> svg_text(box_figure(groups, words))

Each function returns a figure of matplotlib, which `figures.svg_text` and `png_bytes` write.
"""

import io
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from dr_experiments.figures import INK, draw_boxes, new_figure
from dr_experiments.languages import Words
from dr_experiments.measured import Measured
from dr_experiments.months import CONTAINER, ROUND_TRIP, Month
from dr_experiments.pricing import UnknownPriceError
from dr_experiments.run_groups import Group, per_second, phase_means
from dr_experiments.statistics import Summary, summarise

_COLOURS: Final = (
    "#2a7f8e", "#c8702a", "#6b5b95", "#5b8c3a", "#b5473c", "#3b6ea8", "#a08a2d", "#7a7a7a",
)  # fmt: skip
# Further apart than this, short latencies would be a line at the edge of a linear axis.
_LOG_FROM: Final = 20
# Characters of a name of which two stand side by side.
_TWO_COLUMNS: Final = 44
_CURVE: Final = tuple(int(10 ** (step / 8)) for step in range(16, 65))


def box_figure(groups: Sequence[Group], words: Words, labels: Mapping[int, str]) -> Any:
    """Box plot of the round trips (ms), every request as a dot, mean and sd as a diamond.

    Args:
        groups: with at least one warm answer each; `labels` by `id` of the group.
    """
    figure, axes = new_figure(len(groups), columns=1)
    positions = draw_boxes(
        axes,
        [[1000 * seconds for seconds in group.warm_s] for group in groups],
        [_COLOURS[number % len(_COLOURS)] for number in range(len(groups))],
    )
    axes.set_yticks(
        positions, [f"{labels[id(g)]}, n = {words.integer(len(g.warm_s))}" for g in groups]
    )
    axes.set_ylim(0.3, len(groups) + 0.7)
    if box_scale(groups) == "log":
        axes.set_xscale("log")
    else:
        axes.set_xlim(left=0)
    _plain(axes.xaxis, words)
    axes.set_xlabel(words("axis.round_trip"))
    return figure


def box_scale(groups: Sequence[Group]) -> str:
    """`log` where the groups' medians lie far apart, else `linear`."""
    medians = [summarise(group.warm_s).p50 for group in groups]
    return "log" if max(medians) > _LOG_FROM * min(medians) else "linear"


def phase_figure(groups: Sequence[Group], words: Words, labels: Mapping[int, str]) -> Any:
    """Mean phases of the cold starts (s) as stacked bars; estimated ones are hatched."""
    from matplotlib.patches import Patch

    figure, axes = new_figure(len(groups) + 2, columns=1)
    drawn: dict[str, Patch] = {}
    names = []
    for row, group in enumerate(groups):
        n, phases, estimated = group.phases_s()
        left = 0.0
        for name, seconds in phase_means(phases).items():
            colour = _COLOURS[list(drawn).index(name) if name in drawn else len(drawn)]
            if name not in drawn:
                drawn[name] = Patch(facecolor=colour, alpha=0.75, label=words.named("phase", name))
            axes.barh(
                len(groups) - row, seconds, left=left, height=0.55, color=colour, alpha=0.75,
                hatch="///" if name in estimated else None, edgecolor="white", linewidth=0.6,
            )  # fmt: skip
            left += seconds
        axes.text(left, len(groups) - row, f" {words.number(left, 2)}", va="center", fontsize=8)
        names.append(f"{labels[id(group)]}, n = {n}")
    axes.set_yticks(range(len(groups), 0, -1), names)
    axes.set_ylim(0.3, len(groups) + 0.7)
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    axes.set_xlabel(words("axis.cold"))
    figure.legend(
        handles=[
            *drawn.values(),
            Patch(facecolor="white", edgecolor=INK, hatch="///", label=words("axis.estimated")),
        ],
        loc="outside upper center", ncols=4, fontsize=8, frameon=False,
    )  # fmt: skip
    _plain(axes.xaxis, words)
    return figure


def series_figure(group: Group, words: Words) -> Any:
    """Waits (ms) by the moment a request was begun, failures apart, and requests per second."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.2, 3.8), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    warm, cold, failed = group.warm, group.cold, group.failed
    for rows, colour, mark, name in (
        (warm, _COLOURS[0], ".", "axis.answered"),
        (cold, _COLOURS[1], "^", "axis.fresh"),
    ):
        if rows:
            top.plot(
                [r.start_offset_s for r in rows],
                [1000 * (r.response_time_s or r.fullLatency or 0) for r in rows],
                mark, color=colour, markersize=4, alpha=0.7, label=words(name), rasterized=True,
            )  # fmt: skip
    top.set_ylim(bottom=0)
    if failed:
        # Below the axis, since they have no latency at all.
        top.plot(
            [r.start_offset_s for r in failed], [-0.04] * len(failed), "x", color="#b5473c",
            markersize=4, transform=top.get_xaxis_transform(), clip_on=False,
            label=words("axis.failed"),
        )  # fmt: skip
    seconds = per_second(group)
    bottom.bar(
        [s for s, _, _ in seconds], [n for _, n, _ in seconds], width=1.0, align="edge",
        color=_COLOURS[0], alpha=0.6,
    )  # fmt: skip
    top.set_ylabel(words("axis.wait"))
    bottom.set_ylabel(words("axis.per_second"), fontsize=8)
    bottom.set_xlabel(words("axis.started"))
    figure.legend(loc="outside upper right", ncols=3, fontsize=8, frameon=False)
    for axes in (top, bottom):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#dde3e6", linewidth=0.7)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=9)
        for axis in (axes.xaxis, axes.yaxis):
            _plain(axis, words)
    return figure


def _kind(number: int, kinds: Sequence[str]) -> str:
    """Marker or dashes of a series: with its colour, another pair for each of the first 32."""
    return kinds[(number + number // len(_COLOURS)) % len(kinds)]


def cost_figure(
    found: Sequence[Measured], month: Month, requests: int, words: Words, names: Sequence[str]
) -> Any:
    """Cost of a month (USD) against the mean round trip (ms), on both bases, with intervals."""
    figure, axes = _square()
    for number, (one, name) in enumerate(zip(found, names, strict=True)):
        colour = _COLOURS[number % len(_COLOURS)]
        x, x_low, x_high = (1000 * value for value in _mean_bounds(one.round_trip))
        for basis, face, size in ((ROUND_TRIP, "white", 9), (CONTAINER, colour, 6)):
            y, y_low, y_high = (
                float(month.bill(one, requests, side=side, basis=basis).usd) for side in (0, -1, 1)
            )
            axes.errorbar(
                x, y, xerr=[[x - x_low], [x_high - x]],
                yerr=[[max(0.0, y - y_low)], [max(0.0, y_high - y)]],
                fmt=_kind(number, "os^D"), color=colour, markerfacecolor=face, markersize=size,
                capsize=2, linewidth=1,
                label=f"{name}, n = {words.integer(one.container.n)}" if face == colour else None,
            )  # fmt: skip
    axes.set_yscale("log")
    axes.set_xlim(left=0)
    axes.margins(y=0.2)
    axes.set_xlabel(words("axis.mean_round_trip"))
    axes.set_ylabel(words("axis.month_usd"))
    _plain(axes.xaxis, words)
    _plain(axes.yaxis, words)
    _legend(figure, names)
    return figure


def curve_figure(
    found: Sequence[Measured], month: Month, words: Words, names: Sequence[str]
) -> Any:
    """Cost of a month (USD) by requests a month, with the band of the mean's interval."""
    figure, axes = _square()
    for number, (one, name) in enumerate(zip(found, names, strict=True)):
        colour = _COLOURS[number % len(_COLOURS)]
        middle, low, high = (
            [float(month.bill(one, n, side=side).usd) for n in _CURVE] for side in (0, -1, 1)
        )
        dashes = _kind(number, ("-", "--", ":", "-."))
        axes.plot(
            _CURVE, middle, dashes, color=colour, linewidth=1.6,
            label=f"{name}, n = {words.integer(one.container.n)}",
        )  # fmt: skip
        axes.fill_between(_CURVE, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(words("axis.requests"))
    axes.set_ylabel(words("axis.month_usd"))
    _plain(axes.xaxis, words)
    _plain(axes.yaxis, words)
    _legend(figure, names)
    return figure


def _legend(figure: Any, names: Sequence[str]) -> None:
    """Names above the axes, in one column where two would not fit the width."""
    columns = 1 if max(map(len, names), default=0) > _TWO_COLUMNS else 2
    figure.legend(loc="outside upper center", ncols=columns, fontsize=8, frameon=False)


def png_bytes(figure: Any) -> bytes:
    """The figure as a PNG on white, at 130 dots an inch."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=130, facecolor="white", metadata={"Software": None})
    return stream.getvalue()


def with_prices(
    found: Sequence[Measured], month: Month, requests: int
) -> tuple[list[Measured], list[tuple[Measured, UnknownPriceError]]]:
    """Those that have a price, and the others with what is missing."""
    priced: list[Measured] = []
    missing = []
    for one in found:
        try:
            month.bill(one, requests)
        except UnknownPriceError as error:
            missing.append((one, error))
        else:
            priced.append(one)
    return priced, missing


def _mean_bounds(summary: Summary) -> tuple[float, float, float]:
    low = summary.mean if summary.mean_low is None else max(summary.mean_low, 0.0)
    high = summary.mean if summary.mean_high is None else summary.mean_high
    return summary.mean, low, high


def _square() -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.2, 5.0), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dde3e6", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9)
    return figure, axes


def _plain(axis: Any, words: Words) -> None:
    """Plain numbers in the language's form: nobody should have to undo powers of ten."""
    from matplotlib.ticker import NullLocator

    def text(value: float, _: int) -> str:
        if value == 0:
            return "0"
        digits = max(0, 2 - Decimal(repr(abs(float(value)))).adjusted())
        written = words.number(value, min(digits, 8))
        mark = words.number(0.1, 1)[1]
        return written.rstrip("0").rstrip(mark) if mark in written else written

    axis.set_major_formatter(text)
    axis.set_minor_locator(NullLocator())
