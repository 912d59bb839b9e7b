"""What cannot be deployed, said before CloudFormation is asked.

    >>> serverless_faults(memory_mib=1500, architecture="amd64")[0].split(";")[0]
    'memory_mib must be one of 1024, 2048, 3072, 4096, 5120, 6144'

Each function returns every fault it finds, one sentence each with the property, the value,
what is allowed and where that is written; `None` means "not known at synthesis" (a token) or
"not given", and is not judged. No `aws_cdk` here: the deployment matrix uses the same rules.
"""

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeGuard

from constructs_lib import limits
from constructs_lib.tokens import ONLY_LATER, is_token
from inference_image import contract
from inference_image.variables import setting_fault

# Every setting of the service is a constant of its contract.
_SERVICE_SETTINGS = frozenset(
    str(value) for name, value in vars(contract).items() if name.startswith("ENV_")
)
_MIB = 1024 * 1024
_SERVICE_PREFIXES = ("DR_", "MODEL_SERVER_")
_TAG_TEXT = re.compile(r"[\w\s.:/=+\-@]*")


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
    unsupported: Iterable[str] = (),
) -> list[str]:
    """Faults of a serverless variant. Sizes in MiB, concurrency in containers.

    `unsupported` are properties that were given and that serverless inference does not have.
    """
    faults = [
        fault(
            name,
            "left out on serverless inference, which has no such thing (RealtimeDREndpoint has)",
            "a value",
            "SERVERLESS_ARCHITECTURES",
        )
        for name in unsupported
    ]
    sizes = limits.SERVERLESS_MEMORY_SIZES_MIB
    if memory_mib is not None and not (is_integer(memory_mib, 0, None) and memory_mib in sizes):
        faults.append(
            fault(
                "memory_mib", f"one of {listed(sizes)}", memory_mib, "SERVERLESS_MEMORY_SIZES_MIB"
            )
        )
    top = limits.SERVERLESS_MAX_CONCURRENCY
    for name, value in (
        ("max_concurrency", max_concurrency),
        ("provisioned_concurrency", provisioned_concurrency),
    ):
        if value is not None and not is_integer(value, 1, top):
            faults.append(
                fault(name, f"a whole number from 1 to {top}", value, "SERVERLESS_MAX_CONCURRENCY")
            )
    if (
        is_integer(provisioned_concurrency, 1, top)
        and is_integer(max_concurrency, 1, top)
        and provisioned_concurrency > max_concurrency
    ):
        faults.append(
            fault(
                "provisioned_concurrency",
                f"at most max_concurrency ({max_concurrency})",
                provisioned_concurrency,
                "SERVERLESS_MAX_CONCURRENCY",
            )
        )
    if architecture is not None and architecture not in limits.SERVERLESS_ARCHITECTURES:
        faults.append(
            fault(
                "architecture",
                f"{listed(limits.SERVERLESS_ARCHITECTURES)}, because serverless inference runs "
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
    model_download_timeout_s: int | None = None,
    startup_timeout_s: int | None = None,
) -> list[str]:
    """Faults of a variant on instances; `architecture` is that of the image."""
    faults = []
    for name, value in (
        ("model_download_timeout_s", model_download_timeout_s),
        ("startup_timeout_s", startup_timeout_s),
    ):
        if value is not None:
            faults += bounded_fault(name, value, *limits.STARTUP_TIMEOUT_S, "STARTUP_TIMEOUT_S")
    known = None if instance_type is None else limits.INSTANCE_TYPES.get(instance_type)
    if instance_type is not None and known is None:
        near = difflib.get_close_matches(str(instance_type), limits.INSTANCE_TYPES, n=3)
        hint = f" (near it: {listed(near)})" if near else ""
        if re.match(limits.ACCELERATED_PATTERN, str(instance_type)):
            hint = ", because the images use no GPU and no accelerator"
        faults.append(
            fault(
                "instance_type",
                f"a CPU instance type of SageMaker hosting{hint}",
                instance_type,
                "INSTANCE_TYPES",
            )
        )
    if architecture is not None and architecture not in limits.ARCHITECTURES:
        faults.append(
            f"architecture must be one of {listed(limits.ARCHITECTURES)}; got {architecture!r}"
        )
    elif known is not None and architecture not in (None, known.architecture):
        faults.append(
            fault(
                "architecture",
                f"{known.architecture}, the processor of {known.name} (otherwise the container "
                "ends with 'exec format error')",
                architecture,
                "INSTANCE_TYPES",
            )
        )
    if initial_instance_count is not None and not is_integer(initial_instance_count, 1, None):
        faults.append(
            "initial_instance_count must be a whole number of at least 1; "
            f"got {initial_instance_count!r}"
        )
    return faults


def lambda_faults(
    *,
    memory_mib: int | None = None,
    timeout_s: int | None = None,
    ephemeral_storage_mib: int | None = None,
    max_concurrency: int | None = None,
    provisioned_concurrency: int | None = None,
    architecture: str | None = None,
    environment: Mapping[str, str] | None = None,
    package_bytes: int | None = None,
    unsupported: Iterable[str] = (),
) -> list[str]:
    """Faults of a function. Sizes in MiB; `environment` with what the construct sets.

    `package_bytes` is the size of a package that the function fetches, unpacked.
    """
    faults = [
        fault(
            name,
            "left out on Lambda, which has no such thing (RealtimeDREndpoint has)",
            "a value",
            "LAMBDA_MEMORY_MIB",
        )
        for name in unsupported
    ]
    disk = (limits.LAMBDA_DEFAULT_EPHEMERAL_STORAGE_MIB, limits.LAMBDA_EPHEMERAL_STORAGE_MIB)
    for name, value, (low, high), limit in (
        ("memory_mib", memory_mib, limits.LAMBDA_MEMORY_MIB, "LAMBDA_MEMORY_MIB"),
        ("timeout_s", timeout_s, limits.LAMBDA_TIMEOUT_S, "LAMBDA_TIMEOUT_S"),
        ("ephemeral_storage_mib", ephemeral_storage_mib, disk, "LAMBDA_EPHEMERAL_STORAGE_MIB"),
        ("max_concurrency", max_concurrency, (1, None), "LAMBDA_MIN_PROVISIONED"),
        ("provisioned_concurrency", provisioned_concurrency, (1, None), "LAMBDA_MIN_PROVISIONED"),
    ):
        if value is not None:
            faults += bounded_fault(name, value, low, high, limit)
    if package_bytes is not None and is_integer(ephemeral_storage_mib, *disk):
        # The archive, at most as large as what is in it, lies beside the unpacked files.
        needed_mib = -(-2 * package_bytes // _MIB)
        if needed_mib > ephemeral_storage_mib:
            faults.append(
                fault(
                    "ephemeral_storage_mib",
                    f"at least {needed_mib} for this package, packed and unpacked"
                    + (
                        ""
                        if needed_mib <= disk[1]
                        else ", which Lambda has not (RealtimeDREndpoint)"
                    ),
                    ephemeral_storage_mib,
                    "LAMBDA_EPHEMERAL_STORAGE_MIB",
                )
            )
    if (
        is_integer(provisioned_concurrency, 1, None)
        and is_integer(max_concurrency, 1, None)
        and provisioned_concurrency > max_concurrency
    ):
        faults.append(
            fault(
                "provisioned_concurrency",
                f"at most max_concurrency ({max_concurrency})",
                provisioned_concurrency,
                "LAMBDA_MIN_PROVISIONED",
            )
        )
    if architecture is not None and architecture not in limits.ARCHITECTURES:
        faults.append(
            f"architecture must be one of {listed(limits.ARCHITECTURES)}; got {architecture!r}"
        )
    entries = environment or {}
    faults += [
        fault(
            "environment",
            "free of the names that Lambda keeps for itself",
            name,
            "LAMBDA_RESERVED_ENVIRONMENT",
        )
        for name in entries
        if name in limits.LAMBDA_RESERVED_ENVIRONMENT
    ]
    faults += [
        fault(
            "environment",
            "named with two or more letters, digits and underscores, a letter first",
            name,
            "LAMBDA_ENVIRONMENT_NAME_PATTERN",
        )
        for name in entries
        if isinstance(name, str)
        and name not in limits.LAMBDA_RESERVED_ENVIRONMENT
        and re.fullmatch(limits.ENVIRONMENT_NAME_PATTERN, name)
        and not re.fullmatch(limits.LAMBDA_ENVIRONMENT_NAME_PATTERN, name)
    ]
    size = sum(
        len(str(name).encode()) + len(value.encode())
        for name, value in entries.items()
        if isinstance(value, str) and not is_token(value)
    )
    if size > limits.LAMBDA_ENVIRONMENT_BYTES:
        faults.append(
            fault(
                "environment",
                f"at most {limits.LAMBDA_ENVIRONMENT_BYTES} bytes of names and values",
                size,
                "LAMBDA_ENVIRONMENT_BYTES",
            )
        )
    return faults


def tag_faults(tags: Mapping[str, str], *, added: int = 0) -> list[str]:
    """Faults of tags of one's own; `added` is how many the service adds to them itself."""
    faults = []
    most = limits.TAGS - added
    if len(tags) > most:
        because = f", because AWS adds {added} of its own" if added else ""
        faults.append(fault("tags", f"at most {most}{because}", len(tags), "TAGS"))
    for key, value in tags.items():
        if is_token(key):
            continue
        if not _is_text(key, 1, limits.TAG_KEY_CHARACTERS) or not _TAG_TEXT.fullmatch(key):
            faults.append(
                fault(
                    "tags",
                    f"named with 1 to {limits.TAG_KEY_CHARACTERS} letters, digits, spaces and "
                    "_.:/=+-@",
                    key,
                    "TAG_KEY_CHARACTERS",
                )
            )
        elif key.lower().startswith("aws:"):
            faults.append(fault("tags", "named without aws: in front", key, "TAG_KEY_CHARACTERS"))
        if is_token(value):
            continue
        if not _is_text(value, 0, limits.TAG_VALUE_CHARACTERS) or not _TAG_TEXT.fullmatch(value):
            faults.append(
                fault(
                    f"tags[{key!r}]",
                    f"text of at most {limits.TAG_VALUE_CHARACTERS} letters, digits, spaces and "
                    "_.:/=+-@",
                    value,
                    "TAG_VALUE_CHARACTERS",
                )
            )
    return faults


def endpoint_faults(
    *,
    endpoint_name: str | None = None,
    environment: Mapping[str, str] | None = None,
    set_by_construct: Iterable[str] = (),
    invocation_timeout_s: float | None = limits.INVOCATION_TIMEOUT_S,
) -> list[str]:
    """Faults that all kinds of endpoint share.

    `environment` is what the caller asks for, `set_by_construct` the names that are added to it;
    `invocation_timeout_s` is when the platform gives a request up, None where the service knows.
    """
    faults = []
    if endpoint_name is not None and (
        not _is_text(endpoint_name, 1, limits.ENDPOINT_NAME_CHARACTERS)
        or not re.fullmatch(limits.ENDPOINT_NAME_PATTERN, endpoint_name)
    ):
        faults.append(
            fault(
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
        counted = f", with those that the construct sets ({listed(sorted(own))})" if own else ""
        faults.append(
            fault(
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
    faults += _setting_faults(name for name in entries if isinstance(name, str))
    faults += _value_faults(entries, own, invocation_timeout_s)
    for name, value in entries.items():
        if not isinstance(name, str) or not re.fullmatch(limits.ENVIRONMENT_NAME_PATTERN, name):
            faults.append(
                fault(
                    "environment",
                    "named with letters, digits and underscores",
                    name,
                    "ENVIRONMENT_NAME_PATTERN",
                )
            )
        if is_token(value):
            continue
        if not _is_text(value, 0, limits.ENVIRONMENT_TEXT_CHARACTERS):
            faults.append(
                fault(
                    f"environment[{name!r}]",
                    f"text of at most {limits.ENVIRONMENT_TEXT_CHARACTERS} characters",
                    value if not isinstance(value, str) else f"{len(value)} characters",
                    "ENVIRONMENT_TEXT_CHARACTERS",
                )
            )
    return faults


def _value_faults(
    entries: Mapping[str, str], own: frozenset[str], patience_s: float | None
) -> list[str]:
    """Values that the service would refuse when it starts, minutes into the deployment."""
    faults = []
    for name, value in entries.items():
        # A value that holds a token is known to the deployment only.
        if name in own or not isinstance(value, str) or is_token(value):
            continue
        found = setting_fault(name, value)
        if found is not None:
            faults.append(f"environment: {found} (docs/settings.md)")
        elif (
            name == contract.ENV_TIMEOUT_S
            and patience_s is not None
            and value.strip()
            and float(value) >= patience_s
        ):
            faults.append(
                fault(
                    f"environment[{name!r}]",
                    f"below {patience_s} seconds, when SageMaker gives the request up",
                    value,
                    "INVOCATION_TIMEOUT_S",
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
        hint = f"near it: {listed(near)}" if near else f"known: {listed(sorted(_SERVICE_SETTINGS))}"
        faults.append(
            f"environment must hold settings that the service knows; got {name!r} "
            f"({hint}; docs/settings.md)"
        )
    return faults


def bounded_fault(
    name: str, value: object, low: int, high: int | None, limit: str, *, because: str = ""
) -> list[str]:
    """The fault of a whole number outside [`low`, `high`], if it is one; tokens are skipped."""
    if is_token(value) or is_integer(value, low, high):
        return []
    return [fault(name, f"a whole number {_bounds(low, high)}{because}", value, limit)]


def whole_number_fault(
    name: str, value: object, low: int, high: int | None = None, *, because: str = ""
) -> list[str]:
    """As `bounded_fault`, for a bound of this library's own, which no page of AWS has."""
    if is_token(value) or is_integer(value, low, high):
        return []
    return [f"{name} must be a whole number {_bounds(low, high)}{because}; got {shown(value)}"]


def _bounds(low: int, high: int | None) -> str:
    return f"of at least {low}" if high is None else f"from {low} to {high}"


def fault(name: str, allowed: str, value: object, limit: str) -> str:
    """One sentence: the property, what is allowed, the value, and the page that says so."""
    return f"{name} must be {allowed}; got {shown(value)} ({limits.SOURCES[limit].url})"


def shown(value: object) -> str:
    """`value` as a person typed it."""
    if is_token(value):
        return ONLY_LATER
    # str() first: an enum member would show its class, which nobody typed.
    return repr(str(value)) if isinstance(value, str) else repr(value)


def listed(values: Iterable[object]) -> str:
    """The values with commas between."""
    return ", ".join(str(value) for value in values)


def is_integer(value: object, low: int, high: int | None) -> TypeGuard[int]:
    """Whether `value` is a whole number (and no truth value) from `low` to `high`."""
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return value >= low and (high is None or value <= high)


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether `value` is a number that can be written down: no truth value, infinity or token."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and not is_token(value)
    )


def _is_text(value: object, fewest: int, most: int) -> TypeGuard[str]:
    return isinstance(value, str) and fewest <= len(value) <= most
