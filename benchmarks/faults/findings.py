"""What a part of the benchmark found: rows of a table, and the numbers behind them."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table: what was done, what was wanted, what was found."""

    what: str
    wanted: str
    found: str
    met: bool


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Rows of one part, and the numbers that they were made from."""

    rows: list[Row]
    numbers: dict[str, Any] = field(default_factory=dict)

    @property
    def met(self) -> bool:
        """Whether everything is as wanted."""
        return all(row.met for row in self.rows)


def share(values: list[float], quantile: float) -> float:
    """A quantile of ascending values (the value at or above it); NaN of none."""
    if not values:
        return float("nan")
    return values[min(len(values) - 1, int(quantile * len(values)))]


def mib(size_bytes: float) -> float:
    """Bytes as MiB, to one decimal."""
    return round(size_bytes / 2**20, 1)
