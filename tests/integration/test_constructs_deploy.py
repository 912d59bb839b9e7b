"""The real `cdk` command, a user's own app on the constructs, and a local AWS."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dr_local.cdk_cli import bootstrap, deploy, destroy
from dr_local.lifecycle import LocalAws, running
from dr_local.publish import push_package
from tests.constructs_fixtures import make_context, make_package

ENDPOINT = "dr-clinic"
STACK = "Clinic"
APP = """
from pathlib import Path

import aws_cdk as cdk

from constructs_lib import InferenceImageRepo, ModelArtifactBucket, ServerlessDREndpoint

app = cdk.App()
stack = cdk.Stack(
    app, "Clinic", synthesizer=cdk.DefaultStackSynthesizer(generate_bootstrap_version_rule=False)
)
bucket = ModelArtifactBucket(stack, "Models", removal_policy=cdk.RemovalPolicy.DESTROY)
endpoint = ServerlessDREndpoint(
    stack,
    "Endpoint",
    model=bucket.add_model(Path("package/demo"), publish="external"),
    image=InferenceImageRepo(
        stack, "Images", source="source-digest", directory=Path("service")
    ).image(architecture="amd64"),
    memory_mib=int(app.node.get_context("memory")),
    endpoint_name="dr-clinic",
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


def test_an_endpoint_is_updated_in_place_and_destroyed_whole(
    app_dir: Path, local: LocalAws
) -> None:
    first = deploy(local, [STACK], context={"memory": "2048"}, app_dir=app_dir)
    bucket = first.outputs[STACK]["Bucket"]
    before = hosted(local)
    key = push_package(app_dir / "package" / "demo", bucket=bucket, client=local.client("s3"))
    container = before["model"]["PrimaryContainer"]
    assert container["ModelDataUrl"] == f"s3://{bucket}/{key}"
    assert container["Environment"] == {
        "DR_SERVING_MODE": "serverless",
        "MODEL_SERVER_WORKERS": "1",
    }
    assert before["variant"]["ServerlessConfig"] == {"MemorySizeInMB": 2048, "MaxConcurrency": 5}

    deploy(local, [STACK], context={"memory": "3072"}, app_dir=app_dir)
    resized = hosted(local)
    assert resized["variant"]["ServerlessConfig"]["MemorySizeInMB"] == 3072
    assert resized["endpoint"]["EndpointConfigName"] != before["endpoint"]["EndpointConfigName"]
    assert resized["endpoint"]["EndpointArn"] == before["endpoint"]["EndpointArn"]
    assert resized["endpoint"]["CreationTime"] == before["endpoint"]["CreationTime"]
    assert resized["variant"]["ModelName"] == before["variant"]["ModelName"]
    assert (resized["configs"], resized["models"]) == (1, 1)

    make_package(app_dir / "package", "demo", content=b"a better model")
    deploy(local, [STACK], context={"memory": "3072"}, app_dir=app_dir)
    retrained = hosted(local)
    assert retrained["variant"]["ModelName"] != before["variant"]["ModelName"]
    new_key = push_package(app_dir / "package" / "demo", bucket=bucket, client=local.client("s3"))
    assert new_key != key
    assert retrained["model"]["PrimaryContainer"]["ModelDataUrl"] == f"s3://{bucket}/{new_key}"
    assert retrained["endpoint"]["EndpointArn"] == before["endpoint"]["EndpointArn"]
    assert retrained["model"]["ExecutionRoleArn"] != before["model"]["ExecutionRoleArn"]
    assert (retrained["configs"], retrained["models"]) == (1, 1)

    # Where nothing runs the function that empties a bucket, its owner does.
    empty(local, bucket)
    destroy(local, [STACK], context={"memory": "3072"}, app_dir=app_dir)
    assert leftovers(local) == {
        "endpoints": [],
        "configs": [],
        "models": [],
        "roles": [],
        "logs": [],
        "buckets": [],
    }
