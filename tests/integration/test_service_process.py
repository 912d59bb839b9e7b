"""A real `serve`: how it starts, stops, fails, and survives the death of a worker."""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from inference_image import stopping
from inference_image.listener import listen
from inference_image.settings import Settings
from tests.service_harness import (
    REPOSITORY,
    TINY_MODEL,
    Reply,
    Served,
    b64,
    copy_package,
    drawn_jpeg,
    pending,
    running,
    stop,
    wait_until,
)

JPEG = {"Content-Type": "image/jpeg"}
NOBODY = 65534


def invoke(served: Served) -> Any:
    return served.request("POST", "/invocations", drawn_jpeg(), JPEG)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_it_listens_on_the_platforms_port_and_says_how_long_each_phase_took() -> None:
    port = free_port()
    with running(Served(TINY_MODEL, environment={"SAGEMAKER_BIND_TO_PORT": str(port)})) as served:
        assert served.connect().port == port
        answer = invoke(served).json()
        wait_until(lambda: served.event("ready"))
        ready = served.event("ready")
    assert ready is not None
    assert answer["container"]["started_to_ready_ms"] == ready["started_to_ready_ms"]
    phases = ready["imports_ms"] + ready["model_load_ms"] + ready["warm_up_ms"]
    assert 0 < phases <= ready["started_to_ready_ms"]
    assert ready["resident_mib"] > 10
    assert ready["kernel"] == "compiled"
    loaded = served.event("model")
    assert loaded is not None
    assert loaded["runtime"] == "litert"
    assert loaded["runtime_version"] == version("ai-edge-litert")
    assert "onednn" not in loaded
    assert answer["container"]["requests_before"] == 0
    assert {event["start_id"] for event in served.events} == {answer["container"]["start_id"]}
    with running(Served(TINY_MODEL)) as fresh:
        container = invoke(fresh).json()["container"]
    assert container["start_id"] != answer["container"]["start_id"]
    assert container["requests_before"] == 0


def test_another_event_loop_is_not_taken_because_it_is_installed(tmp_path: Path) -> None:
    module = tmp_path / "uvloop" / "__init__.py"
    module.parent.mkdir()
    module.write_text('raise RuntimeError("uvloop was imported")\n', encoding="utf-8")
    environment = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"}
    with running(Served(TINY_MODEL, environment=environment)) as served:
        assert invoke(served).status == 200


def test_the_log_says_when_numpy_does_the_work_of_the_kernel() -> None:
    with running(Served(TINY_MODEL, environment={"DR_KERNEL": "numpy"})) as served:
        wait_until(lambda: served.event("ready"))
        assert invoke(served).json()["grade"] is not None
        ready = served.event("ready")
    assert ready is not None
    assert ready["kernel"] == "numpy"


@pytest.mark.parametrize("workers", ["1", "2"])
def test_sigterm_lets_the_request_in_flight_finish(workers: str) -> None:
    environment = {"MODEL_SERVER_WORKERS": workers, "DR_SERVING_MODE": "realtime"}
    with running(Served(TINY_MODEL, environment=environment)) as served:
        body = drawn_jpeg()
        connection = served.connect()
        connection.putrequest("POST", "/invocations")
        connection.putheader("Content-Type", "image/jpeg")
        connection.putheader("Content-Length", str(len(body)))
        connection.putheader("Expect", "100-continue")
        connection.endheaders()
        # The service asks for the body: from here on the request is its own.
        assert connection.sock.recv(100).startswith(b"HTTP/1.1 100")
        connection.send(body[:1000])
        stop(served)
        wait_until(lambda: served.event("stopping"))
        assert served.process.poll() is None
        connection.send(body[1000:])
        response = connection.getresponse()
        assert response.status == 200
        assert json.loads(response.read())["model"]["id"] == "tiny-test"
        connection.close()
        assert served.end() == 0
        assert served.sentences() == []


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_request_on_an_idle_connection_is_answered_while_it_stops(workers: str) -> None:
    environment = {"MODEL_SERVER_WORKERS": workers, "DR_SERVING_MODE": "realtime"}
    patient = Served(TINY_MODEL, environment=environment, spans={"worker._IDLE_WITHIN_S": 600})
    with running(patient) as served:
        wait_until(lambda: count(served, "ready") == int(workers))
        connection = served.connect()
        for moment in ("before", "after"):
            connection.request("POST", "/invocations", drawn_jpeg(), JPEG)
            response = connection.getresponse()
            assert response.status == 200
            response.read()
            assert response.headers["connection"] == (None if moment == "before" else "close")
            if moment == "before":
                idle = connection.sock
                stop(served)
                wait_until(lambda: count(served, "stopping") == int(workers))
                # The same connection, which the service has not closed.
                assert connection.sock is idle
        connection.close()
        # Nobody is left, so nothing of the time for the idle is waited for.
        assert served.end() == 0


def test_what_is_no_http_is_a_problem() -> None:
    with running(Served(TINY_MODEL)) as served:
        port = served.connect().port
        for request in (
            b"Good morning\r\n\r\n",
            b"POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
            b"GET /ping HTTP/1.1\r\nHost: x\r\n" + b"X: 1\r\n" * 100_000 + b"\r\n",
            b"\x16\x03\x01\x02\x00" + bytes(200),
        ):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as caller:
                with contextlib.suppress(ConnectionError):
                    caller.sendall(request)
                response = http.client.HTTPResponse(caller)
                response.begin()
                assert response.status == 400, request[:60]
                assert response.headers["content-type"] == "application/problem+json"
                assert json.loads(response.read())["status"] == 400


def test_an_attribute_in_a_second_header_counts_as_well() -> None:
    with running(Served(TINY_MODEL)) as served:
        connection = served.connect()
        connection.putrequest("POST", "/invocations")
        connection.putheader("Content-Type", "image/jpeg")
        connection.putheader("Content-Length", str(len(drawn_jpeg())))
        for value in ("operating_point=high_sensitivity", "operating=unknown"):
            connection.putheader("X-Amzn-SageMaker-Custom-Attributes", value)
        connection.endheaders(drawn_jpeg())
        response = connection.getresponse()
        assert response.status == 400
        assert "operating=unknown" in json.loads(response.read())["detail"]
        connection.close()


@pytest.mark.parametrize("layout", ["lean", "full"])
def test_what_cannot_be_computed_before_the_end_is_told_to_come_back(layout: str) -> None:
    photograph = drawn_jpeg(size_px=1500)
    many = json.dumps({"instances": [{"b64": b64(photograph)} for _ in range(12)]}).encode()
    kinds = [(many, "application/json"), (photograph, "image/jpeg")]
    replies: list[Reply] = []

    def call(served: Served, number: int) -> None:
        body, kind = kinds[number % 2]
        replies.append(served.request("POST", "/invocations", body, {"Content-Type": kind}))

    # Some seconds of work, of which there is time for half of one.
    spans = {
        "worker._DRAIN_S": 6,
        "worker._LAST_ANSWERS_S": 5.5,
        "worker._HEARTBEAT_S": 0.1,
        "full_layout._DRAIN_S": 7.0,
        "full_layout._LAST_ANSWERS_S": 6.5,
    }
    slow = Served(TINY_MODEL, environment={"DR_LAYOUT": layout}, spans=spans)
    with running(slow) as served:
        callers = [threading.Thread(target=call, args=(served, number)) for number in range(60)]
        for caller in callers:
            caller.start()
        wait_until(lambda: pending(served) + len(replies) >= 60)
        stop(served)
        for caller in callers:
            caller.join()
        assert served.end() == 0
        assert served.sentences() == []
    statuses = Counter(reply.status for reply in replies)
    assert set(statuses) <= {200, 503}
    assert statuses[503] > 0
    assert sum(statuses.values()) == 60
    for reply in replies:
        if reply.status == 503:
            assert reply.headers["content-type"] == "application/problem+json"
            assert reply.json()["detail"] == "The container is stopping; send it again."
            assert reply.json()["retry_after_s"] == 1.0
    logged = Counter(event["status"] for event in served.events if event["event"] == "request")
    assert logged == statuses
    assert count(served, "http_server") == 0


def test_a_connection_that_stays_idle_does_not_keep_it_from_stopping() -> None:
    # What would be kept from stopping would be kept for ever.
    with running(Served(TINY_MODEL, spans={"worker._DRAIN_S": 36_000})) as served:
        connection = served.connect()
        connection.request("GET", "/ping")
        assert connection.getresponse().read()
        stop(served)
        assert served.end(timeout_s=120) == 0
        connection.close()


def test_under_load_every_request_is_answered_at_sigterm() -> None:
    environment = {"MODEL_SERVER_WORKERS": "2", "DR_SERVING_MODE": "realtime"}
    outcomes = Counter[str]()
    body = drawn_jpeg()

    def call(port: int, *, keep: bool) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        while True:
            try:
                if connection.sock is None:
                    connection.connect()
            except OSError:
                outcomes["not accepted"] += 1
                return
            try:
                connection.request("POST", "/invocations", body, JPEG)
                response = connection.getresponse()
                response.read()
            except (OSError, http.client.HTTPException) as error:
                outcomes[f"{type(error).__name__}, keep={keep}"] += 1
                return
            outcomes[str(response.status)] += 1
            if response.status == 503:
                return
            if not keep:
                connection.close()

    with running(Served(TINY_MODEL, environment=environment)) as served:
        wait_until(lambda: count(served, "ready") == 2)
        port = served.connect().port
        callers = [
            threading.Thread(target=call, args=(port,), kwargs={"keep": index % 2 == 0})
            for index in range(16)
        ]
        for caller in callers:
            caller.start()
        wait_until(lambda: outcomes["200"] > 50)
        stop(served)
        assert served.end() == 0
        for caller in callers:
            caller.join()
    assert outcomes["200"] > 50
    assert set(outcomes) <= {"200", "503", "not accepted"}, outcomes


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_worker_is_as_small_again_after_a_large_body(workers: str) -> None:
    environment = {"MODEL_SERVER_WORKERS": workers, "DR_SERVING_MODE": "realtime"}
    large = b'{"image": "%b"}' % (b"A" * 30_000_000)

    def resident_mib() -> float:
        numbers = served.request("GET", "/metrics").body.decode()
        found = re.findall(r'^dr_worker_resident_bytes{worker="\d+"} (\d+)$', numbers, re.MULTILINE)
        assert len(found) == int(workers)
        return sum(map(int, found)) / 2**20

    with running(Served(TINY_MODEL, environment=environment)) as served:
        wait_until(lambda: count(served, "ready") == int(workers))
        for _ in range(8):
            assert invoke(served).status == 200
        before = resident_mib()
        for _ in range(4):
            reply = served.request(
                "POST", "/invocations", large, {"Content-Type": "application/json"}
            )
            assert reply.status == 422
        wait_until(lambda: resident_mib() < before + 10)


def test_sigterm_while_it_starts_is_a_quick_and_quiet_end() -> None:
    with Served(TINY_MODEL) as served:
        wait_until(lambda: served.event("listening"))
        stop(served)
        assert served.end(timeout_s=20) == 0
        assert served.sentences() == []


@pytest.mark.parametrize(
    ("workers", "breakage", "fragment"),
    [
        ("1", "absent", "holds no model.json, .tflite file or SavedModel"),
        ("1", "truncated", "the package is damaged"),
        ("2", "truncated", "the package is damaged"),
    ],
)
def test_a_model_that_cannot_be_served_ends_the_process(
    tmp_path: Path, workers: str, breakage: str, fragment: str
) -> None:
    package = tmp_path / "package"
    if breakage == "truncated":
        copy_package(package)
        model = package / "model.tflite"
        model.write_bytes(model.read_bytes()[:-100])
    statuses = Counter[int]()
    environment = {"MODEL_SERVER_WORKERS": workers, "DR_SERVING_MODE": "realtime"}
    with Served(package, environment=environment) as served:
        while served.process.poll() is None:
            with contextlib.suppress(OSError, AssertionError):
                statuses[served.request("GET", "/ping").status] += 1
        assert served.end() == stopping.EXIT_MODEL
        sentences = served.sentences()
    assert statuses[200] == 0
    assert len(sentences) == 1
    assert fragment in sentences[0]


def refused(environment: dict[str, str], *arguments: str) -> tuple[int, str]:
    """Exit code and standard error of a `serve` that should not start."""
    ended = subprocess.run(
        [sys.executable, "-m", "inference_image.serve", *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY), **environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return ended.returncode, ended.stderr


def test_a_port_in_use_is_one_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, error = refused({"DR_BIND_HOST": "127.0.0.1", "SAGEMAKER_BIND_TO_PORT": port})
    assert code == stopping.EXIT_SETTINGS
    assert error.count("\n") == 1
    assert f"127.0.0.1:{port}" in error
    assert "SAGEMAKER_BIND_TO_PORT" in error


@pytest.mark.parametrize(
    ("environment", "arguments", "fragment"),
    [
        ({"MODEL_SERVER_WORKERS": "none"}, (), "MODEL_SERVER_WORKERS must be a whole number"),
        ({"DR_BIND_HOST": "192.0.2.1"}, (), "set DR_BIND_HOST to an address of this machine"),
        ({"DR_BIND_HOST": "a" * 70}, (), "DR_BIND_HOST"),
        ({"DR_BIND_HOST": "\udcff.example"}, (), "DR_BIND_HOST is not an address"),
        (
            {"DR_SERVING_MODE": "serverless", "MODEL_SERVER_WORKERS": "2"},
            (),
            "MODEL_SERVER_WORKERS must be 1",
        ),
        ({}, ("test",), "the commands are 'serve' and 'train', alone; got 'test'"),
    ],
)
def test_what_cannot_start_is_one_sentence(
    environment: dict[str, str], arguments: tuple[str, ...], fragment: str
) -> None:
    code, error = refused(environment, *arguments)
    assert code == stopping.EXIT_SETTINGS
    assert error.count("\n") == 1
    assert fragment in error


def test_two_workers_share_the_port_and_one_count() -> None:
    environment = {"MODEL_SERVER_WORKERS": "2", "DR_SERVING_MODE": "realtime"}
    with running(Served(TINY_MODEL, environment=environment)) as served:
        counts = [invoke(served).json()["container"]["requests_before"] for _ in range(12)]
        assert counts == list(range(12))
        assert len(children(served)) == 2
        # Whichever worker is asked, it knows of all.
        wait_until(lambda: count(served, "ready") == 2)
        for _ in range(6):
            numbers = served.request("GET", "/metrics").body
            assert b'dr_requests_total{status="200"} 12\n' in numbers
            assert b"dr_workers_ready 2\n" in numbers


def test_callers_who_come_together_are_spread_over_the_workers() -> None:
    environment = {
        "DR_SERVING_MODE": "realtime",
        "MODEL_SERVER_WORKERS": "2",
        "DR_METRICS": "prometheus",
    }
    with running(Served(TINY_MODEL, environment=environment)) as served:
        port = served.connect().port

        def are_ready() -> bool:
            return b"dr_workers_ready 2" in served.request("GET", "/metrics").body

        wait_until(are_ready)

        def fewest_of_forty() -> int:
            before = sum(map(connections, children(served)))
            with contextlib.ExitStack() as callers:
                for _ in range(40):
                    callers.enter_context(socket.create_connection(("127.0.0.1", port)))
                wait_until(lambda: sum(map(connections, children(served))) >= before + 40)
                return min(map(connections, children(served)))

        # Without care for each other one has been seen to take 37. A worker may be kept from the
        # processor by others once, but hardly three times in a row.
        assert any(fewest_of_forty() >= 10 for _ in range(3))


def test_callers_who_keep_their_connections_move_to_a_worker_that_comes_later() -> None:
    environment = {"DR_SERVING_MODE": "realtime", "MODEL_SERVER_WORKERS": "2"}
    with running(Served(TINY_MODEL, environment=environment)) as served:
        wait_until(lambda: count(served, "ready") == 2)
        first, second = children(served)
        os.kill(second, signal.SIGSTOP)
        callers = [served.connect() for _ in range(12)]

        def all_ask() -> int:
            for caller in callers:
                caller.request("POST", "/invocations", drawn_jpeg(size_px=128), JPEG)
                response = caller.getresponse()
                assert response.read()
                assert response.status == 200
            return connections(second)

        all_ask()
        # The other one does not take them: then only some are asked, now and then.
        wait_until(lambda: all_ask() == 0 and connections(first) >= 8)
        os.kill(second, signal.SIGCONT)
        wait_until(lambda: all_ask() >= 3)
        for caller in callers:
            caller.close()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_signals_that_come_again_and_again_change_no_exit_code(workers: str) -> None:
    environment = {"DR_SERVING_MODE": "realtime", "MODEL_SERVER_WORKERS": workers}
    with running(Served(TINY_MODEL, environment=environment)) as served:
        wait_until(lambda: count(served, "ready") == int(workers))
        while served.process.poll() is None:
            served.process.terminate()
            time.sleep(0.002)
        assert served.end() == 0
        assert served.sentences() == []


def connections(pid: int) -> int:
    """Connections of callers that a process holds."""
    held = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            held.add(str(link.readlink()))
    table = Path(f"/proc/{pid}/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    established = "01"
    return sum(
        fields[3] == established and f"socket:[{fields[9]}]" in held
        for fields in map(str.split, table)
    )


def test_until_a_worker_is_ready_callers_are_told_to_come_back() -> None:
    environment = {"MODEL_SERVER_WORKERS": "2", "DR_SERVING_MODE": "realtime"}
    with Served(TINY_MODEL, environment=environment) as served:
        first = served.request("GET", "/ping")
        assert first.status == 503
        assert first.headers["content-type"] == "application/problem+json"
        assert first.json()["retry_after_s"] == 1.0
        assert invoke(served).status in (200, 503)
        served.wait_ready()
        # From the first 200 on nobody meets the worker that is still loading.
        statuses = {invoke(served).status for _ in range(20)}
        assert statuses == {200}
        assert served.sentences() == []


def test_code_that_comes_with_a_package_is_not_run_and_the_log_says_so(tmp_path: Path) -> None:
    package = copy_package(tmp_path / "package")
    (package / "code").mkdir()
    (package / "code" / "requirements.txt").touch()
    (package / "code" / "inference.py").write_text("raise SystemExit(9)")
    with running(Served(package)) as served:
        wait_until(lambda: served.event("ready") is not None)
        event = served.event("code_not_run")
        assert event is not None
        assert (event["level"], event["code"]) == ("warning", "code/inference.py")
        assert invoke(served).status == 200
    with running(Served(TINY_MODEL)) as served:
        wait_until(lambda: served.event("ready") is not None)
        assert served.event("code_not_run") is None


def test_an_operating_point_that_the_package_lacks_is_named_with_its_variable() -> None:
    with Served(TINY_MODEL, environment={"DR_OPERATING_POINT": "best"}) as served:
        assert served.end() == stopping.EXIT_MODEL
        (sentence,) = served.sentences()
    assert "DR_OPERATING_POINT" in sentence
    assert "high_sensitivity" in sentence


@contextlib.contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """Processes that do nothing meanwhile."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    # One that has not noticed yet would take a SIGTERM first.
    wait_until(lambda: all(state(pid) == "T" for pid in pids))
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_a_worker_that_starts_does_not_shorten_the_queue_of_the_others() -> None:
    settings = Settings.from_environment(
        {"DR_BIND_HOST": "127.0.0.1", "SAGEMAKER_BIND_TO_PORT": "0", "DR_SERVING_MODE": "realtime"}
    )
    with contextlib.ExitStack() as sockets:
        listener = sockets.enter_context(listen(settings))
        # What asyncio calls for a worker, with the connections that it may accept at once.
        listener.listen(1)
        for _ in range(40):
            caller = socket.create_connection(listener.getsockname(), timeout=0.5)
            sockets.enter_context(caller)
        assert [listener.accept()[0].close() for _ in range(40)] == [None] * 40


@pytest.mark.parametrize("workers", ["1", "2"])
def test_who_waits_in_the_kernels_queue_at_sigterm_is_answered(workers: str) -> None:
    environment = {"MODEL_SERVER_WORKERS": workers, "DR_SERVING_MODE": "realtime"}
    request = b"GET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with running(Served(TINY_MODEL, environment=environment)) as served:
        wait_until(lambda: count(served, "ready") == int(workers))
        pids = children(served) or [served.process.pid]
        address = ("127.0.0.1", served.connect().port)
        # Stopped workers accept nothing: what connects now waits in the kernel.
        with stopped(pids):
            callers = [socket.create_connection(address, timeout=20) for _ in range(40)]
            for caller in callers:
                caller.sendall(request)
            stop(served)
            # Each goes on with the signal before it: the first thing that it sees.
            wait_until(lambda: all(map(has_sigterm, pids)))
        answers = Counter[bytes]()
        for caller in callers:
            with caller:
                answers[caller.recv(1000)[:12]] += 1
        assert served.end() == 0
    assert set(answers) <= {b"HTTP/1.1 200", b"HTTP/1.1 503"}
    assert answers.total() == 40


def has_sigterm(pid: int) -> bool:
    """Whether a process has been sent SIGTERM that it has not taken yet (proc(5))."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    pending = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd", "ShdPnd"))]
    return any(bits >> (signal.SIGTERM - 1) & 1 for bits in pending)


def test_a_reader_of_the_log_who_goes_away_or_sleeps_stops_nothing() -> None:
    for gone in (True, False):
        port = str(free_port())
        # Started, unlike elsewhere, without anybody who reads on.
        served = Served(TINY_MODEL, environment={"SAGEMAKER_BIND_TO_PORT": port})
        process = subprocess.Popen(
            served._command,
            env=served._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert process.stdout is not None
            while b'"ready"' not in process.stdout.readline():
                pass
            if gone:
                process.stdout.close()
            # Enough lines to fill the pipe, were they waited for.
            for _ in range(400):
                connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=10)
                connection.request("POST", "/invocations", b"", JPEG)
                assert connection.getresponse().status == 400
                connection.close()
            process.terminate()
            assert process.wait(timeout=20) == 0
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def children(served: Served) -> list[int]:
    text = Path(f"/proc/{served.process.pid}/task/{served.process.pid}/children").read_text(
        encoding="ascii"
    )
    return [int(pid) for pid in text.split()]


def maps(pid: int) -> str:
    """The files that a process has in its memory."""
    return Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")


def count(served: Served, name: str) -> int:
    return sum(event["event"] == name for event in list(served.events))


def state(pid: int) -> str | None:
    """R, S, T (stopped), Z and so on (proc(5)); None where there is no such process."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2][0]
    return None


def alive(pid: int) -> bool:
    return state(pid) not in (None, "Z")


def test_a_killed_worker_is_replaced_while_the_other_serves() -> None:
    environment = {"MODEL_SERVER_WORKERS": "2", "DR_SERVING_MODE": "realtime"}
    with running(Served(TINY_MODEL, environment=environment)) as served:
        wait_until(lambda: count(served, "ready") == 2)
        before = children(served)
        # What a worker imports is in memory once; the supervisor has still one thread.
        wait_until(lambda: "httptools" in maps(served.process.pid))
        assert len(list(Path(f"/proc/{served.process.pid}/task").iterdir())) == 1
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: len(set(children(served)) - set(before)) == 1)
        wait_until(lambda: count(served, "ready") == 3)
        assert {invoke(served).status for _ in range(6)} == {200}
        assert before[1] in children(served)
        died = served.event("worker_died")
        assert died is not None
        assert died["exit_code"] == -signal.SIGKILL
        numbers = served.request("GET", "/metrics").body
        assert b"dr_worker_starts_total 3\n" in numbers
        assert b'dr_requests_total{status="200"} 6\n' in numbers
        stop(served)
        assert served.end() == 0


def test_workers_do_not_outlive_a_killed_supervisor() -> None:
    environment = {"MODEL_SERVER_WORKERS": "2", "DR_SERVING_MODE": "realtime"}
    with running(Served(TINY_MODEL, environment=environment)) as served:
        workers = children(served)
        assert len(workers) == 2
        served.process.kill()
        wait_until(lambda: not any(alive(pid) for pid in workers), within_s=20)


def numbers_of(served: Served) -> tuple[str, str]:
    """Requests in hand, and those answered so far."""
    text = served.request("GET", "/metrics").body.decode()
    names = ("dr_pending_requests ", 'dr_requests_total{status="200"} ')
    pending, answered = (text.partition(f"\n{name}")[2].split("\n")[0] for name in names)
    return pending, answered


def test_ping_waits_for_no_prediction() -> None:
    """It is answered between two looks at the numbers that saw no request end."""
    body = json.dumps({"inputs": [b64(drawn_jpeg())] * 16}).encode()
    with running(Served(TINY_MODEL)) as served, ThreadPoolExecutor(4) as callers:
        headers = {"Content-Type": "application/json"}
        answers = [
            callers.submit(served.request, "POST", "/invocations", body, headers) for _ in range(4)
        ]
        between = 0
        while not all(answer.done() for answer in answers):
            before = numbers_of(served)
            assert served.request("GET", "/ping").status == 200
            between += before[0] != "0" and numbers_of(served)[1] == before[1]
        assert {answer.result().status for answer in answers} == {200}
    assert between > 0


@pytest.mark.parametrize("workers", ["1", "2"])
def test_many_connections_that_do_nothing_keep_nobody_out(workers: str) -> None:
    """Three times as many as the process may open files."""
    environment = {"MODEL_SERVER_WORKERS": workers, "DR_SERVING_MODE": "realtime"}
    few_files = ("sh", "-c", 'ulimit -n 100; exec "$@"', "sh")
    served = Served(TINY_MODEL, environment=environment, prefix=few_files)
    with running(served), contextlib.ExitStack() as crowd:
        wait_until(lambda: count(served, "ready") == int(workers))
        address = ("127.0.0.1", served.connect().port)
        for _ in range(300):
            crowd.enter_context(socket.create_connection(address, timeout=30))
        assert served.request("GET", "/ping").status == 200
        assert invoke(served).status == 200
        stop(served)
        assert served.end() == 0
        assert served.sentences() == []


@contextlib.contextmanager
def open_copy() -> Iterator[Path]:
    """The service and a model where every user may read them, in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="dr-serve-"))
    try:
        shutil.copytree(
            REPOSITORY / "inference_image",
            folder / "inference_image",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        shutil.copytree(TINY_MODEL, folder / "model")
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        yield folder
    finally:
        shutil.rmtree(folder)


def as_another_user() -> tuple[str, ...]:
    """A command prefix that drops root for a user who owns nothing; empty for non-root."""
    if os.geteuid() != 0:
        return ()
    plain = (
        "setpriv",
        f"--reuid={NOBODY}",
        f"--regid={NOBODY}",
        "--clear-groups",
        "--no-new-privs",
    )
    probe = subprocess.run(
        [*plain, sys.executable, "-c", "import numpy"], capture_output=True, check=False, cwd="/"
    )
    if probe.returncode == 0:
        return plain
    # The checkout lies under a private home: let the user read there, and still write nowhere.
    reading = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    return (*plain, *reading)


def test_it_runs_as_a_user_who_can_write_only_to_tmp() -> None:
    with open_copy() as folder:
        environment = {"PYTHONPATH": str(folder), "HOME": "/nonexistent"}
        served = Served(folder / "model", environment=environment, prefix=as_another_user())
        with running(served):
            status = Path(f"/proc/{served.process.pid}/status").read_text(encoding="ascii")
            user = next(line for line in status.splitlines() if line.startswith("Uid:"))
            assert int(user.split()[2]) != 0
            assert invoke(served).status == 200
            stop(served)
            assert served.end() == 0


def test_the_script_on_the_path_serves() -> None:
    script = REPOSITORY / "inference_image" / "bin" / "serve"
    assert script.stat().st_mode & 0o111 == 0o111
    ended = subprocess.run(
        [sys.executable, str(script), "unknown"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == stopping.EXIT_SETTINGS
    assert "the commands are 'serve' and 'train'" in ended.stderr
