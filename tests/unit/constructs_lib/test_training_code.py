"""The archive of source that jobs train with: the same for the same source, and whole."""

import io
import os
import sys
import zipfile
from pathlib import Path

import pytest

from constructs_lib import ValidationError
from constructs_lib.training_code import PACKAGES, package_folder, training_code


def source(root: Path) -> dict[str, Path]:
    for name in ("b.py", "sub/a.py", "__init__.py"):
        path = root / "dr_training" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
    return {"dr_training": root / "dr_training"}


def test_the_archive_follows_the_source_alone(tmp_path: Path) -> None:
    folders = source(tmp_path / "one")
    first = training_code(folders)
    folder = folders["dr_training"]
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "b.cpython-311.pyc").write_bytes(b"cache")
    (folder / "notes.txt").write_text("no source")
    os.utime(folder / "b.py", (1, 1))
    (folder / "b.py").chmod(0o600)
    assert training_code(folders) == first
    assert training_code(source(tmp_path / "two")) == first
    (folder / "b.py").write_text("# other\n")
    assert training_code(folders) != first


def test_it_holds_source_in_one_order(tmp_path: Path) -> None:
    archive = zipfile.ZipFile(io.BytesIO(training_code(source(tmp_path))))
    assert archive.namelist() == [
        "dr_training/__init__.py",
        "dr_training/b.py",
        "dr_training/sub/a.py",
    ]
    assert archive.testzip() is None
    assert archive.read("dr_training/sub/a.py") == b"# sub/a.py\n"


def test_it_holds_both_packages_as_they_are_installed(repository: Path) -> None:
    archive = zipfile.ZipFile(io.BytesIO(training_code()))
    assert package_folder("dr_training") == repository / "dr_training"
    for name in PACKAGES:
        there = {
            path.relative_to(repository).as_posix() for path in (repository / name).rglob("*.py")
        }
        assert there
        assert there == {it for it in archive.namelist() if it.startswith(f"{name}/")}


def test_looking_for_a_package_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "dr_training", raising=False)
    training_code()
    assert "dr_training" not in sys.modules


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="package nothing_of_ours must be installed"):
        package_folder("nothing_of_ours")
    (tmp_path / "dr_training").mkdir()
    with pytest.raises(ValidationError, match="package dr_training must hold source"):
        training_code({"dr_training": tmp_path / "dr_training"})
