"""The record of a run, and the tables that docs/reliability.md shows of it."""

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from benchmarks.faults.findings import Findings
from dr_experiments.provenance import machine, usable_cores

BEGIN: Final = "<!-- measured: written by `make bench-faults` -->"
END: Final = "<!-- end of measured -->"
TITLES: Final = {
    "hard-files": "Hard files",
    "mutants": "Mutated files",
    "schema": "Requests made from the API's document",
    "hostile": "Files that are made to hurt",
    "overload": "Overload",
    "overload-full": "Overload, behind nginx with TensorFlow, as in the `tensorflow` image",
    "overload-full-litert": "For comparison: behind nginx with LiteRT, which no image has",
    "deaths": "Killed workers",
    "terminations": "SIGTERM",
}
# Shown with what was wanted of the others; the benchmark's exit code does not depend on it.
FOR_COMPARISON: Final = frozenset({"overload-full-litert"})
_PACKAGES: Final = ("ai-edge-litert", "numpy", "pillow", "uvicorn")


def record(
    parts: Mapping[str, Findings], *, command: str, model: str, load_before: float
) -> dict[str, Any]:
    """What a run found, as it is written to JSON."""
    return {
        "command": command,
        "model": model,
        "machine": {
            "processor": machine(),
            "cores": usable_cores(),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "packages": {name: version(name) for name in _PACKAGES},
            "load_before": round(load_before, 2),
        },
        "parts": {
            name: {"rows": [asdict(row) for row in found.rows], "numbers": found.numbers}
            for name, found in parts.items()
        },
    }


def tables(found: Mapping[str, Any]) -> str:
    """The tables of a record, as Markdown."""
    on = found["machine"]
    packages = ", ".join(f"{name} {number}" for name, number in on["packages"].items())
    lines = [
        f"`{found['command']}` on {on['processor']}, {on['cores']} cores, Linux {on['kernel']},",
        f"Python {on['python']}, {packages}. Load average of the machine before it:",
        f"{on['load_before']}. Model: {found['model']}. The load and the service share the cores.",
    ]
    for name, part in found["parts"].items():
        lines += ["", f"### {TITLES[name]}", "", "| what | wanted | found | |", "|---|---|---|---|"]
        for row in part["rows"]:
            verdict = "as wanted" if row["met"] else "**falls short**"
            lines.append(f"| {row['what']} | {row['wanted']} | {row['found']} | {verdict} |")
    return "\n".join(lines) + "\n"


def into_page(page: str, found: Mapping[str, Any]) -> str:
    """The page with the tables between its two marks.

    Raises:
        ValueError: the page lacks a mark.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page must have the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{tables(found)}\n{END}{after}"


def write(found: Mapping[str, Any], *, json_file: Path, page: Path) -> None:
    """Write the record and renew the page."""
    json_file.parent.mkdir(parents=True, exist_ok=True)
    json_file.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    page.write_text(into_page(page.read_text(encoding="utf-8"), found), encoding="utf-8")


def load_now() -> float:
    """Processes that want a CPU, by the kernel's one-minute average."""
    return os.getloadavg()[0]
