"""What is wrong with a data set, all of it in one message.

>>> faults = Faults()
>>> faults.add("train.csv row 7", "grade '9' is not one of 0 to 4")
>>> faults.raise_if_any("the labels cannot be used")
Traceback (most recent call last):
DataError: the labels cannot be used: train.csv row 7: grade '9' is not one of 0 to 4

The text is for whoever made the data, and may hold what names a patient. `DataError.anonymous` is
the same for a log that others read.
"""

from collections import Counter

MOST_SHOWN = 20


class DataError(ValueError):
    """Data that cannot be used as it is. The text names file and row, for whoever made it.

    `anonymous` is what may be said of it where no patient may be named; the text where that
    names nobody.
    """

    def __init__(self, text: str, *, anonymous: str | None = None) -> None:
        super().__init__(text)
        self.anonymous = text if anonymous is None else anonymous


class Faults:
    """Collects faults, so that one run names them all."""

    def __init__(self) -> None:
        self._found: list[str] = []
        self._anonymous: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._found)

    def add(self, where: str, what: str, *, anonymous: str = "") -> None:
        """One fault: the file with its row, and what is wrong there.

        `anonymous` says it without cells, names or contents of the data; a fault without it is
        only counted where no patient may be named.
        """
        self._found.append(f"{where}: {what}" if where else what)
        self._anonymous[anonymous] += 1

    def text(self) -> str:
        """The first faults, and how many more there are."""
        shown = "; ".join(self._found[:MOST_SHOWN])
        more = len(self._found) - MOST_SHOWN
        return f"{shown}; and {more} more" if more > 0 else shown

    def anonymous(self) -> str:
        """The same without what could name a patient: each kind of fault, with how many."""
        known = [(what, count) for what, count in self._anonymous.items() if what]
        shown = [f"{what} ({count} times)" if count > 1 else what for what, count in known]
        more = len(self._found) - sum(count for _, count in known[:MOST_SHOWN])
        if more:
            which = f"{more} {'more' if known else 'faults'} not told here"
            why = "because they may name a patient: `dr data check` names them beside the data"
            shown[MOST_SHOWN:] = [f"{which}, {why}"]
        return "; ".join(shown)

    def raise_if_any(self, problem: str) -> None:
        """Raise `DataError` where there was one."""
        if self._found:
            raise DataError(f"{problem}: {self.text()}", anonymous=f"{problem}: {self.anonymous()}")
