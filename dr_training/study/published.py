"""The published findings that a study's own results are held against, and their arithmetic.

(a) Training of a binary referral model over ten trainings: 51.33 min on two GPUs, 33.24 min on
a TPU, 200 epochs. (b) Methodology for training time and cost in the cloud: 48 scenarios, five
repetitions; reais at 4.865 per US dollar. Both studies' own figures, as they print them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from dr_training.study.analysis import Anova, Effect
from dr_training.study.study_file import DATA, ENVIRONMENT, FRAMEWORK, NETWORK, SIZE

GPU_MINUTES: Final = Decimal("51.33")
TPU_MINUTES: Final = Decimal("33.24")
REFERRAL_EPOCHS: Final = 200
COMPUTED_BRL: Final = Decimal(134)
BILLED_BRL: Final = Decimal(158)
BRL_PER_USD: Final = Decimal("4.865")
GPU_PRICE_RATIO: Final = Decimal("3.11")
_SECOND_NETWORK: Final = 1.10


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was published, what this study found, and whether they agree (None: not tested)."""

    published: str
    here: str
    agrees: bool | None


def time_saved(before: Decimal, after: Decimal) -> Decimal:
    """Share of the time that is saved: 0.352 from 51.33 to 33.24 (printed as 36 %)."""
    if before <= 0:
        raise ValueError(f"a time is above 0; got {before}")
    return (before - after) / before


def findings(
    table: Anova, effects: Sequence[Effect], utilisation: Sequence[tuple[str, float]]
) -> list[Finding]:
    """The published findings on time beside this study's; `utilisation` by framework, percent."""
    shares = {source.name: source.share for source in table.sources}
    found = []
    if SIZE in shares:
        others = {
            name: share
            for name, share in shares.items()
            if name not in (SIZE, ENVIRONMENT) and " x " not in name
        }
        largest = all(shares[SIZE] >= share for share in others.values())
        order = sorted(others | {SIZE: shares[SIZE]}, key=lambda name: -shares[name])
        found.append(
            Finding(
                published="Image size is the largest factor after the environment.",
                here=", ".join(f"{name} {100 * shares[name]:.1f} %" for name in order)
                + f" of the variation of log(time); {ENVIRONMENT} "
                + (
                    f"{100 * shares[ENVIRONMENT]:.1f} %."
                    if ENVIRONMENT in shares
                    else "was not varied."
                ),
                agrees=largest if others else None,
            )
        )
    for effect in effects:
        if effect.factor == NETWORK and effect.level == 2:
            sure = (
                None
                if effect.low is None or effect.high is None
                else _side(effect.low, effect.high, _SECOND_NETWORK)
            )
            found.append(
                Finding(
                    published="The second network costs at least 10 % more.",
                    here=f"Its training takes {_ratio(effect)} times as long.",
                    agrees=sure,
                )
            )
        if effect.factor == DATA:
            found.append(_faster_images(effect))
    frameworks = [effect for effect in effects if effect.factor == FRAMEWORK]
    if frameworks:
        parts = [f"{e.level} {_ratio(e)}" for e in frameworks]
        found.append(
            Finding(
                published="The order of the frameworks (its text and its figures differ).",
                here=f"Training time relative to {frameworks[0].against}: {', '.join(parts)}.",
                agrees=None,
            )
        )
    if utilisation:
        found.append(
            Finding(
                published="The frameworks use the processor to different degrees.",
                here="Processor time per second of training: "
                + ", ".join(f"{name} {percent:.0f} %" for name, percent in utilisation)
                + " of one core.",
                agrees=None,
            )
        )
    return found


def _faster_images(effect: Effect) -> Finding:
    """CIFAR-10 against MNIST, whichever of them is the first level."""
    ratio, low, high = effect.ratio, effect.low, effect.high
    if effect.against == "CIFAR-10":
        ratio = 1 / ratio
        if low is not None and high is not None:
            low, high = 1 / high, 1 / low
    agrees = None
    if low is not None and high is not None:
        agrees = True if high < 1 else (False if low > 1 else None)
    return Finding(
        published="CIFAR-10, with fewer images, is faster than MNIST.",
        here=f"CIFAR-10 takes {ratio:.2f} times as long as MNIST "
        f"({_ratio(effect)}, {effect.level} against {effect.against}).",
        agrees=agrees,
    )


def _side(low: float, high: float, bound: float) -> bool | None:
    if low >= bound:
        return True
    return False if high < bound else None


def _ratio(effect: Effect) -> str:
    if effect.low is None or effect.high is None:
        return f"{effect.ratio:.2f}"
    return f"{effect.ratio:.2f} ({effect.low:.2f} to {effect.high:.2f})"
