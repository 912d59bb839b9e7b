"""The gate: its bound holds, its verdicts are those it says, and it counts what it needs."""

import json
import math
import shutil
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dr_training.data.faults import DataError
from dr_training.gate import (
    INSUFFICIENT,
    PASSED,
    REFUSED,
    Margins,
    Verdict,
    Z,
    fall_bound,
    gate,
    images_needed,
    least_images,
    paired_fall,
    record_verdict,
)
from dr_training.scoring import Scored
from inference_image.model_spec import load_model_spec
from inference_image.predictor import Predictor
from tests.unit.dr_training.scored import scored

POINT = 0.5


def pair(
    referable: int, others: int, *, lost: int = 0, gained: int = 0, false_alarms: int = 0
) -> tuple[Scored, Scored]:
    """A reference and a candidate whose decisions differ in so many images.

    One in twenty referable images is missed by the reference.
    """
    rng = np.random.default_rng(5)
    truth = np.array([2, 3, 4] * (referable // 3 + 1))[:referable].tolist() + [0] * others
    score = np.concatenate([rng.uniform(0.6, 0.99, referable), rng.uniform(0.01, 0.4, others)])
    score[: referable // 20] = 0.3
    other = score + rng.normal(0, 1e-3, len(score))
    missed = referable // 20
    other[missed : missed + lost] = 0.45
    other[:gained] = 0.55
    other[referable : referable + false_alarms] = 0.55

    def answered(values: np.ndarray) -> Scored:
        rows = np.zeros((len(values), 5))
        rows[:, 2] = values
        rows[:, 0] = 1 - values
        return scored(truth, rows)

    return answered(score), answered(other)


def decide(reference: Scored, candidate: Scored, **margins: float) -> Verdict:
    return gate(
        reference,
        candidate,
        thresholds=(POINT, POINT),
        operating_point="half",
        margins=Margins(**{"auc": 0.2, "kappa": 0.2, **margins}),
        draws=100,
    )


def test_without_a_pair_that_differs_the_bound_has_a_closed_form() -> None:
    for count in (1, 10, 133, 5000):
        assert fall_bound(0, 0, count) == pytest.approx(Z**2 / (count + Z**2), rel=1e-6)


def test_the_bound_is_where_tango_s_score_is_the_quantile() -> None:
    # Restricted maximum likelihood found by search, not by the closed formula.
    lost, gained, count = 7, 3, 150
    bound = fall_bound(lost, gained, count)
    rates = np.linspace(max(0.0, -bound) + 1e-9, (1 - bound) / 2, 400_001)
    likelihood = gained * np.log(rates) + lost * np.log(rates + bound)
    likelihood += (count - lost - gained) * np.log(np.maximum(1 - 2 * rates - bound, 1e-300))
    rate = rates[likelihood.argmax()]
    error = math.sqrt((2 * rate + bound - bound**2) / count)
    assert ((lost - gained) / count - bound) / error == pytest.approx(-Z, abs=2e-3)


@pytest.mark.parametrize(("count", "discordant"), [(150, 0.03), (400, 0.06), (1000, 0.04)])
def test_a_variant_at_the_margin_passes_in_one_of_twenty(count: int, discordant: float) -> None:
    # Its sensitivity truly fell by exactly the margin: passing is the error of the gate.
    margin = 0.02
    bound = lru_cache(maxsize=None)(fall_bound)
    rng = np.random.default_rng(11)
    chances = [discordant / 2 + margin / 2, discordant / 2 - margin / 2, 1 - discordant]
    draws = rng.multinomial(count, chances, 20_000)
    passed = np.mean([bound(int(lost), int(gained), count) <= margin for lost, gained, _ in draws])
    assert passed <= 0.065


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 6), st.integers(0, 6), st.integers(20, 400), st.sampled_from([0.01, 0.03, 0.1])
)
def test_the_bound_is_above_the_fall_and_grows_with_each_lost_image(
    lost: int, gained: int, count: int, margin: float
) -> None:
    bound = fall_bound(lost, gained, count)
    assert (lost - gained) / count < bound <= 1
    assert bound < fall_bound(lost + 1, gained, count)
    needed = images_needed(lost, gained, count, margin)
    if (lost - gained) / count >= margin:
        assert needed is None
    elif needed is not None:
        assert needed >= least_images(margin)
        if bound > margin and count >= least_images(margin):
            assert needed > count


def test_the_least_number_of_images_is_the_first_that_can_pass() -> None:
    for margin in (0.01, 0.02, 0.05, 0.1):
        least = least_images(margin)
        assert fall_bound(0, 0, least) <= margin < fall_bound(0, 0, least - 1)
    assert least_images(0.02) == 133


def test_a_variant_that_decides_alike_passes() -> None:
    verdict = decide(*pair(200, 200))
    assert (verdict.verdict, verdict.reasons) == (PASSED, ())
    fall = verdict.document["sensitivity"]
    assert (fall["images"], fall["lost"], fall["gained"], fall["fall"]) == (200, 0, 0, 0.0)
    assert fall["reference"] == fall["candidate"] == 0.95


def test_a_variant_that_loses_patients_is_refused() -> None:
    verdict = decide(*pair(400, 200, lost=30))
    assert verdict.verdict == REFUSED
    assert "30 of 400 referable images lost, 0 gained" in verdict.reasons[0]
    assert verdict.document["sensitivity"]["fall"] == 0.075
    assert verdict.document["sensitivity"]["needed"] is None


def test_a_fall_that_more_images_might_clear_is_refused_with_their_number() -> None:
    verdict = decide(*pair(200, 200, lost=3, gained=1))
    assert verdict.verdict == REFUSED
    needed = verdict.document["sensitivity"]["needed"]
    assert f"at these rates {needed} images would do" in verdict.reasons[0]
    # Ten times the images at the same rates is beyond it, and passes.
    assert 200 < needed < 2000
    assert fall_bound(30, 10, 2000) <= 0.02


def test_too_few_referable_images_are_insufficient_data_with_the_number_needed() -> None:
    verdict = decide(*pair(60, 200))
    assert verdict.verdict == INSUFFICIENT
    assert "60 referable images cannot show" in verdict.reasons[0]
    assert "at least 133 are needed" in verdict.reasons[0]
    none = decide(*pair(0, 200))
    assert none.verdict == INSUFFICIENT
    assert "0 referable images" in none.reasons[0]


def test_a_certain_fall_is_refused_even_on_few_images() -> None:
    verdict = decide(*pair(60, 200, lost=25))
    assert verdict.verdict == REFUSED
    assert "sensitivity may have fallen" in verdict.reasons[0]


def test_false_alarms_alone_refuse_a_variant_too() -> None:
    verdict = decide(*pair(200, 200, false_alarms=40))
    assert verdict.verdict == REFUSED
    assert "40 of 200 other images lost" in verdict.reasons[0]


def test_a_variant_that_says_the_same_of_every_image_is_refused() -> None:
    reference, candidate = pair(200, 200)
    constant = np.tile([0.0, 0.0, 0.9, 0.1, 0.0], (400, 1))
    verdict = decide(reference, replace(candidate, probabilities=constant))
    assert (verdict.verdict, verdict.reasons) == (
        REFUSED,
        ("the variant says the same of every image",),
    )


def test_auc_and_kappa_are_bounded_and_grade_agreement_decides_nothing() -> None:
    reference, candidate = pair(300, 300)
    other_grade = candidate.probabilities.copy()
    other_grade[:, 3], other_grade[:, 2] = candidate.probabilities[:, 2], 0.0
    changed = replace(candidate, probabilities=other_grade)
    passed = gate(
        reference,
        changed,
        thresholds=(POINT, POINT),
        operating_point="half",
        margins=Margins(auc=0.02, kappa=0.5),
        draws=100,
    )
    assert passed.verdict == PASSED
    assert passed.document["grade_agreement"] < 0.6
    strict = decide(reference, changed, kappa=0.001, auc=0.02)
    fell = strict.document["kappa"]["fall_at_most"] > 0.001
    assert (strict.verdict == REFUSED) == fell


def test_a_worse_ranking_is_refused_though_every_decision_is_the_same() -> None:
    reference, candidate = pair(300, 300)
    rows = candidate.probabilities.copy()
    # The missed ones now score below everybody: no decision changes, the ranking does.
    rows[:15, 2], rows[:15, 0] = 0.0, 1.0
    verdict = decide(reference, replace(candidate, probabilities=rows), auc=0.005)
    assert verdict.verdict == REFUSED
    assert verdict.document["sensitivity"]["lost"] == 0
    assert "auc may have fallen" in verdict.reasons[0]


def test_only_images_that_both_can_grade_are_paired_and_the_others_counted() -> None:
    reference, candidate = pair(300, 300)
    gradable = np.ones(600, bool)
    gradable[:10] = False

    def some(answers: Scored) -> Scored:
        rows = np.where(gradable[:, None], answers.probabilities, np.nan)
        return replace(answers, gradable=gradable, probabilities=rows, failed=~gradable)

    verdict = decide(some(reference), candidate)
    assert verdict.verdict == PASSED
    assert verdict.document["gradable_by_both"] == 590
    assert verdict.document["gradable_by_one"] == 10
    assert verdict.document["failed"] == {"reference": 10, "candidate": 0}
    assert verdict.document["sensitivity"]["images"] == 290
    # A variant that grades fewer is no replacement, however alike the others are.
    verdict = decide(reference, some(candidate))
    assert verdict.verdict == REFUSED
    assert verdict.reasons == ("the variant does not grade 10 images that the reference grades",)
    assert verdict.document["failed"] == {"reference": 0, "candidate": 10}
    assert decide(some(reference), some(candidate)).verdict == PASSED


def test_answers_to_different_photographs_are_refused() -> None:
    reference, candidate = pair(200, 200)
    with pytest.raises(DataError, match="different photographs"):
        decide(reference, candidate.chosen(np.arange(400) > 0))


def test_no_images_at_all_need_the_least_number() -> None:
    nothing = np.zeros(0, bool)
    assert paired_fall(nothing, nothing, 0.05)["needed"] == least_images(0.05) == 52


@pytest.mark.parametrize("margin", [0.0, 1.0, -0.1])
def test_a_margin_is_a_share(margin: float) -> None:
    with pytest.raises(DataError, match="the margin of sensitivity"):
        Margins(sensitivity=margin)


def test_the_verdict_is_written_into_a_package_that_still_serves(
    repository: Path, tmp_path: Path
) -> None:
    shutil.copytree(repository / "tests" / "data" / "tiny-model", tmp_path / "variant")
    before = load_model_spec(tmp_path / "variant")
    verdict = decide(*pair(60, 200))
    spec = record_verdict(tmp_path / "variant", verdict, reference=before, data="drawn eyes")
    written = json.loads((tmp_path / "variant" / "model.json").read_text())["gate"]
    assert written["verdict"] == INSUFFICIENT
    assert written["reference"] == {"id": "tiny-test", "sha256": before.sha256}
    assert written["sensitivity"]["needed"] == 133
    assert written["data"] == "drawn eyes"
    assert spec.sha256 != before.sha256
    Predictor.load(tmp_path / "variant", threads=1).warm_up()
