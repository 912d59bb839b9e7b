"""Reads a cloud assembly that `cdk synth` wrote: what each stack asks of the account.

    >>> for stack in read_assembly(Path("cdk.out"), ["dr-serverless-mobilenet-2048"]):
    ...     stack.instances, stack.concurrency, stack.images

Knows the stacks of any app, its stages included; asks no account.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from constructs_lib import limits
from dr_cli.errors import CommandError
from dr_cli.template_images import ImageName, MadeRepository, Templates

SAGEMAKER: Final = "SageMaker"
LAMBDA: Final = "Lambda"
UNKNOWN_ACCOUNT: Final = "unknown-account"
UNKNOWN_REGION: Final = "unknown-region"
_ENVIRONMENT: Final = re.compile(r"aws://(?P<account>[^/]+)/(?P<region>.+)")

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
