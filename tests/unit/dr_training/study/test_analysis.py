"""The statistics against textbook examples and against data whose answer is known."""

import math
from pathlib import Path

import numpy as np
import pytest

from dr_training.data.faults import DataError
from dr_training.study.analysis import (
    Measurement,
    anova,
    level_means,
    main_effects,
    mean_of,
    repetitions_needed,
)
from dr_training.study.plan import make_plan
from dr_training.study.study_file import Factor, read_study

AB = (Factor(name="a", levels=("1", "2")), Factor(name="b", levels=("1", "2")))


def measured(values: dict[tuple[str, str], list[float]]) -> list[Measurement]:
    return [
        Measurement(levels={"a": a, "b": b}, value=value)
        for (a, b), several in values.items()
        for value in several
    ]


# Jain, example 18.1 to 18.7 (memory and cache, three repetitions), as logarithms.
JAIN = {
    ("1", "1"): [15.0, 18.0, 12.0],
    ("2", "1"): [45.0, 48.0, 51.0],
    ("1", "2"): [25.0, 28.0, 19.0],
    ("2", "2"): [75.0, 75.0, 81.0],
}


def test_allocation_of_variation_is_that_of_the_textbook() -> None:
    logs = {key: [math.exp(v / 100) for v in values] for key, values in JAIN.items()}
    table = anova(AB, measured(logs))
    found = {source.name: source.sum_of_squares * 1e4 for source in table.sources}
    # Jain, example 18.4: SSA 5547, SSB 1083, SSAB 300, SSE 102, SST 7032.
    assert found["a"] == pytest.approx(5547)
    assert found["b"] == pytest.approx(1083)
    assert found["a x b"] == pytest.approx(300)
    assert table.residual.sum_of_squares * 1e4 == pytest.approx(102)
    assert table.total * 1e4 == pytest.approx(7032)
    assert table.sources[0].share == pytest.approx(0.7888, abs=1e-4)
    assert (table.residual.df, table.n, table.balanced) == (8, 12, True)
    assert table.sources[0].f == pytest.approx(5547 / (102 / 8))


def test_the_full_plan_has_192_residual_degrees_of_freedom() -> None:
    plan = make_plan(read_study(Path("methodology")))
    rng = np.random.default_rng(1)
    rows = [
        Measurement(levels=run.levels, value=float(np.exp(rng.normal(0, 0.1)))) for run in plan.runs
    ]
    table = anova(plan.study.factors, rows)
    assert table.residual.df == 192
    assert sum(source.df for source in table.sources) == 47
    assert len(table.sources) == 31
    assert sum(s.share for s in (*table.sources, table.residual)) == pytest.approx(1)


def test_effects_that_multiply_are_no_interaction_on_the_logarithm() -> None:
    rng = np.random.default_rng(2)
    values = {
        (a, b): list(
            2 * (8 if a == "2" else 1) * (6 if b == "2" else 1)
            * np.exp(rng.normal(0, 0.02, 5))
        )
        for a in "12"
        for b in "12"
    }  # fmt: skip
    table = anova(AB, measured(values))
    interaction = next(source for source in table.sources if source.name == "a x b")
    assert interaction.share < 1e-3
    # On the seconds themselves it would look like a large one.
    raw = anova(
        AB, measured({key: [math.exp(v / 50) for v in several] for key, several in values.items()})
    )
    assert next(s for s in raw.sources if s.name == "a x b").share > 0.1
    effects = {effect.factor: effect for effect in main_effects(AB, measured(values), table)}
    for name, ratio in (("a", 8), ("b", 6)):
        effect = effects[name]
        assert effect.low is not None
        assert effect.high is not None
        assert effect.low < ratio < effect.high
        assert effect.high / effect.low < 1.1


def test_a_failed_scenario_does_not_tilt_an_effect() -> None:
    # b's second level is twice as slow everywhere; the slow pair (2, 2) has no run.
    values = {("1", "1"): [1.0, 1.0], ("1", "2"): [2.0, 2.0], ("2", "1"): [50.0, 50.0]}
    rows = measured(values)
    table = anova(AB, rows)
    effects = {effect.factor: effect.ratio for effect in main_effects(AB, rows, table)}
    assert effects["b"] == pytest.approx(2)
    assert effects["a"] == pytest.approx(50)
    assert "a x b (confounded)" in table.left_out


def test_unequal_numbers_of_runs_are_said() -> None:
    values = {**JAIN, ("2", "2"): [75.0]}
    table = anova(AB, measured(values))
    assert not table.balanced
    assert table.residual.df == 6


def test_one_run_each_leaves_the_highest_interaction_for_the_residual() -> None:
    table = anova(AB, measured({key: values[:1] for key, values in JAIN.items()}))
    assert [source.name for source in table.sources] == ["a", "b"]
    assert table.residual.df == 1
    assert table.left_out == ("a x b (in the residual)",)


def test_equal_values_give_no_variation_and_no_nonsense() -> None:
    table = anova(AB, measured({key: [3.0, 3.0] for key in JAIN}))
    assert table.total == 0
    assert all(source.share == 0 and source.f is None for source in table.sources)
    assert table.residual_sd == 0


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_must_be_above_nothing(value: float) -> None:
    with pytest.raises(DataError, match="above 0"):
        anova(AB, measured({**JAIN, ("2", "2"): [value]}))


def test_a_level_without_any_run_is_said() -> None:
    with pytest.raises(DataError, match="no run with b 2 has succeeded"):
        anova(AB, measured({key: value for key, value in JAIN.items() if key[1] == "1"}))


def test_intervals_of_means() -> None:
    # t(4) = 2.776; sd 1.5811, n 5.
    mean = mean_of([1, 2, 3, 4, 5])
    assert mean.low == pytest.approx(3 - 2.77645 * 1.58114 / math.sqrt(5), abs=1e-4)
    assert mean_of([7.0]).low is None
    with pytest.raises(ValueError, match="at least one"):
        mean_of([])


def test_repetitions_for_a_precision() -> None:
    # sd 5 %: t(n-1) 0.05 / sqrt(n) <= log(1.05) = 0.04879 first at n = 7 (0.04624; 6: 0.05247).
    assert repetitions_needed(0.05, precision=0.05) == 7
    assert repetitions_needed(0.0, precision=0.01) == 2
    needed = [repetitions_needed(0.1, precision=p) for p in (0.01, 0.02, 0.05, 0.1)]
    assert needed == sorted(needed, reverse=True)
    with pytest.raises(ValueError, match="above 0"):
        repetitions_needed(0.1, precision=0)


def test_geometric_means_of_levels() -> None:
    means = level_means(AB, measured({("1", "1"): [1, 4], ("2", "1"): [9, 9]}), ("a",))
    assert means == {("1",): pytest.approx(2), ("2",): pytest.approx(9)}
