"""Opens `.keras` and `.h5` files without running what they bring.

    >>> network = load_network(Path("network.keras"))

Such a file is a program: a Lambda layer holds Python bytecode, and a layer of somebody's own names
code to import. The description inside is read first, and a file that asks for anything but
Keras's own layers is refused before Keras sees it; Keras then loads it in safe mode.
"""

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from dr_training.data.faults import DataError

_MOST_CONFIG_BYTES: Final = 32 * 1024 * 1024
_HINT: Final = "export it as a SavedModel where it was made, or rebuild it from Keras's own layers"
SUFFIXES: Final = (".keras", ".h5", ".hdf5")


def load_network(path: Path) -> Any:
    """The Keras model in a file; weights and graph, no optimizer.

    Raises:
        DataError: the file is none, brings code of its own, or cannot be loaded.
    """
    check_harmless(path)
    import keras

    try:
        return keras.saving.load_model(path, compile=False, safe_mode=True)
    except Exception as error:  # noqa: BLE001 - whatever Keras raises is about this file
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise DataError(f"{path.name} cannot be loaded by Keras: {lines[0]}") from None


def check_harmless(path: Path) -> dict[str, Any]:
    """The description of the model in a `.keras` or `.h5` file, if it names Keras's layers only.

    Raises:
        DataError: the file is none, or holds a Lambda layer or code of its maker.
    """
    config = _config(path)
    for entry in _objects(config):
        name = str(entry.get("class_name"))
        module = entry.get("module")
        if name == "Lambda":
            raise DataError(
                f"{path.name} holds a Lambda layer, which is code of whoever made the file; it is "
                f"not loaded: {_HINT}"
            )
        own = str(entry.get("registered_name") or "").partition(">")
        foreign = module is not None and str(module).partition(".")[0] not in ("keras", "builtins")
        if foreign or (own[1] and own[0] != "keras"):
            raise DataError(
                f"{path.name} needs {module or own[0]}.{name}, a class of its maker; it is not "
                f"loaded: {_HINT}"
            )
    return config


def _config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    try:
        if path.suffix == ".keras":
            with zipfile.ZipFile(path) as archive:
                if archive.getinfo("config.json").file_size > _MOST_CONFIG_BYTES:
                    raise DataError(f"the description in {path.name} is too large to be one")
                config = json.loads(archive.read("config.json"))
        else:
            import h5py

            with h5py.File(path, "r") as stream:
                if "model_config" not in stream.attrs:
                    raise DataError(
                        f"{path.name} holds weights without the network; save the whole model"
                    )
                config = json.loads(stream.attrs["model_config"])
    except (OSError, KeyError, ValueError, zipfile.BadZipFile, RecursionError):
        raise DataError(f"{path.name} is damaged, or is no Keras file") from None
    if not isinstance(config, dict):
        raise DataError(f"{path.name} is damaged, or is no Keras file")
    return config


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every description of an object inside, however deep."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            if "class_name" in one:
                yield one
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
