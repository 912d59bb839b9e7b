"""What the construct hands to the steps, read by the steps themselves."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from constructs_lib import GateThresholds
from constructs_lib.training_code import CODE_FILE, training_code
from constructs_lib.training_pipeline import TRAINING_PORT
from constructs_lib.training_rules import HYPERPARAMETERS, PREPARATION, pipeline_faults
from dr_training.job import gate, hosts, hyperparameters, prepare
from dr_training.job.decision import LEAST
from dr_training.job.faults import JobError
from tests.constructs_fixtures import new_stack, template_of
from tests.state_machines import definition_of
from tests.training_fixtures import THRESHOLDS, a_pipeline


def steps(**props: Any) -> dict[str, Any]:
    stack = new_stack()
    a_pipeline(stack, **props)
    found: dict[str, Any] = definition_of(template_of(stack))["States"]
    return found


def test_the_options_that_the_construct_knows_are_those_of_the_steps() -> None:
    assert set(HYPERPARAMETERS) == set(hyperparameters._READERS) - {"package_id", "model_id"}
    options = vars(prepare._arguments().parse_args([]))
    assert set(PREPARATION) == set(options)


def test_hyperparameters_are_read_as_they_were_meant() -> None:
    asked = {"network": "mobilenet", "epochs": 3, "dropout": 0.25, "augment": False}
    train = steps(hyperparameters=asked)["Train"]["Parameters"]
    read = hyperparameters.read_hyperparameters(json.dumps(train["HyperParameters"]))
    assert read.package_id == "clinic"
    assert {name: getattr(read.plan, name) for name in asked} == asked


def test_preparation_is_read_as_it_was_meant() -> None:
    asked = {"size_px": 299, "keep_ungradable": True, "prepared_already": False, "shares": "70/30"}
    state = steps(preparation=asked)["Prepare"]["Parameters"]
    arguments = state["AppSpecification"]["ContainerArguments"]
    read = vars(prepare._arguments().parse_args(arguments))
    assert {name: read[name] for name in asked} == asked


def test_thresholds_are_read_as_they_were_meant() -> None:
    state = steps()["Gate"]["Parameters"]
    read = gate._minimums(state["AppSpecification"]["ContainerArguments"])
    assert (read.sensitivity, read.specificity, read.kappa, read.photographs) == (
        THRESHOLDS.min_sensitivity,
        THRESHOLDS.min_specificity,
        THRESHOLDS.min_kappa,
        THRESHOLDS.min_photographs,
    )


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"min_sensitivity": 0},
        {"min_sensitivity": 1},
        {"min_specificity": -0.1},
        {"min_kappa": -1},
        {"min_kappa": -1.1},
        {"min_kappa": 1},
        {"min_kappa": None},
        {"min_photographs": LEAST},
        {"min_photographs": LEAST - 1},
    ],
    ids=str,
)
def test_the_construct_refuses_the_thresholds_that_the_gate_refuses(change: Any) -> None:
    usual = {"min_sensitivity": 0.8, "min_specificity": 0.7, "min_kappa": 0.6}
    thresholds = GateThresholds(**{**usual, **change})
    try:
        gate._minimums(thresholds.arguments())
        accepted = True
    except JobError:
        accepted = False
    assert (thresholds.faults() == []) is accepted


def test_a_pipeline_of_a_model_that_only_refers_asks_for_no_kappa() -> None:
    found = steps(
        hyperparameters={"network": "inceptionv3", "task": "referable"},
        gate=GateThresholds(min_sensitivity=0.85, min_specificity=0.7),
    )
    read = gate._minimums(found["Gate"]["Parameters"]["AppSpecification"]["ContainerArguments"])
    assert (read.sensitivity, read.kappa) == (0.85, None)
    given = found["Train"]["Parameters"]["HyperParameters"]
    assert hyperparameters.read_hyperparameters(json.dumps(given)).plan.task == "referable"


@pytest.mark.parametrize("package_id", ["a", "a.b", ".a", "a/b", "a" * 100, "a" * 101, "ä", "a b"])
def test_the_construct_refuses_the_ids_that_the_training_refuses(package_id: str) -> None:
    given = {"network": "mobilenet", "package_id": package_id}
    try:
        hyperparameters.read_hyperparameters(json.dumps(given))
        accepted = True
    except JobError:
        accepted = False
    assert (pipeline_faults(package_id=package_id) == []) is accepted


def test_hosts_meet_at_the_port_that_is_open() -> None:
    assert hosts._DEFAULT_PORT == TRAINING_PORT


def test_the_archive_is_what_the_image_unpacks_and_starts(tmp_path: Path, repository: Path) -> None:
    """The launcher with the archive: it comes as far as the step's own words."""
    inputs = tmp_path / "processing" / "input"
    (inputs / "code").mkdir(parents=True)
    (inputs / "code" / CODE_FILE).write_bytes(training_code())
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / "inference_image").symlink_to(repository / "inference_image")
    done = subprocess.run(
        [sys.executable, "-m", "inference_image.training_job", "pack"],
        cwd=tmp_path / "image",
        env={**os.environ, "DR_ML_ROOT": str(tmp_path), "PYTHONPATH": str(tmp_path / "image")},
        capture_output=True,
        text=True,
        check=False,
    )
    said = (tmp_path / "output" / "message").read_text()
    assert done.returncode == 1, done.stderr
    assert "gate.json cannot be read" in said
