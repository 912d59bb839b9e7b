"""The golden-image probe: what is sent, which answers are right, and what is deployed."""

import base64
import copy
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from constructs_lib import AlarmOptions, ProbeOptions
from constructs_lib.probe_function.handler import (
    GOLDEN,
    ProbeError,
    check_answer,
    probe,
    request_event,
)
from dr_training.drawing import draw_fundus
from inference_image.lambda_handler import LambdaHandler
from inference_image.log import JsonLog
from inference_image.model_spec import load_model_spec
from tests.constructs_fixtures import (
    SHA256,
    Template,
    manifest_of,
    new_stack,
    only,
    resources,
    statements,
    template_of,
)
from tests.unit.constructs_lib.test_operations import on_lambda, realtime, serverless

FUNCTION_ARN = "arn:aws:lambda:eu-west-1:123456789012:function:dr-test:live"
MODEL = Path("model_artifacts/mobilenet-demo")
RIGHT: dict[str, Any] = {
    "predictions": [0.02, 0.05, 0.13, 0.68, 0.12],
    "grade": 3,
    "referable": {"probability": 0.93},
    "quality": {"gradable": True, "reasons": []},
    "model": {"id": "demo", "sha256": SHA256},
}


class FakeAws:
    """Answers as boto3's clients do, from a function; only what the probe asks for."""

    def __init__(
        self, answer: Callable[[bytes], Any], *, status: str = "InService", shifting: bool = False
    ) -> None:
        self._answer = answer
        self._status = status
        self._shifting = shifting
        self.asked: list[str] = []

    def __call__(self, service: str) -> "FakeAws":
        self.asked.append(service)
        return self

    def invoke_endpoint(self, **request: Any) -> dict[str, Any]:
        assert request["ContentType"] == "image/jpeg"
        assert request["EndpointName"] == "dr-test"
        return {"Body": io.BytesIO(json.dumps(self._answer(request["Body"])).encode())}

    def invoke(self, **request: Any) -> dict[str, Any]:
        assert request["FunctionName"] == FUNCTION_ARN
        answer = self._answer(request["Payload"])
        failed = {"FunctionError": "Unhandled"} if "errorMessage" in answer else {}
        return {"Payload": io.BytesIO(json.dumps(answer).encode()), **failed}

    def describe_endpoint(self, **_: Any) -> dict[str, Any]:
        return {"EndpointStatus": self._status}

    def get_alias(self, **request: Any) -> dict[str, Any]:
        assert request == {"FunctionName": FUNCTION_ARN.removesuffix(":live"), "Name": "live"}
        return {"RoutingConfig": {"AdditionalVersionWeights": {"1": 0.9}}} if self._shifting else {}


def test_the_photograph_is_one_that_this_project_drew() -> None:
    with Image.open(GOLDEN) as kept:
        pixels = np.asarray(kept.convert("RGB"), dtype=np.int16)
    drawn = draw_fundus(0, 3, 600)
    assert pixels.shape == drawn.image.shape
    # JPEG and its decoder may differ by a little from one machine to the next.
    assert np.abs(pixels - drawn.image).mean() < 4


def test_the_service_answers_the_probes_event_as_it_should(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The real handler and the demo model; only boto3's transport is stood in for."""
    model_dir = repository / MODEL
    handler = LambdaHandler(
        environment={"DR_MODEL_DIR": str(model_dir)}, log=JsonLog(level="error")
    )
    try:
        aws = FakeAws(lambda payload: handler(json.loads(payload), None))
        digest = load_model_spec(model_dir).sha256
        environment = {
            "DR_PROBE_LAMBDA": FUNCTION_ARN,
            "DR_PROBE_SHA256": digest,
            "DR_PROBE_GRADE": "3",
        }
        record = probe(environment, client=aws, photograph=GOLDEN.read_bytes())
    finally:
        handler.close()
    assert (record["outcome"], record["grade"], record["sha256"]) == ("ok", 3, digest)
    assert record["latency_ms"] > 0
    line = capsys.readouterr().out
    assert json.loads(line) == record
    assert base64.b64encode(GOLDEN.read_bytes())[:40].decode() not in line


def test_the_event_is_a_function_urls() -> None:
    event = request_event(b"\xff\xd8\xff")
    assert event["version"] == "2.0"
    assert base64.b64decode(event["body"]) == b"\xff\xd8\xff"


def wrong(**change: Any) -> dict[str, Any]:
    return {**copy.deepcopy(RIGHT), **change}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([], "no JSON object"),
        (wrong(quality={"gradable": False, "reasons": ["blurred"]}), r"ungradable: \['blurred'\]"),
        (wrong(quality=None), "ungradable"),
        (wrong(predictions=None), "no probabilities"),
        (wrong(predictions=[1.0]), "no probabilities"),
        (wrong(predictions=[0.5, float("nan")]), "not every probability"),
        (wrong(predictions=[0.5, float("inf")]), "not every probability"),
        (wrong(predictions=[1.5, -0.5]), "not every probability"),
        (wrong(predictions=[True, False]), "not every probability"),
        (wrong(predictions=[0.2] * 4), "sum to 0.8"),
        (wrong(referable={"probability": None}), "no probability of referable"),
        (wrong(referable=None), "no probability of referable"),
        (wrong(model={"id": "demo"}), "does not say which model"),
        (wrong(grade=2), "the grade is 2, and should be 3"),
        (wrong(grade=None), "the grade is None, and should be 3"),
    ],
)
def test_an_answer_that_is_not_as_it_should_be_fails(answer: Any, words: str) -> None:
    with pytest.raises(ProbeError, match=words):
        check_answer(answer, expected_grade=3)


def test_the_answers_of_both_tasks_are_right() -> None:
    assert check_answer(RIGHT) == SHA256
    assert check_answer(wrong(predictions=[0.07, 0.93], grade=None)) == SHA256


ASKED = {
    "sagemaker": {"DR_PROBE_SAGEMAKER": "dr-test"},
    "lambda": {"DR_PROBE_LAMBDA": FUNCTION_ARN},
}


def on(kind: str, answer: Any) -> Any:
    if kind == "sagemaker":
        return answer
    return {"statusCode": 200, "body": json.dumps(answer), "isBase64Encoded": False}


@pytest.mark.parametrize("kind", ASKED)
def test_the_wrong_model_fails_unless_an_update_runs(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = {**ASKED[kind], "DR_PROBE_SHA256": "cd" * 32}
    still = FakeAws(lambda _: on(kind, RIGHT))
    with pytest.raises(ProbeError, match=f"the model {SHA256} answered, and (cd)+ is deployed"):
        probe(environment, client=still, photograph=b"jpeg")
    failed = json.loads(capsys.readouterr().out)
    assert failed["outcome"] == "failed"
    assert failed["reason"].startswith("ProbeError: the model")
    moving = FakeAws(lambda _: on(kind, RIGHT), status="Updating", shifting=True)
    record = probe(environment, client=moving, photograph=b"jpeg")
    assert (record["outcome"], record["updating"]) == ("ok", True)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"statusCode": 503, "body": "{}"}, "the function answered 503"),
        ({"errorMessage": "no model"}, "the function failed: no model"),
        ({"statusCode": 200, "body": "<html>"}, "the answer is no JSON"),
    ],
)
def test_a_function_that_fails_is_a_failed_probe(answer: Any, words: str) -> None:
    with pytest.raises(ProbeError, match=words):
        probe(ASKED["lambda"], client=FakeAws(lambda _: answer), photograph=b"jpeg")


def test_an_error_of_the_platform_is_a_failed_probe(capsys: pytest.CaptureFixture[str]) -> None:
    def throttled(_: bytes) -> Any:
        raise RuntimeError("ThrottlingException")

    with pytest.raises(RuntimeError, match="Throttling"):
        probe(ASKED["sagemaker"], client=FakeAws(throttled), photograph=b"jpeg")
    assert json.loads(capsys.readouterr().out)["reason"] == "RuntimeError: ThrottlingException"


# --- What is deployed -----------------------------------------------------------------------------


def probes(template: Template) -> dict[str, Any]:
    found = resources(template, "AWS::Lambda::Function")
    (function,) = (
        it for it in found.values() if it["Properties"].get("Handler") == "handler.handler"
    )
    properties: dict[str, Any] = function["Properties"]
    return properties


@pytest.mark.parametrize("make", [serverless, realtime, on_lambda])
def test_a_probe_asks_its_endpoint_every_minute_and_may_do_nothing_else(make: Any) -> None:
    stack = new_stack()
    make(stack, probe=ProbeOptions(expected_grade=3))
    template = template_of(stack)
    said = probes(template)
    environment = said["Environment"]["Variables"]
    assert environment["DR_PROBE_SHA256"] == SHA256
    assert environment["DR_PROBE_GRADE"] == "3"
    assert said["Timeout"] > 60
    _, rule = only(template, "AWS::Events::Rule")
    assert rule["Properties"]["ScheduleExpression"] == "rate(1 minute)"
    # A retry would hide what the probe is there to find.
    (target,) = rule["Properties"]["Targets"]
    assert target["RetryPolicy"] == {"MaximumRetryAttempts": 0}
    _, once = only(template, "AWS::Lambda::EventInvokeConfig")
    assert once["Properties"]["MaximumRetryAttempts"] == 0
    asks = next(it for it in statements(template) if it.get("Sid") == "AskEndpoint")
    if make is on_lambda:
        assert set(asks["Action"]) == {"lambda:InvokeFunction", "lambda:GetAlias"}
        assert "function:dr-Test" in json.dumps(asks["Resource"])
        assert "*" not in json.dumps(asks["Resource"])
    else:
        assert set(asks["Action"]) == {"sagemaker:InvokeEndpoint", "sagemaker:DescribeEndpoint"}
        # SageMaker's ARNs are in lower case.
        assert json.dumps(asks["Resource"]).endswith('endpoint/dr-test"]]}')
        assert environment["DR_PROBE_SAGEMAKER"] == "dr-Test"
        endpoint, _ = only(template, "AWS::SageMaker::Endpoint")
        assert endpoint in rule["DependsOn"]


def test_a_probe_brings_two_files_and_always_the_same() -> None:
    names = []
    for _ in range(2):
        stack = new_stack()
        serverless(stack, probe=ProbeOptions())
        (asset,) = (
            it for it in manifest_of(stack)["files"].values() if it["source"]["packaging"] == "zip"
        )
        root: Any = stack.node.root
        folder = Path(root.outdir, asset["source"]["path"])
        assert {path.name for path in folder.iterdir()} == {"golden.jpg", "handler.py"}
        assert (folder / "golden.jpg").read_bytes() == GOLDEN.read_bytes()
        names.append(asset["source"]["path"])
    assert names[0] == names[1]


def test_ones_own_photograph_and_hours(tmp_path: Path) -> None:
    own = tmp_path / "phantom.jpg"
    own.write_bytes(draw_fundus(7, 0, 200).jpeg_bytes())
    stack = new_stack()
    serverless(stack, probe=ProbeOptions(photograph=own, every_minutes=60))
    template = template_of(stack)
    _, rule = only(template, "AWS::Events::Rule")
    assert rule["Properties"]["ScheduleExpression"] == "rate(1 hour)"
    assert "DR_PROBE_GRADE" not in probes(template)["Environment"]["Variables"]


@pytest.mark.parametrize(("every_minutes", "period_s"), [(1, 60), (5, 300), (1440, 86_400)])
def test_two_failed_probes_of_three_ring_however_far_apart(
    every_minutes: int, period_s: int
) -> None:
    stack = new_stack()
    serverless(stack, alarms=AlarmOptions(), probe=ProbeOptions(every_minutes=every_minutes))
    (alarm,) = (
        it["Properties"]
        for it in resources(template_of(stack), "AWS::CloudWatch::Alarm").values()
        if it["Properties"]["AlarmName"] == "dr-Test-probe"
    )
    assert alarm["Period"] == period_s
    assert (alarm["DatapointsToAlarm"], alarm["EvaluationPeriods"]) == (2, 3)
    # CloudWatch looks back a week at most, and a day where periods are below an hour.
    assert 3 * period_s <= (7 * 86_400 if period_s >= 3600 else 86_400)


def test_the_handler_needs_nothing_that_lambda_does_not_bring() -> None:
    source = Path(GOLDEN.with_name("handler.py")).read_text()
    imported = {
        line.split()[1].partition(".")[0]
        for line in map(str.strip, source.splitlines())
        if line.startswith(("import ", "from "))
    }
    import sys

    assert imported - set(sys.stdlib_module_names) == {"boto3", "botocore"}
