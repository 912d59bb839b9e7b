"""Measures the Lambda handler under the runtime interface emulator: first and later invocations.

    make lambda-emulator
    .venv/bin/python -m benchmarks.lambda_start --starts 10

Each start is a new process. The first invocation includes the init phase (interpreter, imports,
model, warm-up), which the emulator begins with it. The emulator limits neither memory nor CPU, so
these are times of the machine, not of a memory size on Lambda.
"""

import argparse
import statistics
from pathlib import Path

from tests.lambda_emulator import Function, emulator_binary
from tests.lambda_harness import function_url_event, reply_of
from tests.service_harness import REPOSITORY, drawn_jpeg, wait_until

_WARM_CALLS = 20
_PHASES = ("imports_ms", "model_find_ms", "model_load_ms", "warm_up_ms", "started_to_ready_ms")


def measure(package: Path, starts: int) -> dict[str, list[float]]:
    """Milliseconds of each figure, one value per start (`warm`: one per call)."""
    event = function_url_event("POST", "/invocations", drawn_jpeg(), {"Content-Type": "image/jpeg"})
    figures: dict[str, list[float]] = {"first": [], "second": [], "warm": []}
    for _ in range(starts):
        with Function(emulator_binary(), {"DR_MODEL_DIR": str(package)}) as function:
            calls = [function.invoke(event) for _ in range(2 + _WARM_CALLS)]
            if any(reply_of(call.answer).status != 200 for call in calls):
                raise SystemExit(f"{package}: {calls[-1].answer}")
            wait_until(lambda: bool(function.events("ready")))
            ready = function.events("ready")[0]
        figures["first"].append(calls[0].wait_ms)
        figures["second"].append(calls[1].wait_ms)
        figures["warm"] += [call.wait_ms for call in calls[2:]]
        for name in (*_PHASES, "resident_mib"):
            figures.setdefault(name, []).append(ready[name])
    return figures


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument(
        "--package", type=Path, default=REPOSITORY / "model_artifacts" / "mobilenet-demo"
    )
    arguments = parser.parse_args()
    figures = measure(arguments.package.resolve(), arguments.starts)
    print(f"{arguments.package.name}, {arguments.starts} starts")
    print("| figure | n | median | min | max |\n| --- | --- | --- | --- | --- |")
    for name, values in figures.items():
        row = (statistics.median(values), min(values), max(values))
        print(f"| {name} | {len(values)} | " + " | ".join(f"{v:.1f}" for v in row) + " |")


if __name__ == "__main__":
    main()
