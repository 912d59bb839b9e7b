"""What an entry may cost at most, and what it came to: the spending limit of a sweep.

The reserve is the worst case: an instance that stands for the whole time to live, requests that
each take the platform's longest time. Counted are compute, instance hours and data, at list
prices; logs, storage of packages and images (cents) and tax are not.
"""

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final, Protocol

from constructs_lib.limits import INVOCATION_TIMEOUT_S
from dr_experiments.deployment_cost import Setup, Traffic, monthly_bill
from dr_experiments.pricing import PriceTable
from dr_experiments.sweep.plan import Entry
from stacks.matrix import Mode

_SECONDS_PER_HOUR: Final = Decimal(3600)
# Answers are a kilobyte; a heat map would be more.
_ANSWER_BYTES: Final = 100_000
_SHORTEST_S: Final = Decimal("0.001")


class Purse(Protocol):
    """Says what an entry may cost, and what it did."""

    def reserve_usd(self, entry: Entry, *, stands_s: float, requests: int) -> Decimal:
        """The most that an entry can come to."""
        ...

    def cost_usd(self, entry: Entry, *, stood_s: float, requests: int, busy_s: float) -> Decimal:
        """An estimate of what it came to, from the seconds it stood and was busy."""
        ...


class FreePurse:
    """The local AWS: nothing costs anything."""

    def reserve_usd(self, entry: Entry, *, stands_s: float, requests: int) -> Decimal:
        """Nothing."""
        return Decimal(0)

    def cost_usd(self, entry: Entry, *, stood_s: float, requests: int, busy_s: float) -> Decimal:
        """Nothing."""
        return Decimal(0)


@dataclass(frozen=True, kw_only=True)
class ListPricePurse:
    """Prices of the table; an entry without a price raises `UnknownPriceError`.

    Args:
        bytes_in: of one request.
    """

    region: str
    bytes_in: int
    prices: PriceTable = field(default_factory=PriceTable.load)

    def reserve_usd(self, entry: Entry, *, stands_s: float, requests: int) -> Decimal:
        """All requests at the time limit, an instance for `stands_s` seconds."""
        # A start is billed on Lambda, and may be elsewhere: it is counted as another request.
        return self._usd(entry, stands_s, 2 * requests, Decimal(INVOCATION_TIMEOUT_S))

    def cost_usd(self, entry: Entry, *, stood_s: float, requests: int, busy_s: float) -> Decimal:
        """`busy_s` seconds in containers in all; an instance for `stood_s` seconds."""
        each = Decimal(str(busy_s)) / requests if requests else Decimal(0)
        return self._usd(entry, stood_s, requests, max(each, _SHORTEST_S))

    def _usd(self, entry: Entry, stands_s: float, requests: int, compute_s: Decimal) -> Decimal:
        row = entry.deployment
        hours = Decimal(str(stands_s)) / _SECONDS_PER_HOUR
        setup = Setup(
            mode=row.mode.value,
            memory_mib=row.memory_mib,
            instance_type=row.instance_type,
            architecture=row.architecture.value if row.mode == Mode.LAMBDA else None,
            instance_hours=hours,
            # However busy: a sweep deploys one instance.
            utilisation=Decimal(1),
        )
        bill = monthly_bill(
            setup,
            Traffic(requests=requests, bytes_in=self.bytes_in, bytes_out=_ANSWER_BYTES),
            compute_s=compute_s,
            region=self.region,
            prices=self.prices,
        )
        return bill.usd
