"""From labelled photographs to records: the first job of a training on SageMaker.

    python3 -m dr_training.job prepare --size-px 224 --seed 0

The input holds `table.csv`, as `dr data table` writes it, and the files that it names. A
`split.csv` beside it is used as it is; else a split is made. Every run needs a test part: `gate`
judges on it. What is printed names no photograph and no patient; `qc.csv` of the output does.
"""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dr_training.data.pipeline import default_threads
from dr_training.data.preparation import (
    JPEG,
    MANIFEST,
    PNG,
    STATUSES,
    UNREADABLE,
    Plan,
    prepare,
)
from dr_training.data.splits import (
    PARTS,
    Split,
    make_split,
    published_split,
    read_split,
    refuse_unknown_column,
    shares_of,
)
from dr_training.data.table import Table, array_row, is_array, read_table
from dr_training.job.faults import EXIT_ASKED_WRONGLY, JobError, StepArguments, as_asked
from dr_training.job.places import ProcessingPlaces

TABLE: Final = "table.csv"
SPLIT: Final = "split.csv"
_DEFAULT_SIZE_PX: Final = 224
_DEFAULT_SHARES: Final = "0.70,0.15,0.15"


def run(root: Path, arguments: Sequence[str]) -> None:
    """Write the records of the photographs below `root`.

    Raises:
        JobError: folders, files or arguments cannot be used.
        DataError: table, split or photographs cannot be used.
    """
    chosen = _arguments().parse_args(arguments)
    places = ProcessingPlaces(root)
    plan = _plan(chosen)
    table = _table(places.photographs)
    split = _split(table, places.photographs, chosen)
    report = prepare(table, split, places.prepared, plan=plan, workers=chosen.workers)
    counts = ", ".join(f"{report.statuses[status]:,} {status}" for status in STATUSES)
    print(f"{len(table):,} photographs: {counts}", flush=True)
    unreadable = report.statuses[UNREADABLE]
    if unreadable > chosen.max_unreadable:
        # Records without a manifest cannot be opened by the next step.
        (places.prepared / MANIFEST).unlink()
        raise JobError(
            f"{unreadable} of {len(table)} photographs are missing, damaged or changed since "
            f"{TABLE} was made, more than --max-unreadable {chosen.max_unreadable}; "
            "`dr data prepare` beside the data names them"
        )
    print(", ".join(f"{part} {count:,} records" for part, count in report.records.items()))


def _arguments() -> StepArguments:
    parser = StepArguments("prepare", "Photographs to records")
    parser.add_argument("--size-px", type=int, default=_DEFAULT_SIZE_PX)
    parser.add_argument("--seed", type=int, default=0, help="of the split and the order")
    parser.add_argument("--shares", help=f"of the parts; {_DEFAULT_SHARES} when left out")
    parser.add_argument("--split-column", help="column of the table that names the parts")
    parser.add_argument("--exclude-conflicting", action="store_true")
    parser.add_argument("--prepared-already", action="store_true", help="no crop and no gate")
    parser.add_argument("--keep-ungradable", action="store_true")
    parser.add_argument("--image-format", choices=(JPEG, PNG), default=JPEG)
    parser.add_argument("--records-per-shard", type=int, default=1000)
    parser.add_argument("--max-unreadable", type=int, default=0, help="photographs")
    parser.add_argument("--workers", type=int, default=default_threads())
    return parser


@as_asked()
def _plan(chosen: Namespace) -> Plan:
    options = vars(chosen)
    for name, least in (("seed", 0), ("max_unreadable", 0), ("workers", 1)):
        if options[name] < least:
            raise JobError(
                f"--{name.replace('_', '-')} is a whole number from {least}; got {options[name]}",
                EXIT_ASKED_WRONGLY,
            )
    make = Plan.prepared_already if chosen.prepared_already else Plan.usual
    names = ("size_px", "image_format", "keep_ungradable", "records_per_shard", "seed")
    return make(**{name: options[name] for name in names})


def _table(folder: Path) -> Table:
    if not (folder / TABLE).is_file():
        files = sum(path.is_file() for path in folder.rglob("*")) if folder.is_dir() else 0
        held = f"{files:,} other files" if files else "nothing"
        raise JobError(
            f"the photographs ({folder}) must come with {TABLE}, which `dr data table` writes; "
            f"there is {held}"
        )
    table = read_table(folder / TABLE)
    # Not only for safety: what lies elsewhere was not brought into this container.
    inside = folder.resolve()
    outside = sum(not _file(one.path).is_relative_to(inside) for one in table)
    if outside:
        raise JobError(
            f"{outside} of {len(table)} rows of {TABLE} name a file outside of its folder; make "
            "the table in the folder that holds the photographs"
        )
    return table


def _file(path: str) -> Path:
    return array_row(path)[0] if is_array(path) else Path(path)


def _split(table: Table, folder: Path, chosen: Namespace) -> Split:
    given = folder / SPLIT
    ways = {
        SPLIT: given.exists(),
        "--split-column": chosen.split_column is not None,
        "--shares": chosen.shares is not None,
    }
    named = [way for way, used in ways.items() if used]
    if len(named) > 1:
        raise JobError(
            f"{' and '.join(named)} both say how to divide the photographs; give one of them",
            EXIT_ASKED_WRONGLY,
        )
    if ways[SPLIT]:
        split = read_split(given, table)
    elif chosen.split_column is not None:
        with as_asked():
            refuse_unknown_column(table, chosen.split_column)
        split = published_split(table, chosen.split_column)
    else:
        with as_asked():
            shares = shares_of(_DEFAULT_SHARES if chosen.shares is None else chosen.shares)
        split = make_split(
            table,
            seed=chosen.seed,
            fractions=shares,
            exclude_conflicting=chosen.exclude_conflicting,
        )
    # Names of other parts could be anything, so they are not shown.
    parts = set(split.counts(table))
    missing = [part for part in PARTS if part not in parts]
    if missing or len(parts) > len(PARTS):
        wrong = f"there is no {' and no '.join(missing)}" if missing else "there are others"
        raise JobError(
            f"the photographs must be divided into {', '.join(PARTS)}, of which the last one "
            f"judges the model; {wrong}"
        )
    return split
