"""The real `cdk` command, a user's own app on the constructs, and a local AWS."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from constructs_lib.training_code import training_code
from dr_local.cdk_cli import bootstrap, context_arguments, deploy, destroy, run_cdk
from dr_local.errors import LocalAwsError
from dr_local.lifecycle import LocalAws, running
from dr_local.publish import push_package
from tests.constructs_fixtures import make_context, make_package

ENDPOINT = "dr-clinic"
STACK = "Clinic"
APP = """
from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_s3 as s3

from constructs_lib import (
    DRTrainingPipeline, GateThresholds, InferenceImageRepo, ModelArtifactBucket,
    ServerlessDREndpoint,
)

app = cdk.App()
stack = cdk.Stack(
    app, "Clinic", synthesizer=cdk.DefaultStackSynthesizer(generate_bootstrap_version_rule=False)
)
bucket = ModelArtifactBucket(stack, "Models", removal_policy=cdk.RemovalPolicy.DESTROY)
images = InferenceImageRepo(stack, "Images", source="source-digest", directory=Path("service"))
endpoint = ServerlessDREndpoint(
    stack,
    "Endpoint",
    model=bucket.add_model(Path("package/demo"), publish="external"),
    image=images.image(architecture="amd64"),
    memory_mib=int(app.node.get_context("memory")),
    environment={"DR_LOG_LEVEL": app.node.get_context("log-level")},
    endpoint_name="dr-clinic",
)
if owner := app.node.try_get_context("owner"):
    cdk.Tags.of(app).add("owner", owner)
if app.node.try_get_context("training"):
    DRTrainingPipeline(
        stack,
        "Training",
        models=bucket,
        image=images.image(architecture="amd64", runtime="tensorflow"),
        photographs=s3.Bucket.from_bucket_name(stack, "Photographs", "photographs"),
        package_id="demo",
        hyperparameters={"network": "mobilenet", "weights": "random", "epochs": 20},
        gate=GateThresholds(min_sensitivity=0.85, min_specificity=0.7, min_kappa=0.6),
        training_instance_type="ml.c5.xlarge",
        pipeline_name="dr-clinic",
        removal_policy=cdk.RemovalPolicy.DESTROY,
    )
if app.node.try_get_context("broken"):
    # What no rule here lets through, and SageMaker refuses.
    endpoint.cfn_endpoint_config.add_property_override(
        "ProductionVariants.0.InstanceType", "ml.nothing.large"
    )
cdk.CfnOutput(stack, "Bucket", value=bucket.bucket.bucket_name)
app.synth()
"""


@pytest.fixture
def app_dir(tmp_path: Path, repository: Path) -> Path:
    """A user's folder: an app, a package, a build context, the pinned command line."""
    folder = tmp_path / "clinic"
    folder.mkdir()
    (folder / "app.py").write_text(APP)
    (folder / "cdk.json").write_text(json.dumps({"app": f"{sys.executable} app.py"}))
    (folder / "node_modules").symlink_to(repository / "node_modules")
    make_package(folder / "package", "demo")
    make_context(folder / "service")
    return folder


@pytest.fixture
def local(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalAws]:
    # The user of this app has the constructs installed; here they are on the path.
    monkeypatch.setenv("PYTHONPATH", str(repository))
    with running(state_dir=tmp_path / "local-aws") as started:
        bootstrap(started)
        yield started


def hosted(local: LocalAws) -> dict[str, Any]:
    """What SageMaker hosts: the endpoint, its config and its model, and how many there are."""
    sagemaker = local.client("sagemaker")
    endpoint = sagemaker.describe_endpoint(EndpointName=ENDPOINT)
    config = sagemaker.describe_endpoint_config(EndpointConfigName=endpoint["EndpointConfigName"])
    (variant,) = config["ProductionVariants"]
    return {
        "endpoint": endpoint,
        "variant": variant,
        "model": sagemaker.describe_model(ModelName=variant["ModelName"]),
        "configs": len(sagemaker.list_endpoint_configs()["EndpointConfigs"]),
        "models": len(sagemaker.list_models()["Models"]),
    }


def leftovers(local: LocalAws) -> dict[str, list[str]]:
    """Everything that the stack made, by service, apart from the bootstrap's own."""
    sagemaker = local.client("sagemaker")
    return {
        "endpoints": [it["EndpointName"] for it in sagemaker.list_endpoints()["Endpoints"]],
        "configs": [
            it["EndpointConfigName"] for it in sagemaker.list_endpoint_configs()["EndpointConfigs"]
        ],
        "models": [it["ModelName"] for it in sagemaker.list_models()["Models"]],
        "roles": [
            it["RoleName"]
            for it in local.client("iam").list_roles()["Roles"]
            if not it["RoleName"].startswith("cdk-")
        ],
        "machines": [
            it["name"]
            for it in local.client("stepfunctions").list_state_machines()["stateMachines"]
        ],
        "logs": [
            it["logGroupName"] for it in local.client("logs").describe_log_groups()["logGroups"]
        ],
        "buckets": [
            it["Name"]
            for it in local.client("s3").list_buckets()["Buckets"]
            if not it["Name"].startswith("cdk-")
        ],
    }


def empty(local: LocalAws, bucket: str) -> None:
    """Delete every version of every object, as `auto_delete_objects` does on AWS."""
    s3 = local.client("s3")
    for version in s3.list_object_versions(Bucket=bucket)["Versions"]:
        s3.delete_object(Bucket=bucket, Key=version["Key"], VersionId=version["VersionId"])


def look_at_training(local: LocalAws, outputs: dict[str, str]) -> None:
    """The state machine is there, refers to what is there, and takes an execution."""
    (arn,) = (value for value in outputs.values() if ":stateMachine:" in value)
    steps = local.client("stepfunctions")
    found = steps.describe_state_machine(stateMachineArn=arn)
    assert found["name"] == "dr-clinic"
    states = json.loads(found["definition"])["States"]
    buckets = {it["Name"] for it in local.client("s3").list_buckets()["Buckets"]}
    assert states["BringCode"]["Parameters"]["Bucket"] in buckets
    roles = {it["Arn"] for it in local.client("iam").list_roles()["Roles"]}
    assert found["roleArn"] in roles
    for step in ("Prepare", "Train", "Gate", "Pack"):
        assert states[step]["Parameters"]["RoleArn"] in roles
    # The command line published the archive of source, where the first state copies it from.
    bucket, _, key = states["BringCode"]["Parameters"]["CopySource"].partition("/")
    archive = local.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read()
    assert archive == training_code()
    # moto runs no job; that it takes an execution says that the definition is one.
    started = steps.start_execution(stateMachineArn=arn, name="first")
    executions = steps.list_executions(stateMachineArn=arn)["executions"]
    assert [it["executionArn"] for it in executions] == [started["executionArn"]]


def difference(local: LocalAws, context: dict[str, str], app_dir: Path) -> str:
    """What `cdk diff` says, which fails where there is a difference."""
    arguments = ["diff", STACK, "--method=template", "--fail", *context_arguments(context)]
    return run_cdk(local, arguments, name="diff", app_dir=app_dir).log_file.read_text()


# Twelve runs of the command line, half a minute of work on a quiet machine.
@pytest.mark.timeout(400)
def test_an_endpoint_is_updated_in_place_and_destroyed_whole(
    app_dir: Path, local: LocalAws
) -> None:
    context = {"memory": "2048", "log-level": "info"}
    configs: list[str] = []

    def deployed(**change: str) -> dict[str, Any]:
        """What is hosted after a deployment with a change; there is one of each of it."""
        context.update(change)
        result = deploy(local, [STACK], context=context, app_dir=app_dir)
        now = hosted(local)
        assert (now["configs"], now["models"]) == (1, 1)
        assert now["endpoint"]["EndpointStatus"] == "InService"
        configs.append(now["endpoint"]["EndpointConfigName"])
        return {**now, "bucket": result.outputs[STACK]["Bucket"]}

    before = deployed()
    bucket = before["bucket"]
    key = push_package(app_dir / "package" / "demo", bucket=bucket, client=local.client("s3"))
    container = before["model"]["PrimaryContainer"]
    assert container["ModelDataUrl"] == f"s3://{bucket}/{key}"
    assert container["Environment"] == {
        "DR_LOG_LEVEL": "info",
        "DR_SERVING_MODE": "serverless",
        "MODEL_SERVER_WORKERS": "1",
    }
    assert before["variant"]["ServerlessConfig"] == {"MemorySizeInMB": 2048, "MaxConcurrency": 5}
    assert "There were no differences" in difference(local, context, app_dir)

    resized = deployed(memory="3072")
    assert resized["variant"]["ServerlessConfig"]["MemorySizeInMB"] == 3072
    assert resized["variant"]["ModelName"] == before["variant"]["ModelName"]

    chatty = deployed(**{"log-level": "debug"})
    assert chatty["model"]["PrimaryContainer"]["Environment"]["DR_LOG_LEVEL"] == "debug"
    assert chatty["variant"]["ModelName"] != resized["variant"]["ModelName"]

    (app_dir / "service" / "serve.py").write_text("print('another service')\n")
    rebuilt = deployed()
    assert rebuilt["model"]["PrimaryContainer"]["Image"] != container["Image"]

    make_package(app_dir / "package", "demo", content=b"a better model")
    retrained = deployed()
    new_key = push_package(app_dir / "package" / "demo", bucket=bucket, client=local.client("s3"))
    assert new_key != key
    assert retrained["model"]["PrimaryContainer"]["ModelDataUrl"] == f"s3://{bucket}/{new_key}"
    assert retrained["model"]["ExecutionRoleArn"] != before["model"]["ExecutionRoleArn"]

    # A new configuration each time, and the same endpoint all along.
    assert len(set(configs)) == len(configs) == 5
    for name in ("EndpointArn", "EndpointName", "CreationTime"):
        assert retrained["endpoint"][name] == before["endpoint"][name]

    tagged = deployed(owner="ana")
    assert tagged["endpoint"]["EndpointConfigName"] == retrained["endpoint"]["EndpointConfigName"]
    tags = local.client("sagemaker").list_tags(ResourceArn=tagged["endpoint"]["EndpointArn"])
    assert {"Key": "owner", "Value": "ana"} in tags["Tags"]

    # A training beside the endpoint, into the same bucket of models.
    context["training"] = "true"
    look_at_training(local, deploy(local, [STACK], context=context, app_dir=app_dir).outputs[STACK])

    # An update that fails is said to have failed, and the endpoint serves as it did.
    with pytest.raises(LocalAwsError, match=r"cdk deploy .*failed") as caught:
        deploy(local, [STACK], context={**context, "broken": "true"}, app_dir=app_dir)
    assert "ml.nothing.large" in Path(local.logs_dir / f"cdk-deploy-{STACK}.log").read_text(), str(
        caught.value
    )
    kept = local.client("sagemaker").describe_endpoint(EndpointName=ENDPOINT)
    assert kept["EndpointConfigName"] == tagged["endpoint"]["EndpointConfigName"]
    assert kept["EndpointStatus"] == "InService"

    # Where nothing runs the function that empties a bucket, its owner does.
    empty(local, bucket)
    destroy(local, [STACK], context=context, app_dir=app_dir)
    assert leftovers(local) == {
        "endpoints": [],
        "configs": [],
        "models": [],
        "roles": [],
        "machines": [],
        "logs": [],
        "buckets": [],
    }
