"""`dr image publish`: put the service's image into ECR Public, for others to repeat a study.

SageMaker and Lambda pull from a private registry only, so that whoever repeats the study copies the
image into their own; the digest says that it is the same. ECR Public is in us-east-1 alone.
"""

import base64
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

import inference_image
from constructs_lib.image_copy.index import DOCKER_MANIFEST
from dr_cli.cdk import docker_version
from dr_cli.errors import CommandError

PUBLIC_REGION: Final = "us-east-1"
REGISTRY: Final = "public.ecr.aws"
_TAIL: Final = 600


def publish(
    repository: str, *, architecture: str, runtime: str, tag: str, create: bool, client: Any = None
) -> str:
    """Build, push and check the image; prints and returns its name by digest.

    Args:
        repository: name of the repository in the account's public registry.
        architecture, runtime: which image.
        tag: what it is called there beside its digest.
        create: make the repository where there is none; everybody can then read it.
        client: a boto3 client of `ecr-public`.

    Raises:
        CommandError: there is no Docker engine or no such repository, a step failed, or what
            arrived has a manifest that SageMaker refuses.
    """
    if docker_version() is None:
        raise CommandError("no Docker engine answers (`docker version`); start one, and try again")
    if client is None:
        import boto3

        client = boto3.client("ecr-public", region_name=PUBLIC_REGION)
    uri = _repository_uri(client, repository, create=create)
    name = f"{uri}:{tag}"
    _docker(
        "build",
        *("--platform", f"linux/{architecture}", "--build-arg", f"RUNTIME={runtime}"),
        *("--tag", name, str(Path(inference_image.__file__).parent)),
        what="docker build",
    )
    token = client.get_authorization_token()["authorizationData"]["authorizationToken"]
    user, _, password = base64.b64decode(token).decode().partition(":")
    # The password of twelve hours lies in a folder that goes with this call.
    with tempfile.TemporaryDirectory(prefix="dr-docker-") as config:
        _docker(
            *("--config", config, "login", "--username", user, "--password-stdin", REGISTRY),
            what="docker login",
            stdin=password,
        )
        _docker("--config", config, "push", name, what="docker push")
    (image,) = client.describe_images(repositoryName=repository, imageIds=[{"imageTag": tag}])[
        "imageDetails"
    ]
    media_type = image.get("imageManifestMediaType")
    if media_type != DOCKER_MANIFEST:
        raise CommandError(
            f"{name} is there with the manifest {media_type}, which SageMaker refuses in a copy; "
            "push with an engine or a builder that writes Docker manifests (docs/stacks.md, "
            '"When SageMaker refuses the image")'
        )
    published = f"{uri}@{image['imageDigest']}"
    print(published)
    return published


def _repository_uri(client: Any, repository: str, *, create: bool) -> str:
    from botocore.exceptions import ClientError

    try:
        (found,) = client.describe_repositories(repositoryNames=[repository])["repositories"]
    except ClientError as error:
        if error.response["Error"]["Code"] != "RepositoryNotFoundException":
            raise
        if not create:
            raise CommandError(
                f"there is no public repository {repository}; --create makes it, for everybody "
                "to read"
            ) from None
        found = client.create_repository(repositoryName=repository)["repository"]
    return str(found["repositoryUri"])


def _docker(*arguments: str, what: str, stdin: str | None = None) -> None:
    docker = shutil.which("docker")
    if docker is None:
        raise CommandError("docker is not installed")
    done = subprocess.run(
        [docker, *arguments],
        # An attestation would make the image an index, which SageMaker refuses.
        env={**os.environ, "DOCKER_BUILDKIT": "1", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"},
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise CommandError(f"{what} failed: {' '.join(done.stderr.split())[-_TAIL:]}")
