"""How a step says that it cannot go on, and how its arguments are read: always one sentence.

>>> raise JobError("records/ holds no manifest.json; name the channel of the prepare step")
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

from dr_training.data.faults import DataError

# Data or files that cannot be used; what was asked for cannot be done; told to stop.
EXIT_FAILED: Final = 1
EXIT_ASKED_WRONGLY: Final = 2
EXIT_STOPPED: Final = 143


class JobError(Exception):
    """A step cannot go on. The text is one sentence; `code` is the process's exit code."""

    def __init__(self, sentence: str, code: int = EXIT_FAILED) -> None:
        super().__init__(sentence)
        self.code = code


@contextmanager
def as_asked() -> Iterator[None]:
    """Within, what cannot be is not the data, but what was asked for.

    Raises:
        JobError: for a `DataError`, without what could name a patient.
    """
    try:
        yield
    except DataError as error:
        raise JobError(error.anonymous, EXIT_ASKED_WRONGLY) from None


class StepArguments(argparse.ArgumentParser):
    """`argparse` whose complaints are a `JobError`, and which takes no shortened names."""

    def __init__(self, step: str, description: str) -> None:
        super().__init__(
            prog=f"dr_training.job {step}", description=description, allow_abbrev=False
        )

    def error(self, message: str) -> NoReturn:
        """Raise what is wrong with the arguments."""
        raise JobError(f"{self.prog}: {message}", EXIT_ASKED_WRONGLY)
