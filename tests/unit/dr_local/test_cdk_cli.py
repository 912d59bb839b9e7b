"""The wrapper around `cdk`, with a command in its place that shows what it was given."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dr_local import cdk_cli
from dr_local.errors import LocalAwsError
from dr_local.lifecycle import LocalAws
from dr_local.process_tree import ProcessIdentity


@pytest.fixture
def local(tmp_path: Path) -> LocalAws:
    state_dir = tmp_path / "state"
    (state_dir / "tmp").mkdir(parents=True)
    nobody = ProcessIdentity(pid=0, start_ticks=0)
    return LocalAws(
        state_dir=state_dir,
        instance="x",
        control_plane_port=4566,
        runtime_port=4567,
        control_plane=nobody,
        runtime=nobody,
    )


@pytest.fixture
def app(tmp_path: Path):
    """Makes an app folder whose `cdk` is the given Python code."""

    def make(code: str) -> Path:
        folder = tmp_path / "app"
        command = folder / "node_modules" / ".bin" / "cdk"
        command.parent.mkdir(parents=True)
        command.write_text(f"#!{sys.executable}\nimport json, os, sys, time\n{code}\n")
        command.chmod(0o755)
        (folder / "cdk.json").write_text("{}")
        return folder

    return make


SHOW = (
    "print(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]))\n"
    "where = sys.argv[sys.argv.index('--outputs-file') + 1] if 'deploy' in sys.argv else ''\n"
    "if where: open(where, 'w').write(json.dumps({'dr-shared': {'Name': 'value'}}))"
)


def shown(result: cdk_cli.CdkResult) -> tuple[list[str], str, dict[str, str]]:
    arguments, folder, environment = json.loads(result.log_file.read_text())
    return arguments, folder, environment


def test_deploy_passes_context_and_reads_outputs(local: LocalAws, app):
    result = cdk_cli.deploy(
        local, ["dr-shared", "dr-two"], context={"local": "true"}, app_dir=app(SHOW)
    )
    arguments, folder, _ = shown(result)
    assert arguments[:5] == ["deploy", "dr-shared", "dr-two", "-c", "local=true"]
    assert "--method" in arguments
    assert arguments[arguments.index("--method") + 1] == "direct"
    assert folder.endswith("/app")
    assert result.outputs == {"dr-shared": {"Name": "value"}}
    assert not list((local.state_dir / "tmp").iterdir())


def test_bootstrap_does_not_synthesize_the_app(local: LocalAws, app):
    arguments, folder, _ = shown(cdk_cli.bootstrap(local, app_dir=app(SHOW)))
    assert arguments[:2] == ["bootstrap", "aws://123456789012/us-east-1"]
    assert folder == str(local.state_dir / "home")


def test_the_command_sees_the_local_aws_and_nothing_of_the_person(
    local: LocalAws, app, monkeypatch
):
    monkeypatch.setenv("AWS_PROFILE", "hospital")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://s3.example.com")
    monkeypatch.setenv("https_proxy", "http://192.0.2.1:1")
    _, _, environment = shown(cdk_cli.destroy(local, ["dr-shared"], app_dir=app(SHOW)))
    assert environment["AWS_ENDPOINT_URL"] == "http://localhost:4566"
    assert environment["AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME"] == "http://localhost:4567"
    assert not {"AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "https_proxy"} & set(
        environment
    )
    assert environment["AWS_CONFIG_FILE"].startswith(str(local.state_dir))
    assert environment["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)


def test_progress_has_each_line_without_colours(local: LocalAws, app):
    lines: list[str] = []
    folder = app("print('\\x1b[32mone\\x1b[0m'); print(); print('two')")
    cdk_cli.destroy(local, ["dr"], app_dir=folder, progress=lines.append)
    assert lines == ["one", "two"]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("print('fine'); print('❌ dr failed: no bucket'); print('at x.js'); sys.exit(1)", "no bu"),
        ("print('app.py: stage must be short'); print('Subprocess exited with error 1'); 1/0", "e"),
        (
            "print('app.py: bad'); print('x: Subprocess exited with error 1'); sys.exit(1)",
            "py: bad",
        ),
        ("sys.exit(2)", "it wrote nothing"),
    ],
)
def test_a_failure_is_one_sentence_with_the_log(local: LocalAws, app, code: str, said: str):
    with pytest.raises(LocalAwsError) as caught:
        cdk_cli.deploy(local, ["dr"], app_dir=app(code))
    message = str(caught.value)
    assert message.startswith("cdk deploy dr failed: ")
    assert said in message
    assert str(local.logs_dir / "cdk-deploy-dr.log") in message
    assert "\n" not in message


def test_what_is_missing_is_named(local: LocalAws, app, tmp_path: Path):
    with pytest.raises(LocalAwsError, match=r"no cdk\.json in"):
        cdk_cli.deploy(local, ["dr"], app_dir=tmp_path)
    folder = app("")
    (folder / "node_modules" / ".bin" / "cdk").unlink()
    with pytest.raises(LocalAwsError, match="npm ci"):
        cdk_cli.deploy(local, ["dr"], app_dir=folder)


def test_too_slow_is_ended(local: LocalAws, app):
    begin = time.monotonic()
    with pytest.raises(LocalAwsError, match=r"did not finish within 0\.5 s"):
        cdk_cli.run_cdk(
            local, ["synth"], name="synth", app_dir=app("time.sleep(60)"), timeout_s=0.5
        )
    assert time.monotonic() - begin < 10


def test_an_interrupt_ends_the_command_and_what_it_started(local: LocalAws, app):
    code = (
        "import subprocess\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    pids: list[int] = []

    def interrupt(line: str) -> None:
        pids.append(int(line))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cdk_cli.deploy(local, ["dr"], app_dir=app(code), progress=interrupt)
    deadline = time.monotonic() + 5
    while _runs(pids[0]):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


def _runs(pid: int) -> bool:
    state = subprocess.run(
        ["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.strip()
    return bool(state) and not state.startswith("Z")
