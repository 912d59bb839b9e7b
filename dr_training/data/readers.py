"""Finds photographs and labels of the public data sets, of folders and of your own labels.

    >>> reading = read("eyepacs", Path("diabetic-retinopathy-detection"))
    >>> reading.table.photographs[0].patient, reading.table.photographs[0].eye
    ('10', 'left')
    >>> reading.notes
    ('train: 3 files that no row names: 1_left.jpeg, …',)

Nothing is dropped in silence: a row without its file, a grade outside 0 to 4, a file that is no
image or one that cannot be decoded to its end is a fault, and all faults come in one message; a
file without a row is a note.

Layouts, as published (checked 2026-11-28):

- APTOS 2019 (kaggle.com/c/aptos2019-blindness-detection): `train.csv` with `id_code`,
  `diagnosis`, and `train_images/ID.png`. No patients are given. Its 224 px derivatives
  (`gaussian_filtered_images`, `colored_images`) have the same `train.csv` and one folder per
  class, twice nested.
- EyePACS (kaggle.com/c/diabetic-retinopathy-detection): `trainLabels.csv` with `image`, `level`;
  `train/PATIENT_left.jpeg`; the test part in `retinopathy_solution.csv` and `test/`.
- Messidor-2 (adcis.net) with the adjudicated grades (kaggle.com/google-brain/messidor2-dr-grades):
  `messidor_data.csv` with `image_id`, `adjudicated_dr_grade`, `adjudicated_dme`,
  `adjudicated_gradable`; images `.png` and `.JPG`, of which the labels say `.jpg`; pairs of eyes
  in `messidor-2.csv`.
- IDRiD (ieee-dataport.org, part B): `… Training Labels.csv` and `… Testing Labels.csv` with
  `Image name`, `Retinopathy grade`, `Risk of macular edema`; the two folders use the same names.
- MedMNIST (medmnist.com): `.npz` with `train_images`, `train_labels` and so on.
- Drawn photographs of `dr draw`: `gradeG-seedN.jpg`; one seed is one eye in every grade.
"""

import contextlib
import hashlib
import re
import threading
import unicodedata
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from dr_training.data.faults import DataError, Faults
from dr_training.data.table import (
    COLUMNS,
    GRADES,
    CsvRows,
    Photograph,
    Table,
    parse_grade,
    pixels_sha256,
    read_csv,
)
from inference_image.decoding import (
    DEFAULT_MAX_IMAGE_PIXELS,
    Limits,
    PhotographError,
    decode,
    measure,
)

IMAGE_SUFFIXES: Final = frozenset(
    {".jpg", ".jpeg", ".png", ".tif", ".tiff", ".webp", ".bmp", ".dcm"}
)
# Folder names of the published 224 px derivatives of APTOS 2019.
APTOS_FOLDERS: Final[Mapping[str, int]] = {
    "No_DR": 0,
    "Mild": 1,
    "Moderate": 2,
    "Severe": 3,
    "Proliferate_DR": 4,
}
PUBLISHED_SPLIT: Final = "published_split"
_EYEPACS_NAME: Final = re.compile(r"(?P<patient>.+)_(?P<eye>left|right)", re.IGNORECASE)
_DRAWN_NAME: Final = re.compile(r"grade(?P<grade>\d)-seed(?P<seed>\d+)")
_READERS_AT_ONCE: Final = 4
_FILES_NAMED: Final = 5
_ONE_LARGE: Final = threading.Lock()
# A data set's files are trusted further than what strangers send to the service.
LIMITS: Final = Limits(max_bytes=256 * 1024**2, max_pixels=200_000_000)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a layout cannot know by itself.

    `labels` maps folder names to grades, for `folders`. The columns are for `csv`; `image` may
    name a file, with or without folders and suffix. With `headers_only` no photograph is decoded,
    so that one that was cut off is found out when it is used.
    """

    labels: Mapping[str, int] = field(default_factory=dict)
    image_column: str = "image"
    grade_column: str = "grade"
    patient_column: str | None = None
    eye_column: str | None = None
    keep_unreadable: bool = False
    headers_only: bool = False


@dataclass(frozen=True)
class Reading:
    """A table, and what a person should know about how it was made."""

    table: Table
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Entry:
    id: str
    file: Path
    grade: str
    where: str
    patient: str = ""
    eye: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)


def read(kind: str, source: Path, options: Options | None = None) -> Reading:
    """Read a data set in one of the layouts of `KINDS`.

    Args:
        kind: `aptos`, `eyepacs`, `messidor2`, `idrid`, `folders`, `csv`, `npz` or `drawn`.
        source: the folder as it was unpacked; the file for `csv` and `npz`.
        options: label map and columns, where the layout needs them.

    Raises:
        DataError: the layout is another one, or rows, grades or files are faulty: all of them
            in one message.
    """
    if kind not in KINDS:
        raise DataError(f"data set {kind!r} is not known; known are {', '.join(KINDS)}")
    if not source.exists():
        raise DataError(f"there is no {source}")
    return KINDS[kind](source, options or Options())


def label_map(pairs: Iterable[str]) -> dict[str, int]:
    """`NAME=GRADE` pairs as a label map; the order of the alphabet means nothing.

    Raises:
        DataError: a pair has another form, or its grade is not 0 to 4.
    """
    faults = Faults()
    labels = {}
    for pair in pairs:
        name, equals, text = pair.rpartition("=")
        try:
            grade = parse_grade(text) if equals and name else None
        except ValueError as error:
            faults.add(f"label {pair!r}", str(error))
            continue
        if grade is None:
            faults.add(f"label {pair!r}", "give it as NAME=GRADE, for example No_DR=0")
        elif name in labels:
            faults.add(f"label {pair!r}", f"{name} is mapped twice")
        else:
            labels[name] = grade
    faults.raise_if_any("the label map cannot be used")
    return labels


def _aptos(source: Path, options: Options) -> Reading:
    nested = [source / name / name for name in ("gaussian_filtered_images", "colored_images")]
    folders = next((f for f in (*nested, *(n.parent for n in nested)) if _has_classes(f)), None)
    if folders is None and _has_classes(source):
        folders = source
    labels = _optional(source, "train.csv")
    if labels is None and folders is None:
        raise DataError(f"{source} holds no train.csv and no folders of the APTOS classes")
    if folders is None:
        assert labels is not None  # noqa: S101 - said above
        rows = _columns(labels, "id_code", "diagnosis")
        images = _existing(source, "train_images")
        entries, notes = _listed(rows, labels, images, "id_code", "diagnosis", options)
        return _finish(entries, options, notes=notes)
    entries = list(_foldered(folders, APTOS_FOLDERS))
    if labels is not None:
        entries = _checked_against(entries, labels)
    return _finish(entries, options)


def _eyepacs(source: Path, options: Options) -> Reading:
    parts = (
        ("train", ("trainLabels.csv",)),
        ("test", ("retinopathy_solution.csv", "testLabels.csv")),
    )
    entries: list[_Entry] = []
    notes: list[str] = []
    for part, names in parts:
        labels = next((file for name in names if (file := _optional(source, name))), None)
        if labels is None:
            continue
        rows = _columns(labels, "image", "level")
        folder = source / part if (source / part).is_dir() else labels.parent / part
        if not folder.is_dir():
            if part == "test":
                notes.append(f"{labels.name} is left out: there is no folder {part}")
                continue
            folder = source
        found, more = _listed(rows, labels, folder, "image", "level", options)
        notes += more
        for entry in found:
            match = _EYEPACS_NAME.fullmatch(entry.id)
            usage = entry.extra.get("Usage", "")
            extra = {PUBLISHED_SPLIT: part, **({"usage": usage} if usage else {})}
            entries.append(
                replace(
                    entry,
                    patient=match["patient"] if match else "",
                    eye=match["eye"].lower() if match else "",
                    extra=extra,
                )
            )
            if match is None:
                notes.append(f"{entry.where}: {entry.id} names no patient and eye")
    if not entries:
        raise DataError(f"{source} holds no trainLabels.csv")
    return _finish(entries, options, notes=notes)


def _messidor2(source: Path, options: Options) -> Reading:
    labels = _optional(source, "messidor_data.csv")
    if labels is None:
        raise DataError(f"{source} holds no messidor_data.csv, the adjudicated grades")
    rows = _columns(labels, "image_id", "adjudicated_dr_grade")
    folder = source / "IMAGES" if (source / "IMAGES").is_dir() else source
    entries, notes = _listed(rows, labels, folder, "image_id", "adjudicated_dr_grade", options)
    pairs = _optional(source, "messidor-2.csv")
    patients = _pairs(pairs) if pairs else {}
    if pairs is None:
        notes = (
            *notes,
            "there is no messidor-2.csv, so which two photographs are one patient's is not known",
        )
    finished = []
    faults = Faults()
    for entry in entries:
        gradable = entry.extra.get("adjudicated_gradable", "1")
        grade = entry.grade
        if gradable in {"0", "0.0"}:
            grade = ""
        elif not grade:
            faults.add(entry.where, "no grade, but it is not marked as ungradable")
        patient, eye = patients.get(_stem(entry.id), ("", ""))
        if patients and not patient:
            faults.add(entry.where, f"{entry.id} is in no pair of {pairs and pairs.name}")
        finished.append(replace(entry, grade=grade, patient=patient, eye=eye))
    faults.raise_if_any(f"{labels} cannot be used")
    return _finish(finished, options, notes=notes)


def _idrid(source: Path, options: Options) -> Reading:
    entries: list[_Entry] = []
    notes: list[str] = []
    for part, word in (("train", "Training"), ("test", "Testing")):
        found = sorted(source.rglob(f"*{word} Labels.csv"))
        found = [path for path in found if "grading" in path.name.lower()] or found
        if not found:
            continue
        labels = found[0]
        rows = _columns(labels, "Image name", "Retinopathy grade")
        folders = [path for path in sorted(source.rglob(f"*{word} Set")) if path.is_dir()]
        if not folders:
            raise DataError(f"{source} holds {labels.name} but no folder '… {word} Set'")
        listed, more = _listed(rows, labels, folders[0], "Image name", "Retinopathy grade", options)
        notes += more
        # IDRiD_001 exists in both parts and is another eye in each.
        for entry in listed:
            edema = entry.extra.get("Risk of macular edema", "")
            extra = {PUBLISHED_SPLIT: part, "macular_edema_risk": edema}
            entries.append(replace(entry, id=f"{part}/{entry.id}", extra=extra))
    if not entries:
        raise DataError(f"{source} holds no '… Training Labels.csv' of IDRiD's part B")
    return _finish(entries, options, notes=notes)


def _folders(source: Path, options: Options) -> Reading:
    if not options.labels:
        present = ", ".join(sorted(p.name for p in source.iterdir() if p.is_dir())) or "none"
        raise DataError(
            f"say which grade each folder of {source} is, as NAME=GRADE; the order of the "
            f"alphabet means nothing. Folders there: {present}"
        )
    return _finish(list(_foldered(source, options.labels)), options)


def _csv(source: Path, options: Options) -> Reading:
    if source.is_dir():
        raise DataError(f"{source} is a folder; name the CSV file with the labels")
    wanted = [options.image_column, options.grade_column]
    wanted += [name for name in (options.patient_column, options.eye_column) if name]
    rows = _columns(source, *wanted)
    entries, notes = _listed(
        rows, source, source.parent, options.image_column, options.grade_column, options
    )
    if options.patient_column is None:
        notes = (*notes, "no column of patients was named, so each photograph counts as its own")
    entries = [
        replace(
            entry,
            patient=entry.extra.get(options.patient_column or "", ""),
            eye=_eye(entry.extra.get(options.eye_column or "", "")),
            extra={
                name: value
                for name, value in entry.extra.items()
                if name not in (options.patient_column, options.eye_column)
            },
        )
        for entry in entries
    ]
    return _finish(entries, options, notes=notes)


def _npz(source: Path, options: Options) -> Reading:
    photographs: list[Photograph] = []
    faults = Faults()
    try:
        with np.load(source, allow_pickle=False) as arrays:
            parts = [name.removesuffix("_images") for name in arrays if name.endswith("_images")]
            if not parts:
                raise DataError(
                    f"{source} holds no array like train_images; it has {', '.join(arrays)}"
                )
            for part in parts:
                if f"{part}_labels" not in arrays:
                    faults.add(source.name, f"{part}_images has no {part}_labels")
                    continue
                images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"].reshape(-1)
                if images.dtype != np.uint8 or images.ndim not in (3, 4) or len(images) == 0:
                    faults.add(
                        source.name,
                        f"{part}_images is {images.dtype} {images.shape}; bytes (n, H, W, 3) or "
                        "(n, H, W) are needed",
                    )
                    continue
                if len(images) != len(labels):
                    faults.add(
                        source.name, f"{part} has {len(images)} images and {len(labels)} labels"
                    )
                    continue
                photographs += _rows_of(source, part, images, labels, faults)
    except DataError:
        raise
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{source} is not an .npz of arrays: {error}") from None
    faults.raise_if_any(f"{source} cannot be used")
    return Reading(
        Table(tuple(photographs)),
        (f"{source.name} names no patients, so each image counts as its own",),
    )


def _rows_of(
    source: Path, part: str, images: np.ndarray, labels: np.ndarray, faults: Faults
) -> Iterator[Photograph]:
    for index, (pixels, label) in enumerate(zip(images, labels, strict=True)):
        where = f"{source.name} {part} row {index}"
        try:
            grade = parse_grade(str(label))
        except ValueError as error:
            faults.add(where, str(error))
            continue
        yield Photograph(
            id=f"{part}/{index:05d}",
            grade=grade,
            sha256=pixels_sha256(pixels),
            size_bytes=pixels.nbytes,
            width_px=pixels.shape[1],
            height_px=pixels.shape[0],
            path=f"{source.resolve()}#{part}/{index}",
            row=where,
            extra={PUBLISHED_SPLIT: {"val": "validation"}.get(part, part)},
        )


def _drawn(source: Path, options: Options) -> Reading:
    entries = []
    notes = []
    for file in _image_files(source):
        match = _DRAWN_NAME.fullmatch(file.stem)
        if match is None:
            notes.append(f"{file.name} is left out: its name is not gradeG-seedN")
            continue
        entries.append(
            _Entry(
                id=file.stem,
                file=file,
                grade=match["grade"],
                where=file.name,
                patient=f"seed{match['seed']}",
            )
        )
    if not entries:
        raise DataError(f"{source} holds no drawn photograph; make some with `dr draw`")
    return _finish(entries, options, notes=notes)


KINDS: Final[Mapping[str, Callable[[Path, Options], Reading]]] = {
    "aptos": _aptos,
    "eyepacs": _eyepacs,
    "messidor2": _messidor2,
    "idrid": _idrid,
    "folders": _folders,
    "csv": _csv,
    "npz": _npz,
    "drawn": _drawn,
}


# As ophthalmologists write them: oculus dexter and sinister.
_EYES: Final[Mapping[str, str]] = {"od": "right", "r": "right", "os": "left", "l": "left"}


def _eye(text: str) -> str:
    return _EYES.get(text.strip().lower(), text.strip().lower())


def _check_columns(entries: Sequence[_Entry]) -> None:
    """Refuse columns of the labels that the table has for itself: it would hold them twice."""
    ways = {"patient": "say --patient-column patient", "eye": "say --eye-column eye"}
    names = {name: None for entry in entries for name in entry.extra if name in COLUMNS}
    if names:
        raise DataError(
            "; ".join(
                f"the labels have a column {name}, and so has the table: "
                f"{f'{ways[name]}, or ' if name in ways else ''}rename it"
                for name in names
            )
        )


def _finish(entries: Sequence[_Entry], options: Options, *, notes: Sequence[str] = ()) -> Reading:
    """Hash and measure every file, check every grade, and name all faults at once."""
    _check_columns(entries)
    faults = Faults()
    notes = list(notes)
    nameless = sum(not entry.patient for entry in entries)
    if nameless and (nameless < len(entries) or options.patient_column):
        notes.append(
            f"{nameless:,} of {len(entries):,} photographs name no patient; each of them counts as "
            "a patient of its own, so that one patient may come into two parts"
        )
    seen: dict[str, _Entry] = {}
    with ThreadPoolExecutor(_READERS_AT_ONCE) as pool:
        photographs = []
        facts = pool.map(
            partial(_file_facts, headers_only=options.headers_only),
            (entry.file for entry in entries),
        )
        for entry, (sha256, size_bytes, size_px, reason) in zip(entries, facts, strict=True):
            if entry.id in seen:
                faults.add(entry.where, f"{entry.id} is also at {seen[entry.id].where}")
                continue
            seen[entry.id] = entry
            if reason:
                if options.keep_unreadable:
                    notes.append(f"{entry.where}: {reason}")
                else:
                    faults.add(entry.where, reason, anonymous="a photograph cannot be read")
            if entry.eye not in ("", "left", "right"):
                faults.add(entry.where, f"eye {entry.eye[:20]!r} is not left, right or empty")
            try:
                grade = parse_grade(entry.grade)
            except ValueError as error:
                faults.add(entry.where, str(error))
                continue
            photographs.append(
                Photograph(
                    id=entry.id,
                    patient=entry.patient,
                    eye=entry.eye,
                    grade=grade,
                    sha256=sha256,
                    size_bytes=size_bytes,
                    width_px=size_px[0],
                    height_px=size_px[1],
                    path=str(entry.file.resolve()),
                    row=entry.where,
                    extra=entry.extra,
                )
            )
    faults.raise_if_any("the data set cannot be used")
    if not photographs:
        raise DataError("the data set holds no photograph")
    return Reading(Table(tuple(photographs)), tuple(notes))


def _file_facts(file: Path, *, headers_only: bool) -> tuple[str, int, tuple[int, int], str]:
    """Digest, bytes, width and height of a file, and why it cannot be used or an empty text."""
    named = f"{file.name} cannot be read"
    try:
        data = file.read_bytes()
    except OSError as error:
        return "", 0, (0, 0), f"{named}: {(error.strerror or 'unreadable').lower()}"
    digest = hashlib.sha256(data).hexdigest()
    try:
        size = measure(data, limits=LIMITS)
    except PhotographError as error:
        return digest, len(data), (0, 0), f"{named}: {error}"
    if size is None:
        return digest, len(data), (0, 0), f"{named}: its header is not complete"
    reason = "" if headers_only else why_not_whole(data, size)
    if reason:
        # A file's name may be a patient's, and the row is known.
        return digest, len(data), (0, 0), f"the photograph cannot be decoded: {reason}"
    return digest, len(data), size, ""


def why_not_whole(data: bytes, size_px: tuple[int, int]) -> str:
    """Why the service would not decode these bytes to their end; empty where it does.

    A JPEG is read whole at an eighth of its size, which costs a third of decoding it. Pictures
    above the service's own limit are decoded one at a time, for they take hundreds of megabytes.
    """
    large = size_px[0] * size_px[1] > DEFAULT_MAX_IMAGE_PIXELS
    try:
        with _ONE_LARGE if large else contextlib.nullcontext():
            decode(data, limits=LIMITS, min_side_px=1)
    except PhotographError as error:
        return str(error)
    return ""


def _listed(
    rows: CsvRows,
    labels: Path,
    folder: Path,
    id_column: str,
    grade_column: str,
    options: Options,
) -> tuple[list[_Entry], tuple[str, ...]]:
    """One entry per row of a label file, with the file that the row names."""
    files = _by_name(folder)
    faults = Faults()
    entries = []
    used = set()
    for line, row in rows.lines:
        where = f"{labels.name} row {line}"
        name = row[id_column]
        file = _match(name, files) if name else None
        if not name:
            faults.add(where, f"{id_column} is empty")
        elif file is None:
            faults.add(where, f"{folder.name} holds no image {name}")
        elif len(file) > 1:
            found = sorted(str(one.relative_to(folder)) for one in file)
            faults.add(where, f"{name} may be {' or '.join(found)}")
        else:
            used.add(file[0])
            extra = {k: v for k, v in row.items() if k not in (id_column, grade_column)}
            entries.append(
                _Entry(id=name, file=file[0], grade=row[grade_column], where=where, extra=extra)
            )
    faults.raise_if_any(f"{labels} does not fit its images")
    if not entries:
        raise DataError(f"{labels} has no rows")
    unused = sorted({one for found in files.values() for one in found} - used)
    if not unused:
        return entries, ()
    named = ", ".join(file.name for file in unused[:_FILES_NAMED])
    more = ", …" if len(unused) > _FILES_NAMED else ""
    return entries, (f"{folder.name}: {len(unused)} files that no row names: {named}{more}",)


def _by_name(folder: Path) -> dict[str, list[Path]]:
    """Files under every name that labels use for them: their path, their name, their stem."""
    files: dict[str, list[Path]] = {}
    for file in _image_files(folder):
        inside = file.relative_to(folder)
        for name in {str(inside), str(inside.with_suffix("")), file.name, file.stem}:
            files.setdefault(_folded(name), []).append(file)
    return files


def _match(name: str, files: Mapping[str, list[Path]]) -> list[Path] | None:
    """By the whole name first; labels of Messidor-2 say .jpg where the file is .JPG or .png."""
    wanted = _folded(name.replace("\\", "/").removeprefix("./"))
    return files.get(wanted) or files.get(_stem(wanted))


def _folded(name: str) -> str:
    """In small letters and composed, as a Mac's file names are not."""
    return _composed(name).lower()


def _composed(name: str) -> str:
    """An umlaut as one character."""
    return unicodedata.normalize("NFC", name)


def _stem(name: str) -> str:
    """A name without the suffix of an image, in small letters; other dots belong to it."""
    path = Path(name.lower())
    return str(path.with_suffix("")) if path.suffix in IMAGE_SUFFIXES else str(path)


def _image_files(folder: Path) -> list[Path]:
    """Image files below a folder, in a fixed order; hidden ones are not the data set's."""
    return sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in IMAGE_SUFFIXES and not file.name.startswith(".")
    )


def _has_classes(folder: Path) -> bool:
    return folder.is_dir() and any((folder / name).is_dir() for name in APTOS_FOLDERS)


def _foldered(source: Path, labels: Mapping[str, int]) -> Iterator[_Entry]:
    """Entries of one folder per class; every folder needs its grade, every grade its folder."""
    faults = Faults()
    present = sorted(path for path in source.iterdir() if path.is_dir())
    labels = {_composed(name): grade for name, grade in labels.items()}
    named = {_composed(path.name) for path in present}
    for name in labels:
        if name not in named:
            faults.add(str(source), f"there is no folder {name}")
    for folder in present:
        files = _image_files(folder)
        label = _composed(folder.name)
        if label not in labels:
            if files:
                faults.add(str(folder), f"no grade is given for its {len(files)} images")
            continue
        if not files:
            faults.add(str(folder), "holds no image")
        for file in files:
            inside = file.relative_to(source)
            yield _Entry(
                id=str(inside.with_suffix("")),
                file=file,
                grade=str(labels[label]),
                where=str(inside),
            )
    faults.raise_if_any("the folders do not fit the label map")


def _checked_against(entries: Sequence[_Entry], labels: Path) -> list[_Entry]:
    """Entries under the ids of a label file, which must agree with the folders."""
    rows = _columns(labels, "id_code", "diagnosis")
    by_stem = {entry.file.stem.lower(): entry for entry in entries}
    faults = Faults()
    checked = []
    for line, row in rows.lines:
        where = f"{labels.name} row {line}"
        entry = by_stem.pop(row["id_code"].lower(), None)
        if entry is None:
            faults.add(where, f"no folder holds {row['id_code']}")
            continue
        try:
            agrees = str(parse_grade(row["diagnosis"])) == entry.grade
        except ValueError as error:
            faults.add(where, str(error))
            continue
        if not agrees:
            faults.add(where, f"grade {row['diagnosis']}, but it lies in {entry.file.parent.name}")
        checked.append(replace(entry, id=row["id_code"], where=where))
    for entry in by_stem.values():
        faults.add(entry.where, f"{labels.name} has no row for it")
    faults.raise_if_any(f"{labels} does not fit its folders")
    return checked


def _pairs(path: Path) -> dict[str, tuple[str, str]]:
    """Patient and eye of each photograph, from a file with a column per eye or a patient's id."""
    rows = read_csv(path)
    names = {name.lower(): name for name in rows.columns}
    left = next((n for low, n in names.items() if "left" in low), None)
    right = next((n for low, n in names.items() if "right" in low), None)
    patients = {}
    if left and right:
        for line, row in rows.lines:
            for column, eye in ((left, "left"), (right, "right")):
                if row[column]:
                    patients[_stem(row[column])] = (f"pair{line:04d}", eye)
        return patients
    image = next((n for low, n in names.items() if "image" in low or "name" in low), None)
    patient = next((n for low, n in names.items() if "exam" in low or "patient" in low), None)
    if image is None or patient is None:
        raise DataError(
            f"{path}: columns for the left and the right eye, or for image and examination, are "
            f"needed; it has {', '.join(rows.columns)}"
        )
    return {_stem(row[image]): (row[patient], "") for _, row in rows.lines}


def _columns(path: Path, *names: str) -> CsvRows:
    """The rows of a file that has these columns."""
    rows = read_csv(path)
    missing = [name for name in names if name not in rows.columns]
    if missing:
        raise DataError(
            f"{path}: column {', '.join(missing)} missing; it has {', '.join(rows.columns)}"
        )
    return rows


def _optional(source: Path, name: str) -> Path | None:
    """A file of the data set, directly in its folder or one level below."""
    for path in (source / name, *sorted(source.glob(f"*/{name}"))):
        if path.is_file():
            return path
    return None


def _existing(source: Path, name: str) -> Path:
    folder = source / name
    if not folder.is_dir():
        raise DataError(f"{source} holds no folder {name}")
    return folder


def missing_grades(table: Table) -> tuple[int, ...]:
    """Grades that no photograph of the table has."""
    counts = table.grades()
    return tuple(grade for grade in GRADES if counts[grade] == 0)
