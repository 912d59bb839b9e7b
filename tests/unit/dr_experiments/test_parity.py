"""Whether decisions agree: what counts as agreeing, and the interval."""

from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dr_cli import parity as command
from dr_cli.errors import CommandError
from dr_experiments.client import Client
from dr_experiments.parity import Pair, compare, summarise_parity
from dr_experiments.targets import Payload, TargetError
from tests.unit.dr_experiments.fakes import FakeClock, FakeTarget, answer


def decided(probability: float, *, positive: bool) -> dict[str, Any]:
    return answer(
        referable={
            "probability": probability,
            "operating_point": "p",
            "threshold": 0.3,
            "positive": positive,
        }
    )


def ungradable() -> dict[str, Any]:
    referable = {**answer()["referable"], "probability": None, "positive": None}
    return answer(
        predictions=None,
        grade=None,
        label=None,
        referable=referable,
        quality={"gradable": False, "reasons": ["dark"]},
    )


def client_of(*answers: dict[str, Any]) -> Client:
    clock = FakeClock()
    return Client(
        FakeTarget(clock, repeat(0.1), answers=iter(answers)), clock=clock, sleep=clock.sleep
    )


@pytest.fixture
def payload(tmp_path: Path) -> Payload:
    path = tmp_path / "wide.jpg"
    Image.new("RGB", (640, 400), (150, 70, 30)).save(path)
    return Payload(body=path.read_bytes(), content_type="image/jpeg")


def pair(payload: Payload, before: dict[str, Any], after: dict[str, Any]) -> Pair:
    return compare(client_of(before, after), payload, cropped=True, max_side_px=320)


def test_a_pair_agrees_on_the_decision_and_on_the_verdict(payload: Payload) -> None:
    yes, no = decided(0.8, positive=True), decided(0.2, positive=False)
    same = pair(payload, yes, decided(0.7, positive=True))
    assert same.same_decision
    assert same.moved == pytest.approx(0.1)
    assert same.bytes_after < same.bytes_before
    other = pair(payload, yes, no)
    assert (other.same_verdict, other.same_decision) == (True, False)
    lost = pair(payload, yes, ungradable())
    assert (lost.same_verdict, lost.same_decision, lost.moved) == (False, False, None)
    assert pair(payload, ungradable(), ungradable()).same_decision


def test_agreement_has_its_exact_interval(payload: Payload) -> None:
    yes = decided(0.8, positive=True)
    agreeing = pair(payload, yes, yes)
    found = summarise_parity([agreeing] * 40)
    assert (found.n, found.same, found.unanswered) == (40, 40, 0)
    # Clopper and Pearson, 40 of 40: (alpha / 2) ** (1 / n).
    assert found.low == pytest.approx(0.025 ** (1 / 40))
    assert found.high == 1
    assert found.most_moved == 0
    one_lost = summarise_parity([agreeing] * 3 + [pair(payload, yes, ungradable())])
    assert (one_lost.same, one_lost.same_verdict) == (3, 3)
    assert "3 of 4 photographs were decided as before (19.4% to 99.4%" in command.words(one_lost)


def test_what_is_not_answered_is_counted_apart(payload: Payload) -> None:
    clock = FakeClock()
    steps: Iterator[float | TargetError] = iter([0.1, TargetError("timeout", "late")])
    client = Client(FakeTarget(clock, steps), clock=clock, sleep=clock.sleep)
    lost = compare(client, payload, cropped=False, max_side_px=320)
    assert not lost.answered
    yes = decided(0.8, positive=True)
    found = summarise_parity([lost, pair(payload, yes, yes)])
    assert (found.n, found.unanswered) == (1, 1)
    with pytest.raises(ValueError, match="no photograph was answered"):
        summarise_parity([lost])


def test_the_command_wants_to_know_what_is_compared(tmp_path: Path) -> None:
    options: dict[str, Any] = {"endpoint": None, "url": None, "model": None, "region": None}
    with pytest.raises(CommandError, match="--crop, --max-side-px or both"):
        command.bench_parity([tmp_path], cropped=False, max_side_px=None, **options)
