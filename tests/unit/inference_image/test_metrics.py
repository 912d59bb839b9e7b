"""What the workers count, as Prometheus' own parser reads it."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from inference_image.metrics import BUCKETS_S, OUTCOMES, STAGES, STATUSES, Metrics

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parsed(metrics: Metrics, **arguments: dict[str, str]) -> Series:
    families = list(text_string_to_metric_families(metrics.text(**arguments)))
    assert all(family.documentation and family.type != "unknown" for family in families)
    found: Series = {}
    for sample in (sample for family in families for sample in family.samples):
        key = (sample.name, tuple(sorted(sample.labels.items())))
        assert key not in found
        found[key] = sample.value
    return found


def value(series: Series, name: str, **labels: str) -> float:
    return series[name, tuple(sorted(labels.items()))]


def in_child(work: Callable[[], object]) -> None:
    """Run something in a forked process, as a worker is."""
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_the_numbers_of_all_workers_are_added_up() -> None:
    metrics = Metrics(workers=3)

    def serve(slot: int) -> None:
        recorder = metrics.recorder(slot)
        recorder.ready()
        recorder.queue(pending=slot + 1, bytes_held=100)
        for _ in range(10):
            recorder.request(status=200, seconds=0.02, body_bytes=1000)
            recorder.image("graded")
            recorder.stage("engine", 0.004)
        recorder.request(status=429, seconds=0.001)

    for slot in range(3):
        in_child(lambda slot=slot: serve(slot))  # type: ignore[misc]
    series = parsed(metrics, model={"id": "m", "sha256": "ab"})
    assert value(series, "dr_requests_total", status="200") == 30
    assert value(series, "dr_requests_total", status="429") == 3
    assert value(series, "dr_images_total", outcome="graded") == 30
    assert value(series, "dr_request_bytes_total") == 30_000
    assert value(series, "dr_stage_seconds_count", stage="engine") == 30
    assert value(series, "dr_stage_seconds_sum", stage="engine") == pytest.approx(0.12)
    assert value(series, "dr_request_duration_seconds_count") == 30
    assert value(series, "dr_request_duration_seconds_sum") == pytest.approx(0.6)
    assert value(series, "dr_pending_requests") == 6
    assert value(series, "dr_held_bytes") == 300
    assert value(series, "dr_workers") == value(series, "dr_workers_ready") == 3
    assert value(series, "dr_worker_starts_total") == 3
    assert value(series, "dr_model_info", id="m", sha256="ab") == 1


def test_a_worker_that_replaces_a_dead_one_goes_on_with_its_counts() -> None:
    metrics = Metrics(workers=2)

    def serve() -> None:
        recorder = metrics.recorder(1)
        recorder.ready()
        recorder.queue(pending=5, bytes_held=9)
        recorder.request(status=200, seconds=0.5)

    in_child(serve)
    in_child(lambda: metrics.recorder(1).request(status=422, seconds=0.5))
    series = parsed(metrics)
    assert value(series, "dr_requests_total", status="200") == 1
    assert value(series, "dr_requests_total", status="422") == 1
    assert value(series, "dr_worker_starts_total") == 2
    # What the dead one had in hand is gone, and its successor is not ready yet.
    assert value(series, "dr_pending_requests") == value(series, "dr_held_bytes") == 0
    assert value(series, "dr_workers_ready") == 0


def test_the_steps_of_the_histogram_are_cumulative() -> None:
    metrics = Metrics()
    recorder = metrics.recorder()
    for bound in BUCKETS_S:
        recorder.request(status=200, seconds=bound)
    recorder.request(status=200, seconds=1000.0)
    recorder.request(status=504, seconds=55.0)
    series = parsed(metrics)
    steps = [
        value(series, "dr_request_duration_seconds_bucket", le=str(bound)) for bound in BUCKETS_S
    ]
    assert steps == list(range(1, len(BUCKETS_S) + 1))
    total = len(BUCKETS_S) + 1
    assert value(series, "dr_request_duration_seconds_bucket", le="+Inf") == total
    assert value(series, "dr_request_duration_seconds_count") == total


def test_every_series_is_there_from_the_start_and_memory_is_that_of_the_process() -> None:
    metrics = Metrics()
    assert value(parsed(metrics), "dr_worker_starts_total") == 0
    metrics.recorder()
    series = parsed(metrics)
    for status in STATUSES:
        assert value(series, "dr_requests_total", status=str(status)) == 0
    for outcome in OUTCOMES:
        assert value(series, "dr_images_total", outcome=outcome) == 0
    for stage in STAGES:
        assert value(series, "dr_stage_seconds_count", stage=stage) == 0
    assert 1e6 < value(series, "dr_worker_resident_bytes", worker="0") < 1e11


def test_a_strange_model_name_stays_one_label() -> None:
    name = 'a"b\\c\nd'
    series = parsed(Metrics(), model={"id": name, "sha256": ""})
    assert value(series, "dr_model_info", id=name, sha256="") == 1


def test_the_page_lists_every_metric(repository: Path) -> None:
    page = (repository / "docs" / "operations.md").read_text(encoding="utf-8")
    families = text_string_to_metric_families(Metrics().text(model={"id": "m"}))
    # The parser leaves out the ending of counters.
    names = {f.name + ("_total" if f.type == "counter" else "") for f in families}
    assert set(re.findall(r"`(dr_[a-z_]+)", page)) == names
