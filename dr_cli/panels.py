"""What a person reads on the terminal: one panel per photograph, one table per experiment."""

from collections.abc import Sequence

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from dr_cli.console import indented
from dr_experiments.analysis import ConfigurationAnalysis
from dr_experiments.client import Measurement
from dr_experiments.report import format_ms, format_usd
from inference_image.contract import NOT_ASSESSED, Prediction
from inference_image.model_spec import ModelSpec

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
    known_grade: int | None = None,
) -> Panel:
    """Grade, referable decision, quality and latency of one answered photograph.

    Args:
        title: what was sent and where to.
        notice: a sentence of the model about itself, if the answer has none.
        known_grade: the true grade, where it is known; the panel says how far off the answer is.
    """
    answer = measurement.answer
    if answer is None:
        return failure_panel(title, f"{measurement.outcome}: {measurement.error}")
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    grid.add_row("grade", _grade(answer))
    if known_grade is not None:
        grid.add_row("", _verdict(known_grade, answer["grade"]))
    grid.add_row("referable", _referable(answer))
    grid.add_row("quality", _quality(answer))
    grid.add_row("latency", _latency(measurement, answer))
    model = answer["model"]
    digest = model["sha256"][:_DIGEST_CHARACTERS]
    grid.add_row("model", f"{model['id']} · sha256 {digest}…")
    sentences = [s for s in (model.get("notice") or notice, NOT_ASSESSED) if s]
    grid.add_row("note", Text(" ".join(sentences), style="yellow"))
    return Panel(grid, title=title, title_align="left", border_style=_border(answer))


def held_out(spec: ModelSpec) -> str | None:
    """What the package records of its model on held-out photographs; None where it does not."""
    metrics = spec.raw.get("metrics") or {}
    try:
        accuracy, kappa = metrics["accuracy"], metrics["quadratic_weighted_kappa"]
        return (
            f"On {metrics['photographs']:,} held-out photographs ({metrics['data']}) its grade is "
            f"right in {_percent(accuracy['value'])} % (95 % interval "
            f"{_percent(accuracy['low'])} to {_percent(accuracy['high'])} %); quadratic weighted "
            f"kappa {kappa['value']:.3f} ({kappa['low']:.3f} to {kappa['high']:.3f})."
        )
    except KeyError:
        return None


def failure_panel(title: str, reason: str) -> Panel:
    """A photograph that brought no answer, and why."""
    return Panel(Text(reason, style="red"), title=title, title_align="left", border_style="red")


def results_table(
    rows: Sequence[ConfigurationAnalysis], *, requests_per_hour: float, busy: str | None = None
) -> Group:
    """Latency statistics (ms) and estimated cost per 1,000, one row per deployment.

    `busy` is a warning about the machine, see `dr_experiments.provenance.machine_busy`.
    """
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1))
    for name in (
        "deployment",
        "n",
        "fail",
        "mean ms",
        "sd ms",
        "p50 ms",
        "p95 ms",
        "p99 ms",
        "USD/1,000",
    ):
        heading = name.replace(" ", "\n")
        table.add_column(heading, justify="left" if name == "deployment" else "right", no_wrap=True)
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
        indented(table),
        *(indented(Text(note, style="dim")) for note in _footnotes(rows, requests_per_hour)),
        *([indented(Text(busy, style="yellow"))] if busy else []),
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
        f"  {_bar(probability)} {_probability(probability)}",
    )


def _referable(answer: Prediction) -> Text:
    referable = answer["referable"]
    if referable["positive"] is None or referable["probability"] is None:
        return Text("no decision", style="dim")
    words, style = ("yes, refer", "bold red") if referable["positive"] else ("no", "bold green")
    text = Text.assemble(
        (words, style),
        f"  P(grade ≥ 2) {_relation(referable['probability'])}, threshold "
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
    model = "model not run"
    if answer["predictions"] is not None:
        model = f"{format_ms(answer['predictionLatency'] * 1000)} ms model"
    start = " · cold start" if measurement.cold else ""
    return f"{full} ms round trip · {container} ms in the container · {model}{start}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _verdict(known: int, answered: int | None) -> Text:
    if answered is None:
        return Text(f"known grade {known}, not graded", style="yellow")
    off = abs(known - answered)
    if off == 0:
        return Text(f"known grade {known}, answered {answered}: right", style="green")
    steps = "one grade" if off == 1 else f"{off} grades"
    return Text(f"known grade {known}, answered {answered}: {steps} off", style="yellow")


def _relation(probability: float) -> str:
    text = _probability(probability)
    return f"{text[0]} {text[1:]}" if text[0] in "<>" else f"= {text}"


def _probability(value: float) -> str:
    """Two digits; never "1.00" or "0.00" for what is not certain."""
    if value >= 0.995:
        return ">0.99"
    return "<0.01" if value < 0.005 else f"{value:.2f}"


def _bar(share: float) -> str:
    filled = round(share * _BAR_CELLS)
    return "█" * filled + "░" * (_BAR_CELLS - filled)


def _border(answer: Prediction) -> str:
    if not answer["quality"]["gradable"]:
        return "yellow"
    return "red" if answer["referable"]["positive"] else "green"
