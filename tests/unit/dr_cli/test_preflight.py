"""`dr preflight`: what an account does not allow is said before anything is deployed."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import boto3
import pytest
from aws_cdk import aws_ecr as ecr
from botocore.stub import Stubber
from moto import mock_aws

from constructs_lib import (
    InferenceImage,
    InferenceImageRepo,
    LambdaDREndpoint,
    RealtimeDREndpoint,
    Scaling,
    ServerlessDREndpoint,
)
from constructs_lib.image_copy.index import DOCKER_MANIFEST, OCI_MANIFEST
from dr_cli.assembly import PlannedStack, read_assembly
from dr_cli.errors import CommandError
from dr_cli.findings import Finding, Level
from dr_cli.preflight import findings
from tests.constructs_fixtures import ACCOUNT, REGION, an_artifact, an_image, make_context, new_app

SAGEMAKER_QUOTAS = {
    "ml.m5.xlarge for endpoint usage": 4.0,
    "ml.c7g.xlarge for endpoint usage": 0.0,
    "Maximum total concurrency that can be allocated across all serverless endpoints": 10.0,
}


class Account:
    """An account in memory; Service Quotas, which moto lacks, as the service's model has it."""

    def __init__(self, quotas: dict[str, float]) -> None:
        self._quotas = quotas
        self.sagemaker = boto3.client("sagemaker", region_name=REGION)
        self.ecr = boto3.client("ecr", region_name=REGION)

    def client(self, service: str) -> Any:
        client = boto3.client(service, region_name=REGION)
        if service == "service-quotas":
            stub = Stubber(client)
            listed = [
                {"ServiceCode": "sagemaker", "QuotaName": name, "Value": value}
                for name, value in self._quotas.items()
            ]
            asked = {"ServiceCode": "sagemaker"}
            zero = [{**it, "Value": 0.0} for it in listed]
            stub.add_response("list_aws_default_service_quotas", {"Quotas": zero}, asked)
            stub.add_response("list_service_quotas", {"Quotas": listed}, asked)
            stub.activate()
        return client


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with mock_aws():
        account = Account(SAGEMAKER_QUOTAS)
        boto3.client("ssm", region_name=REGION).put_parameter(
            Name="/cdk-bootstrap/hnb659fds/version", Value="28", Type="String"
        )
        yield account


@pytest.fixture(scope="module")
def assembly() -> Path:
    """A user's app: a serverless endpoint, and two on instances of either processor."""
    app = new_app()
    env = cdk.Environment(account=ACCOUNT, region=REGION)
    serverless = cdk.Stack(app, "Serverless", env=env)
    ServerlessDREndpoint(
        serverless,
        "Endpoint",
        model=an_artifact(serverless),
        image=an_image(),
        memory_mib=2048,
        max_concurrency=8,
    )
    for name, instance_type, architecture in (
        ("X86", "ml.m5.xlarge", "amd64"),
        ("Graviton", "ml.c7g.xlarge", "arm64"),
    ):
        stack = cdk.Stack(app, name, env=env)
        RealtimeDREndpoint(
            stack,
            "Endpoint",
            model=an_artifact(stack),
            image=an_image(architecture=architecture),
            instance_type=instance_type,
            endpoint_name=f"dr-{name.lower()}",
        )
    return Path(app.synth().directory)


def told(account: Account, stacks: list[PlannedStack]) -> dict[str, Finding]:
    """Findings by subject; of several about one subject, the worst."""
    order = [Level.GOOD, Level.UNKNOWN, Level.FAULT]
    found: dict[str, Finding] = {}
    for it in findings(stacks, region=REGION, client_of=account.client, docker="29.0"):
        worst = found.get(it.subject)
        if worst is None or order.index(it.level) > order.index(worst.level):
            found[it.subject] = it
    return found


def push(account: Account, *, media_type: str = DOCKER_MANIFEST, tag: str = "pushed") -> str:
    """An image in the repository `dr/serving`; its digest."""
    if not account.ecr.describe_repositories()["repositories"]:
        account.ecr.create_repository(repositoryName="dr/serving")
    manifest = {
        "schemaVersion": 2,
        "mediaType": media_type,
        "config": {"mediaType": "config", "size": 1, "digest": f"sha256:{'0' * 64}"},
        "layers": [],
    }
    put = account.ecr.put_image(
        repositoryName="dr/serving",
        imageManifest=json.dumps(manifest),
        imageManifestMediaType=media_type,
        imageTag=tag,
    )
    return str(put["image"]["imageId"]["imageDigest"])


def test_the_assembly_says_what_the_stacks_ask_for(assembly: Path) -> None:
    planned = {stack.name: stack for stack in read_assembly(assembly, [])}
    assert set(planned) == {"Serverless", "X86", "Graviton"}
    assert planned["Serverless"].concurrency == 8
    assert planned["X86"].instances == {"ml.m5.xlarge": 1}
    assert planned["X86"].endpoint_names == ("dr-x86",)
    assert [image.architecture for image in planned["Graviton"].images] == ["arm64"]
    assert planned["X86"].bootstrap_version == 6
    assert [it.name for it in read_assembly(assembly, ["X86"])] == ["X86"]


def test_a_folder_without_an_app_and_a_name_that_is_not_in_it_are_mistakes(
    assembly: Path, tmp_path: Path
) -> None:
    with pytest.raises(CommandError, match="npx cdk synth"):
        read_assembly(tmp_path, [])
    with pytest.raises(CommandError, match="it holds: Graviton, Serverless, X86"):
        read_assembly(assembly, ["Arm"])


def test_an_account_that_allows_all_has_no_fault(account: Account, assembly: Path) -> None:
    found = told(account, read_assembly(assembly, ["Serverless", "X86"]))
    assert found["bootstrap"].text == "version 28"
    assert found["region"].level is Level.GOOD
    assert found["serverless concurrency"].text == (
        "8 containers at once wanted, 0 in use, 10 allowed"
    )
    assert found["ml.m5.xlarge for endpoint usage"].level is Level.GOOD


def test_a_quota_of_nothing_is_a_fault_with_the_page_to_ask_on(
    account: Account, assembly: Path
) -> None:
    found = told(account, read_assembly(assembly, ["Graviton"]))
    quota = found["ml.c7g.xlarge for endpoint usage"]
    assert quota.level is Level.FAULT
    assert quota.text == "1 instances wanted, 0 in use, 0 allowed"
    assert f"https://{REGION}.console.aws.amazon.com/servicequotas" in quota.fix


def test_what_runs_already_counts_and_what_is_replaced_does_not(
    account: Account, assembly: Path
) -> None:
    sagemaker = account.sagemaker
    role = f"arn:aws:iam::{ACCOUNT}:role/x"
    sagemaker.create_model(
        ModelName="m", ExecutionRoleArn=role, PrimaryContainer={"Image": "image"}
    )
    sagemaker.create_endpoint_config(
        EndpointConfigName="c",
        ProductionVariants=[
            {
                "VariantName": "v",
                "ModelName": "m",
                "InstanceType": "ml.m5.xlarge",
                "InitialInstanceCount": 3,
            }
        ],
    )
    sagemaker.create_endpoint(EndpointName="dr-x86", EndpointConfigName="c")
    stacks = read_assembly(assembly, ["X86"])
    name = "ml.m5.xlarge for endpoint usage"
    assert "0 in use" in told(account, stacks)[name].text
    sagemaker.create_endpoint(EndpointName="other", EndpointConfigName="c")
    tight = told(account, stacks)[name]
    # Three of the other endpoint, one now; an update would take a fifth.
    assert (tight.level, "5 of 4" in tight.text) == (Level.UNKNOWN, True)
    sagemaker.create_endpoint(EndpointName="third", EndpointConfigName="c")
    assert told(account, stacks)[name].level is Level.FAULT


def test_a_region_that_is_not_bootstrapped_is_a_fault(account: Account, assembly: Path) -> None:
    ssm = boto3.client("ssm", region_name=REGION)
    stacks = read_assembly(assembly, ["X86"])
    ssm.put_parameter(
        Name="/cdk-bootstrap/hnb659fds/version", Value="5", Type="String", Overwrite=True
    )
    assert told(account, stacks)["bootstrap"].text == "version 5, and the stacks need 6"
    ssm.delete_parameter(Name="/cdk-bootstrap/hnb659fds/version")
    missing = told(account, stacks)["bootstrap"]
    assert missing.level is Level.FAULT
    assert missing.fix == f"npx cdk bootstrap aws://{ACCOUNT}/{REGION}"


def test_stacks_of_another_account_and_a_region_without_sagemaker_are_faults(
    account: Account, assembly: Path
) -> None:
    from dataclasses import replace

    stacks = [replace(stack, account="999999999999") for stack in read_assembly(assembly, ["X86"])]
    assert "the credentials are of 123456789012" in told(account, stacks)["account"].text
    from dr_cli.preflight import _region_findings

    (finding,) = _region_findings("eu-nowhere-1")
    assert finding.level is Level.FAULT


@pytest.mark.parametrize("media_type", [DOCKER_MANIFEST, OCI_MANIFEST])
def test_an_image_is_looked_at_in_the_registry(
    account: Account, assembly: Path, media_type: str
) -> None:
    from dataclasses import replace

    (stack,) = read_assembly(assembly, ["X86"])
    subject = "image of X86"
    absent = told(account, [stack])[subject]
    assert absent.level is Level.FAULT
    assert "has no image sha256:1212" in absent.text
    digest = push(account, media_type=media_type)
    (image,) = stack.images
    uri = f"{image.uri.partition('@')[0]}@{digest}"
    found = told(account, [replace(stack, images=(replace(image, uri=uri),))])[subject]
    if media_type == DOCKER_MANIFEST:
        # moto keeps no layers, so that the processor cannot be read there.
        assert found.level is Level.UNKNOWN
    else:
        assert found.level is Level.FAULT
        assert "a manifest that SageMaker refuses" in found.text
        assert "docker-outputs=type=docker,oci-mediatypes=false" in found.fix


def test_images_that_the_deployment_builds_need_docker(account: Account, assembly: Path) -> None:
    from dataclasses import replace

    (stack,) = read_assembly(assembly, ["X86"])
    (image,) = stack.images
    uri = f"{image.uri.partition('@')[0]}:{'ab' * 32}"
    to_build = replace(stack, images=(replace(image, uri=uri),), built_tags=frozenset({"ab" * 32}))
    for engine, level in (("29.0", Level.GOOD), (None, Level.FAULT)):
        found = {
            it.subject: it
            for it in findings([to_build], region=REGION, client_of=account.client, docker=engine)
        }
        assert found["Docker"].level is level


def test_the_processor_is_read_from_the_image_itself(
    assembly: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from dr_cli import preflight

    config = tmp_path / "config.json"
    config.write_text(json.dumps({"architecture": "arm64"}))
    (stack,) = read_assembly(assembly, ["X86"])
    (image,) = stack.images
    match = preflight._IMAGE.fullmatch(image.uri)
    assert match is not None
    manifest = {"mediaType": DOCKER_MANIFEST, "config": {"digest": "sha256:12"}, "layers": []}

    class Ecr:
        def batch_get_image(self, **_: Any) -> Any:
            return {"images": [{"imageManifest": json.dumps(manifest)}]}

        def get_download_url_for_layer(self, **_: Any) -> Any:
            return {"downloadUrl": config.as_uri()}

    finding = preflight._image_finding(image, match, ACCOUNT, Ecr())
    assert finding is not None
    assert finding.text == "is for arm64, and the endpoint runs on amd64"


@pytest.fixture(scope="module")
def unusual() -> Path:
    """An app with a stage, a stack under another name, a nested stack, a function, parameters."""
    # As the command line has it: where the template of a nested stack lies.
    app = new_app(context={"aws:cdk:enable-asset-metadata": True})
    env = cdk.Environment(account=ACCOUNT, region=REGION)
    stack = cdk.Stack(cdk.Stage(app, "Prod", env=env), "Clinic", stack_name="clinic-prod")
    count = cdk.CfnParameter(stack, "Count", type="Number").value_as_number
    most = cdk.CfnParameter(stack, "Most", type="Number").value_as_number
    model = an_artifact(stack)
    graviton = an_image(architecture="arm64", digest="34" * 32)
    RealtimeDREndpoint(
        stack,
        "Graviton",
        model=model,
        image=graviton,
        instance_type="ml.c7g.xlarge",
        initial_instance_count=2,
        scaling=Scaling(min_capacity=2, max_capacity=6, invocations_per_instance=60),
    )
    RealtimeDREndpoint(
        stack,
        "X86",
        model=model,
        image=an_image(),
        instance_type="ml.m5.xlarge",
        initial_instance_count=count,
        scaling=Scaling(min_capacity=1, max_capacity=most, invocations_per_instance=60),
    )
    nested = cdk.NestedStack(stack, "Nested")
    ServerlessDREndpoint(nested, "Small", model=model, image=an_image(), memory_mib=2048)
    LambdaDREndpoint(
        nested,
        "Function",
        model=model,
        image=graviton,
        memory_mib=1024,
        max_concurrency=7,
        endpoint_name="dr-function",
    )
    return Path(app.synth().directory)


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An app whose images are copied into repositories: of a stack, and one of the user's own."""
    app = new_app(context={"aws:cdk:enable-asset-metadata": True})
    context = make_context(tmp_path_factory.mktemp("service"))
    env = cdk.Environment(account=ACCOUNT, region=REGION)
    shared = cdk.Stack(app, "Shared", env=env, stack_name="clinic-shared")
    clinic = cdk.Stack(
        app, "Clinic", env=env, synthesizer=cdk.DefaultStackSynthesizer(docker_tag_prefix="dr-")
    )
    theirs = ecr.Repository.from_repository_name(clinic, "Repository", "dr/serving")

    def image_of(stack: cdk.Stack, name: str, **props: Any) -> InferenceImage:
        repo = InferenceImageRepo(stack, name, directory=context, **props)
        return repo.image(architecture="amd64")

    images = {
        "Shared": image_of(shared, "Images", own_repository=True),
        "Own": image_of(clinic, "Images", own_repository=True),
        "Theirs": image_of(clinic, "Copies", repository=theirs),
        "Existing": InferenceImage.from_repository(
            theirs, digest=f"sha256:{'56' * 32}", architecture="amd64"
        ),
    }
    model = an_artifact(clinic)
    nested = cdk.NestedStack(clinic, "Nested")
    for name, image in images.items():
        ServerlessDREndpoint(clinic, f"On{name}", model=model, image=image, memory_mib=2048)
        LambdaDREndpoint(nested, name, model=model, image=image, memory_mib=1024)
    return Path(app.synth().directory)


def test_an_image_is_found_in_the_repository_that_a_stack_makes(copied: Path) -> None:
    clinic, _ = read_assembly(copied, [])
    assert clinic.name == "Clinic"
    found = {
        service: sorted(
            it.repository.stack if it.repository else it.uri.partition("/")[2].partition(":")[0]
            for it in clinic.images
            if it.service == service
        )
        for service in ("SageMaker", "Lambda")
    }
    # By its export, by its reference, and nested by the parameters of the nested stack.
    expected = ["Clinic", "clinic-shared", "dr/serving", "dr/serving@sha256"]
    assert found == {"SageMaker": expected, "Lambda": expected}


def test_before_the_first_deployment_such_images_are_to_be_built(
    account: Account, copied: Path
) -> None:
    stacks = read_assembly(copied, [])
    account.ecr.create_repository(repositoryName="dr/serving")
    found = told(account, stacks)
    assert found["Docker"].level is Level.GOOD
    # The one that no deployment builds is missed.
    assert "dr/serving has no image sha256:5656" in found["image of Clinic"].text
    asked = findings(stacks, region=REGION, client_of=account.client, docker="29", pushed=True)
    missed = [it.text for it in asked if it.level is Level.FAULT and "image" in it.subject]
    for stack in ("Clinic", "clinic-shared"):
        words = f"the repository of the stack {stack}, which is not there yet, has no image"
        assert any(it.startswith(words) for it in missed)


@pytest.mark.parametrize("media_type", [DOCKER_MANIFEST, OCI_MANIFEST])
def test_once_deployed_such_an_image_is_judged(
    account: Account, copied: Path, media_type: str
) -> None:
    clinic, _ = read_assembly(copied, [])
    image = next(
        it
        for it in clinic.images
        if it.service == "SageMaker" and it.repository and it.repository.stack == "clinic-shared"
    )
    assert image.repository is not None
    template = {
        "Resources": {
            image.repository.logical_id: {
                "Type": "AWS::ECR::Repository",
                "Properties": {"RepositoryName": "dr/serving"},
            }
        }
    }
    cloudformation = boto3.client("cloudformation", region_name=REGION)
    cloudformation.create_stack(StackName="clinic-shared", TemplateBody=json.dumps(template))
    push(account, media_type=media_type, tag=image.uri.rpartition(":")[2])
    only = dataclasses.replace(clinic, images=(image,))
    finding = told(account, [only])["image of Clinic"]
    if media_type == DOCKER_MANIFEST:
        assert (finding.level, finding.text.partition(";")[0]) == (Level.UNKNOWN, "is there")
    else:
        assert (finding.level, "that SageMaker refuses" in finding.text) == (Level.FAULT, True)


@pytest.mark.parametrize("name", ["Prod/Clinic", "clinic-prod", "ProdClinic6B8B9B1F"])
def test_a_stack_is_found_by_each_of_its_names(unusual: Path, name: str) -> None:
    if name.startswith("ProdClinic"):
        # What the manifest of the stage calls it.
        (manifest,) = unusual.glob("assembly-*/manifest.json")
        artifacts = json.loads(manifest.read_text())["artifacts"]
        (name,) = (key for key, it in artifacts.items() if it["type"] == "aws:cloudformation:stack")
    (stack,) = read_assembly(unusual, [name])
    assert stack.name == "Prod/Clinic"


def test_every_endpoint_of_a_stack_is_counted_by_itself(unusual: Path) -> None:
    (stack,) = read_assembly(unusual, [])
    # Scaling may grow the one to six; of the other only the deployment knows how many.
    assert stack.instances == {"ml.c7g.xlarge": 6, "ml.m5.xlarge": 1}
    assert stack.concurrency == 5
    assert stack.reserved == {"dr-function": 7}
    assert sorted((it.architecture, it.service) for it in stack.images) == [
        ("amd64", "SageMaker"),
        ("amd64", "SageMaker"),
        ("arm64", "Lambda"),
        ("arm64", "SageMaker"),
    ]


def test_functions_take_oci_manifests_and_sagemaker_does_not(
    account: Account, unusual: Path
) -> None:
    from dataclasses import replace

    digest = push(account, media_type=OCI_MANIFEST)
    (stack,) = read_assembly(unusual, [])
    for service, level in (("Lambda", Level.UNKNOWN), ("SageMaker", Level.FAULT)):
        image = next(it for it in stack.images if it.service == service)
        uri = f"{image.uri.partition('@')[0]}@{digest}"
        pushed = replace(stack, images=(replace(image, uri=uri),))
        assert told(account, [pushed])["image of Prod/Clinic"].level is level


def test_once_pushed_an_image_must_be_there(account: Account, assembly: Path) -> None:
    from dataclasses import replace

    (stack,) = read_assembly(assembly, ["X86"])
    (image,) = stack.images
    uri = f"{image.uri.partition('@')[0]}:{'ab' * 32}"
    built = replace(stack, images=(replace(image, uri=uri),), built_tags=frozenset({"ab" * 32}))
    for pushed, level in ((False, None), (True, Level.FAULT)):
        found = {
            it.subject: it.level
            for it in findings(
                [built], region=REGION, client_of=account.client, docker="29.0", pushed=pushed
            )
        }
        assert found.get("image of X86") is level


def test_the_role_of_the_pipeline_may_ask_what_preflight_asks(
    account: Account, assembly: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from botocore.client import BaseClient

    asked = set()
    call = BaseClient._make_api_call

    def recorded(self: Any, operation: str, arguments: Any) -> Any:
        service = self.meta.service_model.service_name.replace("-", "")
        asked.add(f"{service}:{operation}")
        return call(self, operation, arguments)

    push(account)
    monkeypatch.setattr(BaseClient, "_make_api_call", recorded)
    told(account, read_assembly(assembly, []))
    assert len(asked) >= 6
    page = (repository / "docs" / "pipeline.md").read_text()
    # Who one is may be asked without a permission.
    absent = {it for it in asked - {"sts:GetCallerIdentity"} if f'"{it}"' not in page}
    assert absent == set()
