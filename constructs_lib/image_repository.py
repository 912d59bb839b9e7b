"""An ECR repository of one's own for the service's images, and the copying into it."""

from pathlib import Path
from typing import Final

import aws_cdk as cdk
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_ecr_assets as ecr_assets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from constructs_lib.log_keys import let_logs_use

_HANDLER: Final = Path(__file__).parent / "image_copy"
_MEMORY_MIB: Final = 1024
_TIMEOUT_MINUTES: Final = 15
_UNTAGGED_DAYS: Final = 14


def make_repository(
    scope: Construct,
    *,
    encryption_key: kms.IKey | None,
    removal_policy: cdk.RemovalPolicy,
    max_image_count: int,
) -> ecr.Repository:
    """A private repository: scanned on push, tags that never move, old images deleted.

    `max_image_count` bounds the images that are kept. An endpoint pulls its image again
    whenever it scales out, so the bound leaves room for every image that may still run.
    """
    repository = ecr.Repository(
        scope,
        "Repository",
        image_scan_on_push=True,
        image_tag_mutability=ecr.TagMutability.IMMUTABLE,
        encryption=(
            ecr.RepositoryEncryption.AES_256
            if encryption_key is None
            else ecr.RepositoryEncryption.KMS
        ),
        encryption_key=encryption_key,
        removal_policy=removal_policy,
        empty_on_delete=removal_policy == cdk.RemovalPolicy.DESTROY,
        lifecycle_rules=[
            ecr.LifecycleRule(
                description="Images without a tag",
                tag_status=ecr.TagStatus.UNTAGGED,
                max_image_age=cdk.Duration.days(_UNTAGGED_DAYS),
                rule_priority=1,
            ),
            ecr.LifecycleRule(
                description="Images beyond the newest",
                tag_status=ecr.TagStatus.ANY,
                max_image_count=max_image_count,
                rule_priority=2,
            ),
        ],
    )
    # As on the bootstrap's repository. Lambda would add it by itself, where the role that
    # deploys may change the policies of repositories, and fail where it may not.
    repository.add_to_resource_policy(
        iam.PolicyStatement(
            sid="LetFunctionsPull",
            principals=[iam.ServicePrincipal("lambda.amazonaws.com")],
            actions=["ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"],
            conditions={
                "StringLike": {
                    "aws:SourceArn": cdk.Stack.of(scope).format_arn(
                        service="lambda",
                        resource="function",
                        resource_name="*",
                        arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME,
                    )
                }
            },
        )
    )
    return repository


class ImageCopier(Construct):
    """The function that copies images into a repository, shared by all images of one repo."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        target: ecr.IRepository,
        log_encryption_key: kms.IKey | None = None,
    ) -> None:
        super().__init__(scope, construct_id)
        self._target = target
        self.log_group = logs.LogGroup(
            self,
            "Logs",
            retention=logs.RetentionDays.ONE_WEEK,
            encryption_key=log_encryption_key,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        let_logs_use(log_encryption_key)
        self.role = iam.Role(
            self,
            "Role",
            assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"),
            description="Copies container images between two repositories",
        )
        self.log_group.grant_write(self.role)
        self.role.add_to_policy(
            iam.PolicyStatement(
                sid="WriteImages",
                actions=[
                    "ecr:BatchCheckLayerAvailability",
                    "ecr:BatchGetImage",
                    "ecr:CompleteLayerUpload",
                    "ecr:InitiateLayerUpload",
                    "ecr:PutImage",
                    "ecr:UploadLayerPart",
                ],
                resources=[target.repository_arn],
            )
        )
        self._function = lambda_.Function(
            self,
            "Function",
            description="Copies container images between two repositories",
            runtime=lambda_.Runtime.PYTHON_3_14,
            architecture=lambda_.Architecture.ARM_64,
            handler="index.handler",
            code=lambda_.Code.from_asset(str(_HANDLER), exclude=["**/__pycache__", "**/*.pyc"]),
            memory_size=_MEMORY_MIB,
            timeout=cdk.Duration.minutes(_TIMEOUT_MINUTES),
            role=self.role,
            log_group=self.log_group,
        )
        self._sources: set[str] = set()

    def copy(
        self, construct_id: str, *, asset: ecr_assets.DockerImageAsset, architecture: str
    ) -> cdk.CustomResource:
        """Copy `asset` into the repository, under the hash of its source as its tag."""
        source = asset.repository
        if source.repository_arn not in self._sources:
            self._sources.add(source.repository_arn)
            self.role.add_to_policy(
                iam.PolicyStatement(
                    sid="ReadImages",
                    actions=["ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"],
                    resources=[source.repository_arn],
                )
            )
        resource = cdk.CustomResource(
            self,
            construct_id,
            resource_type="Custom::DRImageCopy",
            service_token=self._function.function_arn,
            properties={
                "SourceRepository": source.repository_name,
                "TargetRepository": self._target.repository_name,
                # A synthesizer may put a prefix before the hash.
                "SourceTag": asset.image_tag,
                "Tag": asset.asset_hash,
                "Architecture": architecture,
            },
        )
        # Without its policy the function would fail on the first deployment.
        resource.node.add_dependency(self.role)
        return resource
