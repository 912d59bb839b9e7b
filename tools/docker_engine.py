"""A Docker engine for the time of a command or a test, where none is running.

    with docker_engine(Path(".docker-engine")) as engine:
        engine.run("images")

An engine that answers is used as it is. Otherwise Debian's own (docker.io, containerd, runc) is
unpacked into a folder, without being installed, and started with all its state in a folder that
is removed afterwards. That takes root. It has no network of its own: builds and containers use
the host's (`engine.network`). Standard library only.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tools.debian import DebianError, DebianPackages

DEBIAN_SUITE: Final = "trixie"
DEBIAN_IMAGE: Final = f"debian:{DEBIAN_SUITE}-slim"
_PACKAGES: Final = ("docker.io", "containerd", "runc", "tini", "libdevmapper1.02.1", "mmdebstrap")
_START_S: Final = 60
_STOP_S: Final = 30
_BASE_S: Final = 1800
# A base image of Debian packages is made again after a week, for their security updates.
_BASE_AGE_S: Final = 7 * 24 * 3600


class EngineError(Exception):
    """Its text is one sentence for the person at the keyboard."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How to reach a Docker engine.

    `environment` is what the client needs beside the caller's own; `own` says whether the engine
    was started here; `folder` holds what Debian's packages brought, if it was.
    """

    version: str
    own: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None

    @property
    def network(self) -> tuple[str, ...]:
        """Arguments that give builds and containers a network."""
        return ("--network", "host") if self.own else ()

    def run(
        self, *arguments: str, timeout_s: float = 600, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """`docker ARGUMENTS…`, with its output as text.

        Raises:
            EngineError: it failed, and `check` is set.
        """
        done = subprocess.run(
            [self.docker, *arguments],
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if check and done.returncode != 0:
            raise EngineError(f"docker {arguments[0]} failed: {done.stderr.strip()[-2000:]}")
        return done

    @property
    def docker(self) -> str:
        """Path of the client."""
        path = self.environment.get("PATH", os.environ.get("PATH"))
        return shutil.which("docker", path=path) or "docker"


def answering() -> Engine | None:
    """The engine that the environment points to, if one answers."""
    if shutil.which("docker") is None:
        return None
    try:
        done = subprocess.run(
            ["docker", "version", "--format", "{{.Server.Version}}"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode != 0 or not done.stdout.strip():
        return None
    return Engine(version=done.stdout.strip(), environment={"DOCKER_BUILDKIT": "1"})


@contextlib.contextmanager
def docker_engine(cache: Path) -> Iterator[Engine]:
    """The engine that answers, or Debian's own for the time of the block.

    Args:
        cache: folder for Debian's packages, kept for the next time.

    Raises:
        EngineError: none answers, and none can be started.
    """
    engine = answering()
    if engine is not None:
        yield engine
        return
    if os.geteuid() != 0:
        raise EngineError(
            "there is no Docker engine that answers, and only root can start one: start Docker, "
            "or try again as root on a Debian machine"
        )
    try:
        root = _unpack(cache)
    except DebianError as error:
        raise EngineError(f"there is no Docker engine that answers, and {error}") from None
    # A short path: the name of a socket has at most 107 characters.
    state = Path(tempfile.mkdtemp(prefix="dr-docker-", dir="/tmp"))
    try:
        with _running(root, state) as engine:
            yield engine
    finally:
        _clear(state)


def debian_base(engine: Engine, cache: Path, *, include: tuple[str, ...] = ()) -> str:
    """Load an image of Debian's minimal system into an engine without a registry; its name.

    It has the name of the image that a registry would bring, so that a Dockerfile finds it.
    Further packages make it another image, with another name.

    Raises:
        EngineError: it cannot be made.
    """
    name = DEBIAN_IMAGE if not include else f"dr-debian-{'-'.join(include)}:{DEBIAN_SUITE}"
    if engine.folder is None:
        raise EngineError(f"{name} is made for engines that were started here only")
    packages = ("ca-certificates", *(include or ("python3-venv",)))
    archive = cache.resolve() / f"{name.replace(':', '-')}.tar"
    if not archive.is_file() or time.time() - archive.stat().st_mtime > _BASE_AGE_S:
        work = archive.with_name(f".{archive.name}")
        done = subprocess.run(
            [
                str(engine.folder / "usr/bin/mmdebstrap"),
                *("--quiet", "--variant=minbase", "--aptopt=Acquire::Languages none"),
                f"--include={','.join(packages)}",
                *("--format=tar", DEBIAN_SUITE, str(work)),
            ],
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_BASE_S,
            check=False,
        )
        if done.returncode != 0:
            raise EngineError(f"mmdebstrap made no {name}: {done.stderr.strip()[-1000:]}")
        work.rename(archive)
    engine.run("import", str(archive), name)
    return name


def _unpack(cache: Path) -> Path:
    root = cache.resolve() / "root"
    stamp = root / ".complete"
    if not stamp.is_file():
        shutil.rmtree(root, ignore_errors=True)
        DebianPackages(cache / "packages").unpack(_PACKAGES, root)
        stamp.touch()
    return root


@contextlib.contextmanager
def _running(root: Path, state: Path) -> Iterator[Engine]:
    folders = [root / part for part in ("usr/bin", "usr/sbin", "sbin")]
    libraries = sorted(path.parent for path in root.glob("lib/*/libdevmapper.so*"))
    environment = {
        "PATH": os.pathsep.join([*map(str, folders), os.environ.get("PATH", "/usr/bin:/bin")]),
        "LD_LIBRARY_PATH": os.pathsep.join(str(path) for path in libraries[:1]),
    }
    client = {
        **environment,
        "DOCKER_HOST": f"unix://{state}/docker.sock",
        "DOCKER_BUILDKIT": "1",
        # Of the client: nothing of the user's is read or written.
        "DOCKER_CONFIG": str(state / "client"),
    }
    log_path = state / "engine.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [
                # The engine ends when whoever started it is killed.
                *("setpriv", "--pdeathsig", "TERM", "dockerd"),
                *("--data-root", f"{state}/data", "--exec-root", f"{state}/exec"),
                *("--pidfile", f"{state}/pid", "--host", f"unix://{state}/docker.sock"),
                *("--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false"),
            ],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        engine = Engine(version="", own=True, environment=client, folder=root)
        try:
            version = _wait_for(engine, process, log_path)
            yield Engine(version=version, own=True, environment=client, folder=root)
        finally:
            _stop(engine, process)


def _wait_for(engine: Engine, process: subprocess.Popen[bytes], log: Path) -> str:
    until = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < until:
        done = engine.run("version", "--format", "{{.Server.Version}}", check=False, timeout_s=20)
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.strip()
        time.sleep(0.2)
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    said = lines[-1] if lines else "it said nothing"
    raise EngineError(f"Debian's Docker engine did not start: {said}")


def _stop(engine: Engine, process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(Exception):
            running = engine.run("ps", "--quiet", timeout_s=20).stdout.split()
            if running:
                engine.run("kill", *running, timeout_s=20)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _clear(state: Path) -> None:
    """End what still runs out of `state`, take its mounts away, and remove it."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(state).encode() in entry.read_bytes():
                os.kill(int(entry.parent.name), signal.SIGKILL)
    lines = Path("/proc/self/mountinfo").read_text("utf-8", "replace").splitlines()
    points = [line.split()[4] for line in lines if line.split()[4].startswith(f"{state}/")]
    for point in sorted(points, reverse=True):
        subprocess.run(["umount", "--lazy", point], capture_output=True, check=False)
    # What was killed needs a moment to let go of its files.
    for _ in range(20):
        # Hundreds of thousands of files: `rm` takes a fraction of Python's time.
        subprocess.run(["rm", "-rf", str(state)], capture_output=True, check=False)
        if not state.exists():
            return
        time.sleep(0.25)
