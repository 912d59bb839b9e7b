"""The step `prepare`: what it writes, what it refuses, and that no patient is named."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dr_training.data.pipeline import TrainingData
from dr_training.job.__main__ import main
from inference_image.model_spec import file_sha256
from tests.unit.dr_training.job.conftest import PATIENT, PHOTOGRAPH, SIZE_PX, Job

USUAL = ["--prepared-already", "--size-px", str(SIZE_PX), "--workers", "1"]
Put = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def prepare(
    job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs the step; gives exit code, log and the reason that SageMaker shows."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setenv("DR_ML_ROOT", str(job.root))
        code = main(["prepare", *USUAL, *arguments])
        log = "".join(capsys.readouterr())
        reason = job.root / "output" / "message"
        said = reason.read_text() if reason.exists() else ""
        for text in (log, said):
            assert PATIENT not in text
            assert "Traceback" not in text
        return code, log, said

    return run


def _write_split(job: Job, parts: dict[str, str]) -> None:
    with (job.places.photographs / "split.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([("id", "split"), *parts.items()])


def test_records_of_three_parts_are_written(job: Job, photographs: Put, prepare: Any) -> None:
    rows = photographs(100)
    code, log, _ = prepare("--seed", "3")
    assert code == 0
    assert "100 photographs: 100 ok" in log
    data = TrainingData.open(job.places.prepared)
    assert {name: len(part) for name, part in data.parts.items()} == {
        "train": 70,
        "validation": 15,
        "test": 15,
    }
    assert data.parts["train"].size_px == SIZE_PX
    # The records themselves say whose they are.
    assert set(data.parts["test"].owners) <= {row["patient"] for row in rows}


def test_the_manifest_names_every_file_by_its_digest(
    job: Job, photographs: Put, prepare: Any
) -> None:
    photographs(60)
    assert prepare("--records-per-shard", "20")[0] == 0
    folder = job.places.prepared
    manifest = json.loads((folder / "manifest.json").read_bytes())
    shards = [shard for part in manifest["parts"].values() for shard in part["shards"]]
    assert len(shards) > 3
    assert {one["file"]: one["sha256"] for one in shards} == {
        path.name: file_sha256(path) for path in folder.glob("*.tfrecord")
    }


def test_the_same_photographs_and_seed_give_the_same_bytes(
    job: Job, photographs: Put, prepare: Any
) -> None:
    photographs(60)

    def digests() -> dict[str, str]:
        assert prepare("--seed", "5")[0] == 0
        return {path.name: file_sha256(path) for path in job.places.prepared.iterdir()}

    assert digests() == digests()


def test_a_split_beside_the_table_is_used(job: Job, photographs: Put, prepare: Any) -> None:
    rows = photographs(30)
    parts = {
        row["id"]: ("train", "validation", "test")[index // 10] for index, row in enumerate(rows)
    }
    _write_split(job, parts)
    assert prepare()[0] == 0
    data = TrainingData.open(job.places.prepared)
    assert {len(part) for part in data.parts.values()} == {10}


def test_a_column_of_the_table_can_be_the_split(job: Job, photographs: Put, prepare: Any) -> None:
    rows = photographs(30)
    for index, row in enumerate(rows):
        row["published"] = ("train", "validation", "test")[index % 3]
    job.write_table(rows)
    assert prepare("--split-column", "published")[0] == 0
    assert len(TrainingData.open(job.places.prepared).parts["test"]) == 10


@pytest.mark.parametrize("also", [["--shares", "0.5,0.3,0.2"], ["--split-column", "published"]])
def test_two_ways_to_divide_are_refused(
    job: Job, photographs: Put, prepare: Any, also: list[str]
) -> None:
    rows = photographs(30)
    _write_split(job, {row["id"]: "train" for row in rows})
    code, _, reason = prepare(*also)
    assert code == 2
    assert f"split.csv and {also[0]} both say how to divide the photographs" in reason


@pytest.mark.parametrize(
    ("exists", "held"), [(False, "nothing"), (True, "nothing"), (None, "1 other files")]
)
def test_a_folder_without_a_table_is_refused(
    job: Job, prepare: Any, exists: bool | None, held: str
) -> None:
    if exists is not False:
        job.places.photographs.mkdir(parents=True)
    if exists is None:
        (job.places.photographs / f"{PHOTOGRAPH}.jpg").write_bytes(b"")
    code, _, reason = prepare()
    assert code == 1
    assert "must come with table.csv, which `dr data table` writes" in reason
    assert f"there is {held}" in reason


def test_an_empty_table_is_refused(job: Job, prepare: Any) -> None:
    job.places.photographs.mkdir(parents=True)
    (job.places.photographs / "table.csv").write_text("id,grade,sha256,path\n")
    code, _, reason = prepare()
    assert code == 1
    assert "table.csv has no rows" in reason


@pytest.mark.parametrize("column", ["grade", "sha256", "path", "id"])
def test_a_table_without_a_column_it_needs_is_refused(
    job: Job, photographs: Put, prepare: Any, column: str
) -> None:
    rows = photographs(10)
    job.write_table([{k: v for k, v in row.items() if k != column} for row in rows])
    code, _, reason = prepare()
    assert code == 1
    assert f"column {column} missing" in reason


def test_photographs_that_nobody_graded_are_refused(
    job: Job, photographs: Put, prepare: Any
) -> None:
    rows = photographs(30)
    job.write_table([{**row, "grade": ""} for row in rows])
    code, _, reason = prepare()
    assert code == 1
    assert "no photograph has grade 0; no photograph has grade 1" in reason


def test_a_grade_of_one_patient_cannot_be_in_three_parts(
    job: Job, photographs: Put, prepare: Any
) -> None:
    rows = photographs(50)
    job.write_table([row for row in rows if row["grade"] != 4] + [rows[4]])
    code, _, reason = prepare()
    assert code == 1
    assert "grade 4 is in 1 patient(s) only, and 3 parts need one each" in reason


def test_a_patient_in_two_parts_is_refused_and_not_named(
    job: Job, photographs: Put, prepare: Any
) -> None:
    rows = photographs(60, per_patient=2)
    _write_split(
        job,
        {row["id"]: ("train", "test", "validation")[i % 3] for i, row in enumerate(rows)},
    )
    code, _, reason = prepare()
    assert code == 1
    assert "the parts leak into each other" in reason
    assert "a patient is in test and train (10 times)" in reason
    assert not (job.places.prepared / "manifest.json").exists()


def test_parts_with_names_of_their_own_are_refused_and_not_shown(
    job: Job, photographs: Put, prepare: Any
) -> None:
    rows = photographs(30)
    _write_split(
        job,
        {
            row["id"]: ("train", "validation", "test", f"{PATIENT}s own")[index % 4]
            for index, row in enumerate(rows)
        },
    )
    code, _, reason = prepare()
    assert code == 1
    assert "must be divided into train, validation, test" in reason
    assert "there are others" in reason


def test_without_a_test_part_there_is_nothing_to_judge_on(
    job: Job, photographs: Put, prepare: Any
) -> None:
    photographs(30)
    code, _, reason = prepare("--shares", "0.8,0.2")
    assert code == 1
    assert "there is no test" in reason


def test_faults_of_rows_are_told_by_row_and_without_their_cells(
    job: Job, photographs: Put, prepare: Any
) -> None:
    rows = photographs(30)
    rows[3]["grade"] = f"Mrs {PATIENT}"
    rows[7]["id"] = rows[6]["id"]
    rows[9]["eye"] = PATIENT
    job.write_table(rows)
    code, _, reason = prepare()
    assert code == 1
    assert "table.csv row 5: a cell cannot be used" in reason
    assert "table.csv row 9: its id is also in row 8" in reason
    assert "table.csv row 11: a cell cannot be used" in reason


@pytest.mark.parametrize("path", ["../secret.npz#all/0", "/etc/passwd", "../x.jpg"])
def test_files_outside_of_the_folder_are_refused(
    job: Job, photographs: Put, prepare: Any, path: str
) -> None:
    rows = photographs(30)
    rows[0]["path"] = path
    job.write_table(rows)
    code, _, reason = prepare()
    assert code == 1
    assert "1 of 30 rows of table.csv name a file outside of its folder" in reason


def test_photographs_that_cannot_be_read_end_the_run_unless_that_is_allowed(
    job: Job, photographs: Put, prepare: Any
) -> None:
    rows = photographs(60)
    rows[0]["sha256"] = "0" * 64
    rows[1]["path"] = f"{PHOTOGRAPH}.jpg"
    job.write_table(rows)
    code, log, reason = prepare()
    assert code == 1
    assert "2 unreadable" in log
    assert "2 of 60 photographs are missing, damaged or changed" in reason
    assert not (job.places.prepared / "manifest.json").exists()
    code, log, _ = prepare("--max-unreadable", "2")
    assert code == 0
    assert "58 ok" in log
    # Whoever may read the data finds the names there.
    assert PHOTOGRAPH in (job.places.prepared / "qc.csv").read_text()


def test_a_folder_in_which_nothing_can_be_read_is_refused(
    job: Job, photographs: Put, prepare: Any
) -> None:
    photographs(30)
    (job.places.photographs / "pictures.npz").unlink()
    code, _, reason = prepare("--max-unreadable", "30")
    assert code == 1
    assert "no photograph could be used" in reason


def _without_its_first_line(path: Path) -> None:
    path.write_text(path.read_text().partition("\n")[2])


def test_a_table_without_the_names_of_its_columns_is_refused_and_not_shown(
    job: Job, photographs: Put, prepare: Any
) -> None:
    rows = photographs(30)
    path = job.places.photographs / "table.csv"
    _without_its_first_line(path)
    code, _, reason = prepare()
    assert code == 1
    assert "column id, grade, sha256, path missing from its first line" in reason
    # The same with a cell that comes twice in the first photograph.
    job.write_table([{**row, "patient": PATIENT, "eye": PATIENT} for row in rows])
    _without_its_first_line(path)
    code, _, reason = prepare()
    assert code == 1
    assert "the name of a column comes twice in its first line" in reason


def test_a_split_without_the_names_of_its_columns_is_refused_and_not_shown(
    job: Job, photographs: Put, prepare: Any
) -> None:
    rows = photographs(30)
    _write_split(job, {row["id"]: "train" for row in rows})
    _without_its_first_line(job.places.photographs / "split.csv")
    code, _, reason = prepare()
    assert code == 1
    assert "split.csv needs the columns id and split, named in its first line" in reason


@pytest.mark.parametrize("path", [f"{PATIENT}.npz#x", f"{PATIENT}.npz#all/x", ".npz#"])
def test_a_path_into_an_array_that_is_none_is_told_by_row(
    job: Job, photographs: Put, prepare: Any, path: str
) -> None:
    rows = photographs(30)
    rows[4]["path"] = path
    job.write_table(rows)
    code, _, reason = prepare()
    assert code == 1
    assert "table.csv row 6: a cell cannot be used" in reason


def test_a_path_that_is_none_once_it_is_short_is_not_shown(
    job: Job, photographs: Put, prepare: Any
) -> None:
    rows = photographs(30)
    rows[4]["path"] = f"{PATIENT}.npz#/x/../7"
    job.write_table(rows)
    code, _, reason = prepare("--max-unreadable", "1")
    assert code == 1
    assert "a path does not name a row of an array as FILE.npz#PART/INDEX" in reason


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seed", "-1"], "--seed is a whole number from 0; got -1"),
        (["--max-unreadable", "-1"], "--max-unreadable is a whole number from 0"),
        (["--workers", "0"], "--workers is a whole number from 1; got 0"),
        (["--size", "28"], "unrecognized arguments: --size 28"),
        (["--size-px", "big"], "invalid int value: 'big'"),
        (["--image-format", "gif"], "invalid choice: 'gif'"),
        (["--size-px", "8"], "size_px must be 16 to 2048; it is 8"),
        (["--records-per-shard", "0"], "a shard holds at least one record"),
        (["--shares", "1,2,x"], "give the shares of train, validation and test"),
        (["--shares", "nan,0.5,0.5"], "shares above 0"),
        (["--shares", "0.5,0.3,0.1"], "must sum to 1"),
        (["--shares", ""], "give the shares of train, validation and test"),
        (["--split-column", "camera"], "the table has no column 'camera'"),
    ],
)
def test_wrong_arguments_and_choices_that_cannot_be_are_refused(
    photographs: Put, prepare: Any, arguments: list[str], said: str
) -> None:
    photographs(30)
    code, _, reason = prepare(*arguments)
    assert code == 2
    assert said in reason


def test_photographs_go_through_the_services_own_preparation(
    job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from PIL import Image

    from dr_training.data.readers import read
    from dr_training.data.table import write_table
    from dr_training.drawing import draw_fundus

    folder = job.places.photographs
    folder.mkdir(parents=True)
    for seed in range(3):
        for grade in range(5):
            picture = draw_fundus(seed, grade, 128).image
            Image.fromarray(np.asarray(picture)).save(folder / f"grade{grade}-seed{seed}.jpg")
    write_table(read("drawn", folder).table, folder / "table.csv")
    monkeypatch.setenv("DR_ML_ROOT", str(job.root))
    assert main(["prepare", "--size-px", "32", "--workers", "1", "--keep-ungradable"]) == 0
    manifest = TrainingData.open(job.places.prepared).manifest
    assert [step["step"] for step in manifest["preprocessing"]] == [
        "crop_to_fundus",
        "resize_area",
        "mask_outside_disc",
    ]
    assert manifest["quality_gate"]
