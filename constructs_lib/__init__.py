"""AWS CDK constructs that deploy classifiers for diabetic retinopathy on SageMaker and Lambda.

    from constructs_lib import InferenceImageRepo, ModelArtifactBucket, ServerlessDREndpoint

    bucket = ModelArtifactBucket(self, "Models")
    model = bucket.add_model(Path("model_artifacts/mobilenet-demo"))
    image = InferenceImageRepo(self, "Images").image(architecture="amd64")
    ServerlessDREndpoint(self, "Endpoint", model=model, image=image, memory_mib=2048)

Names are loaded on first use: `constructs_lib.limits` and `constructs_lib.rules` are plain
data and functions that other tools read without paying for `aws_cdk` (about a second).
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from constructs_lib.alarms import AlarmOptions, EndpointAlarms
    from constructs_lib.compliance import acknowledge_findings
    from constructs_lib.cost_budget import CostBudget
    from constructs_lib.dashboard import DREndpointDashboard
    from constructs_lib.dr_endpoint import DREndpoint
    from constructs_lib.endpoint_options import DataCapture, EndpointOptions
    from constructs_lib.inference_image_repo import InferenceImage, InferenceImageRepo
    from constructs_lib.lambda_dr_endpoint import LambdaDREndpoint
    from constructs_lib.model_artifact_bucket import ModelArtifact, ModelArtifactBucket
    from constructs_lib.probe import GoldenImageProbe, ProbeOptions
    from constructs_lib.realtime_dr_endpoint import RealtimeDREndpoint
    from constructs_lib.rules import ValidationError
    from constructs_lib.scaling import ClinicHours, Scaling
    from constructs_lib.serverless_dr_endpoint import ServerlessDREndpoint
    from constructs_lib.stack_janitor import StackJanitor, time_to_live_tags
    from constructs_lib.traffic import TrafficShift
    from constructs_lib.training_alarms import PipelineAlarms
    from constructs_lib.training_pipeline import DRTrainingPipeline
    from constructs_lib.training_rules import GateThresholds
    from inference_image.model_spec import ModelPackageError

__all__ = [
    "AlarmOptions",
    "ClinicHours",
    "CostBudget",
    "DREndpoint",
    "DREndpointDashboard",
    "DRTrainingPipeline",
    "DataCapture",
    "EndpointAlarms",
    "EndpointOptions",
    "GateThresholds",
    "GoldenImageProbe",
    "InferenceImage",
    "InferenceImageRepo",
    "LambdaDREndpoint",
    "ModelArtifact",
    "ModelArtifactBucket",
    "ModelPackageError",
    "PipelineAlarms",
    "ProbeOptions",
    "RealtimeDREndpoint",
    "Scaling",
    "ServerlessDREndpoint",
    "StackJanitor",
    "TrafficShift",
    "ValidationError",
    "acknowledge_findings",
    "time_to_live_tags",
]

_HOMES = {
    "AlarmOptions": "constructs_lib.alarms",
    "ClinicHours": "constructs_lib.scaling",
    "CostBudget": "constructs_lib.cost_budget",
    "DREndpoint": "constructs_lib.dr_endpoint",
    "DREndpointDashboard": "constructs_lib.dashboard",
    "DRTrainingPipeline": "constructs_lib.training_pipeline",
    "DataCapture": "constructs_lib.endpoint_options",
    "EndpointAlarms": "constructs_lib.alarms",
    "EndpointOptions": "constructs_lib.endpoint_options",
    "GateThresholds": "constructs_lib.training_rules",
    "GoldenImageProbe": "constructs_lib.probe",
    "InferenceImage": "constructs_lib.inference_image_repo",
    "InferenceImageRepo": "constructs_lib.inference_image_repo",
    "LambdaDREndpoint": "constructs_lib.lambda_dr_endpoint",
    "ModelArtifact": "constructs_lib.model_artifact_bucket",
    "ModelArtifactBucket": "constructs_lib.model_artifact_bucket",
    # A package that cannot be used raises it out of `add_model` and `in_bucket`.
    "ModelPackageError": "inference_image.model_spec",
    "PipelineAlarms": "constructs_lib.training_alarms",
    "ProbeOptions": "constructs_lib.probe",
    "RealtimeDREndpoint": "constructs_lib.realtime_dr_endpoint",
    "Scaling": "constructs_lib.scaling",
    "ServerlessDREndpoint": "constructs_lib.serverless_dr_endpoint",
    "StackJanitor": "constructs_lib.stack_janitor",
    "TrafficShift": "constructs_lib.traffic",
    "ValidationError": "constructs_lib.rules",
    "acknowledge_findings": "constructs_lib.compliance",
    "time_to_live_tags": "constructs_lib.stack_janitor",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its module on first use (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
