"""Writes a package with random weights: for latency, memory and cost measurements only.

    python -m dr_training.random_package --network vgg19 --out model_artifacts/vgg19-demo

The time of an inference does not depend on the values of the weights, and no trained VGG19 is
small enough to commit. The notice in each answer says that its grades mean nothing.
"""

import argparse
import os
import sys
from pathlib import Path

import numpy as np

from dr_training.export import PackageContent, environment, write_package
from dr_training.model_card import RANDOM_NOTICE
from dr_training.recipe import Recipe

SEED = 20_261_128
# Nothing can be chosen on data here; the even threshold promises nothing.
_OPERATING_POINT = {"name": "unvalidated", "threshold": 0.5, "chosen": "not: weights are random"}


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the process's exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m dr_training.random_package", description=__doc__
    )
    parser.add_argument("--network", required=True, choices=("mobilenet", "vgg19"))
    parser.add_argument("--out", type=Path, required=True, help="folder of the package")
    parser.add_argument("--id", default=None, help="model id (default: the folder's name)")
    parser.add_argument("--alpha", type=float, default=1.0, help="width of a MobileNet")
    parser.add_argument("--input-size-px", type=int, default=224)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument(
        "--saved-model",
        action="store_true",
        help="hold a float32 SavedModel for the TensorFlow image, not a quantised .tflite",
    )
    options = parser.parse_args(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        import tensorflow as tf
    except ImportError:
        print(
            "This needs TensorFlow: install the extra 'training' (requirements/training.txt).",
            file=sys.stderr,
        )
        return 1
    # One thread: the calibration then adds in one order, and the file is the same each time.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    model_id = options.id or options.out.name
    write_random_package(
        network_name=options.network,
        out=options.out,
        model_id=model_id,
        alpha=options.alpha,
        input_size_px=options.input_size_px,
        seed=options.seed,
        saved_model=options.saved_model,
    )
    return 0


def write_random_package(
    *,
    network_name: str,
    out: Path,
    model_id: str,
    alpha: float,
    input_size_px: int,
    seed: int,
    saved_model: bool = False,
) -> None:
    """Build, quantise and write; reports on standard output."""
    import keras

    from dr_training.drawing import draw_fundus
    from dr_training.networks import build_network
    from dr_training.quantise import convert

    keras.utils.set_random_seed(seed)
    recipe = Recipe(network=network_name, alpha=alpha, input_size_px=input_size_px)
    network = build_network(network_name, input_size_px=input_size_px, alpha=alpha)
    _fill_at_random(network, seed)
    preparation = recipe.preparation()
    calibration = np.stack(
        [preparation(draw_fundus(index, index % 5, 480).image).pixels for index in range(10)]
    )
    model = b""
    if not saved_model:
        model, _ = convert(network, size_px=input_size_px, calibration=calibration)
    parameters = int(network.count_params())
    size = f" --alpha {alpha:g}" if alpha != 1 else ""
    size += f" --input-size-px {input_size_px}" if input_size_px != Recipe().input_size_px else ""
    size += " --saved-model" if saved_model else ""
    command = (
        f"python -m dr_training.random_package --network {network_name}{size} "
        f"--out model_artifacts/{model_id}"
    )
    spec = write_package(
        PackageContent(
            id=model_id,
            network={"name": network_name, "alpha": alpha, "parameters": parameters},
            input_size_px=input_size_px,
            preprocessing=recipe.preprocessing(),
            quality_gate=recipe.quality_gate(),
            operating_points=[_OPERATING_POINT],
            default_operating_point=str(_OPERATING_POINT["name"]),
            temperature=1.0,
            notice=RANDOM_NOTICE,
            metrics=None,
            provenance={
                "trained_on": None,
                "command": command,
                "seed": seed,
                "environment": environment(threads=1),
            },
            model=model,
            # A heat map of random weights would only look like an explanation.
            head=(),
        ),
        out,
    )
    if saved_model:
        from dr_training.saved_model import replace_by_saved_model

        spec = replace_by_saved_model(out, network)
    size_bytes = sum(file.size_bytes for file in spec.files)
    print(f"wrote {out} ({spec.sha256[:12]}, {size_bytes:,} bytes)", flush=True)


def _fill_at_random(network: "object", seed: int) -> None:
    """He-normal kernels from NumPy, so that the weights are the same on any machine."""
    rng = np.random.Generator(np.random.PCG64(seed))
    for variable in network.trainable_variables:  # type: ignore[attr-defined]
        shape = tuple(variable.shape)
        if variable.name.endswith("kernel"):
            inputs = int(np.prod(shape[:2])) if "depthwise" in variable.path else 0
            fan_in = inputs or int(np.prod(shape[:-1]))
            values = rng.standard_normal(shape, dtype=np.float32) * np.sqrt(2 / fan_in)
            variable.assign(values.astype(np.float32))


if __name__ == "__main__":
    sys.exit(main())
