"""What an interrupted measurement leaves, and says that it leaves."""

from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

import pytest

from dr_cli import bench
from dr_cli.experiment import CSV_FILE, REPORT_FILE
from dr_experiments.targets import Payload, Reply, Target, TargetDescription
from tests.unit.dr_experiments.fakes import FakeClock, FakeTarget


class Interrupted(FakeTarget):
    """Ctrl-C in its first counted request."""

    def send(self, payload: Payload) -> Reply:
        if self.starts:
            raise KeyboardInterrupt
        return super().send(payload)


class InterruptedLater(FakeTarget):
    """Ctrl-C in its third counted request."""

    def send(self, payload: Payload) -> Reply:
        if len(self.starts) == 3:
            raise KeyboardInterrupt
        return super().send(payload)


def target(kind: type[FakeTarget], name: str) -> Target:
    latencies: Iterator[float] = repeat(0.01)
    description = TargetDescription(name=name, mode="serverless", memory_mib=2048)
    return kind(FakeClock(), latencies, description=description)


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        ([target(FakeTarget, "a"), target(Interrupted, "b")], "1 of 2 measured to the end (a): "),
        ([target(Interrupted, "a")], "no results were kept"),
        ([target(InterruptedLater, "a")], "0 of 1 measured to the end, and 2 of 3 of a: "),
    ],
)
def test_an_interrupted_measurement_says_what_was_kept(
    targets: list[Target],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    subject = bench._Subject(
        targets=tuple(targets), image=None, image_note="", local=True, region="us-east-1"
    )
    monkeypatch.setattr(bench, "_deployed", lambda *_, **__: subject)
    out = tmp_path / "out"
    out.mkdir()
    (out / REPORT_FILE).write_text("an earlier run")
    with pytest.raises(KeyboardInterrupt):
        bench.bench_warm(
            ["a", "b"],
            url=None,
            photograph=None,
            requests=3,
            interval_s=0,
            region=None,
            requests_per_hour=720,
            seed=7,
            out=out,
        )
    screen = capsys.readouterr().out
    assert said in screen
    # What is said to be kept is there, and no page of an earlier run looks current.
    assert (str(out / CSV_FILE) in screen) == (out / CSV_FILE).exists()
    assert not (out / REPORT_FILE).exists()
