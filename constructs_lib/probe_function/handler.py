"""Sends a known photograph to an endpoint and checks the answer; runs on a schedule.

Standard library and boto3, which Lambda's Python runtime brings. An answer that is not as it
should be is an error of the function, and its `Errors` metric is what the alarm watches. No line
of the log holds anything of the photograph.
"""

import base64
import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).with_name("golden.jpg")
# The answer's probabilities are rounded by the service.
_SUM_TOLERANCE = 0.01
_SHA256_CHARACTERS = 64


class ProbeError(Exception):
    """The endpoint did not answer as it should; the text says what was wrong."""


def handler(event: object, context: object) -> dict[str, Any]:
    """Probe once, as the environment says.

    Raises:
        ProbeError: the endpoint did not answer as it should.
    """
    import boto3
    from botocore.config import Config

    # A second try would hide the failure that the probe is there to find.
    config = Config(retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=65)
    return probe(
        os.environ,
        client=lambda service: boto3.client(service, config=config),
        photograph=GOLDEN.read_bytes(),
    )


def probe(environment: Mapping[str, str], *, client: Any, photograph: bytes) -> dict[str, Any]:
    """Send `photograph` and check the answer; `client` makes a boto3 client of a service.

    Variables: `DR_PROBE_SAGEMAKER` (endpoint name) or `DR_PROBE_LAMBDA` (ARN of an alias),
    `DR_PROBE_SHA256` (digest of the package) and `DR_PROBE_GRADE`, each of the last two optional.

    Raises:
        ProbeError: the endpoint did not answer as it should.
    """
    began = time.perf_counter()
    record: dict[str, Any] = {"event": "probe"}
    try:
        if name := environment.get("DR_PROBE_SAGEMAKER"):
            answer = _ask_sagemaker(client, name, photograph)
        else:
            answer = _ask_lambda(client, environment["DR_PROBE_LAMBDA"], photograph)
        record["latency_ms"] = round((time.perf_counter() - began) * 1000, 1)
        digest = check_answer(answer, expected_grade=_grade(environment))
        record |= {"grade": answer.get("grade"), "sha256": digest}
        expected = environment.get("DR_PROBE_SHA256")
        if expected and digest != expected:
            # While an update runs, the old version and the new both answer.
            if not _updating(client, environment):
                raise ProbeError(f"the model {digest} answered, and {expected} is deployed")
            record["updating"] = True
    except Exception as error:
        record |= {"outcome": "failed", "reason": f"{type(error).__name__}: {error}"}
        print(json.dumps(record), flush=True)
        raise
    record["outcome"] = "ok"
    print(json.dumps(record), flush=True)
    return record


def check_answer(answer: Any, *, expected_grade: int | None = None) -> str:
    """The digest of the model that gave `answer`, a whole answer of the service.

    Raises:
        ProbeError: naming the first thing that is not as it should be.
    """
    if not isinstance(answer, dict):
        raise ProbeError("the answer is no JSON object")
    quality = answer.get("quality")
    if not isinstance(quality, dict) or quality.get("gradable") is not True:
        reasons = quality.get("reasons") if isinstance(quality, dict) else None
        raise ProbeError(f"the known photograph was found ungradable: {reasons}")
    predictions = answer.get("predictions")
    if not isinstance(predictions, list) or len(predictions) < 2:
        raise ProbeError("the answer has no probabilities")
    if not all(_is_probability(value) for value in predictions):
        raise ProbeError(f"not every probability is a number from 0 to 1: {predictions}")
    if abs(sum(predictions) - 1) > _SUM_TOLERANCE:
        raise ProbeError(f"the probabilities sum to {sum(predictions)}")
    referable = answer.get("referable")
    if not isinstance(referable, dict) or not _is_probability(referable.get("probability")):
        raise ProbeError("the answer has no probability of referable DR")
    if expected_grade is not None and answer.get("grade") != expected_grade:
        raise ProbeError(f"the grade is {answer.get('grade')}, and should be {expected_grade}")
    model = answer.get("model")
    digest = model.get("sha256") if isinstance(model, dict) else None
    if not isinstance(digest, str) or len(digest) != _SHA256_CHARACTERS:
        raise ProbeError("the answer does not say which model gave it")
    return digest


def _is_probability(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and 0 <= value <= 1
    )


def _grade(environment: Mapping[str, str]) -> int | None:
    text = environment.get("DR_PROBE_GRADE")
    return int(text) if text else None


def _ask_sagemaker(client: Any, name: str, photograph: bytes) -> Any:
    reply = client("sagemaker-runtime").invoke_endpoint(
        EndpointName=name, ContentType="image/jpeg", Accept="application/json", Body=photograph
    )
    return _parsed(reply["Body"].read())


def _ask_lambda(client: Any, arn: str, photograph: bytes) -> Any:
    reply = client("lambda").invoke(FunctionName=arn, Payload=json.dumps(request_event(photograph)))
    payload = _parsed(reply["Payload"].read())
    if reply.get("FunctionError"):
        raise ProbeError(f"the function failed: {payload.get('errorMessage')}")
    if payload.get("statusCode") != 200:
        raise ProbeError(f"the function answered {payload.get('statusCode')}")
    body = payload.get("body", "")
    return _parsed(base64.b64decode(body) if payload.get("isBase64Encoded") else body)


def request_event(photograph: bytes) -> dict[str, Any]:
    """The photograph as a function URL would hand it over (payload format 2.0)."""
    return {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": "/invocations",
        "rawQueryString": "",
        "headers": {"content-type": "image/jpeg", "accept": "application/json", "host": "probe"},
        "requestContext": {
            "http": {
                "method": "POST",
                "path": "/invocations",
                "protocol": "HTTP/1.1",
                "sourceIp": "127.0.0.1",
                "userAgent": "dr-endpoints-probe",
            },
            "requestId": "probe",
            "routeKey": "$default",
            "stage": "$default",
        },
        "body": base64.b64encode(photograph).decode(),
        "isBase64Encoded": True,
    }


def _parsed(body: bytes | str) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        raise ProbeError("the answer is no JSON") from None


def _updating(client: Any, environment: Mapping[str, str]) -> bool:
    if name := environment.get("DR_PROBE_SAGEMAKER"):
        status = client("sagemaker").describe_endpoint(EndpointName=name)["EndpointStatus"]
        return bool(status != "InService")
    function, _, alias = environment["DR_PROBE_LAMBDA"].rpartition(":")
    found = client("lambda").get_alias(FunctionName=function, Name=alias)
    return bool(found.get("RoutingConfig", {}).get("AdditionalVersionWeights"))
