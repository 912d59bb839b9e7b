"""Finds the model of a Lambda function: in the image, else in S3.

    >>> find_model(model_dir=Path("/opt/ml/model"), model_url=None, environment=os.environ)
    FoundModel(folder=PosixPath('/opt/ml/model'), source='image')

SageMaker unpacks the model before it starts the container; Lambda does not. A package from S3
is unpacked below the temporary folder, the only place that can be written, and named by its
digest: the digest in its key must be the digest of what was unpacked.
"""

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inference_image.contract import ENV_MODEL_DIR, ENV_MODEL_URL
from inference_image.model_package import unpack_model
from inference_image.model_spec import MODEL_JSON, ModelPackageError, load_model_spec
from inference_image.s3 import S3Error, S3Location, download

SOURCE_IMAGE: Final = "image"
SOURCE_S3: Final = "s3"
SOURCE_CACHE: Final = "cache"
_URL = re.compile(
    r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]+)/(?P<key>(?:.+/)?(?P<sha>[0-9a-f]{64})\.tar\.gz)"
)
_CACHE_FOLDER: Final = "dr-model"
_SCRATCH: Final = "unpacking-"


@dataclass(frozen=True, kw_only=True)
class FoundModel:
    """A folder with an unpacked package, and where it came from."""

    folder: Path
    source: str


@dataclass(frozen=True, kw_only=True)
class ModelUrl:
    """`s3://BUCKET/models/ID/SHA256.tar.gz`, taken apart."""

    location: S3Location
    sha256: str

    @classmethod
    def parse(cls, text: str) -> "ModelUrl":
        """Raises `ModelPackageError` for anything else."""
        match = _URL.fullmatch(text)
        if match is None:
            raise ModelPackageError(
                f"{ENV_MODEL_URL} must be s3://BUCKET/models/ID/SHA256.tar.gz, as `dr model push` "
                f"prints it; it is {text!r}"
            )
        location = S3Location(bucket=match["bucket"], key=match["key"])
        return cls(location=location, sha256=match["sha"])


def find_model(
    *,
    model_dir: Path,
    model_url: str | None,
    environment: Mapping[str, str],
    temporary_dir: Path | None = None,
) -> FoundModel:
    """The model in `model_dir`; where there is none, the one at `model_url`.

    Args:
        model_dir: the image's own, usually `/opt/ml/model`.
        model_url: see `ModelUrl`, or None.
        environment: credentials and region (see `s3.download`).
        temporary_dir: where to unpack; the system's temporary folder when omitted.

    Raises:
        ModelPackageError: there is no model, it cannot be read, or it is not the one named.
    """
    url = ModelUrl.parse(model_url) if model_url else None
    if _holds_something(model_dir):
        if url is not None:
            _check_digest(model_dir, url, f"the image's model in {model_dir}")
        return FoundModel(folder=model_dir, source=SOURCE_IMAGE)
    if url is None:
        raise ModelPackageError(
            f"there is no model: {model_dir} ({ENV_MODEL_DIR}) is empty and {ENV_MODEL_URL} is "
            "not set"
        )
    try:
        cache = (temporary_dir or Path(tempfile.gettempdir())) / _CACHE_FOLDER
        cache.mkdir(parents=True, exist_ok=True)
        with _alone_in(cache):
            return _from_cache_or_s3(url, cache, environment)
    except OSError as error:
        # Where no temporary folder can be written at all, the message lists those tried.
        raise ModelPackageError(
            f"there is no room for the model of {ENV_MODEL_URL} in the temporary folder "
            f"({error.strerror or error}); give the function more ephemeral storage"
        ) from None


def _holds_something(folder: Path) -> bool:
    try:
        return folder.is_dir() and any(folder.iterdir())
    except OSError as error:
        raise ModelPackageError(
            f"{folder} ({ENV_MODEL_DIR}) cannot be read ({error.strerror})"
        ) from None


@contextlib.contextmanager
def _alone_in(cache: Path) -> Iterator[None]:
    """Processes side by side wait for each other; the end of one, however it came, frees it."""
    held = os.open(cache, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _from_cache_or_s3(url: ModelUrl, cache: Path, environment: Mapping[str, str]) -> FoundModel:
    for left in cache.glob(f"{_SCRATCH}*"):
        # An init phase of more than 10 s is ended and begun again in the same environment: what
        # it had fetched would fill the folder, start by start.
        shutil.rmtree(left, ignore_errors=True)
    folder = cache / url.sha256
    if _is_named(folder, url):
        # Left by an earlier process of the same execution environment.
        return FoundModel(folder=folder, source=SOURCE_CACHE)
    shutil.rmtree(folder, ignore_errors=True)
    _fetch(url, folder, environment)
    return FoundModel(folder=folder, source=SOURCE_S3)


def _is_named(folder: Path, url: ModelUrl) -> bool:
    """Whether the folder's package is the one named; its files are checked when it is loaded."""
    try:
        return load_model_spec(folder).sha256 == url.sha256
    except ModelPackageError:
        return False


def _fetch(url: ModelUrl, folder: Path, environment: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory(
        dir=folder.parent, prefix=_SCRATCH, ignore_cleanup_errors=True
    ) as scratch:
        archive = Path(scratch) / url.location.key.rpartition("/")[2]
        try:
            download(url.location, archive, environment=environment)
        except S3Error as error:
            raise ModelPackageError(str(error)) from None
        unpacked = Path(scratch) / "package"
        unpack_model(archive, unpacked)
        archive.unlink()
        _check_digest(unpacked, url, str(url.location))
        unpacked.rename(folder)


def _check_digest(folder: Path, url: ModelUrl, what: str) -> None:
    found = load_model_spec(folder).sha256
    if found != url.sha256:
        raise ModelPackageError(
            f"{what} is the package {found[:12]}…, and {ENV_MODEL_URL} names {url.sha256[:12]}… "
            f"(the digest of {MODEL_JSON})"
        )
