"""Starting and stopping, also after crashes, and without touching anybody else's processes."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dr_local import lifecycle
from dr_local.errors import HalfAliveError, LocalAwsError
from dr_local.process_tree import descendants, identify
from tests.integration.local_aws.endpoints import (
    BUCKET,
    FAKE_SERVE,
    Endpoint,
    make_package,
    serverless,
    template,
    wait_until,
)


def listens_on(pid: int) -> set[str]:
    """Local addresses of the listening TCP sockets of a process, in /proc's notation."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(link.readlink())
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(fields[1].split(":")[0])
    return found


def test_up_down_and_a_crash_between(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "somebody")
    monkeypatch.setenv("HTTP_PROXY", "http://192.0.2.1:1")
    state_dir = tmp_path / "state"
    local = lifecycle.up(state_dir=state_dir, serve_command=FAKE_SERVE)
    try:
        assert lifecycle.status(state_dir=state_dir) == local
        assert lifecycle.up(state_dir=state_dir) == local
        with pytest.raises(LocalAwsError, match=rf"already runs .* on port {local.runtime_port}"):
            lifecycle.up(state_dir=state_dir, runtime_port=local.runtime_port + 1)
        deploy_one(local, tmp_path / "first")
        monkeypatch.undo()
        endpoint = Endpoint(name="one", local=local, runtime_url=local.runtime_url)
        assert not [n for n in endpoint.facts()["environment"] if n.startswith("AWS_")]
        processes = [local.control_plane.pid, local.runtime.pid, *descendants(local.runtime.pid)]
        assert len(processes) == 4
        # 0100007F is 127.0.0.1: nothing listens on another interface.
        assert {a for pid in processes for a in listens_on(pid)} == {"0100007F"}

        os.kill(local.control_plane.pid, signal.SIGKILL)
        os.waitpid(local.control_plane.pid, 0)
        # What is warm goes on; what must be looked up says why it cannot be.
        assert endpoint.facts()["pid"] in processes
        other = Endpoint(name="other", local=local, runtime_url=local.runtime_url)
        assert other.fails()["Exception"] == "ServiceUnavailable"
        with pytest.raises(HalfAliveError, match="the control plane of the local AWS has died"):
            lifecycle.status(state_dir=state_dir)
        os.kill(local.runtime.pid, signal.SIGKILL)
        os.waitpid(local.runtime.pid, 0)
        wait_until(lambda: not [pid for pid in processes if Path(f"/proc/{pid}").exists()])
        assert lifecycle.status(state_dir=state_dir) is None
        assert lifecycle.recorded(state_dir=state_dir) == local

        fresh = lifecycle.up(state_dir=state_dir, serve_command=FAKE_SERVE)
        assert fresh.instance != local.instance
        deploy_one(fresh, tmp_path / "second")
        Endpoint(name="one", local=fresh, runtime_url=fresh.runtime_url).invoke()
        processes = [fresh.control_plane.pid, fresh.runtime.pid, *descendants(fresh.runtime.pid)]
    finally:
        report = lifecycle.down(state_dir=state_dir, keep_logs=False)
    assert report.servers_stopped == 2
    # An orphan's last moment belongs to the machine's first process, not to us.
    wait_until(lambda: not [pid for pid in processes if Path(f"/proc/{pid}").exists()])
    assert not state_dir.exists()
    for instance in (local.instance, fresh.instance):
        assert not list(Path("/sys/fs/cgroup").rglob(f"dr-local-{instance}-*"))
    again = lifecycle.down(state_dir=state_dir)
    assert (again.servers_stopped, again.containers_killed) == (0, 0)


def test_a_dead_runtime_is_told_apart_and_up_starts_both_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from dr_cli import local as commands

    monkeypatch.chdir(tmp_path)
    up = {"control_port": None, "runtime_port": None, "idle_timeout_s": 300.0}
    state_dir = tmp_path / lifecycle.DEFAULT_STATE_DIR
    try:
        commands.up(**up)
        assert "is lost" not in capsys.readouterr().out
        first = lifecycle.recorded()
        assert first is not None
        log = state_dir / "logs" / "runtime_server.log"
        with log.open("a") as stream:
            stream.write("last words\n")
        os.kill(first.runtime.pid, signal.SIGKILL)
        os.waitpid(first.runtime.pid, 0)

        assert commands.status() is False
        said = capsys.readouterr().out
        assert "SageMaker runtime of the local AWS has died" in said
        assert "the control plane still runs" in said
        assert str(log) in said.replace("\n", "")
        assert "dr local up" in said
        with pytest.raises(HalfAliveError, match="has died"):
            commands.running_local_aws()

        commands.up(**up)
        assert "what was deployed there is lost" in capsys.readouterr().out
        assert log.with_suffix(".previous.log").read_text().endswith("last words\n")
        fresh = lifecycle.status()
        assert fresh is not None
        assert fresh.instance != first.instance
        assert not identify(first.control_plane.pid)
        commands.up(**up)
        assert "runs already" in capsys.readouterr().out
    finally:
        lifecycle.down()
    assert lifecycle.recorded() is None


def test_servers_of_a_program_end_with_it_even_when_it_is_killed(tmp_path: Path):
    program = (
        "import sys, time; from pathlib import Path; from dr_local.lifecycle import running\n"
        "with running(state_dir=Path(sys.argv[1])) as local:\n"
        "    print(local.control_plane.pid, local.runtime.pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "state")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    assert len(pids) == 2
    process.kill()
    process.wait(20)
    process.stdout.close()
    wait_until(lambda: not [pid for pid in pids if Path(f"/proc/{pid}").exists()], seconds=10)
    lifecycle.down(state_dir=tmp_path / "state")


def test_a_port_in_use_is_named(tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for arguments in ({"port": port}, {"runtime_port": port}):
            with pytest.raises(LocalAwsError, match=f"port {port} is already in use"):
                lifecycle.up(state_dir=tmp_path / "state", **arguments)
    assert lifecycle.status(state_dir=tmp_path / "state") is None


@pytest.mark.parametrize("port", [0, 70000])
def test_a_number_that_is_no_port_is_refused(tmp_path: Path, port: int):
    with pytest.raises(LocalAwsError, match="between 1 and 65535"):
        lifecycle.up(state_dir=tmp_path / "state", port=port)


def test_a_state_directory_that_cannot_be_made(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalAwsError, match="cannot be used as state directory"):
        lifecycle.up(state_dir=tmp_path / "file" / "below")


def test_down_never_ends_a_strangers_process(tmp_path: Path):
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        identity = identify(stranger.pid)
        assert identity is not None
        reused = {"pid": stranger.pid, "start_ticks": identity.start_ticks - 1}
        state = {
            "instance": "x",
            "control_plane": {"port": 1, **reused},
            "runtime": {"port": 2, **reused},
        }
        (tmp_path / ".dr-local.lock").touch()
        (tmp_path / "state.json").write_text(json.dumps(state))
        container = tmp_path / "containers" / "0001"
        container.mkdir(parents=True)
        (container / "process.json").write_text(json.dumps(reused))
        report = lifecycle.down(state_dir=tmp_path)
        assert (report.servers_stopped, report.containers_killed) == (0, 0)
        time.sleep(0.1)
        assert stranger.poll() is None
        assert not (tmp_path / "containers").exists()
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"instance": 1}',
        '{"control_plane": 3}',
        (
            '{"instance": "x", "control_plane": {"port": 1, "pid": 1e400, "start_ticks": 1},'
            ' "runtime": {"port": 1, "pid": 1, "start_ticks": 1}}'
        ),
    ],
)
def test_a_damaged_state_file_is_as_good_as_none(tmp_path: Path, text: str):
    (tmp_path / ".dr-local.lock").touch()
    (tmp_path / "state.json").write_text(text)
    (tmp_path / "keep.txt").write_text("not ours")
    assert lifecycle.status(state_dir=tmp_path) is None
    lifecycle.down(state_dir=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".dr-local.lock", "keep.txt"]


def test_a_folder_that_is_not_ours_is_neither_used_nor_emptied(tmp_path: Path):
    thesis = tmp_path / "tmp" / "thesis.txt"
    thesis.parent.mkdir()
    thesis.write_text("years of work")
    lifecycle.down(state_dir=tmp_path)
    assert thesis.read_text() == "years of work"
    with pytest.raises(LocalAwsError, match="choose an empty or a new folder"):
        lifecycle.up(state_dir=tmp_path)
    assert thesis.read_text() == "years of work"


def test_a_server_that_cannot_start_leaves_nothing(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    state_dir = tmp_path / "state"
    with pytest.raises(LocalAwsError, match="did not start: it wrote nothing"):
        lifecycle.up(state_dir=state_dir)
    assert not (state_dir / "state.json").exists()
    assert lifecycle.status(state_dir=state_dir) is None


def deploy_one(local: lifecycle.LocalAws, folder: Path) -> None:
    from dr_local.publish import push_package

    s3 = local.client("s3")
    s3.create_bucket(Bucket=BUCKET)
    package = make_package(folder / "package", "one")
    key = push_package(package, bucket=BUCKET, client=s3)
    assert push_package(package, bucket=BUCKET, client=s3) == key
    local.client("cloudformation").create_stack(
        StackName="one",
        TemplateBody=template(
            name="one", model_data_url=f"s3://{BUCKET}/{key}", variant=serverless()
        ),
    )
