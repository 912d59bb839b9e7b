"""Which of the measured configurations to deploy: the cheapest that is fast and good enough.

    >>> ranking = recommend(measured(records), wish=Wish(p99_s=1, requests_per_month=20_000), ...)
    >>> ranking.choice.measured.name

Nothing is predicted: a configuration that was not measured, or whose prices are not known in the
region, is not ranked, and the ranking says why. The cost is a month of the whole deployment by the
time in the container; the client's round trip is given beside it. What was measured elsewhere than
on AWS is ranked, and `explain` says what that is worth.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from dr_experiments.deployment_cost import FixedPart
from dr_experiments.measured import Measured
from dr_experiments.months import CONTAINER, ROUND_TRIP, Month, in_usd
from dr_experiments.pricing import HOURS_PER_MONTH, PriceTable, UnknownPriceError
from dr_experiments.statistics import minimum_n
from dr_experiments.targets import PLATFORM_AWS, PLATFORM_LOCAL_AWS
from stacks.matrix import Deployment

# What the records say of where they were measured, for a table of a terminal.
PLATFORM_WORDS: Final = {
    PLATFORM_AWS: "AWS",
    PLATFORM_LOCAL_AWS: "local AWS",
    None: "not recorded",
}
_ELSEWHERE: Final = {
    PLATFORM_LOCAL_AWS: "measured on the local AWS: the times, and the costs from them, are those "
    "of that machine and not of AWS: they compare with each other only, and what is to be deployed "
    "has to be measured on AWS",
    None: "the records do not say where they were measured, so that the times may be another "
    "machine's than AWS's",
}


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What the deployment has to do.

    Args:
        p99_s: 99th percentile of the warm round trip, seconds; None for any.
        requests_per_month: within `hours` of the month.
        min_sensitivity: for referable DR at the model's default operating point; the lower bound
            of its interval must reach it.
        data: whether the charge for data in and out is part of the cost.
    """

    requests_per_month: int
    region: str
    p99_s: float | None = None
    hours: Decimal = HOURS_PER_MONTH
    min_sensitivity: float | None = None
    data: bool = True


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Sensitivity of a model for referable DR with its 95 % interval, and on which data."""

    sensitivity: float
    low: float
    data: str


@dataclass(frozen=True, kw_only=True)
class Option:
    """A configuration with its costs (USD per month) and the reasons against it.

    `data_gb` is what it is charged for in a month, in and out, whether that is in `usd` or not.
    """

    measured: Measured
    usd: Decimal | None
    usd_round_trip: Decimal | None
    data_gb: Decimal
    quality: Quality | None
    against: tuple[str, ...]
    on_front: bool = False


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Suitable options, the cheapest first, then the others; `choice` is the first suitable."""

    suitable: tuple[Option, ...]
    others: tuple[Option, ...]

    @property
    def choice(self) -> Option | None:
        return self.suitable[0] if self.suitable else None


def recommend(
    found: Sequence[Measured],
    *,
    wish: Wish,
    prices: PriceTable,
    qualities: Mapping[str, Quality],
    fixed: FixedPart | None = None,
) -> Ranking:
    """Rank what was measured. `qualities` is by model id."""
    options = [
        _option(one, wish=wish, prices=prices, qualities=qualities, fixed=fixed) for one in found
    ]
    priced = [option for option in options if option.usd is not None]
    marked = [
        Option(**{**vars(option), "on_front": option in priced and _on_front(option, priced)})
        for option in options
    ]
    suitable = sorted(
        (option for option in marked if not option.against),
        key=lambda option: (option.usd or Decimal(0), option.measured.p99.value),
    )
    return Ranking(
        suitable=tuple(suitable), others=tuple(option for option in marked if option.against)
    )


def explain(ranking: Ranking, *, wish: Wish) -> str:
    """The choice in words, with what the next ones would cost or bring."""
    choice = ranking.choice
    if choice is None or choice.usd is None or choice.usd_round_trip is None:
        limit = f" (p99 of at most {_ms(wish.p99_s)} asked for)" if wish.p99_s else ""
        reasons = _reasons(ranking.others)
        return f"None of the measured configurations is suitable{limit}. {reasons}."
    one = choice.measured
    many = len(ranking.suitable)
    text = []
    text.append(
        f"{one.name} is the cheapest of {many} suitable configuration{'s' if many != 1 else ''}: "
        f"about {in_usd(choice.usd)} a month for {wish.requests_per_month:,} requests in "
        f"{wish.region} (time in the container; {in_usd(choice.usd_round_trip)} by the client's "
        f"round trip), with a p99 of {one.p99.value * 1000:,.0f} ms "
        f"(n = {one.p99.n[0]} warm requests)"
        + (f", where at most {_ms(wish.p99_s)} were asked for." if wish.p99_s else ".")
    )
    if one.p99.n[0] < minimum_n(99):
        text.append(
            f"A p99 needs {minimum_n(99)} requests; from {one.p99.n[0]} it is hardly more than the "
            "slowest of them."
        )
    if choice.quality:
        text.append(
            f"Its model's sensitivity for referable DR is {choice.quality.sensitivity:.3f} (lower "
            f"bound {choice.quality.low:.3f}; data: {choice.quality.data})."
        )
    faster = [
        (option.usd, option.measured)
        for option in ranking.suitable[1:]
        if option.on_front and option.measured.p99.value < one.p99.value and option.usd is not None
    ]
    if faster:
        usd, best = min(faster, key=lambda found: found[0])
        text.append(
            f"Faster: {best.name}, {best.p99.value * 1000:,.0f} ms for {in_usd(usd)} a month."
        )
    notice = platform_notice([option.measured for option in (*ranking.suitable, *ranking.others)])
    if notice:
        text.append(notice)
    if one.setup and one.setup.memory_mib:
        text.append(
            "The first request after a pause waits for a container to start, which the p99 of warm "
            "requests does not show."
        )
    return " ".join(text)


def without_data(ranking: Ranking) -> str:
    """What it means for the choice that the charge for data was left out of all costs."""
    text = "The charge for data in and out is not counted (--without-data)."
    choice = ranking.choice
    if choice is None or choice.usd is None:
        return text
    if not choice.data_gb:
        return f"{text} The choice is not charged for any, so that it holds whatever a GB costs."
    # From which price of a GB each of those that move less is the cheaper one.
    limits = [
        ((other.usd - choice.usd) / (choice.data_gb - other.data_gb), other.measured.name)
        for other in ranking.suitable[1:]
        if other.usd is not None and other.data_gb < choice.data_gb
    ]
    moves = f"{text} {choice.measured.name} moves {choice.data_gb:,.3g} GB a month"
    if not limits:
        return (
            f"{moves}, and no suitable configuration moves less, so that it is the cheapest "
            "whatever a GB costs."
        )
    limit, name = min(limits)
    return f"{moves}; it is the cheapest while a GB costs less than {in_usd(limit)}, then {name}."


def _ms(seconds: float) -> str:
    """A limit as it was asked for, whether it was typed in seconds or milliseconds."""
    return f"{seconds * 1000:,.6f}".rstrip("0").rstrip(".") + " ms"


def _reasons(others: Sequence[Option]) -> str:
    """Each reason once, with the configurations that it speaks against."""
    against: dict[str, list[str]] = {}
    for option in others:
        for reason in option.against:
            against.setdefault(reason, []).append(option.measured.name)
    every = f"all {len(others)}"
    return "; ".join(
        f"{every if 1 < len(names) == len(others) else ', '.join(names)}: {reason}"
        for reason, names in against.items()
    )


def platform_notice(found: Sequence[Measured]) -> str | None:
    """What the times of these are worth where not all were measured on AWS; else None."""
    platforms = {one.platform for one in found}
    if platforms <= {PLATFORM_AWS}:
        return None
    text = []
    for platform, sentence in _ELSEWHERE.items():
        names = [one.name for one in found if one.platform == platform]
        if names:
            who = f"All {len(names)}" if 1 < len(names) == len(found) else ", ".join(names)
            text.append(f"{who}: {sentence}.")
    if len(platforms) > 1:
        text.append(
            "Times of two platforms, and costs from them, are not comparable; name runs of one."
        )
    return " ".join(text)


def row_source(row: Deployment) -> str:
    """The row as it stands in stacks/matrix.py."""
    size = (
        f"memory_mib={row.memory_mib}" if row.memory_mib else f'instance_type="{row.instance_type}"'
    )
    return (
        f"Deployment(mode=Mode.{row.mode.name}, model={row.model!r}, "
        f"architecture=Arch.{row.architecture.name}, {size})"
    )


def deploy_command(row: Deployment) -> str:
    """What deploys the row and nothing else."""
    return f"npx cdk deploy {row.stack_id} -c modes={row.mode.value} -c models={row.model}"


def _option(
    one: Measured,
    *,
    wish: Wish,
    prices: PriceTable,
    qualities: Mapping[str, Quality],
    fixed: FixedPart | None,
) -> Option:
    against = []
    usd = usd_round_trip = None
    month = Month(region=wish.region, prices=prices, hours=wish.hours, fixed=fixed, data=wish.data)
    try:
        usd, usd_round_trip = (
            month.bill(one, wish.requests_per_month, basis=basis).usd
            for basis in (CONTAINER, ROUND_TRIP)
        )
    except UnknownPriceError as error:
        against.append(str(error))
    if wish.p99_s is not None and one.p99.value > wish.p99_s:
        against.append(f"p99 {one.p99.value:.3f} s is above {wish.p99_s:g} s")
    if one.failed:
        against.append(f"{one.failed} of {one.requests} requests failed")
    quality = qualities.get(one.model_id or "")
    if wish.min_sensitivity is not None:
        if quality is None:
            against.append("the sensitivity of its model is not known")
        elif quality.low < wish.min_sensitivity:
            against.append(
                f"lower bound of the sensitivity {quality.low:.3f} is below "
                f"{wish.min_sensitivity:g}"
            )
    return Option(
        measured=one,
        usd=usd,
        usd_round_trip=usd_round_trip,
        data_gb=month.data_gb(one, wish.requests_per_month),
        quality=quality,
        against=tuple(against),
    )


def _on_front(option: Option, among: Sequence[Option]) -> bool:
    """Whether nothing is at least as good in cost, latency and quality and better in one."""
    mine = _merits(option)
    return not any(
        all(a <= b for a, b in zip(other, mine, strict=True)) and other != mine
        for other in (_merits(one) for one in among)
    )


def _merits(option: Option) -> tuple[float, float, float]:
    """Smaller is better; an unknown quality counts as none."""
    low = option.quality.low if option.quality else 0.0
    return float(option.usd or 0), option.measured.p99.value, -low
