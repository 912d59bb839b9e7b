"""Metrics by the minute and log lines, as AWS's client returns them; late ones are waited for."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import repeat
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from dr_cli import cloudwatch as command
from dr_cli.errors import CommandError
from dr_experiments.client import Client
from dr_experiments.cloudwatch import MODEL_LATENCY, fetch_minutes, fetch_ready_lines
from dr_experiments.image_digest import resolve_digest
from dr_experiments.records import RequestRecord, RunContext, records_of, write_jsonl
from dr_experiments.scenarios import realtime
from tests.unit.dr_experiments.fakes import PAYLOAD, FakeClock, FakeTarget

REGION = "us-east-1"
ENDPOINT = "dr-serverless-mobilenet-2048"
MINUTE = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(hours=1)


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "nobody")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    with mock_aws():
        yield


@pytest.fixture
def records() -> list[RequestRecord]:
    """Two requests in one minute and one in the next."""
    clock = FakeClock()
    client = Client(FakeTarget(clock, repeat(0.1)), clock=clock, sleep=clock.sleep)
    result = realtime(client, PAYLOAD, requests=3, interval_s=0)
    made = records_of(result, context=RunContext(run_id="r", git_commit=None))
    moments = [MINUTE + timedelta(seconds=seconds) for seconds in (1, 59, 61)]
    return [
        replace(record, started_at=moment.isoformat())
        for record, moment in zip(made, moments, strict=True)
    ]


def put(
    client: Any, name: str, seconds: float, *values_us: float, endpoint: str = ENDPOINT
) -> None:
    dimensions = [
        {"Name": "EndpointName", "Value": endpoint},
        {"Name": "VariantName", "Value": "AllTraffic"},
    ]
    client.put_metric_data(
        Namespace="AWS/SageMaker",
        MetricData=[
            {
                "MetricName": name,
                "Dimensions": dimensions,
                "Timestamp": MINUTE + timedelta(seconds=seconds),
                "Value": value,
                "Unit": "Microseconds",
            }
            for value in values_us
        ],
    )


def test_metrics_are_joined_by_the_minute_and_never_by_the_request(
    records: list[RequestRecord],
) -> None:
    client = boto3.client("cloudwatch", region_name=REGION)
    put(client, "ModelLatency", 5, 20_000, 40_000)
    # Somebody else's request is in the second minute.
    put(client, "ModelLatency", 65, 30_000, 90_000)
    put(client, "ModelSetupTime", 5, 4_000_000)
    put(client, "ModelLatency", 5, 7, endpoint="another")
    fetched = fetch_minutes(records, client=client, sleep=no_sleep)
    assert (fetched.wanted, fetched.found, fetched.complete) == (3, 4, True)
    latency = [m for m in fetched.minutes if m.metric == MODEL_LATENCY]
    assert [(m.samples, m.mean_us, m.least_us, m.most_us, m.ours) for m in latency] == [
        (2, 30_000, 20_000, 40_000, 2),
        (2, 60_000, 30_000, 90_000, 1),
    ]
    assert [m.ours_alone for m in latency] == [True, False]
    assert [m.begin for m in latency] == [MINUTE, MINUTE + timedelta(minutes=1)]
    (setup,) = (m for m in fetched.minutes if m.metric == "ModelSetupTime")
    assert (setup.samples, setup.mean_us) == (1, 4_000_000)
    assert setup.document()["begin"] == MINUTE.isoformat()


def no_sleep(_seconds: float) -> None:
    raise AssertionError("there was nothing to wait for")


def test_what_comes_late_is_waited_for(records: list[RequestRecord]) -> None:
    client = boto3.client("cloudwatch", region_name=REGION)
    put(client, "ModelLatency", 5, 20_000, 40_000)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            put(client, "ModelLatency", 65, 30_000)

    fetched = fetch_minutes(records, client=client, sleep=sleep)
    assert fetched.complete
    assert len(slept) == 3


def test_what_never_comes_is_said_to_be_missing(records: list[RequestRecord]) -> None:
    client = boto3.client("cloudwatch", region_name=REGION)
    slept: list[float] = []
    fetched = fetch_minutes(records, client=client, wait_s=60, sleep=slept.append)
    assert sum(slept) == 60
    assert (fetched.found, fetched.complete, fetched.minutes) == (0, False, ())
    with pytest.raises(ValueError, match="no answered request of a SageMaker endpoint"):
        fetch_minutes([replace(r, endpoint=None) for r in records], client=client)


def test_the_command_writes_minutes_and_says_what_they_are(
    records: list[RequestRecord],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    client = boto3.client("cloudwatch", region_name=REGION)
    put(client, "ModelLatency", 5, 20_000, 40_000)
    put(client, "ModelLatency", 65, 30_000)
    with pytest.raises(CommandError, match=r"holds no requests\.jsonl"):
        command.bench_cloudwatch(tmp_path, region=None, wait_s=0)
    write_jsonl(tmp_path / "requests.jsonl", records)
    command.bench_cloudwatch(tmp_path, region=None, wait_s=0)
    lines = (tmp_path / "cloudwatch.jsonl").read_text().splitlines()
    assert [json.loads(line)["ours_alone"] for line in lines] == [True, True]
    said = capsys.readouterr().out
    assert "3 samples for 3 answered requests" in said
    assert "30.0" in said
    later = [replace(record, index=record.index + len(records)) for record in records]
    write_jsonl(tmp_path / "requests.jsonl", [*records, *later])
    command.bench_cloudwatch(tmp_path, region=None, wait_s=0)
    assert "3 of 6 answered requests have a sample so far" in capsys.readouterr().out


READY = {
    "event": "ready",
    "start_id": "abc",
    "imports_ms": 150.0,
    "model_load_ms": 60.0,
    "warm_up_ms": 20.0,
    "started_to_ready_ms": 400.0,
}


def test_ready_lines_of_aws_logs_are_found_by_start_id() -> None:
    client = boto3.client("logs", region_name=REGION)
    group = f"/aws/sagemaker/Endpoints/{ENDPOINT}"
    slept: list[float] = []

    def late(seconds: float) -> None:
        """Group, stream and lines appear one after the other."""
        slept.append(seconds)
        steps: dict[int, Callable[[], Any]] = {
            1: lambda: client.create_log_group(logGroupName=group),
            2: lambda: client.create_log_stream(logGroupName=group, logStreamName="s"),
            3: lambda: put_lines(client, group),
        }
        steps[len(slept)]()

    found = fetch_ready_lines(
        ENDPOINT, {"abc"}, since=MINUTE, client=client, wait_s=600, sleep=late
    )
    assert len(slept) == 3
    assert found["abc"].model_load_ms == 60
    # A line that never comes is missing, and everything else is returned.
    missing = fetch_ready_lines(
        ENDPOINT, {"abc", "def"}, since=MINUTE, client=client, wait_s=0, sleep=no_sleep
    )
    assert set(missing) == {"abc"}
    after = fetch_ready_lines(
        ENDPOINT,
        {"abc"},
        since=datetime.now(UTC) + timedelta(hours=1),
        client=client,
        wait_s=0,
    )
    assert after == {}


def put_lines(client: Any, group: str) -> None:
    moment = int(datetime.now(UTC).timestamp() * 1000)
    lines = ['{"event": "started"}', "not JSON, and not ready", json.dumps(READY)]
    client.put_log_events(
        logGroupName=group,
        logStreamName="s",
        logEvents=[{"timestamp": moment, "message": line} for line in lines],
    )


def test_the_digest_of_an_image_is_its_own_or_what_the_registry_has_for_its_tag() -> None:
    client = boto3.client("ecr", region_name=REGION)
    registry = "123456789012.dkr.ecr.us-east-1.amazonaws.com"
    digest = "sha256:" + "ab" * 32
    assert resolve_digest(f"{registry}/dr@{digest}", client=None) == digest
    assert resolve_digest(None, client=None) is None
    assert resolve_digest("localhost/dr:1", client=None) is None
    assert resolve_digest(f"{registry}/dr:1", client=client) is None
    client.create_repository(repositoryName="dr")
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
            "config": {"digest": "sha256:" + "cd" * 32, "size": 2, "mediaType": "x"},
            "layers": [],
        }
    )
    image = client.put_image(repositoryName="dr", imageManifest=manifest, imageTag="1")["image"]
    found = resolve_digest(f"{registry}/dr:1", client=client)
    assert found == image["imageId"]["imageDigest"]
    assert resolve_digest(f"{registry}/dr:2", client=client) is None
