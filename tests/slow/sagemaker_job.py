"""A training job as SageMaker runs it: hosts that share nothing, each a process tree of its own.

A host's Python finds what the tensorflow image holds and nothing else: the locked packages, and a
copy of `inference_image`. Everything else of the training environment is blocked.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

_STOPS_WITHIN_S = 60

# Beside the image's packages: hides every other distribution of the environment, says at the end
# what was imported, and can make the training tell its parent to stop, as SageMaker does, after a
# step that the test names.
SITE = """
import atexit
import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import sys
import time

STOP = os.environ.get("STOP_AFTER", "")
spec = importlib.util.spec_from_file_location("image_only", os.environ["IMAGE_ONLY"])
image_only = importlib.util.module_from_spec(spec)
spec.loader.exec_module(image_only)
sys.meta_path.insert(0, image_only.ImageOnly([]))


class Stopping(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "dr_training.fitting.loop":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            stop_in(module.Journal)

        spec.loader.exec_module = exec_module
        return spec


def stop_in(journal):
    step = journal.step

    def stopping(self, epoch, number, loss):
        step(self, epoch, number, loss)
        if f"{epoch}:{number}" == STOP:
            handler = signal.getsignal(signal.SIGTERM)
            os.kill(os.getppid(), signal.SIGTERM)
            while signal.getsignal(signal.SIGTERM) is handler:
                time.sleep(0.01)

    journal.step = stopping


if STOP:
    sys.meta_path.insert(0, Stopping())


@atexit.register
def say_what_was_imported():
    with open(os.environ["IMPORTED"], "a") as stream:
        for module in list(sys.modules.values()):
            if getattr(module, "__file__", None):
                print(module.__file__, file=stream)
"""


def code_zip(repository: Path, path: Path) -> Path:
    """The Python source that the image lacks, as one zip; the service is the image's own."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for source in sorted((repository / "dr_training").rglob("*.py")):
            archive.write(source, source.relative_to(repository))
    return path


class Job:
    """Hosts of one job below `folder`; each has a root that is its `/opt/ml`."""

    def __init__(self, folder: Path, python: Path, repository: Path, hosts: int) -> None:
        folder.mkdir()
        self._folder, self._python = folder, python
        self._image_only = repository / "tests" / "unit" / "dr_training" / "job" / "image_only.py"
        service = folder / "image"
        shutil.copytree(
            repository / "inference_image",
            service / "inference_image",
            ignore=shutil.ignore_patterns("__pycache__", "docker", "bin"),
        )
        (service / "sitecustomize.py").write_text(SITE)
        self._service = service
        # By name, as SageMaker sorts them: the first one is the chief.
        self.hosts = sorted(f"127.0.0.1:{port}" for port in _free_ports(hosts))
        self.roots = [folder / f"host-{index}" for index in range(hosts)]
        self._code = code_zip(repository, folder / "dr-training-code.zip")

    def fill(self, index: int, records: Path, parameters: Mapping[str, str]) -> Path:
        """What SageMaker puts on a host before it starts; gives the host's root."""
        root = self.roots[index]
        (root / "input" / "config").mkdir(parents=True)
        (root / "model").mkdir()
        channels = root / "input" / "data"
        shutil.copytree(records, channels / "records")
        (channels / "code").mkdir()
        shutil.copy(self._code, channels / "code")
        for name, document in (
            ("hyperparameters", dict(parameters)),
            ("resourceconfig", {"current_host": self.hosts[index], "hosts": self.hosts}),
        ):
            (root / "input" / "config" / f"{name}.json").write_text(json.dumps(document))
        return root

    def imported(self, index: int) -> list[Path]:
        """Files of the modules that a host's processes have imported, until each ended."""
        return [Path(line) for line in self._imported(index).read_text().splitlines()]

    def service_of(self, index: int) -> set[Path]:
        """Folders that the host's modules of the service came from."""
        return {
            Path(*file.parts[: file.parts.index("inference_image")])
            for file in self.imported(index)
            if "inference_image" in file.parts
        }

    @property
    def image(self) -> Path:
        """Where the image's own copy of the service is."""
        return self._service

    def _imported(self, index: int) -> Path:
        return self._folder / f"imported-{index}.txt"

    def start(self, index: int, *words: str, **variables: str) -> "subprocess.Popen[str]":
        """A host's container: the entry point of the image, told to train; or other `words`."""
        temporary = self._folder / f"tmp-{index}"
        temporary.mkdir(exist_ok=True)
        return subprocess.Popen(
            [str(self._python), *(words or ("-m", "inference_image.serve", "train"))],
            cwd=temporary,
            env={
                **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
                "PYTHONPATH": str(self._service),
                "PYTHONDONTWRITEBYTECODE": "1",
                "DR_ML_ROOT": str(self.roots[index]),
                "DR_RUNTIME": "tensorflow",
                "HOME": str(temporary),
                "TMPDIR": str(temporary),
                "IMPORTED": str(self._imported(index)),
                "IMAGE_ONLY": str(self._image_only),
                **variables,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def ended(processes: "Sequence[subprocess.Popen[str]]", within_s: float = 600) -> list[Any]:
    """(exit code, what was printed) of each, when all have ended; none is left running."""
    # Side by side: a host whose full pipe nobody reads would hold up the others.
    with ThreadPoolExecutor(len(processes)) as readers:
        reading = [readers.submit(one.communicate, timeout=within_s) for one in processes]
        try:
            printed = [one.result()[0] for one in reading]
        finally:
            for process in processes:
                if process.poll() is None:
                    # It passes SIGTERM on to its child, which a SIGKILL would leave behind.
                    process.send_signal(signal.SIGTERM)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(_STOPS_WITHIN_S)
                    process.kill()
    return [(one.returncode, text) for one, text in zip(processes, printed, strict=True)]


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
