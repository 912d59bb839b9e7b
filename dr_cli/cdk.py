"""Runs the pinned CDK CLI and Docker for the demo, and reads what they made."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from dr_cli.errors import CommandError

CDK: Final = Path("node_modules/.bin/cdk")
DOCKER_TIMEOUT_S: Final = 5
_TAIL: Final = 600


def require_checkout() -> None:
    """Raise `CommandError` unless the current folder is a checkout that is set up."""
    if not Path("app.py").is_file() or not Path("cdk.json").is_file():
        raise CommandError(
            "there is no CDK app in the current folder; run this in a checkout of dr-endpoints"
        )
    if not CDK.exists():
        raise CommandError(f"{CDK} is missing; set the checkout up with: make setup")


def synthesize(
    output: Path, *, context: Mapping[str, str], environment: Mapping[str, str], log: Path
) -> int:
    """Synthesize every stack of the matrix into `output`; returns how many there are.

    Args:
        output: folder to be made; the temporary files of the synthesis lie beside it.
        context: context keys of the app (`-c key=value`).
        environment: account and region that the stacks are for.

    Raises:
        CommandError: the CLI failed; with its last line, and where the rest is.
    """
    # The jsii of an app that is interrupted leaves its kernel behind: beside the output, where
    # it goes with the rest.
    environment = {**environment, "TMPDIR": str(output.parent)}
    arguments = [str(CDK.resolve()), "synth", "--quiet", "--output", str(output)]
    for key, value in context.items():
        arguments += ["--context", f"{key}={value}"]
    run_logged(arguments, log=log, what="cdk synth", environment=environment)
    manifest = json.loads((output / "manifest.json").read_text("utf-8"))
    stacks = [a for a in manifest["artifacts"].values() if a["type"] == "aws:cloudformation:stack"]
    return len(stacks)


def run_logged(
    arguments: Sequence[str], *, log: Path, what: str, environment: Mapping[str, str] | None = None
) -> None:
    """Run a program with its output in `log`; it never outlives this call.

    Raises:
        CommandError: it is missing, or ended with an error.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as stream:
        try:
            process = subprocess.Popen(
                arguments,
                env=_environment() | dict(environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                # A group of its own: Node starts Python, and both must go together.
                start_new_session=True,
            )
        except FileNotFoundError:
            raise CommandError(f"{arguments[0]} is not installed") from None
        try:
            code = process.wait()
        finally:
            stop_group(process)
    if code != 0:
        raise CommandError(f"{what} failed: {last_words(log)} (all of it is in {log})")


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started in its session."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
    # The first to go may have left others, which would go on writing.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last_words(log: Path) -> str:
    """What a log says about a failure: the app's own sentence, or else its last line."""
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines()]
    said = [line for line in lines if line and "Subprocess exited" not in line]
    own = [number for number, line in enumerate(said) if line.startswith("app.py:")]
    words = " ".join(said[own[-1] :] if own else said[-1:])
    return words[:_TAIL] or "it said nothing"


def docker_version() -> str | None:
    """Version of the Docker engine that answers, or None."""
    docker = shutil.which("docker")
    if docker is None:
        return None
    try:
        done = subprocess.run(
            [docker, "version", "--format", "{{.Server.Version}}"],
            capture_output=True,
            text=True,
            timeout=DOCKER_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def build_image(*, tag: str, log: Path) -> int:
    """Build the inference image with Docker; returns its size in bytes. Raises `CommandError`."""
    run_logged(
        ["docker", "build", "--platform", "linux/amd64", "--tag", tag, "inference_image"],
        log=log,
        what="docker build",
        environment={"DOCKER_BUILDKIT": "1"},
    )
    done = subprocess.run(
        ["docker", "image", "inspect", "--format", "{{.Size}}", tag],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return int(done.stdout)


def _environment() -> dict[str, str]:
    # Keys, profiles and regions of the person stay out: the CLI would ask AWS who they are.
    inherited = {n: v for n, v in os.environ.items() if not n.startswith(("AWS_", "CDK_"))}
    # The environment's own Node comes first on PATH, as the Makefile has it, and the app runs
    # with the Python that runs this.
    path = [str(Path(sys.executable).parent), str(CDK.parent.resolve()), os.environ["PATH"]]
    return inherited | {
        "PATH": os.pathsep.join(path),
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "CDK_DISABLE_VERSION_CHECK": "1",
        "CDK_DISABLE_CLI_TELEMETRY": "true",
        # The WASM validator takes 9 to 18 s at its first use; the test suite runs it.
        "CDK_VALIDATION": "false",
        "CI": "1",
    }
