"""A real sweep on a local AWS that is killed while it measures, and continued."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(900)

ROWS = ("dr-serverless-mobilenet-1024", "dr-serverless-mobilenet-2048")
WARM, COLD = 3, 1


def wait_until(condition: Callable[[], bool], *, seconds: float = 240) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.1)


def lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def standing(folder: Path) -> set[str]:
    found: set[str] = set()
    for event in lines(folder / "journal.jsonl"):
        if event["event"] == "deploying":
            found.add(event["name"])
        elif event["event"] == "removed":
            found.discard(event["name"])
    return found


def processes_of(folder: Path) -> list[str]:
    """Programs that have the sweep's folder in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if str(folder).encode() in command:
            found.append(command.decode(errors="replace").replace("\0", " "))
    return found


def test_a_killed_sweep_leaves_nothing_deployed_and_goes_on(
    repository: Path, tmp_path: Path
) -> None:
    out = tmp_path / "sweep"
    command = [
        *(str(repository / ".venv/bin/dr"), "bench", "sweep", *ROWS, "--on", "local"),
        *("--requests", str(WARM), "--interval-s", "0.2"),
        *("--cold-requests", str(COLD), "--cold-gap-s", "3", "--max-side-px", "800"),
        *("--out", str(out)),
    ]
    with subprocess.Popen(command, cwd=repository, stdout=subprocess.DEVNULL) as first:

        def measuring() -> bool:
            assert first.poll() is None
            return any(
                event["event"] == "deployed" and event["name"] in ROWS
                for event in lines(out / "journal.jsonl")
            )

        wait_until(measuring)
        first.send_signal(signal.SIGKILL)
    assert first.returncode == -signal.SIGKILL
    assert standing(out)
    wait_until(lambda: not standing(out))
    assert {
        event["by"] for event in lines(out / "journal.jsonl") if event["event"] == "removed"
    } == {"watcher"}
    wait_until(lambda: not processes_of(out))

    done = subprocess.run(
        command, cwd=repository, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert standing(out) == set()
    records = lines(out / "requests.jsonl")
    per_row = {row: [r for r in records if r["configuration"] == row] for row in ROWS}
    assert sum(len(own) for own in per_row.values()) == len(records)
    for own in per_row.values():
        assert [r["scenario"] for r in own] == ["cold"] * COLD + ["warm"] * (WARM + 1)
        assert {r["outcome"] for r in own} == {"ok"}
        assert len({r["run_id"] for r in own}) == 1
        # The parts of the start come from the container's own log, and make up the round trip.
        cold = own[0]
        assert cold["cold"]
        assert {"platform", "imports", "model_load", "first_prediction"} <= set(cold["phases"])
        assert cold["phases_estimated"] == ["platform", "process_start"]
        assert sum(cold["phases"].values()) == pytest.approx(cold["fullLatency"], abs=0.01)
    wait_until(lambda: not processes_of(out))
