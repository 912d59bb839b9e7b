"""C that is compiled when it is needed."""

import os
from pathlib import Path

import pytest

from benchmarks import compiled
from benchmarks.compiled import NotCompiledError, load


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "seven.c"
    file.write_text("int seven(void) { return SEVEN; }\n", encoding="ascii")
    return file


def test_a_file_is_compiled_with_its_flags_and_leaves_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "made"
    made.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(made))
    assert load(source, "-DSEVEN=7").seven() == 7
    assert list(made.iterdir()) == []


def test_the_next_compiler_is_tried_where_one_does_not_work(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = compiled.compilers()[0]
    monkeypatch.setattr(compiled, "compilers", lambda: [["false"], ["/no/such/file"], works])
    assert load(source, "-DSEVEN=8").seven() == 8


def test_what_does_not_compile_is_told_in_one_sentence(source: Path) -> None:
    with pytest.raises(NotCompiledError, match=r"^cc does not compile seven\.c: .*SEVEN"):
        load(source)


def test_without_a_compiler_it_is_told_what_is_missing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(compiled, "_ZIG", "no_such_package")
    assert compiled.compilers() == []
    with pytest.raises(NotCompiledError, match=r"^benchmarks need a C compiler \(cc\) or the pack"):
        load(source)


def test_what_set_up_has_fetched_is_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(compiled, "_SET_UP", tmp_path)
    before = compiled.compilers()
    (tmp_path / "ziglang").mkdir()
    assert [words[1:] for words in compiled.compilers()] == [["-m", "ziglang", "cc"]]
    assert before in ([], compiled.compilers())
    assert str(tmp_path) in compiled._environment("x")["PYTHONPATH"].split(os.pathsep)
