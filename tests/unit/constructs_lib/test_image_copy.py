"""Copying an image: what arrives has the same bytes, and a manifest that SageMaker takes."""

# ruff: noqa: N803 (the arguments have the names of the API)

import ast
import hashlib
import http.server
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from constructs_lib.image_copy import index
from constructs_lib.image_copy.index import ImageError, copy_image, docker_manifest, handler

OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
MIB = 1024 * 1024


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class Registry:
    """ECR's seven calls that copying needs, in memory and as strict: moto has no layers."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.blobs: dict[str, dict[str, bytes]] = {"source": {}, "target": {}}
        self.images: dict[str, dict[str, tuple[str, str]]] = {"source": {}, "target": {}}
        self.tags: dict[str, dict[str, str]] = {"source": {}, "target": {}}
        self.uploads: dict[str, bytearray] = {}

    def batch_get_image(
        self, *, repositoryName: str, imageIds: list[dict[str, str]], acceptedMediaTypes: list[str]
    ) -> Any:
        (image_id,) = imageIds
        digest = image_id.get("imageDigest") or self.tags[repositoryName].get(image_id["imageTag"])
        found = self.images[repositoryName].get(digest or "")
        if found is None:
            return {"images": [], "failures": [{"failureCode": "ImageNotFound"}]}
        manifest, media_type = found
        assert media_type in acceptedMediaTypes
        return {"images": [{"imageManifest": manifest, "imageId": {"imageDigest": digest}}]}

    def batch_check_layer_availability(
        self, *, repositoryName: str, layerDigests: list[str]
    ) -> Any:
        state = {True: "AVAILABLE", False: "UNAVAILABLE"}
        return {
            "layers": [
                {"layerAvailability": state[digest in self.blobs[repositoryName]]}
                for digest in layerDigests
            ]
        }

    def get_download_url_for_layer(self, *, repositoryName: str, layerDigest: str) -> Any:
        return {"downloadUrl": f"http://127.0.0.1:{self.port}/{repositoryName}/{layerDigest}"}

    def initiate_layer_upload(self, *, repositoryName: str) -> Any:
        upload = f"{repositoryName}-{len(self.uploads)}"
        self.uploads[upload] = bytearray()
        return {"uploadId": upload}

    def upload_layer_part(
        self,
        *,
        repositoryName: str,
        uploadId: str,
        partFirstByte: int,
        partLastByte: int,
        layerPartBlob: bytes,
    ) -> None:
        assert partFirstByte == len(self.uploads[uploadId])
        assert partLastByte - partFirstByte + 1 == len(layerPartBlob) <= 10 * MIB
        self.uploads[uploadId] += layerPartBlob

    def complete_layer_upload(
        self, *, repositoryName: str, uploadId: str, layerDigests: list[str]
    ) -> None:
        content = bytes(self.uploads.pop(uploadId))
        assert layerDigests == [digest_of(content)]
        self.blobs[repositoryName][layerDigests[0]] = content

    def put_image(
        self, *, repositoryName: str, imageManifest: str, imageManifestMediaType: str, imageTag: str
    ) -> Any:
        manifest = json.loads(imageManifest)
        assert manifest["mediaType"] == imageManifestMediaType
        for blob in [manifest["config"], *manifest["layers"]]:
            assert len(self.blobs[repositoryName][blob["digest"]]) == blob["size"]
        assert imageTag not in self.tags[repositoryName], "tags are immutable"
        digest = digest_of(imageManifest.encode())
        self.images[repositoryName][digest] = (imageManifest, imageManifestMediaType)
        self.tags[repositoryName][imageTag] = digest
        return {"image": {"imageId": {"imageDigest": digest}}}

    def push(
        self, tag: str, *, architecture: str = "amd64", oci: bool = False, layer_type: str = ""
    ) -> dict[str, Any]:
        """An image of two layers in `source`, as an engine would push it."""
        config_type = OCI_CONFIG if oci else index.DOCKER_CONFIG
        layer_type = layer_type or (OCI_LAYER if oci else index.DOCKER_LAYER)
        config = json.dumps({"architecture": architecture, "os": "linux"}).encode()
        # More than one part of an upload, and less.
        contents = [bytes(9 * MIB + 1), b"a small layer"]
        for blob in [config, *contents]:
            self.blobs["source"][digest_of(blob)] = blob
        manifest = {
            "schemaVersion": 2,
            "mediaType": index.OCI_MANIFEST if oci else index.DOCKER_MANIFEST,
            "config": entry(config, config_type),
            "layers": [entry(content, layer_type) for content in contents],
        }
        self.store(tag, manifest)
        return manifest

    def store(self, tag: str, manifest: dict[str, Any]) -> str:
        text = json.dumps(manifest)
        digest = digest_of(text.encode())
        self.images["source"][digest] = (text, manifest["mediaType"])
        self.tags["source"][tag] = digest
        return digest


def entry(content: bytes, media_type: str) -> dict[str, Any]:
    return {"mediaType": media_type, "size": len(content), "digest": digest_of(content)}


@pytest.fixture
def ecr() -> Iterator[Registry]:
    class Blobs(http.server.BaseHTTPRequestHandler):
        answers: ClassVar[list[bytes]] = []

        def do_GET(self) -> None:
            _, repository, digest = self.path.split("/")
            content = registry.blobs[repository][digest]
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_PUT(self) -> None:
            self.answers.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Blobs)
    registry = Registry(server.server_port)
    registry.answers = Blobs.answers  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def copied(ecr: Registry, *, architecture: str = "amd64", source_tag: str = "asset") -> Any:
    digest = copy_image(
        ecr,
        source="source",
        source_tag=source_tag,
        target="target",
        tag="hash",
        architecture=architecture,
    )
    assert ecr.tags["target"]["hash"] == digest
    return json.loads(ecr.images["target"][digest][0])


@pytest.mark.parametrize("oci", [False, True], ids=["docker", "oci"])
def test_the_copy_has_the_same_layers_and_a_docker_manifest(ecr: Registry, oci: bool) -> None:
    pushed = ecr.push("asset", oci=oci)
    manifest = copied(ecr)
    assert manifest["mediaType"] == index.DOCKER_MANIFEST
    assert manifest["config"]["mediaType"] == index.DOCKER_CONFIG
    assert {layer["mediaType"] for layer in manifest["layers"]} == {index.DOCKER_LAYER}
    for part in ("size", "digest"):
        assert [it[part] for it in manifest["layers"]] == [it[part] for it in pushed["layers"]]
    assert ecr.blobs["target"] == ecr.blobs["source"]


def test_layers_that_are_there_are_not_sent_again(ecr: Registry) -> None:
    pushed = ecr.push("asset")
    large = pushed["layers"][0]["digest"]
    ecr.blobs["target"][large] = ecr.blobs["source"].pop(large)
    assert copied(ecr)["layers"][0]["digest"] == large


def test_an_image_that_is_there_is_left_alone(ecr: Registry) -> None:
    ecr.push("asset")
    first = copied(ecr)
    ecr.tags["source"].clear()
    assert copied(ecr) == first


def test_of_an_index_the_wanted_image_is_taken_and_the_attestation_left(ecr: Registry) -> None:
    listed = []
    for architecture in ("amd64", "arm64"):
        ecr.push(architecture, architecture=architecture, oci=True)
        listed.append(
            {
                "digest": ecr.tags["source"][architecture],
                "platform": {"architecture": architecture, "os": "linux"},
            }
        )
    listed.append({"digest": digest_of(b""), "platform": {"architecture": "unknown"}})
    ecr.store("asset", {"schemaVersion": 2, "mediaType": index.OCI_INDEX, "manifests": listed})
    manifest = copied(ecr, architecture="arm64")
    config = json.loads(ecr.blobs["target"][manifest["config"]["digest"]])
    assert config["architecture"] == "arm64"


def test_an_index_without_the_wanted_image_says_what_it_has(ecr: Registry) -> None:
    listed = [{"digest": digest_of(b""), "platform": {"architecture": "unknown"}}]
    ecr.store("asset", {"schemaVersion": 2, "mediaType": index.OCI_INDEX, "manifests": listed})
    with pytest.raises(ImageError, match=r"images for unknown, and none for amd64; build with"):
        copied(ecr)


def test_an_image_of_another_processor_is_refused_before_anything_is_copied(
    ecr: Registry,
) -> None:
    ecr.push("asset", architecture="arm64")
    with pytest.raises(ImageError, match="is for arm64, and not for amd64"):
        copied(ecr)
    assert ecr.blobs["target"] == {}


def test_an_image_that_is_not_there_is_said(ecr: Registry) -> None:
    with pytest.raises(ImageError, match="there is no image source:asset; deploy"):
        copied(ecr)


def test_layers_that_docker_manifests_do_not_know_are_refused(ecr: Registry) -> None:
    manifest = ecr.push("asset", oci=True, layer_type="application/vnd.oci.image.layer.v1.tar+zstd")
    with pytest.raises(ImageError, match=r"tar\+zstd, which SageMaker does not take.*gzip layers"):
        docker_manifest(manifest)


@pytest.mark.parametrize("request_type", ["Create", "Update", "Delete"])
def test_cloudformation_gets_an_answer_in_any_case(
    ecr: Registry, request_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Context:
        log_stream_name = "2026/stream"

    ecr.push("asset")
    event = {
        "RequestType": request_type,
        "ResponseURL": f"http://127.0.0.1:{ecr.port}/answer",
        "StackId": "stack",
        "RequestId": "request",
        "LogicalResourceId": "Copy",
        "ResourceProperties": {
            "SourceRepository": "source",
            "TargetRepository": "target",
            "SourceTag": "asset",
            "Tag": "hash",
            "Architecture": "amd64",
        },
    }
    if request_type != "Create":
        event["PhysicalResourceId"] = "target:old"
    monkeypatch.setattr("boto3.client", lambda service: ecr)
    handler(event, Context())
    ecr.tags["source"].clear()
    ecr.tags["target"].clear()
    handler(event, Context())
    good, bad = (json.loads(answer) for answer in ecr.answers[-2:])  # type: ignore[attr-defined]
    assert good["Status"] == "SUCCESS"
    assert (good["StackId"], good["RequestId"], good["LogicalResourceId"]) == (
        "stack",
        "request",
        "Copy",
    )
    if request_type == "Delete":
        assert bad["Status"] == "SUCCESS"
        assert bad["PhysicalResourceId"] == "target:old"
    else:
        assert good["PhysicalResourceId"] == "target:hash"
        assert good["Data"]["Digest"].startswith("sha256:")
        assert bad["Status"] == "FAILED"
        assert "no image source:asset" in bad["Reason"]
        assert "2026/stream" in bad["Reason"]


def test_the_function_needs_nothing_that_its_runtime_lacks() -> None:
    imported = set()
    for node in ast.walk(ast.parse(Path(index.__file__).read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module).partition(".")[0])
    assert imported - set(sys.stdlib_module_names) == {"boto3"}
