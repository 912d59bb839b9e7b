"""Where a SavedModel or a `.tflite` file is found, and what is said where it is not."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from inference_image.contract import RUNTIME_AUTO, RUNTIME_LITERT, RUNTIME_TENSORFLOW
from inference_image.model_files import (
    ModelFile,
    models_of_folder,
    models_of_package,
    saved_model_folder,
)
from inference_image.model_spec import ModelPackageError, load_model_spec
from inference_image.predictor import Predictor
from inference_image.runtimes import choose, installed
from tests.service_harness import TINY_MODEL, copy_package, drawn_jpeg


@pytest.mark.parametrize(
    ("paths", "folder"),
    [
        (["saved_model.pb"], "."),
        (["1/saved_model.pb"], "1"),
        (["9/saved_model.pb", "10/saved_model.pb"], "10"),
        (["002/saved_model.pb", "01/saved_model.pb"], "002"),
        (["model/saved_model.pb"], "model"),
        (["model/1/saved_model.pb", "model/2/saved_model.pb"], "model/2"),
        (["export/Servo/9/saved_model.pb", "export/Servo/10/saved_model.pb"], "export/Servo/10"),
        (["export/saved_model.pb"], "export"),
        (["name/model/1/saved_model.pb"], "name/model/1"),
        # A nearer place decides.
        (["saved_model.pb", "1/saved_model.pb"], "."),
        (["model/7/saved_model.pb", "1/saved_model.pb"], "1"),
        (["other/saved_model.pb", "export/Servo/1/saved_model.pb"], "export/Servo/1"),
        # A folder that is not a number is a name, not a version.
        (["v2/saved_model.pb"], "v2"),
        # Written as text.
        (["1/saved_model.pbtxt", "2/saved_model.pbtxt"], "2"),
        (["1/saved_model.pbtxt", "1/saved_model.pb"], "1"),
        (["model/best/saved_model.pb"], "model/best"),
    ],
)
def test_the_saved_model_is_found_however_deep_it_lies(paths: list[str], folder: str) -> None:
    found = saved_model_folder([*paths, "README.md", "variables/variables.index"])
    assert found is not None
    assert found.as_posix() == folder


def test_no_saved_model_is_none() -> None:
    assert saved_model_folder(["model.tflite", "x/saved_model.txt"]) is None


def test_two_saved_models_of_one_rank_are_listed() -> None:
    with pytest.raises(ModelPackageError, match=r"more than one SavedModel.*a/1, b/2"):
        saved_model_folder(["a/1/saved_model.pb", "b/2/saved_model.pb"])


def touch(folder: Path, *paths: str) -> Path:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(b"x")
    return folder


def test_both_kinds_are_offered(tmp_path: Path) -> None:
    folder = touch(tmp_path, "model.tflite", "1/saved_model.pb", "lost+found/a.tflite", ".b.tflite")
    assert models_of_folder(folder) == {
        RUNTIME_LITERT: ModelFile(runtime=RUNTIME_LITERT, path=folder / "model.tflite"),
        RUNTIME_TENSORFLOW: ModelFile(runtime=RUNTIME_TENSORFLOW, path=folder / "1"),
    }


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ((), "it holds nothing$"),
        (
            ("weights.h5", "a/b.keras"),
            r"holds no model\.json.*it holds a/b\.keras, weights\.h5; .*model\.export\(",
        ),
        (("a.tflite", "b.tflite"), r"more than one \.tflite file: a\.tflite, b\.tflite"),
        (("1/saved_model.pb", "1/code/inference.py"), r"code of its own \(1/code/inference\.py\)"),
        (tuple(f"{n:02}.txt" for n in range(20)), r"00\.txt.*07\.txt, \.\.\.$"),
        (("a/b/c/d/e/f/g/h/1/saved_model.pb",), r"holds nothing; what lies deeper than 8 folders"),
    ],
)
def test_what_cannot_be_served_says_what_was_seen(
    tmp_path: Path, files: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(ModelPackageError, match=sentence):
        models_of_folder(touch(tmp_path, *files))


def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelPackageError, match="the folder does not exist"):
        models_of_folder(tmp_path / "absent")


def test_a_file_in_place_of_the_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelPackageError, match="it is no folder"):
        models_of_folder(touch(tmp_path, "model.tflite") / "model.tflite")


@pytest.mark.parametrize("name", ["model/model.json", "Model.json", "a/b/MODEL.JSON"])
@pytest.mark.parametrize("cut", [False, True])
def test_a_package_that_lies_too_deep_is_not_served_without_its_thresholds(
    tmp_path: Path, name: str, *, cut: bool
) -> None:
    path = tmp_path / name
    shutil.copytree(TINY_MODEL, path.parent, dirs_exist_ok=True)
    text = (path.parent / "model.json").read_text(encoding="utf-8")
    (path.parent / "model.json").unlink()
    path.write_text(text[: len(text) // 2] if cut else text, encoding="utf-8")
    with pytest.raises(ModelPackageError, match=rf"is {name}, and not model\.json at its root"):
        Predictor.load(tmp_path, threads=1)


def test_a_model_is_found_in_a_package_as_well() -> None:
    """`dr model import` may take one apart."""
    assert set(models_of_folder(TINY_MODEL)) == {RUNTIME_LITERT}


@pytest.mark.parametrize("name", ["model/model.json", "Model.json"])
def test_a_link_that_may_be_the_description_is_not_passed_over(tmp_path: Path, name: str) -> None:
    folder = touch(tmp_path, "1/saved_model.pb", "model/description.txt")
    (folder / name).symlink_to(folder / "model" / "description.txt")
    with pytest.raises(ModelPackageError, match=f"{name} in .* is a link, which is not followed"):
        models_of_folder(folder)


def test_somebody_elses_model_json_below_is_no_description(tmp_path: Path) -> None:
    folder = touch(tmp_path, "1/saved_model.pb")
    (folder / "1" / "assets.extra").mkdir()
    (folder / "1" / "assets.extra" / "model.json").write_text('{"class_name": "Functional"}')
    assert set(models_of_folder(folder)) == {RUNTIME_TENSORFLOW}


def test_folders_that_may_not_be_looked_into_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may look everywhere, so the refusal is the test's own."""
    folder = touch(tmp_path, "export/1/saved_model.pb", "closed.txt")
    shut = {folder / "export"}
    scandir, lstat = os.scandir, Path.lstat

    def closed(path: object) -> object:
        if Path(str(path)) in shut:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)  # type: ignore[call-overload]

    def unknown(path: Path) -> os.stat_result:
        if path.name == "closed.txt":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return lstat(path)

    monkeypatch.setattr(os, "scandir", closed)
    monkeypatch.setattr(Path, "lstat", unknown)
    with pytest.raises(
        ModelPackageError,
        match=r"holds nothing; closed\.txt cannot be read \(Permission denied\); export cannot",
    ):
        models_of_folder(folder)
    shut.add(folder)
    with pytest.raises(ModelPackageError, match=r"^\S+ cannot be read \(Permission denied\)$"):
        models_of_folder(folder)


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = touch(tmp_path / "outside", "1/saved_model.pb")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "1").symlink_to(outside / "1")
    (tmp_path / "model" / "model.tflite").symlink_to(outside / "1" / "saved_model.pb")
    with pytest.raises(ModelPackageError, match="it holds nothing"):
        models_of_folder(tmp_path / "model")


def test_a_file_inside_the_saved_model_that_is_not_listed_is_refused(tmp_path: Path) -> None:
    entry = {"sha256": "0" * 64, "size_bytes": 1}
    package = copy_package(
        tmp_path / "package", {"files": {"1/saved_model.pb": entry}, "head_file": None}
    )
    touch(package, "1/saved_model.pb")
    spec = load_model_spec(package)
    assert set(models_of_package(spec, package)) == {RUNTIME_TENSORFLOW}
    touch(package, "1/variables/variables.index")
    with pytest.raises(ModelPackageError, match=r"1/variables/variables\.index.*is not listed"):
        models_of_package(spec, package)


def test_a_package_without_a_model_is_refused(tmp_path: Path) -> None:
    entry = {"sha256": "0" * 64, "size_bytes": 1}
    package = copy_package(tmp_path / "package", {"files": {"a.onnx": entry}, "head_file": None})
    with pytest.raises(
        ModelPackageError, match=r"must list a \.tflite file or a SavedModel.*a\.onnx"
    ):
        models_of_package(load_model_spec(package), package)


LITERT = ModelFile(runtime=RUNTIME_LITERT, path=Path("model.tflite"))
SAVED = ModelFile(runtime=RUNTIME_TENSORFLOW, path=Path("1"))


def test_litert_is_preferred_where_it_is_installed() -> None:
    assert installed(RUNTIME_LITERT)
    assert choose({RUNTIME_LITERT: LITERT, RUNTIME_TENSORFLOW: SAVED}, RUNTIME_AUTO) == LITERT


def test_a_runtime_that_the_package_lacks_is_refused() -> None:
    with pytest.raises(ModelPackageError, match=r"set to tensorflow, but the model is for LiteRT"):
        choose({RUNTIME_LITERT: LITERT}, RUNTIME_TENSORFLOW)


def test_a_runtime_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference_image.runtimes.installed", lambda _: False)
    with pytest.raises(ModelPackageError, match=r"tensorflow is not installed.*RUNTIME=tensorflow"):
        choose({RUNTIME_TENSORFLOW: SAVED}, RUNTIME_AUTO)


def test_a_tflite_file_alone_is_served_and_says_what_is_assumed(tmp_path: Path) -> None:
    shutil.copy(TINY_MODEL / "model.tflite", tmp_path / "mine.tflite")
    predictor = Predictor.load(tmp_path, threads=1)
    predictor.warm_up()
    answer = predictor.predict(drawn_jpeg())
    described = Predictor.load(TINY_MODEL, threads=1).predict(drawn_jpeg())
    assert not predictor.described
    assert answer.probabilities is not None
    assert described.probabilities is not None
    assert answer.grade == described.grade
    # The package's temperature is 1.5 and cannot be known.
    assert answer.probabilities != pytest.approx(described.probabilities, abs=1e-6)
    notice = predictor.spec.notice or ""
    for word in ("model.json", "No DR first", "'logits' holds logits", "0..255", "0.5"):
        assert word in notice
    assert predictor.spec.operating_point().name == "default"


def test_the_digest_of_a_plain_model_follows_its_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        shutil.copy(TINY_MODEL / "model.tflite", tmp_path / name / "model.tflite")
    first = Predictor.load(tmp_path / "a", threads=1).spec.sha256
    assert Predictor.load(tmp_path / "b", threads=1).spec.sha256 == first
    with (tmp_path / "b" / "model.tflite").open("ab") as stream:
        stream.write(b"\0")
    assert Predictor.load(tmp_path / "b", threads=1).spec.sha256 != first


def test_a_range_that_a_byte_model_cannot_have_is_refused(tmp_path: Path) -> None:
    shutil.copy(TINY_MODEL / "model.tflite", tmp_path / "model.tflite")
    with pytest.raises(ModelPackageError, match=r"from 0 to 255.*become -1 to 1.*DR_PLAIN_INPUT"):
        Predictor.load(tmp_path, threads=1, plain_input="-1..1")
