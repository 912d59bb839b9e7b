"""What cannot be deployed, said before CloudFormation is asked.

    >>> serverless_faults(memory_mib=1500, architecture="amd64")[0].split(";")[0]
    'memory_mib must be one of 1024, 2048, 3072, 4096, 5120, 6144'

Each function returns every fault it finds, one sentence each with the property, the value,
what is allowed and where that is written; `None` means "not known at synthesis" (a token) or
"not given", and is not judged. No `aws_cdk` here: the deployment matrix uses the same rules.
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeGuard

from constructs_lib import limits
from inference_image import contract

# Every setting of the service is a constant of its contract.
_SERVICE_SETTINGS = frozenset(
    str(value) for name, value in vars(contract).items() if name.startswith("ENV_")
)
_SERVICE_PREFIXES = ("DR_", "MODEL_SERVER_")


class ValidationError(ValueError):
    """A deployment that AWS would refuse; the text lists every fault, one a line."""

    def __init__(self, subject: str, faults: Sequence[str]) -> None:
        self.subject = subject
        self.faults = tuple(faults)
        lines = "".join(f"\n- {fault}" for fault in self.faults)
        super().__init__(f"{subject} cannot be deployed:{lines}")


def refuse(subject: str, faults: Iterable[str]) -> None:
    """Raise one `ValidationError` that names `subject` and lists all `faults`, if any."""
    found = list(faults)
    if found:
        raise ValidationError(subject, found)


def serverless_faults(
    *,
    memory_mib: int | None = None,
    max_concurrency: int | None = None,
    provisioned_concurrency: int | None = None,
    architecture: str | None = None,
) -> list[str]:
    """Faults of a serverless variant. Sizes in MiB, concurrency in containers."""
    faults = []
    sizes = limits.SERVERLESS_MEMORY_SIZES_MIB
    if memory_mib is not None and (isinstance(memory_mib, bool) or memory_mib not in sizes):
        faults.append(
            _fault(
                "memory_mib", f"one of {_listed(sizes)}", memory_mib, "SERVERLESS_MEMORY_SIZES_MIB"
            )
        )
    top = limits.SERVERLESS_MAX_CONCURRENCY
    for name, value in (
        ("max_concurrency", max_concurrency),
        ("provisioned_concurrency", provisioned_concurrency),
    ):
        if value is not None and not _is_integer(value, 1, top):
            faults.append(
                _fault(name, f"a whole number from 1 to {top}", value, "SERVERLESS_MAX_CONCURRENCY")
            )
    if (
        _is_integer(provisioned_concurrency, 1, top)
        and _is_integer(max_concurrency, 1, top)
        and provisioned_concurrency > max_concurrency
    ):
        faults.append(
            _fault(
                "provisioned_concurrency",
                f"at most max_concurrency ({max_concurrency})",
                provisioned_concurrency,
                "SERVERLESS_MAX_CONCURRENCY",
            )
        )
    if architecture is not None and architecture not in limits.SERVERLESS_ARCHITECTURES:
        faults.append(
            _fault(
                "architecture",
                f"{_listed(limits.SERVERLESS_ARCHITECTURES)}, because serverless inference runs "
                "on no other processor",
                architecture,
                "SERVERLESS_ARCHITECTURES",
            )
        )
    return faults


def realtime_faults(
    *,
    instance_type: str | None = None,
    initial_instance_count: int | None = None,
    architecture: str | None = None,
) -> list[str]:
    """Faults of a variant on instances; `architecture` is that of the image."""
    faults = []
    known = None if instance_type is None else limits.INSTANCE_TYPES.get(instance_type)
    if instance_type is not None and known is None:
        near = difflib.get_close_matches(instance_type, limits.INSTANCE_TYPES, n=3)
        hint = f" (near it: {_listed(near)})" if near else ""
        faults.append(
            _fault(
                "instance_type",
                f"a CPU instance type of SageMaker hosting{hint}",
                instance_type,
                "INSTANCE_TYPES",
            )
        )
    if architecture is not None and architecture not in limits.ARCHITECTURES:
        faults.append(
            f"architecture must be one of {_listed(limits.ARCHITECTURES)}; got {architecture!r}"
        )
    elif known is not None and architecture not in (None, known.architecture):
        faults.append(
            _fault(
                "architecture",
                f"{known.architecture}, the processor of {known.name} (otherwise the container "
                "ends with 'exec format error')",
                architecture,
                "INSTANCE_TYPES",
            )
        )
    if initial_instance_count is not None and not _is_integer(initial_instance_count, 1, None):
        faults.append(
            "initial_instance_count must be a whole number of at least 1; "
            f"got {initial_instance_count!r}"
        )
    return faults


def endpoint_faults(
    *,
    endpoint_name: str | None = None,
    environment: Mapping[str, str] | None = None,
    set_by_construct: Iterable[str] = (),
) -> list[str]:
    """Faults that both kinds of endpoint share.

    `environment` is what the caller asks for, `set_by_construct` the names that are added to it.
    """
    faults = []
    if endpoint_name is not None and (
        len(endpoint_name) > limits.ENDPOINT_NAME_CHARACTERS
        or not re.fullmatch(limits.ENDPOINT_NAME_PATTERN, endpoint_name)
    ):
        faults.append(
            _fault(
                "endpoint_name",
                f"at most {limits.ENDPOINT_NAME_CHARACTERS} letters, digits and inner hyphens",
                endpoint_name,
                "ENDPOINT_NAME_PATTERN",
            )
        )
    entries = environment or {}
    own = frozenset(set_by_construct)
    count = len(own.union(entries))
    if count > limits.ENVIRONMENT_ENTRIES:
        counted = f", with those that the construct sets ({_listed(sorted(own))})" if own else ""
        faults.append(
            _fault(
                "environment",
                f"at most {limits.ENVIRONMENT_ENTRIES} entries{counted}",
                count,
                "ENVIRONMENT_ENTRIES",
            )
        )
    faults += [
        f"environment may not set {name}: the construct does"
        for name in sorted(own.intersection(entries))
    ]
    faults += _setting_faults(entries)
    for name, value in entries.items():
        if not re.fullmatch(limits.ENVIRONMENT_NAME_PATTERN, name):
            faults.append(
                _fault(
                    "environment",
                    "named with letters, digits and underscores",
                    name,
                    "ENVIRONMENT_NAME_PATTERN",
                )
            )
        if not isinstance(value, str) or len(value) > limits.ENVIRONMENT_TEXT_CHARACTERS:
            faults.append(
                _fault(
                    f"environment[{name!r}]",
                    f"text of at most {limits.ENVIRONMENT_TEXT_CHARACTERS} characters",
                    value if not isinstance(value, str) else f"{len(value)} characters",
                    "ENVIRONMENT_TEXT_CHARACTERS",
                )
            )
    return faults


def _setting_faults(names: Iterable[str]) -> list[str]:
    """Names that look like the service's settings and are not: it would ignore them."""
    faults = []
    for name in names:
        # In any case: a variable in lower case is not read either.
        if name in _SERVICE_SETTINGS or not name.upper().startswith(_SERVICE_PREFIXES):
            continue
        near = difflib.get_close_matches(name.upper(), _SERVICE_SETTINGS, n=3)
        hint = (
            f"near it: {_listed(near)}" if near else f"known: {_listed(sorted(_SERVICE_SETTINGS))}"
        )
        faults.append(
            f"environment must hold settings that the service knows; got {name!r} "
            f"({hint}; docs/settings.md)"
        )
    return faults


def _fault(name: str, allowed: str, value: object, limit: str) -> str:
    # str() first: an enum member would show its class, which nobody typed.
    shown = repr(str(value)) if isinstance(value, str) else repr(value)
    return f"{name} must be {allowed}; got {shown} ({limits.SOURCES[limit].url})"


def _listed(values: Iterable[object]) -> str:
    return ", ".join(str(value) for value in values)


def _is_integer(value: object, low: int, high: int | None) -> TypeGuard[int]:
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return value >= low and (high is None or value <= high)
