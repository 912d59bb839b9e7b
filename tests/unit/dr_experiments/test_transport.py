"""The steps of a connection, and a kept connection that the server closes."""

import json
import socket
import threading
import time
from contextlib import closing

import pytest

from dr_experiments import transport
from dr_experiments.client import Client
from dr_experiments.targets import UrlTarget
from dr_experiments.transport import PHASES, HttpTransport
from tests.unit.dr_experiments.fakes import PAYLOAD, quick_answer
from tests.unit.dr_experiments.http_fakes import http, raw_server, served


def test_opening_the_connection_is_kept_apart_from_the_answer() -> None:
    with served(lambda number: 0.05) as (url, _), closing(Client(UrlTarget(url))) as client:
        first, second = client.measure(PAYLOAD), client.measure(PAYLOAD)
    assert set(first.phases_ms) == set(PHASES) - {"tls_ms"}
    assert set(second.phases_ms) == {"upload_ms", "wait_ms", "download_ms"}
    for measurement in (first, second):
        assert measurement.phases_ms["wait_ms"] >= 50
        assert measurement.full_latency_s is not None
        assert sum(measurement.phases_ms.values()) <= measurement.full_latency_s * 1000
        assert 0.05 <= float(measurement.answer_latency_s or 0) < measurement.full_latency_s


def test_a_slow_name_server_is_dns_and_not_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def slow(*arguments: object, **named: object) -> object:
        time.sleep(0.2)
        return real(*arguments, **named)  # type: ignore[arg-type]

    with served(lambda number: 0.0) as (url, _):
        monkeypatch.setattr(socket, "getaddrinfo", slow)
        with closing(Client(UrlTarget(url))) as client:
            measurement = client.measure(PAYLOAD)
    assert measurement.phases_ms["dns_ms"] >= 200
    assert float(measurement.full_latency_s or 0) >= 0.2
    assert float(measurement.answer_latency_s or 1) < 0.1


def test_a_kept_connection_that_was_closed_is_opened_again_and_timed() -> None:
    """Servers close idle connections; with minutes between requests that is the rule."""
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    listener = socket.create_server(("127.0.0.1", 0))

    def answer_once_each() -> None:
        for _ in range(2):
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(reply)

    server = threading.Thread(target=answer_once_each)
    server.start()
    try:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        transport = HttpTransport(url, timeout_s=5, connect_timeout_s=5)
        first = transport.request("POST", "/", body=b"x", headers={})
        time.sleep(0.1)
        second = transport.request("POST", "/", body=b"x", headers={})
        transport.close()
    finally:
        server.join(5)
        listener.close()
    assert (first.status, second.status) == (200, 200)
    assert "connect_ms" in first.phases_ms
    assert "connect_ms" in second.phases_ms


def test_a_fresh_connection_that_breaks_is_a_failure_and_not_tried_again() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    accepted = []

    def hang_up() -> None:
        connection, _ = listener.accept()
        accepted.append(1)
        connection.close()

    server = threading.Thread(target=hang_up)
    server.start()
    try:
        target = UrlTarget(f"http://127.0.0.1:{listener.getsockname()[1]}")
        measurement = Client(target).measure(PAYLOAD)
    finally:
        server.join(5)
        listener.close()
    assert measurement.outcome == "unreachable"
    assert (len(accepted), measurement.retries) == (1, 0)


def test_retries_and_throttles_are_counted_and_the_wait_is_told() -> None:
    with (
        served(lambda number: 0.01, status=lambda n: 429 if n < 2 else 200) as (url, seen),
        closing(Client(UrlTarget(url), retries=3, retry_pause_s=0.05)) as client,
    ):
        measurement = client.measure(PAYLOAD)
    assert measurement.ok
    assert (measurement.retries, measurement.throttles, len(seen)) == (2, 2, 3)
    # The latency is the last attempt's; the patient has waited through the pauses too.
    assert float(measurement.waited_s or 0) >= 0.15 + 0.03
    assert float(measurement.full_latency_s or 1) < 0.15


def test_without_asking_nothing_is_retried_and_a_refusal_never_is() -> None:
    with served(lambda number: 0.0, status=lambda n: 429) as (url, seen):
        with closing(Client(UrlTarget(url))) as client:
            assert client.measure(PAYLOAD).retries == 0
        assert len(seen) == 1
    with served(lambda number: 0.0, status=lambda n: 422) as (url, seen):
        with closing(Client(UrlTarget(url), retries=3, retry_pause_s=0)) as client:
            measurement = client.measure(PAYLOAD)
        assert (measurement.outcome, len(seen)) == ("refused", 1)
    with pytest.raises(ValueError, match="retries"):
        Client(UrlTarget(url), retries=-1)


def test_a_server_that_dies_with_a_request_is_a_failure_and_no_slow_success() -> None:
    """On a kept connection, too: another attempt would hide it, with its time in the latency."""
    body = http(json.dumps(quick_answer()).encode())
    asked: list[int] = []

    def answer_to(connection: socket.socket, number: int) -> None:
        asked.append(number)
        if number == 1:
            time.sleep(0.2)
            raise EOFError
        connection.sendall(body)

    with raw_server(answer_to) as url, closing(Client(UrlTarget(url))) as client:
        outcomes = [client.measure(PAYLOAD) for _ in range(3)]
    assert [one.outcome for one in outcomes] == ["ok", "unreachable", "ok"]
    assert [one.retries for one in outcomes] == [0, 0, 0]
    assert outcomes[1].full_latency_s is None
    assert float(outcomes[1].failed_after_s or 0) >= 0.2
    # Each was sent once.
    assert asked == [0, 1, 0]


def test_an_answer_that_drips_is_a_timeout_and_not_a_run_without_end() -> None:
    def drip(connection: socket.socket, _: int) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(1000):
            connection.sendall(b"x")
            time.sleep(0.02)

    def drip_header(connection: socket.socket, _: int) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nX-Drops: ")
        for _ in range(1000):
            connection.sendall(b"x")
            time.sleep(0.02)

    for dripping in (drip, drip_header):
        with raw_server(dripping) as url:
            slow = HttpTransport(url, timeout_s=0.3, connect_timeout_s=5)
            begun = time.perf_counter()
            with pytest.raises(TimeoutError):
                slow.request("POST", "/", body=b"x", headers={})
            assert 0.2 < time.perf_counter() - begun < 5


def test_answers_that_are_cut_off_or_endless_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MOST_ANSWER_BYTES", 3_000_000)

    def cut(connection: socket.socket, _: int) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
        raise EOFError

    def endless(connection: socket.socket, _: int) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        while True:
            connection.sendall(bytes(100_000))

    for wrong, why in ((cut, "ends 999 bytes too early"), (endless, "more than 3,000,000 bytes")):
        with raw_server(wrong) as url, closing(Client(UrlTarget(url))) as client:
            measurement = client.measure(PAYLOAD)
        assert measurement.outcome == "unreachable"
        assert why in str(measurement.error)


def test_a_name_that_no_host_can_have_is_a_failure() -> None:
    for name in ("ex..com", "a" * 64 + ".com"):
        measurement = Client(UrlTarget(f"http://{name}")).measure(PAYLOAD)
        assert measurement.outcome == "unreachable"
        assert "not the name of a host" in str(measurement.error)
