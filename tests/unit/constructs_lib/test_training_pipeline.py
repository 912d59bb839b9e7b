"""The construct: what it defines, what it refuses in one message, and what it leaves to tokens."""

import re
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sns as sns

from constructs_lib import (
    AlarmOptions,
    GateThresholds,
    InferenceImage,
    InferenceImageRepo,
    ModelArtifactBucket,
    ServerlessDREndpoint,
    ValidationError,
)
from constructs_lib.training_pipeline import _KINDS
from tests.constructs_fixtures import (
    REGION,
    a_repo,
    an_artifact,
    an_image,
    make_context,
    manifest_of,
    new_stack,
    only,
    resources,
    statements,
    template_of,
    warnings_in,
)
from tests.state_machines import definition_of
from tests.training_fixtures import a_pipeline, training_image

NOTHING_OF_OURS = {1, 2}
KMS = "arn:aws:kms:eu-west-1:123456789012:key"


def refused(stack: cdk.Stack, **props: Any) -> list[str]:
    with pytest.raises(ValidationError) as error:
        a_pipeline(stack, **props)
    assert error.value.subject == "DRTrainingPipeline Stack/Training"
    return list(error.value.faults)


def states(stack: cdk.Stack) -> dict[str, Any]:
    found: dict[str, Any] = definition_of(template_of(stack))["States"]
    return found


def a_vpc(stack: cdk.Stack, *, public: bool = False) -> ec2.IVpc:
    kind = "public" if public else "private"
    return ec2.Vpc.from_vpc_attributes(
        stack,
        "Vpc",
        vpc_id="vpc-1",
        availability_zones=["eu-west-1a"],
        **{f"{kind}_subnet_ids": ["subnet-a"]},
    )


# --- What is refused ------------------------------------------------------------------------------


def test_every_value_of_another_kind_is_named_in_one_message() -> None:
    stack = new_stack()
    # A whole number is of no kind that is listed, and judged with the bounds.
    faults = refused(stack, **dict.fromkeys(_KINDS, NOTHING_OF_OURS))
    assert sorted(fault.partition(" ")[0] for fault in faults) == sorted(_KINDS)
    assert all(" must be " in fault and "; got " in fault for fault in faults)


def test_every_fault_is_in_one_message() -> None:
    stack = new_stack()
    key = kms.Key.from_key_arn(stack, "Key", f"{KMS}/a")
    faults = refused(
        stack,
        image=training_image(runtime="litert", architecture="arm64", region="us-east-1"),
        package_id="a/b",
        hyperparameters={"epoch": 3},
        preparation={"size": 1},
        gate=GateThresholds(min_sensitivity=85, min_specificity=0.7, min_kappa=0.6),
        training_instance_type="ml.g5.xlarge",
        training_instance_count=0,
        training_volume_gb=0,
        training_max_runtime_s=29 * 86_400,
        training_max_wait_s=0,
        processing_instance_type="ml.r5d.large",
        processing_volume_gb=16_385,
        processing_max_runtime_s=0,
        encryption_key=key,
        security_groups=[ec2.SecurityGroup.from_security_group_id(stack, "G", "sg-1")],
        auto_delete_objects=True,
        photographs_prefix="s3://photographs/clinic",
        pipeline_name="Clinic",
        tags={"aws:mine": "x"},
        model_package_group_name="my_group",
        keep_runs_days=3,
    )
    named = [fault.partition(" ")[0] for fault in faults]
    assert sorted(named) == sorted(
        [
            *("image", "image", "image", "package_id", "hyperparameters", "hyperparameters"),
            *("preparation", "gate.min_sensitivity", "training_instance_type"),
            *("training_instance_count", "training_volume_gb", "training_max_runtime_s"),
            *("training_max_wait_s", "processing_instance_type", "processing_volume_gb"),
            *("processing_max_runtime_s", "security_groups", "auto_delete_objects"),
            *("photographs_prefix", "pipeline_name", "tags"),
            # The second one: a bucket and a group are given, so nothing is made.
            *("auto_delete_objects", "model_package_group_name", "keep_runs_days"),
        ]
    )


def test_two_pipelines_of_a_name_are_one_too_many() -> None:
    stack = new_stack()
    a_pipeline(stack, "First")
    (machine,) = refused(stack)
    assert machine.startswith("pipeline_name must be unique, and another Step Functions")
    a_pipeline(stack, "Second", pipeline_name="another")


def test_an_endpoint_may_have_the_name_of_a_pipeline() -> None:
    """Their names are of other services, and those of their alarms end in other words."""
    stack = new_stack()
    a_pipeline(stack)
    ServerlessDREndpoint(
        stack,
        "Endpoint",
        model=an_artifact(stack),
        image=an_image(),
        memory_mib=2048,
        endpoint_name="dr-clinic",
        alarms=AlarmOptions(),
    )
    found = resources(template_of(stack), "AWS::CloudWatch::Alarm").values()
    names = [it["Properties"]["AlarmName"] for it in found]
    assert len(names) > 2
    assert len(set(names)) == len(names)
    assert all(name.startswith("dr-clinic-") for name in names)


def test_what_is_elsewhere_is_said() -> None:
    stack = new_stack()
    there = cdk.Stack(
        stack.node.root,
        "There",
        env=cdk.Environment(account="123456789012", region="us-east-1"),
    )
    bucket = s3.Bucket(there, "Bucket", bucket_name="there")
    faults = refused(stack, photographs=bucket, runs_bucket=bucket)
    assert faults == [
        f"{name} must be in the stack's region, {REGION}, where the jobs look for it; got us-east-1"
        for name in ("photographs", "runs_bucket")
    ]


def test_a_wait_that_cannot_be_computed_is_asked_for() -> None:
    stack = new_stack()
    seconds = cdk.Token.as_number(cdk.CfnParameter(stack, "Seconds", type="Number"))
    (fault,) = refused(stack, training_max_runtime_s=seconds)
    assert fault.startswith("training_max_wait_s must be given where only the deployment knows")


def test_what_is_for_nothing_is_refused() -> None:
    (fault,) = refused(
        new_stack(),
        model_package_group_name="theirs",
        removal_policy=cdk.RemovalPolicy.DESTROY,
    )
    assert fault.startswith("removal_policy is for what is made here, and nothing is")


# --- What is left to tokens -----------------------------------------------------------------------


def test_tokens_are_passed_on_and_not_judged() -> None:
    stack = new_stack(env=None)

    def text(name: str) -> str:
        return cdk.CfnParameter(stack, name).value_as_string

    def number(name: str) -> float:
        return cdk.Token.as_number(cdk.CfnParameter(stack, name, type="Number"))

    a_pipeline(
        stack,
        package_id=text("Package"),
        hyperparameters={"network": text("Network"), "epochs": number("Epochs")},
        training_instance_type=text("Type"),
        training_instance_count=number("Hosts"),
        training_volume_gb=number("Volume"),
        training_max_runtime_s=number("Runtime"),
        training_max_wait_s=number("Wait"),
        processing_instance_type=text("Other"),
        processing_volume_gb=number("OtherVolume"),
        processing_max_runtime_s=number("OtherRuntime"),
        photographs_prefix=text("Prefix"),
        pipeline_name=text("Name"),
        gate=GateThresholds(
            min_sensitivity=number("Sensitivity"), min_specificity=0.7, min_kappa=0.6
        ),
        encryption_key=kms.Key.from_key_arn(stack, "Key", f"{KMS}/a"),
    )
    _, machine = only(template_of(stack), "AWS::StepFunctions::StateMachine")
    _, parts = machine["Properties"]["DefinitionString"]["Fn::Join"]
    referred = {part["Ref"] for part in parts if isinstance(part, dict) and "Ref" in part}
    assert {"Network", "Epochs", "Type", "Hosts", "Runtime", "Wait", "Name", "Sensitivity"} <= (
        referred
    )
    written = "".join(part for part in parts if isinstance(part, str))
    # Numbers stay numbers, each in its field, and what cannot be added up is left out.
    fields = {
        "Hosts": {"InstanceCount"},
        "Volume": {"VolumeSizeInGB"},
        "Runtime": {"MaxRuntimeInSeconds"},
        "Wait": {"MaxWaitTimeInSeconds"},
        "OtherVolume": {"VolumeSizeInGB"},
        "OtherRuntime": {"MaxRuntimeInSeconds"},
    }
    found: dict[str, set[str]] = {name: set() for name in fields}
    for before, part, after in zip(parts, parts[1:], parts[2:], strict=False):
        if isinstance(part, dict) and part.get("Ref") in fields:
            field = re.search(r'"(\w+)":\Z', before)
            assert field is not None, before[-40:]
            assert after[0] in ",}"
            found[part["Ref"]].add(field.group(1))
    assert found == fields
    assert "TimeoutSeconds" not in written
    # Who may be several is treated as several.
    assert '"EnableInterContainerTrafficEncryption":true' in written


# --- What is defined ------------------------------------------------------------------------------


def test_it_defines_what_it_says() -> None:
    stack = new_stack()
    pipeline = a_pipeline(stack, runs_bucket=None)
    template = template_of(stack)
    _, machine = only(template, "AWS::StepFunctions::StateMachine")
    assert machine["Properties"]["StateMachineName"] == "dr-clinic"
    assert machine["Properties"]["TracingConfiguration"] == {"Enabled": True}
    assert machine["Properties"]["LoggingConfiguration"]["Level"] == "ALL"
    assert len(resources(template, "AWS::IAM::Role")) == 3
    _, group = only(template, "AWS::SageMaker::ModelPackageGroup")
    assert group["Properties"]["ModelPackageGroupName"] == "dr-clinic"
    _, log = only(template, "AWS::Logs::LogGroup")
    assert log["Properties"]["LogGroupName"] == "/aws/vendedlogs/states/dr-clinic"
    assert log["Properties"]["RetentionInDays"] == 30
    assert log["DeletionPolicy"] == "Delete"
    (output,) = template["Outputs"].values()
    assert output["Value"] == {"Ref": next(iter(resources(template, machine["Type"])))}
    assert pipeline.model_package_group_name == pipeline.pipeline_name == "dr-clinic"
    # The bucket and the group outlive the stack, and the code is a file of the assembly.
    # The group has a name of ours: one that a failed first deployment left would block the next.
    assert group["DeletionPolicy"] == "RetainExceptOnCreate"
    assert group["UpdateReplacePolicy"] == "Retain"
    buckets = resources(template, "AWS::S3::Bucket")
    assert {bucket["DeletionPolicy"] for bucket in buckets.values()} == {"Retain"}
    packaged = [it["source"] for it in manifest_of(stack)["files"].values()]
    assert [it for it in packaged if it["path"].endswith(".zip")]


def test_removal_leaves_nothing_where_it_is_asked_for() -> None:
    stack = new_stack()
    a_pipeline(
        stack,
        runs_bucket=None,
        removal_policy=cdk.RemovalPolicy.DESTROY,
        auto_delete_objects=True,
    )
    template = template_of(stack)
    kept = [
        name
        for name, resource in template["Resources"].items()
        if resource.get("DeletionPolicy", "Delete") != "Delete"
    ]
    assert kept == []
    assert len(resources(template, "Custom::S3AutoDeleteObjects")) == 2


def test_a_group_that_is_there_is_used() -> None:
    stack = new_stack()
    a_pipeline(stack, model_package_group_name="theirs")
    template = template_of(stack)
    assert resources(template, "AWS::SageMaker::ModelPackageGroup") == {}
    register = states(stack)["Register"]["Parameters"]
    assert register["ModelPackageGroupName"] == "theirs"


def test_a_bucket_of_a_training_keeps_no_version_that_was_replaced() -> None:
    stack = new_stack()
    a_pipeline(stack, runs_bucket=None)
    (rules,) = rules_of_versioned_buckets(stack)
    assert {"NoncurrentDays": 1} in [it.get("NoncurrentVersionExpiration") for it in rules]
    assert not any("ExpirationInDays" in it for it in rules)


def test_runs_are_kept_as_long_as_was_asked_for_and_so_are_their_versions() -> None:
    stack = new_stack()
    a_pipeline(stack, runs_bucket=None, keep_runs_days=30)
    (rules,) = rules_of_versioned_buckets(stack)
    (expiring,) = (it for it in rules if "ExpirationInDays" in it)
    assert expiring == {
        "ExpirationInDays": 30,
        "Prefix": "runs/dr-clinic/",
        "Status": "Enabled",
    }
    # What expires in a versioned bucket is there as a version still, and its mark after it.
    assert {"NoncurrentDays": 1} in [it.get("NoncurrentVersionExpiration") for it in rules]
    assert any(it.get("ExpiredObjectDeleteMarker") for it in rules)


def rules_of_versioned_buckets(stack: cdk.Stack) -> list[list[dict[str, Any]]]:
    """Lifecycle rules of each; the bucket of access logs has no versions."""
    return [
        it["Properties"]["LifecycleConfiguration"]["Rules"]
        for it in resources(template_of(stack), "AWS::S3::Bucket").values()
        if "VersioningConfiguration" in it["Properties"]
    ]


def test_runs_are_kept_for_as_long_as_an_execution_may_take() -> None:
    # 2 days with the wait, 3 jobs of 4 hours, and 2 hours around each of 4: not 3 days.
    a_pipeline(new_stack(), runs_bucket=None, keep_runs_days=3)
    (fault,) = refused(new_stack(), runs_bucket=None, keep_runs_days=2)
    assert fault.startswith("keep_runs_days must be a whole number of at least 3, because an exec")
    (fault,) = refused(new_stack(), keep_runs_days=30)
    assert fault.startswith("keep_runs_days is for the bucket that is made here")


@pytest.mark.parametrize("count", [49, 50])
def test_a_job_has_room_for_the_tag_of_who_started_it(count: int) -> None:
    tags = {f"A{number}": "" for number in range(count)}
    if count < 50:
        a_pipeline(new_stack(), tags=tags)
    else:
        (fault,) = refused(new_stack(), tags=tags)
        assert fault.startswith("tags must be at most 49, because AWS adds 1 of its own; got 50")


def test_a_name_comes_from_the_path() -> None:
    stack = new_stack()
    pipeline = a_pipeline(stack, pipeline_name=None)
    assert pipeline.pipeline_name.startswith("stack-training-")
    assert pipeline.pipeline_name == pipeline.pipeline_name.lower()
    assert len(pipeline.pipeline_name) <= 42


@pytest.mark.parametrize("hosts", [1, 2])
def test_hosts_reach_each_other_only_where_there_are_several(hosts: int) -> None:
    stack = new_stack()
    a_pipeline(stack, vpc=a_vpc(stack), training_instance_count=hosts)
    template = template_of(stack)
    ingress = resources(template, "AWS::EC2::SecurityGroupIngress")
    allowed = {
        (it["Properties"]["IpProtocol"], it["Properties"].get("FromPort"))
        for it in ingress.values()
    }
    assert allowed == ({("tcp", 2222), ("udp", 500), ("50", None)} if hosts > 1 else set())
    for rule in ingress.values():
        properties = rule["Properties"]
        assert properties["GroupId"] == properties["SourceSecurityGroupId"]
    train = states(stack)["Train"]["Parameters"]
    assert train["EnableInterContainerTrafficEncryption"] is (hosts > 1)
    assert train["EnableNetworkIsolation"] is True
    assert train["VpcConfig"]["Subnets"] == ["subnet-a"]
    for step in ("Prepare", "Gate", "Pack"):
        network = states(stack)[step]["Parameters"]["NetworkConfig"]
        assert network["EnableNetworkIsolation"] is True
        assert network["VpcConfig"] == train["VpcConfig"]


def test_groups_of_ones_own_are_taken() -> None:
    stack = new_stack()
    a_pipeline(
        stack,
        vpc=a_vpc(stack),
        security_groups=[ec2.SecurityGroup.from_security_group_id(stack, "G", "sg-ours")],
        network_isolation=False,
        training_instance_count=2,
    )
    assert resources(template_of(stack), "AWS::EC2::SecurityGroup") == {}
    train = states(stack)["Train"]["Parameters"]
    assert train["VpcConfig"]["SecurityGroupIds"] == ["sg-ours"]
    assert train["EnableNetworkIsolation"] is False


def test_public_subnets_are_warned_of() -> None:
    stack = new_stack()
    a_pipeline(
        stack,
        vpc=a_vpc(stack, public=True),
        vpc_subnets=ec2.SubnetSelection(subnet_type=ec2.SubnetType.PUBLIC),
    )
    assert any("the jobs are in public subnets" in text for text in warnings_in(stack))


def test_who_trains_without_a_network_is_told_what_weights_that_means() -> None:
    def warned(**props: Any) -> bool:
        stack = new_stack()
        a_pipeline(stack, **props)
        return any("trains from random ones" in text for text in warnings_in(stack))

    random = {"network": "mobilenet", "weights": "random"}
    assert warned()
    assert not warned(hyperparameters=random)
    assert not warned(network_isolation=False)
    imagenet = {"network": "mobilenet", "weights": "imagenet"}
    a_pipeline(new_stack(), hyperparameters=imagenet, network_isolation=False)
    (fault,) = refused(new_stack(), hyperparameters=imagenet)
    assert fault.startswith("hyperparameters['weights'] must not be imagenet with network_isol")


def test_instances_on_demand_wait_for_nothing() -> None:
    stack = new_stack()
    a_pipeline(stack, spot=False, training_max_runtime_s=7200)
    train = states(stack)["Train"]["Parameters"]
    assert train["EnableManagedSpotTraining"] is False
    assert train["StoppingCondition"] == {"MaxRuntimeInSeconds": 7200}
    # What was stopped can be gone on with, on such instances, too.
    assert "CheckpointConfig" in train


def test_spot_waits_twice_the_time_unless_told() -> None:
    stack = new_stack()
    a_pipeline(stack, training_max_runtime_s=7200)
    a_pipeline(other := new_stack(), training_max_runtime_s=7200, training_max_wait_s=7200)
    for where, wait_s in ((stack, 14_400), (other, 7200)):
        train = states(where)["Train"]["Parameters"]
        assert train["EnableManagedSpotTraining"] is True
        assert train["StoppingCondition"] == {
            "MaxRuntimeInSeconds": 7200,
            "MaxWaitTimeInSeconds": wait_s,
        }


def test_each_output_is_encrypted_with_the_key_of_its_bucket() -> None:
    stack = new_stack()
    runs, packages, volumes = (
        kms.Key.from_key_arn(stack, name, f"{KMS}/{name.lower()}")
        for name in ("Runs", "Packages", "Volumes")
    )
    a_pipeline(
        stack,
        models=ModelArtifactBucket(
            stack,
            "Models",
            bucket=s3.Bucket.from_bucket_attributes(
                stack, "P", bucket_name="our-models", encryption_key=packages
            ),
        ),
        runs_bucket=s3.Bucket.from_bucket_attributes(
            stack, "R", bucket_name="ours", encryption_key=runs
        ),
        encryption_key=volumes,
    )
    steps = states(stack)
    for step, key in (("Prepare", "runs"), ("Gate", "runs"), ("Pack", "packages")):
        parameters = steps[step]["Parameters"]
        assert parameters["ProcessingOutputConfig"]["KmsKeyId"] == f"{KMS}/{key}"
        cluster = parameters["ProcessingResources"]["ClusterConfig"]
        assert cluster["VolumeKmsKeyId"] == f"{KMS}/volumes"
    train = steps["Train"]["Parameters"]
    assert train["OutputDataConfig"]["KmsKeyId"] == f"{KMS}/runs"
    assert train["ResourceConfig"]["VolumeKmsKeyId"] == f"{KMS}/volumes"


def test_a_key_is_also_that_of_the_bucket_that_is_made() -> None:
    stack = new_stack()
    key = kms.Key(stack, "Key")
    a_pipeline(stack, runs_bucket=None, encryption_key=key, log_encryption_key=key)
    template = template_of(stack)
    keyed = [
        bucket
        for bucket in resources(template, "AWS::S3::Bucket").values()
        if "aws:kms" in str(bucket["Properties"]["BucketEncryption"])
    ]
    assert len(keyed) == 1
    _, group = only(template, "AWS::Logs::LogGroup")
    assert "KmsKeyId" in group["Properties"]
    _, made = only(template, "AWS::KMS::Key")
    assert "LetCloudWatchLogsEncrypt" in str(made["Properties"]["KeyPolicy"])


def test_tags_are_on_what_is_defined_and_on_every_job() -> None:
    stack = new_stack()
    a_pipeline(stack, tags={"owner": "ana"})
    tag = {"Key": "owner", "Value": "ana"}
    _, machine = only(template_of(stack), "AWS::StepFunctions::StateMachine")
    assert tag in machine["Properties"]["Tags"]
    for step in ("Prepare", "Train", "Gate", "Pack"):
        assert states(stack)[step]["Parameters"]["Tags"] == [tag]


def test_alarms_ring_for_one_execution_and_tell_whom_they_are_told_to() -> None:
    stack = new_stack()
    topic = sns.Topic.from_topic_arn(stack, "Topic", "arn:aws:sns:eu-west-1:123456789012:told")
    pipeline = a_pipeline(stack, alarm_actions=[actions.SnsAction(topic)])
    assert pipeline.alarms.all == (pipeline.alarms.failed, pipeline.alarms.timed_out)
    found = resources(template_of(stack), "AWS::CloudWatch::Alarm").values()
    assert {(it["Properties"]["AlarmName"], it["Properties"]["MetricName"]) for it in found} == {
        ("dr-clinic-failed", "ExecutionsFailed"),
        ("dr-clinic-timed-out", "ExecutionsTimedOut"),
    }
    for it in found:
        assert it["Properties"]["Threshold"] == 1
        assert it["Properties"]["AlarmActions"] == [topic.topic_arn]
        (dimension,) = it["Properties"]["Dimensions"]
        assert dimension["Name"] == "StateMachineArn"
    assert pipeline.metric_failed().metric_name == "ExecutionsFailed"
    assert pipeline.metric_succeeded().metric_name == "ExecutionsSucceeded"


def test_a_function_that_both_alarms_call_has_a_permission_for_each() -> None:
    stack = new_stack()
    called = lambda_.Function(
        stack,
        "OnCall",
        runtime=lambda_.Runtime.PYTHON_3_14,
        handler="index.handler",
        code=lambda_.Code.from_inline("handler = print"),
    )
    with pytest.raises(ValidationError, match="use_unique_permission_id=True"):
        a_pipeline(stack, alarm_actions=[actions.LambdaAction(called)])


def test_who_may_start_may_start_this_one_and_nothing_else() -> None:
    stack = new_stack()
    pipeline = a_pipeline(stack)
    user = iam.User(stack, "Ana")
    pipeline.grant_start(user)
    (granted,) = (
        statement
        for statement in statements(template_of(stack))
        if statement["Action"] == "states:StartExecution"
    )
    machine, _ = only(template_of(stack), "AWS::StepFunctions::StateMachine")
    assert granted["Resource"] == {"Ref": machine}


def test_the_machine_waits_for_roles_group_and_image(tmp_path: Any) -> None:
    stack = new_stack()
    images = a_repo(stack, make_context(tmp_path), own_repository=True)
    a_pipeline(stack, image=images.image(architecture="amd64", runtime="tensorflow"))
    template = template_of(stack)
    _, machine = only(template, "AWS::StepFunctions::StateMachine")
    waits = set(machine["DependsOn"])
    copy, _ = only(template, "Custom::DRImageCopy")
    group, _ = only(template, "AWS::SageMaker::ModelPackageGroup")
    policies = {
        name for name in resources(template, "AWS::IAM::Policy") if name.startswith("Training")
    }
    assert len(policies) == 3
    assert {copy, group, *policies} <= waits


def test_other_code_is_another_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for code in (b"one", b"one", b"two"):
        monkeypatch.setattr("constructs_lib.training_pipeline.training_code", lambda it=code: it)
        stack = new_stack()
        a_pipeline(stack)
        found.append(states(stack)["BringCode"]["Parameters"]["CopySource"])
    assert found[0] == found[1] != found[2]


# --- The image's runtime --------------------------------------------------------------------------


def test_an_image_knows_its_runtime_where_it_was_said(tmp_path: Any) -> None:
    repo: InferenceImageRepo = a_repo(new_stack(), make_context(tmp_path), source="source-digest")
    assert repo.image(architecture="amd64").runtime == "litert"
    assert repo.image(architecture="amd64", runtime="tensorflow").runtime == "tensorflow"
    assert training_image(runtime=None).runtime is None
    with pytest.raises(ValidationError, match="runtime must be one of litert, tensorflow"):
        InferenceImage.from_uri(training_image().uri, architecture="amd64", runtime="torch")
