"""Reads and checks `model.json`, the description inside every model package.

    >>> spec = load_model_spec(Path("model_artifacts/mobilenet-demo"))
    >>> spec.id, spec.input_size_px
    ('mobilenet-demo', 224)

`model.json` lists every other file of the package with its SHA-256, so the digest of
`model.json` itself identifies the whole package, in the way that an OCI image is named by
the digest of its manifest. That digest is the package's name everywhere: in the object key,
in the CloudFormation template, in each answer and in the log. It does not depend on how the
archive was compressed, and it is known for a package whose large files are not on disk.
"""

import hashlib
import json
import math
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from inference_image.contract import GRADE_LABELS, TASK_GRADE5, TASK_REFERABLE, TASKS

MODEL_JSON = "model.json"
SCHEMA_VERSION = 1
# A manifest is text for people; anything larger is not one.
MAX_MODEL_JSON_BYTES = 4 * 1024 * 1024
# Part of an object's key, and the value of CloudWatch's dimension, which must be ASCII:
# https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_Dimension.html (2026-11-28).
LONGEST_MODEL_ID = 128
MODEL_ID = re.compile(rf"[A-Za-z0-9_-][A-Za-z0-9._-]{{0,{LONGEST_MODEL_ID - 1}}}")
# Calibration moves logits by a small factor; beyond these the softmax says nothing.
MIN_TEMPERATURE = 1e-3
MAX_TEMPERATURE = 1e3
_HASH_BLOCK_BYTES = 1024 * 1024

# Keys of `outputs`: what a package may name. One of the first two is required.
OUTPUT_LOGITS = "logits"
OUTPUT_PROBABILITIES = "probabilities"
OUTPUT_FEATURES = "feature_map"
CHANNEL_ORDERS = ("rgb", "bgr")


class ModelPackageError(ValueError):
    """The package cannot be used. Its text is one sentence for the person who made it."""


@dataclass(frozen=True, kw_only=True)
class OperatingPoint:
    """A named threshold on P(referable), chosen on validation data."""

    name: str
    threshold: float


@dataclass(frozen=True, kw_only=True)
class PackageFile:
    """A file of the package: POSIX path relative to its root, digest and size."""

    path: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class InputEncoding:
    """How the network wants its pixels: `pixel * scale + offset` in its channel order.

    `scale` and `offset` have one number, or three in the network's channel order. The default
    is the pixels as they are, 0..255 in RGB, for networks that rescale inside the graph.
    """

    channel_order: str = "rgb"
    scale: tuple[float, ...] = (1.0,)
    offset: tuple[float, ...] = (0.0,)

    @property
    def rescales(self) -> bool:
        """Whether the numbers change."""
        return set(self.scale) != {1.0} or set(self.offset) != {0.0}

    @property
    def is_identity(self) -> bool:
        """Whether the pixels are taken as they are."""
        return not self.rescales and self.channel_order == "rgb"


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A checked `model.json`.

    `preprocessing` and `quality_gate` are read by `preprocessing` and `fundus`; both may be
    empty, for models whose inputs are prepared already. `signature` names that of a SavedModel
    where it is not the default. `raw` keeps the whole document, so that nothing a package says
    is lost.
    """

    id: str
    task: str
    sha256: str
    input_size_px: int
    labels: tuple[str, ...]
    preprocessing: tuple[Mapping[str, Any], ...]
    quality_gate: Mapping[str, Any] | None
    operating_points: tuple[OperatingPoint, ...]
    default_operating_point: str
    temperature: float
    outputs: Mapping[str, str]
    head_file: str | None
    files: tuple[PackageFile, ...]
    notice: str | None
    input_encoding: InputEncoding = InputEncoding()
    signature: str | None = None
    raw: Mapping[str, Any] = field(repr=False)

    def operating_point(self, name: str | None = None) -> OperatingPoint:
        """The named operating point, or the package's default; raises `ModelPackageError`."""
        wanted = name or self.default_operating_point
        for point in self.operating_points:
            if point.name == wanted:
                return point
        known = ", ".join(point.name for point in self.operating_points)
        raise ModelPackageError(
            f"operating point {wanted!r} is not in model {self.id}; it has: {known}"
        )

    @property
    def object_key(self) -> str:
        """S3 key of the packed package; it changes with the content."""
        return object_key(self.id, self.sha256)


def object_key(model_id: str, sha256: str) -> str:
    """`models/<id>/<sha256>.tar.gz`: the key under which a package is published."""
    return f"models/{model_id}/{sha256}.tar.gz"


def load_model_spec(package_dir: Path) -> ModelSpec:
    """Read `package_dir/model.json`; the files that it lists need not be present.

    Raises:
        ModelPackageError: the file is missing, is not JSON, or contradicts itself.
    """
    path = package_dir / MODEL_JSON
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ModelPackageError(f"{path} is no plain file")
        if status.st_size > MAX_MODEL_JSON_BYTES:
            raise ModelPackageError(f"{path} is larger than {MAX_MODEL_JSON_BYTES} bytes")
        data = path.read_bytes()
    except FileNotFoundError:
        if path.is_symlink():
            raise ModelPackageError(f"{path} is a link to a file that does not exist") from None
        raise ModelPackageError(f"no {MODEL_JSON} in {package_dir}") from None
    except OSError as error:
        raise ModelPackageError(f"{path} cannot be read: {error.strerror}") from None
    return parse_model_spec(data, origin=str(path))


def has_model_json(package_dir: Path) -> bool:
    """Whether there is anything of that name; what it is, `load_model_spec` says.

    Raises:
        ModelPackageError: the folder may not be looked into.
    """
    path = package_dir / MODEL_JSON
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise ModelPackageError(f"{path} cannot be read: {error.strerror}") from None
    return True


def _object(pairs: list[tuple[str, Any]], origin: str) -> dict[str, Any]:
    """An object of the JSON; of a name that stands twice Python would keep the last in silence."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ModelPackageError(f"{origin}: {name[:40]!r} stands twice in one object")
        found[name] = value
    return found


def parse_model_spec(data: bytes, *, origin: str = MODEL_JSON) -> ModelSpec:
    """Check the bytes of a `model.json`; `origin` names it in messages."""
    try:
        document = json.loads(data, object_pairs_hook=lambda pairs: _object(pairs, origin))
    except ModelPackageError:
        raise
    except ValueError as error:
        # Also a whole number of more digits than Python reads.
        raise ModelPackageError(f"{origin} is not JSON: {error}") from None
    except RecursionError:
        raise ModelPackageError(f"{origin} is nested too deeply") from None
    if not isinstance(document, dict):
        raise ModelPackageError(f"{origin} must hold a JSON object")
    reader = _Reader(document, origin)
    version = reader.get("schema_version", int)
    if version != SCHEMA_VERSION:
        reader.fail(f"schema_version must be {SCHEMA_VERSION}, not {version}")
    task = reader.get("task", str)
    if task not in TASKS:
        reader.fail(f"task must be one of {', '.join(TASKS)}; it is {task!r}")
    model_id = reader.get("id", str)
    if not MODEL_ID.fullmatch(model_id):
        reader.fail(
            f"id may hold up to {LONGEST_MODEL_ID} letters of ASCII, digits, '-', '_' and '.', and "
            f"may not begin with '.'; it is {model_id[:LONGEST_MODEL_ID]!r}"
        )
    labels = tuple(str(label) for label in reader.get("labels", list))
    _check_labels(reader, task, labels)
    size_px = reader.get("input_size_px", int)
    if not 8 <= size_px <= 4096:
        reader.fail(f"input_size_px must be between 8 and 4096; it is {size_px}")
    temperature = finite_number(reader.get("temperature", (int, float)))
    if temperature is None or not MIN_TEMPERATURE <= temperature <= MAX_TEMPERATURE:
        reader.fail(f"temperature must be between {MIN_TEMPERATURE:g} and {MAX_TEMPERATURE:g}")
    points = tuple(_operating_point(reader, row) for row in reader.get("operating_points", list))
    names: set[str] = set()
    for point in points:
        if point.name in names:
            reader.fail(f"operating_points has {point.name!r} twice; which is meant, nothing says")
        names.add(point.name)
    default_point = reader.get("default_operating_point", str)
    if default_point not in names:
        reader.fail(f"default_operating_point {default_point!r} is not in operating_points")
    outputs = reader.get("outputs", dict)
    if (OUTPUT_LOGITS in outputs) == (OUTPUT_PROBABILITIES in outputs):
        reader.fail(f"outputs must name either the {OUTPUT_LOGITS} or the {OUTPUT_PROBABILITIES}")
    files = tuple(_files(reader))
    head_file = reader.get("head_file", (str, type(None)), optional=True)
    if head_file is not None and head_file not in {entry.path for entry in files}:
        reader.fail(f"head_file {head_file!r} is not in files, so its digest is unknown")
    return ModelSpec(
        id=model_id,
        task=task,
        sha256=hashlib.sha256(data).hexdigest(),
        input_size_px=size_px,
        labels=labels,
        preprocessing=tuple(_mappings(reader, "preprocessing")),
        quality_gate=reader.get("quality_gate", (dict, type(None))),
        operating_points=points,
        default_operating_point=default_point,
        temperature=float(temperature or 1),
        outputs={str(k): str(v) for k, v in outputs.items()},
        head_file=head_file,
        files=files,
        notice=reader.get("notice", (str, type(None)), optional=True),
        input_encoding=_input_encoding(reader),
        signature=reader.get("signature", (str, type(None)), optional=True),
        raw=document,
    )


def missing_files(spec: ModelSpec, package_dir: Path) -> tuple[str, ...]:
    """Paths that `model.json` lists and `package_dir` lacks."""
    return tuple(f.path for f in spec.files if not (package_dir / f.path).is_file())


def verify_files(spec: ModelSpec, package_dir: Path) -> None:
    """Compare size and SHA-256 of every listed file.

    A link counts as missing: what it leads to could change after the check.

    Raises:
        ModelPackageError: naming the first file that is missing or differs.
    """
    for entry in spec.files:
        path = package_dir / entry.path
        if path.is_symlink() or not path.is_file():
            raise ModelPackageError(f"model {spec.id}: {entry.path} is missing from {package_dir}")
        size = path.stat().st_size
        if size != entry.size_bytes:
            raise ModelPackageError(
                f"model {spec.id}: {entry.path} has {size} bytes where {MODEL_JSON} says "
                f"{entry.size_bytes}; the package is damaged"
            )
        try:
            digest = file_sha256(path)
        except OSError as error:
            raise ModelPackageError(
                f"model {spec.id}: {entry.path} cannot be read: {error.strerror}"
            ) from None
        if digest != entry.sha256:
            raise ModelPackageError(
                f"model {spec.id}: {entry.path} does not have the SHA-256 that {MODEL_JSON} "
                f"records; the package is damaged"
            )


def file_sha256(path: Path) -> str:
    """SHA-256 of a file as hexadecimal text, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_HASH_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


class _Reader:
    """Typed look-ups in the document; every failure names file and key."""

    def __init__(self, document: dict[str, Any], origin: str) -> None:
        self._document = document
        self._origin = origin

    def fail(self, message: str) -> None:
        raise ModelPackageError(f"{self._origin}: {message}")

    def get(self, key: str, kind: Any, *, optional: bool = False) -> Any:
        if key not in self._document:
            if optional:
                return None
            self.fail(f"{key} is missing")
        value = self._document[key]
        # bool is an int to Python, never to the author of a model.json.
        if not isinstance(value, kind) or isinstance(value, bool):
            self.fail(f"{key} has the wrong type ({type(value).__name__})")
        return value


def _check_labels(reader: _Reader, task: str, labels: tuple[str, ...]) -> None:
    if task == TASK_GRADE5 and labels != GRADE_LABELS:
        # Folder names sorted by name put the healthy class third; a permuted head would
        # answer with confident wrong grades, so the order is part of the contract.
        reader.fail(f"labels must be {list(GRADE_LABELS)} in this order; they are {list(labels)}")
    if task == TASK_REFERABLE and len(labels) != 2:
        reader.fail(f"a referable model has 2 labels (negative, positive), not {len(labels)}")


def _operating_point(reader: _Reader, row: Any) -> OperatingPoint:
    threshold = finite_number(row.get("threshold")) if isinstance(row, dict) else None
    name = row.get("name") if isinstance(row, dict) else None
    if not isinstance(name, str) or threshold is None or not 0 <= threshold <= 1:
        reader.fail("an operating point needs a name and a threshold in [0, 1]")
    return OperatingPoint(name=str(name), threshold=float(threshold or 0))


def _input_encoding(reader: _Reader) -> InputEncoding:
    document = reader.get("input", (dict, type(None)), optional=True) or {}
    unknown = sorted(set(document) - {"channel_order", "scale", "offset"})
    if unknown:
        reader.fail(f"input may hold channel_order, scale and offset; it has {unknown[0]!r}")
    order = document.get("channel_order", "rgb")
    if order not in CHANNEL_ORDERS:
        reader.fail(f"input.channel_order must be rgb or bgr; it is {order!r}")
    return InputEncoding(
        channel_order=str(order),
        scale=_numbers(reader, document, "scale", 1.0),
        offset=_numbers(reader, document, "offset", 0.0),
    )


def _numbers(
    reader: _Reader, document: Mapping[str, Any], key: str, default: float
) -> tuple[float, ...]:
    value = document.get(key, default)
    values = value if isinstance(value, list) else [value]
    numbers = tuple(number for number in map(finite_number, values) if number is not None)
    if len(numbers) != len(values) or len(numbers) not in (1, 3):
        reader.fail(f"input.{key} must be a number or three, one per channel; it is {value!r}")
    return numbers


def finite_number(value: Any) -> float | None:
    """`value` as a finite number, or None: JSON may hold NaN, and integers of any length."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _mappings(reader: _Reader, key: str) -> list[Mapping[str, Any]]:
    rows = reader.get(key, list)
    for row in rows:
        if not isinstance(row, dict) or not isinstance(row.get("step"), str):
            reader.fail(f"each entry of {key} must be an object with a 'step'; one is {row!r}")
    return list(rows)


def _files(reader: _Reader) -> list[PackageFile]:
    entries = []
    for path, row in reader.get("files", dict).items():
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts or path == MODEL_JSON:
            reader.fail(f"files may only name paths inside the package; one is {path!r}")
        sha256 = row.get("sha256") if isinstance(row, dict) else None
        size = row.get("size_bytes") if isinstance(row, dict) else None
        if not isinstance(sha256, str) or len(sha256) != 64 or not isinstance(size, int):
            reader.fail(f"files[{path!r}] needs sha256 and size_bytes")
        entries.append(PackageFile(path=path, sha256=str(sha256), size_bytes=int(size or 0)))
    if not entries:
        reader.fail("files is empty: a package holds at least the model")
    return sorted(entries, key=lambda entry: entry.path)
