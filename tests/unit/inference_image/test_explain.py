"""Grad-CAM: the gradient against finite differences, the heat where the evidence is."""

import io
import itertools
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from inference_image.explain import DenseHead, grad_cam, overlay
from inference_image.model_spec import ModelPackageError
from tests.service_harness import TINY_MODEL


def random_head(*sizes: int) -> DenseHead:
    generator = np.random.default_rng(3)
    pairs = list(itertools.pairwise(sizes))
    return DenseHead(
        kernels=tuple(generator.normal(0, 1, pair).astype(np.float32) for pair in pairs),
        biases=tuple(generator.normal(0, 1, pair[1]).astype(np.float32) for pair in pairs),
    )


@pytest.mark.parametrize("sizes", [(12, 5), (12, 9, 5), (12, 16, 8, 5)])
@pytest.mark.parametrize("grade", [0, 4])
def test_the_gradient_is_that_of_finite_differences(sizes: tuple[int, ...], grade: int) -> None:
    head = random_head(*sizes)
    exact = DenseHead(
        kernels=tuple(k.astype(np.float64) for k in head.kernels),
        biases=tuple(b.astype(np.float64) for b in head.biases),
    )
    pooled = np.random.default_rng(8).normal(0, 1, 12)
    step = 1e-6
    numeric = [
        (exact.logits(pooled + step * unit)[grade] - exact.logits(pooled - step * unit)[grade])
        / (2 * step)
        for unit in np.eye(12)
    ]
    assert exact.gradient(pooled, grade) == pytest.approx(numeric, rel=1e-5, abs=1e-6)


def test_the_heat_lies_where_the_channel_that_speaks_for_the_grade_is_active() -> None:
    head = DenseHead(
        kernels=(np.array([[0, 1], [1, 0]], np.float32),), biases=(np.zeros(2, np.float32),)
    )
    features = np.zeros((4, 4, 2), np.float32)
    features[1, 2, 0] = 3.0
    features[3, 3, 1] = 5.0
    heat = grad_cam(features, head, grade=1)
    assert heat[1, 2] == 1.0
    assert heat.sum() == 1.0
    assert grad_cam(np.zeros((4, 4, 2), np.float32), head, grade=1).max() == 0


def test_the_overlay_colours_the_hot_half_and_leaves_the_cold_one() -> None:
    pixels = np.full((64, 64, 3), 100, np.uint8)
    heat = np.zeros((8, 8), np.float32)
    heat[:, :4] = 1.0
    for media_type, side_px in (("image/jpeg", 64), ("image/png", 64), ("image/png", 128)):
        data = overlay(pixels, heat, side_px=side_px, media_type=media_type)
        picture = Image.open(io.BytesIO(data))
        assert picture.get_format_mimetype() == media_type
        mixed = np.asarray(picture, dtype=int)
        assert mixed.shape == (side_px, side_px, 3)
        assert np.abs(mixed[:, side_px * 44 // 64 :] - 100).max() <= 6
        assert mixed[:, : side_px * 20 // 64].mean() > 140


def test_the_head_of_a_package_is_read() -> None:
    head = DenseHead.load(TINY_MODEL / "head.npz")
    assert [kernel.shape for kernel in head.kernels] == [(8, 8), (8, 5)]


@pytest.mark.parametrize(
    ("arrays", "fragment"),
    [
        ({"weights": np.zeros((2, 2))}, "must hold kernel_0, bias_0"),
        ({"kernel_0": np.zeros((2, 3)), "bias_0": np.zeros(2)}, "do not fit"),
        (
            {
                "kernel_0": np.zeros((2, 3)),
                "bias_0": np.zeros(3),
                "kernel_1": np.zeros((4, 5)),
                "bias_1": np.zeros(5),
            },
            "layer 1",
        ),
        ({"kernel_0": np.zeros(3), "bias_0": np.zeros(3)}, "do not fit"),
        ({"kernel_0": np.array(1.0), "bias_0": np.array(1.0)}, "do not fit"),
        ({"kernel_0": np.array([["a"]]), "bias_0": np.zeros(1)}, "numbers only"),
        ({"kernel_0": np.full((2, 3), np.nan), "bias_0": np.zeros(3)}, "layer 0 .* no number"),
        ({"kernel_0": np.zeros((2, 3)), "bias_0": np.full(3, 1e300)}, "layer 0 .* no number"),
        ({"kernel_0": np.array([object()]), "bias_0": np.zeros(1)}, "cannot be read"),
    ],
)
def test_another_head_is_refused(
    tmp_path: Path, arrays: dict[str, np.ndarray], fragment: str
) -> None:
    np.savez(tmp_path / "head.npz", **arrays)
    with pytest.raises(ModelPackageError, match=fragment):
        DenseHead.load(tmp_path / "head.npz")


def test_a_head_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "head.npz").write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(ModelPackageError, match="cannot be read"):
        DenseHead.load(tmp_path / "head.npz")
