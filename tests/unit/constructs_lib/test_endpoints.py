"""Endpoints: what is refused, what an update changes, and what the role may do."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3

from constructs_lib import (
    InferenceImage,
    ModelArtifact,
    ModelArtifactBucket,
    RealtimeDREndpoint,
    ServerlessDREndpoint,
    ValidationError,
)
from inference_image.contract import ENV_SERVING_MODE, ENV_WORKERS
from tests.constructs_fixtures import (
    ACCOUNT,
    HOME,
    REGION,
    SHA256,
    Template,
    a_repo,
    an_artifact,
    an_image,
    make_context,
    make_package,
    new_app,
    new_stack,
    only,
    resources,
    statements,
    synthesize,
    template_of,
)

MODEL = "AWS::SageMaker::Model"
CONFIG = "AWS::SageMaker::EndpointConfig"
ENDPOINT = "AWS::SageMaker::Endpoint"
POLICY = "AWS::IAM::Policy"
OTHER_DIGEST = "34" * 32


def serverless(stack: cdk.Stack, **props: Any) -> ServerlessDREndpoint:
    props = {
        "model": an_artifact(stack),
        "image": an_image(),
        "memory_mib": 2048,
        "endpoint_name": "dr-test",
        **props,
    }
    return ServerlessDREndpoint(stack, "Endpoint", **props)


def realtime(stack: cdk.Stack, **props: Any) -> RealtimeDREndpoint:
    props = {
        "model": an_artifact(stack),
        "image": an_image(),
        "instance_type": "ml.m5.xlarge",
        "endpoint_name": "dr-test",
        **props,
    }
    return RealtimeDREndpoint(stack, "Endpoint", **props)


Make = Callable[..., ServerlessDREndpoint | RealtimeDREndpoint]
BOTH = pytest.mark.parametrize("make", [serverless, realtime])


def made(make: Make, **props: Any) -> Template:
    stack = new_stack()
    make(stack, **props)
    return template_of(stack)


# --- Refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "props", "words"),
    [
        (serverless, {"memory_mib": 1500}, "memory_mib must be one of 1024"),
        (serverless, {"max_concurrency": 500}, "max_concurrency must be a whole number"),
        (serverless, {"provisioned_concurrency": 900}, "provisioned_concurrency must be"),
        (
            serverless,
            {"provisioned_concurrency": 6},
            r"provisioned_concurrency must be at most max_concurrency \(5\); got 6",
        ),
        (serverless, {"image": an_image(architecture="arm64")}, "architecture must be amd64"),
        (serverless, {"image": an_image(account="999999999999")}, "pulls from no other"),
        (serverless, {"environment": {ENV_WORKERS: "4"}}, f"may not set {ENV_WORKERS}"),
        (realtime, {"instance_type": "ml.m99.xlarge"}, "instance_type must be a CPU instance"),
        (realtime, {"instance_type": "ml.c7g.xlarge"}, "architecture must be arm64"),
        (realtime, {"image": an_image(architecture="arm64")}, "architecture must be amd64"),
        (realtime, {"initial_instance_count": 0}, "initial_instance_count must be"),
        (realtime, {"environment": {ENV_SERVING_MODE: "x"}}, f"may not set {ENV_SERVING_MODE}"),
        (realtime, {"endpoint_name": "dr_test"}, "endpoint_name must be"),
        (realtime, {"environment": {"DR_THREAD": "2"}}, "near it: DR_THREADS"),
        # Two more are the construct's own.
        (serverless, {"environment": {f"A{n}": "" for n in range(99)}}, "at most 100 .* got 101"),
    ],
)
def test_what_sagemaker_would_refuse_is_refused_here(
    make: Make, props: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValidationError, match=words) as caught:
        make(new_stack(), **props)
    assert "DREndpoint Stack/Endpoint cannot be deployed" in str(caught.value)
    assert len(caught.value.faults) == 1


def test_all_faults_come_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        serverless(
            new_stack(),
            memory_mib=3000,
            max_concurrency=500,
            provisioned_concurrency=900,
            image=an_image(architecture="arm64", account="999999999999"),
            endpoint_name="no_underscores",
        )
    # Memory, both concurrencies, architecture, account, name.
    assert len(caught.value.faults) == 6


def test_an_image_in_another_region_is_refused() -> None:
    stack = new_stack(env=cdk.Environment(account="123456789012", region="sa-east-1"))
    with pytest.raises(ValidationError, match="image must be in the stack's region, sa-east-1"):
        realtime(stack)


def test_a_repository_in_another_account_or_region_is_refused() -> None:
    stack = new_stack()
    arn = "arn:aws:ecr:sa-east-1:999999999999:repository/dr/serving"
    image = InferenceImage.from_repository(
        ecr.Repository.from_repository_arn(stack, "Theirs", arn),
        digest=f"sha256:{OTHER_DIGEST}",
        architecture="amd64",
    )
    with pytest.raises(ValidationError) as caught:
        serverless(stack, image=image)
    text = str(caught.value)
    assert len(caught.value.faults) == 2
    assert f"image must be in the stack's account, {ACCOUNT}" in text
    assert f"image must be in the stack's region, {REGION}" in text


def test_a_model_in_another_region_is_refused() -> None:
    stack = new_stack()
    theirs = s3.Bucket.from_bucket_attributes(
        stack, "Theirs", bucket_name="somebodys-models", region="sa-east-1"
    )
    model = ModelArtifact.in_bucket(theirs, model_id="demo", sha256=SHA256)
    with pytest.raises(ValidationError, match=f"region, {REGION}, .*; got sa-east-1") as caught:
        realtime(stack, model=model)
    assert len(caught.value.faults) == 1


def test_a_model_whose_region_nobody_named_is_accepted() -> None:
    stack = new_stack()
    theirs = s3.Bucket.from_bucket_name(stack, "Theirs", "somebodys-models")
    realtime(stack, model=ModelArtifact.in_bucket(theirs, model_id="demo", sha256=SHA256))
    assert "somebodys-models" in json.dumps(only(template_of(stack), MODEL))


def test_a_model_that_is_not_a_tar_gz_is_refused() -> None:
    stack = new_stack()
    plain = an_artifact(stack)
    renamed = type(plain)(bucket=plain.bucket, key="models/abc.gz", id="demo", sha256="abc")
    with pytest.raises(ValidationError, match=r"key that ends in \.tar\.gz"):
        serverless(stack, model=renamed)


@pytest.mark.parametrize(
    ("make", "props"),
    [
        (serverless, {"memory_mib": 1024, "max_concurrency": 1}),
        (serverless, {"memory_mib": 6144, "max_concurrency": 200, "provisioned_concurrency": 200}),
        (realtime, {"instance_type": "ml.m4.xlarge"}),
        (
            realtime,
            {"instance_type": "ml.c8g.xlarge", "image": an_image(architecture="arm64")},
        ),
        # Another account may share its repository with instances, not with serverless.
        (realtime, {"image": an_image(account="999999999999"), "initial_instance_count": 2}),
    ],
)
def test_what_sagemaker_accepts_is_accepted(make: Make, props: dict[str, Any]) -> None:
    template = made(make, **props)
    assert only(template, ENDPOINT)[1]["Properties"]["EndpointName"] == "dr-test"


def test_what_only_the_deployment_knows_is_not_judged() -> None:
    stack = new_stack(env=None)
    parameter = cdk.CfnParameter(stack, "Number", type="Number")
    number: Any = cdk.Token.as_number(parameter)
    text = cdk.CfnParameter(stack, "Text")
    serverless(
        stack,
        memory_mib=number,
        max_concurrency=number,
        provisioned_concurrency=number,
        endpoint_name=text.value_as_string,
        image=an_image(account="999999999999"),
    )
    RealtimeDREndpoint(
        stack,
        "Other",
        model=an_artifact(stack),
        image=an_image(architecture="arm64"),
        instance_type=text.value_as_string,
        initial_instance_count=number,
    )
    configs = resources(template_of(stack), CONFIG)
    assert '"MemorySizeInMB": {"Ref": "Number"}' in json.dumps(configs)
    assert '"InstanceType": {"Ref": "Text"}' in json.dumps(configs)


# --- Updates ----------------------------------------------------------------------------------


@BOTH
def test_only_the_endpoint_has_a_name(make: Make) -> None:
    template = made(make)
    assert "ModelName" not in only(template, MODEL)[1]["Properties"]
    assert "EndpointConfigName" not in only(template, CONFIG)[1]["Properties"]
    assert only(template, ENDPOINT)[1]["Properties"]["EndpointName"] == "dr-test"


CHANGES = {
    "package": (serverless, lambda stack: {"model": an_artifact(stack, sha256="cd" * 32)}, True),
    "image": (serverless, lambda _: {"image": an_image(digest=OTHER_DIGEST)}, True),
    "environment": (serverless, lambda _: {"environment": {"DR_LOG_LEVEL": "DEBUG"}}, True),
    "memory": (serverless, lambda _: {"memory_mib": 3072}, False),
    "concurrency": (serverless, lambda _: {"max_concurrency": 6}, False),
    "provisioned": (serverless, lambda _: {"provisioned_concurrency": 1}, False),
    "instance type": (realtime, lambda _: {"instance_type": "ml.m7i.xlarge"}, False),
    "instance count": (realtime, lambda _: {"initial_instance_count": 2}, False),
    "package, real-time": (
        realtime,
        lambda stack: {"model": an_artifact(stack, sha256="cd" * 32)},
        True,
    ),
}


@pytest.mark.parametrize(("make", "change", "of_the_model"), CHANGES.values(), ids=CHANGES)
def test_every_change_reaches_the_running_endpoint(
    make: Make, change: Callable[[cdk.Stack], dict[str, Any]], of_the_model: bool
) -> None:
    before = made(make)
    stack = new_stack()
    make(stack, **change(stack))
    after = template_of(stack)
    # CloudFormation makes what has a new logical id, moves the endpoint, deletes the old ones.
    assert only(before, CONFIG)[0] != only(after, CONFIG)[0]
    assert (only(before, MODEL)[0] != only(after, MODEL)[0]) is of_the_model
    old, new = only(before, ENDPOINT), only(after, ENDPOINT)
    assert old[0] == new[0]
    assert old[1]["Properties"]["EndpointName"] == new[1]["Properties"]["EndpointName"]
    assert new[1]["Properties"]["EndpointConfigName"] == {
        "Fn::GetAtt": [only(after, CONFIG)[0], "EndpointConfigName"]
    }
    (variant,) = only(after, CONFIG)[1]["Properties"]["ProductionVariants"]
    assert variant["ModelName"] == {"Fn::GetAtt": [only(after, MODEL)[0], "ModelName"]}


@BOTH
def test_the_same_app_is_the_same_template(make: Make) -> None:
    assert made(make) == made(make)


@BOTH
def test_a_tag_alone_replaces_nothing(make: Make) -> None:
    stack = new_stack()
    endpoint = make(stack)
    cdk.Tags.of(endpoint).add("ward", "ophthalmology")
    tagged, plain = template_of(stack), made(make)
    assert "ophthalmology" in json.dumps(only(tagged, MODEL))
    assert set(tagged["Resources"]) == set(plain["Resources"])


def test_a_new_package_does_not_take_the_old_one_from_a_running_endpoint() -> None:
    before = made(serverless)
    stack = new_stack()
    serverless(stack, model=an_artifact(stack, sha256="cd" * 32))
    after = template_of(stack)
    assert only(before, POLICY)[0] != only(after, POLICY)[0]
    assert only(before, "AWS::IAM::Role")[0] != only(after, "AWS::IAM::Role")[0]


def in_bucket_of(home: str, *, key_arn: str | None = None) -> Template:
    """The endpoint's template, where the bucket is of stack `home` and has a KMS key or none."""
    app = new_app()
    stack = cdk.Stack(app, home, env=HOME)
    key = None if key_arn is None else kms.Key.from_key_arn(stack, "Key", key_arn)
    bucket = ModelArtifactBucket(stack, "Models", encryption_key=key).bucket
    away = cdk.Stack(app, "Away", env=HOME)
    serverless(away, model=ModelArtifact.in_bucket(bucket, model_id="demo", sha256=SHA256))
    return synthesize(app)["Away"]


KEY_ARN = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/1"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("One", None), ("Two", None)),
        (("One", None), ("One", KEY_ARN)),
        (("One", KEY_ARN), ("One", f"{KEY_ARN}2")),
    ],
    ids=["another bucket", "a key", "another key"],
)
def test_the_role_is_named_by_all_that_it_may_read(
    before: tuple[str, str | None], after: tuple[str, str | None]
) -> None:
    templates = [in_bucket_of(home, key_arn=key) for home, key in (before, before, after)]
    roles = [only(template, "AWS::IAM::Role")[0] for template in templates]
    assert roles[0] == roles[1] != roles[2]


def test_a_new_size_keeps_the_role() -> None:
    before, after = made(serverless), made(serverless, memory_mib=4096)
    assert only(before, POLICY) == only(after, POLICY)


# --- What is deployed -------------------------------------------------------------------------


@BOTH
def test_the_model_waits_for_the_roles_policy(make: Make) -> None:
    template = made(make)
    assert only(template, POLICY)[0] in only(template, MODEL)[1]["DependsOn"]


def test_the_model_waits_for_the_package_to_be_copied(tmp_path: Path) -> None:
    stack = new_stack()
    bucket = ModelArtifactBucket(stack, "Packages")
    serverless(stack, model=bucket.add_model(make_package(tmp_path, "demo")))
    template = template_of(stack)
    copy, _ = only(template, "Custom::CDKBucketDeployment")
    assert copy in only(template, MODEL)[1]["DependsOn"]


def test_a_serverless_container_runs_one_worker() -> None:
    container = only(made(serverless), MODEL)[1]["Properties"]["PrimaryContainer"]
    assert container["Environment"] == {ENV_SERVING_MODE: "serverless", ENV_WORKERS: "1"}
    (variant,) = only(made(serverless), CONFIG)[1]["Properties"]["ProductionVariants"]
    assert variant["ServerlessConfig"] == {"MaxConcurrency": 5, "MemorySizeInMB": 2048}
    assert "InstanceType" not in variant


def test_an_instance_runs_as_many_workers_as_it_finds_room_for() -> None:
    template = made(realtime, environment={"DR_LOG_LEVEL": "DEBUG"})
    container = only(template, MODEL)[1]["Properties"]["PrimaryContainer"]
    assert container["Environment"] == {ENV_SERVING_MODE: "realtime", "DR_LOG_LEVEL": "DEBUG"}
    (variant,) = only(template, CONFIG)[1]["Properties"]["ProductionVariants"]
    assert variant["InstanceType"] == "ml.m5.xlarge"
    assert variant["InitialInstanceCount"] == 1
    assert "ServerlessConfig" not in variant


def test_provisioned_concurrency_is_passed_on() -> None:
    template = made(serverless, max_concurrency=8, provisioned_concurrency=2)
    (variant,) = only(template, CONFIG)[1]["Properties"]["ProductionVariants"]
    assert variant["ServerlessConfig"]["ProvisionedConcurrency"] == 2


def test_the_endpoint_is_named_after_its_path_by_default() -> None:
    stack = new_stack()
    endpoint = ServerlessDREndpoint(
        stack, "Clinic", model=an_artifact(stack), image=an_image(), memory_mib=1024
    )
    assert endpoint.endpoint_name.startswith("Stack-Clinic")
    assert len(endpoint.endpoint_name) <= 63


def test_two_endpoints_share_a_stack(tmp_path: Path) -> None:
    stack = new_stack()
    image = a_repo(stack, make_context(tmp_path)).image(architecture="amd64")
    for name in ("First", "Second"):
        ServerlessDREndpoint(stack, name, model=an_artifact(stack), image=image, memory_mib=1024)
    assert len(resources(template_of(stack), MODEL)) == 2


@BOTH
def test_log_lines_are_kept_for_a_month_and_deleted_with_the_stack(make: Make) -> None:
    name, group = only(made(make), "AWS::Logs::LogGroup")
    assert group["Properties"]["LogGroupName"] == "/aws/sagemaker/Endpoints/dr-test"
    assert group["Properties"]["RetentionInDays"] == 30
    assert group["DeletionPolicy"] == "Delete"
    assert name in only(made(make), ENDPOINT)[1]["DependsOn"]


def test_log_retention_can_be_chosen() -> None:
    _, group = only(
        made(serverless, log_retention=logs.RetentionDays.ONE_YEAR), "AWS::Logs::LogGroup"
    )
    assert group["Properties"]["RetentionInDays"] == 365


# --- Permissions ------------------------------------------------------------------------------


@BOTH
def test_the_role_may_do_what_serving_needs_and_nothing_else(make: Make) -> None:
    template = made(make)
    _, role = only(template, "AWS::IAM::Role")
    assert "ManagedPolicyArns" not in role["Properties"]
    (trust,) = role["Properties"]["AssumeRolePolicyDocument"]["Statement"]
    assert trust["Principal"] == {"Service": "sagemaker.amazonaws.com"}
    granted: dict[str, Any] = {}
    for statement in statements(template):
        assert statement["Effect"] == "Allow"
        actions = statement["Action"]
        for action in [actions] if isinstance(actions, str) else actions:
            granted[action] = statement
    assert set(granted) == {
        "cloudwatch:DescribeAlarms",
        "cloudwatch:PutMetricData",
        "ecr:BatchCheckLayerAvailability",
        "ecr:BatchGetImage",
        "ecr:GetAuthorizationToken",
        "ecr:GetDownloadUrlForLayer",
        "logs:CreateLogStream",
        "logs:DescribeLogStreams",
        "logs:PutLogEvents",
        "s3:GetObject",
    }
    # Two actions know no resource; one of them is narrowed to the endpoints' namespaces.
    everywhere = {action for action, it in granted.items() if it["Resource"] == "*"}
    assert everywhere == {"ecr:GetAuthorizationToken", "cloudwatch:PutMetricData"}
    assert granted["cloudwatch:PutMetricData"]["Condition"] == {
        "StringEquals": {"cloudwatch:namespace": ["AWS/SageMaker", "/aws/sagemaker/Endpoints"]}
    }
    # The only other wildcards are names that the endpoint's own name begins.
    for action, statement in granted.items():
        if action in everywhere:
            continue
        text = json.dumps(statement["Resource"])
        for allowed in (
            "log-group:/aws/sagemaker/Endpoints/dr-test:log-stream:*",
            "alarm:dr-test-*",
        ):
            text = text.replace(allowed, "")
        assert "*" not in text, action


@BOTH
def test_no_statement_is_a_service_wide_one(make: Make) -> None:
    text = json.dumps(statements(made(make)))
    assert ':*"' not in text.replace("log-stream:*", "")
    assert "FullAccess" not in text


@BOTH
def test_invoking_is_granted_on_this_endpoint(make: Make) -> None:
    stack = new_stack()
    endpoint = make(stack)
    clinic = iam.Role(stack, "Clinic", assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"))
    grant = endpoint.grant_invoke(clinic)
    assert grant.success
    template = template_of(stack)
    (statement,) = (it for it in statements(template) if it["Action"] == "sagemaker:InvokeEndpoint")
    assert statement["Resource"] == {"Ref": only(template, ENDPOINT)[0]}


def test_nothing_that_the_constructs_use_is_deprecated(tmp_path: Path, repository: Path) -> None:
    make_package(tmp_path, "demo")
    script = tmp_path / "clinic.py"
    script.write_text(EVERYTHING)
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(repository), "JSII_DEPRECATED": "warn"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Only the CDK's own warnings: jsii says the same of an old Node.
    told = [line for line in done.stderr.splitlines() if "is deprecated" in line]
    assert [line for line in told if "aws-cdk-lib" in line] == []


EVERYTHING = """
import aws_cdk as cdk
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sns as sns
from constructs_lib import (
    AlarmOptions, ClinicHours, DataCapture, DREndpointDashboard, InferenceImageRepo,
    LambdaDREndpoint, ModelArtifactBucket, ProbeOptions, RealtimeDREndpoint, Scaling,
    ServerlessDREndpoint, TrafficShift,
)

stack = cdk.Stack(cdk.App(outdir="assembly", analytics_reporting=False), "Stack")
bucket = ModelArtifactBucket(
    stack, "Models", removal_policy=cdk.RemovalPolicy.DESTROY, auto_delete_objects=True
)
topic = sns.Topic(stack, "OnCall")
hours = [ClinicHours(time_zone="UTC", min_capacity=2)]
warm = Scaling(min_capacity=1, max_capacity=3, utilization=0.7, clinic_hours=hours)
common = {
    "model": bucket.add_model("demo"),
    "image": InferenceImageRepo(stack, "Images").image(architecture="amd64"),
    "alarms": AlarmOptions(actions=[actions.SnsAction(topic)]),
    "probe": ProbeOptions(),
    "traffic_shift": TrafficShift.canary(),
    "encryption_key": kms.Key(stack, "Key"),
    "tags": {"ward": "eye"},
}
network = {"vpc": ec2.Vpc(stack, "Vpc", max_azs=2)}
clinic = iam.Role(stack, "Clinic", assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"))
endpoints = (
    ServerlessDREndpoint(
        stack, "Serverless", memory_mib=2048, provisioned_concurrency=2, scaling=warm, **common
    ),
    RealtimeDREndpoint(
        stack, "RealTime", instance_type="ml.m5.xlarge", initial_instance_count=2,
        scaling=Scaling(min_capacity=2, max_capacity=3, invocations_per_instance=60),
        data_capture=DataCapture(bucket=s3.Bucket(stack, "Kept")), **network, **common
    ),
    LambdaDREndpoint(
        stack, "Function", memory_mib=1769, provisioned_concurrency=2, scaling=warm,
        **network, **common
    ),
)
for endpoint in endpoints:
    endpoint.grant_invoke(clinic)
    endpoint.metric_latency()
DREndpointDashboard(stack, "Dashboard", endpoints=endpoints)
stack.node.root.synth()
"""


# --- Metrics ----------------------------------------------------------------------------------


def test_metrics_are_of_this_endpoints_variant() -> None:
    endpoint = serverless(new_stack())
    metrics = {
        "Invocations": endpoint.metric_invocations(),
        "ModelLatency": endpoint.metric_model_latency(period=cdk.Duration.minutes(1)),
        "Invocation5XXErrors": endpoint.metric_invocation_5xx_errors(),
        "ModelSetupTime": endpoint.metric_model_setup_time(),
        "OverheadLatency": endpoint.metric("OverheadLatency"),
    }
    for name, metric in metrics.items():
        assert metric.namespace == "AWS/SageMaker"
        assert metric.metric_name == name
        assert metric.dimensions == {"EndpointName": "dr-test", "VariantName": "AllTraffic"}
    assert metrics["Invocations"].statistic == "Sum"
    assert metrics["ModelLatency"].statistic == "p95"
    assert metrics["ModelLatency"].period.to_seconds() == 60


# --- Across stacks ----------------------------------------------------------------------------


def test_an_endpoint_may_use_another_stacks_bucket() -> None:
    app = new_app()
    home = cdk.Stack(app, "Home", env=HOME)
    away = cdk.Stack(app, "Away", env=HOME)
    serverless(away, model=an_artifact(home))
    template = synthesize(app)["Away"]
    container = only(template, MODEL)[1]["Properties"]["PrimaryContainer"]
    assert "Home:ExportsOutput" in json.dumps(container["ModelDataUrl"])
