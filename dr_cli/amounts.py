"""Amounts as people type them: times and hours of a month."""

import re
from decimal import Decimal
from typing import Final

from dr_cli.errors import CommandError
from dr_experiments.deployment_cost import CLINIC_HOURS_PER_MONTH
from dr_experiments.pricing import HOURS_PER_MONTH

# Nothing that answers a photograph is waited for longer than a day.
_LONGEST_S: Final = 86_400
_NUMBER: Final = r"[0-9]+(?:\.[0-9]+)?"


def seconds(text: str, *, option: str = "") -> float:
    """`1s` or `800ms` as seconds; a number alone could be either.

    Raises:
        CommandError: no time above 0 and of at most a day; it begins with `option`.
    """
    match = re.fullmatch(rf"({_NUMBER})\s*(ms|s)?", text.strip())
    value = float(match[1]) / (1000 if match[2] == "ms" else 1) if match else 0
    if match is None or value <= 0:
        where = f"{option}: " if option else ""
        raise CommandError(f"{where}a time is like 1s or 800ms; got {text!r}")
    where = f"{option} {text}".strip()
    if match[2] is None:
        raise CommandError(f"{where}: give a unit: {match[1]}ms or {match[1]}s")
    if value > _LONGEST_S:
        raise CommandError(f"{where}: a time is at most {_LONGEST_S}s, a day")
    return value


def hours_per_month(text: str) -> Decimal:
    """`always` (730), `clinic` (217: five days of ten hours) or a number of hours from 1 to 730.

    Raises:
        CommandError: anything else.
    """
    if text == "always":
        return HOURS_PER_MONTH
    if text == "clinic":
        return CLINIC_HOURS_PER_MONTH
    if re.fullmatch(_NUMBER, text) and 1 <= Decimal(text) <= HOURS_PER_MONTH:
        return Decimal(text)
    raise CommandError(f"hours must be always, clinic or 1 to 730 a month; got {text!r}")
