"""Exports a Keras network as a SavedModel that holds each weight once, alone or in a package.

    >>> write_saved_model(network, Path("model/1"), size_px=224)
    >>> replace_by_saved_model(Path("out/trained/package"), network)

`keras.Model.export` and `tf.saved_model.save(network)` write every weight twice here; a plain
`tf.Module` that owns the variables writes it once. The signature `serving_default` takes `pixels`
(float32 RGB, 0..255, any batch) and names its outputs.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import keras
import tensorflow as tf

from dr_training.quantise import FEATURES, LOGITS, quiet
from inference_image.model_spec import (
    MODEL_JSON,
    ModelSpec,
    file_sha256,
    load_model_spec,
    verify_files,
)

# Folder of the SavedModel in a package.
SAVED_MODEL: Final = "1"
# Holds a random number for each export, and is not needed to load.
_FINGERPRINT: Final = "fingerprint.pb"

Outputs = Mapping[str, tf.Tensor]


def write_saved_model(
    network: keras.Model,
    folder: Path,
    *,
    size_px: int,
    outputs: Callable[[tf.Tensor], Outputs] | None = None,
) -> None:
    """Write `folder` (which must not exist) with signature `serving_default`.

    Args:
        network: its variables are what the SavedModel holds.
        folder: written beside itself and renamed, so that a half-written one never exists.
        size_px: side S of the input.
        outputs: pixels (n, S, S, 3) to outputs by name; when omitted, the `logits` and the
            `features` of a network from `networks.build_network`.

    Raises:
        FileExistsError: there is something at `folder`.
    """
    if folder.exists():
        raise FileExistsError(f"{folder} exists")

    def named(pixels: tf.Tensor) -> Outputs:
        answer = network(pixels, training=False)
        return {name: answer[name] for name in (LOGITS, FEATURES)}

    compute = outputs or named

    @tf.function(  # type: ignore[untyped-decorator]
        input_signature=[tf.TensorSpec((None, size_px, size_px, 3), tf.float32, name="pixels")]
    )
    def serve(pixels: tf.Tensor) -> Outputs:
        return dict(compute(pixels))

    module = tf.Module()
    module.weights = [variable.value for variable in network.variables]
    module.serve = serve
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with quiet():
            tf.saved_model.save(module, str(partial), signatures=module.serve)
        (partial / _FINGERPRINT).unlink(missing_ok=True)
        (partial / "assets").rmdir()
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def replace_by_saved_model(folder: Path, network: keras.Model) -> ModelSpec:
    """Rewrite the package in `folder`, whose description stays, to hold `network` as SavedModel.

    It takes the place of the `.tflite`: what the TensorFlow image runs, and `dr model quantise`
    starts from.

    Args:
        folder: of a package, as `export.write_package` writes it.
        network: from `networks`; pixels (n, S, S, 3) as 0..255.

    Raises:
        ModelPackageError: the result is not a package that the service would load.
    """
    document = json.loads((folder / MODEL_JSON).read_text("utf-8"))
    saved = folder / SAVED_MODEL
    # What an earlier training left there.
    shutil.rmtree(saved, ignore_errors=True)
    write_saved_model(network, saved, size_px=document["input_size_px"])
    for name in document["files"]:
        if name.endswith(".tflite"):
            (folder / name).unlink()
    names = [name for name in document["files"] if (folder / name).is_file()]
    names += [
        path.relative_to(folder).as_posix() for path in sorted(saved.rglob("*")) if path.is_file()
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


def raw_weight_bytes(network: keras.Model) -> int:
    """Bytes of all variables of a network."""
    return sum(int(v.value.numpy().nbytes) for v in network.variables)
