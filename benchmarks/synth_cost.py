"""What synthesis costs: seconds of CPU for an empty app, 1 row, 10 rows and the whole matrix.

    python -m benchmarks.synth_cost            # writes docs/benchmarks/synth.json, prints the table
    python -m benchmarks.synth_cost --runs 5

CPU seconds of Python and of the CDK's Node process together, read from the kernel, so that other
work on the machine counts little. Every run is a process of its own; the cases are interleaved.
The CDK's validation of templates is off, as in the tests (its own cost is a row of the table).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

OUT: Final = Path("docs/benchmarks/synth.json")
PAGE: Final = Path("docs/constructs.md")
BEGIN: Final = "<!-- table: python -m benchmarks.synth_cost -->"
END: Final = "<!-- end of table -->"
ALL_ROWS: Final = -1
CASES: Final[dict[str, dict[str, Any]]] = {
    "an empty app": {"rows": None},
    "1 row, with the shared stack": {"rows": 1},
    "10 rows, with the shared stack": {"rows": 10},
    "the whole matrix, with the shared stack": {"rows": ALL_ROWS},
    "the whole matrix, templates validated": {"rows": ALL_ROWS, "validate": True},
}


def measure_here(rows: int | None) -> dict[str, float]:
    """Synthesize twice in this process; CPU seconds of each, imports with the first."""
    import psutil

    process = psutil.Process()

    def cpu_s() -> float:
        times = [it.cpu_times() for it in (process, *process.children(recursive=True))]
        return float(sum(it.user + it.system for it in times))

    first_stacks = _synthesize(rows)
    first = cpu_s()
    _synthesize(rows)
    return {"first_cpu_s": first, "second_cpu_s": cpu_s() - first, "stacks": first_stacks}


def _synthesize(rows: int | None) -> int:
    import aws_cdk as cdk

    with tempfile.TemporaryDirectory(prefix="dr-synth-") as outdir:
        context = json.loads(Path("cdk.json").read_text())["context"]
        app = cdk.App(outdir=outdir, context={**context, "image": "source-digest"})
        if rows is None:
            cdk.Stack(app, "Empty")
        else:
            from stacks.endpoint_stack import EndpointStack
            from stacks.matrix import MATRIX
            from stacks.settings import Settings
            from stacks.shared_stack import SharedStack

            settings = Settings.of(app, environ={})
            chosen = MATRIX if rows == ALL_ROWS else MATRIX[:rows]
            shared = SharedStack(app, rows=chosen, settings=settings)
            for row in chosen:
                EndpointStack(app, deployment=row, shared=shared, settings=settings)
        return len(app.synth().stacks)


def run_case(case: dict[str, Any]) -> dict[str, float]:
    """One run in a process of its own."""
    validate = "true" if case.get("validate") else "false"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.synth_cost", "--here", json.dumps(case["rows"])],
        env={**os.environ, "CDK_VALIDATION": validate},
        capture_output=True,
        text=True,
        check=True,
    )
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def table(results: dict[str, Any]) -> str:
    """The page's table."""
    rows = ["| app | stacks | first synth, CPU s | second in the same process, CPU s |"]
    rows.append("|---|---|---|---|")
    for name, runs in results["cases"].items():
        first = statistics.median(run["first_cpu_s"] for run in runs)
        second = statistics.median(run["second_cpu_s"] for run in runs)
        rows.append(f"| {name} | {runs[0]['stacks']:g} | {first:.1f} | {second:.1f} |")
    rows.append("")
    rows.append(
        f"Median of {results['runs']} runs, CPU seconds of Python and Node together, imports with "
        f"the first; {results['machine']}."
    )
    return "\n".join(rows)


def page(text: str, results: dict[str, Any]) -> str:
    """`text` with the table between its marks renewed."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{table(results)}\n{END}{tail}"


def main() -> None:
    """Measure all cases, write the file and the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--here", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here is not None:
        print(json.dumps(measure_here(json.loads(options.here))))
        return
    cases: dict[str, list[dict[str, float]]] = {name: [] for name in CASES}
    for _ in range(options.runs):
        for name, case in CASES.items():
            cases[name].append(run_case(case))
            print(f"{name}: {cases[name][-1]}", file=sys.stderr)
    import importlib.metadata
    import platform

    results = {
        "command": "python -m benchmarks.synth_cost",
        "runs": options.runs,
        "machine": (
            f"{os.cpu_count()} x86-64 cores, Python {platform.python_version()}, aws-cdk-lib "
            f"{importlib.metadata.version('aws-cdk-lib')}"
        ),
        "cases": cases,
    }
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(page(PAGE.read_text(), results))
    print(table(results))


if __name__ == "__main__":
    main()
