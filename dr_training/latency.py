"""How long one inference of several `.tflite` models takes, measured in turns.

    >>> one, other = latencies([f32, int8], rounds=100)
    >>> one.cpu_ms, other.cpu_ms
    (11.8, 4.1)

One picture at a time on one thread, each model once in every round: other work on the machine moves
them together. CPU time (`time.process_time`) is what the engine itself needs; the time that passes
(`time.perf_counter`) is that of the machine as it was.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dr_training.runner import open_interpreter


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Medians over the rounds, and the 95th percentile of the time that passed, in ms."""

    cpu_ms: float
    wall_ms: float
    wall_p95_ms: float


def latencies(models: Sequence[bytes], *, rounds: int) -> list[Latency]:
    """Latencies of these models, in their order; the first round is not counted.

    Args:
        models: contents of `.tflite` files with one input.
        rounds: how often each model runs.
    """
    interpreters = []
    for model in models:
        interpreter = open_interpreter(model, threads=1)
        interpreter.allocate_tensors()
        (entry,) = interpreter.get_input_details()
        interpreter.set_tensor(entry["index"], np.zeros(entry["shape"], entry["dtype"]))
        interpreter.invoke()
        interpreters.append(interpreter)
    taken = np.zeros((rounds, len(models), 2))
    for row in taken:
        for cell, interpreter in zip(row, interpreters, strict=True):
            cpu, wall = time.process_time(), time.perf_counter()
            interpreter.invoke()
            cell[:] = time.process_time() - cpu, time.perf_counter() - wall
    return [
        Latency(
            cpu_ms=1000 * float(np.median(taken[:, index, 0])),
            wall_ms=1000 * float(np.median(taken[:, index, 1])),
            wall_p95_ms=1000 * float(np.percentile(taken[:, index, 1], 95)),
        )
        for index in range(len(models))
    ]
