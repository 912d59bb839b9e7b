"""Images: built for the right processor, from the right files, under a name that tells."""

import json
import os
import re
import shutil
from pathlib import Path

import aws_cdk as cdk
import pytest
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms

from constructs_lib import InferenceImage, InferenceImageRepo, ValidationError
from tests.constructs_fixtures import (
    ACCOUNT,
    HOME,
    REGION,
    a_repo,
    make_context,
    manifest_of,
    new_app,
    new_stack,
    only,
    resources,
    statements,
    template_of,
)

DIGEST = "sha256:" + "12" * 32
URI = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/dr/serving@{DIGEST}"


@pytest.fixture
def context(tmp_path: Path) -> Path:
    return make_context(tmp_path / "context")


def hash_of(context: Path, architecture: str = "amd64") -> str:
    stack = new_stack()
    a_repo(stack, context).image(architecture=architecture)
    (name,) = manifest_of(stack)["dockerImages"]
    return str(name)


def test_a_folder_without_a_dockerfile_and_an_unknown_source_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError) as caught:
        InferenceImageRepo(new_stack(), "Images", source="pull", directory=tmp_path)  # type: ignore[arg-type]
    assert "build, source-digest; got 'pull'" in str(caught.value)
    assert "no" in str(caught.value)
    assert "Dockerfile" in str(caught.value)


@pytest.mark.parametrize(
    ("props", "words"),
    [
        ({"architecture": "aarch64"}, "architecture must be one of amd64, arm64; got 'aarch64'"),
        (
            {"architecture": "amd64", "runtime": "torch"},
            "runtime must be one of litert, tensorflow; got 'torch'",
        ),
    ],
)
def test_an_image_that_nobody_can_build_is_refused(
    context: Path, props: dict[str, str], words: str
) -> None:
    with pytest.raises(ValidationError, match=words):
        a_repo(new_stack(), context).image(**props)


@pytest.mark.parametrize(
    "uri",
    [
        f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/dr/serving:latest",
        f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/dr/serving",
        f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/dr/serving@sha256:12",
        f"docker.io/dr/serving@{DIGEST}",
    ],
)
def test_a_uri_that_may_come_to_mean_something_else_is_refused(uri: str) -> None:
    with pytest.raises(ValidationError, match="uri must be <account>"):
        InferenceImage.from_uri(uri, architecture="amd64")


@pytest.mark.parametrize(
    "uri", ["nginx:latest", "nginx", "nginx@sha256:12", f"nginx:{'12' * 32}-1", ""]
)
def test_an_image_whose_name_can_move_is_no_image(uri: str) -> None:
    arn = "arn:aws:ecr:eu-west-1:123456789012:repository/nginx"
    with pytest.raises(ValidationError, match=r"uri must end in @sha256:<digest>"):
        InferenceImage(uri=uri, repository_arn=arn, architecture="amd64")


def test_every_fault_of_an_image_is_told() -> None:
    with pytest.raises(ValidationError) as caught:
        InferenceImage(uri="nginx:latest", repository_arn="arn", architecture="x86")
    assert len(caught.value.faults) == 2


@pytest.mark.parametrize("tail", [f"@{DIGEST}", f":{'12' * 32}", f":clinic-{'12' * 32}"])
def test_an_image_is_named_by_its_digest_or_its_source(tail: str) -> None:
    uri = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/dr{tail}"
    assert InferenceImage(uri=uri, repository_arn="arn", architecture="amd64").uri == uri


def test_an_image_that_only_the_deployment_knows_is_not_judged() -> None:
    parameter = cdk.CfnParameter(new_stack(), "Image").value_as_string
    image = InferenceImage(uri=parameter, repository_arn="arn", architecture="amd64")
    assert image.uri == parameter
    # What follows the token is known, and a tag.
    with pytest.raises(ValidationError, match="other tags can move"):
        InferenceImage(uri=f"{parameter}:v1", repository_arn="arn", architecture="amd64")


def test_a_uri_that_sagemaker_cannot_hold_is_refused() -> None:
    long = URI.replace("dr/serving", "dr/" + "serving" * 30)
    with pytest.raises(ValidationError, match="at most 255 characters"):
        InferenceImage.from_uri(long, architecture="amd64")


def test_a_tag_for_a_digest_is_refused() -> None:
    repository = ecr.Repository.from_repository_name(new_stack(), "Theirs", "dr/serving")
    with pytest.raises(ValidationError, match="a tag can move"):
        InferenceImage.from_repository(repository, digest="v1", architecture="amd64")


def test_an_existing_image_is_named_by_its_digest() -> None:
    stack = new_stack()
    repository = ecr.Repository.from_repository_name(stack, "Theirs", "dr/serving")
    image = InferenceImage.from_repository(repository, digest=DIGEST, architecture="arm64")
    assert image.uri.endswith(f"dr/serving@{DIGEST}")
    assert image.architecture == "arm64"


@pytest.mark.parametrize("env", [None, HOME], ids=["any account", "one account"])
def test_a_repository_knows_its_account_and_region_where_they_are_known(
    env: cdk.Environment | None,
) -> None:
    stack = new_stack(env=env)
    theirs = ecr.Repository.from_repository_arn(
        stack, "Theirs", "arn:aws:ecr:sa-east-1:999999999999:repository/dr/serving"
    )
    own = ecr.Repository.from_repository_name(stack, "Own", "dr/serving")
    known = [
        InferenceImage.from_repository(repository, digest=DIGEST, architecture="amd64")
        for repository in (theirs, own)
    ]
    assert (known[0].account, known[0].region) == ("999999999999", "sa-east-1")
    expected = (None, None) if env is None else (ACCOUNT, REGION)
    assert (known[1].account, known[1].region) == expected


def test_a_uri_knows_its_account_region_and_repository() -> None:
    image = InferenceImage.from_uri(URI, architecture="amd64")
    assert (image.account, image.region) == (ACCOUNT, REGION)
    assert image.repository_arn.endswith(f":ecr:{REGION}:{ACCOUNT}:repository/dr/serving")


@pytest.mark.parametrize("architecture", ["amd64", "arm64"])
def test_the_build_is_told_its_platform_and_runtime(context: Path, architecture: str) -> None:
    stack = new_stack()
    a_repo(stack, context).image(architecture=architecture)
    (image,) = manifest_of(stack)["dockerImages"].values()
    assert image["source"]["platform"] == f"linux/{architecture}"
    assert image["source"]["dockerBuildArgs"] == {"RUNTIME": "litert"}


def test_each_runtime_is_an_image_of_its_own(context: Path) -> None:
    stack = new_stack()
    repo = a_repo(stack, context)
    uris = {repo.image(architecture="arm64", runtime=name).uri for name in ("litert", "tensorflow")}
    assert len(uris) == 2
    built = manifest_of(stack)["dockerImages"].values()
    assert {image["source"]["dockerBuildArgs"]["RUNTIME"] for image in built} == {
        "litert",
        "tensorflow",
    }


def test_the_engine_puts_the_image_out_as_it_likes(context: Path) -> None:
    stack = new_stack()
    a_repo(stack, context).image(architecture="amd64")
    (image,) = manifest_of(stack)["dockerImages"].values()
    # BuildKit in Debian's engine ends with: exporter "docker" could not be found.
    assert "dockerOutputs" not in image["source"]


def test_a_builder_of_its_own_can_be_told_to_hand_the_image_over(context: Path) -> None:
    stack = new_stack()
    outputs = ("type=docker,oci-mediatypes=false",)
    a_repo(stack, context, docker_outputs=outputs).image(architecture="amd64")
    ((name, image),) = manifest_of(stack)["dockerImages"].items()
    assert image["source"]["dockerOutputs"] == list(outputs)
    # The way out is part of the name, so that changing it builds and pushes anew.
    assert name != hash_of(context)


def test_the_pinned_command_line_builds_without_attestations(repository: Path) -> None:
    """With them the registry would hold an image index, which SageMaker and Lambda refuse."""
    cli = (repository / "node_modules" / "aws-cdk" / "lib" / "index.js").read_text()
    assert re.search(r'BUILDX_NO_DEFAULT_ATTESTATIONS: *"1"', cli)


def test_each_architecture_is_an_image_of_its_own(context: Path) -> None:
    assert hash_of(context, "amd64") != hash_of(context, "arm64")


def test_an_image_asked_for_twice_is_built_once(context: Path) -> None:
    stack = new_stack()
    repo = a_repo(stack, context)
    assert repo.image(architecture="amd64") is repo.image(architecture="amd64")
    assert len(manifest_of(stack)["dockerImages"]) == 1


def test_caches_and_clocks_do_not_make_a_new_image(context: Path) -> None:
    before = hash_of(context)
    for folder in (context, context / "runtimes"):
        (folder / "__pycache__").mkdir()
        (folder / "__pycache__" / "serve.cpython-311.pyc").write_bytes(b"cache")
    os.utime(context / "serve.py", (1, 1))
    (context / "notes.txt").write_text("not in the allow-list")
    assert hash_of(context) == before


def test_a_changed_source_makes_a_new_image(context: Path) -> None:
    before = hash_of(context)
    (context / "runtimes" / "litert.py").write_text("print('faster')\n")
    assert hash_of(context) != before


def test_a_copy_elsewhere_is_the_same_image(context: Path, tmp_path: Path) -> None:
    shutil.copytree(context, tmp_path / "elsewhere")
    assert hash_of(tmp_path / "elsewhere") == hash_of(context)


def test_the_context_holds_the_allowed_files_and_not_its_own_output(context: Path) -> None:
    app = cdk.App(outdir=str(context / "cdk.out"), analytics_reporting=False)
    stack = cdk.Stack(app, "Stack", env=HOME)
    a_repo(stack, context).image(architecture="amd64")
    (image,) = manifest_of(stack)["dockerImages"].values()
    staged = Path(app.outdir, image["source"]["directory"])
    names = {str(path.relative_to(staged)) for path in staged.rglob("*") if path.is_file()}
    assert names == {"Dockerfile", ".dockerignore", "serve.py", "runtimes/litert.py"}


@pytest.mark.parametrize("env", [None, HOME], ids=["any account", "one account"])
@pytest.mark.parametrize("qualifier", [None, "mine"])
def test_unbuilt_images_have_the_name_that_a_build_would_give(
    context: Path, env: cdk.Environment | None, qualifier: str | None
) -> None:
    resolved = []
    for source in ("build", "source-digest"):
        flags = {} if qualifier is None else {"@aws-cdk/core:bootstrapQualifier": qualifier}
        stack = cdk.Stack(new_app(context=flags), "Stack", env=env)
        image = a_repo(stack, context, source=source).image(architecture="arm64")
        resolved.append(stack.resolve([image.uri, image.repository_arn]))
        home = (None, None) if env is None else (ACCOUNT, REGION)
        assert (image.account, image.region) == home
        assert len(manifest_of(stack).get("dockerImages", {})) == (source == "build")
    assert resolved[0] == resolved[1]
    assert (qualifier or "hnb659fds") in json.dumps(resolved[1])


def test_pulling_is_granted_on_one_repository() -> None:
    stack = new_stack()
    role = iam.Role(stack, "Role", assumed_by=iam.ServicePrincipal("sagemaker.amazonaws.com"))
    InferenceImage.from_uri(URI, architecture="amd64").grant_pull(role)
    pull, log_in = statements(template_of(stack))
    assert set(pull["Action"]) == {
        "ecr:BatchCheckLayerAvailability",
        "ecr:BatchGetImage",
        "ecr:GetDownloadUrlForLayer",
    }
    assert "repository/dr/serving" in json.dumps(pull["Resource"])
    assert (log_in["Action"], log_in["Resource"]) == ("ecr:GetAuthorizationToken", "*")


def test_an_image_is_the_same_whatever_the_files_modes_are(context: Path) -> None:
    before = hash_of(context)
    (context / "serve.py").chmod(0o755)
    (context / "runtimes").chmod(0o700)
    assert hash_of(context) == before


def test_what_the_build_is_told(context: Path, tmp_path: Path) -> None:
    stack = new_stack()
    authorities = tmp_path / "ca.pem"
    authorities.write_text("authorities")
    repo = a_repo(
        stack,
        context,
        base_image="python:3.13@sha256:12",
        build_args={"PIP_INDEX_URL": "https://packages.example"},
        certificates=authorities,
    )
    repo.image(architecture="arm64")
    ((name, image),) = manifest_of(stack)["dockerImages"].items()
    source = image["source"]
    assert source["platform"] == "linux/arm64"
    assert source["dockerBuildArgs"] == {
        "BASE_IMAGE": "python:3.13@sha256:12",
        "PIP_INDEX_URL": "https://packages.example",
        "RUNTIME": "litert",
    }
    assert source["dockerBuildSecrets"] == {"ca": f"src={authorities}"}
    # Arguments make another image; where the certificates lie does not.
    elsewhere = new_stack()
    moved = authorities.rename(tmp_path / "moved.pem")
    a_repo(
        elsewhere,
        context,
        base_image="python:3.13@sha256:12",
        build_args={"PIP_INDEX_URL": "https://packages.example"},
        certificates=moved,
    ).image(architecture="arm64")
    assert set(manifest_of(elsewhere)["dockerImages"]) == {name}
    assert hash_of(context, "arm64") != name


def test_builds_and_repositories_that_contradict_themselves_are_refused_together(
    context: Path, tmp_path: Path
) -> None:
    stack = new_stack()
    with pytest.raises(ValidationError) as caught:
        a_repo(
            stack,
            context,
            source="source-digest",
            build_args={"RUNTIME": "litert", "TARGETARCH": "arm64"},
            certificates=tmp_path / "none.pem",
            own_repository=True,
            repository=ecr.Repository.from_repository_name(stack, "Theirs", "dr"),
            max_image_count=1,
        )
    said = str(caught.value)
    for words in (
        "certificates must be a file",
        "build_args may not set RUNTIME: image(runtime=…) does",
        "build_args may not set TARGETARCH",
        "own_repository or repository, and not both",
        "source must be 'build'",
        "max_image_count must be a whole number of at least 2",
    ):
        assert words in said
    with pytest.raises(ValidationError, match="set own_repository=True"):
        InferenceImageRepo(stack, "Other", directory=context, encryption_key=kms.Key(stack, "Key"))


def test_an_own_repository_is_scanned_immutable_and_bounded(context: Path) -> None:
    stack = new_stack()
    key = kms.Key(stack, "Key")
    repo = a_repo(stack, context, own_repository=True, encryption_key=key, max_image_count=9)
    image = repo.image(architecture="arm64")
    template = template_of(stack)
    name, repository = only(template, "AWS::ECR::Repository")
    properties = repository["Properties"]
    assert repository["DeletionPolicy"] == "Retain"
    assert properties["ImageScanningConfiguration"] == {"ScanOnPush": True}
    assert properties["ImageTagMutability"] == "IMMUTABLE"
    assert properties["EncryptionConfiguration"]["EncryptionType"] == "KMS"
    rules = json.loads(properties["LifecyclePolicy"]["LifecyclePolicyText"])["rules"]
    assert [rule["selection"]["tagStatus"] for rule in rules] == ["untagged", "any"]
    assert rules[1]["selection"]["countNumber"] == 9
    (digest,) = manifest_of(stack)["dockerImages"]
    assert str(stack.resolve(image.uri)).count(digest) == 1
    copy_id, copy = only(template, "Custom::DRImageCopy")
    assert copy["Properties"]["Tag"] == digest
    assert copy["Properties"]["Architecture"] == "arm64"
    assert copy["Properties"]["TargetRepository"] == {"Ref": name}
    assert [stack.resolve(it.node.default_child.logical_id) for it in image.dependencies] == [  # type: ignore[attr-defined]
        copy_id
    ]


def test_an_experiments_repository_goes_with_its_images(context: Path) -> None:
    stack = new_stack()
    a_repo(stack, context, own_repository=True, removal_policy=cdk.RemovalPolicy.DESTROY)
    template = template_of(stack)
    _, repository = only(template, "AWS::ECR::Repository")
    assert repository["DeletionPolicy"] == "Delete"
    assert repository["Properties"]["EmptyOnDelete"] is True
    _, logs = only(template, "AWS::Logs::LogGroup")
    assert logs["DeletionPolicy"] == "Delete"


def test_two_images_are_copied_by_one_function_that_may_do_nothing_else(context: Path) -> None:
    stack = new_stack()
    theirs = ecr.Repository.from_repository_name(stack, "Theirs", "clinic/dr")
    repo = a_repo(stack, context, repository=theirs)
    images = [repo.image(architecture=architecture) for architecture in ("amd64", "arm64")]
    assert all("clinic/dr:" in json.dumps(stack.resolve(image.uri)) for image in images)
    template = template_of(stack)
    only(template, "AWS::Lambda::Function")
    assert len(resources(template, "Custom::DRImageCopy")) == 2
    granted = {
        action: statement["Resource"]
        for statement in statements(template)
        for action in (
            [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]
        )
    }
    assert {name for name in granted if name.startswith("ecr:")} == {
        "ecr:BatchCheckLayerAvailability",
        "ecr:BatchGetImage",
        "ecr:CompleteLayerUpload",
        "ecr:GetDownloadUrlForLayer",
        "ecr:InitiateLayerUpload",
        "ecr:PutImage",
        "ecr:UploadLayerPart",
    }
    assert "*" not in granted.values()
    assert "repository/clinic/dr" in json.dumps(granted["ecr:PutImage"])
    assert "container-assets" in json.dumps(granted["ecr:GetDownloadUrlForLayer"])
