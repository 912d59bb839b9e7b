"""Where a training stands, as one file that is replaced whole: a cut never leaves half of one.

The file is a NumPy archive: the network's and the optimizer's variables, and a JSON text with
epoch, step, history and the plan that they belong to.
"""

import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dr_training.data.faults import DataError

_FACTS: Final = "facts"

Arrays = list[NDArray[Any]]


def write_state(path: Path, facts: Mapping[str, Any], groups: Mapping[str, Sequence[Any]]) -> None:
    """Write facts (JSON values) and groups of arrays; the file appears whole or not at all."""
    arrays: dict[str, Any] = {
        f"{name}_{index}": np.asarray(value)
        for name, values in groups.items()
        for index, value in enumerate(values)
    }
    arrays[_FACTS] = np.frombuffer(json.dumps(dict(facts)).encode(), np.uint8)
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with partial.open("wb") as stream:
            np.savez(stream, **arrays)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_state(path: Path) -> tuple[dict[str, Any], dict[str, Arrays]]:
    """Facts and groups of arrays, in their order.

    Raises:
        DataError: the file is damaged.
    """
    groups: dict[str, Arrays] = {}
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            facts = json.loads(archive[_FACTS].tobytes())
            for name in archive.files:
                if name != _FACTS:
                    groups.setdefault(name.rpartition("_")[0], []).append(archive[name])
    except (EOFError, KeyError, OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path} cannot be read ({error}); remove it to train from the start"
        ) from None
    return facts, groups


def assign(variables: Sequence[Any], values: Arrays, *, what: str) -> None:
    """Put values into variables.

    Raises:
        DataError: their number or a shape differs: the state is of another network.
    """
    if [tuple(one.shape) for one in variables] != [one.shape for one in values]:
        raise DataError(f"the {what} of the state are of another network")
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
