"""Runs the real `cdk` command against a local AWS.

    >>> bootstrap(local)
    >>> result = deploy(local, ["dr-shared"], context={"local": "true"})
    >>> result.outputs["dr-shared"]["ModelBucketName"]
    'dr-shared-models…'

The pinned CLI of the app's `node_modules` is run with the Node of this Python environment first
on the path, in an environment that holds no key, profile or endpoint of the person who runs it.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dr_local.clients import REGION, require_loopback
from dr_local.deployments import account_id
from dr_local.errors import LocalAwsError
from dr_local.lifecycle import LocalAws, environment

Progress = Callable[[str], None]
DEFAULT_TIMEOUT_S = 600.0
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_FAILED = re.compile(r"(❌|\berror\b|\bfailed\b|Error:)", re.IGNORECASE)
_APP_ENDED = re.compile(r"Subprocess exited with error \d+")
_KEEP_LINES = 400
_STOP_GRACE_S = 5.0


@dataclass(frozen=True, kw_only=True)
class CdkResult:
    """A finished `cdk` command: `outputs[stack][name]` of a deployment, seconds, its log."""

    outputs: Mapping[str, Mapping[str, str]]
    seconds: float
    log_file: Path


def bootstrap(
    local: LocalAws, *, app_dir: Path | None = None, progress: Progress | None = None
) -> CdkResult:
    """`cdk bootstrap` of the local account: bucket, repository and roles that deployments use."""
    return run_cdk(
        local,
        ["bootstrap", f"aws://{account_id()}/{REGION}"],
        name="bootstrap",
        app_dir=app_dir,
        progress=progress,
        needs_app=False,
    )


def deploy(
    local: LocalAws,
    stack_ids: Sequence[str],
    *,
    context: Mapping[str, str] | None = None,
    app_dir: Path | None = None,
    progress: Progress | None = None,
) -> CdkResult:
    """`cdk deploy` of `stack_ids` with `-c key=value` of `context`; returns their outputs."""
    outputs_file = local.state_dir / "tmp" / f"outputs-{time.monotonic_ns()}.json"
    result = run_cdk(
        local,
        [
            *("deploy", *stack_ids, *context_arguments(context)),
            # Change sets lose the outputs on moto, and a second deployment fails.
            *("--method", "direct", "--require-approval", "never"),
            *("--outputs-file", str(outputs_file)),
        ],
        name=f"deploy-{stack_ids[0] if stack_ids else 'none'}",
        app_dir=app_dir,
        progress=progress,
    )
    try:
        outputs = json.loads(outputs_file.read_text())
    except FileNotFoundError:
        outputs = {}
    finally:
        outputs_file.unlink(missing_ok=True)
    return CdkResult(outputs=outputs, seconds=result.seconds, log_file=result.log_file)


def destroy(
    local: LocalAws,
    stack_ids: Sequence[str],
    *,
    context: Mapping[str, str] | None = None,
    app_dir: Path | None = None,
    progress: Progress | None = None,
) -> CdkResult:
    """`cdk destroy --force` of `stack_ids`."""
    return run_cdk(
        local,
        ["destroy", *stack_ids, "--force", *context_arguments(context)],
        name=f"destroy-{stack_ids[0] if stack_ids else 'none'}",
        app_dir=app_dir,
        progress=progress,
    )


def context_arguments(context: Mapping[str, str] | None) -> list[str]:
    """`-c key=value` for each entry."""
    return [part for key, value in (context or {}).items() for part in ("-c", f"{key}={value}")]


def run_cdk(
    local: LocalAws,
    arguments: Sequence[str],
    *,
    name: str,
    app_dir: Path | None = None,
    progress: Progress | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    needs_app: bool = True,
) -> CdkResult:
    """Run `cdk ARGUMENTS` in `app_dir` (default: the current folder) against `local`.

    Every line goes to `logs/cdk-NAME.log` of the state directory and to `progress`. An interrupt
    ends the command with everything that it started. A command that `needs_app` false runs in an
    empty folder: the CLI would synthesize the app that it finds, for nothing.

    Raises:
        LocalAwsError: no app or no CLI there, the command failed, or it took too long.
    """
    app_dir = (app_dir or Path.cwd()).resolve()
    command = [*_cdk_command(app_dir), *arguments, "--output", str(local.state_dir / "cdk.out")]
    local.logs_dir.mkdir(parents=True, exist_ok=True)
    log_file = local.logs_dir / f"cdk-{name}.log"
    begin = time.monotonic()
    with log_file.open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command,
            cwd=app_dir if needs_app else _empty_folder(local),
            env=_environment(local, app_dir),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        timed_out = threading.Event()
        timer = threading.Timer(timeout_s, _end_late, args=(process, timed_out))
        timer.daemon = True
        timer.start()
        lines: list[str] = []
        try:
            for line in process.stdout or ():
                text = _ANSI.sub("", line).rstrip()
                log.write(text + "\n")
                lines = [*lines[-_KEEP_LINES:], text]
                if progress is not None and text.strip():
                    progress(text)
            code = process.wait()
        except BaseException:
            _end(process)
            raise
        finally:
            timer.cancel()
            timer.join()
            if process.stdout is not None:
                process.stdout.close()
    what = f"cdk {arguments[0]} {name.partition('-')[2]}".strip()
    if timed_out.is_set():
        raise LocalAwsError(f"{what} did not finish within {timeout_s:g} s; see {log_file}")
    if code != 0:
        raise LocalAwsError(f"{what} failed: {_reason(lines)} (whole output: {log_file})")
    return CdkResult(outputs={}, seconds=time.monotonic() - begin, log_file=log_file)


def _empty_folder(local: LocalAws) -> Path:
    folder = local.state_dir / "home"
    folder.mkdir(exist_ok=True)
    return folder


def _cdk_command(app_dir: Path) -> list[str]:
    if not (app_dir / "cdk.json").is_file():
        raise LocalAwsError(
            f"there is no cdk.json in {app_dir}; run this from the folder of the CDK app"
        )
    cdk = app_dir / "node_modules" / ".bin" / "cdk"
    if not cdk.exists():
        raise LocalAwsError(
            f"the CDK command is not installed in {app_dir}; install it with: npm ci"
        )
    return [str(cdk)]


def _environment(local: LocalAws, app_dir: Path) -> dict[str, str]:
    require_loopback(local.endpoint_url)
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AWS_", "CDK_")) and not name.lower().endswith("_proxy")
    }
    nowhere = local.state_dir / "home"
    return {
        **inherited,
        **environment(local),
        # No file of the person can bring a profile, a region or a key in.
        "AWS_CONFIG_FILE": str(nowhere / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(nowhere / "credentials"),
        "PATH": os.pathsep.join(
            [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
        ),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(app_dir), os.environ.get("PYTHONPATH")])),
        "CDK_DISABLE_VERSION_CHECK": "1",
        "CDK_DISABLE_CLI_TELEMETRY": "true",
        "CDK_NOTICES": "false",
        "CDK_VALIDATION": "false",
        "CI": "1",
        "NO_COLOR": "1",
    }


def _reason(lines: Sequence[str]) -> str:
    """The line that says why: the last that speaks of an error, or the last at all."""
    spoken = [line.strip() for line in lines if line.strip()]
    if len(spoken) > 1 and _APP_ENDED.search(spoken[-1]):
        # The app's own last words say more than the notice that it ended.
        return spoken[-2]
    for line in reversed(spoken):
        if _FAILED.search(line) and not line.startswith("at "):
            return line
    return spoken[-1] if spoken else "it wrote nothing"


def _end_late(process: subprocess.Popen[str], timed_out: threading.Event) -> None:
    timed_out.set()
    _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """End the command and its group: Node starts the Python app as a child."""
    for signal_number, wait_s in ((signal.SIGTERM, _STOP_GRACE_S), (signal.SIGKILL, None)):
        try:
            os.killpg(process.pid, signal_number)
        except ProcessLookupError:
            break
        try:
            process.wait(wait_s)
            break
        except subprocess.TimeoutExpired:
            continue
