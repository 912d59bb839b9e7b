"""Attacks, overloads, kills and stops a real service, and counts what becomes of it.

    python -m benchmarks.faults                        # everything, at most 15 minutes on 2 cores
    python -m benchmarks.faults --short                # a little of everything, about a minute
    python -m benchmarks.faults --only overload deaths # some parts; the others stay as recorded

Each layout has the runtime that it is shipped with: lean and LiteRT, nginx and TensorFlow. The
latter needs an interpreter with TensorFlow (`make setup-training`), and makes its package with it.

Writes docs/benchmarks/faults.json and the tables of docs/reliability.md (not with --short).
Ends with 1 where something is not as wanted, but for what is there for comparison only.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.compiled import NotCompiledError
from benchmarks.faults import report
from benchmarks.faults.findings import Findings
from benchmarks.faults.inputs import hard_files, hostile, mutants, schema_fuzz
from benchmarks.faults.service import REPOSITORY, Service
from benchmarks.faults.strain import deaths, overload, terminations
from benchmarks.generator import prepare
from inference_image.contract import ENV_LAYOUT, LAYOUT_FULL, LAYOUT_LEAN

MODEL: Final = REPOSITORY / "model_artifacts" / "mobilenet-demo"
TENSORFLOW: Final = REPOSITORY / ".venv-training" / "bin" / "python"
_SAVED_MODEL: Final = REPOSITORY / "out" / "bench-faults" / "mobilenet-saved"
JSON_FILE: Final = REPOSITORY / "docs" / "benchmarks" / "faults.json"
PAGE: Final = REPOSITORY / "docs" / "reliability.md"
# The container's default, which bounds each request.
_TIMEOUT_S: Final = 55.0
_WORKERS: Final = 2
_UNDER_LOAD: Final = frozenset(
    {"overload", "overload-full", "overload-full-litert", "deaths", "terminations"}
)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much of each part is done."""

    mutants: int
    schema_requests: int
    repeats: int
    overload_s: float
    kills: int
    kill_every_s: float
    terminations: int
    termination_after_s: float


FULL: Final = Scale(
    mutants=20_000,
    schema_requests=4_000,
    repeats=15,
    overload_s=60,
    kills=12,
    kill_every_s=5,
    terminations=5,
    termination_after_s=4,
)
SHORT: Final = Scale(
    mutants=400,
    schema_requests=300,
    repeats=3,
    overload_s=5,
    kills=2,
    kill_every_s=2.5,
    terminations=1,
    termination_after_s=2,
)


def shared_folder() -> Path:
    """Where the files lie that stay outside the repository."""
    return Path(os.environ.get("DR_SHARED", REPOSITORY.parent / "shared" / "data"))


def parts(
    scale: Scale, *, seed: int = 0, tensorflow: Path = TENSORFLOW
) -> dict[str, Callable[[], Findings]]:
    """Every part by its name; each starts a service of its own and ends it.

    Args:
        scale: how much of each.
        seed: the first one of what is random.
        tensorflow: an interpreter that has it.
    """

    def with_service(
        run: Callable[[Service], Findings],
        workers: int,
        *,
        model: Path = MODEL,
        python: str = sys.executable,
        layout: str = LAYOUT_LEAN,
    ) -> Findings:
        environment = {ENV_LAYOUT: layout}
        with Service(model, workers=workers, python=python, environment=environment) as service:
            service.wait_ready()
            return run(service)

    def overload_behind_nginx(model: Path, python: str) -> Findings:
        found = with_service(overloaded, _WORKERS, model=model, python=python, layout=LAYOUT_FULL)
        return replace(found, numbers={"model": model.name, **found.numbers})

    overloaded = partial(overload, seconds=scale.overload_s, timeout_s=_TIMEOUT_S)

    return {
        "hard-files": lambda: with_service(
            lambda service: hard_files(service, shared_folder() / "hard-inputs"), 1
        ),
        "mutants": lambda: with_service(
            lambda service: mutants(service, scale.mutants, first_seed=seed), _WORKERS
        ),
        "schema": lambda: with_service(
            lambda service: schema_fuzz(service, scale.schema_requests, seed=seed), _WORKERS
        ),
        "hostile": lambda: with_service(lambda service: hostile(service, repeats=scale.repeats), 1),
        "overload": lambda: with_service(overloaded, _WORKERS),
        "overload-full": lambda: overload_behind_nginx(saved_model(tensorflow), str(tensorflow)),
        "overload-full-litert": lambda: overload_behind_nginx(MODEL, sys.executable),
        "deaths": lambda: with_service(
            lambda service: deaths(service, kills=scale.kills, every_s=scale.kill_every_s),
            _WORKERS,
        ),
        "terminations": lambda: terminations(
            lambda: Service(MODEL, workers=_WORKERS),
            times=scale.terminations,
            seconds=scale.termination_after_s,
        ),
    }


def saved_model(tensorflow: Path) -> Path:
    """A MobileNet of random weights as a SavedModel, made once; a load does not depend on them."""
    if not (_SAVED_MODEL / "model.json").exists():
        subprocess.run(
            [
                *(tensorflow, "-m", "dr_training.random_package", "--network", "mobilenet"),
                *("--saved-model", "--out", _SAVED_MODEL),
            ],
            check=True,
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )
    return _SAVED_MODEL


def main(arguments: list[str] | None = None) -> int:
    """Run the parts that were asked for; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--short", action="store_true", help="a little of everything")
    parser.add_argument("--only", nargs="+", choices=list(report.TITLES), help="some parts")
    parser.add_argument("--seed", type=int, default=0, help="first seed of what is random")
    parser.add_argument("--json", type=Path, help="write the record here, and no page")
    parser.add_argument(
        "--tensorflow",
        type=Path,
        default=TENSORFLOW,
        help="an interpreter that has it (default: %(default)s)",
    )
    chosen = parser.parse_args(arguments)
    if "overload-full" in (chosen.only or report.TITLES) and not chosen.tensorflow.exists():
        parser.exit(
            1,
            f"There is no {chosen.tensorflow}, which the layout with nginx is measured with: run "
            "`make setup-training`, or choose other parts with --only.\n",
        )
    if _UNDER_LOAD.intersection(chosen.only or _UNDER_LOAD):
        try:
            prepare()
        except NotCompiledError as error:
            parser.exit(1, f"{error}\n")
    load_before = report.load_now()
    found: dict[str, Findings] = {}
    scale = SHORT if chosen.short else FULL
    every = parts(scale, seed=chosen.seed, tensorflow=chosen.tensorflow.absolute())
    for name, run in every.items():
        if chosen.only and name not in chosen.only:
            continue
        began = time.monotonic()
        found[name] = run()
        print(f"{report.TITLES[name]} ({time.monotonic() - began:.0f} s)")
        for row in found[name].rows:
            mark = " ok " if row.met else "FAIL"
            print(f"  [{mark}] {row.what}: {row.found} (wanted: {row.wanted})", flush=True)
    record = report.record(
        found,
        command="python -m benchmarks.faults --short" if chosen.short else "make bench-faults",
        model=MODEL.name,
        load_before=load_before,
    )
    if chosen.json:
        text = json.dumps(record, indent=1, ensure_ascii=False)
        chosen.json.write_text(text + "\n", encoding="utf-8")
    elif not chosen.short:
        if chosen.only and JSON_FILE.exists():
            earlier = json.loads(JSON_FILE.read_text(encoding="utf-8"))["parts"]
            merged = {**earlier, **record["parts"]}
            record["parts"] = {name: merged[name] for name in report.TITLES if name in merged}
        report.write(record, json_file=JSON_FILE, page=PAGE)
    counted = (part for name, part in found.items() if name not in report.FOR_COMPARISON)
    return 0 if all(part.met for part in counted) else 1


if __name__ == "__main__":
    sys.exit(main())
