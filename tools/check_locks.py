"""Renews the lock files, or checks that they still fit the ranges in pyproject.toml.

    python tools/check_locks.py            # exit 1 and one sentence per file that is stale
    python tools/check_locks.py --write    # resolve again with uv

The check needs no network: every requirement of the extras that a file locks must be there,
inside its range, with a hash, and without the address of an index.
"""

import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^ ;\\]+)")
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
_PYTHON = "3.11"


@dataclass(frozen=True)
class Lock:
    """A lock file and what it is resolved from."""

    path: str
    extras: tuple[str, ...] = ()
    source: str = "pyproject.toml"
    with_dependencies: bool = True


LOCKS = (
    Lock("requirements.txt"),
    Lock(
        "requirements/dev.txt",
        ("serving", "full", "experiments", "loadgen", "local", "data", "dev"),
    ),
    Lock("requirements/training.txt", ("serving", "full", "training", "test")),
    Lock("requirements/bench.txt", source="requirements/bench.in"),
    Lock("requirements/study.txt", source="requirements/study.in"),
    Lock("requirements/study-mxnet.txt", source="requirements/study-mxnet.in"),
    Lock("requirements/uv.txt", source="requirements/uv.in"),
    Lock(
        "requirements/lambda-emulator.txt",
        source="requirements/lambda-emulator.in",
        with_dependencies=False,
    ),
    Lock("requirements/image.txt", source="requirements/image.in"),
    Lock(
        "inference_image/requirements-litert.txt",
        source="inference_image/requirements-litert.in",
    ),
    Lock(
        "inference_image/requirements-compiler.txt",
        source="inference_image/requirements-compiler.in",
    ),
    # One file for each architecture: pip, told to fetch another one's wheels, still evaluates
    # markers for the machine that it runs on.
    Lock(
        "inference_image/requirements-tensorflow-amd64.txt",
        source="inference_image/requirements-tensorflow-amd64.in",
    ),
    Lock(
        "inference_image/requirements-tensorflow-arm64.txt",
        source="inference_image/requirements-tensorflow-arm64.in",
    ),
)


def wanted(lock: Lock) -> list[Requirement]:
    """The direct requirements that `lock` must satisfy."""
    if lock.source != "pyproject.toml":
        lines = (ROOT / lock.source).read_text().splitlines()
        return [Requirement(line) for line in lines if line and not line.startswith("#")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    rows = list(project["dependencies"])
    for extra in lock.extras:
        rows += project["optional-dependencies"][extra]
    return [Requirement(row) for row in rows if not row.startswith(project["name"])]


def faults(lock: Lock) -> list[str]:
    """One sentence per way in which the file does not hold; empty when it does."""
    text = (ROOT / lock.path).read_text()
    found = [f"{lock.path} names a download address"] if "://" in text else []
    pins: dict[str, list[str]] = {}
    for block in re.split(r"\n(?=[A-Za-z0-9])", text):
        match = _PIN.match(block)
        if match is None:
            continue
        pins.setdefault(canonicalize_name(match[1]), []).append(match[2])
        if not _HASH.search(block):
            found.append(f"{lock.path}: {match[1]} has no hash")
    for requirement in wanted(lock):
        versions = pins.get(canonicalize_name(requirement.name), [])
        if not versions:
            found.append(f"{lock.path} lacks {requirement.name}: run `make lock`")
        found += [
            f"{lock.path} has {requirement.name} {version}, outside {requirement.specifier}: "
            "run `make lock`"
            for version in versions
            if version not in requirement.specifier
        ]
    return found


def write(lock: Lock) -> None:
    """Resolve `lock` again for every Python from 3.11 on."""
    command = [sys.executable, "-m", "uv", "pip", "compile", lock.source, "--quiet"]
    command += ["--universal", "--python-version", _PYTHON, "--generate-hashes"]
    command += ["--custom-compile-command", "make lock"]
    command += ["--upgrade", "--output-file", lock.path]
    if not lock.with_dependencies:
        command += ["--no-deps"]
    for extra in lock.extras:
        command += ["--extra", extra]
    environment = dict(os.environ)
    if links := environment.get("PIP_FIND_LINKS"):
        environment.setdefault("UV_FIND_LINKS", links)
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


def main() -> int:
    if "--write" in sys.argv[1:]:
        for lock in LOCKS:
            print(f"resolving {lock.path}", flush=True)
            write(lock)
    found = [fault for lock in LOCKS for fault in faults(lock)]
    for fault in found:
        print(fault, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
