"""The KMS key that somebody means, where a policy must name it.

In the CDK an alias of a key is a key, too. A policy that names an alias is about the alias, and
allows nothing with its key: the deployment would fail minutes later, on a package that may not be
decrypted.

Source: https://docs.aws.amazon.com/kms/latest/developerguide/cmks-in-iam-policies.html (as known)
"""

from typing import Final

from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3

from constructs_lib.kinds import KEY_OF_ALIAS, is_alias, target_of
from constructs_lib.rules import ValidationError

_OF_BUCKET: Final = "the key of the bucket must be a key, and not the name of an alias, because {}"


def key_itself(key: kms.IKey | None) -> kms.IKey | None:
    """The key behind `key` where that is an alias, else `key`.

    Of a property of a construct `kind_faults` has refused aliases that are known by name only.
    """
    return target_of(key) if is_alias(key) else key


def key_of(bucket: s3.IBucket) -> kms.IKey | None:
    """The key that encrypts what lies in `bucket`; None where S3 manages it, or nobody said.

    Raises:
        ValidationError: it was given as an alias of which only the name is known.
    """
    key = bucket.encryption_key
    found = key_itself(key)
    if key is not None and found is None:
        raise ValidationError(f"bucket {bucket.node.path}", [_OF_BUCKET.format(KEY_OF_ALIAS)])
    return found


def key_arn_of(bucket: s3.IBucket) -> str | None:
    """ARN of `key_of(bucket)`."""
    key = key_of(bucket)
    return None if key is None else key.key_arn
