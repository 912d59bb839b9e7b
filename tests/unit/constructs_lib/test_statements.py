"""Statements of a policy have names of their own, also where endpoints share a role."""

from collections import Counter
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3

from constructs_lib import (
    DataCapture,
    LambdaDREndpoint,
    ModelArtifactBucket,
    RealtimeDREndpoint,
    ServerlessDREndpoint,
    ValidationError,
)
from constructs_lib.statements import allow, plain_sid
from tests.constructs_fixtures import (
    HOME,
    Template,
    an_artifact,
    an_image,
    new_app,
    new_stack,
    only,
    resources,
    statements,
    synthesize,
    template_of,
)

ENDPOINTS: dict[type[Any], dict[str, Any]] = {
    ServerlessDREndpoint: {"memory_mib": 2048},
    RealtimeDREndpoint: {"instance_type": "ml.m5.xlarge"},
    LambdaDREndpoint: {"memory_mib": 2048},
}


def a_role(scope: cdk.Stack, *, path: str | None = None) -> iam.Role:
    services = (f"{name}.amazonaws.com" for name in ("sagemaker", "lambda"))
    assumed_by = iam.CompositePrincipal(*map(iam.ServicePrincipal, services))
    return iam.Role(scope, "Own", assumed_by=assumed_by, path=path)


def twice_named(template: Template) -> list[str]:
    """Sids that come twice in one policy, of roles or of buckets and keys."""
    documents = [
        *(
            it["Properties"]["PolicyDocument"]
            for it in resources(template, "AWS::IAM::Policy").values()
        ),
        *(
            it["Properties"]["PolicyDocument"]
            for it in resources(template, "AWS::S3::BucketPolicy").values()
        ),
        *(it["Properties"]["KeyPolicy"] for it in resources(template, "AWS::KMS::Key").values()),
    ]
    return [
        sid
        for document in documents
        for sid, count in Counter(it["Sid"] for it in document["Statement"] if "Sid" in it).items()
        if count > 1
    ]


@pytest.mark.parametrize("imported", [False, True])
def test_endpoints_may_share_a_role(imported: bool) -> None:
    stack = new_stack()
    role: iam.IRole = (
        iam.Role.from_role_name(stack, "Theirs", "clinic") if imported else a_role(stack)
    )
    key = kms.Key(stack, "Key")
    captured = DataCapture(bucket=s3.Bucket(stack, "Captured"))
    model, other = an_artifact(stack), an_artifact(stack, sha256="cd" * 32)
    for number, (kind, size) in enumerate(ENDPOINTS.items()):
        more = {"data_capture": captured} if kind is RealtimeDREndpoint else {}
        for which in (model, other):
            kind(
                stack,
                f"{number}-{which.sha256[:2]}",
                model=which,
                image=an_image(),
                role=role,
                encryption_key=key,
                log_encryption_key=key,
                **size,
                **more,
            )
    template = template_of(stack)
    assert twice_named(template) == []
    read = [it for it in statements(template) if plain_sid(it["Sid"]) == "ReadModelPackage"]
    assert [it["Sid"] for it in read] == ["ReadModelPackage", "ReadModelPackage2"]
    # What is the same for all of them is said once.
    assert [it["Sid"] for it in statements(template)].count("LogInToRegistry") == 1


def test_a_bucket_of_access_logs_may_serve_several_buckets() -> None:
    stack = new_stack()
    log_bucket = s3.Bucket(stack, "Logs")
    for name in ("First", "Second"):
        ModelArtifactBucket(stack, name, access_logs_bucket=log_bucket)
    template = template_of(stack)
    delivered = [
        statement
        for policy in resources(template, "AWS::S3::BucketPolicy").values()
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]
        if statement.get("Sid", "").startswith("DeliverAccessLogs")
    ]
    assert len(delivered) == 2
    assert twice_named(template) == []


def test_the_same_statement_twice_is_one() -> None:
    stack = new_stack()
    role = a_role(stack)
    for resource in ("a", "b", "a"):
        allow(role, "Read", ["s3:GetObject"], [f"arn:aws:s3:::{resource}/x"])
    allow(role, "Read", ["s3:GetObject"], ["arn:aws:s3:::a/x"], conditions={"Bool": {"x": "true"}})
    sids = [statement["Sid"] for statement in statements(template_of(stack))]
    assert sids == ["Read", "Read2", "Read3"]
    assert {plain_sid(sid) for sid in sids} == {"Read"}


@pytest.mark.parametrize("kind", ENDPOINTS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("nested", [False, True])
def test_a_role_may_be_another_stacks(kind: type[Any], nested: bool) -> None:
    app = new_app()
    roles = cdk.Stack(app, "Roles", env=HOME)
    stack = cdk.NestedStack(roles, "Nested") if nested else cdk.Stack(app, "Stack", env=HOME)
    endpoint = kind(
        stack,
        "Endpoint",
        model=an_artifact(stack),
        image=an_image(),
        role=a_role(roles),
        **ENDPOINTS[kind],
    )
    templates = synthesize(app)
    theirs = templates["Roles"]
    (ours,) = (it for name, it in templates.items() if name != "Roles")
    # Permissions are written where what they name is made; the role's own stack waits for nothing.
    assert resources(theirs, "AWS::IAM::Policy") == {}
    policy_id, policy = only(ours, "AWS::IAM::Policy")
    assert {"ReadModelPackage", "WriteLogs"} <= {
        it["Sid"] for it in policy["Properties"]["PolicyDocument"]["Statement"]
    }
    user = "AWS::Lambda::Function" if kind is LambdaDREndpoint else "AWS::SageMaker::Model"
    assert policy_id in only(ours, user)[1]["DependsOn"]
    assert endpoint.role.role_arn


def test_a_role_that_cannot_be_used_from_here_is_refused() -> None:
    app = new_app()
    elsewhere = cdk.Environment(account="210987654321", region="eu-west-1")
    cases = {
        "must be in the stack's account, 123456789012": a_role(
            cdk.Stack(app, "Elsewhere", env=elsewhere)
        ),
        "must be without a path where another stack makes it": a_role(
            cdk.Stack(app, "Roles", env=HOME), path="/clinic/"
        ),
    }
    stack = cdk.Stack(app, "Stack", env=HOME)
    for number, (words, role) in enumerate(cases.items()):
        with pytest.raises(ValidationError) as refused:
            ServerlessDREndpoint(
                stack,
                f"Endpoint{number}",
                model=an_artifact(stack),
                image=an_image(),
                memory_mib=2048,
                role=role,
            )
        (fault,) = refused.value.faults
        assert fault.startswith(f"role {words}")
