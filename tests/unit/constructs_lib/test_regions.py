"""What a region is not known to have is a warning, and nothing where it is known or unknowable."""

from typing import Any

import aws_cdk as cdk
import pytest

from constructs_lib import LambdaDREndpoint, ServerlessDREndpoint, regions
from constructs_lib.lambda_dr_endpoint import NO_URL_IN_REGION
from constructs_lib.serverless_dr_endpoint import NOT_SEEN_IN_REGION
from tests.constructs_fixtures import ACCOUNT, an_artifact, new_app


def stack_in(region: str | None) -> cdk.Stack:
    env = None if region is None else cdk.Environment(account=ACCOUNT, region=region)
    return cdk.Stack(new_app(), "Stack", env=env)


def warnings(stack: cdk.Stack, kind: Any) -> list[str]:
    from constructs_lib import InferenceImageRepo

    image = InferenceImageRepo(stack, "Images").image(architecture="amd64")
    endpoint = kind(stack, "Endpoint", model=an_artifact(stack), image=image, memory_mib=1024)
    return [str(it.data) for it in endpoint.node.metadata if it.type == "aws:cdk:warning"]


@pytest.mark.parametrize(
    ("kind", "region", "words"),
    [
        (ServerlessDREndpoint, "eu-west-1", None),
        (ServerlessDREndpoint, None, None),
        (ServerlessDREndpoint, "mx-central-1", "whether mx-central-1 has serverless inference"),
        (ServerlessDREndpoint, "cn-north-1", "is not known to this library's table"),
        (LambdaDREndpoint, "eu-west-1", None),
        (LambdaDREndpoint, None, None),
        (LambdaDREndpoint, "eu-south-2", "functions had no URLs in eu-south-2 on 2026-11-28"),
        (LambdaDREndpoint, "eu-nowhere-1", "eu-nowhere-1 is not in this library's table"),
    ],
)
def test_a_region_is_warned_of_where_it_is_known(
    kind: Any, region: str | None, words: str | None
) -> None:
    said = [it for it in warnings(stack_in(region), kind) if NO_URL_IN_REGION in it
            or NOT_SEEN_IN_REGION in it]  # fmt: skip
    assert len(said) == (words is not None)
    assert words is None or words in said[0]


def test_the_tables_name_regions_that_there_are() -> None:
    known = set(regions.REGIONS)
    assert set(regions._SERVERLESS.split()) < known
    assert set(regions._WITHOUT_FUNCTION_URLS.split()) < known
    assert [regions.function_urls_in(it) for it in ("us-east-1", "ca-west-1", "x")] == [
        True,
        False,
        None,
    ]
    assert [regions.serverless_in(it) for it in ("us-east-1", "ca-west-1", "x")] == [
        True,
        None,
        None,
    ]
