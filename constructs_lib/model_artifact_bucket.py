"""The bucket of model packages, and a package in it as an object that grants its own access."""

import math
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, cast

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_s3_deployment as s3_deployment
from constructs import Construct, IDependable

from constructs_lib import limits
from constructs_lib.encryption_keys import key_itself, key_of
from constructs_lib.kinds import (
    BUCKET,
    FLAG,
    KEY,
    REMOVAL_POLICY,
    ROLE,
    TEXT,
    Kind,
    kind_faults,
    required,
)
from constructs_lib.log_keys import let_logs_use
from constructs_lib.rules import ValidationError, refuse, whole_number_fault
from constructs_lib.statements import allow
from constructs_lib.surroundings import refuse_place
from constructs_lib.tokens import known_text
from inference_image.model_package import pack_model
from inference_image.model_spec import (
    LONGEST_MODEL_ID,
    MODEL_ID,
    ModelSpec,
    load_model_spec,
    object_key,
)

Publish = Literal["deployment", "external"]
PUBLISH_DEPLOYMENT: Final = "deployment"
PUBLISH_EXTERNAL: Final = "external"
PUBLISH: Final = (PUBLISH_DEPLOYMENT, PUBLISH_EXTERNAL)

# The function behind BucketDeployment holds the archive twice (zipped asset and unpacked
# file), beside its own code and temporary files.
_COPIES_ON_DISK: Final = 2.2
_MIB: Final = 1024 * 1024
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
# Enough of a digest to tell the versions of one package apart in a stack.
_ID_CHARACTERS: Final = 8
# Its default of 128 MiB is killed on models of some tens of MB (aws/aws-cdk#7950). A function's
# share of processor and network grows with its memory, and it has 15 minutes: the larger the
# package, the more memory, up to what new accounts are allowed.
_PUBLISHER_MEMORY_MIB: Final = ((512, 1024), (2048, 2048))
_PUBLISHER_MEMORY_MIB_ABOVE: Final = 3008
_DEFAULT_ACCESS_LOG_DAYS: Final = 90
_DEFAULT_NONCURRENT_DAYS: Final = 30
_ACCESS_LOG_PREFIX: Final = "model-bucket/"
LOG_BUCKET_POLICY: Final = "dr-endpoints:accessLogsBucketPolicyNotOurs"

_FOLDER: Final = Kind(words="the path of a folder", types=(str, Path), optional=False)
_ARTIFACT_KINDS: Final = {
    "bucket": required(BUCKET),
    "model_id": TEXT,
    "sha256": TEXT,
    "package_dir": Kind(words=_FOLDER.words, types=_FOLDER.types),
}
_OBJECT_KINDS: Final = {
    "bucket": required(BUCKET),
    **dict.fromkeys(("key", "id", "sha256"), required(TEXT)),
}
_BUCKET_KINDS: Final = {
    "bucket": BUCKET,
    "encryption_key": KEY,
    "access_logs": FLAG,
    "access_logs_bucket": BUCKET,
    "removal_policy": REMOVAL_POLICY,
    "auto_delete_objects": FLAG,
    "log_encryption_key": KEY,
}


@dataclass(frozen=True, kw_only=True)
class ModelArtifact:
    """One model package in a bucket, named by its digest.

    A new model has a new `sha256`, hence a new `key`: the template changes, and CloudFormation
    with it. `dependencies` must exist before a SageMaker Model may refer to the package.
    `size_bytes` is that of its files, unpacked; None where it is not known.
    """

    bucket: s3.IBucket
    key: str
    id: str
    sha256: str
    dependencies: Sequence[IDependable] = ()
    # What is known of the size makes no other package.
    size_bytes: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        given = {"bucket": self.bucket, "key": self.key, "id": self.id, "sha256": self.sha256}
        refuse("ModelArtifact", kind_faults(given, _OBJECT_KINDS))

    @classmethod
    def in_bucket(
        cls,
        bucket: s3.IBucket,
        *,
        model_id: str | None = None,
        sha256: str | None = None,
        package_dir: Path | str | None = None,
    ) -> "ModelArtifact":
        """A package that is in `bucket` already, pushed by `dr model push` for example.

        It is named by `model_id` and `sha256`, the 64 hexadecimal digits of its digest, or by
        `package_dir`, a folder with its `model.json`.

        Raises:
            ModelPackageError: `package_dir` has no usable `model.json`.
            ValidationError: neither way or both ways are used, or the name is not a package's.
        """
        given = {
            "bucket": bucket,
            "model_id": model_id,
            "sha256": sha256,
            "package_dir": package_dir,
        }
        refuse("ModelArtifact", kind_faults(given, _ARTIFACT_KINDS))
        size_bytes = None
        if package_dir is not None and model_id is None and sha256 is None:
            spec = load_model_spec(Path(package_dir))
            model_id, sha256, size_bytes = spec.id, spec.sha256, _size_bytes(spec)
        elif package_dir is not None or model_id is None or sha256 is None:
            raise ValidationError(
                "ModelArtifact", ["give model_id and sha256, or package_dir instead of both"]
            )
        faults = []
        if known_text(model_id) is not None and not MODEL_ID.fullmatch(model_id):
            faults.append(
                f"model_id may hold up to {LONGEST_MODEL_ID} letters of ASCII, digits, '-', '_' "
                f"and '.', and not begin with a dot; got {model_id!r}"
            )
        if known_text(sha256) is not None and not _SHA256.fullmatch(sha256):
            faults.append(
                "sha256 must be 64 hexadecimal digits in lower case, the package's digest; "
                f"got {sha256!r}"
            )
        refuse("ModelArtifact", faults)
        return cls(
            bucket=bucket,
            key=object_key(model_id, sha256),
            id=model_id,
            sha256=sha256,
            size_bytes=size_bytes,
        )

    @property
    def url(self) -> str:
        """`s3://bucket/key`: what SageMaker calls ModelDataUrl. It ends in `.tar.gz`."""
        return self.bucket.s3_url_for_object(self.key)

    def grant_read(self, role: iam.IRole) -> None:
        """Let `role` read exactly this object, and decrypt it where the bucket has a key.

        The statements go on the role: a grant on an imported bucket would be dropped in
        silence when it tried to write the bucket's policy.

        Raises:
            ValidationError: `role` is none, or the bucket's key is an alias known by name only.
        """
        refuse(f"model package {self.id}", kind_faults({"role": role}, {"role": ROLE}))
        allow(
            role,
            "ReadModelPackage",
            ["s3:GetObject"],
            [self.bucket.arn_for_objects(self.key)],
        )
        key = key_of(self.bucket)
        if key is not None:
            allow(
                role,
                "DecryptModelPackage",
                ["kms:Decrypt"],
                [key.key_arn],
            )


class ModelArtifactBucket(Construct):
    """A private, versioned, encrypted bucket for model packages.

        model = ModelArtifactBucket(self, "Models").add_model(Path("model_artifacts/mine"))

    Args:
        bucket: your own bucket instead of a new one; its encryption, logs and life stay yours,
            and the other arguments, which are about a new bucket, are refused with it.
        encryption_key: KMS key of the objects.
        access_logs: keep S3's record of every request for a package.
        access_logs_bucket: where that record goes, encrypted with keys that S3 manages.
        access_log_days: how long the record is kept in the log bucket that is made here.
        removal_policy: what `cdk destroy` does with the buckets.
        auto_delete_objects: empty the buckets before they are deleted; this adds a Lambda
            function, and needs `removal_policy=DESTROY`.
        noncurrent_days: after how many days replaced versions are deleted, at least 1.
        log_encryption_key: KMS key of the log groups of the functions that copy packages and empty
            the buckets, which a stack has one of; a key that is not made in this app must let
            CloudWatch Logs use it. Goes with `bucket`, too.

    Defaults: a new bucket, encrypted with keys that S3 manages; access logs, in a log bucket
    of its own for 90 days; RETAIN, so that destroying a stack deletes no model; 30 days;
    log groups for one week, encrypted by CloudWatch Logs. The names are CloudFormation's.

    Defines: a bucket, its log bucket, their TLS-only policies, and for each package that is
    published by the deployment, the custom resource that copies it.

    Raises:
        ValidationError: the arguments contradict each other.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        bucket: s3.IBucket | None = None,
        encryption_key: kms.IKey | None = None,
        access_logs: bool = True,
        access_logs_bucket: s3.IBucket | None = None,
        access_log_days: int = _DEFAULT_ACCESS_LOG_DAYS,
        removal_policy: cdk.RemovalPolicy = cdk.RemovalPolicy.RETAIN,
        auto_delete_objects: bool = False,
        noncurrent_days: int = _DEFAULT_NONCURRENT_DAYS,
        log_encryption_key: kms.IKey | None = None,
    ) -> None:
        refuse_place(type(self), scope, construct_id)
        super().__init__(scope, construct_id)
        values = {
            "bucket": bucket,
            "encryption_key": encryption_key,
            "access_logs": access_logs,
            "access_logs_bucket": access_logs_bucket,
            "removal_policy": removal_policy,
            "auto_delete_objects": auto_delete_objects,
            "log_encryption_key": log_encryption_key,
        }
        faults = kind_faults(values, _BUCKET_KINDS)
        refuse(f"ModelArtifactBucket {self.node.path}", faults)
        if auto_delete_objects and removal_policy != cdk.RemovalPolicy.DESTROY:
            faults.append("auto_delete_objects needs removal_policy DESTROY")
        for name, days in (
            ("noncurrent_days", noncurrent_days),
            ("access_log_days", access_log_days),
        ):
            faults += whole_number_fault(name, days, 1)
        if access_logs_bucket is not None and not access_logs:
            faults.append("access_logs_bucket is given although access_logs is false")
        if access_logs_bucket is not None:
            faults += _log_bucket_faults(access_logs_bucket, cdk.Stack.of(self))
        ours = {
            "encryption_key": encryption_key is not None,
            "access_logs": not access_logs,
            "access_logs_bucket": access_logs_bucket is not None,
            "access_log_days": access_log_days != _DEFAULT_ACCESS_LOG_DAYS,
            "removal_policy": removal_policy != cdk.RemovalPolicy.RETAIN,
            "auto_delete_objects": auto_delete_objects,
            "noncurrent_days": noncurrent_days != _DEFAULT_NONCURRENT_DAYS,
        }
        if bucket is not None and any(ours.values()):
            given = ", ".join(name for name, changed in ours.items() if changed)
            faults.append(f"bucket is your own, so {given} must be set on it and not here")
        refuse(f"ModelArtifactBucket {self.node.path}", faults)
        encryption_key, log_encryption_key = map(key_itself, (encryption_key, log_encryption_key))
        self._copies: dict[str, s3_deployment.BucketDeployment] = {}
        self._log_encryption_key = log_encryption_key
        let_logs_use(log_encryption_key)
        if bucket is not None:
            self.bucket = bucket
            return
        if access_logs and access_logs_bucket is None:
            access_logs_bucket = s3.Bucket(
                self,
                "AccessLogs",
                block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
                enforce_ssl=True,
                # S3 delivers access logs to no bucket with a KMS key.
                encryption=s3.BucketEncryption.S3_MANAGED,
                object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
                removal_policy=removal_policy,
                auto_delete_objects=auto_delete_objects,
                lifecycle_rules=[s3.LifecycleRule(expiration=cdk.Duration.days(access_log_days))],
            )
        self.bucket = s3.Bucket(
            self,
            "Bucket",
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            enforce_ssl=True,
            encryption=(
                s3.BucketEncryption.S3_MANAGED
                if encryption_key is None
                else s3.BucketEncryption.KMS
            ),
            encryption_key=encryption_key,
            bucket_key_enabled=None if encryption_key is None else True,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            versioned=True,
            removal_policy=removal_policy,
            auto_delete_objects=auto_delete_objects,
            lifecycle_rules=[
                s3.LifecycleRule(
                    abort_incomplete_multipart_upload_after=cdk.Duration.days(7),
                    noncurrent_version_expiration=cdk.Duration.days(noncurrent_days),
                ),
                s3.LifecycleRule(expired_object_delete_marker=True),
            ],
        )
        if access_logs_bucket is not None:
            _log_access(self.bucket, access_logs_bucket, warn_at=self)
        if auto_delete_objects:
            _own_the_emptying_log(cdk.Stack.of(self), log_encryption_key)

    def add_model(
        self, package_dir: Path | str, *, publish: Publish = PUBLISH_DEPLOYMENT
    ) -> ModelArtifact:
        """Put the package of `package_dir` into this bucket, under its digest.

        A package that is added twice is copied once; versions of one package lie side by side.

        With `publish="deployment"` the stack itself copies it: the files are packed now and
        become an asset of the cloud assembly. With `"external"` only the key is computed, from
        `model.json` alone; the package is pushed by `dr model push`, which models too large
        for the copying function need, and accounts where it may not run.

        Raises:
            ModelPackageError: `model.json` is missing or wrong, or, for `"deployment"`, a file
                that it lists is missing or damaged.
            ValidationError: the package is too large to be copied by a deployment.
        """
        refuse(
            f"ModelArtifactBucket {self.node.path}",
            kind_faults({"package_dir": package_dir}, {"package_dir": _FOLDER}),
        )
        package_dir = Path(package_dir)
        if publish not in PUBLISH:
            refuse(
                f"model package {package_dir.name}",
                [f"publish must be one of {', '.join(PUBLISH)}; got {publish!r}"],
            )
        spec = load_model_spec(package_dir)
        if publish == PUBLISH_DEPLOYMENT and spec.object_key not in self._copies:
            self._copies[spec.object_key] = self._publish(package_dir, spec)
        copy = self._copies.get(spec.object_key)
        return ModelArtifact(
            bucket=self.bucket,
            key=spec.object_key,
            id=spec.id,
            sha256=spec.sha256,
            dependencies=() if copy is None else (copy,),
            size_bytes=_size_bytes(spec),
        )

    def _publish(self, package_dir: Path, spec: ModelSpec) -> s3_deployment.BucketDeployment:
        storage_mib = _ephemeral_storage_mib(spec)
        prefix, _, name = spec.object_key.rpartition("/")
        with tempfile.TemporaryDirectory(prefix="dr-endpoints-") as staging:
            # A file asset would be published as <hash>.gz, and SageMaker wants .tar.gz; a
            # folder asset keeps the name of what is in it (aws/aws-cdk#30257).
            pack_model(package_dir, Path(staging, name))
            source = s3_deployment.Source.asset(staging)
            return s3_deployment.BucketDeployment(
                self,
                self._copy_id(spec),
                sources=[source],
                destination_bucket=self.bucket,
                destination_key_prefix=prefix,
                # Packages that running endpoints still refer to stay: an endpoint that scales
                # out downloads its package again.
                prune=False,
                retain_on_delete=True,
                log_group=self._publisher_log_group(),
                memory_limit=_memory_mib(spec),
                ephemeral_storage_size=(
                    cdk.Size.mebibytes(storage_mib)
                    if storage_mib > limits.LAMBDA_DEFAULT_EPHEMERAL_STORAGE_MIB
                    else None
                ),
            )

    def _copy_id(self, spec: ModelSpec) -> str:
        # The first version goes without a digest, so that a new model updates the copy in place.
        plain = f"Publish-{spec.id}"
        if self.node.try_find_child(plain) is None:
            return plain
        return f"{plain}-{spec.sha256[:_ID_CHARACTERS]}"

    def _publisher_log_group(self) -> logs.LogGroup:
        # The default group is kept when the stack is destroyed, with every line for two years.
        existing = self.node.try_find_child("PublisherLogs")
        if isinstance(existing, logs.LogGroup):
            return existing
        return logs.LogGroup(
            self,
            "PublisherLogs",
            retention=logs.RetentionDays.ONE_WEEK,
            encryption_key=self._log_encryption_key,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )


def _log_bucket_faults(log_bucket: s3.IBucket, stack: cdk.Stack) -> list[str]:
    faults = []
    if log_bucket.encryption_key is not None:
        faults.append(
            "access_logs_bucket must be encrypted with keys that S3 manages, because S3 delivers "
            "access logs to no bucket with a KMS key; got one with a key "
            "(https://docs.aws.amazon.com/AmazonS3/latest/userguide/"
            "enable-server-access-logging.html)"
        )
    region, here = known_text(log_bucket.env.region), known_text(stack.region)
    if region is not None and here is not None and region != here:
        faults.append(
            f"access_logs_bucket must be in the stack's region, {here}, as S3 asks; got {region}"
        )
    return faults


def _log_access(bucket: s3.Bucket, log_bucket: s3.IBucket, *, warn_at: Construct) -> None:
    """Deliver the access log of `bucket` by a bucket policy.

    `server_access_logs_bucket` does the same only in apps with a certain feature flag, and asks
    for an access control list, which a private bucket refuses, in all others.
    """
    cfn_bucket = cast("s3.CfnBucket", bucket.node.default_child)
    cfn_bucket.logging_configuration = s3.CfnBucket.LoggingConfigurationProperty(
        destination_bucket_name=log_bucket.bucket_name, log_file_prefix=_ACCESS_LOG_PREFIX
    )
    sid = "DeliverAccessLogs"
    if log_bucket.node.scope != bucket.node.scope:
        # It may serve several buckets, and each statement of a policy has a name of its own.
        sid += bucket.node.addr[:_ID_CHARACTERS]
    added = log_bucket.add_to_resource_policy(
        iam.PolicyStatement(
            sid=sid,
            principals=[iam.ServicePrincipal("logging.s3.amazonaws.com")],
            actions=["s3:PutObject"],
            resources=[log_bucket.arn_for_objects(f"{_ACCESS_LOG_PREFIX}*")],
            conditions={
                "ArnLike": {"aws:SourceArn": bucket.bucket_arn},
                "StringEquals": {"aws:SourceAccount": bucket.stack.account},
            },
        )
    )
    if not added.statement_added:
        cdk.Annotations.of(warn_at).add_warning_v2(
            LOG_BUCKET_POLICY,
            "access_logs_bucket is not made in this app, so that its policy stays as it is: it "
            "must let logging.s3.amazonaws.com put objects below "
            f"{_ACCESS_LOG_PREFIX}, or no access is recorded",
        )


def _own_the_emptying_log(stack: cdk.Stack, encryption_key: kms.IKey | None) -> None:
    """Give the function that empties buckets a log group that goes with the stack.

    The CDK makes one such function for a stack; Lambda would make its log group at the first
    line, and leave it in the account.
    """
    provider = stack.node.try_find_child("Custom::S3AutoDeleteObjectsCustomResourceProvider")
    if provider is None:
        return
    existing = stack.node.try_find_child("EmptyBucketsLogs")
    if existing is not None:
        # One function for all buckets of the stack: the first that has a key gives it.
        cfn = cast("logs.CfnLogGroup", existing.node.default_child)
        if encryption_key is not None and cfn.kms_key_id is None:
            cfn.kms_key_id = encryption_key.key_arn
        return
    log_group = logs.LogGroup(
        stack,
        "EmptyBucketsLogs",
        retention=logs.RetentionDays.ONE_WEEK,
        encryption_key=encryption_key,
        removal_policy=cdk.RemovalPolicy.DESTROY,
    )
    function = cast("cdk.CfnResource", provider.node.find_child("Handler"))
    function.add_property_override("LoggingConfig.LogGroup", log_group.log_group_name)


def _size_bytes(spec: ModelSpec) -> int:
    return sum(entry.size_bytes for entry in spec.files)


def _size_mib(spec: ModelSpec) -> float:
    return _size_bytes(spec) / _MIB


def _memory_mib(spec: ModelSpec) -> int:
    """Memory of the copying function, in three sizes so that models share one function."""
    size_mib = _size_mib(spec)
    for most_mib, memory_mib in _PUBLISHER_MEMORY_MIB:
        if size_mib <= most_mib:
            return memory_mib
    return _PUBLISHER_MEMORY_MIB_ABOVE


def _ephemeral_storage_mib(spec: ModelSpec) -> int:
    """Disk that the copying function needs, in whole GiB so that models share one function."""
    size_mib = _size_mib(spec)
    needed_mib = math.ceil(size_mib * _COPIES_ON_DISK) + 128
    if needed_mib > limits.LAMBDA_EPHEMERAL_STORAGE_MIB:
        refuse(
            f"model package {spec.id}",
            [
                (
                    f"publish must be 'external' for a package of {size_mib:.0f} MiB: copying it "
                    f"takes {needed_mib} MiB of disk, and a Lambda function has at most "
                    f"{limits.LAMBDA_EPHEMERAL_STORAGE_MIB} "
                    f"({limits.SOURCES['LAMBDA_EPHEMERAL_STORAGE_MIB'].url})"
                )
            ],
        )
    if needed_mib <= limits.LAMBDA_DEFAULT_EPHEMERAL_STORAGE_MIB:
        return limits.LAMBDA_DEFAULT_EPHEMERAL_STORAGE_MIB
    return min(math.ceil(needed_mib / 1024) * 1024, limits.LAMBDA_EPHEMERAL_STORAGE_MIB)
