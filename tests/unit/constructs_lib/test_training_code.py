"""The archive of source that jobs train with: the same for the same source, and whole."""

import io
import os
import sys
import zipfile
from pathlib import Path

import pytest

from constructs_lib import ValidationError
from constructs_lib.training_code import package_folder, training_code


def source(root: Path) -> Path:
    for name in ("b.py", "sub/a.py", "__init__.py"):
        path = root / "dr_training" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
    return root / "dr_training"


def test_the_archive_follows_the_source_alone(tmp_path: Path) -> None:
    folder = source(tmp_path / "one")
    first = training_code(folder)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "b.cpython-311.pyc").write_bytes(b"cache")
    (folder / "notes.txt").write_text("no source")
    os.utime(folder / "b.py", (1, 1))
    (folder / "b.py").chmod(0o600)
    assert training_code(folder) == first
    assert training_code(source(tmp_path / "two")) == first
    (folder / "b.py").write_text("# other\n")
    assert training_code(folder) != first


def test_it_holds_source_in_one_order(tmp_path: Path) -> None:
    archive = zipfile.ZipFile(io.BytesIO(training_code(source(tmp_path))))
    assert archive.namelist() == [
        "dr_training/__init__.py",
        "dr_training/b.py",
        "dr_training/sub/a.py",
    ]
    assert archive.testzip() is None
    assert archive.read("dr_training/sub/a.py") == b"# sub/a.py\n"


def test_it_holds_the_package_as_it_is_installed_and_nothing_of_the_service(
    repository: Path,
) -> None:
    archive = zipfile.ZipFile(io.BytesIO(training_code()))
    package = repository / "dr_training"
    assert package_folder("dr_training") == package
    there = {path.relative_to(repository).as_posix() for path in package.rglob("*.py")}
    assert "dr_training/job/__main__.py" in there
    assert set(archive.namelist()) == there


def test_looking_for_the_package_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "dr_training", raising=False)
    training_code()
    assert "dr_training" not in sys.modules


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="package nothing_of_ours must be installed"):
        package_folder("nothing_of_ours")
    (tmp_path / "dr_training").mkdir()
    with pytest.raises(ValidationError, match="package dr_training must hold source"):
        training_code(tmp_path / "dr_training")
