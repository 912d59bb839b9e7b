"""What the client takes of a request; how much that is, is no matter of a test."""

from benchmarks import client_cost


def test_all_parts_are_measured() -> None:
    cost = client_cost.measure(runs=1, requests=20)
    assert 0 < cost.written_ms < cost.cpu_ms
    assert cost.round_trip_ms > 0
