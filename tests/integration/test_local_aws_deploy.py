"""From `cdk deploy` to a graded photograph, and a new model under the same endpoint name.

The real CDK command, the project's own app, the local AWS and the real `serve` process; only
the model is small.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from constructs_lib.probe_function.handler import GOLDEN, ProbeError, probe
from dr_local.cdk_cli import bootstrap, context_arguments, deploy, destroy, run_cdk
from dr_local.errors import LocalAwsError
from dr_local.lifecycle import LocalAws, running
from dr_local.publish import push_package
from inference_image.model_spec import load_model_spec

ENDPOINT = "dr-serverless-mobilenet-2048"
CONTEXT = {
    "local": "true",
    "publish": "external",
    "image": "source-digest",
    "models": "mobilenet",
    "modes": "serverless",
}
APP = """
from pathlib import Path

import aws_cdk as cdk

from app import build

app = build(cdk.App(), model_root=Path(__file__).parent / "models")
if owner := app.node.try_get_context("owner"):
    cdk.Tags.of(app).add("owner", owner)
app.synth()
"""


@pytest.fixture
def app_dir(repository: Path, tmp_path: Path) -> Path:
    """The project's app with the small test model in place of the demo model."""
    folder = tmp_path / "app"
    shutil.copytree(repository / "tests/data/tiny-model", folder / "models" / "mobilenet-demo")
    (folder / "node_modules").symlink_to(repository / "node_modules")
    (folder / "local_app.py").write_text(APP)
    settings = json.loads((repository / "cdk.json").read_text())
    settings["app"] = f"{sys.executable} local_app.py"
    (folder / "cdk.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture
def local(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalAws]:
    monkeypatch.setenv("PYTHONPATH", str(repository))
    with running(state_dir=tmp_path / "local-aws") as started:
        yield started


def test_deploy_grade_replace_the_model_and_grade_again(
    local: LocalAws,
    app_dir: Path,
    real_photograph: Path,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    # The app of this test imports the project's app.
    monkeypatch.setenv("PYTHONPATH", str(repository))
    bootstrap(local, app_dir=app_dir)
    model_dir = app_dir / "models" / "mobilenet-demo"
    shared = deploy(local, ["dr-shared"], context=CONTEXT, app_dir=app_dir).outputs["dr-shared"]
    bucket = shared["ModelBucketName"]
    photograph = real_photograph.read_bytes()
    push_package(model_dir, bucket=bucket, client=local.client("s3"))
    outputs = deploy(local, [ENDPOINT], context=CONTEXT, app_dir=app_dir).outputs[ENDPOINT]
    first = load_model_spec(model_dir)
    assert outputs["EndpointName"] == ENDPOINT
    assert outputs["ModelDataUrl"] == f"s3://{bucket}/{first.object_key}"

    cold, headers = grade(local, photograph)
    assert headers["x-dr-local-cold-start"] == "true"
    assert 0 < float(headers["x-dr-local-start-to-first-prediction-ms"]) < 60_000
    assert 20 < float(headers["x-dr-local-memory-rss-mib"]) < 2048
    check_document(cold, first.sha256)
    warm, headers = grade(local, photograph)
    assert headers["x-dr-local-cold-start"] == "false"
    assert warm["predictions"] == cold["predictions"]
    assert warm["container"]["start_id"] == cold["container"]["start_id"]

    # The golden-image probe, as its function would run it.
    asked = {"DR_PROBE_SAGEMAKER": ENDPOINT, "DR_PROBE_SHA256": first.sha256}
    golden = GOLDEN.read_bytes()
    assert probe(asked, client=local.client, photograph=golden)["outcome"] == "ok"
    with pytest.raises(ProbeError, match=f"the model {first.sha256} answered"):
        probe({**asked, "DR_PROBE_SHA256": "ab" * 32}, client=local.client, photograph=golden)

    sagemaker = local.client("sagemaker")
    untagged = sagemaker.describe_endpoint(EndpointName=ENDPOINT)
    deploy(local, [ENDPOINT], context={**CONTEXT, "owner": "ana"}, app_dir=app_dir)
    tagged = sagemaker.describe_endpoint(EndpointName=ENDPOINT)
    assert tagged["EndpointConfigName"] == untagged["EndpointConfigName"]
    tags = sagemaker.list_tags(ResourceArn=tagged["EndpointArn"])["Tags"]
    assert {"Key": "owner", "Value": "ana"} in tags
    still_warm, headers = grade(local, photograph)
    assert headers["x-dr-local-cold-start"] == "false"
    assert still_warm["container"]["start_id"] == cold["container"]["start_id"]

    document = json.loads((model_dir / "model.json").read_text())
    document["notice"] = "Another model for tests."
    (model_dir / "model.json").write_text(json.dumps(document))
    second = load_model_spec(model_dir)
    push_package(model_dir, bucket=bucket, client=local.client("s3"))
    before = sagemaker.describe_endpoint(EndpointName=ENDPOINT)
    deploy(local, [ENDPOINT], context=CONTEXT, app_dir=app_dir)
    after = sagemaker.describe_endpoint(EndpointName=ENDPOINT)
    assert after["EndpointConfigName"] != before["EndpointConfigName"]
    assert after["EndpointArn"] == before["EndpointArn"]
    replaced, headers = grade(local, photograph)
    assert headers["x-dr-local-cold-start"] == "true"
    check_document(replaced, second.sha256)
    assert replaced["model"]["notice"] == "Another model for tests."

    runtime = local.client("sagemaker-runtime")
    with pytest.raises(runtime.exceptions.ModelError) as caught:
        runtime.invoke_endpoint(EndpointName=ENDPOINT, Body=b"hello", ContentType="text/plain")
    assert caught.value.response["OriginalStatusCode"] == 415
    assert json.loads(caught.value.response["OriginalMessage"])["status"] == 415

    in_use = f"cannot be deleted as it is in use by {ENDPOINT}"
    alone = ["destroy", "dr-shared", "--exclusively", "--force", *context_arguments(CONTEXT)]
    with pytest.raises(LocalAwsError, match=in_use):
        run_cdk(local, alone, name="destroy-dr-shared", app_dir=app_dir)
    s3 = local.client("s3")
    for row in s3.list_object_versions(Bucket=bucket)["Versions"]:
        s3.delete_object(Bucket=bucket, Key=row["Key"], VersionId=row["VersionId"])
    destroy(local, ["dr-shared"], context=CONTEXT, app_dir=app_dir)
    assert not [row["Name"] for row in s3.list_buckets()["Buckets"] if "dr-shared" in row["Name"]]
    assert not local.client("logs").describe_log_groups()["logGroups"]
    assert not sagemaker.list_endpoints()["Endpoints"]


def test_a_package_with_a_changed_byte_never_serves(local: LocalAws, tmp_path: Path, repository):
    """The archive is whole and its model.json is right, but a file is not what it lists."""
    from tests.integration.local_aws.endpoints import repack, serverless, template

    bucket = "models"
    s3 = local.client("s3")
    s3.create_bucket(Bucket=bucket)
    spec = load_model_spec(repository / "tests/data/tiny-model")
    archive = repack(repository / "tests/data/tiny-model", tmp_path / "model.tar.gz")
    s3.upload_file(str(archive), bucket, spec.object_key)
    local.client("cloudformation").create_stack(
        StackName="damaged",
        TemplateBody=template(
            name="damaged", model_data_url=f"s3://{bucket}/{spec.object_key}", variant=serverless()
        ),
    )
    runtime = local.client("sagemaker-runtime")
    with pytest.raises(runtime.exceptions.ModelError) as caught:
        runtime.invoke_endpoint(EndpointName="damaged", Body=b"x", ContentType="image/jpeg")
    message = caught.value.response["OriginalMessage"]
    assert message.startswith("The container did not start: ")
    assert "SHA-256" in message
    assert not local.metrics()["endpoints"]["damaged"]["containers"]


def grade(local: LocalAws, photograph: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    answer = local.client("sagemaker-runtime").invoke_endpoint(
        EndpointName=ENDPOINT, Body=photograph, ContentType="image/jpeg"
    )
    return json.loads(answer["Body"].read()), answer["ResponseMetadata"]["HTTPHeaders"]


def check_document(document: dict[str, Any], sha256: str) -> None:
    assert document["model"]["sha256"] == sha256
    assert sum(document["predictions"]) == pytest.approx(1.0)
    assert document["grade"] in range(5)
    assert document["quality"] == {"gradable": True, "reasons": []}
