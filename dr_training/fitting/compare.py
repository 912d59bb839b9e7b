"""Trains several networks the same way on the same records, and ranks quality against cost.

    >>> rows = ranked([...])
    >>> markdown(rows, ...)

Each network trains in its own folder below the output folder, so that a stopped comparison goes
on where it was. Latency is that of the float `.tflite` on this machine, one picture at a time on
one thread, networks taking turns, the median of CPU times (`time.process_time`): other work on
the machine moves them together. A network that no other beats in quality, latency and size at
once is on the front.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from dr_training.backbones import BACKBONE_WEIGHTS, WHY_RANDOM, weights_and_reason
from dr_training.data.faults import DataError
from dr_training.fitting.plan import TrainingPlan
from dr_training.latency import latencies

_ROUNDS: Final = 25
COMPARISON: Final = "comparison"
_TITLES: Final = (
    "#",
    "network",
    "kappa",
    "accuracy",
    "AUC",
    "referable AUC",
    "CPU ms",
    "MB",
    "parameters",
    "backbone's weights",
)


def compare_networks(
    records: Path,
    out: Path,
    plan: TrainingPlan,
    networks: Sequence[str],
    *,
    say: Callable[[str], None] = lambda line: print(line, flush=True),
    **choices: Any,
) -> list[dict[str, Any]]:
    """Train each network by `plan`, measure, rank, and write `comparison.json` and `.md`.

    Raises:
        DataError: a name is unknown or comes twice, or a training is not possible.
    """
    if len(set(networks)) != len(networks) or len(networks) < 2:
        raise DataError("name two networks or more, each once")
    if plan.task != "grade5":
        raise DataError("dr model compare ranks graders; the task must be grade5")
    plans = [replace(plan, network=name) for name in networks]
    from dr_training.fitting.run import train_records

    rows, packages = [], []
    for one in plans:
        say(f"== {one.network}")
        trained = train_records(records, out / one.network, one, **choices)
        report = trained.report
        if trained.package is None:
            raise DataError("dr model compare runs on one worker; unset TF_CONFIG")
        model = trained.package / "model.tflite"
        packages.append(model)
        measured = report.get("test") or report["validation"]
        rows.append(
            {
                "network": one.network,
                BACKBONE_WEIGHTS: report[BACKBONE_WEIGHTS],
                WHY_RANDOM: report[WHY_RANDOM],
                "parameters": report["parameters"],
                "size_mb": round(model.stat().st_size / 1e6, 2),
                "epochs": report["epochs"],
                "measured_on": "test" if report.get("test") else "validation",
                "photographs": report["photographs"][
                    "test" if report.get("test") else "validation"
                ],
                **{k: measured[k] for k in ("accuracy", "kappa", "auc", "referable_auc")},
            }
        )
    models = [package.read_bytes() for package in packages]
    for row, latency in zip(rows, latencies(models, rounds=_ROUNDS), strict=True):
        row["latency_cpu_ms"] = round(latency.cpu_ms, 2)
    rows = ranked(rows)
    document = {"plan": {**plan.as_document(), "network": None}, "rows": rows}
    _write(out / f"{COMPARISON}.json", json.dumps(document, indent=2) + "\n")
    _write(out / f"{COMPARISON}.md", markdown(rows))
    return rows


def ranked(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows by kappa, best first, with `on_front`: none is at least as good, fast and small."""
    result: list[dict[str, Any]] = []
    for row in sorted(rows, key=_quality, reverse=True):
        beaten = any(_beats(other, row) for other in rows if other is not row)
        result.append({"rank": len(result) + 1, **row, "on_front": not beaten})
    return result


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The ranking as a page."""
    n, part = rows[0]["photographs"], rows[0]["measured_on"]
    lines = [
        "# Comparison of networks",
        "",
        f"Measured on the {part} part, n = {n:,} photographs"
        + ("; the epoch was chosen on it, so the figures flatter." if part != "test" else "."),
        "Latency: median CPU time of one inference of the float `.tflite`, one thread.",
        "● no other network is at least as good, fast and small.",
        "",
        f"| {' | '.join(_TITLES)} | |",
        "|---" * (len(_TITLES) + 1) + "|",
    ]
    lines += [
        f"| {row['rank']} | {row['network']} | {_figure(row['kappa'])} | "
        f"{_figure(row['accuracy'])} | {_figure(row['auc'])} | {_figure(row['referable_auc'])} | "
        f"{row['latency_cpu_ms']:.2f} | {row['size_mb']:.2f} | {row['parameters']:,} | "
        f"{_marked(row)} | {'●' if row['on_front'] else ''} |"
        for row in rows
    ]
    reasons = [
        f"- {row['network']}: {reason}"
        for row in rows
        if (reason := weights_and_reason(row)[1]) is not None
    ]
    if reasons:
        lines += ["", "† Random, because others could not be had:", "", *reasons]
    return "\n".join(lines) + "\n"


def _marked(row: Mapping[str, Any]) -> str:
    """Where weights are from, with a dagger where the reason stands below the table."""
    weights, reason = weights_and_reason(row)
    return weights if reason is None else f"{weights} †"


def _quality(row: Mapping[str, Any]) -> float:
    return -2.0 if row["kappa"] is None else float(row["kappa"])


def _beats(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    mine = (_quality(one), -one["latency_cpu_ms"], -one["size_mb"])
    theirs = (_quality(other), -other["latency_cpu_ms"], -other["size_mb"])
    return mine != theirs and all(a >= b for a, b in zip(mine, theirs, strict=True))


def _figure(value: float | None) -> str:
    return "not defined" if value is None else f"{value:.3f}"


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
