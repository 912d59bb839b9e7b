"""A little of each part of `make bench-faults`: what it finds, and that it would find a fault.

How fast things are depends on the machine and stands in docs/reliability.md; here only what
must hold on any.
"""

import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.faults.__main__ import MODEL
from benchmarks.faults.inputs import hard_files, hostile, mutants, schema_fuzz
from benchmarks.faults.service import Service
from benchmarks.faults.strain import deaths, overload, terminations


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service(MODEL) as started:
        started.wait_ready()
        yield started
        assert started.count("worker_died") == 0
        assert started.count("fault") == 0
        assert started.end() == 0
        # libtiff says on its own what it finds damaged; nothing else may be there.
        assert "Traceback" not in started.errors()


def test_hard_files_get_what_their_manifest_expects(service: Service, shared_data: Path) -> None:
    found = hard_files(service, shared_data / "hard-inputs")
    assert found.numbers["wrong"] == []
    assert found.numbers["files"] == 100
    assert found.met


def test_mutants_are_refused_or_answered_as_described(service: Service) -> None:
    found = mutants(service, 150, first_seed=1_000_000)
    assert found.numbers["bad"] == []
    assert sum(found.numbers["statuses"].values()) == 150
    assert {"200", "422"} <= set(found.numbers["statuses"])
    assert found.rows[0].met
    assert found.numbers["resident_after_bytes"] < 1.5 * found.numbers["resident_before_bytes"]


def test_requests_made_from_the_document_are_answered_as_it_says(service: Service) -> None:
    found = schema_fuzz(service, 200, seed=3)
    assert found.numbers["bad"] == []
    assert {"200", "400", "415", "422"} <= set(found.numbers["statuses"])
    assert found.met


def test_hostile_files_cost_less_than_a_photograph(service: Service) -> None:
    found = hostile(service, repeats=1)
    assert len(found.numbers["files"]) >= 15
    for file in found.numbers["files"]:
        assert file["status"] < 500
        assert file["extra_bytes"] < 20_000_000, file
        # One measurement each, on a machine that may do other things as well.
        assert file["cpu_ms"] < 2 * found.numbers["ordinary_cpu_ms"], file


@pytest.mark.parametrize("layout", ["lean", "full"])
def test_who_does_not_fit_in_is_told_so_and_nobody_else_notices(layout: str) -> None:
    with Service(MODEL, workers=2, environment={"DR_LAYOUT": layout}) as started:
        started.wait_ready()
        found = overload(started, seconds=2.0, timeout_s=55.0)
    assert set(found.numbers["statuses"]) == {"200", "429"}
    assert found.numbers["refused_connections"] == 0
    _, in_turn, accepted, others, ping = found.rows
    assert len(found.numbers["in_turn_shares"]) == 6
    assert all(share > 0 for share in found.numbers["in_turn_shares"])
    assert in_turn.met == (statistics.median(found.numbers["in_turn_shares"]) >= 0.9)
    assert accepted.met
    assert others.met
    assert ping.found.endswith(", 0 not 200")


def test_a_killed_worker_takes_only_what_it_had_in_hand() -> None:
    with Service(MODEL, workers=2) as started:
        started.wait_ready()
        found = deaths(started, kills=1, every_s=1.5)
        assert started.count("worker_died") == 1
    assert found.rows[0].met, found.numbers
    assert len(found.numbers["back_s"]) == 1


def test_sigterm_under_load_leaves_nobody_without_an_answer() -> None:
    found = terminations(lambda: Service(MODEL, workers=2), times=1, seconds=1.0)
    assert found.numbers["unanswered"] == 0
    assert found.numbers["answered"] > 0
    assert found.met, found.numbers
