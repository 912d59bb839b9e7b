"""Writes tests/data/tiny-model and tiny-prepared: packages of a few kilobytes for the tests.

    .venv-training/bin/python tests/data/make_tiny_model.py
    .venv-training/bin/python tests/data/make_tiny_model.py --saved-model FOLDER   # its twin

The network has the shape of the real ones (uint8 pixels in, rescaling inside, a last feature
map, global average pooling, dense layers) and seeded random weights: its grades mean nothing.
tiny-model takes photographs; tiny-prepared takes prepared images of 28 pixels, without steps
and without a gate.
"""

import hashlib
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

SIZE_PX = 64
PREPARED_PX = 28
CHANNELS = 8
TARGET = Path(__file__).parent / "tiny-model"
PREPARED = Path(__file__).parent / "tiny-prepared"
sys.path.insert(0, str(Path(__file__).parents[2]))

from inference_image.contract import GRADE_LABELS  # noqa: E402


def saved_model_twin(target: Path) -> None:
    """The same network and description, with a SavedModel in place of the `.tflite` file."""
    module = build()[0]
    tf.saved_model.save(module, str(target / "model" / "1"), signatures=module.serve)
    shutil.copy(TARGET / "head.npz", target)
    document = json.loads((TARGET / "model.json").read_text(encoding="utf-8"))
    document["files"] = {}
    for path in sorted(path for path in target.rglob("*") if path.is_file()):
        data = path.read_bytes()
        document["files"][path.relative_to(target).as_posix()] = {
            "sha256": hashlib.sha256(data).hexdigest(),
            "size_bytes": len(data),
        }
    (target / "model.json").write_text(json.dumps(document), encoding="utf-8")


def main() -> None:
    """Convert and describe both packages."""
    steps = [{"step": "crop_to_fundus", "min_radius_px": 32}, {"step": "resize_area"}]
    taken = {"input_size_px": SIZE_PX, "preprocessing": steps, "quality_gate": {}}
    write(TARGET, "tiny-test", taken)
    taken = {"input_size_px": PREPARED_PX, "preprocessing": [], "quality_gate": None}
    write(PREPARED, "tiny-prepared", taken)


def build(size_px: int = SIZE_PX) -> tuple[tf.Module, list[np.ndarray], list[np.ndarray]]:
    """The network with seeded weights, and those of its head."""
    generator = np.random.default_rng(7)
    filters = [
        tf.constant(generator.normal(0, 0.2, (4, 4, before, after)), tf.float32)
        for before, after in ((3, 6), (6, CHANNELS))
    ]
    kernels = [
        generator.normal(0, 0.6, shape).astype(np.float32) for shape in ((CHANNELS, 8), (8, 5))
    ]
    biases = [generator.normal(0, 0.3, n).astype(np.float32) for n in (8, 5)]

    @tf.function(input_signature=[tf.TensorSpec((1, size_px, size_px, 3), tf.uint8, name="image")])
    def serve(image: tf.Tensor) -> dict[str, tf.Tensor]:
        x = tf.cast(image, tf.float32) / 127.5 - 1.0
        for weights in filters:
            x = tf.nn.relu(tf.nn.conv2d(x, weights, strides=4, padding="SAME"))
        pooled = tf.reduce_mean(x, axis=(1, 2))
        hidden = tf.nn.relu(pooled @ kernels[0] + biases[0])
        return {"logits": hidden @ kernels[1] + biases[1], "features": x}

    module = tf.Module()
    module.serve = serve
    return module, kernels, biases


def write(target: Path, model_id: str, taken: dict[str, object]) -> None:
    """The files of a package; `taken` are the keys that say what it takes."""
    module, kernels, biases = build(int(str(taken["input_size_px"])))
    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [module.serve.get_concrete_function()], module
    )
    target.mkdir(exist_ok=True)
    (target / "model.tflite").write_bytes(converter.convert())
    np.savez(
        target / "head.npz",
        kernel_0=kernels[0],
        bias_0=biases[0],
        kernel_1=kernels[1],
        bias_1=biases[1],
    )
    files = {}
    for name in ("head.npz", "model.tflite"):
        data = (target / name).read_bytes()
        files[name] = {"sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)}
    document = {
        "schema_version": 1,
        "id": model_id,
        "task": "grade5",
        "input_size_px": taken["input_size_px"],
        "labels": list(GRADE_LABELS),
        "preprocessing": taken["preprocessing"],
        "quality_gate": taken["quality_gate"],
        "operating_points": [
            {"name": "high_sensitivity", "threshold": 0.1},
            {"name": "high_specificity", "threshold": 0.9},
        ],
        "default_operating_point": "high_sensitivity",
        "temperature": 1.5,
        "outputs": {"logits": "logits", "feature_map": "features"},
        "head_file": "head.npz",
        "files": files,
        "notice": "Random weights for tests: the grades mean nothing.",
        "metrics": None,
        "provenance": {"script": "tests/data/make_tiny_model.py", "tensorflow": tf.__version__},
        "licence": "Apache-2.0",
        "intended_use": "Tests of the inference service only.",
        "network": {"name": "tiny", "alpha": None, "parameters": 0},
    }
    (target / "model.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--saved-model"]:
        saved_model_twin(Path(sys.argv[2]))
    else:
        main()
