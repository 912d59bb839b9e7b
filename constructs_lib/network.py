"""Where an endpoint has its network: subnets that are there, and what its role may do in them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam

from constructs_lib import limits
from constructs_lib.rules import bounded_fault
from constructs_lib.statements import allow
from constructs_lib.tokens import is_token

# What the CDK writes before its words: "ThereSubnetGroupsName: There are …".
_CODE: Final = re.compile(r"^(?:\w+: )+")
_DESCRIBE: Final = (
    "ec2:DescribeDhcpOptions",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSubnets",
    "ec2:DescribeVpcs",
)
_OF_SAGEMAKER: Final = (
    "ec2:CreateNetworkInterface",
    "ec2:CreateNetworkInterfacePermission",
    "ec2:DeleteNetworkInterface",
    "ec2:DeleteNetworkInterfacePermission",
)
_OF_LAMBDA: Final = (
    "ec2:AssignPrivateIpAddresses",
    "ec2:CreateNetworkInterface",
    "ec2:DeleteNetworkInterface",
    "ec2:UnassignPrivateIpAddresses",
)


@dataclass(frozen=True, kw_only=True)
class ChosenSubnets:
    """Subnets by their ids; whether one is public where that is known."""

    subnet_ids: tuple[str, ...]
    has_public: bool = False
    is_pending_lookup: bool = False


def select_subnets(vpc: ec2.IVpc, selection: ec2.SubnetSelection | None) -> ChosenSubnets:
    """The subnets of `selection`, or the VPC's private ones."""
    if selection is None:
        return _chosen(vpc.select_subnets())
    try:
        return _chosen(
            vpc.select_subnets(
                availability_zones=selection.availability_zones,
                one_per_az=selection.one_per_az,
                subnet_filters=selection.subnet_filters,
                subnet_group_name=selection.subnet_group_name,
                subnets=selection.subnets,
                subnet_type=selection.subnet_type,
            )
        )
    except RuntimeError:
        if selection.subnets is None or selection.availability_zones or selection.one_per_az:
            raise
        # Of subnets that are imported by their ids nobody knows the zone, for which it asks.
        return ChosenSubnets(subnet_ids=tuple(it.subnet_id for it in selection.subnets))


def _chosen(selected: ec2.SelectedSubnets) -> ChosenSubnets:
    return ChosenSubnets(
        subnet_ids=tuple(selected.subnet_ids),
        has_public=bool(selected.has_public),
        is_pending_lookup=bool(selected.is_pending_lookup),
    )


def subnet_faults(
    vpc: ec2.IVpc, selection: ec2.SubnetSelection | None, *, public_allowed: bool
) -> list[str]:
    """Faults of the subnets that an endpoint would be in; lists that are tokens are skipped."""
    try:
        selected = select_subnets(vpc, selection)
    except RuntimeError as error:
        # The CDK's own words say which groups the VPC has.
        reason = _CODE.sub("", str(error).strip().splitlines()[0])
        return [f"vpc_subnets must select subnets that the vpc has; {reason}"]
    ids = list(selected.subnet_ids)
    if is_token(ids) or selected.is_pending_lookup:
        return []
    faults = bounded_fault("vpc_subnets (how many)", len(ids), *limits.SUBNETS, "SUBNETS")
    if selected.has_public and not public_allowed:
        faults.append(
            "vpc_subnets must be private, because a function in a public subnet gets no public "
            "address and reaches nothing outside the VPC; got public ones "
            "(https://docs.aws.amazon.com/lambda/latest/dg/configuration-vpc-internet.html)"
        )
    return faults


def grant_sagemaker_network(
    role: iam.IRole,
    stack: cdk.Stack,
    subnet_ids: Sequence[str],
    groups: Sequence[ec2.ISecurityGroup],
) -> None:
    """Let `role` have interfaces in these subnets, behind these groups."""
    # A shared subnet belongs to another account, and ids are unique among all of them.
    subnets = (
        [_arn(stack, "subnet", "*")]
        if is_token(list(subnet_ids))
        else [_arn(stack, "subnet", subnet_id, account="*") for subnet_id in subnet_ids]
    )
    allow(
        role,
        "MakeNetworkInterfaces",
        _OF_SAGEMAKER,
        [
            # Their names are the service's, one for each instance.
            _arn(stack, "network-interface", "*"),
            *subnets,
            *(_arn(stack, "security-group", group.security_group_id) for group in groups),
        ],
    )
    _grant_describe(role)


def grant_lambda_network(role: iam.IRole, stack: cdk.Stack) -> None:
    """Let `role` have the interfaces of a function in a VPC.

    Lambda tries the role before the subnets are looked at, and asks for permissions on all
    resources: https://docs.aws.amazon.com/lambda/latest/dg/configuration-vpc.html (as known).
    """
    allow(role, "MakeNetworkInterfaces", _OF_LAMBDA, ["*"])
    _grant_describe(role)


def _grant_describe(role: iam.IRole) -> None:
    # Describing knows no resources.
    allow(role, "DescribeNetwork", _DESCRIBE, ["*"])


def _arn(stack: cdk.Stack, resource: str, name: str, *, account: str | None = None) -> str:
    return stack.format_arn(service="ec2", resource=resource, resource_name=name, account=account)
