"""Where a run takes place: here, over a stand-in for `ssh`, as a SageMaker job under moto."""

import io
import json
import os
import stat
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from dr_training.data.faults import DataError
from dr_training.study.plan import make_plan, specification
from dr_training.study.runners.bundle import bundle
from dr_training.study.runners.local import LocalRunner
from dr_training.study.runners.runner import runner_for
from dr_training.study.runners.sagemaker import SageMakerRunner
from dr_training.study.runners.ssh import SshRunner
from dr_training.study.sagemaker_job import main as run_job
from tests.unit.dr_training.study.study_texts import SMALL, result_of, study_of

# No framework is in the tests' environment: a run there is "unavailable", through all layers.
SETTINGS = {"command": "ssh", "python": sys.executable, "folder": "dr-study"}


@pytest.fixture
def spec(tmp_path: Path) -> dict[str, Any]:
    plan = make_plan(study_of(tmp_path))
    return specification(plan, plan.runs[0], data_dir=None)


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program `ssh` that runs the command in a folder of its own, as a login shell would."""
    programs, home = tmp_path / "bin", tmp_path / "home"
    programs.mkdir()
    home.mkdir()
    program = programs / "ssh"
    program.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/said\ncd {home}\n'
        'for last; do :; done\nexec sh -c "$last"\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return home


def test_a_run_here_brings_its_result(tmp_path: Path, spec: dict[str, Any]) -> None:
    result = LocalRunner({}).run(spec, tmp_path / "run")
    assert result["status"] == "unavailable"
    assert "ModuleNotFoundError" in result["reason"]
    assert (result["run"], result["scenario"]) == (spec["run"], spec["scenario"])
    assert result["life_s"] > 0
    assert (tmp_path / "run" / "monitor.csv").is_file()


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path, spec: dict[str, Any]) -> None:
    runner = LocalRunner({spec["parameters"]["framework"]: str(tmp_path / "no-python")})
    with pytest.raises(DataError, match=r"no-python.*make setup-study"):
        runner.run(spec, tmp_path / "run")


def test_an_interpreter_that_is_none_is_a_failed_run(tmp_path: Path, spec: dict[str, Any]) -> None:
    result = LocalRunner({spec["parameters"]["framework"]: "/bin/false"}).run(spec, tmp_path / "r")
    assert result["status"] == "error"
    assert "exit code 1" in result["reason"]


def test_a_run_over_ssh(tmp_path: Path, ssh: Path, spec: dict[str, Any]) -> None:
    out = tmp_path / "run"
    result = SshRunner(host="trainer", settings=SETTINGS).run(spec, out)
    assert result["status"] == "unavailable"
    assert result["runner_s"] >= result["life_s"]
    assert (out / "monitor.csv").read_text().startswith("time_s,")
    said = (tmp_path / "said").read_text()
    assert said.startswith("-o\nBatchMode=yes\ntrainer\n")
    # Nothing stays on the machine.
    assert list((ssh / "dr-study").iterdir()) == []


def test_a_machine_that_cannot_be_reached_or_sends_nothing(
    tmp_path: Path, ssh: Path, spec: dict[str, Any]
) -> None:
    program = tmp_path / "bin" / "ssh"
    program.write_text("#!/bin/sh\necho 'Connection refused' >&2\nexit 255\n")
    with pytest.raises(DataError, match="trainer cannot be reached over ssh: Connection refused"):
        SshRunner(host="trainer", settings=SETTINGS).run(spec, tmp_path / "a")
    program.write_text("#!/bin/sh\necho 'disk full' >&2\nexit 1\n")
    result = SshRunner(host="trainer", settings=SETTINGS).run(spec, tmp_path / "b")
    assert result["status"] == "error"
    assert "disk full" in result["reason"]
    assert ssh.is_dir()


def test_no_host_becomes_an_option_and_no_setting_a_command(
    tmp_path: Path, ssh: Path, spec: dict[str, Any]
) -> None:
    with pytest.raises(DataError, match="begins with a dash"):
        SshRunner(host="-oProxyCommand=touch x", settings=SETTINGS)
    with pytest.raises(DataError, match="there is no program 'no-such-ssh'"):
        SshRunner(host="h", settings={**SETTINGS, "command": "no-such-ssh"}).run(spec, tmp_path)
    spec["study"] = "$(touch owned) `touch owned` '; touch owned; '"
    folder = "dr study; touch owned"
    SshRunner(host="h", settings={**SETTINGS, "folder": folder}).run(spec, tmp_path / "run")
    assert [path.name for path in ssh.iterdir()] == [folder]


def test_the_bundle_is_all_that_a_run_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    made = bundle()
    with tarfile.open(fileobj=io.BytesIO(made)) as archive:
        names = archive.getnames()
    assert "dr_training/study/supervise.py" in names
    assert "dr_training/study/worker/__main__.py" in names
    monkeypatch.setattr(time, "time", lambda: 2e9)
    assert bundle() == made


@pytest.fixture(scope="module")
def aws() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.delenv("AWS_ENDPOINT_URL", raising=False)
        with mock_aws():
            session = boto3.Session(region_name="us-east-1")
            session.client("s3").create_bucket(Bucket="studies")
            yield session


SAGEMAKER = {
    "role": "arn:aws:iam::123456789012:role/training",
    "bucket": "studies",
    "images": {"PyTorch": "image-of-pytorch", "TensorFlow": "image-of-tensorflow"},
    "region": "us-east-1",
    "volume_gb": 30,
    "spot": 0,
}


def test_a_sagemaker_job_is_asked_for_and_its_result_read(
    tmp_path: Path, aws: Any, spec: dict[str, Any]
) -> None:
    runner = SageMakerRunner(instance_type="ml.m5.xlarge", settings=SAGEMAKER, session=aws)
    request = runner.request(spec)
    assert request["ResourceConfig"]["InstanceType"] == "ml.m5.xlarge"
    assert "".join(
        request["HyperParameters"][key] for key in sorted(request["HyperParameters"])
    ) == json.dumps(spec, separators=(",", ":"))
    assert all(len(value) <= 2500 for value in request["HyperParameters"].values())
    # moto ends a job at once and makes no output: that is a run without a result.
    result = runner.run(spec, tmp_path / "none")
    assert result["status"] == "error"
    assert "left no result at s3://studies/" in result["reason"]
    code = aws.client("s3").list_objects_v2(Bucket="studies", Prefix="dr-study/code/")
    assert code["KeyCount"] == 1


@pytest.mark.parametrize(
    ("job", "status", "billable"),
    [
        ({"TrainingJobStatus": "Completed", "BillableTimeInSeconds": 77}, "ok", 77),
        (
            {"TrainingJobStatus": "Failed", "FailureReason": "OutOfMemoryError: exit code 137"},
            "memory",
            None,
        ),
        ({"TrainingJobStatus": "Failed", "FailureReason": "CapacityError: none"}, "error", None),
        ({"TrainingJobStatus": "Stopped", "SecondaryStatus": "MaxRuntimeExceeded"}, "time", None),
        ({"TrainingJobStatus": "Stopped", "SecondaryStatus": "Stopped"}, "interrupted", None),
    ],
)
def test_how_a_job_can_end(
    tmp_path: Path,
    aws: Any,
    spec: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    job: dict[str, Any],
    status: str,
    billable: int | None,
) -> None:
    waits: list[float] = []
    runner = SageMakerRunner(
        instance_type="ml.m5.xlarge", settings=SAGEMAKER, session=aws, wait=waits.append
    )
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        content = json.dumps(result_of(spec)).encode()
        entry = tarfile.TarInfo("result.json")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    aws.client("s3").put_object(Bucket="studies", Key="o/model.tar.gz", Body=stream.getvalue())
    uri = {"S3ModelArtifacts": "s3://studies/o/model.tar.gz"}
    answers = [{"TrainingJobStatus": "InProgress"}, {**job, "ModelArtifacts": uri}]
    monkeypatch.setattr(
        runner._sagemaker,
        "describe_training_job",
        lambda TrainingJobName: {"TrainingJobName": TrainingJobName, **answers.pop(0)},  # noqa: N803
    )
    result = runner.run(spec, tmp_path / "run")
    assert (result["status"], result.get("billable_s")) == (status, billable)
    assert len(waits) == 1


def test_an_interrupted_job_is_stopped_since_it_would_be_billed(
    tmp_path: Path, aws: Any, spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = SageMakerRunner(instance_type="ml.m5.xlarge", settings=SAGEMAKER, session=aws)
    stopped: list[str] = []

    def interrupt(**_: str) -> None:
        raise KeyboardInterrupt

    def stop(**job: str) -> None:
        stopped.append(job["TrainingJobName"])

    monkeypatch.setattr(runner._sagemaker, "describe_training_job", interrupt)
    monkeypatch.setattr(runner._sagemaker, "stop_training_job", stop)
    with pytest.raises(KeyboardInterrupt):
        runner.run(spec, tmp_path)
    assert len(stopped) == 1


def test_what_a_job_cannot_have_is_said(tmp_path: Path, aws: Any, spec: dict[str, Any]) -> None:
    runner = SageMakerRunner(instance_type="ml.m5.xlarge", settings=SAGEMAKER, session=aws)
    with pytest.raises(DataError, match="cannot read --data-dir"):
        runner.run({**spec, "data_dir": "/data"}, tmp_path)
    spec["parameters"]["framework"] = "MXNet"
    with pytest.raises(DataError, match="names no image for 'MXNet'"):
        runner.request(spec)


def test_a_job_runs_its_specification(tmp_path: Path, aws: Any, spec: dict[str, Any]) -> None:
    runner = SageMakerRunner(instance_type="ml.m5.xlarge", settings=SAGEMAKER, session=aws)
    config = tmp_path / "input" / "config"
    config.mkdir(parents=True)
    request = runner.request(spec)
    (config / "hyperparameters.json").write_text(json.dumps(request["HyperParameters"]))
    assert run_job(tmp_path) == 0
    result = json.loads((tmp_path / "model" / "result.json").read_text())
    assert (result["run"], result["status"]) == (spec["run"], "unavailable")


def test_each_environment_has_its_runner(tmp_path: Path, aws: Any) -> None:
    where = 'threads = 1\nrunner = "ssh"\nwhere = "h"'
    text = SMALL.replace("threads = 1", where) + '\n[ssh]\npython = "python3"\n'
    study = study_of(tmp_path, text)
    assert isinstance(runner_for(study, study.environments[0]), SshRunner)
    images = '[sagemaker.images]\nPyTorch = "a"\nTensorFlow = "b"\n'
    table = f'\n[sagemaker]\nrole = "r"\nbucket = "b"\nregion = "us-east-1"\n{images}'
    where = 'threads = 1\nrunner = "sagemaker"\nwhere = "ml.m5.xlarge"'
    study = study_of(tmp_path, SMALL.replace("threads = 1", where) + table)
    runner = runner_for(study, study.environments[0], session=aws)
    assert isinstance(runner, SageMakerRunner)
    study = study_of(tmp_path)
    assert isinstance(runner_for(study, study.environments[0]), LocalRunner)
