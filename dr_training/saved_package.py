"""Puts a SavedModel in the place of a package's `.tflite`: what the TensorFlow image runs.

    >>> replace_by_saved_model(Path("model_artifacts/vgg19-saved"), network)

Weights are float32 and written once: `network.export` would write each twice.
"""

import json
from pathlib import Path
from typing import Final

import keras
import tensorflow as tf

from inference_image.model_spec import (
    MODEL_JSON,
    ModelSpec,
    file_sha256,
    load_model_spec,
    verify_files,
)

SAVED_MODEL: Final = "1"


def replace_by_saved_model(folder: Path, network: keras.Model) -> ModelSpec:
    """Rewrite the package in `folder`, whose description stays, to hold `network` as SavedModel.

    Args:
        network: from `networks.build_network`; pixels (n, S, S, 3) as 0..255.

    Raises:
        ModelPackageError: the result is not a package that the service would load.
    """
    document = json.loads((folder / MODEL_JSON).read_text("utf-8"))
    size_px = document["input_size_px"]

    @tf.function(  # type: ignore[untyped-decorator]
        input_signature=[tf.TensorSpec((None, size_px, size_px, 3), tf.float32, name="pixels")]
    )
    def serve(pixels: tf.Tensor) -> dict[str, tf.Tensor]:
        outputs = network(pixels, training=False)
        return {"logits": outputs["logits"], "features": outputs["features"]}

    module = tf.Module()
    # What the module holds is saved once.
    module.variables_of_network = network.variables
    module.serve = serve
    tf.saved_model.save(module, str(folder / SAVED_MODEL), signatures=serve)
    for name in document["files"]:
        if name.endswith(".tflite"):
            (folder / name).unlink()
    names = [name for name in document["files"] if (folder / name).is_file()]
    names += [
        path.relative_to(folder).as_posix()
        for path in sorted((folder / SAVED_MODEL).rglob("*"))
        if path.is_file()
    ]
    document["files"] = {
        name: {
            "sha256": file_sha256(folder / name),
            "size_bytes": (folder / name).stat().st_size,
        }
        for name in names
    }
    (folder / MODEL_JSON).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    spec = load_model_spec(folder)
    verify_files(spec, folder)
    return spec
