"""Drawn photographs: deterministic, plausible, and of the grade that they claim."""

import hashlib
import io

import numpy as np
import pytest
from PIL import Image

from dr_training.drawing import DrawnFundus, draw_fundus
from dr_training.lesions import (
    COTTON_WOOL_SPOT,
    GRADES,
    HAEMORRHAGE,
    HARD_EXUDATE,
    IRMA,
    MAX_MICROANEURYSM_WIDTH,
    MICROANEURYSM,
    NEW_VESSELS_DISC,
    NEW_VESSELS_ELSEWHERE,
    PRERETINAL_HAEMORRHAGE,
    SEVERE_HAEMORRHAGES_PER_QUADRANT,
    VENOUS_BEADING,
    VITREOUS_HAEMORRHAGE,
    Lesion,
    icdr_grade,
)

SEEDS = range(500, 508)
SIZE_PX = 256


@pytest.fixture(scope="module")
def drawings() -> list[DrawnFundus]:
    return [draw_fundus(seed, grade, SIZE_PX) for seed in SEEDS for grade in GRADES]


def _lesions(kind: str, quadrants: list[int]) -> list[Lesion]:
    return [Lesion(kind=kind, x_px=0, y_px=0, width_px=1, quadrant=q) for q in quadrants]


@pytest.mark.parametrize(
    ("seed", "grade", "size_px", "message"),
    [
        (1, 5, 256, "grade must be"),
        (1, -1, 256, "grade must be"),
        (1, 0, 100, "size_px must be"),
        (1, 0, 5000, "size_px must be"),
        (-1, 0, 256, "seed must not be negative"),
    ],
)
def test_arguments_out_of_range_are_refused(
    seed: int, grade: int, size_px: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        draw_fundus(seed, grade, size_px)


@pytest.mark.parametrize("grade", GRADES)
def test_the_same_seed_draws_the_same_photograph(grade: int) -> None:
    first, second = draw_fundus(3, grade, SIZE_PX), draw_fundus(3, grade, SIZE_PX)
    assert hashlib.sha256(first.image.tobytes()).digest() == (
        hashlib.sha256(second.image.tobytes()).digest()
    )
    assert first.lesions == second.lesions


def test_another_seed_draws_another_photograph() -> None:
    images = {draw_fundus(seed, 0, SIZE_PX).image.tobytes() for seed in range(6)}
    assert len(images) == 6


def test_drawing_leaves_numpys_global_generator_alone() -> None:
    np.random.seed(5)
    expected = np.random.random()
    np.random.seed(5)
    draw_fundus(9, 3, SIZE_PX)
    assert np.random.random() == expected


def test_the_eye_stays_the_same_across_grades() -> None:
    healthy, mild = draw_fundus(12, 0, SIZE_PX), draw_fundus(12, 1, SIZE_PX)
    assert (healthy.eye, healthy.field_px) == (mild.eye, mild.field_px)
    difference = np.abs(healthy.image.astype(int) - mild.image.astype(int)).max(axis=2)
    assert 0 < np.mean(difference > 24) < 0.01  # a few dots, nothing else


def test_every_photograph_has_the_lesions_of_its_grade(drawings: list[DrawnFundus]) -> None:
    for drawn in drawings:
        assert icdr_grade(drawn.lesions) == drawn.grade


def test_grade_0_has_no_lesion_and_grade_1_only_microaneurysms(
    drawings: list[DrawnFundus],
) -> None:
    for drawn in drawings:
        kinds = {lesion.kind for lesion in drawn.lesions}
        if drawn.grade == 0:
            assert kinds == set()
        elif drawn.grade == 1:
            assert kinds == {MICROANEURYSM}
            assert drawn.count(MICROANEURYSM) >= 4


def test_grade_2_shows_more_than_microaneurysms(drawings: list[DrawnFundus]) -> None:
    for drawn in (d for d in drawings if d.grade == 2):
        assert drawn.count(MICROANEURYSM) > 0
        assert drawn.count(HAEMORRHAGE) >= 5
        assert max(drawn.quadrants(HAEMORRHAGE)) <= SEVERE_HAEMORRHAGES_PER_QUADRANT


def test_the_splits_signs_all_occur(drawings: list[DrawnFundus]) -> None:
    severe = [d for d in drawings if d.grade == 3]
    assert any(min(d.quadrants(HAEMORRHAGE)) > SEVERE_HAEMORRHAGES_PER_QUADRANT for d in severe)
    assert any(sum(n > 0 for n in d.quadrants(VENOUS_BEADING)) >= 2 for d in severe)
    assert any(d.count(IRMA) for d in severe)
    proliferative = [d for d in drawings if d.grade == 4]
    for kind in (NEW_VESSELS_DISC, NEW_VESSELS_ELSEWHERE, PRERETINAL_HAEMORRHAGE):
        assert any(d.count(kind) for d in proliferative)
    assert any(d.count(HARD_EXUDATE) for d in drawings)
    assert any(d.count(COTTON_WOOL_SPOT) for d in drawings)


def test_a_microaneurysm_is_at_most_one_percent_of_the_width(
    drawings: list[DrawnFundus],
) -> None:
    for drawn in drawings:
        widths = [les.width_px for les in drawn.lesions if les.kind == MICROANEURYSM]
        assert all(w <= MAX_MICROANEURYSM_WIDTH * drawn.image.shape[1] for w in widths)


def test_a_microaneurysm_is_seen_where_it_is_said_to_be() -> None:
    healthy, mild = draw_fundus(12, 0, 900), draw_fundus(12, 1, 900)
    for lesion in mild.lesions:
        x, y = int(lesion.x_px), int(lesion.y_px)
        before = float(healthy.image[y - 1 : y + 2, x - 1 : x + 2, 1].mean())
        after = float(mild.image[y - 1 : y + 2, x - 1 : x + 2, 1].mean())
        assert after < 0.7 * before


def test_quadrants_follow_the_image(drawings: list[DrawnFundus]) -> None:
    for drawn in drawings:
        centre_x, centre_y, radius = drawn.field_px
        for lesion in drawn.lesions:
            expected = int(lesion.x_px >= centre_x) + 2 * int(lesion.y_px >= centre_y)
            assert lesion.quadrant == expected
            assert np.hypot(lesion.x_px - centre_x, lesion.y_px - centre_y) < radius


def test_the_photograph_looks_like_one(drawings: list[DrawnFundus]) -> None:
    for drawn in drawings:
        height, width, channels = drawn.image.shape
        assert drawn.image.dtype == np.uint8
        assert (width, channels) == (SIZE_PX, 3)
        assert 0.88 * width <= height <= width
        red, green, blue = drawn.image[height // 3 : -height // 3, width // 3 : -width // 3].mean(
            axis=(0, 1)
        )
        assert red > 1.3 * green > 1.3 * 0.9 * blue
        assert drawn.image[:4, :4].max() < 40  # the surround is black


def test_left_eyes_are_mirrored(drawings: list[DrawnFundus]) -> None:
    eyes = {drawn.eye for drawn in drawings}
    assert eyes == {"left", "right"}


def test_jpeg_bytes_are_a_photograph_without_metadata() -> None:
    drawn = draw_fundus(1, 2, SIZE_PX)
    with Image.open(io.BytesIO(drawn.jpeg_bytes())) as image:
        assert image.format == "JPEG"
        assert image.size == (drawn.image.shape[1], drawn.image.shape[0])
        assert len(image.getexif()) == 0
        gap = np.abs(np.asarray(image).astype(int) - drawn.image.astype(int)).mean()
    assert gap < 4


@pytest.mark.parametrize(
    ("lesions", "grade"),
    [
        ([], 0),
        (_lesions(MICROANEURYSM, [0]), 1),
        (_lesions(MICROANEURYSM, [0, 1, 2, 3]) + _lesions(HARD_EXUDATE, [0]), 2),
        (_lesions(HAEMORRHAGE, [0]), 2),
        (_lesions(COTTON_WOOL_SPOT, [1]), 2),
        # 4: more than 20 haemorrhages in all four quadrants; 20, or three quadrants, are not.
        (_lesions(HAEMORRHAGE, [0, 1, 2, 3] * 20), 2),
        (_lesions(HAEMORRHAGE, [0, 1, 2] * 40), 2),
        (_lesions(HAEMORRHAGE, [0, 1, 2, 3] * 21), 3),
        # 2: venous beading in two quadrants; twice in one is not.
        (_lesions(VENOUS_BEADING, [0, 0]), 2),
        (_lesions(VENOUS_BEADING, [0, 3]), 3),
        # 1: IRMA in one quadrant.
        (_lesions(IRMA, [2]), 3),
        (_lesions(IRMA, [2]) + _lesions(NEW_VESSELS_DISC, [2]), 4),
        (_lesions(NEW_VESSELS_ELSEWHERE, [1]), 4),
        (_lesions(PRERETINAL_HAEMORRHAGE, [1]), 4),
        (_lesions(VITREOUS_HAEMORRHAGE, [1]), 4),
    ],
)
def test_the_icdr_rule(lesions: list[Lesion], grade: int) -> None:
    assert icdr_grade(lesions) == grade
