"""The input pipeline: each record once an epoch, seeded, and bad records named before training."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dr_training.data.faults import DataError
from dr_training.data.pipeline import Augmentation, Part, TrainingData
from dr_training.data.preparation import Plan, encode_picture, prepare
from dr_training.data.records import RecordError, RecordFile, RecordWriter, encode_example
from dr_training.data.splits import Split, make_split
from dr_training.data.table import Table

SIDE = 64


@pytest.fixture
def records(drawn_table: Table, tmp_path: Path) -> Path:
    split = make_split(drawn_table, seed=0)
    plan = Plan.usual(size_px=SIDE, records_per_shard=6)
    prepare(drawn_table, split, tmp_path / "records", plan=plan)
    return tmp_path / "records"


@pytest.fixture
def train(records: Path) -> Part:
    return TrainingData.open(records).part("train")


def example(**changes: object) -> dict[str, list[bytes] | list[int]]:
    features = {
        "image/encoded": [encode_picture(np.zeros((SIDE, SIDE, 3), np.uint8), "png")],
        "image/format": [b"png"],
        "image/class/label": [2],
        "image/height": [SIDE],
        "image/width": [SIDE],
        "image/id": [b"x"],
        "image/patient": [b"p"],
        "image/sha256": [b"0"],
        **changes,
    }
    return {key: value for key, value in features.items() if value is not None}


def rewritten(folder: Path, features: dict[str, list[bytes] | list[int]], place: int = 1) -> Path:
    """The first shard of training with one record replaced."""
    path = folder / "train-00000.tfrecord"
    old = list(RecordFile(path))
    with RecordWriter(path) as writer:
        for index, record in enumerate(old):
            writer.write(encode_example(features) if index == place else record)
    return folder


def test_a_part_knows_whose_its_pictures_are_and_which_are_nobodys(records: Path) -> None:
    assert set(Counter(TrainingData.open(records).part("train").patients).values()) == {5}
    part = TrainingData.open(rewritten(records, example(**{"image/patient": [b""]}))).part("train")
    assert part.patients.count("") == 1
    # For the folds of a head: a picture of nobody's stays with its own copies.
    assert part.owners[part.patients.index("")] == "0"


def test_an_epoch_visits_every_record_once_in_an_order_of_its_own(train: Part) -> None:
    orders = []
    for epoch in (0, 1, 0):
        batches = list(train.batches(6, seed=5, epoch=epoch))
        orders.append([name for batch in batches for name in batch.ids])
    assert len(set(orders[0])) == len(train) == 20
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0] == orders[2] != orders[1]


def test_the_same_seed_gives_the_same_pixels_on_any_number_of_threads(train: Part) -> None:
    def pixels(threads: int, seed: int) -> np.ndarray:
        augment = Augmentation()
        batches = train.batches(8, augment=augment, seed=seed, threads=threads)
        return np.concatenate([batch.pixels for batch in batches])

    assert (pixels(1, 3) == pixels(3, 3)).all()
    assert (pixels(1, 3) != pixels(1, 4)).any()


def test_the_last_batch_is_kept_dropped_or_filled(train: Part) -> None:
    assert [len(batch.grades) for batch in train.batches(8)] == [8, 8, 4]
    assert [len(batch.grades) for batch in train.batches(8, drop_remainder=True)] == [8, 8]
    filled = list(train.batches(8, fill=True))
    assert [len(batch.grades) for batch in filled] == [8, 8, 8]
    assert sum(float(batch.weights.sum()) for batch in filled) == 20
    with pytest.raises(DataError, match="at least one picture"):
        next(train.batches(0))


def test_records_sorted_by_grade_never_give_batches_of_one_grade(tmp_path: Path) -> None:
    # A shuffle buffer of 256 over five runs of 1,000 gave 29 % such batches.
    encoded = encode_picture(np.zeros((16, 16, 3), np.uint8), "png")
    with RecordWriter(tmp_path / "train-00000.tfrecord") as writer:
        for number in range(2000):
            features = example(
                **{
                    "image/class/label": [number // 400],
                    "image/sha256": [b"%d" % number],
                    "image/encoded": [encoded],
                }
            )
            writer.write(encode_example(features))
    shards = [{"file": "train-00000.tfrecord", "records": 2000}]
    manifest = {
        "schema_version": 1,
        "size_px": 16,
        "preprocessing": [],
        "parts": {"train": {"shards": shards}},
    }
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    part = TrainingData.open(tmp_path).part("train")
    single = [len(set(batch.grades.tolist())) == 1 for batch in part.batches(20, seed=1)]
    assert len(single) == 100
    assert np.mean(single) < 0.01


def test_flips_and_colours_change_a_picture_but_not_what_lies_outside_the_disc(
    train: Part,
) -> None:
    plain, grade, name = train.picture(0)
    turned = 0
    for seed in range(12):
        pixels, other_grade, other_name = train.picture(
            0, Augmentation(), np.random.default_rng(seed)
        )
        assert (other_grade, other_name) == (grade, name)
        assert pixels.shape == plain.shape
        assert pixels.dtype == np.uint8
        assert (pixels[0, 0] == 0).all()
        assert 0.6 < pixels.mean() / plain.mean() < 1.5
        turned += np.abs(pixels.astype(int) - plain).mean() > 5
    assert turned >= 6


def test_no_augmentation_at_all_is_the_picture_itself() -> None:
    still = Augmentation(flip=False, brightness=0, contrast=0, saturation=0, hue_degrees=0)
    matrix = np.array(still.colour_matrix(np.random.default_rng(0))).reshape(3, 4)
    assert matrix == pytest.approx(np.eye(3, 4), abs=1e-12)


def test_saturation_alone_keeps_the_brightness_and_hue_alone_keeps_grey() -> None:
    luma = np.array([0.299, 0.587, 0.114])
    for augmentation in (
        Augmentation(brightness=0, contrast=0, hue_degrees=0, saturation=0.5),
        Augmentation(brightness=0, contrast=0, hue_degrees=30, saturation=0),
    ):
        matrix = np.array(augmentation.colour_matrix(np.random.default_rng(1))).reshape(3, 4)
        assert luma @ matrix[:, :3] == pytest.approx(luma, abs=2e-3)
        assert matrix[:, :3] @ np.ones(3) == pytest.approx(np.ones(3), abs=5e-3)


def test_a_damaged_record_is_named_before_training(records: Path) -> None:
    path = records / "train-00001.tfrecord"
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)
    with pytest.raises(RecordError, match=r"train-00001\.tfrecord record 4 is damaged"):
        TrainingData.open(records)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"image/class/label": None, "label": [3]},
            r"record 1 has no image/class/label; it has image/encoded.*label",
        ),
        ({"image/encoded": None, "image/raw": [b""]}, r"record 1 has no image/encoded"),
        ({"image/class/label": [b"2"]}, r"record 1: image/class/label must hold one int"),
        ({"image/class/label": [1, 2]}, r"record 1: image/class/label must hold one int"),
        ({"image/class/label": [5]}, r"record 1: grade 5 is not one of 0 to 4"),
        ({"image/format": [b"raw"]}, r"record 1: pictures are jpeg or png"),
    ],
)
def test_a_wrong_feature_is_an_error_and_not_grade_0(
    records: Path, changes: dict[str, object], text: str
) -> None:
    with pytest.raises(RecordError, match=r"train-00000\.tfrecord " + text):
        TrainingData.open(rewritten(records, example(**changes)))


@pytest.mark.parametrize(
    ("encoded", "text"),
    [
        (b"no picture", "record 1: its picture cannot be decoded"),
        (encode_picture(np.zeros((8, 8, 3), np.uint8), "png"), r"record 1: its picture is \(8, 8"),
    ],
)
def test_a_picture_that_does_not_fit_is_named(records: Path, encoded: bytes, text: str) -> None:
    part = TrainingData.open(rewritten(records, example(**{"image/encoded": [encoded]})))
    with pytest.raises(RecordError, match=text):
        part.part("train").picture(1)


def test_training_on_leaking_patients_is_refused(records: Path, drawn_table: Table) -> None:
    features = example(**{"image/patient": [b"seed0"]})
    owner = TrainingData.open(records)
    assert "seed0" in {one.patient for one in drawn_table}
    place = next(
        name
        for name, part in owner.parts.items()
        if any("seed0" in part.picture(index)[2] for index in range(len(part)))
    )
    other = "train" if place != "train" else "validation"
    path = records / f"{other}-00000.tfrecord"
    old = list(RecordFile(path))
    with RecordWriter(path) as writer:
        for record in [encode_example(features), *old[1:]]:
            writer.write(record)
    with pytest.raises(DataError, match=r"patient seed0 is in .* and .*"):
        TrainingData.open(records)


def test_a_split_that_leaks_makes_no_records(drawn_table: Table, tmp_path: Path) -> None:
    parts = {one.id: "train" if one.grade else "test" for one in drawn_table}
    leaking = Split(parts=parts, table_digest=drawn_table.digest, decided={})
    with pytest.raises(DataError, match="patient seed0 is in test and train"):
        prepare(drawn_table, leaking, tmp_path / "records", plan=Plan.usual(size_px=SIDE))
    assert not (tmp_path / "records").exists()


def test_a_manifest_that_is_none_or_misses_shards_is_named(records: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="make records with `dr data prepare`"):
        TrainingData.open(tmp_path)
    (records / "train-00003.tfrecord").unlink()
    with pytest.raises(RecordError, match=r"train-00003\.tfrecord cannot be read"):
        TrainingData.open(records)
    with RecordWriter(records / "train-00003.tfrecord") as writer:
        writer.write(encode_example(example()))
    with pytest.raises(RecordError, match=r"holds 1 records; the manifest says 5"):
        TrainingData.open(records)
    (records / "manifest.json").write_text("{}")
    with pytest.raises(DataError, match="'schema_version' is missing"):
        TrainingData.open(records)
    (records / "manifest.json").write_text("{")
    with pytest.raises(DataError, match="is not JSON"):
        TrainingData.open(records)


def test_a_part_that_is_not_there_is_named(records: Path) -> None:
    with pytest.raises(DataError, match="it has train, validation, test"):
        TrainingData.open(records).part("holdout")


def test_workers_share_batches_and_a_resumed_epoch_leaves_out_what_was_done(train: Part) -> None:
    whole = list(train.batches(4, seed=3, epoch=2, drop_remainder=True))
    shares = [
        list(train.batches(4, seed=3, epoch=2, drop_remainder=True, share=(worker, 2)))
        for worker in range(2)
    ]
    for index, batch in enumerate(whole):
        assert batch.ids == shares[0][index].ids + shares[1][index].ids
        assert all(len(one[index].ids) == len(one[index].weights) == 2 for one in shares)
    rest = list(train.batches(4, seed=3, epoch=2, drop_remainder=True, first=2))
    assert [batch.ids for batch in rest] == [batch.ids for batch in whole[2:]]
    np.testing.assert_array_equal(rest[0].pixels, whole[2].pixels)
    filled = [list(train.batches(8, fill=True, share=(worker, 2))) for worker in range(2)]
    assert sum(float(batch.weights.sum()) for one in filled for batch in one) == len(train)
    with pytest.raises(DataError, match="batches of 4 cannot be shared by 3 workers"):
        next(train.batches(4, drop_remainder=True, share=(0, 3)))
    with pytest.raises(DataError, match="cannot be shared by 2 workers"):
        next(train.batches(4, share=(0, 2)))
