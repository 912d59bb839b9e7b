"""`dr verify` of a stack with a Lambda endpoint: a shift that went back is found out."""

import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws

from dr_cli.findings import Finding, Level
from dr_cli.verify import stack_findings, verify

# Its CloudFormation leaves aliases out and says so; its Lambda has them.
pytestmark = pytest.mark.filterwarnings("ignore:Tried to parse AWS..Lambda..Alias:UserWarning")

IMAGE = f"123456789012.dkr.ecr.us-east-1.amazonaws.com/dr@sha256:{'12' * 32}"
NAME = "dr-lambda-mobilenet-amd64-1769"
ROLE = {
    "Type": "AWS::IAM::Role",
    "Properties": {"AssumeRolePolicyDocument": {"Version": "2012-10-17", "Statement": []}},
}


def template(*, alias: bool = True, **changed: Any) -> str:
    function = {
        "FunctionName": NAME,
        "PackageType": "Image",
        "Code": {"ImageUri": IMAGE},
        "Role": {"Fn::GetAtt": ["Role", "Arn"]},
        "MemorySize": 1769,
        "Timeout": 60,
        "Architectures": ["x86_64"],
        "EphemeralStorage": {"Size": 512},
        "Environment": {"Variables": {"DR_LOG_LEVEL": "info", "DR_MODEL_URL": "s3://models/a"}},
        **changed,
    }
    resources: dict[str, Any] = {
        "Role": ROLE,
        "Function": {"Type": "AWS::Lambda::Function", "Properties": function},
    }
    if alias:
        resources["Version"] = {
            "Type": "AWS::Lambda::Version",
            "Properties": {"FunctionName": {"Ref": "Function"}},
        }
        resources["Live"] = {
            "Type": "AWS::Lambda::Alias",
            "Properties": {
                "FunctionName": {"Ref": "Function"},
                "FunctionVersion": {"Fn::GetAtt": ["Version", "Version"]},
                "Name": "live",
            },
        }
    return json.dumps({"Resources": resources})


class WithVersionIds:
    """moto's CloudFormation with the physical id of a version, which AWS gives and moto does not.

    https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/aws-resource-lambda-version.html
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def get_paginator(self, name: str) -> Any:
        pages = self._client.get_paginator(name)

        class Filled:
            def paginate(self, **asked: Any) -> Iterator[dict[str, Any]]:
                for page in pages.paginate(**asked):
                    for it in page["StackResourceSummaries"]:
                        if it["ResourceType"] == "AWS::Lambda::Version":
                            it["PhysicalResourceId"] = (
                                f"arn:aws:lambda:us-east-1:123456789012:function:{NAME}:1"
                            )
                    yield page

        return Filled()


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with mock_aws():
        clients: dict[str, Any] = {
            name: boto3.client(name.replace("functions", "lambda"), region_name="us-east-1")
            for name in ("cloudformation", "sagemaker", "functions")
        }
        yield clients | {"cloudformation": WithVersionIds(clients["cloudformation"])}


@pytest.fixture
def deployed(aws: dict[str, Any]) -> dict[str, Any]:
    aws["cloudformation"].create_stack(
        StackName="clinic", TemplateBody=template(), Capabilities=["CAPABILITY_IAM"]
    )
    aws["functions"].create_alias(FunctionName=NAME, Name="live", FunctionVersion="1")
    return aws


def said(findings: list[Finding], level: Level) -> list[str]:
    return [finding.text for finding in findings if finding.level is level]


def another_version(aws: dict[str, Any], **changed: Any) -> str:
    """A version that somebody made by hand, with other settings."""
    functions = aws["functions"]
    functions.update_function_configuration(FunctionName=NAME, **{"Timeout": 59, **changed})
    version: str = functions.publish_version(FunctionName=NAME)["Version"]
    return version


def test_a_deployed_function_is_what_its_template_says(deployed: dict[str, Any]) -> None:
    findings = stack_findings("clinic", **deployed)
    assert [finding.level for finding in findings] == [Level.GOOD] * 4
    assert said(findings, Level.GOOD) == [
        "CREATE_COMPLETE",
        "live is the stack's version 1",
        "Active",
        "image, sizes and settings are the template's",
    ]
    assert findings[1].subject == f"clinic function {NAME}"


def test_an_alias_that_went_back_is_found_out(
    deployed: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    version = another_version(deployed, MemorySize=1024)
    deployed["functions"].update_alias(FunctionName=NAME, Name="live", FunctionVersion=version)
    findings = stack_findings("clinic", **deployed)
    moved, settings = said(findings, Level.FAULT)
    assert moved.startswith(f"live is version {version}, and the stack's is 1: a shift was rolled")
    assert "MemorySize is 1024 and the template says 1769" in settings
    fixes = [finding.fix for finding in findings if finding.level is Level.FAULT]
    assert f"update-alias --function-name {NAME} --name live --function-version 1" in fixes[0]
    # By itself it meets moto's CloudFormation, which does not tell the stack's version.
    assert verify(["clinic"], region="us-east-1") == 1
    out = capsys.readouterr().out
    assert "the stack's could not be told" in out
    assert "1 stack on AWS: 1 faults" in out


def test_a_shift_that_is_half_done_is_neither_good_nor_a_fault(deployed: dict[str, Any]) -> None:
    version = another_version(deployed)
    deployed["functions"].update_alias(
        FunctionName=NAME,
        Name="live",
        FunctionVersion="1",
        RoutingConfig={"AdditionalVersionWeights": {version: 0.1}},
    )
    findings = stack_findings("clinic", **deployed)
    assert said(findings, Level.FAULT) == []
    (text,) = said(findings, Level.UNKNOWN)
    assert text.startswith(f"live sends 10 % to version {version} and the rest to version 1")


def test_what_differs_is_named_and_no_value_of_a_variable_is_shown(aws: dict[str, Any]) -> None:
    aws["cloudformation"].create_stack(
        StackName="clinic", TemplateBody=template(alias=False), Capabilities=["CAPABILITY_IAM"]
    )
    aws["functions"].update_function_configuration(
        FunctionName=NAME,
        Timeout=30,
        Environment={"Variables": {"DR_LOG_LEVEL": "a-secret", "DR_MODEL_URL": "s3://models/a"}},
    )
    (text,) = said(stack_findings("clinic", **aws), Level.FAULT)
    assert "Timeout is 30 and the template says 60" in text
    assert "Environment.Variables.DR_LOG_LEVEL is not what the template says" in text
    assert "a-secret" not in text


def test_a_function_that_is_gone_is_found_out(deployed: dict[str, Any]) -> None:
    deployed["functions"].delete_function(FunctionName=NAME)
    (text,) = said(stack_findings("clinic", **deployed), Level.FAULT)
    assert text == "is not there any more, or its alias is not"


def test_a_function_of_source_code_is_no_endpoint(aws: dict[str, Any]) -> None:
    """Helpers of a stack, as the probe, are not what patients' photographs are sent to."""
    body = json.loads(template(alias=False))
    properties = body["Resources"]["Function"]["Properties"]
    del properties["PackageType"]
    properties |= {"Code": {"ZipFile": "x = 1"}, "Handler": "index.x", "Runtime": "python3.13"}
    body["Resources"]["Other"] = {
        "Type": "AWS::Lambda::Function",
        "Properties": json.loads(template(alias=False))["Resources"]["Function"]["Properties"]
        | {"FunctionName": "grader"},
    }
    aws["cloudformation"].create_stack(
        StackName="clinic", TemplateBody=json.dumps(body), Capabilities=["CAPABILITY_IAM"]
    )
    findings = stack_findings("clinic", **aws)
    assert {finding.subject for finding in findings} == {"clinic", "clinic function grader"}
