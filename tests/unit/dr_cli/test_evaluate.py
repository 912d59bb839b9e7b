"""`dr evaluate`, `dr model recalibrate` and `dr model gate`, and their mistakes."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dr_cli import __main__ as program
from dr_cli.quantise import quantise_package
from dr_training.data.faults import DataError
from dr_training.data.splits import read_split
from dr_training.data.table import read_table
from dr_training.origin import origin_of
from inference_image.model_spec import load_model_spec

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


def small_package(repository: Path, folder: Path) -> Path:
    """The tiny model as one for prepared 28 px pictures: no crop, no gate."""
    shutil.copytree(repository / "tests" / "data" / "tiny-model", folder)
    document = json.loads((folder / "model.json").read_text())
    document.update(id=folder.name, preprocessing=[], quality_gate=None)
    (folder / "model.json").write_text(json.dumps(document))
    return folder


@pytest.fixture
def site(run: Run, repository: Path, tmp_path: Path) -> Path:
    """A package, and 120 pictures of a site with a split, in the working folder."""
    rng = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 10), ("val", 80), ("test", 60)):
        arrays[f"{part}_images"] = rng.integers(0, 256, (count, 28, 28, 3), np.uint8)
        arrays[f"{part}_labels"] = (np.arange(count) % 5)[:, None]
    np.savez(tmp_path / "site.npz", **arrays)
    assert run("data", "table", "npz", "site.npz", "--out", "table.csv")[0] == 0
    split = ("data", "split", "table.csv", "--column", "published_split", "--out", "split.csv")
    assert run(*split)[0] == 0
    return small_package(repository, tmp_path / "small")


def test_a_model_is_evaluated_on_one_part(run: Run, site: Path) -> None:
    code, out, _ = run(
        *("evaluate", "table.csv", "--split", "split.csv", "--model", str(site)),
        *("--prevalence", "0.1", "--by", "published_split", "--out", "result"),
        *("--draws", "60"),
    )
    assert code == 0
    assert "60 photographs: 60 graded, 0 ungradable, 0 failed" in out
    assert "PPV at a prevalence of 10 %" in out
    report = json.loads(Path("result/report.json").read_text())
    assert report["model"] == {"id": "small", "sha256": load_model_spec(site).sha256}
    assert report["data"] == "table.csv, part test of split.csv"
    assert set(report["subgroups"]["published_split"]) == {"test"}
    assert sum(map(sum, report["confusion"]["counts"])) == 60
    assert Path("result/confusion.png").stat().st_size > 1000


@pytest.fixture
def drawn(run: Run, repository: Path, tmp_path: Path) -> Path:
    """A package for camera photographs, and ten drawn ones in a table."""
    assert run("draw", "--out", "drawn", "--count", "2", "--size-px", "200")[0] == 0
    assert run("data", "table", "drawn", "drawn", "--out", "drawn.csv")[0] == 0
    return Path(shutil.copytree(repository / "tests" / "data" / "tiny-model", tmp_path / "camera"))


def test_a_photograph_that_failed_ends_with_another_exit_code_than_an_ungradable_one(
    run: Run, drawn: Path
) -> None:
    command = ("evaluate", "drawn.csv", "--model", str(drawn), "--draws", "20", "--out", "result")
    assert run(*command)[0] == 0
    # One of the ten becomes ungradable: dark. Another is gone.
    dark = Path("drawn/grade0-seed0.jpg")
    Image.open(dark).point(lambda value: value // 20).save(dark)
    code, out, err = run(*command)
    assert (code, err) == (0, "")
    assert "9 graded, 1 ungradable, 0 failed" in out
    Path("drawn/grade1-seed1.jpg").unlink()
    code, out, err = run(*command)
    assert code == 1
    assert "8 graded, 1 ungradable, 1 failed" in out
    assert err.startswith("dr: 1 of 10 photographs failed, and the figures are of the others; ")
    assert err.count("\n") == 1
    assert "result/predictions.csv" in err
    # The report is there all the same.
    assert json.loads(Path("result/report.json").read_text())["ungradable"]["failed"] == 1


def test_results_of_before_are_not_left_beside_an_evaluation_that_graded_nothing(
    run: Run, drawn: Path
) -> None:
    command = ("evaluate", "drawn.csv", "--draws", "20", "--out", "result")
    names = ["confusion.png", "predictions.csv", "report.json", "report.md", "roc.png"]
    Path("result").mkdir()
    Path("result/mine.txt").write_text("not of an evaluation")
    for ways, sentence in (
        (("--url", "http://127.0.0.1:9"), "no photograph was graded: "),
        (("--model", "strict"), "no photograph was graded, all are ungradable; "),
    ):
        assert run(*command, "--model", str(drawn))[0] == 0
        assert sorted(path.name for path in Path("result").iterdir()) == sorted(
            [*names, "mine.txt"]
        )
        strict = Path("strict")
        shutil.rmtree(strict, ignore_errors=True)
        document = json.loads((Path(shutil.copytree(drawn, strict)) / "model.json").read_text())
        document["quality_gate"] = {**document["quality_gate"], "min_level": 250.0}
        (strict / "model.json").write_text(json.dumps(document))
        code, _, err = run(*command, *ways)
        assert (code, err.count("\n")) == (1, 1)
        assert sentence in err
        assert "result/predictions.csv has a row for each" in err
        assert sorted(path.name for path in Path("result").iterdir()) == ["mine.txt", names[1]]
        rows = Path("result/predictions.csv").read_text().splitlines()[1:]
        assert len(rows) == 10
        assert not any(",graded," in row for row in rows)


def test_a_medmnist_file_needs_no_table(run: Run, site: Path) -> None:
    arguments = ("evaluate", "--npz", "site.npz", "--model", str(site), "--out", "result")
    arguments += ("--draws", "20")
    assert run(*arguments)[0] == 0
    assert json.loads(Path("result/report.json").read_text())["data"] == "site.npz, part test"
    code, out, _ = run(*arguments, "--part", "validation")
    assert (code, "80 photographs" in out) == (0, True)
    code, _, err = run(*arguments, "--part", "holdout")
    assert (code, "it has test, train, validation" in err) == (1, True)


def test_a_package_is_recalibrated_for_a_site_and_gated(run: Run, site: Path) -> None:
    code, out, _ = run(
        *("model", "recalibrate", str(site), "table.csv", "--split", "split.csv"),
        *("--out", "small-site", "--sensitivity", "0.9", "--specificity", "0.9"),
        *("--draws", "30"),
    )
    assert code == 0
    assert "80 images chose: 80 gradable, 48 referable" in out
    assert "on the test part:" in out
    assert "note: only 48 referable photographs and 32 others chose temperature" in out
    spec = load_model_spec(Path("small-site"))
    assert spec.id == "small-site"
    assert spec.raw["calibration"]["data"] == "table, part validation of split"
    assert run("evaluate", "table.csv", "--model", "small-site", "--draws", "20")[0] == 0

    gate = ("model", "gate", "small-site", "table.csv", "--reference", str(site), "--draws", "30")
    code, out, _ = run(*gate, "--split", "split.csv")
    assert code == 1
    verdict = load_model_spec(Path("small-site")).raw["gate"]["verdict"]
    assert f"verdict: {verdict}" in out
    assert verdict in ("refused", "insufficient data")


def test_photographs_that_failed_are_named_and_told_by_the_exit_code(run: Run, site: Path) -> None:
    # The last validation picture and the last test picture are gone.
    arrays = dict(np.load("site.npz"))
    for part in ("val", "test"):
        arrays[f"{part}_images"] = arrays[f"{part}_images"][:-1]
    np.savez("site.npz", **arrays)
    code, out, err = run(
        *("model", "recalibrate", str(site), "table.csv", "--split", "split.csv"),
        *("--out", "small-site", "--sensitivity", "0.9", "--specificity", "0.9"),
        *("--draws", "20"),
    )
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("dr: 2 photographs failed; temperature, thresholds and figures are of ")
    assert out.count("failed: site.npz") == 2
    assert "80 images chose: 79 gradable" in out
    calibration = load_model_spec(Path("small-site")).raw["calibration"]
    assert (calibration["photographs"], calibration["failed"]) == (80, 1)

    gate = ("model", "gate", "small-site", "table.csv", "--reference", str(site), "--draws", "20")
    code, out, _ = run(*gate, "--split", "split.csv")
    assert (code, out.count("failed: site.npz")) == (1, 1)
    record = load_model_spec(Path("small-site")).raw["gate"]
    assert record["failed"] == {"reference": 1, "candidate": 1}
    assert record["gradable_by_reference_only"] == 0


def trained_on(folder: Path, split: str) -> None:
    """The package says that it was trained on the training part of this split."""
    table = read_table(Path("table.csv"))
    division = read_split(Path(split), table)
    manifest = {
        "table_sha256": table.digest,
        "split_sha256": division.digest,
        "train_sha256": division.digest_of("train"),
    }
    record = origin_of(manifest, manifest_sha256="0" * 64, measured_on="test")
    document = json.loads((folder / "model.json").read_text())
    document["provenance"] = {"records": record}
    (folder / "model.json").write_text(json.dumps(document))


def test_photographs_that_a_package_was_trained_on_are_not_judged(run: Run, site: Path) -> None:
    """A second split of the same table puts them into its test part."""
    renamed(shutil.copytree(site, "other"))
    split = ("data", "split", "table.csv", "--seed", "5", "--shares", "0.3,0.4,0.3")
    assert run(*split, "--out", "second.csv")[0] == 0
    for folder in (site, Path("other")):
        trained_on(folder, "split.csv")
    before = load_model_spec(Path("other")).sha256
    gate = ("model", "gate", "other", "table.csv", "--reference", str(site), "--draws", "20")
    commands = (
        ("evaluate", "table.csv", "--model", str(site), "--draws", "20"),
        ("model", "recalibrate", str(site), "table.csv", "--out", "new", "--draws", "20"),
        gate,
    )
    for command in commands:
        code, _, err = run(*command, "--split", "second.csv")
        assert (code, err.count("\n")) == (1, 1)
        assert "was trained on another split of this table" in err
        code, _, err = run(*command)
        assert (code, "was trained on photographs of this very table" in err) == (1, True)
    for command in (commands[0], gate):
        code, _, err = run(*command, "--split", "split.csv", "--part", "train")
        assert (code, "was trained on the part train of this split" in err) == (1, True)
    code, _, err = run("evaluate", "--npz", "site.npz", "--part", "train", "--model", str(site))
    assert (code, "was trained on the part train" in err) == (1, True)
    assert not Path("out").exists()
    assert not Path("new").exists()
    assert load_model_spec(Path("other")).sha256 == before
    with pytest.raises(DataError, match="was trained on another split of this table"):
        quantise_package(
            package=str(site), table="table.csv", split="second.csv", out="new", kinds=[],
            representatives=1, sensitivity=0.9, specificity=0.9, margin=0.02, draws=20,
            network=None, epochs=1,
        )  # fmt: skip
    # One of the two is enough.
    document = json.loads((site / "model.json").read_text())
    (site / "model.json").write_text(json.dumps({**document, "provenance": {}}))
    code, _, err = run(*gate, "--split", "second.csv")
    assert (code, "package another was trained on another split" in err) == (1, True)


def test_the_split_of_the_training_is_judged_without_a_word_and_recorded(
    run: Run, site: Path
) -> None:
    trained_on(site, "split.csv")
    arguments = ("--split", "split.csv", "--draws", "20")
    code, out, _ = run("evaluate", "table.csv", "--model", str(site), *arguments)
    assert (code, "note:" in out) == (0, False)
    assert "note" not in json.loads(Path("out/evaluation/report.json").read_text())
    code, out, _ = run("model", "recalibrate", str(site), "table.csv", "--out", "new", *arguments)
    assert (code, "has no record" in out) == (0, False)
    raw = load_model_spec(Path("new")).raw
    assert raw["provenance"] == load_model_spec(site).raw["provenance"]
    table = read_table(Path("table.csv"))
    assert raw["calibration"]["records"] == {
        "table_sha256": table.digest,
        "split_sha256": read_split(Path("split.csv"), table).digest,
        "chosen_on": "validation",
        "measured_on": "test",
    }
    code, out, _ = run("evaluate", "table.csv", "--model", "new", *arguments)
    assert (code, "has no record" in out) == (0, False)


def test_a_package_without_a_record_is_judged_with_a_hint(run: Run, site: Path) -> None:
    renamed(shutil.copytree(site, "other"))
    hint = "note: package small has no record of the table and split that it was trained on"
    code, out, _ = run("evaluate", "table.csv", "--model", str(site), "--draws", "20")
    assert (code, out.count(hint)) == (0, 1)
    report = json.loads(Path("out/evaluation/report.json").read_text())
    assert f"note: {report['note']}".startswith(hint)
    assert f"Note: {report['note']}." in Path("out/evaluation/report.md").read_text()
    command = ("model", "recalibrate", str(site), "table.csv", "--out", "new")
    code, out, _ = run(*command)
    assert (code, out.count(hint)) == (0, 1)
    assert load_model_spec(Path("new")).raw["calibration"]["records"]["split_sha256"] is None
    gate = ("model", "gate", "other", "table.csv", "--reference", str(site), "--draws", "20")
    assert run(*gate)[1].count("has no record of the table and split") == 2


def renamed(folder: Path | str) -> None:
    """Another package with the same network."""
    path = Path(folder) / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"id": "another"}))


def test_a_gate_that_could_only_pass_or_compares_two_questions_is_refused(
    run: Run, repository: Path, site: Path
) -> None:
    gate = ("model", "gate", str(site), "table.csv", "--reference")
    code, _, err = run(*gate, str(site))
    assert (code, "are the same package" in err) == (1, True)
    code, _, err = run(*gate, str(repository / "model_artifacts" / "referral-demo"))
    assert code == 1
    assert "the candidate's task is grade5, the reference's referable" in err
    other = Path(shutil.copytree(site, "other"))
    document = json.loads((other / "model.json").read_text())
    (other / "model.json").write_text(json.dumps({**document, "variant": {"kind": "int8"}}))
    code, _, err = run(*gate, "other")
    assert (code, "the reference is the variant int8; name the f32 one" in err) == (1, True)
    # As the demo models' training says it.
    code, _, err = run(*gate, str(repository / "model_artifacts" / "mobilenet-demo"))
    assert (code, "the reference is the variant int8" in err) == (1, True)
    assert "gate" not in json.loads((site / "model.json").read_text())


def test_choices_are_refused_before_anything_is_asked(
    run: Run, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(*_: object, **__: object) -> None:
        raise AssertionError("a photograph was asked about")

    monkeypatch.setattr("dr_cli.evaluate.score_package", asked)
    for words in ("--by site", "--prevalence 10"):
        code, _, err = run("evaluate", "table.csv", "--model", "small", *words.split())
        assert (code, err.startswith("dr: ")) == (1, True)
        assert not Path("out").exists()


def test_a_copy_passes_the_gate_and_the_verdict_is_recorded_on_wish(run: Run, site: Path) -> None:
    renamed(shutil.copytree(site, "copy"))
    before = load_model_spec(Path("copy")).sha256
    gate = ("model", "gate", "copy", "table.csv", "--reference", str(site), "--margin", "0.05")
    gate += ("--draws", "30")
    code, out, _ = run(*gate, "--no-record")
    assert (code, "verdict: passed" in out) == (0, True)
    assert load_model_spec(Path("copy")).sha256 == before
    assert run(*gate)[0] == 0
    assert load_model_spec(Path("copy")).raw["gate"]["verdict"] == "passed"
    code, out, _ = run(*gate, "--split", "split.csv")
    assert (code, "verdict: insufficient data" in out) == (1, True)
    assert "at least 52 are needed" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("evaluate --model small", "name a table of `dr data table`, or a MedMNIST file"),
        ("evaluate table.csv --npz site.npz", "name a table"),
        ("evaluate table.csv --model small --url http://127.0.0.1:9", "choose one of"),
        ("evaluate table.csv --part test --model small", "--part needs a --split"),
        ("evaluate --npz site.npz --split split.csv", "parts of its own"),
        ("evaluate table.csv --split split.csv --part x", "no photograph in the part 'x'"),
        ("evaluate table.csv --model small --prevalence 5", "share between 0 and 1"),
        (
            "evaluate table.csv --model small --by site",
            "subgroups cannot be by 'site'; they can be by eye, published_split",
        ),
        ("evaluate table.csv --url http://127.0.0.1:9", "no photograph was graded"),
        ("model recalibrate small table.csv --out small", "is not empty"),
        (
            "model recalibrate small table.csv --split split.csv --out o --sensitivity 0.99",
            "insufficient data: 48 referable",
        ),
        ("model gate small/model.json table.csv --reference small", "is no folder"),
        ("model gate small table.csv --reference small --margin 2", "the margin of sensitivity"),
        ("model gate small nowhere.csv --reference small", "nowhere.csv cannot be read"),
        ("model gate small table.csv --reference small --part test", "--part needs a --split"),
    ],
)
def test_mistakes_are_one_sentence(run: Run, site: Path, arguments: str, sentence: str) -> None:
    code, _, err = run(*arguments.split())
    assert code == 1
    assert err.startswith("dr: ")
    assert sentence in err
    assert err.count("\n") == 1
