"""The report's languages: their words, and how they write numbers and dates.

    >>> words = Words("pt-BR")
    >>> words("table.n"), words.number(1234.5, 1)
    ('n', '1.234,5')

All words are in `report_words.toml`, each in every language; a key or a language that is not there
is an error, so that no page is half translated.
"""

import tomllib
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from functools import cache
from importlib import resources
from typing import Final

ENGLISH: Final = "en"
PORTUGUESE: Final = "pt-BR"
LANGUAGES: Final = (ENGLISH, PORTUGUESE)
_DASH: Final = "\N{EN DASH}"
_SWAP: Final = str.maketrans(",.", ".,")


class Words:
    """Words and numbers of one language.

    Args:
        language: one of `LANGUAGES`; anything else is a `ValueError`.
    """

    def __init__(self, language: str) -> None:
        if language not in LANGUAGES:
            raise ValueError(f"language must be one of {', '.join(LANGUAGES)}; got {language!r}")
        self.language = language
        self._words = all_words()

    def __call__(self, key: str, **values: str) -> str:
        """The words of `key` with its places filled; raises `KeyError` for an unknown one."""
        text = self._words[key][self.language]
        return text.format(**values) if values else text

    def named(self, kind: str, name: str) -> str:
        """Words of `kind.name`, or the name itself where it is a new one, such as a scenario."""
        key = f"{kind}.{name}"
        return self(key) if key in self._words else name

    def number(self, value: float | Decimal, digits: int) -> str:
        """A number with so many decimals, in the language's form: 1,234.5 or 1.234,5."""
        text = f"{value:,.{digits}f}"
        return text.translate(_SWAP) if self.language == PORTUGUESE else text

    def integer(self, value: float) -> str:
        """A whole number with its thousands apart."""
        return self.number(value, 0)

    def milliseconds(self, seconds: float | None) -> str:
        """Seconds as milliseconds with about three significant digits; a dash for None."""
        if seconds is None:
            return _DASH
        value = seconds * 1000
        size = abs(value)  # the lower bound of a mean of scattered times may be below 0
        return self.number(value, 0 if size >= 100 else 1 if size >= 10 else 2)

    def usd(self, value: Decimal) -> str:
        """US dollars with three significant digits, at least two decimals, never 1e-5."""
        if value == 0:
            return "0"
        return self.number(value, max(2, 2 - value.adjusted()))

    def share(self, part: float, whole: float) -> str:
        """Per cent with one decimal."""
        return f"{self.number(100 * part / whole, 1)} %"

    def moment(self, when: datetime) -> str:
        """Day and minute in UTC, in words."""
        month = self(f"month.{when.month}")
        return self(
            "moment", day=str(when.day), month=month, year=str(when.year), time=f"{when:%H:%M}"
        )


@cache
def all_words() -> Mapping[str, Mapping[str, str]]:
    """Every key with its words by language."""
    text = resources.files("dr_experiments").joinpath("report_words.toml").read_text("utf-8")
    return {
        f"{group}.{key}" if group != "page" else key: entry
        for group, entries in tomllib.loads(text).items()
        for key, entry in entries.items()
    }
