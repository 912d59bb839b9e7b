"""The networks as data: layers, parameters, and the turn to channels first."""

import numpy as np
import pytest

from dr_training.study.worker.networks import channels_first, initial_weights, network


def test_layers_and_parameters_are_those_counted_by_hand() -> None:
    small = network(1, size_px=8, channels=1, first_channels=2)
    assert small.layers() == [
        ("convolution", 1, 2), ("convolution", 2, 2),
        ("convolution", 2, 4), ("convolution", 4, 4),
        ("dense", 16, 128), ("dense", 128, 10),
    ]  # fmt: skip
    by_hand = (9 + 1) * 2 + (18 + 1) * 2 + (18 + 1) * 4 + (36 + 1) * 4 + 17 * 128 + 129 * 10
    assert small.parameters() == by_hand
    assert sum(k.size + b.size for k, b in initial_weights(small, seed=1)) == by_hand


def test_the_second_network_has_a_block_more() -> None:
    first, second = (network(n, size_px=32, channels=3, first_channels=16) for n in (1, 2))
    assert (first.map_px, second.map_px) == (8, 4)
    assert len(second.layers()) == len(first.layers()) + 2


def test_weights_are_fixed_by_their_seed() -> None:
    small = network(1, size_px=8, channels=1, first_channels=2)
    one, again, other = (initial_weights(small, seed=seed)[0][0] for seed in (3, 3, 4))
    assert (one == again).all()
    assert (one != other).any()


@pytest.mark.parametrize("number", [1, 2])
def test_channels_first_is_the_same_network(number: int) -> None:
    small = network(number, size_px=16, channels=3, first_channels=2)
    weights = initial_weights(small, seed=2)
    turned = channels_first(small, weights)
    for (kernel, _), (other, _) in zip(weights, turned, strict=True):
        assert other.shape[:2] == (kernel.shape[-1], kernel.shape[-2])
    side, channels = small.map_px, small.blocks[-1]
    last = np.random.default_rng(0).normal(size=(5, side, side, channels))
    dense = next(pair[0] for pair in weights if pair[0].ndim == 2)
    first = next(pair[0] for pair in turned if pair[0].ndim == 2)
    channels_last = last.reshape(5, -1) @ dense
    flat = last.transpose(0, 3, 1, 2).reshape(5, -1)
    assert np.allclose(flat @ first.T, channels_last, atol=1e-5)
