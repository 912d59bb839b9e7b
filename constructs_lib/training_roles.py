"""What the three roles of a training pipeline may do: two of jobs, one of the state machine."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3

from constructs_lib.encryption_keys import key_of
from constructs_lib.inference_image_repo import InferenceImage
from constructs_lib.statements import allow
from constructs_lib.training_states import (
    GATE,
    JOB_END_CHARACTERS,
    PROCESSING_STEPS,
    TRAIN,
    runs_folder,
)
from constructs_lib.volume_keys import grant_volume_key

_TRAINING_LOGS: Final = "/aws/sagemaker/TrainingJobs"
_PROCESSING_LOGS: Final = "/aws/sagemaker/ProcessingJobs"
_SAGEMAKER: Final = "sagemaker.amazonaws.com"
# Rules that Step Functions makes itself, one an account, to hear that a job has ended.
_TRAINING_RULE: Final = "StepFunctionsGetEventsForSageMakerTrainingJobsRule"
_PROCESSING_RULE: Final = "StepFunctionsGetEventsForSageMakerProcessingJobsRule"
# As many characters as the end of a job's name has. A star would also stand for the names of a
# pipeline whose name goes on: `dr-train-*` for `dr-train-train-…`.
_JOB_END: Final = "?" * JOB_END_CHARACTERS


@dataclass(frozen=True, kw_only=True)
class PipelinePlaces:
    """What the roles are about; `photographs_prefix` has no slash at its ends and may be empty."""

    stack: cdk.Stack
    pipeline_name: str
    package_id: str
    image: InferenceImage
    photographs: s3.IBucket
    photographs_prefix: str
    runs: s3.IBucket
    models: s3.IBucket
    volume_key: kms.IKey | None

    def runs_of(self, name: str) -> str:
        """ARN of the objects of that name that this pipeline's executions keep."""
        return self.runs.arn_for_objects(f"{runs_folder(self.pipeline_name)}/*/{name}/*")

    def job(self, step: str) -> str:
        """Names of this pipeline's jobs of a step, as a policy writes them."""
        return f"{self.pipeline_name}-{step}-{_JOB_END}"


def grant_processing(role: iam.IRole, places: PipelinePlaces) -> None:
    """Let `role` read photographs and runs, and write records, reports and packages."""
    prefix = places.photographs_prefix
    allow(
        role,
        "ReadPhotographs",
        ["s3:GetObject"],
        [places.photographs.arn_for_objects(f"{prefix}/*" if prefix else "*")],
    )
    allow(
        role,
        "ListPhotographs",
        ["s3:ListBucket"],
        [places.photographs.bucket_arn],
        conditions={"StringLike": {"s3:prefix": f"{prefix}/*"}} if prefix else None,
    )
    _use_key(role, "DecryptPhotographs", key_of(places.photographs), writes=False)
    _read_runs(role, places, "code", "records", "model", GATE)
    _write_runs(role, places, "records", GATE, "packed")
    allow(
        role,
        "PublishPackages",
        ["s3:AbortMultipartUpload", "s3:PutObject"],
        [places.models.arn_for_objects(f"models/{places.package_id}/*")],
    )
    _use_key(role, "EncryptPackages", key_of(places.models), writes=True)
    _grant_job(role, places, steps=PROCESSING_STEPS, log_group=_PROCESSING_LOGS)


def grant_training(role: iam.IRole, places: PipelinePlaces) -> None:
    """Let `role` read records and checkpoints, and write checkpoints and a model."""
    _read_runs(role, places, "code", "records", "checkpoints")
    _write_runs(role, places, "model", "checkpoints")
    # What a training replaces or deletes in its folder goes there, too.
    allow(role, "DeleteCheckpoints", ["s3:DeleteObject"], [places.runs_of("checkpoints")])
    _grant_job(role, places, steps=(TRAIN,), log_group=_TRAINING_LOGS)


def grant_orchestration(
    role: iam.IRole,
    places: PipelinePlaces,
    *,
    job_roles: Sequence[iam.IRole],
    code_arn: str,
    model_package_group: str,
) -> None:
    """Let `role` run the jobs of this pipeline, read their reports and register the package.

    Source: https://docs.aws.amazon.com/step-functions/latest/dg/connect-sagemaker.html, whose
    policies are for all jobs of an account (as known; the page itself was not read).
    """
    stack = places.stack
    allow(role, "ReadCode", ["s3:GetObject"], [code_arn])
    allow(role, "BringCode", ["s3:PutObject"], [places.runs_of("code")])
    allow(
        role,
        "ReadReports",
        ["s3:GetObject"],
        [places.runs_of(name) for name in (GATE, "packed")],
    )
    _use_key(role, "UseRunsKey", key_of(places.runs), writes=True)
    # The report beside a package is written with the key of packages.
    _use_key(role, "DecryptPackages", key_of(places.models), writes=False)
    for sid, kind, steps in (
        ("RunProcessing", "Processing", PROCESSING_STEPS),
        ("RunTraining", "Training", (TRAIN,)),
    ):
        allow(
            role,
            sid,
            [
                "sagemaker:AddTags",
                f"sagemaker:Create{kind}Job",
                f"sagemaker:Describe{kind}Job",
                "sagemaker:ListTags",
                f"sagemaker:Stop{kind}Job",
            ],
            [
                stack.format_arn(
                    service="sagemaker",
                    resource=f"{kind.lower()}-job",
                    resource_name=places.job(step),
                )
                for step in steps
            ],
        )
    allow(
        role,
        "PassJobRoles",
        ["iam:PassRole"],
        [it.role_arn for it in job_roles],
        conditions={"StringEquals": {"iam:PassedToService": _SAGEMAKER}},
    )
    allow(
        role,
        "HearOfJobs",
        ["events:DescribeRule", "events:PutRule", "events:PutTargets"],
        [
            stack.format_arn(service="events", resource="rule", resource_name=rule)
            for rule in (_TRAINING_RULE, _PROCESSING_RULE)
        ],
    )
    allow(
        role,
        "RegisterPackages",
        ["sagemaker:CreateModelPackage"],
        [
            stack.format_arn(
                service="sagemaker",
                resource="model-package-group",
                resource_name=model_package_group,
            ),
            stack.format_arn(
                service="sagemaker",
                resource="model-package",
                resource_name=f"{model_package_group}/*",
            ),
        ],
    )
    # Registering looks whether package and image are there, with the caller's permissions: as
    # AWS's managed policy AmazonSageMakerModelRegistryFullAccess has it.
    allow(
        role,
        "ReadPackages",
        ["s3:GetObject"],
        [places.models.arn_for_objects(f"models/{places.package_id}/*")],
    )
    allow(
        role,
        "LookAtImage",
        ["ecr:BatchGetImage", "ecr:DescribeImages"],
        [places.image.repository_arn],
    )
    allow(
        role,
        "DeliverLogs",
        [
            "logs:CreateLogDelivery",
            "logs:DeleteLogDelivery",
            "logs:DescribeLogGroups",
            "logs:DescribeResourcePolicies",
            "logs:GetLogDelivery",
            "logs:ListLogDeliveries",
            "logs:PutResourcePolicy",
            "logs:UpdateLogDelivery",
        ],
        ["*"],
    )
    allow(
        role,
        "TraceExecutions",
        [
            "xray:GetSamplingRules",
            "xray:GetSamplingTargets",
            "xray:PutTelemetryRecords",
            "xray:PutTraceSegments",
        ],
        ["*"],
    )


def _grant_job(
    role: iam.IRole, places: PipelinePlaces, *, steps: Sequence[str], log_group: str
) -> None:
    """What every job needs: its image, its log, its metrics and the key of its volumes."""
    places.image.grant_pull(role)
    stack = places.stack
    group = stack.format_arn(
        service="logs",
        resource="log-group",
        resource_name=log_group,
        arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME,
    )
    # SageMaker's, one for all jobs of an account: whoever comes first makes it. All actions but
    # those on tags name a group with a star at its end: the page on CloudWatch Logs' permissions,
    # "iam-access-control-overview-cwl".
    allow(
        role,
        "MakeJobLogGroup",
        ["logs:CreateLogGroup", "logs:DescribeLogStreams"],
        [group, f"{group}:*"],
    )
    allow(
        role,
        "WriteJobLogs",
        ["logs:CreateLogStream", "logs:PutLogEvents"],
        [f"{group}:log-stream:{places.job(step)}/*" for step in steps],
    )
    allow(
        role,
        "PublishMetrics",
        ["cloudwatch:PutMetricData"],
        ["*"],
        conditions={"StringEquals": {"cloudwatch:namespace": [log_group]}},
    )
    if places.volume_key is not None:
        grant_volume_key(role, places.volume_key.key_arn)


def _read_runs(role: iam.IRole, places: PipelinePlaces, *names: str) -> None:
    allow(
        role,
        "ReadRuns",
        ["s3:GetObject"],
        [places.runs_of(name) for name in names],
    )
    allow(
        role,
        "ListRuns",
        ["s3:ListBucket"],
        [places.runs.bucket_arn],
        conditions={"StringLike": {"s3:prefix": f"{runs_folder(places.pipeline_name)}/*"}},
    )


def _write_runs(role: iam.IRole, places: PipelinePlaces, *names: str) -> None:
    allow(
        role,
        "WriteRuns",
        ["s3:AbortMultipartUpload", "s3:PutObject"],
        [places.runs_of(name) for name in names],
    )
    _use_key(role, "UseRunsKey", key_of(places.runs), writes=True)


def _use_key(role: iam.IRole, sid: str, key: kms.IKey | None, *, writes: bool) -> None:
    if key is None:
        return
    # Encrypt, as the pages on the jobs' outputs ask for, beside what S3 itself needs.
    writing = ["kms:DescribeKey", "kms:Encrypt", "kms:GenerateDataKey"] if writes else []
    allow(role, sid, ["kms:Decrypt", *writing], [key.key_arn])
