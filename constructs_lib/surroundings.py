"""Where a construct is made: in a stack, with a role that the stack may give permissions."""

from typing import Final, cast

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from constructs import Construct

from constructs_lib.rules import refuse, shown
from constructs_lib.tokens import known_text

_STACK_WANTED: Final = "scope must be a construct in a stack (self in a class of your own)"


def refuse_place(subject: type, scope: object, construct_id: object) -> None:
    """Refuse a scope that is in no stack, and an id that is no text.

    Raises:
        ValidationError: naming what is wrong.
    """
    faults = []
    if not hasattr(scope, "node"):
        faults.append(f"{_STACK_WANTED}; got {shown(scope)}")
    elif not _is_in_stack(cast("Construct", scope)):
        kind = type(scope).__name__
        faults.append(f"{_STACK_WANTED}; got {kind} {scope.node.path!r}, which is in none")
    if not isinstance(construct_id, str) or not construct_id:
        faults.append(f"id must be text, unique in its scope; got {shown(construct_id)}")
    refuse(subject.__name__, faults)


def role_faults(role: iam.IRole | None, stack: cdk.Stack) -> list[str]:
    """Faults of an execution role that was made elsewhere."""
    if role is None:
        return []
    faults = []
    account, here = known_text(role.env.account), known_text(stack.account)
    if account is not None and here is not None and account != here:
        faults.append(
            f"role must be in the stack's account, {here}, because a service takes no other; got "
            f"{account}"
        )
    elif _is_elsewhere(role, stack) and _has_path(role):
        faults.append(
            "role must be without a path where another stack makes it, or be imported here by "
            f"iam.Role.from_role_arn with its ARN in full; got {role.node.path}"
        )
    return faults


def role_here(scope: Construct, role: iam.IRole) -> iam.IRole:
    """`role`, or the same role as `scope`'s stack may give it permissions.

    A role of another stack keeps its policy there, which would name what this stack makes, while
    this stack waits for the role: neither could be deployed. Imported, it gets a policy here.
    """
    if not _is_elsewhere(role, cdk.Stack.of(scope)):
        return role
    return iam.Role.from_role_arn(scope, "Role", role.role_arn)


def _is_in_stack(scope: Construct) -> bool:
    try:
        cdk.Stack.of(scope)
    except RuntimeError:
        return False
    return True


def _is_elsewhere(role: iam.IRole, stack: cdk.Stack) -> bool:
    # What is imported has no policy of its own in any stack but the importing one.
    return isinstance(role, iam.Role) and role.stack.node.path != stack.node.path


def _has_path(role: iam.IRole) -> bool:
    made = role.node.default_child
    return isinstance(made, iam.CfnRole) and made.path not in (None, "/")
