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

__all__ = [
    "InferenceImage",
    "InferenceImageRepo",
    "ModelArtifact",
    "ModelArtifactBucket",
    "RealtimeDREndpoint",
    "ServerlessDREndpoint",
    "ValidationError",
]

_HOMES = {
    "InferenceImage": "inference_image_repo",
    "InferenceImageRepo": "inference_image_repo",
    "ModelArtifact": "model_artifact_bucket",
    "ModelArtifactBucket": "model_artifact_bucket",
    "RealtimeDREndpoint": "realtime_dr_endpoint",
    "ServerlessDREndpoint": "serverless_dr_endpoint",
    "ValidationError": "rules",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its module on first use (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
