"""What a referral study needs before it can run."""

from pathlib import Path

import pytest

from dr_training.data.faults import DataError
from dr_training.study.referral_data import prepared_records
from dr_training.study.study_file import read_study
from tests.unit.dr_training.study.study_texts import study_of


def text() -> str:
    return read_study(Path("referral-small")).text


@pytest.mark.parametrize("line", ["", 'drawn_photographs = 60\ntable = "x.csv"'])
def test_photographs_are_named_once(tmp_path: Path, line: str) -> None:
    changed = text().replace("drawn_photographs = 60", line)
    with pytest.raises(DataError, match="names either a `table`"):
        prepared_records(study_of(tmp_path, changed), tmp_path / "out")


def test_the_size_is_one(tmp_path: Path) -> None:
    factor = '[[factor]]\nname = "size"\nlevels = [96, 128]\n\n[fixed]'
    changed = text().replace("size = 96\n", "").replace("[fixed]", factor)
    with pytest.raises(DataError, match="cannot be a factor of a referral study"):
        prepared_records(study_of(tmp_path, changed), tmp_path / "out")
