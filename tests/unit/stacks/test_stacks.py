"""The stacks that the matrix becomes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest

from inference_image.model_spec import ModelPackageError, load_model_spec
from stacks.endpoint_stack import EndpointStack
from stacks.matrix import MATRIX, Deployment, Mode
from tests.constructs_fixtures import (
    built_app,
    make_package,
    matrix_app,
    matrix_templates,
    model_root,
    new_app,
    only,
    resources,
    synthesize,
    warnings_in,
)

ROWS = pytest.mark.parametrize("row", MATRIX, ids=lambda row: row.stack_id)


def outputs(template: dict[str, Any]) -> dict[str, Any]:
    return {name: output["Value"] for name, output in template["Outputs"].items()}


def docker_images(app: cdk.App) -> dict[str, set[str]]:
    """Platforms that each stack's deployment builds."""
    found = {}
    for path in Path(app.synth().directory).glob("*.assets.json"):
        images = json.loads(path.read_text()).get("dockerImages", {}).values()
        found[path.name.removesuffix(".assets.json")] = {i["source"]["platform"] for i in images}
    return found


def warnings_of(app: cdk.App, stack_id: str) -> list[str]:
    stack = app.node.find_child(stack_id)
    assert isinstance(stack, EndpointStack)
    return [warning for warning in warnings_in(stack) if "lacks" in warning]


def test_every_row_is_a_stack_and_they_share_one() -> None:
    assert set(matrix_templates()) == {"dr-shared", *(row.stack_id for row in MATRIX)}


@ROWS
def test_a_row_is_deployed_as_it_says(row: Deployment) -> None:
    template = matrix_templates()[row.stack_id]
    told = outputs(template)
    assert told["EndpointName"] == row.stack_id
    if row.mode is Mode.LAMBDA:
        _, function = only(template, "AWS::Lambda::Function")
        said = function["Properties"]
        assert (said["FunctionName"], said["MemorySize"]) == (row.stack_id, row.memory_mib)
        assert said["Architectures"] == [{"amd64": "x86_64", "arm64": "arm64"}[row.architecture]]
        assert said["Code"] == {"ImageUri": told["ImageUri"]}
        assert said["Environment"]["Variables"]["DR_MODEL_URL"] == told["ModelDataUrl"]
        assert told["MemoryMiB"] == str(row.memory_mib)
        assert told["FunctionUrl"] == {
            "Fn::GetAtt": [only(template, "AWS::Lambda::Url")[0], "FunctionUrl"]
        }
        return
    assert (
        only(template, "AWS::SageMaker::Endpoint")[1]["Properties"]["EndpointName"] == row.stack_id
    )
    (variant,) = only(template, "AWS::SageMaker::EndpointConfig")[1]["Properties"][
        "ProductionVariants"
    ]
    container = only(template, "AWS::SageMaker::Model")[1]["Properties"]["PrimaryContainer"]
    assert container["Environment"]["DR_SERVING_MODE"] == row.mode.value
    assert container["ModelDataUrl"] == told["ModelDataUrl"]
    assert container["Image"] == told["ImageUri"]
    if row.mode is Mode.SERVERLESS:
        assert told["MemoryMiB"] == str(row.memory_mib)
        assert variant["ServerlessConfig"]["MemorySizeInMB"] == row.memory_mib
        assert "InstanceType" not in told
    else:
        assert told["InstanceType"] == variant["InstanceType"] == row.instance_type
        assert "MemoryMiB" not in told


@ROWS
def test_a_row_serves_its_package_by_digest(row: Deployment) -> None:
    spec = load_model_spec(model_root() / row.package)
    url = json.dumps(outputs(matrix_templates()[row.stack_id])["ModelDataUrl"])
    assert f"/models/{row.package}/{spec.sha256}.tar.gz" in url


@ROWS
def test_a_row_runs_the_image_of_its_architecture(row: Deployment) -> None:
    shared = outputs(matrix_templates()["dr-shared"])
    name = {"amd64": "ImageUri", "arm64": "ImageUriArm64"}[row.architecture]
    assert outputs(matrix_templates()[row.stack_id])["ImageUri"] == shared[name]
    assert shared["ImageUri"] != shared["ImageUriArm64"]


@ROWS
def test_a_row_whose_package_is_elsewhere_says_how_to_bring_it(row: Deployment) -> None:
    warnings = warnings_of(matrix_app(), row.stack_id)
    if row.model == "mobilenet":
        assert warnings == []
        return
    (warning,) = warnings
    assert "model_artifacts/vgg19-demo lacks model.tflite" in warning
    assert "`python -m make_vgg19`" in warning
    assert "deploy dr-shared" in warning
    assert "`dr model push model_artifacts/vgg19-demo`" in warning


def test_the_shared_stack_copies_the_packages_that_are_here() -> None:
    template = matrix_templates()["dr-shared"]
    _, copy = only(template, "Custom::CDKBucketDeployment")
    assert copy["Properties"]["DestinationBucketKeyPrefix"] == "models/mobilenet-demo"
    assert "Ref" in outputs(template)["ModelBucketName"]


def test_an_experiment_is_removed_whole_unless_it_is_to_be_kept() -> None:
    buckets = resources(matrix_templates()["dr-shared"], "AWS::S3::Bucket").values()
    assert [bucket["DeletionPolicy"] for bucket in buckets] == ["Delete", "Delete"]
    kept = synthesize(built_app(image="source-digest", models="vgg19", retain="true"))["dr-shared"]
    buckets = resources(kept, "AWS::S3::Bucket").values()
    assert [bucket["DeletionPolicy"] for bucket in buckets] == ["Retain", "Retain"]
    assert resources(kept, "Custom::S3AutoDeleteObjects") == {}


def test_a_source_digest_needs_no_docker_and_changes_no_endpoint() -> None:
    assert all(platforms == set() for platforms in docker_images(matrix_app()).values())
    built = built_app(image="build")
    templates = synthesize(built)
    assert docker_images(built)["dr-shared"] == {"linux/amd64", "linux/arm64"}
    for row in MATRIX:
        assert templates[row.stack_id] == matrix_templates()[row.stack_id]


def test_serverless_rows_alone_need_one_image() -> None:
    app = built_app(modes="serverless", models="mobilenet")
    assert docker_images(app)["dr-shared"] == {"linux/amd64"}


def test_the_build_is_told_how_to_put_the_image_out() -> None:
    output = "type=docker,oci-mediatypes=false"
    told = {"docker-outputs": output, "models": "mobilenet", "modes": "serverless"}
    built, unbuilt = built_app(**told), built_app(**told, image="source-digest")
    manifest = json.loads(Path(built.synth().directory, "dr-shared.assets.json").read_text())
    (image,) = manifest["dockerImages"].values()
    assert image["source"]["dockerOutputs"] == [output]
    # It is part of the image's name, with Docker and without.
    names = [outputs(synthesize(app)["dr-shared"])["ImageUri"] for app in (built, unbuilt)]
    assert names[0] == names[1] != outputs(matrix_templates()["dr-shared"])["ImageUri"]


def test_a_stage_has_stacks_and_endpoints_of_its_own() -> None:
    templates = synthesize(
        built_app(stage="ana", models="mobilenet", modes="realtime", image="source-digest")
    )
    rows = [row for row in MATRIX if (row.model, row.mode) == ("mobilenet", Mode.REALTIME)]
    assert set(templates) == {"dr-ana-shared", *(row.stack_id_in("ana") for row in rows)}
    for name, template in templates.items():
        if name != "dr-ana-shared":
            assert outputs(template)["EndpointName"] == name
            assert "dr-ana-shared:" in json.dumps(template)


def test_a_local_aws_is_asked_for_nothing_that_it_cannot_do() -> None:
    templates = synthesize(
        built_app(
            local="true",
            publish="external",
            image="source-digest",
            # It runs no functions, and `dr local deploy` says so.
            modes="serverless,realtime",
        )
    )
    for template in templates.values():
        assert "Rules" not in template
        assert "Parameters" not in template
        kinds = {resource["Type"] for resource in template["Resources"].values()}
        assert not any(kind.startswith("Custom::") for kind in kinds)
        assert "AWS::Lambda::Function" not in kinds


def test_endpoints_are_deployed_after_what_they_share() -> None:
    for row in MATRIX:
        stack = matrix_app().node.find_child(row.stack_id)
        assert isinstance(stack, EndpointStack)
        assert [dependency.node.id for dependency in stack.dependencies] == ["dr-shared"]


def test_an_account_is_used_when_the_command_line_names_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import app

    monkeypatch.setenv("CDK_DEFAULT_ACCOUNT", "123456789012")
    monkeypatch.setenv("CDK_DEFAULT_REGION", "sa-east-1")
    made = app.build(
        new_app(context={"image": "source-digest", "models": "vgg19", "modes": "serverless"}),
        model_root=model_root(),
    )
    uri = outputs(synthesize(made)["dr-shared"])["ImageUri"]
    assert "123456789012.dkr.ecr.sa-east-1." in json.dumps(uri)


def test_a_package_without_a_description_is_refused(tmp_path: Path) -> None:
    import app

    make_package(tmp_path, "mobilenet-demo")
    with pytest.raises(ModelPackageError, match=r"no model\.json in .*vgg19-demo"):
        app.build(new_app(context={"image": "source-digest"}), model_root=tmp_path)


def test_a_wrong_context_ends_the_app_with_one_sentence(repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, "app.py"],
        cwd=repository,
        env={
            "PATH": str(Path(sys.executable).parent),
            "CDK_CONTEXT_JSON": json.dumps({"modes": "batch"}),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert (
        done.stderr.strip() == "app.py: modes must be of serverless, realtime, lambda; got 'batch'"
    )
