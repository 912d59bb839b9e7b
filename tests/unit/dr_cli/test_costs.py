"""`dr bench cost` and `dr bench recommend` over recorded runs."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dr_cli.amounts import hours_per_month, seconds
from dr_cli.cost_commands import cost_app
from dr_cli.costs import (
    _price_hint,
    print_costs,
    print_recommendation,
    read_qualities,
    read_runs,
)
from dr_cli.errors import CommandError
from dr_cli.packages import DEFAULT_PACKAGE
from dr_experiments.deployment_cost import FixedPart, Setup
from dr_experiments.measured import measured, row_of
from dr_experiments.months import DATA_ITEMS, Month
from dr_experiments.price_list import append_rows
from dr_experiments.pricing import PriceTable
from dr_experiments.records import RequestRecord, read_jsonl, write_jsonl
from inference_image.model_spec import load_model_spec
from tests.unit.dr_experiments.record_fakes import answered, cold_starts, failed

SERVERLESS = "dr-serverless-mobilenet-2048"
SERVERLESS_3 = "dr-serverless-mobilenet-3072"
REALTIME = "dr-realtime-mobilenet-m5-xlarge"
LAMBDA = "dr-lambda-mobilenet-arm64-1024"
# The committed package, whose card has a sensitivity.
DEMO = load_model_spec(DEFAULT_PACKAGE).sha256


def lines(name: str, full_s: float, *, n: int = 25, failed: int = 0) -> list[str]:
    row = row_of(name)
    made = []
    for index in range(n + failed):
        ok = index < n
        latency = full_s * (1 + 0.001 * (index % 5)) if ok else None
        record = dict.fromkeys(RequestRecord.__dataclass_fields__) | {
            "schema": 1, "run_id": "r", "scenario": "warm", "configuration": name,
            "mode": row.mode.value if row else "url",
            "memory_mib": row.memory_mib if row else None,
            "instance_type": row.instance_type if row else None,
            "index": index + 1, "counted": True, "started_at": "2026-11-28T00:00:00+00:00",
            "start_offset_s": 0.0, "outcome": "ok" if ok else "timeout", "bytes_in": 66_147,
            "bytes_out": 700, "cold": False, "model_id": "mobilenet-demo", "model_sha256": DEMO,
            "requestLatency": latency / 4 if latency else None, "fullLatency": latency,
            "retries": 0, "throttles": 0,
        }  # fmt: skip
        made.append(json.dumps(record))
    return made


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "bench"
    folder.mkdir()
    (folder / "requests.jsonl").write_text(
        "\n".join(
            lines(SERVERLESS, 0.4)
            + lines(SERVERLESS_3, 0.3)
            + lines(REALTIME, 0.1)
            + lines(LAMBDA, 2.0)
            + lines("http://127.0.0.1:8080", 0.1)
        )
    )
    return folder


def recommend(run: Path, **options: object) -> None:
    defaults: dict[str, object] = {
        "p99": "1s", "requests_per_month": 20_000, "hours": "clinic", "region": "us-east-1",
        "min_sensitivity": 0.9, "fixed": FixedPart(), "prices_file": None,
    }  # fmt: skip
    print_recommendation([run], **{**defaults, **options})  # type: ignore[arg-type]


def test_the_cheapest_that_is_fast_and_good_enough_is_recommended(
    run: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(repository)
    recommend(run)
    text = capsys.readouterr().out
    assert f"{SERVERLESS} is the cheapest of 3 suitable configurations" in text
    assert "p99 of 402 ms (n = 25 warm requests), where at most 1,000 ms were asked for." in text
    assert "A p99 needs 299 requests" in text
    assert f"Faster: {SERVERLESS_3}" in text
    assert "drawn photographs" in text
    assert (
        "Deployment(mode=Mode.SERVERLESS, model='mobilenet', architecture=Arch.AMD64, "
        "memory_mib=2048)"
    ) in text
    assert f"npx cdk deploy {SERVERLESS} -c modes=serverless -c models=mobilenet" in text
    rows = {line.split(" | ")[0].strip("| "): line for line in text.splitlines() if "|" in line}
    assert "p99 2.008 s is above 1 s" in rows[LAMBDA]
    assert "no price" in rows["http://127.0.0.1:8080"]
    assert rows[REALTIME].split(" | ")[7] == "yes"
    # Records of before do not say where they were measured.
    assert rows[SERVERLESS].split(" | ")[1] == "not recorded"
    assert "do not say where they were measured" in text


def test_a_tight_wish_leaves_the_instance_and_an_impossible_one_says_why(
    run: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(repository)
    recommend(run, p99="200.5ms")
    text = capsys.readouterr().out
    assert f"{REALTIME} is the cheapest of 1 suitable configuration:" in text
    assert "where at most 200.5 ms were asked for" in text
    recommend(run, p99=None)
    assert "asked for" not in capsys.readouterr().out
    with pytest.raises(CommandError, match=r"suitable \(p99 of at most 10 ms asked for\)\. "):
        recommend(run, p99="10ms")
    for bare in ("800", ""):
        with pytest.raises(CommandError, match=r"^--p99.*(give a unit|a time is like)"):
            recommend(run, p99=bare)
    with pytest.raises(CommandError, match="None of the measured"):
        recommend(run, p99="10ms")
    with pytest.raises(CommandError, match="no price for serverless-compute 2048 in ap-south-1"):
        recommend(run, region="ap-south-1")
    with pytest.raises(CommandError, match="lower bound of the sensitivity"):
        recommend(run, min_sensitivity=0.9999)


def test_a_reason_against_all_is_said_once_and_what_helps_is_named(
    run: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    with_platform(
        run,
        dr_serverless_mobilenet_2048="aws",
        dr_realtime_mobilenet_m5_xlarge="aws",
    )
    with pytest.raises(CommandError) as caught:
        recommend(run, region="sa-east-1", p99="10ms")
    text = str(caught.value)
    assert text.count("no price for data-in in sa-east-1") == 1
    assert "all 2: no price for data-in" in text
    assert f"{SERVERLESS}: p99 " in text
    assert f"{REALTIME}: p99 " in text
    assert "dr bench prices --region sa-east-1 --refresh" in text
    assert "--without-data" in text


def test_a_price_that_aws_is_not_asked_for_here_gets_no_such_advice() -> None:
    own = " Or give one that you have read yourself with --price."
    for item in ("lambda-compute amd64", "alarm"):
        assert _price_hint(f"no price for {item} in eu-west-3 (USD)", "eu-west-3") == own
    assert _price_hint("3 of 3 requests failed", "eu-west-3") == ""
    hint = _price_hint("no price for instance-hour ml.m5.xlarge in eu-west-3 (USD)", "eu-west-3")
    assert "dr bench prices --region eu-west-3 --refresh" in hint
    assert "--without-data" not in hint


def with_platform(run: Path, **platforms: str | None) -> Path:
    """The same run, measured on the platform that each configuration has here."""
    path = run / "requests.jsonl"
    known = {name.replace("_", "-"): value for name, value in platforms.items()}
    records = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [
        {**record, "platform": known[record["configuration"]]}
        for record in records
        if record["configuration"] in known
    ]
    path.write_text("\n".join(map(json.dumps, kept)))
    return run


def test_a_local_run_is_never_ranked_as_aws_in_silence(
    run: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(repository)
    recommend(
        with_platform(
            run,
            dr_serverless_mobilenet_2048="local-aws",
            dr_realtime_mobilenet_m5_xlarge="aws",
        )
    )
    text = capsys.readouterr().out
    assert f"| {SERVERLESS} | local AWS |" in text
    assert f"| {REALTIME} | AWS |" in text
    assert f"{SERVERLESS}: measured on the local AWS: the times, and the costs from them" in text
    assert "Times of two platforms, and costs from them, are not comparable" in text
    print_costs(
        [run], requests_per_month=20_000, hours="always", region="us-east-1",
        fixed=FixedPart(), prices_file=None,
    )  # fmt: skip
    out = capsys.readouterr().out
    assert "measured on the local AWS" in out
    # It is a bill of each, in no order.
    assert "rank" not in out
    assert "From how many requests" not in out


def test_what_aws_measured_needs_no_notice(
    run: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(repository)
    recommend(with_platform(run, dr_serverless_mobilenet_2048="aws"))
    text = capsys.readouterr().out
    assert "local AWS" not in text
    assert "not comparable" not in text


def test_a_price_of_data_that_nobody_knows_stops_no_choice_that_it_does_not_decide(
    run: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(repository)
    recommend(run, region="sa-east-1")
    text = capsys.readouterr().out
    assert "The price of data in and out in sa-east-1 is not known, and does not decide" in text
    assert "| USD/month (container, without data in and out) |" in text
    recommend(run, region="sa-east-1", data=False)
    asked = capsys.readouterr().out
    assert asked == text.replace(
        "The price of data in and out in sa-east-1 is not known, and does not decide this.\n", ""
    )
    # 20,000 x 0.1002 s x 0.00004 USD, time in the container
    assert f"{SERVERLESS} is the cheapest of 3 suitable configurations: about 0.080 USD" in text
    assert "The charge for data in and out is in none of these amounts." in text
    # (66,147 + 700) x 20,000 bytes; the instance moves as much.
    assert (
        f"{SERVERLESS} moves 1.25 GB of it a month, and no suitable configuration moves less"
        in text
    )
    assert "the cheapest whatever a GB costs" in text
    # Where the price is known it is counted.
    recommend(run, region="us-east-1")
    assert "data" not in capsys.readouterr().out.replace("data: drawn", "")


@pytest.mark.parametrize(("function_s", "decides"), [(4.0, False), (1.4, True)])
def test_a_price_of_data_that_nobody_knows_stops_a_choice_that_it_may_decide(
    function_s: float,
    decides: bool,
    run: Path,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A function is charged for no data: the dearer it is, the less the price of a GB matters."""
    monkeypatch.chdir(repository)
    path = run / "requests.jsonl"
    path.write_text("\n".join(lines(SERVERLESS, 0.1) + lines(LAMBDA, function_s)))
    recommend(run, region="sa-east-1", p99="9s")
    text = capsys.readouterr().out
    if decides:
        assert f"{LAMBDA} is the cheapest of 1 suitable configuration" in text
        assert "no price for data-in in sa-east-1" in text
        assert "not known, and does not decide" not in text
    else:
        assert f"{SERVERLESS} is the cheapest of 2 suitable configurations" in text
        limit = re.search(r"costs less than ([\d.]+) USD \(no known price is above 0\.016\)", text)
        assert limit is not None, text
        assert float(limit[1]) > 0.16
    # A table that knows no price of data at all says nothing of how much one may be.
    mine = run / "prices.toml"
    rows = PriceTable.load().rows
    append_rows(mine, [row for row in rows if not row.item.startswith("data-")], start="")
    recommend(run, region="sa-east-1", p99="9s", prices_file=mine)
    assert f"{LAMBDA} is the cheapest of 1 suitable configuration" in capsys.readouterr().out


def test_data_in_and_out_may_have_two_prices(
    run: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cheaper one moves less in sum, and much more in one direction."""
    monkeypatch.chdir(repository)
    heavy = [
        json.dumps({**json.loads(line), "bytes_in": 400, "bytes_out": 2_000_000})
        for line in lines(SERVERLESS, 0.1)
    ]
    light = [
        json.dumps({**json.loads(line), "bytes_in": 2_100_000, "bytes_out": 400})
        for line in lines(SERVERLESS_3, 0.1)
    ]
    (run / "requests.jsonl").write_text("\n".join(heavy + light))
    with pytest.raises(CommandError, match="no price for data-in in sa-east-1"):
        recommend(run, region="sa-east-1")
    recommend(run, region="sa-east-1", data=False)
    said = capsys.readouterr().out
    limit = re.search(r"moves 37\.3 GB of it a month; .* costs less than (\S+) USD", said)
    assert limit is not None, said
    # 20,000 x 0.025 s x 0.00002 USD between them, and 37.2 GB out that the choice moves more.
    assert float(limit[1]) == pytest.approx(0.01 / 37.25, rel=0.02)
    # A price that is known is counted, and the other one named.
    light = [line.replace("2100000", "100000") for line in light]
    (run / "requests.jsonl").write_text("\n".join(heavy + light))
    recommend(run, region="sa-east-1", given=("data-out=0.09",), p99="9s")
    said = capsys.readouterr().out
    assert f"{SERVERLESS_3} is the cheapest of 2 suitable configurations: about 0.03" in said
    assert "The price of data in in sa-east-1 is not known, and does not decide this." in said


def test_a_price_that_somebody_has_read_fills_the_gap_and_is_named(
    run: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(repository)
    given = ("data-in=0.04", "data-out=0.5")
    recommend(run, region="sa-east-1", given=given)
    text = capsys.readouterr().out
    # 0.080 USD of compute; 20,000 x (66,147 x 0.04 + 700 x 0.5) / 2**30 = 0.056 USD of data.
    assert f"{SERVERLESS} is the cheapest of 3 suitable configurations: about 0.14 USD" in text
    assert (
        "Given with --price, and not looked up: data-in sa-east-1 0.04 USD per GB, "
        "data-out sa-east-1 0.5 USD per GB." in text
    )
    print_costs(
        [run], requests_per_month=20_000, hours="always", region="sa-east-1",
        fixed=FixedPart(), prices_file=None, given=given,
    )  # fmt: skip
    assert "Given with --price, and not looked up: data-in sa-east-1 0.04 USD" in (
        capsys.readouterr().out
    )
    recommend(run, region="sa-east-1", given=(*given, "instance-hour:ml.m5.xlarg=0.2"))
    assert (
        "Given with --price, and in none of these amounts: instance-hour ml.m5.xlarg sa-east-1 0.2 "
        "USD per hour." in capsys.readouterr().out
    )
    with pytest.raises(CommandError, match=r"^--price: 'data=1' is no price"):
        recommend(run, region="sa-east-1", given=("data=1",))


def test_what_a_gb_may_cost_until_the_choice_is_another_is_said(
    run: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(repository)
    path = run / "requests.jsonl"
    path.write_text("\n".join(lines(SERVERLESS, 0.1) + lines(LAMBDA, 4.0)))
    recommend(run, region="us-east-1", data=False, p99="9s")
    text = capsys.readouterr().out
    found = re.search(
        r"a GB costs less than ([\d.]+) USD \(no .* 0\.016\), then (\S+) may be\.\n", text
    )
    assert found is not None, text
    assert found[2] == LAMBDA
    # At that very price of a GB both cost the same, by bills that count the data.
    serverless, function = read_runs([run])
    known = PriceTable.load()
    usd = {
        one.name: Month(region="us-east-1", prices=known, left_out=left_out).bill(one, 20_000).usd
        for one, left_out in ((serverless, DATA_ITEMS), (function, frozenset()))
    }
    counted = Month(region="us-east-1", prices=known).bill(serverless, 20_000).usd
    gb = (counted - usd[SERVERLESS]) / known.find("data-in", region="us-east-1").usd
    assert float(found[1]) == pytest.approx(float((usd[LAMBDA] - usd[SERVERLESS]) / gb), abs=0.0051)
    assert "1.25 GB" in text


def test_a_choice_that_is_charged_for_no_data_holds_whatever_it_costs(
    run: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(repository)
    (run / "requests.jsonl").write_text("\n".join(lines(REALTIME, 0.1) + lines(LAMBDA, 0.5)))
    recommend(run, region="us-east-1", data=False)
    assert (
        "The choice is not charged for any, so that it holds whatever a GB costs."
        in capsys.readouterr().out
    )


def test_without_the_models_card_its_quality_is_not_known(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CommandError, match="sensitivity of its model is not known"):
        recommend(run)


def test_failures_speak_against_a_configuration(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(lines(SERVERLESS, 0.1, failed=1)))
    with pytest.raises(CommandError, match="1 of 26 requests failed"):
        recommend(path, min_sensitivity=None)


def test_costs_on_both_bases_with_curves_and_break_even(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_costs(
        [run], requests_per_month=20_000, hours="always", region="us-east-1",
        fixed=FixedPart(alarms=3), prices_file=None,
    )  # fmt: skip
    out, err = capsys.readouterr()
    # 20,000 x 0.4008 s x 0.00004 + data 0.0199 + alarms 0.30; in the container a quarter of it
    assert f"| {SERVERLESS} | 25 | 0.6406 | 0.4001 | compute 0.0802" in out
    assert f"| {REALTIME} | 25 | 168.2199 | 168.2199 |" in out
    assert f"| {SERVERLESS} | {REALTIME} | 41," in out
    assert f"| {SERVERLESS} | {LAMBDA} | never | never |" in out
    assert "http://127.0.0.1:8080: not a deployment" in err


def test_every_table_of_costs_has_its_n_and_amounts_below_a_cent_are_no_zeros(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_costs(
        [run], requests_per_month=20_000, hours="always", region="us-east-1",
        fixed=FixedPart(), prices_file=None,
    )  # fmt: skip
    month, curve, even = (
        [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
        for block in re.findall(r"(?:^\|.*\n)+", capsys.readouterr().out, flags=re.MULTILINE)
    )
    for table, column in ((month, 1), (curve, 1), (even, 4)):
        assert table[0][column] == "n"
        assert {row[column] for row in table[2:]} == {"25 / 25" if table is even else "25"}
    # 100 x 0.1002 s x 0.00004, and (66,147 + 700) x 100 bytes at 0.016 a GB where data is charged.
    row = next(row for row in curve if row[0] == SERVERLESS)
    assert row[2] == "0.00050"
    assert not any(re.fullmatch(r"0\.0*", cell) for row in (*month[2:], *curve[2:]) for cell in row)
    assert month[0][5:] == ["by round trip, low to high", "in the container, low to high"]
    one = next(one for one in read_runs([run]) if one.name == SERVERLESS)
    billed = Month(region="us-east-1", prices=PriceTable.load())
    low, high = (billed.bill(one, 20_000, side=side).usd for side in (-1, 1))
    assert low < high
    assert next(row for row in month if row[0] == SERVERLESS)[6] == f"{low:.4f} to {high:.4f}"
    # An instance costs the same at both bounds.
    assert next(row for row in month if row[0] == REALTIME)[5] == "167.9199"


def test_containers_kept_warm_and_volumes_are_in_the_bill(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_costs(
        [run], requests_per_month=20_000, hours="100", region="us-east-1",
        fixed=FixedPart(), prices_file=None, provisioned=1, storage_gb=20,
    )  # fmt: skip
    out, err = capsys.readouterr()
    assert "provisioned concurrency 8.3880" in out  # 100 h x 3,600 s x 0.0000233
    assert "storage 2.2400" in out
    assert f"no cost: {SERVERLESS_3}: no price for serverless-provisioned 3072" in err


def test_an_instance_is_priced_for_work_that_comes_in_jobs_as_well(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {
        "requests_per_month": 20_000, "hours": "always", "region": "us-west-2",
        "fixed": FixedPart(), "prices_file": None, "data": False,
    }  # fmt: skip
    print_costs([run], also=("batch", "async"), **options)
    out, err = capsys.readouterr()
    # (20,000 x 0.02505 s / 0.7 + 20 starts of 300 s) / 3,600 x 0.23, and 40 x 0.0054
    assert (
        f"| {REALTIME} as batch | 25 | 0.7822 | 0.6451 | instances 0.4291, objects 0.2160 |" in out
    )
    assert f"| {REALTIME} | {REALTIME} as batch |" not in out
    assert f"| {REALTIME} as batch | {REALTIME} |" in out
    assert f"no cost: {REALTIME} as async: no price for async-hour ml.m5.xlarge in us-west-2" in err
    assert f"\n- 20 jobs a month, 300 s of start each: {REALTIME} as batch\n" in out
    with pytest.raises(CommandError, match="--also is one of async, batch; got 'queue'"):
        print_costs([run], also=("queue",), **options)


def test_what_the_bills_take_for_granted_is_said_once_with_whose_it_is(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_costs(
        [run], requests_per_month=90_000_000, hours="always", region="us-east-1",
        fixed=FixedPart(), prices_file=None, also=("async",),
    )  # fmt: skip
    out = capsys.readouterr().out
    said = out.partition("Assumed:\n\n")[2].partition("\n\n")[0].splitlines()
    # 90,000,000 x 0.02505 s / 0.7 of 730 hours, and four times as long by the round trip
    assert said == [
        f"- the start of a container is not billed: {SERVERLESS}, {SERVERLESS_3}",
        f"- 2 instances at the mean load, one request at a time: {REALTIME}",
        f"- 5 instances at the mean load, one request at a time (by round trip): {REALTIME}",
        f"- an instance is busy for at most 70 % of its time: {REALTIME}, {REALTIME} as async",
        "- the function's URL and data in cost nothing; data out is not counted: " + LAMBDA,
        f"- no instance between jobs; 20 starts of 300 s a month: {REALTIME} as async",
    ]


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        (SERVERLESS, {"also": ("async",)}, "--also async applies to real-time rows, and the"),
        (
            LAMBDA,
            {"also": ("batch", "async"), "storage_gb": 1.5},
            (
                "--also batch applies to real-time rows, and the runs have none; --also async "
                "applies to real-time rows, and the runs have none; --storage-gb applies to"
            ),
        ),
        (REALTIME, {"provisioned": 1}, "--provisioned applies to serverless or Lambda rows"),
        (SERVERLESS, {"ephemeral_mib": 600}, "--ephemeral-mib applies to Lambda rows"),
        (REALTIME, {"cold_share": 0.1}, "--cold-share applies to Lambda rows"),
        ("http://127.0.0.1:1", {"provisioned": 1}, "--provisioned applies to serverless"),
    ],
)
def test_an_option_that_changes_no_bill_is_refused(
    tmp_path: Path, name: str, options: dict[str, Any], said: str
) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(lines(name, 0.2)))
    with pytest.raises(CommandError) as caught:
        print_costs(
            [path], requests_per_month=1, hours="always", region="us-east-1",
            fixed=FixedPart(), prices_file=None, **options,
        )  # fmt: skip
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    "option", ["--log-gb", "--model-gb", "--image-gb", "--storage-gb", "--cold-share"]
)
@pytest.mark.parametrize("value", ["inf", "nan", "-1", "1e999"])
def test_an_amount_that_is_no_number_is_refused(run: Path, option: str, value: str) -> None:
    done = CliRunner().invoke(cost_app, ["cost", str(run), option, value])
    assert done.exit_code == 2
    assert f"Invalid value for '{option}'" in done.output
    assert isinstance(done.exception, SystemExit)


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"metrics": 3}', '"x"', "\N{LATIN SMALL LETTER E WITH ACUTE}"],
)
def test_a_package_that_does_not_say_what_it_is_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine").mkdir()
    path = tmp_path / "mine" / "model.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(CommandError, match=r"mine/model\.json does not describe a model package"):
        read_qualities(tmp_path)


def test_starts_of_a_function_are_billed_by_their_measured_init(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {
        "requests_per_month": 20_000, "hours": "always", "region": "us-east-1",
        "fixed": FixedPart(), "prices_file": None, "cold_share": 0.5, "ephemeral_mib": 1536,
    }  # fmt: skip
    print_costs([run], **options)
    out, err = capsys.readouterr()
    assert f"no cost: {LAMBDA}: starts are billed by their init phase, and the run has none" in err
    assert f"| {SERVERLESS} | 25 |" in out  # which bills no start
    path = run / "requests.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        if record["configuration"] == LAMBDA and record["index"] <= 2:
            record["init_duration_ms"] = 3000.0 * record["index"]
    path.write_text("\n".join(map(json.dumps, records)))
    print_costs([run], **options)
    out, _ = capsys.readouterr()
    # 10,000 starts x 4.5 s x 1 GB x 0.0000133334; 20,000 x 0.501 s x 1 GB x 0.0000000309
    assert "starts 0.6000" in out
    assert "ephemeral storage 0.0003" in out


@pytest.mark.parametrize(
    ("text", "said"), [("", "nothing to compute"), ("{}", "line 1 is not a request record")]
)
def test_runs_without_records_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(text)
    with pytest.raises(CommandError, match=said):
        read_runs([path])
    with pytest.raises(CommandError, match="is not there"):
        read_runs([tmp_path / "nowhere"])


@pytest.mark.parametrize(
    ("field", "sizes", "said"),
    [
        ("memory_mib", (1024, 2048), "1024 MiB and 2048 MiB"),
        ("instance_type", ("ml.m5.xlarge", "ml.c7g.xlarge"), "ml.c7g.xlarge and ml.m5.xlarge"),
    ],
)
def test_one_name_for_two_sizes_is_refused_and_not_priced_as_the_first(
    tmp_path: Path, field: str, sizes: tuple[object, object], said: str
) -> None:
    mode = "serverless" if field == "memory_mib" else "realtime"
    first, second = (
        answered("mine", [0.1, 0.2], mode=mode, run_id=str(size), **{field: size}) for size in sizes
    )
    write_jsonl(tmp_path / "requests.jsonl", [*first, *second])
    with pytest.raises(CommandError, match=f"^mine answered on {said}; a cost is one size's"):
        read_runs([tmp_path])


def test_one_configuration_in_two_runs_is_refused(run: Path) -> None:
    with pytest.raises(CommandError, match="measured in two of the runs"):
        read_runs([run, run])


def runs_of_a_function(tmp_path: Path, **fresh: Any) -> tuple[Path, Path]:
    """Warm requests of a function, and fresh containers of it in a run of their own."""
    lambda_of = {"mode": "lambda", "memory_mib": 1024, "architecture": "arm64", "platform": "aws"}
    warm, cold = tmp_path / "warm.jsonl", tmp_path / "cold.jsonl"
    write_jsonl(warm, answered("my-function", [0.4, 0.5, 0.6], **lambda_of))
    starts = cold_starts("my-function", [3.0, 3.5], phases=False)
    write_jsonl(
        cold,
        [
            replace(one, **({**lambda_of, "init_duration_ms": 1000.0 * one.index} | fresh))
            for one in starts
        ],
    )
    return warm, cold


def test_fresh_containers_of_one_run_join_what_another_measured_warm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    warm, cold = runs_of_a_function(tmp_path)
    for order in ([warm, cold], [cold, warm]):
        (one,) = read_runs(order)
        assert (one.requests, one.cold, one.failed, one.init_s) == (5, 2, 0, 1.5)
        assert (one.round_trip.n, one.round_trip.mean) == (3, 0.5)
    print_costs(
        [warm, cold], requests_per_month=20_000, hours="always", region="us-east-1",
        fixed=FixedPart(), prices_file=None, cold_share=0.01,
    )  # fmt: skip
    out, err = capsys.readouterr()
    assert "starts 0.0040" in out  # 200 x 1.5 s x 1 GB x 0.0000133334
    assert err == ""


def test_a_warm_answer_among_fresh_containers_is_not_a_second_measurement(tmp_path: Path) -> None:
    warm, cold = runs_of_a_function(tmp_path)
    met = replace(read_jsonl(cold)[0], index=3, cold=False, fullLatency=9.0, init_duration_ms=None)
    write_jsonl(cold, [*read_jsonl(cold), met])
    (one,) = read_runs([warm, cold])
    assert (one.round_trip.n, one.round_trip.mean) == (3, 0.5)
    # It is all that is known where nothing else measured the function warm.
    assert read_runs([cold])[0].round_trip.mean == 9.0
    with pytest.raises(CommandError, match="my-function: measured in two of the runs"):
        read_runs([cold, cold])


@pytest.mark.parametrize(
    ("fresh", "said"),
    [
        ({"model_sha256": "cd" * 32}, "another model or memory size"),
        ({"memory_mib": 2048}, "another model or memory size"),
        ({"platform": "local-aws"}, "measured on aws and local-aws"),
    ],
)
def test_fresh_containers_of_something_else_do_not_join(
    tmp_path: Path, fresh: dict[str, Any], said: str
) -> None:
    with pytest.raises(CommandError, match=said):
        read_runs(runs_of_a_function(tmp_path, **fresh))


def test_which_run_is_in_which_file_makes_no_difference(tmp_path: Path) -> None:
    warm, cold = runs_of_a_function(tmp_path)
    met = replace(
        read_jsonl(cold)[0], index=3, cold=False, fullLatency=9.0, init_duration_ms=None, run_id="b"
    )
    write_jsonl(cold, [*(replace(one, run_id="b") for one in read_jsonl(cold)), met])
    one = tmp_path / "one.jsonl"
    write_jsonl(one, read_jsonl(warm) + read_jsonl(cold))
    assert read_runs([one]) == read_runs([warm, cold])
    assert read_runs([one])[0].round_trip.n == 3
    # Another scenario beside the warm one changes nothing; another warm series is refused.
    again = tmp_path / "again.jsonl"
    for scenario in ("realtime", "load-open"):
        write_jsonl(again, [replace(r, run_id="c", scenario=scenario) for r in read_jsonl(warm)])
        write_jsonl(one, read_jsonl(warm) + read_jsonl(again))
        assert read_runs([one]) == read_runs([warm, again])
        assert read_runs([one])[0].round_trip == read_runs([warm])[0].round_trip
    write_jsonl(again, [replace(r, run_id="c") for r in read_jsonl(warm)])
    write_jsonl(one, read_jsonl(warm) + read_jsonl(again))
    for runs in ([one], [warm, again]):
        with pytest.raises(
            CommandError,
            match=r"^my-function: measured in two of the runs \(warm in \S+ and c\); keep one",
        ):
            read_runs(runs)


def test_fresh_containers_alone_are_no_cost_and_were_answered(
    tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, cold = runs_of_a_function(tmp_path)
    with pytest.raises(CommandError, match="none of these runs has a warm answer"):
        read_runs([cold])
    said = "left out: my-function: fresh containers alone gave its 2 answers"
    assert said in capsys.readouterr().err
    # Beside others it is not dropped in silence either.
    assert "my-function" not in {one.name for one in read_runs([run, cold])}
    assert said in capsys.readouterr().err
    write_jsonl(cold, [failed("my-function", 1)])
    with pytest.raises(CommandError, match="no request of these runs was answered"):
        read_runs([cold])


def test_times_and_hours_are_read_or_refused() -> None:
    assert [seconds(text) for text in ("1s", "800ms", "0.8s", "1 s")] == [1, 0.8, 0.8, 1]
    assert [round(hours_per_month(text)) for text in ("always", "clinic", "100")] == [730, 217, 100]
    assert [hours_per_month(text) for text in ("1", "1.5", "730")] == [1, 1.5, 730]
    for wrong in ("", "1h", "-1s", "0", "nan", "inf", "1_0s", "0.0s", "1,5s"):
        with pytest.raises(CommandError, match="a time is like"):
            seconds(wrong)
    for bare in ("800", "0.8"):
        with pytest.raises(CommandError, match=rf"^--p99 {bare}: give a unit: {bare}ms or {bare}s"):
            seconds(bare, option="--p99")
    with pytest.raises(CommandError, match=r"^800: give a unit"):
        seconds("800")
    for long in ("86401s", "9" * 400 + "s"):
        with pytest.raises(CommandError, match="at most 86400s, a day"):
            seconds(long)
    for wrong in ("night", "731", "0", "0.00001", "0.99", "nan", "inf", "1e2", "1_0"):
        with pytest.raises(CommandError, match="hours must be"):
            hours_per_month(wrong)


def test_the_p99_of_an_open_loop_counts_from_the_intended_start() -> None:
    records = [RequestRecord(**json.loads(line)) for line in lines(SERVERLESS, 0.1)]
    (plain,) = measured(records)
    late = [replace(record, response_time_s=6.0) for record in records]
    (load,) = measured([replace(record, scenario="load-open") for record in late])
    assert plain.p99.value < 0.11
    assert load.p99.value == 6.0
    assert load.round_trip == plain.round_trip
    # One client that asks faster than it is answered is late by its own pace; nobody waits.
    assert measured(late)[0].p99 == plain.p99


def test_a_function_of_ones_own_has_the_price_of_its_size_and_architecture() -> None:
    (record,) = answered("my-function", [0.2], mode="lambda", memory_mib=2048)
    assert measured([record])[0].setup is None  # the price depends on the architecture
    (one,) = measured([replace(record, architecture="arm64")])
    assert one.setup == Setup(mode="lambda", memory_mib=2048, architecture="arm64")


def test_rows_are_found_in_any_stage() -> None:
    row = row_of("dr-ana-serverless-mobilenet-2048")
    assert row is not None
    assert row.stack_id == SERVERLESS
    assert row_of("my-endpoint") is None


def test_times_under_load_count_only_where_nothing_calm_was_measured(run: Path) -> None:
    path = run / "requests.jsonl"
    calm = lines(SERVERLESS, 0.1, n=20)
    load = [
        json.dumps({**json.loads(line), "scenario": "load-open"})
        for line in lines(SERVERLESS, 2.0, n=30)
    ]
    path.write_text("\n".join(calm + load))
    (both,) = read_runs([run])
    assert (both.round_trip.n, both.requests) == (20, 50)
    assert both.round_trip.mean == pytest.approx(0.1, rel=0.01)
    assert both.p99.value < 0.2
    path.write_text("\n".join(load))
    (alone,) = read_runs([run])
    assert alone.round_trip.n == 30
    assert alone.round_trip.mean == pytest.approx(2.0, rel=0.01)
