"""What a training is: every choice that changes its weights, checked before anything is read."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Final

from dr_training.backbones import backbone
from dr_training.data.faults import DataError
from inference_image.contract import TASK_GRADE5, TASKS

TRAIN_HEAD: Final = "head"
TRAIN_ALL: Final = "all"
CROSS_ENTROPY: Final = "cross-entropy"
FOCAL: Final = "focal"
ORDINAL: Final = "ordinal"
BALANCED: Final = "balanced"
NO_WEIGHTS: Final = "none"
MONITOR_LOSS, MONITOR_KAPPA, MONITOR_AUC = "loss", "kappa", "auc"
FLOAT32, BFLOAT16, FLOAT16, AUTO = "float32", "mixed_bfloat16", "mixed_float16", "auto"
# On what a training runs; `fitting.strategies` makes them, and needs TensorFlow.
CPU, ONE_GPU, MIRRORED, MULTI_WORKER, TPU = "cpu", "one-gpu", "mirrored", "multi-worker", "tpu"
STRATEGIES: Final = (AUTO, CPU, ONE_GPU, MIRRORED, MULTI_WORKER, TPU)
# What NumPy's and TensorFlow's generators take.
_HIGHEST_SEED: Final = 2**32 - 1

_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "task": TASKS,
    "train": (TRAIN_ALL, TRAIN_HEAD),
    "weights": ("auto", "imagenet", "random"),
    "loss": (CROSS_ENTROPY, FOCAL, ORDINAL),
    "class_weights": (NO_WEIGHTS, BALANCED),
    "monitor": (MONITOR_LOSS, MONITOR_KAPPA, MONITOR_AUC),
    "precision": (AUTO, FLOAT32, BFLOAT16, FLOAT16),
}


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """A training; `batch_size` is that of all devices together.

    `train` is `all`, or `head` where the backbone keeps its weights. `monitor` is the validation
    figure that the rate, the best weights and the end follow. After `reduce_patience` epochs
    without a better one the rate is multiplied by `reduce_factor`, after `stop_patience` the
    training ends. `loss`: cross-entropy; `focal` (Lin et al., 2017, arXiv:1708.02002); `ordinal`,
    cross-entropy and the squared earth mover's distance between grades (Hou et al., 2016,
    arXiv:1611.05916). `precision` `auto` is bfloat16 on a TPU, float16 on a GPU, else float32.
    """

    network: str
    weights: str = "auto"
    task: str = TASK_GRADE5
    network_size_px: int | None = None
    train: str = TRAIN_ALL
    epochs: int = 50
    batch_size: int = 32
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    loss: str = CROSS_ENTROPY
    focal_gamma: float = 2.0
    class_weights: str = NO_WEIGHTS
    dropout: float = 0.0
    augment: bool = True
    monitor: str = MONITOR_LOSS
    reduce_patience: int = 4
    reduce_factor: float = 0.5
    stop_patience: int = 10
    precision: str = FLOAT32
    seed: int = 0

    def __post_init__(self) -> None:
        backbone(self.network)
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise DataError(f"{name} must be one of {', '.join(allowed)}; got {value!r}")
        for name, least in (
            ("epochs", 1),
            ("batch_size", 1),
            ("reduce_patience", 1),
            ("stop_patience", 1),
            ("seed", 0),
        ):
            if getattr(self, name) < least:
                raise DataError(f"{name} must be at least {least}; got {getattr(self, name)}")
        if self.network_size_px is not None and self.network_size_px < 1:
            raise DataError(f"network_size_px must be at least 1; got {self.network_size_px}")
        if self.seed > _HIGHEST_SEED:
            raise DataError(f"seed must be at most {_HIGHEST_SEED}; got {self.seed}")
        for name, low, high in (
            ("learning_rate", 1e-8, 10.0),
            ("weight_decay", 0.0, 1.0),
            ("focal_gamma", 0.0, 10.0),
            ("dropout", 0.0, 0.95),
            ("reduce_factor", 0.01, 0.99),
        ):
            value = getattr(self, name)
            if not math.isfinite(value) or not low <= value <= high:
                raise DataError(f"{name} must be from {low:g} to {high:g}; got {value:g}")
        if self.task != TASK_GRADE5 and (self.loss == ORDINAL or self.monitor == MONITOR_KAPPA):
            raise DataError(
                "a referral model has one answer: neither the ordinal loss nor kappa is defined"
            )

    @property
    def higher_is_better(self) -> bool:
        """Whether the monitored figure should rise."""
        return self.monitor != MONITOR_LOSS

    def as_document(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return asdict(self)
