"""A model package in a process of this machine as a target: its start belongs to a request.

with closing(LocalProcess(folder, spec)) as target:
    Client(target).measure(payload)     # starts the process, waits, asks
    target.renew()                      # and the next request meets a fresh one
"""

import tempfile
import time
from pathlib import Path
from subprocess import Popen
from typing import Final

from dr_cli.serving import LOOPBACK, free_port, start_service, stop_service, wait_until_ready
from dr_experiments.cold_start import ReadyLine, read_ready_lines
from dr_experiments.targets import (
    OUTCOME_UNREACHABLE,
    Payload,
    Reply,
    TargetDescription,
    TargetError,
    UrlTarget,
)
from inference_image.contract import SERVING_MODE_LOCAL
from inference_image.model_spec import ModelSpec

# How late the client may notice that the service is ready; it is inside the round trip.
_POLL_S: Final = 0.005
# A process writes its line after it has begun to answer.
_LINE_WITHIN_S: Final = 10.0


class LocalProcess:
    """Serves a package in a process that the first request after `renew` starts.

    As on a platform, whoever asks waits for the start. There is no container around it: no limit
    of memory or processor, and nothing is fetched.

    Args:
        folder: of the package, unpacked; `spec` is its.
    """

    def __init__(self, folder: Path, spec: ModelSpec) -> None:
        self._folder = folder
        self._name = f"process-{spec.id}"
        self._process: Popen[bytes] | None = None
        self._service: UrlTarget | None = None
        self._starts = 0
        self._log = tempfile.NamedTemporaryFile(prefix="dr-process-")  # noqa: SIM115 - see close()

    def describe(self) -> TargetDescription:
        """The package's id, in local mode."""
        return TargetDescription(name=self._name, mode=SERVING_MODE_LOCAL)

    def send(self, payload: Payload) -> Reply:
        """One POST to the process, which is started first where none runs."""
        if self._service is None:
            self._service = self._started()
        return self._service.send(payload)

    def renew(self) -> None:
        """End the process, if one runs, once it has logged its start."""
        if self._service is not None:
            self._wait_for_line()
            self._service.close()
            self._service = None
        if self._process is not None:
            stop_service(self._process)
            self._process = None

    def close(self) -> None:
        """End the process and forget its log."""
        self.renew()
        self._log.close()

    def ready_lines(self) -> dict[str, ReadyLine]:
        """What the processes logged when they became ready, by start id; before `close`."""
        self._wait_for_line()
        return self._lines()

    def _lines(self) -> dict[str, ReadyLine]:
        # Through its name: reading must not move where the processes write.
        return read_ready_lines(Path(self._log.name).read_text("utf-8", "replace").splitlines())

    def _wait_for_line(self) -> None:
        deadline = time.monotonic() + _LINE_WITHIN_S
        while (
            len(self._lines()) < self._starts
            # Ctrl-C in a terminal ends it as well, and it then may have nothing more to say.
            and (self._process is None or self._process.poll() is None)
            and time.monotonic() < deadline
        ):
            time.sleep(_POLL_S)

    def _started(self) -> UrlTarget:
        port = free_port()
        self._process = start_service(
            self._folder, host=LOOPBACK, port=port, workers=1, log=self._log.fileno()
        )
        url = f"http://{LOOPBACK}:{port}"
        if not wait_until_ready(url, self._process, poll_s=_POLL_S):
            self.renew()
            raise TargetError(OUTCOME_UNREACHABLE, f"the service for {self._name} did not start")
        self._starts += 1
        return UrlTarget(url, name=self._name)
