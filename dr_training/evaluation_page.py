"""Writes an evaluation for people: a Markdown page, two pictures, and a row for each photograph."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dr_training.data.table import write_whole
from dr_training.evaluation import roc_curve
from dr_training.scoring import Scored
from inference_image.contract import GRADE_LABELS, NOT_A_DEVICE, NOT_ASSESSED

REPORT_JSON = "report.json"
PAGE = "report.md"
CONFUSION = "confusion.png"
ROC = "roc.png"
PREDICTIONS = "predictions.csv"
_INK = "#1f3b57"


def write_evaluation(
    report: Mapping[str, Any], scored: Scored, out: Path, *, title: str
) -> list[Path]:
    """Write `report.json`, `report.md`, `predictions.csv`, `roc.png` and `confusion.png`.

    Args:
        report: of `evaluation.evaluate`, perhaps with more keys (`model`, `data`, `calibration`).
        scored: the answers behind it.
        out: folder, made where it is missing.
        title: heading of the page.
    """
    write_answers(scored, out)
    write_whole(out / REPORT_JSON, (json.dumps(report, indent=2) + "\n").encode())
    graded = scored.chosen(scored.gradable)
    false, true = roc_curve(graded.referable, graded.score)
    write_whole(out / ROC, roc_picture(false.tolist(), true.tolist(), report["operating_points"]))
    pictures = [ROC]
    if "confusion" in report:
        write_whole(out / CONFUSION, confusion_picture(report["confusion"]["counts"]))
        pictures.append(CONFUSION)
    write_whole(out / PAGE, page(report, title=title, pictures=pictures).encode())
    return [out / name for name in (REPORT_JSON, PAGE, PREDICTIONS, *pictures)]


def write_answers(scored: Scored, out: Path) -> Path:
    """Write `predictions.csv` alone, and remove what an older evaluation left in the folder.

    Of answers without a single grade there is no report; one of before beside them would be taken
    for theirs.
    """
    out.mkdir(parents=True, exist_ok=True)
    for name in (REPORT_JSON, PAGE, CONFUSION, ROC, PREDICTIONS):
        (out / name).unlink(missing_ok=True)
    write_whole(out / PREDICTIONS, _predictions(scored))
    return out / PREDICTIONS


def page(report: Mapping[str, Any], *, title: str, pictures: list[str]) -> str:
    """The report as Markdown."""
    refused = report["ungradable"]
    counted = (
        f"{report['photographs']:,} photographs, of which the model called "
        f"{refused['photographs']:,} ungradable and {refused['failed']:,} could not be read. Of "
        f"the {report['gradable']:,} others {report['referable']:,} are referable (grade ≥ 2). In "
        f"brackets: {report['interval']}."
    )
    lines = [
        f"# {title}",
        "",
        f"**{NOT_A_DEVICE} {NOT_ASSESSED}**",
        "",
        counted,
        "",
        *([f"Note: {report['note']}.", ""] if report.get("note") else []),
        "| figure | value |",
        "|---|---|",
    ]
    for name, key in (
        ("Accuracy (5 grades)", "accuracy"),
        ("Quadratic weighted kappa", "quadratic_weighted_kappa"),
        ("AUC for referable DR", "referable_auc"),
    ):
        if key in report:
            lines.append(f"| {name} | {estimate(report[key])} |")
    for grade, value in report.get("auc_by_grade", {}).items():
        lines.append(f"| AUC, grade {grade} against the others | {estimate(value)} |")
    lines.append(f"| Calibration error of P(referable) | {report['referable_calibration_error']} |")
    lines += ["", *_points(report)]
    if refused["photographs"]:
        lines += ["", "## Ungradable", "", _ungradable(refused)]
    for column, groups in report.get("subgroups", {}).items():
        lines += ["", f"## By {column}", "", *_groups(groups)]
    lines += ["", *(f"![{Path(name).stem}]({name})" for name in pictures), ""]
    return "\n".join(lines)


def estimate(value: Mapping[str, float | None]) -> str:
    """`0.94 (0.91 to 0.97)`, or why there is none."""
    if value["value"] is None:
        return "not defined (a class is empty)"
    if value["low"] is None or value["high"] is None:
        return f"{value['value']:.3f}"
    return f"{value['value']:.3f} ({value['low']:.3f} to {value['high']:.3f})"


def roc_picture(
    false: Sequence[float], true: Sequence[float], operating_points: Mapping[str, Any]
) -> bytes:
    """PNG: the ROC curve of the referable decision, with the operating points on it.

    Args:
        false: false positive rates of the curve, rising.
        true: true positive rates at them.
        operating_points: of an evaluation's report, by name.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 4.4), layout="constrained")
    axes = figure.subplots()
    axes.plot(false, true, color=_INK, drawstyle="steps-post")
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=0.8)
    for name, point in operating_points.items():
        sens, spec = point["sensitivity"]["value"], point["specificity"]["value"]
        if sens is not None and spec is not None:
            axes.plot(1 - spec, sens, "o", label=name.replace("_", " "))
    axes.set(xlabel="1 - specificity", ylabel="sensitivity", xlim=(-0.01, 1), ylim=(0, 1.01))
    axes.set_title("Referable DR (grade ≥ 2)", fontsize=10)
    if operating_points:
        axes.legend(loc="lower right", fontsize=8, frameon=False)
    return _png(figure)


def confusion_picture(counts: list[list[int]]) -> bytes:
    """PNG: true grades against predicted ones, shaded by the share of the true grade."""
    from matplotlib.figure import Figure

    table = np.array(counts)
    shares = table / np.maximum(1, table.sum(axis=1, keepdims=True))
    figure = Figure(figsize=(5.0, 4.4), layout="constrained")
    axes = figure.subplots()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for (row, column), count in np.ndenumerate(table):
        colour = "white" if shares[row, column] > 0.6 else "black"
        axes.text(column, row, f"{count:,}", ha="center", va="center", color=colour, fontsize=9)
    labels = [f"{grade} {label}" for grade, label in enumerate(GRADE_LABELS)]
    axes.set_xticks(range(len(labels)), labels, rotation=30, ha="right", fontsize=8)
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.set(xlabel="predicted grade", ylabel="true grade")
    return _png(figure)


def _png(figure: Any) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=110, metadata={"Software": None})
    return stream.getvalue()


def _points(report: Mapping[str, Any]) -> list[str]:
    points = report["operating_points"]
    if not points:
        return []
    has_values = any("ppv" in point for point in points.values())
    head = ["operating point", "threshold", "sensitivity", "specificity"]
    head += ["ungradable referred: sensitivity", "specificity"]
    if has_values:
        prevalence = next(iter(points.values()))["prevalence"]
        head += [f"PPV at {100 * prevalence:g} %", f"NPV at {100 * prevalence:g} %"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, point in points.items():
        all_of_them = point["with_ungradable_referred"]
        cells = [f"`{name}`", f"{point['threshold']:.4f}"]
        cells += [estimate(point["sensitivity"]), estimate(point["specificity"])]
        cells += [estimate(all_of_them["sensitivity"]), estimate(all_of_them["specificity"])]
        if has_values:
            cells += [estimate(point["ppv"]), estimate(point["npv"])]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _ungradable(refused: Mapping[str, Any]) -> str:
    grades = ", ".join(
        f"{count} of grade {grade}" for grade, count in enumerate(refused["by_grade"])
    )
    reasons = ", ".join(f"{reason} {count}" for reason, count in refused["reasons"].items())
    return f"By their true grade: {grades}. Reasons: {reasons}."


def _groups(groups: Mapping[str, Mapping[str, Any]]) -> list[str]:
    names = list(next(iter(groups.values())).get("operating_points", {}))
    head = ["value", "photographs", "ungradable", "referable", "AUC"]
    for name in names:
        head += [f"sensitivity `{name}`", f"specificity `{name}`"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    few = False
    for value, group in groups.items():
        few = few or group["few"]
        cells = [f"{value}{' *' if group['few'] else ''}", str(group["photographs"])]
        cells += [str(group["ungradable"]), str(group["referable"])]
        cells.append(estimate(group["referable_auc"]) if "referable_auc" in group else "")
        for name in names:
            point = group.get("operating_points", {}).get(name)
            cells += (
                [estimate(point["sensitivity"]), estimate(point["specificity"])]
                if point
                else ["", ""]
            )
        lines.append("| " + " | ".join(cells) + " |")
    if few:
        lines += ["", "\\* Fewer than ten referable or ten other photographs: too few to judge."]
    return lines


def _predictions(scored: Scored) -> bytes:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    classes = scored.probabilities.shape[1]
    writer.writerow(["id", "grade", "status", "reasons", *(f"p{k}" for k in range(classes))])
    for index, one in enumerate(scored.photographs):
        status = "ungradable"
        if scored.failed[index]:
            status = "failed"
        elif scored.gradable[index]:
            status = "graded"
        row = scored.probabilities[index]
        cells = [f"{value:.6g}" for value in row] if scored.gradable[index] else [""] * classes
        writer.writerow([one.id, scored.truth[index], status, scored.reasons[index], *cells])
    return stream.getvalue().encode()
