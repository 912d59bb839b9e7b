"""Real frameworks in their own environments: the same network, the same loss, the same result."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dr_training.study.plan import make_plan, open_plan, write_plan
from dr_training.study.referral_data import prepared_records
from dr_training.study.results import read_results
from dr_training.study.runners.runner import runner_for
from dr_training.study.running import run_plan
from dr_training.study.study_file import read_study
from dr_training.study.worker.images import load
from dr_training.study.worker.networks import Network, initial_weights, network

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = {
    "PyTorch": ROOT / ".venv-study" / "bin" / "python",
    "Keras on torch": ROOT / ".venv-study" / "bin" / "python",
    "Keras on jax": ROOT / ".venv-study" / "bin" / "python",
    "MXNet": ROOT / ".venv-study-mxnet" / "bin" / "python",
    "TensorFlow": Path(sys.executable),
    "Keras on TensorFlow": Path(sys.executable),
}


def spec(framework: str, **changes: Any) -> dict[str, Any]:
    parameters = {
        "framework": framework, "data": "CIFAR-10", "size": 16, "network": 2,
        "epochs": 2, "batch": 20, "learning_rate": 0.01,
    }  # fmt: skip
    return {
        "workload": "classification",
        "parameters": {**parameters, **changes},
        "environment": {"name": "here", "device": "cpu", "threads": 1},
        "data_dir": None,
        "share_of_images": 0.002,
        "data_seed": 1,
        "seed": 5,
        "first_channels": 4,
        "momentum": 0.9,
    }


def train(tmp_path: Path, framework: str, **changes: Any) -> tuple[int, dict[str, Any]]:
    """One run of the worker in the environment of its framework."""
    (tmp_path / "spec.json").write_text(json.dumps(spec(framework, **changes)))
    done = subprocess.run(
        [PYTHONS[framework], "-m", "dr_training.study.worker", tmp_path / "spec.json", tmp_path],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"},
        check=False,
    )
    notes: dict[str, Any] = json.loads((tmp_path / "worker.json").read_text())
    return done.returncode, notes


def reference_loss(of: Network, pixels: Any, labels: Any, *, seed: int) -> float:
    """Loss of the untrained network by NumPy alone, in double precision."""
    values = pixels.astype(np.float64) / 255
    *hidden, (kernel, bias) = initial_weights(of, seed=seed)
    for number, (weight, offset) in enumerate(hidden):
        if weight.ndim == 4:
            padded = np.pad(values, ((0, 0), (1, 1), (1, 1), (0, 0)))
            side = values.shape[1]
            values = sum(
                padded[:, row : row + side, column : column + side] @ weight[row, column]
                for row in range(3)
                for column in range(3)
            )
            values = np.maximum(values + offset, 0)
            if number % 2:
                n, side, _, channels = values.shape
                values = values.reshape(n, side // 2, 2, side // 2, 2, channels).max(axis=(2, 4))
        else:
            values = np.maximum(values.reshape(len(values), -1) @ weight + offset, 0)
    logits = values @ kernel + bias
    logits -= logits.max(axis=1, keepdims=True)
    logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return float(-logs[np.arange(len(labels)), labels].mean())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What each framework noted of the same run."""
    found = {}
    for framework in PYTHONS:
        code, found[framework] = train(tmp_path_factory.mktemp("run"), framework)
        assert code == 0, (framework, found[framework].get("failure"))
    return found


@pytest.mark.parametrize("framework", PYTHONS)
def test_every_framework_starts_from_the_loss_that_numpy_computes(
    trained: dict[str, dict[str, Any]], framework: str
) -> None:
    data = load("CIFAR-10", data_dir=None, size_px=16, share=0.002, seed=1)
    rows = np.random.default_rng([5, 0]).permutation(len(data.train))[:20]
    small = network(2, size_px=16, channels=3, first_channels=4)
    wanted = reference_loss(small, data.train[rows], data.train_labels[rows], seed=5)
    notes = trained[framework]
    assert notes["epochs"][0]["first_loss"] == pytest.approx(wanted, abs=1e-4)
    assert notes["parameters"] == small.parameters()
    assert all(epoch["cpu_s"] > 0 for epoch in notes["epochs"])


def test_all_frameworks_learn_alike(trained: dict[str, dict[str, Any]]) -> None:
    """After an epoch of steps with momentum their losses are still the same."""
    first = {name: notes["epochs"][0]["first_loss"] for name, notes in trained.items()}
    later = {name: notes["epochs"][1]["first_loss"] for name, notes in trained.items()}
    assert max(later.values()) - min(later.values()) < 1e-4, later
    assert all(abs(later[name] - first[name]) > 1e-3 for name in later), (first, later)


@pytest.mark.parametrize("framework", ["PyTorch", "TensorFlow", "MXNet"])
def test_a_gpu_that_is_not_there_is_said(tmp_path: Path, framework: str) -> None:
    (tmp_path / "spec.json").write_text(
        json.dumps(
            {**spec(framework), "environment": {"name": "gpu", "device": "gpu", "threads": 1}}
        )
    )
    done = subprocess.run(
        [PYTHONS[framework], "-m", "dr_training.study.worker", tmp_path / "spec.json", tmp_path],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        check=False,
    )
    failure = json.loads((tmp_path / "worker.json").read_text())["failure"]
    assert done.returncode == 1
    assert failure["kind"] == "unavailable"
    assert "no" in failure["reason"]
    assert "GPU" in failure["reason"]


def test_the_referral_study_from_photographs_to_means(tmp_path: Path) -> None:
    text = read_study(Path("referral-small"), repetitions=1).text
    text = text.replace("drawn_photographs = 60", "drawn_photographs = 20")
    # So that the learning rate falls within the run, which every replica must hear of.
    text = text.replace("[referral]", "[referral]\ndrop_rate_after = 1")
    text = text.replace("size = 96", "size = 32").replace(
        'referral = ".venv-training/bin/python"', f'referral = "{sys.executable}"'
    )
    file = tmp_path / "study.toml"
    file.write_text(text)
    out = tmp_path / "out"
    write_plan(make_plan(read_study(file)), out)
    plan = open_plan(out)
    records = prepared_records(plan.study, out)
    before = {path.name: path.stat().st_mtime_ns for path in records.iterdir()}
    assert prepared_records(plan.study, out) == records
    assert {path.name: path.stat().st_mtime_ns for path in records.iterdir()} == before
    run_plan(
        plan,
        out,
        runner_of=lambda environment: runner_for(plan.study, environment),
        records=records,
    )
    rows = read_results(plan, out)
    assert [row.status for row in rows] == ["ok", "ok"], [row.reason for row in rows]
    replicas = {str(r.run.levels["strategy"]): r.result["worker"]["replicas"] for r in rows}
    assert replicas == {"one device": 1, "mirrored 2": 2}
    assert all(len(row.epochs) == 2 for row in rows)
    for row in rows:
        folder = out / "runs" / row.run.name
        assert (folder / "best.weights.h5").is_file()
        assert row.result["worker"]["train_images"] + row.result["worker"]["test_images"] <= 20
