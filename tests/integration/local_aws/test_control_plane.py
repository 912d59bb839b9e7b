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

    def arns(self) -> list[str]:
        """Model, configuration and endpoint."""
        endpoint = self.sagemaker.describe_endpoint(EndpointName=self.name)
        config = self.sagemaker.describe_endpoint_config(
            EndpointConfigName=endpoint["EndpointConfigName"]
        )
        (variant,) = config["ProductionVariants"]
        model = self.sagemaker.describe_model(ModelName=variant["ModelName"])
        return [model["ModelArn"], config["EndpointConfigArn"], endpoint["EndpointArn"]]

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


def test_a_change_of_tags_alone_keeps_everything_but_the_tags(stack: Stack, local: LocalAws):
    stack.create()
    before = stack.deployed()
    changes = (local.state_dir / "changes").stat().st_size
    for tags in ({"owner": "ana"}, {"owner": "ben", "cost": "7"}, {}):
        stack.update(tags=tags)
        assert stack.deployed() == before
        wanted = [{"Key": key, "Value": value} for key, value in tags.items()]
        for arn in stack.arns():
            assert stack.sagemaker.list_tags(ResourceArn=arn)["Tags"] == wanted
    assert (local.state_dir / "changes").stat().st_size == changes


def test_a_change_of_tags_and_model_still_replaces(stack: Stack):
    stack.create(tags={"owner": "ana"})
    before = stack.deployed()
    stack.update(tags={"owner": "ben"}, key="other")
    after = stack.deployed()
    assert after["variant"]["ModelName"] != before["variant"]["ModelName"]
    assert after["config"] != before["config"]
    assert after["container"]["ModelDataUrl"] == "s3://models/other"
    stack.update(tags={"owner": "ana"}, key="other")
    assert stack.deployed() == after


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


def test_tagged_bucket_and_log_group_are_kept_and_go_with_their_stack(local: LocalAws):
    cloudformation, s3, logs = (local.client(name) for name in ("cloudformation", "s3", "logs"))

    def groups() -> list[dict[str, Any]]:
        return logs.describe_log_groups(logGroupNamePrefix="/tagged")["logGroups"]

    def buckets() -> list[str]:
        return [row["Name"] for row in s3.list_buckets()["Buckets"] if "tagged" in row["Name"]]

    cloudformation.create_stack(StackName="tagged", TemplateBody=storage(owner="ana"))
    (bucket,) = buckets()
    cloudformation.update_stack(StackName="tagged", TemplateBody=storage(owner="ben"))
    assert buckets() == [bucket]
    assert s3.get_bucket_tagging(Bucket=bucket)["TagSet"] == [{"Key": "owner", "Value": "ben"}]
    assert len(groups()) == 1
    described = cloudformation.describe_stacks(StackName="tagged")["Stacks"][0]
    cloudformation.delete_stack(StackName="tagged")
    # What the CDK command asks while it waits for the end.
    deleted = cloudformation.describe_stacks(StackName=described["StackId"])["Stacks"][0]
    cloudformation.describe_stack_resources(StackName=described["StackId"])
    assert deleted["StackStatus"] == "DELETE_COMPLETE"
    assert deleted["Outputs"] == described["Outputs"]
    assert buckets() == []
    assert groups() == []


def test_a_stack_whose_exports_are_imported_cannot_be_deleted(local: LocalAws):
    cloudformation = local.client("cloudformation")
    cloudformation.create_stack(StackName="tagged", TemplateBody=storage(owner="ana"))
    importing = {
        "Resources": {
            "Logs": {
                "Type": "AWS::Logs::LogGroup",
                "Properties": {
                    "LogGroupName": {"Fn::Join": ["", ["/", {"Fn::ImportValue": "tagged:Bucket"}]]}
                },
            }
        }
    }
    for name in ("user-b", "user-a"):
        importing["Resources"]["Logs"]["Properties"]["LogGroupName"]["Fn::Join"][0] = name
        cloudformation.create_stack(StackName=name, TemplateBody=json.dumps(importing))
    stack_id = cloudformation.describe_stacks(StackName="tagged")["Stacks"][0]["StackId"]
    for name in ("tagged", stack_id):
        with pytest.raises(
            botocore.exceptions.ClientError,
            match="Export tagged:Bucket cannot be deleted as it is in use by user-a and user-b",
        ):
            cloudformation.delete_stack(StackName=name)
    found = cloudformation.describe_stacks(StackName="tagged")["Stacks"][0]
    assert found["StackStatus"] == "CREATE_COMPLETE"
    for name in ("user-a", "user-b", "tagged"):
        cloudformation.delete_stack(StackName=name)
    with pytest.raises(botocore.exceptions.ClientError, match="does not exist"):
        cloudformation.describe_stacks(StackName="tagged")


def storage(*, owner: str) -> str:
    """A bucket and a log group with a tag, and an export of the bucket's name."""
    tags = [{"Key": "owner", "Value": owner}]
    name = {"Ref": "Bucket"}
    return json.dumps(
        {
            "Resources": {
                "Bucket": {"Type": "AWS::S3::Bucket", "Properties": {"Tags": tags}},
                "Logs": {
                    "Type": "AWS::Logs::LogGroup",
                    "Properties": {"LogGroupName": "/tagged", "Tags": tags},
                },
            },
            "Outputs": {"Bucket": {"Value": name, "Export": {"Name": "tagged:Bucket"}}},
        }
    )


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
