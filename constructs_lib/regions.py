"""What each region had on a day: enough to warn, too old to refuse.

    >>> offered_in("eu-west-1", "ml.c7g.xlarge")
    True

Instance types are from AWS's price lists as cfn-lint 1.58.0 carries them (its rule E3642, MIT-0,
read on 2026-11-28); CPU types only, as in `limits.INSTANCE_TYPES`. A price list has holes, and
regions gain types every month: what is absent here may be there by now.
"""

from collections.abc import Mapping
from typing import Final

CFN_LINT_VERSION: Final = "1.58.0"
CHECKED: Final = "2026-11-28"

# Region -> families of which it has every size, but for those in `_LACKING`.
_FAMILIES: Final[Mapping[str, str]] = {
    "af-south-1": "m5 m5d c5 c5d r5 r5d",
    "ap-east-1": "m5 m5d c5 c5d r5 r5d m6g c6g r6g",
    "ap-east-2": "m6i m7i c6i c7i r6i r7i m6g m6gd c6g c7g r6g",
    "ap-northeast-1": (
        "t2 m4 m5 m5d m7i c4 c5 c5d c6i c7i r5 r5d r7i m6g m6gd c6g c6gd c6gn c7g r6g r6gd"
    ),
    "ap-northeast-2": "t2 m4 m5 m5d c4 c5 c5d c6i r5 r5d m6g c6g r6g",
    "ap-northeast-3": "m5 m5d c5 c5d r5 r5d c6g",
    "ap-south-1": "t2 m4 m5 m5d c4 c5 c5d c6i r5 r5d m6g m6gd c6g c6gd c6gn c7g c8g r6g r6gd",
    "ap-south-2": "m5 m5d c5 c5d r5 r5d m6g m6gd c6g r6g",
    "ap-southeast-1": "t2 m4 m5 m5d c4 c5 c5d c6i r5 r5d m6g m6gd c6g c6gd c6gn c7g r6g r6gd",
    "ap-southeast-2": "t2 m4 m5 m5d c4 c5 c5d c6i r5 r5d m6g m6gd c6g c6gd c6gn r6g r6gd",
    "ap-southeast-3": "m5 m5d c5 c5d r5 r5d",
    "ap-southeast-4": "m5 m5d c5 c5d r5 r5d m6g m6gd c6g r6g",
    "ap-southeast-5": "m6i c6i r6i m6g m6gd c6g c6gn r6g",
    "ap-southeast-6": "m6i m7i c6i c7i r6i r7i m6g m6gd c6g c6gn c7g r6g r7gd",
    "ap-southeast-7": "m6i m7i c6i c7i r6i r7i m6g m6gd c6g c6gn c7g r6g",
    "ca-central-1": "t2 m4 m5 m5d c4 c5 c5d c6i r5 r5d m6g c6g r6g",
    "ca-west-1": "m5 m5d c5 c6i r5 m6g m6gd c6g c6gn r6g",
    "cn-north-1": "t2 m4 m5 m5d c4 c5 c5d r5 r5d",
    "cn-northwest-1": "t2 m4 m5 m5d c4 c5 c5d r5 r5d",
    "eu-central-1": "t2 m4 m5 m5d c4 c5 c5d r5 r5d m6g m6gd c6g c6gd c6gn c7g c8g r6g r6gd",
    "eu-central-2": "m5 m5d c5 c5d r5 r5d m6g m6gd c6g r6g",
    "eu-north-1": "m5 m5d m7i c5 c5d c7i r5 r5d r7i m6g c6g c7g c8g r6g",
    "eu-south-1": "m5 m5d c5 c5d r5 r5d m6g c6g r6g",
    "eu-south-2": "m5 m5d m7i c5 c5d c7i r5 r5d r7i m6g m6gd c6g c8g r6g",
    "eu-west-1": (
        "t2 m4 m5 m5d m7i c4 c5 c5d c6i c7i r5 r5d r7i m6g m6gd c6g c6gd c6gn c7g c8g r6g r6gd"
    ),
    "eu-west-2": "t2 m4 m5 m5d c4 c5 c5d c6i r5 r5d m6g c6g r6g",
    "eu-west-3": "t2 m5 m5d c5 c5d c6i r5 r5d m6g c6g r6g",
    "il-central-1": "m5 m5d c5 c5d c6i r5 r5d m6g m6gd c6g c6gn r6g",
    "me-central-1": "m5 m5d c5 c5d r5 r5d m6g m6gd r6g",
    "me-south-1": "m5 m5d c5 c5d r5 r5d m6g c6g",
    "mx-central-1": "m6i m7i c6i c7i r6i r7i m6g m6gd c6g c6gn c7g r6g",
    "sa-east-1": "t2 m4 m5 m5d c4 c5 c5d c6i r5 r5d m6g c6g r6g",
    "us-east-1": (
        "t2 m4 m5 m5d m7i c4 c5 c5d c6i c7i r5 r5d r7i m6g m6gd c6g c6gd c6gn c7g c8g r6g r6gd r8g"
    ),
    "us-east-2": (
        "t2 m4 m5 m5d m7i c4 c5 c5d c6i c7i r5 r5d r7i m6g m6gd c6g c6gd c6gn c7g c8g r6g r6gd r8g"
    ),
    "us-gov-east-1": "m5 m5d c5 c5d c6i r5 r5d m6g c6g r6g",
    "us-gov-west-1": "t2 m4 m5 m5d c4 c5 c5d c6i r5 r5d",
    "us-west-1": "t2 m4 m5 m5d c4 c5 c5d c6i r5 r5d m6g m6gd c6g c6gd c6gn r6g r6gd",
    "us-west-2": (
        "t2 m4 m5 m5d m7i c4 c5 c5d c6i c7i r5 r5d r7i m6g m6gd c6g c6gd c6gn c7g c8g r6g r6gd r8g"
    ),
}
_LACKING: Final[Mapping[str, str]] = {
    "ap-east-2": "m6i.24xlarge m6i.32xlarge c6i.24xlarge c6i.32xlarge r6i.24xlarge r6i.32xlarge",
    "ap-northeast-1": "c7g.large c7g.xlarge c7g.12xlarge c7g.16xlarge",
    "ap-south-1": "c7g.large c7g.xlarge c7g.12xlarge c7g.16xlarge",
    "ap-south-2": "r5.2xlarge",
    "ap-southeast-1": "c7g.large c7g.xlarge c7g.12xlarge c7g.16xlarge",
    "ap-southeast-4": "r5.2xlarge",
    "ap-southeast-6": (
        "m6i.24xlarge m6i.32xlarge c6i.24xlarge c6i.32xlarge r6i.24xlarge r6i.32xlarge"
    ),
    "ca-west-1": "c6gn.12xlarge",
    "cn-north-1": "t2.xlarge m4.xlarge",
    "cn-northwest-1": "t2.xlarge m4.xlarge",
    "eu-central-1": "c7g.large c7g.12xlarge c7g.16xlarge",
    "eu-central-2": (
        "m6g.16xlarge r6g.large r6g.xlarge r6g.2xlarge r6g.4xlarge r6g.8xlarge r6g.12xlarge"
    ),
    "eu-north-1": "c7g.large c7g.xlarge c7g.12xlarge c7g.16xlarge",
    "eu-south-2": "r5.2xlarge m6g.16xlarge",
    "il-central-1": "r5.2xlarge c6gn.12xlarge",
    "me-south-1": "m5d.4xlarge",
}
REGIONS: Final = tuple(_FAMILIES)

# Where serverless inference was when it became generally available (April 2022): where SageMaker
# was, without China and GovCloud. As known; the announcement itself was not read, and no page of
# AWS that was found lists them. Of regions that came later nothing is known.
_SERVERLESS: Final = (
    "af-south-1 ap-east-1 ap-northeast-1 ap-northeast-2 ap-northeast-3 ap-south-1 "
    "ap-southeast-1 ap-southeast-2 ca-central-1 eu-central-1 eu-north-1 eu-south-1 "
    "eu-west-1 eu-west-2 eu-west-3 me-south-1 sa-east-1 us-east-1 us-east-2 us-west-1 "
    "us-west-2"
)
# Where functions have no URLs: https://docs.aws.amazon.com/lambda/latest/dg/lambda-urls.html, the
# page's text, read on 2026-11-28.
_WITHOUT_FUNCTION_URLS: Final = (
    "ap-east-2 ap-south-2 ap-southeast-4 ap-southeast-5 ap-southeast-6 ap-southeast-7 "
    "ca-west-1 eu-central-2 eu-south-2 il-central-1 me-central-1"
)


def serverless_in(region: str) -> bool | None:
    """Whether serverless inference is known to be in `region`; None where it is not known."""
    return True if region in _SERVERLESS.split() else None


def function_urls_in(region: str) -> bool | None:
    """Whether functions have URLs in `region`; None for a region that the table lacks."""
    if region not in _FAMILIES:
        return None
    return region not in _WITHOUT_FUNCTION_URLS.split()


def offered_in(region: str, instance_type: str) -> bool | None:
    """Whether the table has `instance_type` in `region`; None for a region that it lacks."""
    if region not in _FAMILIES:
        return None
    name = instance_type.removeprefix("ml.")
    family = name.partition(".")[0]
    return family in _FAMILIES[region].split() and name not in _LACKING.get(region, "").split()
