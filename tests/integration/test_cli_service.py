"""`dr serve` and `dr predict` as real processes with the tiny test model."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

DR = [sys.executable, "-m", "dr_cli"]


@pytest.fixture(autouse=True)
def interruptible() -> None:
    """A run in the background of a script ignores Ctrl-C, and what it starts inherits that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def package(repository: Path) -> Path:
    return repository / "tests" / "data" / "tiny-model"


@pytest.fixture(scope="module")
def drawing(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    folder = tmp_path_factory.mktemp("drawn")
    run("draw", "--out", str(folder), "--grade", "2", "--seed", "5", cwd=folder)
    return folder / "grade2-seed5.jpg"


def run(*arguments: str, cwd: Path, code: int = 0) -> str:
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [*DR, *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_ready(port: int) -> None:
    """Return when `/ping` says 200; it is 503 until the model is warm."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with (
            contextlib.suppress(OSError),
            opener.open(f"http://127.0.0.1:{port}/ping", timeout=2),
        ):
            return
        time.sleep(0.05)
    raise AssertionError("the service did not become ready")


def test_predict_with_a_model_starts_a_service_and_stops_it(
    tmp_path: Path, package: Path, drawing: Path
) -> None:
    out = run(
        "predict", str(drawing), str(drawing), "--model", str(package), "--json", cwd=tmp_path
    )
    answers = [json.loads(line) for line in out.splitlines()]
    assert len(answers) == 2
    for answer in answers:
        assert abs(sum(answer["predictions"]) - 1) < 1e-6
    # One service answered both, and it was a fresh one.
    assert [answer["container"]["requests_before"] for answer in answers] == [0, 1]
    assert not [p for p in psutil.Process().children(recursive=True) if "serve" in p.name()]


def test_a_file_that_is_no_image_fails_and_the_others_are_answered(
    tmp_path: Path, package: Path, drawing: Path
) -> None:
    (tmp_path / "cut.jpg").write_bytes(drawing.read_bytes()[:3000])
    out = run(
        "predict", "cut.jpg", str(drawing), "--model", str(package), "--json",
        cwd=tmp_path, code=1,
    )  # fmt: skip
    first, second = (json.loads(line) for line in out.splitlines())
    assert (first["outcome"], first["status"]) == ("refused", 422)
    assert second["quality"]["gradable"] is True


def test_ctrl_c_of_a_terminal_ends_serve_with_success(tmp_path: Path, package: Path) -> None:
    """The service gets SIGINT as well; a SIGTERM while it ends by itself would be a failure."""
    port = free_port()
    with subprocess.Popen(
        [*DR, "serve", "--model", str(package), "--port", str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            wait_until_ready(port)
            children = psutil.Process(process.pid).children(recursive=True)
            os.killpg(process.pid, signal.SIGINT)
            output, _ = process.communicate(timeout=20)
            assert process.returncode == 0, output
            assert "Traceback" not in output
            _, alive = psutil.wait_procs(children, timeout=5)
            assert alive == []
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_serve_ends_with_its_service(
    tmp_path: Path, package: Path, drawing: Path, signum: signal.Signals
) -> None:
    port = free_port()
    with subprocess.Popen(
        [*DR, "serve", "--model", str(package), "--port", str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            wait_until_ready(port)
            out = run("predict", str(drawing), "--url", f"127.0.0.1:{port}", cwd=tmp_path)
            assert "gradable" in out
            children = psutil.Process(process.pid).children(recursive=True)
            assert children
            # To the command alone, as a supervisor does; a terminal signals the service too.
            process.send_signal(signum)
            expected = 0 if signum == signal.SIGINT else 128 + signum
            assert process.wait(20) == expected
            _, alive = psutil.wait_procs(children, timeout=5)
            assert alive == []
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
