"""What a training writes into its package: whose intervals, and of which table and split."""

import json
from pathlib import Path

import pytest

from dr_training.data.preparation import MANIFEST
from dr_training.data.splits import read_split
from dr_training.data.table import read_table
from dr_training.origin import Judged, refuse_seen
from inference_image.model_spec import file_sha256, load_model_spec
from tests.slow.test_training_slow import _run, training_python

__all__ = ["training_python"]

TRAINED = """
import json
from pathlib import Path
import numpy as np
from PIL import Image
from dr_cli import training
from dr_training.data.preparation import Plan, prepare
from dr_training.data.readers import read
from dr_training.data.splits import make_split, write_split
from dr_training.data.table import write_table
folder = Path({folder!r})
rng = np.random.default_rng(0)
(folder / "drawn").mkdir()
for seed in range(30):
    for grade in range(5):
        pixels = (40 * grade + rng.integers(0, 60, (16, 16, 3))).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "drawn" / f"grade{{grade}}-seed{{seed}}.png")
table = read("drawn", folder / "drawn").table
split = make_split(table, seed=1)
write_table(table, folder / "table.csv")
write_split(split, folder / "split.csv")
plan = Plan.prepared_already(size_px=16, image_format="png")
prepare(table, split, folder / "records", plan=plan)
code = training.train(
    records=str(folder / "records"), out=str(folder / "out"),
    plan={{"network": "small-resnet", "weights": "random", "epochs": 1, "batch_size": 16}},
    choices={{"strategy": "cpu"}},
)
assert code == 0
"""


@pytest.mark.timeout(1200)
def test_a_package_says_whose_its_intervals_are_and_where_it_comes_from(
    training_python: Path, repository: Path, tmp_path: Path
) -> None:
    said = _run(training_python, "-c", TRAINED.format(folder=str(tmp_path)), cwd=repository)
    package = tmp_path / "out" / "package"
    spec = load_model_spec(package)
    table = read_table(tmp_path / "table.csv")
    split = read_split(tmp_path / "split.csv", table)
    test = Judged(table=table, split=split, part="test")

    metrics = spec.raw["metrics"]
    patients = {one.patient for one in test.photographs}
    assert 1 < len(patients) < len(test.photographs) == metrics["photographs"]
    assert (metrics["interval_unit"], metrics["patients"]) == ("patients", len(patients))
    card = (package / "MODEL_CARD.md").read_text()
    assert f"n = {len(test.photographs)} photographs of {len(patients)} patients" in card

    record = spec.raw["provenance"]["records"]
    report = json.loads((tmp_path / "out" / "training.json").read_text())
    # As the gate of a training job knows the records.
    assert record["manifest_sha256"] == report["records_sha256"]
    assert record["manifest_sha256"] == file_sha256(tmp_path / "records" / MANIFEST)
    assert (record["table_sha256"], record["split_sha256"]) == (table.digest, split.digest)
    assert (record["trained_on"], record["measured_on"]) == ("train", "test")
    assert refuse_seen(spec, test) == ""

    # 25 photographs chose temperature and thresholds.
    few = [one for one in report["remarks"] if "chose temperature and thresholds" in one]
    assert len(few) == 1
    assert spec.raw["calibration"]["remarks"] == report["remarks"]
    assert all(f"note: {one}" in said for one in report["remarks"])
    assert f"- {few[0][:1].upper()}{few[0][1:]}." in card
    text = (package / "model.json").read_text()
    assert not any(name in text for one in table for name in (one.id, one.patient, one.sha256))
