"""How long one inference of several `.tflite` models takes, measured in turns.

    python -m dr_training.latency ONE.tflite OTHER.tflite     # and whether they answer alike

    >>> one, other = latencies([f32, int8], rounds=100)
    >>> one.cpu_ms, other.cpu_ms
    (11.8, 4.1)

One picture at a time on one thread, each model once in every round: other work on the machine moves
them together. CPU time (`time.process_time`) is what the engine itself needs; the time that passes
(`time.perf_counter`) is that of the machine as it was.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from dr_training.runner import open_interpreter

# Random pictures on which the answers of two models are compared.
_COMPARED: Final = 50
_SEED: Final = 20_261_129


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
        interpreter = _opened(model)
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


def alike(one: bytes, other: bytes) -> int:
    """How many of 50 random pictures both models answer with the same numbers, to the bit.

    Raises:
        ValueError: they take pictures of different shape or type.
    """
    pair = [_opened(model) for model in (one, other)]
    (shape, kind), theirs = [
        (tuple(map(int, entry["shape"])), entry["dtype"])
        for (entry,) in (interpreter.get_input_details() for interpreter in pair)
    ]
    if (shape, kind) != theirs:
        raise ValueError(
            f"one takes {kind.__name__} {shape}, the other {theirs[1].__name__} {theirs[0]}"
        )
    rng = np.random.default_rng(_SEED)
    same = 0
    for _ in range(_COMPARED):
        picture = rng.integers(0, 256, shape).astype(kind)
        answers = [_answer(interpreter, picture) for interpreter in pair]
        same += answers[0].keys() == answers[1].keys() and all(
            np.array_equal(value, answers[1][name]) for name, value in answers[0].items()
        )
    return same


def _opened(model: bytes) -> Any:
    interpreter = open_interpreter(model, threads=1)
    interpreter.allocate_tensors()
    return interpreter


def _answer(interpreter: Any, picture: Any) -> dict[str, Any]:
    """All outputs by the graph's own names."""
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], picture)
    interpreter.invoke()
    return {
        detail["name"]: interpreter.get_tensor(detail["index"])
        for detail in interpreter.get_output_details()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=300)
    options = parser.parse_args(arguments)
    contents: list[bytes] = []
    same: list[int] = []
    for path in options.models:
        try:
            contents.append(path.read_bytes())
            same.append(alike(contents[0], contents[-1]))
        except (OSError, ValueError) as error:
            parser.error(f"{path} cannot be measured: {' '.join(str(error).split())}")
    measured = latencies(contents, rounds=options.rounds)
    print(f"CPU ms of one inference, one thread, median of {options.rounds} rounds in turns:")
    for path, latency, count in zip(options.models, measured, same, strict=True):
        ratio = latency.cpu_ms / measured[0].cpu_ms
        print(
            f"{latency.cpu_ms:8.3f} {ratio:6.3f}  {path}, {count} of {_COMPARED} answers the same"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
