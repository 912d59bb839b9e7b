"""Model cards as Markdown, from what `model.json` says and nothing else.

    >>> text = model_card(json.loads(Path("model/model.json").read_text()))

A section without a figure behind it says so; none is made up.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dr_training.backbones import BACKBONE_WEIGHTS, weights_words
from inference_image.contract import NOT_A_DEVICE, NOT_ASSESSED, TASK_GRADE5

DEMO_NOTICE = "Demo model trained on drawn photographs only; not for clinical use."
RANDOM_NOTICE = (
    "Its weights are random: for latency and cost measurements only, its grades mean nothing."
)
_FIGURES = (
    ("Accuracy (5 grades)", "accuracy", 3),
    ("Quadratic weighted kappa", "quadratic_weighted_kappa", 3),
    ("AUC for referable DR (grade ≥ 2)", "referable_auc", 4),
    ("Sensitivity at a specificity of 0.90", "sensitivity_at_0.90_specificity", 3),
)


def model_card(document: Mapping[str, Any], *, pictures: Mapping[str, str] | None = None) -> str:
    """The card of a package.

    Args:
        document: its `model.json`.
        pictures: caption -> path relative to the card, of pictures that lie beside it.
    """
    notice = f"**{document['notice']}** " if document.get("notice") else ""
    sections = [
        f"# Model card: {document['id']}",
        f"{notice}{NOT_A_DEVICE} {NOT_ASSESSED}",
        _summary(document),
        f"## Intended use\n{document.get('intended_use') or 'Not stated.'}",
        _data(document),
        _results(document),
        *(f"![{caption}]({path})\n\n{caption}." for caption, path in (pictures or {}).items()),
        _gate(document),
        _limits(document),
        _reproduce(document),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def estimate_words(estimate: Mapping[str, Any], digits: int = 3) -> str:
    """`0.940 (0.910 to 0.970)`; without an interval where there is none."""
    value, low, high = (estimate.get(name) for name in ("value", "low", "high"))
    if value is None:
        return "not defined (a class is empty)"
    if low is None or high is None:
        return f"{value:.{digits}f}"
    return f"{value:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def _summary(document: Mapping[str, Any]) -> str:
    graded = document["task"] == TASK_GRADE5
    size = document["input_size_px"]
    steps = " → ".join(step["step"] for step in document["preprocessing"])
    network = document.get("network") or {}
    parameters = network.get("parameters")
    name = network.get("name", "not stated")
    width = f", {network['alpha']:g} of the channels" if network.get("alpha", 1) != 1 else ""
    files = document["files"]
    rows = [
        ("answers", "the grade, 0 to 4 (ICDR)" if graded else "referable or not (grade ≥ 2)"),
        ("network", f"{name}{width}" + (f", {parameters:,} parameters" if parameters else "")),
        *(
            [("backbone's weights at the start", weights_words(network))]
            if network.get(BACKBONE_WEIGHTS)
            else []
        ),
        ("input", f"{size} x {size} px; {steps or 'prepared already: no crop, no mask'}"),
        ("quality gate", "on" if document.get("quality_gate") is not None else "none"),
        ("temperature", f"{document['temperature']:g}"),
        *_calibration(document),
        *((f"`{path}`", f"{entry['size_bytes']:,} bytes") for path, entry in sorted(files.items())),
        ("licence", document.get("licence") or "not stated"),
    ]
    if variant := document.get("variant"):
        rows.insert(2, ("variant", variant["kind"]))
    return _table(("", ""), rows)


def _calibration(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    record = document.get("calibration")
    if not record:
        return []
    error = record["expected_calibration_error"]
    return [
        (
            f"calibration error of P(referable) on {record['data']}, n = {record['photographs']:,}",
            f"{error['before']:.4f} before, {error['after']:.4f} after",
        )
    ]


def _data(document: Mapping[str, Any]) -> str:
    provenance = document.get("provenance") or {}
    lines = ["## Data", f"Trained on: {provenance.get('trained_on') or 'not stated'}."]
    lines += _origin(provenance.get("records"))
    recipe = provenance.get("recipe") or {}
    splits = [recipe[name] for name in ("train", "validation", "test") if name in recipe]
    if splits:
        lines += [
            (
                "Described, with pictures and with what is exaggerated, in "
                "`docs/drawn-photographs.md`; prepared by the service's own preprocessing. One eye "
                "per seed; no eye is in two splits."
            ),
            _table(
                ("split", "eyes", "photographs", "first seed"),
                [
                    (
                        split["name"],
                        f"{split['eyes']:,}",
                        f"{split['eyes'] * split['grades_per_eye']:,}",
                        split["first_seed"],
                    )
                    for split in splits
                ],
            ),
        ]
    return "\n\n".join(lines)


def _origin(record: Any) -> list[str]:
    """Table and split by the first digits of their digests, as `dr model inspect` shows a model."""
    if not isinstance(record, Mapping) or "trained_on" not in record:
        return []
    table, split = (str(record.get(name) or "")[:12] for name in ("table_sha256", "split_sha256"))
    named = f"table `{table}`" if table else "a table that is not recorded"
    named += f", split `{split}`" if split else ""
    told = (
        f"Of {named} (first digits of their digests) it was trained on the part "
        f"{record['trained_on']}; the part {record.get('chosen_on')} chose temperature and "
        f"thresholds, and its figures are of the part {record.get('measured_on')}."
    )
    return [told]


def _results(document: Mapping[str, Any]) -> str:
    metrics = document.get("metrics")
    points = document["operating_points"]
    if not metrics:
        rows = [
            (f"`{point['name']}`", f"{point['threshold']:.4f}", point.get("chosen", "not stated"))
            for point in points
        ]
        return (
            "## Results\n\nNot measured: no figure of this model is known, and no operating point "
            "is validated.\n\n" + _table(("operating point", "threshold", "chosen"), rows)
        )
    figures = [
        (title, estimate_words(metrics[key], digits))
        for title, key, digits in _FIGURES
        if key in metrics
    ]
    if metrics.get("mean_auc") is not None:
        figures.append(("Mean AUC of one grade against the others", f"{metrics['mean_auc']:.3f}"))
    if "referable_calibration_error" in metrics:
        figures.append(
            ("Calibration error of P(referable)", f"{metrics['referable_calibration_error']:.4f}")
        )
    measured = metrics.get("operating_points", {})
    rows = [
        (
            f"`{point['name']}`",
            f"{point['threshold']:.4f}",
            *(
                estimate_words(measured[point["name"]][kind])
                for kind in ("sensitivity", "specificity")
            ),
            point.get("chosen", "not stated"),
        )
        for point in points
        if point["name"] in measured
    ]
    # Two photographs of a patient are not two patients, so the card says how many those are.
    whose = f" photographs of {metrics['patients']:,} patients" if metrics.get("patients") else ""
    heading = (
        f"## Results\n\nOn {metrics.get('data', 'data that are not stated')}, "
        f"n = {metrics['photographs']:,}{whose}; in brackets: "
        f"{metrics.get('interval', 'no interval')}."
    )
    parts = [
        heading,
        _table(("figure", "value"), figures),
        _table(("operating point", "threshold", "sensitivity", "specificity", "chosen"), rows),
    ]
    if "grade_agreement_int8_with_float" in metrics:
        share = 100 * metrics["grade_agreement_int8_with_float"]
        when = " (in the training's own run)" if "grade_agreement_from" in metrics else ""
        parts.append(f"int8 and f32 say the same on {share:.1f} % of the validation split{when}.")
    if confusion := metrics.get("confusion"):
        labels = confusion["labels"]
        counts = zip(labels, confusion["counts"], strict=True)
        parts.append(
            _table(("true ↓ predicted →", *labels), [(f"**{name}**", *row) for name, row in counts])
        )
    return "\n\n".join(parts)


def _gate(document: Mapping[str, Any]) -> str:
    gate = document.get("gate")
    if not gate:
        return ""
    rows = [
        (name, gate[name]["reference"], gate[name]["candidate"], gate[name]["fall_at_most"])
        for name in ("sensitivity", "specificity", "auc", "kappa")
        if gate.get(name) and gate[name].get("fall_at_most") is not None
    ]
    reasons = "".join(f" {reason}." for reason in gate["reasons"])
    return (
        f"## Against its reference\n\nThe gate's verdict beside `{gate['reference']['id']}` on "
        f"{gate['data']}, n = {gate['photographs']:,}: **{gate['verdict']}**.{reasons}\n\n"
        + _table(("figure", "reference", "this", "may have fallen by (95 %)"), rows)
    )


def _limits(document: Mapping[str, Any]) -> str:
    lines = [f"- {NOT_ASSESSED}"]
    calibration = document.get("calibration") or {}
    lines += [f"- {one[:1].upper()}{one[1:]}." for one in calibration.get("remarks", ())]
    if document.get("head_file") and "feature_map" in document["outputs"]:
        lines.append("- A heat map (Grad-CAM) shows what moved the answer, not where a lesion is.")
    else:
        lines.append("- It offers no heat map: it has no feature map, or no head that is known.")
    if document["task"] != TASK_GRADE5:
        lines.append("- It says referable or not, and no grade.")
    if document.get("quality_gate") is None:
        lines.append("- It grades whatever it is sent: no photograph is called ungradable.")
    if document.get("notice") == DEMO_NOTICE:
        lines.append(
            "- It has seen drawn photographs only. On a real one its answer shows that the "
            "deployment works and says nothing about the patient: no figure on this page holds "
            "for real photographs. Lesions are drawn larger and darker than many real ones, and "
            "nothing but diabetic retinopathy is drawn."
        )
    return "\n".join(["## What it cannot do", "", *lines])


def _reproduce(document: Mapping[str, Any]) -> str:
    provenance = document.get("provenance") or {}
    if not provenance.get("command"):
        return ""
    text = f"## Reproduce\n\n```\n{provenance['command']}\n```"
    if "seed" in provenance:
        return text + (
            "\nThe file is too large to commit; this writes it again. The weights are the same on "
            "any machine; the converter's choice of scales may differ with another version of "
            "TensorFlow, and then the digest differs: commit the new `model.json`."
        )
    if "environment" in provenance:
        return text + (
            "\nSeeds, library versions and thread counts are in `model.json`. Another number of "
            "threads or another processor gives slightly other weights."
        )
    return text


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)
