"""boto3 clients that cannot leave this machine."""

import ipaddress
import os
from typing import Any
from urllib.parse import urlsplit

import boto3
import botocore.config
import botocore.session

from dr_local.errors import LocalAwsError

REGION = "us-east-1"
# moto takes any keys; these are nobody's.
ACCESS_KEY = "local"
SECRET_KEY = "local"  # noqa: S105
# A profile or a configuration file of the person plays no part, and cannot be in the way.
_NOBODY: dict[str, Any] = {
    "profile": (None, [], None, None),
    "config_file": (None, [], os.devnull, None),
    "credentials_file": (None, [], os.devnull, None),
}


def require_loopback(url: str) -> str:
    """`url` when its host is this machine's loopback interface.

    Raises:
        LocalAwsError: it is not; the local AWS never talks to another machine.
    """
    host = urlsplit(url).hostname or ""
    try:
        local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local:
        raise LocalAwsError(
            f"the local AWS talks to this machine only, and {url!r} is not an address of it; "
            "use http://localhost:PORT"
        )
    return url


def client(service: str, *, url: str, read_timeout_s: float = 30.0) -> Any:
    """A boto3 client for `service` at the loopback address `url`, with nobody's keys.

    Raises:
        LocalAwsError: `url` is not on the loopback interface.
    """
    session = boto3.session.Session(
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name=REGION,
        botocore_session=botocore.session.Session(session_vars=_NOBODY),
    )
    return session.client(
        service,
        endpoint_url=require_loopback(url),
        config=botocore.config.Config(
            # A proxy of the machine must not see loopback traffic.
            proxies={},
            read_timeout=read_timeout_s,
            connect_timeout=5,
            retries={"max_attempts": 2, "mode": "standard"},
            s3={"addressing_style": "path"},
        ),
    )
