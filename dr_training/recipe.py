"""How the demo model is made: every choice that changes its weights or its verdicts.

The recipe is written into the package's `model.json` as its provenance. Its preprocessing and
its quality gate are what the service runs, so that training sees what serving sees.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from inference_image.fundus import QualityGate
from inference_image.preprocessing import Preparation

MIN_RADIUS_PX = 32
# The outermost 2 % hold the notch, the label and the edge of the mask: nothing to grade.
MASK_RADIUS_FRACTION = 0.98


@dataclass(frozen=True, kw_only=True)
class Split:
    """Photographs of one use: seeds `first_seed` onwards, one eye per seed.

    Each eye is drawn in `grades_per_eye` different grades. Splits share no seed, so no eye is
    in two of them.
    """

    name: str
    first_seed: int
    eyes: int
    grades_per_eye: int

    @property
    def photographs(self) -> int:
        return self.eyes * self.grades_per_eye

    @property
    def seeds(self) -> range:
        return range(self.first_seed, self.first_seed + self.eyes)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stretch of training at one input size; `peak_rate` is that of a cosine with warm-up."""

    size_px: int
    steps: int
    batch_size: int
    peak_rate: float


@dataclass(frozen=True, kw_only=True)
class HeadStage:
    """Training of the dense head on pooled features of `copies` versions of each photograph."""

    copies: int
    epochs: int
    peak_rate: float


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The demo model: network, data, schedule and quantisation."""

    network: str = "mobilenet"
    alpha: float = 1.0
    input_size_px: int = 224
    dense_units: tuple[int, ...] = (128, 128)
    seed: int = 20_261_128
    train: Split = Split(name="train", first_seed=1_000_000, eyes=1000, grades_per_eye=3)
    validation: Split = Split(name="validation", first_seed=2_000_000, eyes=800, grades_per_eye=1)
    test: Split = Split(name="test", first_seed=3_000_000, eyes=1000, grades_per_eye=1)
    patches: Stage = Stage(size_px=96, steps=900, batch_size=48, peak_rate=2e-3)
    head: HeadStage = HeadStage(copies=3, epochs=60, peak_rate=1e-3)
    whole: Stage = Stage(size_px=224, steps=0, batch_size=16, peak_rate=1e-4)
    batch_size: int = 32
    settling_batches: int = 12
    weight_decay: float = 2e-5
    # Weight of the lesion map loss beside the grade's cross-entropy (see `loop`).
    lesion_map_weight: float = 0.3
    calibration_photographs: int = 300

    def as_document(self) -> dict[str, Any]:
        """The recipe as JSON values, for the provenance in `model.json`."""
        return asdict(self)

    def preprocessing(self) -> list[dict[str, Any]]:
        """The steps as `model.json` states them."""
        return [
            {"step": "crop_to_fundus", "min_radius_px": MIN_RADIUS_PX},
            {"step": "resize_area"},
            {"step": "mask_outside_disc", "radius_fraction": MASK_RADIUS_FRACTION},
        ]

    def quality_gate(self) -> Mapping[str, float]:
        """The limits as `model.json` states them."""
        return asdict(QualityGate())

    def preparation(self) -> Preparation:
        """The service's own preprocessing with this recipe's steps and gate."""
        return Preparation(
            size_px=self.input_size_px,
            crop=True,
            min_radius_px=MIN_RADIUS_PX,
            mask_fraction=MASK_RADIUS_FRACTION,
            gate=QualityGate(),
        )


def quick(recipe: Recipe) -> Recipe:
    """The same path on a few photographs and steps: to try it, not to use its model."""
    return replace(
        recipe,
        alpha=0.25,
        train=replace(recipe.train, eyes=20),
        validation=replace(recipe.validation, eyes=20),
        test=replace(recipe.test, eyes=20),
        patches=replace(recipe.patches, steps=4, batch_size=8),
        head=replace(recipe.head, copies=1, epochs=1),
        whole=replace(recipe.whole, steps=2, batch_size=4),
        batch_size=8,
        settling_batches=2,
        calibration_photographs=10,
    )


def small(recipe: Recipe, *, network: str, alpha: float) -> Recipe:
    """A smaller network on fewer photographs: the recipe of the committed small demo models.

    It is measured on the same validation and test photographs as the demo model.
    """
    return replace(
        recipe,
        network=network,
        alpha=alpha,
        train=replace(recipe.train, eyes=200),
        patches=replace(recipe.patches, steps=300, batch_size=32),
        head=replace(recipe.head, copies=3, epochs=120),
        calibration_photographs=200,
    )
