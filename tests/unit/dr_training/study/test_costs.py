"""Cost of training alone and of the billed life; the published figures' arithmetic."""

from decimal import Decimal
from pathlib import Path

import pytest

from dr_training.data.faults import DataError
from dr_training.study import published
from dr_training.study.analysis import Anova, Effect, Source
from dr_training.study.costs import cost, missed_share, price_of, times_cheaper
from tests.unit.dr_training.study.study_texts import SMALL, study_of


def test_the_published_formula_misses_fifteen_percent_of_its_bill() -> None:
    missed = missed_share(published.COMPUTED_BRL, published.BILLED_BRL)
    assert missed == Decimal(24) / Decimal(158)
    assert round(100 * missed, 1) == Decimal("15.2")


def test_the_published_saving_is_35_2_percent_and_not_36() -> None:
    saved = published.time_saved(published.GPU_MINUTES, published.TPU_MINUTES)
    assert round(100 * saved, 1) == Decimal("35.2")
    assert round(100 * saved) == 35
    assert round(published.GPU_MINUTES / published.TPU_MINUTES, 3) == Decimal("1.544")
    epoch_s = published.GPU_MINUTES * 60 / published.REFERRAL_EPOCHS
    assert round(epoch_s, 1) == Decimal("15.4")


def test_four_to_six_times_cheaper_needs_twelve_to_nineteen_times_faster() -> None:
    for cheaper, faster in ((4, "12.4"), (6, "18.7")):
        needed = cheaper * published.GPU_PRICE_RATIO
        assert round(needed, 1) == Decimal(faster)
        assert times_cheaper(needed, published.GPU_PRICE_RATIO) == cheaper


def test_a_machine_is_billed_for_its_life(tmp_path: Path) -> None:
    text = SMALL.replace(
        'source = "a test"', 'source = "a test"\nminimum_s = 60\nstep_s = 10\nidle_s = 5'
    )
    study = study_of(tmp_path, text)
    assert study.prices is not None
    hourly = price_of(study, "cpu")
    # 3.60 an hour is 0.001 a second.
    short = cost({"training_s": 20.0, "life_s": 30.0}, hourly=hourly, prices=study.prices)
    assert (short.training, short.billed, short.billed_s) == (
        Decimal("0.02"), Decimal("0.06"), 60,
    )  # fmt: skip
    longer = cost({"training_s": 20.0, "life_s": 71.2}, hourly=hourly, prices=study.prices)
    assert longer.billed_s == 80
    stated = cost(
        {"training_s": 20.0, "life_s": 71.2, "billable_s": 100},
        hourly=hourly,
        prices=study.prices,
    )
    assert stated.billed_s == 110


def test_a_missing_price_is_no_price_of_nothing(tmp_path: Path) -> None:
    study = study_of(tmp_path, SMALL.replace('hourly = "3.60"\n', ""))
    with pytest.raises(DataError, match="has no hourly price"):
        price_of(study, "cpu")


def table(**shares: float) -> Anova:
    return Anova(
        sources=tuple(
            Source(name=name, df=1, sum_of_squares=share, share=share)
            for name, share in shares.items()
        ),
        residual=Source(name="residual", df=5, sum_of_squares=0.1, share=0.1),
        total=1.0,
        n=10,
        balanced=True,
    )


def effect(factor: str, level: object, against: object, low: float, high: float) -> Effect:
    return Effect(
        factor=factor,
        level=level,  # type: ignore[arg-type]
        against=against,  # type: ignore[arg-type]
        ratio=(low * high) ** 0.5,
        low=low,
        high=high,
    )


@pytest.mark.parametrize(
    ("low", "high", "agrees"), [(1.2, 1.4, True), (1.0, 1.05, False), (1.05, 1.3, None)]
)
def test_a_finding_is_asserted_only_where_the_whole_interval_is(
    low: float, high: float, agrees: bool | None
) -> None:
    (finding,) = published.findings(table(), [effect("network", 2, 1, low, high)], [])
    assert finding.agrees is agrees


@pytest.mark.parametrize(
    ("level", "against", "low", "high", "agrees"),
    [
        ("CIFAR-10", "MNIST", 0.8, 0.9, True),
        ("CIFAR-10", "MNIST", 1.1, 1.2, False),
        ("MNIST", "CIFAR-10", 1.1, 1.2, True),
        ("MNIST", "CIFAR-10", 0.9, 1.1, None),
    ],
)
def test_the_faster_data_set_whichever_comes_first(
    level: str, against: str, low: float, high: float, agrees: bool | None
) -> None:
    (finding,) = published.findings(table(), [effect("data", level, against, low, high)], [])
    assert finding.agrees is agrees


def test_the_largest_factor_after_the_environment() -> None:
    (yes,) = published.findings(table(size=0.3, network=0.1, environment=0.5), [], [])
    (no,) = published.findings(table(size=0.1, network=0.3, environment=0.5), [], [])
    (alone,) = published.findings(table(size=0.1, environment=0.5), [], [])
    assert (yes.agrees, no.agrees, alone.agrees) == (True, False, None)


def test_no_order_of_frameworks_is_asserted() -> None:
    effects = [effect("framework", "PyTorch", "MXNet", 0.5, 0.6)]
    found = published.findings(table(framework=1.0), effects, [("MXNet", 100.0)])
    assert [finding.agrees for finding in found] == [None, None]
    assert "PyTorch 0.55 (0.50 to 0.60)" in found[0].here
