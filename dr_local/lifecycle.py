"""Starts, describes and stops a local AWS.

    >>> with running() as local:
    ...     bootstrap(local)
    ...     deploy(local, ["dr-shared"], context={"local": "true", "publish": "external"})

`up` and `down` work across commands: what runs is written to a state file with each process's
id *and* start time, so that `down` after a crash never ends a stranger's process. `running` is
for one program (the demo, a test): its servers also stop when the program is killed.
"""

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from constructs_lib.limits import INVOCATION_TIMEOUT_S, SERVERLESS_READY_TIMEOUT_S
from dr_local import process_tree
from dr_local.clients import ACCESS_KEY, REGION, SECRET_KEY, client
from dr_local.confinement import remove_groups
from dr_local.containers import SERVE_COMMAND
from dr_local.deployments import account_id
from dr_local.errors import HalfAliveError, LocalAwsError
from dr_local.process_tree import ProcessIdentity

DEFAULT_STATE_DIR = Path(".local-aws")
DEFAULT_IDLE_TIMEOUT_S = 300.0
HOST = "127.0.0.1"
_STATE_FILE = "state.json"
# Also the sign that a folder is ours: what has none is never emptied.
_LOCK_FILE = ".dr-local.lock"
_CONTROL_PLANE = "control_plane"
_RUNTIME = "runtime_server"
_CHANGE_LOG = "changes"
_START_TIMEOUT_S = 60.0
_STOP_GRACE_S = 8.0
_POLL_S = 0.05
_EXIT_PORT_IN_USE = 3
# Everything that a local AWS makes in its state directory, apart from logs.
_TEMPORARY = ("containers", "tmp", "cdk.out", "home", _CHANGE_LOG, "cgroups.json", _STATE_FILE)


@dataclass(frozen=True, kw_only=True)
class LocalAws:
    """A local AWS that was started: addresses, processes and where its files are."""

    state_dir: Path
    instance: str
    control_plane_port: int
    runtime_port: int
    control_plane: ProcessIdentity
    runtime: ProcessIdentity

    @property
    def endpoint_url(self) -> str:
        """The control plane (CloudFormation, S3, SageMaker …)."""
        return f"http://localhost:{self.control_plane_port}"

    @property
    def runtime_url(self) -> str:
        """The SageMaker runtime, `endpoint_url` of a boto3 `sagemaker-runtime` client."""
        return f"http://localhost:{self.runtime_port}"

    @property
    def logs_dir(self) -> Path:
        return self.state_dir / "logs"

    @property
    def is_running(self) -> bool:
        """True while both servers run."""
        return all(process_tree.is_alive(server) for _, server, _ in self._servers)

    @property
    def half_alive(self) -> str | None:
        """Which server has died and what to do, while the other still runs; else None."""
        dead = [row for row in self._servers if not process_tree.is_alive(row[1])]
        if len(dead) != 1:
            return None
        name, process, module = dead[0]
        (other,) = (row[0] for row in self._servers if row not in dead)
        return (
            f"the {name} of the local AWS has died (process {process.pid}, log: "
            f"{_log_file(self.state_dir, module)}) while the {other} still runs; start both anew "
            "with: dr local up (what was deployed is lost)"
        )

    @property
    def _servers(self) -> tuple[tuple[str, ProcessIdentity, str], ...]:
        return (
            ("control plane", self.control_plane, _CONTROL_PLANE),
            ("SageMaker runtime", self.runtime, _RUNTIME),
        )

    def client(self, service: str, *, read_timeout_s: float = 90.0) -> Any:
        """A boto3 client of `service` against this local AWS."""
        url = self.runtime_url if service == "sagemaker-runtime" else self.endpoint_url
        return client(service, url=url, read_timeout_s=read_timeout_s)

    def metrics(self) -> dict[str, Any]:
        """The runtime's `/metrics.json`: endpoints, containers, memory, last invocations."""
        with _open(f"http://{HOST}:{self.runtime_port}/metrics.json") as answer:
            return dict(json.load(answer))


@dataclass(frozen=True, kw_only=True)
class DownReport:
    """What `down` found: server processes it stopped, container processes it had to kill."""

    servers_stopped: int
    containers_killed: int


def up(
    *,
    state_dir: Path = DEFAULT_STATE_DIR,
    port: int | None = None,
    runtime_port: int | None = None,
    idle_timeout_s: float = DEFAULT_IDLE_TIMEOUT_S,
    invocation_timeout_s: float = float(INVOCATION_TIMEOUT_S),
    startup_timeout_s: float = float(SERVERLESS_READY_TIMEOUT_S),
    serve_command: Sequence[str] = SERVE_COMMAND,
    cgroups: bool = True,
    die_with_parent: bool = False,
) -> LocalAws:
    """Start the control plane and the runtime, and wait until both answer.

    Free ports are chosen where none are given. When a local AWS already runs from `state_dir`,
    that one is returned and nothing is started. What a crash left there is stopped and removed
    first, apart from the logs, which stay as `….previous.log`: deployments live in the control
    plane's memory and cannot be taken over.

    Args:
        state_dir: state file, logs and containers; made when missing.
        port: of the control plane.
        runtime_port: of the SageMaker runtime.
        idle_timeout_s: an unused serverless container is stopped after it.
        invocation_timeout_s: the platform's 60 s, settable for tests.
        startup_timeout_s: the platform's 180 s for a container to become ready.
        serve_command: what runs as the container.
        cgroups: False holds memory and CPU by watching and stopping, as on machines where
            control groups cannot be written.
        die_with_parent: stop when the calling process ends, however it ends.

    Raises:
        LocalAwsError: a port is in use, another one runs there on other ports, or a server did
            not start.
    """
    if sys.platform != "linux":
        raise LocalAwsError(
            "the local AWS needs Linux: it holds memory limits and CPU shares through /proc"
        )
    state_dir = state_dir.resolve()
    with _locked(state_dir):
        running_now = _read_state(state_dir)
        if running_now is not None and running_now.is_running:
            _refuse_other_ports(running_now, port, runtime_port)
            return running_now
        # What a crash left behind.
        _stop(state_dir)
        return _start(
            state_dir,
            ports=(_usable_port(port), _usable_port(runtime_port)),
            runtime_arguments=[
                *("--idle-timeout-s", str(idle_timeout_s)),
                *("--invocation-timeout-s", str(invocation_timeout_s)),
                *("--startup-timeout-s", str(startup_timeout_s)),
                *("--serve-command", json.dumps(list(serve_command))),
                *([] if cgroups else ["--no-cgroups"]),
            ],
            die_with_parent=die_with_parent,
        )


def status(*, state_dir: Path = DEFAULT_STATE_DIR) -> LocalAws | None:
    """The local AWS that runs from `state_dir`; None when none does.

    Raises:
        HalfAliveError: one of its two servers has died.
    """
    local = recorded(state_dir=state_dir)
    if local is None:
        return None
    if (reason := local.half_alive) is not None:
        raise HalfAliveError(reason)
    return local if local.is_running else None


def recorded(*, state_dir: Path = DEFAULT_STATE_DIR) -> LocalAws | None:
    """What was last started from `state_dir` and not stopped with `down`, running or not."""
    return _read_state(state_dir.resolve())


def down(*, state_dir: Path = DEFAULT_STATE_DIR, keep_logs: bool = True) -> DownReport:
    """Stop servers and containers and remove their files; harmless when nothing runs."""
    state_dir = state_dir.resolve()
    if not (state_dir / _LOCK_FILE).is_file():
        return DownReport(servers_stopped=0, containers_killed=0)
    with _locked(state_dir):
        report = _stop(state_dir)
        if not keep_logs:
            shutil.rmtree(state_dir / "logs", ignore_errors=True)
        if [path.name for path in state_dir.iterdir()] == [_LOCK_FILE]:
            with contextlib.suppress(OSError):
                (state_dir / _LOCK_FILE).unlink()
                state_dir.rmdir()
    return report


@contextlib.contextmanager
def running(
    *,
    state_dir: Path = DEFAULT_STATE_DIR,
    keep_logs: bool = True,
    **settings: Any,
) -> Iterator[LocalAws]:
    """A local AWS for the length of a `with` block; `settings` are those of `up`."""
    local = up(state_dir=state_dir, die_with_parent=True, **settings)
    try:
        yield local
    finally:
        down(state_dir=state_dir, keep_logs=keep_logs)


def environment(local: LocalAws) -> dict[str, str]:
    """Variables that point every AWS tool at `local`, with nobody's keys."""
    return {
        "AWS_ENDPOINT_URL": local.endpoint_url,
        "AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME": local.runtime_url,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "CDK_DEFAULT_ACCOUNT": account_id(),
        "CDK_DEFAULT_REGION": REGION,
    }


def _start(
    state_dir: Path,
    *,
    ports: tuple[int, int],
    runtime_arguments: list[str],
    die_with_parent: bool,
) -> LocalAws:
    port, runtime_port = ports
    instance = secrets.token_hex(4)
    changes = state_dir / _CHANGE_LOG
    changes.touch()
    parent = ["--parent-pid", str(os.getpid())] if die_with_parent else []
    started: list[subprocess.Popen[bytes]] = []
    try:
        control_plane = _launch(
            state_dir,
            _CONTROL_PLANE,
            ["--port", str(port), "--change-log", str(changes), *parent],
        )
        started.append(control_plane)
        runtime = _launch(
            state_dir,
            _RUNTIME,
            [
                *("--port", str(runtime_port)),
                *("--control-plane", f"http://localhost:{port}"),
                *("--state-dir", str(state_dir)),
                *("--instance", instance),
                *("--change-log", str(changes)),
                *runtime_arguments,
                *parent,
            ],
        )
        started.append(runtime)
        local = LocalAws(
            state_dir=state_dir,
            instance=instance,
            control_plane_port=port,
            runtime_port=runtime_port,
            control_plane=_identity(control_plane),
            runtime=_identity(runtime),
        )
        _write_state(local)
        _wait_healthy(control_plane, _CONTROL_PLANE, port, "/moto-api/", state_dir)
        _wait_healthy(runtime, _RUNTIME, runtime_port, "/ping", state_dir)
    except BaseException:
        for process in started:
            process.kill()
            process.wait()
        _stop(state_dir)
        raise
    for process in started:
        # From here on the state file stands for the servers, in this program or another one;
        # without a return code the handle would complain that they still run.
        process.returncode = 0
    return local


def _launch(state_dir: Path, module: str, arguments: list[str]) -> subprocess.Popen[bytes]:
    temporary = state_dir / "tmp"
    temporary.mkdir(exist_ok=True)
    (state_dir / "logs").mkdir(exist_ok=True)
    package_root = str(Path(__file__).resolve().parent.parent)
    inherited = {name: value for name, value in os.environ.items() if not _is_aws(name)}
    log_file = _log_file(state_dir, module)
    if log_file.exists():
        # It may say why the last one died.
        log_file.replace(log_file.with_suffix(".previous.log"))
    with log_file.open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", f"dr_local.{module}", *arguments],
            cwd=state_dir,
            env={
                **inherited,
                "PYTHONPATH": os.pathsep.join(
                    filter(None, [package_root, os.environ.get("PYTHONPATH")])
                ),
                # moto keeps large objects in temporary files.
                "TMPDIR": str(temporary),
                "AWS_EC2_METADATA_DISABLED": "true",
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _log_file(state_dir: Path, module: str) -> Path:
    return state_dir / "logs" / f"{module}.log"


def _is_aws(name: str) -> bool:
    # A profile, an endpoint or keys of the person must not reach a local server.
    return name.startswith(("AWS_", "MOTO_"))


def _identity(process: subprocess.Popen[bytes]) -> ProcessIdentity:
    identity = process_tree.identify(process.pid)
    if identity is None:  # pragma: no cover - Popen keeps a zombie until we wait
        raise LocalAwsError("a server of the local AWS ended at once; try again")
    return identity


def _wait_healthy(
    process: subprocess.Popen[bytes], module: str, port: int, path: str, state_dir: Path
) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    log = _log_file(state_dir, module)
    while time.monotonic() < deadline:
        code = process.poll()
        if code is not None:
            if code == _EXIT_PORT_IN_USE or _port_taken(port):
                raise LocalAwsError(_port_message(port))
            raise LocalAwsError(
                f"the local AWS did not start: {_last_line(log)} (whole log: {log})"
            )
        with (
            contextlib.suppress(urllib.error.URLError, OSError),
            _open(f"http://{HOST}:{port}{path}") as answer,
        ):
            if answer.status == 200:
                return
        time.sleep(_POLL_S)
    raise LocalAwsError(
        f"the local AWS did not answer on port {port} within {_START_TIMEOUT_S:g} s; see {log}"
    )


def _stop(state_dir: Path) -> DownReport:
    local = _read_state(state_dir)
    stopped = 0
    killed = 0
    if local is not None:
        # The runtime first: it stops its containers in order.
        stopped = sum(
            process_tree.stop(process, grace_s=_STOP_GRACE_S)
            for process in (local.runtime, local.control_plane)
        )
    for path in sorted((state_dir / "containers").glob("*/process.json")):
        with contextlib.suppress(OSError, ValueError, TypeError):
            container = ProcessIdentity(**json.loads(path.read_text()))
            if process_tree.is_alive(container):
                process_tree.kill_descendants(container.pid)
                process_tree.stop(container, grace_s=1.0)
                killed += 1
    if local is not None:
        with contextlib.suppress(OSError, ValueError):
            parents = json.loads((state_dir / "cgroups.json").read_text())
            remove_groups([Path(parent) for parent in parents], instance=local.instance)
    for name in _TEMPORARY:
        path = state_dir / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return DownReport(servers_stopped=stopped, containers_killed=killed)


@contextlib.contextmanager
def _locked(state_dir: Path) -> Iterator[None]:
    """One `up` or `down` at a time for a state directory."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        if not (state_dir / _LOCK_FILE).is_file() and any(state_dir.iterdir()):
            raise LocalAwsError(
                f"{state_dir} holds files that the local AWS did not make; choose an empty or a "
                "new folder as state directory"
            )
        lock = (state_dir / _LOCK_FILE).open("w")
    except OSError as error:
        raise LocalAwsError(
            f"{state_dir} cannot be used as state directory ({error.strerror}); choose another"
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write_state(local: LocalAws) -> None:
    document = {
        "instance": local.instance,
        "control_plane": {"port": local.control_plane_port, **local.control_plane._asdict()},
        "runtime": {"port": local.runtime_port, **local.runtime._asdict()},
    }
    partial = local.state_dir / f".{_STATE_FILE}.partial"
    partial.write_text(json.dumps(document, indent=2) + "\n")
    partial.replace(local.state_dir / _STATE_FILE)


def _read_state(state_dir: Path) -> LocalAws | None:
    try:
        document = json.loads((state_dir / _STATE_FILE).read_text())
        control_plane, runtime = document["control_plane"], document["runtime"]
        return LocalAws(
            state_dir=state_dir,
            instance=document["instance"],
            control_plane_port=control_plane["port"],
            runtime_port=runtime["port"],
            control_plane=_identity_of(control_plane),
            runtime=_identity_of(runtime),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        # A half-written or foreign file tells nothing that could be acted on.
        return None


def _identity_of(row: dict[str, Any]) -> ProcessIdentity:
    return ProcessIdentity(pid=int(row["pid"]), start_ticks=int(row["start_ticks"]))


def _refuse_other_ports(local: LocalAws, port: int | None, runtime_port: int | None) -> None:
    for wanted, used in ((port, local.control_plane_port), (runtime_port, local.runtime_port)):
        if wanted is not None and wanted != used:
            raise LocalAwsError(
                f"a local AWS already runs from {local.state_dir} on port {used}, not {wanted}; "
                "stop it first with: dr local down"
            )


def _usable_port(wanted: int | None) -> int:
    if wanted is None:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            return int(probe.getsockname()[1])
    if not 0 < wanted < 65536:
        raise LocalAwsError(f"port must be between 1 and 65535; it is {wanted}")
    if _port_taken(wanted):
        raise LocalAwsError(_port_message(wanted))
    return wanted


def _port_taken(port: int) -> bool:
    with socket.socket() as probe:
        # As the servers do: a connection that has just closed does not block its port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
        return False


def _port_message(port: int) -> str:
    return f"port {port} is already in use; choose another one, or stop what listens there"


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it wrote nothing"


def _open(url: str) -> Any:
    # Without the proxies of the machine: this is the loopback interface.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return opener.open(url, timeout=5)
