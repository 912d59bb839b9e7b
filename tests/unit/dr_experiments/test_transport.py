"""The steps of a connection, and a kept connection that the server closes."""

import socket
import threading
import time
from contextlib import closing

import pytest

from dr_experiments.client import Client
from dr_experiments.targets import UrlTarget
from dr_experiments.transport import PHASES, HttpTransport
from tests.unit.dr_experiments.fakes import PAYLOAD
from tests.unit.dr_experiments.http_fakes import served


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


def test_a_kept_connection_that_was_closed_is_opened_again_and_counted() -> None:
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
    assert (first.reopened, second.reopened) == (False, True)
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
