"""Divides a table into training, validation and test: by patient, with every grade in each.

    >>> split = make_split(table, seed=7)
    >>> split.counts(table)["test"]
    (270, 56, 150, 29, 44)
    >>> write_split(split, Path("aptos-split.csv"))

Photographs of one patient, and byte-identical ones, form a group, and a group is never divided.
Groups are dealt out one by one, those with rare grades first, each to the part that lacks its
grades most. The same seed gives the same split on any machine.

A split is a CSV file (`id`, `split`) with a JSON file beside it, which records the seed, the
fractions and the digest of the table: a split of another table is refused.
"""

import csv
import hashlib
import io
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from dr_training.data.duplicates import duplicate_groups
from dr_training.data.faults import DataError, Faults
from dr_training.data.table import GRADES, Photograph, Table, read_csv, write_whole

TRAIN: Final = "train"
VALIDATION: Final = "validation"
TEST: Final = "test"
PARTS: Final = (TRAIN, VALIDATION, TEST)
# Written for photographs that are in no part: without a grade, unreadable, or excluded on wish.
NO_PART: Final = ""
DEFAULT_FRACTIONS: Final[Mapping[str, float]] = {TRAIN: 0.70, VALIDATION: 0.15, TEST: 0.15}


@dataclass(frozen=True, kw_only=True)
class Split:
    """Which part each photograph is in (`parts`, by id) and how that was decided."""

    parts: Mapping[str, str]
    table_digest: str
    decided: Mapping[str, Any]

    def counts(self, table: Table) -> dict[str, tuple[int, ...]]:
        """Photographs of each grade in each part."""
        counts = {part: [0] * len(GRADES) for part in self._names()}
        for one in table:
            part = self.parts[one.id]
            if part and one.grade is not None:
                counts[part][one.grade] += 1
        return {part: tuple(row) for part, row in counts.items()}

    def members(self, table: Table, part: str) -> tuple[Photograph, ...]:
        """The photographs of a part, in the order of the table."""
        return tuple(one for one in table if self.parts[one.id] == part)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of which part each photograph is in, whatever the order of the file."""
        return _digest(self.parts.items())

    def digest_of(self, part: str) -> str:
        """SHA-256 of which photographs a part holds, whatever the others hold."""
        return _digest((one, name) for one, name in self.parts.items() if name == part)

    def _names(self) -> tuple[str, ...]:
        present = set(self.parts.values()) - {NO_PART}
        return (*(p for p in PARTS if p in present), *sorted(present - set(PARTS)))


def make_split(
    table: Table,
    *,
    seed: int,
    fractions: Mapping[str, float] = DEFAULT_FRACTIONS,
    allow_missing: Iterable[int] = (),
    exclude_conflicting: bool = False,
) -> Split:
    """Divide a table, grouped by patient and content, stratified by grade.

    Args:
        table: photographs; those without a grade or without a readable header get no part.
        seed: decides between groups that are alike.
        fractions: part -> share of the photographs of each grade; they sum to 1.
        allow_missing: grades that may have no photograph at all, or too few patients for each
            part to get one.
        exclude_conflicting: leave out copies of one picture with different grades.

    Raises:
        DataError: a grade is empty, or has fewer groups than there are parts.
    """
    _check_fractions(fractions)
    excluded = {
        one.id
        for group in duplicate_groups(table)
        if group.conflicting and exclude_conflicting
        for one in group.photographs
    }
    usable = [
        one for one in table if one.grade is not None and one.readable and one.id not in excluded
    ]
    groups = groups_of(usable)
    _check_grades(usable, groups, fractions, set(allow_missing))
    totals = _counts(usable)
    wanted = {part: totals * share for part, share in fractions.items()}
    given = {part: np.zeros(len(GRADES)) for part in fractions}
    parts = {one.id: NO_PART for one in table}
    for group in _in_order(groups, totals, seed):
        counts = _counts(group)
        part = max(fractions, key=lambda name: _need(counts, wanted[name], given[name], totals))
        given[part] += counts
        parts.update((one.id, part) for one in group)
    decided = {
        "method": "groups of patients and identical files, dealt out by grade",
        "seed": seed,
        "fractions": dict(fractions),
        "conflicting_copies": "excluded" if exclude_conflicting else "kept together",
    }
    split = Split(parts=parts, table_digest=table.digest, decided=decided)
    refuse_leaks(table, split)
    return split


def published_split(table: Table, column: str) -> Split:
    """The split that a column of the table states.

    Raises:
        DataError: the column is missing or empty, or the split leaks patients or copies.
    """
    refuse_unknown_column(table, column)
    parts = {}
    for one in table:
        usable = one.grade is not None and one.readable
        parts[one.id] = one.extra.get(column, NO_PART) if usable else NO_PART
    if not any(parts.values()):
        raise DataError(f"column {column} is empty for every photograph")
    split = Split(
        parts=parts,
        table_digest=table.digest,
        decided={"method": f"column {column} of the table"},
    )
    refuse_leaks(table, split)
    return split


def refuse_unknown_column(table: Table, column: str) -> None:
    """Refuse a column that the table does not have beyond the usual ones.

    Raises:
        DataError: it names the columns that there are.
    """
    if column not in table.extra_columns:
        known = ", ".join(table.extra_columns) or "none"
        raise DataError(f"the table has no column {column!r}; beyond the usual it has: {known}")


def write_split(split: Split, path: Path) -> None:
    """Write the split as CSV, and beside it (`.json`) how it was decided."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["id", "split"])
    writer.writerows(split.parts.items())
    write_whole(path, stream.getvalue().encode())
    document = {"table_sha256": split.table_digest, **split.decided}
    write_whole(path.with_suffix(".json"), (json.dumps(document, indent=2) + "\n").encode())


def read_split(path: Path, table: Table) -> Split:
    """Read a split of this table, and refuse one that leaks.

    Raises:
        DataError: the file is of another table, names a photograph twice or not at all, or puts
            one patient or one picture in two parts.
    """
    rows = read_csv(path)
    if not {"id", "split"} <= set(rows.columns):
        raise DataError(
            f"{path} needs the columns id and split; it has {', '.join(rows.columns)}",
            # Where the line of names is missing, the first photograph stands in its place.
            anonymous=f"{path} needs the columns id and split, named in its first line",
        )
    known = {one.id for one in table}
    parts: dict[str, str] = {}
    faults = Faults()
    for line, row in rows.lines:
        where = f"{path.name} row {line}"
        if row["id"] not in known:
            faults.add(
                where,
                f"the table has no photograph {row['id']!r}",
                anonymous=f"{where}: the table has no such photograph",
            )
        elif row["id"] in parts:
            faults.add(
                where,
                f"{row['id']!r} comes twice",
                anonymous=f"{where}: its photograph comes twice",
            )
        parts[row["id"]] = row["split"]
    for one in table:
        if one.id not in parts:
            faults.add(
                one.where,
                "it is not in the split",
                anonymous="a photograph of the table is not in the split",
            )
    faults.raise_if_any(f"{path} does not fit the table")
    decided = _decided(path.with_suffix(".json"))
    recorded = decided.pop("table_sha256", table.digest)
    if recorded != table.digest:
        raise DataError(
            f"{path} was made for another state of the table (ids, patients, grades or contents "
            "have changed): make the split again"
        )
    split = Split(parts=parts, table_digest=table.digest, decided=decided)
    refuse_leaks(table, split)
    return split


def refuse_leaks(table: Table, split: Split) -> None:
    """Refuse a split in which a patient or a picture is in two parts.

    Raises:
        DataError: it names each patient and each picture, with files and rows.
    """
    refuse_shared(
        (split.parts[one.id], one.patient, one.sha256, one.where)
        for one in table
        if split.parts[one.id]
    )


def refuse_shared(rows: Iterable[tuple[str, str, str, str]]) -> None:
    """The rule behind `refuse_leaks`, over (part, patient, sha256, where it comes from).

    Raises:
        DataError: a patient or a SHA-256 is in two parts.
    """
    patients: dict[str, dict[str, str]] = defaultdict(dict)
    contents: dict[str, dict[str, str]] = defaultdict(dict)
    for part, patient, sha256, where in rows:
        if patient:
            patients[patient].setdefault(part, where)
        contents[sha256].setdefault(part, where)
    faults = Faults()
    for patient, found in patients.items():
        if len(found) > 1:
            faults.add(
                _places(found),
                f"patient {patient} is in {' and '.join(sorted(found))}",
                anonymous=f"a patient is in {_known(found)}",
            )
    for found in contents.values():
        if len(found) > 1:
            faults.add(
                _places(found),
                f"the same picture is in {' and '.join(sorted(found))}",
                anonymous=f"the same picture is in {_known(found)}",
            )
    faults.raise_if_any("the parts leak into each other, so results would be too good")


def shares_of(text: str) -> dict[str, float]:
    """Shares as people write them, `0.70,0.15,0.15`, by part.

    Raises:
        DataError: they are not two or three numbers above 0 that sum to 1.
    """
    try:
        values = [float(one) for one in text.split(",")]
    except ValueError:
        values = []
    if len(values) not in (2, len(PARTS)):
        raise DataError(
            f"--shares {text!r}: give the shares of train, validation and test, as 0.70,0.15,0.15"
        )
    shares = dict(zip(PARTS, values, strict=False))
    _check_fractions(shares)
    return shares


def groups_of(photographs: Iterable[Photograph]) -> list[tuple[Photograph, ...]]:
    """Photographs that must stay together: one patient's, and copies of one picture."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        parent.setdefault(name, name)
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    photographs = list(photographs)
    for one in photographs:
        own = root(f"content {one.sha256}")
        if one.patient:
            parent[root(f"patient {one.patient}")] = own
    groups: dict[str, list[Photograph]] = defaultdict(list)
    for one in photographs:
        groups[root(f"content {one.sha256}")].append(one)
    return [tuple(group) for group in groups.values()]


def _digest(parts: Iterable[tuple[str, str]]) -> str:
    digest = hashlib.sha256()
    for one, part in sorted(parts):
        digest.update(f"{one}\0{part}\n".encode())
    return digest.hexdigest()


def _check_fractions(fractions: Mapping[str, float]) -> None:
    total = sum(fractions.values())
    if len(fractions) < 2 or any(not share > 0 for share in fractions.values()):
        raise DataError(f"a split needs two or more parts with shares above 0; got {fractions}")
    if not abs(total - 1) <= 1e-6:
        raise DataError(f"the shares of the parts must sum to 1; they sum to {total:g}")


def _check_grades(
    usable: list[Photograph],
    groups: list[tuple[Photograph, ...]],
    fractions: Mapping[str, float],
    allowed: set[int],
) -> None:
    faults = Faults()
    totals = _counts(usable)
    holders: Counter[int] = Counter()
    rows: dict[int, list[str]] = defaultdict(list)
    for group in groups:
        for grade in {one.grade for one in group if one.grade is not None}:
            holders[grade] += 1
            rows[grade].append(group[0].where)
    for grade in GRADES:
        if grade in allowed:
            continue
        if totals[grade] == 0:
            told = f"no photograph has grade {grade}"
            faults.add("", told, anonymous=told)
        elif holders[grade] < len(fractions):
            told = (
                f"grade {grade} is in {holders[grade]} patient(s) only, and {len(fractions)} "
                "parts need one each"
            )
            faults.add(", ".join(rows[grade]), told, anonymous=told)
    faults.raise_if_any("the table cannot be divided by patient with every grade in each part")


def _in_order(
    groups: list[tuple[Photograph, ...]], totals: np.ndarray, seed: int
) -> list[tuple[Photograph, ...]]:
    """Rare grades first and large groups first: what is left at the end fills the gaps."""
    shuffled = [groups[index] for index in np.random.default_rng(seed).permutation(len(groups))]

    def key(group: tuple[Photograph, ...]) -> tuple[int, int]:
        rarest = min(int(totals[one.grade]) for one in group if one.grade is not None)
        return rarest, -len(group)

    return sorted(shuffled, key=key)


def _need(
    counts: np.ndarray, wanted: np.ndarray, given: np.ndarray, totals: np.ndarray
) -> tuple[float, float]:
    """How much a part lacks what a group holds: weighed by rarity, relative to its share."""
    lack = (wanted - given) / np.maximum(wanted, 1e-12)
    present = counts > 0
    weights = np.where(present, counts / np.maximum(totals, 1), 0.0)
    return float((weights * lack).sum()), float((wanted - given).sum())


def _counts(photographs: Iterable[Photograph]) -> np.ndarray:
    counts = np.zeros(len(GRADES))
    for one in photographs:
        if one.grade is not None:
            counts[one.grade] += 1
    return counts


def _places(found: Mapping[str, str]) -> str:
    return " and ".join(found[part] for part in sorted(found))


def _known(found: Iterable[str]) -> str:
    """Names of parts, without those of somebody's own, which could be anything."""
    names = sorted(found)
    return " and ".join(names) if set(names) <= set(PARTS) else f"{len(names)} parts"


def _decided(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {"method": "made elsewhere"}
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if not isinstance(document, dict):
        raise DataError(f"{path} does not hold a JSON object")
    return document
