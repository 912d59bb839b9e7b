"""What a person sees when the set-up cannot work: one sentence and a non-zero exit code."""

import os
import platform
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
# Nothing listens on the discard port of this machine.
CLOSED = "http://127.0.0.1:9/simple"


@pytest.fixture
def skeleton(repository: Path, tmp_path: Path) -> Path:
    """A checkout with nothing but what the set-up reads."""
    for name in ("pyproject.toml", "package.json", "package-lock.json", "Makefile", "README.md"):
        shutil.copy(repository / name, tmp_path / name)
    unwanted = shutil.ignore_patterns("__pycache__", "*.so", "*.stamp")
    for name in ("requirements", "tools", "inference_image"):
        shutil.copytree(repository / name, tmp_path / name, ignore=unwanted)
    return tmp_path


def without_registries() -> dict[str, str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "UV_"))}
    environment |= {
        "PIP_INDEX_URL": CLOSED,
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_RETRIES": "0",
        "PIP_NO_CACHE_DIR": "1",
        "UV_HTTP_RETRIES": "0",
        "UV_NO_CACHE": "1",
    }
    return environment


def make_setup(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "setup", *arguments],
        cwd=folder,
        env=without_registries(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_no_registry_is_one_sentence_and_leaves_no_stamp(skeleton: Path) -> None:
    result = make_setup(skeleton, f"PYTHON={sys.executable}")
    assert result.returncode != 0
    sentences = [line for line in result.stderr.splitlines() if line.startswith("set-up failed:")]
    assert len(sentences) == 1
    assert "can this machine reach the registry" in sentences[0]
    assert "Traceback" not in result.stdout + result.stderr
    assert not (skeleton / ".venv" / ".setup-stamp").exists()


def test_an_interrupted_set_up_can_be_run_again_and_leaves_no_temporary_tree(
    skeleton: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    temporary = tmp_path_factory.mktemp("tmp")
    process = subprocess.Popen(
        ["make", "setup"],
        cwd=skeleton,
        env=without_registries() | {"TMPDIR": str(temporary)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 30
    while not (skeleton / ".venv" / "bin" / "python3").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    # A terminal's Ctrl-C reaches make, the set-up and the installer at once.
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "set-up interrupted; run the same command again" in said
    assert "Traceback" not in said
    assert list(temporary.iterdir()) == []
    # There is still no registry, but the environment itself is made by now.
    again = make_setup(skeleton)
    assert "could not be made" not in again.stderr
    assert "the installer (uv) could not be downloaded" in again.stderr


def test_no_python_is_one_sentence(skeleton: Path) -> None:
    result = make_setup(skeleton, "PYTHON=python-that-is-not-here")
    assert result.returncode != 0
    assert "There is no python-that-is-not-here on this machine" in result.stderr


def test_an_old_python_is_one_sentence(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 4, "final", 0))
    with pytest.raises(SystemExit) as refusal:
        runpy.run_path(str(repository / "tools" / "setup_environment.py"), run_name="__main__")
    assert "needs Python 3.11 or newer" in str(refusal.value)
    assert "is 3.10" in str(refusal.value)


SET_UP_KERNEL = """
import sys
from pathlib import Path
from tools.setup_environment import SetupError, set_up_kernel
try:
    set_up_kernel(Path(sys.executable))
except SetupError as error:
    sys.exit(str(error))
"""
KERNEL = f"fundus-{platform.machine()}.so"


def set_up_kernel(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SET_UP_KERNEL],
        cwd=folder,
        env=without_registries() | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def made_up_cc(folder: Path, script: str) -> str:
    """A folder for PATH in which `cc` is `script`."""
    (folder / "programs").mkdir()
    (folder / "programs" / "cc").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "programs" / "cc").chmod(0o755)
    return f"{folder / 'programs'}{os.pathsep}/usr/bin{os.pathsep}/bin"


@pytest.mark.parametrize("cc", [None, "echo 'cc: cannot execute cc1'; exit 1"])
def test_no_compiler_is_one_sentence_and_the_set_up_goes_on(
    skeleton: Path, tmp_path: Path, cc: str | None
) -> None:
    native = skeleton / "inference_image" / "native"
    # Of a source that is no longer: it must not be taken for this one's.
    (native / KERNEL).write_bytes(b"old")
    path = str(tmp_path / "nothing") if cc is None else made_up_cc(tmp_path, cc)
    result = set_up_kernel(skeleton, PATH=path)
    assert result.returncode == 0, result.stderr
    sentences = [line for line in result.stdout.splitlines() if "goes on" in line]
    assert len(sentences) == 1
    assert sentences[0].startswith(
        "set-up goes on without the kernel, and the service uses NumPy: there is no C compiler, "
        "and Zig could not be downloaded"
    )
    assert "Traceback" not in result.stdout + result.stderr
    assert [file.name for file in native.iterdir()] == ["fundus.c"]


def test_a_kernel_is_compiled_once(skeleton: Path, tmp_path: Path) -> None:
    """By a compiler that writes the same file whatever the source is, and counts."""
    native = skeleton / "inference_image" / "native"
    shutil.copy(REPOSITORY / "inference_image" / "native" / KERNEL, tmp_path / "made.so")
    counting = f'echo >> {tmp_path}/calls; for last; do :; done; cp {tmp_path}/made.so "$last"'
    path = made_up_cc(tmp_path, counting)
    said = [set_up_kernel(skeleton, PATH=path).stdout for _ in range(2)]
    assert said[0].startswith("[set-up] the service's kernel, with cc … ")
    assert said[1] == ""
    assert (tmp_path / "calls").read_text() == "\n"
    assert (native / KERNEL).read_bytes() == (tmp_path / "made.so").read_bytes()


def test_a_kernel_whose_source_is_wrong_ends_the_set_up_with_one_sentence(
    skeleton: Path, tmp_path: Path
) -> None:
    """Going on would test and serve the old one."""
    native = skeleton / "inference_image" / "native"
    (native / KERNEL).write_bytes(b"old")
    # As a compiler that works, and finds an error in this file alone.
    complaining = 'case "$*" in *fundus.c*) echo "fundus.c:1:1: error: expected"; exit 1;; esac'
    result = set_up_kernel(skeleton, PATH=made_up_cc(tmp_path, complaining))
    assert result.returncode == 1
    assert result.stderr == "cc does not compile fundus.c: fundus.c:1:1: error: expected\n"
    assert (native / KERNEL).read_bytes() == b"old"
