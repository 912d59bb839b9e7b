"""What is wrong with a data set, all of it in one message.

>>> faults = Faults()
>>> faults.add("train.csv row 7", "grade '9' is not one of 0 to 4")
>>> faults.raise_if_any("the labels cannot be used")
Traceback (most recent call last):
DataError: the labels cannot be used: train.csv row 7: grade '9' is not one of 0 to 4
"""

MOST_SHOWN = 20


class DataError(ValueError):
    """Data that cannot be used as it is. The text names file and row, for whoever made it."""


class Faults:
    """Collects faults, so that one run names them all."""

    def __init__(self) -> None:
        self._found: list[str] = []

    def __len__(self) -> int:
        return len(self._found)

    def add(self, where: str, what: str) -> None:
        """One fault: the file with its row, and what is wrong there."""
        self._found.append(f"{where}: {what}" if where else what)

    def text(self) -> str:
        """The first faults, and how many more there are."""
        shown = "; ".join(self._found[:MOST_SHOWN])
        more = len(self._found) - MOST_SHOWN
        return f"{shown}; and {more} more" if more > 0 else shown

    def raise_if_any(self, problem: str) -> None:
        """Raise `DataError` where there was one."""
        if self._found:
            raise DataError(f"{problem}: {self.text()}")
