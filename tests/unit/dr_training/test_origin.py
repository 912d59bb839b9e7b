"""Photographs that a package was trained on are not judged as if they were new to it."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dr_training.data.faults import DataError
from dr_training.data.preparation import MANIFEST, Plan, prepare
from dr_training.data.readers import read
from dr_training.data.splits import Split, make_split, read_split, write_split
from dr_training.data.table import Photograph, Table, read_table, write_table
from dr_training.origin import Judged, origin_of, refuse_seen
from inference_image.model_spec import ModelSpec, load_model_spec

PATIENTS = 30


@pytest.fixture
def table() -> Table:
    """Sixty photographs of thirty patients."""
    return Table(
        tuple(
            Photograph(
                id=f"photograph-{n}",
                patient=f"patient-{n // 2}",
                grade=n // 2 % 5,
                sha256=f"{n:064x}",
                width_px=1,
                path=f"/secret-name-{n}.jpg",
            )
            for n in range(2 * PATIENTS)
        )
    )


@pytest.fixture
def split(table: Table) -> Split:
    return make_split(table, seed=1)


def package(repository: Path, record: Any) -> ModelSpec:
    """The tiny model with this record of its training."""
    spec = load_model_spec(repository / "tests" / "data" / "tiny-model")
    return replace(spec, raw={**spec.raw, "provenance": {"records": record}})


def record_of(table: Table, split: Split) -> dict[str, Any]:
    manifest = {
        "table_sha256": table.digest,
        "split_sha256": split.digest,
        "train_sha256": split.digest_of("train"),
    }
    return origin_of(manifest, manifest_sha256="5" * 64, measured_on="test")


def moved(split: Split, *, between: tuple[str, str]) -> Split:
    """The same split with two parts swapped."""
    names = dict(zip(between, reversed(between), strict=True))
    parts = {one: names.get(part, part) for one, part in split.parts.items()}
    return Split(parts=parts, table_digest=split.table_digest, decided={})


def test_the_other_parts_of_the_training_s_own_split_are_new(
    repository: Path, table: Table, split: Split, tmp_path: Path
) -> None:
    spec = package(repository, record_of(table, split))
    # As read from files, whatever the order of their rows.
    write_table(table, tmp_path / "table.csv")
    write_split(split, tmp_path / "split.csv")
    again = read_table(tmp_path / "table.csv")
    head, *rows = (tmp_path / "split.csv").read_text().splitlines()
    (tmp_path / "split.csv").write_text("\n".join([head, *reversed(rows)]) + "\n")
    for part in ("test", "validation"):
        judged = Judged(table=again, split=read_split(tmp_path / "split.csv", again), part=part)
        assert refuse_seen(spec, judged) == ""
        assert len(judged.photographs) == sum(split.counts(table)[part])


def test_what_a_package_was_trained_on_is_refused(
    repository: Path, table: Table, split: Split
) -> None:
    spec = package(repository, record_of(table, split))
    for judged, sentence in (
        (Judged(table=table, split=None, part=None), "on photographs of this very table: name the"),
        (Judged(table=table, split=make_split(table, seed=2), part="test"), "on another split of"),
        (
            Judged(table=table, split=moved(split, between=("train", "test")), part="test"),
            "another",
        ),
        (Judged(table=table, split=split, part="train"), "on the part train of this split"),
    ):
        with pytest.raises(DataError, match=sentence) as caught:
            refuse_seen(spec, judged)
        assert "\n" not in str(caught.value)
        assert not any(word in str(caught.value) for word in ("photograph-", "patient-", "secret"))


def test_what_cannot_be_known_is_said(repository: Path, table: Table, split: Split) -> None:
    known = record_of(table, split)
    test = Judged(table=table, split=split, part="test")
    other = Table(table.photographs[:-2])
    # A package of before, or of elsewhere; records of before.
    for record, judged, sentence in (
        (None, test, "has no record of the table and split"),
        ("records", test, "has no record of the table and split"),
        ({**known, "table_sha256": None}, test, "has no record of the table and split"),
        ({**known, "train_sha256": None, "split_sha256": None}, test, "no record of the split"),
        (known, Judged(table=other, split=None, part=None), "trained on another table"),
        (
            known,
            Judged(table=table, split=moved(split, between=("validation", "test")), part="test"),
            "chose its epoch and thresholds may be among these",
        ),
    ):
        assert sentence in refuse_seen(package(repository, record), judged)
    bare = load_model_spec(repository / "model_artifacts" / "mobilenet-demo")
    assert "has no record" in refuse_seen(bare, test)


def test_records_carry_the_digests_of_their_split_and_a_package_names_nobody(
    tmp_path: Path,
) -> None:
    for seed, grade in itertools.product(range(3), range(5)):
        path = tmp_path / "drawn" / f"grade{grade}-seed{seed}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((32, 32, 3), 5 * seed + grade, np.uint8)).save(path)
    table = read("drawn", tmp_path / "drawn").table
    split = make_split(table, seed=1)
    prepare(table, split, tmp_path / "records", plan=Plan.prepared_already(size_px=32))
    manifest = json.loads((tmp_path / "records" / MANIFEST).read_text())
    record = origin_of(manifest, manifest_sha256="5" * 64, measured_on="test")
    assert record["table_sha256"] == table.digest
    assert record["split_sha256"] == split.digest
    assert record["train_sha256"] == split.digest_of("train") != split.digest_of("test")
    words = ("trained_on", "chosen_on", "measured_on")
    assert [record.pop(name) for name in words] == ["train", "validation", "test"]
    assert all(len(bytes.fromhex(value)) == 32 for value in record.values())
