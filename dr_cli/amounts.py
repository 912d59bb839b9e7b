"""Amounts as people type them: times and hours of a month."""

import re
from decimal import Decimal

from dr_cli.errors import CommandError
from dr_experiments.deployment_cost import CLINIC_HOURS_PER_MONTH
from dr_experiments.pricing import HOURS_PER_MONTH


def seconds(text: str) -> float:
    """`1s`, `800ms` or `0.8` as seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s)?", text.strip())
    if match is None or float(match[1]) <= 0:
        raise CommandError(f"a time is like 1s or 800ms; got {text!r}")
    return float(match[1]) / (1000 if match[2] == "ms" else 1)


def hours_per_month(text: str) -> Decimal:
    """`always` (730), `clinic` (217: five days of ten hours) or a number of hours."""
    if text == "always":
        return HOURS_PER_MONTH
    if text == "clinic":
        return CLINIC_HOURS_PER_MONTH
    if re.fullmatch(r"\d+(\.\d+)?", text) and 0 < Decimal(text) <= HOURS_PER_MONTH:
        return Decimal(text)
    raise CommandError(f"hours must be always, clinic or 1 to 730 a month; got {text!r}")
