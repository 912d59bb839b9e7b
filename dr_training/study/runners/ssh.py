"""Runs on another machine over SSH, with the system's own `ssh` and its configuration.

Nothing is installed there: the few files that a run needs go through standard input, the result
comes back through standard output. The machine needs a shell, tar and the interpreter that the
study names, with its framework.
"""

import base64
import io
import json
import shlex
import subprocess
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dr_training.data.faults import DataError
from dr_training.study import supervise
from dr_training.study.runners.bundle import bundle
from dr_training.study.runners.runner import failed
from dr_training.study.supervise import LOG, MONITOR, RESULT, WORKER

# What ssh itself ends with when it has not reached the machine.
_SSH_FAILED = 255
_BRINGS_BACK = (RESULT, MONITOR, WORKER, LOG)


class SshRunner:
    """Runs on `host` (a name of ssh's configuration); `settings` is [ssh] of the study.

    A host that begins with a dash, which `ssh` would take for an option, is refused.
    """

    def __init__(self, *, host: str, settings: Mapping[str, Any]) -> None:
        if host.startswith("-"):
            raise DataError(f"{host!r} is no name of a machine: it begins with a dash")
        self._host, self._settings = host, settings

    def run(self, spec: dict[str, Any], out: Path) -> dict[str, Any]:
        """See `runner.Runner`."""
        out.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        done = self._ssh(self._script(spec), bundle())
        life_s = time.monotonic() - start
        if done.returncode == _SSH_FAILED:
            raise DataError(f"{self._host} cannot be reached over ssh: {_last_line(done.stderr)}")
        try:
            self._unpack(done.stdout, out)
            result: dict[str, Any] = json.loads((out / RESULT).read_text())
        except (tarfile.TarError, OSError, ValueError):
            reason = (
                f"{self._host} ended with exit code {done.returncode} and sent no result: "
                f"{_last_line(done.stderr)}"
            )
            return failed(spec, supervise.ERROR, reason, life_s=life_s)
        # The machine is billed for the whole call, transfers included.
        result["runner_s"] = life_s
        return result

    def _script(self, spec: dict[str, Any]) -> str:
        """What the remote shell does: unpack, run, pack the results, remove its folder."""
        text = base64.b64encode(json.dumps(spec).encode()).decode()
        folder = shlex.quote(str(self._settings["folder"]))
        python = shlex.quote(str(self._settings["python"]))
        files = " ".join(_BRINGS_BACK)
        return (
            f"set -e; mkdir -p {folder}; cd {folder}; run=$(mktemp -d run-XXXXXX); "
            f'trap \'rm -rf "$PWD"\' EXIT; cd "$run"; tar xzf -; '
            f"echo {text} | base64 -d > order.json; mkdir out; "
            f"{python} -m dr_training.study.supervise order.json out 1>&2; "
            f'cd out; for file in {files}; do touch "$file"; done; tar cf - {files}; cd ..'
        )

    def _ssh(self, script: str, content: bytes) -> "subprocess.CompletedProcess[bytes]":
        command = shlex.split(str(self._settings["command"]))
        # No question can be answered here: a missing key is an error at once.
        command += ["-o", "BatchMode=yes", self._host, script]
        try:
            return subprocess.run(command, input=content, capture_output=True, check=False)
        except FileNotFoundError:
            raise DataError(
                f"there is no program {command[0]!r}; install an SSH client "
                "(apt-get install openssh-client) or name it with `command` in [ssh]"
            ) from None

    def _unpack(self, content: bytes, out: Path) -> None:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            for entry in archive:
                if entry.name in _BRINGS_BACK and (file := archive.extractfile(entry)):
                    (out / entry.name).write_bytes(file.read())


def _last_line(text: bytes) -> str:
    lines = [line.strip() for line in text.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
