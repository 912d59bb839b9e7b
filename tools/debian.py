"""Debian packages for tools and tests, without installing anything on the machine.

    packages = DebianPackages(Path(".docker-engine/bookworm"))
    packages.unpack(["docker.io", "runc"], Path("root"))

apt reads the machine's own sources, or those of another release on the same mirror, but keeps its
lists and archives in a folder of its own. It checks signatures as always. Standard library only.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_KEYRING: Final = "/usr/share/keyrings/debian-archive-keyring.gpg"
_MIRROR: Final = re.compile(r"^(?:URIs:|deb(?: \[[^]]*\])?)\s+(\S+/debian/?)\s", re.MULTILINE)
_TIMEOUT_S: Final = 300


class DebianError(Exception):
    """Its text is one sentence for the person at the keyboard."""


class DebianPackages:
    """Packages of the machine's own release, or of the one that `suite` names.

    Args:
        folder: where lists and archives are kept; made if it is not there.
        suite: the name of a release, `trixie`. Default: that of the machine.
    """

    def __init__(self, folder: Path, *, suite: str | None = None) -> None:
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            raise DebianError("this needs Debian's packages, and there is no apt-get here")
        self._folder = folder.resolve()
        for part in ("lists/partial", "cache/archives/partial", "debs"):
            (self._folder / part).mkdir(parents=True, exist_ok=True)
        self._options = [
            f"-oDir::State::Lists={self._folder / 'lists'}",
            f"-oDir::Cache={self._folder / 'cache'}",
            "-oAPT::Sandbox::User=root",
            "-oAcquire::Languages=none",
            "-oAcquire::Retries=3",
        ]
        if suite is not None:
            sources = self._folder / "sources.list"
            sources.write_text(f"deb [signed-by={_KEYRING}] {mirror()} {suite} main\n", "utf-8")
            self._options += [
                f"-oDir::Etc::SourceList={sources}",
                "-oDir::Etc::SourceParts=-",
                "-oDir::State::status=/dev/null",
            ]
        self._updated = False

    def unpack(self, names: Sequence[str], root: Path) -> None:
        """Unpack the named packages, and nothing that they depend on, below `root`.

        Raises:
            DebianError: one is not to be had.
        """
        debs = self._folder / "debs"
        for name in names:
            found = sorted(debs.glob(f"{name}_*.deb"))
            if not found:
                self._download(name)
                found = sorted(debs.glob(f"{name}_*.deb"))
            root.mkdir(parents=True, exist_ok=True)
            _run(["dpkg-deb", "-x", str(found[-1]), str(root)], cwd=debs)

    def _download(self, name: str) -> None:
        if not self._updated:
            _run(["apt-get", "-qq", *self._options, "update"], cwd=self._folder)
            self._updated = True
        _run(["apt-get", "-qq", *self._options, "download", name], cwd=self._folder / "debs")


def mirror() -> str:
    """The mirror that this machine takes Debian's packages from."""
    texts = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    for path in texts:
        if path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            found = _MIRROR.search(text)
            if found:
                return found[1]
    raise DebianError("none of this machine's package sources is a Debian mirror")


def _run(command: Sequence[str], *, cwd: Path) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DebianError(f"{command[0]} did not end within {_TIMEOUT_S} s") from None
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise DebianError(f"{command[0]} {command[-1]} failed: {said[-1] if said else 'no word'}")
