"""`dr image publish`: what Docker is asked for, and what is refused."""

import base64
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from dr_cli.errors import CommandError
from dr_cli.images import publish

DIGEST = f"sha256:{'12' * 32}"
DOCKER = "application/vnd.docker.distribution.manifest.v2+json"
OCI = "application/vnd.oci.image.manifest.v1+json"
URI = "public.ecr.aws/clinic/dr"
ASKED = {"repositoryName": "dr", "imageIds": [{"imageTag": "litert-arm64"}]}


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `docker` that writes down how it is called; a push fails where a file says so."""
    log = tmp_path / "calls"
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$*" >> {log}\n'
        'case "$*" in\n'
        "  version*) echo 29.0 ;;\n"
        f"  *login*) cat >> {log}.password ;;\n"
        f'  *push*) test ! -e {tmp_path}/broken || {{ echo "denied: no" >&2; exit 1; }} ;;\n'
        "esac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return log


def client(*, media_type: str = DOCKER, there: bool = True) -> tuple[Any, Stubber]:
    public = boto3.client(
        "ecr-public",
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    stub = Stubber(public)
    repository = {"repositoryName": "dr", "repositoryUri": URI}
    if there:
        stub.add_response("describe_repositories", {"repositories": [repository]})
    else:
        stub.add_client_error("describe_repositories", "RepositoryNotFoundException")
        stub.add_response("create_repository", {"repository": repository})
    token = base64.b64encode(b"AWS:secret").decode()
    stub.add_response(
        "get_authorization_token", {"authorizationData": {"authorizationToken": token}}
    )
    detail = {"imageDigest": DIGEST, "imageManifestMediaType": media_type}
    stub.add_response("describe_images", {"imageDetails": [detail]}, ASKED)
    stub.activate()
    return public, stub


def published(public: Any, *, create: bool = False) -> str:
    return publish(
        "dr",
        architecture="arm64",
        runtime="litert",
        tag="litert-arm64",
        create=create,
        client=public,
    )


def test_the_image_is_built_for_its_processor_pushed_and_named_by_its_digest(
    docker: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    public, stub = client()
    assert published(public) == f"{URI}@{DIGEST}"
    assert capsys.readouterr().out.strip() == f"{URI}@{DIGEST}"
    stub.assert_no_pending_responses()
    _, build, login, push = docker.read_text().splitlines()
    assert build.startswith(
        f"build --platform linux/arm64 --build-arg RUNTIME=litert --tag {URI}:litert-arm64 "
    )
    assert login.endswith("login --username AWS --password-stdin public.ecr.aws")
    assert push.endswith(f"push {URI}:litert-arm64")
    # The password goes over standard input and stays in no list of processes or folder.
    assert "secret" not in docker.read_text()
    assert docker.with_suffix(".password").read_text() == "secret"
    config = login.split()[1]
    assert config in push
    assert not Path(config).exists()


def test_a_repository_is_made_only_when_asked_for(docker: Path) -> None:
    public, _ = client(there=False)
    with pytest.raises(CommandError, match="--create makes it, for everybody to read"):
        published(public)
    public, stub = client(there=False)
    assert published(public, create=True).endswith(DIGEST)
    stub.assert_no_pending_responses()


def test_a_manifest_that_sagemaker_refuses_is_said(docker: Path) -> None:
    public, _ = client(media_type=OCI)
    with pytest.raises(CommandError, match="which SageMaker refuses in a copy"):
        published(public)


def test_what_docker_says_is_handed_on(docker: Path, tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    public, _ = client()
    with pytest.raises(CommandError, match="docker push failed: denied: no"):
        published(public)


def test_without_docker_nothing_is_asked_of_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    public, stub = client()
    with pytest.raises(CommandError, match="no Docker engine answers"):
        published(public)
    with pytest.raises(AssertionError):
        stub.assert_no_pending_responses()


def test_an_image_that_nobody_can_build_is_refused_without_starting_anything() -> None:
    from dr_cli.image_commands import image_publish

    for props, words in (
        ({"architecture": "sparc"}, "--architecture must be one of amd64, arm64"),
        ({"runtime": "torch"}, "--runtime must be one of litert, tensorflow"),
    ):
        with pytest.raises(CommandError, match=words):
            image_publish("dr", **props)  # type: ignore[arg-type]
