"""One table per data set: a row for each photograph, as CSV.

    >>> write_table(table, Path("aptos.csv"))
    >>> read_table(Path("aptos.csv")).photographs[0].grade
    2

| column | what |
|---|---|
| `id` | name of the photograph, once in the table |
| `patient`, `eye` | whose, and `left` or `right`; empty where the data set does not say |
| `grade` | 0 to 4 (ICDR); empty where nobody graded it |
| `sha256`, `size_bytes` | of the file, or of the pixels of an array |
| `width_px`, `height_px` | by the file's header; 0 where it cannot be read |
| `path` | from the table's folder; `FILE.npz#train/7` is a row of an array |
| `row` | file and line that the grade came from |

Any other column (camera, site, the publisher's split) is kept, and results can be broken down
by it. A table that was written elsewhere, with these columns, is read just the same.
"""

import csv
import hashlib
import io
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dr_training.data.faults import DataError, Faults
from inference_image.contract import GRADE_LABELS

GRADES = range(len(GRADE_LABELS))
COLUMNS = (
    "id",
    "patient",
    "eye",
    "grade",
    "sha256",
    "size_bytes",
    "width_px",
    "height_px",
    "path",
    "row",
)
REQUIRED = ("id", "grade", "sha256", "path")
EYES = ("", "left", "right")
ARRAY_MARK = ".npz#"


@dataclass(frozen=True, kw_only=True)
class Photograph:
    """A row of the table; `path` is absolute, or an array's path with `#part/index`."""

    id: str
    patient: str = ""
    eye: str = ""
    grade: int | None
    sha256: str
    size_bytes: int = 0
    width_px: int = 0
    height_px: int = 0
    path: str
    row: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """How messages name it."""
        return f"{self.row or 'table'} ({self.id})"

    @property
    def readable(self) -> bool:
        """Whether the header could be read when the table was made."""
        return self.width_px > 0


@dataclass(frozen=True)
class Table:
    """The photographs of a data set, in a fixed order."""

    photographs: tuple[Photograph, ...]

    def __iter__(self) -> Iterator[Photograph]:
        return iter(self.photographs)

    def __len__(self) -> int:
        return len(self.photographs)

    def grades(self) -> tuple[int, ...]:
        """How many photographs each grade has; those without a grade are in none."""
        counts = [0] * len(GRADES)
        for one in self.photographs:
            if one.grade is not None:
                counts[one.grade] += 1
        return tuple(counts)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of ids, patients, grades and contents: what a split depends on."""
        digest = hashlib.sha256()
        for one in self.photographs:
            digest.update(f"{one.id}\0{one.patient}\0{one.grade}\0{one.sha256}\n".encode())
        return digest.hexdigest()

    @property
    def extra_columns(self) -> tuple[str, ...]:
        """Columns beyond `COLUMNS`, in the order of first use."""
        names: dict[str, None] = {}
        for one in self.photographs:
            names.update(dict.fromkeys(one.extra))
        return tuple(names)


def parse_grade(text: str) -> int | None:
    """A grade 0 to 4 (also written `2.0`), None for an empty cell.

    Raises:
        ValueError: anything else; the text says so.
    """
    text = text.strip()
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if number not in GRADES:
        raise ValueError(f"grade {text[:20]!r} is not one of 0 to {GRADES[-1]}")
    return int(number)


def write_table(table: Table, path: Path) -> None:
    """Write the table as CSV; paths are written as seen from the folder of `path`."""
    extras = table.extra_columns
    folder = path.resolve().parent
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*COLUMNS, *extras])
    for one in table:
        values = {name: getattr(one, name) for name in COLUMNS}
        values["grade"] = "" if one.grade is None else one.grade
        values["path"] = os.path.relpath(one.path, folder)
        writer.writerow(
            [*(values[name] for name in COLUMNS), *(one.extra.get(name, "") for name in extras)]
        )
    write_whole(path, stream.getvalue().encode())


def read_table(path: Path) -> Table:
    """Read a table, checked: every fault is named with its row.

    Raises:
        DataError: columns are missing, an id comes twice, a grade or an eye is not known.
    """
    rows = read_csv(path)
    faults = Faults()
    missing = [name for name in REQUIRED if name not in rows.columns]
    if missing:
        raise DataError(
            f"{path}: column {', '.join(missing)} missing; it has {', '.join(rows.columns)}",
            # Where the line of names is missing, the first photograph stands in its place.
            anonymous=f"{path}: column {', '.join(missing)} missing from its first line",
        )
    folder = path.resolve().parent
    seen: dict[str, int] = {}
    photographs = []
    for line, row in rows.lines:
        where = f"{path.name} row {line}"
        one = row["id"]
        if not one:
            faults.add(where, "the id is empty", anonymous=f"{where}: the id is empty")
        if one in seen:
            faults.add(
                where,
                f"id {one!r} is also in row {seen[one]}",
                anonymous=f"{where}: its id is also in row {seen[one]}",
            )
        seen.setdefault(one, line)
        try:
            photographs.append(_photograph(row, folder, where))
        except ValueError as error:
            faults.add(where, str(error), anonymous=f"{where}: a cell cannot be used")
    faults.raise_if_any("the table cannot be used")
    if not photographs:
        raise DataError(f"{path} has no rows")
    return Table(tuple(photographs))


def _photograph(row: Mapping[str, str], folder: Path, where: str) -> Photograph:
    eye = row.get("eye", "").lower()
    if eye not in EYES:
        raise ValueError(f"eye {eye!r} is not left, right or empty")
    for name in ("path", "sha256"):
        if not row[name]:
            raise ValueError(f"{name} is empty")
    if is_array(row["path"]):
        array_row(row["path"])
    numbers = {}
    for name in ("size_bytes", "width_px", "height_px"):
        text = row.get(name, "") or "0"
        if not text.isdecimal():
            raise ValueError(f"{name} {text[:20]!r} is not a whole number")
        numbers[name] = int(text)
    if "width_px" not in row:
        # A table of somebody's own: that nobody measured the pictures does not make them bad.
        numbers["width_px"] = numbers["height_px"] = 1
    return Photograph(
        id=row["id"],
        patient=row.get("patient", ""),
        eye=eye,
        grade=parse_grade(row["grade"]),
        sha256=row["sha256"],
        **numbers,
        path=os.path.normpath(folder / row["path"]),
        row=row.get("row") or where,
        extra={name: value for name, value in row.items() if name not in COLUMNS},
    )


@dataclass(frozen=True)
class CsvRows:
    """A CSV file: the names of its columns and, for each line, its number and its cells."""

    columns: tuple[str, ...]
    lines: tuple[tuple[int, Mapping[str, str]], ...]


def read_csv(path: Path) -> CsvRows:
    """Rows of a CSV file separated by commas, semicolons or tabs, in UTF-8 with or without BOM.

    Names and cells lose the blanks around them; columns without a name and empty lines are left
    out.

    Raises:
        DataError: no such file, not UTF-8, no header, or a line with more cells than columns.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(
            f'{path} is not UTF-8 text; save it as "CSV UTF-8" if a spreadsheet wrote it'
        ) from None
    except OSError as error:
        reason = (error.strerror or "unreadable").lower()
        raise DataError(f"{path} cannot be read: {reason}") from None
    header = text.partition("\n")[0]
    delimiter = max((",", ";", "\t"), key=header.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        columns = [name.strip() for name in next(reader)]
    except (StopIteration, csv.Error):
        raise DataError(f"{path} is empty: it needs a line with the names of its columns") from None
    named = [name for name in columns if name]
    if len(set(named)) < len(named):
        twice = sorted({name for name in named if named.count(name) > 1})
        raise DataError(
            f"{path}: column {', '.join(twice)} comes twice",
            anonymous=f"{path}: the name of a column comes twice in its first line",
        )
    faults = Faults()
    lines = []
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if any(cell.strip() for cell in cells[len(columns) :]) or len(cells) < len(named):
                where, told = f"{path.name} row {reader.line_num}", f"{len(cells)} cells"
                told += f" under {len(columns)} columns"
                faults.add(where, told, anonymous=f"{where}: {told}")
                continue
            pairs = zip(columns, cells, strict=False)
            row = {name: cell.strip() for name, cell in pairs if name}
            lines.append((reader.line_num, row))
    except csv.Error as error:
        raise DataError(f"{path} row {reader.line_num}: {error}") from None
    faults.raise_if_any(f"{path} cannot be used")
    return CsvRows(tuple(named), tuple(lines))


def is_array(path: str) -> bool:
    """Whether a table's path names a row of an `.npz` array."""
    return ARRAY_MARK in path


def array_row(path: str) -> tuple[Path, str, int]:
    """File, part and index of `FILE.npz#train/7`.

    Raises:
        DataError: the path is not of this form.
    """
    file, _, row = path.rpartition("#")
    part, _, index = row.rpartition("/")
    if not file or not part or not index.isdecimal():
        raise DataError(
            f"{path} does not name a row of an array as FILE.npz#PART/INDEX",
            anonymous="a path does not name a row of an array as FILE.npz#PART/INDEX",
        )
    return Path(file), part, int(index)


def pixels_sha256(pixels: NDArray[np.uint8]) -> str:
    """Digest of an array's row: of its shape and its bytes."""
    digest = hashlib.sha256(repr(pixels.shape).encode())
    digest.update(np.ascontiguousarray(pixels).tobytes())
    return digest.hexdigest()


def write_whole(path: Path, content: bytes) -> None:
    """Write a file beside its name and rename it: a cut run leaves no half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.part")
    partial.write_bytes(content)
    partial.replace(path)
