"""Reads one object from Amazon S3, with the standard library alone.

    >>> location = S3Location(bucket="models", key="models/mobilenet-demo/….tar.gz")
    >>> download(location, Path("/tmp/model.tar.gz"), environment=os.environ)

The container needs S3 for one GET when it starts, and boto3 would cost it more than half of its
own size and start-up time (docs/decisions). The request is signed as in
https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html; a test compares
the signature with botocore's.
"""

import errno
import hashlib
import hmac
import http.client
import shutil
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_EMPTY_SHA256: Final = hashlib.sha256(b"").hexdigest()
_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_ATTEMPTS: Final = 4
_FIRST_WAIT_S: Final = 0.1
_TIMEOUT_S: Final = 10.0
_BLOCK_BYTES: Final = 1024 * 1024
_DISK_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
_REGION_HEADER: Final = "x-amz-bucket-region"


class S3Error(Exception):
    """The object cannot be read. Its text is one sentence for a person."""


class _PassingError(Exception):
    """A failure that another attempt may not meet."""


@dataclass(frozen=True, kw_only=True)
class S3Location:
    """A bucket and a key in it."""

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """What signs a request; `token` belongs to the temporary ones of a role."""

    access_key: str
    secret_key: str
    token: str | None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Credentials":
        """The variables that Lambda sets for the function's role.

        Raises:
            S3Error: they are not set.
        """
        access_key = environment.get("AWS_ACCESS_KEY_ID")
        secret_key = environment.get("AWS_SECRET_ACCESS_KEY")
        if not access_key or not secret_key:
            raise S3Error(
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set; Lambda sets them for "
                "the function's role"
            )
        return cls(
            access_key=access_key,
            secret_key=secret_key,
            token=environment.get("AWS_SESSION_TOKEN") or None,
        )


def download(
    location: S3Location,
    target: Path,
    *,
    environment: Mapping[str, str],
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Write the object to `target`; returns its size in bytes.

    Reads the credentials, `AWS_REGION` and, for a local AWS, `AWS_ENDPOINT_URL_S3` or
    `AWS_ENDPOINT_URL` from `environment`. Failures of the network and of the service are tried
    again, `_ATTEMPTS` times in all; a bucket of another region is followed there.

    Raises:
        S3Error: naming what to change.
    """
    credentials = Credentials.from_environment(environment)
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    if not region:
        raise S3Error("AWS_REGION is not set; Lambda sets it to the function's region")
    endpoint = next((environment[name] for name in ENDPOINT_VARIABLES if environment.get(name)), "")
    for attempt in range(_ATTEMPTS):
        try:
            size = _get(location, target, credentials, region, endpoint)
        except _PassingError as failure:
            if attempt + 1 == _ATTEMPTS:
                raise S3Error(f"{location} cannot be read ({failure})") from None
            sleep(_FIRST_WAIT_S * 2**attempt)
            continue
        if isinstance(size, str):
            region = size
            continue
        return size
    raise S3Error(f"{location} is in no region that could be found; the last was {region}")


def _get(
    location: S3Location, target: Path, credentials: Credentials, region: str, endpoint: str
) -> int | str:
    """The number of bytes written, or the region in which the bucket is."""
    address = urlsplit(object_url(location, region=region, endpoint=endpoint))
    headers = sign(
        credentials, host=address.netloc, path=address.path, region=region, now=datetime.now(UTC)
    )
    secure = address.scheme == "https"
    connect = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = connect(address.netloc, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", address.path, headers=headers)
        with connection.getresponse() as response:
            other_region = response.getheader(_REGION_HEADER)
            if response.status in (301, 307, 400) and other_region not in (None, region):
                return str(other_region)
            _check_status(response, location)
            return _store(response, target)
    except ssl.SSLCertVerificationError as error:
        raise S3Error(
            f"the certificate of {address.netloc} cannot be verified ({error.verify_message}); "
            "the image needs the package ca-certificates"
        ) from None
    except (http.client.HTTPException, TimeoutError, ConnectionError, ssl.SSLError) as error:
        raise _PassingError(f"{type(error).__name__}: {error}") from None
    except OSError as error:
        if error.errno in _DISK_ERRORS:
            raise S3Error(f"{target} cannot be written ({error.strerror})") from None
        raise _PassingError(error.strerror or str(error)) from None
    finally:
        connection.close()


def _check_status(response: http.client.HTTPResponse, location: S3Location) -> None:
    status = response.status
    if status == 200:
        return
    if status >= 500 or status == 429:
        raise _PassingError(f"HTTP {status}")
    if status == 403:
        raise S3Error(
            f"access to {location} is denied: the function's role needs s3:GetObject on it, and "
            "kms:Decrypt where the bucket is encrypted with a key; without s3:ListBucket an "
            "object that does not exist is denied, too"
        )
    if status == 404:
        raise S3Error(f"there is no {location}; publish the package with `dr model push`")
    raise S3Error(f"{location} cannot be read (HTTP {status})")


def _store(response: http.client.HTTPResponse, target: Path) -> int:
    expected = response.length
    if expected is None:
        raise _PassingError("the answer does not say how long it is")
    free = shutil.disk_usage(target.parent).free
    if expected > free:
        raise S3Error(
            f"the object has {expected} bytes and {target.parent} has {free} left; give the "
            "function more ephemeral storage"
        )
    written = 0
    with target.open("wb") as out:
        while block := response.read(_BLOCK_BYTES):
            out.write(block)
            written += len(block)
    if written != expected:
        raise _PassingError(f"{written} of {expected} bytes arrived")
    return written


def object_url(location: S3Location, *, region: str, endpoint: str = "") -> str:
    """Address of an object: by the bucket's host name, or by path at a given endpoint."""
    key = quote(location.key, safe="/~")
    if endpoint:
        return f"{endpoint.rstrip('/')}/{location.bucket}/{key}"
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    if "." in location.bucket:
        # The certificate covers one label only.
        return f"https://s3.{region}.{suffix}/{location.bucket}/{key}"
    return f"https://{location.bucket}.s3.{region}.{suffix}/{key}"


def sign(
    credentials: Credentials, *, host: str, path: str, region: str, now: datetime
) -> dict[str, str]:
    """Headers of a signed GET without query (Signature Version 4).

    Args:
        credentials: of the caller.
        host: host name with the port, where it is not the scheme's own.
        path: already percent-encoded.
        region: of the bucket.
        now: UTC; the service refuses a clock that is 15 minutes off.
    """
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    signed = {"host": host, "x-amz-content-sha256": _EMPTY_SHA256, "x-amz-date": stamp}
    if credentials.token:
        signed["x-amz-security-token"] = credentials.token
    names = ";".join(sorted(signed))
    lines = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
    canonical = f"GET\n{path}\n\n{lines}\n{names}\n{_EMPTY_SHA256}"
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    key = f"AWS4{credentials.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    text = f"{_ALGORITHM}\n{stamp}\n{scope}\n{digest}"
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    signed["authorization"] = (
        f"{_ALGORITHM} Credential={credentials.access_key}/{scope}, "
        f"SignedHeaders={names}, Signature={signature}"
    )
    return signed
