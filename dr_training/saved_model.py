"""Exports a Keras network as a SavedModel that holds each weight once.

    >>> write_saved_model(network, Path("model/1"), size_px=224)

`keras.Model.export` and `tf.saved_model.save(network)` write every weight twice here; a plain
`tf.Module` that owns the variables writes it once. The signature `serving_default` takes `pixels`
(float32 RGB, 0..255, any batch) and names its outputs.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import keras
import tensorflow as tf

from dr_training.quantise import FEATURES, LOGITS, quiet

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


def raw_weight_bytes(network: keras.Model) -> int:
    """Bytes of all variables of a network."""
    return sum(int(v.value.numpy().nbytes) for v in network.variables)
