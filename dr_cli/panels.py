"""What a person reads on the terminal: one panel per photograph, one table per experiment."""

from collections.abc import Sequence

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from dr_experiments.analysis import ConfigurationAnalysis
from dr_experiments.client import Measurement
from dr_experiments.report import format_ms, format_usd
from inference_image.contract import NOT_ASSESSED, Prediction

_BAR_CELLS = 20
_DIGEST_CHARACTERS = 12
_REASON_WORDS = {
    "not_a_fundus_photograph": "not a fundus photograph",
    "too_dark": "too dark",
    "too_bright": "too bright",
    "blurred": "blurred",
    "clipped_field": "field of view cut off",
}


def prediction_panel(
    title: str,
    measurement: Measurement,
    *,
    notice: str | None = None,
    known_grade: str | None = None,
) -> Panel:
    """Grade, referable decision, quality and latency of one answered photograph.

    Args:
        title: what was sent and where to.
        notice: a sentence of the model about itself, if the answer has none.
        known_grade: the true grade, in words, where it is known.
    """
    answer = measurement.answer
    if answer is None:
        return Panel(
            Text(f"{measurement.outcome}: {measurement.error}", style="red"),
            title=title,
            title_align="left",
            border_style="red",
        )
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    if known_grade:
        grid.add_row("true grade", known_grade)
    grid.add_row("grade", _grade(answer))
    grid.add_row("referable", _referable(answer))
    grid.add_row("quality", _quality(answer))
    grid.add_row("latency", _latency(measurement, answer))
    model = answer["model"]
    digest = model["sha256"][:_DIGEST_CHARACTERS]
    grid.add_row("model", f"{model['id']} · sha256 {digest}…")
    sentences = [s for s in (model.get("notice") or notice, NOT_ASSESSED) if s]
    grid.add_row("note", Text(" ".join(sentences), style="yellow"))
    return Panel(grid, title=title, title_align="left", border_style=_border(answer))


def results_table(
    rows: Sequence[ConfigurationAnalysis], *, requests_per_hour: float, busy: str | None = None
) -> Group:
    """Latency statistics (ms) and estimated cost per 1,000, one row per deployment.

    `busy` is a warning about the machine, see `dr_experiments.provenance.machine_busy`.
    """
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1))
    for name in ("deployment", "n", "fail", "mean", "sd", "p50", "p95", "p99", "USD/1,000"):
        table.add_column(name, justify="left" if name == "deployment" else "right", no_wrap=True)
    for row in rows:
        mark = "" if row.facts.distinguishable else " *"
        cost = "no price" if row.cost_missing else "\N{EN DASH}"
        if row.cost:
            cost = format_usd(row.cost.usd_per_1000)
        if row.round_trip is None:
            table.add_row(
                row.title + mark, "0", str(row.failed), *["\N{EN DASH}"] * 5, cost, style="red"
            )
            continue
        s = row.round_trip
        table.add_row(
            row.title + mark,
            str(s.n),
            str(row.failed),
            format_ms(s.mean),
            format_ms(s.sd),
            format_ms(s.p50),
            format_ms(s.p95) + ("†" if s.p95_is_extreme else ""),
            format_ms(s.p99) + ("†" if s.p99_is_extreme else ""),
            cost,
            style="dim" if mark else "",
        )
    return Group(
        table,
        Text("\n".join(_footnotes(rows, requests_per_hour)), style="dim"),
        *([Text(busy, style="yellow")] if busy else []),
    )


def _footnotes(rows: Sequence[ConfigurationAnalysis], requests_per_hour: float) -> list[str]:
    notes = ["Client's round trip of warm requests in ms, on this machine: not AWS latencies."]
    instances = next((row for row in rows if row.cost_full_use), None)
    cost = "Cost is estimated: measured seconds in the container and data, times AWS list prices."
    if instances and instances.cost_full_use:
        cost += (
            f" Real-time: at {requests_per_hour:,.0f} requests an hour; "
            f"{format_usd(instances.cost_full_use.usd_per_1000)} if never idle."
        )
    notes.append(cost)
    measured = [row.round_trip for row in rows if row.round_trip]
    if any(s.p99_is_extreme for s in measured):
        notes.append("† With so few requests this lies between the two slowest of them.")
    if any(not row.facts.distinguishable for row in rows):
        notes.append("* Asks for more processor than this machine has: not distinguishable here.")
    notes += [f"{row.title}: {reason}" for row in rows for reason in row.failure_reasons]
    notes += sorted({row.cost_missing for row in rows if row.cost_missing})
    return notes


def _grade(answer: Prediction) -> Text:
    if answer["grade"] is None or answer["predictions"] is None:
        return Text("not given", style="dim")
    probability = answer["predictions"][answer["grade"]]
    return Text.assemble(
        (f"{answer['grade']}  {answer['label']}", "bold"),
        f"  {_bar(probability)} {probability:.2f}",
    )


def _referable(answer: Prediction) -> Text:
    referable = answer["referable"]
    if referable["positive"] is None or referable["probability"] is None:
        return Text("no decision", style="dim")
    words, style = ("yes, refer", "bold red") if referable["positive"] else ("no", "bold green")
    text = Text.assemble(
        (words, style),
        f"  P(grade ≥ 2) = {referable['probability']:.2f}, threshold "
        f"{referable['threshold']:.2f} ({referable['operating_point'].replace('_', ' ')})",
    )
    if answer["consistent"] is False:
        text.append("  grade and decision disagree: act on the decision", style="yellow")
    return text


def _quality(answer: Prediction) -> Text:
    quality = answer["quality"]
    if quality["gradable"]:
        return Text("gradable", style="green")
    reasons = ", ".join(_REASON_WORDS.get(reason, reason) for reason in quality["reasons"])
    return Text(f"not gradable, retake the photograph: {reasons}", style="bold yellow")


def _latency(measurement: Measurement, answer: Prediction) -> str:
    full = format_ms((measurement.full_latency_s or 0) * 1000)
    container = format_ms(answer["requestLatency"] * 1000)
    model = format_ms(answer["predictionLatency"] * 1000)
    start = " · cold start" if measurement.cold else ""
    return f"{full} ms round trip · {container} ms in the container · {model} ms model{start}"


def _bar(share: float) -> str:
    filled = round(share * _BAR_CELLS)
    return "█" * filled + "░" * (_BAR_CELLS - filled)


def _border(answer: Prediction) -> str:
    if not answer["quality"]["gradable"]:
        return "yellow"
    return "red" if answer["referable"]["positive"] else "green"
