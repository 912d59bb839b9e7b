"""A regularised linear head on a frozen backbone: minutes where training all weights takes hours.

    >>> report = train_linear_head(Path("records"), Path("out/linear"))

Pooled features of every training picture, in several of the eight orientations of a square, are
computed once by LiteRT. A multinomial logistic regression learns the grade from them; its L2
penalty is chosen by cross-validation within the training part, grouped by picture (and by
patient, where the records name them), on the log loss. The validation part chooses nothing but
temperature and thresholds. The head's scaling is folded into its weights, so that the package
holds one network.
"""

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dr_training.backbones import EFFICIENTNET_LITE0, WEIGHTS_IMAGENET
from dr_training.data.faults import DataError
from dr_training.data.pipeline import Part, TrainingData
from dr_training.data.splits import TEST, TRAIN, VALIDATION
from dr_training.export import environment
from dr_training.fitting.figures import validation_figures
from dr_training.fitting.logistic import (
    FOLDS,
    PENALTIES,
    FeatureScale,
    Floats,
    choose_penalty,
    fit_logistic,
)
from dr_training.fitting.packaging import package_network
from dr_training.networks import build_classifier
from dr_training.quantise import Runner, convert
from dr_training.remarks import REMARKS

ORIENTATIONS: Final = 8


def train_linear_head(
    records: Path,
    out: Path,
    *,
    network: str = EFFICIENTNET_LITE0,
    network_size_px: int | None = None,
    copies: int = 4,
    seed: int = 0,
    threads: int = 2,
    command: str = "dr model linear-head",
    model_id: str | None = None,
) -> dict[str, Any]:
    """Fit, choose, measure; writes `report.json` and `package/` into `out` and gives the report.

    Args:
        records: folder of `dr data prepare` with `train` and `validation`.
        out: folder of the results.
        network: a backbone whose ImageNet weights can be had.
        network_size_px: side to which the graph enlarges the pictures.
        copies: orientations of each training picture, 1 to 8.
        seed: of folds and orientations.
        threads: of LiteRT.

    Raises:
        DataError: the weights cannot be had, or a part is missing or too small.
    """
    if not 1 <= copies <= ORIENTATIONS:
        raise DataError(f"copies must be from 1 to {ORIENTATIONS}; got {copies}")
    data = TrainingData.open(records)
    train, validation = data.part(TRAIN), data.part(VALIDATION)
    if len(train) < 2 * FOLDS or len(set(train.grades.tolist())) < 2:
        raise DataError(
            f"a linear head needs {2 * FOLDS} photographs of two grades or more to learn from; "
            f"there are {len(train)}"
        )
    classifier = build_classifier(
        network,
        input_size_px=train.size_px,
        network_size_px=network_size_px,
        dense_units=(),
        weights=WEIGHTS_IMAGENET,
    )
    runner = Runner(convert(classifier.network, size_px=train.size_px, calibration=None)[0],
                    threads=threads)  # fmt: skip
    features, grades, groups = _training_features(runner, train, copies=copies, seed=seed)
    scale = FeatureScale.of(features)
    penalty, losses = choose_penalty(scale(features), grades, groups, seed=seed)
    weights, bias = fit_logistic(scale(features), grades, penalty)
    kernel, offset = scale.folded(weights, bias)
    layer = classifier.network.get_layer("head_logits")
    layer.set_weights([kernel.astype(np.float32), offset.astype(np.float32)])
    measured = {VALIDATION: validation}
    if TEST in data.parts and len(data.parts[TEST]):
        measured[TEST] = data.parts[TEST]
    report: dict[str, Any] = {
        "network": network,
        "network_size_px": network_size_px,
        **classifier.weights_record(),
        "records": records.name,
        "photographs": {name: len(part) for name, part in data.parts.items()},
        "copies": copies,
        "seed": seed,
        "penalty": penalty,
        "cross_validated_log_loss": dict(
            zip([f"{one:g}" for one in PENALTIES], np.round(losses, 4).tolist(), strict=True)
        ),
    }
    for name, part in measured.items():
        pooled = runner(_pixels(part))[1].astype(np.float64)
        figures = validation_figures(pooled @ kernel + offset, part.grades)
        report[name] = {k: None if v != v else round(v, 4) for k, v in figures.items()}
    report["environment"] = environment(threads=threads)
    out.mkdir(parents=True, exist_ok=True)
    spec = package_network(
        classifier.network,
        data,
        folder=out / "package",
        model_id=model_id or out.resolve().name,
        network_facts={
            "name": network,
            "network_size_px": network_size_px,
            **classifier.weights_record(),
            "parameters": int(classifier.network.count_params()),
        },
        provenance={
            "trained_on": f"{len(train)} photographs of {records.name}",
            "command": command,
            **{k: report[k] for k in ("copies", "seed", "penalty", "environment")},
        },
    )
    report[REMARKS] = spec.raw["calibration"][REMARKS]
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report


def _training_features(
    runner: Runner, part: Part, *, copies: int, seed: int
) -> tuple[Floats, NDArray[np.int64], list[str]]:
    """Pooled features of each picture in `copies` orientations, its grade, and its group."""
    pixels, groups = _pixels(part), part.owners
    rng = np.random.default_rng([seed, 41])
    orders = np.stack([rng.permutation(ORIENTATIONS)[:copies] for _ in range(len(pixels))])
    found = []
    for copy in range(copies):
        turned = np.stack(
            [oriented(one, int(code)) for one, code in zip(pixels, orders[:, copy], strict=True)]
        )
        found.append(runner(turned)[1])
    return (
        np.concatenate(found).astype(np.float64),
        np.tile(part.grades, copies),
        list(groups) * copies,
    )


def oriented(picture: NDArray[np.uint8], code: int) -> NDArray[np.uint8]:
    """One of the eight orientations of a square; 0 is the picture as it is."""
    plane = np.rot90(picture, code % 4)
    return np.ascontiguousarray(plane[:, ::-1] if code >= 4 else plane)


def _pixels(part: Part) -> NDArray[np.uint8]:
    return np.concatenate([batch.pixels for batch in part.batches(64)])
