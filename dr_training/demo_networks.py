"""Networks of the demo packages: those of the studies, and a VGG19 small enough to commit.

    >>> network = demo_network("vgg19-small", input_size_px=224, alpha=0.125)

`vgg19-small` has the sixteen convolutions and the five poolings of VGG19 (Simonyan & Zisserman,
2015, arXiv:1409.1556) with a share `alpha` of their channels, and batch normalisation, without
which a deep plain network learns nothing from few photographs.
"""

from typing import Final

import keras

from dr_training.networks import build_network
from inference_image.contract import GRADE_LABELS, TASK_GRADE5, TASK_REFERABLE

VGG19_SMALL: Final = "vgg19-small"
DEMO_NETWORKS: Final = ("mobilenet", VGG19_SMALL)
# (channels, convolutions) of each block of VGG19.
_VGG19_BLOCKS: Final = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
_CLASSES: Final = {TASK_GRADE5: len(GRADE_LABELS), TASK_REFERABLE: 2}


def demo_network(
    name: str,
    *,
    input_size_px: int,
    alpha: float = 1.0,
    dense_units: tuple[int, ...] = (128, 128),
    task: str = TASK_GRADE5,
) -> keras.Model:
    """As `networks.build_network`, with two logits (not referable, referable) for that task.

    Raises:
        ValueError: the network or the task is unknown.
    """
    if name not in DEMO_NETWORKS:
        raise ValueError(f"network must be one of {', '.join(DEMO_NETWORKS)}; got {name!r}")
    if task not in _CLASSES:
        raise ValueError(f"task must be one of {', '.join(_CLASSES)}; got {task!r}")
    if name == VGG19_SMALL:
        return _small_vgg19(input_size_px, alpha, dense_units, _CLASSES[task])
    graded = build_network(name, input_size_px=input_size_px, alpha=alpha, dense_units=dense_units)
    if task == TASK_GRADE5:
        return graded
    before = graded.get_layer("head_logits").input
    logits = keras.layers.Dense(_CLASSES[task], name="head_referable")(before)
    return keras.Model(graded.input, {**graded.output, "logits": logits}, name=f"{name}_referable")


def _small_vgg19(
    size_px: int, alpha: float, dense_units: tuple[int, ...], classes: int
) -> keras.Model:
    pixels = keras.Input((size_px, size_px, 3), name="pixels")
    maps = keras.layers.Rescaling(1 / 127.5, offset=-1, name="rescale")(pixels)
    middle = maps
    for block, (channels, convolutions) in enumerate(_VGG19_BLOCKS, start=1):
        for index in range(1, convolutions + 1):
            name = f"block{block}_conv{index}"
            maps = keras.layers.Conv2D(
                max(8, round(channels * alpha)), 3, padding="same", use_bias=False, name=name
            )(maps)
            maps = keras.layers.BatchNormalization(name=f"{name}_norm")(maps)
            maps = keras.layers.ReLU(name=f"{name}_relu")(maps)
        middle = maps
        maps = keras.layers.MaxPooling2D(name=f"block{block}_pool")(maps)
    hidden = keras.layers.GlobalAveragePooling2D(name="pool")(maps)
    for index, units in enumerate(dense_units):
        hidden = keras.layers.Dense(units, activation="relu", name=f"head_{index}")(hidden)
    logits = keras.layers.Dense(classes, name="head_logits")(hidden)
    outputs = {"logits": logits, "features": maps, "middle": middle}
    return keras.Model(pixels, outputs, name=f"{VGG19_SMALL}_{classes}")
