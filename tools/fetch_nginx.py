"""Puts nginx into `.nginx/`, for the tests of the full layout, without installing anything.

    python3 tools/fetch_nginx.py

An nginx that the system has is used as it is. Otherwise Debian's (or Ubuntu's) own package is
downloaded with `apt-get download`, which needs no root, and unpacked with `dpkg -x`; libraries of
it that the system lacks come the same way and lie beside it. Standard library only.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / ".nginx"
PROGRAM = TARGET / "bin" / "nginx"
# What nginx is linked with and a small system may lack.
_LIBRARIES = ("libpcre2-8-0", "libssl3", "libssl3t64", "libcrypt1", "zlib1g")
_PATHS = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])


def main() -> int:
    if shutil.which("nginx", path=_PATHS) is not None or _runs(PROGRAM):
        return 0
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            print(
                f"The tests of the full layout need nginx: it is not on this machine, and without "
                f"{tool} it cannot be fetched; install nginx.",
                file=sys.stderr,
            )
            return 1
    print("[set-up] nginx, from the system's package archive", flush=True)
    shutil.rmtree(TARGET, ignore_errors=True)
    try:
        with tempfile.TemporaryDirectory(prefix="dr-nginx-") as work:
            # The packages of a fresh machine are not listed yet.
            if not _download("nginx", Path(work)) and not (
                _list_packages(Path(work)) and _download("nginx", Path(work))
            ):
                return _failed("its package could not be downloaded")
            _unpack(Path(work))
            if not _runs(PROGRAM):
                for library in _LIBRARIES:
                    _download(library, Path(work))
                _unpack(Path(work))
    except OSError as error:
        return _failed(str(error))
    return 0 if _runs(PROGRAM) else _failed("the unpacked program does not start")


def _failed(reason: str) -> int:
    shutil.rmtree(TARGET, ignore_errors=True)
    print(
        f"The tests of the full layout need nginx, and {reason}; install it "
        "(apt-get install nginx-light as root), or reach the package archive and try again.",
        file=sys.stderr,
    )
    return 1


def _download(package: str, work: Path) -> bool:
    return _quiet(["apt-get", *_own_lists(work), "download", package], cwd=work)


def _list_packages(work: Path) -> bool:
    """`apt-get update` into a folder of ours, which needs no root."""
    (work / "lists" / "partial").mkdir(parents=True)
    (work / "cache" / "archives" / "partial").mkdir(parents=True)
    return _quiet(["apt-get", *_own_lists(work), "update"], cwd=work)


def _own_lists(work: Path) -> list[str]:
    if not (work / "lists").is_dir():
        return []
    return ["-o", f"Dir::State::lists={work / 'lists'}", "-o", f"Dir::Cache={work / 'cache'}"]


def _unpack(work: Path) -> None:
    files = TARGET / "files"
    files.mkdir(parents=True, exist_ok=True)
    for package in sorted(work.glob("*.deb")):
        _quiet(["dpkg", "-x", str(package), str(files)], cwd=work)
    libraries = os.pathsep.join(
        str(folder) for folder in sorted(files.glob("**/*-linux-gnu*")) if folder.is_dir()
    )
    PROGRAM.parent.mkdir(exist_ok=True)
    PROGRAM.write_text(
        "#!/bin/sh\n"
        f'LD_LIBRARY_PATH="{libraries}" exec "{files / "usr" / "sbin" / "nginx"}" "$@"\n',
        encoding="utf-8",
    )
    PROGRAM.chmod(0o755)


def _runs(program: Path) -> bool:
    return program.is_file() and _quiet([str(program), "-v"], cwd=program.parent)


def _quiet(command: list[str], *, cwd: Path) -> bool:
    ended = subprocess.run(command, cwd=cwd, capture_output=True, check=False)
    return ended.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
