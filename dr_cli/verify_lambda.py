"""Is what a stack's template says what its function answers with?

A shift of traffic that an alarm stopped leaves the alias on the version before, and one that nobody
finished leaves it on two. A version of a function never changes once it is made, so that the alias
of the stack pointing to the stack's version says which code and which settings answer; sizes and
the image are compared as well, in case somebody changed them by hand.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dr_cli.findings import Finding, fault, good, unknown
from dr_cli.template_values import differences, refers_to, shown

FUNCTION: Final = "AWS::Lambda::Function"
ALIAS: Final = "AWS::Lambda::Alias"
VERSION: Final = "AWS::Lambda::Version"
_COMPARED: Final = ("MemorySize", "Timeout", "Architectures", "EphemeralStorage")
_ENVIRONMENT: Final = "Environment"
_REDEPLOY: Final = (
    "deploy the stack again, and see its CodeDeploy deployment if it falls back again"
)

Resources = Mapping[str, tuple[str, str]]


def image_functions(template: Mapping[str, Any] | None) -> list[str]:
    """Logical ids of the functions that run from a container image, as an endpoint does."""
    found = (template or {}).get("Resources", {})
    return [
        name
        for name, resource in found.items()
        if resource["Type"] == FUNCTION and "ImageUri" in resource["Properties"].get("Code", {})
    ]


def function_findings(
    stack: str, function_id: str, resources: Resources, template: Mapping[str, Any], client: Any
) -> Iterator[Finding]:
    """What is right and wrong with one function of a deployed stack.

    Args:
        function_id: its logical id, one of `image_functions`.
        resources: type and physical id of every resource, by logical id.
        client: of Lambda.
    """
    from botocore.exceptions import ClientError

    written = template["Resources"]
    if function_id not in resources:
        yield fault(f"{stack} function", "was not made", fix=_REDEPLOY)
        return
    name = resources[function_id][1].rpartition(":")[2]
    subject = f"{stack} function {name}"
    alias = _alias_of(function_id, written)
    try:
        if alias is None:
            found = client.get_function(FunctionName=name)
        else:
            called = written[alias]["Properties"]["Name"]
            yield from _alias_findings(subject, name, called, alias, resources, written, client)
            found = client.get_function(FunctionName=name, Qualifier=called)
    except ClientError as error:
        if error.response["Error"]["Code"] != "ResourceNotFoundException":
            raise
        yield fault(subject, "is not there any more, or its alias is not", fix=_REDEPLOY)
        return
    yield from _state_findings(subject, found["Configuration"])
    yield from _setting_findings(subject, written[function_id]["Properties"], found)


def _alias_of(function_id: str, written: Mapping[str, Any]) -> str | None:
    """Logical id of the alias that the function is called by."""
    for name, resource in written.items():
        if resource["Type"] == ALIAS and refers_to(
            resource["Properties"]["FunctionName"], function_id
        ):
            return name
    return None


def _alias_findings(
    subject: str,
    function: str,
    called: str,
    alias_id: str,
    resources: Resources,
    written: Mapping[str, Any],
    client: Any,
) -> Iterator[Finding]:
    alias = client.get_alias(FunctionName=function, Name=called)
    answering = alias["FunctionVersion"]
    weights = alias.get("RoutingConfig", {}).get("AdditionalVersionWeights", {})
    if weights:
        shares = ", ".join(f"{100 * share:g} % to version {one}" for one, share in weights.items())
        yield unknown(
            subject,
            f"{called} sends {shares} and the rest to version {answering}: a shift is under way, "
            "or was left half done",
            fix="verify again when the shift has ended",
        )
    said = written[alias_id]["Properties"]["FunctionVersion"]
    wanted = next(
        (
            physical.rpartition(":")[2]
            for name, (kind, physical) in resources.items()
            if kind == VERSION and refers_to(said, name)
        ),
        None,
    )
    if wanted is None:
        yield unknown(subject, f"{called} is version {answering}; the stack's could not be told")
    elif answering != wanted and wanted not in weights:
        yield fault(
            subject,
            f"{called} is version {answering}, and the stack's is {wanted}: a shift was rolled "
            "back, or somebody moved the alias by hand",
            fix=f"`aws lambda update-alias --function-name {function} --name {called} "
            f"--function-version {wanted}`, or {_REDEPLOY}",
        )
    elif answering == wanted:
        yield good(subject, f"{called} is the stack's version {wanted}")


def _state_findings(subject: str, configuration: Mapping[str, Any]) -> Iterator[Finding]:
    state = configuration.get("State", "Active")
    update = configuration.get("LastUpdateStatus", "Successful")
    reason = configuration.get("StateReason") or configuration.get("LastUpdateStatusReason")
    why = f": {reason}" if reason else ""
    if state == "Failed" or update == "Failed":
        yield fault(subject, f"is {state}, its last update {update}{why}", fix=_REDEPLOY)
    elif state == "Active" and update == "Successful":
        yield good(subject, "Active")
    else:
        # Inactive: not called for weeks; the next call wakes it.
        yield unknown(
            subject, f"is {state}, its last update {update}{why}", fix="verify again in a minute"
        )


def _setting_findings(
    subject: str, written: Mapping[str, Any], found: Mapping[str, Any]
) -> Iterator[Finding]:
    there = found["Configuration"]
    wrong = [
        f"{path} is {shown(actual)} and the template says {shown(expected)}"
        for name in _COMPARED
        if name in written
        for path, expected, actual in differences(name, written[name], there.get(name))
    ]
    # Names only: a variable may hold what nobody should read in a log.
    wrong += [
        f"{path} is not what the template says"
        for path, _, _ in differences(
            _ENVIRONMENT, written.get(_ENVIRONMENT, {}), there.get(_ENVIRONMENT, {})
        )
    ]
    image = found.get("Code", {}).get("ImageUri")
    wrong += [
        f"the image is {actual} and the template says {expected}"
        for _, expected, actual in differences("image", written["Code"]["ImageUri"], image)
    ]
    if wrong:
        yield fault(subject, "; ".join(wrong), fix=_REDEPLOY)
    else:
        yield good(subject, "image, sizes and settings are the template's")
