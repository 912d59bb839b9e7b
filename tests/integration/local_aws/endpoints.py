"""Endpoints, packages and templates of the tests of the local AWS."""

import hashlib
import io
import itertools
import json
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import boto3
import botocore.exceptions
import pytest
from botocore.config import Config

from dr_local.lifecycle import LocalAws

FAKE_SERVE = (sys.executable, str(Path(__file__).with_name("fake_serve.py")))


BUCKET = "models"


NAMES = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A deployed endpoint of a test."""

    name: str
    local: LocalAws
    runtime_url: str

    def invoke(self, body: bytes | dict[str, Any] = b"x", **parameters: Any) -> dict[str, Any]:
        """InvokeEndpoint through boto3, without retries; `Body` is read."""
        answer = runtime_client(self.runtime_url).invoke_endpoint(
            EndpointName=self.name,
            Body=json.dumps(body) if isinstance(body, dict) else body,
            **parameters,
        )
        return {**answer, "Body": answer["Body"].read()}

    def containers(self) -> list[dict[str, Any]]:
        """The containers of this endpoint as the session's runtime reports them."""
        entry = self.local.metrics()["endpoints"].get(self.name, {})
        return list(entry.get("containers", []))

    def wait_until_busy(self) -> None:
        """Returns when a request is with a container."""
        wait_until(lambda: any(row["busy"] for row in self.containers()))

    def facts(self, **parameters: Any) -> dict[str, Any]:
        """What the container knows of itself."""
        return dict(json.loads(self.invoke(**parameters)["Body"]))

    def fails(self, body: bytes | dict[str, Any] = b"x", **parameters: Any) -> dict[str, Any]:
        """The error response of an invocation that must fail."""
        with pytest.raises(botocore.exceptions.ClientError) as caught:
            self.invoke(body, **parameters)
        return {**caught.value.response, "Exception": type(caught.value).__name__}


@cache
def runtime_client(url: str) -> Any:
    """The ordinary boto3 client, without the retries that would hide an error."""
    return boto3.session.Session(
        aws_access_key_id="t", aws_secret_access_key="t", region_name="us-east-1"
    ).client(
        "sagemaker-runtime",
        endpoint_url=url,
        config=Config(retries={"max_attempts": 0}, read_timeout=30, proxies={}),
    )


Deploy = Callable[..., Endpoint]


def make_package(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True)
    weights = text.encode() * 100
    (folder / "model.tflite").write_bytes(weights)
    digest = hashlib.sha256(weights).hexdigest()
    document = {
        "schema_version": 1,
        "id": "test",
        "task": "grade5",
        "labels": ["No DR", "Mild", "Moderate", "Severe", "Proliferative DR"],
        "input_size_px": 32,
        "temperature": 1.0,
        "operating_points": [{"name": "balanced", "threshold": 0.5}],
        "default_operating_point": "balanced",
        "outputs": {"logits": "logits"},
        "preprocessing": [],
        "quality_gate": None,
        "files": {"model.tflite": {"sha256": digest, "size_bytes": len(weights)}},
    }
    (folder / "model.json").write_text(json.dumps(document))
    return folder


def template(
    *,
    name: str,
    model_data_url: str,
    variant: dict[str, Any],
    environment: dict[str, str] | None = None,
    suffix: str = "",
    tags: dict[str, str] | None = None,
) -> str:
    """An endpoint as the constructs deploy it; `suffix` goes into the replaceable ids."""
    model, config = f"Model{suffix}", f"Config{suffix}"
    resources = {
        "Role": {
            "Type": "AWS::IAM::Role",
            "Properties": {"AssumeRolePolicyDocument": {"Version": "2012-10-17", "Statement": []}},
        },
        "Endpoint": {
            "Type": "AWS::SageMaker::Endpoint",
            "Properties": {
                "EndpointName": name,
                "EndpointConfigName": {"Fn::GetAtt": [config, "EndpointConfigName"]},
            },
        },
        config: {
            "Type": "AWS::SageMaker::EndpointConfig",
            "Properties": {
                "ProductionVariants": [
                    {
                        "VariantName": "main",
                        "ModelName": {"Fn::GetAtt": [model, "ModelName"]},
                        **variant,
                    }
                ]
            },
        },
        model: {
            "Type": "AWS::SageMaker::Model",
            "Properties": {
                "ExecutionRoleArn": {"Fn::GetAtt": ["Role", "Arn"]},
                "PrimaryContainer": {
                    "Image": "image",
                    "ModelDataUrl": model_data_url,
                    "Environment": environment or {},
                },
            },
        },
    }
    if tags is not None:
        rows = [{"Key": key, "Value": value} for key, value in tags.items()]
        for resource in resources.values():
            resource["Properties"]["Tags"] = rows
    return json.dumps({"Resources": resources})


def serverless(*, memory_mib: int = 2048, max_concurrency: int = 2) -> dict[str, Any]:
    return {"ServerlessConfig": {"MemorySizeInMB": memory_mib, "MaxConcurrency": max_concurrency}}


def realtime(*, instance_type: str = "ml.m5.xlarge") -> dict[str, Any]:
    return {"InstanceType": instance_type, "InitialInstanceCount": 1}


def answers(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(condition: Callable[[], Any], *, seconds: float = 5.0) -> Any:
    """The first true value of `condition`; fails the test after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.03)
    pytest.fail(f"did not happen within {seconds:g} s")


def repack(package_dir: Path, archive: Path) -> Path:
    """Pack a model package in which one byte of `model.tflite` has been changed."""
    with tarfile.open(archive, "w:gz") as tar:
        for path in sorted(package_dir.iterdir()):
            data = bytearray(path.read_bytes())
            if path.name == "model.tflite":
                data[len(data) // 2] ^= 0xFF
            info = tarfile.TarInfo(path.name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return archive
