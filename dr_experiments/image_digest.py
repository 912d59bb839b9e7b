"""Which image an endpoint runs, by digest: a tag may be moved, a digest cannot.

>>> resolve_digest(target.image, client=boto3.client("ecr"))
'sha256:…'
"""

from typing import Any

from dr_experiments.records import digest_in


def resolve_digest(image: str | None, *, client: Any) -> str | None:
    """Digest of an image reference: its own, or what ECR has for its tag now; None if unknown.

    Args:
        client: a boto3 `ecr` client of the registry's region.
    """
    import botocore.exceptions

    known = digest_in(image)
    if known is not None or image is None:
        return known
    registry, _, rest = image.partition("/")
    repository, colon, tag = rest.rpartition(":")
    if not colon or ".dkr.ecr." not in registry:
        return None
    try:
        found = client.describe_images(
            registryId=registry.partition(".")[0],
            repositoryName=repository,
            imageIds=[{"imageTag": tag}],
        )
    except (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError):
        # Not there, or not ours to ask: the record says that it is not known.
        return None
    return str(found["imageDetails"][0]["imageDigest"])
