"""Nothing of the local AWS talks to another machine."""

import pytest

from dr_local.clients import client, require_loopback
from dr_local.deployments import Deployments
from dr_local.errors import LocalAwsError


@pytest.mark.parametrize(
    "url", ["http://localhost:4566", "http://127.0.0.1:1", "http://127.9.9.9", "http://[::1]:8080"]
)
def test_loopback_addresses_are_accepted(url: str):
    assert require_loopback(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "https://sagemaker.us-east-1.amazonaws.com",
        "http://192.0.2.7:4566",
        "http://0.0.0.0:4566",
        "http://localhost.example.com",
        "http://127.0.0.1.example.com",
        "http://user@192.0.2.7",
        "localhost:4566",
        "",
    ],
)
def test_every_other_address_is_refused(url: str):
    with pytest.raises(LocalAwsError, match="this machine only"):
        require_loopback(url)
    with pytest.raises(LocalAwsError):
        client("s3", url=url)
    with pytest.raises(LocalAwsError):
        Deployments(control_plane_url=url)


def test_a_profile_that_does_not_exist_is_no_obstacle(monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "somebody")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere/config")
    made = client("s3", url="http://localhost:1")
    assert made.meta.endpoint_url == "http://localhost:1"
    made.close()
