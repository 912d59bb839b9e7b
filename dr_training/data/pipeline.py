"""Reads records in batches for training: shuffled, flipped and colour-jittered.

    >>> data = TrainingData.open(Path("out/aptos-299"))
    >>> for batch in data.part("train").batches(32, augment=Augmentation(), seed=7, epoch=0):
    ...     batch.pixels.shape, batch.grades.shape
    ((32, 299, 299, 3), (32,))

`open` reads every record once before the first batch: a damaged record, a missing key, and a
patient or a picture that is in two parts are errors then, not hours later.

Every epoch visits every record once, in an order of its own: records are found by index, so
there is no shuffle buffer that could be too small. Brightness, contrast, saturation and hue are
one matrix, so that a picture is decoded, turned and recoloured in two passes over its pixels.
"""

import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dr_training.data.faults import DataError
from dr_training.data.preparation import MANIFEST, SCHEMA_VERSION
from dr_training.data.records import RecordError, RecordFile, decode_example
from dr_training.data.splits import refuse_shared
from dr_training.data.table import GRADES
from inference_image.preprocessing import STEP_MASK

BYTE_KEYS: Final = (
    "image/encoded",
    "image/format",
    "image/id",
    "image/patient",
    "image/sha256",
)
NUMBER_KEYS: Final = ("image/class/label", "image/height", "image/width")
_FORMATS: Final = (b"jpeg", b"png")
# Rec. 601 luma: what is left of a colour when its saturation goes.
_LUMA: Final = np.array([0.299, 0.587, 0.114])
_TO_YIQ: Final = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.321], [0.211, -0.523, 0.311]])
_FROM_YIQ: Final = np.linalg.inv(_TO_YIQ)
_MIDDLE_GREY: Final = 90.0

Pixels = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """How far training pictures may differ from the prepared ones; each is drawn uniformly.

    `brightness`, `contrast` and `saturation` are factors 1 ± value; `hue_degrees` turns colours
    by up to ± that angle. A fundus has no up and no left: both flips are on.
    """

    flip: bool = True
    brightness: float = 0.15
    contrast: float = 0.15
    saturation: float = 0.15
    hue_degrees: float = 6.0

    def colour_matrix(self, rng: np.random.Generator) -> tuple[float, ...]:
        """One draw as the twelve numbers (three rows of R, G, B, offset) that Pillow takes."""
        brightness, contrast, saturation = (
            1 + rng.uniform(-width, width)
            for width in (self.brightness, self.contrast, self.saturation)
        )
        angle = np.deg2rad(rng.uniform(-self.hue_degrees, self.hue_degrees))
        turn = np.array(
            [[1, 0, 0], [0, np.cos(angle), -np.sin(angle)], [0, np.sin(angle), np.cos(angle)]]
        )
        grey = np.tile(_LUMA, (3, 1))
        colour = saturation * np.eye(3) + (1 - saturation) * grey
        matrix = brightness * contrast * (_FROM_YIQ @ turn @ _TO_YIQ @ colour)
        offset = brightness * (1 - contrast) * _MIDDLE_GREY
        rows = np.concatenate([matrix, np.full((3, 1), offset)], axis=1)
        return tuple(float(value) for value in rows.reshape(-1))


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Pictures (n, S, S, 3) uint8, grades (n,), weights (n,) 0 where a row only fills up, ids."""

    pixels: Pixels
    grades: NDArray[np.int64]
    weights: NDArray[np.float32]
    ids: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Place:
    file: RecordFile
    index: int


class Part:
    """The records of one part of a split."""

    def __init__(
        self,
        name: str,
        places: list[_Place],
        grades: NDArray[np.int64],
        *,
        owners: Sequence[str],
        patients: Sequence[str],
        size_px: int,
        mask_fraction: float | None,
    ) -> None:
        self.name = name
        self.grades = grades
        # Whose each picture is, empty where the records name nobody.
        self.patients = tuple(patients)
        # Whose each picture is: the patient, or the picture's own digest where none is named.
        self.owners = tuple(owners)
        self.size_px = size_px
        self._places = places
        self._mask_fraction = mask_fraction

    def __len__(self) -> int:
        return len(self._places)

    def picture(
        self,
        index: int,
        augment: Augmentation | None = None,
        rng: np.random.Generator | None = None,
        *,
        out: Pixels | None = None,
    ) -> tuple[Pixels, int, str]:
        """Pixels (S, S, 3), grade and id of a record; the pixels are written to `out` if given.

        Raises:
            RecordError: the record cannot be used; file and index are named.
        """
        place = self._places[index]
        features = read_record(place.file, place.index)
        pixels = np.empty((self.size_px, self.size_px, 3), np.uint8) if out is None else out
        target = pixels
        matrix, mirror = None, False
        if augment is not None and rng is not None:
            matrix = augment.colour_matrix(rng)
            if augment.flip:
                mirror = bool(rng.random() < 0.5)
                target = pixels[::-1] if rng.random() < 0.5 else pixels
        try:
            decoded = decode_picture(_encoded(features), matrix=matrix, mirror=mirror)
        except ValueError as error:
            raise RecordError(
                f"{place.file.path} record {place.index}: its picture cannot be decoded ({error})"
            ) from None
        if decoded.shape != pixels.shape:
            raise RecordError(
                f"{place.file.path} record {place.index}: its picture is {decoded.shape}, not "
                f"{self.size_px} x {self.size_px} x 3"
            )
        if self._mask_fraction is None:
            np.copyto(target, decoded)
        else:
            # Black outside the disc, as the service's is: neither JPEG's ringing nor a brighter
            # picture may change that.
            np.multiply(decoded, _disc(self.size_px, self._mask_fraction), out=target)
        return pixels, _label(features), _text(features, "image/id")

    def batches(
        self,
        batch_size: int,
        *,
        augment: Augmentation | None = None,
        seed: int | None = None,
        epoch: int = 0,
        drop_remainder: bool = False,
        fill: bool = False,
        threads: int = 1,
        first: int = 0,
        share: tuple[int, int] = (0, 1),
    ) -> Iterator[Batch]:
        """Batches of one epoch.

        Args:
            batch_size: pictures of a batch; the last one may be smaller.
            augment: flips and colours; None gives the pictures as they are.
            seed: order and augmentation, with `epoch`; None keeps the order of the files.
            epoch: another epoch has another order and other augmentations.
            drop_remainder: leave a smaller last batch out (training).
            fill: fill it up with copies of weight 0 (evaluation on several devices).
            threads: decode this many pictures at once; the batches stay the same.
            first: leave out the batches before this one, without decoding them.
            share: (i, n) gives the i-th of n equal runs of each batch, for n workers; batches
                must then be whole (`drop_remainder` or `fill`).

        Raises:
            RecordError: a record cannot be used.
            DataError: a batch is empty, or cannot be shared.
        """
        if batch_size < 1:
            raise DataError(f"a batch holds at least one picture, not {batch_size}")
        worker, workers = share
        if batch_size % workers or not (workers == 1 or drop_remainder or fill):
            raise DataError(f"batches of {batch_size} cannot be shared by {workers} workers")
        order = np.arange(len(self))
        if seed is not None:
            order = np.random.default_rng([seed, epoch]).permutation(len(self))

        def load(index: int, out: Pixels) -> tuple[int, str]:
            rng = np.random.default_rng([seed or 0, epoch, index]) if augment else None
            _, grade, name = self.picture(index, augment, rng, out=out)
            return grade, name

        with ThreadPoolExecutor(threads) as pool:
            for start in range(first * batch_size, len(order), batch_size):
                chosen = [int(index) for index in order[start : start + batch_size]]
                short = batch_size - len(chosen)
                if short and drop_remainder:
                    return
                if short and fill:
                    chosen += chosen[:1] * short
                weights = np.ones(len(chosen), np.float32)
                weights[batch_size - short :] = 0
                part = len(chosen) // workers
                mine = slice(worker * part, (worker + 1) * part) if workers > 1 else slice(None)
                chosen, weights = chosen[mine], weights[mine]
                pixels = np.empty((len(chosen), self.size_px, self.size_px, 3), np.uint8)
                run = pool.map if threads > 1 else map
                loaded = list(run(load, chosen, pixels))
                yield Batch(
                    pixels=pixels,
                    grades=np.array([grade for grade, _ in loaded], np.int64),
                    weights=weights,
                    ids=tuple(name for _, name in loaded),
                )

    def as_dataset(self, batch_size: int, **choices: Any) -> Any:
        """The batches of one epoch as a `tf.data.Dataset` of (pixels, grades, weights).

        Raises:
            DataError: TensorFlow is not installed.
        """
        try:
            import tensorflow as tf
        except ImportError:
            raise DataError(
                "a tf.data.Dataset needs TensorFlow: pip install 'dr-endpoints[training]'"
            ) from None
        side = self.size_px
        return tf.data.Dataset.from_generator(
            lambda: (
                (batch.pixels, batch.grades, batch.weights)
                for batch in self.batches(batch_size, **choices)
            ),
            output_signature=(
                tf.TensorSpec((None, side, side, 3), tf.uint8),
                tf.TensorSpec((None,), tf.int64),
                tf.TensorSpec((None,), tf.float32),
            ),
        ).prefetch(2)


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """The records of a folder that `prepare` wrote, checked."""

    folder: Path
    manifest: Mapping[str, Any]
    parts: Mapping[str, Part]

    @classmethod
    def open(cls, folder: Path) -> "TrainingData":
        """Check every record of the folder, and refuse parts that leak into each other.

        Raises:
            RecordError: a shard is missing, cut off or damaged, or a key is missing: file and
                index are named.
            DataError: there is no manifest, or a patient or a picture is in two parts.
        """
        manifest = read_manifest(folder)
        mask_fraction = next(
            (
                float(step.get("radius_fraction", 0.98))
                for step in manifest["preprocessing"]
                if step["step"] == STEP_MASK
            ),
            None,
        )
        parts = {}
        owners: list[tuple[str, str, str, str]] = []
        for name, document in manifest["parts"].items():
            places = []
            grades = []
            whose = []
            named = []
            for shard in document["shards"]:
                file = RecordFile(folder / shard["file"])
                if len(file) != shard["records"]:
                    raise RecordError(
                        f"{file.path} holds {len(file)} records; the manifest says "
                        f"{shard['records']}"
                    )
                for index in range(len(file)):
                    features = read_record(file, index)
                    places.append(_Place(file=file, index=index))
                    grades.append(_label(features))
                    where = f"{file.path.name} record {index}"
                    patient = _text(features, "image/patient")
                    digest = _text(features, "image/sha256")
                    owners.append((name, patient, digest, where))
                    whose.append(patient or digest)
                    named.append(patient)
            parts[name] = Part(
                name,
                places,
                np.array(grades, np.int64),
                owners=whose,
                patients=named,
                size_px=manifest["size_px"],
                mask_fraction=mask_fraction,
            )
        refuse_shared(owners)
        return cls(folder=folder, manifest=manifest, parts=parts)

    def part(self, name: str) -> Part:
        """A part by name.

        Raises:
            DataError: there is no such part.
        """
        if name not in self.parts:
            raise DataError(f"{self.folder} has no part {name!r}; it has {', '.join(self.parts)}")
        return self.parts[name]


def decode_picture(
    encoded: bytes, *, matrix: tuple[float, ...] | None = None, mirror: bool = False
) -> Pixels:
    """Pixels (H, W, 3) of a JPEG or PNG of records, recoloured by `matrix` and mirrored.

    With OpenCV, which the training environment has, in a third of the time; both decode to the
    same bytes, and a recoloured one differs by at most 1/255.

    Raises:
        ValueError: the bytes are no picture.
    """
    cv2 = _opencv()
    if cv2 is not None:
        try:
            pixels = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR_RGB)
        except cv2.error as error:
            raise ValueError(str(error)) from None
        if pixels is None:
            raise ValueError("it is neither JPEG nor PNG")
        if matrix is not None:
            pixels = cv2.transform(pixels, np.array(matrix, np.float32).reshape(3, 4))
        return np.asarray(cv2.flip(pixels, 1) if mirror else pixels)
    try:
        picture: Image.Image = Image.open(io.BytesIO(encoded))
        picture = picture.convert("RGB") if matrix is None else picture.convert("RGB", matrix)
        if mirror:
            # Pillow mirrors a picture in a tenth of the time that NumPy's strides take.
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.asarray(picture)
    except (OSError, SyntaxError) as error:
        raise ValueError(str(error)) from None


@lru_cache(maxsize=1)
def _opencv() -> Any:
    """OpenCV on one thread, as each picture has its own, or None where it is not installed."""
    try:
        import cv2
    except ImportError:
        return None
    cv2.setNumThreads(1)
    return cv2


def read_record(file: RecordFile, index: int) -> dict[str, list[bytes] | list[int]]:
    """The features of a record, with every key there and of its kind.

    Raises:
        RecordError: damaged, not an example, or a key is missing, of another kind or out of
            range; file and index are named.
    """
    where = f"{file.path} record {index}"
    try:
        features = decode_example(file[index])
    except RecordError:
        raise
    except ValueError as error:
        raise RecordError(f"{where} is no tf.train.Example: {error}") from None
    for keys, kind in ((BYTE_KEYS, bytes), (NUMBER_KEYS, int)):
        for key in keys:
            values = features.get(key)
            if values is None:
                present = ", ".join(sorted(features)) or "nothing"
                raise RecordError(f"{where} has no {key}; it has {present}")
            if len(values) != 1 or not isinstance(values[0], kind):
                raise RecordError(f"{where}: {key} must hold one {kind.__name__}")
    if _label(features) not in GRADES:
        raise RecordError(f"{where}: grade {_label(features)} is not one of 0 to {GRADES[-1]}")
    if features["image/format"][0] not in _FORMATS:
        raise RecordError(f"{where}: pictures are jpeg or png")
    return features


def default_threads() -> int:
    """Threads that decode: one per processor that this process may use."""
    return len(os.sched_getaffinity(0))


def _label(features: Mapping[str, list[bytes] | list[int]]) -> int:
    return int(features["image/class/label"][0])


def _encoded(features: Mapping[str, list[bytes] | list[int]]) -> bytes:
    value = features["image/encoded"][0]
    return value if isinstance(value, bytes) else b""


def _text(features: Mapping[str, list[bytes] | list[int]], key: str) -> str:
    value = features[key][0]
    return value.decode() if isinstance(value, bytes) else str(value)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a folder of records; its files are not looked at.

    Raises:
        DataError: there is none, or it is not what `prepare` writes.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
    except OSError:
        raise DataError(
            f"{folder} holds no {MANIFEST}; make records with `dr data prepare`"
        ) from None
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}") from None
    try:
        if manifest["schema_version"] != SCHEMA_VERSION:
            raise DataError(
                f"{path}: schema_version must be {SCHEMA_VERSION}, not {manifest['schema_version']}"
            )
        for document in manifest["parts"].values():
            for shard in document["shards"]:
                _ = shard["file"], shard["records"]
        _ = manifest["size_px"], manifest["preprocessing"]
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is not a manifest of records: {error} is missing") from None
    return dict(manifest)


@lru_cache(maxsize=4)
def _disc(size_px: int, fraction: float) -> Pixels:
    offsets = np.arange(size_px) + 0.5 - size_px / 2
    inside = offsets[:, None] ** 2 + offsets[None, :] ** 2 <= (fraction * size_px / 2) ** 2
    return np.repeat(inside[:, :, None], 3, axis=2).astype(np.uint8)
