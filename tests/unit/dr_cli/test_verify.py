"""`dr verify`: an endpoint that fell back to its old configuration is found out."""

import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws

from dr_cli.errors import CommandError
from dr_cli.findings import Finding, Level, fault
from dr_cli.verify import stack_findings, verify

ROLE = "arn:aws:iam::123456789012:role/endpoint"
IMAGE = f"123456789012.dkr.ecr.us-east-1.amazonaws.com/dr@sha256:{'12' * 32}"


def template(memory_mib: int = 2048) -> dict[str, Any]:
    return {
        "Resources": {
            "Model": {
                "Type": "AWS::SageMaker::Model",
                "Properties": {
                    "ExecutionRoleArn": ROLE,
                    "PrimaryContainer": {"Image": IMAGE},
                },
            },
            "Config": {
                "Type": "AWS::SageMaker::EndpointConfig",
                "Properties": {
                    "ProductionVariants": [
                        {
                            "VariantName": "AllTraffic",
                            "ModelName": {"Fn::GetAtt": ["Model", "ModelName"]},
                            "InitialVariantWeight": 1,
                            "ServerlessConfig": {
                                "MaxConcurrency": 5,
                                "MemorySizeInMB": memory_mib,
                            },
                        }
                    ]
                },
            },
            "Endpoint": {
                "Type": "AWS::SageMaker::Endpoint",
                "Properties": {
                    "EndpointConfigName": {"Fn::GetAtt": ["Config", "EndpointConfigName"]}
                },
            },
        }
    }


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with mock_aws():
        yield {
            name: boto3.client(name.replace("functions", "lambda"), region_name="us-east-1")
            for name in ("cloudformation", "sagemaker", "functions")
        }


@pytest.fixture
def endpoint(aws: dict[str, Any]) -> str:
    """A stack `clinic` with an endpoint; its name."""
    body = json.dumps(template())
    aws["cloudformation"].create_stack(StackName="clinic", TemplateBody=body)
    (found,) = aws["sagemaker"].list_endpoints()["Endpoints"]
    return str(found["EndpointName"])


def faults(findings: list[Finding]) -> list[str]:
    return [finding.text for finding in findings if finding.level is Level.FAULT]


def another_config(aws: dict[str, Any], *, memory_mib: int = 1024) -> str:
    """A configuration that the stack does not know, as it was before an update."""
    (model,) = aws["sagemaker"].list_models()["Models"]
    aws["sagemaker"].create_endpoint_config(
        EndpointConfigName="before",
        ProductionVariants=[
            {
                "VariantName": "AllTraffic",
                "ModelName": model["ModelName"],
                "ServerlessConfig": {"MaxConcurrency": 5, "MemorySizeInMB": memory_mib},
            }
        ],
    )
    return "before"


def test_a_deployed_stack_is_what_its_template_says(aws: dict[str, Any], endpoint: str) -> None:
    findings = stack_findings("clinic", **aws)
    assert faults(findings) == []
    said = [finding.text for finding in findings]
    assert said[:2] == ["CREATE_COMPLETE", "InService"]
    assert said[-1] == "sizes are the template's"
    assert all(finding.level is Level.GOOD for finding in findings)


def test_an_endpoint_on_its_old_configuration_is_found_out(
    aws: dict[str, Any], endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # moto cannot update an endpoint; the same name on another configuration is what is seen.
    aws["sagemaker"].delete_endpoint(EndpointName=endpoint)
    aws["sagemaker"].create_endpoint(EndpointName=endpoint, EndpointConfigName=another_config(aws))
    (status,) = {it["EndpointStatus"] for it in aws["sagemaker"].list_endpoints()["Endpoints"]}
    assert status == "InService"
    findings = stack_findings("clinic", **aws)
    (said,) = faults(findings)
    assert "serves the configuration before, and the stack's is" in said
    (fix,) = (finding.fix for finding in findings if finding.level is Level.FAULT)
    assert f"aws sagemaker update-endpoint --endpoint-name {endpoint}" in fix
    assert verify(["clinic"], region="us-east-1") == 1
    out = capsys.readouterr().out
    assert "✗" in out
    assert "1 stack on AWS: 1 faults" in out


def test_sizes_that_are_not_the_templates_are_found_out(aws: dict[str, Any], endpoint: str) -> None:
    """Somebody deleted the stack's configuration and made another of the same name."""
    sagemaker = aws["sagemaker"]
    name = sagemaker.describe_endpoint(EndpointName=endpoint)["EndpointConfigName"]
    config = sagemaker.describe_endpoint_config(EndpointConfigName=name)
    (variant,) = config["ProductionVariants"]
    variant["ServerlessConfig"]["MemorySizeInMB"] = 1024
    sagemaker.delete_endpoint_config(EndpointConfigName=name)
    sagemaker.create_endpoint_config(EndpointConfigName=name, ProductionVariants=[variant])
    (said,) = faults(stack_findings("clinic", **aws))
    assert said == "ServerlessConfig.MemorySizeInMB is 1024 and the template says 2048"


def test_an_endpoint_that_is_gone_and_one_that_failed_are_found_out(
    aws: dict[str, Any], endpoint: str
) -> None:
    aws["sagemaker"].delete_endpoint(EndpointName=endpoint)
    (said,) = faults(stack_findings("clinic", **aws))
    assert said == "is not there any more"


def test_a_template_in_yaml_is_read_as_well(aws: dict[str, Any]) -> None:
    """The CDK command line sends small templates as YAML."""
    import yaml

    aws["cloudformation"].create_stack(
        StackName="clinic", TemplateBody=yaml.safe_dump(template(4096))
    )
    findings = stack_findings("clinic", **aws)
    assert findings[-1].text == "sizes are the template's"


@pytest.mark.parametrize(
    ("stack", "words"),
    [("nowhere", "there is no stack nowhere"), ("bucket", "has no endpoint to compare")],
)
def test_a_stack_without_an_endpoint_is_a_mistake(
    aws: dict[str, Any], stack: str, words: str
) -> None:
    body = {"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}}
    aws["cloudformation"].create_stack(StackName="bucket", TemplateBody=json.dumps(body))
    with pytest.raises(CommandError, match=words):
        stack_findings(stack, **aws)


def test_a_stack_that_was_rolled_back_is_a_fault(aws: dict[str, Any], endpoint: str) -> None:
    from dr_cli.verify import _status_finding

    for status in ("UPDATE_ROLLBACK_COMPLETE", "CREATE_FAILED", "ROLLBACK_COMPLETE"):
        finding = _status_finding("clinic", status, None)
        assert finding.level is Level.FAULT
        assert "describe-stack-events" in finding.fix
    assert _status_finding("clinic", "UPDATE_IN_PROGRESS", None).level is Level.UNKNOWN


def test_a_fault_without_a_fix_cannot_be_said() -> None:
    with pytest.raises(ValueError, match="needs its fix"):
        fault("clinic", "is broken", fix="")
