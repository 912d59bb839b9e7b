"""AWS CDK constructs that deploy classifiers for diabetic retinopathy on SageMaker.

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
    from constructs_lib.inference_image_repo import InferenceImage, InferenceImageRepo
    from constructs_lib.model_artifact_bucket import ModelArtifact, ModelArtifactBucket
    from constructs_lib.realtime_dr_endpoint import RealtimeDREndpoint
    from constructs_lib.rules import ValidationError
    from constructs_lib.serverless_dr_endpoint import ServerlessDREndpoint
    from inference_image.model_spec import ModelPackageError

__all__ = [
    "InferenceImage",
    "InferenceImageRepo",
    "ModelArtifact",
    "ModelArtifactBucket",
    "ModelPackageError",
    "RealtimeDREndpoint",
    "ServerlessDREndpoint",
    "ValidationError",
]

_HOMES = {
    "InferenceImage": "constructs_lib.inference_image_repo",
    "InferenceImageRepo": "constructs_lib.inference_image_repo",
    "ModelArtifact": "constructs_lib.model_artifact_bucket",
    "ModelArtifactBucket": "constructs_lib.model_artifact_bucket",
    # A package that cannot be used raises it out of `add_model` and `in_bucket`.
    "ModelPackageError": "inference_image.model_spec",
    "RealtimeDREndpoint": "constructs_lib.realtime_dr_endpoint",
    "ServerlessDREndpoint": "constructs_lib.serverless_dr_endpoint",
    "ValidationError": "constructs_lib.rules",
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
