"""RetinaMNIST at 28 px: a frozen backbone and a network trained here, over seeds.

    python -m benchmarks.retinamnist retinamnist.npz --json docs/benchmarks/retinamnist.json

Runs the documented `dr` commands, one after the other; what is there already is not run again, so a
second call goes on. Only the parts `train` and `val` are looked at: the epoch, thresholds and, of
everything here, the choices are made on them. RetinaMNIST is CC BY 4.0, MedMNIST v2 (Yang et al.,
Scientific Data 2023;10:41), made of DeepDRiD; its published ResNet-18 (28) has AUC 0.717 and
accuracy 0.524 on the test part.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

PUBLISHED = {"network": "ResNet-18 (28)", "part": "test", "auc": 0.717, "accuracy": 0.524}
FIGURES = ("accuracy", "kappa", "auc", "referable_auc")
SEEDS = (0, 1, 2)
LINEAR = ["--network", "efficientnet-lite0", "--network-size-px", "112", "--copies", "1"]
TRAINED = [
    "--network", "small-resnet", "--weights", "random", "--batch-size", "64", "--epochs", "40",
    "--monitor", "loss", "--loss", "ordinal", "--learning-rate", "0.002", "--weight-decay", "0.001",
]  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the process's exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.retinamnist", description=__doc__)
    parser.add_argument("npz", type=Path, help="retinamnist.npz, with train and val")
    parser.add_argument("--out", type=Path, default=Path("out/retinamnist"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=("linear", "trained"), help="one of the two")
    parser.add_argument("--json", type=Path, help="write the results here")
    options = parser.parse_args(arguments)
    records = make_records(options.npz, options.out)
    results: dict[str, Any] = {"published": PUBLISHED, "pipelines": {}}
    pipelines = {"linear": ("linear-head", LINEAR), "trained": ("train", TRAINED)}
    for name, (verb, choices) in pipelines.items():
        if options.only in (None, name):
            rows = [run(verb, choices, records, options, f"{name}-{seed}", seed) for seed in SEEDS]
            results["pipelines"][name] = {
                "command": f"dr model {verb} records --out OUT --seed SEED {' '.join(choices)}",
                "seeds": dict(zip(map(str, SEEDS), rows, strict=True)),
                "mean": {
                    one: round(float(np.mean([row[one] for row in rows])), 4) for one in FIGURES
                },
            }
    text = json.dumps(results, indent=2) + "\n"
    if options.json:
        options.json.write_text(text, encoding="utf-8")
    print(text)
    return 0


def make_records(npz: Path, out: Path) -> Path:
    """Table, published split and records of 28 px, lossless, as they are."""
    out.mkdir(parents=True, exist_ok=True)
    table, split, records = out / "table.csv", out / "split.csv", out / "records"
    if not (records / "manifest.json").exists():
        dr("data", "table", "npz", npz, "--out", table)
        dr("data", "split", table, "--column", "published_split", "--out", split)
        prepared = ["--prepared-already", "--size-px", "28", "--format", "png"]
        dr("data", "prepare", table, "--split", split, *prepared, "--out", records)
    return records


def run(
    verb: str, choices: list[str], records: Path, options: Any, name: str, seed: int
) -> dict[str, Any]:
    """One seed of a pipeline: its validation figures, from the report that the command writes."""
    out = options.out / name
    report = out / ("report.json" if verb == "linear-head" else "training.json")
    if not report.exists():
        more = ["--seed", str(seed), "--threads", str(options.threads)]
        dr("model", verb, records, "--out", out, *choices, *more)
    document = json.loads(report.read_text())
    return {
        "photographs": document["photographs"],
        **{figure: document["validation"][figure] for figure in FIGURES},
        **{key: document[key] for key in ("penalty", "best_epoch", "epochs") if key in document},
        "backbone_weights": document["backbone_weights"],
        "environment": document["environment"],
    }


def dr(*arguments: object) -> None:
    """Run a command of the project; what it says goes to the terminal."""
    subprocess.run([sys.executable, "-m", "dr_cli", *map(str, arguments)], check=True)


if __name__ == "__main__":
    sys.exit(main())
