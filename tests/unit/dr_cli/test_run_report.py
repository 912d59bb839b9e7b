"""`dr bench report` over recorded runs."""

import re
from pathlib import Path

import pytest

from dr_cli.errors import CommandError
from dr_cli.run_report import report_runs
from dr_experiments.records import write_jsonl
from tests.unit.dr_experiments.record_fakes import answered

OPTIONS = {
    "language": "pt-BR", "requests_per_month": 1000, "hours": "clinic", "region": "us-east-1",
    "prices_file": None,
}  # fmt: skip


def test_a_page_names_its_records_and_the_command_that_makes_it_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "someone" / "calm"
    run.mkdir(parents=True)
    write_jsonl(run / "requests.jsonl", answered("http://127.0.0.1:1", [0.1, 0.2]))
    out = tmp_path / "new" / "report.html"
    report_runs([run], out=out, **OPTIONS)  # type: ignore[arg-type]
    page = out.read_text("utf-8")
    assert "dr bench report calm --out report.html --language pt-BR" in page
    # Where the records lay may say whose they are.
    assert "someone" not in page
    assert "(2 files)" in capsys.readouterr().out


def test_what_cannot_be_written_or_read_is_one_sentence_and_leaves_the_old_page(
    tmp_path: Path,
) -> None:
    records = tmp_path / "requests.jsonl"
    write_jsonl(records, answered("http://127.0.0.1:1", [0.1]))
    page = tmp_path / "report.html"
    page.write_text("the old one")
    cases: list[tuple[dict[str, object], Path, str]] = [
        ({"language": "pt"}, records, "language must be one of en, pt-BR; got 'pt'"),
        ({"hours": "sometimes"}, records, "hours must be"),
        ({"out": tmp_path / "report.pdf"}, records, "such as report.html"),
        ({"out": tmp_path}, records, "such as report.html"),
        ({}, tmp_path / "absent", "is not there"),
    ]
    for changes, run, message in cases:
        with pytest.raises(CommandError, match=message):
            report_runs([run], **({"out": page} | OPTIONS | changes))  # type: ignore[arg-type]
    records.write_text("{}\n")
    with pytest.raises(CommandError, match="line 1 is not a request record"):
        report_runs([records], out=page, **OPTIONS)  # type: ignore[arg-type]
    assert page.read_text() == "the old one"


SERVERLESS = "dr-serverless-mobilenet-2048"
FUNCTION = "dr-lambda-mobilenet-arm64-1024"


def report(run: Path, region: str | None, *more: Path) -> Path:
    page = run.with_name("page.html")
    report_runs([run, *more], out=page, **(OPTIONS | {"region": region, "language": "en"}))  # type: ignore[arg-type]
    return page


@pytest.mark.parametrize(
    ("region", "said"),
    [
        ("moon", "^no price is known for moon; ask AWS for its prices "),
        ("sa-east-1", "^nothing measured has a cost: no price for data-in in sa-east-1 "),
    ],
)
def test_a_region_that_was_named_and_prices_nothing_is_an_error(
    tmp_path: Path, region: str, said: str
) -> None:
    run = tmp_path / "requests.jsonl"
    write_jsonl(run, answered(SERVERLESS, [0.1, 0.2]))
    with pytest.raises(CommandError, match=said) as caught:
        report(run, region)
    assert "leave out --region for those of us-east-1" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["requests.jsonl"]


def test_a_page_is_made_where_something_has_a_price_or_nothing_is_a_deployment(
    tmp_path: Path,
) -> None:
    run = tmp_path / "requests.jsonl"
    # The function is not charged for data, whose price is not known in this region.
    write_jsonl(run, answered(SERVERLESS, [0.1, 0.2]) + answered(FUNCTION, [0.1, 0.2]))
    page = report(run, "sa-east-1").read_text("utf-8")
    assert "no price is known for data in in sa-east-1" in page
    assert "--region us-east-1" in report(run, None).read_text("utf-8")
    write_jsonl(run, answered("http://127.0.0.1:1", [0.1, 0.2]))
    for region in (None, "us-east-1"):
        assert "not a deployment of the matrix" in report(run, region).read_text("utf-8")
    with pytest.raises(CommandError, match="no price is known for moon"):
        report(run, "moon")


def test_a_price_that_was_given_stands_in_the_table_of_prices_and_in_the_command(
    tmp_path: Path,
) -> None:
    run = tmp_path / "requests.jsonl"
    write_jsonl(run, answered(SERVERLESS, [0.1, 0.2]))
    out = tmp_path / "page.html"
    given = ("data-in=0.0215", "data-out=0.0216")
    report_runs([run], out=out, given=given, **(OPTIONS | {"region": "sa-east-1"}))  # type: ignore[arg-type]
    page = out.read_text("utf-8")
    assert "--region sa-east-1 --price data-in=0.0215 --price data-out=0.0216" in page
    for text, amount in zip(given, ("0,0215", "0,0216"), strict=True):
        assert re.search(rf"<td[^>]*>\s*--price {text}\s*</td>", page)
        assert amount in page


def test_what_two_files_hold_is_refused(tmp_path: Path) -> None:
    run, copy = tmp_path / "requests.jsonl", tmp_path / "copy.jsonl"
    write_jsonl(run, answered(SERVERLESS, [0.1, 0.2]))
    copy.write_bytes(run.read_bytes())
    for other in (run, copy):
        with pytest.raises(
            CommandError, match=rf"^request 1 of {SERVERLESS} .* is in .*/{run.name} "
        ):
            report(run, None, other)
    assert not (tmp_path / "page.html").exists()


def test_runs_of_one_name_are_told_apart_and_nothing_above_is_said(tmp_path: Path) -> None:
    for name in ("someone/a/warm", "someone/b/warm", "someone/cold"):
        (tmp_path / name).mkdir(parents=True)
        write_jsonl(
            tmp_path / name / "requests.jsonl", answered(SERVERLESS, [0.1, 0.2], run_id=name[8:])
        )
    runs = [tmp_path / "someone" / name for name in ("a/warm", "b/warm", "cold")]
    out = tmp_path / "page.html"
    report_runs(runs, out=out, **OPTIONS)  # type: ignore[arg-type]
    page = out.read_text("utf-8")
    assert "dr bench report a/warm b/warm cold --out" in page
    assert all(re.search(rf"<code>{name}: [0-9a-f]{{64}}", page) for name in ("a/warm", "b/warm"))
    assert "someone" not in page
