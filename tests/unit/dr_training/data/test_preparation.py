"""Preparation: what the service sees, a row in qc.csv for every photograph, and one parity."""

import csv
import io
import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dr_training.data.faults import DataError
from dr_training.data.pipeline import TrainingData
from dr_training.data.preparation import Plan, prepare, prepared_pixels
from dr_training.data.readers import Options, read
from dr_training.data.splits import make_split, published_split
from dr_training.data.table import Table
from inference_image.decoding import Limits
from inference_image.model_spec import load_model_spec
from inference_image.predictor import Predictor, read_photograph
from tests.unit.dr_training.data.conftest import Draw, write_bytes

SIZE_PX = 96
# What a record of JPEG 95 may differ from the service's tensor, in 1/255 (measured: 1.23 and 24).
MEAN_TOLERANCE = 1.5
MOST_TOLERANCE = 32


def qc_rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "qc.csv").open() as stream:
        return list(csv.DictReader(stream))


def test_every_photograph_has_a_row_and_a_status(drawn_table: Table, tmp_path: Path) -> None:
    folder = Path(drawn_table.photographs[0].path).parent
    stream = io.BytesIO()
    Image.new("RGB", (200, 200), (40, 90, 200)).save(stream, "PNG")
    (folder / "grade0-seed90.png").write_bytes(stream.getvalue())
    whole = (folder / "grade1-seed0.jpg").read_bytes()
    (folder / "grade1-seed91.jpg").write_bytes(whole[: len(whole) // 3])
    (folder / "grade2-seed92.jpg").write_bytes(b"not a picture")
    table = read("drawn", folder, Options(keep_unreadable=True)).table
    ungraded = replace(table.photographs[0], id="ungraded", grade=None, sha256="0" * 64)
    table = Table((*table, ungraded))
    split = make_split(table, seed=0)
    gone, changed = [one for one in split.members(table, "train") if one.grade == 4][:2]
    Path(gone.path).unlink()
    Path(changed.path).write_bytes(whole)
    report = prepare(table, split, tmp_path / "records", plan=Plan.usual(size_px=SIZE_PX))
    rows = {row["id"]: row for row in qc_rows(tmp_path / "records")}
    assert list(rows) == [one.id for one in table]
    assert rows["grade0-seed90"]["status"] == "ungradable"
    assert "not_a_fundus_photograph" in rows["grade0-seed90"]["reasons"]
    assert rows["grade1-seed91"]["status"] == "unreadable"
    assert "truncated or damaged" in rows["grade1-seed91"]["reasons"]
    assert rows["grade2-seed92"]["status"] == "unreadable"
    assert rows["ungraded"]["status"] == "unlabelled"
    assert rows[gone.id]["reasons"] == "no such file or directory"
    assert rows[changed.id]["reasons"] == "the file has changed since the table was made"
    assert report.statuses == {
        "ok": 28,
        "ungradable": 1,
        "unreadable": 4,
        "unlabelled": 1,
        "left_out": 0,
    }
    assert sum(report.records.values()) == 28
    assert any(gone.id in line and "no such file" in line for line in report.unreadable)
    good = rows[split.members(table, "train")[0].id]
    assert (good["disc_found"], good["width_px"], good["height_px"]) == ("True", "256", "256")
    assert 100 < float(good["disc_radius_px"]) < 128
    manifest = json.loads((tmp_path / "records" / "manifest.json").read_text())
    assert sum(sum(p["ungradable_by_grade"]) for p in manifest["parts"].values()) == 1


def test_ungradable_photographs_are_in_the_records_on_wish(
    drawn_table: Table, tmp_path: Path
) -> None:
    strict = Plan.usual(size_px=SIZE_PX, keep_ungradable=True)
    strict = replace(strict, quality_gate={**strict.quality_gate, "min_level": 250.0})
    split = make_split(drawn_table, seed=0)
    report = prepare(drawn_table, split, tmp_path / "kept", plan=strict)
    assert report.statuses["ungradable"] == 30
    assert sum(report.records.values()) == 30
    with pytest.raises(DataError, match=r"no photograph could be used; .*qc.csv says why"):
        prepare(
            drawn_table,
            split,
            tmp_path / "none",
            plan=replace(strict, keep_ungradable=False),
        )


@pytest.fixture
def mixed_files(
    tmp_path: Path, drawn: Draw, shared_data: Path, real_photograph: Path
) -> Callable[[], Table]:
    """Drawn photographs, the real one, and encodings of it that readers disagree about."""

    def build() -> Table:
        folder = tmp_path / "mixed"
        hard = shared_data / "hard-inputs" / "derived"
        for seed, name in enumerate(
            ("retina_exif3.jpg", "retina_cmyk.jpg", "retina_rgb16.png", "retina_progressive.jpg")
        ):
            suffix = Path(name).suffix
            write_bytes(folder / f"grade1-seed{50 + seed}{suffix}", (hard / name).read_bytes())
        write_bytes(folder / "grade0-seed40.jpg", real_photograph.read_bytes())
        for seed in range(3):
            for grade in range(5):
                write_bytes(folder / f"grade{grade}-seed{seed}.jpg", drawn(seed, grade))
        return read("drawn", folder).table

    return build


@pytest.mark.parametrize(("image_format", "size_px"), [("png", 224), ("jpeg", 224), ("jpeg", 299)])
def test_training_sees_what_the_service_makes_of_the_same_file(
    mixed_files: Callable[[], Table],
    repository: Path,
    tmp_path: Path,
    image_format: str,
    size_px: int,
) -> None:
    table = mixed_files()
    spec = load_model_spec(repository / "model_artifacts" / "mobilenet-demo")
    plan = Plan.of_package(spec, image_format=image_format, keep_ungradable=True)
    plan = replace(plan, size_px=size_px)
    prepare(table, make_split(table, seed=0), tmp_path / "records", plan=plan)
    data = TrainingData.open(tmp_path / "records")
    by_id = {one.id: one for one in table}
    predictor = Predictor.load(repository / "model_artifacts" / "mobilenet-demo", threads=1)
    seen = 0
    for part in data.parts.values():
        for index in range(len(part)):
            pixels, grade, name = part.picture(index)
            served = read_photograph(
                Path(by_id[name].path).read_bytes(),
                plan.preparation() if size_px != 224 else predictor._preparation,
                limits=Limits(),
            )[1].pixels
            gap = np.abs(pixels.astype(int) - served.astype(int))
            if image_format == "png":
                assert gap.max() == 0, name
            assert gap.mean() <= MEAN_TOLERANCE, name
            assert gap.max() <= MOST_TOLERANCE, name
            assert grade == by_id[name].grade
            seen += 1
    assert seen == len(table)


def test_small_pictures_are_kept_as_they_are(shared_data: Path, tmp_path: Path) -> None:
    file = shared_data / "retinamnist" / "retinamnist-train-val.npz"
    table = read("npz", file).table
    table = Table(tuple(one for n, one in enumerate(table) if n % 20 == 0))
    plan = Plan.prepared_already(size_px=28, image_format="png")
    report = prepare(
        table, published_split(table, "published_split"), tmp_path / "records", plan=plan
    )
    assert report.records == {"train": 54, "validation": 6}
    with np.load(file) as arrays:
        originals = arrays["train_images"]
    train = TrainingData.open(tmp_path / "records").part("train")
    for index in range(len(train)):
        pixels, _, name = train.picture(index)
        assert (pixels == originals[int(name.split("/")[1])]).all()


def test_the_number_of_workers_does_not_change_a_byte(drawn_table: Table, tmp_path: Path) -> None:
    split = make_split(drawn_table, seed=0)
    plan = Plan.usual(size_px=64, records_per_shard=7)
    for workers in (1, 2):
        prepare(drawn_table, split, tmp_path / str(workers), plan=plan, workers=workers)
    files = sorted(path.name for path in (tmp_path / "1").iterdir())
    assert "train-00002.tfrecord" in files
    for name in files:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


class _EndsWhoReadsIt(dict[str, str]):
    """Ends the process that unpickles it, as the kernel does where memory is short."""

    def __reduce__(self) -> tuple[object, ...]:
        return signal.raise_signal, (signal.SIGKILL,)


@pytest.mark.timeout(120)
def test_a_process_that_is_ended_ends_the_preparation(drawn_table: Table, tmp_path: Path) -> None:
    first, *others = drawn_table
    table = Table((replace(first, extra=_EndsWhoReadsIt()), *others))
    plan = Plan.usual(size_px=64)
    with pytest.raises(DataError, match="was ended, most likely for memory; give fewer --workers"):
        prepare(table, make_split(table, seed=0), tmp_path / "records", plan=plan, workers=2)
    assert not (tmp_path / "records" / "manifest.json").exists()


def test_a_folder_with_other_files_is_refused_and_one_of_ours_is_renewed(
    drawn_table: Table, tmp_path: Path
) -> None:
    split = make_split(drawn_table, seed=0)
    plan = Plan.usual(size_px=64, records_per_shard=2)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").touch()
    with pytest.raises(DataError, match=r"holds other files \(chapter1.tex\)"):
        prepare(drawn_table, split, tmp_path / "thesis", plan=plan)
    prepare(drawn_table, split, tmp_path / "records", plan=plan)
    (tmp_path / "records" / "manifest.json").unlink()  # as a run that was cut off leaves it
    prepare(drawn_table, split, tmp_path / "records", plan=replace(plan, records_per_shard=99))
    assert len(list((tmp_path / "records").glob("*.tfrecord"))) == 3


def held(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.*")}


def test_records_of_other_data_are_not_overwritten_without_a_word(
    drawn_table: Table, tmp_path: Path
) -> None:
    split = make_split(drawn_table, seed=0)
    plan = Plan.usual(size_px=64)
    folder = tmp_path / "records"
    prepare(drawn_table, split, folder, plan=plan)
    before = held(folder)
    eyes = ("seed0", "seed1", "seed2")
    fewer = Table(tuple(one for one in drawn_table if one.patient in eyes))
    other = make_split(fewer, seed=0)
    for table, division, way, sentence in (
        (fewer, other, plan, "holds records of another table; name a new folder, or"),
        (drawn_table, make_split(drawn_table, seed=9), plan, "holds records of another split"),
        (drawn_table, split, replace(plan, size_px=96), "prepared in another way"),
        (drawn_table, split, replace(plan, seed=3), "prepared in another way"),
    ):
        with pytest.raises(DataError, match=sentence) as caught:
            prepare(table, division, folder, plan=way)
        assert "--replace" not in caught.value.anonymous
        assert held(folder) == before
    # The same again is the same, and other data where that is meant.
    prepare(drawn_table, split, folder, plan=plan)
    assert held(folder) == before
    prepare(fewer, other, folder, plan=plan, replace=True)
    assert len(qc_rows(folder)) == 15
    assert sum(len(part) for part in TrainingData.open(folder).parts.values()) == 15
    (folder / "manifest.json").write_text("{")
    with pytest.raises(DataError, match=r"holds a manifest.json that cannot be read"):
        prepare(drawn_table, split, folder, plan=plan)


def test_records_stay_whole_until_the_new_ones_are(drawn_table: Table, tmp_path: Path) -> None:
    split = make_split(drawn_table, seed=0)
    folder = tmp_path / "records"
    prepare(drawn_table, split, folder, plan=Plan.usual(size_px=64))
    before = held(folder)

    def interrupted(done: int, _total: int) -> None:
        if done == 20:
            raise KeyboardInterrupt

    other = Plan.usual(size_px=96)
    with pytest.raises(KeyboardInterrupt):
        prepare(drawn_table, split, folder, plan=other, replace=True, progress=interrupted)
    assert held(folder) == before
    for one in drawn_table:
        Path(one.path).unlink()
    with pytest.raises(DataError, match=r"could be used: 30 unreadable; .*records is as it was"):
        prepare(drawn_table, split, folder, plan=other, replace=True)
    assert held(folder) == before
    with pytest.raises(DataError, match=r"empty/qc.csv says why for each"):
        prepare(drawn_table, split, tmp_path / "empty", plan=other)
    assert [path.name for path in (tmp_path / "empty").iterdir()] == ["qc.csv"]
    assert {row["status"] for row in qc_rows(tmp_path / "empty")} == {"unreadable"}


def test_records_that_somebody_else_wrote_are_other_files(
    drawn_table: Table, tmp_path: Path
) -> None:
    theirs = write_bytes(tmp_path / "records" / "train-00000-of-00010.tfrecord", b"theirs")
    write_bytes(tmp_path / "records" / "eyes.tfrecord", b"theirs")
    with pytest.raises(DataError, match="holds other files"):
        prepare(
            drawn_table,
            make_split(drawn_table, seed=0),
            theirs.parent,
            plan=Plan.usual(size_px=64),
            replace=True,
        )
    assert theirs.read_bytes() == b"theirs"


@pytest.mark.parametrize(
    "wrong", [{"image_format": "gif"}, {"size_px": 4}, {"records_per_shard": 0}]
)
def test_plans_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(DataError):
        Plan(**wrong)


def test_a_row_that_an_array_lacks_is_named(shared_data: Path) -> None:
    file = shared_data / "retinamnist" / "retinamnist-train-val.npz"
    one = read("npz", file).table.photographs[0]
    preparation = Plan.prepared_already(size_px=28).preparation()
    for path, text in ((f"{file}#train/9999", "no row 9999"), (f"{file}#test/1", "test_images")):
        with pytest.raises(DataError, match=text):
            prepared_pixels(replace(one, path=path), preparation)
    with pytest.raises(DataError, match="has changed"):
        prepared_pixels(replace(one, sha256="0" * 64), preparation)
