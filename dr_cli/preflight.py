"""`dr preflight`: does the account allow what the stacks ask for, before anything is deployed?

It reads the cloud assembly that `cdk synth` wrote (`assembly.py`), so that it knows the stacks of
any app, and asks the account: who am I, is the region bootstrapped, what do the quotas allow beside
what runs already, is the image there, for the right processor, under a manifest that SageMaker
takes. It changes nothing.
"""

import json
import re
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from constructs_lib.image_copy.index import DOCKER_MANIFEST
from dr_cli.assembly import (
    LAMBDA,
    SAGEMAKER,
    UNKNOWN_ACCOUNT,
    UNKNOWN_REGION,
    PlannedImage,
    PlannedStack,
    read_assembly,
)
from dr_cli.console import make_console
from dr_cli.errors import CommandError
from dr_cli.findings import Finding, fault, good, show, unknown
from dr_cli.function_quotas import reserved_findings
from dr_cli.region import aws_region
from dr_cli.template_images import UNKNOWN, MadeRepository

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
