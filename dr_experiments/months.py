"""What a month of a measured deployment costs, with its interval, and where two of them cross.

    >>> month = Month(region="us-east-1", prices=PriceTable.load())
    >>> month.bill(one, 20_000).usd, month.crossings(found)

Shared by `dr bench cost` and `dr bench report`. A bound of the cost has the mean time at the bound
of its 95 % interval; prices and traffic have no interval.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from dr_experiments.deployment_cost import (
    MODE_LAMBDA,
    Bill,
    BreakEven,
    FixedPart,
    Traffic,
    break_even,
    data_gb,
    monthly_bill,
)
from dr_experiments.measured import Measured
from dr_experiments.pricing import (
    HOURS_PER_MONTH,
    ITEM_DATA_IN,
    ITEM_DATA_OUT,
    PriceTable,
    UnknownPriceError,
)
from dr_experiments.statistics import Summary

CONTAINER: Final = "container"
ROUND_TRIP: Final = "round trip"
DATA_ITEMS: Final = frozenset({ITEM_DATA_IN, ITEM_DATA_OUT})
# Kinds of an `UnknownPriceError` beside a missing row.
NO_DEPLOYMENT: Final = "no_deployment"
NO_INIT: Final = "no_init"


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """From how many requests per month `second`, dearer at rest, is the cheaper one."""

    first: Measured
    second: Measured
    at: BreakEven


@dataclass(frozen=True, kw_only=True)
class Month:
    """What all bills of a comparison have in common; requests come within `hours`.

    `left_out` has the items of `DATA_ITEMS` that no bill counts, which the caller must say.
    `cold_share` of the requests start a container; only Lambda bills that, by its init phase.
    """

    region: str
    prices: PriceTable
    hours: Decimal = HOURS_PER_MONTH
    fixed: FixedPart | None = None
    left_out: frozenset[str] = frozenset()
    cold_share: Decimal = Decimal(0)

    def bill(self, one: Measured, requests: int, *, side: int = 0, basis: str = CONTAINER) -> Bill:
        """A month of `one`.

        Args:
            side: 0 at the mean time, -1 and 1 at the lower and upper bound of its interval.
            basis: `CONTAINER` (closer to the bill) or `ROUND_TRIP` (as the study computed).

        Raises:
            UnknownPriceError: a price that the table lacks, no deployment that has one, or starts
                of a function whose init phase was not measured.
        """
        if one.setup is None:
            raise UnknownPriceError(
                "not a deployment of the matrix, so it has no price", kind=NO_DEPLOYMENT
            )
        starts = self.cold_share if one.setup.mode == MODE_LAMBDA else Decimal(0)
        if starts and one.init_s is None:
            raise UnknownPriceError(
                "starts are billed by their init phase, and the run has none; measure fresh "
                "containers by the function's name (dr bench cold --function) and name that run, "
                "too, or leave out --cold-share",
                kind=NO_INIT,
            )
        summary = one.container if basis == CONTAINER else one.round_trip
        traffic = Traffic(
            requests=requests,
            bytes_in=0 if ITEM_DATA_IN in self.left_out else one.bytes_in,
            bytes_out=0 if ITEM_DATA_OUT in self.left_out else one.bytes_out,
            hours=self.hours,
            cold_share=starts,
            init_s=Decimal(str(one.init_s or 0)),
        )
        return monthly_bill(
            one.setup,
            traffic,
            compute_s=_bound(summary, side),
            region=self.region,
            prices=self.prices,
            fixed=self.fixed,
        )

    def data_gb(self, one: Measured, requests: int) -> dict[str, Decimal]:
        """GB of data that a month of `one` is charged for, by item, counted or left out."""
        if one.setup is None:
            return dict.fromkeys(DATA_ITEMS, Decimal(0))
        asked = requests + (self.fixed.probes if self.fixed else 0)
        traffic = Traffic(requests=asked, bytes_in=one.bytes_in, bytes_out=one.bytes_out)
        return data_gb(one.setup, traffic)

    def crossings(self, found: Sequence[Measured]) -> list[Crossing]:
        """Break-even of every two modes of one platform, by the time in the container.

        All must have prices. Times of two platforms are not compared.
        """

        def usd(one: Measured) -> Callable[[int, int], Decimal]:
            return lambda requests, side: self.bill(one, requests, side=side).usd

        return [
            Crossing(first=first, second=second, at=break_even(usd(first), usd(second)))
            for first, second in itertools.permutations(found, 2)
            if first.setup
            and second.setup
            and first.setup.mode != second.setup.mode
            and first.platform == second.platform
            and usd(first)(1, 0) < usd(second)(1, 0)
        ]


def spread(bounds: Sequence[Decimal], digits: Callable[[Decimal], str]) -> str:
    """Both bounds in the digits of their amount, or one where they look alike."""
    return " to ".join(dict.fromkeys(map(digits, bounds)))


def usd_digits(amount: Decimal, *, least: int = 2) -> str:
    """USD with at least so many decimals, and two digits that mean something below a dollar."""
    places = least if amount >= 1 or not amount else max(least, 1 - amount.adjusted())
    return f"{amount:,.{places}f}"


def in_usd(amount: Decimal) -> str:
    """Cents, or two digits that mean something where it is less than a dollar."""
    return f"{usd_digits(amount)} USD"


def _bound(summary: Summary, side: int) -> float:
    bound = {-1: summary.mean_low, 0: summary.mean, 1: summary.mean_high}[side]
    # A few scattered values can have a lower bound below zero; the smallest value is above it.
    return max(bound if bound is not None else summary.mean, summary.minimum / 2)
