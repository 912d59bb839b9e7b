"""`python -m benchmarks.serving`: see the package."""

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.compiled import NotCompiledError
from benchmarks.generator import prepare
from benchmarks.serving import report
from benchmarks.serving.inputs import (
    NETWORKS,
    PHOTOGRAPHS,
    REPOSITORY,
    make_models,
    make_photographs,
)
from benchmarks.serving.measure import CONTENDERS, Plan, measure

_MADE = REPOSITORY / "out" / "bench-serving"
_PERFORMANCE = REPOSITORY / "docs" / "performance.md"


def main(arguments: list[str] | None = None) -> int:
    """Command line; 1 where a contender failed, 2 where it is used wrongly."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round of MobileNet")
    parser.add_argument("--contenders", type=_names(CONTENDERS), default=CONTENDERS)
    parser.add_argument("--networks", type=_names(NETWORKS), default=None)
    parser.add_argument("--photographs", type=_names(PHOTOGRAPHS), default=PHOTOGRAPHS)
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=None, help="of each measurement")
    parser.add_argument("--json", type=Path, default=None, help="where the document goes")
    parser.add_argument(
        "--report",
        action="store_true",
        help="measure nothing; read the images' sizes and write docs/performance.md again",
    )
    options = parser.parse_args(arguments)
    if options.report:
        document = json.loads(report.DOCUMENT.read_bytes())
        document["images"] = report.images() or document["images"]
        _write(report.DOCUMENT, document)
        report.update(_PERFORMANCE, document)
        return 0
    if (options.rounds or 1) < 1 or (options.seconds or 1) <= 0:
        parser.error("--rounds and --seconds must be above 0")
    try:
        prepare()
    except NotCompiledError as error:
        parser.exit(1, f"{error}\n")
    # `kill` must stop the servers as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    short = Plan(rounds=1, starts=2, seconds=1.5, warm_up_s=0.5, breakdown_repeats=20)
    plan = short if options.quick else Plan()
    changes: dict[str, Any] = {
        "contenders": options.contenders,
        "photographs": options.photographs,
    }
    networks = options.networks or (("mobilenet",) if options.quick else NETWORKS)
    changes |= {"networks": networks}
    changes |= {"rounds": options.rounds} if options.rounds else {}
    changes |= {"seconds": options.seconds} if options.seconds else {}
    plan = Plan(**{**vars(plan), **changes})
    complete = plan == Plan()
    target = options.json or (report.DOCUMENT if complete else _MADE / "serving.json")
    begun = time.monotonic()
    _say_load(plan.workers)
    photographs = make_photographs(_MADE, plan.photographs)
    models = make_models(_MADE, plan.networks, baseline="baseline" in plan.contenders)

    def say(text: str) -> None:
        print(f"{time.monotonic() - begun:5.0f} s  {text}", flush=True)

    # What there is if something ends the run; sizes of images are read at the end.
    partial = _MADE / "partial.json"
    document = measure(
        plan,
        models,
        photographs,
        say=say,
        after_round=lambda so_far: _write(partial, so_far),
    )
    document["images"] = report.images()
    _write(target, document)
    with contextlib.suppress(FileNotFoundError):
        partial.unlink()
    print(report.markdown(document))
    if target == report.DOCUMENT:
        report.update(_PERFORMANCE, document)
    print(f"written to {target} in {time.monotonic() - begun:.0f} s")
    for failure in document["failures"]:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if document["failures"] else 0


def _names(known: tuple[str, ...]) -> Any:
    def names(text: str) -> tuple[str, ...]:
        given = tuple(name for name in text.split(",") if name)
        unknown = [name for name in given if name not in known]
        if unknown or not given:
            raise argparse.ArgumentTypeError(
                f"{', '.join(unknown) or 'nothing'} is not known; known are {', '.join(known)}"
            )
        return given

    return names


def _say_load(workers: int) -> None:
    load = os.getloadavg()[0]
    if load > 0.3 * workers:
        print(
            f"The machine is busy (load average {load:.1f} on {workers} CPUs): read ratios only, "
            "and measure again when it is quiet.",
            file=sys.stderr,
        )


def _write(path: Path, document: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=1) + "\n"
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
