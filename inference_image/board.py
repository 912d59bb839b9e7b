"""What the processes of one container tell each other, in memory that they share.

>>> board = Board(workers=2)
>>> board.set_ready(0, True)
>>> board.any_ready()
True
"""

import mmap
import struct
from typing import Final

_COUNTER_BYTES: Final = 8


class Board:
    """What the workers of one container tell each other, in memory that they share.

    Each worker writes only its own slot (a count of predictions and whether it is ready), so
    no lock is needed.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        # How many of them run, where that depends on the memory; 0 until it is known.
        self.planned = 0
        self._failure = (_COUNTER_BYTES + 1) * workers
        self._resident = self._failure + 1
        self._ending = self._resident + _COUNTER_BYTES
        self._memory = mmap.mmap(-1, self._ending + 1)

    def counted(self, slot: int) -> int:
        """Add one to a slot's count; the sum of all slots before."""
        counts = struct.unpack_from(f"<{self.workers}Q", self._memory)
        struct.pack_into("<Q", self._memory, slot * _COUNTER_BYTES, counts[slot] + 1)
        return int(sum(counts))

    def set_ready(self, slot: int, ready: bool) -> None:
        """Note whether the worker of a slot can predict."""
        self._memory[self.workers * _COUNTER_BYTES + slot] = int(ready)

    def note_resident(self, size_bytes: int) -> None:
        """Memory of a worker that has predicted once; the last one to say it is right."""
        struct.pack_into("<Q", self._memory, self._resident, size_bytes)

    def resident_bytes(self) -> int:
        """Memory of a worker, 0 until one is ready."""
        return int(struct.unpack_from("<Q", self._memory, self._resident)[0])

    def any_ready(self) -> bool:
        """Whether some worker can predict."""
        return any(self._memory[self.workers * _COUNTER_BYTES : self._failure])

    def end_waiting(self) -> None:
        """The time to stop is nearly over: workers answer 503 to what they have not computed."""
        self._memory[self._ending] = 1

    @property
    def is_ending(self) -> bool:
        """Whether `end_waiting` was called."""
        return self._memory[self._ending] != 0

    def first_failure(self) -> bool:
        """True for the first worker that asks: one reason is enough for the person reading."""
        first = self._memory[self._failure] == 0
        self._memory[self._failure] = 1
        return first


class SlotCounter:
    """The count of the whole container, as one worker adds to it."""

    def __init__(self, board: Board, slot: int) -> None:
        self._board = board
        self._slot = slot

    def next(self) -> int:
        """Add one; the number of the whole container before."""
        return self._board.counted(self._slot)
