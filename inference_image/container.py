"""Identity of one container, as its answers tell it: which it is, since when, and how many it gave.

>>> start = ContainerStart.now()
>>> start.counter.next()
0
"""

import time
import uuid
from dataclasses import dataclass
from typing import Protocol


class Counter(Protocol):
    """Counts predictions of the whole container, over all of its workers."""

    def next(self) -> int:
        """Add one; the number before."""
        ...


class ProcessCounter:
    """A counter for a container of one process."""

    def __init__(self) -> None:
        self._count = 0

    def next(self) -> int:
        """Add one; the number before."""
        self._count += 1
        return self._count - 1


@dataclass(frozen=True, kw_only=True)
class ContainerStart:
    """Identity of this container: `start_id`, and when its first process began (boot clock)."""

    start_id: str
    started_s: float
    counter: Counter

    @classmethod
    def now(cls) -> "ContainerStart":
        """A container that starts at this moment, for tests and embedding."""
        return cls(start_id=uuid.uuid4().hex, started_s=boot_clock_s(), counter=ProcessCounter())


def boot_clock_s() -> float:
    """Seconds since boot: the clock in which the kernel notes when a process started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
