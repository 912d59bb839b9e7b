"""State machines for tests: read from a template, looked through, and run by moto's interpreter."""

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

import boto3
from botocore.response import StreamingBody
from botocore.validate import ParamValidator
from moto import mock_aws
from moto.stepfunctions.parser.asl.component.state.exec.state_task.service import (
    state_task_service_aws_sdk,
)

from tests.constructs_fixtures import ACCOUNT, REGION, Template, only

Definition = dict[str, Any]
StateTaskServiceAwsSdk = state_task_service_aws_sdk.StateTaskServiceAwsSdk
_PATH = re.compile(r"\$(?:\.\w+)+")
_WAIT_S = 60
MODEL_URL: Final = "s3://ours/runs/dr-clinic/first/model/job/output/model.tar.gz"


def definition_of(template: Template, known: Mapping[str, str] | None = None) -> Definition:
    """The one state machine of `template`; references are `known` by their logical id or name."""
    _, machine = only(template, "AWS::StepFunctions::StateMachine")
    text = machine["Properties"]["DefinitionString"]
    if isinstance(text, dict):
        separator, parts = text["Fn::Join"]
        text = separator.join(_resolved(part, known or {}) for part in parts)
    found: Definition = json.loads(text)
    return found


def _resolved(part: Any, known: Mapping[str, str]) -> str:
    if isinstance(part, str):
        return part
    ((kind, value),) = part.items()
    if value == "AWS::Partition":
        return "aws"
    name = value if kind == "Ref" else value[0]
    return known.get(name, name.lower())


def transitions(state: Definition) -> list[str]:
    """Names of the states that may follow."""
    after = [choice["Next"] for choice in state.get("Choices", [])]
    after += [catcher["Next"] for catcher in state.get("Catch", [])]
    return after + [state[name] for name in ("Next", "Default") if name in state]


def ways(machine: Definition) -> Iterator[list[str]]:
    """Every way from the start to an end; a machine without loops."""
    pending = [[machine["StartAt"]]]
    while pending:
        way = pending.pop()
        after = transitions(machine["States"][way[-1]])
        if not after:
            yield way
        for name in after:
            assert name not in way, f"{way} goes round"
            pending.append([*way, name])


def paths_read(state: Definition) -> set[str]:
    """JSON paths into the state's input; those of its own result and of the context are others'."""
    document = {
        name: value for name, value in state.items() if name not in ("ResultSelector", "ResultPath")
    }
    return {
        match.group()
        for text in _texts(document)
        for match in _PATH.finditer(text.replace("$$", "#"))
    }


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for inside in value.values():
            yield from _texts(inside)
    elif isinstance(value, list):
        for inside in value:
            yield from _texts(inside)
    elif isinstance(value, str):
        yield value


def paths_made(state: Definition) -> set[str]:
    """What the state adds: paths of its result, of which reports are known to be JSON alone."""
    if state["Type"] == "Pass":
        return {f"$.{'.'.join(path)}" for path in _leaves(state["Parameters"])}
    if "ResultPath" not in state:
        return set()
    names = state.get("ResultSelector", {})
    return {f"{state['ResultPath']}.{name.removesuffix('.$')}" for name in names}


def _leaves(value: Mapping[str, Any]) -> Iterator[list[str]]:
    for name, inside in value.items():
        if isinstance(inside, Mapping):
            for rest in _leaves(inside):
                yield [name, *rest]
        else:
            yield [name.removesuffix(".$")]


@dataclass(frozen=True, kw_only=True)
class Ended:
    """An execution that is over.

    `asked` holds what each task asked for, evaluated; `objects` bodies by `bucket/key`;
    `packages` what is in the model registry.
    """

    status: str
    output: Any
    error: str | None
    cause: str | None
    visited: list[str]
    asked: dict[str, dict[str, Any]]
    objects: dict[str, bytes]
    packages: list[dict[str, Any]]


def run(
    machine: Definition,
    *,
    objects: Mapping[str, bytes] | None = None,
    model_package_group: str = "models",
    name: str = "first",
    given: str = "{}",
) -> Ended:
    """Run `machine` by moto's interpreter over `objects`, which are what jobs would have made.

    Jobs are asked for and not waited for: the interpreter has no `.sync` of SageMaker's. What it
    asks for goes through botocore's validation here, which it leaves out.
    """
    credentials = {"aws_access_key_id": "a", "aws_secret_access_key": "a", "region_name": REGION}
    config = {"stepfunctions": {"execute_state_machine": True}}
    with (
        mock_aws(config=config),
        mock.patch.object(StateTaskServiceAwsSdk, "_normalise_response", _with_texts),
    ):
        s3 = boto3.client("s3", **credentials)
        for bucket in sorted({path.partition("/")[0] for path in objects or {}}):
            s3.create_bucket(
                Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": REGION}
            )
        for path, body in (objects or {}).items():
            bucket, _, key = path.partition("/")
            s3.put_object(Bucket=bucket, Key=key, Body=body)
        sagemaker = boto3.client("sagemaker", **credentials)
        sagemaker.create_model_package_group(
            ModelPackageGroupName=model_package_group, ModelPackageGroupDescription="tests"
        )
        steps = boto3.client("stepfunctions", **credentials)
        made = steps.create_state_machine(
            name="machine",
            definition=json.dumps(_runnable(machine)),
            roleArn=f"arn:aws:iam::{ACCOUNT}:role/any",
        )
        execution = steps.start_execution(
            stateMachineArn=made["stateMachineArn"], name=name, input=given
        )["executionArn"]
        deadline = time.monotonic() + _WAIT_S
        while True:
            found = steps.describe_execution(executionArn=execution)
            if found["status"] != "RUNNING":
                break
            assert time.monotonic() < deadline, "the interpreter does not end"
            time.sleep(0.05)
        events = steps.get_execution_history(executionArn=execution)["events"]
        visited, asked = _told(events)
        buckets = [it["Name"] for it in s3.list_buckets()["Buckets"]]
        return Ended(
            status=found["status"],
            output=json.loads(found.get("output") or "null"),
            error=found.get("error"),
            cause=found.get("cause"),
            visited=visited,
            asked=asked,
            objects={
                f"{bucket}/{it['Key']}": s3.get_object(Bucket=bucket, Key=it["Key"])["Body"].read()
                for bucket in buckets
                for it in s3.list_objects_v2(Bucket=bucket).get("Contents", [])
            },
            packages=[
                sagemaker.describe_model_package(ModelPackageName=it["ModelPackageArn"])
                for it in sagemaker.list_model_packages(ModelPackageGroupName=model_package_group)[
                    "ModelPackageSummaryList"
                ]
            ],
        )


def _with_texts(_: StateTaskServiceAwsSdk, response: dict[str, Any], *__: object) -> None:
    """What Step Functions does and moto leaves out: bodies of objects and dates become texts."""
    if isinstance(response.get("Body"), StreamingBody):
        response["Body"] = response["Body"].read().decode()
    response.update(json.loads(json.dumps(response, default=str)))


def _told(events: list[dict[str, Any]]) -> tuple[list[str], dict[str, dict[str, Any]]]:
    visited: list[str] = []
    asked = {}
    for event in events:
        if event["type"].endswith("StateEntered"):
            visited.append(event["stateEnteredEventDetails"]["name"])
        elif event["type"] == "TaskScheduled":
            asked[visited[-1]] = json.loads(event["taskScheduledEventDetails"]["parameters"])
    return visited, asked


def _runnable(machine: Definition) -> Definition:
    """The same, with jobs that are asked for and not waited for."""
    copy: Definition = json.loads(json.dumps(machine))
    for state in copy["States"].values():
        found = re.fullmatch(
            r"arn:aws:states:::sagemaker:create(\w+)Job\.sync", state.get("Resource", "")
        )
        if found is None:
            continue
        kind = found.group(1)
        state["Resource"] = f"arn:aws:states:::aws-sdk:sagemaker:create{kind}Job"
        state["ResultSelector"] = {
            name: f"$.{kind}JobArn" if name == "job.$" else "$.states-cannot-know"
            for name in state["ResultSelector"]
        }
        if kind == "Training":
            # Where SageMaker puts it: below the output's path, in a folder of the job's name.
            del state["ResultSelector"]["model.$"]
            state["ResultSelector"]["model"] = MODEL_URL
    return copy


def validated(operation: str, parameters: Mapping[str, Any], service: str = "sagemaker") -> str:
    """What botocore finds wrong with `parameters`; empty when they are as the service's model."""
    client = boto3.client(
        service, region_name=REGION, aws_access_key_id="a", aws_secret_access_key="a"
    )
    shape = client.meta.service_model.operation_model(operation).input_shape
    return str(ParamValidator().validate(parameters, shape).generate_report())
