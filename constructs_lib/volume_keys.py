"""The permission without which SageMaker cannot encrypt the volumes of its instances."""

from aws_cdk import aws_iam as iam

from constructs_lib.statements import allow


def grant_volume_key(role: iam.IRole, key_arn: str) -> None:
    """Let SageMaker encrypt volumes with a key, by a grant on behalf of the execution role.

    Which permissions that takes is the key's page "Using key policies": none of them is more than
    a volume needs.
    """
    allow(
        role,
        "UseVolumeKey",
        ["kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKeyWithoutPlaintext"],
        [key_arn],
    )
    allow(
        role,
        "GrantVolumeKey",
        ["kms:CreateGrant"],
        [key_arn],
        conditions={"Bool": {"kms:GrantIsForAWSResource": "true"}},
    )
