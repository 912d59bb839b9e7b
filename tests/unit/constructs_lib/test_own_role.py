"""A user's own execution role, and an organisation's permissions boundary."""

from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk import aws_iam as iam

from constructs_lib import LambdaDREndpoint, RealtimeDREndpoint, ServerlessDREndpoint
from tests.constructs_fixtures import (
    ACCOUNT,
    an_artifact,
    an_image,
    new_stack,
    resources,
    statements,
    template_of,
)

ENDPOINTS: list[tuple[Any, dict[str, Any]]] = [
    (ServerlessDREndpoint, {"memory_mib": 2048}),
    (RealtimeDREndpoint, {"instance_type": "ml.m5.xlarge"}),
    (LambdaDREndpoint, {"memory_mib": 2048}),
]
NAMES = [construct.__name__ for construct, _ in ENDPOINTS]


def own_role(stack: cdk.Stack) -> iam.Role:
    service = iam.CompositePrincipal(
        iam.ServicePrincipal("sagemaker.amazonaws.com"),
        iam.ServicePrincipal("lambda.amazonaws.com"),
    )
    return iam.Role(stack, "Own", assumed_by=service)


@pytest.mark.parametrize(("construct", "props"), ENDPOINTS, ids=NAMES)
def test_an_own_role_is_used_and_gets_what_the_endpoint_needs(
    construct: Any, props: dict[str, Any]
) -> None:
    stack = new_stack()
    role = own_role(stack)
    endpoint = construct(
        stack, "Endpoint", model=an_artifact(stack), image=an_image(), role=role, **props
    )
    assert endpoint.role is role
    template = template_of(stack)
    assert len(resources(template, "AWS::IAM::Role")) == 1
    sids = {statement.get("Sid") for statement in statements(template)}
    assert {"ReadModelPackage", "WriteLogs"} <= sids
    # It may be used only once it has its policy.
    (policy,) = resources(template, "AWS::IAM::Policy")
    users = {**resources(template, "AWS::SageMaker::Model")} or resources(
        template, "AWS::Lambda::Function"
    )
    assert all(policy in user["DependsOn"] for user in users.values())


def test_an_imported_role_gets_a_policy_and_one_that_may_not_change_gets_none() -> None:
    counts = []
    for mutable in (True, False):
        stack = new_stack()
        role = iam.Role.from_role_arn(
            stack, "Theirs", f"arn:aws:iam::{ACCOUNT}:role/clinic", mutable=mutable
        )
        ServerlessDREndpoint(
            stack,
            "Endpoint",
            model=an_artifact(stack),
            image=an_image(),
            memory_mib=2048,
            role=role,
        )
        template = template_of(stack)
        assert resources(template, "AWS::IAM::Role") == {}
        (model,) = resources(template, "AWS::SageMaker::Model").values()
        assert str(model["Properties"]["ExecutionRoleArn"]).endswith(":role/clinic")
        counts.append(len(resources(template, "AWS::IAM::Policy")))
    assert counts == [1, 0]


@pytest.mark.parametrize(("construct", "props"), ENDPOINTS, ids=NAMES)
def test_a_permissions_boundary_is_on_every_role(construct: Any, props: dict[str, Any]) -> None:
    stack = new_stack()
    construct(stack, "Endpoint", model=an_artifact(stack), image=an_image(), **props)
    boundary = iam.ManagedPolicy.from_managed_policy_name(stack, "Boundary", "clinic-boundary")
    iam.PermissionsBoundary.of(stack).apply(boundary)
    roles = resources(template_of(stack), "AWS::IAM::Role").values()
    assert roles
    for role in roles:
        assert "policy/clinic-boundary" in str(role["Properties"]["PermissionsBoundary"])
