"""Words of the report: every key in every language, with the same places."""

import re
from datetime import UTC, datetime
from decimal import Decimal
from string import Formatter

import pytest

from dr_experiments.cold_start import COLD_PHASES
from dr_experiments.languages import ENGLISH, LANGUAGES, PORTUGUESE, Words, all_words
from dr_experiments.load import SHAPES
from dr_experiments.loadgen import LOADGEN_PREFIX, LOADGEN_SCENARIOS
from dr_experiments.months import NO_DEPLOYMENT, NO_INIT
from dr_experiments.pricing import ITEMS, UnknownPriceError
from dr_experiments.targets import PLATFORMS
from inference_image.contract import SERVING_MODE_LOCAL, SERVING_MODE_REALTIME

# The same in both languages, and not for want of a translation.
SAME = {
    "column.n", "column.p50", "column.p95", "column.p99", "column.item", "column.usd",
    "provenance.commit", "caption.linear", "scenario.loadgen-single-stream",
    "scenario.loadgen-server", "scenario.loadgen-offline", "platform.aws",
}  # fmt: skip


def places(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


def test_every_key_has_every_language_with_the_same_places() -> None:
    for key, entry in all_words().items():
        assert set(entry) == set(LANGUAGES), key
        assert places(entry[ENGLISH]) == places(entry[PORTUGUESE]), key
        assert (entry[ENGLISH] == entry[PORTUGUESE]) == (key in SAME), key


def test_what_records_and_prices_can_name_has_words() -> None:
    words = all_words()
    scenarios = {"warm", "realtime", "cold", "load-open"}
    scenarios |= {f"load-{shape}" for shape in SHAPES}
    scenarios |= {LOADGEN_PREFIX + name for name in LOADGEN_SCENARIOS}
    assert {f"scenario.{name}" for name in scenarios} <= set(words)
    assert {f"phase.{name}" for name in COLD_PHASES} <= set(words)
    assert {f"platform.{name}" for name in PLATFORMS} <= set(words)
    assert {f"unit.{unit}" for unit in ITEMS.values()} <= set(words)
    assert {f"item.{item}" for item in ITEMS} <= set(words)
    # Modes whose name is not the same in every language.
    assert {f"mode.{mode}" for mode in (SERVING_MODE_REALTIME, SERVING_MODE_LOCAL)} <= set(words)
    kinds = {UnknownPriceError("").kind, NO_DEPLOYMENT, NO_INIT}
    assert {f"reason.{kind}" for kind in kinds} == {key for key in words if key[:7] == "reason."}


@pytest.mark.parametrize(
    ("value", "english", "portuguese"),
    [
        (0.00123, "1.23", "1,23"),
        (0.0123, "12.3", "12,3"),
        (1.2345, "1,234", "1.234"),
        (-0.12058, "-121", "-121"),
        (None, "\N{EN DASH}", "\N{EN DASH}"),
    ],
)
def test_milliseconds_are_written_in_the_form_of_the_language(
    value: float | None, english: str, portuguese: str
) -> None:
    assert Words(ENGLISH).milliseconds(value) == english
    assert Words(PORTUGUESE).milliseconds(value) == portuguese


def test_amounts_shares_and_moments() -> None:
    words = Words(PORTUGUESE)
    assert words.usd(Decimal("0.0000123")) == "0,0000123"
    assert words.usd(Decimal("1234.5")) == "1.234,50"
    assert words.usd(Decimal(0)) == "0"
    assert words.share(1, 3) == "33,3 %"
    moment = datetime(2026, 3, 4, 5, 6, tzinfo=UTC)
    assert words.moment(moment) == "4 de março de 2026, 05:06 UTC"
    assert Words(ENGLISH).moment(moment) == "4 March 2026, 05:06 UTC"


def test_an_unknown_language_or_key_is_an_error() -> None:
    with pytest.raises(ValueError, match=re.escape("en, pt-BR; got 'pt'")):
        Words("pt")
    with pytest.raises(KeyError):
        Words(ENGLISH)("no.such.words")
    assert Words(ENGLISH).named("scenario", "of-tomorrow") == "of-tomorrow"
