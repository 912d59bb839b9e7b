"""Latency of several models, in turns."""

from pathlib import Path

import pytest

from dr_training import latency
from dr_training.latency import alike, latencies, main


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


def test_models_are_alike_where_all_their_numbers_are(repository: Path) -> None:
    folder = repository / "model_artifacts"
    referral, grader = (
        (folder / name / "model.tflite").read_bytes()
        for name in ("referral-demo", "vgg19-small-demo")
    )
    assert alike(referral, referral) == 50
    assert alike(referral, grader) == 0
    tiny = (repository / "tests" / "data" / "tiny-model" / "model.tflite").read_bytes()
    with pytest.raises(ValueError, match=r"one takes uint8 \(1, 224, 224, 3\), the other"):
        alike(referral, tiny)


def test_the_command_names_the_time_of_each_model_beside_the_first(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = repository / "tests" / "data" / "tiny-model" / "model.tflite"
    assert main([str(model), str(model), "--rounds", "5"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].endswith("median of 5 rounds in turns:")
    assert [line.split()[3:] for line in told[1:]] == [
        ["50", "of", "50", "answers", "the", "same"]
    ] * 2
    assert float(told[1].split()[1]) == 1.0
    assert float(told[2].split()[1]) > 0


@pytest.mark.parametrize("wrong", ["absent", "other", "text"])
def test_a_model_that_cannot_be_compared_is_one_sentence(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    model = repository / "tests" / "data" / "tiny-model" / "model.tflite"
    files = {
        "absent": tmp_path / "absent.tflite",
        "other": repository / "model_artifacts" / "referral-demo" / "model.tflite",
        "text": tmp_path / "text.tflite",
    }
    files["text"].write_text("no model")
    with pytest.raises(SystemExit):
        main([str(model), str(files[wrong])])
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"error: {files[wrong]} cannot be measured: " in said
