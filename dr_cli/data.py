"""`dr data`: from a folder of photographs to records that training reads."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.progress import Progress
from rich.table import Table as Grid

from dr_cli.console import make_console
from dr_cli.errors import CommandError
from dr_cli.packages import spec_of
from dr_training.data.duplicates import describe, duplicate_groups
from dr_training.data.faults import DataError
from dr_training.data.preparation import QC, STATUSES, Plan, prepare
from dr_training.data.readers import Options, label_map, missing_grades, read
from dr_training.data.splits import (
    Split,
    make_split,
    published_split,
    read_split,
    shares_of,
    write_split,
)
from dr_training.data.table import Table, read_table, write_table
from inference_image.contract import GRADE_LABELS

_MOST_NAMED = 10
_DEFAULT_SIZE_PX = 299


def make_table(
    kind: str,
    source: Path,
    out: Path,
    *,
    labels: Sequence[str],
    image_column: str,
    grade_column: str,
    patient_column: str | None,
    eye_column: str | None,
    keep_unreadable: bool,
    headers_only: bool,
) -> None:
    """Write the table of a data set, and say what is in it."""
    options = Options(
        labels=label_map(labels),
        image_column=image_column,
        grade_column=grade_column,
        patient_column=patient_column,
        eye_column=eye_column,
        keep_unreadable=keep_unreadable,
        headers_only=headers_only,
    )
    reading = read(kind, source, options)
    _file_to_write(out)
    write_table(reading.table, out)
    for note in reading.notes:
        print(f"note: {note}")
    _print_grades({"photographs": reading.table.grades()})
    patients = {one.patient for one in reading.table if one.patient}
    print(f"{len(reading.table):,} photographs, {len(patients):,} patients named, in {out}")
    _print_duplicates(reading.table)
    for grade in missing_grades(reading.table):
        print(f"note: no photograph has grade {grade}")


def make_split_file(
    table_path: Path,
    out: Path,
    *,
    seed: int,
    shares: str,
    column: str | None,
    allow_missing: Sequence[int],
    exclude_conflicting: bool,
) -> None:
    """Write a split of a table, and say how many photographs of each grade its parts have."""
    table = read_table(table_path)
    if column is not None:
        split = published_split(table, column)
    else:
        split = make_split(
            table,
            seed=seed,
            fractions=shares_of(shares),
            allow_missing=allow_missing,
            exclude_conflicting=exclude_conflicting,
        )
    _file_to_write(out)
    if out.resolve() == table_path.resolve() or out.suffix.lower() != ".csv":
        raise DataError(f"{out}: name another file that ends in .csv; a .json is written beside it")
    write_split(split, out)
    _print_split(table, split)
    print(f"split in {out}")


def prepare_records(
    table_path: Path,
    split_path: Path,
    out: Path,
    *,
    size_px: int | None,
    model: Path | None,
    prepared_already: bool,
    image_format: str,
    keep_ungradable: bool,
    records_per_shard: int,
    workers: int,
    seed: int,
    replace: bool,
) -> None:
    """Write records of a table and its split, and say what became of every photograph."""
    table = read_table(table_path)
    split = read_split(split_path, table)
    choices = {
        "image_format": image_format,
        "keep_ungradable": keep_ungradable,
        "records_per_shard": records_per_shard,
        "seed": seed,
    }
    if model is not None:
        if size_px is not None or prepared_already:
            raise CommandError("--model says size and steps; leave --size-px and the like out")
        plan = Plan.of_package(spec_of(model), **choices)
    elif prepared_already:
        plan = Plan.prepared_already(size_px=size_px or _DEFAULT_SIZE_PX, **choices)
    else:
        plan = Plan.usual(size_px=size_px or _DEFAULT_SIZE_PX, **choices)
    console = make_console()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("preparing", total=len(table))
        report = prepare(
            table,
            split,
            out,
            plan=plan,
            workers=workers,
            replace=replace,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    for reason in report.unreadable[:_MOST_NAMED]:
        print(f"unreadable: {reason}")
    if len(report.unreadable) > _MOST_NAMED:
        print(f"unreadable: {len(report.unreadable) - _MOST_NAMED} more, in {out / QC}")
    counts = ", ".join(
        f"{report.statuses[status]:,} {status}" for status in STATUSES if report.statuses[status]
    )
    print(f"{counts} of {len(table):,} photographs; each has its row in {out / QC}")
    records = ", ".join(f"{part} {count:,}" for part, count in report.records.items())
    print(f"records in {out}: {records}")


def check(target: Path, *, split: Path | None) -> None:
    """Check a table (with a split), or every record of a folder."""
    if target.is_dir():
        from dr_training.data.pipeline import TrainingData

        data = TrainingData.open(target)
        _print_grades(
            {
                name: tuple(int((part.grades == grade).sum()) for grade in range(5))
                for name, part in data.parts.items()
            }
        )
        print("every record is whole, and no patient or picture is in two parts")
        return
    table = read_table(target)
    if split is None:
        _print_grades({"photographs": table.grades()})
    else:
        _print_split(table, read_split(split, table))
        print("no patient or picture is in two parts")
    _print_duplicates(table)


def _print_split(table: Table, split: Split) -> None:
    _print_grades(split.counts(table))
    without = sum(not part for part in split.parts.values())
    if without:
        print(f"{without:,} photographs are in no part (without a grade, unreadable or excluded)")


def _print_grades(counts: Mapping[str, Sequence[int]]) -> None:
    grid = Grid(box=None, padding=(0, 2, 0, 0))
    grid.add_column("")
    for grade, label in enumerate(GRADE_LABELS):
        grid.add_column(f"{grade} {label}", justify="right")
    grid.add_column("all", justify="right")
    for name, row in counts.items():
        grid.add_row(name, *(f"{count:,}" for count in row), f"{sum(row):,}")
    make_console().print(grid)


def _print_duplicates(table: Table) -> None:
    groups = duplicate_groups(table)
    print(describe(groups))
    conflicting = [group for group in groups if group.conflicting]
    for group in conflicting[:_MOST_NAMED]:
        graded = ", ".join(f"{one.where} grade {one.grade}" for one in group.photographs)
        print(f"different grades for one picture: {graded}")
    if len(conflicting) > _MOST_NAMED:
        print(f"different grades for one picture: {len(conflicting) - _MOST_NAMED} more groups")


def _file_to_write(path: Path) -> None:
    if path.is_dir():
        raise DataError(f"{path} is a folder; name a file with --out")
