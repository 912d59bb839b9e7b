"""What of training needs no TensorFlow: plan, state, figures, ranking, the linear head's fit."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dr_training.backbones import weights_and_reason, weights_words
from dr_training.data.faults import DataError
from dr_training.fitting.compare import markdown, ranked
from dr_training.fitting.figures import mean_auc, validation_figures
from dr_training.fitting.logistic import FeatureScale, choose_penalty, fit_logistic
from dr_training.fitting.plan import TrainingPlan
from dr_training.fitting.state import assign, read_state, write_state


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        ({"network": "mobilnet"}, "did you mean mobilenet"),
        ({"loss": "mse"}, "loss must be one of cross-entropy, focal, ordinal; got 'mse'"),
        ({"epochs": 0}, "epochs must be at least 1; got 0"),
        ({"learning_rate": math.nan}, "learning_rate must be from 1e-08 to 10; got nan"),
        ({"dropout": 1.0}, "dropout must be from 0 to 0.95; got 1"),
        ({"task": "referable", "loss": "ordinal"}, "a referral model has one answer"),
        ({"task": "referable", "monitor": "kappa"}, "a referral model has one answer"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_in_one_sentence(
    choice: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(DataError, match=sentence):
        TrainingPlan(**{"network": "mobilenet", **choice})


def test_a_state_comes_back_as_it_was_and_replaces_the_old_one_whole(tmp_path: Path) -> None:
    path = tmp_path / "state.npz"
    groups = {
        "network": [np.arange(6.0).reshape(2, 3), np.float32(4)],
        "optimizer": [np.int64(index) for index in range(12)],
    }
    write_state(path, {"epoch": 3}, groups)
    write_state(path, {"epoch": 4}, groups)
    facts, found = read_state(path)
    assert facts == {"epoch": 4}
    assert [int(one) for one in found["optimizer"]] == list(range(12))
    np.testing.assert_array_equal(found["network"][0], groups["network"][0])
    assert [one.name for one in tmp_path.iterdir()] == ["state.npz"]


@pytest.mark.parametrize("kept", [0, 10, 400])
def test_a_damaged_state_is_named(kept: int, tmp_path: Path) -> None:
    path = tmp_path / "state.npz"
    write_state(path, {"epoch": 3}, {"network": [np.zeros(50)]})
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DataError, match=r"state\.npz cannot be read .* remove it"):
        read_state(path)


def test_a_state_of_another_network_is_refused_before_anything_changes() -> None:
    class Variable:
        shape = (2,)
        value: Any = None

        def assign(self, value: Any) -> None:
            self.value = value

    variables = [Variable(), Variable()]
    with pytest.raises(DataError, match="weights of the state are of another network"):
        assign(variables, [np.zeros(2), np.zeros(3)], what="weights")
    assert [one.value for one in variables] == [None, None]


def test_validation_figures_of_a_grader_and_of_a_referral_model() -> None:
    grades = np.array([0, 1, 2, 3, 4, 0])
    sure = 20 * np.eye(5)[grades]
    perfect = validation_figures(sure, grades)
    assert perfect["accuracy"] == perfect["kappa"] == perfect["auc"] == 1
    assert perfect["referable_auc"] == 1
    assert perfect["loss"] == pytest.approx(0, abs=1e-7)
    even = validation_figures(np.zeros((6, 5)), grades)
    assert even["loss"] == pytest.approx(math.log(5))
    assert even["auc"] == 0.5
    referral = validation_figures(np.where(grades >= 2, 3.0, -3.0)[:, None], grades)
    assert referral["accuracy"] == referral["auc"] == referral["referable_auc"] == 1
    assert math.isnan(referral["kappa"])
    assert referral["loss"] == pytest.approx(math.log1p(math.exp(-3)))


def test_grades_that_do_not_occur_leave_the_mean_auc() -> None:
    grades = np.array([0, 0, 1, 1])
    probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3], [0.2, 0.8]])
    padded = np.pad(probabilities, ((0, 0), (0, 3)))
    assert mean_auc(padded, grades) == pytest.approx(0.75)


def test_the_logistic_regression_is_at_the_minimum_that_it_states() -> None:
    rng = np.random.default_rng(5)
    grades = rng.integers(0, 5, 200)
    features = rng.normal(size=(200, 6)) + 0.8 * np.eye(5)[grades] @ rng.normal(size=(5, 6))
    penalty = 0.3

    def objective(weights: Any, bias: Any) -> float:
        scores = features @ weights + bias
        scores -= scores.max(axis=1, keepdims=True)
        logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        loss = -logs[np.arange(200), grades].mean()
        return float(loss + penalty / 2 / 6 * (weights**2).sum())

    weights, bias = fit_logistic(features, grades, penalty)
    best = objective(weights, bias)
    for _ in range(20):
        moved = objective(weights + 0.03 * rng.normal(size=weights.shape), bias)
        assert moved > best
    assert objective(weights, bias + np.eye(5)[0] * 0.1) > best


def test_noise_is_answered_with_a_strong_penalty_and_groups_stay_together() -> None:
    rng = np.random.default_rng(6)
    grades = np.tile(rng.integers(0, 5, 60), 4)
    features = np.tile(rng.normal(size=(60, 30)), (4, 1))  # four copies of each picture
    together, _ = choose_penalty(features, grades, [str(i) for i in range(60)] * 4, seed=0)
    apart, _ = choose_penalty(features, grades, [str(i) for i in range(240)], seed=0)
    # A copy in the other fold makes noise look learnable; kept together it does not.
    assert together > 10 * apart


def test_scaling_folded_into_the_weights_gives_the_same_answers() -> None:
    rng = np.random.default_rng(7)
    features = rng.normal(3, [1, 5, 0.1, 0], size=(50, 4))
    scale = FeatureScale.of(features)
    weights, bias = rng.normal(size=(4, 5)), rng.normal(size=5)
    kernel, offset = scale.folded(weights, bias)
    np.testing.assert_allclose(features @ kernel + offset, scale(features) @ weights + bias)


def _row(network: str, kappa: float | None, latency: float, size: float) -> dict[str, Any]:
    figures = {"accuracy": 0.5, "auc": 0.7, "referable_auc": 0.8, "parameters": 1000}
    return {
        "network": network, "kappa": kappa, "latency_cpu_ms": latency, "size_mb": size,
        "measured_on": "validation", "photographs": 120, "backbone_weights": "random", **figures,
    }  # fmt: skip


def test_networks_are_ranked_by_quality_and_those_that_are_beaten_are_not_on_the_front() -> None:
    rows = ranked(
        [
            _row("slow-and-bad", 0.2, 9.0, 9.0),
            _row("best", 0.6, 5.0, 4.0),
            _row("undefined", None, 8.0, 8.0),
            _row("small", 0.4, 1.0, 1.0),
        ]
    )
    assert [row["network"] for row in rows] == ["best", "small", "slow-and-bad", "undefined"]
    assert [row["rank"] for row in rows] == [1, 2, 3, 4]
    assert [row["on_front"] for row in rows] == [True, True, False, False]
    page = markdown(rows)
    assert "n = 120 photographs; the epoch was chosen on it" in page
    lines = [line for line in page.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1
    assert len(lines) == 6
    assert "random" in lines[2]
    assert "could not be had" not in page


@pytest.mark.parametrize("old", [False, True])
def test_why_weights_are_random_stands_below_the_ranking(old: bool) -> None:
    reason = "ImageNet's weights of VGG16 cannot be had: URL fetch failure (no name)"
    rows = [_row("vgg16", 0.5, 2.0, 2.0), _row("small-resnet", 0.6, 1.0, 1.0)]
    if old:
        # As comparisons of before the field say it.
        rows[0]["backbone_weights"] = f"random ({reason})"
        rows[1]["backbone_weights"] = "random"
    else:
        rows[0].update(backbone_weights="random", why_random=reason)
        rows[1].update(backbone_weights="random", why_random=None)
    page = markdown(ranked(rows))
    table = [line for line in page.splitlines() if line.startswith("|")]
    assert not any("URL" in line for line in table)
    assert [line.split(" | ")[9] for line in table[2:]] == ["random", "random †"]
    assert page.endswith(f"† Random, because others could not be had:\n\n- vgg16: {reason}\n")


def test_a_reason_is_read_from_its_field_whatever_the_weights_are_called() -> None:
    for record, weights, reason in (
        ({"backbone_weights": "random (seed 3)", "why_random": None}, "random (seed 3)", None),
        ({"backbone_weights": "random", "why_random": "no net"}, "random", "no net"),
        (
            {"backbone_weights": "ImageNet (keras.applications)"},
            "ImageNet (keras.applications)",
            None,
        ),
        ({"backbone_weights": "random (no (such) net)"}, "random", "no (such) net"),
    ):
        assert weights_and_reason(record) == (weights, reason)
    assert (
        weights_words({"backbone_weights": "random", "why_random": "no net"}) == "random (no net)"
    )
    assert weights_words({"backbone_weights": "random (no net)"}) == "random (no net)"
