"""MNIST and CIFAR-10 from their published binaries, or seeded stand-ins of the same shape.

    >>> images = load("MNIST", data_dir=None, size_px=32, share=0.01, seed=1)
    >>> images.train.shape, images.stand_in
    ((600, 32, 32, 1), True)

Sources of the formats: the IDX format of http://yann.lecun.com/exdb/mnist/ (big-endian magic
number, dimensions, bytes) and the binary version of
https://www.cs.toronto.edu/~kriz/cifar.html (records of a label byte and 3,072 pixel bytes,
red, green, blue plane).
"""

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

CLASSES = 10
_CHUNK = 2048
_IDX_BYTES = 8
_IDX_IMAGES = 3
_IDX_LABELS = 1


class ImagesError(ValueError):
    """A data set that is not there or not whole; the text names the file."""


@dataclass(frozen=True)
class ImageSet:
    """A data set as published: images to train on and to test on, side in pixels, channels."""

    train: int
    test: int
    side_px: int
    channels: int


SETS = {
    "MNIST": ImageSet(60_000, 10_000, 28, 1),
    "CIFAR-10": ImageSet(50_000, 10_000, 32, 3),
}


@dataclass(frozen=True)
class Images:
    """Pixels (n, S, S, channels) uint8 and labels (n,) int64; `stand_in` if drawn here."""

    train: Any
    train_labels: Any
    test: Any
    test_labels: Any
    stand_in: bool


def load(name: str, *, data_dir: Path | None, size_px: int, share: float, seed: int) -> Images:
    """A data set, resized.

    Args:
        name: a key of `SETS`.
        data_dir: folder of the published binaries; None draws stand-ins.
        size_px: side after bilinear resizing.
        share: of the images of each part that are used, the first ones; 0 < share <= 1.
        seed: of the stand-ins; binaries are what they are.

    Raises:
        ImagesError: a file is missing or not whole, or a part would be empty.
    """
    wanted = SETS[name]
    counts = {"train": int(wanted.train * share), "test": int(wanted.test * share)}
    if not all(counts.values()):
        raise ImagesError(f"a share of {share:g} of {name} leaves no image; take a larger one")
    parts = {}
    for part, count in counts.items():
        if data_dir is None:
            pixels, labels = _stand_in(name, wanted, part, count, seed)
        else:
            reader = _mnist if name == "MNIST" else _cifar
            pixels, labels = (rows[:count] for rows in reader(data_dir, part, wanted))
        parts[part] = (resize(pixels, size_px), labels)
    return Images(*parts["train"], *parts["test"], stand_in=data_dir is None)


def resize(pixels: Any, size_px: int) -> Any:
    """Bilinear with half-pixel centres; (n, h, w, c) uint8 to (n, S, S, c) uint8."""
    if pixels.shape[1] == pixels.shape[2] == size_px:
        return pixels
    rows = _weights(pixels.shape[1], size_px)
    columns = _weights(pixels.shape[2], size_px)
    out = np.empty((len(pixels), size_px, size_px, pixels.shape[3]), np.uint8)
    for start in range(0, len(pixels), _CHUNK):
        part = pixels[start : start + _CHUNK].astype(np.float32)
        part = np.moveaxis(np.tensordot(rows, part, (1, 1)), 0, 1)
        part = np.moveaxis(np.tensordot(columns, part, (1, 2)), 0, 2)
        out[start : start + _CHUNK] = np.clip(np.rint(part), 0, 255)
    return out


def missing_files(name: str, data_dir: Path) -> list[str]:
    """Names of the files of a data set that are not in the folder."""
    if name == "MNIST":
        wanted = [f"{part}-{what}" for part in ("train", "t10k") for what in _IDX_NAMES]
        return [stem for stem in wanted if _idx_file(data_dir, stem) is None]
    files = [*_CIFAR_FILES["train"], *_CIFAR_FILES["test"]]
    return [file for file in files if not (_cifar_folder(data_dir) / file).is_file()]


_IDX_NAMES = ("images-idx3-ubyte", "labels-idx1-ubyte")
_CIFAR_FILES = {
    "train": [f"data_batch_{number}.bin" for number in range(1, 6)],
    "test": ["test_batch.bin"],
}


def _weights(source: int, target: int) -> Any:
    """(target, source): the share of each source pixel in each target pixel."""
    at = np.clip((np.arange(target) + 0.5) * source / target - 0.5, 0, source - 1)
    low = np.minimum(at.astype(int), source - 1)
    high = np.minimum(low + 1, source - 1)
    table = np.zeros((target, source), np.float32)
    table[np.arange(target), low] += 1 - (at - low)
    table[np.arange(target), high] += at - low
    return table


def _stand_in(name: str, wanted: ImageSet, part: str, count: int, seed: int) -> Any:
    """Each class a smooth pattern that is shifted and covered with noise: it can be learnt."""
    side, channels = wanted.side_px, wanted.channels
    which = list(SETS).index(name)
    patterns = np.random.default_rng([seed, which]).normal(size=(CLASSES, 4, 4, channels))
    smooth = np.rint(128 + 40 * np.clip(patterns, -2, 2)).astype(np.uint8)
    patterns = resize(smooth, side)
    rng = np.random.default_rng([seed, which, ("train", "test").index(part)])
    labels = rng.integers(0, CLASSES, count)
    pixels = np.empty((count, side, side, channels), np.uint8)
    for start in range(0, count, _CHUNK):
        chosen = labels[start : start + _CHUNK]
        noise = rng.normal(0, 30, (len(chosen), side, side, channels))
        shifts = rng.integers(-3, 4, (len(chosen), 2))
        for index, (label, (down, right)) in enumerate(zip(chosen, shifts)):  # noqa: B905
            moved = np.roll(patterns[label], (down, right), (0, 1))
            pixels[start + index] = np.clip(moved + noise[index], 0, 255)
    return pixels, labels.astype(np.int64)


def _mnist(folder: Path, part: str, wanted: ImageSet) -> Any:
    stem = "train" if part == "train" else "t10k"
    count = wanted.train if part == "train" else wanted.test
    pixels = _idx(folder, f"{stem}-{_IDX_NAMES[0]}", (count, wanted.side_px, wanted.side_px))
    labels = _idx(folder, f"{stem}-{_IDX_NAMES[1]}", (count,))
    _refuse_labels(labels, folder)
    return pixels[..., None], labels.astype(np.int64)


def _idx_file(folder: Path, stem: str) -> Path | None:
    for name in (stem, stem.replace("-idx", ".idx")):
        for suffix in ("", ".gz"):
            if (folder / f"{name}{suffix}").is_file():
                return folder / f"{name}{suffix}"
    return None


def _idx(folder: Path, stem: str, shape: tuple[int, ...]) -> Any:
    file = _idx_file(folder, stem)
    if file is None:
        raise ImagesError(f"{folder} has no {stem} (nor {stem}.gz) of MNIST")
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise ImagesError(f"{file} cannot be unpacked: {error}") from None
    head = bytes([0, 0, _IDX_BYTES, len(shape)])
    head += b"".join(number.to_bytes(4, "big") for number in shape)
    if content[: len(head)] != head:
        raise ImagesError(f"{file} is no IDX file of {' x '.join(map(str, shape))} bytes")
    expected = len(head) + int(np.prod(shape))
    if len(content) != expected:
        raise ImagesError(f"{file} has {len(content):,} bytes, not {expected:,}: is it whole?")
    return np.frombuffer(content, np.uint8, offset=len(head)).reshape(shape)


def _cifar_folder(folder: Path) -> Path:
    inner = folder / "cifar-10-batches-bin"
    return inner if inner.is_dir() else folder


def _cifar(folder: Path, part: str, wanted: ImageSet) -> Any:
    pixels, labels = [], []
    for name in _CIFAR_FILES[part]:
        file = _cifar_folder(folder) / name
        if not file.is_file():
            raise ImagesError(f"{file} of CIFAR-10 (binary version) is not there")
        content = np.frombuffer(file.read_bytes(), np.uint8)
        record = 1 + wanted.channels * wanted.side_px**2
        if content.size != 10_000 * record:
            raise ImagesError(
                f"{file} has {content.size:,} bytes, not {10_000 * record:,}: is it whole?"
            )
        rows = content.reshape(10_000, record)
        _refuse_labels(rows[:, 0], file)
        labels.append(rows[:, 0].astype(np.int64))
        planes = rows[:, 1:].reshape(-1, wanted.channels, wanted.side_px, wanted.side_px)
        pixels.append(planes.transpose(0, 2, 3, 1))
    return np.ascontiguousarray(np.concatenate(pixels)), np.concatenate(labels)


def _refuse_labels(labels: Any, where: Path) -> None:
    if labels.max() >= CLASSES:
        raise ImagesError(f"{where} holds a label {labels.max()}; classes are 0 to {CLASSES - 1}")
