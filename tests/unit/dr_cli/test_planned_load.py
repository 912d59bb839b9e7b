"""A load that no machine could hold is refused before anything is drawn, made or sent."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dr_cli.bench_commands import bench_app
from dr_cli.errors import CommandError
from dr_cli.planned_load import MOST_PLANNED, check_planned


@pytest.mark.parametrize("shape", ["open", "server", "offline"])
def test_a_schedule_of_too_many_requests_is_refused(tmp_path: Path, shape: str) -> None:
    out = tmp_path / "load"
    arguments = ["load", "--url", "http://127.0.0.1:1", "--shape", shape, "--out", str(out)]
    done = CliRunner().invoke(bench_app, [*arguments, "--rate-per-s", "1e9", "--duration-s", "1e5"])
    assert isinstance(done.exception, CommandError)
    assert str(done.exception) == (
        "--rate-per-s 1e+09 for --duration-s 100000 plans 100,000,000,000,000 requests, and one "
        "run takes at most 500,000: a lower rate, a shorter time or several runs"
    )
    assert not out.exists()


def test_what_is_planned_is_rate_times_duration() -> None:
    check_planned("open", rate_per_s=1000, duration_s=MOST_PLANNED / 1000, queries=1)
    with pytest.raises(CommandError, match="plans 500,001 requests"):
        check_planned("open", rate_per_s=1, duration_s=MOST_PLANNED + 1, queries=1)
    # Users who wait plan nothing, and neither do LoadGen's queries in turn, but for --queries.
    check_planned("constant", rate_per_s=1e9, duration_s=1e5, queries=10**9)
    check_planned("single-stream", rate_per_s=1e9, duration_s=1e5, queries=MOST_PLANNED)
    for shape in ("single-stream", "server", "offline"):
        with pytest.raises(CommandError, match="--queries 500001: one run takes at most 500,000"):
            check_planned(shape, rate_per_s=1, duration_s=1, queries=MOST_PLANNED + 1)


@pytest.mark.parametrize("option", ["--rate-per-s", "--duration-s", "--think-s"])
@pytest.mark.parametrize("value", ["inf", "nan", "1e999"])
def test_a_number_that_is_none_is_refused(option: str, value: str) -> None:
    done = CliRunner().invoke(bench_app, ["load", "--url", "http://127.0.0.1:1", option, value])
    assert done.exit_code == 2
    assert f"Invalid value for '{option}'" in done.output


def test_a_bound_without_a_unit_is_refused_by_its_option() -> None:
    done = CliRunner().invoke(bench_app, ["load", "e", "--latency-bound", "800"])
    assert str(done.exception) == "--latency-bound 800: give a unit: 800ms or 800s"


@pytest.mark.parametrize(
    "arguments",
    [
        ["warm", "--interval-s"], ["warm", "--requests-per-hour"], ["cold", "--gap-s"],
        ["realtime", "--interval-s"], ["sweep", "row", "--on", "local", "--interval-s"],
        ["sweep", "row", "--on", "local", "--cold-gap-s"],
        ["sweep", "row", "--on", "local", "--ttl-minutes"],
        ["sweep", "row", "--on", "local", "--spending-limit-usd"], ["cloudwatch", "x", "--wait-s"],
    ],
)  # fmt: skip
def test_no_scenario_waits_for_ever(arguments: list[str]) -> None:
    done = CliRunner().invoke(bench_app, [*arguments, "inf"])
    assert done.exit_code == 2
    assert "inf is not a finite number" in " ".join(done.output.split())
