"""Runs the service's own preprocessing over a table and writes records and `qc.csv`.

    >>> report = prepare(table, split, Path("out/aptos-299"), plan=Plan(size_px=299))
    >>> report.statuses["ok"], report.statuses["ungradable"]
    (3540, 122)

Files are decoded and cut by `inference_image.predictor.read_photograph`, which is what the
service calls, so a network is trained on what it will be served. Nothing is dropped in silence:
`qc.csv` has a row for every photograph of the table, with its status:

| status | meaning |
|---|---|
| `ok` | in the records |
| `ungradable` | the service's gate refuses it; counted, and in the records only on wish |
| `unreadable` | the file is missing, damaged, or another one than when the table was made |
| `unlabelled` | it has no grade |
| `left_out` | the split gives it no part |
"""

import csv
import hashlib
import io
import json
import multiprocessing
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dr_training.data.faults import DataError
from dr_training.data.readers import LIMITS, why_not_whole
from dr_training.data.records import RecordWriter, encode_example
from dr_training.data.splits import TRAIN, Split, refuse_leaks
from dr_training.data.table import (
    GRADES,
    Photograph,
    Table,
    array_row,
    is_array,
    pixels_sha256,
    write_whole,
)
from dr_training.recipe import MASK_RADIUS_FRACTION, MIN_RADIUS_PX
from inference_image.decoding import PhotographError, measure
from inference_image.fundus import QualityGate
from inference_image.model_spec import ModelSpec, file_sha256
from inference_image.predictor import read_photograph
from inference_image.preprocessing import Preparation, Prepared

MANIFEST: Final = "manifest.json"
_STAGING: Final = ".new.part"
_SHARD: Final = re.compile(r".+-\d{5}\.tfrecord")
QC: Final = "qc.csv"
SCHEMA_VERSION: Final = 1
JPEG: Final = "jpeg"
PNG: Final = "png"
# At 95 and without chroma subsampling a record differs from the service's tensor by at most
# 1.5/255 on average and 32/255 in any value (a test holds it); PNG does not differ.
JPEG_QUALITY: Final = 95

OK: Final = "ok"
UNGRADABLE: Final = "ungradable"
UNREADABLE: Final = "unreadable"
UNLABELLED: Final = "unlabelled"
LEFT_OUT: Final = "left_out"
STATUSES: Final = (OK, UNGRADABLE, UNREADABLE, UNLABELLED, LEFT_OUT)
_QC_COLUMNS: Final = (
    "id",
    "split",
    "grade",
    "status",
    "reasons",
    "disc_found",
    "disc_radius_px",
    "visible_fraction",
    "width_px",
    "height_px",
    "file",
    "record",
    "row",
)

Facts = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How photographs are prepared and written.

    Attributes:
        size_px: side of the prepared square: the input of the network to train.
        preprocessing: steps as `model.json` states them; the service's usual ones by default,
            none for pictures that are prepared already.
        quality_gate: limits as `model.json` states them; None accepts everything.
        image_format: `jpeg` (quality 95, full colour) or `png` (exact, three times as large).
        records_per_shard: records of one file.
        keep_ungradable: whether photographs that the gate refuses are in the records.
        seed: order of the records.
    """

    size_px: int = 299
    preprocessing: tuple[Mapping[str, Any], ...] = (
        {"step": "crop_to_fundus", "min_radius_px": MIN_RADIUS_PX},
        {"step": "resize_area"},
        {"step": "mask_outside_disc", "radius_fraction": MASK_RADIUS_FRACTION},
    )
    quality_gate: Mapping[str, float] | None = None
    image_format: str = JPEG
    records_per_shard: int = 1000
    keep_ungradable: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.image_format not in (JPEG, PNG):
            raise DataError(f"records hold jpeg or png, not {self.image_format!r}")
        if not 16 <= self.size_px <= 2048:
            raise DataError(f"size_px must be 16 to 2048; it is {self.size_px}")
        if self.records_per_shard < 1:
            raise DataError(f"a shard holds at least one record, not {self.records_per_shard}")

    @classmethod
    def usual(cls, *, size_px: int = 299, **choices: Any) -> "Plan":
        """Crop, resize, mask and gate: what a package for camera photographs does."""
        return cls(size_px=size_px, quality_gate=asdict(QualityGate()), **choices)

    @classmethod
    def prepared_already(cls, *, size_px: int, **choices: Any) -> "Plan":
        """No crop and no gate: for small pictures such as MedMNIST's."""
        return cls(size_px=size_px, preprocessing=(), quality_gate=None, **choices)

    @classmethod
    def of_package(cls, spec: ModelSpec, **choices: Any) -> "Plan":
        """Exactly what a package does with a photograph."""
        return cls(
            size_px=spec.input_size_px,
            preprocessing=spec.preprocessing,
            quality_gate=spec.quality_gate,
            **choices,
        )

    def preparation(self) -> Preparation:
        """The service's preprocessing with these steps and limits.

        Raises:
            ModelPackageError: a step or a limit is not known.
        """
        spec = _spec_of(self)
        return Preparation.from_spec(spec)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What became of the photographs: counts by status, and those that could not be read."""

    statuses: Mapping[str, int]
    unreadable: tuple[str, ...]
    records: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    status: str
    reasons: str = ""
    encoded: bytes = b""
    facts: Facts | None = None


def prepare(
    table: Table,
    split: Split,
    out: Path,
    *,
    plan: Plan,
    workers: int = 1,
    replace: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Prepare every photograph that the split uses; write shards, `manifest.json` and `qc.csv`.

    Records of a part are in a random order, so that any stretch of a shard holds all grades.
    The same table, split and plan give the same bytes, whatever the number of workers.

    Records that lie in `out` already are replaced where they are of the same table, split and
    plan, or where `replace` says so: when the new ones are whole, and not before.

    Raises:
        DataError: the split leaks, the folder holds something else, no photograph could be used,
            or a process that prepares was ended.
    """
    plan.preparation()
    refuse_leaks(table, split)
    facts = {
        "schema_version": SCHEMA_VERSION,
        "table_sha256": table.digest,
        "split_sha256": split.digest,
        "train_sha256": split.digest_of(TRAIN),
        "split": dict(split.decided),
        **{key: value for key, value in asdict(plan).items() if key != "records_per_shard"},
    }
    out.mkdir(parents=True, exist_ok=True)
    others = [path.name for path in out.iterdir() if not _is_ours(path)]
    if others:
        raise DataError(
            f"{out} holds other files ({others[0]}); name a new folder",
            anonymous=f"{out} holds other files; name a new folder",
        )
    if not replace:
        _refuse_others(out, facts)
    # In the same folder, so that what is whole is only renamed, also where `out` is a mount.
    staging = out / _STAGING
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    try:
        report = _prepare(table, split, staging, plan=plan, workers=workers, progress=progress,
                          facts=facts)  # fmt: skip
        (out / MANIFEST).unlink(missing_ok=True)
        for old in out.glob("*.tfrecord"):
            old.unlink()
        # The manifest last: without it no records can be opened.
        made = sorted(staging.iterdir(), key=lambda path: path.name == MANIFEST)
        for path in made:
            path.replace(out / path.name)
    except _NothingUsableError as error:
        if (out / MANIFEST).exists():
            raise DataError(f"no photograph could be used: {error}; {out} is as it was") from None
        (staging / QC).replace(out / QC)
        raise DataError(f"no photograph could be used; {out / QC} says why for each") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return report


class _NothingUsableError(Exception):
    """No photograph could be used; the text says how many there are of each status."""


def _refuse_others(out: Path, facts: Facts) -> None:
    """Refuse a folder with whole records that another table, split or plan made."""
    try:
        held = json.loads((out / MANIFEST).read_bytes())
    except FileNotFoundError:
        return
    except (OSError, ValueError):
        held = None
    made = json.loads(json.dumps(facts))
    if not isinstance(held, dict):
        differs = f"a {MANIFEST} that cannot be read"
    elif held.get("table_sha256") != made["table_sha256"]:
        differs = "records of another table"
    elif held.get("split_sha256") != made["split_sha256"]:
        differs = "records of another split"
    elif any(held.get(name) != value for name, value in made.items()):
        differs = "records that were prepared in another way"
    else:
        return
    raise DataError(
        f"{out} holds {differs}; name a new folder, or have them replaced with --replace",
        anonymous=f"{out} holds {differs}; name a new folder",
    )


def _prepare(
    table: Table,
    split: Split,
    out: Path,
    *,
    plan: Plan,
    workers: int,
    progress: Callable[[int, int], None],
    facts: Facts,
) -> Report:
    order = _order(table, split, plan.seed)
    rows: dict[str, dict[str, Any]] = {}
    parts: dict[str, dict[str, Any]] = {}
    done = 0
    with _Pool(plan, workers) as pool:
        for part, members in order.items():
            shards = _Shards(out, part, len(members), plan.records_per_shard)
            tallies = {status: [0] * len(GRADES) for status in (OK, UNGRADABLE, UNREADABLE)}
            with shards:
                for one, outcome in zip(members, pool.run(members), strict=True):
                    assert one.grade is not None  # noqa: S101 - the split took graded ones
                    tallies[outcome.status][one.grade] += 1
                    file: str = ""
                    index: int | str = ""
                    if outcome.encoded:
                        file, index = shards.write(_example(one, outcome.encoded, plan))
                    rows[one.id] = _qc_row(one, part, outcome, file, index)
                    done += 1
                    progress(done, sum(map(len, order.values())))
            parts[part] = {
                "shards": shards.documents(),
                "records": sum(shard["records"] for shard in shards.documents()),
                **{f"{status}_by_grade": counts for status, counts in tallies.items()},
            }
    for one in table:
        if one.id not in rows:
            outcome = _Outcome(status=UNLABELLED if one.grade is None else LEFT_OUT)
            if not one.readable:
                reason = "it could not be read when the table was made"
                if told := _why_unreadable(one):
                    reason += f": {told}"
                outcome = _Outcome(status=UNREADABLE, reasons=reason)
            rows[one.id] = _qc_row(one, "", outcome, "", "")
    _write_qc(out / QC, [rows[one.id] for one in table])
    statuses = Counter(row["status"] for row in rows.values())
    if not any(part["records"] for part in parts.values()):
        told = ", ".join(f"{statuses[one]:,} {one}" for one in STATUSES if statuses[one])
        raise _NothingUsableError(told)
    manifest = {**facts, "parts": parts}
    write_whole(out / MANIFEST, (json.dumps(manifest, indent=2) + "\n").encode())
    return Report(
        statuses={status: statuses.get(status, 0) for status in STATUSES},
        unreadable=tuple(
            f"{rows[one.id]['row']} ({one.id}): {rows[one.id]['reasons']}"
            for one in table
            if rows[one.id]["status"] == UNREADABLE
        ),
        records={part: document["records"] for part, document in parts.items()},
    )


def _is_ours(path: Path) -> bool:
    """By its name; `train-00000-of-00010.tfrecord` is how others call theirs."""
    return (
        path.name in (MANIFEST, QC, _STAGING)
        or path.suffix == ".part"
        or (_SHARD.fullmatch(path.name) is not None and "-of-" not in path.name)
    )


def prepared_pixels(one: Photograph, preparation: Preparation) -> tuple[Prepared, Facts]:
    """The model's input of one photograph of the table, and what was found on the way.

    Raises:
        PhotographError: the file cannot be decoded.
        DataError: it is missing, or its bytes are others than when the table was made.
    """
    if is_array(one.path):
        pixels = array_pixels(one.path)
        if pixels_sha256(pixels) != one.sha256:
            raise DataError("the array has changed since the table was made")
        picture = Image.fromarray(pixels).convert("RGB")
        return _with_facts(preparation(picture), picture.size, 1.0)
    try:
        data = Path(one.path).read_bytes()
    except OSError as error:
        raise DataError((error.strerror or "cannot be read").lower()) from None
    if hashlib.sha256(data).hexdigest() != one.sha256:
        raise DataError("the file has changed since the table was made")
    decoded, prepared, _, _ = read_photograph(data, preparation, limits=LIMITS)
    size_px = decoded.source_width_px, decoded.source_height_px
    return _with_facts(prepared, size_px, decoded.scale)


def _with_facts(
    prepared: Prepared, size_px: tuple[int, int], scale: float
) -> tuple[Prepared, Facts]:
    """Lengths are in pixels of the file, of which a smaller picture may have been decoded."""
    circle = prepared.circle
    return prepared, {
        "disc_found": circle.found,
        "disc_radius_px": round(circle.radius_px / scale, 1),
        "visible_fraction": round(circle.visible_fraction, 3),
        "width_px": size_px[0],
        "height_px": size_px[1],
    }


def array_pixels(path: str) -> NDArray[np.uint8]:
    """Pixels of `FILE.npz#train/7`.

    Raises:
        DataError: there is no such file, part or row.
    """
    file, part, index = array_row(path)
    images = _array(file, part)
    if index >= len(images):
        raise DataError(f"{file} has {len(images)} rows of {part}, and no row {index}")
    return np.asarray(images[index])


@lru_cache(maxsize=8)
def _array(file: Path, part: str) -> NDArray[np.uint8]:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return np.asarray(arrays[f"{part}_images"])
    except (OSError, KeyError, ValueError) as error:
        raise DataError(f"{file} has no {part}_images: {error}") from None


def _order(table: Table, split: Split, seed: int) -> dict[str, list[Photograph]]:
    order = {}
    for position, part in enumerate(split.counts(table)):
        members = split.members(table, part)
        shuffled = np.random.default_rng([seed, position]).permutation(len(members))
        order[part] = [members[index] for index in shuffled]
    return order


class _Pool:
    """Runs `_prepare_one` here, or in processes that start afresh, in the order given."""

    def __init__(self, plan: Plan, workers: int) -> None:
        self._plan = plan
        # Spawned, not forked: TensorFlow may already run threads in this process. And not a
        # `multiprocessing.Pool`, which waits for ever for what a killed process should have sent.
        self._pool = (
            ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
            if workers > 1
            else None
        )

    def run(self, photographs: list[Photograph]) -> Iterator[_Outcome]:
        jobs = [(one, self._plan) for one in photographs]
        if self._pool is None:
            return map(_prepare_one, jobs)
        return _in_processes(self._pool, jobs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _in_processes(
    pool: ProcessPoolExecutor, jobs: list[tuple[Photograph, Plan]]
) -> Iterator[_Outcome]:
    try:
        yield from pool.map(_prepare_one, jobs, chunksize=8)
    except BrokenProcessPool:
        raise DataError(
            "a process that prepares was ended, most likely for memory; give fewer --workers"
        ) from None


def _prepare_one(job: tuple[Photograph, Plan]) -> _Outcome:
    one, plan = job
    try:
        prepared, facts = prepared_pixels(one, plan.preparation())
    except (PhotographError, DataError) as error:
        return _Outcome(status=UNREADABLE, reasons=str(error))
    quality = prepared.quality
    status = OK if quality.gradable else UNGRADABLE
    encoded = b""
    if quality.gradable or plan.keep_ungradable:
        encoded = encode_picture(prepared.pixels, plan.image_format)
    return _Outcome(status=status, reasons=" ".join(quality.reasons), encoded=encoded, facts=facts)


def _why_unreadable(one: Photograph) -> str:
    """What a table only marks; empty where the file can be read by now."""
    try:
        data = Path(one.path).read_bytes()
        return why_not_whole(data, measure(data, limits=LIMITS) or (0, 0))
    except OSError as error:
        return (error.strerror or "cannot be read").lower()
    except PhotographError as error:
        return str(error)


def encode_picture(pixels: NDArray[np.uint8], image_format: str) -> bytes:
    """A prepared picture as the records hold it: JPEG 95 in full colour, or PNG."""
    stream = io.BytesIO()
    picture = Image.fromarray(pixels)
    if image_format == PNG:
        picture.save(stream, "PNG", compress_level=4)
    else:
        picture.save(stream, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    return stream.getvalue()


def _example(one: Photograph, encoded: bytes, plan: Plan) -> bytes:
    assert one.grade is not None  # noqa: S101 - the split took graded ones
    return encode_example(
        {
            "image/encoded": [encoded],
            "image/format": [plan.image_format.encode()],
            "image/class/label": [one.grade],
            "image/height": [plan.size_px],
            "image/width": [plan.size_px],
            "image/id": [one.id.encode()],
            "image/patient": [one.patient.encode()],
            "image/sha256": [one.sha256.encode()],
        }
    )


class _Shards:
    """Writes the records of one part to files of about equal size."""

    def __init__(self, folder: Path, part: str, expected: int, per_shard: int) -> None:
        self._folder = folder
        self._part = part
        count = max(1, -(-expected // per_shard))
        self._per_shard = max(1, -(-expected // count))
        self._written: list[dict[str, Any]] = []
        self._writer: RecordWriter | None = None

    def write(self, record: bytes) -> tuple[str, int]:
        if self._writer is not None and self._writer.count >= self._per_shard:
            self._close()
        if self._writer is None:
            name = f"{self._part}-{len(self._written):05d}.tfrecord"
            self._writer = RecordWriter(self._folder / name)
        return self._writer.path.name, self._writer.write(record)

    def documents(self) -> list[dict[str, Any]]:
        return self._written

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._writer is None:
            return
        if kind is None:
            self._close()
        else:
            self._writer.__exit__(kind, None, None)

    def _close(self) -> None:
        assert self._writer is not None  # noqa: S101 - its callers looked
        self._writer.__exit__(None, None, None)
        path = self._writer.path
        self._written.append(
            {
                "file": path.name,
                "records": self._writer.count,
                "size_bytes": path.stat().st_size,
                "sha256": file_sha256(path),
            }
        )
        self._writer = None


def _qc_row(
    one: Photograph, part: str, outcome: _Outcome, file: str, index: int | str
) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(_QC_COLUMNS, "")
    row.update(outcome.facts or {"width_px": one.width_px, "height_px": one.height_px})
    row.update(
        id=one.id,
        split=part,
        grade="" if one.grade is None else one.grade,
        status=outcome.status,
        reasons=outcome.reasons,
        file=file,
        record=index,
        row=one.row,
    )
    return row


def _write_qc(path: Path, rows: list[dict[str, Any]]) -> None:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, _QC_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, stream.getvalue().encode())


def _spec_of(plan: Plan) -> ModelSpec:
    """The part of a package's description that preprocessing reads."""
    return ModelSpec(
        id="the plan",
        task="grade5",
        sha256="",
        input_size_px=plan.size_px,
        labels=(),
        preprocessing=plan.preprocessing,
        quality_gate=plan.quality_gate,
        operating_points=(),
        default_operating_point="",
        temperature=1.0,
        outputs={},
        head_file=None,
        files=(),
        notice=None,
        raw={},
    )
