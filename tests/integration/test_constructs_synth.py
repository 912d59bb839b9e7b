"""`cdk synth` as a person runs it: the whole matrix, the committed packages, every validator."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from constructs_lib.regions import offered_in
from stacks.matrix import MATRIX


def cdk_synth(
    repository: Path, *, output: Path, app: str, context: str
) -> subprocess.CompletedProcess[str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AWS_", "CDK_")) and name != "PYTHONPATH"
    }
    return subprocess.run(
        [
            str(repository / "node_modules" / ".bin" / "cdk"),
            *("synth", "--quiet", "--output", str(output)),
            *("--app", app),
            *("-c", context),
        ],
        cwd=repository,
        env={
            **inherited,
            # Node of the environment, and no credentials at all.
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.defpath]),
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "CDK_DISABLE_CLI_TELEMETRY": "true",
            "CDK_NOTICES": "false",
            "CDK_VALIDATION": "true",
            "NO_COLOR": "1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


@pytest.fixture(scope="module")
def synthesized(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[subprocess.CompletedProcess[str], Path]:
    output = tmp_path_factory.mktemp("synth") / "cdk.out"
    app = f"{sys.executable} app.py"
    return cdk_synth(repository, output=output, app=app, context="image=source-digest"), output


def test_the_whole_matrix_synthesizes_without_credentials(
    synthesized: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    done, output = synthesized
    assert done.returncode == 0, done.stderr
    names = {path.name.removesuffix(".template.json") for path in output.glob("*.template.json")}
    assert names == {"dr-shared", *(row.stack_id for row in MATRIX)}


def test_the_only_warnings_are_of_packages_and_types_that_are_elsewhere(
    synthesized: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    done, _ = synthesized
    said = (done.stdout + done.stderr).splitlines()
    warnings = [line for line in said if "WARNING" in line or "[Warning" in line]
    # Without a profile the command line takes us-east-1.
    absent = {
        str(row.instance_type)
        for row in MATRIX
        if row.instance_type and not offered_in("us-east-1", row.instance_type)
    }
    expected = (
        "Before deploying this stack, make the package",
        *(f"{instance_type} was not in the price list of us-east-1" for instance_type in absent),
    )
    assert [line for line in warnings if not any(words in line for words in expected)] == []
    assert [line for line in said if "ERROR" in line or "[Error" in line] == []


def test_the_command_line_hands_an_output_over_whole(repository: Path, tmp_path: Path) -> None:
    """The value of `-c docker-outputs=` has an equals sign and commas of its own."""
    told = tmp_path / "context.json"
    script = tmp_path / "app.py"
    script.write_text(
        "import os, pathlib\n"
        f"pathlib.Path({str(told)!r}).write_text(os.environ['CDK_CONTEXT_JSON'])\n"
    )
    output = "type=docker,oci-mediatypes=false"
    cdk_synth(
        repository,
        output=tmp_path / "cdk.out",
        app=f"{sys.executable} {script}",
        context=f"docker-outputs={output}",
    )
    assert json.loads(told.read_text())["docker-outputs"] == output


def test_the_configured_app_runs_the_environment_that_set_up_made(repository: Path) -> None:
    text = (repository / "cdk.json").read_text()
    assert '"app": ".venv/bin/python app.py"' in text
