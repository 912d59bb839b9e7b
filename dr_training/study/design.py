"""Which scenarios of a factorial are run, and what a fraction of it can no longer tell apart.

    >>> fractions(study.factors)[0].share
    Fraction(1, 2)

A regular fraction needs factors with the same prime number p of levels: the scenarios in which
a sum of their levels is 0 modulo p are a p-th of all. Fractions of groups of factors (those with
two levels, those with three …) are crossed with each other and with the factors that are kept
whole. What is confounded is not read from tables but computed from the model's columns for the
scenarios that are left, so that it holds for every mixture.

Source: Montgomery, Design and Analysis of Experiments, chapters 8 and 9; Jain, The Art of
Computer Systems Performance Analysis, chapter 19.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dr_training.study.study_file import Factor, Level

# Interactions of more factors than this are taken to be nothing when confounding is named.
HIGHEST_ORDER: Final = 3
_PRIMES: Final = (2, 3, 5, 7)
_TOLERANCE: Final = 1e-8
Scenario = Mapping[str, Level]
Term = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Design:
    """Scenarios to run, by their place in the full factorial (from 0).

    `words` says which sums of levels are 0, such as `data + network + size = 0 (mod 2)`, with
    levels counted from 0.
    """

    share: Fraction
    kept: tuple[int, ...]
    words: tuple[str, ...] = ()
    confounded: tuple[tuple[str, str], ...] = ()

    @property
    def complete(self) -> bool:
        """Whether nothing is left out."""
        return self.share == 1


def full(factors: Sequence[Factor]) -> Design:
    """Every scenario."""
    count = int(np.prod([len(factor.levels) for factor in factors]))
    return Design(share=Fraction(1), kept=tuple(range(count)))


def fractions(factors: Sequence[Factor]) -> list[Design]:
    """Regular fractions, the largest first; of one size, the one that confounds least.

    Empty where no two factors have the same prime number of levels.
    """
    groups = {
        prime: [factor.name for factor in factors if len(factor.levels) == prime]
        for prime in _PRIMES
    }
    choices = []
    for prime, names in groups.items():
        # A fraction must leave each factor all its levels: fewer generators than factors.
        choices.append([(prime, words) for words in _generators(names, prime)])
    best: dict[Fraction, tuple[tuple[float, ...], Design]] = {}
    for combination in itertools.product(*choices):
        words = [(prime, word) for prime, several in combination for word in several]
        if not words:
            continue
        design = _design(factors, words)
        rank = _badness(factors, design)
        if design.share not in best or rank < best[design.share][0]:
            best[design.share] = (rank, design)
    found = [design for _, design in best.values() if _estimable(factors, design)]
    return sorted(found, key=lambda design: design.share, reverse=True)


def scenario_rows(factors: Sequence[Factor], kept: Sequence[int]) -> list[tuple[int, ...]]:
    """Level numbers (from 0) of the kept scenarios, a column for each factor."""
    rows = list(itertools.product(*(range(len(factor.levels)) for factor in factors)))
    return [rows[index] for index in kept]


def terms(factors: Sequence[Factor], highest: int) -> list[Term]:
    """Main effects, then interactions of two factors, and so on."""
    names = [factor.name for factor in factors]
    return [
        term
        for order in range(1, min(highest, len(names)) + 1)
        for term in itertools.combinations(names, order)
    ]


def columns(
    factors: Sequence[Factor], rows: Sequence[tuple[int, ...]], term: Term
) -> NDArray[np.float64]:
    """The model's columns of a term, (rows, degrees of freedom), in effect coding.

    Effect coding: a level's column is 1 there, -1 at the last level, 0 elsewhere; the effects
    of a factor add up to 0.
    """
    table = np.array(rows).reshape(len(rows), len(factors))
    product = np.ones((len(rows), 1))
    for index, factor in enumerate(factors):
        if factor.name not in term:
            continue
        count = len(factor.levels)
        coding = np.vstack([np.eye(count - 1), -np.ones((1, count - 1))])
        one = coding[table[:, index]]
        product = (product[:, :, None] * one[:, None, :]).reshape(len(rows), -1)
    return product


def name_of(term: Term) -> str:
    """`framework x size`."""
    return " x ".join(term)


def _generators(names: Sequence[str], prime: int) -> list[tuple[dict[str, int], ...]]:
    """Sets of up to len(names) - 1 independent words; the empty set first."""
    words = [
        dict(zip(names, values, strict=True))
        for values in itertools.product(range(prime), repeat=len(names))
        # One of each multiple: the first number that is not 0 is 1. At least three factors in a
        # word, or two main effects would be one.
        if sum(value > 0 for value in values) >= 3 and next(value for value in values if value) == 1
    ]
    sets: list[tuple[dict[str, int], ...]] = [()]
    for size in range(1, max(1, len(names) - 1)):
        sets += list(itertools.combinations(words, size))
    return sets


def _design(factors: Sequence[Factor], words: list[tuple[int, dict[str, int]]]) -> Design:
    every = scenario_rows(factors, range(full(factors).kept[-1] + 1))
    names = [factor.name for factor in factors]
    kept = tuple(
        index
        for index, row in enumerate(every)
        if all(
            sum(word.get(name, 0) * level for name, level in zip(names, row, strict=True)) % prime
            == 0
            for prime, word in words
        )
    )
    design = Design(
        share=Fraction(len(kept), len(every)),
        kept=kept,
        words=tuple(_word(prime, word) for prime, word in words),
    )
    return Design(
        share=design.share,
        kept=kept,
        words=design.words,
        confounded=tuple(_confounded(factors, design)),
    )


def _word(prime: int, word: Mapping[str, int]) -> str:
    parts = [name if times == 1 else f"{times} {name}" for name, times in word.items() if times]
    return f"{' + '.join(parts)} = 0 (mod {prime})"


def _confounded(factors: Sequence[Factor], design: Design) -> list[tuple[str, str]]:
    """Pairs of terms of which the kept scenarios cannot tell at least a part apart."""
    rows = scenario_rows(factors, design.kept)
    bases = {term: _basis(columns(factors, rows, term)) for term in terms(factors, HIGHEST_ORDER)}
    found = []
    for first, second in itertools.combinations(bases, 2):
        # Below this, an effect hides behind one that is smaller still by the usual assumption.
        if len(first) + len(second) > HIGHEST_ORDER + 1:
            continue
        if np.abs(bases[first].T @ bases[second]).max(initial=0) > _TOLERANCE:
            found.append((name_of(first), name_of(second)))
    mean = np.ones(len(rows)) / len(rows) ** 0.5
    found += [
        ("mean", name_of(term))
        for term, basis in bases.items()
        if np.abs(mean @ basis).max(initial=0) > _TOLERANCE
    ]
    return found


def _basis(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Orthonormal columns that span the same space."""
    left, sizes, _ = np.linalg.svd(values, full_matrices=False)
    return np.asarray(left[:, sizes > _TOLERANCE])


def _badness(factors: Sequence[Factor], design: Design) -> tuple[float, ...]:
    """Confounded pairs, those of the lowest orders first."""
    orders = [first.count(" x ") + second.count(" x ") for first, second in design.confounded]
    return tuple(float(orders.count(order)) for order in range(2 * HIGHEST_ORDER))


def _estimable(factors: Sequence[Factor], design: Design) -> bool:
    """Every factor keeps its levels, and no main effect hides another or the mean."""
    mains = {factor.name for factor in factors}
    if any(first in mains | {"mean"} and second in mains for first, second in design.confounded):
        return False
    rows = np.array(scenario_rows(factors, design.kept))
    return all(
        len(set(rows[:, index])) == len(factor.levels) for index, factor in enumerate(factors)
    )
