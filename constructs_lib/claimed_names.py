"""Names that AWS allows once in an account and region: said at synthesis, not at the second one."""

from typing import Final
from weakref import WeakKeyDictionary

import aws_cdk as cdk
from constructs import IConstruct

from constructs_lib.tokens import is_token, known_text

SAGEMAKER_ENDPOINT: Final = "SageMaker endpoint"
LAMBDA_FUNCTION: Final = "Lambda function"
ALARMS: Final = "CloudWatch alarms"
STATE_MACHINE: Final = "Step Functions state machine"
# As the API reference says of CreateEndpoint.
_ANY_CASE: Final = (SAGEMAKER_ENDPOINT,)

_Claim = tuple[str, str, str]
_CLAIMED: Final[WeakKeyDictionary[IConstruct, dict[_Claim, str]]] = WeakKeyDictionary()


def name_faults(
    construct: IConstruct, *, kinds: tuple[str, ...], name: str, prop: str = "endpoint_name"
) -> list[str]:
    """The fault of a name that another construct of the app has in the same place, by kind.

    `prop` is the property that the name was given as.
    """
    claimed = _CLAIMED.get(construct.node.root, {})
    holders = {
        kind: path
        for kind in kinds
        if (path := claimed.get(_claim(construct, kind, name))) is not None
        and _is_there(path, construct)
    }
    return [
        f"{prop} must be unique, and another {kind} of this account and region has the "
        f"name ({path}); got {name!r}"
        if kind != ALARMS
        else f"{prop} must be unique among endpoints with alarms, whose names begin with "
        f"it ({path} has it); got {name!r}"
        for kind, path in holders.items()
        if not is_token(name)
    ]


def claim_name(construct: IConstruct, *, kinds: tuple[str, ...], name: str) -> None:
    """Remember that `construct` has `name`."""
    claimed = _CLAIMED.setdefault(construct.node.root, {})
    for kind in kinds:
        claimed[_claim(construct, kind, name)] = construct.node.path


def _is_there(path: str, construct: IConstruct) -> bool:
    """Whether what claimed a name is still in the app: a construct may be removed again."""
    if path == construct.node.path:
        # Its place is taken by the one that asks.
        return False
    found: IConstruct | None = construct.node.root
    for part in path.split("/"):
        found = None if found is None else found.node.try_find_child(part)
    return found is not None


def _claim(construct: IConstruct, kind: str, name: str) -> _Claim:
    return _place(cdk.Stack.of(construct)), kind, name.casefold() if kind in _ANY_CASE else name


def _place(stack: cdk.Stack) -> str:
    """Account and region, or where these are not known, the stack: elsewhere it may be free."""
    account, region = known_text(stack.account), known_text(stack.region)
    if account is not None and region is not None:
        return f"{account}/{region}"
    while stack.nested_stack_parent is not None:
        stack = stack.nested_stack_parent
    return stack.node.path
