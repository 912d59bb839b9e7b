"""Prepared records of a referral study: made once, before its runs, and not again.

The published study locates the fundus, crops it, writes 299 x 299 pixels to TFRecords and
splits 70 to 30, stratified. Here the service's own preparation does it, and the split is by
patient.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dr_training.data.faults import DataError
from dr_training.data.preparation import MANIFEST, Plan, prepare
from dr_training.data.readers import read
from dr_training.data.splits import make_split
from dr_training.data.table import Table, read_table, write_whole
from dr_training.drawing import draw_fundus
from dr_training.study.study_file import REFERRAL, SIZE, Study
from inference_image.contract import GRADE_LABELS

RECORDS: Final = "records"
DRAWN: Final = "drawn"
PREPARATION: Final = "preparation.json"


def prepared_records(study: Study, out: Path, *, report: Callable[[str], object] = print) -> Path:
    """The folder of records of a study; prepared first where it is not there yet.

    Raises:
        DataError: the study names no photographs, or more than one size; or the preparation
            refuses them.
    """
    folder = out / RECORDS
    if (folder / MANIFEST).is_file() and (out / PREPARATION).is_file():
        return folder
    size_px = study.fixed.get(SIZE)
    if not isinstance(size_px, int):
        raise DataError(f"{SIZE} cannot be a factor of a referral study: its records have one size")
    settings = study.settings[REFERRAL]
    start = time.monotonic()
    table = _photographs(settings["table"], settings["drawn_photographs"], out)
    shares = {"train": settings["train_share"], "test": 1 - settings["train_share"]}
    split = make_split(table, seed=settings["split_seed"], fractions=shares, allow_missing=range(5))
    done = prepare(table, split, folder, plan=Plan.usual(size_px=size_px))
    seconds = time.monotonic() - start
    # Beside the records, which hold nothing else: time that a bill has and no run.
    facts = {"seconds": seconds, "photographs": len(table), "records": dict(done.records)}
    write_whole(out / PREPARATION, (json.dumps(facts, indent=1) + "\n").encode())
    counts = ", ".join(f"{part} {count:,}" for part, count in done.records.items())
    report(f"prepared {len(table):,} photographs in {seconds:.1f} s; records: {counts}")
    return folder


def _photographs(table: str, drawn: int, out: Path) -> Table:
    if bool(table) == bool(drawn):
        raise DataError(
            "[referral] names either a `table` of `dr data table` or a number of "
            "`drawn_photographs`"
        )
    if table:
        return read_table(Path(table))
    folder = out / DRAWN
    folder.mkdir(parents=True, exist_ok=True)
    grades = len(GRADE_LABELS)
    for number in range(drawn):
        seed, grade = divmod(number, grades)
        file = folder / f"grade{grade}-seed{seed}.jpg"
        if not file.exists():
            write_whole(file, draw_fundus(seed, grade).jpeg_bytes())
    return read("drawn", folder).table
