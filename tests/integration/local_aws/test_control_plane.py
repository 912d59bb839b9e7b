"""What our control plane does where moto alone does something else."""

import json
from typing import Any

import boto3
import botocore.exceptions
import pytest

from dr_local.lifecycle import LocalAws
from tests.integration.local_aws.endpoints import realtime, serverless, template


class Stack:
    """A CloudFormation stack with one endpoint, named like it."""

    def __init__(self, local: LocalAws, name: str) -> None:
        self.name = name
        self.cloudformation = local.client("cloudformation")
        self.sagemaker = local.client("sagemaker")

    def body(self, **what: Any) -> str:
        return template(
            name=what.pop("endpoint_name", self.name),
            model_data_url=f"s3://models/{what.pop('key', 'a')}",
            variant=what.pop("variant", serverless()),
            **what,
        )

    def create(self, **what: Any) -> None:
        self.cloudformation.create_stack(StackName=self.name, TemplateBody=self.body(**what))

    def update(self, **what: Any) -> None:
        self.cloudformation.update_stack(StackName=self.name, TemplateBody=self.body(**what))

    def deployed(self) -> dict[str, Any]:
        endpoint = self.sagemaker.describe_endpoint(EndpointName=self.name)
        config = self.sagemaker.describe_endpoint_config(
            EndpointConfigName=endpoint["EndpointConfigName"]
        )
        (variant,) = config["ProductionVariants"]
        model = self.sagemaker.describe_model(ModelName=variant["ModelName"])
        return {
            "created": endpoint["CreationTime"],
            "arn": endpoint["EndpointArn"],
            "config": endpoint["EndpointConfigName"],
            "variant": variant,
            "container": model["PrimaryContainer"],
        }

    def owned(self, kind: str) -> list[str]:
        rows = getattr(self.sagemaker, f"list_{kind}s")(MaxResults=100)
        return [
            name
            for row in next(value for value in rows.values() if isinstance(value, list))
            for key, name in row.items()
            if key.endswith("Name") and name.startswith(f"{self.name}-")
        ]


@pytest.fixture
def stack(local: LocalAws, request: pytest.FixtureRequest):
    made = Stack(local, f"dr-{request.node.name.replace('_', '-')}"[:50].strip("-"))
    yield made
    made.cloudformation.delete_stack(StackName=made.name)


def test_the_endpoint_has_the_name_that_the_template_gives(stack: Stack):
    stack.create()
    assert stack.deployed()["arn"].endswith(f":endpoint/{stack.name}")


def test_a_taken_endpoint_name_is_refused(stack: Stack, local: LocalAws):
    stack.create()
    other = Stack(local, f"{stack.name}-other")
    with pytest.raises(botocore.exceptions.ClientError, match="already existing endpoint"):
        other.create(endpoint_name=stack.name)
    other.cloudformation.delete_stack(StackName=other.name)
    assert stack.deployed()


@pytest.mark.parametrize("instance_type", ["ml.c7g.xlarge", "ml.m8g.xlarge", "ml.m5.xlarge"])
def test_instance_types_of_the_service_model_are_accepted(stack: Stack, instance_type: str):
    stack.create(variant=realtime(instance_type=instance_type))
    assert stack.deployed()["variant"]["InstanceType"] == instance_type


def test_an_invented_instance_type_is_refused(stack: Stack):
    with pytest.raises(botocore.exceptions.ClientError, match="instanceType"):
        stack.create(variant=realtime(instance_type="ml.z99.huge"))


def test_environment_and_serverless_settings_are_kept(stack: Stack):
    stack.create(environment={"A": "1"}, variant=serverless(memory_mib=3072, max_concurrency=7))
    deployed = stack.deployed()
    assert deployed["container"]["Environment"] == {"A": "1"}
    assert deployed["variant"]["ServerlessConfig"] == {"MemorySizeInMB": 3072, "MaxConcurrency": 7}


@pytest.mark.parametrize("suffixes", [("", "", ""), ("A", "B", "A")], ids=["same ids", "hash ids"])
def test_updates_reach_the_endpoint_which_stays(stack: Stack, suffixes: tuple[str, ...]):
    stack.create(key="first", suffix=suffixes[0])
    first = stack.deployed()
    for key, suffix in (("second", suffixes[1]), ("first", suffixes[2])):
        before = stack.deployed()
        stack.update(key=key, suffix=suffix)
        after = stack.deployed()
        assert after["container"]["ModelDataUrl"] == f"s3://models/{key}"
        assert after["config"] != before["config"]
        assert (after["arn"], after["created"]) == (first["arn"], first["created"])
        # What was replaced has gone, and can be.
        assert len(stack.owned("model")) == 1
        assert stack.owned("endpoint_config") == [after["config"]]


def test_a_change_of_memory_alone_replaces_the_config(stack: Stack):
    stack.create(variant=serverless(memory_mib=1024))
    before = stack.deployed()
    stack.update(variant=serverless(memory_mib=2048))
    after = stack.deployed()
    assert after["config"] != before["config"]
    assert after["variant"]["ServerlessConfig"]["MemorySizeInMB"] == 2048
    assert after["variant"]["ModelName"] == before["variant"]["ModelName"]


def test_deleting_the_stack_leaves_nothing(stack: Stack):
    stack.create()
    stack.update(key="other")
    stack.cloudformation.delete_stack(StackName=stack.name)
    assert not stack.owned("model")
    assert not stack.owned("endpoint_config")
    with pytest.raises(botocore.exceptions.ClientError, match="Could not find endpoint"):
        stack.sagemaker.describe_endpoint(EndpointName=stack.name)


def test_each_change_is_noted_for_the_runtime(stack: Stack, local: LocalAws):
    changes = local.state_dir / "changes"
    sizes = [changes.stat().st_size]
    for act in (stack.create, lambda: stack.update(key="other")):
        act()
        sizes.append(changes.stat().st_size)
    assert sizes == sorted(set(sizes))


def test_the_control_plane_does_not_pretend_to_run_endpoints(local: LocalAws):
    runtime = boto3.session.Session(
        aws_access_key_id="t", aws_secret_access_key="t", region_name="us-east-1"
    ).client("sagemaker-runtime", endpoint_url=local.endpoint_url)
    with pytest.raises(botocore.exceptions.ClientError, match="send invocations to the local"):
        runtime.invoke_endpoint(EndpointName="any", Body=json.dumps({}))
    runtime.close()
