"""What a training pipeline cannot be: both sides of every bound, one sentence for each fault."""

from typing import Any

import pytest

from constructs_lib import GateThresholds, limits
from constructs_lib.training_rules import (
    HYPERPARAMETERS,
    PIPELINE_NAME_CHARACTERS,
    PREPARATION,
    hyperparameter_faults,
    image_runtime_faults,
    job_faults,
    keeping_faults,
    option_arguments,
    option_texts,
    pipeline_faults,
    preparation_faults,
    task_faults,
)

DAY = 86_400
TOKEN = "${Token[TOKEN.7]}"


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("training_instance_count", 1, None),
        ("training_volume_gb", 1, 16_384),
        ("training_max_runtime_s", 1, 28 * DAY),
        ("processing_volume_gb", 1, 16_384),
        ("processing_max_runtime_s", 1, 9 * DAY),
    ],
)
def test_amounts_are_whole_numbers_within_their_bounds(
    name: str, low: int, high: int | None
) -> None:
    allowed: list[Any] = [low, low + 1, *([high - 1, high] if high else [1000])]
    refused: list[Any] = [low - 1, -1, 1.5, "1", True, *([high + 1] if high else [])]
    for value in allowed:
        assert job_faults(**{name: value}) == []
    for value in refused:
        (fault,) = job_faults(**{name: value})
        assert fault.startswith(f"{name} must be a whole number ")
        assert f"got {value!r} (https://docs.aws.amazon.com/" in fault


@pytest.mark.parametrize(
    ("wait_s", "runtime_s", "allowed"),
    [
        (3600, 3600, True),
        (3601, 3600, True),
        (3599, 3600, False),
        (1, 1, True),
        (28 * DAY, 28 * DAY, True),
        (30 * DAY, 28 * DAY, True),
        (0, 3600, False),
        (-1, 3600, False),
        (1.5, 1, False),
    ],
)
def test_the_wait_for_spot_holds_the_training(wait_s: Any, runtime_s: int, allowed: bool) -> None:
    faults = job_faults(training_max_wait_s=wait_s, training_max_runtime_s=runtime_s)
    assert [fault.partition(" ")[0] for fault in faults] == (
        [] if allowed else ["training_max_wait_s"]
    )


def test_without_spot_there_is_no_wait() -> None:
    assert job_faults(spot=False, training_max_runtime_s=60) == []
    (fault,) = job_faults(spot=False, training_max_wait_s=60, training_max_runtime_s=60)
    assert fault.startswith("training_max_wait_s is the wait for Spot capacity")


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("training_instance_type", limits.TRAINING_INSTANCE_TYPES),
        ("processing_instance_type", limits.PROCESSING_INSTANCE_TYPES),
    ],
)
def test_instance_types_are_those_of_the_service_model(name: str, known: frozenset[str]) -> None:
    for value in known:
        assert job_faults(**{name: value}) == []  # type: ignore[arg-type]
    for value, said in (
        ("ml.c5.xlrge", "near it: "),
        ("ml.g5.xlarge", "no GPU"),
        ("ml.trn1.2xlarge", "no accelerator"),
        ("ml.c7g.xlarge", "for hosting only"),
        ("c5.xlarge", "a CPU instance type of such jobs"),
        ("", "a CPU instance type of such jobs"),
    ):
        (fault,) = job_faults(**{name: value})  # type: ignore[arg-type]
        assert fault.startswith(f"{name} must be ")
        assert said in fault


def test_a_type_may_train_and_not_process() -> None:
    assert job_faults(training_instance_type="ml.c5n.xlarge") == []
    assert len(job_faults(processing_instance_type="ml.c5n.xlarge")) == 1


def test_local_disks_take_no_key() -> None:
    for name in ("training_instance_type", "processing_instance_type"):
        given: dict[str, Any] = {name: "ml.r5d.large"}
        assert job_faults(**given) == []
        (fault,) = job_faults(**given, volume_key=True)
        assert fault.startswith(f"{name} must be a type without local disks")
        assert job_faults(**{name: "ml.r5.large"}, volume_key=True) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("runtime", "architecture", "said"),
    [
        ("tensorflow", "amd64", []),
        ("litert", "amd64", ["image must be of runtime tensorflow, because"]),
        (None, "amd64", ["image must be known to be of runtime tensorflow"]),
        ("tensorflow", "arm64", ["image must be of architecture amd64"]),
        ("litert", "arm64", ["image must be of runtime", "image must be of architecture"]),
    ],
)
def test_only_the_tensorflow_image_for_x86_trains(
    runtime: str | None, architecture: str, said: list[str]
) -> None:
    faults = image_runtime_faults(runtime=runtime, architecture=architecture)
    assert len(faults) == len(said)
    for fault, beginning in zip(faults, said, strict=True):
        assert fault.startswith(beginning)


@pytest.mark.parametrize("name", ["min_sensitivity", "min_specificity", "min_kappa"])
def test_thresholds_are_numbers_below_one(name: str) -> None:
    def faults(value: Any) -> list[str]:
        usual: dict[str, Any] = {"min_sensitivity": 0.8, "min_specificity": 0.7, "min_kappa": 0.6}
        return GateThresholds(**{**usual, name: value}).faults()

    low = -1 if name == "min_kappa" else 0
    for value in (low, 0, 0.5, 0.999):
        assert faults(value) == []
    wrong = [low - 0.01, 1, 1.0, 85, "0.8", True, float("nan"), float("inf")]
    for value in wrong if name == "min_kappa" else [*wrong, None]:
        (fault,) = faults(value)
        assert fault.startswith(f"gate.{name} must be a number from {low} to below 1")


def test_a_gate_over_a_handful_of_photographs_is_none() -> None:
    def faults(count: Any) -> list[str]:
        return GateThresholds(
            min_sensitivity=0.8, min_specificity=0.7, min_kappa=0.6, min_photographs=count
        ).faults()

    assert faults(30) == faults(10**6) == []
    for count in (29, 0, -1, 100.0, "100", True):
        (fault,) = faults(count)
        assert fault.startswith("gate.min_photographs must be a whole number of at least 30")


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("a", True),
        ("dr-clinic", True),
        ("0" * PIPELINE_NAME_CHARACTERS, True),
        ("0" * (PIPELINE_NAME_CHARACTERS + 1), False),
        ("", False),
        ("-a", False),
        ("a-", False),
        ("a--b", True),
        ("Clinic", False),
        ("a_b", False),
        ("a\n", False),
        ("ä", False),
    ],
)
def test_names_of_pipelines_leave_room_for_names_of_jobs(name: str, allowed: bool) -> None:
    faults = pipeline_faults(pipeline_name=name)
    assert (faults == []) is allowed
    if not allowed:
        assert faults[0].startswith("pipeline_name must be at most 42 lower-case letters")
    assert PIPELINE_NAME_CHARACTERS + len("-prepare-0123456789ab") == limits.JOB_NAME_CHARACTERS


@pytest.mark.parametrize(
    ("package_id", "allowed"),
    [
        ("clinic-1_a.b", True),
        ("a" * 100, True),
        ("a" * 101, False),
        ("", False),
        (".hidden", False),
        ("a/b", False),
        ("a'b", False),
        ("a{}b", False),
        ("a*", False),
        ("a b", False),
        ("a\n", False),
    ],
)
def test_ids_of_packages_are_plain(package_id: str, allowed: bool) -> None:
    assert (pipeline_faults(package_id=package_id) == []) is allowed


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("a", True),
        ("Clinic-2", True),
        ("a--b", True),
        ("a" * 63, True),
        ("a" * 64, False),
        (f"a{'-' * 62}b", False),
        ("", False),
        ("my_group", False),
        ("-a", False),
        ("a-", False),
        ("a\n", False),
        ("arn:aws:sagemaker:eu-west-1:123456789012:model-package-group/clinic", False),
    ],
)
def test_groups_of_models_are_given_by_name(name: str, allowed: bool) -> None:
    faults = pipeline_faults(model_package_group_name=name)
    assert (faults == []) is allowed
    if not allowed:
        assert faults[0].startswith("model_package_group_name must be the name of a group, no ARN")
        assert "(https://docs.aws.amazon.com/" in faults[0]


@pytest.mark.parametrize(
    ("days", "longest_s", "least"),
    [
        (None, 10 * DAY, None),
        (1, DAY, None),
        (1, DAY + 1, 2),
        (2, DAY + 1, None),
        (1, None, None),
        (0, None, 1),
        (0, 3 * DAY, 3),
        (-1, DAY, 1),
        (1.5, DAY, 1),
        ("7", DAY, 1),
        (True, DAY, 1),
    ],
)
def test_runs_are_kept_until_their_execution_is_over(
    days: Any, longest_s: int | None, least: int | None
) -> None:
    faults = keeping_faults(days, own_bucket=True, longest_s=longest_s)
    if least is None:
        assert faults == []
    else:
        assert faults[0].startswith(f"keep_runs_days must be a whole number of at least {least}")


def test_a_bucket_of_ones_own_has_rules_of_its_own() -> None:
    assert keeping_faults(None, own_bucket=False, longest_s=DAY) == []
    (fault,) = keeping_faults(30, own_bucket=False, longest_s=DAY)
    assert fault.startswith("keep_runs_days is for the bucket that is made here")


def test_hyperparameters_are_known_scalars() -> None:
    good: dict[str, Any] = {"network": "mobilenet", "epochs": 20, "dropout": 0.1, "augment": False}
    assert hyperparameter_faults(good) == []
    assert hyperparameter_faults({**good, "seed": TOKEN, "task": TOKEN}) == []
    assert hyperparameter_faults({**good, "task": "referable"}) == []
    for wrong, said in (
        ({"epoch": 3}, "got 'epoch' (near it: epochs)"),
        ({"restart": True}, "must hold options that the step knows; got 'restart'"),
        ({"sagemaker_program": "x"}, "must hold options that the step knows"),
        ({"package_id": "x"}, "may not set package_id: package_id= does"),
        ({1: "x"}, "must hold options that the step knows; got 1"),
        ({"epochs": None}, "hyperparameters['epochs'] must be text, a number, True or False"),
        ({"epochs": [1]}, "hyperparameters['epochs'] must be text"),
        ({"dropout": float("nan")}, "hyperparameters['dropout'] must be text"),
        ({"loss": "x" * 257}, "hyperparameters['loss'] must be text of at most 256 characters"),
    ):
        (fault,) = hyperparameter_faults({**good, **wrong})  # type: ignore[dict-item]
        assert said in fault
    assert hyperparameter_faults({**good, "loss": "x" * 256}) == []
    (fault,) = hyperparameter_faults({})
    assert fault.startswith("hyperparameters must name a network")


def test_a_kappa_is_asked_of_a_grader_and_of_nothing_else() -> None:
    grader = GateThresholds(min_sensitivity=0.8, min_specificity=0.7, min_kappa=0.6)
    refers = GateThresholds(min_sensitivity=0.8, min_specificity=0.7)
    assert refers.faults() == []
    assert "--min-kappa" not in refers.arguments()
    for options in ({}, {"task": "grade5"}):
        assert task_faults(options, grader) == []
        (fault,) = task_faults(options, refers)
        assert fault.startswith("gate.min_kappa must be given")
    assert task_faults({"task": "referable"}, refers) == []
    (fault,) = task_faults({"task": "referable"}, grader)
    assert fault.startswith("gate.min_kappa must be left out with hyperparameters['task']")
    assert fault.endswith("got 0.6")
    (fault,) = task_faults({"task": "referral"}, refers)
    assert fault == "hyperparameters['task'] must be one of grade5, referable; got 'referral'"
    assert task_faults({"task": TOKEN}, grader) == task_faults({"task": TOKEN}, refers) == []


def test_preparation_is_of_known_options() -> None:
    assert preparation_faults({}) == []
    assert preparation_faults({"size_px": 299, "keep_ungradable": True}) == []
    (fault,) = preparation_faults({"size": 299})
    assert "got 'size' (near it: size_px" in fault


def test_options_are_written_as_each_step_reads_them() -> None:
    options = {"size_px": 224, "keep_ungradable": True, "prepared_already": False}
    assert option_arguments(options) == ["--size-px", "224", "--keep-ungradable"]
    assert option_texts({"epochs": 20, "dropout": 0.1, "augment": False}) == {
        "epochs": "20",
        "dropout": "0.1",
        "augment": "false",
    }


def test_options_have_no_name_twice() -> None:
    for known in (HYPERPARAMETERS, PREPARATION):
        assert list(known) == sorted(set(known))


@pytest.mark.parametrize(
    ("strategy", "hosts", "refused"),
    [
        ("mirrored", 2, True),
        ("cpu", 2, True),
        ("auto", 2, False),
        ("multi-worker", 2, False),
        ("multi-worker", 1, True),
        ("mirrored", 1, False),
        (TOKEN, 2, False),
        ("cpu", None, False),
    ],
)
def test_a_strategy_fits_the_number_of_hosts(
    strategy: object, hosts: int | None, refused: bool
) -> None:
    options = {"network": "mobilenet", "strategy": strategy}
    found = hyperparameter_faults(options, hosts=hosts)
    assert len(found) == refused
    assert all(fault.startswith("hyperparameters['strategy'] must") for fault in found)
