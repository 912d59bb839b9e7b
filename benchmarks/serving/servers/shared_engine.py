"""This project's engine and preprocessing, as the other servers call them: two functions."""

import os
from pathlib import Path
from typing import Any

from inference_image.predictor import Predictor


def load_predictor() -> Predictor:
    """The package named by DR_BENCH_MODEL, warmed up, with one engine thread a process."""
    predictor = Predictor.load(Path(os.environ["DR_BENCH_MODEL"]), threads=1)
    predictor.warm_up()
    return predictor


def answer(predictor: Predictor, photograph: bytes) -> dict[str, Any]:
    """What the service computes for one photograph, as a record that becomes JSON."""
    given = predictor.predict(photograph, declared_type="image/jpeg")
    return {
        "predictions": given.probabilities,
        "grade": given.grade,
        "label": given.label,
        "referable": given.referable.positive,
        "quality": {"gradable": given.quality.gradable, "reasons": list(given.quality.reasons)},
        "predictionLatency": given.timings.engine_ms / 1000,
    }
