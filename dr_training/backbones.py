"""Backbones by name: every classifier of `keras.applications`, and EfficientNet-Lite0.

    >>> backbone("vgg19").scaling
    'imagenet_bgr'

Pixels enter as 0..255 in RGB, and each backbone brings what it was trained with as layers of its
own graph, so that neither the service nor a conversion can scale them twice or not at all. The
scalings are those of each module's `preprocess_input`; a test compares them. Nothing heavy is
imported to read this table.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dr_training.data.faults import DataError

# Where a backbone's weights are from; `auto` is ImageNet's where they can be had.
WEIGHTS_RANDOM: Final = "random"
WEIGHTS_IMAGENET: Final = "imagenet"
WEIGHTS_AUTO: Final = "auto"
WEIGHTS: Final = (WEIGHTS_AUTO, WEIGHTS_IMAGENET, WEIGHTS_RANDOM)
# In reports and packages: where they are from, and why they are random where others were wanted.
BACKBONE_WEIGHTS: Final = "backbone_weights"
WHY_RANDOM: Final = "why_random"

# keras.applications.imagenet_utils: mode "tf".
MINUS_ONE_TO_ONE: Final = "minus_one_to_one"
# Mode "caffe": blue first, mean of ImageNet subtracted, not divided.
IMAGENET_BGR: Final = "imagenet_bgr"
# Mode "torch": 0..1, then mean and standard deviation of ImageNet.
IMAGENET_RGB: Final = "imagenet_rgb"
# (x - 127) / 128: MEAN_RGB and STDDEV_RGB of efficientnet/lite in tensorflow/tpu.
LITE: Final = "lite"
# The backbone has its own rescaling layers and takes 0..255.
INSIDE: Final = "inside"
SCALINGS: Final = (MINUS_ONE_TO_ONE, IMAGENET_BGR, IMAGENET_RGB, LITE, INSIDE)

EFFICIENTNET_LITE0: Final = "efficientnet-lite0"
# A residual network of this project for pictures of 28 to 64 px; there are no weights for it.
SMALL_RESNET: Final = "small-resnet"


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """A backbone: its name here, its class in Keras, and what its input must be.

    `keras_class` and `module` are those of `keras.applications`, empty for the project's own.
    `size_px` is the side that the published weights were trained at, `least_px` the smallest
    that works; smaller pictures are enlarged inside the graph.
    """

    name: str
    keras_class: str
    module: str
    scaling: str
    size_px: int
    least_px: int

    def __post_init__(self) -> None:
        if self.scaling not in SCALINGS:
            raise ValueError(f"{self.name}: scaling must be one of {', '.join(SCALINGS)}")


def _family(
    module: str, scaling: str, least_px: int, sizes_px: dict[str, int]
) -> tuple[Backbone, ...]:
    return tuple(
        Backbone(
            name=keras_class.lower(),
            keras_class=keras_class,
            module=module,
            scaling=scaling,
            size_px=size_px,
            least_px=least_px,
        )
        for keras_class, size_px in sizes_px.items()
    )


BACKBONES: Final[tuple[Backbone, ...]] = (
    *_family(
        "convnext",
        INSIDE,
        32,
        {f"ConvNeXt{size}": 224 for size in ("Tiny", "Small", "Base", "Large", "XLarge")},
    ),
    *_family("densenet", IMAGENET_RGB, 32, {f"DenseNet{n}": 224 for n in (121, 169, 201)}),
    *_family(
        "efficientnet",
        INSIDE,
        32,
        {
            f"EfficientNetB{n}": size
            for n, size in enumerate((224, 240, 260, 300, 380, 456, 528, 600))
        },
    ),
    *_family(
        "efficientnet_v2",
        INSIDE,
        32,
        {
            "EfficientNetV2B0": 224,
            "EfficientNetV2B1": 240,
            "EfficientNetV2B2": 260,
            "EfficientNetV2B3": 300,
            "EfficientNetV2S": 384,
            "EfficientNetV2M": 480,
            "EfficientNetV2L": 480,
        },
    ),
    *_family("inception_resnet_v2", MINUS_ONE_TO_ONE, 75, {"InceptionResNetV2": 299}),
    *_family("inception_v3", MINUS_ONE_TO_ONE, 75, {"InceptionV3": 299}),
    *_family("mobilenet", MINUS_ONE_TO_ONE, 32, {"MobileNet": 224}),
    *_family("mobilenet_v2", MINUS_ONE_TO_ONE, 32, {"MobileNetV2": 224}),
    *_family("mobilenet_v3", INSIDE, 32, {"MobileNetV3Small": 224, "MobileNetV3Large": 224}),
    *_family("nasnet", MINUS_ONE_TO_ONE, 32, {"NASNetMobile": 224, "NASNetLarge": 331}),
    *_family("resnet", IMAGENET_BGR, 32, {f"ResNet{n}": 224 for n in (50, 101, 152)}),
    *_family("resnet_v2", MINUS_ONE_TO_ONE, 32, {f"ResNet{n}V2": 224 for n in (50, 101, 152)}),
    *_family("vgg16", IMAGENET_BGR, 32, {"VGG16": 224}),
    *_family("vgg19", IMAGENET_BGR, 32, {"VGG19": 224}),
    *_family("xception", MINUS_ONE_TO_ONE, 71, {"Xception": 299}),
    Backbone(
        name=EFFICIENTNET_LITE0,
        keras_class="",
        module="",
        scaling=LITE,
        size_px=224,
        least_px=32,
    ),
    Backbone(
        name=SMALL_RESNET,
        keras_class="",
        module="",
        scaling=MINUS_ONE_TO_ONE,
        size_px=32,
        least_px=16,
    ),
)
BACKBONE_NAMES: Final = tuple(one.name for one in BACKBONES)


def backbone(name: str) -> Backbone:
    """The backbone with this name.

    Raises:
        DataError: there is none; the nearest names are given.
    """
    for one in BACKBONES:
        if one.name == name:
            return one
    near = difflib.get_close_matches(name.lower(), BACKBONE_NAMES, n=3, cutoff=0.4)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    raise DataError(
        f"there is no network {name!r}; {meant}all {len(BACKBONES)}: {', '.join(BACKBONE_NAMES)}"
    )


def weights_words(record: Mapping[str, Any]) -> str:
    """`random (ImageNet's weights of VGG16 cannot be had: …)`: a line for people.

    Args:
        record: with `backbone_weights`, and `why_random` where others were wanted.
    """
    reason = record.get(WHY_RANDOM)
    return f"{record[BACKBONE_WEIGHTS]} ({reason})" if reason else str(record[BACKBONE_WEIGHTS])


def weights_and_reason(record: Mapping[str, Any]) -> tuple[str, str | None]:
    """Where weights are from, and why they are random although ImageNet's were asked for."""
    weights = str(record[BACKBONE_WEIGHTS])
    if WHY_RANDOM in record:
        return weights, record[WHY_RANDOM]
    # Reports from before the field said it in brackets.
    random, bracket, reason = weights.partition(f"{WEIGHTS_RANDOM} (")
    if random or not bracket:
        return weights, None
    return WEIGHTS_RANDOM, reason.removesuffix(")")
