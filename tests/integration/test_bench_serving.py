"""`python -m benchmarks.serving`, short, with what needs nothing but the service's own packages.

How fast anything is is no matter of a test.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.serving.contenders import SERVICE, Running, ServerError, _marked
from benchmarks.serving.inputs import Model
from tests.service_harness import TINY_MODEL


def test_a_short_run_measures_the_service_and_its_ceiling(repository: Path, tmp_path: Path) -> None:
    target = tmp_path / "serving.json"
    command = [sys.executable, "-m", "benchmarks.serving", "--quick", "--seconds=0.4"]
    command += ["--contenders=service,ceiling", "--photographs=224px", f"--json={target}"]
    run = subprocess.run(
        command, cwd=repository, capture_output=True, text=True, timeout=280, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    document = json.loads(target.read_bytes())
    cells = {(s["photograph"], s["clients"], s["contender"]) for s in document["samples"]}
    assert cells == {
        ("224px", clients, contender) for clients in (1, 40) for contender in ("service", "ceiling")
    }
    for sample in document["samples"]:
        assert sample["answers"] > 0
        assert sample["per_s"] > 0
        assert sample["cpu_ms"] > 0
        assert 0 <= sample["generator_cpu_share"] < 1
    assert len(document["starts"]) == 2
    assert all(start["first_answer_s"] > 0 for start in document["starts"])
    assert all(start["resident_mb"] > 20 for start in document["starts"])
    for stages in document["breakdown"]["mobilenet"].values():
        assert stages["network"] > 0
        parts = ("decode", "locate", "resize", "quality", "network")
        # The stages together are a prediction: nothing is left out, nothing counted twice.
        assert 0.5 < sum(stages[part] for part in parts) / stages["predict"] < 1.5
    assert document["failures"] == []
    assert all(peak["int8"] > peak["float32"] > 0 for peak in document["peak"])
    assert "Where each millisecond goes" in run.stdout


def test_an_unknown_contender_is_refused(repository: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.serving", "--contenders=service,another"]
    run = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "another is not known; known are service, baseline" in run.stderr


def test_a_server_that_cannot_start_says_why_and_leaves_nothing_behind(tmp_path: Path) -> None:
    model = Model(name="none", package=tmp_path, without_gate=tmp_path, keras_file=None)
    with Running(SERVICE, model=model, workers=2) as running:
        with pytest.raises(ServerError, match=r"service ended: [\s\S]*model\.json"):
            running.first_answer(b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n")
        mark = running._mark
    assert _marked(mark) == []


def test_all_processes_of_a_server_are_counted_and_stopped() -> None:
    model = Model(name="tiny", package=TINY_MODEL, without_gate=TINY_MODEL, keras_file=None)
    with Running(SERVICE, model=model, workers=2) as running:
        running.first_answer(b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n")
        mark = running._mark
        assert len(_marked(mark)) == 3
        assert running.resident_mb() > 60
        assert running.cpu_s() > 0
    assert _marked(mark) == []
