"""Trains the demo model and writes its package.

    python -m dr_training.train_demo --out model_artifacts/mobilenet-demo

Draws the data set (cached under `--cache`), trains in three stages, quantises, measures the
int8 model on the test split and writes the package; `--float-out` writes the f32 one too, with
thresholds of its own, as the reference of `dr model gate`, and `--variants-out` all variants
beside int8. `--quick` does all of it on a handful
of photographs, to try the path.
"""

import argparse
import hashlib
import json
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dr_training import evaluate
from dr_training.dataset import DrawnData, ensure_split, load_shards
from dr_training.evaluation import roc_points
from dr_training.export import DenseLayer, PackageContent, environment, write_package
from dr_training.model_card import DEMO_NOTICE
from dr_training.operating_points import operating_points
from dr_training.recipe import Recipe, quick, small
from inference_image.contract import REFERABLE_FROM_GRADE, TASK_GRADE5, TASKS

HIGH_SENSITIVITY = 0.98
HIGH_SPECIFICITY = 0.98


def main(arguments: list[str] | None = None) -> int:
    """Command line of the training; returns the process's exit status."""
    parser = argparse.ArgumentParser(prog="python -m dr_training.train_demo", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the package")
    parser.add_argument("--id", default=None, help="model id (default: the folder's name)")
    parser.add_argument("--cache", type=Path, default=Path("out/drawn"), help="drawn data set")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--float-out", type=Path, help="folder for the f32 package too: the reference of the gate"
    )
    parser.add_argument(
        "--variants-out",
        type=Path,
        help="folder for the f32, float16 and dynamic-range packages too, one folder each",
    )
    parser.add_argument(
        "--small",
        choices=("mobilenet", "vgg19-small"),
        help="a smaller network on fewer photographs (see `recipe.small`)",
    )
    parser.add_argument("--alpha", type=float, help="share of the channels, with --small")
    parser.add_argument("--task", choices=TASKS, default=TASK_GRADE5)
    parser.add_argument("--quick", action="store_true", help="a few photographs and steps only")
    options = parser.parse_args(arguments)
    if (options.small is None) != (options.alpha is None):
        parser.error("--small and --alpha belong together")
    recipe = Recipe()
    if options.small:
        recipe = small(recipe, network=options.small, alpha=options.alpha)
    if options.quick:
        recipe = quick(recipe)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        import tensorflow as tf
    except ImportError:
        print(
            "Training needs TensorFlow: install the extra 'training' (requirements/training.txt).",
            file=sys.stderr,
        )
        return 1
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    train_demo(
        recipe,
        out=options.out,
        model_id=options.id or options.out.name,
        cache=options.cache,
        threads=options.threads,
        float_out=options.float_out,
        variants_out=options.variants_out,
        task=options.task,
    )
    return 0


def train_demo(
    recipe: Recipe,
    *,
    out: Path,
    model_id: str,
    cache: Path,
    threads: int,
    float_out: Path | None = None,
    variants_out: Path | None = None,
    task: str = TASK_GRADE5,
) -> None:
    """Draw, train, quantise, measure and write the package; reports on standard output."""
    import keras

    from dr_training import loop
    from dr_training.quantise import Runner, convert

    train, validation, test = (
        load_shards(ensure_split(recipe, split, cache, workers=threads, progress=_say))
        for split in (recipe.train, recipe.validation, recipe.test)
    )
    network, maps = _trained_backbone(loop, recipe, train, cache=cache, threads=threads)
    if task != TASK_GRADE5:
        network = _with_head_for(task, network, recipe)
    # Each stage starts from its own seed, so that it does the same after a cached one.
    keras.utils.set_random_seed(recipe.seed + 1)
    loop.settle_normalisation(network, train, recipe)
    backbone, _ = convert(network, size_px=recipe.input_size_px, calibration=None)
    features, grades = _head_features(loop, Runner(backbone, threads=threads), train, recipe)
    classes = evaluate.true_classes(grades, task)
    keras.utils.set_random_seed(recipe.seed + 2)
    loop.train_head(network, features, classes, recipe, report=_say)
    keras.utils.set_random_seed(recipe.seed + 3)
    of_task = replace(train, grades=evaluate.true_classes(train.grades, task))
    loop.train_whole(network, maps, of_task, recipe, report=_say)
    finish(
        network,
        recipe,
        train=train,
        validation=validation,
        test=test,
        out=out,
        model_id=model_id,
        threads=threads,
        float_out=float_out,
        variants_out=variants_out,
        task=task,
    )


def finish(
    network: Any,
    recipe: Recipe,
    *,
    train: DrawnData,
    validation: DrawnData,
    test: DrawnData,
    out: Path,
    model_id: str,
    threads: int,
    float_out: Path | None = None,
    variants_out: Path | None = None,
    task: str = TASK_GRADE5,
) -> None:
    """Quantise with training photographs, choose on validation, measure on test, write."""
    from dr_training.networks import head_layers
    from dr_training.quantise import DYNAMIC_RANGE, FLOAT16, convert, convert_variant, inference_of

    rng = np.random.default_rng(recipe.seed + 4)
    count = min(recipe.calibration_photographs, len(train.grades))
    chosen = np.sort(rng.choice(len(train.grades), count, replace=False))
    model, _ = convert(network, size_px=recipe.input_size_px, calibration=train.pixels[chosen])
    floating, _ = convert(network, size_px=recipe.input_size_px, calibration=None)
    _say(f"int8 model: {len(model):,} bytes")
    both: dict[str, Any] = {
        "validation": validation,
        "test": test,
        "task": task,
        "threads": threads,
    }
    int8 = Measured.of("int8", model, **both)
    f32 = Measured.of("f32", floating, **both)
    agreement = float(np.mean(int8.classes == f32.classes))
    parameters = network.count_params()
    head = [DenseLayer(kernel=w, bias=b) for w, b in map(_weights, head_layers(network))]
    packages = [(int8, out, "")]
    if float_out is not None:
        packages.append((f32, float_out, " --float-out FOLDER"))
    if variants_out is not None:
        others = [f32]
        for kind in (FLOAT16, DYNAMIC_RANGE):
            infer = inference_of(network)
            variant = convert_variant(infer, kind, size_px=recipe.input_size_px)
            others.append(Measured.of(kind, variant, **both))
        packages += [(one, variants_out / one.kind, " --variants-out FOLDER") for one in others]
    command = f"python -m dr_training.train_demo --out model_artifacts/{model_id}"
    if recipe.network != Recipe().network or recipe.alpha != Recipe().alpha:
        command += f" --small {recipe.network} --alpha {recipe.alpha:g}"
    if task != TASK_GRADE5:
        command += f" --task {task}"
    for measured, folder, option in packages:
        metrics = {
            "data": "drawn photographs of seeds that training and validation never saw",
            "model": measured.kind,
            "grade_agreement_int8_with_float": round(agreement, 4),
            **measured.metrics,
        }
        spec = write_package(
            PackageContent(
                id=model_id if measured is int8 else f"{model_id}-{measured.kind}",
                network={"name": recipe.network, "alpha": recipe.alpha, "parameters": parameters},
                input_size_px=recipe.input_size_px,
                preprocessing=recipe.preprocessing(),
                quality_gate=recipe.quality_gate(),
                operating_points=measured.points,
                default_operating_point="high_sensitivity",
                temperature=measured.temperature,
                notice=DEMO_NOTICE,
                metrics=metrics,
                provenance={
                    "trained_on": "drawn fundus photographs (dr_training.drawing), no patient's",
                    "command": command + option,
                    "recipe": recipe.as_document(),
                    "environment": environment(threads=threads),
                },
                model=measured.model,
                head=head,
                task=task,
            ),
            folder,
        )
        for figure in ("accuracy", "quadratic_weighted_kappa", "referable_auc"):
            if figure in metrics:
                _say(f"{measured.kind} {figure}: {metrics[figure]}")
        _say(f"wrote {folder} ({spec.sha256[:12]})")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A variant with its own temperature and thresholds (validation) and figures (test)."""

    kind: str
    model: bytes
    classes: NDArray[np.intp]
    temperature: float
    points: list[dict[str, Any]]
    metrics: dict[str, Any]

    @classmethod
    def of(
        cls,
        kind: str,
        model: bytes,
        *,
        validation: DrawnData,
        test: DrawnData,
        task: str,
        threads: int,
    ) -> "Measured":
        from dr_training.runner import Runner

        runner = Runner(model, threads=threads)
        logits, _ = runner(validation.pixels)
        temperature = evaluate.fit_temperature(
            logits, evaluate.true_classes(validation.grades, task)
        )
        points = choose_operating_points(logits, validation.grades, temperature)
        answers = runner(test.pixels)[0]
        score = evaluate.referable_score(evaluate.softmax(answers, temperature))
        metrics = evaluate.grader_metrics(
            answers,
            test.grades,
            temperature=temperature,
            thresholds={point["name"]: point["threshold"] for point in points},
        )
        return cls(
            kind=kind,
            model=model,
            classes=logits.argmax(axis=1),
            temperature=temperature,
            points=points,
            metrics={
                **metrics,
                "roc": roc_points(test.grades >= REFERABLE_FROM_GRADE, score),
            },
        )


def _trained_backbone(
    loop: Any, recipe: Recipe, train: DrawnData, *, cache: Path, threads: int
) -> tuple[Any, Any]:
    """Stage 1, by far the longest: its weights are kept in the cache under the recipe's digest."""
    import keras

    keras.utils.set_random_seed(recipe.seed)
    network = _network(recipe, recipe.input_size_px)
    maps = loop.LesionMaps()
    maps.build_for(network)
    facts = {**recipe.as_document(), "head": None, "whole": None, "threads": threads}
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
    kept = cache / f"patches-{digest}.npz"
    if kept.exists():
        _say(f"patches: weights from {kept}")
        with np.load(kept) as arrays:
            weights = [arrays[name] for name in arrays.files]
        count = len(network.get_weights())
        network.set_weights(weights[:count])
        maps.set_weights(weights[count:])
        return network, maps
    crops = _network(recipe, recipe.patches.size_px)
    crops.set_weights(network.get_weights())
    loop.train_patches(crops, maps, train, recipe, report=_say)
    network.set_weights(crops.get_weights())
    partial = kept.with_suffix(".part.npz")
    np.savez(partial, *network.get_weights(), *maps.get_weights())
    partial.rename(kept)
    return network, maps


def _with_head_for(task: str, graded: Any, recipe: Recipe) -> Any:
    """The same backbone, which learned lesions and no task yet, under another head."""
    network = _network(recipe, recipe.input_size_px, task)
    for layer in network.layers:
        if layer.weights and not layer.name.startswith("head_"):
            layer.set_weights(graded.get_layer(layer.name).get_weights())
    return network


def _network(recipe: Recipe, size_px: int, task: str = TASK_GRADE5) -> Any:
    from dr_training.demo_networks import demo_network

    return demo_network(
        recipe.network,
        input_size_px=size_px,
        alpha=recipe.alpha,
        dense_units=recipe.dense_units,
        task=task,
    )


def choose_operating_points(
    logits: NDArray[np.float32], grades: NDArray[np.int64], temperature: float
) -> list[dict[str, Any]]:
    """Thresholds on P(grade >= 2) for `high_sensitivity` and `high_specificity`."""
    score = evaluate.referable_score(evaluate.softmax(logits, temperature))
    return operating_points(
        grades >= REFERABLE_FROM_GRADE,
        score,
        sensitivity=HIGH_SENSITIVITY,
        specificity=HIGH_SPECIFICITY,
        data="validation",
    )


def _head_features(
    loop: Any, runner: Any, train: Any, recipe: Recipe
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Pooled features of the training photographs, plain and in jittered copies."""
    columns = []
    for copy in range(recipe.head.copies):
        pixels = train.pixels
        if copy > 0:
            pixels = loop.jittered(train.pixels, seed=recipe.seed + 10 + copy)
        columns.append(runner(pixels)[1])
        _say(f"head: features of copy {copy + 1} of {recipe.head.copies}")
    return np.concatenate(columns), np.tile(train.grades, recipe.head.copies)


def _weights(layer: Any) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    kernel, bias = layer.get_weights()
    return kernel, bias


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
