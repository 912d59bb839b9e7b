"""Invariants of the figures of merit and of the drawn data, over generated cases."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dr_training.dataset import LESION_MAP_CELLS, lesion_map
from dr_training.drawing import DrawnFundus, draw_fundus
from dr_training.evaluate import (
    auc,
    confusion,
    quadratic_weighted_kappa,
    sensitivity,
    softmax,
    specificity,
    threshold_for_sensitivity,
    threshold_for_specificity,
)
from dr_training.lesions import GRADES, LESION_KINDS, Lesion, icdr_grade

GRADE_PAIRS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=60)
SCORED = st.lists(
    st.tuples(st.booleans(), st.floats(0, 1, allow_nan=False)), min_size=2, max_size=60
)
LESIONS = st.lists(
    st.builds(
        Lesion,
        kind=st.sampled_from(LESION_KINDS),
        x_px=st.floats(1, 99),
        y_px=st.floats(1, 99),
        width_px=st.floats(0.5, 30),
        quadrant=st.integers(0, 3),
    ),
    max_size=120,
)


@given(GRADE_PAIRS)
def test_kappa_is_symmetric_and_at_most_one(pairs: list[tuple[int, int]]) -> None:
    truth, predicted = (np.asarray(column) for column in zip(*pairs, strict=True))
    kappa = quadratic_weighted_kappa(truth, predicted)
    other = quadratic_weighted_kappa(predicted, truth)
    assert confusion(truth, predicted).sum() == len(pairs)
    if math.isnan(kappa):
        assert math.isnan(other)
    else:
        assert kappa <= 1 + 1e-12
        assert math.isclose(kappa, other, abs_tol=1e-9)


@given(SCORED)
def test_auc_of_the_opposite_score_is_the_complement(rows: list[tuple[bool, float]]) -> None:
    positive = np.asarray([row[0] for row in rows])
    score = np.asarray([row[1] for row in rows])
    area = auc(positive, score)
    if math.isnan(area):
        assert positive.all() or not positive.any()
    else:
        assert 0 <= area <= 1
        assert math.isclose(area + auc(positive, -score), 1, abs_tol=1e-9)


@given(SCORED, st.floats(0.05, 1.0))
def test_thresholds_always_reach_their_aim(rows: list[tuple[bool, float]], wanted: float) -> None:
    positive = np.asarray([row[0] for row in rows])
    score = np.asarray([row[1] for row in rows])
    if positive.any():
        threshold = threshold_for_sensitivity(positive, score, wanted)
        assert sensitivity(positive, score >= threshold) >= wanted - 1e-9
    if not positive.all() and score[~positive].max() < 1:
        threshold = threshold_for_specificity(positive, score, wanted)
        assert specificity(positive, score >= threshold) >= wanted - 1e-9


@given(st.lists(st.floats(-500, 500), min_size=2, max_size=6), st.floats(0.2, 8))
def test_softmax_is_a_distribution_in_the_order_of_the_logits(
    logits: list[float], temperature: float
) -> None:
    row = np.asarray([logits])
    probabilities = softmax(row, temperature)
    assert math.isclose(float(probabilities.sum()), 1, abs_tol=1e-9)
    assert probabilities[0, int(row.argmax())] == probabilities.max()


@given(LESIONS, st.sampled_from(LESION_KINDS))
def test_one_lesion_more_never_lowers_the_grade(lesions: list[Lesion], kind: str) -> None:
    more = Lesion(kind=kind, x_px=1, y_px=1, width_px=1, quadrant=0)
    assert icdr_grade([*lesions, more]) >= icdr_grade(lesions)


@given(LESIONS)
def test_the_lesion_map_marks_exactly_the_kinds_that_are_there(lesions: list[Lesion]) -> None:
    drawn = DrawnFundus(
        image=np.zeros((100, 100, 3), np.uint8),
        grade=icdr_grade(lesions),
        seed=0,
        eye="right",
        field_px=(50.0, 50.0, 50.0),
        lesions=tuple(lesions),
    )
    cells = lesion_map(drawn)
    assert cells.shape == (LESION_MAP_CELLS, LESION_MAP_CELLS, len(LESION_KINDS))
    marked = {LESION_KINDS[index] for index in np.flatnonzero(cells.any(axis=(0, 1)))}
    assert marked == {lesion.kind for lesion in lesions}


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**40), st.sampled_from(GRADES), st.integers(128, 300))
def test_any_seed_draws_its_grade_inside_the_field(seed: int, grade: int, size_px: int) -> None:
    drawn = draw_fundus(seed, grade, size_px)
    centre_x, centre_y, radius = drawn.field_px
    assert icdr_grade(drawn.lesions) == grade
    assert drawn.image.shape[1] == size_px
    for lesion in drawn.lesions:
        assert math.hypot(lesion.x_px - centre_x, lesion.y_px - centre_y) < radius
