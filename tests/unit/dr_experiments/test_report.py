"""The page stands alone: units, n, failures and provenance are on it, nothing is loaded."""

import re
import subprocess
from datetime import UTC, datetime
from html.parser import HTMLParser
from itertools import chain, repeat
from pathlib import Path

import numpy as np
import pytest

from dr_experiments import provenance
from dr_experiments.analysis import ConfigurationAnalysis, ContainerFacts, analyse
from dr_experiments.client import Client
from dr_experiments.pricing import PriceTable
from dr_experiments.provenance import Provenance, code_commit, git_commit, machine, new_run_id
from dr_experiments.report import Report, format_ms, format_usd, render_report
from dr_experiments.scenarios import warm
from dr_experiments.targets import TargetDescription, TargetError
from tests.unit.dr_experiments.fakes import PAYLOAD, FakeClock, FakeTarget, answer

PROVENANCE = Provenance(
    run_id="20261128T100000Z",
    created_at=datetime(2026, 11, 28, 10, 0, tzinfo=UTC),
    command="dr demo",
    git_commit="0123abc",
    machine="Example CPU, 2 CPUs, 25 GB, Linux x86_64",
    python="3.11.7",
    image=None,
    image_note="not built: no Docker engine answered",
    region_of_prices="us-east-1",
    local=True,
    assumptions=("A serverless container gets memory / 1769 MB of a core.",),
    seed=7,
)


def analysed(
    *,
    memory_mib: int | None = None,
    instance_type: str | None = None,
    centre_s: float = 0.02,
    distinguishable: bool = True,
    failures: int = 0,
    region: str = "us-east-1",
) -> ConfigurationAnalysis:
    clock = FakeClock()
    size = memory_mib or (instance_type or "").removeprefix("ml.").replace(".", "-")
    mode = "serverless" if memory_mib else "realtime"
    latencies = centre_s * np.random.default_rng(memory_mib or 1).lognormal(0, 0.2, 30)
    steps = chain(
        latencies[: 26 - failures],
        repeat(TargetError("throttled", "Too many <requests>", status=429)),
    )
    target = FakeTarget(
        clock,
        iter(steps),
        answers=repeat(answer(requestLatency=centre_s * 0.5, predictionLatency=centre_s * 0.4)),
        description=TargetDescription(
            name=f"dr-{mode}-mobilenet-{size}",
            mode=mode,
            memory_mib=memory_mib,
            instance_type=instance_type,
        ),
    )
    return analyse(
        warm(Client(target, clock=clock, sleep=clock.sleep), PAYLOAD, requests=25, interval_s=0.1),
        prices=PriceTable.load(),
        region=region,
        facts=ContainerFacts(
            start_to_first_prediction_s=0.6,
            memory_after_mib=92.0,
            distinguishable=distinguishable,
        ),
    )


def page(rows: list[ConfigurationAnalysis]) -> str:
    return render_report(
        Report(
            title="Warm latency of MobileNet deployments",
            rows=rows,
            provenance=PROVENANCE,
            requests=25,
            interval_s=0.1,
            requests_per_hour=720,
            payload="a drawn photograph, JPEG, 61,204 bytes",
            notices=("Demo model trained on drawn photographs only; not for clinical use.",),
            raw_files=("requests.jsonl", "requests.csv"),
        )
    )


@pytest.fixture(scope="module")
def html() -> str:
    sizes = (1024, 2048, 3072, 4096, 5120, 6144)
    rows = [
        analysed(memory_mib=m, centre_s=0.03 / m * 1024 + 0.01, distinguishable=m <= 4096)
        for m in sizes
    ]
    rows[1] = analysed(memory_mib=2048, failures=3)
    return page([*rows, analysed(instance_type="ml.m5.xlarge", centre_s=0.012)])


class _References(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []
        self.tags: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1
        for name, value in attrs:
            # xmlns is a name; the SVG's own uses of its definitions begin with '#'.
            loads = name in ("src", "href", "xlink:href", "data", "action")
            if loads and not (value or "").startswith("#"):
                self.outside.append(f"{tag} {name}={value}")


def test_the_page_loads_nothing_and_runs_nothing(html: str) -> None:
    parser = _References()
    parser.feed(html)
    assert parser.outside == []
    assert not {"script", "link", "img", "iframe", "object"} & set(parser.tags)
    assert parser.tags["svg"] == 3
    assert html.count("<?xml") == 0
    assert "url(http" not in html
    assert "@import" not in html


def test_every_figure_has_its_unit_and_every_row_its_n(html: str) -> None:
    text = re.sub(r"<[^>]+>", " ", html)
    for unit in ("ms (95 % interval)", "USD per 1,000", "round trip of a warm request, ms"):
        assert unit in text, unit
    rows = re.findall(
        r"<tr>\s*<td class=\"text nowrap\">(?:serverless|real-time) .*?</tr>", html, re.DOTALL
    )
    assert len(rows) == 7
    for row in rows:
        cells = re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)
        expected = ("22", "3") if "2048 MB" in row else ("25", "0")
        assert (cells[1], cells[2]) == expected
    assert "In all 175 counted requests, 3 failed." in text


def test_a_narrow_page_scrolls_its_tables_and_figures(html: str) -> None:
    for part in ("<table", "<svg"):
        found = re.findall(rf'<div class="scroll">\s*{part}', html)
        assert len(found) == html.count(part), part


def test_failures_are_named_and_escaped(html: str) -> None:
    assert "dr-serverless-mobilenet-2048: throttled: Too many &lt;requests&gt;" in html
    assert "<requests>" not in html


def test_the_limits_of_a_local_run_are_said_plainly(html: str) -> None:
    text = " ".join(re.sub(r"<[^>]+>", " ", html).split())
    for sentence in (
        "no number here is an AWS latency",
        "Costs are estimated",
        "not distinguishable on this machine",
        "Not a medical device",
        "Diabetic macular oedema is not assessed.",
        "trained on drawn photographs only",
        "A serverless container gets memory / 1769 MB of a core.",
        "lies between the two slowest",
        "95 % interval by Student's t",
        "Hyndman-Fan 7",
        "start at least 0.1 s apart",
        "where an answer took longer, the next request followed at once",
        "Mean time between starts: serverless 1024 MB 100 ms",
    ):
        assert sentence in text.replace("&#39;", "'"), sentence
    assert html.count("MB *") >= 2


def test_provenance_and_prices_are_on_the_page(html: str) -> None:
    for fact in ("0123abc", "ab" * 32, "Example CPU", "3.11.7", "dr demo", "not built"):
        assert fact in html, fact
    used = {("serverless-compute", "2048"), ("instance-hour", "ml.m5.xlarge")}
    for item, sku in used:
        # The newest row, which is the one that a cost of today uses.
        price = PriceTable.load().find(item, region="us-east-1", sku=sku)
        assert price.source in html
        assert price.checked.isoformat() in html


def test_an_unknown_price_leaves_the_latencies_and_says_so() -> None:
    html = page([analysed(memory_mib=2048, region="ap-south-1")])
    assert "no price for serverless-compute 2048 in ap-south-1" in html
    assert html.count("<svg") == 2


def test_a_deployment_that_never_answered_is_shown_as_such() -> None:
    html = page([analysed(memory_mib=1024, failures=25), analysed(memory_mib=2048)])
    assert "no warm answer" in html
    with pytest.raises(ValueError, match="at least one"):
        page([])


def test_the_same_measurements_give_the_same_page(html: str) -> None:
    row = analysed(memory_mib=2048)
    assert page([row]) == page([row])


@pytest.mark.parametrize(
    ("value", "text"), [(None, "\N{EN DASH}"), (4.222, "4.22"), (42.22, "42.2"), (1422.0, "1,422")]
)
def test_milliseconds(value: float | None, text: str) -> None:
    assert format_ms(value) == text


def test_dollars_never_in_scientific_notation() -> None:
    cost = analysed(memory_mib=2048).cost
    assert cost is not None
    tiny = cost.usd_per_1000 / 10_000
    assert "E" not in format_usd(tiny)
    assert float(format_usd(tiny)) == pytest.approx(float(tiny), rel=0.01)


def test_the_machine_is_described_without_its_name(repository: object) -> None:
    import platform

    # In words of any language.
    assert re.search(r", \d+ CPUs?, \d+ GB, \w+ \w+$", machine())
    assert platform.node() not in machine()
    assert re.fullmatch(r"\d{8}T\d{6}Z", new_run_id())


def test_commit_of_a_folder_without_git_is_unknown(tmp_path: Path) -> None:
    assert git_commit(tmp_path) is None


def test_the_commit_is_that_of_the_code_and_not_of_the_folder_it_is_run_in(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    git("commit", "--allow-empty", "--message", "of something else")
    other = git_commit(tmp_path)
    assert other is not None
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / ".git"))
    assert code_commit() == git_commit(repository) != other
    # An environment inside of somebody's checkout, into which the wheel was installed.
    installed = tmp_path / ".venv" / "site-packages" / "dr_experiments" / "provenance.py"
    installed.parent.mkdir(parents=True)
    installed.touch()
    monkeypatch.setattr(provenance, "__file__", str(installed))
    assert code_commit() is None
    monkeypatch.delenv("GIT_DIR")
    git("add", ".venv")
    git("commit", "--message", "as its source")
    assert code_commit() == git_commit(tmp_path) != other
