"""How many instances, or warm containers: within which bounds, by which load, at which hours.

    >>> hours = ClinicHours(time_zone="Europe/Lisbon", opens="08:00", closes="18:30")
    >>> hours.opening_cron, hours.closing_cron
    ('cron(0 8 ? * MON-FRI *)', 'cron(30 18 ? * MON-FRI *)')

No `aws_cdk` here; `docs/endpoints.md` says what each kind of endpoint can and cannot do.
"""

import re
import zoneinfo
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from constructs_lib import limits
from constructs_lib.rules import bounded_fault, fault, is_integer, is_number
from constructs_lib.tokens import is_token

_DAY: Final = "(?:MON|TUE|WED|THU|FRI|SAT|SUN)"
_DAYS: Final = re.compile(rf"{_DAY}(?:-{_DAY})?(?:,{_DAY}(?:-{_DAY})?)*")
_TIME: Final = re.compile(r"(?P<hour>[01]\d|2[0-3]):(?P<minute>[0-5]\d)")
_INVOCATIONS: Final = "invocations_per_instance"
_UTILIZATION: Final = "utilization"


@dataclass(frozen=True, kw_only=True)
class ClinicHours:
    """Capacity while the clinic is open; outside, the bounds are those of the `Scaling`.

    Attributes:
        time_zone: of the clinic, `Europe/Lisbon` for example; summer time is followed.
        opens, closes: `HH:MM` of the clinic's clock, on the same day.
        days: `MON-FRI`, `MON,WED,FRI`, `SAT` and the like.
        min_capacity: instances or warm containers while it is open.
        max_capacity: the most while it is open; as outside when None.
    """

    time_zone: str
    opens: str = "08:00"
    closes: str = "18:00"
    days: str = "MON-FRI"
    min_capacity: int = 1
    max_capacity: int | None = None

    @property
    def opening_cron(self) -> str:
        """When it opens, as Application Auto Scaling writes it."""
        return self._cron(self.opens)

    @property
    def closing_cron(self) -> str:
        """When it closes, as Application Auto Scaling writes it."""
        return self._cron(self.closes)

    def _cron(self, time: str) -> str:
        hour, _, minute = time.partition(":")
        return f"cron({int(minute)} {int(hour)} ? * {self.days} *)"


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Bounds, load and hours of an endpoint's capacity.

    Capacity is instances on real-time endpoints, and containers kept warm (provisioned
    concurrency) on serverless endpoints and Lambda.

    Attributes:
        min_capacity: the fewest; at least 1 on SageMaker, 0 on Lambda.
        max_capacity: the most; on serverless at most `max_concurrency`.
        invocations_per_instance: requests a minute that an instance shall get; real-time only.
        utilization: part of the warm containers that shall be busy, above 0 and up to 1
            (0.1 to 0.9 on Lambda); serverless and Lambda only.
        scale_in_cooldown_s, scale_out_cooldown_s: seconds of rest after a change.
        clinic_hours: other bounds at certain hours.

    Without a load only the hours change the capacity.
    """

    min_capacity: int
    max_capacity: int
    invocations_per_instance: float | None = None
    utilization: float | None = None
    scale_in_cooldown_s: int = 300
    scale_out_cooldown_s: int = 60
    clinic_hours: Sequence[ClinicHours] = ()

    @property
    def fewest(self) -> int | None:
        """The smallest capacity at any hour; None where that is not known at synthesis."""
        capacities = [self.min_capacity, *(hours.min_capacity for hours in self.clinic_hours)]
        return min(capacities) if all(is_integer(it, 0, None) for it in capacities) else None


def realtime_scaling_faults(
    scaling: Scaling, *, initial_instance_count: int | None = None
) -> list[str]:
    """Faults of a scaling of instances."""
    faults = _bounds_faults(
        scaling, lowest=limits.REALTIME_MIN_CAPACITY, highest=None, limit="REALTIME_MIN_CAPACITY"
    )
    faults += _load_faults(
        scaling, wanted=_INVOCATIONS, unwanted=_UTILIZATION, limit="REALTIME_MIN_CAPACITY"
    )
    value = scaling.invocations_per_instance
    if value is not None and not is_token(value) and not _is_number_in(value, 0, float("inf")):
        faults.append(
            fault(
                "scaling.invocations_per_instance",
                "above 0 requests a minute",
                value,
                "REALTIME_MIN_CAPACITY",
            )
        )
    faults += _start_faults(
        "initial_instance_count", initial_instance_count, scaling, "REALTIME_MIN_CAPACITY"
    )
    return faults


def serverless_scaling_faults(
    scaling: Scaling,
    *,
    max_concurrency: int | None = None,
    provisioned_concurrency: int | None = None,
    provisioned_is_given: bool = True,
) -> list[str]:
    """Faults of a scaling of provisioned concurrency."""
    limit = "SERVERLESS_MIN_PROVISIONED"
    faults = _bounds_faults(
        scaling, lowest=limits.SERVERLESS_MIN_PROVISIONED, highest=max_concurrency, limit=limit
    )
    faults += _load_faults(scaling, wanted=_UTILIZATION, unwanted=_INVOCATIONS, limit=limit)
    value = scaling.utilization
    if value is not None and not is_token(value) and not _is_number_in(value, 0, 1):
        faults.append(fault("scaling.utilization", "above 0 and at most 1", value, limit))
    if not provisioned_is_given:
        faults.append(
            fault(
                "provisioned_concurrency",
                "given where scaling is, because what is scaled is the number of containers kept "
                "warm",
                None,
                limit,
            )
        )
    faults += _start_faults("provisioned_concurrency", provisioned_concurrency, scaling, limit)
    return faults


def lambda_scaling_faults(
    scaling: Scaling,
    *,
    max_concurrency: int | None = None,
    provisioned_concurrency: int | None = None,
    provisioned_is_given: bool = True,
) -> list[str]:
    """Faults of a scaling of a function's provisioned concurrency."""
    limit = "LAMBDA_MIN_PROVISIONED"
    faults = _bounds_faults(
        scaling, lowest=limits.LAMBDA_MIN_PROVISIONED, highest=max_concurrency, limit=limit
    )
    faults += _load_faults(
        scaling, wanted=_UTILIZATION, unwanted=_INVOCATIONS, limit="LAMBDA_UTILIZATION"
    )
    low, high = limits.LAMBDA_UTILIZATION
    value = scaling.utilization
    if (
        value is not None
        and not is_token(value)
        and not (_is_number_in(value, 0, high) and value >= low)
    ):
        faults.append(
            fault("scaling.utilization", f"from {low} to {high}", value, "LAMBDA_UTILIZATION")
        )
    if not provisioned_is_given:
        faults.append(
            fault("provisioned_concurrency", "given where scaling is, at least 1", None, limit)
        )
    faults += _start_faults("provisioned_concurrency", provisioned_concurrency, scaling, limit)
    return faults


def _bounds_faults(scaling: Scaling, *, lowest: int, highest: int | None, limit: str) -> list[str]:
    capacities = [("scaling", scaling.min_capacity, scaling.max_capacity)]
    for number, hours in enumerate(scaling.clinic_hours):
        capacities.append(
            (
                f"scaling.clinic_hours[{number}]",
                hours.min_capacity,
                scaling.max_capacity if hours.max_capacity is None else hours.max_capacity,
            )
        )
    faults = []
    for name, least, most in capacities:
        found = bounded_fault(f"{name}.min_capacity", least, lowest, None, limit)
        # What is most is at least 1: a capacity of 0 at all times is no scaling.
        found += bounded_fault(
            f"{name}.max_capacity",
            most,
            max(1, lowest),
            highest,
            limit,
            because="" if highest is None else " (max_concurrency)",
        )
        if not found and is_integer(least, 0, None) and is_integer(most, 0, least - 1):
            found.append(
                fault(f"{name}.min_capacity", f"at most max_capacity ({most})", least, limit)
            )
        faults += found
    for number, hours in enumerate(scaling.clinic_hours):
        faults += _hours_faults(f"scaling.clinic_hours[{number}]", hours, limit)
    for name in ("scale_in_cooldown_s", "scale_out_cooldown_s"):
        faults += bounded_fault(f"scaling.{name}", getattr(scaling, name), 0, None, limit)
    return faults


def _hours_faults(name: str, hours: ClinicHours, limit: str) -> list[str]:
    faults = []
    for part in ("opens", "closes"):
        value = getattr(hours, part)
        # A token, too: the schedule is written from its hours and minutes.
        if not isinstance(value, str) or not _TIME.fullmatch(value):
            faults.append(fault(f"{name}.{part}", "a time of day as HH:MM", value, limit))
    if not faults and hours.closes <= hours.opens:
        faults.append(
            fault(
                f"{name}.closes", f"after opens ({hours.opens}), the same day", hours.closes, limit
            )
        )
    if not is_token(hours.days) and not (
        isinstance(hours.days, str) and _DAYS.fullmatch(hours.days)
    ):
        faults.append(
            fault(f"{name}.days", "days such as MON-FRI or MON,WED,SAT", hours.days, limit)
        )
    if not is_token(hours.time_zone) and not _is_time_zone(hours.time_zone):
        faults.append(
            fault(
                f"{name}.time_zone",
                "a time zone of the IANA data base, such as Europe/Lisbon",
                hours.time_zone,
                limit,
            )
        )
    return faults


def _is_time_zone(name: object) -> bool:
    known = zoneinfo.available_timezones()
    # A machine without the data base cannot judge.
    return isinstance(name, str) and (not known or name in known)


def _load_faults(scaling: Scaling, *, wanted: str, unwanted: str, limit: str) -> list[str]:
    faults = []
    if getattr(scaling, unwanted) is not None:
        faults.append(
            fault(
                f"scaling.{unwanted}",
                f"left out for this kind of endpoint, which scales by {wanted}",
                getattr(scaling, unwanted),
                limit,
            )
        )
    elif getattr(scaling, wanted) is None and not scaling.clinic_hours:
        faults.append(
            fault(
                f"scaling.{wanted}",
                "given where there are no clinic_hours: nothing else would change the capacity",
                None,
                limit,
            )
        )
    return faults


def _start_faults(name: str, start: int | None, scaling: Scaling, limit: str) -> list[str]:
    if start is None or not is_integer(start, 1, None):
        return []
    low, high = scaling.min_capacity, scaling.max_capacity
    if not (is_integer(low, 0, None) and is_integer(high, low, None)) or low <= start <= high:
        return []
    return [
        fault(name, f"from min_capacity to max_capacity of scaling ({low} to {high})", start, limit)
    ]


def _is_number_in(value: object, above: float, most: float) -> bool:
    return is_number(value) and above < value <= most
