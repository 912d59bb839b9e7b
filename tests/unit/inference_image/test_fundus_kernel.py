"""The compiled search and measures beside those in NumPy: the same answers for any picture."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from dr_training.drawing import draw_fundus
from inference_image import fundus, fundus_compiled, fundus_measures, fundus_search, kernel
from inference_image.fundus import QualityGate
from inference_image.fundus_terms import THUMBNAIL_PX
from inference_image.preprocessing import _square as square
from tests.unit.inference_image.test_fundus import CASES, frame

# The order in which the fit's sums are added differs; everything else is equal to the bit.
SAME_PX = 1e-6
SIDES = (16, 28, 99, 160, 224, 299)


def thumbnail_of(picture: Image.Image) -> Image.Image:
    factor = max(1, -(-max(picture.size) // THUMBNAIL_PX))
    return picture.reduce(factor) if factor > 1 else picture


def same_disc(thumbnail: Image.Image) -> bool:
    """Whether both find a disc; they must agree on that, on where it is, and on the frame."""
    expected, framed = fundus_search.find_disc(thumbnail)
    found, may_be_framed = fundus_compiled.find_disc(thumbnail)
    assert may_be_framed == framed
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert found == pytest.approx(expected, abs=SAME_PX)
    return found is not None


def same_measures(pixels: np.ndarray, hidden: float | None) -> None:
    assert fundus_compiled.measure(pixels, hidden) == fundus_measures.measure(pixels, hidden)
    if pixels.shape[0] == 224:
        green = pixels[:, :, 1]
        for least in (0.0, 1.6, 1e9):  # a glance is enough, or in doubt, or never
            found = fundus_compiled.vesselness(green, least)
            assert found == fundus_measures.vesselness(green, least)


def same_throughout(picture: Image.Image) -> bool:
    found = same_disc(thumbnail_of(picture))
    circle = fundus.find_circle(picture)
    hidden = 1 - circle.visible_fraction if circle.found else None
    for side in SIDES:
        same_measures(square(picture, circle, side), hidden)
    return found


@cache
def scenes() -> tuple[np.ndarray, ...]:
    """240 pictures that show no eye, or hardly: noise, planes, discs, smooth colours, filtered
    and darkened ones; of any shape that a thumbnail may have."""
    draw = np.random.default_rng(20_261_128)
    eyes = [draw_fundus(seed, seed % 5, 128).image.astype(float) for seed in range(8)]
    made = []
    for index in range(240):
        height, width = draw.integers(16, THUMBNAIL_PX + 1, 2)
        rows, columns = np.mgrid[:height, :width]
        longest = max(height, width)
        x, y, radius = width * draw.random(), height * draw.random(), longest * draw.random()
        disc = ((columns - x) ** 2 + (rows - y) ** 2 < radius**2)[..., np.newaxis]
        noise = draw.normal(0, 20, (height, width, 3))
        eye = eyes[index % 8]
        picture = (
            draw.integers(0, 256, (height, width, 3)),
            noise * 0 + draw.integers(0, 256, 3),
            disc * draw.integers(20, 255, 3) + noise * draw.random(),
            (1 - disc) * draw.integers(20, 255, 3) + noise * draw.random(),
            128 + disc * noise * 2,
            eye * draw.random() + draw.normal(0, 5, eye.shape),
        )[index % 6]
        made.append(picture.clip(0, 255).astype(np.uint8))
    return tuple(made)


def test_this_checkout_has_a_kernel_and_uses_it() -> None:
    assert kernel.load() is not None
    assert fundus.find_disc is fundus_compiled.find_disc


@pytest.mark.parametrize("name", CASES)
def test_the_geometry_cases_agree(name: str) -> None:
    (x, y, radius), changes = CASES[name]
    assert same_throughout(Image.fromarray(frame(x, y, radius, **changes)))


def test_drawn_eyes_agree() -> None:
    found = [
        same_throughout(Image.fromarray(draw_fundus(seed, seed % 5, 128 + 62 * seed).image))
        for seed in range(20)
    ]
    assert all(found)


def test_what_is_hardly_an_eye_agrees() -> None:
    found = [same_throughout(Image.fromarray(picture)) for picture in scenes()]
    # Both answers occur, or nothing was compared.
    assert 40 < sum(found) < 200


@settings(deadline=None)
@given(
    hnp.arrays(
        np.uint8,
        st.tuples(st.integers(1, THUMBNAIL_PX), st.integers(1, THUMBNAIL_PX), st.just(3)),
        elements=st.sampled_from([0, 1, 10, 64, 116, 128, 136, 243, 255]),
    )
)
def test_any_thumbnail_agrees(pixels: np.ndarray) -> None:
    same_disc(Image.fromarray(pixels))


@settings(deadline=None)
@given(st.integers(16, 260), st.integers(0, 2**32), st.sampled_from([2, 12, 128, 256]))
def test_any_square_agrees(side: int, seed: int, levels: int) -> None:
    draw = np.random.default_rng(seed)
    pixels = draw.integers(256 - levels, 256, (side, side, 3), dtype=np.uint8)
    pixels[draw.random((side, side)) < draw.random()] = 0
    same_measures(pixels, draw.choice([None, 0.0, 0.37, 1.0]))


def test_levels_that_lie_anywhere_are_measured() -> None:
    draw = np.random.default_rng(7)
    wide = draw.integers(0, 256, (224, 300, 3), dtype=np.uint8)
    for green in (wide[:, 5:229, 1], wide[:, 5:229, 1].T, wide[::-1, 5:229, 2]):
        expected = fundus_measures.vesselness(np.ascontiguousarray(green), 1.6)
        assert fundus_compiled.vesselness(green, 1.6) == expected
    upside_down = wide[::-1, :224]
    assert fundus_compiled.measure(upside_down, None) == fundus_measures.measure(
        np.ascontiguousarray(upside_down), None
    )


@pytest.mark.parametrize("size", [(145, 20), (20, 145)])
def test_a_thumbnail_that_is_too_large_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="at most 144 pixels"):
        fundus_compiled.find_disc(Image.new("RGB", size))


@pytest.mark.parametrize("size", [(15, 144), (144, 15), (1, 1)])
def test_no_disc_is_searched_in_a_thumbnail_that_is_too_small(size: tuple[int, int]) -> None:
    for search in (fundus_search, fundus_compiled):
        assert search.find_disc(Image.new("RGB", size, "white")) == (None, False)


@pytest.mark.parametrize("pixels", [np.zeros((8, 9, 3), np.uint8), np.zeros((8, 8), np.uint8)])
def test_what_is_no_square_is_refused(pixels: np.ndarray) -> None:
    with pytest.raises(ValueError, match="a prepared photograph is S x S x 3"):
        fundus_compiled.measure(pixels, None)


@pytest.mark.parametrize("shape", [(223, 224), (224, 223), (224, 224, 1)])
def test_levels_of_another_size_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="224 x 224"):
        fundus_compiled.vesselness(np.zeros(shape, np.uint8), 1.6)


def test_threads_do_not_disturb_each_other() -> None:
    thumbnails = [thumbnail_of(Image.fromarray(draw_fundus(s, 2, 400).image)) for s in range(6)]
    expected = [fundus_compiled.find_disc(thumbnail) for thumbnail in thumbnails]
    with ThreadPoolExecutor(6) as threads:
        for _ in range(20):
            assert list(threads.map(fundus_compiled.find_disc, thumbnails)) == expected


def test_without_the_kernel_verdicts_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = QualityGate()
    pictures = [Image.fromarray(draw_fundus(seed, 2, 224).image) for seed in range(5)]
    pictures += [Image.fromarray(picture) for picture in scenes()[:30]]
    circles = [fundus.find_circle(picture) for picture in pictures]
    squares = [square(*pair, 224) for pair in zip(pictures, circles, strict=True)]
    judged = [fundus.assess(*pair, gate) for pair in zip(circles, squares, strict=True)]
    monkeypatch.setattr(fundus, "find_disc", fundus_search.find_disc)
    monkeypatch.setattr(fundus, "measure", fundus_measures.measure)
    monkeypatch.setattr(fundus, "vesselness", fundus_measures.vesselness)
    for picture, circle, pixels, verdict in zip(pictures, circles, squares, judged, strict=True):
        again = fundus.find_circle(picture)
        assert again.found == circle.found
        assert again.x_px == pytest.approx(circle.x_px, abs=SAME_PX)
        assert fundus.assess(circle, pixels, gate) == verdict
