"""What an interrupted measurement leaves, and says that it leaves."""

import itertools
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from dr_cli import bench
from dr_cli.errors import CommandError
from dr_cli.experiment import CSV_FILE, REPORT_FILE
from dr_experiments.records import read_jsonl
from dr_experiments.run_groups import group_records, interleaved
from dr_experiments.targets import Payload, Reply, Target, TargetDescription
from tests.unit.dr_experiments.fakes import FakeClock, FakeTarget, quick_answer


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


OPTIONS: dict[str, Any] = {
    "url": None, "photograph": None, "interval_s": 0, "region": None, "requests_per_hour": 720,
    "seed": 7,
}  # fmt: skip


def test_endpoints_that_are_asked_in_turn_are_compared_in_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["dr-serverless-mobilenet-1024", "dr-serverless-mobilenet-2048", "c"]
    monkeypatch.setattr(
        bench, "_deployed", lambda *_, **__: subject_of(*(target(FakeTarget, n) for n in names))
    )
    for in_turn in (True, False):
        out = tmp_path / str(in_turn)
        bench.bench_warm(names, requests=5, out=out, in_turn=in_turn, **OPTIONS)
        records = read_jsonl(out / "requests.jsonl")
        assert [record.index for record in records] == [*range(6)] * 3
        groups = group_records(records)
        pairs = [interleaved(a, b) for a, b in itertools.combinations(groups, 2)]
        assert pairs == [in_turn] * 3
        assert ("--in-turn" in (out / REPORT_FILE).read_text()) == in_turn
    by_start = sorted(read_jsonl(tmp_path / "True" / "requests.jsonl"), key=lambda r: r.started_at)
    # Nobody is always the first one: what comes first may find a colder machine.
    firsts = [record.configuration for record in by_start if record.counted][::3]
    assert firsts == [*names, *names[:2]]
    with pytest.raises(CommandError, match="--in-turn needs two endpoints"):
        bench.bench_warm(["a"], requests=1, out=tmp_path, in_turn=True, **OPTIONS)


def test_interrupted_in_turn_it_keeps_the_requests_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    subject = subject_of(target(FakeTarget, "a"), target(InterruptedLater, "b"))
    monkeypatch.setattr(bench, "_deployed", lambda *_, **__: subject)
    with pytest.raises(KeyboardInterrupt):
        bench.bench_warm(["a", "b"], requests=4, out=tmp_path, in_turn=True, **OPTIONS)
    assert "0 of 2 measured to the end, and " in capsys.readouterr().out
    kept = [record.configuration for record in read_jsonl(tmp_path / "requests.jsonl")]
    assert (kept.count("a"), kept.count("b")) == (4, 3)
    assert (tmp_path / CSV_FILE).exists()


def test_answers_of_fresh_containers_alone_are_called_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = target(FakeTarget, "a")
    fresh.answers = repeat(quick_answer(container={"start_id": "a", "requests_before": 0}))  # type: ignore[attr-defined]
    monkeypatch.setattr(bench, "_deployed", lambda *_, **__: subject_of(fresh))
    with pytest.raises(CommandError, match="every answer came from a fresh container"):
        bench.bench_warm(["a"], requests=2, out=tmp_path, **OPTIONS)


def subject_of(*targets: Target) -> bench._Subject:
    return bench._Subject(
        targets=targets, image=None, image_note="", local=True, region="us-east-1"
    )


def test_a_functions_url_is_measured_with_a_photograph_made_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = target(FakeTarget, "dr-function")
    monkeypatch.setattr(bench, "function_url_target", lambda url, *, region: (asked, "AWS"))
    common: dict[str, Any] = {
        "photograph": None, "requests": 2, "interval_s": 0, "region": None,
        "requests_per_hour": 720, "seed": 7,
    }  # fmt: skip
    sizes = []
    for name, side in (("whole", None), ("small", 400)):
        bench.bench_warm(
            [], url=None, function_url="https://x.lambda-url.us-east-1.on.aws",
            max_side_px=side, out=tmp_path / name, **common,
        )  # fmt: skip
        records = read_jsonl(tmp_path / name / "requests.jsonl")
        assert [record.configuration for record in records] == ["dr-function"] * 3
        sizes.append(records[0].bytes_in)
    assert sizes[1] < sizes[0] / 2
    page = (tmp_path / "small" / REPORT_FILE).read_text()
    assert "--function-url https://x.lambda-url.us-east-1.on.aws" in page
    assert "--max-side-px 400" in page
    with pytest.raises(CommandError, match="name the endpoints to measure"):
        bench.bench_warm(["a"], url=None, function_url="https://x", out=tmp_path, **common)
    with pytest.raises(CommandError, match=r"^a: named twice; measure it twice with two commands"):
        bench.bench_warm(["a", "b"], url=None, functions=["a"], out=tmp_path / "twice", **common)
    assert not (tmp_path / "twice").exists()
