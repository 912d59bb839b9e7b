"""The compiled search and measures beside those in NumPy: the same answers for any picture."""

import base64
import ctypes
import platform
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from dr_training.drawing import draw_fundus
from inference_image import (
    fundus,
    fundus_compiled,
    fundus_measures,
    fundus_search,
    kernel,
    preprocessing,
    resampling,
)
from inference_image.docker import build_kernel
from inference_image.fundus import QualityGate
from inference_image.fundus_terms import THUMBNAIL_PX
from inference_image.preprocessing import _square as square
from tests.unit.inference_image.test_fundus import CASES, frame

# The order in which the fit's sums are added differs; everything else is equal to the bit.
SAME_PX = 1e-6
Box = tuple[int, int, int, int]
SIDES = (16, 28, 99, 160, 224, 299)


def factor_of(width: int, height: int) -> int:
    return max(1, -(-max(width, height) // THUMBNAIL_PX))


def check_disc(picture: Image.Image, box: Box | None = None) -> bool:
    """Whether both find a disc; they must agree on that, on where it is, and on the frame."""
    left, top, right, bottom = box = box or (0, 0, *picture.size)
    words = (picture, box, factor_of(right - left, bottom - top))
    expected, framed = fundus_search.find_disc(*words)
    found, found_framed = fundus_compiled.find_disc(*words)
    assert found_framed == framed
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert found == pytest.approx(expected, abs=SAME_PX)
    return found is not None


def check_resized(
    picture: Image.Image, size: tuple[int, int], box: tuple[float, float, float, float]
) -> None:
    for bilinear in (False, True):
        expected, found = (np.full((size[1], size[0], 3), 7, np.uint8) for _ in range(2))
        resampling.resize_into(expected, picture, box, bilinear)
        fundus_compiled.resize_into(found, picture, box, bilinear)
        assert np.array_equal(found, expected)


def check_measures(pixels: np.ndarray, hidden: float | None) -> None:
    assert fundus_compiled.measure(pixels, hidden) == fundus_measures.measure(pixels, hidden)
    if pixels.shape[0] == 224:
        green = pixels[:, :, 1]
        for least in (0.0, 1.6, 1e9):  # a glance is enough, or in doubt, or never
            found = fundus_compiled.vesselness(green, least)
            assert found == fundus_measures.vesselness(green, least)


def check_throughout(picture: Image.Image) -> bool:
    found = check_disc(picture)
    circle = fundus.find_circle(picture)
    hidden = 1 - circle.visible_fraction if circle.found else None
    for side in SIDES:
        check_measures(square(picture, circle, side), hidden)
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
    assert preprocessing.resize_into is fundus_compiled.resize_into


@pytest.mark.parametrize("name", CASES)
def test_the_geometry_cases_agree(name: str) -> None:
    (x, y, radius), changes = CASES[name]
    assert check_throughout(Image.fromarray(frame(x, y, radius, **changes)))


def test_drawn_eyes_agree() -> None:
    found = [
        check_throughout(Image.fromarray(draw_fundus(seed, seed % 5, 128 + 62 * seed).image))
        for seed in range(20)
    ]
    assert all(found)


def test_what_is_hardly_an_eye_agrees() -> None:
    found = [check_throughout(Image.fromarray(picture)) for picture in scenes()]
    # Both answers occur, or nothing was compared.
    assert 40 < sum(found) < 200


# Height, width, level, and the marked pixels, packed: mirrored circles are equally near to their
# contours, and whoever adds up in another order would take the other one.
MIRRORED = (
    (93, 16, 255, "c-muNpeFc_2QW|>002z-8|4"),
    (22, 115, 255, "c-muNpc}A%fXrk6gChCA0huTN0h!1A4@GJH0c0Nk4`d$We>_%F9RL6bcnTK"),
    (75, 26, 20, "c-muNpfa%kj|Y6fq5+@!{|6Xo003TtI=2"),
    (32, 26, 60, "c-muNAPkuQGcf!=z+nG@f&ULy4iNwVl~N42"),
    (
        *(46, 35, 255),
        "c-muNpc>$R{DXn{-~R@N|Nnn5*#H0E!2bXL2O#GkgZ%&h2be*k_5c4f@c;k+0IY=n_df=PfA$SjvK|0PxgrV",
    ),
)


@pytest.mark.parametrize(("height", "width", "level", "packed"), MIRRORED)
def test_mirrored_circles_do_not_depend_on_rounding(
    height: int, width: int, level: int, packed: str
) -> None:
    marked = np.frombuffer(zlib.decompress(base64.b85decode(packed)), np.uint8)
    shape = np.unpackbits(marked)[: height * width].reshape(height, width, 1)
    assert check_disc(Image.fromarray(np.repeat(shape * np.uint8(level), 3, axis=2)))


@settings(deadline=None)
@given(
    hnp.arrays(
        np.uint8,
        st.tuples(st.integers(1, THUMBNAIL_PX), st.integers(1, THUMBNAIL_PX), st.just(3)),
        elements=st.sampled_from([0, 1, 10, 64, 116, 128, 136, 243, 255]),
    )
)
def test_any_thumbnail_agrees(pixels: np.ndarray) -> None:
    check_disc(Image.fromarray(pixels))


@settings(deadline=None)
@given(st.integers(16, 260), st.integers(0, 2**32), st.sampled_from([2, 12, 128, 256]))
def test_any_square_agrees(side: int, seed: int, levels: int) -> None:
    draw = np.random.default_rng(seed)
    pixels = draw.integers(256 - levels, 256, (side, side, 3), dtype=np.uint8)
    pixels[draw.random((side, side)) < draw.random()] = 0
    check_measures(pixels, draw.choice([None, 0.0, 0.37, 1.0]))


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


@settings(deadline=None)
@given(st.data())
def test_any_box_of_any_picture_agrees(data: st.DataObject) -> None:
    width, height = data.draw(st.integers(16, 700)), data.draw(st.integers(16, 700))
    pixels = np.random.default_rng(data.draw(st.integers(0, 2**32))).integers(
        0, 256, (height, width, 3), dtype=np.uint8
    )
    rows, columns = np.mgrid[:height, :width]
    beyond = np.hypot(rows - height / 2, columns - width / 2) > 0.4 * min(height, width)
    pixels[beyond] = 0
    picture = Image.fromarray(pixels)
    left, top = data.draw(st.integers(0, width - 16)), data.draw(st.integers(0, height - 16))
    right, bottom = (
        data.draw(st.integers(left + 16, width)),
        data.draw(st.integers(top + 16, height)),
    )
    check_disc(picture, (left, top, right, bottom))
    part = data.draw(
        st.tuples(*(st.floats(0, 1) for _ in range(2)), *(st.floats(0.01, 1) for _ in range(2)))
    )
    box = (
        part[0] * left,
        part[1] * top,
        left + part[2] * (right - left),
        top + part[3] * (bottom - top),
    )
    check_resized(picture, (data.draw(st.integers(1, 320)), data.draw(st.integers(1, 320))), box)


# Far and hardly smaller, by one side only, as it is, larger; and what the kernel leaves to Pillow:
# many pixels for one, and a height that shrinks by far more than the width.
@pytest.mark.parametrize(
    "size", [(224, 224), (40, 33), (500, 11), (11, 380), (900, 700), (1025, 3)]
)
@pytest.mark.parametrize(
    "box", [(0, 0, 500, 380), (1.25, 3.5, 499.75, 377), (400, 370, 402.5, 380)]
)
def test_resampling_agrees(size: tuple[int, int], box: tuple[float, float, float, float]) -> None:
    draw = np.random.default_rng(3)
    check_resized(Image.fromarray(draw.integers(0, 256, (380, 500, 3), dtype=np.uint8)), size, box)


def test_an_ordinary_photograph_needs_nothing_of_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the kernel would be there and idle, since Pillow shows its memory in another way."""

    def never(*_: object) -> None:
        raise AssertionError("Pillow was asked")

    monkeypatch.setattr(fundus_compiled, "thumbnail_of", never)
    monkeypatch.setattr(resampling, "resize_into", never)
    for side in (224, 500, 1200):
        picture = Image.fromarray(draw_fundus(3, 2, side).image)
        circle = fundus.find_circle(picture)
        assert circle.found
        assert square(picture, circle, 224).any()


@pytest.mark.parametrize("level", [0, 1, 127, 254, 255])
def test_a_plane_stays_as_it_is(level: int) -> None:
    found = np.zeros((224, 224, 3), np.uint8)
    plane = Image.new("RGB", (611, 433), (level,) * 3)
    fundus_compiled.resize_into(found, plane, (1.3, 2.7, 430.1, 431.9), bilinear=False)
    assert (found == level).all()


def test_only_its_own_part_of_a_square_is_written() -> None:
    picture = Image.fromarray(draw_fundus(4, 2, 300).image)
    target = np.full((60, 70, 3), 9, np.uint8)
    fundus_compiled.resize_into(target[5:50, 10:60], picture, (0, 0, 300, 280), bilinear=False)
    assert (target[:5] == 9).all()
    assert (target[50:] == 9).all()
    assert (target[:, :10] == 9).all()
    assert (target[:, 60:] == 9).all()


def framed_scenes() -> Iterator[np.ndarray]:
    """Scenes within frames, on some of their sides only, some uneven, some as dark as a corner."""
    draw = np.random.default_rng(20_261_129)
    for index, whole in enumerate(scenes()):
        sides = [int(side) for side in draw.integers(0, 12, 4) * (draw.random(4) < 0.7)]
        top, bottom, left, right = sides
        scene = whole[: THUMBNAIL_PX - top - bottom, : THUMBNAIL_PX - left - right]
        colour = draw.integers(0, 256, 3) if index % 3 else draw.integers(8, 16, 3)
        surrounded = np.pad(scene, ((top, bottom), (left, right), (0, 0)))
        inside = np.pad(np.ones(scene.shape[:2], bool), ((top, bottom), (left, right)))
        uneven = draw.normal(0, 3 if index % 2 else 9, surrounded.shape)
        painted = (colour + uneven).clip(0, 255).astype(np.uint8)
        yield np.where(inside[..., np.newaxis], surrounded, painted)


def test_both_cut_the_same_frames() -> None:
    cut = 0
    for pixels in framed_scenes():
        picture = Image.fromarray(pixels)
        check_disc(picture)
        box = fundus_compiled.find_disc(picture, (0, 0, *picture.size), 1)[1]
        cut += box is not None
        if box is not None:
            left, top, right, bottom = box
            assert 0 <= left < right <= picture.width
            assert 0 <= top < bottom <= picture.height
    assert 20 < cut < 200


def test_a_dark_edge_alone_is_no_frame_and_costs_no_second_search() -> None:
    """A background of some levels, as cameras have it, is like itself all along an edge."""
    eye = draw_fundus(8, 2, 224).image
    picture = Image.fromarray(np.maximum(eye, 11))
    assert fundus_search._may_be_framed(np.asarray(picture)[::2, ::2])
    assert fundus_compiled.find_disc(picture, (0, 0, *picture.size), 2)[1] is None
    assert check_disc(picture)


@pytest.mark.parametrize("size", [(4097, 40), (40, 4097), (2600, 2000)])
def test_what_the_kernel_does_not_take_is_left_to_pillow(size: tuple[int, int]) -> None:
    """Wide pictures, and those that Pillow does not hold in one place."""
    draw = np.random.default_rng(5)
    picture = Image.fromarray(draw.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    check_disc(picture)
    check_resized(picture, (64, 48), (0.0, 0.0, *map(float, size)))


def test_a_thumbnail_that_is_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 144 pixels"):
        fundus_compiled.find_disc(Image.new("RGB", (290, 20)), (0, 0, 290, 20), 2)


@pytest.mark.parametrize("size", [(15, 144), (144, 15), (1, 1)])
def test_no_disc_is_searched_in_a_thumbnail_that_is_too_small(size: tuple[int, int]) -> None:
    for search in (fundus_search, fundus_compiled):
        picture = Image.new("RGB", size, "white")
        assert search.find_disc(picture, (0, 0, *size), 1) == (None, None)


@pytest.mark.parametrize("pixels", [np.zeros((8, 9, 3), np.uint8), np.zeros((8, 8), np.uint8)])
def test_what_is_no_square_is_refused(pixels: np.ndarray) -> None:
    with pytest.raises(ValueError, match="a prepared photograph is S x S x 3"):
        fundus_compiled.measure(pixels, None)


@pytest.mark.parametrize("shape", [(223, 224), (224, 223), (224, 224, 1)])
def test_levels_of_another_size_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="224 x 224"):
        fundus_compiled.vesselness(np.zeros(shape, np.uint8), 1.6)


def test_threads_do_not_disturb_each_other() -> None:
    pictures = [Image.fromarray(draw_fundus(seed, 2, 400).image) for seed in range(6)]

    def prepared(picture: Image.Image) -> bytes:
        return square(picture, fundus.find_circle(picture), 224).tobytes()

    expected = [prepared(picture) for picture in pictures]
    with ThreadPoolExecutor(6) as threads:
        for _ in range(20):
            assert list(threads.map(prepared, pictures)) == expected


def test_threads_that_ask_for_triplets_at_once_get_those_that_are_kept() -> None:
    """A table that is freed would be read all the same."""
    hard = Image.fromarray(scenes()[2])
    for _ in range(30):
        fundus_compiled._triplets_made.clear()
        begin = threading.Barrier(8)

        def ask(begin: threading.Barrier = begin) -> int | None:
            begin.wait()
            fundus_compiled._make_triplets()
            return fundus_compiled._triplets_at()

        with ThreadPoolExecutor(8) as threads:
            places = {thread.result() for thread in [threads.submit(ask) for _ in range(8)]}
        assert places == {fundus_compiled._triplets_made[0].ctypes.data}
    assert check_disc(hard) in (True, False)


def test_processors_without_wide_registers_get_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The other form of the loops, which is also the only one of the other architecture."""
    pictures = [Image.fromarray(draw_fundus(seed, 2, 300 + 100 * seed).image) for seed in range(4)]
    pictures += [Image.fromarray(picture) for picture in scenes()[:30]]

    def everything() -> list[object]:
        circles = [fundus.find_circle(picture) for picture in pictures]
        squares = [square(*pair, 224) for pair in zip(pictures, circles, strict=True)]
        judged = [fundus.assess(*p, QualityGate()) for p in zip(circles, squares, strict=True)]
        return [circles, [pixels.tobytes() for pixels in squares], judged]

    expected = everything()
    source = tmp_path / "fundus.c"
    real = kernel.FOLDER / "fundus.c"
    source.write_text(f'#define WITHOUT_AVX2\n#include "{real}"\n', encoding="utf-8")
    zig = kernel.FOLDER.parent.parent / ".compiler"  # where there is no other compiler
    built = build_kernel.build(
        platform.machine(), source=source, zig_folder=zig if zig.is_dir() else None
    )
    library = ctypes.CDLL(str(built))
    monkeypatch.setattr(kernel, "load", lambda: library)
    fundus_compiled._library.cache_clear()
    try:
        assert everything() == expected
        assert fundus_compiled._library() is library
    finally:
        fundus_compiled._library.cache_clear()


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
    monkeypatch.setattr(preprocessing, "resize_into", resampling.resize_into)
    for picture, circle, pixels, verdict in zip(pictures, circles, squares, judged, strict=True):
        again = fundus.find_circle(picture)
        assert again.found == circle.found
        assert again.x_px == pytest.approx(circle.x_px, abs=SAME_PX)
        assert np.array_equal(square(picture, circle, 224), pixels)
        assert fundus.assess(circle, pixels, gate) == verdict
