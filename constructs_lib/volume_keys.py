"""The permission without which SageMaker cannot encrypt the volumes of its instances."""

from aws_cdk import aws_iam as iam


def grant_volume_key(role: iam.IRole, key_arn: str) -> None:
    """Let SageMaker encrypt volumes with a key, by a grant on behalf of the execution role.

    Which permissions that takes is the key's page "Using key policies": none of them is more than
    a volume needs.
    """
    role.add_to_principal_policy(
        iam.PolicyStatement(
            sid="UseVolumeKey",
            actions=["kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKeyWithoutPlaintext"],
            resources=[key_arn],
        )
    )
    role.add_to_principal_policy(
        iam.PolicyStatement(
            sid="GrantVolumeKey",
            actions=["kms:CreateGrant"],
            resources=[key_arn],
            conditions={"Bool": {"kms:GrantIsForAWSResource": "true"}},
        )
    )
