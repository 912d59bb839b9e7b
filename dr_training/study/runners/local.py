"""Runs on this machine: a process for the monitor, and below it one for the training."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dr_training.data.faults import DataError
from dr_training.study import supervise
from dr_training.study.runners.runner import failed, python_key

_ROOT = Path(__file__).resolve().parents[3]


class LocalRunner:
    """Starts the interpreter that [python] names for the run's framework, or this one."""

    def __init__(self, pythons: Mapping[str, Any]) -> None:
        self._pythons = pythons

    def python(self, key: str) -> Path:
        """Interpreter for a framework; a relative path is from the current folder.

        Raises:
            DataError: it is not there.
        """
        path = Path(self._pythons.get(key, sys.executable)).expanduser()
        if not os.access(path, os.X_OK):
            raise DataError(
                f"there is no interpreter {path} for {key!r} ([python] in the study file); make "
                "the environments with `make setup-study` and `make setup-training`, or name "
                "your own"
            )
        return path.absolute()

    def run(self, spec: dict[str, Any], out: Path) -> dict[str, Any]:
        """See `runner.Runner`."""
        python = self.python(python_key(spec))
        out.mkdir(parents=True, exist_ok=True)
        (out / supervise.RESULT).unlink(missing_ok=True)
        order = out / "order.json"
        order.write_text(json.dumps(spec) + "\n")
        start = time.monotonic()
        command = [python, "-m", "dr_training.study.supervise", order, out]
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=out,
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # Ctrl-C reaches only this program, which then ends the run in order.
            start_new_session=True,
            preexec_fn=lambda: supervise.end_with_parent(signal.SIGTERM),  # noqa: PLW1509
        )
        try:
            said, _ = process.communicate()
        except BaseException:
            process.terminate()
            process.communicate()
            raise
        order.unlink(missing_ok=True)
        try:
            result: dict[str, Any] = json.loads((out / supervise.RESULT).read_text())
        except (OSError, ValueError):
            tail = said.decode(errors="replace").strip().split("\n")[-1]
            return failed(
                spec,
                supervise.ERROR,
                f"the monitor ended with exit code {process.returncode}: {tail}",
                life_s=time.monotonic() - start,
            )
        return result
