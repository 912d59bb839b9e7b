"""The parts of the demo that decide without anything running; the whole is in integration."""

import io
import stat
import sys
import time
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from dr_cli import cdk, demo
from dr_cli.console import Steps
from dr_cli.errors import CommandError
from inference_image.contract import GRADE_LABELS


@pytest.fixture
def steps() -> Steps:
    return Steps(Console(file=io.StringIO(), width=200, highlight=False))


def said(steps: Steps) -> str:
    stream = steps.console.file
    assert isinstance(stream, io.StringIO)
    return stream.getvalue()


def fake_docker(folder: Path, script: str) -> None:
    path = folder / "docker"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def only_fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH on which the only `docker` is one that a test writes."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    return folder


def test_without_docker_the_image_is_named_by_the_digest_of_its_source(
    only_fakes: Path, steps: Steps, tmp_path: Path
) -> None:
    fake_docker(only_fakes, "exit 1")
    note = demo._image(steps, tmp_path / "logs")
    assert "No Docker engine answers" in note
    assert "digest of its source" in note
    assert note in said(steps)


def test_with_docker_the_image_is_built_and_its_size_is_said(
    only_fakes: Path, steps: Steps, tmp_path: Path
) -> None:
    fake_docker(
        only_fakes,
        'case "$1" in version) echo 27.1;; build) echo building;; image) echo 209000000;; esac',
    )
    note = demo._image(steps, tmp_path / "logs")
    assert "Built with Docker 27.1, 209 MB" in note
    assert "209 MB (" in said(steps)
    assert (tmp_path / "logs" / "docker-build.log").read_text() == "building\n"


def test_a_build_that_fails_says_why_and_the_demo_goes_on(
    only_fakes: Path, steps: Steps, tmp_path: Path
) -> None:
    fake_docker(
        only_fakes,
        'case "$1" in version) echo 27.1;; build) echo "pull access denied" >&2; exit 1;; esac',
    )
    note = demo._image(steps, tmp_path / "logs")
    assert "could not be built" in note
    assert "pull access denied" in note
    assert note in " ".join(said(steps).split())


def test_a_hanging_docker_is_no_docker(only_fakes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_docker(only_fakes, "exec sleep 30")
    monkeypatch.setattr(cdk, "DOCKER_TIMEOUT_S", 0.2)
    assert cdk.docker_version() is None


def test_the_apps_own_sentence_is_what_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "app.py: Endpoint cannot be deployed:\n- memory_mib must be one of 1024\n"
        ".venv/bin/python app.py: Subprocess exited with error 1\n"
    )
    assert cdk.last_words(log) == (
        "app.py: Endpoint cannot be deployed: - memory_mib must be one of 1024"
    )
    log.write_text("first\nlast\n\n")
    assert cdk.last_words(log) == "last"
    log.write_text("")
    assert cdk.last_words(log) == "it said nothing"


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_program_that_is_logged_does_not_outlive_the_call(tmp_path: Path) -> None:
    log = tmp_path / "log"
    cdk.run_logged(["/bin/sh", "-c", "echo out; echo err >&2"], log=log, what="sh")
    assert log.read_text() == "out\nerr\n"
    # Nor does a program that it has started and left behind.
    cdk.run_logged(["/bin/sh", "-c", "sleep 60 & echo $!"], log=log, what="sh")
    left = int(log.read_text())
    end = time.monotonic() + 5
    while alive(left):
        assert time.monotonic() < end
        time.sleep(0.01)
    with pytest.raises(CommandError, match="sh failed: no luck"):
        cdk.run_logged(["/bin/sh", "-c", "echo no luck; exit 3"], log=log, what="sh")
    with pytest.raises(CommandError, match="not installed"):
        cdk.run_logged(["/nowhere/at-all"], log=log, what="x")


def test_the_drawn_photograph_is_always_there_and_its_grade_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["dr", "demo"])
    monkeypatch.setenv("DR_SHARED", str(tmp_path / "nothing"))
    photographs, absent = demo._photographs(None)
    # Without a real photograph there are still two, and the second is drawn as well.
    assert [p.known_grade for p in photographs] == [demo.DRAWN_GRADE, demo.SECOND_GRADE]
    for photograph in photographs:
        assert photograph.payload.body.startswith(b"\xff\xd8\xff")
        assert GRADE_LABELS[photograph.known_grade or 0] in photograph.title
    assert "dr demo --photograph FILE, or make demo PHOTOGRAPH=FILE" in str(absent)
    assert "on a real one" not in demo.NO_REAL_ONE


def test_the_real_photograph_is_found_or_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tmp_path / demo.REAL_PHOTOGRAPH
    real.parent.mkdir()
    real.write_bytes(b"\xff\xd8\xff real")
    monkeypatch.setenv("DR_SHARED", str(tmp_path))
    photographs, absent = demo._photographs(None)
    assert absent is None
    assert photographs[1].payload.body == b"\xff\xd8\xff real"
    assert photographs[1].known_grade is None
    with pytest.raises(CommandError, match="there is no file"):
        demo._photographs(tmp_path / "patient.jpg")
    # The name of a person's file appears nowhere.
    assert "patient" not in demo._photographs(real)[0][1].title


def test_a_folder_that_is_not_set_up_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CommandError, match="in a checkout"):
        cdk.require_checkout()
    (tmp_path / "app.py").touch()
    (tmp_path / "cdk.json").touch()
    with pytest.raises(CommandError, match="make setup"):
        cdk.require_checkout()


def test_results_of_another_run_in_the_folder_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = tmp_path / "requests.jsonl"
    records.write_text("a night's measurement\n")

    def nothing(*_: object) -> None:
        raise CommandError("far enough")

    monkeypatch.setattr(demo, "require_checkout", lambda: None)
    monkeypatch.setattr(demo, "_synthesize", nothing)
    with pytest.raises(CommandError, match="far enough"):
        demo.run_demo(photograph=None, out=tmp_path, requests=1, interval_s=0)
    assert not records.exists()
    (kept,) = (tmp_path / "earlier").rglob("requests.jsonl")
    assert kept.read_text() == "a night's measurement\n"
