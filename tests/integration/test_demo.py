"""`make demo` as a person runs it: to the end, and interrupted on the way."""

import csv
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.demo_screen import readable

MARK = "DR_DEMO_TEST"
STALE = "the page of an earlier run"


@pytest.fixture(autouse=True)
def interruptible() -> None:
    """A run in the background of a script ignores Ctrl-C, and what it starts inherits that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass
class Demo:
    """A running `dr demo`, whose descendants all carry a mark in their environment."""

    process: subprocess.Popen[str]
    mark: str
    temporary: Path
    screen: Path

    def text(self) -> str:
        return readable(self.screen.read_text(errors="replace"))

    def wait_for(self, sentence: str, *, seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while sentence not in self.text():
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < end, f"no {sentence!r} in: {self.text()}"
            time.sleep(0.1)

    def left_running(self) -> list[str]:
        """Command lines of live processes that the demo has started, directly or not."""
        found = []
        for process in psutil.process_iter():
            try:
                alive = process.status() != psutil.STATUS_ZOMBIE
                if alive and process.environ().get(MARK) == self.mark:
                    found.append(" ".join(process.cmdline()))
            except psutil.Error:
                continue
        return found


@pytest.fixture
def demo(repository: Path, tmp_path: Path) -> Iterator[Demo]:
    """The demo started in a group of its own, as a terminal would start it."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    mark = uuid.uuid4().hex
    screen = tmp_path / "screen.txt"
    results = tmp_path / "results"
    results.mkdir()
    (results / "report.html").write_text(STALE)
    with screen.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "dr_cli", "demo", "--out", str(results)],
            cwd=repository,
            env={**os.environ, MARK: mark, "TMPDIR": str(temporary), "COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    started = Demo(process=process, mark=mark, temporary=temporary, screen=screen)
    try:
        yield started
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for left in psutil.process_iter():
            try:
                if left.environ().get(MARK) == mark:
                    left.kill()
            except psutil.Error:
                continue


def test_the_demo_deploys_grades_measures_and_leaves_nothing(
    demo: Demo, tmp_path: Path, real_photograph: Path
) -> None:
    assert real_photograph.is_file()
    assert demo.process.wait(timeout=280) == 0, demo.text()
    screen = demo.text()
    for promise in (
        "Synthesize every stack of the deployment matrix",
        "dr-serverless-mobilenet-2048",
        "dr-realtime-mobilenet-m5-xlarge",
        "photograph drawn as grade 3 Severe",
        "known grade 3, answered",
        "held-out photographs",
        "quadratic weighted kappa",
        "real photograph",
        "has seen drawn photographs only",
        "p99",
        "1,000",
        "first prediction",
        "MiB",
    ):
        assert promise in screen, f"{promise!r} is not on the screen: {screen}"
    results = tmp_path / "results"
    for name in ("requests.csv", "report.html"):
        assert (results / name).is_file()
        # Long paths wrap on a narrow screen.
        assert name in re.sub(r"\s", "", screen), f"the screen does not say where {name} is"
    with (results / "requests.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert {"requestLatency", "predictionLatency", "fullLatency"} <= set(rows[0])
    # Seven endpoints: six serverless memory sizes and one real-time, 25 requests each.
    assert len(rows) == 7 * 25
    assert all(0 < float(row["predictionLatency"]) < float(row["fullLatency"]) for row in rows)
    page = (results / "report.html").read_text()
    assert STALE not in page
    assert "Figure 1" in page
    assert demo.left_running() == []
    assert list(demo.temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("sentence", "sign", "code"),
    [
        ("Synthesize every stack", signal.SIGINT, 130),
        ("Deploy to a local AWS", signal.SIGTERM, 143),
        ("Measure:", signal.SIGINT, 130),
    ],
)
def test_an_interrupted_demo_leaves_no_process_and_no_temporary_tree(
    demo: Demo, tmp_path: Path, sentence: str, sign: signal.Signals, code: int
) -> None:
    demo.wait_for(sentence)
    time.sleep(1.5)
    # A terminal's Ctrl-C reaches every process of the group at once.
    os.killpg(demo.process.pid, sign)
    assert demo.process.wait(timeout=60) == code, demo.text()
    assert "Traceback" not in demo.text()
    assert not (tmp_path / "results" / "report.html").exists()
    assert demo.left_running() == []
    assert list(demo.temporary.iterdir()) == []
