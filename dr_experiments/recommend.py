"""Which of the measured configurations to deploy: the cheapest that is fast and good enough.

    >>> ranking = recommend(measured(records), wish=Wish(p99_s=1, requests_per_month=20_000), ...)
    >>> ranking.choice.measured.name

Nothing is predicted: a configuration that was not measured, or whose prices are not known in the
region, is not ranked, and the ranking says why. The cost is a month of the whole deployment by the
time in the container; the client's round trip is given beside it. What was measured elsewhere than
on AWS is ranked, and `explain` says what that is worth.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final

from dr_experiments.deployment_cost import FixedPart
from dr_experiments.measured import Measured
from dr_experiments.months import CONTAINER, DATA_ITEMS, ROUND_TRIP, Month, in_usd
from dr_experiments.pricing import (
    HOURS_PER_MONTH,
    ITEM_DATA_IN,
    ITEM_DATA_OUT,
    PriceTable,
    UnknownPriceError,
)
from dr_experiments.statistics import minimum_n
from dr_experiments.sweep.plan import Entry
from dr_experiments.targets import PLATFORM_AWS, PLATFORM_LOCAL_AWS
from inference_image.contract import RUNTIME_LITERT, RUNTIMES
from stacks.matrix import Deployment

# What the records say of where they were measured, for a table of a terminal.
PLATFORM_WORDS: Final = {
    PLATFORM_AWS: "AWS",
    PLATFORM_LOCAL_AWS: "local AWS",
    None: "not recorded",
}
_UNKNOWN: Final = "the sensitivity of its model is not known"
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
        left_out: items of `months.DATA_ITEMS` that are no part of the cost.
    """

    requests_per_month: int
    region: str
    p99_s: float | None = None
    hours: Decimal = HOURS_PER_MONTH
    min_sensitivity: float | None = None
    left_out: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Sensitivity of a model for referable DR with its 95 % interval, and on which data.

    `model_sha256` is the digest of the package that it was found out of: one id may name several.
    """

    model_id: str
    model_sha256: str
    sensitivity: float
    low: float
    data: str


@dataclass(frozen=True, kw_only=True)
class Option:
    """A configuration with its costs (USD per month) and the reasons against it.

    `data_gb` is what it is charged for in a month, by item, whether that is in `usd` or not.
    `remark` says why there is no `quality`, or on which assumption it is this model's.
    """

    measured: Measured
    usd: Decimal | None
    usd_round_trip: Decimal | None
    data_gb: Mapping[str, Decimal]
    quality: Quality | None
    remark: str | None
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
    qualities: Sequence[Quality],
    no_qualities: str | None = None,
    fixed: FixedPart | None = None,
) -> Ranking:
    """Rank what was measured; `no_qualities` says why there are none at all, where it is known."""
    options = [
        _option(
            one,
            wish=wish,
            prices=prices,
            quality=_quality_of(one, qualities, no_qualities=no_qualities),
            fixed=fixed,
        )
        for one in found
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
    if choice.remark:
        text.append(f"{choice.remark[0].upper()}{choice.remark[1:]}.")
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


def settled(
    rank: Callable[[Wish], Ranking], *, wish: Wish, prices: PriceTable
) -> tuple[Ranking, frozenset[str]]:
    """The ranking for a wish, and which charges for data are in none of its amounts.

    Where something has no cost because the region's price of data is not known, the choice may
    still not depend on it: whoever is the cheapest without that charge, and would be with any
    prices up to ten times the dearest one that the table knows. The amounts are then without that
    charge, which the caller must say (`without_data`).
    """
    ranking = rank(wish)
    known = {row.item for row in prices.rows if row.region == wish.region}
    left_out = wish.left_out | (DATA_ITEMS - known)
    if left_out == wish.left_out:
        return ranking, left_out
    bare = rank(replace(wish, left_out=left_out))
    limit = _data_limit(bare, left_out)
    dearest = _dearest_data(prices)
    decides = limit is not None and (dearest is None or limit[0] < 10 * dearest)
    if bare.choice is None or decides or _priced(bare) == _priced(ranking):
        return ranking, wish.left_out
    return bare, left_out


def _priced(ranking: Ranking) -> int:
    return sum(option.usd is not None for option in (*ranking.suitable, *ranking.others))


def data_words(items: frozenset[str]) -> str:
    """Items of `DATA_ITEMS` in words: data in and out, or one of them."""
    names = {ITEM_DATA_IN: "in", ITEM_DATA_OUT: "out"}
    return "data " + " and ".join(name for item, name in names.items() if item in items)


def without_data(ranking: Ranking, left_out: frozenset[str], *, prices: PriceTable) -> str:
    """What it means for the choice that a charge for data was left out of all costs."""
    text = f"The charge for {data_words(left_out)} is in none of these amounts."
    choice = ranking.choice
    if choice is None or choice.usd is None:
        return text
    gb = sum((choice.data_gb[item] for item in left_out), Decimal(0))
    if not gb:
        return f"{text} The choice is not charged for any, so that it holds whatever a GB costs."
    limit = _data_limit(ranking, left_out)
    moves = f"{text} {choice.measured.name} moves {gb:,.3g} GB of it a month"
    if limit is None:
        return (
            f"{moves}, and no suitable configuration moves less, so that it is the cheapest "
            "whatever a GB costs."
        )
    usd, name = limit
    dearest = _dearest_data(prices)
    known = f" (no known price is above {dearest:f})" if dearest is not None else ""
    return (
        f"{moves}; it is the cheapest while a GB costs less than {in_usd(usd)}{known}, then {name} "
        "may be."
    )


def _data_limit(ranking: Ranking, left_out: frozenset[str]) -> tuple[Decimal, str] | None:
    """Up to which price of a GB of any item the choice holds, and what may be the cheapest then.

    None: it holds at any. Of a ranking whose costs are without the charge for these items. The
    prices of data in and out need not be the same, so that what the choice moves more of counts,
    and nothing is set against it that it moves less of.
    """
    choice = ranking.choice
    if choice is None or choice.usd is None:
        return None
    limits = []
    for other in ranking.suitable[1:]:
        more = [choice.data_gb[item] - other.data_gb[item] for item in left_out]
        gb = sum((one for one in more if one > 0), Decimal(0))
        if gb and other.usd is not None:
            limits.append(((other.usd - choice.usd) / gb, other.measured.name))
    return min(limits, default=None)


def _dearest_data(prices: PriceTable) -> Decimal | None:
    known = [row.usd for row in prices.rows if row.item in (ITEM_DATA_IN, ITEM_DATA_OUT)]
    return max(known, default=None)


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


def deployment_of(one: Measured) -> Entry | None:
    """What to deploy to have what was measured; None where it is no row of the matrix."""
    if one.row is None:
        return Entry.named(one.name, runtime=one.runtime)
    runtime = one.runtime if one.runtime in RUNTIMES else RUNTIME_LITERT
    return Entry(row=one.row.stack_id, runtime=runtime)


def deploy_command(entry: Entry, *, region: str, model_root: str | None = None) -> str:
    """What deploys the entry, and nothing else but what it shares, to `region`.

    Args:
        model_root: folder that holds its package by the row's name for it; None for the app's own.
    """
    row = entry.deployment
    context = {"modes": row.mode.value, "models": row.model}
    if entry.runtime != RUNTIME_LITERT:
        context["runtime"] = entry.runtime
    if model_root is not None:
        context["model-root"] = model_root
    # The app takes its region from the CDK command line: this variable goes before any profile.
    words = [f"AWS_REGION={region}", "npx", "cdk", "deploy", row.stack_id]
    words += [word for key, value in context.items() for word in ("-c", f"{key}={value}")]
    return shlex.join(words)


def _option(
    one: Measured,
    *,
    wish: Wish,
    prices: PriceTable,
    quality: tuple[Quality | None, str | None],
    fixed: FixedPart | None,
) -> Option:
    against = []
    usd = usd_round_trip = None
    month = Month(
        region=wish.region, prices=prices, hours=wish.hours, fixed=fixed, left_out=wish.left_out
    )
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
    known, remark = quality
    if wish.min_sensitivity is not None:
        if known is None:
            against.append(remark or _UNKNOWN)
        elif known.low < wish.min_sensitivity:
            against.append(
                f"lower bound of the sensitivity {known.low:.3f} is below {wish.min_sensitivity:g}"
            )
    return Option(
        measured=one,
        usd=usd,
        usd_round_trip=usd_round_trip,
        data_gb=month.data_gb(one, wish.requests_per_month),
        quality=known,
        remark=remark,
        against=tuple(against),
    )


def _quality_of(
    one: Measured, qualities: Sequence[Quality], *, no_qualities: str | None
) -> tuple[Quality | None, str | None]:
    """The quality of the very package that answered, and a remark (see `Option`)."""
    named = [quality for quality in qualities if quality.model_id == one.model_id]
    if not named:
        return None, f"{_UNKNOWN} ({no_qualities})" if no_qualities else _UNKNOWN
    if one.model_sha256 is not None:
        same = [quality for quality in named if quality.model_sha256 == one.model_sha256]
        if same:
            return same[0], None
        return None, (
            f"its model is another {one.model_id} than the one whose sensitivity is known"
        )
    if len(named) > 1:
        return None, (
            f"its records do not have the model's digest, and there are {len(named)} packages of "
            f"the id {one.model_id}"
        )
    return named[0], (
        f"its records do not have the model's digest: it is taken for the {one.model_id} whose "
        "sensitivity is known"
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
