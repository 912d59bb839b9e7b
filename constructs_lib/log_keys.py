"""The permission without which CloudWatch Logs refuses a key: a log group could not be made."""

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms


def let_logs_use(key: kms.IKey | None) -> None:
    """Let CloudWatch Logs encrypt log groups of the key's account and region with `key`.

    A key that was not made in this app keeps its policy, which must allow it already. Not of one
    group only: the group names the key, and the key's policy may not name the group again.

    Source: https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/encrypt-log-data-kms.html
    """
    if key is None:
        return
    key.add_to_resource_policy(
        iam.PolicyStatement(
            sid="LetCloudWatchLogsEncrypt",
            principals=[iam.ServicePrincipal(f"logs.{cdk.Aws.REGION}.amazonaws.com")],
            actions=[
                "kms:Decrypt*",
                "kms:Describe*",
                "kms:Encrypt*",
                "kms:GenerateDataKey*",
                "kms:ReEncrypt*",
            ],
            # A key's policy is about that key.
            resources=["*"],
            conditions={
                "ArnLike": {
                    "kms:EncryptionContext:aws:logs:arn": (
                        f"arn:{cdk.Aws.PARTITION}:logs:{cdk.Aws.REGION}:{cdk.Aws.ACCOUNT_ID}:"
                        "log-group:*"
                    )
                }
            },
        ),
        True,
    )
