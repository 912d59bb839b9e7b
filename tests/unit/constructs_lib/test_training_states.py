"""The state machine of a training: its document, and what moto's interpreter does with it."""

import io
import json
import zipfile
from functools import cache
from typing import Any

import pytest

from constructs_lib.training_code import CODE_FILE, training_code
from inference_image.model_spec import object_key
from tests.constructs_fixtures import SHA256, new_stack, template_of
from tests.state_machines import (
    MODEL_URL,
    Ended,
    definition_of,
    paths_made,
    paths_read,
    run,
    transitions,
    validated,
    ways,
)
from tests.training_fixtures import a_pipeline

# What the reports hold, which the document alone does not say.
REPORTS = {
    "$.gate.report": {"$.gate.report.passed", "$.gate.report.reasons"},
    "$.packed.report": {"$.packed.report.sha256", "$.packed.report.key"},
}
KEY = object_key("clinic", SHA256)
PACKED = {"id": "clinic", "sha256": SHA256, "key": KEY}
PASSED = {"passed": True, "reasons": [], "n": 500}
REFUSED = {"passed": False, "reasons": ["sensitivity: its bound 0.79 is below 0.85"], "n": 500}
# What a caller would like the states to read.
WISH = {"run": {"url": "s3://theirs"}, "gate": {"report": PASSED}, "packed": {"report": PACKED}}


@cache
def machine() -> dict[str, Any]:
    stack = new_stack()
    a_pipeline(stack, training_instance_count=2)
    return definition_of(template_of(stack))


def ended(report: str, name: str = "first") -> Ended:
    return _ended(report, name)


@cache
def _ended(report: str, name: str) -> Ended:
    source = machine()["States"]["BringCode"]["Parameters"]["CopySource"]
    return run(
        machine(),
        objects={
            source: training_code(),
            f"ours/runs/dr-clinic/{name}/gate/gate.json": report.encode(),
            f"ours/runs/dr-clinic/{name}/packed/pack.json": json.dumps(PACKED).encode(),
        },
        model_package_group="dr-clinic",
        name=name,
        given=json.dumps(WISH),
    )


def test_every_state_is_reached_and_every_transition_is_to_a_state() -> None:
    states = machine()["States"]
    assert {name for way in ways(machine()) for name in way} == set(states)
    for state in states.values():
        assert set(transitions(state)) <= set(states)


def test_every_choice_has_a_default_and_every_end_is_said() -> None:
    kinds = [state["Type"] for state in machine()["States"].values()]
    assert kinds.count("Choice") == 1
    for name, state in machine()["States"].items():
        if state["Type"] == "Choice":
            assert "Default" in state
        elif not transitions(state):
            assert state.get("End") is True or state["Type"] == "Fail", name


def test_every_path_was_made_by_a_state_before_it() -> None:
    """On every way: also a result that replaces everything that was known would show here."""
    for way in ways(machine()):
        known: set[str] = set()
        for name in way:
            state = machine()["States"][name]
            assert paths_read(state) <= known, name
            known |= paths_made(state)
            known |= {path for report in known & set(REPORTS) for path in REPORTS[report]}
            if state["Type"] == "Task":
                assert "ResultPath" in state, f"the result of {name} replaces everything"


def test_the_way_is_prepare_train_gate_pack_register() -> None:
    (whole,) = (way for way in ways(machine()) if way[-1] == "Register")
    assert whole == [
        *("Places", "BringCode", "Prepare", "Train", "Gate", "ReadGate", "GatePassed"),
        *("Pack", "ReadPacked", "Register"),
    ]


def test_jobs_are_waited_for_and_tried_again_only_where_they_were_not_started() -> None:
    for name in ("Prepare", "Train", "Gate", "Pack"):
        state = machine()["States"][name]
        assert state["Resource"].endswith("Job.sync")
        errors = {error for retry in state["Retry"] for error in retry["ErrorEquals"]}
        # A job that failed is no reason to pay for it again.
        assert errors == {
            "SageMaker.AmazonSageMakerException",
            "SageMaker.ResourceLimitExceededException",
        }


def test_a_quota_that_is_used_up_is_waited_for() -> None:
    for name in ("Prepare", "Train", "Gate", "Pack"):
        (retry,) = (
            it
            for it in machine()["States"][name]["Retry"]
            if it["ErrorEquals"] == ["SageMaker.ResourceLimitExceededException"]
        )
        assert retry["BackoffRate"] == 1
        assert retry["IntervalSeconds"] * retry["MaxAttempts"] == 3600


def test_an_execution_ends_some_time() -> None:
    # All jobs, and around each an hour, and an hour's wait for a quota.
    assert machine()["TimeoutSeconds"] == 2 * 86_400 + 3 * 14_400 + 4 * (3600 + 3600)


def test_a_model_that_passes_is_registered_and_waits_for_a_person() -> None:
    done = ended(json.dumps(PASSED))
    assert (done.status, done.error) == ("SUCCEEDED", None)
    (package,) = done.packages
    assert package["ModelApprovalStatus"] == "PendingManualApproval"
    (container,) = package["InferenceSpecification"]["Containers"]
    assert container["ModelDataUrl"] == f"s3://our-models/{KEY}"
    assert container["Image"].endswith(f"@sha256:{'12' * 32}")
    assert package["CustomerMetadataProperties"] == {
        "package_id": "clinic",
        "package_sha256": SHA256,
    }
    quality = package["ModelMetrics"]["ModelQuality"]["Statistics"]
    assert quality["S3Uri"] == "s3://ours/runs/dr-clinic/first/gate/gate.json"


def test_every_run_keeps_its_own_code() -> None:
    done = ended(json.dumps(PASSED))
    kept = done.objects[f"ours/runs/dr-clinic/first/code/{CODE_FILE}"]
    assert "dr_training/__init__.py" in zipfile.ZipFile(io.BytesIO(kept)).namelist()


def test_a_model_that_does_not_pass_ends_the_execution_with_the_reasons() -> None:
    done = ended(json.dumps(REFUSED))
    assert (done.status, done.error) == ("FAILED", "GateRefused")
    assert done.cause is not None
    assert json.loads(done.cause) == REFUSED["reasons"]
    assert "Pack" not in done.visited
    assert done.packages == []


def test_only_a_report_that_says_passed_goes_on() -> None:
    """The choice over many reports at once; its ends say their names."""
    ends: dict[str, list[Any]] = {
        "Pack": [PASSED],
        "GateRefused": [REFUSED],
        "GateUnreadable": [
            {},
            {"passed": "true", "reasons": []},
            {"passed": 1, "reasons": []},
            {"passed": None, "reasons": []},
            {"passed": False},
            {"verdict": {"passed": True}},
            [True],
        ],
    }
    choice = machine()["States"]["GatePassed"]
    assert set(transitions(choice)) == set(ends)
    states = {name: {"Type": "Pass", "Result": name, "End": True} for name in ends}
    every = {
        "StartAt": "Every",
        "States": {
            "Every": {
                "Type": "Map",
                "ItemProcessor": {
                    "ProcessorConfig": {"Mode": "INLINE"},
                    "StartAt": "GatePassed",
                    "States": {"GatePassed": choice, **states},
                },
                "End": True,
            }
        },
    }
    reports = [(end, report) for end, found in ends.items() for report in found]
    given = [{"gate": {"report": report}} for _, report in reports]
    assert run(every, given=json.dumps(given)).output == [end for end, _ in reports]


def test_what_an_execution_is_started_with_changes_nothing() -> None:
    done = ended(json.dumps(REFUSED))
    assert done.error == "GateRefused"
    assert "theirs" not in json.dumps(done.asked)


@pytest.mark.parametrize(
    ("state", "operation"),
    [
        ("Prepare", "CreateProcessingJob"),
        ("Train", "CreateTrainingJob"),
        ("Gate", "CreateProcessingJob"),
        ("Pack", "CreateProcessingJob"),
        ("Register", "CreateModelPackage"),
    ],
)
def test_what_is_asked_for_is_as_the_service_model_has_it(state: str, operation: str) -> None:
    assert validated(operation, ended(json.dumps(PASSED)).asked[state]) == ""
    assert validated(operation, {"Something": "else"}) != ""


@pytest.mark.parametrize("name", ["first", f"of_Ana.{'e' * 73}"])
def test_jobs_have_names_of_their_own_whatever_the_execution_is_called(name: str) -> None:
    done = ended(json.dumps(PASSED), name=name)
    assert done.status == "SUCCEEDED"
    names = {
        state: asked.get("ProcessingJobName") or asked["TrainingJobName"]
        for state, asked in done.asked.items()
        if state in ("Prepare", "Train", "Gate", "Pack")
    }
    for state, job in names.items():
        assert job.startswith(f"dr-clinic-{state.lower()}-")
        assert len(job.rpartition("-")[2]) == 12
        assert len(job) <= 63


def test_the_jobs_hand_on_to_each_other() -> None:
    asked = ended(json.dumps(PASSED)).asked
    run_url = "s3://ours/runs/dr-clinic/first"

    def inputs(state: str) -> dict[str, str]:
        return {
            it["S3Input"]["LocalPath"]: it["S3Input"]["S3Uri"]
            for it in asked[state]["ProcessingInputs"]
        }

    def outputs(state: str) -> dict[str, str]:
        return {
            it["S3Output"]["LocalPath"]: it["S3Output"]["S3Uri"]
            for it in asked[state]["ProcessingOutputConfig"]["Outputs"]
        }

    given, made = "/opt/ml/processing/input", "/opt/ml/processing/output"
    code = {f"{given}/code": f"{run_url}/code/{CODE_FILE}"}
    assert inputs("Prepare") == {**code, f"{given}/photographs": "s3://photographs/clinic/"}
    assert outputs("Prepare") == {f"{made}/records": f"{run_url}/records"}
    assert inputs("Gate") == {
        **code,
        f"{given}/model": MODEL_URL,
        f"{given}/records": f"{run_url}/records/",
    }
    assert outputs("Gate") == {f"{made}/gate": f"{run_url}/gate"}
    assert inputs("Pack") == {
        **code,
        f"{given}/model": MODEL_URL,
        f"{given}/gate": f"{run_url}/gate/",
    }
    assert outputs("Pack") == {
        f"{made}/models": "s3://our-models/models",
        f"{made}/packed": f"{run_url}/packed",
    }
    channels = {
        it["ChannelName"]: it["DataSource"]["S3DataSource"]["S3Uri"]
        for it in asked["Train"]["InputDataConfig"]
    }
    assert channels == {"code": f"{run_url}/code/{CODE_FILE}", "records": f"{run_url}/records/"}
    assert asked["Train"]["OutputDataConfig"]["S3OutputPath"] == f"{run_url}/model"
    assert asked["Train"]["CheckpointConfig"]["S3Uri"] == f"{run_url}/checkpoints"


def test_each_job_is_started_as_the_image_expects() -> None:
    asked = ended(json.dumps(PASSED)).asked
    for state, arguments in (
        ("Prepare", None),
        (
            "Gate",
            [
                *("--min-sensitivity", "0.85", "--min-specificity", "0.7"),
                *("--min-kappa", "0.6", "--min-photographs", "100"),
            ],
        ),
        ("Pack", None),
    ):
        application = asked[state]["AppSpecification"]
        assert application["ContainerEntrypoint"] == [
            *("python3", "-m", "inference_image.training_job", state.lower())
        ]
        assert application.get("ContainerArguments") == arguments
    train = asked["Train"]
    # SageMaker starts the image with the word `train`.
    assert set(train["AlgorithmSpecification"]) == {"TrainingImage", "TrainingInputMode"}
    assert train["HyperParameters"] == {
        "network": "mobilenet",
        "epochs": "20",
        "package_id": "clinic",
    }
