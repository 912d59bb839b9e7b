"""How many products a second the processor can do at most: in int8 and in float32.

    >>> peak = measure_peak(processes=2)
    >>> peak["int8"]      # 10⁹ multiplications with an addition, a CPU second of one core

    python -m benchmarks.serving.peak

No engine can be faster than this, so that the ratio of the two bounds how many times as fast as a
float32 engine an int8 engine can be, where nearly all of the time goes into products. x86-64
processors with AVX-512 and its VNNI; for others nobody has written the loops, and None is returned.
"""

import ctypes
import json
import platform
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.compiled import NotCompiledError, load

_SOURCE = Path(__file__).with_name("peak.c")
_FLAGS = ("-mavx512f",)
_NEEDS = frozenset({"avx512f", "avx512_vnni"})
# Of one turn of each loop in peak.c: sums, and products of each.
_PRODUCTS = {"float32": 24 * 16, "int8": 24 * 64}
_FUNCTIONS = {"float32": "dr_float_products", "int8": "dr_byte_products"}
_PROBE_TURNS = 100_000
_REPEATS = 7
_SECONDS = 0.3


def measure_peak(
    processes: int, *, repeats: int = _REPEATS, seconds: float = _SECONDS
) -> dict[str, float] | None:
    """10⁹ products a CPU second of one core, by type, while so many cores do the same.

    The median of `repeats`, both types in turn; None where the processor lacks the instructions or
    nothing compiles the loops.
    """
    if platform.machine() != "x86_64" or not _flags() >= _NEEDS:
        return None
    try:
        library = load(_SOURCE, *_FLAGS)
    except NotCompiledError:
        return None
    found: dict[str, list[float]] = {kind: [] for kind in _PRODUCTS}
    for _ in range(repeats):
        for kind, rates in found.items():
            loop = getattr(library, _FUNCTIONS[kind])
            loop.argtypes, loop.restype = [ctypes.c_long], None
            rates.append(_rate(loop, _PRODUCTS[kind], processes, seconds))
    return {kind: round(statistics.median(rates), 2) for kind, rates in found.items()}


def vgg19_products(side_px: int) -> int:
    """Products of VGG19's sixteen convolutions, 3 x 3, for a picture of `side_px` squared.

    Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition",
    ICLR 2015, table 1, column E. What comes after the convolutions is less than a ten thousandth.
    """
    products, channels, side = 0, 3, side_px
    for layers, width in ((2, 64), (2, 128), (4, 256), (4, 512), (4, 512)):
        for _ in range(layers):
            products += 9 * channels * width * side**2
            channels = width
        side //= 2
    return products


def _rate(loop: Callable[[int], None], products: int, processes: int, seconds: float) -> float:
    """The mean of all threads; ctypes lets go of the interpreter while the loop runs."""
    begun = time.thread_time()
    loop(_PROBE_TURNS)
    turns = max(1, int(_PROBE_TURNS * seconds / max(time.thread_time() - begun, 1e-6)))
    took_s: list[float] = []
    begin = threading.Barrier(processes)

    def run() -> None:
        begin.wait()
        before = time.thread_time()
        loop(turns)
        took_s.append(time.thread_time() - before)

    threads = [threading.Thread(target=run) for _ in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statistics.fmean(turns * products / took for took in took_s) / 1e9


def _flags() -> frozenset[str]:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, words = line.partition(":")
        if name.strip() == "flags":
            return frozenset(words.split())
    return frozenset()


if __name__ == "__main__":
    import os

    print(json.dumps(measure_peak(len(os.sched_getaffinity(0)))))
