"""`dr preflight`: does the account allow what the stacks ask for, before anything is deployed?

It reads the cloud assembly that `cdk synth` wrote, so that it knows the stacks of any app, and asks
the account: who am I, is the region bootstrapped, what do the quotas allow beside what runs
already, is the image there, for the right processor, under a manifest that SageMaker takes. It
changes nothing.
"""

import json
import re
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from constructs_lib import limits
from constructs_lib.image_copy.index import DOCKER_MANIFEST
from dr_cli.console import make_console
from dr_cli.errors import CommandError
from dr_cli.findings import Finding, fault, good, show, unknown
from dr_cli.function_quotas import reserved_findings
from dr_cli.region import aws_region
from dr_cli.template_images import UNKNOWN, ImageName, MadeRepository, Templates

SAGEMAKER: Final = "SageMaker"
LAMBDA: Final = "Lambda"
UNKNOWN_ACCOUNT: Final = "unknown-account"
UNKNOWN_REGION: Final = "unknown-region"
_ENVIRONMENT: Final = re.compile(r"aws://(?P<account>[^/]+)/(?P<region>.+)")
_IMAGE: Final = re.compile(
    r"(?P<registry>[^/]+)/(?P<repository>[^@:]+)(?:@(?P<digest>sha256:[0-9a-f]{64})|:(?P<tag>.+))"
)
# Names in Service Quotas. Instances: one quota for each type. Concurrency: L-96300102.
_INSTANCE_QUOTA: Final = "{instance_type} for endpoint usage"
_CONCURRENCY_QUOTA: Final = re.compile(
    r"total concurrency .*across all serverless endpoints", re.IGNORECASE
)
_QUOTA_PAGE: Final = (
    "https://{region}.console.aws.amazon.com/servicequotas/home/services/sagemaker/quotas"
)
_MANIFEST_HELP: Final = (
    "deploy with -c docker-outputs=type=docker,oci-mediatypes=false, or with own_repository=True "
    "on InferenceImageRepo, whose copy always has the right manifest"
)
# Neither takes an index of several. Lambda: "Create a Lambda function using a container image".
_ACCEPTED: Final = {
    SAGEMAKER: (DOCKER_MANIFEST,),
    LAMBDA: (DOCKER_MANIFEST, "application/vnd.oci.image.manifest.v1+json"),
}
_BLOB_TIMEOUT_S: Final = 30


# Resources of a stack, by file and logical id.
_Resources = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class PlannedImage:
    """An image that a Model or a function refers to, and the processor that will run it."""

    stack: str
    uri: str
    architecture: str
    service: str = SAGEMAKER
    # Where a stack makes the repository that the image is copied into.
    repository: MadeRepository | None = None


@dataclass(frozen=True, kw_only=True)
class PlannedStack:
    """What a synthesized stack asks of the account."""

    name: str
    account: str
    region: str
    bootstrap_version: int | None
    bootstrap_parameter: str | None
    endpoint_names: tuple[str, ...]
    instances: Mapping[str, int]
    concurrency: int
    images: tuple[PlannedImage, ...]
    # Environments that functions reserve, by the functions' names.
    reserved: Mapping[str, int]
    # Tags that the deployment itself builds and pushes.
    built_tags: frozenset[str]


def preflight(
    stacks: Sequence[str], *, assembly: Path, region: str | None, pushed: bool = False
) -> int:
    """Print what was found; returns the number of faults.

    With `pushed`, images that the deployment builds must be there by now.
    """
    import boto3

    planned = read_assembly(assembly, stacks)
    default_region = aws_region(region)
    found: list[Finding] = []
    for stack_region in sorted({stack.region for stack in planned}):
        there = default_region if stack_region == UNKNOWN_REGION else stack_region
        if there is None:
            raise CommandError(
                "the stacks are for any region and no AWS region is set; give --region, for "
                "example --region eu-west-1"
            )
        session = boto3.session.Session(region_name=there)
        chosen = [stack for stack in planned if stack.region == stack_region]
        found += findings(chosen, region=there, client_of=session.client, pushed=pushed)
    faults = show(found, make_console())
    print(f"{len(planned)} stacks of {assembly}: {faults} faults")
    return faults


def findings(
    stacks: Sequence[PlannedStack],
    *,
    region: str,
    client_of: Any,
    docker: str | None = "",
    pushed: bool = False,
) -> Iterator[Finding]:
    """Every finding about `stacks` in one region.

    Args:
        client_of: makes a boto3 client of a service, by its name.
        docker: version of the Docker engine; None for none, and looked up when empty.
        pushed: an image that is to be built is a fault where it is not there yet.
    """
    account = client_of("sts").get_caller_identity()["Account"]
    yield good("credentials", f"account {account}, region {region}")
    others = sorted({s.account for s in stacks} - {account, UNKNOWN_ACCOUNT})
    for other in others:
        names = ", ".join(stack.name for stack in stacks if stack.account == other)
        yield fault(
            "account",
            f"{names} was synthesized for account {other}, and the credentials are of {account}",
            fix=f"use credentials of {other} (AWS_PROFILE=…), or synthesize again with these",
        )
    yield from _region_findings(region)
    yield from _bootstrap_findings(stacks, region, account, client_of("ssm"))
    yield from _quota_findings(stacks, region, client_of)
    reserved = {name: count for stack in stacks for name, count in stack.reserved.items()}
    yield from reserved_findings(reserved, region=region, client=client_of("lambda"))
    yield from _image_findings(stacks, region, account, client_of, docker, pushed=pushed)


def read_assembly(folder: Path, stacks: Sequence[str]) -> list[PlannedStack]:
    """The chosen stacks of a cloud assembly (all of them, where none is named).

    Raises:
        CommandError: the folder holds no assembly, or a name is not in it.
    """
    manifest_file = folder / "manifest.json"
    if not manifest_file.is_file():
        raise CommandError(
            f"{folder} holds no synthesized app; make one with `npx cdk synth`, or name its folder "
            "with --assembly"
        )
    found = _stacks_in(folder)
    absent = [name for name in stacks if not any(name in stack.names for stack in found)]
    if absent:
        known = ", ".join(sorted(stack.names[0] for stack in found))
        raise CommandError(f"{', '.join(absent)} is not in {folder}; it holds: {known}")
    built = frozenset(tag for stack in found for tag in stack.built_tags)
    templates = Templates({stack.template: stack.names[-1] for stack in found})
    return [
        _planned(stack, built, templates)
        for stack in sorted(found, key=lambda stack: stack.names[0])
        if not stacks or any(name in stack.names for name in stacks)
    ]


@dataclass(frozen=True, kw_only=True)
class _Synthesized:
    """A stack of an assembly, with the names that it goes by.

    The first is that of `cdk list`, the last the one that it is deployed under.
    """

    names: tuple[str, ...]
    artifact: Mapping[str, Any]
    folder: Path
    built_tags: frozenset[str]

    @property
    def template(self) -> Path:
        """Where its template lies."""
        return self.folder / str(self.artifact["properties"]["templateFile"])


def _stacks_in(folder: Path) -> list[_Synthesized]:
    """The stacks of an assembly, and of the assemblies of its stages."""
    artifacts = json.loads((folder / "manifest.json").read_text("utf-8"))["artifacts"]
    tags = frozenset(
        destination["imageTag"]
        for artifact in artifacts.values()
        if artifact["type"] == "cdk:asset-manifest"
        for image in json.loads((folder / artifact["properties"]["file"]).read_text("utf-8"))
        .get("dockerImages", {})
        .values()
        for destination in image["destinations"].values()
    )
    found = [
        _Synthesized(
            names=(
                artifact.get("displayName", name).partition(" (")[0],
                name,
                artifact["properties"].get("stackName", name),
            ),
            artifact=artifact,
            folder=folder,
            built_tags=tags,
        )
        for name, artifact in artifacts.items()
        if artifact["type"] == "aws:cloudformation:stack"
    ]
    for artifact in artifacts.values():
        if artifact["type"] == "cdk:cloud-assembly":
            found += _stacks_in(folder / artifact["properties"]["directoryName"])
    return found


def _planned(stack: _Synthesized, built: frozenset[str], templates: Templates) -> PlannedStack:
    name, artifact = stack.names[0], stack.artifact
    where = _ENVIRONMENT.fullmatch(artifact["environment"])
    if where is None:
        raise CommandError(f"stack {name} is for {artifact['environment']!r}, which is no account")
    properties = artifact["properties"]
    resources = dict(templates.resources(stack.template))
    instances: Counter[str] = Counter()
    concurrency = 0
    architectures: dict[str, str] = {}
    for config_id, variant in _variants(resources):
        instance_type = variant.get("InstanceType")
        architecture = limits.AMD64
        if isinstance(instance_type, str):
            most = _most_instances(config_id, resources)
            first = _number(variant.get("InitialInstanceCount"), default=1)
            instances[instance_type] += max(first, most)
            known = limits.INSTANCE_TYPES.get(instance_type)
            architecture = architecture if known is None else known.architecture
        concurrency += _number(variant.get("ServerlessConfig", {}).get("MaxConcurrency"), default=0)
        architectures[_referred(config_id, variant["ModelName"])] = architecture
    return PlannedStack(
        name=name,
        account=where["account"],
        region=where["region"],
        bootstrap_version=properties.get("requiresBootstrapStackVersion"),
        bootstrap_parameter=properties.get("bootstrapStackVersionSsmParameter"),
        endpoint_names=tuple(
            resource["Properties"]["EndpointName"]
            for resource in resources.values()
            if resource["Type"] == "AWS::SageMaker::Endpoint"
            and isinstance(resource["Properties"].get("EndpointName"), str)
        ),
        instances=dict(instances),
        concurrency=concurrency,
        reserved=dict(_reserved(resources)),
        images=tuple(
            _planned_images(
                name,
                resources,
                architectures,
                lambda address, value: templates.image_name(
                    stack.folder / address.partition(":")[0], value
                ),
            )
        ),
        built_tags=built,
    )


def _reserved(resources: _Resources) -> Iterator[tuple[str, int]]:
    """What functions with a name reserve; what only the deployment knows is left out."""
    for resource in resources.values():
        given = resource.get("Properties", {})
        name, count = given.get("FunctionName"), given.get("ReservedConcurrentExecutions")
        if resource["Type"] == "AWS::Lambda::Function" and isinstance(name, str) and count:
            yield name, _number(count, default=0)


def _planned_images(
    stack: str,
    resources: _Resources,
    architectures: Mapping[str, str],
    name_of: Callable[[str, Any], ImageName | None],
) -> Iterator[PlannedImage]:
    """Images of models and functions; `architectures` by the address of a model.

    `name_of` reads the name of an image off a value of the resource at an address.
    """
    for address, resource in resources.items():
        given = resource.get("Properties", {})
        if resource["Type"] == "AWS::SageMaker::Model":
            image = name_of(address, given["PrimaryContainer"]["Image"])
            architecture, service = architectures.get(address, limits.AMD64), SAGEMAKER
        elif resource["Type"] == "AWS::Lambda::Function":
            image, service = name_of(address, given["Code"].get("ImageUri")), LAMBDA
            # As CloudFormation writes it; x86_64 where nothing is said.
            on_arm = given.get("Architectures") == [limits.ARM64]
            architecture = limits.ARM64 if on_arm else limits.AMD64
        else:
            continue
        if image is not None:
            yield PlannedImage(
                stack=stack,
                uri=image.uri,
                architecture=architecture,
                service=service,
                repository=image.repository,
            )


def _variants(resources: _Resources) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every production variant, with the address of its configuration."""
    for address, resource in resources.items():
        if resource["Type"] == "AWS::SageMaker::EndpointConfig":
            for variant in resource["Properties"]["ProductionVariants"]:
                yield address, variant


def _referred(address: str, value: Any) -> str:
    """Address of the resource that a value of the resource at `address` refers to."""
    target = value.get("Fn::GetAtt", [value.get("Ref")])[0] if isinstance(value, dict) else value
    return f"{address.partition(':')[0]}:{target}"


def _number(value: Any, *, default: int) -> int:
    """A number of a template; `default` for what is left out or only the deployment knows."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return default


def _most_instances(config_id: str, resources: _Resources) -> int:
    """What autoscaling may grow the endpoint of a configuration to; 0 without autoscaling."""
    names = {
        resource["Properties"].get("EndpointName")
        for address, resource in resources.items()
        if resource["Type"] == "AWS::SageMaker::Endpoint"
        and _referred(address, resource["Properties"]["EndpointConfigName"]) == config_id
        and isinstance(resource["Properties"].get("EndpointName"), str)
    }
    return max(
        (
            _number(resource["Properties"]["MaxCapacity"], default=0)
            for resource in resources.values()
            if names
            and resource["Type"] == "AWS::ApplicationAutoScaling::ScalableTarget"
            and str(resource["Properties"]["ResourceId"]).split("/")[1:2] == [*names][:1]
        ),
        default=0,
    )


def _region_findings(region: str) -> Iterator[Finding]:
    import boto3

    session = boto3.session.Session()
    partition = session.get_partition_for_region(region)
    known = session.get_available_regions("sagemaker", partition_name=partition)
    if region in known:
        yield good("region", f"SageMaker is in {region}")
    else:
        yield fault(
            "region",
            f"SageMaker is not known to be in {region}",
            fix=f"choose one of {', '.join(known[:5])}, …",
        )


def _bootstrap_findings(
    stacks: Sequence[PlannedStack], region: str, account: str, ssm: Any
) -> Iterator[Finding]:
    from botocore.exceptions import ClientError

    wanted = {
        stack.bootstrap_parameter: max(
            other.bootstrap_version or 0
            for other in stacks
            if other.bootstrap_parameter == stack.bootstrap_parameter
        )
        for stack in stacks
        if stack.bootstrap_parameter is not None
    }
    for parameter, least in sorted(wanted.items()):
        fix = f"npx cdk bootstrap aws://{account}/{region}"
        try:
            version = int(ssm.get_parameter(Name=parameter)["Parameter"]["Value"])
        except ClientError as error:
            if error.response["Error"]["Code"] != "ParameterNotFound":
                yield unknown("bootstrap", f"{parameter} may not be read: {error}")
                continue
            yield fault("bootstrap", f"{account} in {region} is not bootstrapped", fix=fix)
            continue
        if version < least:
            yield fault("bootstrap", f"version {version}, and the stacks need {least}", fix=fix)
        else:
            yield good("bootstrap", f"version {version}")


def _quota_findings(
    stacks: Sequence[PlannedStack], region: str, client_of: Any
) -> Iterator[Finding]:
    from botocore.exceptions import BotoCoreError, ClientError

    instances: Counter[str] = Counter()
    for stack in stacks:
        instances.update(stack.instances)
    concurrency = sum(stack.concurrency for stack in stacks)
    if not instances and not concurrency:
        return
    page = _QUOTA_PAGE.format(region=region)
    try:
        quotas = _quotas(client_of("service-quotas"))
        used, used_concurrency = _in_use(
            client_of("sagemaker"), {name for stack in stacks for name in stack.endpoint_names}
        )
    except (BotoCoreError, ClientError) as error:
        yield unknown("quotas", f"could not be read: {error}", fix=f"look them up at {page}")
        return
    for instance_type, count in sorted(instances.items()):
        name = _INSTANCE_QUOTA.format(instance_type=instance_type)
        allowed = quotas.get(name)
        yield _quota_finding(
            name, allowed, needed=count, used=used[instance_type], page=page, unit="instances"
        )
        if allowed is not None and count + used[instance_type] <= allowed < (
            2 * count + used[instance_type]
        ):
            yield unknown(
                name,
                f"enough to deploy, but an update runs old and new instances side by side, which "
                f"takes {2 * count + used[instance_type]:g} of {allowed:g}",
                fix=f"ask for more at {page}",
            )
    if concurrency:
        found = [value for name, value in quotas.items() if _CONCURRENCY_QUOTA.search(name)]
        yield _quota_finding(
            "serverless concurrency",
            max(found, default=None),
            needed=concurrency,
            used=used_concurrency,
            page=page,
            unit="containers at once",
        )


def _quota_finding(
    name: str, allowed: float | None, *, needed: int, used: int, page: str, unit: str
) -> Finding:
    if allowed is None:
        return unknown(name, f"{needed} wanted; the account's quota is not listed", fix=page)
    said = f"{needed} {unit} wanted, {used} in use, {allowed:g} allowed"
    if needed + used <= allowed:
        return good(name, said)
    return fault(
        name,
        said,
        fix=f"ask for {needed + used} at {page} (it can take days), deploy fewer stacks, or lower "
        "max_concurrency or the number of instances",
    )


def _quotas(client: Any) -> dict[str, float]:
    """Quotas of SageMaker by name: AWS's defaults, over which the account's own are laid."""
    quotas: dict[str, float] = {}
    for operation in ("list_aws_default_service_quotas", "list_service_quotas"):
        for page in client.get_paginator(operation).paginate(ServiceCode="sagemaker"):
            quotas.update({it["QuotaName"]: float(it["Value"]) for it in page["Quotas"]})
    return quotas


def _in_use(sagemaker: Any, own: set[str]) -> tuple[Counter[str], int]:
    """Instances by type and serverless concurrency of all endpoints but the ones to be deployed."""
    instances: Counter[str] = Counter()
    concurrency = 0
    for page in sagemaker.get_paginator("list_endpoints").paginate():
        for summary in page["Endpoints"]:
            if summary["EndpointName"] in own:
                continue
            endpoint = sagemaker.describe_endpoint(EndpointName=summary["EndpointName"])
            config = sagemaker.describe_endpoint_config(
                EndpointConfigName=endpoint["EndpointConfigName"]
            )
            running = {
                variant["VariantName"]: variant.get("CurrentInstanceCount")
                for variant in endpoint.get("ProductionVariants", [])
            }
            for variant in config["ProductionVariants"]:
                if "InstanceType" in variant:
                    count = running.get(variant["VariantName"])
                    instances[variant["InstanceType"]] += (
                        variant.get("InitialInstanceCount", 1) if count is None else count
                    )
                concurrency += variant.get("ServerlessConfig", {}).get("MaxConcurrency", 0)
    return instances, concurrency


def _image_findings(
    stacks: Sequence[PlannedStack],
    region: str,
    account: str,
    client_of: Any,
    docker: str | None,
    *,
    pushed: bool,
) -> Iterator[Finding]:
    from botocore.exceptions import ClientError

    ecr, cloudformation = client_of("ecr"), client_of("cloudformation")
    seen = set()
    to_build = set()
    for stack in stacks:
        for image in stack.images:
            # One image for two processors, or two services, is judged twice.
            wanted = (image.uri, image.repository, image.architecture, image.service)
            if wanted in seen:
                continue
            seen.add(wanted)
            uri = image.uri.replace("${AWS::AccountId}", account).replace("${AWS::Region}", region)
            if image.repository is not None:
                try:
                    name = _made_name(image.repository, cloudformation)
                except ClientError as error:
                    said = f"the stack {image.repository.stack} may not be looked at: {error}"
                    yield unknown(f"image of {stack.name}", said)
                    continue
                uri = f"{account}/{name or UNKNOWN}:{uri.rpartition(':')[2]}"
            match = _IMAGE.fullmatch(uri)
            if match is None or (image.repository is None and UNKNOWN in uri):
                yield unknown(f"image of {stack.name}", f"{uri} is known when it is deployed")
                continue
            finding = None if UNKNOWN in uri else _image_finding(image, match, account, ecr)
            if finding is None:
                if not pushed and _is_built(match["tag"], stack.built_tags):
                    to_build.add(str(match["tag"]))
                else:
                    yield fault(
                        f"image of {stack.name}",
                        f"{_repository_words(image, match)} has no image "
                        f"{match['tag'] or match['digest']}",
                        fix="deploy the stack that builds it (without -c image=source-digest), or "
                        "push it there",
                    )
            else:
                yield finding
    if to_build:
        yield _docker_finding(len(to_build), docker)


def _is_built(tag: str | None, built: frozenset[str]) -> bool:
    """Whether the deployment builds an image; a copy lacks the synthesizer's prefix of its tag."""
    return tag is not None and any(it.endswith(tag) for it in built)


def _made_name(repository: MadeRepository, cloudformation: Any) -> str | None:
    """The name that CloudFormation gave a repository; None where there is none yet."""
    from botocore.exceptions import ClientError

    pages = cloudformation.get_paginator("list_stack_resources").paginate(
        StackName=repository.stack
    )
    try:
        for page in pages:
            for it in page["StackResourceSummaries"]:
                if it["LogicalResourceId"] == repository.logical_id:
                    return it.get("PhysicalResourceId") or None
    except ClientError as error:
        if "does not exist" not in str(error):
            raise
    return None


def _repository_words(image: PlannedImage, match: re.Match[str]) -> str:
    if image.repository is None or UNKNOWN not in match["repository"]:
        return str(match["repository"])
    return f"the repository of the stack {image.repository.stack}, which is not there yet,"


def _docker_finding(count: int, docker: str | None) -> Finding:
    from dr_cli.cdk import docker_version

    version = docker_version() if docker == "" else docker
    images = "one image is" if count == 1 else f"{count} images are"
    if version is None:
        return fault(
            "Docker",
            f"{images} to be built, and no Docker engine answers",
            fix="start Docker (`docker version` must answer), or deploy from a machine or a CI "
            "job that has it",
        )
    return good("Docker", f"{images} to be built; engine {version} answers")


def _image_finding(
    image: PlannedImage, match: re.Match[str], account: str, ecr: Any
) -> Finding | None:
    """What ECR says about an image; None where it is not there."""
    from botocore.exceptions import ClientError

    subject = f"image of {image.stack}"
    wanted = (
        {"imageDigest": match["digest"]} if match["digest"] else {"imageTag": str(match["tag"])}
    )
    registry = match["registry"].partition(".")[0]
    try:
        answer = ecr.batch_get_image(
            registryId=registry if registry.isdecimal() else account,
            repositoryName=match["repository"],
            imageIds=[wanted],
        )
    except ClientError as error:
        if error.response["Error"]["Code"] == "RepositoryNotFoundException":
            return None
        return unknown(subject, f"may not be looked at: {error}")
    if not answer["images"]:
        return None
    manifest = json.loads(answer["images"][0]["imageManifest"])
    media_type = manifest.get("mediaType") or answer["images"][0].get("imageManifestMediaType")
    if media_type not in _ACCEPTED[image.service]:
        return fault(
            subject,
            f"is there with a manifest that {image.service} refuses ({media_type})",
            fix=_MANIFEST_HELP,
        )
    architecture = _architecture(manifest, match, ecr)
    if architecture is None:
        return unknown(subject, "is there; which processor it is for could not be read")
    if architecture != image.architecture:
        return fault(
            subject,
            f"is for {architecture}, and the endpoint runs on {image.architecture}",
            fix=f"build it with --platform linux/{image.architecture}, or choose "
            f"{'instances' if image.service == SAGEMAKER else 'a function'} of {architecture}",
        )
    kind = "a Docker" if media_type == DOCKER_MANIFEST else "an OCI"
    return good(subject, f"is there, for {architecture}, with {kind} manifest")


def _architecture(manifest: Mapping[str, Any], match: re.Match[str], ecr: Any) -> str | None:
    """The processor that the image's own config names."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        url = ecr.get_download_url_for_layer(
            repositoryName=match["repository"], layerDigest=manifest["config"]["digest"]
        )["downloadUrl"]
        with urllib.request.urlopen(url, timeout=_BLOB_TIMEOUT_S) as stream:  # noqa: S310
            return str(json.load(stream)["architecture"])
    except (BotoCoreError, ClientError, NotImplementedError, OSError, ValueError, KeyError):
        return None
