"""Names of images in synthesized templates, as far as anything but the deployment knows them.

An image that is in a registry already has a name that only lacks the account and the region. One
that is copied into a repository which a stack makes is called after that, and CloudFormation gives
the name: the template refers to it, from a nested or another stack by parameters and exports.
"""

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

REPOSITORY: Final = "AWS::ECR::Repository"
NESTED: Final = "AWS::CloudFormation::Stack"
# Stands for what only the deployment knows.
UNKNOWN: Final = "${?}"


@dataclass(frozen=True, kw_only=True)
class MadeRepository:
    """A repository that a stack makes: CloudFormation knows its name once it is deployed."""

    stack: str
    logical_id: str


@dataclass(frozen=True, kw_only=True)
class ImageName:
    """What a template says of an image's name.

    Attributes:
        uri: with `${AWS::AccountId}` and the like left in, and `${?}` for what is not known.
        repository: the one of a stack, where the name refers to it.
    """

    uri: str
    repository: MadeRepository | None = None


class Templates:
    """The templates of an app, which refer to each other.

    Args:
        stacks: the name that a stack is deployed under, by the path of its template.
    """

    def __init__(self, stacks: Mapping[Path, str]) -> None:
        self._stacks = dict(stacks)
        self._read: dict[Path, dict[str, Any]] = {}
        # Template of a nested stack -> template and values of the parameters that it is given.
        self._given: dict[Path, tuple[Path, Mapping[str, Any]]] = {}
        for path in stacks:
            self._read_with_nested(path)

    def resources(self, path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Resources of a template and of the nested stacks in it, by `file:logical id`."""
        for logical_id, resource in self._read[path].get("Resources", {}).items():
            yield f"{path.name}:{logical_id}", resource
            nested = _nested_template(path, resource)
            if nested is not None:
                yield from self.resources(nested)

    def image_name(self, path: Path, value: Any) -> ImageName | None:
        """The name that `value` gives an image in the template at `path`; None where it is none."""
        if value is None:
            return None
        return ImageName(uri=_flat(value), repository=self._repository(path, value))

    def _read_with_nested(self, path: Path) -> None:
        self._read[path] = json.loads(path.read_text("utf-8"))
        for resource in self._read[path].get("Resources", {}).values():
            nested = _nested_template(path, resource)
            if nested is not None:
                self._given[nested] = (path, resource["Properties"].get("Parameters", {}))
                self._read_with_nested(nested)

    def _repository(self, path: Path, value: Any) -> MadeRepository | None:
        parts = value["Fn::Join"][1] if isinstance(value, dict) and "Fn::Join" in value else []
        for before, part in itertools.pairwise(parts):
            if isinstance(before, str) and before.endswith("/") and isinstance(part, dict):
                return self._made(path, part)
        return None

    def _made(self, path: Path, reference: Any) -> MadeRepository | None:
        """The repository that a reference in the template at `path` leads to."""
        if not isinstance(reference, dict):
            return None
        name = reference.get("Ref")
        if name in self._read[path].get("Resources", {}):
            of_a_stack = path in self._stacks
            is_one = self._read[path]["Resources"][name]["Type"] == REPOSITORY
            if of_a_stack and is_one:
                return MadeRepository(stack=self._stacks[path], logical_id=str(name))
            return None
        if name is not None and path in self._given:
            parent, given = self._given[path]
            return self._made(parent, given.get(name))
        exported, output = reference.get("Fn::ImportValue"), reference.get("Fn::GetStackOutput")
        for there, stack in self._stacks.items():
            for key, it in self._read[there].get("Outputs", {}).items():
                if (exported is not None and it.get("Export", {}).get("Name") == exported) or (
                    isinstance(output, dict)
                    and (output.get("StackName"), output.get("OutputName")) == (stack, key)
                ):
                    return self._made(there, it["Value"])
        return None


def _nested_template(path: Path, resource: Mapping[str, Any]) -> Path | None:
    """Template of a nested stack, where `resource` is one and the assembly holds it."""
    name = resource.get("Metadata", {}).get("aws:asset:path", "")
    found = path.parent / name
    return found if resource["Type"] == NESTED and name and found.is_file() else None


def _flat(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        if isinstance(value.get("Fn::Sub"), str):
            return str(value["Fn::Sub"])
        if str(value.get("Ref", "")).startswith("AWS::"):
            return f"${{{value['Ref']}}}"
        if "Fn::Join" in value:
            separator, parts = value["Fn::Join"]
            return str(separator).join(_flat(part) for part in parts)
    return UNKNOWN
