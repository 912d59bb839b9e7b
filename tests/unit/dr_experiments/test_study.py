"""The study recomputed: every printed figure, both bases, and files of another form."""

import itertools
import re
from decimal import Decimal
from pathlib import Path

import pytest

from dr_cli.analyse import analyse_study
from dr_cli.errors import CommandError
from dr_experiments.pricing import PriceTable
from dr_experiments.records import STUDY_COLUMNS
from dr_experiments.statistics import minimum_n, percentile, ratio_of_means
from dr_experiments.study import (
    CLAIMS,
    CONTAINER,
    ROUND_TRIP,
    WARM,
    Erratum,
    Study,
    StudyError,
    Verdict,
    errata,
    gives,
    read_study,
    rounding,
)
from dr_experiments.study_tables import (
    BEGIN,
    END,
    break_even_markdown,
    replace_block,
    study_markdown,
)

PRICES = PriceTable.load()
HEAD = ",requestLatency,predictionLatency,fullLatency\n"


@pytest.fixture(scope="module")
def study(request: pytest.FixtureRequest) -> Study:
    folder: Path = request.getfixturevalue("shared_data")
    return read_study(folder / "thesis-measurements")


@pytest.fixture(scope="module")
def rows(study: Study) -> dict[str, Erratum]:
    return {row.claim.text: row for row in errata(study, prices=PRICES)}


def write(folder: Path, name: str, *rows: tuple[float, float, float]) -> None:
    lines = [f"{n},{a},{b},{c}\n" for n, (a, b, c) in enumerate(rows)]
    (folder / name).write_text(HEAD + "".join(lines))


def test_every_printed_figure_has_its_row(rows: dict[str, Erratum]) -> None:
    assert len(rows) == len(CLAIMS) == 21


@pytest.mark.parametrize(
    ("printed", "how"),
    [
        ("0.0000376 USD", "cut"),
        ("0.0000344 USD", "cut"),
        ("0.0000095 USD", "rounded"),
        ("0.0000144 USD", "cut"),
        ("0.0000206 USD", "rounded"),
        ("20.67 s", "rounded"),
        ("12.48 s", "rounded"),
        ("12.46 s", "rounded"),
        ("11.07 s", "rounded"),
    ],
)
def test_printed_figures_that_the_files_give(
    rows: dict[str, Erratum], printed: str, how: str
) -> None:
    row = rows[printed]
    assert row.verdict is Verdict.AGREES
    assert row.source is not None
    assert row.source.how == "mean"
    assert rounding(row.source.value, row.claim.printed) == how


@pytest.mark.parametrize(
    ("printed", "recomputed", "where", "how"),
    [
        ("0.0000408 USD", 4.0743e-5, "VGG19, 3 GB, round trip", "means rounded to 0.01 s first"),
        (
            "2.7413\N{MULTIPLICATION SIGN}",
            2.7299,
            "VGG19, warm-up, 1 GB over 2 GB, prediction",
            "means rounded to 0.01 s first",
        ),
        (
            "2.35\N{MULTIPLICATION SIGN}",
            1.9046,
            "MobileNet, warm-up, 1 GB over 3 GB, prediction",
            "mean",
        ),
        (
            "57.42\N{MULTIPLICATION SIGN}",
            34.5267,
            "MobileNet, cold 1 GB over warm 2 GB, round trip",
            "means rounded to 0.01 s first",
        ),
        (
            "19.82\N{MULTIPLICATION SIGN}",
            12.8321,
            "VGG19, cold 1 GB over warm 2 GB, round trip",
            "means rounded to 0.01 s first",
        ),
        (
            "8.5 %",
            None,
            "VGG19, warm-up, cost, 1 GB and 2 GB, round trip, as a share of the larger",
            "means rounded to 0.01 s first",
        ),
    ],
)
def test_printed_figures_that_another_pair_or_statistic_gives(
    rows: dict[str, Erratum], printed: str, recomputed: float | None, where: str, how: str
) -> None:
    row = rows[printed]
    assert row.verdict is Verdict.OTHER
    assert row.source is not None
    assert (row.source.where, row.source.how) == (where, how)
    if recomputed is None:
        assert row.recomputed is None
    else:
        assert row.recomputed is not None
        assert row.recomputed.value == pytest.approx(recomputed, rel=1e-4)


@pytest.mark.parametrize(
    "printed", ["1.3807\N{MULTIPLICATION SIGN}", "9.4 %", "33.72 %", "24.34 %"]
)
def test_printed_figures_that_nothing_gives(rows: dict[str, Erratum], printed: str) -> None:
    assert rows[printed].verdict is Verdict.NONE
    assert rows[printed].candidates > 50


@pytest.mark.parametrize("printed", ["1.2864", "1.3272"])
def test_printed_figures_without_data(rows: dict[str, Erratum], printed: str) -> None:
    assert rows[f"{printed}\N{MULTIPLICATION SIGN}"].verdict is Verdict.NO_DATA


def test_the_basis_changes_what_more_memory_costs(study: Study) -> None:
    one, two, three = study.of(WARM, "VGG19")
    by_round_trip = [size.usd(ROUND_TRIP, prices=PRICES) for size in (one, two, three)]
    in_container = [size.usd(CONTAINER, prices=PRICES) for size in (one, two, three)]
    assert [f"{usd:.8f}" for usd in by_round_trip] == ["0.00003768", "0.00003449", "0.00004074"]
    assert [f"{usd:.8f}" for usd in in_container] == ["0.00003188", "0.00002336", "0.00002363"]
    assert all(usd < other for usd, other in zip(in_container, by_round_trip, strict=True))


def test_an_instance_pays_off_much_later_by_the_time_that_is_billed(study: Study) -> None:
    text = break_even_markdown(study, prices=PRICES)
    (row,) = [line for line in text.splitlines() if line.startswith("| MobileNet | 2 GB")]
    # 167.90 / (0.36144 x 0.00004) and 167.90 / (0.09265 x 0.00004)
    by_round_trip, in_container = row.split(" | ")[3:5]
    assert by_round_trip.startswith("11,613,")
    assert in_container.startswith("45,304,")


def test_the_page_says_what_the_measurements_say(repository: Path, study: Study) -> None:
    page = (repository / "docs/reproduction.md").read_text("utf-8")
    assert page == replace_block(page, study_markdown(study, prices=PRICES))


def test_real_time_files_give_speed_ups_between_instances(tmp_path: Path) -> None:
    write(tmp_path, "real-time-VGG19-ml.m5.xlarge.csv", (0.2, 0.1, 0.4), (0.2, 0.1, 0.4))
    write(tmp_path, "realtime-VGG19-c7g.xlarge.csv", (0.1, 0.05, 0.2), (0.1, 0.05, 0.2))
    study = read_study(tmp_path)
    assert [one.size for one in study.series] == ["ml.c7g.xlarge", "ml.m5.xlarge"]
    text = study_markdown(study, prices=PRICES)
    assert "| real-time | VGG19 | ml.c7g.xlarge → ml.m5.xlarge | 0.500 (0.500 to 0.500) " in text
    assert "25.0 %" in text
    assert "Errata" not in text
    assert "Cost" not in text


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("warm-VGG19-2gb.csv", HEAD + "0,1,1,1\n", "a name is like"),
        ("warm-up-VGG19-2gb.csv", "a,b\n1,2\n", "no column requestLatency"),
        ("warm-up-VGG19-2gb.csv", HEAD, "holds no measurement"),
        ("warm-up-VGG19-2gb.csv", HEAD + "0,1,x,1\n", "line 2 has no positive number"),
        ("warm-up-VGG19-2gb.csv", HEAD + "0,1,1,-1\n", "in fullLatency"),
        ("warm-up-VGG19-2gb.csv", HEAD + "0,1\n", "in predictionLatency"),
        ("notes.txt", "", "holds no CSV file"),
        ("warm-up-VGG19-0gb.csv", HEAD + "0,1,1,1\n", "VGG19-0gb.csv: a name is like"),
        ("warm-up-VGG19-02gb.csv", HEAD + "0,1,1,1\n", "a name is like"),
        ("real-time-VGG19-ml.m5.0xlarge.csv", HEAD + "0,1,1,1\n", "a name is like"),
        ("real-time-VGG19-ml.m5.2large.csv", HEAD + "0,1,1,1\n", "a name is like"),
        ("real-time-VGG19-ml.m\N{ARABIC-INDIC DIGIT FIVE}.xlarge.csv", HEAD, "a name is like"),
        ("real-time-VGG19.csv", HEAD + "0,1,1,1\n", "a name is like"),
        ("WARM-UP-VGG19-2GB.CSV", HEAD + "0,1,1,1\n", "a name is like"),
    ],
)
def test_files_of_another_form_are_refused(
    tmp_path: Path, name: str, content: str, said: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(StudyError, match=said):
        read_study(tmp_path)


@pytest.mark.parametrize("name", ["warm-up-VGG19-2gb.csv", "real-time-VGG19-ml.m5.xlarge.csv"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            HEAD + "0,1,1,1\n1,0,25,0,2,0,5\n",
            "line 3 has 7 fields, where the header has 4; decimals have a point",
        ),
        (HEAD + "0,1,1,1,\n", "line 2 has 5 fields, where the header has 4; decimals"),
        (
            HEAD + "0,1,1\n",
            "line 2 has 3 fields and has no value in fullLatency, where the header has 4",
        ),
        (HEAD + "0,1_0,1,20\n", r"in requestLatency \('1_0'\)"),
        (HEAD + "0,1,\N{ARABIC-INDIC DIGIT ONE},1\n", "in predictionLatency"),
        (HEAD + "0,1,1,nan\n", "line 2 has no positive number of seconds in fullLatency"),
        (HEAD + "0,1,1,inf\n", "in fullLatency"),
        (HEAD + "0,-1,1,1\n", "in requestLatency"),
        (HEAD + "0,0,0,1\n", "in requestLatency"),
        (HEAD + "0,1,,1\n", "in predictionLatency"),
        (HEAD + "0,1,1,1\n,,,\n", "line 3 has no positive number"),
        (HEAD + "0,1,1,1e300\n", "has 1e300 in fullLatency, and a request takes at most 86,400"),
        (HEAD + "0,1,1e-300,1\n", "has 1e-300 in predictionLatency"),
        (HEAD + "0,1,1.1,2\n", "a longer predictionLatency than requestLatency"),
        (HEAD + "0,2,1,1.9\n", "a longer requestLatency than fullLatency, of which it is a part"),
        (HEAD.replace(",", ";") + "0;1;1;1\n", "no column .*; columns are parted by commas"),
        (HEAD.replace("\n", ",fullLatency\n") + "0,1,1,1,2\n", "the column fullLatency twice"),
        (HEAD + "0,1,1,1\n1,1,1,1\n1,1,1,2\n", r"request 1 is there twice \(lines 3 and 4\)"),
        (HEAD + '0,1,"1,1\n', "line 2 is not CSV"),
        ("", "is empty"),
        (HEAD + "\n\n", "holds no measurement"),
    ],
)
def test_rows_of_another_form_are_refused_by_file_and_line(
    tmp_path: Path, name: str, content: str, said: str
) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(StudyError, match=said) as caught:
        read_study(tmp_path)
    assert str(caught.value).startswith(name)
    assert "\n" not in str(caught.value)


def test_two_scattered_times_give_no_negative_seconds_amounts_or_requests(tmp_path: Path) -> None:
    (tmp_path / "warm-up-VGG19-2gb.csv").write_text(HEAD + "0,0.01,0.01,0.02\n1,1,1,2\n")
    text = study_markdown(read_study(tmp_path), prices=PRICES)
    assert not re.search(r"[(|] ?-[0-9]|to -[0-9]", text)
    assert "to never)" in text


def test_rows_without_a_number_may_be_alike(tmp_path: Path) -> None:
    path = tmp_path / "warm-up-VGG19-2gb.csv"
    for text in (HEAD + ",1,1,1\n,1,1,1\n", HEAD[1:] + "1,1,1\n1,1,1\n"):
        path.write_text(text)
        assert read_study(tmp_path).series[0].n == 2


@pytest.mark.parametrize("name", ["warm-up-VGG19-2gb.csv", "real-time-VGG19-ml.m5.xlarge.csv"])
def test_encodings_are_read_or_named(tmp_path: Path, name: str) -> None:
    text = HEAD + "0,1,0.5,2\n"
    path = tmp_path / name
    path.write_bytes(text.encode("utf-8-sig").replace(b"\n", b"\r\n"))
    (read,) = read_study(tmp_path).series
    assert [read.seconds[column] for column in read.seconds] == [(1.0,), (0.5,), (2.0,)]
    for bad in (text.encode("utf-16"), text.encode() + b"\xff\n"):
        path.write_bytes(bad)
        with pytest.raises(StudyError, match=rf"^{re.escape(name)} is not UTF-8 text; save it"):
            read_study(tmp_path)


@pytest.mark.parametrize("swap", list(itertools.combinations(STUDY_COLUMNS, 2)))
def test_exchanged_columns_of_the_studys_own_files_are_noticed(
    shared_data: Path, tmp_path: Path, swap: tuple[str, str]
) -> None:
    for path in sorted((shared_data / "thesis-measurements").glob("*.csv")):
        head, _, rows = path.read_text().partition("\n")
        other = [swap[1 - swap.index(name)] if name in swap else name for name in head.split(",")]
        (tmp_path / path.name).write_text(f"{','.join(other)}\n{rows}")
        with pytest.raises(StudyError, match="are two columns exchanged"):
            read_study(tmp_path)
        (tmp_path / path.name).unlink()


def test_other_instances_and_an_ending_in_capitals_are_read(tmp_path: Path) -> None:
    types = ("m5.large", "g4dn.12xlarge", "t2.medium", "inf2-xlarge")
    for one in types:
        write(tmp_path, f"real-time-VGG19-{one}.CSV", (1, 1, 1))
    sizes = {series.size for series in read_study(tmp_path).series}
    assert sizes == {f"ml.{one.replace('-', '.')}" for one in types}


def test_times_that_round_to_nothing_give_no_quotient(tmp_path: Path) -> None:
    for gb in (1, 2):
        write(tmp_path, f"warm-up-MobileNet-{gb}gb.csv", (0.1, 0.001, 0.2))
        write(tmp_path, f"cold-start-MobileNet-{gb}gb.csv", (0.1, 0.001, 20))
    assert len(errata(read_study(tmp_path), prices=PRICES)) == len(CLAIMS)


def test_two_files_of_one_size_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "real-time-VGG19-m5.xlarge.csv", (1, 1, 1))
    write(tmp_path, "real-time-VGG19-ml.m5.xlarge.csv", (1, 1, 1))
    with pytest.raises(StudyError, match="two files"):
        read_study(tmp_path)


def test_the_command_writes_and_checks_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "csv"
    folder.mkdir()
    write(folder, "warm-up-VGG19-2gb.csv", (0.2, 0.1, 0.4), (0.3, 0.1, 0.5))
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nstale text\n{END}\nafter\n")
    with pytest.raises(CommandError, match="differs"):
        analyse_study(folder, write=page, check=True)
    analyse_study(folder, write=page, check=False)
    analyse_study(folder, write=page, check=True)
    assert page.read_text().startswith("before")
    assert page.read_text().endswith("after\n")
    assert "stale text" not in page.read_text()
    analyse_study(folder, write=None, check=False)
    assert "| warm | VGG19 | 2 GB | 2 |" in capsys.readouterr().out
    page.write_bytes(b"\xff\xfe")
    with pytest.raises(CommandError, match=r"page\.md is not UTF-8 text"):
        analyse_study(folder, write=page, check=True)
    page.write_text("no markers")
    with pytest.raises(StudyError, match="needs the lines"):
        analyse_study(folder, write=page, check=False)
    assert page.read_text() == "no markers"


def test_a_figure_is_given_by_rounding_or_cutting_and_by_nothing_else() -> None:
    assert gives(2.7414, Decimal("2.741"))
    assert gives(2.7419, Decimal("2.741"))
    assert gives(2.7405, Decimal("2.741"))
    assert not gives(2.7404, Decimal("2.741"))
    assert not gives(2.742, Decimal("2.741"))


def test_a_ratio_has_an_interval_and_pairs_make_it_narrower() -> None:
    slow = [1.0, 2.0, 3.0, 4.0, 5.0]
    fast = [value / 2 for value in slow]
    alone, paired = ratio_of_means(slow, fast), ratio_of_means(slow, fast, paired=True)
    assert alone.value == paired.value == 2
    assert alone.low is not None
    assert alone.high is not None
    assert alone.low < 2 < alone.high
    assert (paired.low, paired.high) == pytest.approx((2, 2))
    assert ratio_of_means(slow, fast) == alone
    assert ratio_of_means([1.0], fast).low is None
    with pytest.raises(ValueError, match="above 0"):
        ratio_of_means([0.0], fast)
    with pytest.raises(ValueError, match="as many values"):
        ratio_of_means([1.0, 2.0], fast, paired=True)


def test_percentiles_have_intervals_and_say_how_many_values_they_need() -> None:
    assert [minimum_n(percent) for percent in (50, 95, 99)] == [5, 59, 299]
    found = percentile([float(value) for value in range(101)], 50)
    assert found.value == 50
    assert found.low is not None
    assert found.high is not None
    assert 30 < found.low < 50 < found.high < 70
    with pytest.raises(ValueError, match="between 0 and 100"):
        percentile([1.0], 100)
