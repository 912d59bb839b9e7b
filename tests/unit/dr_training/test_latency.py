"""Latency of several models, in turns."""

from pathlib import Path

import pytest

from dr_training import latency
from dr_training.latency import latencies


def test_models_take_turns_and_the_first_round_is_not_counted(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = (repository / "tests" / "data" / "tiny-model" / "model.tflite").read_bytes()
    turns: list[int] = []
    opened = latency.open_interpreter

    class Counted:
        def __init__(self, number: int) -> None:
            self.number = number
            self.inner = opened(model)

        def invoke(self) -> None:
            turns.append(self.number)
            self.inner.invoke()

        def __getattr__(self, name: str) -> object:
            return getattr(self.inner, name)

    made: list[Counted] = []

    def counted(_: bytes, *, threads: int) -> Counted:
        assert threads == 1
        made.append(Counted(len(made)))
        return made[-1]

    monkeypatch.setattr(latency, "open_interpreter", counted)
    found = latencies([model, model], rounds=3)
    assert turns == [0, 1] + [0, 1] * 3
    assert len(found) == 2
    for one in found:
        assert 0 <= one.cpu_ms < 60_000
        assert 0 < one.wall_ms <= one.wall_p95_ms
