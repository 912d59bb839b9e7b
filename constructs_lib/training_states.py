"""The state machine of a training: prepare, train on Spot, gate, pack, register.

Amazon States Language as Python values, with tokens where only the deployment knows. An execution
keeps everything below `runs/<pipeline>/<its name>/` of one bucket, its own copy of the code first:
a later deployment changes neither the code nor the states of what runs already. It does change what
the roles may do, which is one policy for all executions.

Source: https://docs.aws.amazon.com/step-functions/latest/dg/connect-sagemaker.html
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from constructs_lib.training_code import CODE_FILE
from inference_image.contract import ACCEPTED_CONTENT_TYPES, MEDIA_JSON

State = dict[str, Any]

RUNS: Final = "runs"
PREPARE, TRAIN, GATE, PACK = "prepare", "train", "gate", "pack"
PROCESSING_STEPS: Final = (PREPARE, GATE, PACK)
GATE_REFUSED: Final = "GateRefused"
GATE_UNREADABLE: Final = "GateUnreadable"
_LAUNCHER: Final = ("python3", "-m", "inference_image.training_job")
_INPUTS: Final = "/opt/ml/processing/input"
_OUTPUTS: Final = "/opt/ml/processing/output"
# New for each attempt, so that a step that is tried again does not find its name taken; 48 bits.
_UNIQUE: Final = "States.ArrayGetItem(States.StringSplit(States.UUID(), '-'), 4)"
JOB_END_CHARACTERS: Final = 12
_QUOTA_PAUSE_S: Final = 300
_QUOTA_ATTEMPTS: Final = 12
# How long a job may wait for a quota that other jobs have used up.
QUOTA_WAIT_S: Final = _QUOTA_ATTEMPTS * _QUOTA_PAUSE_S
# As SageMaker's integration names what it was refused for: a quota of the account that is used up,
# and the rest, too many requests at once among it.
_RETRY_JOB: Final = [
    {
        "ErrorEquals": ["SageMaker.ResourceLimitExceededException"],
        "IntervalSeconds": _QUOTA_PAUSE_S,
        "MaxAttempts": _QUOTA_ATTEMPTS,
        "BackoffRate": 1,
    },
    {
        "ErrorEquals": ["SageMaker.AmazonSageMakerException"],
        "IntervalSeconds": 20,
        "MaxAttempts": 3,
        "BackoffRate": 2,
    },
]
_RETRY_CALL: Final = [
    {
        "ErrorEquals": ["S3.SdkClientException", "SageMaker.SdkClientException"],
        "IntervalSeconds": 5,
        "MaxAttempts": 3,
        "BackoffRate": 2,
    }
]


@dataclass(frozen=True, kw_only=True)
class Machines:
    """Instances of a kind of job; times in seconds, volumes in GB."""

    instance_type: str
    instance_count: int
    volume_gb: int
    max_runtime_s: int
    # Of Spot: waiting and training together; None for instances on demand.
    max_wait_s: int | None = None


@dataclass(frozen=True, kw_only=True)
class PipelinePlan:
    """Everything that the states say; texts may be tokens.

    `photographs_url` is `s3://…/` of the folder of photographs, `code_source` `bucket/key` of the
    archive of source, `runs_bucket` and `models_bucket` are names. `runs_key` and `models_key` are
    ARNs of KMS keys of what is written into the two, `volume_key` of the volumes.
    `prepare_arguments` and `gate_arguments` follow the name of the step.
    """

    partition: str
    pipeline_name: str
    package_id: str
    image_uri: str
    code_source: str
    photographs_url: str
    runs_bucket: str
    models_bucket: str
    model_package_group: str
    training_role_arn: str
    processing_role_arn: str
    training: Machines
    processing: Machines
    hyperparameters: Mapping[str, str]
    prepare_arguments: Sequence[str]
    gate_arguments: Sequence[str]
    network_isolation: bool
    encrypt_traffic: bool
    subnet_ids: Sequence[str] = ()
    security_group_ids: Sequence[str] = ()
    runs_key: str | None = None
    models_key: str | None = None
    volume_key: str | None = None
    tags: Mapping[str, str] | None = None
    timeout_s: int | None = None


def runs_folder(pipeline_name: str) -> str:
    """The folder that only this pipeline's executions write to, without a slash at its end.

    Names of executions are unique in one state machine, and a bucket may be that of several.
    """
    return f"{RUNS}/{pipeline_name}"


def definition(plan: PipelinePlan) -> State:
    """The state machine's definition."""
    machine: State = {
        "Comment": f"Trains, judges and registers the model package {plan.package_id}",
        "StartAt": "Places",
        "States": {
            "Places": _places(plan),
            "BringCode": _bring_code(plan),
            "Prepare": _processing(
                plan,
                PREPARE,
                arguments=plan.prepare_arguments,
                inputs={"photographs": plan.photographs_url},
                outputs={"records": _in_run("records")},
                key=plan.runs_key,
                after="Train",
            ),
            "Train": _training(plan),
            "Gate": _processing(
                plan,
                GATE,
                arguments=plan.gate_arguments,
                inputs={"model": "$.train.model", "records": _in_run("records/")},
                outputs={"gate": _in_run("gate")},
                key=plan.runs_key,
                after="ReadGate",
            ),
            "ReadGate": _read(plan, "gate/gate.json", result="$.gate", after="GatePassed"),
            "GatePassed": {
                "Type": "Choice",
                "Choices": [
                    {**_is_boolean("$.gate.report.passed", value=True), "Next": "Pack"},
                    {
                        "And": [
                            _is_boolean("$.gate.report.passed", value=False),
                            {"Variable": "$.gate.report.reasons", "IsPresent": True},
                        ],
                        "Next": GATE_REFUSED,
                    },
                ],
                "Default": GATE_UNREADABLE,
            },
            GATE_REFUSED: {
                "Type": "Fail",
                "Error": GATE_REFUSED,
                "CausePath": "States.JsonToString($.gate.report.reasons)",
            },
            GATE_UNREADABLE: {
                "Type": "Fail",
                "Error": GATE_UNREADABLE,
                "Cause": "gate.json must say passed, true or false, and the reasons; it does not",
            },
            "Pack": _processing(
                plan,
                PACK,
                arguments=(),
                inputs={"model": "$.train.model", "gate": _in_run("gate/")},
                outputs={
                    "models": f"s3://{plan.models_bucket}/models",
                    "packed": _in_run("packed"),
                },
                # One key for both: what is published must be readable by those who read models.
                key=plan.models_key,
                after="ReadPacked",
            ),
            "ReadPacked": _read(plan, "packed/pack.json", result="$.packed", after="Register"),
            "Register": _register(plan),
        },
    }
    if plan.timeout_s is not None:
        machine["TimeoutSeconds"] = plan.timeout_s
    return machine


def _is_boolean(variable: str, *, value: bool) -> State:
    # A comparison with what is not there would end the execution with no word about the gate.
    return {
        "And": [
            {"Variable": variable, "IsPresent": True},
            {"Variable": variable, "IsBoolean": True},
            {"Variable": variable, "BooleanEquals": value},
        ]
    }


def _places(plan: PipelinePlan) -> State:
    """Where this execution keeps things: the only state that reads the execution itself."""
    folder = runs_folder(plan.pipeline_name)
    return {
        "Type": "Pass",
        # In place of what the execution was started with, which nothing reads.
        "Parameters": {
            "run": {
                "key.$": f"States.Format('{folder}/{{}}', $$.Execution.Name)",
                "url.$": (
                    f"States.Format('s3://{plan.runs_bucket}/{folder}/{{}}', $$.Execution.Name)"
                ),
            }
        },
        "Next": "BringCode",
    }


def _in_run(name: str) -> str:
    # Inputs end in a slash: without, they would be any name that begins so.
    return f"States.Format('{{}}/{name}', $.run.url)"


def _bring_code(plan: PipelinePlan) -> State:
    return {
        "Type": "Task",
        "Resource": f"arn:{plan.partition}:states:::aws-sdk:s3:copyObject",
        "Parameters": {
            "Bucket": plan.runs_bucket,
            "Key.$": f"States.Format('{{}}/code/{CODE_FILE}', $.run.key)",
            "CopySource": plan.code_source,
        },
        # Null would say that nothing is kept of the answer, and is lost on the way to the template.
        "ResultPath": "$.code",
        "Retry": _RETRY_CALL,
        "Next": "Prepare",
    }


def _named(name: str, value: str) -> State:
    """A field whose value is text, a path or an intrinsic function."""
    dynamic = value.startswith(("$.", "States."))
    return {f"{name}.$" if dynamic else name: value}


def _job_name(plan: PipelinePlan, step: str) -> str:
    return f"States.Format('{plan.pipeline_name}-{step}-{{}}', {_UNIQUE})"


def _tags(plan: PipelinePlan) -> State:
    if not plan.tags:
        return {}
    return {"Tags": [{"Key": key, "Value": value} for key, value in plan.tags.items()]}


def _network(plan: PipelinePlan) -> State:
    if not plan.subnet_ids:
        return {}
    return {
        "VpcConfig": {
            "Subnets": list(plan.subnet_ids),
            "SecurityGroupIds": list(plan.security_group_ids),
        }
    }


def _key(name: str, arn: str | None) -> State:
    return {} if arn is None else {name: arn}


def _processing(
    plan: PipelinePlan,
    step: str,
    *,
    arguments: Sequence[str],
    inputs: Mapping[str, str],
    outputs: Mapping[str, str],
    key: str | None,
    after: str,
) -> State:
    machines = plan.processing
    given = {"code": f"States.Format('{{}}/code/{CODE_FILE}', $.run.url)", **inputs}
    return {
        "Type": "Task",
        "Resource": f"arn:{plan.partition}:states:::sagemaker:createProcessingJob.sync",
        "Parameters": {
            "ProcessingJobName.$": _job_name(plan, step),
            "RoleArn": plan.processing_role_arn,
            "AppSpecification": {
                "ImageUri": plan.image_uri,
                "ContainerEntrypoint": [*_LAUNCHER, step],
                **({"ContainerArguments": list(arguments)} if arguments else {}),
            },
            "ProcessingInputs": [
                {
                    "InputName": name,
                    "S3Input": {
                        **_named("S3Uri", url),
                        "LocalPath": f"{_INPUTS}/{name}",
                        "S3DataType": "S3Prefix",
                        "S3InputMode": "File",
                        "S3DataDistributionType": "FullyReplicated",
                    },
                }
                for name, url in given.items()
            ],
            "ProcessingOutputConfig": {
                "Outputs": [
                    {
                        "OutputName": name,
                        "S3Output": {
                            **_named("S3Uri", url),
                            "LocalPath": f"{_OUTPUTS}/{name}",
                            "S3UploadMode": "EndOfJob",
                        },
                    }
                    for name, url in outputs.items()
                ],
                **_key("KmsKeyId", key),
            },
            "ProcessingResources": {
                "ClusterConfig": {
                    "InstanceCount": machines.instance_count,
                    "InstanceType": machines.instance_type,
                    "VolumeSizeInGB": machines.volume_gb,
                    **_key("VolumeKmsKeyId", plan.volume_key),
                }
            },
            "StoppingCondition": {"MaxRuntimeInSeconds": machines.max_runtime_s},
            "NetworkConfig": {
                "EnableNetworkIsolation": plan.network_isolation,
                **_network(plan),
            },
            **_tags(plan),
        },
        "ResultSelector": {"job.$": "$.ProcessingJobName"},
        "ResultPath": f"$.{step}",
        "Retry": _RETRY_JOB,
        "Next": after,
    }


def _training(plan: PipelinePlan) -> State:
    machines = plan.training
    spot = machines.max_wait_s is not None
    channels = {
        "code": f"States.Format('{{}}/code/{CODE_FILE}', $.run.url)",
        "records": _in_run("records/"),
    }
    stopping: State = {"MaxRuntimeInSeconds": machines.max_runtime_s}
    if spot:
        stopping["MaxWaitTimeInSeconds"] = machines.max_wait_s
    return {
        "Type": "Task",
        "Resource": f"arn:{plan.partition}:states:::sagemaker:createTrainingJob.sync",
        "Parameters": {
            "TrainingJobName.$": _job_name(plan, TRAIN),
            "RoleArn": plan.training_role_arn,
            "AlgorithmSpecification": {
                "TrainingImage": plan.image_uri,
                "TrainingInputMode": "File",
            },
            "HyperParameters": {**plan.hyperparameters, "package_id": plan.package_id},
            "InputDataConfig": [
                {
                    "ChannelName": name,
                    "DataSource": {
                        "S3DataSource": {
                            "S3DataType": "S3Prefix",
                            **_named("S3Uri", url),
                            "S3DataDistributionType": "FullyReplicated",
                        }
                    },
                }
                for name, url in channels.items()
            ],
            "OutputDataConfig": {
                "S3OutputPath.$": _in_run("model"),
                **_key("KmsKeyId", plan.runs_key),
            },
            "ResourceConfig": {
                "InstanceCount": machines.instance_count,
                "InstanceType": machines.instance_type,
                "VolumeSizeInGB": machines.volume_gb,
                **_key("VolumeKmsKeyId", plan.volume_key),
            },
            "StoppingCondition": stopping,
            "EnableManagedSpotTraining": spot,
            # On demand, too: what was stopped can be gone on with.
            "CheckpointConfig": {"S3Uri.$": _in_run("checkpoints")},
            "EnableNetworkIsolation": plan.network_isolation,
            "EnableInterContainerTrafficEncryption": plan.encrypt_traffic,
            **_network(plan),
            **_tags(plan),
        },
        "ResultSelector": {
            "job.$": "$.TrainingJobName",
            "model.$": "$.ModelArtifacts.S3ModelArtifacts",
        },
        "ResultPath": "$.train",
        "Retry": _RETRY_JOB,
        "Next": "Gate",
    }


def _read(plan: PipelinePlan, name: str, *, result: str, after: str) -> State:
    return {
        "Type": "Task",
        "Resource": f"arn:{plan.partition}:states:::aws-sdk:s3:getObject",
        "Parameters": {
            "Bucket": plan.runs_bucket,
            "Key.$": f"States.Format('{{}}/{name}', $.run.key)",
        },
        "ResultSelector": {"report.$": "States.StringToJson($.Body)"},
        "ResultPath": result,
        "Retry": _RETRY_CALL,
        "Next": after,
    }


def _register(plan: PipelinePlan) -> State:
    return {
        "Type": "Task",
        "Resource": f"arn:{plan.partition}:states:::aws-sdk:sagemaker:createModelPackage",
        "Parameters": {
            "ModelPackageGroupName": plan.model_package_group,
            "ModelPackageDescription.$": (
                f"States.Format('{plan.package_id} {{}}', $.packed.report.sha256)"
            ),
            # A person decides what is deployed.
            "ModelApprovalStatus": "PendingManualApproval",
            "InferenceSpecification": {
                "Containers": [
                    {
                        "Image": plan.image_uri,
                        "ModelDataUrl.$": (
                            f"States.Format('s3://{plan.models_bucket}/{{}}', $.packed.report.key)"
                        ),
                    }
                ],
                "SupportedContentTypes": list(ACCEPTED_CONTENT_TYPES),
            },
            "ModelMetrics": {
                "ModelQuality": {
                    "Statistics": {
                        "ContentType": MEDIA_JSON,
                        "S3Uri.$": _in_run("gate/gate.json"),
                    }
                }
            },
            "CustomerMetadataProperties": {
                "package_id": plan.package_id,
                "package_sha256.$": "$.packed.report.sha256",
            },
        },
        "ResultSelector": {"arn.$": "$.ModelPackageArn"},
        "ResultPath": "$.registered",
        "Retry": _RETRY_CALL,
        "End": True,
    }
