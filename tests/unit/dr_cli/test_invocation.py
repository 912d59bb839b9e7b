"""Hints can be typed as they stand, and the region is found where AWS tools look."""

import os
import sys
from pathlib import Path

import pytest

from dr_cli.invocation import dr
from dr_cli.region import aws_region


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout as the current folder, whose `dr` is not on PATH."""
    script = tmp_path / ".venv" / "bin" / "dr"
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.defpath)
    return tmp_path


def called(monkeypatch: pytest.MonkeyPatch, name: str | Path) -> str:
    monkeypatch.setattr(sys, "argv", [str(name), "local", "status"])
    return dr("local up")


def test_a_hint_names_the_program_as_it_was_called(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = folder / ".venv" / "bin" / "dr"
    assert called(monkeypatch, ".venv/bin/dr") == ".venv/bin/dr local up"
    assert called(monkeypatch, "../bin/dr") == "../bin/dr local up"
    assert called(monkeypatch, script) == ".venv/bin/dr local up"
    monkeypatch.chdir("/")
    assert called(monkeypatch, script) == f"{script} local up" or folder.is_relative_to(Path.cwd())
    monkeypatch.setenv("PATH", str(script.parent))
    assert called(monkeypatch, script) == "dr local up"


def test_a_module_and_a_caller_in_python_are_named_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(folder / ".venv" / "bin" / "python"))
    main = folder / "dr_cli" / "__main__.py"
    assert called(monkeypatch, main) == ".venv/bin/python -m dr_cli local up"
    assert called(monkeypatch, "/usr/bin/pytest") == "dr local up"


def test_the_region_is_the_option_then_the_environment_then_the_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    config.write_text("[default]\nregion = eu-north-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-south-1")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    assert aws_region("us-east-2") == "us-east-2"
    assert aws_region() == "eu-west-1"
    monkeypatch.delenv("AWS_REGION")
    assert aws_region() == "eu-south-1"
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert aws_region() == "eu-north-1"
    config.write_text("")
    assert aws_region() is None


def test_the_region_reaches_the_client_of_an_endpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AWS_REGION alone is enough: botocore itself does not read it."""
    from dr_cli.predict import endpoint_target

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    target, where = endpoint_target("e", region=None)
    assert where == "AWS eu-west-1"
    assert target.describe().region == "eu-west-1"
