"""Reads a PyTorch state dictionary without PyTorch, and without running what is in it.

    >>> weights = read_state_dict(Path("efficientnet-lite0-57934424.pth"))
    >>> weights["_conv_stem.weight"].shape
    (32, 3, 3, 3)

The file is a pickle, which could call any function. This reader knows five names (an ordered
dictionary, the function that makes a tensor of a storage, and three kinds of storage) and
refuses every other one. It reads the format that PyTorch wrote until 1.5: a magic number, three
headers, the dictionary, the keys of the storages, and then their numbers one after the other.
"""

import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from dr_training.data.faults import DataError

_MAGIC: Final = 0x1950A86A20F9469CFC6C
_STORAGES: Final = {
    "FloatStorage": np.dtype("<f4"),
    "DoubleStorage": np.dtype("<f8"),
    "LongStorage": np.dtype("<i8"),
}

Array = NDArray[Any]


class _Storage:
    """Numbers that tensors share; they follow after all pickles."""

    def __init__(self, dtype: np.dtype[Any], count: int) -> None:
        self.dtype = dtype
        self.count = count
        self.values: Array | None = None


class _Tensor:
    """Where the numbers of a tensor are in a storage."""

    def __init__(
        self, storage: _Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> None:
        self._storage, self._offset = storage, offset
        self._shape, self._strides = shape, strides

    def array(self) -> Array:
        values = self._storage.values
        last = self._offset + sum(
            (size - 1) * step for size, step in zip(self._shape, self._strides, strict=True)
        )
        negative = min((self._offset, *self._shape, *self._strides)) < 0
        if values is None or negative or last >= len(values):
            raise ValueError("a tensor reaches beyond its storage")
        step = values.dtype.itemsize
        return np.lib.stride_tricks.as_strided(
            values[self._offset :], self._shape, tuple(step * one for one in self._strides)
        ).copy()


def _rebuild_tensor(
    storage: object, offset: object, shape: object, strides: object, *_: object
) -> _Tensor:
    whole = isinstance(storage, _Storage) and isinstance(offset, int)
    if not whole or not isinstance(shape, tuple) or not isinstance(strides, tuple):
        raise pickle.UnpicklingError("a tensor is not described as PyTorch does")
    return _Tensor(storage, offset, shape, strides)  # type: ignore[arg-type]


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(stream)
        self.storages: dict[str, _Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild_tensor
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a file of weights")

    def persistent_load(self, pid: Any) -> _Storage:
        kind, dtype, key, _location, count, *_ = pid
        if kind != "storage" or not isinstance(dtype, np.dtype):
            raise pickle.UnpicklingError(f"a reference of the kind {kind!r} is not known")
        return self.storages.setdefault(str(key), _Storage(dtype, int(count)))


def read_state_dict(path: Path) -> dict[str, Array]:
    """Arrays by name, in PyTorch's axis order.

    Raises:
        DataError: the file is cut off, of another format, or holds anything but arrays.
        OSError: it cannot be read.
    """
    with path.open("rb") as stream:
        try:
            if _Unpickler(stream).load() != _MAGIC:
                raise ValueError("it does not begin as such a file does")
            _Unpickler(stream).load()  # version of the format
            _Unpickler(stream).load()  # sizes of integers where it was written
            unpickler = _Unpickler(stream)
            tensors = unpickler.load()
            for key in _Unpickler(stream).load():
                _fill(unpickler.storages[str(key)], stream)
            if not all(isinstance(one, _Tensor) for one in tensors.values()):
                raise ValueError("it holds something else than tensors")
            return {str(name): one.array() for name, one in tensors.items()}
        # A damaged pickle can raise nearly anything; none of it is this program's mistake.
        except (
            ArithmeticError,
            AttributeError,
            EOFError,
            ImportError,
            LookupError,
            TypeError,
            ValueError,
            pickle.UnpicklingError,
        ) as error:
            raise DataError(f"{path} is no PyTorch file of weights: {error}") from None


def _fill(storage: _Storage, stream: BinaryIO) -> None:
    count = int.from_bytes(stream.read(8), "little")
    if count != storage.count:
        raise ValueError(f"a storage of {storage.count} numbers holds {count}")
    data = stream.read(count * storage.dtype.itemsize)
    if len(data) != count * storage.dtype.itemsize:
        raise ValueError("it is cut off")
    storage.values = np.frombuffer(data, storage.dtype)
