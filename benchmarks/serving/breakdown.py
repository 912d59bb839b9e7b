"""Where the milliseconds of one request go, each stage measured by itself in CPU time.

    python -m benchmarks.serving.breakdown PACKAGE PHOTOGRAPH

Runs in a process of its own and writes one line of JSON: for each stage the median CPU
milliseconds, in the service's own order and with the service's own functions. What the server
adds (HTTP, thread hand-off, the kernel's sockets) cannot be called by itself: the caller
subtracts all stages from the CPU time that a request costs under load.
"""

import dataclasses
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from inference_image.contract import MEDIA_JSON
from inference_image.decoding import Limits, decode
from inference_image.fundus import QualityGate, assess, find_circle
from inference_image.log import JsonLog
from inference_image.model_spec import load_model_spec
from inference_image.predictor import Predictor
from inference_image.preprocessing import Preparation
from inference_image.runtimes.litert import LiteRTRuntime

_WARM_UP = 5
# A slow network is run less often.
_MOST_S = 12.0


def stages(package: Path, photograph: bytes, *, repeats: int) -> dict[str, float]:
    """CPU milliseconds of each stage of a request, medians of `repeats` in turn.

    Fewer where they take too long, but always some.
    """
    spec = load_model_spec(package)
    preparation = Preparation.from_spec(spec)
    without_gate = dataclasses.replace(preparation, gate=None)
    gate = QualityGate.from_mapping(spec.quality_gate or {})
    model_file = next(file.path for file in spec.files if file.path.endswith(".tflite"))
    runtime = LiteRTRuntime(package / model_file, outputs=spec.outputs, threads=1)
    predictor = Predictor.load(package, threads=1)
    # The service decodes so that the disc keeps twice the input; that is what is timed here.
    answer = predictor.predict(photograph, declared_type="image/jpeg")
    min_side_px = _decoded_side(predictor, photograph)

    def decoded() -> Any:
        return decode(
            photograph, declared_type="image/jpeg", limits=Limits(), min_side_px=min_side_px
        ).image

    image = decoded()
    prepared = without_gate(image)
    record = {
        "predictions": answer.probabilities,
        "grade": answer.grade,
        "label": answer.label,
        "model": {"id": spec.id, "sha256": spec.sha256, "notice": spec.notice},
        "quality": {"gradable": True, "reasons": []},
        "requestLatency": 0.0123,
        "predictionLatency": 0.0045,
        "media_type": MEDIA_JSON,
    }
    log = JsonLog(level="info", stream=Path(os.devnull).open("w"))  # noqa: SIM115
    timed: dict[str, Callable[[], Any]] = {
        "decode": decoded,
        "locate": lambda: find_circle(image),
        "locate and resize": lambda: without_gate(image),
        "quality": lambda: assess(prepared.circle, prepared.pixels, gate),
        "network": lambda: runtime.predict(prepared.pixels),
        "json": lambda: json.dumps(record, allow_nan=False).encode(),
        "log": lambda: log.info("request", **record),
        "predict": lambda: predictor.predict(photograph, declared_type="image/jpeg"),
    }
    took: dict[str, list[float]] = {name: [] for name in timed}
    begun = time.perf_counter()
    for turn in range(_WARM_UP + repeats):
        if turn > 2 * _WARM_UP and time.perf_counter() - begun > _MOST_S:
            break
        for name, stage in timed.items():
            before = time.thread_time()
            stage()
            spent_ms = (time.thread_time() - before) * 1000
            if turn >= _WARM_UP:
                took[name].append(spent_ms)
    medians = {name: statistics.median(values) for name, values in took.items()}
    medians["resize"] = max(0.0, medians.pop("locate and resize") - medians["locate"])
    return {name: round(value, 4) for name, value in medians.items()}


def _decoded_side(predictor: Predictor, photograph: bytes) -> int | None:
    """The `min_side_px` with which the predictor decodes this photograph in the end."""
    from inference_image import predictor as module

    asked: list[int | None] = []
    real = module.decode

    def watch(*words: Any, **named: Any) -> Any:
        asked.append(named["min_side_px"])
        return real(*words, **named)

    module.decode = watch  # type: ignore[assignment]
    try:
        predictor.predict(photograph)
    finally:
        module.decode = real
    return asked[-1]


def main() -> int:
    """Command line."""
    np.seterr(all="ignore")
    package, photograph = Path(sys.argv[1]), Path(sys.argv[2])
    repeats = int(sys.argv[3]) if len(sys.argv) > 3 else 100
    print(json.dumps(stages(package, photograph.read_bytes(), repeats=repeats)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
