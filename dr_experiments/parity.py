"""Whether the decision is the same on a photograph that was made smaller before it was sent.

    >>> pairs = [compare(client, payload, cropped=True, max_side_px=800) for payload in payloads]
    >>> summary = summarise_parity(pairs)

A pair is paired: the same photograph, model and service, as it is and made smaller.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dr_experiments.client import Client, Measurement
from dr_experiments.payloads import prepare
from dr_experiments.targets import Payload

_LEVEL: Final = 0.95


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One photograph: both answers, and both sizes in bytes."""

    before: Measurement
    after: Measurement
    bytes_before: int
    bytes_after: int

    @property
    def answered(self) -> bool:
        """True where both were answered."""
        return self.before.answer is not None and self.after.answer is not None

    @property
    def same_verdict(self) -> bool:
        """Both gradable, or both not."""
        first, second = self.before.answer, self.after.answer
        if first is None or second is None:
            return False
        return bool(first["quality"]["gradable"] == second["quality"]["gradable"])

    @property
    def same_decision(self) -> bool:
        """The same verdict, and the same decision (referable or not)."""
        first, second = self.before.answer, self.after.answer
        if first is None or second is None or not self.same_verdict:
            return False
        return bool(first["referable"]["positive"] == second["referable"]["positive"])

    @property
    def moved(self) -> float | None:
        """Change of the probability of referable DR; None where one of them has none."""
        first, second = self.before.answer, self.after.answer
        if first is None or second is None:
            return None
        before, after = first["referable"]["probability"], second["referable"]["probability"]
        return None if before is None or after is None else abs(after - before)


@dataclass(frozen=True, kw_only=True)
class Parity:
    """`same` of `n` answered pairs had the same decision; the interval is Clopper and Pearson's.

    `most_moved` is the largest change of the probability, None where no pair has both.
    `bytes_ratio` is all bytes sent small over all bytes sent as they were.
    """

    n: int
    same: int
    same_verdict: int
    low: float
    high: float
    most_moved: float | None
    bytes_ratio: float
    unanswered: int


def compare(client: Client, payload: Payload, *, cropped: bool, max_side_px: int | None) -> Pair:
    """Send a photograph as it is and made smaller. Raises `ValueError` as `prepare` does."""
    small = prepare(payload, cropped=cropped, max_side_px=max_side_px)
    return Pair(
        before=client.measure(payload),
        after=client.measure(small),
        bytes_before=len(payload.body),
        bytes_after=len(small.body),
    )


def summarise_parity(pairs: Sequence[Pair]) -> Parity:
    """Agreement over all answered pairs, with its exact 95 % interval.

    Raises:
        ValueError: no pair was answered.
    """
    from scipy.stats import binomtest

    answered = [pair for pair in pairs if pair.answered]
    if not answered:
        raise ValueError("no photograph was answered both as it is and made smaller")
    same = sum(pair.same_decision for pair in answered)
    interval = binomtest(same, len(answered)).proportion_ci(_LEVEL, method="exact")
    moved = [pair.moved for pair in answered if pair.moved is not None]
    return Parity(
        n=len(answered),
        same=same,
        same_verdict=sum(pair.same_verdict for pair in answered),
        low=float(interval.low),
        high=float(interval.high),
        most_moved=max(moved, default=None),
        bytes_ratio=sum(p.bytes_after for p in answered) / sum(p.bytes_before for p in answered),
        unanswered=len(pairs) - len(answered),
    )
