"""CPU of one request before the network, phase by phase, beside the network's own.

    $ python -m benchmarks.prepare_cost                 # the table, about half a minute
    $ python -m benchmarks.prepare_cost --json docs/benchmarks/prepare.json

Every round takes each phase once, in the order of a request, and then the network, so that all
share the state of the machine and of its caches; a table cell is the median over the rounds of
the thread's CPU time. HTTP and JSON are not in it (`docs/performance.md`).
"""

import argparse
import io
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import PIL
from PIL import Image

from dr_training.drawing import draw_fundus
from inference_image.decoding import Decoded, decode
from inference_image.fundus import FundusCircle, assess, find_circle
from inference_image.model_spec import load_model_spec
from inference_image.preprocessing import Preparation
from inference_image.runtimes.litert import LiteRTRuntime

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "model_artifacts" / "mobilenet-demo"
SEED, GRADE = 8_800_000, 2
# A NumPy call has a price whatever its size, the higher the colder the caches; one of each kind.
_EIGHT = np.arange(8, dtype=np.uint8)
_SMALL_CALLS: tuple[Callable[[], Any], ...] = (
    lambda: _EIGHT + _EIGHT,
    lambda: np.maximum(_EIGHT, _EIGHT),
    _EIGHT.max,
    _EIGHT.sum,
    _EIGHT[::2].ravel,
    lambda: np.sort(_EIGHT, kind="stable"),
    lambda: _EIGHT.take([1]),
    lambda: np.count_nonzero(_EIGHT),
    lambda: _EIGHT > 3,
    lambda: _EIGHT.astype(np.int16),
)
# As the service decodes for an input of 224 pixels.
MIN_SIDE_PX = 515


def photographs() -> dict[str, bytes]:
    """A JPEG of 224 pixels, and a camera's 3216 x 2136 with ordinary sensor noise."""
    small = Image.fromarray(draw_fundus(SEED, GRADE, 224).image)
    drawn = Image.fromarray(draw_fundus(SEED, GRADE, 1400).image)
    width = round(drawn.width * 2136 / drawn.height)
    frame = Image.new("RGB", (3216, 2136), "#030303")
    place = ((3216 - width) // 2, 0)
    frame.paste(drawn.resize((width, 2136), Image.Resampling.BICUBIC), place)
    noise = np.random.default_rng(SEED).normal(0, 4, (2136, 3216)).astype(np.float32)
    camera = np.asarray(frame, dtype=np.float32) + noise[..., np.newaxis]
    large = Image.fromarray(camera.clip(0, 255).astype(np.uint8))
    return {"224 px": _jpeg(small, 90), "3216 x 2136": _jpeg(large, 88)}


def _jpeg(picture: Image.Image, quality: int) -> bytes:
    memory = io.BytesIO()
    picture.save(memory, "JPEG", quality=quality)
    return memory.getvalue()


class Timer:
    """Adds up the CPU milliseconds of this thread by phase."""

    def __init__(self) -> None:
        self.samples: dict[str, list[float]] = {}

    def __call__(self, phase: str, job: Callable[[], Any]) -> Any:
        """The job's result; its time is one more sample of the phase."""
        before = time.thread_time_ns()
        result = job()
        self.samples.setdefault(phase, []).append((time.thread_time_ns() - before) / 1e6)
        return result

    def medians(self) -> dict[str, float]:
        """Median of each phase, ms."""
        return {phase: statistics.median(times) for phase, times in self.samples.items()}


def measure(data: bytes, *, rounds: int) -> dict[str, float]:
    """Median ms of each phase for one photograph."""
    preparation = Preparation.from_spec(load_model_spec(PACKAGE))
    gate = preparation.gate
    if gate is None:
        raise SystemExit(f"{PACKAGE} has no quality gate to measure")
    runtime = LiteRTRuntime(PACKAGE / "model.tflite", outputs={"logits": "logits"}, threads=1)
    timer = Timer()
    for index in range(rounds + 10):
        if index == 10:  # caches and the engine are warm
            timer.samples.clear()
        decoded: Decoded = timer("decode", partial(decode, data, min_side_px=MIN_SIDE_PX))
        picture = decoded.image
        prepared = timer("prepare", partial(preparation, picture, scale=decoded.scale))
        timer("network", partial(runtime.predict, prepared.pixels))
        # Parts of the above once more, each by itself; what is left is the resampling, which the
        # compiled kernel does. What Pillow takes for it stands beside it.
        circle = timer("of it geometry", partial(find_circle, picture))
        timer("of it verdict", partial(assess, circle, prepared.pixels, gate))
        timer("beside it: Pillow's", partial(_resize, picture, prepared.pixels.shape[0], circle))
        runtime.predict(prepared.pixels)
        timer("floor: 10 small calls", lambda: [call() for call in _SMALL_CALLS])
    return timer.medians()


def _resize(picture: Image.Image, size_px: int, circle: FundusCircle) -> Image.Image:
    """The one call that resamples the disc, without what surrounds it."""
    shrinking = 2 * circle.radius_px > size_px
    box = (
        max(0.0, circle.x_px - circle.radius_px),
        max(0.0, circle.y_px - circle.radius_px),
        min(float(picture.width), circle.x_px + circle.radius_px),
        min(float(picture.height), circle.y_px + circle.radius_px),
    )
    return picture.resize(
        (size_px, size_px),
        Image.Resampling.BOX if shrinking else Image.Resampling.BILINEAR,
        box=box,
        reducing_gap=3.0 if shrinking else None,
    )


def main(arguments: list[str] | None = None) -> int:
    """Print the table and, when asked, write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=300, help="of the small photograph")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args(arguments)
    results: dict[str, Any] = {}
    for name, data in photographs().items():
        rounds = options.rounds if name == "224 px" else max(1, options.rounds // 5)
        phases = measure(data, rounds=rounds)
        beside = phases["decode"] + phases["prepare"]
        results[name] = {
            "bytes": len(data),
            "rounds": rounds,
            "cpu_ms": {phase: round(value, 3) for phase, value in phases.items()},
            "ratio_to_network": round(beside / phases["network"], 3),
        }
    print(f"{'CPU ms, median':<22}" + "".join(f"{name:>14}" for name in results))
    for phase in next(iter(results.values()))["cpu_ms"]:
        cells = "".join(f"{r['cpu_ms'][phase]:>14.2f}" for r in results.values())
        print(f"{phase:<22}{cells}")
    ratios = "".join(f"{r['ratio_to_network']:>14.2f}" for r in results.values())
    print(f"{'before / network':<22}{ratios}")
    print(f"{'rounds':<22}" + "".join(f"{r['rounds']:>14}" for r in results.values()))
    if options.json:
        document = {
            "command": "python -m benchmarks.prepare_cost",
            "unit": "milliseconds of CPU of one thread, median over the rounds",
            "machine": {
                "architecture": platform.machine(),
                "cpus": os.cpu_count(),
                "load_average": [round(value, 2) for value in os.getloadavg()],
                "python": platform.python_version(),
                "pillow": PIL.__version__,
                "numpy": np.__version__,
            },
            "photographs": results,
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
