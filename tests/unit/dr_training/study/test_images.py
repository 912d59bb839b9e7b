"""Data sets from their binaries, and the stand-ins."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from dr_training.study.worker import images
from dr_training.study.worker.images import ImagesError, ImageSet, load, missing_files, resize


@pytest.fixture
def small_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """MNIST of a handful of images, so that its files are small."""
    monkeypatch.setitem(images.SETS, "MNIST", ImageSet(12, 4, 28, 1))


def idx(shape: tuple[int, ...], values: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, len(shape)]) + b"".join(struct.pack(">i", size) for size in shape)
    return head + values.astype(np.uint8).tobytes()


def write_mnist(folder: Path) -> np.ndarray:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 28, 28))
    (folder / "train-images-idx3-ubyte").write_bytes(idx((12, 28, 28), pixels))
    (folder / "train-labels-idx1-ubyte").write_bytes(idx((12,), np.arange(12) % 10))
    packed = gzip.compress(idx((4, 28, 28), pixels[:4]))
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(packed)
    (folder / "t10k-labels.idx1-ubyte").write_bytes(idx((4,), np.arange(4)))
    return pixels


@pytest.mark.usefixtures("small_sets")
def test_mnist_from_its_files(tmp_path: Path) -> None:
    pixels = write_mnist(tmp_path)
    assert missing_files("MNIST", tmp_path) == []
    data = load("MNIST", data_dir=tmp_path, size_px=28, share=0.5, seed=0)
    assert data.train.shape == (6, 28, 28, 1)
    assert data.test.shape == (2, 28, 28, 1)
    assert (data.train[..., 0] == pixels[:6]).all()
    assert data.train_labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert data.stand_in is False


@pytest.mark.usefixtures("small_sets")
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda content: content[:-5], "is it whole"),
        (lambda content: content + b"x", "is it whole"),
        (lambda content: b"\0\0\x09\x03" + content[4:], "is no IDX file of 12 x 28 x 28"),
        (lambda _: b"", "is no IDX file"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, spoil: object, words: str) -> None:
    write_mnist(tmp_path)
    file = tmp_path / "train-images-idx3-ubyte"
    file.write_bytes(spoil(file.read_bytes()))  # type: ignore[operator]
    with pytest.raises(ImagesError, match=words) as caught:
        load("MNIST", data_dir=tmp_path, size_px=28, share=1, seed=0)
    assert str(file) in str(caught.value)


@pytest.mark.usefixtures("small_sets")
def test_a_cut_archive_a_wrong_label_and_a_missing_file(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    packed = tmp_path / "t10k-images-idx3-ubyte.gz"
    packed.write_bytes(packed.read_bytes()[:40])
    with pytest.raises(ImagesError, match="cannot be unpacked"):
        load("MNIST", data_dir=tmp_path, size_px=28, share=1, seed=0)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx((12,), np.full(12, 11)))
    with pytest.raises(ImagesError, match="label 11"):
        load("MNIST", data_dir=tmp_path, size_px=28, share=1, seed=0)
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    assert missing_files("MNIST", tmp_path) == ["train-labels-idx1-ubyte"]
    with pytest.raises(ImagesError, match="has no train-labels-idx1-ubyte"):
        load("MNIST", data_dir=tmp_path, size_px=28, share=1, seed=0)


def test_cifar_planes_become_pixels(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    rows = np.zeros((10_000, 3073), np.uint8)
    rows[:, 0] = np.arange(10_000) % 10
    rows[0, 1:1025], rows[0, 1025:2049], rows[0, 2049:] = 10, 20, 30
    rows[0, 1 + 5] = 99  # red of row 0, column 5
    for name in [*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]:
        rows.tofile(folder / name)
    data = load("CIFAR-10", data_dir=tmp_path, size_px=32, share=0.001, seed=0)
    assert data.train.shape == (50, 32, 32, 3)
    assert data.train[0, 0, 0].tolist() == [10, 20, 30]
    assert data.train[0, 0, 5].tolist() == [99, 20, 30]
    assert data.train_labels[:3].tolist() == [0, 1, 2]
    (folder / "data_batch_3.bin").write_bytes(b"1234")
    with pytest.raises(ImagesError, match=r"data_batch_3.bin has 4 bytes"):
        load("CIFAR-10", data_dir=tmp_path, size_px=32, share=0.001, seed=0)
    (folder / "test_batch.bin").unlink()
    assert missing_files("CIFAR-10", tmp_path) == ["test_batch.bin"]


@pytest.mark.parametrize(("name", "train", "channels"), [("MNIST", 600, 1), ("CIFAR-10", 500, 3)])
def test_stand_ins_have_the_shape_and_relative_number(name: str, train: int, channels: int) -> None:
    data = load(name, data_dir=None, size_px=64, share=0.01, seed=4)
    assert data.train.shape == (train, 64, 64, channels)
    assert data.test.shape == (100, 64, 64, channels)
    assert data.stand_in is True
    assert set(data.train_labels) == set(range(10))


def test_stand_ins_are_fixed_by_their_seed_and_can_be_learnt() -> None:
    def draw(seed: int) -> images.Images:
        return load("MNIST", data_dir=None, size_px=32, share=0.01, seed=seed)

    data = draw(1)
    assert (data.train == draw(1).train).all()
    assert (data.train != draw(2).train).any()
    # The nearest class mean already tells the classes apart far better than one in ten.
    flat = data.train.reshape(len(data.train), -1).astype(float)
    means = np.stack([flat[data.train_labels == label].mean(axis=0) for label in range(10)])
    test = data.test.reshape(len(data.test), -1).astype(float)
    nearest = ((test[:, None] - means[None]) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == data.test_labels).mean() > 0.5


def test_a_share_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(ImagesError, match="leaves no image"):
        load("MNIST", data_dir=None, size_px=32, share=1e-6, seed=1)


def test_resizing_keeps_a_flat_picture_and_a_ramp() -> None:
    flat = np.full((2, 28, 28, 1), 77, np.uint8)
    assert (resize(flat, 64) == 77).all()
    ramp = np.tile(np.arange(0, 64, 2, dtype=np.uint8)[None, None, :, None], (1, 32, 1, 1))
    wide = resize(ramp, 64)[0, 0, :, 0].astype(int)
    assert (np.diff(wide) >= 0).all()
    # Half-pixel centres: the middle of the picture stays where it is.
    assert wide[31] + wide[32] == pytest.approx(ramp[0, 0, 15, 0] + ramp[0, 0, 16, 0], abs=1)
