"""Records against TensorFlow's own reader and writer.

Runs in the training environment, as `test_training_slow` does.
"""

import json
from pathlib import Path

import pytest

from tests.slow.test_training_slow import _run, training_python

__all__ = ["training_python"]


@pytest.mark.timeout(600)
def test_tensorflow_reads_our_records_and_we_read_tensorflow_s(
    training_python: Path, repository: Path, tmp_path: Path
) -> None:
    code = f"""
import json
from pathlib import Path
import numpy as np, tensorflow as tf
from dr_training.data.pipeline import Augmentation, TrainingData
from dr_training.data.preparation import Plan, prepare
from dr_training.data.readers import read
from dr_training.data.records import RecordFile, decode_example
from dr_training.data.splits import make_split
from dr_training.drawing import draw_fundus

folder = Path({str(tmp_path)!r})
(folder / "drawn").mkdir()
for seed in range(3):
    for grade in range(5):
        data = draw_fundus(seed, grade, 200).jpeg_bytes()
        (folder / "drawn" / f"grade{{grade}}-seed{{seed}}.jpg").write_bytes(data)
table = read("drawn", folder / "drawn").table
split = make_split(table, seed=0)
prepare(table, split, folder / "records", plan=Plan.usual(size_px=64))
part = TrainingData.open(folder / "records").part("train")
keys = {{
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/format": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    "image/height": tf.io.FixedLenFeature([], tf.int64),
    "image/width": tf.io.FixedLenFeature([], tf.int64),
    "image/id": tf.io.FixedLenFeature([], tf.string),
    "image/patient": tf.io.FixedLenFeature([], tf.string),
    "image/sha256": tf.io.FixedLenFeature([], tf.string),
}}
read_by_tf, widest = [], 0
path = folder / "records" / "train-00000.tfrecord"
for index, record in enumerate(tf.data.TFRecordDataset(str(path))):
    row = tf.io.parse_single_example(record, keys)
    pixels, grade, name = part.picture(index)
    read_by_tf.append([int(row["image/class/label"]) == grade,
                       row["image/id"].numpy().decode() == name])
    decoded = tf.io.decode_jpeg(row["image/encoded"], dct_method="INTEGER_ACCURATE").numpy()
    inside = pixels.any(axis=2)
    widest = max(widest, int(np.abs(decoded[inside].astype(int) - pixels[inside]).max()))
example = tf.train.Example(features=tf.train.Features(feature={{
    "a": tf.train.Feature(int64_list=tf.train.Int64List(value=[3, -1])),
    "b": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"x", b""])),
    "c": tf.train.Feature(float_list=tf.train.FloatList(value=[0.5])),
}}))
with tf.io.TFRecordWriter(str(folder / "theirs")) as writer:
    writer.write(example.SerializeToString())
theirs = decode_example(RecordFile(folder / "theirs")[0])
dataset = part.as_dataset(4, augment=Augmentation(), seed=1)
shapes = [tuple(pixels.shape) for pixels, _, _ in dataset]
print(json.dumps([read_by_tf, widest, theirs["a"], [v.decode() for v in theirs["b"]],
                  sorted(theirs), shapes]))
"""
    found = json.loads(_run(training_python, "-c", code, cwd=repository).splitlines()[-1])
    rows, widest, numbers, texts, names, shapes = found
    assert rows == [[True, True]] * len(rows)
    assert len(rows) == 5
    assert widest <= 1
    assert (numbers, texts, names) == ([3, -1], ["x", ""], ["a", "b"])
    assert shapes == [[4, 64, 64, 3], [1, 64, 64, 3]]


@pytest.mark.timeout(600)
def test_opencv_and_pillow_give_the_same_training_pictures(
    training_python: Path, repository: Path
) -> None:
    code = """
import json, sys
import numpy as np
from dr_training.data import pipeline
from dr_training.data.preparation import encode_picture
from dr_training.drawing import draw_fundus
pixels = draw_fundus(1, 3, 299).image
rng = np.random.default_rng(0)
matrices = [None] + [pipeline.Augmentation().colour_matrix(rng) for _ in range(20)]
def pictures():
    return np.stack([
        pipeline.decode_picture(encode_picture(pixels, form), matrix=matrix, mirror=mirror)
        for form in ("jpeg", "png") for matrix in matrices for mirror in (False, True)
    ]).astype(int)
fast = pictures()
assert pipeline._opencv() is not None
pipeline._opencv.cache_clear()
sys.modules["cv2"] = None
slow = pictures()
assert pipeline._opencv() is None
gap = np.abs(fast - slow).reshape(2, len(matrices), -1)
print(json.dumps([int(gap[:, 0].max()), int(gap[:, 1:].max())]))
"""
    plain, recoloured = json.loads(
        _run(training_python, "-c", code, cwd=repository).split("\n")[-2]
    )
    assert plain == 0
    assert recoloured <= 1
