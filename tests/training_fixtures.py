"""Training pipelines for tests."""

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_s3 as s3

from constructs_lib import (
    DRTrainingPipeline,
    GateThresholds,
    InferenceImage,
    ModelArtifactBucket,
)
from tests.constructs_fixtures import ACCOUNT, REGION

THRESHOLDS = GateThresholds(min_sensitivity=0.85, min_specificity=0.7, min_kappa=0.6)


def training_image(
    *, architecture: str = "amd64", runtime: str | None = "tensorflow", region: str = REGION
) -> InferenceImage:
    uri = f"{ACCOUNT}.dkr.ecr.{region}.amazonaws.com/dr/serving@sha256:{'12' * 32}"
    return InferenceImage.from_uri(uri, architecture=architecture, runtime=runtime)


def a_pipeline(stack: cdk.Stack, name: str = "Training", **props: Any) -> DRTrainingPipeline:
    """A pipeline over buckets that are there already, with these properties changed."""
    bucket = s3.Bucket.from_bucket_name
    defaults: dict[str, Any] = {
        "image": training_image(),
        "package_id": "clinic",
        "photographs_prefix": "clinic",
        "hyperparameters": {"network": "mobilenet", "epochs": 20},
        "gate": THRESHOLDS,
        "training_instance_type": "ml.c5.xlarge",
        "pipeline_name": "dr-clinic",
    }
    if "models" not in props:
        defaults["models"] = ModelArtifactBucket(
            stack, f"{name}Models", bucket=bucket(stack, f"{name}Packages", "our-models")
        )
    if "photographs" not in props:
        defaults["photographs"] = bucket(stack, f"{name}Photographs", "photographs")
    if "runs_bucket" not in props:
        defaults["runs_bucket"] = bucket(stack, f"{name}Kept", "ours")
    return DRTrainingPipeline(stack, name, **{**defaults, **props})
