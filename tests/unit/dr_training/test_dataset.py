"""The drawn data set: splits, lesion maps, cache, and no skew between training and serving."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dr_training import dataset
from dr_training.dataset import DrawnData, ensure_split, grades_of, lesion_map, load_shards
from dr_training.drawing import DrawnFundus, draw_fundus
from dr_training.lesions import LESION_KINDS, MICROANEURYSM, Lesion
from dr_training.recipe import Recipe, Split, quick

RECIPE = Recipe()


def test_no_eye_is_in_two_splits() -> None:
    seeds = [set(split.seeds) for split in (RECIPE.train, RECIPE.validation, RECIPE.test)]
    assert len(set.union(*seeds)) == sum(len(one) for one in seeds)


def test_the_quick_recipe_keeps_the_splits_apart() -> None:
    recipe = quick(RECIPE)
    assert recipe.test.first_seed == RECIPE.test.first_seed
    assert recipe.train.photographs < 100


def test_the_held_out_split_holds_a_thousand_photographs_with_even_grades() -> None:
    assert RECIPE.test.photographs >= 1000
    grades = [grade for seed in RECIPE.test.seeds for grade in grades_of(RECIPE.test, seed)]
    counts = np.bincount(grades)
    assert len(counts) == 5
    assert counts.max() - counts.min() <= 1


def test_an_eye_is_drawn_in_different_grades() -> None:
    for seed in RECIPE.train.seeds[:20]:
        grades = grades_of(RECIPE.train, seed)
        assert len(set(grades)) == len(grades) == RECIPE.train.grades_per_eye


def test_the_lesion_map_marks_the_cell_of_a_lesion() -> None:
    lesion = Lesion(kind=MICROANEURYSM, x_px=75.0, y_px=25.0, width_px=1.0, quadrant=1)
    drawn = DrawnFundus(
        image=np.zeros((100, 100, 3), np.uint8),
        grade=1,
        seed=0,
        eye="left",
        field_px=(50.0, 50.0, 50.0),
        lesions=(lesion,),
    )
    cells = lesion_map(drawn)
    assert cells.shape == (14, 14, len(LESION_KINDS))
    assert np.argwhere(cells).tolist() == [[3, 10, 0]]


def test_a_healthy_eye_has_an_empty_lesion_map() -> None:
    assert not lesion_map(draw_fundus(1, 0, 256)).any()


@pytest.fixture(scope="module")
def small_split(tmp_path_factory: pytest.TempPathFactory) -> tuple[Split, list[Path], DrawnData]:
    split = Split(name="tiny", first_seed=900, eyes=3, grades_per_eye=2)
    shards = ensure_split(RECIPE, split, tmp_path_factory.mktemp("drawn"))
    return split, shards, load_shards(shards)


def test_a_split_is_drawn_and_read_back(
    small_split: tuple[Split, list[Path], DrawnData],
) -> None:
    split, shards, data = small_split
    assert len(shards) == 1
    assert data.pixels.shape == (6, 224, 224, 3)
    assert data.pixels.dtype == np.uint8
    expected = [grade for seed in split.seeds for grade in grades_of(split, seed)]
    assert data.grades.tolist() == expected
    has_lesions = data.maps.any(axis=(1, 2, 3))
    assert has_lesions.tolist() == [grade > 0 for grade in expected]


def test_training_pixels_are_what_the_service_would_prepare(
    small_split: tuple[Split, list[Path], DrawnData],
) -> None:
    split, _, data = small_split
    seed = split.first_seed
    drawn = draw_fundus(seed, grades_of(split, seed)[0], dataset.drawn_size_px(seed))
    assert np.array_equal(RECIPE.preparation()(drawn.image).pixels, data.pixels[0])


def test_a_second_call_draws_nothing(
    small_split: tuple[Split, list[Path], DrawnData], monkeypatch: pytest.MonkeyPatch
) -> None:
    split, shards, _ = small_split

    def refuse(*_: object) -> None:
        raise AssertionError("a shard was drawn again")

    monkeypatch.setattr(dataset.multiprocessing, "get_context", refuse)
    assert ensure_split(RECIPE, split, shards[0].parent.parent) == shards


def test_another_preprocessing_uses_another_folder(tmp_path: Path) -> None:
    split = Split(name="tiny", first_seed=900, eyes=0, grades_per_eye=1)
    for size_px in (224, 192):
        assert ensure_split(replace(RECIPE, input_size_px=size_px), split, tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 2
