"""Copies a container image between two ECR repositories of one account and region.

Runs in AWS Lambda as a CloudFormation custom resource, with the standard library and the boto3
of the Lambda runtime. No registry client and no third party's image is involved: layers go over
through the ECR API, only those that the target lacks, in pieces.

SageMaker and Lambda take Docker manifests (version 2, schema 2) and refuse image indexes, and
SageMaker refuses OCI manifests as well. Config and layers are the same bytes in both formats, so
the copy of an OCI image gets a Docker manifest; of an index, the image of the wanted
architecture is taken and attestations are left behind.

Formats: https://github.com/opencontainers/image-spec/blob/v1.1.1/media-types.md and
https://distribution.github.io/distribution/spec/manifest-v2-2/ (checked 2026-11-28).
"""

import json
import urllib.request
from collections.abc import Iterator
from typing import Any, BinaryIO

DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
_OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
_OCI_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_DOCKER_OF = {
    _OCI_CONFIG: DOCKER_CONFIG,
    _OCI_LAYER: DOCKER_LAYER,
    DOCKER_CONFIG: DOCKER_CONFIG,
    DOCKER_LAYER: DOCKER_LAYER,
}
_ACCEPTED = [DOCKER_MANIFEST, DOCKER_LIST, OCI_MANIFEST, OCI_INDEX]
# ECR takes parts of 5 to 10 MiB: https://docs.aws.amazon.com/AmazonECR/latest/APIReference/API_UploadLayerPart.html
_PART_BYTES = 8 * 1024 * 1024
_ANSWER_TIMEOUT_S = 30


class ImageError(Exception):
    """An image that cannot be used; the text says why and what to do."""


def handler(event: dict[str, Any], context: Any) -> None:
    """Entry point of the custom resource: copy on Create and Update, nothing on Delete."""
    physical_id = event.get("PhysicalResourceId", "image-copy")
    answer: dict[str, Any] = {"Status": "SUCCESS", "Data": {}}
    try:
        if event["RequestType"] != "Delete":
            import boto3

            properties = event["ResourceProperties"]
            digest = copy_image(
                boto3.client("ecr"),
                source=properties["SourceRepository"],
                target=properties["TargetRepository"],
                source_tag=properties["SourceTag"],
                tag=properties["Tag"],
                architecture=properties["Architecture"],
            )
            answer["Data"] = {"Digest": digest}
            physical_id = f"{properties['TargetRepository']}:{properties['Tag']}"
    except Exception as error:  # noqa: BLE001 - CloudFormation waits an hour for an answer
        answer = {"Status": "FAILED", "Reason": f"{error} (log: {context.log_stream_name})"}
    body = {
        **answer,
        "PhysicalResourceId": physical_id,
        "StackId": event["StackId"],
        "RequestId": event["RequestId"],
        "LogicalResourceId": event["LogicalResourceId"],
    }
    request = urllib.request.Request(  # noqa: S310 - CloudFormation's own address
        event["ResponseURL"], json.dumps(body).encode(), {"Content-Type": ""}, method="PUT"
    )
    with urllib.request.urlopen(request, timeout=_ANSWER_TIMEOUT_S):  # noqa: S310
        pass


def copy_image(
    ecr: Any, *, source: str, source_tag: str, target: str, tag: str, architecture: str
) -> str:
    """Copy `source:source_tag` to `target:tag` with a Docker manifest; returns its digest.

    Raises:
        ImageError: there is no such image, it is for another architecture, or it has a layer
            format that the Docker manifest does not know.
    """
    there = _manifest(ecr, target, tag)
    if there is not None:
        # Tags are immutable, and the tag is the hash of the source: it is the same image.
        return str(there["imageId"]["imageDigest"])
    found = _manifest(ecr, source, source_tag)
    if found is None:
        raise ImageError(f"there is no image {source}:{source_tag}; deploy the image asset first")
    manifest = _image_manifest(ecr, source, found, architecture)
    docker = docker_manifest(manifest)
    config = json.loads(b"".join(_blob(ecr, source, docker["config"]["digest"])))
    if config.get("architecture") != architecture:
        raise ImageError(
            f"image {source}:{source_tag} is for {config.get('architecture')}, and not for "
            f"{architecture}; build it with --platform linux/{architecture}"
        )
    for blob in [docker["config"], *docker["layers"]]:
        _copy_blob(ecr, source, target, blob["digest"])
    put = ecr.put_image(
        repositoryName=target,
        imageTag=tag,
        imageManifest=json.dumps(docker, separators=(",", ":")),
        imageManifestMediaType=DOCKER_MANIFEST,
    )
    return str(put["image"]["imageId"]["imageDigest"])


def docker_manifest(manifest: dict[str, Any]) -> dict[str, Any]:
    """The Docker manifest (version 2, schema 2) of the same config and layers.

    Raises:
        ImageError: a layer is compressed in a way that Docker manifests do not know.
    """
    return {
        "schemaVersion": 2,
        "mediaType": DOCKER_MANIFEST,
        "config": _descriptor(manifest["config"]),
        "layers": [_descriptor(layer) for layer in manifest["layers"]],
    }


def _descriptor(descriptor: dict[str, Any]) -> dict[str, Any]:
    media_type = descriptor["mediaType"]
    if media_type not in _DOCKER_OF:
        raise ImageError(
            f"the image has a part of type {media_type}, which SageMaker does not take; build it "
            "with gzip layers (--output type=docker,oci-mediatypes=false,compression=gzip)"
        )
    return {
        "mediaType": _DOCKER_OF[media_type],
        "size": descriptor["size"],
        "digest": descriptor["digest"],
    }


def _manifest(ecr: Any, repository: str, reference: str) -> dict[str, Any] | None:
    key = "imageDigest" if reference.startswith("sha256:") else "imageTag"
    answer = ecr.batch_get_image(
        repositoryName=repository, imageIds=[{key: reference}], acceptedMediaTypes=_ACCEPTED
    )
    images: list[dict[str, Any]] = answer["images"]
    return images[0] if images else None


def _image_manifest(
    ecr: Any, repository: str, image: dict[str, Any], architecture: str
) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads(image["imageManifest"])
    if "manifests" not in manifest:
        return manifest
    # Attestations are listed as images for the platform "unknown".
    platforms = [entry.get("platform", {}).get("architecture") for entry in manifest["manifests"]]
    for entry, platform in zip(manifest["manifests"], platforms, strict=True):
        if platform == architecture:
            chosen = _manifest(ecr, repository, entry["digest"])
            if chosen is not None:
                return dict(json.loads(chosen["imageManifest"]))
    raise ImageError(
        f"{repository} holds an index with images for {', '.join(map(str, platforms))}, and none "
        f"for {architecture}; build with --platform linux/{architecture}"
    )


def _copy_blob(ecr: Any, source: str, target: str, digest: str) -> None:
    available = ecr.batch_check_layer_availability(repositoryName=target, layerDigests=[digest])
    if any(it.get("layerAvailability") == "AVAILABLE" for it in available["layers"]):
        return
    upload = ecr.initiate_layer_upload(repositoryName=target)["uploadId"]
    first = 0
    for part in _blob(ecr, source, digest):
        ecr.upload_layer_part(
            repositoryName=target,
            uploadId=upload,
            partFirstByte=first,
            partLastByte=first + len(part) - 1,
            layerPartBlob=part,
        )
        first += len(part)
    # ECR computes the digest itself and refuses a layer that arrived damaged.
    ecr.complete_layer_upload(repositoryName=target, uploadId=upload, layerDigests=[digest])


def _blob(ecr: Any, repository: str, digest: str) -> Iterator[bytes]:
    url = ecr.get_download_url_for_layer(repositoryName=repository, layerDigest=digest)
    with urllib.request.urlopen(url["downloadUrl"], timeout=_ANSWER_TIMEOUT_S) as stream:  # noqa: S310
        yield from _parts(stream)


def _parts(stream: BinaryIO) -> Iterator[bytes]:
    # A read from the network may be short, and only the last part of a layer may be.
    while part := b"".join(_exactly(stream, _PART_BYTES)):
        yield part


def _exactly(stream: BinaryIO, count: int) -> Iterator[bytes]:
    while count and (piece := stream.read(count)):
        count -= len(piece)
        yield piece
