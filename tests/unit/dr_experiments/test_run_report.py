"""The page about recorded runs: what stands in it, and what must not."""

import io
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageChops

from dr_experiments import run_figures
from dr_experiments.deployment_cost import MODES, Setup
from dr_experiments.figures import svg_text
from dr_experiments.languages import Words, all_words
from dr_experiments.months import Month
from dr_experiments.pricing import ITEMS, Price, PriceTable
from dr_experiments.records import RequestRecord, write_jsonl
from dr_experiments.run_groups import group_records, interleaved
from dr_experiments.run_report import RunReport, read_source, write_run_report
from dr_experiments.run_sections import Picture, Section, prices_used, sections
from dr_experiments.statistics import percentile, ratio_of_means, summarise
from tests.unit.dr_experiments.record_fakes import answered, cold_starts, failed, record

SERVERLESS = "dr-serverless-mobilenet-2048"
SERVERLESS_3 = "dr-serverless-mobilenet-3072"
REALTIME = "dr-realtime-mobilenet-m5-xlarge"
FAST, SLOW = [0.10, 0.11, 0.12, 0.10, 0.13], [0.40, 0.41, 0.43, 0.40, 0.42]
MONTH = Month(region="us-east-1", prices=PriceTable.load())


def load(name: str, n: int, *, run_id: str = "r2") -> list[RequestRecord]:
    return [
        record(
            name, i, scenario="loadgen-server", run_id=run_id, fullLatency=0.05,
            requestLatency=0.02, response_time_s=0.05 + (1.0 if i == n else 0),
            intended_offset_s=float(i), start_offset_s=float(i),
        )
        for i in range(1, n + 1)
    ]  # fmt: skip


def everything() -> list[RequestRecord]:
    return [
        record(SERVERLESS, 0, fullLatency=99.0, requestLatency=98.0),  # not counted
        *answered(SERVERLESS, SLOW),
        failed(SERVERLESS, 6),
        *answered(REALTIME, FAST),
        *cold_starts(SERVERLESS, [12.0, 12.5, 13.0]),
        *load(REALTIME, 8),
        failed(REALTIME, 9, scenario="loadgen-server", run_id="r2", error="<b>broken</b>"),
    ]


def made(records: list[RequestRecord]) -> tuple[Section, ...]:
    return sections(group_records(records), month=MONTH, requests=20_000, words=Words("en"))


def section(found: tuple[Section, ...], key: str, language: str = "en") -> Section:
    title = Words(language)(f"head.{key}")
    return next(one for one in found if one.title == title)


@pytest.fixture(scope="module")
def all_sections() -> tuple[Section, ...]:
    return made(everything())


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Path]]:
    """The page of everything in Portuguese, and its files; drawn once for all tests."""
    return written(tmp_path_factory.mktemp("page"), everything(), "pt-BR")


def written(
    tmp_path: Path, records: list[RequestRecord], language: str = "en", month: Month = MONTH
) -> tuple[str, list[Path]]:
    run = tmp_path / "requests.jsonl"
    write_jsonl(run, records)
    report = RunReport(
        sources=[read_source(run, name="run")],
        month=month,
        requests=20_000,
        command="dr bench report run",
        git_commit="c0ffee",
        created_at=datetime(2026, 11, 28, tzinfo=UTC),
    )
    paths = write_run_report(tmp_path / "report.html", report, Words(language))
    return paths[0].read_text("utf-8"), paths


def test_latencies_are_those_of_answered_warm_requests_with_n_and_intervals(
    all_sections: tuple[Section, ...],
) -> None:
    table = section(all_sections, "latency").tables[0]
    row = next(row for row in table.rows if SERVERLESS in row[0].text)
    found, p99 = summarise(SLOW), percentile(SLOW, 99)
    assert row[1].text == "5"
    assert (row[2].text, row[2].small) == ("1", "of 6")
    assert row[3].text == f"{1000 * found.mean:.0f}"
    assert found.mean_low is not None
    assert found.mean_high is not None
    assert row[3].small == f"{1000 * found.mean_low:.0f} to {1000 * found.mean_high:.0f}"
    assert p99.low is not None
    assert row[7].text == f"{1000 * p99.value:.0f}\N{DAGGER}"
    assert row[7].small.startswith(f"{1000 * p99.low:.0f} to ")
    # Neither the failure's 6,000 s, nor the uncounted request's 99 s, nor a cold start's 12 s.
    text = " ".join(cell.text for row in table.rows for cell in row)
    assert "6,000" not in text.replace("6,000,000", "")
    assert not any(float(n.replace(",", "")) > 1000 for n in re.findall(r"[\d,.]+\d", row[6].text))


def test_percentiles_that_have_enough_requests_are_not_marked() -> None:
    many = [0.1 + 0.0001 * i for i in range(300)]
    row = section(made(answered(SERVERLESS, many)), "latency").tables[0].rows[0]
    assert "\N{DAGGER}" not in "".join(cell.text for cell in row)


def test_phases_of_a_cold_start_say_which_are_estimated(all_sections: tuple[Section, ...]) -> None:
    found = section(all_sections, "cold")
    (table,) = found.tables
    (row,) = table.rows
    cells = dict(zip(table.head, row, strict=True))
    assert cells["n"].text == "3"
    assert cells["platform"].text == "≈ 11.18"
    assert not cells["imports"].text.startswith("≈")
    assert [picture.name for picture in found.pictures] == ["cold-start"]


def test_costs_come_from_the_same_scenario_in_either_language() -> None:
    # Where the labels would sort them otherwise: "real-time" and "warm", "quente" and "tempo real".
    leftovers = answered(SERVERLESS, SLOW, scenario="cold", run_id="r3")
    calm = [
        *answered(SERVERLESS, SLOW, scenario="realtime", run_id="r1"),
        *answered(SERVERLESS, FAST, run_id="r2"),
    ]
    for records, seconds in (
        (calm + leftovers, FAST),
        (calm[:5] + answered(SERVERLESS, FAST, scenario="cold", run_id="r3"), SLOW),
        (leftovers + load(SERVERLESS, 8), SLOW),
    ):
        (expected,) = amounts(answered(SERVERLESS, seconds), "en")
        assert amounts(records, "en") == [expected]
        assert amounts(records, "pt-BR") == [
            [text.translate(str.maketrans(".,", ",.")) for text in expected]
        ]


def amounts(records: list[RequestRecord], language: str) -> list[list[str]]:
    """Numbers of the table of costs."""
    found = sections(group_records(records), month=MONTH, requests=20_000, words=Words(language))
    rows = section(found, "cost", language).tables[0].rows
    return [[cell.text for cell in row if re.fullmatch(r"[\d.,]+", cell.text)] for row in rows]


def test_no_bound_of_a_duration_is_negative_but_that_of_a_remainder() -> None:
    def start(index: int, share: float) -> RequestRecord:
        phases = {"platform": 20 * share, "model_load": share, "answer": share}
        return record(
            SERVERLESS, index, scenario="cold", cold=True, fullLatency=22 * share,
            requestLatency=share, phases=phases, phases_estimated=["platform"],
        )  # fmt: skip

    scattered = [0.001, 0.5]
    found = made([*answered(SERVERLESS, scattered), start(1, scattered[0]), start(2, scattered[1])])
    warm = section(found, "latency").tables[0].rows[0]
    (table,) = section(found, "cold").tables
    cold = dict(zip(table.head, table.rows[0], strict=True))
    assert cold["platform"].small.startswith("-")
    low = [cell.small for name, cell in cold.items() if name not in ("configuration", "platform")]
    assert [text for text in low if text.startswith("0.00 to ")] == [text for text in low if text]
    assert len([text for text in low if text]) == 3
    assert warm[3].small.startswith("0.00 to ")
    assert warm[8].small.startswith("0.00 to ")


def test_configurations_stand_in_the_order_of_their_names_however_they_were_measured() -> None:
    sizes = [
        "dr-serverless-vgg19-1024",
        "dr-serverless-mobilenet-4096",
        "dr-serverless-mobilenet-512",
    ]
    rows = [one for name in sizes for one in answered(name, FAST)]
    table = section(made(rows), "latency").tables[0]
    assert [row[0].text for row in table.rows] == [
        "dr-serverless-mobilenet-512",
        "dr-serverless-mobilenet-4096",
        "dr-serverless-vgg19-1024",
    ]


def test_no_two_of_a_dozen_configurations_look_the_same() -> None:
    (group,) = group_records(answered(SERVERLESS, FAST))
    assert group.measured is not None
    priced, names = [group.measured] * 12, [f"configuration {number}" for number in range(12)]
    curves = run_figures.curve_figure(priced, MONTH, Words("en"), names).axes[0].lines
    assert len({(line.get_color(), line.get_linestyle()) for line in curves}) == 12
    dots = run_figures.cost_figure(priced, MONTH, 20_000, Words("en"), names).axes[0].containers
    looks = {
        (dot.lines[0].get_marker(), dot.lines[0].get_color(), dot.lines[0].get_markerfacecolor())
        for dot in dots
    }
    assert len(looks) == 24


def tick_labels(axis: Any) -> list[str]:
    low, high = sorted(axis.get_view_interval())
    return [
        axis.get_major_formatter()(where, None)
        for where in axis.get_majorticklocs()
        if low <= where <= high
    ]


def test_a_logarithmic_axis_can_be_read_between_its_powers_of_ten() -> None:
    seconds = {SERVERLESS: [0.032, 0.034], SERVERLESS_3: [0.06, 0.065], REALTIME: [1.1, 1.2]}
    groups = group_records([r for name, values in seconds.items() for r in answered(name, values)])
    labels = {id(group): group.configuration for group in groups}
    boxes = run_figures.box_figure(groups, Words("pt-BR"), labels).axes[0]
    assert tick_labels(boxes.xaxis) == ["50", "100", "200", "500", "1.000"]
    priced = [one for group in groups if (one := group.measured)]
    names = list(seconds)
    scatter = run_figures.cost_figure(priced, MONTH, 20_000, Words("en"), names).axes[0]
    assert scatter.get_xscale() == run_figures.cost_scale(priced) == "log"
    assert {"50", "200", "500"} <= set(tick_labels(scatter.xaxis))
    assert {"0.2", "0.5", "20", "50"} <= set(tick_labels(scatter.yaxis))
    # Over many decades powers of ten are enough, and there is no room for more.
    curves = run_figures.curve_figure(priced, MONTH, Words("en"), names).axes[0]
    assert tick_labels(curves.xaxis) == ["100", "10,000", "1,000,000", "100,000,000"]
    # "never" means not below a billion, and all that lies below it can be seen.
    assert curves.get_xlim() == (100, 10**9)


def test_a_figure_of_times_that_are_near_each_other_begins_at_zero() -> None:
    found = [group.measured for group in group_records(everything()) if group.warm_s]
    priced = [one for one in found if one is not None]
    names = [one.name for one in priced]
    axes = run_figures.cost_figure(priced, MONTH, 20_000, Words("en"), names).axes[0]
    assert (axes.get_xscale(), axes.get_xlim()[0]) == ("linear", 0)


def test_only_the_cheapest_of_each_mode_and_model_is_drawn_where_there_are_many() -> None:
    sizes = [f"dr-serverless-mobilenet-{mib}" for mib in (1024, 2048, 3072, 4096, 5120, 6144)]
    few = [one for name in sizes for one in answered(name, FAST)]
    (picture,) = section(made(few), "even").pictures
    assert len(picture.draw().axes[0].lines) == 6
    assert "Drawn is the cheapest" not in picture.caption
    other = [
        one
        for name in ("dr-serverless-vgg19-2048", "dr-serverless-vgg19-3072")
        for one in answered(name, SLOW, model_id="vgg19-demo")
    ]
    found = section(made([*few, *other, *answered(REALTIME, FAST)]), "even")
    (picture,) = found.pictures
    axes = picture.draw().axes[0]
    assert {re.split(r"[\n,]", text.get_text())[0] for text in axes.texts} == {
        sizes[0], "dr-serverless-vgg19-2048", REALTIME,
    }  # fmt: skip
    assert len(axes.lines) == 3
    assert "20,000 requests a month: 3 of 9 configurations" in picture.caption
    # The table has every pair, with the n of both.
    assert len(found.tables[0].rows) == 8
    assert {row[3].text for row in found.tables[0].rows} == {"5 / 5"}


def test_a_figure_is_small_and_looks_as_it_was_drawn() -> None:
    groups = group_records(cold_starts(SERVERLESS, [12.0, 12.5, 13.0]))
    figure = run_figures.phase_figure(groups, Words("en"), {id(groups[0]): "x"})
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=130, facecolor="white")
    small = run_figures.png_bytes(figure)
    assert len(small) < 0.6 * len(drawn.getvalue())
    before, after = (Image.open(one).convert("RGB") for one in (drawn, io.BytesIO(small)))
    # Of 256 shades; that of the shortest phase among them, which other phases must not take over.
    assert max(high for _, high in ImageChops.difference(before, after).getextrema()) <= 10
    svg = svg_text(figure)
    assert any("12.50" in text for text in re.findall(r">([^<]*)</text>", svg))
    assert not re.search(r"<[^>]*\d\.\d{3}[^>]*>", svg)


def test_names_at_the_ends_of_near_lines_do_not_lie_upon_each_other() -> None:
    (group,) = group_records(answered(SERVERLESS, FAST))
    assert group.measured is not None
    # The last is too long for a line, and breaks between words.
    names = [f"configuration {number}" for number in range(7)]
    priced, names = [group.measured] * 8, [*names, f"{SERVERLESS}+tensorflow+saved (warm)"]
    axes = run_figures.curve_figure(priced, MONTH, Words("en"), names).axes[0]
    heights = sorted(text.xyann[1] for text in axes.texts)
    assert all(above - below >= 0.065 for below, above in pairwise(heights))
    assert heights[0] > 0
    assert heights[-1] <= 1
    assert f"{SERVERLESS}+tensorflow+saved\n(warm), n = 5" in {t.get_text() for t in axes.texts}


def test_cold_starts_that_cannot_be_split_have_no_figure() -> None:
    found = section(made(cold_starts(SERVERLESS, [2.0, 2.1], phases=False)), "cold")
    assert not found.pictures
    assert "could be split" in found.notes[0]


def test_phases_of_two_meanings_are_never_averaged() -> None:
    whole = cold_starts(SERVERLESS, [12.0])
    part = replace(
        whole[0], index=2, phases={"connection": 0.0, "platform": 3.0, "process_start": 9.0}
    )
    (group,) = group_records([*whole, part])
    n, phases, _ = group.phases_s()
    assert n == 1
    assert phases["process_start"] == [0.2]


def test_the_wait_under_load_counts_from_the_moment_a_request_was_due(
    all_sections: tuple[Section, ...],
) -> None:
    found = section(all_sections, "load")
    row = found.tables[0].rows[0]
    assert (row[1].text, row[2].text, row[2].small) == ("8", "1", "of 9")
    assert row[5].text == f"{1000 * summarise([0.05] * 7 + [1.05]).mean:.0f}"
    assert "8 answered, 1 failed" in found.pictures[0].caption


def test_offline_has_a_throughput_and_no_latency() -> None:
    records = [
        record(REALTIME, i, scenario="loadgen-offline", fullLatency=2.0, requestLatency=0.5)
        for i in range(1, 5)
    ]
    found = made(records)
    row = section(found, "load").tables[0].rows[0]
    assert [cell.text for cell in row[5:]] == ["\N{EN DASH}"] * 4
    # Nor a cost from times that are a queue's length.
    assert "no price" not in " ".join(section(found, "cost").notes)
    assert not section(found, "cost").tables


def test_a_load_does_not_price_what_was_measured_calmly(all_sections: tuple[Section, ...]) -> None:
    rows = section(all_sections, "cost").tables[0].rows
    names = [row[0].text for row in rows]
    assert sorted(names) == [f"{REALTIME} (warm)", f"{SERVERLESS} (warm)"]


def test_a_speed_up_is_the_ratio_of_means_with_its_interval() -> None:
    rows = section(made([*answered(SERVERLESS, SLOW), *answered(SERVERLESS_3, FAST)]), "speed")
    row = rows.tables[0].rows[0]
    ratio = ratio_of_means(SLOW, FAST, paired=True)
    assert row[4].text == f"{ratio.value:.2f}"
    assert row[4].small == f"{ratio.low:.2f} to {ratio.high:.2f}"


def test_requests_are_paired_only_where_they_were_sent_in_turn() -> None:
    def at(name: str, seconds: list[int]) -> list[RequestRecord]:
        return [
            replace(one, started_at=f"2026-11-28T00:00:{second:02}+00:00")
            for one, second in zip(answered(name, [0.1] * len(seconds)), seconds, strict=True)
        ]

    turns = group_records([*at(SERVERLESS, [0, 3, 4]), *at(REALTIME, [1, 2, 5])])
    assert interleaved(*turns)
    after = group_records([*at(SERVERLESS, [0, 1, 2]), *at(REALTIME, [3, 4, 5])])
    assert not interleaved(*after)
    broken = group_records(
        [*at(SERVERLESS, [0, 3]), failed(SERVERLESS, 3), *at(REALTIME, [1, 4, 6])]
    )
    assert not interleaved(*broken)


def test_what_has_no_price_says_so_and_costs_nothing_less() -> None:
    found = section(made(answered("http://127.0.0.1:1", FAST)), "cost")
    assert not found.tables
    assert "no cost" in found.notes[0]
    assert "http://127.0.0.1:1" in found.notes[1]


def test_failures_are_listed_with_their_number(all_sections: tuple[Section, ...]) -> None:
    rows = section(all_sections, "failures").tables[0].rows
    assert [(row[1].text, row[2].text, row[2].small) for row in rows] == [
        ("timeout: <b>broken</b>", "1", "of 9"),
        ("timeout: no answer within 60 s", "1", "of 6"),
    ]
    assert "None of the 5" in section(made(answered(SERVERLESS, FAST)), "failures").notes[0]


def test_every_part_of_a_bill_has_words() -> None:
    prices = PriceTable(
        rows=tuple(
            Price(
                item=item, region="r", sku=sku, usd=Decimal(1), source="s",
                checked=datetime(2026, 1, 1, tzinfo=UTC).date(),
            )
            for item in ITEMS
            for sku in (None, "2048", "ml.m5.xlarge", "arm64")
        )
    )  # fmt: skip
    month = Month(region="r", prices=prices)
    one = group_records(answered(SERVERLESS, FAST))[0].measured
    assert one is not None
    for mode in MODES:
        by_memory = mode in {"serverless", "lambda"}
        for warm in (0, 1):
            setup = Setup(
                mode=mode,
                memory_mib=2048 if by_memory else None,
                instance_type=None if by_memory else "ml.m5.xlarge",
                architecture="arm64" if mode == "lambda" else None,
                provisioned=warm,
                storage_gb=Decimal(1),
                ephemeral_mib=1024,
            )
            for part in month.bill(replace(one, setup=setup), 1000).parts:
                assert f"part.{part}" in all_words(), part


def test_the_prices_used_are_those_of_the_bills() -> None:
    rows = prices_used(group_records(everything()), month=MONTH, requests=20_000)
    assert {row.item for row in rows} == {
        "serverless-compute", "instance-hour", "data-in", "data-out",
    }  # fmt: skip


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.outside += [
            value
            for name, value in attrs
            if name in {"src", "href", "xlink:href"}
            and value
            and not value.startswith(("#", "data:"))
        ]  # fmt: skip


def test_the_page_is_self_contained_and_complete(page: tuple[str, list[Path]]) -> None:
    text, paths = page
    parser = _Links()
    parser.feed(text)
    assert parser.outside == []
    assert not {"script", "img", "link", "iframe"} & parser.tags
    assert '<html lang="pt-BR">' in text
    words = Words("pt-BR")
    for head in ("latency", "cold", "load", "cost", "even", "failures", "method", "prices"):
        assert f"<h2>{words(f'head.{head}')}</h2>" in text
    # What a server said is shown and not obeyed.
    assert "&lt;b&gt;broken&lt;/b&gt;" in text
    assert "<b>" not in text
    assert "ab" * 32 in text
    assert [path.suffix for path in paths] == [".html"] + [".png", ".svg"] * 5
    for path in paths[1:]:
        if path.suffix == ".svg":
            tree = ET.fromstring(path.read_text("utf-8"))  # noqa: S314 - our own
            assert tree.tag.endswith("svg")
        else:
            assert path.read_bytes().startswith(b"\x89PNG")
    assert text.count("<figure>") == 5


def test_no_english_words_or_points_are_left_in_portuguese(
    page: tuple[str, list[Path]], all_sections: tuple[Section, ...]
) -> None:
    text = re.sub(r"<(style|svg).*?</\1>|<code>.*?</code>", " ", page[0], flags=re.DOTALL)
    text = re.sub(r"<[^>]+>", " ", text)
    english = repr(all_sections)
    for word in ("requests", "answered", "estimated", "interval", "failed", "month", "latency"):
        assert re.search(rf"\b{word}\b", english), word
        assert not re.search(rf"\b{word}\b", text), word
    # Milliseconds and dollars have commas; points are left in names and thousands only.
    assert re.search(r"\b0\.\d", english)
    assert not re.search(r"\s0\.\d", text)
    assert re.search(r"\s0,\d", text)


class _Texts(HTMLParser):
    """What a reader sees, texts of figures included; `without` are quoted as they were given."""

    def __init__(self, page: str, *, without: tuple[str, ...]) -> None:
        super().__init__()
        self.found: list[str] = []
        self._in_style = False
        self.feed(page)
        for quoted in without:
            self.found = [text.replace(quoted, "") for text in self.found]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_style = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self._in_style = False

    def handle_data(self, data: str) -> None:
        if data.strip() and not self._in_style:
            self.found.append(" ".join(data.split()))


def test_the_machine_is_named_where_the_records_know_it(tmp_path: Path) -> None:
    known = answered(SERVERLESS, FAST, machine="Example 9000, 2 CPUs, 25 GB, Linux x86_64")
    before = answered(SERVERLESS_3, FAST, schema=4)
    text, _ = written(tmp_path, [*known, *before])
    assert "machine of the client: Example 9000, 2 CPUs, 25 GB, Linux x86_64;" in text
    assert "machine of the client: not known;" in text
    text, _ = written(tmp_path, [*known, *before], "pt-BR")
    assert "máquina do cliente: Example 9000, 2 CPUs, 25 GB, Linux x86_64;" in text
    assert "máquina do cliente: não conhecida;" in text
    assert "região: us-east-1; " in text
    assert "imagem: não conhecida;" in text
    assert "commit: c0ffee;" in text


def of_several_kinds() -> list[RequestRecord]:
    """What has no price, a size without one, a function, a change since the commit, two runs."""
    return [
        *everything(),
        *answered("http://127.0.0.1:1", FAST, mode="local", git_commit="c0ffee+changes"),
        *answered("dr-realtime-mobilenet-m4-xlarge", FAST, mode="realtime",
                  instance_type="ml.m4.xlarge", platform="aws"),
        *answered("my-function", FAST, mode="lambda", memory_mib=1024, architecture="arm64"),
        *answered(SERVERLESS, SLOW, run_id="r3", platform="local-aws"),
        *load(SERVERLESS_3, 4),
        *(replace(one, scenario="loadgen-offline", run_id="r4") for one in load(SERVERLESS_3, 4)),
        *cold_starts(SERVERLESS_3, [2.0, 2.1], phases=False),
    ]  # fmt: skip


@pytest.mark.parametrize("region", ["us-east-1", "ap-south-1"])
def test_a_portuguese_page_of_many_kinds_of_runs_has_no_english_in_it(
    tmp_path: Path, region: str
) -> None:
    quoted = ("no answer within 60 s", "<b>broken</b>")
    month = replace(MONTH, region=region)
    pages = {
        language: " \n ".join(
            _Texts(written(tmp_path, of_several_kinds(), language, month)[0], without=quoted).found
        )
        for language in ("en", "pt-BR")
    }
    # Without places, since what stands in them differs; short words may be names in both.
    said = set()
    for key, entry in all_words().items():
        for part in re.split(r"\{\w+\}", entry["en"]):
            if len(part.strip()) > 12 and part not in entry["pt-BR"]:
                assert part.strip() not in pages["pt-BR"], key
                said |= {key} if part.strip() in pages["en"] else set()
    assert len(said) > 60, "the page shows too little to say something about its words"
    stop = r"\b(the|of|and|is|are|was|were|not|no price|with|from|by|for|that|which|has|an|add)\b"
    assert re.search(stop, pages["en"])
    assert re.findall(stop, pages["pt-BR"]) == []


def test_a_missing_price_is_named_in_the_language_of_the_page(tmp_path: Path) -> None:
    records = [*answered("http://127.0.0.1:1", FAST), *answered(SERVERLESS, FAST)]
    text, _ = written(tmp_path, records, "pt-BR", replace(MONTH, region="ap-south-1"))
    assert "não é uma implantação da matriz" in text
    assert "não se conhece preço de endpoint serverless, computação, 2048 MiB em ap-south-1" in text
    assert "(serverless-compute 2048)" in text  # the name by which a row is added


def test_the_same_records_give_the_same_page(tmp_path: Path) -> None:
    records = answered("http://127.0.0.1:1", FAST)
    assert written(tmp_path, records)[0] == written(tmp_path, records)[0]


def test_figures_of_an_earlier_page_do_not_stay(tmp_path: Path) -> None:
    folder = tmp_path / "report-figures"
    folder.mkdir()
    (folder / "break-even.svg").write_text("of an earlier page")
    _, paths = written(tmp_path, answered("http://127.0.0.1:1", FAST))
    left = sorted(path.name for path in folder.iterdir())
    assert left == sorted(path.name for path in paths[1:]) == ["latency.png", "latency.svg"]


def test_what_a_page_did_not_write_stays_among_its_figures(tmp_path: Path) -> None:
    folder = tmp_path / "report-figures"
    folder.mkdir()
    own = {"photo.png", "logo.svg", "load-99.svg", "latency.pdf", "data.csv"}
    for name in own:
        (folder / name).write_text("somebody's")
    _, paths = written(tmp_path, answered("http://127.0.0.1:1", FAST))
    assert {path.name for path in folder.iterdir()} - {path.name for path in paths} == own
    assert {(folder / name).read_text() for name in own} == {"somebody's"}


def test_a_figure_that_could_not_be_removed_later_cannot_be_made() -> None:
    with pytest.raises(ValueError, match=r"a figure is one of latency, .*; got 'colours'"):
        Picture(name="colours", draw=lambda: None, caption="")


def test_nothing_counted_or_two_models_in_one_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no counted request"):
        group_records([record(SERVERLESS, 0)])
    other = answered(SERVERLESS, FAST, model_sha256="cd" * 32)
    two = [*answered(SERVERLESS, FAST), *(replace(one, index=one.index + 5) for one in other)]
    with pytest.raises(ValueError, match="2 models"):
        written(tmp_path, two)
    assert not (tmp_path / "report.html").exists()


def test_what_two_platforms_measured_is_told_apart_and_never_compared(tmp_path: Path) -> None:
    """A local run must not pass for AWS: not in a name, a quotient or a break-even."""
    aws = answered(SERVERLESS, SLOW, platform="aws", run_id="a")
    here = [
        *answered(SERVERLESS_3, FAST, platform="local-aws", run_id="b"),
        *answered(REALTIME, FAST, platform="local-aws", run_id="b"),
    ]
    groups = group_records([*aws, *here])
    found = sections(groups, month=MONTH, requests=20_000, words=Words("en"))
    names = {row[0].text for row in section(found, "latency").tables[0].rows}
    assert names == {
        f"{SERVERLESS} (AWS)",
        f"{SERVERLESS_3} (local AWS)",
        f"{REALTIME} (local AWS)",
    }
    for key in ("speed", "even"):
        rows = section(found, key).tables[0].rows
        assert rows
        assert not any("(AWS)" in cell.text for row in rows for cell in row)
    text, _ = written(tmp_path, [*aws, *here])
    assert "more than one platform (AWS, local AWS)" in text
    assert f"{SERVERLESS_3}, {REALTIME}: measured on the local AWS of this project." in text
    assert "measured on: local AWS" in text


def test_one_platform_needs_no_word_in_each_name_and_an_unknown_one_is_said(
    tmp_path: Path,
) -> None:
    text, _ = written(tmp_path, answered(SERVERLESS, SLOW, platform="aws"))
    assert "(AWS)" not in text
    assert "local AWS" not in text
    unsaid, _ = written(tmp_path, answered(SERVERLESS, SLOW))
    assert "Everything on this page: the records do not say whether AWS or a local AWS" in unsaid


def test_records_of_before_are_known_by_what_only_the_local_aws_answers() -> None:
    old = replace(answered(SERVERLESS, FAST)[0], model_latency_ms=8.0)
    assert (old.platform, old.measured_on) == (None, "local-aws")
    # A failure beside it brought no such number; the run is the same one.
    (group,) = group_records([old, failed(SERVERLESS, 2)])
    assert group.platform == "local-aws"
    with pytest.raises(ValueError, match="measured on aws and local-aws"):
        group_records([old, replace(old, index=2, platform="aws")])
