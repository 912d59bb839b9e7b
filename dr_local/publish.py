"""Puts a model package into the local bucket, as `dr model push` does on AWS.

>>> push_package(Path("model_artifacts/mobilenet-demo"), bucket=bucket, client=s3)
'models/mobilenet-demo/….tar.gz'
"""

import tempfile
from pathlib import Path
from typing import Any

import botocore.exceptions

from inference_image.model_package import pack_model
from inference_image.model_spec import load_model_spec

_ABSENT = {"404", "NoSuchKey", "NotFound"}


def push_package(package_dir: Path, *, bucket: str, client: Any) -> str:
    """Pack `package_dir` and put it under the key that carries its digest; returns the key.

    An object that is there already has the same content by construction and is left alone.

    Raises:
        ModelPackageError: `package_dir` is not a whole model package.
        botocore.exceptions.ClientError: the bucket does not exist or may not be written.
    """
    key = load_model_spec(package_dir).object_key
    if _exists(client, bucket, key):
        return key
    with tempfile.TemporaryDirectory(prefix="dr-push-") as folder:
        archive = Path(folder) / "model.tar.gz"
        pack_model(package_dir, archive)
        with archive.open("rb") as stream:
            client.put_object(Bucket=bucket, Key=key, Body=stream, ContentType="application/gzip")
    return key


def _exists(client: Any, bucket: str, key: str) -> bool:
    try:
        client.head_object(Bucket=bucket, Key=key)
    except botocore.exceptions.ClientError as error:
        # HEAD of a missing bucket answers 404 as well; the put that follows says so in words.
        if error.response["Error"]["Code"] in _ABSENT:
            return False
        raise
    return True
