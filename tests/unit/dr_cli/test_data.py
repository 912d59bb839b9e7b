"""`dr data` from drawn photographs to checked records, and its mistakes in one sentence."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dr_cli import __main__ as program

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs `dr ARGUMENTS` in an empty folder; gives exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DR_DEBUG", raising=False)
    monkeypatch.setattr(program.signal, "signal", lambda *_: None)

    def run_dr(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dr", *arguments])
        with pytest.raises(SystemExit) as caught:
            program.main()
        out, err = capsys.readouterr()
        code = caught.value.code
        return code if isinstance(code, int) else int(code is not None), out, err

    return run_dr


@pytest.fixture
def table(run: Run) -> str:
    """Table of three drawn eyes in five grades."""
    assert run("draw", "--out", "drawn", "--count", "3", "--size-px", "200")[0] == 0
    code, out, err = run("data", "table", "drawn", "drawn", "--out", "table.csv")
    assert (code, err) == (0, "")
    assert "15 photographs, 3 patients named, in table.csv" in out
    assert "No two files are the same." in out
    return "table.csv"


def test_from_photographs_to_checked_records(run: Run, table: str) -> None:
    code, out, _ = run("data", "split", table, "--out", "split.csv", "--seed", "1")
    assert code == 0
    assert [line.split()[-1] for line in out.splitlines()[1:4]] == ["5", "5", "5"]
    code, out, _ = run("data", "check", table, "--split", "split.csv")
    assert (code, "no patient or picture is in two parts" in out) == (0, True)
    code, out, _ = run(
        *("data", "prepare", table, "--split", "split.csv", "--out", "records"),
        *("--size-px", "64", "--format", "png"),
    )
    assert code == 0
    assert "of 15 photographs; each has its row in records/qc.csv" in out
    assert len(Path("records/qc.csv").read_text().splitlines()) == 16
    code, out, _ = run("data", "check", "records")
    assert (code, "every record is whole" in out) == (0, True)


def test_a_cut_photograph_is_refused_unless_only_headers_are_read(run: Run, table: str) -> None:
    cut = Path("drawn/grade2-seed1.jpg")
    cut.write_bytes(cut.read_bytes()[:-2000])
    command = ("data", "table", "drawn", "drawn", "--out", "second.csv")
    code, _, err = run(*command)
    assert (code, err.count("\n")) == (1, 1)
    assert "grade2-seed1.jpg: the photograph cannot be decoded: The JPEG cannot be" in err
    assert not Path("second.csv").exists()
    assert run(*command, "--headers-only")[0] == 0
    code, out, _ = run(*command, "--keep-unreadable")
    assert (code, "note: grade2-seed1.jpg: the photograph cannot be decoded" in out) == (0, True)


def test_older_records_are_replaced_where_that_is_said(run: Run, table: str) -> None:
    assert run("data", "split", table, "--out", "split.csv")[0] == 0
    prepare = ("data", "prepare", table, "--split", "split.csv", "--out", "records")
    assert run(*prepare, "--size-px", "64")[0] == 0
    before = Path("records/manifest.json").read_bytes()
    code, _, err = run(*prepare, "--size-px", "80")
    assert (code, err.count("\n")) == (1, 1)
    assert "records that were prepared in another way; name a new folder, or" in err
    assert Path("records/manifest.json").read_bytes() == before
    assert run(*prepare, "--size-px", "64")[0] == 0
    assert run(*prepare, "--size-px", "80", "--replace")[0] == 0
    assert '"size_px": 80' in Path("records/manifest.json").read_text()


def test_photographs_that_became_unreadable_are_named(run: Run, table: str) -> None:
    assert run("data", "split", table, "--out", "split.csv")[0] == 0
    Path("drawn/grade2-seed1.jpg").unlink()
    code, out, _ = run(
        "data", "prepare", table, "--split", "split.csv", "--out", "records", "--size-px", "64"
    )
    assert code == 0
    assert "unreadable: grade2-seed1.jpg (grade2-seed1): no such file or directory" in out
    assert "1 unreadable of 15 photographs" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("table kaggle drawn --out t.csv", "data set 'kaggle' is not known"),
        ("table aptos drawn --out t.csv", "holds no train.csv and no folders"),
        ("table folders . --out t.csv", "say which grade each folder"),
        ("table folders drawn --label No_DR --out t.csv", "give it as NAME=GRADE"),
        ("table drawn drawn --out drawn", "drawn is a folder; name a file"),
        ("split table.csv --shares 1,2,x --out s.csv", "give the shares of train"),
        ("split table.csv --shares 0.5,0.2,0.2 --out s.csv", "must sum to 1"),
        ("split table.csv --column site --out s.csv", "the table has no column 'site'"),
        ("split table.csv --out table.csv", "name another file that ends in .csv"),
        ("split table.csv --out split.json", "name another file that ends in .csv"),
        ("split nowhere.csv --out s.csv", "nowhere.csv cannot be read: no such file"),
        ("prepare table.csv --split s.csv --out r", "s.csv cannot be read: no such file"),
        ("check drawn", "make records with `dr data prepare`"),
    ],
)
def test_mistakes_are_one_sentence(run: Run, table: str, arguments: str, sentence: str) -> None:
    code, _, err = run("data", *arguments.split())
    assert code == 1
    assert err.startswith("dr: ")
    assert sentence in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_a_leaking_split_is_refused(run: Run, table: str) -> None:
    names = [path.stem for path in sorted(Path("drawn").iterdir())]
    rows = [f"{name},{'test' if 'grade0' in name else 'train'}" for name in names]
    Path("split.csv").write_text("id,split\n" + "\n".join(rows) + "\n")
    code, _, err = run("data", "prepare", table, "--split", "split.csv", "--out", "records")
    assert code == 1
    assert "the parts leak into each other" in err
    assert "patient seed0 is in test and train" in err
    assert not Path("records").exists()


def test_a_model_says_how_its_photographs_are_prepared(
    run: Run, table: str, repository: Path
) -> None:
    assert run("data", "split", table, "--out", "split.csv")[0] == 0
    model = str(repository / "model_artifacts" / "mobilenet-demo")
    arguments = ("data", "prepare", table, "--split", "split.csv", "--out", "records")
    code, _, err = run(*arguments, "--model", model, "--size-px", "64")
    assert (code, "--model says size and steps" in err) == (1, True)
    assert run(*arguments, "--model", model)[0] == 0
    assert '"size_px": 224' in Path("records/manifest.json").read_text()
