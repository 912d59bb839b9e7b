"""`dr model quantise`: variants of a trained package; runs where TensorFlow is."""

import json
from pathlib import Path
from typing import Any

from rich.table import Table as Grid

from dr_cli.console import make_console, print_note
from dr_training.data.faults import DataError
from dr_training.data.splits import TEST, TRAIN, VALIDATION, read_split
from dr_training.data.table import read_table, write_whole
from dr_training.gate import Margins
from dr_training.model_card import estimate_words
from dr_training.origin import Judged, refuse_seen
from inference_image.contract import NOT_A_DEVICE
from inference_image.model_spec import load_model_spec

SUMMARY_JSON = "variants.json"
SUMMARY_PAGE = "variants.md"
_HEAD = ("variant", "MB", "CPU ms", "accuracy", "kappa", "sensitivity", "specificity", "gate")


def quantise_package(
    *,
    package: str,
    table: str,
    split: str,
    out: str,
    kinds: list[str],
    representatives: int,
    sensitivity: float,
    specificity: float,
    margin: float,
    draws: int,
    network: str | None,
    epochs: int,
) -> int:
    """Write the variants and a table of them; 1 where int8 was wanted and no int8 passed."""
    rows = read_table(Path(table))
    division = read_split(Path(split), rows)
    parts = {name: division.members(rows, name) for name in (TRAIN, VALIDATION, TEST)}
    for name, members in parts.items():
        if not members:
            raise DataError(f"{split} puts no photograph in the part {name!r}")
    # Before TensorFlow is started: the test part measures and gates every variant.
    print_note(
        refuse_seen(load_model_spec(Path(package)), Judged(table=rows, split=division, part=TEST))
    )
    from dr_training.quantise import INT8, VARIANTS
    from dr_training.variants import AWARE, Aims, Aware, Parts, make_variants

    made = make_variants(
        Path(package),
        Path(out),
        photographs=Parts(train=parts[TRAIN], validation=parts[VALIDATION], test=parts[TEST]),
        kinds=kinds or VARIANTS,
        representatives=representatives,
        aims=Aims(
            sensitivity=sensitivity,
            specificity=specificity,
            margins=Margins(sensitivity=margin),
            draws=draws,
        ),
        aware=None if network is None else Aware(network=Path(network), epochs=epochs),
        data=Path(table).stem,
        report=lambda line: print(line, flush=True),
    )
    summary = [_row(one) for one in made]
    write_whole(Path(out) / SUMMARY_JSON, (json.dumps(summary, indent=2) + "\n").encode())
    write_whole(Path(out) / SUMMARY_PAGE, _page(made, Path(table).stem).encode())
    grid = Grid(*_HEAD, box=None, padding=(0, 2, 0, 0))
    for one in made:
        grid.add_row(*_cells(one))
    make_console().print(grid)
    print(f"packages and {SUMMARY_PAGE} in {out}")
    verdicts = {one.kind: one.verdict for one in made}
    if INT8 not in verdicts or "passed" in (verdicts[INT8], verdicts.get(AWARE)):
        return 0
    gate = next(one for one in reversed(made) if one.kind in (INT8, AWARE))
    for reason in gate.spec.raw["gate"]["reasons"]:
        print(reason)
    if network is None and verdicts[INT8] == "refused":
        print("train int8 with its rounding in the loop: name the trained --network FILE.keras")
    return 1


def _row(one: Any) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "id": one.spec.id,
        "sha256": one.spec.sha256,
        "model_bytes": one.size_bytes,
        "engine_cpu_ms": one.engine_cpu_ms,
        "verdict": one.verdict,
        "metrics": one.metrics,
    }


def _cells(one: Any) -> tuple[str, ...]:
    metrics = one.metrics
    point = metrics["operating_points"][one.spec.default_operating_point]
    named = ("accuracy", "quadratic_weighted_kappa")
    return (
        one.kind,
        f"{one.size_bytes / 1e6:.2f}",
        f"{one.engine_cpu_ms:.2f}",
        *(estimate_words(metrics[name]) if name in metrics else "none" for name in named),
        estimate_words(point["sensitivity"]),
        estimate_words(point["specificity"]),
        one.verdict or "reference",
    )


def _page(made: list[Any], data: str) -> str:
    first = made[0]
    head = list(_HEAD)
    lines = [
        f"# Variants of {first.spec.raw['variant']['from']['id']}",
        "",
        (
            f"**{NOT_A_DEVICE}** Measured on the test part of {data}, n = "
            f"{first.metrics['photographs']:,}; in brackets: {first.metrics['interval']}. "
            f"Sensitivity and specificity at `{first.spec.default_operating_point}`, chosen on the "
            "validation part. CPU ms: median of one inference on one thread."
        ),
        "",
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(_cells(one)) + " |" for one in made),
        "",
    ]
    return "\n".join(lines)
