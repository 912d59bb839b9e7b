"""Splits: by patient, with every grade in each part, and refused where they leak."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dr_training.data.faults import DataError
from dr_training.data.splits import (
    PARTS,
    Split,
    groups_of,
    make_split,
    published_split,
    read_split,
    refuse_leaks,
    write_split,
)
from dr_training.data.table import Photograph, Table


def photograph(number: int, grade: int | None, **more: object) -> Photograph:
    facts = {"patient": f"p{number // 2}", "sha256": f"{number:064x}", "width_px": 10, **more}
    return Photograph(
        id=f"i{number}", grade=grade, path=f"/i{number}.jpg", row=f"t.csv row {number}", **facts
    )


@pytest.fixture
def table() -> Table:
    """400 photographs of 200 patients, with the imbalance of APTOS."""
    rng = np.random.default_rng(1)
    grades = rng.choice(5, 400, p=[0.49, 0.10, 0.27, 0.06, 0.08])
    return Table(tuple(photograph(n, int(grade)) for n, grade in enumerate(grades)))


def test_every_part_has_its_share_of_every_grade(table: Table) -> None:
    split = make_split(table, seed=7)
    totals = np.array(table.grades())
    counts = split.counts(table)
    for part, share in zip(PARTS, (0.7, 0.15, 0.15), strict=True):
        assert np.abs(np.array(counts[part]) - share * totals).max() <= 3
    assert tuple(np.sum(list(counts.values()), axis=0)) == table.grades()


def test_no_patient_is_in_two_parts(table: Table) -> None:
    split = make_split(table, seed=7)
    owners: dict[str, set[str]] = {}
    for one in table:
        owners.setdefault(one.patient, set()).add(split.parts[one.id])
    assert all(len(parts) == 1 for parts in owners.values())


def test_the_seed_decides(table: Table) -> None:
    assert make_split(table, seed=7) == make_split(table, seed=7)
    assert make_split(table, seed=7).parts != make_split(table, seed=8).parts


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 25), st.integers(0, 60)),
        min_size=1,
        max_size=80,
    ),
    st.integers(0, 3),
)
def test_no_split_ever_divides_a_patient_or_a_picture(
    rows: list[tuple[int, int, int]], seed: int
) -> None:
    table = Table(
        tuple(
            photograph(n, grade, patient=f"p{patient}" if patient else "", sha256=f"{content:064x}")
            for n, (grade, patient, content) in enumerate(rows)
        )
    )
    split = make_split(table, seed=seed, allow_missing=range(5))
    refuse_leaks(table, split)
    assert set(split.parts) == {one.id for one in table}
    assert all(split.parts.values())
    for group in groups_of(table):
        assert len({split.parts[one.id] for one in group}) == 1


def test_copies_with_different_grades_never_span_a_split(table: Table) -> None:
    photographs = list(table)
    for n in range(0, 60, 3):
        # A copy under another patient's name and another grade.
        original = photographs[n]
        other = (original.grade or 0) + 1
        photographs[200 + n] = replace(
            photographs[200 + n], sha256=original.sha256, grade=other % 5
        )
    doubled = Table(tuple(photographs))
    split = make_split(doubled, seed=0)
    for n in range(0, 60, 3):
        assert split.parts[f"i{n}"] == split.parts[f"i{200 + n}"]
    excluded = make_split(doubled, seed=0, exclude_conflicting=True)
    assert {excluded.parts[f"i{n}"] for n in range(0, 60, 3)} == {""}
    assert excluded.decided["conflicting_copies"] == "excluded"


def test_photographs_without_grade_or_picture_are_in_no_part(table: Table) -> None:
    more = (photograph(900, None), photograph(901, 0, width_px=0))
    split = make_split(Table((*table, *more)), seed=0)
    assert (split.parts["i900"], split.parts["i901"]) == ("", "")


def test_a_grade_that_is_empty_or_in_too_few_patients_is_named() -> None:
    table = Table(
        tuple(photograph(n, grade) for n, grade in enumerate([0] * 10 + [1] * 10 + [2, 2, 3, 3]))
    )
    with pytest.raises(DataError) as caught:
        make_split(table, seed=0)
    text = str(caught.value)
    assert "no photograph has grade 4" in text
    assert "t.csv row 20 (i20): grade 2 is in 1 patient(s) only, and 3 parts need one" in text
    split = make_split(table, seed=0, allow_missing=(2, 3, 4))
    assert sum(split.counts(table)["train"]) > 10


@pytest.mark.parametrize(
    "fractions", [{"train": 1.0}, {"train": 0.5, "test": 0.6}, {"a": 2, "b": -1}]
)
def test_shares_that_make_no_split_are_refused(table: Table, fractions: dict[str, float]) -> None:
    with pytest.raises(DataError):
        make_split(table, seed=0, fractions=fractions)


def test_a_split_is_the_same_after_writing_and_reading(table: Table, tmp_path: Path) -> None:
    split = make_split(table, seed=3)
    write_split(split, tmp_path / "split.csv")
    assert read_split(tmp_path / "split.csv", table) == split


def test_a_split_of_another_table_is_refused(table: Table, tmp_path: Path) -> None:
    path = tmp_path / "split.csv"
    write_split(make_split(table, seed=3), path)
    regraded = Table((replace(table.photographs[0], grade=4), *table.photographs[1:]))
    with pytest.raises(DataError, match="another state of the table"):
        read_split(path, regraded)
    with pytest.raises(DataError, match=r"split.csv row 2: the table has no photograph 'i0'"):
        read_split(path, Table(table.photographs[1:]))
    with pytest.raises(DataError, match=r"t.csv row 900 \(i900\): it is not in the split"):
        read_split(path, Table((*table, photograph(900, 0))))


def test_a_split_that_leaks_is_refused_with_the_patient_and_the_rows(
    table: Table, tmp_path: Path
) -> None:
    parts = {one.id: "train" for one in table}
    parts["i1"] = "test"
    leaking = Split(parts=parts, table_digest=table.digest, decided={})
    with pytest.raises(DataError) as caught:
        refuse_leaks(table, leaking)
    assert "t.csv row 1 (i1) and t.csv row 0 (i0): patient p0 is in test and train" in str(
        caught.value
    )
    write_split(leaking, tmp_path / "split.csv")
    with pytest.raises(DataError, match="patient p0 is in test and train"):
        read_split(tmp_path / "split.csv", table)


def test_the_publisher_s_split_is_taken_and_checked(table: Table) -> None:
    marked = Table(
        tuple(
            replace(one, extra={"published_split": "test" if n >= 300 else "train"})
            for n, one in enumerate(table)
        )
    )
    assert sum(published_split(marked, "published_split").counts(marked)["test"]) == 100
    with pytest.raises(DataError, match="beyond the usual it has: published_split"):
        published_split(marked, "site")
    leaking = Table(
        (*marked, photograph(900, 0, sha256=f"{0:064x}", extra={"published_split": "test"}))
    )
    with pytest.raises(DataError, match="the same picture is in test and train"):
        published_split(leaking, "published_split")
