"""From photograph to model input: the package's own steps, one resampling, no skew."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import gaussian_filter

from inference_image.model_spec import ModelPackageError, ModelSpec, load_model_spec
from inference_image.preprocessing import Preparation, prepare
from tests.service_harness import TINY_MODEL, drawn_pixels

CROP = {"step": "crop_to_fundus"}
RESIZE = {"step": "resize_area"}
SUBTRACT = {"step": "subtract_gaussian"}
MASK = {"step": "mask_outside_disc"}


def spec(*steps: dict[str, Any], gate: dict[str, Any] | None = None, size: int = 64) -> ModelSpec:
    return dataclasses.replace(
        load_model_spec(TINY_MODEL), preprocessing=steps, quality_gate=gate, input_size_px=size
    )


def test_the_disc_fills_the_input() -> None:
    prepared = prepare(drawn_pixels(), spec(CROP, RESIZE, gate={}, size=224))
    assert prepared.pixels.shape == (224, 224, 3)
    assert prepared.pixels.dtype == np.uint8
    peak = prepared.pixels.max(axis=2)
    middle = peak[112]
    assert middle[3] > 20
    assert middle[-4] > 20
    assert peak[0, 0] < 20
    assert prepared.quality.gradable


def test_an_array_and_a_pillow_image_give_the_same_input() -> None:
    pixels = drawn_pixels()
    of_array = prepare(pixels, spec(CROP, RESIZE, gate={}))
    of_image = prepare(Image.fromarray(pixels), spec(CROP, RESIZE, gate={}))
    assert np.array_equal(of_array.pixels, of_image.pixels)


def test_moving_the_disc_in_a_larger_frame_hardly_changes_the_input() -> None:
    pixels = drawn_pixels(size_px=600)
    wide = np.zeros((800, 1000, 3), dtype=np.uint8)
    wide[150:750, 300:900] = pixels
    here = prepare(pixels, spec(CROP, RESIZE, gate={})).pixels.astype(int)
    there = prepare(wide, spec(CROP, RESIZE, gate={})).pixels.astype(int)
    assert np.abs(here - there).mean() < 2.0


def test_shrinking_averages_every_source_pixel() -> None:
    # Alternating black and white pixels have a mean of 127.5; skipping any would show.
    board = (np.indices((512, 512)).sum(axis=0) % 2 * 255).astype(np.uint8)
    pixels = np.repeat(board[:, :, np.newaxis], 3, axis=2)
    prepared = prepare(pixels, spec(RESIZE))
    assert np.abs(prepared.pixels.astype(int) - 128).max() <= 1


def test_area_means_of_whole_blocks_are_exact() -> None:
    blocks = np.random.default_rng(4).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    large = blocks.repeat(4, axis=0).repeat(4, axis=1)
    assert np.array_equal(prepare(large, spec(RESIZE)).pixels, blocks)


def test_a_picture_that_is_not_square_is_padded_never_squashed() -> None:
    pixels = np.full((100, 200, 3), 200, dtype=np.uint8)
    prepared = prepare(pixels, spec(RESIZE)).pixels
    assert prepared[:16].max() == 0
    assert prepared[-16:].max() == 0
    assert prepared[17:47].min() == 200


def test_a_clipped_disc_is_padded_with_black() -> None:
    pixels = np.ascontiguousarray(drawn_pixels(size_px=600)[:, 120:])
    prepared = prepare(pixels, spec(CROP, RESIZE, gate={}))
    assert prepared.circle.found
    assert prepared.circle.x_px < prepared.circle.radius_px
    assert prepared.pixels[:, :5].max() == 0
    assert prepared.pixels[32, 40].max() > 20


@pytest.mark.parametrize("size", [(1, 1), (3, 200), (200, 3), (17, 16), (64, 64)])
def test_no_size_is_too_small_to_answer(size: tuple[int, int]) -> None:
    prepared = prepare(np.zeros((*size, 3), dtype=np.uint8), spec(CROP, RESIZE, MASK, gate={}))
    assert prepared.pixels.shape == (64, 64, 3)
    assert not prepared.quality.gradable


def test_a_disc_below_the_minimum_radius_counts_as_not_found() -> None:
    pixels = drawn_pixels(size_px=200)
    small = prepare(pixels, spec({**CROP, "min_radius_px": 150}, RESIZE, gate={}))
    assert not small.circle.found
    assert "not_a_fundus_photograph" in small.quality.reasons
    # The limit counts pixels of the file, whatever the scale of its decoding.
    preparation = Preparation.from_spec(spec({**CROP, "min_radius_px": 150}, RESIZE, gate={}))
    assert preparation(pixels, scale=0.25).circle.found


def test_prepared_inputs_pass_through_untouched() -> None:
    pixels = np.random.default_rng(5).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    prepared = prepare(pixels, spec())
    assert np.array_equal(prepared.pixels, pixels)
    assert prepared.quality.gradable


def test_without_a_gate_a_missing_disc_is_still_flagged() -> None:
    prepared = prepare(np.zeros((300, 300, 3), dtype=np.uint8), spec(CROP, RESIZE))
    assert prepared.quality.reasons == ("not_a_fundus_photograph",)
    assert prepare(drawn_pixels(), spec(CROP, RESIZE)).quality.gradable


def test_the_mask_blackens_labels_outside_the_disc() -> None:
    pixels = drawn_pixels().copy()
    pixels[5:25, 5:60] = 255
    open_corner = prepare(pixels, spec(CROP, RESIZE, gate={})).pixels
    masked = prepare(pixels, spec(CROP, RESIZE, MASK, gate={})).pixels
    corner = (slice(0, 8), slice(0, 8))
    assert masked[corner].max() == 0
    assert np.array_equal(masked[24:40, 24:40], open_corner[24:40, 24:40])


def filtered(
    pixels: np.ndarray, *, sigma: float = 10, gain: float = 4, level: float = 128
) -> np.ndarray:
    """`subtract_gaussian` by SciPy, before rounding and clipping."""
    values = pixels.astype(np.float64)
    blurred = gaussian_filter(values, (sigma, sigma, 0), mode="mirror", truncate=3.0)
    return gain * values - gain * blurred + level


@pytest.mark.parametrize(
    "parameters", [{}, {"sigma_px": 7.5}, {"sigma_px": 22.4, "gain": 2.5, "level": 100}]
)
@pytest.mark.parametrize("size", [64, 224])
def test_the_gaussian_is_subtracted_as_scipy_would(parameters: dict[str, Any], size: int) -> None:
    plain = prepare(drawn_pixels(), spec(CROP, RESIZE, gate={}, size=size))
    prepared = prepare(drawn_pixels(), spec(CROP, RESIZE, {**SUBTRACT, **parameters}, size=size))
    named = {"sigma" if k == "sigma_px" else k: v for k, v in parameters.items()}
    expected = np.clip(filtered(plain.pixels, **named), 0, 255)
    # Half a level of rounding, and float32.
    assert np.abs(prepared.pixels - expected).max() <= 0.51


def test_opencv_which_rounds_the_blurred_image_differs_by_half_the_gain_at_most() -> None:
    pixels = prepare(drawn_pixels(), spec(CROP, RESIZE, gate={}, size=224)).pixels
    ours = prepare(pixels, spec(SUBTRACT, size=224)).pixels
    blurred = np.rint(gaussian_filter(pixels.astype(float), (10, 10, 0), mode="mirror", truncate=3))
    opencv = np.clip(4 * pixels.astype(float) - 4 * blurred + 128, 0, 255)
    assert np.abs(ours - opencv).max() <= 2.5


@pytest.mark.parametrize("size", [8, 28, 64])
def test_one_colour_becomes_the_level_whatever_the_size_and_sigma(size: int) -> None:
    pixels = np.full((size, size, 3), (200, 90, 40), dtype=np.uint8)
    step = {**SUBTRACT, "sigma_px": 200}
    assert np.all(prepare(pixels, spec(step, size=size)).pixels == 128)


def test_the_mask_after_a_subtraction_has_its_level() -> None:
    steps = (CROP, RESIZE, SUBTRACT, MASK)
    masked = prepare(drawn_pixels(), spec(*steps, gate={})).pixels
    open_corner = prepare(drawn_pixels(), spec(*steps[:3], gate={})).pixels
    assert np.all(masked[:8, :8] == 128)
    assert np.array_equal(masked[24:40, 24:40], open_corner[24:40, 24:40])


def test_the_verdict_is_on_the_photograph_before_the_subtraction() -> None:
    plain = prepare(drawn_pixels(), spec(CROP, RESIZE, gate={}, size=224))
    subtracted = prepare(drawn_pixels(), spec(CROP, RESIZE, SUBTRACT, gate={}, size=224))
    assert subtracted.quality == plain.quality
    assert subtracted.quality.gradable


def test_a_filtered_photograph_is_refused_by_a_model_of_unfiltered_ones() -> None:
    once = prepare(drawn_pixels(), spec(CROP, RESIZE, SUBTRACT, gate={}, size=224)).pixels
    again = prepare(once, spec(CROP, RESIZE, SUBTRACT, gate={}, size=224))
    assert again.quality.reasons == ("not_a_fundus_photograph",)
    # A model of filtered ones has no steps and takes it as it is.
    assert np.array_equal(prepare(once, spec(size=224)).pixels, once)


def test_the_gate_judges_the_disc_of_a_model_that_does_not_crop() -> None:
    wide = np.zeros((800, 1000, 3), dtype=np.uint8)
    pixels = drawn_pixels()
    wide[100 : 100 + pixels.shape[0], 200 : 200 + pixels.shape[1]] = pixels
    prepared = prepare(wide, spec(RESIZE, gate={}, size=224))
    assert prepared.quality == prepare(wide, spec(CROP, RESIZE, gate={}, size=224)).quality
    assert prepared.quality.gradable
    assert prepared.pixels[:20].max() == 0


@pytest.mark.parametrize(
    ("steps", "fragment"),
    [
        ([{"step": "clahe"}], "'clahe' is not known; known are crop_to_fundus"),
        ([{**CROP, "margin": 3}], "no parameter margin"),
        ([{**CROP, "min_radius_px": -1}], "positive number"),
        ([{**CROP, "min_radius_px": float("inf")}], "at most 20000"),
        ([{**CROP, "min_radius_px": float("nan")}], "positive number"),
        ([{**CROP, "min_radius_px": 10**400}], "at most 20000"),
        ([RESIZE, {"step": "mask_outside_disc", "radius_fraction": "1"}], "positive number"),
        ([{**SUBTRACT, "sigma_px": 0}], "positive number, at most 200"),
        ([{**SUBTRACT, "gain": 1000}], "at most 100"),
        ([{**SUBTRACT, "level": 256}], "at most 255"),
        ([{**SUBTRACT, "radius": 3}], "no parameter radius"),
        ([MASK, SUBTRACT], "in the order"),
        ([RESIZE, CROP], "in the order"),
        ([RESIZE, RESIZE], "once each"),
    ],
)
def test_steps_that_are_not_known_are_refused(steps: list[dict[str, Any]], fragment: str) -> None:
    with pytest.raises(ModelPackageError, match=fragment):
        Preparation.from_spec(spec(*steps))


def test_the_real_photograph_is_found_and_gradable(real_photograph: Path) -> None:
    with Image.open(real_photograph) as picture:
        prepared = prepare(picture, spec(CROP, RESIZE, gate={}, size=224))
    # Measured by hand on the picture: columns 9..1399 and rows 7..1399 are brighter than 60.
    assert prepared.circle.x_px == pytest.approx(704.5, abs=2)
    assert prepared.circle.y_px == pytest.approx(703.5, abs=2)
    assert prepared.circle.radius_px == pytest.approx(695.75, abs=2)
    assert prepared.quality.gradable


def test_golden_pixels() -> None:
    # Training and serving share this function; a change of Pillow that changed its pixels
    # would be skew between a model trained before and a service built after.
    rows, columns = np.mgrid[0:300, 0:400]
    disc = np.hypot(columns - 190, rows - 150) < 120
    pixels = np.stack([disc * (120 + rows % 97), disc * (columns % 89), disc * 40], axis=2)
    prepared = prepare(pixels.astype(np.uint8), spec(CROP, RESIZE, size=16)).pixels
    golden = [[152, 16, 32], [137, 20, 40], [181, 20, 40], [128, 65, 40], [102, 9, 27]]
    picked = prepared[[2, 5, 8, 11, 13], [2, 8, 8, 5, 13]]
    assert np.abs(picked.astype(int) - np.array(golden)).max() <= 1, picked.tolist()
    # Means over the true areas, by counting twentieths of a pixel; the first and the last are
    # on the disc's edge, where one row of pixels more or less is seen.
    areas = [[144, 15, 31], [136, 20, 40], [181, 20, 40], [129, 64, 40], [119, 12, 30]]
    gaps = np.abs(picked.astype(int) - np.array(areas)).max(axis=1)
    assert gaps.max() <= 17, gaps
    assert gaps[1:4].max() <= 2, gaps
