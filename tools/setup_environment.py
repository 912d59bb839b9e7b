"""Creates the virtual environments and installs the pinned CDK CLI, once.

    python3 tools/setup_environment.py              # .venv, node_modules, the service's kernel
    python3 tools/setup_environment.py --training   # .venv-training, with TensorFlow
    python3 tools/setup_environment.py --bench      # .venv-bench, with the servers compared
    python3 tools/setup_environment.py --study      # .venv-study and .venv-study-mxnet

Standard library only, since it runs before anything is installed. Packages come from the
hash-locked files under requirements/, with the index, proxy and certificates that pip is
configured to use. A second run compares one stamp and returns at once.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - an older Python gets this one sentence
    version = ".".join(str(part) for part in sys.version_info[:2])
    sys.exit(
        f"dr-endpoints needs Python 3.11 or newer, and {sys.executable} is {version}: install a "
        "newer one and name it, for example `make PYTHON=python3.12 demo`."
    )

import argparse
import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOG = ROOT / ".setup.log"
_NETWORK_SIGNS = (
    "failed to fetch",
    "could not connect",
    "connection",
    "network",
    "dns",
    "name resolution",
    "timed out",
    "timeout",
    "tls",
    "certificate",
    "no matching distribution",
    "eai_again",
    "enotfound",
    "econnrefused",
)


class SetupError(Exception):
    """Its text is the one sentence that the person sees."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Set up the development environment.")
    parser.add_argument("--training", action="store_true", help="the environment with TensorFlow")
    parser.add_argument("--bench", action="store_true", help="the servers that are compared")
    parser.add_argument("--study", action="store_true", help="PyTorch, Keras on it and jax; MXNet")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    try:
        with (
            (ROOT / ".setup.lock").open("w") as lock,
            # Installers leave their work folders behind when they are interrupted.
            tempfile.TemporaryDirectory(prefix="dr-setup-", ignore_cleanup_errors=True) as work,
        ):
            os.environ["TMPDIR"] = work
            # `make demo` and `make test` may be started side by side.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if arguments.training:
                set_up(ROOT / ".venv-training", "training.txt", with_cdk_cli=False)
            elif arguments.bench:
                set_up(ROOT / ".venv-bench", "bench.txt", with_cdk_cli=False)
            elif arguments.study:
                set_up(ROOT / ".venv-study", "study.txt", with_cdk_cli=False)
                set_up(ROOT / ".venv-study-mxnet", "study-mxnet.txt", with_cdk_cli=False)
            else:
                set_up(ROOT / ".venv", "dev.txt", with_cdk_cli=True)
                set_up_kernel(ROOT / ".venv" / "bin" / "python")
    except SetupError as error:
        print(f"set-up failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("set-up interrupted; run the same command again to go on.", file=sys.stderr)
        return 130
    return 0


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def set_up(venv: Path, lock_name: str, *, with_cdk_cli: bool) -> None:
    """Bring `venv` to the state that its lock file describes."""
    lock_file = ROOT / "requirements" / lock_name
    stamp_file = venv / ".setup-stamp"
    stamp = _stamp(lock_file, with_cdk_cli=with_cdk_cli)
    node_modules_ready = not with_cdk_cli or (ROOT / "node_modules" / ".bin" / "cdk").exists()
    if stamp_file.is_file() and stamp_file.read_text() == stamp and node_modules_ready:
        return
    LOG.write_text("")
    steps = 4 if with_cdk_cli else 3
    python = venv / "bin" / "python"
    stamp_file.unlink(missing_ok=True)

    with _Step(
        f"virtual environment {venv.name} (Python {platform.python_version()})",
        number=1,
        total=steps,
    ):
        if not _works(python):
            shutil.rmtree(venv, ignore_errors=True)
            _create_venv(venv)
        _run(
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
             "--require-hashes", "-r", ROOT / "requirements" / "uv.txt"],
            what="the installer (uv) could not be downloaded from the Python package index",
        )  # fmt: skip
    uv = venv / "bin" / "uv"
    count = sum("==" in line for line in lock_file.read_text().splitlines())
    with _Step(f"{count} locked Python packages", number=2, total=steps):
        _run(
            [uv, "pip", "sync", "--python", python, "--require-hashes", lock_file],
            what="the locked Python packages could not be downloaded",
            environment=uv_environment(python),
        )
    with _Step("this project, editable", number=3, total=steps):
        if lock_name == "dev.txt":
            _run(
                [uv, "pip", "install", "--python", python, "--no-deps", "--no-build-isolation",
                 "--editable", ROOT],
                what="this project could not be installed into its environment",
                environment=uv_environment(python),
            )  # fmt: skip
    if with_cdk_cli:
        with _Step("AWS CDK CLI from package-lock.json", number=4, total=steps):
            path = f"{venv / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
            _run(
                [venv / "bin" / "npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"],
                what="the AWS CDK CLI could not be downloaded from the npm registry",
                environment={**os.environ, "PATH": path},
            )
    stamp_file.write_text(stamp)
    LOG.unlink(missing_ok=True)


def set_up_kernel(python: Path) -> None:
    """Compile the service's kernel with `cc`, or with Zig from the package index.

    Without a compiler the service works all the same, with NumPy: that is said, and no failure.

    Args:
        python: of an environment that has pip.

    Raises:
        SetupError: there is a compiler, and the source is wrong.
    """
    sys.path.insert(0, str(ROOT))
    from inference_image.docker import build_kernel

    machine = platform.machine()
    if build_kernel.up_to_date(machine):
        return
    what = "the service's kernel, with"
    try:
        if platform.system() != "Linux" or machine not in build_kernel.TARGETS:
            raise build_kernel.NoCompilerError(
                f"it is for {' and '.join(build_kernel.TARGETS)} on Linux"
            )
        if shutil.which(build_kernel.CC):
            with contextlib.suppress(build_kernel.NoCompilerError), _Step(f"{what} cc"):
                build_kernel.build(machine, compiler=build_kernel.CC)
                return
        with _Step(f"{what} Zig from the package index"):
            folder = _zig(python)
            build_kernel.build(machine, compiler=build_kernel.ZIG, zig_folder=folder)
    except (build_kernel.UnavailableError, SetupError) as error:
        # One of another source is not loaded, but only takes up room.
        with contextlib.suppress(OSError):
            (build_kernel.SOURCE.parent / build_kernel.file_name(machine)).unlink(missing_ok=True)
        print(f"set-up goes on without the kernel, and the service uses NumPy: {error}")
    except build_kernel.KernelError as error:
        raise SetupError(str(error)) from None


def _zig(python: Path) -> Path:
    """The folder that holds the locked package ziglang, fetched once."""
    folder, lock_file = ROOT / ".compiler", ROOT / "inference_image" / "requirements-compiler.txt"
    stamp_file, stamp = folder / ".setup-stamp", lock_file.read_text()
    if not stamp_file.is_file() or stamp_file.read_text() != stamp:
        shutil.rmtree(folder, ignore_errors=True)
        _run(
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
             "--require-hashes", "--only-binary=:all:", "--no-deps", "--no-compile",
             "--target", folder, "-r", lock_file],
            what="there is no C compiler, and Zig could not be downloaded",
        )  # fmt: skip
        stamp_file.write_text(stamp)
        LOG.unlink(missing_ok=True)
    return folder


class _Step:
    """One line per long step, with the seconds it took; readable in a log, too."""

    def __init__(self, text: str, *, number: int = 0, total: int = 0) -> None:
        place = f" {number}/{total}" if total else ""
        self._text = f"[set-up{place}] {text}"

    def __enter__(self) -> None:
        print(f"{self._text} …", end="", flush=True)
        self._start = time.monotonic()

    def __exit__(self, kind: object, *_: object) -> None:
        seconds = time.monotonic() - self._start
        print(f" {seconds:.0f} s" if kind is None else " failed", flush=True)


def _stamp(lock_file: Path, *, with_cdk_cli: bool) -> str:
    digest = hashlib.sha256()
    files = [lock_file, ROOT / "requirements" / "uv.txt", ROOT / "pyproject.toml", Path(__file__)]
    if with_cdk_cli:
        files.append(ROOT / "package-lock.json")
    for file in files:
        digest.update(file.read_bytes())
    # A moved checkout or another interpreter makes the scripts in bin/ stale.
    return f"{digest.hexdigest()} {sys.version_info[:3]} {ROOT}\n"


def _works(python: Path) -> bool:
    if not python.exists():
        return False
    probe = [str(python), "-c", "import pip, sys; print(sys.version_info[:2])"]
    result = subprocess.run(probe, capture_output=True, text=True, check=False)
    return result.returncode == 0 and result.stdout.strip() == str(sys.version_info[:2])


def _create_venv(venv: Path) -> None:
    try:
        import ensurepip  # noqa: F401 - Debian splits it into a package of its own
        import venv as _venv  # noqa: F401
    except ImportError:
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        raise SetupError(
            f"this Python cannot make virtual environments; on Debian and Ubuntu run "
            f"`apt-get install python{version}-venv` and try again."
        ) from None
    # Run from inside the environment that is being replaced, the interpreter is gone by now.
    _run(
        [getattr(sys, "_base_executable", sys.executable), "-m", "venv", venv],
        what=f"the virtual environment {venv} could not be made",
    )


def uv_environment(python: Path) -> dict[str, str]:
    """Hand pip's index and certificates to uv, which does not read pip's configuration."""
    environment = dict(os.environ)
    index = environment.get("PIP_INDEX_URL") or _pip_setting(python, "global.index-url")
    if index:
        environment.setdefault("UV_DEFAULT_INDEX", index)
    certificates = environment.get("PIP_CERT") or _pip_setting(python, "global.cert")
    if certificates:
        environment.setdefault("SSL_CERT_FILE", certificates)
    # Where PyTorch's builds without CUDA lie, which the index does not have.
    links = environment.get("PIP_FIND_LINKS") or _pip_setting(python, "global.find-links")
    if links:
        environment.setdefault("UV_FIND_LINKS", links)
    environment.setdefault("UV_LINK_MODE", "copy")
    return environment


def _pip_setting(python: Path, name: str) -> str:
    query = [str(python), "-m", "pip", "config", "get", name]
    result = subprocess.run(query, capture_output=True, text=True, check=False)
    return result.stdout.strip() if result.returncode == 0 else ""


def _run(command: list, *, what: str, environment: dict[str, str] | None = None) -> None:
    with LOG.open("a") as log:
        log.write(f"$ {' '.join(str(part) for part in command)}\n")
        log.flush()
        mark = log.tell()
        try:
            code = subprocess.run(
                [str(part) for part in command],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                check=False,
            ).returncode
        except FileNotFoundError as error:
            raise SetupError(f"{what}: {error.filename} does not exist; see {LOG.name}.") from None
    if code == 0:
        return
    output = LOG.read_text(errors="replace")[mark:].lower()
    if any(sign in output for sign in _NETWORK_SIGNS):
        raise SetupError(
            f"{what}: is the network up, and can this machine reach the registry? A mirror is "
            f"named by PIP_INDEX_URL (Python) or `npm config set registry` (Node); the full "
            f"output is in {LOG.name}."
        )
    raise SetupError(f"{what} (exit code {code}); the full output is in {LOG.name}.")


if __name__ == "__main__":
    sys.exit(main())
