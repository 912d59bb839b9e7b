"""Pushing a package: once, in parts, and from where an upload was cut off."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import botocore.exceptions
import numpy as np
import pytest
from moto import mock_aws

from dr_cli.errors import explain
from dr_local.publish import UploadError, push_package
from inference_image.model_package import pack_model
from tests.constructs_fixtures import make_package

BUCKET = "models"
MIB = 1024 * 1024


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket=BUCKET)
        yield client


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of 12 MiB that no compression makes smaller: three parts of 5 MiB."""
    content = np.random.default_rng(7).bytes(12 * MIB)
    return make_package(tmp_path_factory.mktemp("packages"), "demo", content=content)


class CutOff:
    """The client of a line that breaks after so many parts, and counts what was sent."""

    def __init__(self, client: Any, *, after_parts: int) -> None:
        self._client = client
        self._left = after_parts
        self.sent: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def upload_part(self, **arguments: Any) -> Any:
        if self._left == 0:
            raise botocore.exceptions.EndpointConnectionError(endpoint_url="https://s3")
        self._left -= 1
        self.sent.append(arguments["PartNumber"])
        return self._client.upload_part(**arguments)


def stored(client: Any, key: str) -> bytes:
    content: bytes = client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    return content


def archive_of(package: Path, folder: Path) -> bytes:
    pack_model(package, folder / "model.tar.gz")
    return (folder / "model.tar.gz").read_bytes()


def test_a_small_package_goes_in_one_piece(s3: Any, tmp_path: Path) -> None:
    small = make_package(tmp_path, "small")
    seen: list[tuple[int, int]] = []
    key = push_package(
        small, bucket=BUCKET, client=s3, progress=lambda sent, total: seen.append((sent, total))
    )
    content = stored(s3, key)
    assert content == archive_of(small, tmp_path)
    assert seen == [(len(content), len(content))]


def test_a_large_package_goes_in_parts_and_is_whole(s3: Any, package: Path, tmp_path: Path) -> None:
    line = CutOff(s3, after_parts=99)
    seen: list[tuple[int, int]] = []
    key = push_package(
        package,
        bucket=BUCKET,
        client=line,
        part_bytes=5 * MIB,
        progress=lambda sent, total: seen.append((sent, total)),
    )
    content = stored(s3, key)
    assert content == archive_of(package, tmp_path)
    assert sorted(line.sent) == [1, 2, 3]
    assert seen[0] == (0, len(content))
    assert seen[-1] == (len(content), len(content))
    assert seen == sorted(seen)
    again = CutOff(s3, after_parts=0)
    assert push_package(package, bucket=BUCKET, client=again, part_bytes=5 * MIB) == key


def test_an_upload_that_was_cut_off_goes_on_where_it_stopped(
    s3: Any, package: Path, tmp_path: Path
) -> None:
    with pytest.raises(UploadError, match="run the same command again to go on") as caught:
        push_package(package, bucket=BUCKET, client=CutOff(s3, after_parts=2), part_bytes=5 * MIB)
    assert explain(caught.value) == str(caught.value)
    assert s3.list_objects_v2(Bucket=BUCKET)["KeyCount"] == 0
    second = CutOff(s3, after_parts=99)
    key = push_package(package, bucket=BUCKET, client=second, part_bytes=5 * MIB)
    assert len(second.sent) == 1
    assert stored(s3, key) == archive_of(package, tmp_path)
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=BUCKET)


def test_parts_of_another_package_are_not_taken_for_ours(s3: Any, package: Path) -> None:
    """Somebody's unfinished upload under this key with other bytes, or parts of another size."""
    with pytest.raises(UploadError):
        push_package(package, bucket=BUCKET, client=CutOff(s3, after_parts=1), part_bytes=6 * MIB)
    second = CutOff(s3, after_parts=99)
    push_package(package, bucket=BUCKET, client=second, part_bytes=5 * MIB)
    assert sorted(second.sent) == [1, 2, 3]


def test_a_bucket_that_is_not_there_is_said(s3: Any, package: Path) -> None:
    with pytest.raises(botocore.exceptions.ClientError, match="NoSuchBucket"):
        push_package(package, bucket="elsewhere", client=s3, part_bytes=5 * MIB)
