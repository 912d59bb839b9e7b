"""Figures of the report in its language: units on each axis, readable in black and white.

    >>> svg_text(box_figure(groups, words))

Each function returns a figure of matplotlib, which `figures.svg_text` and `png_bytes` write.
"""

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import pairwise
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
# Characters of a line beside the axes; a longer name goes on in the next one.
_LINE: Final = 40
# Height of a line beside the axes, as a share of theirs, and of a row above them.
_LINE_HEIGHT: Final = 0.033
_LEGEND_INCHES: Final = 0.18
# A logarithmic axis whose bounds are nearer has ticks at 1, 2 and 5; numbers are wider than high.
_MANY_DECADES: Final = {"x": 2e3, "y": 1e6}
# As far as a break-even is looked for, so that each one of the table is drawn.
_CURVE: Final = tuple(int(10 ** (step / 8)) for step in range(16, 73))


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
    axes.set_yticks(positions, [_label(labels[id(g)], len(g.warm_s), words) for g in groups])
    axes.set_ylim(0.3, len(groups) + 0.7)
    _scale_times(axes, box_scale(groups), words)
    axes.set_xlabel(words("axis.round_trip"))
    return figure


def box_scale(groups: Sequence[Group]) -> str:
    """`log` where the groups' medians lie far apart, else `linear`."""
    return _scale([summarise(group.warm_s).p50 for group in groups])


def cost_scale(found: Sequence[Measured]) -> str:
    """`log` where the mean round trips lie far apart, else `linear`."""
    return _scale([one.round_trip.mean for one in found])


def _scale(seconds: Sequence[float]) -> str:
    return "log" if max(seconds) > _LOG_FROM * min(seconds) else "linear"


def _scale_times(axes: Any, scale: str, words: Words) -> None:
    """The horizontal axis, which has times."""
    if scale == "log":
        axes.set_xscale("log")
    else:
        axes.set_xlim(left=0)
    _plain(axes.xaxis, words)


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
        names.append(_label(labels[id(group)], n, words))
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


def _looks(found: Sequence[Measured], kinds: Sequence[str]) -> list[tuple[str, str]]:
    """Colour and kind (marker or dashes) of each, no two the same among the first 32.

    Each has a colour of its own while there are enough; then those of one model share one.
    """
    if len(found) <= len(_COLOURS):
        return [(_COLOURS[n], kinds[n % len(kinds)]) for n in range(len(found))]
    looks: list[tuple[str, str]] = []
    colour_of: dict[str | None, int] = {}
    begun = 0
    for one in found:
        used = sum(look[0] == _COLOURS[colour_of.get(one.model_id, -1)] for look in looks)
        if one.model_id not in colour_of or used == len(kinds):
            colour_of[one.model_id], used, begun = begun % len(_COLOURS), 0, begun + 1
        looks.append((_COLOURS[colour_of[one.model_id]], kinds[used % len(kinds)]))
    return looks


def cost_figure(
    found: Sequence[Measured], month: Month, requests: int, words: Words, names: Sequence[str]
) -> Any:
    """Cost of a month (USD) against the mean round trip (ms), on both bases, with intervals."""
    columns = 1 if max(map(len, names), default=0) > _TWO_COLUMNS else 2
    figure, axes = _square(legend_rows=math.ceil(len(names) / columns))
    for one, name, (colour, mark) in zip(found, names, _looks(found, "os^D"), strict=True):
        x, x_low, x_high = (1000 * value for value in _mean_bounds(one.round_trip))
        for basis, face, size in ((ROUND_TRIP, "white", 9), (CONTAINER, colour, 6)):
            y, y_low, y_high = (
                float(month.bill(one, requests, side=side, basis=basis).usd) for side in (0, -1, 1)
            )
            axes.errorbar(
                x, y, xerr=[[x - x_low], [x_high - x]],
                yerr=[[max(0.0, y - y_low)], [max(0.0, y_high - y)]],
                fmt=mark, color=colour, markerfacecolor=face, markersize=size,
                capsize=2, linewidth=1,
                label=f"{name}, n = {words.integer(one.container.n)}" if face == colour else None,
            )  # fmt: skip
    axes.set_yscale("log")
    axes.margins(y=0.2)
    axes.set_xlabel(words("axis.mean_round_trip"))
    axes.set_ylabel(words("axis.month_usd"))
    _scale_times(axes, cost_scale(found), words)
    _plain(axes.yaxis, words)
    figure.legend(loc="outside upper center", ncols=columns, fontsize=8, frameon=False)
    return figure


def curve_figure(
    found: Sequence[Measured], month: Month, words: Words, names: Sequence[str]
) -> Any:
    """Cost of a month (USD) by requests a month, with the band of the mean's interval.

    The name of each line stands at its end, where the eye follows it among others that are near.
    """
    figure, axes = _square()
    ends = []
    dashes = ("-", "--", ":", "-.")
    for one, name, (colour, dash) in zip(found, names, _looks(found, dashes), strict=True):
        middle, low, high = (
            [float(month.bill(one, n, side=side).usd) for n in _CURVE] for side in (0, -1, 1)
        )
        axes.plot(_CURVE, middle, dash, color=colour, linewidth=1.6)
        axes.fill_between(_CURVE, low, high, color=colour, alpha=0.2, linewidth=0)
        ends.append((middle[-1], _label(name, one.container.n, words), colour))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(_CURVE[0], _CURVE[-1])
    axes.set_xlabel(words("axis.requests"))
    axes.set_ylabel(words("axis.month_usd"))
    # Every second power of ten: a hundred million is long, and the names take a third of the width.
    _plain(axes.xaxis, words, most=4)
    _plain(axes.yaxis, words)
    _name_ends(axes, ends)
    return figure


def _label(name: str, n: int, words: Words) -> str:
    """A name with its n, in lines that leave most of the width to the axes."""
    # What is kept together has no spaces until the lines are made.
    text = f"{name}, n_=_{words.integer(n)}"
    lines = textwrap.fill(text, _LINE, break_long_words=False, break_on_hyphens=False)
    return lines.replace("n_=_", "n = ")


def _name_ends(axes: Any, ends: Sequence[tuple[float, str, str]]) -> None:
    """Write names beside the right edge, as near to the ends of their lines as they fit.

    Args:
        ends: value at the edge, name and colour of each line.
    """
    low, high = (math.log10(bound) for bound in axes.get_ylim())
    axes.set_ylim(10**low, 10**high)
    rows = sorted(((math.log10(y) - low) / (high - low), name, colour) for y, name, colour in ends)
    lines = [name.count("\n") + 2 for _, name, _ in rows]
    apart = [_LINE_HEIGHT * (below + above) / 2 for below, above in pairwise(lines)]
    heights: list[float] = []
    for number, (height, _, _) in enumerate(rows):
        least = heights[-1] + apart[number - 1] if heights else 0.0
        heights.append(max(height, least))
    # Those that were pushed above the axes move down again, and push what is below them.
    ceiling = 1.0
    for number in reversed(range(len(heights))):
        heights[number] = min(heights[number], ceiling)
        ceiling = heights[number] - (apart[number - 1] if number else 0.0)
    for (height, name, colour), beside in zip(rows, heights, strict=True):
        line = {"arrowstyle": "-", "color": colour, "linewidth": 1, "shrinkA": 1, "shrinkB": 0}
        axes.annotate(
            name, xy=(1, height), xytext=(1.05, beside), xycoords="axes fraction",
            textcoords="axes fraction", va="center", fontsize=8, color=INK, annotation_clip=False,
            arrowprops={**line, "relpos": (0, 0.5)},
        )  # fmt: skip


def png_bytes(figure: Any) -> bytes:
    """The figure as a PNG on white, at 130 dots an inch, in 256 colours: a third of the bytes."""
    from PIL import Image

    drawn, stream = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=130, facecolor="white", metadata={"Software": None})
    # Of the methods this one keeps rare colours, such as that of a short phase, as they are.
    few = (
        Image.open(drawn)
        .convert("RGB")
        .quantize(method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    )
    few.save(stream, "PNG", optimize=True)
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


def _square(*, legend_rows: int = 0) -> tuple[Any, Any]:
    """A figure whose axes keep their height, however many rows stand above them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.2, 4.4 + _LEGEND_INCHES * legend_rows), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dde3e6", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9)
    return figure, axes


def _plain(axis: Any, words: Words, *, most: int = 20) -> None:
    """Plain numbers in the language's form: nobody should have to undo powers of ten."""
    from matplotlib.ticker import LogLocator, NullLocator

    if axis.get_scale() == "log":
        low, high = axis.get_view_interval()
        # Over few decades their bounds alone would leave what lies between unread.
        subs = (1, 2, 5) if high < _MANY_DECADES[axis.axis_name] * low else (1,)
        axis.set_major_locator(LogLocator(subs=subs, numticks=most))

    def text(value: float, _: int) -> str:
        if value == 0:
            return "0"
        digits = max(0, 2 - Decimal(repr(abs(float(value)))).adjusted())
        written = words.number(value, min(digits, 8))
        mark = words.number(0.1, 1)[1]
        return written.rstrip("0").rstrip(mark) if mark in written else written

    axis.set_major_formatter(text)
    axis.set_minor_locator(NullLocator())
