"""Small model packages, build contexts and stacks for the tests of constructs and stacks."""

import atexit
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import aws_cdk as cdk

import app
from constructs_lib import InferenceImage, InferenceImageRepo, ModelArtifact, ModelArtifactBucket
from inference_image.contract import GRADE_LABELS

ACCOUNT = "123456789012"
REGION = "eu-west-1"
HOME = cdk.Environment(account=ACCOUNT, region=REGION)
SHA256 = "ab" * 32
Template = dict[str, Any]

_ASSEMBLIES = tempfile.TemporaryDirectory(prefix="dr-endpoints-test-")
atexit.register(_ASSEMBLIES.cleanup)


def make_package(
    root: Path, name: str, *, content: bytes = b"a model", present: bool = True, **extra: object
) -> Path:
    """A package folder with one file; without the file where `present` is false."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "schema_version": 1,
        "id": name,
        "task": "grade5",
        "input_size_px": 224,
        "labels": list(GRADE_LABELS),
        "preprocessing": [],
        "quality_gate": None,
        "operating_points": [{"name": "high_sensitivity", "threshold": 0.3}],
        "default_operating_point": "high_sensitivity",
        "temperature": 1.0,
        "outputs": {"logits": "logits"},
        "head_file": None,
        "files": {
            "model.tflite": {
                "sha256": hashlib.sha256(content).hexdigest(),
                "size_bytes": len(content),
            }
        },
        **extra,
    }
    (folder / "model.json").write_text(json.dumps(document))
    if present:
        (folder / "model.tflite").write_bytes(content)
    return folder


def make_context(folder: Path) -> Path:
    """A build context: Dockerfile, allow-list, one module."""
    (folder / "runtimes").mkdir(parents=True, exist_ok=True)
    (folder / "Dockerfile").write_text("FROM scratch\nCOPY . /app\n")
    (folder / ".dockerignore").write_text("*\n!**/*.py\n**/__pycache__\n**/*.pyc\n")
    (folder / "serve.py").write_text("print('serve')\n")
    (folder / "runtimes" / "litert.py").write_text("print('litert')\n")
    return folder


def new_app(*, context: Mapping[str, object] | None = None) -> cdk.App:
    """An app that writes its assembly to a temporary folder."""
    outdir = tempfile.mkdtemp(dir=_ASSEMBLIES.name)
    return cdk.App(outdir=outdir, analytics_reporting=False, context=dict(context or {}))


def new_stack(*, env: cdk.Environment | None = HOME) -> cdk.Stack:
    return cdk.Stack(new_app(), "Stack", env=env)


@cache
def matrix_app() -> cdk.App:
    """Every stack of the matrix, for any account, with one package on disk and one not.

    One app for all tests that only read it: synthesizing takes seconds.
    """
    return built_app(image="source-digest")


@cache
def matrix_templates() -> dict[str, Template]:
    """Templates of `matrix_app` by stack name."""
    return synthesize(matrix_app())


def model_root() -> Path:
    """A `model_artifacts` folder as a clone has it: MobileNet whole, VGG19 without its weights."""
    root = Path(_ASSEMBLIES.name, "model_artifacts")
    if not root.exists():
        make_package(root, "mobilenet-demo", content=b"mobilenet")
        make_package(
            root,
            "vgg19-demo",
            content=b"vgg19",
            present=False,
            provenance={"command": "python -m make_vgg19"},
        )
    return root


def built_app(**context: object) -> cdk.App:
    """`app.py` with the flags of cdk.json and this context, in no particular account."""
    cdk_json = json.loads((Path(app.__file__).parent / "cdk.json").read_text())
    made = new_app(context={**cdk_json["context"], **context})
    account_free = {
        name: value for name, value in os.environ.items() if not name.startswith("CDK_DEFAULT_")
    }
    with mock.patch.dict(os.environ, account_free, clear=True):
        return app.build(made, model_root=model_root())


def synthesize(cdk_app: cdk.App) -> dict[str, Template]:
    """Templates by stack name."""
    directory = Path(cdk_app.synth().directory)
    return {
        path.name.removesuffix(".template.json"): json.loads(path.read_text())
        for path in directory.glob("*.template.json")
    }


def template_of(stack: cdk.Stack) -> Template:
    root = stack.node.root
    assert isinstance(root, cdk.App)
    return synthesize(root)[stack.stack_name]


def manifest_of(stack: cdk.Stack) -> dict[str, Any]:
    """The asset manifest that the CDK command line publishes for `stack`."""
    root = stack.node.root
    assert isinstance(root, cdk.App)
    path = Path(root.synth().directory, f"{stack.stack_name}.assets.json")
    manifest: dict[str, Any] = json.loads(path.read_text())
    return manifest


def warnings_in(stack: cdk.Stack) -> list[str]:
    """Warnings of `stack` and all that is in it, as the CDK command line reads them."""
    root = stack.node.root
    assert isinstance(root, cdk.App)
    directory = Path(root.synth().directory)
    artifact = json.loads((directory / "manifest.json").read_text())["artifacts"][stack.artifact_id]
    metadata = artifact.get("metadata", {})
    if told := artifact.get("additionalMetadataFile"):
        metadata = json.loads((directory / told).read_text())
    return [
        str(entry["data"])
        for entries in metadata.values()
        for entry in entries
        if entry["type"] == "aws:cdk:warning"
    ]


def resources(template: Template, kind: str) -> dict[str, Any]:
    """Resources of one type by logical id."""
    return {
        name: resource
        for name, resource in template.get("Resources", {}).items()
        if resource["Type"] == kind
    }


def only(template: Template, kind: str) -> tuple[str, dict[str, Any]]:
    """The one resource of a type: its logical id and itself."""
    found = resources(template, kind)
    assert len(found) == 1, f"{len(found)} resources of type {kind}"
    return next(iter(found.items()))


def statements(template: Template) -> list[dict[str, Any]]:
    """Every statement of every policy that is attached to a role."""
    return [
        statement
        for policy in resources(template, "AWS::IAM::Policy").values()
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]
    ]


def an_artifact(stack: cdk.Stack, *, sha256: str = SHA256) -> ModelArtifact:
    """A package in the stack's own bucket, pushed from outside."""
    existing = stack.node.try_find_child("Models")
    bucket = (
        existing
        if isinstance(existing, ModelArtifactBucket)
        else ModelArtifactBucket(stack, "Models")
    )
    return ModelArtifact.in_bucket(bucket.bucket, model_id="demo", sha256=sha256)


def an_image(
    *, architecture: str = "amd64", digest: str = "12" * 32, account: str = ACCOUNT
) -> InferenceImage:
    uri = f"{account}.dkr.ecr.{REGION}.amazonaws.com/dr/serving@sha256:{digest}"
    return InferenceImage.from_uri(uri, architecture=architecture)


def a_repo(stack: cdk.Stack, context: Path, **props: Any) -> InferenceImageRepo:
    return InferenceImageRepo(stack, "Images", directory=context, **props)
