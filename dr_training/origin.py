"""What a package was trained on, and whether photographs are new to it; digests only.

    >>> origin_of(manifest, manifest_sha256="5f…", measured_on="test")
    {'manifest_sha256': '5f…', 'table_sha256': '9a…', 'split_sha256': 'c4…', 'train_sha256': …}
    >>> refuse_seen(spec, Judged.of(table, split=another, part="test"))
    DataError: package mine was trained on another split of this table, so photographs that …

The record is `provenance.records` of `model.json`. It names no photograph and no patient, not by a
digest either, for whoever holds a photograph could ask by it whether the patient was in the data.
So it tells only of a table that is the very same (ids, patients, grades and contents) which
photographs of it were trained on: those of the training part. Of any other table nothing is known,
and a note says so instead of a refusal.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dr_training.data.faults import DataError
from dr_training.data.splits import TRAIN, VALIDATION, Split
from dr_training.data.table import Photograph, Table
from inference_image.model_spec import ModelSpec

# In `provenance` of a package; also in its `calibration`, of what it was recalibrated on.
RECORDS: Final = "records"
TABLE_SHA256: Final = "table_sha256"
SPLIT_SHA256: Final = "split_sha256"
TRAIN_SHA256: Final = "train_sha256"


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Photographs that a package is asked about: a part of a split, or a whole table."""

    table: Table
    split: Split | None
    part: str | None

    @property
    def photographs(self) -> tuple[Photograph, ...]:
        """The photographs, in the order of the table."""
        if self.split is None or self.part is None:
            return self.table.photographs
        return self.split.members(self.table, self.part)

    def digests(self) -> dict[str, str | None]:
        """The table, and the split where there is one, by their digests."""
        return {
            TABLE_SHA256: self.table.digest,
            SPLIT_SHA256: None if self.split is None else self.split.digest,
        }


def origin_of(
    manifest: Mapping[str, Any], *, manifest_sha256: str, measured_on: str
) -> dict[str, Any]:
    """What a package says of the records that it was trained and measured on.

    Args:
        manifest: of the records; one that was written before it had digests of the split leaves
            them null.
        manifest_sha256: its own digest, which names the records.
        measured_on: the part that the figures are of.
    """
    return {
        "manifest_sha256": manifest_sha256,
        **{name: manifest.get(name) for name in (TABLE_SHA256, SPLIT_SHA256, TRAIN_SHA256)},
        "trained_on": TRAIN,
        "chosen_on": VALIDATION,
        "measured_on": measured_on,
    }


def refuse_seen(spec: ModelSpec, judged: Judged) -> str:
    """Refuse photographs that a package was trained on.

    Returns:
        Empty where the package is shown not to have been trained on them; else one sentence that
        says why that is not known.

    Raises:
        DataError: photographs of its training are, or must be, among them.
    """
    provenance = spec.raw.get("provenance")
    record = provenance.get(RECORDS) if isinstance(provenance, Mapping) else None
    if not isinstance(record, Mapping) or record.get(TABLE_SHA256) is None:
        return (
            f"package {spec.id} has no record of the table and split that it was trained on, so "
            "whether these photographs are new to it is not known"
        )
    if record[TABLE_SHA256] != judged.table.digest:
        return (
            f"package {spec.id} was trained on another table than this one; whether photographs "
            "or patients of that table are in this one is not known"
        )
    if judged.split is None:
        raise DataError(
            f"package {spec.id} was trained on photographs of this very table: name the split of "
            "its training, and a part of it that is new to the package"
        )
    if record.get(TRAIN_SHA256) is None:
        return (
            f"package {spec.id} was trained on this table, and has no record of the split; whether "
            "these photographs are new to it is not known"
        )
    if record[TRAIN_SHA256] != judged.split.digest_of(TRAIN):
        raise DataError(
            f"package {spec.id} was trained on another split of this table, so photographs that it "
            "was trained on would be judged as if they were new: name the split of its training"
        )
    if judged.part == TRAIN:
        raise DataError(
            f"package {spec.id} was trained on the part {TRAIN} of this split, so that its answers "
            "there say nothing about others: name another part"
        )
    if record.get(SPLIT_SHA256) != judged.split.digest:
        return (
            f"package {spec.id} was trained on another split of this table with the same training "
            "part; photographs that chose its epoch and thresholds may be among these"
        )
    return ""
