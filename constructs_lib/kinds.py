"""Values of another kind than a property takes, named before something breaks on them.

A type checker finds them first; an app that nobody checked gets a sentence and no traceback from
the inside of this library. The CDK's interfaces are no classes in Python: what has their
attribute is one of them.
"""

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aws_cdk as cdk
from aws_cdk import aws_logs as logs

from constructs_lib.rules import listed, shown


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a property takes.

    Attributes:
        words: for the sentence: "a KMS key", with the way to one.
        types: classes whose objects are right.
        values: of these types the values that are right; all where none is named.
        attribute: of a CDK interface, in place of `types`.
        many: a list of them, and not one.
        optional: or None.
    """

    words: str
    types: tuple[type, ...] = ()
    values: tuple[object, ...] = ()
    attribute: str = ""
    many: bool = False
    optional: bool = True

    def fits(self, value: object) -> bool:
        """Whether `value` is of this kind."""
        if value is None:
            return self.optional
        if not self.many:
            return self._is_one(value)
        # Text is a sequence, too, and never what was meant; what can be gone through only once
        # (a generator) would be empty when it is used.
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            return False
        return all(self._is_one(it) for it in value)

    def _is_one(self, value: object) -> bool:
        if self.attribute:
            return hasattr(value, self.attribute)
        if self.values and value not in self.values:
            return False
        # A truth value is an int to Python, and to nobody else.
        return isinstance(value, self.types) and (not isinstance(value, bool) or bool in self.types)


KEY: Final = Kind(words="a KMS key (for an ARN: kms.Key.from_key_arn)", attribute="key_arn")
BUCKET: Final = Kind(
    words="a bucket (for a name: s3.Bucket.from_bucket_name)", attribute="arn_for_objects"
)
REPOSITORY: Final = Kind(
    words="an ECR repository (for a name: ecr.Repository.from_repository_name)",
    attribute="repository_uri_for_digest",
)
GRANTEE: Final = Kind(
    words="a role, a function or something else with permissions (for an ARN: "
    "iam.Role.from_role_arn)",
    attribute="grant_principal",
    optional=False,
)
ROLE: Final = Kind(
    words="an IAM role (for an ARN: iam.Role.from_role_arn)", attribute="role_arn", optional=False
)
TEXT: Final = Kind(words="text", types=(str,))
TEXTS: Final = Kind(words="a mapping of names to texts", types=(Mapping,))
PATH: Final = Kind(words="a path", types=(str, Path))
FLAG: Final = Kind(words="True or False", types=(bool,), optional=False)
LOG_RETENTION: Final = Kind(
    words="of logs.RetentionDays, RetentionDays.ONE_MONTH for example",
    types=(logs.RetentionDays,),
    optional=False,
)
_LIVES: Final = (
    cdk.RemovalPolicy.DESTROY,
    cdk.RemovalPolicy.RETAIN,
    cdk.RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE,
)
REMOVAL_POLICY: Final = Kind(
    words="a cdk.RemovalPolicy, DESTROY or RETAIN: there are no snapshots of it",
    types=(cdk.RemovalPolicy,),
    values=_LIVES,
    optional=False,
)


# Why an alias by its name is refused, and what to give in its place.
KEY_OF_ALIAS: Final = (
    "policies name keys (kms.Key.from_lookup(…, alias_name=…) finds the key of an alias)"
)


def is_alias(value: object) -> bool:
    """Whether `value` is an alias of a KMS key, which the CDK takes for a key."""
    return hasattr(value, "alias_name")


def target_of(alias: Any) -> Any:
    """The key of an alias; None where the app knows no more of it than its name."""
    try:
        return alias.alias_target_key
    except RuntimeError:
        # So does the CDK say it of `Alias.from_alias_name`.
        return None


def absent_faults(**values: object) -> list[str]:
    """A sentence for each of `values` that is None, of properties that have no such meaning."""
    return [f"{name} must be given; got None" for name, it in values.items() if it is None]


def required(kind: Kind) -> Kind:
    """The same kind, of which None is not one."""
    return dataclasses.replace(kind, optional=False)


def kind_faults(values: Mapping[str, object], kinds: Mapping[str, Kind]) -> list[str]:
    """A sentence for each of `values` that is of another kind, or that `kinds` does not know."""
    faults = []
    for name, value in values.items():
        kind = kinds.get(name)
        if kind is None:
            near = difflib.get_close_matches(name, kinds, n=3)
            hint = f"near it: {listed(near)}" if near else f"known: {listed(sorted(kinds))}"
            faults.append(f"{name} is no property of it ({hint})")
        elif not kind.fits(value):
            faults.append(f"{name} must be {kind.words}; got {shown(value)}")
        elif kind.attribute == KEY.attribute and is_alias(value) and target_of(value) is None:
            faults.append(
                f"{name} must be a key, and not the name of an alias, because {KEY_OF_ALIAS}; got "
                f"{getattr(value, 'alias_name', '')!r}"
            )
    return faults
