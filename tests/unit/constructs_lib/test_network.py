"""Subnets that are not there, too many or public; and what a role needs to be in them."""

from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk import aws_ec2 as ec2

from constructs_lib import LambdaDREndpoint, RealtimeDREndpoint, ValidationError, limits
from constructs_lib.sagemaker_endpoint import IN_PUBLIC_SUBNETS
from tests.constructs_fixtures import an_artifact, an_image, new_stack, statements, template_of


def imported(stack: cdk.Stack, subnets: int) -> ec2.IVpc:
    ids = [f"subnet-{number:08x}" for number in range(subnets)]
    return ec2.Vpc.from_vpc_attributes(
        stack,
        "Vpc",
        vpc_id="vpc-1",
        availability_zones=["eu-west-1a"] * max(subnets, 1),
        private_subnet_ids=ids or None,
    )


def public(stack: cdk.Stack) -> ec2.IVpc:
    group = ec2.SubnetConfiguration(name="open", subnet_type=ec2.SubnetType.PUBLIC)
    return ec2.Vpc(stack, "Vpc", max_azs=2, nat_gateways=0, subnet_configuration=[group])


def realtime(stack: cdk.Stack, **options: Any) -> RealtimeDREndpoint:
    return RealtimeDREndpoint(
        stack,
        "Endpoint",
        model=an_artifact(stack),
        image=an_image(),
        instance_type="ml.m5.xlarge",
        **options,
    )


def function(stack: cdk.Stack, **options: Any) -> LambdaDREndpoint:
    return LambdaDREndpoint(
        stack,
        "Function",
        model=an_artifact(stack),
        image=an_image(),
        memory_mib=1024,
        **options,
    )


@pytest.mark.parametrize("make", [realtime, function])
def test_as_many_subnets_as_the_service_takes(make: Any) -> None:
    low, high = limits.SUBNETS
    for accepted in (low, high):
        stack = new_stack()
        make(stack, vpc=imported(stack, accepted))
    stack = new_stack()
    with pytest.raises(ValidationError) as refused:
        make(stack, vpc=imported(stack, high + 1))
    (fault,) = refused.value.faults
    assert f"vpc_subnets (how many) must be a whole number from 1 to 16; got {high + 1}" in fault


@pytest.mark.parametrize("make", [realtime, function])
def test_subnets_that_are_not_there_are_one_of_the_faults(make: Any) -> None:
    stack = new_stack()
    with pytest.raises(ValidationError, match="vpc_subnets must select subnets that the vpc has"):
        make(stack, vpc=imported(stack, 0))
    stack = new_stack()
    group = ec2.SubnetSelection(subnet_group_name="Clinic")
    with pytest.raises(ValidationError) as refused:
        make(stack, vpc=ec2.Vpc(stack, "Vpc"), vpc_subnets=group, tags={"aws:a": "b"})
    # In one message with what else is wrong.
    assert len(refused.value.faults) == 2
    assert "no subnet groups with name 'Clinic'" in str(refused.value)


def test_public_subnets_are_refused_for_functions_and_said_of_instances() -> None:
    stack = new_stack()
    with pytest.raises(ValidationError, match="vpc_subnets must be private"):
        function(stack, vpc=public(stack))
    stack = new_stack()
    endpoint = realtime(stack, vpc=public(stack))
    assert any(IN_PUBLIC_SUBNETS in str(it.data) for it in endpoint.node.metadata)


def test_a_function_in_a_vpc_may_have_interfaces_and_one_outside_may_not() -> None:
    stack = new_stack()
    function(stack, vpc=imported(stack, 2))
    granted = {
        action
        for statement in statements(template_of(stack))
        for action in [statement["Action"]]
        for action in ([action] if isinstance(action, str) else action)
    }
    # What AWS's own managed policy for functions in a VPC has, beside the log.
    assert granted >= {
        "ec2:AssignPrivateIpAddresses",
        "ec2:CreateNetworkInterface",
        "ec2:DeleteNetworkInterface",
        "ec2:DescribeNetworkInterfaces",
        "ec2:DescribeSubnets",
        "ec2:UnassignPrivateIpAddresses",
    }
    outside = new_stack()
    function(outside)
    assert "ec2:" not in str(statements(template_of(outside)))


def test_subnets_may_be_shared_by_another_account() -> None:
    stack = new_stack()
    realtime(stack, vpc=imported(stack, 1))
    (network,) = (
        it for it in statements(template_of(stack)) if it.get("Sid") == "MakeNetworkInterfaces"
    )
    assert any(":eu-west-1:*:subnet/subnet-00000000" in str(it) for it in network["Resource"])


@pytest.mark.parametrize("make", [realtime, function])
def test_subnets_may_be_imported_by_their_ids_alone(make: Any) -> None:
    stack = new_stack()
    # Of these nobody knows the zone.
    ids = ["subnet-0000000a", "subnet-0000000b"]
    subnets = [ec2.Subnet.from_subnet_id(stack, name, name) for name in ids]
    make(stack, vpc=imported(stack, 1), vpc_subnets=ec2.SubnetSelection(subnets=subnets))
    made = [it["Properties"] for it in template_of(stack)["Resources"].values()]
    (chosen,) = (it["VpcConfig"] for it in made if "VpcConfig" in it)
    assert chosen.get("Subnets", chosen.get("SubnetIds")) == ids


def test_public_subnets_are_seen_where_they_are_chosen_one_by_one() -> None:
    stack = new_stack()
    vpc = public(stack)
    with pytest.raises(ValidationError, match="vpc_subnets must be private"):
        function(stack, vpc=vpc, vpc_subnets=ec2.SubnetSelection(subnets=vpc.public_subnets))


def test_the_cdks_reason_comes_without_its_code() -> None:
    stack = new_stack()
    group = ec2.SubnetSelection(subnet_group_name="Clinic")
    with pytest.raises(ValidationError) as refused:
        realtime(stack, vpc=ec2.Vpc(stack, "Vpc"), vpc_subnets=group)
    (fault,) = refused.value.faults
    assert "that the vpc has; There are no subnet groups with name 'Clinic'" in fault
