"""Sweeps: what is deployed is removed, nothing is measured twice, and limits hold."""

import json
import subprocess
import sys
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from dr_experiments.records import RequestRecord, read_jsonl
from dr_experiments.sweep import journal as journals
from dr_experiments.sweep.journal import SHARED, Journal, JournalError
from dr_experiments.sweep.plan import Entry, Plan, Settings, differences, make_plan
from dr_experiments.sweep.runner import (
    SWEEP,
    WATCHER,
    EntryError,
    Limits,
    LockedError,
    SweepError,
    Task,
    holding,
    watch,
)
from dr_experiments.sweep.spending import ListPricePurse
from tests.unit.dr_experiments.sweep_fakes import (
    NAMES,
    REQUESTS,
    FileCloud,
    HalfPricePurse,
    Wall,
    a_run,
    journal_lines,
    measure_with,
    small_plan,
)


def test_killed_at_each_step_and_continued(repository: Path, tmp_path: Path) -> None:
    """SIGKILL before and after every journal line, file, deployment and removal."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.dr_experiments.sweep_killer", str(tmp_path)],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert [report["killed"] for report in reports] == [True] * (len(reports) - 1) + [False]
    # Many of the kills left something deployed, or the test would show nothing.
    assert sum(bool(report["after_kill"]) for report in reports) > 15
    wanted = {(name, index) for name in NAMES[1:] for index in range(REQUESTS + 1)}
    for report in reports:
        known = {"shared" if name == SHARED else name for name in report["known"]}
        assert set(report["after_kill"]) <= known
        assert report["standing"] == report["still_known"] == []
        assert report["finished"]
        got = [(name, index) for name, index, _ in report["records"]]
        assert len(got) == len(set(got))
        assert set(got) == wanted
        assert sorted(report["measured_events"]) == sorted(NAMES[1:])


def test_a_sweep_measures_every_row_once_in_the_order_of_its_seed(tmp_path: Path) -> None:
    cloud = FileCloud(tmp_path / "cloud")
    run = a_run(tmp_path, cloud)
    state = run.carry_out()
    assert state.finished
    assert cloud.standing == set()
    assert state.spent_usd == len(NAMES)
    log = (tmp_path / "cloud" / "log").read_text().split("\n")[:-1]
    order = [entry.name for entry in run.plan.entries]
    assert log == ["deploy shared", *(f"deploy {name}" for name in order)]
    # Asked again there is nothing to do, and nothing is deployed.
    a_run(tmp_path, cloud).carry_out()
    assert (tmp_path / "cloud" / "log").read_text().split("\n")[:-1] == log
    assert len(read_jsonl(tmp_path / "requests.jsonl")) == len(NAMES) * (REQUESTS + 1)


def test_a_row_that_met_too_few_fresh_containers_is_kept_and_told(tmp_path: Path) -> None:
    cloud, said = FileCloud(tmp_path / "cloud"), []
    plan = make_plan(
        [Entry(row=NAMES[0])],
        Settings(place="local", requests=REQUESTS, cold_requests=4),
        sweep_id="abc123",
    )

    def measure(task: Task) -> list[RequestRecord]:
        records = measure_with(lambda: None)(task)
        fresh = [True, True, False]
        return records + [
            replace(records[-1], scenario="cold", index=number, cold=cold)
            for number, cold in enumerate(fresh, start=1)
        ]

    run = a_run(
        tmp_path, cloud, plan=plan, measure=measure, on_step=lambda *words: said.append(words)
    )
    assert run.carry_out().finished
    assert len(read_jsonl(tmp_path / "requests.jsonl")) == REQUESTS + 1 + 3
    assert ("met only 2 of 4 fresh containers, too short a gap:", NAMES[0]) in said


def test_the_order_is_drawn_from_the_seed_and_not_from_the_arguments() -> None:
    entries = [Entry(row=f"dr-serverless-mobilenet-{size}") for size in (1024, 2048, 3072, 4096)]
    orders = [
        [e.name for e in make_plan(given, Settings(place="local", seed=seed)).entries]
        for given, seed in ((entries, 1), (entries[::-1], 1), (entries, 2))
    ]
    assert orders[0] == orders[1] != orders[2]
    with pytest.raises(ValueError, match="named twice: dr-serverless-mobilenet-1024"):
        make_plan([entries[0], entries[0]], Settings(place="local"))
    with pytest.raises(ValueError, match="at least one"):
        make_plan([], Settings(place="local"))


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_an_interruption_removes_what_stands(
    interruption: type[BaseException], tmp_path: Path
) -> None:
    cloud = FileCloud(tmp_path / "cloud")

    def interrupted(_task: object) -> list[object]:
        assert len(cloud.standing) == 2
        raise interruption

    with pytest.raises(interruption):
        a_run(tmp_path, cloud, measure=interrupted).carry_out()
    assert cloud.standing == set()
    assert Journal(tmp_path / "journal.jsonl").state().standing == {}
    assert a_run(tmp_path, cloud).carry_out().finished


def test_a_row_that_cannot_be_deployed_is_told_and_tried_in_the_next_run(tmp_path: Path) -> None:
    cloud = FileCloud(tmp_path / "cloud")
    cloud.refuse = {NAMES[2]}
    state = a_run(tmp_path, cloud).carry_out()
    assert state.failed == {NAMES[2]: "the account may run none of these"}
    assert state.open_names == [NAMES[2]]
    assert not state.finished
    cloud.refuse = set()
    state = a_run(tmp_path, cloud).carry_out()
    assert state.failed == {}
    assert state.attempts[NAMES[2]] == 2
    assert state.finished


def test_a_row_that_answers_nothing_counts_as_not_measured(tmp_path: Path) -> None:
    def nothing(_task: object) -> list[object]:
        return []

    cloud = FileCloud(tmp_path / "cloud")
    state = a_run(tmp_path, cloud, measure=nothing).carry_out()
    assert set(state.failed) == set(NAMES)
    assert "no request was answered" in state.failed[NAMES[0]]
    assert read_jsonl(tmp_path / "requests.jsonl") == []


def test_the_spending_limit_counts_the_worst_case_before_a_row_is_deployed(tmp_path: Path) -> None:
    cloud = FileCloud(tmp_path / "cloud")
    # A row may cost 2 and comes to 1: the second would make 1 + 2, the third 2 + 2.
    limits = Limits(ttl_s=600, spending_limit_usd=Decimal("3.5"))
    state = a_run(tmp_path, cloud, limits=limits).carry_out()
    assert len(state.measured) == 2
    assert state.spent_usd == 2
    stopped = [e for e in journal_lines(tmp_path) if e["event"] == journals.STOPPED]
    assert "the limit is 3.5000 USD" in str(stopped[0]["reason"])
    # A higher limit continues it.
    limits = Limits(ttl_s=600, spending_limit_usd=Decimal(4))
    assert a_run(tmp_path, cloud, limits=limits).carry_out().finished


def test_an_attempt_that_broke_off_is_charged_its_worst_case(tmp_path: Path) -> None:
    def broken(_task: object) -> list[object]:
        raise EntryError("the time to live is over")

    state = a_run(tmp_path, FileCloud(tmp_path / "cloud"), measure=broken).carry_out()
    assert state.spent_usd == 2 * len(NAMES)


def test_the_watcher_removes_what_outlives_its_time_while_the_sweep_hangs(tmp_path: Path) -> None:
    cloud = FileCloud(tmp_path / "cloud")
    wall = Wall()
    slept: list[float] = []

    def hang(_task: object) -> list[object]:
        def sleep(seconds: float) -> None:
            slept.append(seconds)
            if len(slept) == 2:
                # Not yet over: nothing is removed.
                assert len(cloud.standing) == 2
                wall.pass_s(601)
            if len(slept) == 3:
                raise TimeoutError

        with pytest.raises(TimeoutError):
            watch(tmp_path, cloud, HalfPricePurse(), now=wall, sleep=sleep)
        # The shared part may stand as long as all rows together.
        assert cloud.standing == {"shared"}
        raise EntryError("it hung")

    with holding(tmp_path, SWEEP):
        a_run(tmp_path, cloud, measure=hang, now=wall, plan=one_row()).carry_out()
    removed = [e for e in journal_lines(tmp_path) if e["event"] == journals.REMOVED]
    assert [(e["name"], e["by"]) for e in removed] == [(NAMES[0], WATCHER), (SHARED, SWEEP)]


def test_an_instance_has_no_cold_requests_whatever_the_plan_asks_for() -> None:
    settings = Settings(place="aws", requests=4, cold_requests=10)
    instance, serverless = Entry(row=NAMES[2]), Entry(row=NAMES[0])
    assert settings.of(serverless) == settings
    assert settings.of(instance) == replace(settings, cold_requests=0)
    # Nor is money kept for them.
    assert (settings.most_requests, settings.of(instance).most_requests) == (35, 5)


def test_money_is_kept_for_the_requests_that_an_entry_can_take(tmp_path: Path) -> None:
    asked: dict[str, int] = {}

    class Purse(HalfPricePurse):
        def reserve_usd(self, entry: Entry, *, stands_s: float, requests: int) -> Decimal:
            asked[entry.name] = requests
            return super().reserve_usd(entry, stands_s=stands_s, requests=requests)

    plan = make_plan(
        [Entry(row=NAMES[0]), Entry(row=NAMES[2])],
        Settings(place="aws", requests=4, cold_requests=10),
    )
    assert a_run(tmp_path, FileCloud(tmp_path / "cloud"), plan=plan, purse=Purse()).carry_out()
    assert asked == {NAMES[0]: 35, NAMES[2]: 5}


def one_row() -> Plan:
    return make_plan(
        [Entry(row=NAMES[0])], Settings(place="local", requests=REQUESTS, cold_requests=0)
    )


def test_what_cannot_be_removed_ends_the_sweep_and_is_tried_again(tmp_path: Path) -> None:
    cloud = FileCloud(tmp_path / "cloud")
    cloud.stuck = set(NAMES)
    with pytest.raises(SweepError, match="access denied"):
        a_run(tmp_path, cloud).carry_out()
    assert len(Journal(tmp_path / "journal.jsonl").state().measured) == 1
    pauses: list[float] = []
    with pytest.raises(SweepError, match="access denied"):
        watch(tmp_path, cloud, HalfPricePurse(), sleep=pauses.append, give_up_after_s=20)
    assert pauses == [1, 2, 4, 8, 16]
    cloud.stuck = set()
    assert a_run(tmp_path, cloud).carry_out().finished
    assert cloud.standing == set()


def test_two_sweeps_cannot_work_in_one_folder_and_a_watcher_is_waited_for(tmp_path: Path) -> None:
    with (
        holding(tmp_path, SWEEP),
        pytest.raises(LockedError, match="a sweep already works"),
        holding(tmp_path, SWEEP, wait_s=60, sleep=no_sleep),
    ):
        pass
    slept: list[float] = []
    with (
        holding(tmp_path, WATCHER),
        pytest.raises(LockedError, match="a watcher"),
        holding(tmp_path, SWEEP, wait_s=0.5, sleep=slept.append),
    ):
        pass
    assert len(slept) == 3
    with holding(tmp_path, SWEEP):
        pass


def no_sleep(_seconds: float) -> None:
    raise AssertionError("a sweep is not waited for")


def test_a_line_that_was_cut_off_is_no_event_and_is_removed(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append(journals.PLANNED, plan=small_plan().document())
    whole = journal.path.read_bytes()
    for torn in (b'{"schema": 1, "ev', b"x" * 100_000):
        journal.path.write_bytes(whole + torn)
        assert [e["event"] for e in journal.events()] == [journals.PLANNED]
        journal.append(journals.FINISHED)
        assert [e["event"] for e in journal.events()] == [journals.PLANNED, journals.FINISHED]
    journal.path.write_bytes(b"torn from the start")
    journal.append(journals.FINISHED)
    assert [e["event"] for e in journal.events()] == [journals.FINISHED]


def test_a_journal_of_another_version_or_changed_by_hand_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.path.write_text('{"schema": 2, "event": "planned"}\n')
    with pytest.raises(JournalError, match="line 1 has schema 2"):
        journal.state()
    journal.path.write_text("rm -rf\n")
    with pytest.raises(JournalError, match="line 1 is no event"):
        journal.state()
    journal.path.write_text('{"schema": 1, "event": "removed", "name": "x", "usd": "much"}\n')
    assert journal.state().spent_usd == 0
    journal.path.write_text('{"schema": 1, "event": "deploying", "name": "x"}\n')
    with pytest.raises(JournalError, match="event 1 cannot be understood"):
        journal.state()


def test_another_sweep_in_the_folder_is_told_apart_by_its_settings_and_rows() -> None:
    plan = small_plan()
    assert differences(plan, Plan.of(plan.document())) == []
    other = make_plan([Entry(row=NAMES[0])], Settings(place="aws", requests=4, cold_requests=0))
    assert differences(plan, other) == [
        "place was 'local' and is now 'aws'",
        "requests was 3 and is now 4",
        f"{NAMES[2]} is missing",
        f"{NAMES[1]} is missing",
    ]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"row": "dr-serverless-mobilenet-9"}, "no row of the deployment matrix"),
        ({"row": NAMES[0], "runtime": "onnx"}, "runtime must be one of litert, tensorflow"),
        ({"row": NAMES[0], "package": "../x"}, "small letters, digits and hyphens"),
    ],
)
def test_what_cannot_be_measured_is_refused(wrong: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Entry(**wrong)


def test_the_reserve_is_hand_computed_from_list_prices() -> None:
    purse = ListPricePurse(region="us-east-1", bytes_in=0)
    serverless = Entry(row="dr-serverless-mobilenet-2048")
    instance = Entry(row="dr-realtime-mobilenet-m5-xlarge")
    # Ten requests, each counted twice for its start, of 60 s at 0.00004 USD; 100,000 bytes out
    # at 0.016 USD per binary gigabyte. An instance for half an hour at 0.23 USD.
    data = Decimal(2 * 10 * 100_000) / 2**30 * Decimal("0.016")
    compute = Decimal(2 * 10 * 60) * Decimal("0.00004")
    assert purse.reserve_usd(serverless, stands_s=9, requests=10) == compute + data
    assert purse.reserve_usd(instance, stands_s=1800, requests=10) == Decimal("0.115") + data
    assert purse.cost_usd(instance, stood_s=3600, requests=0, busy_s=0) == Decimal("0.23")
    busy = purse.cost_usd(serverless, stood_s=9, requests=10, busy_s=5)
    assert busy == 5 * Decimal("0.00004") + data / 2
