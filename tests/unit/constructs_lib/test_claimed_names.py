"""Two endpoints of one name cannot be deployed, and are refused where that is known."""

import aws_cdk as cdk
import pytest
from aws_cdk.assertions import Template

from constructs_lib import (
    AlarmOptions,
    DREndpoint,
    LambdaDREndpoint,
    RealtimeDREndpoint,
    ServerlessDREndpoint,
    ValidationError,
)
from tests.constructs_fixtures import HOME, an_artifact, an_image, new_app, new_stack


def serverless(
    stack: cdk.Stack,
    name: str,
    *,
    construct_id: str = "Endpoint",
    alarms: AlarmOptions | None = None,
) -> DREndpoint:
    return ServerlessDREndpoint(
        stack,
        construct_id,
        model=an_artifact(stack),
        image=an_image(),
        memory_mib=2048,
        endpoint_name=name,
        alarms=alarms,
    )


def on_lambda(stack: cdk.Stack, name: str, *, alarms: AlarmOptions | None = None) -> DREndpoint:
    return LambdaDREndpoint(
        stack,
        "Function",
        model=an_artifact(stack),
        image=an_image(),
        memory_mib=2048,
        endpoint_name=name,
        alarms=alarms,
    )


def test_two_endpoints_of_one_name_in_a_stack_are_refused() -> None:
    stack = new_stack()
    serverless(stack, "grader", construct_id="First")
    with pytest.raises(ValidationError) as refused:
        # SageMaker does not tell capitals apart.
        RealtimeDREndpoint(
            stack,
            "Second",
            model=an_artifact(stack),
            image=an_image(),
            instance_type="ml.m5.xlarge",
            endpoint_name="Grader",
        )
    (fault,) = refused.value.faults
    assert fault.startswith("endpoint_name must be unique, and another SageMaker endpoint")
    assert "(Stack/First); got 'Grader'" in fault


def test_one_name_in_two_stacks_of_one_place_is_refused() -> None:
    app = new_app()
    serverless(cdk.Stack(app, "One", env=HOME), "grader")
    with pytest.raises(ValidationError, match=r"\(One/Endpoint\)"):
        serverless(cdk.Stack(app, "Two", env=HOME), "grader")
    elsewhere = cdk.Environment(account="210987654321", region="eu-west-1")
    other = cdk.Stack(app, "Elsewhere", env=elsewhere)
    LambdaDREndpoint(
        other, "E", model=None, image=an_image(), memory_mib=1024, endpoint_name="grader"
    )


def test_where_a_stack_goes_to_is_not_guessed() -> None:
    app = new_app()
    for stage in ("Dev", "Prod"):
        # One app, one name, and an account of its own for each stage.
        serverless(cdk.Stack(cdk.Stage(app, stage), "Clinic"), "grader")
    stack = cdk.Stack(app, "Clinic")
    serverless(stack, "grader")
    nested = cdk.NestedStack(stack, "Nested")
    with pytest.raises(ValidationError, match="must be unique"):
        serverless(nested, "grader")


def test_a_function_may_have_the_name_of_an_endpoint_without_alarms() -> None:
    stack = new_stack()
    serverless(stack, "grader")
    on_lambda(stack, "grader")
    watched = new_stack()
    serverless(watched, "grader", alarms=AlarmOptions())
    with pytest.raises(ValidationError, match="unique among endpoints with alarms"):
        on_lambda(watched, "grader", alarms=AlarmOptions())


def test_a_refused_endpoint_keeps_no_name() -> None:
    stack = new_stack()
    with pytest.raises(ValidationError, match="memory_mib"):
        ServerlessDREndpoint(
            stack,
            "Wrong",
            model=an_artifact(stack),
            image=an_image(),
            memory_mib=5,
            endpoint_name="grader",
        )
    serverless(stack, "grader")


def test_names_of_different_apps_have_nothing_to_do_with_each_other() -> None:
    stacks = [new_stack() for _ in range(2)]
    for stack in stacks:
        serverless(stack, "grader")
    for stack in stacks:
        Template.from_stack(stack).has_resource_properties(
            "AWS::SageMaker::Endpoint", {"EndpointName": "grader"}
        )


def test_what_was_removed_from_the_app_has_no_name_any_more() -> None:
    stack = new_stack()
    serverless(stack, "grader", construct_id="First")
    assert stack.node.try_remove_child("First")
    serverless(stack, "grader", construct_id="First")
    assert stack.node.try_remove_child("First")
    serverless(stack, "grader", construct_id="Second")
    with pytest.raises(ValidationError, match=r"must be unique.*\(Stack/Second\)"):
        serverless(stack, "grader", construct_id="Third")
