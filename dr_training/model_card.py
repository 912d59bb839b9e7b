"""Model cards as Markdown, from the same figures that go into `model.json`."""

from collections.abc import Mapping, Sequence
from typing import Any

from dr_training.recipe import Recipe
from inference_image.contract import GRADE_LABELS, NOT_ASSESSED

DEMO_NOTICE = "Demo model trained on drawn photographs only; not for clinical use."
RANDOM_NOTICE = (
    "Its weights are random: for latency and cost measurements only, its grades mean nothing."
)


def demo_card(
    *,
    model_id: str,
    recipe: Recipe,
    parameters: int,
    size_bytes: int,
    metrics: Mapping[str, Any],
    operating_points: Sequence[Mapping[str, Any]],
    float_agreement: float,
) -> str:
    """The card of the trained demo model."""
    rows = "\n".join(
        f"| {title} | {_interval(metrics[key], digits)} |"
        for title, key, digits in (
            ("Accuracy (5 grades)", "accuracy", 3),
            ("Quadratic weighted kappa", "quadratic_weighted_kappa", 3),
            ("AUC for referable DR (grade ≥ 2)", "referable_auc", 4),
        )
    )
    points = "\n".join(
        f"| `{point['name']}` | {point['threshold']:.4f} | "
        f"{_interval(metrics['operating_points'][point['name']]['sensitivity'])} | "
        f"{_interval(metrics['operating_points'][point['name']]['specificity'])} |"
        for point in operating_points
    )
    splits = "\n".join(
        f"| {split.name} | {split.eyes:,} | {split.photographs:,} | {split.first_seed} |"
        for split in (recipe.train, recipe.validation, recipe.test)
    )
    header = " | ".join(GRADE_LABELS)
    side = recipe.input_size_px
    counts = "\n".join(
        f"| **{label}** | {' | '.join(str(n) for n in row)} |"
        for label, row in zip(GRADE_LABELS, metrics["confusion"]["counts"], strict=True)
    )
    return f"""# Model card: {model_id}

**{DEMO_NOTICE}** It is not a medical device. {NOT_ASSESSED}

The model grades diabetic retinopathy on fundus photographs from 0 to 4 (ICDR scale). It has
seen drawn photographs only. On a real photograph its answer shows that the deployment works
and says nothing about the patient: no figure on this page holds for real photographs.

## Network
MobileNet (alpha {recipe.alpha:g}) with global average pooling, two dense layers of 128 and one of
5 units: {parameters:,} parameters, int8, {size_bytes / 1e6:.2f} MB. Input: uint8 RGB,
{side} by {side} pixels. Outputs: float logits, and the last feature map, for Grad-CAM.

## Data
Photographs drawn by `dr_training.drawing` (described, with pictures and with what is
exaggerated, in `docs/drawn-photographs.md`) and prepared by the service's own preprocessing.
One eye per seed; no eye is in two splits.

| split | eyes | photographs | first seed |
|---|---|---|---|
{splits}

## Results of the int8 model on the drawn test set
n = {metrics["photographs"]:,}; in brackets the 95 % bootstrap interval.

| figure | value |
|---|---|
{rows}

| operating point | threshold | sensitivity | specificity |
|---|---|---|---|
{points}

Temperature and thresholds were chosen on the validation split. The int8 model gives the same
grade as the float model on {100 * float_agreement:.1f} % of the validation split.

| true ↓ predicted → | {header} |
|---|---|---|---|---|---|
{counts}

## Intended use
Demonstration, tests and measurements of the deployment. Not to be used on patients, nor as a
starting point for such a model: lesions are drawn larger and darker than many real ones, and
nothing but diabetic retinopathy is drawn.

## Reproduce
```
python -m dr_training.train_demo --out model_artifacts/{model_id}
```
Seeds, library versions and thread counts are in `model.json`. Another number of threads or
another processor gives slightly other weights.
"""


def random_card(
    *, model_id: str, network: str, alpha: float, parameters: int, size_bytes: int, command: str
) -> str:
    """The card of a package whose weights are random."""
    width = f" (alpha {alpha:g})" if network == "mobilenet" else ""
    return f"""# Model card: {model_id}

**{RANDOM_NOTICE}** It is not a medical device. {NOT_ASSESSED}

{network}{width} with global average pooling, two dense layers of 128 and one of 5 units:
{parameters:,} parameters, int8, {size_bytes / 1e6:.2f} MB. The weights come from a seeded
generator and were never trained, so there are no metrics and there is no validated operating
point. Time, memory and cost of an inference do not depend on the weights' values, and those
are what this package is for.

`model.tflite` is too large to commit. `model.json`, which is committed, records its digest;
this writes the file again:

```
{command}
```

The weights are the same on any machine; the converter's choice of scales may differ with
another version of TensorFlow, and then the digest differs: commit the new `model.json`.
"""


def _interval(estimate: Mapping[str, float], digits: int = 3) -> str:
    value, low, high = (f"{estimate[name]:.{digits}f}" for name in ("value", "low", "high"))
    return f"{value} ({low} to {high})"
