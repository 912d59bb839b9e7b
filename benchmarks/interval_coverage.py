"""How often the intervals of `dr_experiments.statistics` hold the truth; 95 % is what they say.

    python -m benchmarks.interval_coverage

Latencies are drawn from distributions whose mean and percentiles are known: exponential ones, as
skewed as latencies are at worst, and log-normal ones of a coefficient of variation of 0.5. Percent
of runs whose interval holds the true value; a minute of CPU.
"""

import argparse
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from dr_experiments.statistics import percentile, ratio_of_means, summarise

_SIGMA: Final = float(np.sqrt(np.log(1.25)))
_Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]
# Of each distribution: how it is drawn, its mean, and its percentile.
_DISTRIBUTIONS: Final[dict[str, tuple[_Draw, float, Callable[[float], float]]]] = {
    "exponential": (
        lambda generator, n: generator.exponential(1.0, n),
        1.0,
        lambda percent: -float(np.log(1 - percent / 100)),
    ),
    "log-normal": (
        lambda generator, n: generator.lognormal(0.0, _SIGMA, n),
        float(np.exp(_SIGMA**2 / 2)),
        lambda percent: float(np.exp(_SIGMA * norm.ppf(percent / 100))),
    ),
}


def main(arguments: list[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    runs = parser.parse_args(arguments).runs
    print(f"{runs:,} runs of each; standard error {100 * (0.05 * 0.95 / runs) ** 0.5:.1f} %\n")
    print("| interval of | n | " + " | ".join(_DISTRIBUTIONS) + " |")
    print("|---|---|" + "---|" * len(_DISTRIBUTIONS))
    for n in (5, 25, 100):
        _print_row("the mean", n, [_mean(kind, n, runs) for kind in _DISTRIBUTIONS])
    for percent, n in ((50, 25), (95, 100), (99, 300), (99, 600), (99, 10_000)):
        shares = [_percentile(kind, percent, n, runs) for kind in _DISTRIBUTIONS]
        _print_row(f"p{percent}", n, shares)
    for n in (10, 25):
        _print_row(
            "a quotient of two means", n, [_quotient(kind, n, runs) for kind in _DISTRIBUTIONS]
        )


def _print_row(what: str, n: int, shares: list[float]) -> None:
    cells = " | ".join(f"{100 * share:.1f} %" for share in shares)
    print(f"| {what} | {n:,} | {cells} |", flush=True)


def _covered(held: Callable[[np.random.Generator], bool], runs: int) -> float:
    generator = np.random.default_rng(1)
    return sum(held(generator) for _ in range(runs)) / runs


def _mean(kind: str, n: int, runs: int) -> float:
    draw, mean, _ = _DISTRIBUTIONS[kind]

    def held(generator: np.random.Generator) -> bool:
        found = summarise(draw(generator, n).tolist())
        return (found.mean_low or 0.0) <= mean <= (found.mean_high or 0.0)

    return _covered(held, runs)


def _percentile(kind: str, percent: float, n: int, runs: int) -> float:
    draw, _, true = _DISTRIBUTIONS[kind]

    def held(generator: np.random.Generator) -> bool:
        found = percentile(draw(generator, n).tolist(), percent)
        return (found.low or 0.0) <= true(percent) <= (found.high or 0.0)

    return _covered(held, runs)


def _quotient(kind: str, n: int, runs: int) -> float:
    draw, _, _ = _DISTRIBUTIONS[kind]

    def held(generator: np.random.Generator) -> bool:
        top, bottom = 2 * draw(generator, n), draw(generator, n)
        found = ratio_of_means(top.tolist(), bottom.tolist())
        return (found.low or 0.0) <= 2 <= (found.high or 0.0)

    return _covered(held, runs)


if __name__ == "__main__":
    main()
