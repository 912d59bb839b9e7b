"""The full layout with a real nginx, a real gunicorn and real workers."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults.document import DescribedService
from benchmarks.faults.service import cpu_s
from inference_image import stopping
from inference_image.http_app import create_app
from inference_image.settings import Settings
from tests.service_harness import (
    REPOSITORY,
    TINY_MODEL,
    InProcess,
    Reply,
    Served,
    copy_package,
    drawn_jpeg,
    running,
    stop,
    wait_until,
)

JPEG = {"Content-Type": "image/jpeg"}
TWO_WORKERS = {"MODEL_SERVER_WORKERS": "2", "DR_SERVING_MODE": "realtime"}


def full(model: Path = TINY_MODEL, *, prefix: tuple[str, ...] = (), **environment: str) -> Served:
    return Served(model, environment={"DR_LAYOUT": "full", **environment}, prefix=prefix)


def full_with(spans: dict[str, float], **environment: str) -> Served:
    return Served(TINY_MODEL, environment={"DR_LAYOUT": "full", **environment}, spans=spans)


def invoke(served: Served) -> Any:
    return served.request("POST", "/invocations", drawn_jpeg(), JPEG)


def half_sent(served: Served) -> tuple[http.client.HTTPConnection, bytes]:
    """A request that a worker has in hand, and the bytes that are still to be sent."""
    connection = served.connect()
    body = drawn_jpeg()
    connection.putrequest("POST", "/invocations")
    connection.putheader("Content-Type", "image/jpeg")
    connection.putheader("Content-Length", str(len(body)))
    connection.endheaders()
    connection.send(body[:1000])
    wait_until(lambda: b"dr_pending_requests 1\n" in served.request("GET", "/metrics").body)
    return connection, body[1000:]


def descendants(pid: int) -> dict[int, str]:
    """Process id -> its command line, of all below `pid`."""
    found = {}
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
        for child in map(int, text.split()):
            with contextlib.suppress(OSError):
                found[child] = Path(f"/proc/{child}/cmdline").read_text(encoding="utf-8")
            found |= descendants(child)
    return found


def command_of(pid: int) -> str:
    """Its command line; empty where the process has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
    return ""


def masters(served: Served) -> tuple[int, int]:
    """Process ids of nginx and of gunicorn, which are the children of the first process."""
    pid = served.process.pid
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    children = [int(word) for word in text.split()]
    nginx = [p for p in children if "nginx" in Path(f"/proc/{p}/cmdline").read_text()]
    assert len(children) == 2, children
    return nginx[0], next(p for p in children if p not in nginx)


def alive(pid: int) -> bool:
    """Whether one of its threads still runs.

    A killed process is a zombie as soon as its first thread has ended, but its connections close
    with the last one.
    """
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                state = (thread / "stat").read_text(encoding="utf-8").rpartition(") ")[2][0]
                if state not in "XZ":
                    return True
    return False


def test_two_workers_behind_nginx_are_one_container(tmp_path: Path) -> None:
    with running(full(**TWO_WORKERS, TMPDIR=str(tmp_path))) as served:
        (folder,) = tmp_path.glob("dr-serve-*")
        assert folder.stat().st_mode & 0o077 == 0
        wait_until(lambda: sum(e["event"] == "ready" for e in served.events) == 2)
        answers = [invoke(served) for _ in range(12)]
        assert {answer.status for answer in answers} == {200}
        assert answers[0].headers["server"] == "nginx"
        counts = [answer.json()["container"]["requests_before"] for answer in answers]
        assert counts == list(range(12))
        assert len({a.json()["container"]["start_id"] for a in answers}) == 1
        stop(served)
        assert served.end() == 0
        assert served.sentences() == []
        assert [e for e in served.events if e["level"] != "info"] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("layout", ["lean", "full"])
def test_the_model_is_in_the_workers_and_in_no_process_that_forks_them(layout: str) -> None:
    """An engine whose threads ran before the fork answers nothing after it."""
    with running(Served(TINY_MODEL, environment={**TWO_WORKERS, "DR_LAYOUT": layout})) as served:
        wait_until(lambda: sum(event["event"] == "ready" for event in served.events) == 2)
        first = served.process.pid
        processes = {first, *descendants(first)}
        holding = {p for p in processes if "model.tflite" in Path(f"/proc/{p}/maps").read_text()}
        assert len(holding) == 2
        assert not any(map(descendants, holding))


def test_until_a_worker_is_ready_nginx_says_so_at_once() -> None:
    with full(**TWO_WORKERS) as served:
        first = served.request("GET", "/ping")
        assert first.status == 503
        assert first.headers["content-type"] == "application/problem+json"
        assert first.headers["retry-after"] == "1"
        assert first.json()["retry_after_s"] == 1.0
        assert invoke(served).status in (200, 503)
        served.wait_ready()
        assert {invoke(served).status for _ in range(20)} == {200}


@pytest.mark.parametrize(("layout", "workers"), [("lean", "1"), ("lean", "2"), ("full", "1")])
def test_while_the_model_loads_each_answer_is_as_the_document_says(
    tmp_path: Path, layout: str, workers: str
) -> None:
    # A worker itself, the process that waits for its workers, or nginx.
    by_others = (layout, workers) != ("lean", "1")
    environment = {
        "DR_LAYOUT": layout,
        "MODEL_SERVER_WORKERS": workers,
        "DR_SERVING_MODE": "realtime",
    }
    settings = Settings.from_environment({"DR_MODEL_DIR": str(TINY_MODEL)}, cpus=1)
    with running(InProcess(create_app(settings))) as transport:
        described = DescribedService(transport.request("GET", "/openapi.json").json())
    asked = [(method, path) for method, path, status in described.answers() if status == 503]
    assert len(asked) == 4 * 2 + 1
    # Zeros that take some seconds to be compared with their digest.
    files = json.loads((TINY_MODEL / "model.json").read_text(encoding="utf-8"))["files"]
    files["head.npz"]["size_bytes"] = 1 << 30
    package = copy_package(tmp_path / "package", {"files": files})
    os.truncate(package / "head.npz", 1 << 30)
    with Served(package, environment=environment) as served:
        for method, path in [*asked, ("GET", "/nowhere"), ("PUT", "/ping")]:
            reply = served.request(method, path, headers={**JPEG, "x-ReQuest-ID": "5F" * 16})
            if path == "/invocations":
                assert reply.headers["x-request-id"] == "5F" * 16
            faults = described.faults(
                method, path, status=reply.status, headers=reply.headers, body=reply.body
            )
            assert faults == []
            if by_others or path in ("/ping", "/invocations"):
                assert reply.status in (503, 405)
                assert reply.status == 405 or reply.headers["retry-after"] == "1"
        assert served.end() == stopping.EXIT_MODEL
    if by_others:
        assert {(method, path, 503) for method, path in asked} <= described.seen


def test_the_service_and_not_nginx_refuses_a_large_body() -> None:
    with running(full(DR_MAX_IMAGE_BYTES="2000000")) as served:
        # nginx's own default would end at 1 MiB.
        assert served.request("POST", "/invocations", bytes(1_200_000), JPEG).status == 422
        reply = served.request("POST", "/invocations", bytes(30_000_000), JPEG)
    assert reply.status == 413
    assert "an image may have 2000000" in reply.json()["detail"]


NO_HTTP = (
    b"GET /ping HTTP/1.1\r\n\r\n",
    b"Good morning\r\n\r\n",
    b"GET /ping%00 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    b"GET /ping HTTP/9.9\r\nHost: x\r\n\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /ping HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    b"POST /invocations HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    b"POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
)


def said(port: int, request: bytes) -> tuple[int, Any, Any]:
    """Status, headers and the JSON of what comes back before the connection ends."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as caller:
        caller.sendall(request)
        response = http.client.HTTPResponse(caller)
        response.begin()
        return response.status, response.headers, json.loads(response.read())


def test_what_is_no_http_is_a_problem_too() -> None:
    with running(full()) as served:
        port = served.connect().port
        for request in NO_HTTP:
            status, headers, problem = said(port, request)
            kind = headers["content-type"]
            assert (status, kind) == (400, "application/problem+json"), request[:60]
            assert problem["status"] == 400
            assert len(headers["x-request-id"]) == 32
        status, headers, problem = said(port, b"TRACE /ping HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (status, headers["content-type"]) == (405, "application/problem+json")
        assert headers["allow"] == "GET, HEAD, POST"
        assert problem["status"] == 405
        # The places of nginx's own answers are nobody else's.
        assert served.request("GET", "/.dr/malformed").status == 404
        assert invoke(served).status == 200


CLOSE = b"Connection: close\r\n"
PING = b"GET /ping HTTP/1.1\r\nHost: x\r\n" + CLOSE
POST = b"POST /invocations HTTP/1.1\r\nHost: x\r\n"
WHOLE = b"Content-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n" % len(drawn_jpeg()) + drawn_jpeg()
OK, MALFORMED, TOO_LARGE = b"HTTP/1.1 200 ", b"HTTP/1.1 400 ", b"HTTP/1.1 413 "
# A row of docs/layouts.md, what is sent, and how the answer of the lean and of the full layout
# begins; None where that depends on how it arrives.
DIFFERENCES: tuple[tuple[str, bytes, bytes | None, bytes], ...] = (
    ("without `Host`", POST.replace(b"Host: x\r\n", CLOSE) + WHOLE, OK, MALFORMED),
    ("one header field", PING + b"X: " + b"a" * 100_000 + b"\r\n\r\n", None, MALFORMED),
    ("LF alone", PING.replace(b"\r", b"") + b"\n", MALFORMED, OK),
    ("HTTP/0.9", b"GET /ping\r\n\r\n", OK, b'{"status": "ready"}'),
    ("than the proxy", POST + b"Content-Length: 150000000\r\n\r\n", TOO_LARGE, TOO_LARGE),
)


def test_the_layouts_differ_as_their_page_says() -> None:
    page = (REPOSITORY / "docs" / "layouts.md").read_text(encoding="utf-8")
    for layout in ("lean", "full"):
        with running(Served(TINY_MODEL, environment={"DR_LAYOUT": layout})) as served:
            for words, request, *begins in DIFFERENCES:
                wanted = begins[layout == "full"]
                assert words in page
                if wanted is None:
                    continue
                address = ("127.0.0.1", served.connect().port)
                with socket.create_connection(address, timeout=20) as caller:
                    caller.sendall(request)
                    assert caller.recv(1000).startswith(wanted), (layout, words)
            # Of the refusals of nginx alone there is no count, but a line of its own.
            counted = b'dr_requests_total{status="413"} %d\n' % (layout == "lean")
            assert counted in served.request("GET", "/metrics").body
            if layout == "full":
                wait_until(lambda: "too large body" in json.dumps(served.events))


def test_a_request_on_an_idle_connection_is_answered_while_it_stops(tmp_path: Path) -> None:
    moment_s = {"full_layout._IDLE_WITHIN_S": 4.0}
    with running(full_with(moment_s, **TWO_WORKERS, TMPDIR=str(tmp_path))) as served:
        connection = served.connect()
        for moment in ("before", "after"):
            connection.request("POST", "/invocations", drawn_jpeg(), JPEG)
            response = connection.getresponse()
            assert response.status == 200
            response.read()
            if moment == "before":
                assert response.headers["connection"] == "keep-alive"
                idle = connection.sock
                stop(served)
                wait_until(lambda: any(tmp_path.glob("dr-serve-*/stopping")))
                # Held here, so that the moment for the last request does not pass meanwhile.
                served.process.send_signal(signal.SIGSTOP)
                assert connection.sock is idle
        assert response.headers["connection"] == "close"
        # Whoever connects now is answered, and told the same.
        late = served.connect()
        late.request("GET", "/ping")
        assert late.getresponse().headers["connection"] == "close"
        late.close()
        served.process.send_signal(signal.SIGCONT)
        connection.close()
        assert served.end() == 0


def test_without_a_folder_for_its_files_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "a $place").mkdir()
    (tmp_path / ("long" * 25)).mkdir()
    for folder, fragment in (("a $place", "set TMPDIR"), ("long" * 25, "set TMPDIR")):
        with full(TMPDIR=str(tmp_path / folder)) as served:
            assert served.end() == stopping.EXIT_SETTINGS
            (sentence,) = served.sentences()
        assert fragment in sentence
        assert list((tmp_path / folder).iterdir()) == []


def test_a_request_that_is_under_way_at_sigterm_is_answered() -> None:
    with running(full(**TWO_WORKERS)) as served:
        connection, rest = half_sent(served)
        _, gunicorn = masters(served)
        nginx = [
            pid for pid, command in descendants(served.process.pid).items() if "worker" in command
        ]
        stop(served)
        # nginx takes nobody any more, and finishes what it has.
        wait_until(lambda: any("shutting down" in command_of(pid) for pid in nginx))
        assert alive(gunicorn)
        connection.send(rest)
        response = connection.getresponse()
        assert response.status == 200
        assert b'"grade"' in response.read()
        connection.close()
        assert served.end() == 0


def test_under_load_every_accepted_request_is_answered_at_sigterm() -> None:
    finished = threading.Event()
    outcomes = Counter[str]()
    with running(full(**TWO_WORKERS)) as served:
        port = served.connect().port

        def load() -> None:
            while not finished.is_set():
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
                try:
                    connection.connect()
                except OSError:
                    outcomes["not accepted"] += 1
                    return
                try:
                    connection.request("POST", "/invocations", drawn_jpeg(), JPEG)
                    status = connection.getresponse().status
                    outcomes[str(status)] += 1
                    if status == 503:
                        # Told to come back, which here is never.
                        return
                except OSError as error:
                    outcomes[type(error).__name__] += 1
                finally:
                    connection.close()

        callers = [threading.Thread(target=load) for _ in range(8)]
        for caller in callers:
            caller.start()
        wait_until(lambda: outcomes["200"] > 8)
        stop(served)
        assert served.end() == 0
        finished.set()
        for caller in callers:
            caller.join()
    assert outcomes["200"] > 8
    # Whoever connects while it stops is told to come back.
    assert set(outcomes) <= {"200", "503", "not accepted"}, outcomes


@pytest.mark.parametrize("which", [0, 1], ids=["nginx", "gunicorn"])
def test_the_end_of_a_child_ends_the_container(which: int) -> None:
    with running(full(**TWO_WORKERS)) as served:
        everything = descendants(served.process.pid)
        assert len(everything) >= 5
        os.kill(masters(served)[which], signal.SIGKILL)
        assert served.end() == stopping.EXIT_WORKERS
        wait_until(lambda: not any(alive(pid) for pid in everything), within_s=20)
        (sentence,) = served.sentences()
    assert sentence.startswith(f"serve: {('nginx', 'gunicorn')[which]} has ended with exit code -9")


def test_nothing_outlives_a_killed_first_process(tmp_path: Path) -> None:
    with running(full(**TWO_WORKERS, TMPDIR=str(tmp_path))) as served:
        everything = descendants(served.process.pid)
        # nginx with a worker, gunicorn with its first.
        assert len(everything) >= 4
        served.process.kill()
        wait_until(lambda: not any(alive(pid) for pid in everything), within_s=20)


def test_a_killed_worker_is_replaced_while_the_other_serves() -> None:
    with running(full(**TWO_WORKERS)) as served:
        wait_until(lambda: sum(e["event"] == "ready" for e in served.events) == 2)
        before = set(descendants(masters(served)[1]))
        assert len(before) == 2
        os.kill(min(before), signal.SIGKILL)
        # nginx learns of it by the end of its connections, which comes before that of the process.
        wait_until(lambda: not alive(min(before)))
        statuses = {invoke(served).status for _ in range(10)}
        wait_until(lambda: sum(e["event"] == "ready" for e in served.events) == 3)
        assert statuses == {200}
        assert len(set(descendants(masters(served)[1])) - before) == 1
        stop(served)
        assert served.end() == 0


def test_who_keeps_asking_gets_to_a_worker_that_comes_later() -> None:
    """nginx prefers the connections that it has, all of which are to the worker that survived."""
    asking = threading.Event()
    asking.set()

    def ask(served: Served) -> None:
        caller = served.connect()
        while asking.is_set():
            # Of those in the killed worker's hand some are told to come back.
            caller.request("POST", "/invocations", drawn_jpeg(size_px=128), JPEG)
            caller.getresponse().read()
        caller.close()

    with running(full(**TWO_WORKERS)) as served:
        wait_until(lambda: sum(e["event"] == "ready" for e in served.events) == 2)
        before = set(descendants(masters(served)[1]))
        callers = [threading.Thread(target=ask, args=(served,)) for _ in range(24)]
        for caller in callers:
            caller.start()
        try:
            os.kill(min(before), signal.SIGKILL)
            wait_until(lambda: sum(e["event"] == "ready" for e in served.events) == 3)
            (later,) = set(descendants(masters(served)[1])) - before
            began_s = cpu_s(later)
            # Nobody's requests would be nothing but a heartbeat.
            wait_until(lambda: cpu_s(later) > began_s + 1.0, within_s=60)
        finally:
            asking.clear()
            for caller in callers:
                caller.join()
        assert cpu_s(later) > began_s + 1.0
        assert alive(max(before))
        stop(served)
        assert served.end() == 0


def test_the_request_of_a_killed_worker_is_told_to_come_back() -> None:
    with running(full(DR_SERVING_MODE="realtime", MODEL_SERVER_WORKERS="1")) as served:
        wait_until(lambda: sum(e["event"] == "ready" for e in served.events) == 1)
        connection, _ = half_sent(served)
        (worker,) = descendants(masters(served)[1])
        os.kill(worker, signal.SIGKILL)
        response = connection.getresponse()
        problem = json.loads(response.read())
        assert response.status == problem["status"] == 503
        assert response.headers["content-type"] == "application/problem+json"
        assert response.headers["retry-after"] == "1"
        # The rest of its body may be unread: what is sent next would be lost with it.
        assert response.headers["connection"] == "close"
        assert "worker is gone" in problem["detail"]
        connection.close()
        wait_until(lambda: sum(e["event"] == "ready" for e in served.events) == 2)
        served.wait_ready()
        assert invoke(served).status == 200
        stop(served)
        assert served.end() == 0


def test_a_model_that_cannot_be_served_ends_everything(tmp_path: Path) -> None:
    package = copy_package(tmp_path / "package")
    model = package / "model.tflite"
    model.write_bytes(model.read_bytes()[:-100])
    statuses = Counter[int]()
    with full(package, **TWO_WORKERS) as served:
        while served.process.poll() is None:
            with contextlib.suppress(OSError, http.client.HTTPException, AssertionError):
                statuses[served.request("GET", "/ping").status] += 1
        assert served.end() == stopping.EXIT_MODEL
        (sentence,) = served.sentences()
    assert "the package is damaged" in sentence
    assert statuses[200] == 0


FEW_FILES = ("sh", "-c", 'ulimit -n 160; exec "$@"', "sh")


def test_many_connections_that_do_nothing_keep_nobody_out() -> None:
    with running(full(prefix=FEW_FILES)) as served, contextlib.ExitStack() as crowd:
        address = ("127.0.0.1", served.connect().port)
        for _ in range(400):
            crowd.enter_context(socket.create_connection(address, timeout=30))
        assert served.request("GET", "/ping").status == 200
        assert invoke(served).status == 200


def test_where_all_connections_are_busy_others_are_told_to_come_back() -> None:
    with running(full(prefix=FEW_FILES)) as served, contextlib.ExitStack() as crowd:
        address = ("127.0.0.1", served.connect().port)

        def ask() -> Reply | None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                return served.request("GET", "/ping", headers={"X-Request-Id": "5F" * 16})
            return None

        def call(sent: bytes) -> socket.socket:
            caller = crowd.enter_context(socket.create_connection(address, timeout=30))
            caller.sendall(sent)
            return caller

        half = [call(b"GET /ping HTTP/1.1\r\n") for _ in range(4)]
        # A request takes two connections. Where none is left at all, nobody can be told anything.
        while (reply := ask()) is None or reply.status == 200:
            if reply is None:
                half.pop().close()
                wait_until(ask)
            else:
                call(b"POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
        assert (reply.status, reply.headers["content-type"]) == (503, "application/problem+json")
        assert (reply.headers["retry-after"], reply.headers["x-request-id"]) == ("1", "5F" * 16)
        assert "busy" in reply.json()["detail"]


def unprivileged(*options: str) -> tuple[str, ...]:
    """A command prefix that takes rights away; empty for whoever has none."""
    return ("setpriv", *options) if os.geteuid() == 0 else ()


@pytest.mark.parametrize(
    "options",
    [
        ("--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"),
        ("--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"),
    ],
    ids=["root without capabilities", "another user"],
)
def test_it_needs_no_rights(options: tuple[str, ...]) -> None:
    prefix = unprivileged(*options)
    probe = [*prefix, sys.executable, "-c", "import numpy, gunicorn"]
    if subprocess.run(probe, capture_output=True, check=False, cwd="/").returncode != 0:
        # The checkout lies under a private home: reading is allowed, writing still is not.
        prefix += ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    with running(full(prefix=prefix, HOME="/nonexistent")) as served:
        assert invoke(served).status == 200
        stop(served)
        assert served.end() == 0
        assert [e for e in served.events if e["level"] != "info"] == []


# All that may be written is a file system in memory, in the place of /var/tmp.
READ_ONLY = (
    "mount --make-rprivate / && mount -o remount,bind,ro / && mount -t tmpfs none /var/tmp "
    '&& ! touch /dr-probe 2> /dev/null && exec "$@"'
)


def read_only_root() -> tuple[str, ...]:
    """A command prefix under which the root file system cannot be written."""
    namespace = ["unshare", "--mount"]
    if os.geteuid() != 0:
        namespace += ["--user", "--map-root-user"]
    prefix = (*namespace, "sh", "-c", READ_ONLY, "sh")
    done = subprocess.run([*prefix, "true"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"this user may make no mount namespace: {done.stderr.strip()}")
    return prefix


def test_it_needs_nothing_that_can_be_written_but_its_temporary_folder() -> None:
    prefix = read_only_root()
    # What other servers read is nothing to this one, whatever stands there.
    others = {"WEB_CONCURRENCY": "auto", "SENDFILE": "perhaps", "PORT": "none"}
    with running(full(prefix=prefix, TMPDIR="/var/tmp", HOME="/nonexistent", **others)) as served:
        assert invoke(served).status == 200
        stop(served)
        assert served.end() == 0
        assert served.sentences() == []
        assert [e for e in served.events if e["level"] != "info"] == []
