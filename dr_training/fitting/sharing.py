"""What the chief has, on every worker, where the workers need not share a folder.

    >>> Sharing(devices).file(out / "state.npz")   # the chief's, or absent as it is there

Files travel through the strategy's own collectives, as whole numbers that only the chief adds to.
Every worker has to call the same methods in the same order.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from dr_training.data.faults import DataError
from dr_training.fitting.strategies import Devices

_WORD_BYTES: Final = 8
# One trace for every block, and 8 MiB in flight.
_BLOCK_WORDS: Final = 1024 * 1024

Words = NDArray[np.int64]


class Sharing:
    """The workers of a strategy; with one worker every method does nothing."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        strategy = devices.strategy

        def replica(words: tf.Tensor) -> tf.Tensor:
            return tf.distribute.get_replica_context().all_reduce("SUM", tf.identity(words))

        def chief_replica(words: tf.Tensor) -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            first = tf.equal(context.replica_id_in_sync_group, 0)
            return context.all_reduce("SUM", tf.where(first, words, tf.zeros_like(words)))

        # int64, since a GPU keeps int32 in the host's memory, where its collectives are not.
        @tf.function(autograph=False)  # type: ignore[untyped-decorator]
        def total(words: tf.Tensor) -> Any:
            return strategy.run(replica, args=(words,))

        @tf.function(autograph=False)  # type: ignore[untyped-decorator]
        def of_chief(words: tf.Tensor) -> Any:
            return strategy.run(chief_replica, args=(words,))

        self._total, self._of_chief = total, of_chief

    def any_says(self, mine: bool) -> bool:
        """Whether one of the workers says so; the same on every worker, when all have come here."""
        return mine if self._devices.workers == 1 else self._any(differs=mine)

    def leave(self) -> None:
        """Return when every worker has come here and none needs another one to end.

        A worker that ends takes with it what others have not yet received of it. So they meet
        twice: nobody ends before all have come out of the first meeting, and whether all come out
        of the second does not matter.

        Raises:
            tf.errors.OpError: a worker has ended before it came here.
        """
        self.any_says(False)
        with suppress(tf.errors.OpError):
            self.any_says(False)

    def agree(self, facts: Mapping[str, Any], what: str) -> None:
        """Refuse workers whose facts (JSON values) are not the chief's.

        Raises:
            DataError: on every worker, where one differs.
        """
        if self._devices.workers == 1:
            return
        mine = _digest(json.dumps(facts, sort_keys=True).encode())
        if self._any(differs=bool((self._from_chief(mine) != mine).any())):
            raise DataError(
                f"the {self._devices.workers} workers do not have the same {what}; give each of "
                "them all that the first one has"
            )

    def file(self, path: Path) -> None:
        """Make `path` what it is on the chief: the same bytes, or absent.

        A worker that has these bytes already, because the folder is shared or was brought back,
        writes nothing; where all have them, nothing is sent.
        """
        if self._devices.workers == 1:
            return
        content = path.read_bytes() if path.exists() else None
        mine = np.zeros(2 + 4, np.int64)
        if content is not None:
            mine = np.concatenate([np.array([1, len(content)], np.int64), _digest(content)])
        facts = self._from_chief(mine)
        differs = bool((facts != mine).any())
        if not self._any(differs=differs):
            return
        exists, size = int(facts[0]), int(facts[1])
        received = self._bytes(content if self._devices.is_chief else None, size)
        if not differs:
            return
        if not exists:
            path.unlink(missing_ok=True)
            return
        partial = path.with_name(f"{path.name}.{self._devices.worker}.{os.getpid()}.part")
        try:
            partial.write_bytes(received)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    def _bytes(self, content: bytes | None, size: int) -> bytes:
        block = _BLOCK_WORDS * _WORD_BYTES
        received = bytearray()
        for start in range(0, size, block):
            words = np.zeros(_BLOCK_WORDS, np.int64)
            if content is not None:
                piece = np.frombuffer(content[start : start + block], np.uint8)
                words.view(np.uint8)[: len(piece)] = piece
            received += self._from_chief(words).tobytes()
        return bytes(received[:size])

    def _any(self, *, differs: bool) -> bool:
        words = tf.constant([int(differs)], tf.int64)
        return bool(self._first(self._total(words))[0])

    def _from_chief(self, words: Words) -> Words:
        if not self._devices.is_chief:
            words = np.zeros_like(words)
        return self._first(self._of_chief(tf.constant(words)))

    def _first(self, replicas: Any) -> Words:
        return np.asarray(self._devices.strategy.experimental_local_results(replicas)[0].numpy())


def _digest(content: bytes) -> Words:
    return np.frombuffer(hashlib.sha256(content).digest(), np.int64)
