"""A local AWS for the session, and endpoints deployed to it through CloudFormation."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dr_local.lifecycle import LocalAws, running
from dr_local.publish import push_package
from tests.integration.local_aws.endpoints import (
    BUCKET,
    FAKE_SERVE,
    NAMES,
    Deploy,
    Endpoint,
    answers,
    make_package,
    serverless,
    template,
    wait_until,
)


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAws]:
    """Servers of this session, with containers that do what they are told."""
    state_dir = tmp_path_factory.mktemp("local-aws")
    with running(
        state_dir=state_dir,
        serve_command=FAKE_SERVE,
    ) as started:
        started.client("s3").create_bucket(Bucket=BUCKET)
        yield started


@pytest.fixture(scope="session")
def local_clients(local: LocalAws) -> tuple[Any, Any]:
    """CloudFormation and S3, made once: a client costs a tenth of a second."""
    return local.client("cloudformation"), local.client("s3")


@pytest.fixture
def package(tmp_path: Path) -> Callable[..., Path]:
    """Makes a small model package; another `text` gives another digest."""
    return lambda text="one": make_package(tmp_path / f"package-{text}", text)


@pytest.fixture
def deploy(
    local: LocalAws, local_clients: tuple[Any, Any], package: Callable[..., Path]
) -> Iterator[Deploy]:
    """Deploys an endpoint (again, when `name` is given); removed at the end of the test."""
    stacks: set[str] = set()
    cloudformation, s3 = local_clients

    def deploy_endpoint(
        *,
        name: str | None = None,
        variant: dict[str, Any] | None = None,
        model_dir: Path | None = None,
        model_data_url: str | None = None,
        environment: dict[str, str] | None = None,
        suffix: str = "",
        runtime_url: str | None = None,
    ) -> Endpoint:
        name = name or f"dr-test-{next(NAMES)}"
        if model_data_url is None:
            key = push_package(
                model_dir or package(f"of-{name}-{time.monotonic_ns()}"),
                bucket=BUCKET,
                client=s3,
            )
            model_data_url = f"s3://{BUCKET}/{key}"
        body = template(
            name=name,
            model_data_url=model_data_url,
            variant=variant or serverless(),
            environment=environment,
            suffix=suffix,
        )
        call = cloudformation.update_stack if name in stacks else cloudformation.create_stack
        call(StackName=name, TemplateBody=body)
        stacks.add(name)
        return Endpoint(name=name, local=local, runtime_url=runtime_url or local.runtime_url)

    yield deploy_endpoint
    for stack in stacks:
        cloudformation.delete_stack(StackName=stack)


@pytest.fixture
def another_runtime(local: LocalAws, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts a second runtime server on the same control plane, with other settings."""
    from dr_local.containers import free_port

    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> tuple[str, subprocess.Popen[bytes], Path]:
        port = free_port()
        state_dir = tmp_path / f"runtime-{port}"
        state_dir.mkdir()
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "dr_local.runtime_server"),
                *("--port", str(port), "--control-plane", local.endpoint_url),
                *("--state-dir", str(state_dir), "--instance", f"t{port}"),
                *("--change-log", str(local.state_dir / "changes")),
                *("--serve-command", json.dumps(FAKE_SERVE)),
                *arguments,
            ],
            cwd=Path(__file__).parents[3],
        )
        started.append(process)
        wait_until(lambda: answers(port), seconds=20)
        return f"http://localhost:{port}", process, state_dir

    yield start
    for process in started:
        process.terminate()
        process.wait(10)
