"""What the build removes from the image, and that it says when a line is out of date."""

from pathlib import Path

import pytest

from inference_image.docker import prune


def make(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("x", encoding="utf-8")


def left(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_files_folders_and_links_go_and_the_rest_stays(tmp_path: Path) -> None:
    make(tmp_path, "engine/gpu.so", "engine/cpu.so", "engine/tools/a/b.py", "numpy/core/tests/t.py")
    (tmp_path / "engine" / "link.so").symlink_to("gpu.so")
    idle = prune.prune(tmp_path, "# why\n\nengine/gpu.so\nengine/tools\nengine/link.so\n**/tests\n")
    assert idle == []
    assert left(tmp_path) == {"engine/cpu.so"}
    assert not (tmp_path / "engine" / "link.so").is_symlink()


def test_a_line_keeps_what_another_would_take(tmp_path: Path) -> None:
    make(tmp_path, "doc/a/copyright", "doc/a/changelog", "doc/b/examples/copyright")
    assert prune.prune(tmp_path, "doc/*/*\n!doc/*/copyright\n!doc/b/examples/copyright") == []
    assert left(tmp_path) == {"doc/a/copyright", "doc/b/examples/copyright"}


def test_what_is_inside_a_removed_folder_may_be_named_again(tmp_path: Path) -> None:
    make(tmp_path, "tests/a.h", "b.h")
    assert prune.prune(tmp_path, "tests\n**/*.h") == []
    assert left(tmp_path) == set()


def test_lines_that_match_nothing_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path, "tree/a")
    (tmp_path / "list.txt").write_text("a\nold/*.so\n!kept\n", encoding="utf-8")
    assert prune.main([str(tmp_path / "tree"), str(tmp_path / "list.txt")]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "nothing matches list.txt: old/*.so",
        "nothing matches list.txt: !kept",
    ]
