"""Batch normalisation's moving mean and variance, of which every device keeps its own.

    >>> MovingStatistics(network, devices).average()

A device sees its own photographs in training, so its moving statistics drift from the others'.
They are averaged before a network is judged or saved: then every device answers alike, and what is
saved is what was judged. The statistics are linear in what the devices saw, so it does not matter
how often they are averaged on the way, and a training that was stopped ends as one that was not.
"""

import keras
import tensorflow as tf

from dr_training.fitting.strategies import Devices


class MovingStatistics:
    """Those of a network's batch normalisations that are trained; with one device, nothing to do.

    `statistics` are their variables, mean and variance of each layer in turn. Every worker has to
    call `average` at the same points.
    """

    def __init__(self, network: keras.Model, devices: Devices) -> None:
        self.statistics = [
            statistic
            for layer in network.layers
            if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
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
