"""A clinic's own CDK app: its bucket, its VPC and its KMS key, and an endpoint on Graviton."""

from pathlib import Path
from typing import cast

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3

from constructs_lib import InferenceImageRepo, ModelArtifactBucket, RealtimeDREndpoint

app = cdk.App()
stack = cdk.Stack(app, "Clinic")
key = cast("kms.IKey", kms.Key(stack, "Key", enable_key_rotation=True))
vpc = ec2.Vpc(stack, "Vpc", max_azs=2)
bucket = s3.Bucket(stack, "Bucket", encryption_key=key, enforce_ssl=True)

models = ModelArtifactBucket(stack, "Models", bucket=bucket)
model = models.add_model(Path(__file__).parent / "models" / "mine")
image = InferenceImageRepo(stack, "Images", own_repository=True).image(architecture="arm64")
endpoint = RealtimeDREndpoint(
    stack,
    "Endpoint",
    model=model,
    image=image,
    instance_type="ml.c7g.xlarge",
    vpc=vpc,
    encryption_key=key,
)
cdk.CfnOutput(stack, "EndpointName", value=endpoint.endpoint_name)
app.synth()
