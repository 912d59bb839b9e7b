"""The earlier study's own measurements: what they say, and which printed figures they give.

    >>> study = read_study(Path("../shared/data/thesis-measurements"))
    >>> [erratum.verdict for erratum in errata(study, prices=PriceTable.load())]

A file holds one scenario of one model on one size, `warm-up-VGG19-2gb.csv` or
`real-time-VGG19-ml.m5.xlarge.csv`, with the columns `requestLatency` (time in the container),
`predictionLatency` (the model's part of it) and `fullLatency` (the client's round trip), in
seconds. What was printed about them is in `CLAIMS`; each claim is sought among named candidates
(a pair of files, a column, a statistic), so that a match can be checked and a lack of one means
something.
"""

import csv
import io
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from enum import StrEnum
from pathlib import Path
from statistics import fmean, median
from typing import Final

from dr_experiments.client import CLOCKS_APART
from dr_experiments.pricing import ITEM_SERVERLESS_COMPUTE, PriceTable
from dr_experiments.records import STUDY_COLUMNS
from dr_experiments.statistics import Summary, summarise_durations

CONTAINER, PREDICTION, ROUND_TRIP = STUDY_COLUMNS
COLUMN_WORDS: Final[Mapping[str, str]] = {
    CONTAINER: "time in the container",
    PREDICTION: "prediction",
    ROUND_TRIP: "round trip",
}
COLD: Final = "cold-start"
WARM: Final = "warm-up"
REALTIME: Final = "real-time"
STUDY_REGION: Final = "us-east-1"
_FILE: Final = re.compile(
    r"(?P<scenario>cold-start|warm-up|real-?time)-(?P<model>[A-Za-z0-9]+)-"
    r"(?:(?P<gb>[1-9][0-9]*)gb|"
    r"(?:ml[.-])?(?P<family>[a-z]+[0-9]+[a-z]*)[.-](?P<size>(?:(?:[1-9][0-9]*)?x)?large|medium))"
)
# The study's files number their requests in a column without a name.
_INDEX: Final = ""
# As programs write a time: not what else Python takes for a number, such as 1_0 or nan.
_NUMBER: Final = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
# A nanosecond is the clock's own step, and no platform lets a request run for a day.
_SHORTEST_S: Final = 1e-9
_LONGEST_S: Final = 86_400.0


class StudyError(ValueError):
    """A folder or a file that is not of the study's form; the text says which and why."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """One file: seconds by column, in the order they were measured."""

    scenario: str
    model: str
    memory_mib: int | None
    instance_type: str | None
    seconds: Mapping[str, tuple[float, ...]]

    @property
    def size(self) -> str:
        """`2 GB` or `ml.m5.xlarge`."""
        return f"{self.memory_mib // 1024} GB" if self.memory_mib else str(self.instance_type)

    @property
    def n(self) -> int:
        return len(self.seconds[ROUND_TRIP])

    def summary(self, column: str) -> Summary:
        return summarise_durations(self.seconds[column])

    def usd(self, column: str, *, prices: PriceTable) -> Decimal:
        """Mean of `column` times the price of a second: USD per inference, serverless only.

        Raises:
            UnknownPriceError: no price for this memory size.
        """
        return Decimal(repr(fmean(self.seconds[column]))) * self.rate(prices)

    def rate(self, prices: PriceTable) -> Decimal:
        """USD per second of compute of this memory size, in the region of the study."""
        return prices.find(
            ITEM_SERVERLESS_COMPUTE, region=STUDY_REGION, sku=str(self.memory_mib)
        ).usd


@dataclass(frozen=True, kw_only=True)
class Study:
    """All files of a folder, by scenario, model and size."""

    series: tuple[Series, ...]

    def of(self, scenario: str, model: str | None = None) -> tuple[Series, ...]:
        return tuple(
            one for one in self.series
            if one.scenario == scenario and model in (None, one.model)
        )  # fmt: skip

    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.model for one in self.series))

    def pairs(self, scenario: str, model: str | None = None) -> Iterator[tuple[Series, Series]]:
        """Every two sizes of one model in one scenario, the smaller first."""
        for name in (model,) if model else self.models():
            yield from itertools.combinations(self.of(scenario, name), 2)


def read_study(folder: Path) -> Study:
    """Read every CSV file of `folder`.

    Raises:
        StudyError: no CSV file, a name of another form, text that is not UTF-8, a missing or
            doubled column, a row with more or fewer fields than the header, a value that is not
            a positive number of seconds, a request (number in the column without a name) that is
            there twice, or a part that is longer than its whole (prediction,
            time in the container, round trip); the file and the line are named.
    """
    if not folder.is_dir():
        raise StudyError(f"{folder} is not a folder of measurements")
    # Some systems write the ending in capitals.
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".csv")
    series = [_read(path) for path in paths]
    if not series:
        raise StudyError(f"{folder} holds no CSV file")
    ordered = sorted(
        series,
        key=lambda one: (one.scenario, one.model, one.memory_mib or 0, one.instance_type or ""),
    )
    for first, second in itertools.pairwise(ordered):
        if (first.scenario, first.model, first.size) == (
            second.scenario, second.model, second.size,
        ):  # fmt: skip
            raise StudyError(
                f"two files of {folder} hold {first.scenario} of {first.model} on {first.size}"
            )
    return Study(series=tuple(ordered))


class Verdict(StrEnum):
    """What the measurements say about a printed figure."""

    AGREES = "agrees"
    OTHER = "another pair or statistic"
    NONE = "none gives it"
    NO_DATA = "the data are not there"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A printed figure. `stated` names the candidate that the text means, where it says so.

    `unit` is `x` (a ratio), `%`, `s` or `USD`; `printed` keeps its number of decimals.
    """

    printed: Decimal
    unit: str
    about: str
    kind: str
    model: str | None = None
    stated: str | None = None

    @property
    def text(self) -> str:
        return f"{self.printed:f}{_UNIT_WORDS[self.unit]}"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to compute a figure. `where` is the pair and the column, `how` the statistic."""

    where: str
    how: str
    value: float


@dataclass(frozen=True, kw_only=True)
class Erratum:
    """A claim, its verdict, the figure recomputed as stated, and the way that gives the print."""

    claim: Claim
    verdict: Verdict
    recomputed: Candidate | None
    source: Candidate | None
    also: int
    candidates: int


_UNIT_WORDS: Final = {"x": "\N{MULTIPLICATION SIGN}", "%": " %", "s": " s", "USD": " USD"}
_MEAN: Final = "mean"
_ROUNDED: Final = "means rounded to 0.01 s first"
_MEDIAN: Final = "median"
_HOWS: Final = (_MEAN, _ROUNDED, _MEDIAN)
_SPEED_UP: Final = "speed-up"
_COLD_WARM: Final = "cold over warm"
_SAVING: Final = "saving"
_COST: Final = "cost"
_COLD_MEAN: Final = "cold mean"
_IMAGE_SIZE: Final = "image size"


def _ratio_name(model: str, scenario: str, small: str, large: str, column: str) -> str:
    return f"{model}, {scenario}, {small} over {large}, {COLUMN_WORDS[column]}"


def _claims() -> tuple[Claim, ...]:
    costs = {
        "VGG19": ("0.0000376", "0.0000344", "0.0000408"),
        "MobileNet": ("0.0000095", "0.0000144", "0.0000206"),
    }
    colds = {"MobileNet": ("20.67", "12.48", "12.46"), "VGG19": (None, "11.07", None)}
    claims = [
        Claim(
            printed=Decimal(usd), unit="USD", kind=_COST, model=model,
            about=f"cost per inference, {model}, {gb} GB",
            stated=f"{model}, {gb} GB, {COLUMN_WORDS[ROUND_TRIP]}",
        )
        for model, values in costs.items()
        for gb, usd in enumerate(values, start=1)
    ]  # fmt: skip
    claims += [
        Claim(
            printed=Decimal(seconds), unit="s", kind=_COLD_MEAN, model=model,
            about=f"cold start, {model}, {gb} GB",
            stated=f"{model}, {gb} GB, {COLUMN_WORDS[ROUND_TRIP]}",
        )
        for model, values in colds.items()
        for gb, seconds in enumerate(values, start=1)
        if seconds
    ]  # fmt: skip

    def speed_up(printed: str, model: str, column: str, measure: str) -> Claim:
        return Claim(
            printed=Decimal(printed), unit="x", kind=_SPEED_UP, model=model,
            about=f"speed-up of {model}, 1 to 2 GB ({measure})",
            stated=_ratio_name(model, WARM, "1 GB", "2 GB", column),
        )  # fmt: skip

    claims += [
        speed_up("2.7413", "VGG19", PREDICTION, "prediction"),
        # The text does not say which measure these two are of. All columns are candidates.
        speed_up("2.35", "MobileNet", PREDICTION, "prediction, as we read it"),
        speed_up("1.3807", "MobileNet", ROUND_TRIP, "round trip, as we read it"),
    ]
    claims += [
        Claim(printed=Decimal(x), unit="x", kind=_IMAGE_SIZE, about="effect of the image's size")
        for x in ("1.2864", "1.3272")
    ]
    claims += [
        Claim(
            printed=Decimal(x), unit="x", kind=_COLD_WARM, model=model,
            about=f"cold over warm, {model}, 2 GB",
            stated=f"{model}, cold 2 GB over warm 2 GB, {COLUMN_WORDS[ROUND_TRIP]}",
        )
        for x, model in (("57.42", "MobileNet"), ("19.82", "VGG19"))
    ]  # fmt: skip
    claims += [
        Claim(
            printed=Decimal(percent), unit="%", kind=_SAVING,
            about="one saving, printed in two versions",
        )
        for percent in ("9.4", "8.5")
    ]  # fmt: skip
    claims += [
        Claim(printed=Decimal(percent), unit="%", kind=_SAVING, about="a reduction")
        for percent in ("33.72", "24.34")
    ]
    return tuple(claims)


# What the study's text prints. Which experiment a reduction belongs to is not known for 33.72 %
# and 24.34 %, and the saving of 9.4 % and 8.5 % is named by neither, so all pairs are tried.
CLAIMS: Final[tuple[Claim, ...]] = _claims()


def errata(
    study: Study, *, prices: PriceTable, claims: Sequence[Claim] = CLAIMS
) -> tuple[Erratum, ...]:
    """Seek each printed figure among the ways to compute it from `study`."""
    return tuple(_judge(claim, study, prices=prices) for claim in claims)


def gives(value: float, printed: Decimal) -> bool:
    """Whether `value`, rounded or cut to the decimals of `printed`, is what was printed."""
    return rounding(value, printed) is not None


def rounding(value: float, printed: Decimal) -> str | None:
    """`rounded` or `cut`: how `value` becomes `printed`; None where neither does."""
    exact = Decimal(repr(value))
    unit = Decimal(1).scaleb(int(printed.as_tuple().exponent))
    for words, rule in (("rounded", ROUND_HALF_UP), ("cut", ROUND_DOWN)):
        if exact.quantize(unit, rounding=rule) == printed:
            return words
    return None


def _judge(claim: Claim, study: Study, *, prices: PriceTable) -> Erratum:
    if claim.kind == _IMAGE_SIZE:
        return Erratum(
            claim=claim, verdict=Verdict.NO_DATA, recomputed=None, source=None, also=0, candidates=0
        )
    found = [
        candidate
        for candidate in _candidates(claim, study, prices=prices)
        if claim.model is None or candidate.where.startswith(f"{claim.model}, ")
    ]
    stated = [one for one in found if one.where == claim.stated]
    if not found or (claim.stated and not stated):
        return Erratum(
            claim=claim, verdict=Verdict.NO_DATA, recomputed=None, source=None, also=0, candidates=0
        )
    others = [one for one in found if one.where != claim.stated]
    # The same column first: a neighbouring column often gives the same digits by chance.
    column = (claim.stated or "").rpartition(", ")[2]
    others.sort(key=lambda one: (one.where.rpartition(", ")[2] != column, _HOWS.index(one.how)))
    matching = [one for one in (*stated, *others) if gives(one.value, claim.printed)]
    verdict = Verdict.NONE
    if matching:
        as_stated = matching[0].where == claim.stated and matching[0].how == _MEAN
        verdict = Verdict.AGREES if as_stated else Verdict.OTHER
    return Erratum(
        claim=claim,
        verdict=verdict,
        recomputed=stated[0] if stated else None,
        source=matching[0] if matching else None,
        also=max(0, len(matching) - 1),
        candidates=len(found),
    )


def _candidates(claim: Claim, study: Study, *, prices: PriceTable) -> Iterator[Candidate]:
    if claim.kind == _COST:
        for one in study.of(WARM):
            if one.memory_mib:
                for column, how in itertools.product((ROUND_TRIP, CONTAINER), _HOWS):
                    usd = _statistic(one, column, how) * float(one.rate(prices))
                    yield Candidate(
                        where=f"{one.model}, {one.size}, {COLUMN_WORDS[column]}", how=how, value=usd
                    )
    elif claim.kind == _COLD_MEAN:
        for one, column, how in itertools.product(study.of(COLD), STUDY_COLUMNS, _HOWS):
            yield Candidate(
                where=f"{one.model}, {one.size}, {COLUMN_WORDS[column]}",
                how=how,
                value=_statistic(one, column, how),
            )
    elif claim.kind == _SPEED_UP:
        for scenario in (WARM, COLD):
            for small, large in study.pairs(scenario):
                for column, how in itertools.product(STUDY_COLUMNS, _HOWS):
                    where = _ratio_name(small.model, scenario, small.size, large.size, column)
                    yield from _quotient(small, large, column, how, where)
    elif claim.kind == _COLD_WARM:
        for cold, warm in itertools.product(study.of(COLD), study.of(WARM)):
            if cold.model == warm.model:
                for column, how in itertools.product(STUDY_COLUMNS, _HOWS):
                    where = (
                        f"{cold.model}, cold {cold.size} over warm {warm.size}, "
                        f"{COLUMN_WORDS[column]}"
                    )
                    yield from _quotient(cold, warm, column, how, where)
    else:
        yield from _savings(study, prices=prices)


def _quotient(
    first: Series, second: Series, column: str, how: str, where: str
) -> Iterator[Candidate]:
    below = _statistic(second, column, how)
    # A mean below 5 ms is 0 once it is rounded to 0.01 s.
    if below > 0:
        yield Candidate(where=where, how=how, value=_statistic(first, column, how) / below)


def _savings(study: Study, *, prices: PriceTable) -> Iterator[Candidate]:
    """Reductions between two sizes of a model, of cost and of time, on either base."""
    for scenario in (WARM, COLD):
        for first, second in study.pairs(scenario):
            for column, how in itertools.product(STUDY_COLUMNS, _HOWS):
                times = [_statistic(one, column, how) for one in (first, second)]
                sides = {"time": times}
                if scenario == WARM and first.memory_mib and second.memory_mib:
                    sides["cost"] = [
                        value * float(one.rate(prices))
                        for value, one in zip(times, (first, second), strict=True)
                    ]
                for what, values in sides.items():
                    name = (
                        f"{first.model}, {scenario}, {what}, {first.size} and {second.size}, "
                        f"{COLUMN_WORDS[column]}"
                    )
                    low, high = sorted(values)
                    if low > 0 and low < high:
                        for words, share in (
                            ("of the larger", 1 - low / high),
                            ("of the smaller", high / low - 1),
                        ):
                            yield Candidate(
                                where=f"{name}, as a share {words}", how=how, value=100 * share
                            )


def _statistic(series: Series, column: str, how: str) -> float:
    values = series.seconds[column]
    if how == _MEDIAN:
        return median(values)
    mean = fmean(values)
    return round(mean, 2) if how == _ROUNDED else mean


def _read(path: Path) -> Series:
    match = _FILE.fullmatch(path.stem)
    if match is None:
        raise StudyError(
            f"{path.name}: a name is like warm-up-VGG19-2gb.csv or real-time-VGG19-ml.m5.xlarge.csv"
        )
    rows = list(_rows(path))
    if not rows:
        raise StudyError(f"{path.name} holds no measurement")
    gb = match["gb"]
    return Series(
        scenario=REALTIME if match["scenario"].startswith("real") else match["scenario"],
        model=match["model"],
        memory_mib=1024 * int(gb) if gb else None,
        instance_type=None if gb else f"ml.{match['family']}.{match['size']}",
        seconds=dict(zip(STUDY_COLUMNS, zip(*rows, strict=True), strict=True)),
    )


def _rows(path: Path) -> Iterator[tuple[float, ...]]:
    """Seconds of each row in the order of `STUDY_COLUMNS`."""
    name = path.name
    try:
        # Excel writes a mark before UTF-8.
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise StudyError(f"{name} is not UTF-8 text; save it as CSV in UTF-8") from None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] | None = None
    places: list[int] = []
    first: dict[str, int] = {}
    try:
        for row in reader:
            if header is None:
                header, places = row, _places(row, name)
            elif row:
                line = reader.line_num
                yield _row(row, header, places, f"{name}: line {line}")
                number = row[header.index(_INDEX)].strip() if _INDEX in header else ""
                before = first.setdefault(number, line) if number else line
                if before != line:
                    raise StudyError(
                        f"{name}: request {number[:40]} is there twice (lines {before} and {line})"
                    )
    except csv.Error as error:
        raise StudyError(f"{name}: line {reader.line_num} is not CSV: {error}") from None
    if header is None:
        raise StudyError(f"{name} is empty")


def _places(header: Sequence[str], name: str) -> list[int]:
    missing = [column for column in STUDY_COLUMNS if column not in header]
    if missing:
        hint = "; columns are parted by commas" if ";" in "".join(header) else ""
        raise StudyError(f"{name} has no column {', '.join(missing)}{hint}")
    twice = [column for column in STUDY_COLUMNS if header.count(column) > 1]
    if twice:
        raise StudyError(f"{name} has the column {', '.join(twice)} twice")
    return [header.index(column) for column in STUDY_COLUMNS]


def _row(
    row: Sequence[str], header: Sequence[str], places: Sequence[int], where: str
) -> tuple[float, ...]:
    if len(row) != len(header):
        # Decimals with commas look like more fields, and a row that was cut off like fewer.
        lacking = [
            column for column, place in zip(STUDY_COLUMNS, places, strict=True) if place >= len(row)
        ]
        none = f" and has no value in {', '.join(lacking)}" if lacking else ""
        hint = "; decimals have a point" if len(row) > len(header) else ""
        raise StudyError(
            f"{where} has {len(row)} fields{none}, where the header has {len(header)}{hint}"
        )
    seconds = tuple(
        _seconds(row[place], where, column)
        for column, place in zip(STUDY_COLUMNS, places, strict=True)
    )
    container, prediction, round_trip = seconds
    for part, part_s, whole, whole_s in (
        (PREDICTION, prediction, CONTAINER, container),
        (CONTAINER, container, ROUND_TRIP, round_trip * CLOCKS_APART),
    ):
        if part_s > whole_s:
            raise StudyError(
                f"{where} has a longer {part} than {whole}, of which it is a part; "
                "are two columns exchanged?"
            )
    return seconds


def _seconds(text: str, where: str, column: str) -> float:
    value = float(text) if _NUMBER.fullmatch(text.strip()) else 0.0
    if value <= 0:
        raise StudyError(f"{where} has no positive number of seconds in {column} ({text[:40]!r})")
    if not _SHORTEST_S <= value <= _LONGEST_S:
        raise StudyError(
            f"{where} has {text.strip()[:40]} in {column}, and a request takes at most "
            f"{_LONGEST_S:,.0f} seconds and at least a nanosecond"
        )
    return value
