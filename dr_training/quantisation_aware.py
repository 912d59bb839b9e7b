"""Trains a network on while it feels the rounding of int8, for where plain quantisation loses.

    >>> aware = QuantisationAware(network, calibration)
    >>> aware.train(pixels, grades, epochs=3)
    >>> model = convert_variant(aware.infer, INT8, size_px=224, calibration=calibration)

Batch normalisation is folded into the convolutions first, as the converter does. A twin of the
folded network then rounds every kernel (one scale for each output channel, symmetric) and every
activation that the converter would store (one range for each tensor) to 8 bits in the forward
pass; gradients pass through as if it had not (Jacob et al., CVPR 2018, arXiv:1712.05877). The
two share their weights, so what is trained is exported without the rounding and quantised as
usual. Written out here because the model-optimization toolkit refuses Keras 3.
"""

from collections.abc import Callable
from typing import Any, Final

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from dr_training.evaluate import class_logits
from dr_training.quantise import FEATURES, LOGITS

_BITS: Final = 8
_WEIGHTED: Final = (keras.layers.Conv2D, keras.layers.DepthwiseConv2D, keras.layers.Dense)
# The converter computes these in the layer before: what is stored is their result.
_FUSED: Final = ("linear", "relu", "relu6")
# Layers that only move numbers, or do nothing when a network answers, store nothing new.
_MOVES: Final = (
    keras.layers.InputLayer,
    keras.layers.Rescaling,  # of pixels, which are bytes already
    keras.layers.ZeroPadding2D,
    keras.layers.MaxPooling2D,
    keras.layers.Reshape,
    keras.layers.Flatten,
    keras.layers.Dropout,
)
_BATCH: Final = 16
_JUDGED: Final = 256
# Ranges follow the batches as a moving average with this weight on what was.
_RANGE_MEMORY: Final = 0.9
# Half of the loss is what the float network said, half what is true.
_TEACHER_SHARE: Final = 0.5

Report = Callable[[str], None]


class QuantisationAware:
    """A network under int8 rounding, ready to be trained on.

    Args:
        network: functional Keras network with outputs `logits` and `features`
            (`networks.build_network`); it is not changed.
        calibration: representative photographs (n, S, S, 3) uint8, from the service's
            preprocessing; they decide the ranges of the activations.

    Raises:
        ValueError: the network is not functional, or has no such outputs.
    """

    def __init__(self, network: keras.Model, calibration: NDArray[np.uint8]) -> None:
        if not isinstance(network.output, dict) or not {LOGITS, FEATURES} <= set(network.output):
            raise ValueError("quantisation-aware training needs a network with logits and features")
        self._teacher = keras.Model(network.input, network.output[LOGITS])
        self.folded = fold_normalisation(network)
        self._calibration = calibration
        self._twin = _rounded_twin(self.folded, _activation_ranges(self.folded, calibration))

    def infer(self, pixels: tf.Tensor) -> dict[str, tf.Tensor]:
        """What is exported: the trained weights, unrounded."""
        outputs = self.folded(pixels, training=False)
        return {name: outputs[name] for name in (LOGITS, FEATURES)}

    def rounded_logits(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """What training sees: logits (n, k) with int8 rounding simulated."""
        return _in_batches(lambda batch: self._twin(batch, training=False), pixels)

    def train(
        self,
        pixels: NDArray[np.uint8],
        targets: NDArray[np.int64],
        *,
        epochs: int,
        rate: float = 3e-4,
        seed: int = 0,
        report: Report = lambda line: None,
    ) -> list[float]:
        """Train for `epochs` and keep the best of them, or the start; gives their losses.

        The loss is the mean of the cross-entropy to the true class and of that to what the float
        network said, so that few photographs do not pull the network elsewhere. An epoch is judged
        by the rounded loss on (at most 256 of) the photographs with the ranges that the converter
        will find.

        Args:
            pixels: training photographs (n, S, S, 3) uint8, prepared as the service does.
            targets: (n,) index of the true class.
            epochs: passes over the photographs.
            rate: of Adam at the start, falling to nothing; small, since the network is trained.
            seed: of the order.
            report: takes a line for each epoch.

        Raises:
            FloatingPointError: the loss is no number any more.
        """
        said = class_logits(_in_batches(lambda batch: self._teacher(batch, training=False), pixels))
        truth = np.eye(said.shape[1], dtype=np.float32)[targets]
        wanted = (1 - _TEACHER_SHARE) * truth + _TEACHER_SHARE * tf.nn.softmax(said).numpy()
        variables = self._twin.trainable_variables
        steps = epochs * max(1, len(pixels) // _BATCH)
        optimizer = keras.optimizers.Adam(
            keras.optimizers.schedules.CosineDecay(rate, steps), clipnorm=1.0
        )
        optimizer.build(variables)

        @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
        def step(batch: tf.Tensor, goal: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = _cross_entropy(self._twin(tf.cast(batch, tf.float32), training=True), goal)
            optimizer.apply(tape.gradient(loss, variables), variables)
            return loss

        rng = np.random.default_rng(seed)
        judged = rng.permutation(len(pixels))[:_JUDGED]

        def judge() -> float:
            logits = self.rounded_logits(pixels[judged])
            return float(_cross_entropy(tf.constant(logits), tf.constant(wanted[judged])))

        losses = [judge()]
        best = self.folded.get_weights()
        for epoch in range(epochs):
            order = rng.permutation(len(pixels))
            for part in np.array_split(order, max(1, len(order) // _BATCH)):
                step(tf.constant(pixels[part]), tf.constant(wanted[part]))
            self._measure_ranges()
            losses.append(judge())
            if not np.isfinite(losses[-1]):
                raise FloatingPointError(f"loss is {losses[-1]} in epoch {epoch + 1}")
            report(f"quantisation-aware: epoch {epoch + 1} of {epochs}, loss {losses[-1]:.4f}")
            if losses[-1] <= min(losses):
                best = self.folded.get_weights()
        self.folded.set_weights(best)
        self._measure_ranges()
        return losses

    def _measure_ranges(self) -> None:
        """The ranges that the converter will find."""
        for name, (low, high) in _activation_ranges(self.folded, self._calibration).items():
            if low < high:
                self._twin.get_layer(f"stored_{name}").set_range(low, high)


def _cross_entropy(logits: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
    if logits.shape[-1] == 1:
        # Log-odds of a referral model, against the two classes.
        logits = tf.concat([tf.zeros_like(logits), logits], axis=1)
    return tf.reduce_mean(
        tf.nn.softmax_cross_entropy_with_logits(labels=tf.cast(wanted, tf.float32), logits=logits)
    )


def fold_normalisation(network: keras.Model) -> keras.Model:
    """The same function without batch normalisation behind a convolution or dense layer.

    Kernels take the scale, biases the shift. Normalisation that follows something else, or whose
    convolution somebody else reads too, stays.
    """
    pairs = _normalised(network)
    convolutions = {id(before): after for after, before in pairs.values()}

    def clone(layer: Any) -> Any:
        if layer.name in pairs:
            return keras.layers.Activation("linear", name=layer.name)
        config = layer.get_config()
        if id(layer) in convolutions:
            config["use_bias"] = True
        return layer.__class__.from_config(config)

    folded = keras.models.clone_model(network, clone_function=clone, call_function=_called)
    for layer in network.layers:
        if id(layer) in convolutions:
            folded.get_layer(layer.name).set_weights(
                _folded_weights(layer, convolutions[id(layer)])
            )
        elif layer.name not in pairs and layer.weights:
            folded.get_layer(layer.name).set_weights(layer.get_weights())
    return folded


def _normalised(network: keras.Model) -> dict[str, tuple[Any, Any]]:
    """Name of a normalisation -> (it, the weighted layer whose only reader it is)."""
    found = {}
    for layer in network.layers:
        if not isinstance(layer, keras.layers.BatchNormalization) or layer.axis not in (-1, 3):
            continue
        (before,) = _feeding(layer)
        plain = isinstance(before, _WEIGHTED) and before.activation is keras.activations.linear
        if plain and len(_reading(before)) == 1 and not _is_output(network, before):
            found[layer.name] = (layer, before)
    return found


def _folded_weights(layer: Any, normalisation: Any) -> list[NDArray[np.float32]]:
    kernel = layer.get_weights()[0]
    bias = layer.get_weights()[1] if layer.use_bias else 0.0
    mean = normalisation.moving_mean.numpy()
    width = np.sqrt(normalisation.moving_variance.numpy() + normalisation.epsilon)
    scale = (normalisation.gamma.numpy() if normalisation.scale else 1.0) / width
    shift = normalisation.beta.numpy() if normalisation.center else 0.0
    if isinstance(layer, keras.layers.DepthwiseConv2D):
        kernel = kernel * scale.reshape(kernel.shape[2:])
    else:
        kernel = kernel * scale
    return [kernel.astype(np.float32), ((bias - mean) * scale + shift).astype(np.float32)]


def _activation_ranges(
    folded: keras.Model, calibration: NDArray[np.uint8]
) -> dict[str, tuple[float, float]]:
    """Smallest and largest value that each stored tensor takes on these photographs."""
    stored = {layer.name: layer.output for layer in folded.layers if _is_stored(folded, layer)}
    probe = keras.Model(folded.input, stored)
    ranges: dict[str, tuple[float, float]] = {}
    for first in range(0, len(calibration), _BATCH):
        batch = tf.cast(calibration[first : first + _BATCH], tf.float32)
        for name, values in probe(batch, training=False).items():
            low, high = ranges.get(name, (0.0, 0.0))
            ranges[name] = (
                min(low, float(tf.reduce_min(values))),
                max(high, float(tf.reduce_max(values))),
            )
    return ranges


def _is_stored(network: keras.Model, layer: Any) -> bool:
    """Whether the converter keeps this layer's result as an int8 tensor of its own range."""
    if isinstance(layer, _MOVES):
        return False
    readers = _reading(layer)
    if _is_output(network, layer) or len(readers) != 1:
        return True
    can_be_fused = isinstance(layer, _WEIGHTED) or _activation(layer) == "linear"
    return not (can_be_fused and _activation(readers[0]) in _FUSED)


def _activation(layer: Any) -> str | None:
    """Name of the function that a layer is; None where it is no activation."""
    if isinstance(layer, keras.layers.ReLU):
        plain = layer.negative_slope == 0 and layer.threshold == 0
        return "relu" if plain and layer.max_value in (None, 6.0) else "other"
    if isinstance(layer, keras.layers.Activation):
        return str(layer.activation.__name__)
    return None


def _rounded_twin(folded: keras.Model, ranges: dict[str, tuple[float, float]]) -> keras.Model:
    """The folded network with rounding; its weighted layers use the very same variables."""

    def clone(layer: Any) -> Any:
        if isinstance(layer, _WEIGHTED):
            return _Rounding(layer, name=f"rounding_{layer.name}")
        return layer.__class__.from_config(layer.get_config())

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        values = _called(layer, *args, **kwargs)
        name = layer.name.removeprefix("rounding_")
        if name in ranges and ranges[name][0] < ranges[name][1]:
            values = _RoundedActivation(*ranges[name], name=f"stored_{name}")(values)
        return values

    logits = keras.Model(folded.input, folded.output[LOGITS])
    return keras.models.clone_model(logits, clone_function=clone, call_function=call)


class _Rounding(keras.layers.Layer):  # type: ignore[misc]
    """A convolution or dense layer that computes with its kernel rounded to 8 bits."""

    def __init__(self, inner: Any, **options: Any) -> None:
        super().__init__(**options)
        self.inner = inner

    def compute_output_shape(self, input_shape: Any) -> Any:
        return self.inner.compute_output_shape(input_shape)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        inner, ops = self.inner, keras.ops
        if isinstance(inner, keras.layers.DepthwiseConv2D):
            shape = inner.kernel.shape
            kernel = tf.reshape(inner.kernel, (*shape[:2], shape[2] * shape[3]))
            values = ops.depthwise_conv(
                inputs,
                tf.reshape(_rounded_kernel(kernel), shape),
                strides=inner.strides,
                padding=inner.padding,
                dilation_rate=inner.dilation_rate,
                data_format=inner.data_format,
            )
        elif isinstance(inner, keras.layers.Dense):
            values = ops.matmul(inputs, _rounded_kernel(inner.kernel))
        else:
            values = inner.convolution_op(inputs, _rounded_kernel(inner.kernel))
        if inner.use_bias:
            values = values + tf.convert_to_tensor(inner.bias)
        return inner.activation(values)


class _RoundedActivation(keras.layers.Layer):  # type: ignore[misc]
    """Values rounded to the 256 steps of a range, which follows what training sees."""

    def __init__(self, low: float, high: float, **options: Any) -> None:
        super().__init__(**options)
        self.low = self.add_weight(shape=(), trainable=False, name="low")
        self.high = self.add_weight(shape=(), trainable=False, name="high")
        self.set_range(low, high)

    def set_range(self, low: float, high: float) -> None:
        self.low.assign(low)
        self.high.assign(high)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        if training:
            for variable, seen in (
                (self.low, tf.minimum(0.0, tf.reduce_min(inputs))),
                (self.high, tf.maximum(0.0, tf.reduce_max(inputs))),
            ):
                variable.assign(_RANGE_MEMORY * variable + (1 - _RANGE_MEMORY) * seen)
        return tf.quantization.fake_quant_with_min_max_vars(
            inputs,
            tf.convert_to_tensor(self.low),
            tf.convert_to_tensor(self.high),
            num_bits=_BITS,
        )


def _rounded_kernel(kernel: Any) -> tf.Tensor:
    """Rounded to -127..127 steps of one scale for each output channel (the last axis)."""
    kernel = tf.convert_to_tensor(kernel)
    most = tf.reduce_max(tf.abs(kernel), axis=list(range(len(kernel.shape) - 1)))
    most = tf.stop_gradient(tf.maximum(most, 1e-9))
    return tf.quantization.fake_quant_with_min_max_vars_per_channel(
        kernel, -most, most, num_bits=_BITS, narrow_range=True
    )


def _called(layer: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a clone as the original was; the graph of a normalisation records an empty mask."""
    if kwargs.get("mask", 0) is None:
        del kwargs["mask"]
    return layer(*args, **kwargs)


def _in_batches(
    compute: Callable[[tf.Tensor], tf.Tensor], pixels: NDArray[np.uint8]
) -> NDArray[np.float32]:
    return np.concatenate(
        [
            compute(tf.cast(pixels[first : first + _BATCH], tf.float32)).numpy()
            for first in range(0, len(pixels), _BATCH)
        ]
    )


def _feeding(layer: Any) -> list[Any]:
    """Layers whose results this one takes."""
    (node,) = layer._inbound_nodes  # noqa: SLF001 - Keras has no public name for the graph
    return [tensor._keras_history.operation for tensor in node.input_tensors]  # noqa: SLF001


def _reading(layer: Any) -> list[Any]:
    """Layers that take this one's result."""
    return [node.operation for node in layer._outbound_nodes]  # noqa: SLF001


def _is_output(network: keras.Model, layer: Any) -> bool:
    return any(layer is one._keras_history.operation for one in network.outputs)  # noqa: SLF001
