"""How often the gate of a training passes a model that is exactly as good as its minimum.

    python -m benchmarks.gate_coverage

The gate's aim is at most 2.5 % of test parts. Here test parts are simulated:
patients with one to three photographs, whose answers agree more than those of two patients do, and
a model whose true sensitivity, or true kappa, is the minimum. Percent of simulated test parts whose
lower bound is above the truth; about four minutes of CPU.
"""

import argparse
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dr_training.bootstrap import bootstrap_figures
from dr_training.evaluate import quadratic_weighted_kappa
from dr_training.exact_interval import effective_number, exact_interval

SENSITIVITY: Final = 0.85
# Correlation of two photographs of one patient.
WITHIN: Final = 0.5
PATIENTS: Final = (30, 60, 120, 240)
_DRAWS: Final = 400


def main(arguments: list[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", type=int, default=2000, help="for sensitivity")
    parser.add_argument("--kappa-parts", type=int, default=1000)
    options = parser.parse_args(arguments)
    rng = np.random.default_rng(0)
    print("| patients | sensitivity | sensitivity, one photograph each | kappa |")
    print("|---|---|---|---|")
    for patients in PATIENTS:
        rates = [
            _rate(lambda n=patients, m=most: _sensitivity_is_above(rng, n, m), options.parts)
            for most in (3, 1)
        ]
        rates.append(_rate(lambda n=patients: _kappa_is_above(rng, n), options.kappa_parts))
        print(f"| {patients} | " + " | ".join(f"{100 * rate:.1f} %" for rate in rates) + " |")


def _rate(once: Callable[[], bool], parts: int) -> float:
    return sum(once() for _ in range(parts)) / parts


def _owners(rng: np.random.Generator, patients: int, most: int) -> NDArray[np.int64]:
    return np.repeat(np.arange(patients), rng.integers(1, most + 1, patients))


def _sensitivity_is_above(rng: np.random.Generator, patients: int, most: int) -> bool:
    owners = _owners(rng, patients, most)
    # A photograph is answered as its patient's others are with this probability.
    shared = rng.random(len(owners)) < np.sqrt(WITHIN)
    own, common = rng.random(len(owners)), rng.random(patients)
    right = np.where(shared, common[owners], own) < SENSITIVITY
    number = effective_number([str(one) for one in owners])
    return _low(min(float(right.mean()) * number, number), number) > SENSITIVITY


@lru_cache(maxsize=10_000)
def _low(right: float, number: float) -> float:
    return exact_interval(right, number)[0]


def _graded(
    rng: np.random.Generator, owners: NDArray[np.int64], patients: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Grades as screening finds them, and a model that is one grade off for one in five."""
    truth = rng.choice(5, patients, p=[0.5, 0.1, 0.25, 0.08, 0.07])[owners]
    off = rng.choice([-1, 0, 0, 0, 0, 0, 0, 0, 0, 1], len(owners))
    return truth, np.clip(truth + off, 0, 4)


def _true_kappa() -> float:
    rng = np.random.default_rng(1)
    owners = np.arange(2_000_000)
    return quadratic_weighted_kappa(*_graded(rng, owners, len(owners)))


def _kappa_is_above(rng: np.random.Generator, patients: int) -> bool:
    owners = _owners(rng, patients, 3)
    truth, said = _graded(rng, owners, patients)

    def figures(index: NDArray[np.intp]) -> dict[str, float]:
        return {"kappa": quadratic_weighted_kappa(truth[index], said[index])}

    names = [str(one) for one in owners]
    return bootstrap_figures(figures, names, draws=_DRAWS)["kappa"].low > TRUE_KAPPA


TRUE_KAPPA: Final = _true_kappa()

if __name__ == "__main__":
    main()
