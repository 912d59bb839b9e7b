"""How an update moves requests to the new version: at once, by a canary, step by step.

    >>> TrafficShift.canary(percent=10, wait_s=300).total_wait_s
    300

No `aws_cdk` here; `docs/endpoints.md` says which kind suits which endpoint.
"""

from dataclasses import dataclass
from typing import Final

from constructs_lib import limits
from constructs_lib.rules import bounded_fault, fault, is_integer
from constructs_lib.tokens import is_token

ALL_AT_ONCE: Final = "all-at-once"
CANARY: Final = "canary"
LINEAR: Final = "linear"
ROLLING: Final = "rolling"

_PERCENT_LIMITS: Final = {
    CANARY: "CANARY_PERCENT",
    LINEAR: "LINEAR_PERCENT",
    ROLLING: "ROLLING_PERCENT",
}
_KINDS: Final = (ALL_AT_ONCE, *_PERCENT_LIMITS)
_WORDS: Final = {CANARY: "a canary is", LINEAR: "a linear step is", ROLLING: "a rolling batch is"}


@dataclass(frozen=True, kw_only=True)
class TrafficShift:
    """An update's way from the old fleet to the new; made by the class methods.

    The endpoint's alarms are watched all the way, and the update is taken back when one rings.

    Attributes:
        kind: `all-at-once`, `canary`, `linear` or `rolling`.
        percent: size of the canary, step or batch, in percent of the fleet.
        instances: the same in instances, in place of `percent`.
        wait_s: seconds between steps, while the alarms are watched.
        keep_old_s: seconds for which the old fleet stays after the last step.
        timeout_s: seconds after which the update has failed; SageMaker's default when None.
    """

    kind: str
    percent: int | None = None
    instances: int | None = None
    wait_s: int = 600
    keep_old_s: int = 0
    timeout_s: int | None = None

    @classmethod
    def all_at_once(
        cls, *, wait_s: int = 600, keep_old_s: int = 0, timeout_s: int | None = None
    ) -> "TrafficShift":
        """Blue/green in one step; the alarms are watched for `wait_s` after it."""
        return cls(kind=ALL_AT_ONCE, wait_s=wait_s, keep_old_s=keep_old_s, timeout_s=timeout_s)

    @classmethod
    def canary(
        cls,
        *,
        percent: int | None = None,
        instances: int | None = None,
        wait_s: int = 600,
        keep_old_s: int = 0,
        timeout_s: int | None = None,
    ) -> "TrafficShift":
        """A small part first, by default 10 percent, and all the rest after `wait_s`."""
        return cls(
            kind=CANARY,
            percent=10 if percent is None and instances is None else percent,
            instances=instances,
            wait_s=wait_s,
            keep_old_s=keep_old_s,
            timeout_s=timeout_s,
        )

    @classmethod
    def linear(
        cls,
        *,
        percent: int | None = None,
        instances: int | None = None,
        wait_s: int = 300,
        keep_old_s: int = 0,
        timeout_s: int | None = None,
    ) -> "TrafficShift":
        """Equal steps, by default of 25 percent, `wait_s` apart."""
        return cls(
            kind=LINEAR,
            percent=25 if percent is None and instances is None else percent,
            instances=instances,
            wait_s=wait_s,
            keep_old_s=keep_old_s,
            timeout_s=timeout_s,
        )

    @classmethod
    def rolling(
        cls,
        *,
        percent: int | None = None,
        instances: int | None = None,
        wait_s: int = 300,
        timeout_s: int | None = None,
    ) -> "TrafficShift":
        """Batch by batch in place of a second fleet, by default of 25 percent; real-time only."""
        return cls(
            kind=ROLLING,
            percent=25 if percent is None and instances is None else percent,
            instances=instances,
            wait_s=wait_s,
            timeout_s=timeout_s,
        )

    @property
    def total_wait_s(self) -> int | None:
        """Seconds that the update waits in all, counted as one step where there is no percentage.

        None where a number is not known at synthesis.
        """
        numbers = (self.wait_s, self.keep_old_s, self.percent or 0)
        if not all(is_integer(it, 0, None) for it in numbers):
            return None
        if self.kind in {ALL_AT_ONCE, CANARY}:
            steps = 1
        else:
            steps = -(-100 // self.percent) - (self.kind == LINEAR) if self.percent else 1
        return steps * self.wait_s + self.keep_old_s


def sagemaker_shift_faults(
    shift: TrafficShift, *, serverless: bool, fewest_instances: int | None = None
) -> list[str]:
    """Faults of a shift on SageMaker, for a fleet that may be as small as `fewest_instances`."""
    faults = _common_faults(shift)
    if shift.kind not in _KINDS:
        # What would be right for it is not known.
        return faults
    if serverless and shift.kind == ROLLING:
        faults.append(
            fault(
                "traffic_shift",
                f"one of {', '.join(limits.SERVERLESS_SHIFTS)} on serverless inference, which has "
                "no instances to roll over",
                shift.kind,
                "SERVERLESS_SHIFTS",
            )
        )
    elif serverless and shift.instances is not None:
        faults.append(
            fault(
                "traffic_shift.instances",
                "left out on serverless inference, which has none: say percent",
                shift.instances,
                "CANARY_PERCENT",
            )
        )
    if not serverless and shift.kind in _PERCENT_LIMITS and fewest_instances is not None:
        faults += _fleet_faults(shift, fewest_instances)
    limit = _PERCENT_LIMITS.get(shift.kind)
    if limit is not None and shift.percent is not None:
        low, high = getattr(limits, limit)
        faults += bounded_fault("traffic_shift.percent", shift.percent, low, high, limit)
    waits = [("wait_s", shift.wait_s), ("keep_old_s", shift.keep_old_s)]
    for name, value in waits:
        faults += bounded_fault(
            f"traffic_shift.{name}", value, *limits.DEPLOYMENT_WAIT_S, "DEPLOYMENT_WAIT_S"
        )
    if shift.timeout_s is not None:
        low, high = limits.DEPLOYMENT_TIMEOUT_S
        faults += bounded_fault(
            "traffic_shift.timeout_s", shift.timeout_s, low, high, "DEPLOYMENT_TIMEOUT_S"
        )
        waits_s = shift.total_wait_s
        if (
            is_integer(shift.timeout_s, low, high)
            and waits_s is not None
            and shift.timeout_s <= waits_s
        ):
            faults.append(
                fault(
                    "traffic_shift.timeout_s",
                    f"more than the {waits_s} s that the update waits in all",
                    shift.timeout_s,
                    "DEPLOYMENT_TIMEOUT_S",
                )
            )
    return faults


def lambda_shift_faults(shift: TrafficShift) -> list[str]:
    """Faults of a shift on Lambda, where CodeDeploy moves an alias."""
    faults = _common_faults(shift)
    if shift.kind not in _KINDS:
        return faults
    if shift.kind == ROLLING or shift.instances is not None:
        faults.append(
            fault(
                "traffic_shift",
                "all-at-once, or canary or linear with percent, on Lambda, which has no instances",
                shift.kind,
                "CODEDEPLOY_PERCENT",
            )
        )
    if shift.percent is not None and shift.kind != ROLLING:
        low, high = limits.CODEDEPLOY_PERCENT
        faults += bounded_fault(
            "traffic_shift.percent", shift.percent, low, high, "CODEDEPLOY_PERCENT"
        )
        if is_token(shift.percent):
            # CodeDeploy's configuration is named after it.
            faults.append(
                fault(
                    "traffic_shift.percent",
                    "known at synthesis on Lambda",
                    shift.percent,
                    "CODEDEPLOY_PERCENT",
                )
            )
    if shift.kind in {CANARY, LINEAR} and (
        not is_integer(shift.wait_s, 60, None) or shift.wait_s % 60
    ):
        faults.append(
            fault(
                "traffic_shift.wait_s",
                "whole minutes on Lambda, as 60, 120 or 600",
                shift.wait_s,
                "CODEDEPLOY_PERCENT",
            )
        )
    for name, value in (("keep_old_s", shift.keep_old_s or None), ("timeout_s", shift.timeout_s)):
        if value is not None:
            faults.append(
                fault(
                    f"traffic_shift.{name}",
                    "left out on Lambda, which keeps no second fleet",
                    value,
                    "CODEDEPLOY_PERCENT",
                )
            )
    return faults


def _common_faults(shift: TrafficShift) -> list[str]:
    faults = []
    if shift.kind not in _KINDS:
        faults.append(
            fault(
                "traffic_shift.kind", f"one of {', '.join(_KINDS)}", shift.kind, "DEPLOYMENT_WAIT_S"
            )
        )
    elif shift.kind != ALL_AT_ONCE and (shift.percent is None) == (shift.instances is None):
        faults.append(
            fault(
                "traffic_shift",
                "given percent or instances, and not both",
                f"percent={shift.percent!r}, instances={shift.instances!r}",
                "CANARY_PERCENT",
            )
        )
    return faults


def _fleet_faults(shift: TrafficShift, fewest_instances: int) -> list[str]:
    limit = _PERCENT_LIMITS[shift.kind]
    if fewest_instances < 2:
        return [
            fault(
                "traffic_shift",
                f"all-at-once with one instance, because {_WORDS[shift.kind]} at most half of the "
                "fleet (or keep two instances)",
                shift.kind,
                limit,
            )
        ]
    if shift.instances is None:
        return []
    low = max(1, -(-fewest_instances * getattr(limits, limit)[0] // 100))
    return bounded_fault(
        "traffic_shift.instances",
        shift.instances,
        low,
        fewest_instances // 2,
        limit,
        because=f", because {_WORDS[shift.kind]} at most half of {fewest_instances} instances",
    )
