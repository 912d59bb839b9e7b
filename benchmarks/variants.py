"""f32, float16, dynamic range and int8 of the demo models side by side, on drawn photographs.

    python -m benchmarks.variants model_artifacts/mobilenet-demo out/variants/mobilenet-demo/* \\
        --page docs/models/README.md

Names any packages that `python -m dr_training.train_demo --variants-out` wrote; those of one
network and task belong together. All answer the test split of the recipe (drawn into `--cache`
where it is not), each with its own temperature and thresholds; the gate compares each with f32.
Latency is measured in turns, every package once in each round, so a busy machine slows all of them;
how much other programs computed meanwhile is in the results and under the table.
"""

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
from numpy.typing import NDArray

from benchmarks.serving.measure import machine
from dr_training.data.table import Photograph
from dr_training.dataset import DrawnData, ensure_split, load_shards
from dr_training.evaluate import class_logits, grader_metrics, softmax
from dr_training.export import MODEL_FILE
from dr_training.gate import gate, variant_kind
from dr_training.latency import latencies
from dr_training.model_card import estimate_words
from dr_training.recipe import Recipe
from dr_training.runner import Runner
from dr_training.scoring import Scored
from inference_image.contract import TASK_GRADE5
from inference_image.model_spec import ModelSpec, load_model_spec, verify_files
from inference_image.preprocessing import Preparation

BEGIN: Final = "<!-- table: python -m benchmarks.variants -->"
END: Final = "<!-- end of table -->"
F32: Final = "f32"
KINDS: Final = (F32, "float16", "dynamic-range", "int8")
AT_SPECIFICITY: Final = "sensitivity_at_0.90_specificity"
# Processors that others may use while latency is measured; with more the machine counts as busy.
BUSY_CPUS: Final = 0.2
_TITLES: Final = (
    "variant",
    "accuracy",
    "kappa",
    "sensitivity at 0.90 specificity",
    "CPU ms",
    "ms",
    "MB",
    "gate",
)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the process's exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.variants", description=__doc__)
    parser.add_argument("packages", type=Path, nargs="+", help="folders of packages")
    parser.add_argument("--cache", type=Path, default=Path("out/drawn"), help="drawn data set")
    parser.add_argument("--rounds", type=int, default=200, help="inferences of each package")
    parser.add_argument("--json", type=Path, default=Path("docs/benchmarks/variants.json"))
    parser.add_argument("--page", type=Path, help="page whose table is written anew")
    options = parser.parse_args(arguments)
    specs = [load_model_spec(folder) for folder in options.packages]
    try:
        grouped = groups(specs)
        check(specs, options.packages)
    except ValueError as error:
        parser.error(str(error))
    recipe = Recipe()
    shards = ensure_split(recipe, recipe.test, options.cache, workers=os.cpu_count() or 1)
    results = measure(specs, options.packages, grouped, load_shards(shards), rounds=options.rounds)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if options.page:
        options.page.write_text(page(options.page.read_text("utf-8"), results), encoding="utf-8")
    print(table(results))
    return 0


def kind_of(spec: ModelSpec) -> str:
    """Which variant a package is.

    Raises:
        ValueError: it does not say it.
    """
    kind = variant_kind(spec)
    if kind not in KINDS:
        raise ValueError(f"{spec.id} does not say which of {', '.join(KINDS)} it is")
    return kind


def groups(specs: Sequence[ModelSpec]) -> list[list[int]]:
    """Positions of the packages of one network and task, f32 first, in the order of `KINDS`.

    Raises:
        ValueError: a variant comes twice, or a network has no f32 to be compared with.
    """
    found: dict[tuple[Any, ...], list[int]] = {}
    for index, spec in enumerate(specs):
        network = spec.raw["network"]
        key = (network["name"], network.get("alpha"), network["parameters"], spec.task)
        found.setdefault(key, []).append(index)
    for key, members in found.items():
        kinds = [kind_of(specs[index]) for index in members]
        if len(set(kinds)) < len(kinds):
            raise ValueError(f"a variant of {key[0]} ({key[-1]}) is named twice: {sorted(kinds)}")
        if F32 not in kinds:
            raise ValueError(f"the f32 package of {key[0]} ({key[-1]}) is missing; name it, too")
        members.sort(key=lambda index: KINDS.index(kind_of(specs[index])))
    return list(found.values())


def check(specs: Sequence[ModelSpec], folders: Sequence[Path]) -> None:
    """Refuse packages that are damaged or prepare photographs in another way.

    Raises:
        ValueError: with one of them.
    """
    for spec, folder in zip(specs, folders, strict=True):
        verify_files(spec, folder)
        if not (folder / MODEL_FILE).is_file():
            raise ValueError(f"{folder} holds no {MODEL_FILE}")
        if Preparation.from_spec(spec) != Recipe().preparation():
            raise ValueError(f"{folder} prepares photographs in another way than the recipe does")


def measure(
    specs: Sequence[ModelSpec],
    folders: Sequence[Path],
    grouped: Sequence[Sequence[int]],
    data: DrawnData,
    *,
    rounds: int,
) -> dict[str, Any]:
    """Figures, latencies and verdicts as JSON values."""
    models = [folder / MODEL_FILE for folder in folders]
    with others_work() as others:
        taken = latencies([model.read_bytes() for model in models], rounds=rounds)
    found = []
    for members in grouped:
        first = specs[members[0]]
        reference: tuple[ModelSpec, Scored] | None = None
        rows = []
        for index in members:
            spec = specs[index]
            logits = class_logits(Runner(models[index], threads=2)(data.pixels)[0])
            answers = _scored(data, softmax(logits, spec.temperature))
            row: dict[str, Any] = {
                "kind": kind_of(spec),
                "id": spec.id,
                "sha256": spec.sha256,
                "model_bytes": models[index].stat().st_size,
                "latency": {k: round(v, 3) for k, v in asdict(taken[index]).items()},
                "metrics": grader_metrics(
                    logits,
                    data.grades,
                    temperature=spec.temperature,
                    thresholds={one.name: one.threshold for one in spec.operating_points},
                ),
                "gate": None,
            }
            if reference is None:
                reference = spec, answers
            else:
                name = reference[0].default_operating_point
                pair = (reference[0].operating_point(name), spec.operating_point(name))
                thresholds = (pair[0].threshold, pair[1].threshold)
                verdict = gate(reference[1], answers, thresholds=thresholds, operating_point=name)
                row["gate"] = dict(verdict.document)
            rows.append(row)
        found.append({"network": dict(first.raw["network"]), "task": first.task, "variants": rows})
    return {
        "command": "python -m benchmarks.variants",
        "data": "the test split of dr_training.recipe, drawn photographs",
        "photographs": len(data.grades),
        "rounds": rounds,
        "machine": machine(),
        "cpus_of_others": round(others.cpus, 3),
        "busy": others.cpus > BUSY_CPUS,
        "models": found,
    }


@dataclass
class OthersWork:
    """CPUs that all other processes of this machine used on average while it was measured."""

    cpus: float = 0.0


@contextlib.contextmanager
def others_work() -> Iterator[OthersWork]:
    """Counts from here to the end of the block; the result is there after it."""
    found = OthersWork()
    begun, busy, own = time.perf_counter(), _busy_s(), time.process_time()
    yield found
    busy, own = _busy_s() - busy, time.process_time() - own
    found.cpus = max(0.0, busy - own) / (time.perf_counter() - begun)


def _busy_s() -> float:
    """Seconds that the processors have worked since the machine started."""
    times = psutil.cpu_times()._asdict()
    idle = ("idle", "iowait", "steal", "guest", "guest_nice")  # guests are counted in user, too
    return float(sum(value for name, value in times.items() if name not in idle))


def _scored(data: DrawnData, probabilities: NDArray[np.float64]) -> Scored:
    count = len(data.grades)
    return Scored(
        photographs=tuple(
            Photograph(id=f"{n}", grade=int(grade), sha256=f"{n:064x}", path="", row=f"{n}")
            for n, grade in enumerate(data.grades)
        ),
        truth=np.asarray(data.grades, np.int64),
        gradable=np.ones(count, bool),
        failed=np.zeros(count, bool),
        probabilities=probabilities,
        reasons=("",) * count,
    )


def table(results: dict[str, Any]) -> str:
    """The page's table: a heading and rows for each model, and what the numbers are."""
    lines = []
    for model in results["models"]:
        network, task = model["network"], model["task"]
        width = f", {network['alpha']:g} of the channels" if network.get("alpha", 1) != 1 else ""
        answers = "grades 0 to 4" if task == TASK_GRADE5 else "referable or not"
        lines += [
            (
                f"**{network['name']}{width}**, {network['parameters']:,} parameters, {answers}, "
                # The demo networks begin with random weights and do not say so.
                f"trained from {network.get('backbone_weights', 'random')} weights"
            ),
            "",
            f"| {' | '.join(_TITLES)} |",
            "|---" * len(_TITLES) + "|",
        ]
        for row in model["variants"]:
            metrics, taken = row["metrics"], row["latency"]
            named = ("accuracy", "quadratic_weighted_kappa", AT_SPECIFICITY)
            cells = [
                row["kind"],
                *(estimate_words(metrics[one]) if one in metrics else "–" for one in named),
                f"{taken['cpu_ms']:.2f}",
                f"{taken['wall_ms']:.2f}",
                f"{row['model_bytes'] / 1e6:.2f}",
                row["gate"]["verdict"] if row["gate"] else "reference",
            ]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    made = results["machine"]
    state = "**busy with other work**" if results["busy"] else "otherwise idle"
    lines.append(
        f"n = {results['photographs']:,} drawn photographs of the test split, none of them trained "
        "on, nor used for a temperature or a threshold; in brackets the 95 % "
        "bootstrap interval (exact where a share is 1). "
        f"Latency: median of {results['rounds']} inferences of one picture on one thread, the "
        f"packages in turns; {made['cores']} cores ({made['processor']}), LiteRT "
        f"{made['versions'].get('ai-edge-litert', 'of unknown version')}, machine {state} (others "
        f"took {results['cpus_of_others']:g} of a CPU meanwhile)."
    )
    return "\n".join(lines)


def page(text: str, results: dict[str, Any]) -> str:
    """`text` with the table between its marks renewed.

    Raises:
        ValueError: it has no marks.
    """
    if BEGIN not in text or END not in text:
        raise ValueError(f"the page lacks the marks {BEGIN} and {END}")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{table(results)}\n{END}{tail}"


if __name__ == "__main__":
    sys.exit(main())
