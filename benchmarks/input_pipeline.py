"""How fast training pictures come out of records, beside decoding the same bytes alone.

    python -m benchmarks.input_pipeline

One thread, CPU time of the thread, variants interleaved in rounds; the table gives the median
over rounds of the rate and of the ratio to the fastest way to decode. Run it in the training
environment: without OpenCV the pipeline decodes with Pillow.
"""

import argparse
import io
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from dr_training.data.pipeline import Augmentation, Part, TrainingData, read_record
from dr_training.data.preparation import Plan, prepare
from dr_training.data.readers import read
from dr_training.data.records import RecordFile
from dr_training.data.splits import make_split
from dr_training.drawing import draw_fundus

DRAWN_PX = 700


def main() -> int:
    """Draw, prepare, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.input_pipeline")
    parser.add_argument("--size-px", type=int, default=299)
    parser.add_argument("--eyes", type=int, default=12, help="eyes, each in five grades")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        part, encoded = _records(Path(folder), size_px=options.size_px, eyes=options.eyes)
        rates = _measure(part, encoded, rounds=options.rounds)
    best = _decode_only(rates)
    ratios = {
        name: statistics.median(
            value / max(rates[decoder][index] for decoder in best)
            for index, value in enumerate(values)
        )
        for name, values in rates.items()
    }
    if options.json:
        print(json.dumps({"rates": rates, "ratios": ratios}))
        return 0
    size = statistics.mean(map(len, encoded)) / 1000
    print(f"{len(encoded)} records, {options.size_px} px, {size:.0f} kB each, one thread,")
    print(f"{options.rounds} rounds; images/s of CPU time, and ratio to the fastest decoding")
    for name, values in rates.items():
        print(f"{name:<34} {statistics.median(values):7.0f}  {ratios[name]:5.2f}")
    return 0


def _records(folder: Path, *, size_px: int, eyes: int) -> tuple[Part, list[bytes]]:
    (folder / "drawn").mkdir()
    for seed in range(eyes):
        for grade in range(5):
            data = draw_fundus(seed, grade, DRAWN_PX).jpeg_bytes()
            (folder / "drawn" / f"grade{grade}-seed{seed}.jpg").write_bytes(data)
    table = read("drawn", folder / "drawn").table
    split = make_split(table, seed=0, fractions={"train": 0.8, "validation": 0.2})
    plan = replace(Plan.usual(size_px=size_px), keep_ungradable=True)
    prepare(table, split, folder / "records", plan=plan)
    part = TrainingData.open(folder / "records").part("train")
    file = RecordFile(folder / "records" / "train-00000.tfrecord")
    encoded = []
    for index in range(len(file)):
        value = read_record(file, index)["image/encoded"][0]
        assert isinstance(value, bytes)
        encoded.append(value)
    return part, encoded


def _measure(part: Part, encoded: list[bytes], *, rounds: int) -> dict[str, list[float]]:
    variants: dict[str, Callable[[int], object]] = {
        "decode only, Pillow": lambda _: [_decode(data) for data in encoded],
    }
    try:
        import cv2
    except ImportError:
        pass
    else:
        cv2.setNumThreads(1)
        flag = cv2.IMREAD_COLOR_RGB
        variants["decode only, OpenCV"] = lambda _: [
            cv2.imdecode(np.frombuffer(data, np.uint8), flag) for data in encoded
        ]
    variants["records, as they are"] = lambda epoch: _drain(part, None, epoch)
    variants["records, flipped and recoloured"] = lambda epoch: _drain(part, Augmentation(), epoch)
    rates: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        for name, run in variants.items():
            start = time.thread_time()
            run(number)
            if number:  # the first round warms up
                rates[name].append(len(encoded) / (time.thread_time() - start))
    return rates


def _drain(part: Part, augment: Augmentation | None, epoch: int) -> None:
    for batch in part.batches(32, augment=augment, seed=7, epoch=epoch):
        assert batch.pixels.dtype == np.uint8


def _decode(data: bytes) -> object:
    return np.asarray(Image.open(io.BytesIO(data)))


def _decode_only(rates: dict[str, list[float]]) -> list[str]:
    return [name for name in rates if name.startswith("decode only")]


if __name__ == "__main__":
    raise SystemExit(main())
