"""Roles of a template against moto's policy evaluator, with their references resolved."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moto.iam.access_control import IAMPolicy, PermissionResult

from tests.constructs_fixtures import Template, resources


@dataclass(frozen=True, kw_only=True)
class Request:
    """An action on our own resource, and on those that are not ours."""

    action: str
    ours: str
    others: tuple[str, ...]


class RoleSimulator:
    """Decides what roles of `template` may do.

    `log_groups` is the beginning of the ARNs of log groups; `arns` are those of other resources
    that policies refer to, by logical id. The evaluator does not look at conditions.
    """

    def __init__(
        self, template: Template, *, log_groups: str, arns: Mapping[str, str] | None = None
    ) -> None:
        self._template = template
        self._log_groups = log_groups
        self._arns = dict(arns or {})
        self._policies: dict[str, tuple[IAMPolicy, ...]] = {}

    def allowed(self, role: str, action: str, resource: str) -> bool:
        """Whether the one role whose logical id `role` begins may do `action` on `resource`."""
        results = [it.is_action_permitted(action, resource) for it in self._policies_of(role)]
        return PermissionResult.PERMITTED in results and PermissionResult.DENIED not in results

    def statements(self, role: str) -> list[dict[str, Any]]:
        """Every statement of that role's policies, resolved."""
        name = self._name(role)
        return [
            statement
            for policy in resources(self._template, "AWS::IAM::Policy").values()
            if {"Ref": name} in policy["Properties"]["Roles"]
            for statement in self.resolved(policy["Properties"]["PolicyDocument"])["Statement"]
        ]

    def _name(self, role: str) -> str:
        names = {
            name for name in resources(self._template, "AWS::IAM::Role") if re.match(role, name)
        }
        assert len(names) == 1, (role, names)
        return next(iter(names))

    def _policies_of(self, role: str) -> tuple[IAMPolicy, ...]:
        if role not in self._policies:
            statements = self.statements(role)
            assert statements
            readable = [{**it, "Resource": _as_moto_reads(it["Resource"])} for it in statements]
            document = {"Version": "2012-10-17", "Statement": readable}
            self._policies[role] = (IAMPolicy({"policy_document": json.dumps(document)}),)
        return self._policies[role]

    def resolved(self, value: Any) -> Any:
        """`value` with the references that occur in our policies put in."""
        if isinstance(value, list):
            return [self.resolved(item) for item in value]
        if not isinstance(value, dict):
            return value
        if set(value) == {"Fn::Join"}:
            separator, parts = value["Fn::Join"]
            return separator.join(self.resolved(part) for part in parts)
        if value == {"Ref": "AWS::Partition"}:
            return "aws"
        if set(value) == {"Fn::GetAtt"}:
            name, attribute = value["Fn::GetAtt"]
            assert attribute == "Arn"
            if name in self._arns:
                return self._arns[name]
            group = self._template["Resources"][name]
            assert group["Type"] == "AWS::Logs::LogGroup", f"{name} is not known here"
            return f"{self._log_groups}:{group['Properties'].get('LogGroupName', name)}:*"
        assert not any(key.startswith(("Fn::", "Ref")) for key in value), value
        return {key: self.resolved(item) for key, item in value.items()}


def _as_moto_reads(resource: Any) -> Any:
    """Its evaluator knows the star, and takes all else for a regular expression."""
    if isinstance(resource, list):
        return [_as_moto_reads(it) for it in resource]
    return resource.replace("?", ".")
