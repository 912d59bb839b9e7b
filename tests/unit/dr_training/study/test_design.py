"""Fractions of a factorial, and what they cannot tell apart."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dr_training.study.design import columns, fractions, full, scenario_rows
from dr_training.study.study_file import Factor


def factors(*counts: int) -> tuple[Factor, ...]:
    return tuple(
        Factor(name="abcdef"[n], levels=tuple(range(count))) for n, count in enumerate(counts)
    )


def test_a_half_of_four_factors_is_of_resolution_four() -> None:
    (half,) = fractions(factors(2, 2, 2, 2))
    assert half.share == Fraction(1, 2)
    assert half.words == ("a + b + c + d = 0 (mod 2)",)
    # Montgomery, table 8.3: I = ABCD; main effects with interactions of three, pairs with pairs.
    assert set(half.confounded) == {
        ("a", "b x c x d"), ("b", "a x c x d"), ("c", "a x b x d"), ("d", "a x b x c"),
        ("a x b", "c x d"), ("a x c", "b x d"), ("a x d", "b x c"),
    }  # fmt: skip


def test_two_and_three_levels_are_crossed() -> None:
    found = fractions(factors(3, 2, 2, 2, 2))
    assert [one.share for one in found] == [Fraction(1, 2)]
    rows = np.array(scenario_rows(factors(3, 2, 2, 2, 2), found[0].kept))
    assert len(rows) == 24
    # Each level of each factor as often as the others.
    for column in rows.T:
        assert len(set(np.bincount(column))) == 1


def test_a_third_of_three_factors_with_three_levels() -> None:
    found = fractions(factors(3, 3, 3))
    assert [one.share for one in found] == [Fraction(1, 3)]
    assert len(found[0].kept) == 9
    # A Latin square: each main effect with the interaction of the two others.
    assert ("a", "b x c") in found[0].confounded
    assert not any(" x " not in pair[0] + pair[1] for pair in found[0].confounded)


@pytest.mark.parametrize("counts", [(2, 3), (4, 4, 4), (2, 2), (6,), (2, 2, 4)])
def test_there_is_no_fraction_without_three_factors_of_one_prime_number(
    counts: tuple[int, ...],
) -> None:
    assert fractions(factors(*counts)) == []


def test_six_factors_have_several_fractions_the_largest_first() -> None:
    shares = [one.share for one in fractions(factors(2, 2, 2, 2, 2))]
    assert shares == [Fraction(1, 2), Fraction(1, 4)]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(2, 3), min_size=1, max_size=4))
def test_effect_columns_add_up_to_nothing_over_the_full_factorial(counts: list[int]) -> None:
    several = factors(*counts)
    rows = scenario_rows(several, full(several).kept)
    for factor in several:
        values = columns(several, rows, (factor.name,))
        assert values.shape == (len(rows), len(factor.levels) - 1)
        assert np.allclose(values.sum(axis=0), 0)
