"""A small study file for tests, and results as a supervisor would leave them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dr_training.study.plan import Plan, make_plan, write_plan
from dr_training.study.study_file import Study, read_study

SMALL = """
[study]
name = "small"
title = "A small study"
workload = "classification"
repetitions = 3
order_seed = 5
quality_target = 0.5

[[factor]]
name = "framework"
levels = ["PyTorch", "TensorFlow"]

[[factor]]
name = "size"
levels = [32, 64]

[fixed]
data = "MNIST"
network = 1
environment = "cpu"
batch = 8
epochs = 2
learning_rate = 0.01

[classification]
share_of_images = 0.01

[[environment]]
name = "cpu"
device = "cpu"
threads = 1
hourly = "3.60"

[prices]
currency = "EUR"
checked = 2026-11-28
source = "a test"
"""


def study_of(tmp_path: Path, text: str = SMALL, **changes: str) -> Study:
    """The study of a text, in which each key of `changes` is replaced by its value."""
    for old, new in changes.items():
        text = text.replace(old, new)
    file = tmp_path / "study.toml"
    file.write_text(text)
    return read_study(file)


def planned(tmp_path: Path, text: str = SMALL) -> tuple[Plan, Path]:
    """A plan in a folder of its own."""
    plan = make_plan(study_of(tmp_path, text))
    out = tmp_path / "out"
    write_plan(plan, out)
    return plan, out


def result_of(spec: dict[str, Any], *, training_s: float = 2.0, **changes: Any) -> dict[str, Any]:
    """A result of a run that went well, with two epochs of equal length."""
    half = training_s / 2
    epochs = [
        {"start": 10.0, "end": 10.0 + half, "cpu_s": half, "loss": 2.0, "accuracy": 0.4},
        {"start": 20.0, "end": 20.0 + half, "cpu_s": half, "loss": 1.0, "accuracy": 0.6},
    ]
    result = {
        "run": spec["run"],
        "scenario": spec["scenario"],
        "repetition": spec["repetition"],
        "status": "ok",
        "reason": "",
        "worker": {
            "epochs": epochs,
            "marks": {},
            "stand_in": True,
            "train_images": 600,
            "test_images": 100,
            "versions": {"numpy": "2"},
        },
        "started_at": 1.8e9,
        "life_s": training_s + 1.6,
        "training_s": training_s,
        "training_cpu_s": training_s,
        "start_up_s": 1.0,
        "data_s": 0.2,
        "build_s": 0.2,
        "evaluation_s": 0.1,
        "ending_s": 0.1,
        "peak_rss_mib": 100.0,
        "cpu_s": training_s + 1,
        "monitor_cpu_percent": 0.3,
        "machine": {
            "processor": "P",
            "cores": 2,
            "memory_gib": 8.0,
            "system": "Linux x86_64",
            "python": "3.11",
            "load_1min": 0.5,
        },
    }
    return {**result, **changes}


class FakeRunner:
    """Answers each specification by a function; keeps what it was asked."""

    def __init__(self, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self._answer = answer
        self.specs: list[dict[str, Any]] = []

    def run(self, spec: dict[str, Any], out: Path) -> dict[str, Any]:
        self.specs.append(spec)
        out.mkdir(parents=True, exist_ok=True)
        (out / "monitor.csv").write_text(
            "time_s,interval_s,cpu_percent,rss_mib,gpu_percent\n1.0,1.0,60.0,90.0,\n"
        )
        result = self._answer(spec)
        (out / "result.json").write_text(json.dumps(result))
        return result
