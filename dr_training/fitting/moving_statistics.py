"""Batch normalisation's moving mean and variance: how fast they move, and one set for all devices.

    >>> follow_within_an_epoch(network, steps=17)
    >>> MovingStatistics(network, devices).average()

A moving statistic with Keras's momentum of 0.99 is half of its first value after 69 steps. On a
thousand photographs that is several epochs, in which the network that is validated and served
normalises with statistics of weights that it no longer has, layer upon layer: its training loss
falls, and its answers stay those of chance.

A device sees its own photographs in training, so its moving statistics drift from the others'.
They are averaged before a network is judged or saved: then every device answers alike, and what is
saved is what was judged. The statistics are linear in what the devices saw, so it does not matter
how often they are averaged on the way, and a training that was stopped ends as one that was not.
"""

from typing import Final

import keras
import tensorflow as tf

from dr_training.fitting.strategies import Devices

# What is left of a moving statistic after an epoch, at most; fewer than ten batches are too noisy.
_LEFT_AFTER_AN_EPOCH: Final = 0.05
_LEAST_MOMENTUM: Final = 0.9


def follow_within_an_epoch(network: keras.Model, *, steps: int) -> None:
    """Lower the momentum of trained batch normalisations so far that an epoch's steps renew them.

    From about 300 steps on, nothing changes. Call it before the training step is traced.
    """
    most = max(_LEAST_MOMENTUM, _LEFT_AFTER_AN_EPOCH ** (1 / steps))
    for layer in trained_normalisations(network):
        layer.momentum = min(layer.momentum, most)


def trained_normalisations(network: keras.Model) -> list[keras.layers.BatchNormalization]:
    """The batch normalisations whose statistics a training changes."""
    return [
        layer
        for layer in network.layers
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
    ]


class MovingStatistics:
    """Those of a network's batch normalisations that are trained; with one device, nothing to do.

    `statistics` are their variables, mean and variance of each layer in turn. Every worker has to
    call `average` at the same points.
    """

    def __init__(self, network: keras.Model, devices: Devices) -> None:
        self.statistics = [
            statistic
            for layer in trained_normalisations(network)
            for statistic in (layer.moving_mean, layer.moving_variance)
        ]
        self._needed = bool(self.statistics) and devices.replicas > 1

        strategy = devices.strategy

        def read() -> list[tf.Tensor]:
            return [tf.convert_to_tensor(one.value) for one in self.statistics]

        def write(means: list[tf.Tensor]) -> None:
            for one, mean in zip(self.statistics, means, strict=True):
                one.assign(mean)

        @tf.function(autograph=False)  # type: ignore[untyped-decorator]
        def averaged() -> None:
            # Across the replicas and not within one: there, a worker's only device has no name.
            means = [strategy.reduce("MEAN", one, axis=None) for one in strategy.run(read)]
            strategy.run(write, args=(means,))

        self._averaged = averaged

    def average(self) -> None:
        """Give every device the mean over all of them."""
        if self._needed:
            self._averaged()
