"""PyTorch's old format, written here with stand-ins for PyTorch's own names."""

import os
import pickle
import sys
import types
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dr_training.data.faults import DataError
from dr_training.torch_weights import read_state_dict

MAGIC = 0x1950A86A20F9469CFC6C
NUMBERS = np.arange(12, dtype="<f4")


class _Storage:
    pass


class _Pickler(pickle.Pickler):
    def persistent_id(self, item: Any) -> Any:
        if isinstance(item, _Storage):
            return ("storage", sys.modules["torch"].FloatStorage, "7", "cpu", 12, None)
        return None


class _Tensor:
    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> None:
        self._parts = (offset, shape, strides)

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild = sys.modules["torch._utils"]._rebuild_tensor_v2
        return rebuild, (STORAGE, *self._parts, False, OrderedDict())


STORAGE = _Storage()


@pytest.fixture(autouse=True)
def torch_names(monkeypatch: pytest.MonkeyPatch) -> None:
    torch, helpers = types.ModuleType("torch"), types.ModuleType("torch._utils")

    def _rebuild_tensor_v2() -> None: ...

    class FloatStorage: ...

    for module, named in ((helpers, _rebuild_tensor_v2), (torch, FloatStorage)):
        named.__module__, named.__qualname__ = module.__name__, named.__name__
        setattr(module, named.__name__, named)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch._utils", helpers)


def _write(path: Path, state: Any, *, numbers: bytes = NUMBERS.tobytes()) -> Path:
    with path.open("wb") as stream:
        for value in (MAGIC, 1001, {"little_endian": True}):
            pickle.dump(value, stream, 2)
        _Pickler(stream, 2).dump(state)
        pickle.dump(["7"], stream, 2)
        stream.write((12).to_bytes(8, "little") + numbers)
    return path


def test_shapes_strides_and_offsets_are_followed(tmp_path: Path) -> None:
    state = OrderedDict(
        whole=_Tensor((3, 4), (4, 1), 0),
        turned=_Tensor((4, 3), (1, 4), 0),
        last=_Tensor((2,), (1,), 10),
        single=_Tensor((), (), 5),
    )
    found = read_state_dict(_write(tmp_path / "w.pth", state))
    assert list(found) == ["whole", "turned", "last", "single"]
    np.testing.assert_array_equal(found["whole"], NUMBERS.reshape(3, 4))
    np.testing.assert_array_equal(found["turned"], NUMBERS.reshape(3, 4).T)
    np.testing.assert_array_equal(found["last"], [10, 11])
    assert found["single"] == 5


@pytest.mark.parametrize("tensor", [_Tensor((4, 4), (4, 1), 0), _Tensor((2,), (1,), -1)])
def test_a_tensor_outside_its_storage_is_refused(tensor: _Tensor, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="beyond its storage"):
        read_state_dict(_write(tmp_path / "w.pth", OrderedDict(a=tensor)))


def test_nothing_in_the_file_is_called(tmp_path: Path) -> None:
    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "made"),)

    with pytest.raises(DataError, match="mkdir has no place in a file of weights"):
        read_state_dict(_write(tmp_path / "w.pth", OrderedDict(a=Attack())))
    assert not (tmp_path / "made").exists()


def test_a_file_that_is_cut_off_or_something_else_is_named(tmp_path: Path) -> None:
    state = OrderedDict(whole=_Tensor((3, 4), (4, 1), 0))
    with pytest.raises(DataError, match=r"w\.pth is no PyTorch file of weights: it is cut off"):
        read_state_dict(_write(tmp_path / "w.pth", state, numbers=NUMBERS.tobytes()[:-5]))
    data = _write(tmp_path / "w.pth", state).read_bytes()
    for length in range(0, len(data), 7):
        (tmp_path / "cut.pth").write_bytes(data[:length])
        with pytest.raises(DataError, match=r"cut\.pth is no PyTorch file of weights"):
            read_state_dict(tmp_path / "cut.pth")
    (tmp_path / "zip.pth").write_bytes(b"PK\x03\x04" + b"\0" * 64)
    with pytest.raises(DataError, match="no PyTorch file"):
        read_state_dict(tmp_path / "zip.pth")
