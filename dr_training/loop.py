"""Trains the demo network in three stages, with a custom TensorFlow loop.

1. **Patches.** The backbone learns, on crops at full resolution, which lesion kinds each cell
   of its maps at 1/16 and 1/32 holds. A drawn photograph knows its lesions, so a crop carries
   dozens of labels where a whole photograph carries one, at a sixth of the arithmetic.
2. **Head.** The backbone is frozen, its pooled features of whole photographs are computed
   once by LiteRT, and the dense head learns the grade from them in seconds.
3. **Whole.** All weights together, on whole photographs, for the steps that are left.

The lesion map layers exist only here; the exported network has none of them.
"""

import math
import time
from collections.abc import Callable, Iterator

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from dr_training.dataset import DrawnData
from dr_training.lesions import LESION_KINDS
from dr_training.networks import head_layers
from dr_training.recipe import Recipe

_CELL_PX = 16
Report = Callable[[str], None]


class LesionMaps(keras.Model):  # type: ignore[misc]
    """1 x 1 convolutions from the two feature maps to a logit per lesion kind and cell."""

    def __init__(self) -> None:
        super().__init__(name="lesion_maps")
        # Most cells hold nothing: start from that.
        bias = keras.initializers.Constant(-3.0)
        kinds = len(LESION_KINDS)
        self.middle = keras.layers.Conv2D(kinds, 1, bias_initializer=bias, name="middle_map")
        self.deep = keras.layers.Conv2D(kinds, 1, bias_initializer=bias, name="deep_map")

    def build_for(self, network: keras.Model) -> None:
        """Create the weights for the two maps of this network."""
        for layer, name in ((self.middle, "middle"), (self.deep, "features")):
            layer.build(network.output[name].shape)
        self.built = True

    def call(self, outputs: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        return self.middle(outputs["middle"]), self.deep(outputs["features"])


def train_patches(
    network: keras.Model, maps: LesionMaps, data: DrawnData, recipe: Recipe, *, report: Report
) -> None:
    """Stage 1; `network` takes crops of `recipe.patches.size_px`."""
    stage = recipe.patches
    variables = [v for v in network.trainable_variables if not v.path.startswith("head_")]
    variables += maps.trainable_variables
    optimizer = _optimizer(recipe, stage.peak_rate, stage.steps, variables)
    weights = kind_weights(data)

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def step(pixels: tf.Tensor, cells: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            outputs = network(_jitter(pixels), training=True)
            loss = _map_loss(maps(outputs), cells, weights)
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    rng = np.random.default_rng(recipe.seed)
    meter = _Meter(stage.steps, report, "patches")
    for pixels, cells in _patches(data, stage.size_px, stage.batch_size, stage.steps, rng):
        meter.add(float(step(pixels, cells)))


def settle_normalisation(network: keras.Model, data: DrawnData, recipe: Recipe) -> None:
    """Re-estimate the batch normalisation statistics on whole photographs.

    Crops and whole photographs differ in how much black they hold; the statistics that the
    exported network carries must be those of whole ones.
    """
    rng = np.random.default_rng(recipe.seed + 1)
    layers = [la for la in network.layers if isinstance(la, keras.layers.BatchNormalization)]
    momenta = [layer.momentum for layer in layers]
    batches = recipe.settling_batches
    for index in range(batches):
        chosen = rng.choice(len(data.grades), recipe.batch_size, replace=False)
        for layer in layers:  # a running mean over all batches so far
            layer.momentum = index / (index + 1)
        network(_jitter(tf.constant(data.pixels[chosen])), training=True)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum


def train_head(
    network: keras.Model,
    features: NDArray[np.float32],
    grades: NDArray[np.int64],
    recipe: Recipe,
    *,
    report: Report,
) -> None:
    """Stage 2: the dense head on pooled features (n, channels)."""
    layers = head_layers(network)
    head = keras.Sequential([keras.Input((features.shape[1],)), *layers])
    variables = head.trainable_variables
    stage = recipe.head
    batch = 128
    steps = stage.epochs * (len(grades) // batch)
    optimizer = _optimizer(recipe, stage.peak_rate, steps, variables)

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = _grade_loss(head(x, training=True), y)
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    rng = np.random.default_rng(recipe.seed + 2)
    meter = _Meter(steps, report, "head", every=max(1, steps // 5))
    for _ in range(stage.epochs):
        order = rng.permutation(len(grades))
        for first in range(0, len(order) - batch + 1, batch):
            chosen = order[first : first + batch]
            meter.add(float(step(tf.constant(features[chosen]), tf.constant(grades[chosen]))))


def train_whole(
    network: keras.Model, maps: LesionMaps, data: DrawnData, recipe: Recipe, *, report: Report
) -> None:
    """Stage 3: every weight, on whole photographs, with both losses."""
    stage = recipe.whole
    if stage.steps == 0:
        return
    variables = network.trainable_variables + maps.trainable_variables
    optimizer = _optimizer(recipe, stage.peak_rate, stage.steps, variables)
    weights = kind_weights(data)

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def step(pixels: tf.Tensor, cells: tf.Tensor, grades: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            outputs = network(_jitter(pixels), training=True)
            loss = _grade_loss(outputs["logits"], grades)
            loss += recipe.lesion_map_weight * _map_loss(maps(outputs), cells, weights)
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    rng = np.random.default_rng(recipe.seed + 3)
    meter = _Meter(stage.steps, report, "whole")
    for _ in range(stage.steps):
        chosen = rng.choice(len(data.grades), stage.batch_size, replace=False)
        pixels, cells = _turned(data.pixels[chosen], data.maps[chosen], rng)
        meter.add(
            float(step(tf.constant(pixels), tf.constant(cells), tf.constant(data.grades[chosen])))
        )


def jittered(pixels: NDArray[np.uint8], *, seed: int) -> NDArray[np.uint8]:
    """One turned and colour-jittered copy of each photograph, as training sees them."""
    keras.utils.set_random_seed(seed)
    turned, _ = _turned(pixels, pixels[:, :1, :1], np.random.default_rng(seed))
    parts = [
        tf.cast(tf.round(_jitter(tf.constant(turned[first : first + 64]))), tf.uint8).numpy()
        for first in range(0, len(turned), 64)
    ]
    return np.concatenate(parts)


def _patches(
    data: DrawnData, size_px: int, batch_size: int, steps: int, rng: np.random.Generator
) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
    side = size_px // _CELL_PX
    last = data.maps.shape[1] - side
    for _ in range(steps):
        chosen = rng.integers(0, len(data.grades), batch_size)
        pixels = np.empty((batch_size, size_px, size_px, 3), np.uint8)
        cells = np.empty((batch_size, side, side, len(LESION_KINDS)), np.uint8)
        for slot, index in enumerate(chosen):
            row, column = (int(v) for v in rng.integers(0, last + 1, 2))
            y, x = row * _CELL_PX, column * _CELL_PX
            pixels[slot] = data.pixels[index, y : y + size_px, x : x + size_px]
            cells[slot] = data.maps[index, row : row + side, column : column + side]
        pixels, cells = _turned(pixels, cells, rng)
        yield tf.constant(pixels), tf.constant(cells)


def _turned(
    pixels: NDArray[np.uint8], cells: NDArray[np.uint8], rng: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Each picture and its map in one of the eight orientations of a square."""
    turned = [np.empty_like(pixels), np.empty_like(cells)]
    for index, code in enumerate(rng.integers(0, 8, len(pixels))):
        for target, source in zip(turned, (pixels, cells), strict=True):
            plane = np.rot90(source[index], int(code) % 4)
            target[index] = plane[:, ::-1] if code >= 4 else plane
    return turned[0], turned[1]


def _jitter(pixels: tf.Tensor) -> tf.Tensor:
    """Colour, brightness, gamma and local contrast; black stays black. 0..255 float."""
    level = tf.cast(pixels, tf.float32) / 255
    count = tf.shape(level)[0]
    shape = (count, 1, 1, 1)
    smooth = tf.nn.avg_pool2d(level, 9, 1, "SAME")
    sharp = tf.random.uniform(shape, 0.65, 1.15)
    seen = tf.cast(level > 8 / 255, tf.float32)  # the surround must not light up
    level = level + seen * (sharp - 1) * (level - smooth)
    gains = tf.random.uniform(shape, 0.75, 1.2) * tf.random.uniform((count, 1, 1, 3), 0.85, 1.15)
    level = tf.clip_by_value(level * gains, 1e-4, 1.0) ** tf.random.uniform(shape, 0.8, 1.25)
    level += seen * tf.random.normal(tf.shape(level), stddev=0.012)
    return tf.clip_by_value(level, 0.0, 1.0) * 255


def kind_weights(data: DrawnData) -> NDArray[np.float32]:
    """How much a marked cell of each kind counts: the rarer the kind, the more."""
    frequency = np.maximum(data.maps.mean(axis=(0, 1, 2)), 1e-4)
    return np.asarray(np.clip(np.sqrt(0.25 / frequency), 1.0, 15.0), np.float32)


def _map_loss(
    logits: tuple[tf.Tensor, tf.Tensor], cells: tf.Tensor, weights: NDArray[np.float32]
) -> tf.Tensor:
    """Cross-entropy per kind and cell at both scales; marked cells weigh by their kind."""
    wanted = tf.cast(cells, tf.float32)
    coarse = tf.nn.max_pool2d(wanted, 2, 2, "SAME")
    losses = [
        tf.reduce_mean(tf.nn.weighted_cross_entropy_with_logits(labels, values, weights))
        for labels, values in ((wanted, logits[0]), (coarse, logits[1]))
    ]
    return 10.0 * tf.add_n(losses)


def _grade_loss(logits: tf.Tensor, grades: tf.Tensor) -> tf.Tensor:
    smooth = 0.03
    wanted = tf.one_hot(grades, logits.shape[-1]) * (1 - smooth) + smooth / logits.shape[-1]
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(wanted, logits))


def _optimizer(
    recipe: Recipe, peak_rate: float, steps: int, variables: list[keras.Variable]
) -> keras.Optimizer:
    warm_up = max(1, min(100, steps // 10))
    schedule = keras.optimizers.schedules.CosineDecay(
        peak_rate / 20,
        decay_steps=max(1, steps - warm_up),
        alpha=0.01,
        warmup_target=peak_rate,
        warmup_steps=warm_up,
    )
    optimizer = keras.optimizers.AdamW(schedule, weight_decay=recipe.weight_decay, clipnorm=5.0)
    optimizer.build(variables)
    return optimizer


class _Meter:
    """Reports the mean loss since the last report, with the time that is left."""

    def __init__(self, steps: int, report: Report, name: str, *, every: int = 50) -> None:
        self._steps, self._report, self._name, self._every = steps, report, name, every
        self._losses: list[float] = []
        self._done = 0
        self._start = time.monotonic()

    def add(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise FloatingPointError(f"stage {self._name}: loss is {loss} at step {self._done}")
        self._losses.append(loss)
        self._done += 1
        if self._done % self._every == 0 or self._done == self._steps:
            taken = time.monotonic() - self._start
            left = taken / self._done * (self._steps - self._done)
            mean = sum(self._losses) / len(self._losses)
            self._report(
                f"{self._name}: step {self._done} of {self._steps}, loss {mean:.3f}, "
                f"{taken:.0f} s, about {left:.0f} s left"
            )
            self._losses.clear()
