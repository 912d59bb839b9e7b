"""Values of another kind than a property takes, named before something breaks on them.

A type checker finds them first; an app that nobody checked gets a sentence and no traceback from
the inside of this library. The CDK's interfaces are no classes in Python: what has their
attribute is one of them.
"""

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from constructs_lib.rules import listed, shown


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a property takes.

    Attributes:
        words: for the sentence: "a KMS key", with the way to one.
        types: classes whose objects are right.
        attribute: of a CDK interface, in place of `types`.
        many: a list of them, and not one.
        optional: or None.
    """

    words: str
    types: tuple[type, ...] = ()
    attribute: str = ""
    many: bool = False
    optional: bool = True

    def fits(self, value: object) -> bool:
        """Whether `value` is of this kind."""
        if value is None:
            return self.optional
        if not self.many:
            return self._is_one(value)
        # Text and mappings are iterable, too, and never what was meant.
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            return False
        return all(self._is_one(it) for it in value)

    def _is_one(self, value: object) -> bool:
        if self.attribute:
            return hasattr(value, self.attribute)
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
TEXT: Final = Kind(words="text", types=(str,))
TEXTS: Final = Kind(words="a mapping of names to texts", types=(Mapping,))
PATH: Final = Kind(words="a path", types=(str, Path))
FLAG: Final = Kind(words="True or False", types=(bool,), optional=False)


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
    return faults
