"""`dr bench report` over recorded runs."""

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
