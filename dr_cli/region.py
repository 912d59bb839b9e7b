"""Which AWS region is meant.

botocore reads `AWS_DEFAULT_REGION` and the profile but not `AWS_REGION`, which most other
tools of AWS and its containers set.
"""

import os


def aws_region(option: str | None = None) -> str | None:
    """The region: `option`, else AWS_REGION, AWS_DEFAULT_REGION, the profile; None without any."""
    chosen = option or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if chosen:
        return chosen
    import boto3

    region: str | None = boto3.session.Session().region_name
    return region
