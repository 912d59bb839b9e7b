"""Lambda functions where endpoints can be: `dr predict`, `dr bench warm`, the other scenarios."""

import json
from pathlib import Path
from typing import Any

import pytest

from dr_cli import bench, predict
from dr_cli.errors import CommandError
from dr_cli.predict import PLACES, Place, predict_images, target_at
from dr_experiments.analysis import analyse
from dr_experiments.client import Client
from dr_experiments.pricing import PriceTable, lambda_cost
from dr_experiments.scenarios import warm
from dr_experiments.targets import TargetDescription
from tests.unit.dr_experiments.fakes import PAYLOAD, FakeClock, FakeTarget

FUNCTION = TargetDescription(
    name="dr-lambda:live", mode="lambda", memory_mib=1769, architecture="arm64"
)


class Closed(FakeTarget):
    """Remembers that its connection was closed."""

    closed = 0

    def close(self) -> None:
        Closed.closed += 1


@pytest.fixture
def function(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """Functions that were asked for, with the region."""
    asked: list[tuple[str, str | None]] = []

    def made(name: str, *, region: str | None) -> tuple[Any, str]:
        asked.append((name, region))
        return Closed(FakeClock(), iter([0.05] * 9), description=FUNCTION), "AWS eu-west-1"

    monkeypatch.setattr(predict, "function_target", made)
    monkeypatch.setattr(predict, "function_url_target", made)
    monkeypatch.setattr(bench, "function_target", made)
    return asked


def test_photographs_are_sent_to_a_function(
    function: list[tuple[str, str | None]],
    repository: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    photograph = tmp_path / "a.jpg"
    photograph.write_bytes(PAYLOAD.body)
    Closed.closed = 0
    for place in (Place(function="dr-lambda", region="eu-west-1"), Place(function_url="https://f")):
        assert predict_images([photograph], place=place, model=None, as_json=True) == 0
    assert function == [("dr-lambda", "eu-west-1"), ("https://f", None)]
    assert Closed.closed == 2
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [it["grade"] for it in answers] == [answers[0]["grade"]] * 2


def test_one_place_is_asked(tmp_path: Path) -> None:
    photograph = tmp_path / "a.jpg"
    photograph.write_bytes(PAYLOAD.body)
    place = Place(function="f", endpoint="e")
    with pytest.raises(CommandError) as refused:
        predict_images([photograph], place=place, model=None, as_json=True)
    for name in PLACES:
        assert name in str(refused.value)


def test_a_url_without_a_region_cannot_be_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "aws_region", lambda region: region)
    with pytest.raises(CommandError, match="give --region"):
        target_at(Place(function_url="https://x.lambda-url.eu-west-1.on.aws"))


def test_a_function_is_measured_and_has_a_price(
    function: list[tuple[str, str | None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dr_cli.local.running_local_aws", lambda: None)
    subject = bench._deployed((), ("dr-lambda",), region="eu-west-1")
    assert function == [("dr-lambda", "eu-west-1")]
    assert subject.region == "eu-west-1"
    prices = PriceTable.load()
    result = warm(
        Client(Closed(FakeClock(), iter([0.05] * 9), description=FUNCTION)),
        PAYLOAD,
        requests=2,
        interval_s=0,
    )
    row = analyse(result, prices=prices, region="us-east-1")
    assert row.title == "Lambda 1769 MB"
    assert row.cost is not None
    assert set(row.cost.parts_usd_per_1000) == {"compute", "requests"}


def test_cost_of_a_thousand_invocations_by_hand() -> None:
    prices = PriceTable.load()
    cost = lambda_cost(
        compute_s=0.0501, memory_mib=1024, architecture="amd64", region="us-east-1", prices=prices
    )
    # 51 ms of 1 GB at 0.0000166667 USD a GB-second, and 0.20 USD a million requests.
    assert float(cost.usd_per_1000) == pytest.approx(1000 * 0.051 * 0.0000166667 + 0.0002)


def test_functions_are_not_looked_for_beside_a_local_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dr_cli.local.running_local_aws", object)
    with pytest.raises(CommandError, match="runs no functions"):
        bench._deployed(("dr-serverless-mobilenet-1024",), ("dr-lambda",), region=None)
