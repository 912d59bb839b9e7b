"""Measures a committed demo package again, on newly drawn and newly prepared photographs.

    python -m dr_training.measure_again model_artifacts/mobilenet-demo

For when the preprocessing has changed and the weights have not: temperature and thresholds are
chosen again on the validation split, the figures measured on the test split, and `model.json`
and the card written anew. Needs no TensorFlow.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Final

from dr_training.data.table import write_whole
from dr_training.dataset import ensure_split, load_shards
from dr_training.export import CARD_FILE, MODEL_FILE
from dr_training.model_card import model_card
from dr_training.recipe import Recipe
from dr_training.train_demo import Measured
from inference_image.model_spec import MODEL_JSON, load_model_spec, verify_files
from inference_image.preprocessing import Preparation

AGREEMENT: Final = "grade_agreement_int8_with_float"


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the process's exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m dr_training.measure_again", description=__doc__
    )
    parser.add_argument("package", type=Path, help="folder of the package")
    parser.add_argument("--cache", type=Path, default=Path("out/drawn"), help="drawn data set")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    measure_again(options.package, cache=options.cache, threads=options.threads)
    return 0


def measure_again(folder: Path, *, cache: Path, threads: int) -> None:
    """Rewrite figures, temperature and thresholds of `folder`; the weights stay.

    Raises:
        ModelPackageError: the package is damaged.
        ValueError: it prepares photographs in another way than the drawn data set is.
    """
    spec = load_model_spec(folder)
    verify_files(spec, folder)
    recipe = Recipe(input_size_px=spec.input_size_px)
    if Preparation.from_spec(spec) != recipe.preparation():
        raise ValueError(f"{folder} prepares photographs in another way than the recipe does")
    validation, test = (
        load_shards(ensure_split(recipe, split, cache, workers=threads, progress=print))
        for split in (recipe.validation, recipe.test)
    )
    document = json.loads(json.dumps(spec.raw))
    before = document["metrics"]
    measured = Measured.of(
        str(before["model"]),
        (folder / MODEL_FILE).read_bytes(),
        validation=validation,
        test=test,
        task=spec.task,
        threads=threads,
    )
    kept = {name: before[name] for name in ("data", "model")}
    # The float network is not here any more: this figure stays that of the training.
    if AGREEMENT in before:
        kept |= {AGREEMENT: before[AGREEMENT], "grade_agreement_from": "the training's own run"}
    document.update(
        temperature=measured.temperature,
        operating_points=measured.points,
        metrics={**kept, **measured.metrics},
    )
    document["provenance"]["measured_again"] = (
        f"python -m dr_training.measure_again model_artifacts/{spec.id}"
    )
    # What was gated were other thresholds.
    document.pop("gate", None)
    write_whole(folder / MODEL_JSON, (json.dumps(document, indent=2) + "\n").encode())
    write_whole(folder / CARD_FILE, model_card(document).encode())
    now = load_model_spec(folder)
    for name in ("accuracy", "quadratic_weighted_kappa", "referable_auc"):
        if name in before:
            print(f"{name}: {before[name]} → {measured.metrics[name]}")
    print(f"wrote {folder} ({now.sha256[:12]})")


if __name__ == "__main__":
    sys.exit(main())
