"""What a role may do, as statements of its policy whose names do not collide."""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

from aws_cdk import aws_iam as iam
from constructs import IConstruct

_Content = tuple[tuple[str, ...], tuple[str, ...], str]
_SAID: Final[WeakKeyDictionary[IConstruct, dict[tuple[str, str], list[_Content]]]] = (
    WeakKeyDictionary()
)


def allow(
    role: iam.IRole,
    sid: str,
    actions: Sequence[str],
    resources: Sequence[str],
    *,
    conditions: Mapping[str, Any] | None = None,
) -> None:
    """Let `role` do `actions` on `resources`, in a statement that is called `sid`.

    Two endpoints may share a role of the user's own, and IAM refuses a policy in which two
    statements have one name: another statement of a name gets a number behind it. The same
    statement twice stays one.
    """
    said = _SAID.setdefault(role.node.root, {}).setdefault((role.node.path, sid), [])
    content = (tuple(actions), tuple(resources), repr(conditions))
    if content not in said:
        said.append(content)
    number = said.index(content) + 1
    role.add_to_principal_policy(
        iam.PolicyStatement(
            sid=sid if number == 1 else f"{sid}{number}",
            actions=list(actions),
            resources=list(resources),
            conditions=None if conditions is None else dict(conditions),
        )
    )


def plain_sid(sid: str) -> str:
    """The name that `allow` was given."""
    return sid.rstrip("0123456789")
