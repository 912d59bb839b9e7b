"""What trainings cost: the time of training alone, and the life that is billed.

    >>> missed_share(Decimal(134), Decimal(158)).quantize(Decimal("0.001"))
    Decimal('0.152')

The published methodology multiplies the hourly price with the time of training. A machine is
billed from its start to its end, with what it does before (start-up, data, building the network)
and after, and between runs: of the study's bill of R$158, its formula gives R$134 and misses
15 %. Both figures are given here, never one for the other. Money is exact (`Decimal`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Any, Final

from dr_training.data.faults import DataError
from dr_training.study.study_file import Prices, Study

SECONDS_PER_HOUR: Final = Decimal(3600)
# Parts of a run's life in their order; they add up to `life_s`.
BILLED_PARTS: Final = ("start_up_s", "data_s", "build_s", "training_s", "evaluation_s", "ending_s")


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of one run, in the currency of the study: training alone, and all that is billed."""

    training: Decimal
    billed: Decimal
    billed_s: Decimal


def price_of(study: Study, environment: str) -> Decimal:
    """The hourly price of an environment.

    Raises:
        DataError: the study gives none; a missing price is not a price of 0.
    """
    hourly = study.environment(environment).hourly
    if hourly is None or study.prices is None:
        raise DataError(
            f"the environment {environment!r} has no hourly price; add `hourly` to it and "
            "[prices] with currency, checked and source"
        )
    return hourly


def cost(result: Mapping[str, Any], *, hourly: Decimal, prices: Prices) -> Cost:
    """Cost of a run from its `result.json`.

    `billed_s` is the runner's own figure where it reports one (SageMaker's billable seconds);
    else the life of the run, plus the idle time that the study states, at least the minimum and
    rounded up to the step.
    """
    training_s = Decimal(str(result["training_s"]))
    stated = result.get("billable_s")
    life_s = Decimal(str(result["life_s"])) if stated is None else Decimal(str(stated))
    seconds = max(life_s + prices.idle_s, prices.minimum_s)
    billed_s = (seconds / prices.step_s).to_integral_value(ROUND_CEILING) * prices.step_s
    return Cost(
        training=hourly * training_s / SECONDS_PER_HOUR,
        billed=hourly * billed_s / SECONDS_PER_HOUR,
        billed_s=billed_s,
    )


def missed_share(computed: Decimal, billed: Decimal) -> Decimal:
    """Share of a bill that a computed cost does not account for."""
    if billed <= 0:
        raise ValueError(f"a bill is above 0; got {billed}")
    return (billed - computed) / billed


def times_cheaper(times_faster: Decimal, price_ratio: Decimal) -> Decimal:
    """How many times less a run costs that is `times_faster` at `price_ratio` the hourly price."""
    if times_faster <= 0 or price_ratio <= 0:
        raise ValueError("both ratios must be above 0")
    return times_faster / price_ratio
