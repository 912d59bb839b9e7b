"""Puts a model package into a bucket: on the local AWS, and for `dr model push` on AWS.

>>> push_package(Path("model_artifacts/mobilenet-demo"), bucket=bucket, client=s3)
'models/mobilenet-demo/….tar.gz'

A large package goes in parts. Packing is deterministic, so that an upload that was cut off is
taken up by the next call: parts that S3 holds already, with the same bytes, are not sent again.
"""

import base64
import hashlib
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import botocore.exceptions

from inference_image.model_package import pack_model
from inference_image.model_spec import load_model_spec

_ABSENT = {"404", "NoSuchKey", "NotFound"}
_CONTENT_TYPE: Final = "application/gzip"
_MIB: Final = 1024 * 1024
PART_BYTES: Final = 8 * _MIB
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html (checked 2026-11-28)
MIN_PART_BYTES: Final = 5 * _MIB
MAX_PARTS: Final = 10_000
_PARTS_AT_ONCE: Final = 4

# Told the bytes that S3 holds, and those of the whole archive.
Progress = Callable[[int, int], None]


class UploadError(Exception):
    """An upload was cut off; what S3 holds of it is kept for the next try."""


@dataclass(frozen=True, kw_only=True)
class _Part:
    number: int
    offset: int
    size_bytes: int


def push_package(
    package_dir: Path,
    *,
    bucket: str,
    client: Any,
    part_bytes: int = PART_BYTES,
    progress: Progress | None = None,
) -> str:
    """Pack `package_dir` and put it under the key that carries its digest; returns the key.

    An object that is there already has the same content by construction and is left alone.

    Args:
        client: a boto3 client of S3.
        part_bytes: size of a part, at least 5 MiB; archives up to this size go in one piece.
        progress: called with the bytes that S3 holds and those of the archive, after each part.

    Raises:
        ModelPackageError: `package_dir` is not a whole model package.
        UploadError: the connection failed while parts were sent; push again to go on.
        botocore.exceptions.ClientError: the bucket does not exist or may not be written.
    """
    key = load_model_spec(package_dir).object_key
    if _exists(client, bucket, key):
        return key
    with tempfile.TemporaryDirectory(prefix="dr-push-") as folder:
        archive = Path(folder) / "model.tar.gz"
        pack_model(package_dir, archive)
        size_bytes = archive.stat().st_size
        report = progress or (lambda _sent, _total: None)
        if size_bytes <= part_bytes:
            with archive.open("rb") as stream:
                client.put_object(Bucket=bucket, Key=key, Body=stream, ContentType=_CONTENT_TYPE)
            report(size_bytes, size_bytes)
        else:
            _push_parts(
                archive,
                bucket=bucket,
                key=key,
                client=client,
                part_bytes=max(part_bytes, MIN_PART_BYTES, -(-size_bytes // MAX_PARTS)),
                report=report,
            )
    return key


def _push_parts(
    archive: Path, *, bucket: str, key: str, client: Any, part_bytes: int, report: Progress
) -> None:
    where = {"Bucket": bucket, "Key": key}
    upload_id, held = _unfinished(client, where)
    if upload_id is None:
        upload_id = client.create_multipart_upload(
            **where, ContentType=_CONTENT_TYPE, ChecksumAlgorithm="SHA256"
        )["UploadId"]
    where["UploadId"] = upload_id
    total = archive.stat().st_size
    done: dict[int, dict[str, Any]] = {}
    missing = []
    sent = 0
    for part in _parts(total, part_bytes):
        there = held.get(part.number)
        if there is not None and _same(there, _read(archive, part)):
            done[part.number] = _receipt(part.number, there)
            sent += part.size_bytes
        else:
            missing.append(part)
    report(sent, total)

    def send(part: _Part) -> dict[str, Any]:
        content = _read(archive, part)
        answer = client.upload_part(
            **where, PartNumber=part.number, Body=content, ChecksumSHA256=_sha256(content)
        )
        return _receipt(part.number, answer)

    pool = ThreadPoolExecutor(_PARTS_AT_ONCE, thread_name_prefix="push")
    try:
        running = {pool.submit(send, part): part for part in missing}
        while running:
            finished, _ = wait(running, return_when=FIRST_EXCEPTION, timeout=0.2)
            for future in finished:
                part = running.pop(future)
                done[part.number] = future.result()
                sent += part.size_bytes
                report(sent, total)
    except botocore.exceptions.BotoCoreError as error:
        raise UploadError(
            f"the upload stopped after {sent // _MIB} of {total // _MIB} MiB ({error}); run the "
            "same command again to go on from there"
        ) from error
    finally:
        # Also on Ctrl-C: parts under way end, and none is begun.
        pool.shutdown(cancel_futures=True)
    client.complete_multipart_upload(
        **where, MultipartUpload={"Parts": [done[number] for number in sorted(done)]}
    )


def _unfinished(client: Any, where: dict[str, str]) -> tuple[str | None, dict[int, Any]]:
    """The newest upload of this key that was begun and not ended, and the parts S3 holds."""
    uploads = [
        upload
        for page in client.get_paginator("list_multipart_uploads").paginate(
            Bucket=where["Bucket"], Prefix=where["Key"]
        )
        for upload in page.get("Uploads", [])
        if upload["Key"] == where["Key"]
    ]
    if not uploads:
        return None, {}
    upload_id = max(uploads, key=lambda upload: upload["Initiated"])["UploadId"]
    pages = client.get_paginator("list_parts").paginate(**where, UploadId=upload_id)
    held = {part["PartNumber"]: part for page in pages for part in page.get("Parts", [])}
    return upload_id, held


def _parts(total: int, part_bytes: int) -> Iterator[_Part]:
    for number, offset in enumerate(range(0, total, part_bytes), start=1):
        yield _Part(number=number, offset=offset, size_bytes=min(part_bytes, total - offset))


def _read(archive: Path, part: _Part) -> bytes:
    with archive.open("rb") as stream:
        stream.seek(part.offset)
        return stream.read(part.size_bytes)


def _same(there: dict[str, Any], content: bytes) -> bool:
    """Whether S3 holds these bytes; its ETag is their MD5 only where no KMS key is used."""
    if there["Size"] != len(content):
        return False
    if "ChecksumSHA256" in there:
        return bool(there["ChecksumSHA256"] == _sha256(content))
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    return bool(there["ETag"].strip('"') == md5)


def _receipt(number: int, answer: dict[str, Any]) -> dict[str, Any]:
    receipt = {"PartNumber": number, "ETag": answer["ETag"]}
    if "ChecksumSHA256" in answer:
        receipt["ChecksumSHA256"] = answer["ChecksumSHA256"]
    return receipt


def _sha256(content: bytes) -> str:
    return base64.b64encode(hashlib.sha256(content).digest()).decode()


def _exists(client: Any, bucket: str, key: str) -> bool:
    try:
        client.head_object(Bucket=bucket, Key=key)
    except botocore.exceptions.ClientError as error:
        # HEAD of a missing bucket answers 404 as well; the put that follows says so in words.
        if error.response["Error"]["Code"] in _ABSENT:
            return False
        raise
    return True
