"""Batch normalisation follows its weights, so that what is served is what was trained."""

import keras
import numpy as np
import pytest

from dr_training.fitting.moving_statistics import follow_within_an_epoch


def normalisation(momentum: float, *, trained: bool = True) -> keras.Model:
    layer = keras.layers.BatchNormalization(momentum=momentum, trainable=trained)
    return keras.Sequential([keras.Input((3,)), layer])


@pytest.mark.parametrize(
    ("steps", "momentum", "wanted"),
    [
        (1, 0.99, 0.9),
        (17, 0.99, 0.9),
        (100, 0.99, 0.05 ** (1 / 100)),
        (299, 0.99, 0.99),
        (10_000, 0.99, 0.99),
        # A network that says so itself follows faster.
        (100, 0.5, 0.5),
    ],
)
def test_an_epoch_renews_the_statistics_unless_it_is_too_short(
    steps: int, momentum: float, wanted: float
) -> None:
    network = normalisation(momentum)
    follow_within_an_epoch(network, steps=steps)
    assert network.layers[0].momentum == pytest.approx(wanted)


def test_a_frozen_backbone_keeps_its_own() -> None:
    network = normalisation(0.99, trained=False)
    follow_within_an_epoch(network, steps=5)
    assert network.layers[0].momentum == 0.99


def deep_network() -> keras.Model:
    keras.utils.set_random_seed(7)
    layers = [keras.Input((16,))]
    for _ in range(8):
        layers += [
            keras.layers.Dense(16),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
        ]
    return keras.Sequential([*layers, keras.layers.Dense(5)])


def gap_after(steps: int, network: keras.Model) -> float:
    """How far a network that is served is from the same network in training, in deviations."""
    given = np.random.default_rng(0).normal(3, 5, (64, 16)).astype(np.float32)
    for _ in range(steps):
        trained = np.asarray(network(given, training=True))
    return float(
        np.abs(np.asarray(network(given, training=False)) - trained).mean() / trained.std()
    )


def test_a_small_training_serves_what_it_trained() -> None:
    """Three epochs of 17 steps, as of a thousand photographs in batches of 64."""
    followed = deep_network()
    follow_within_an_epoch(followed, steps=17)
    assert gap_after(3 * 17, followed) < 0.05
    # What Keras's own momentum would leave.
    assert gap_after(3 * 17, deep_network()) > 0.5
